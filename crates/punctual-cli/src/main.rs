//! `punctual`.
fn main() {}
