//! `derive(Job)` for punctual.
