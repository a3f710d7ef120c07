#![doc = include_str!("../README.md")]

mod api;
mod listen;
mod metrics;

pub use api::api;
pub use listen::{Listening, listen, router};
pub use metrics::text;
