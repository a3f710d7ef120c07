#![doc = include_str!("../README.md")]

pub mod gate;
mod listen;
mod metrics;
pub mod token;

pub use listen::{Listening, listen, router};
pub use metrics::text;
