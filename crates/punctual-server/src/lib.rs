#![doc = include_str!("../README.md")]

mod listen;
mod metrics;

pub use listen::{Listening, listen, router};
pub use metrics::text;
