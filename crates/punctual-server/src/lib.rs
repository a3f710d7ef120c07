#![doc = include_str!("../README.md")]

mod dashboard;
mod listen;
mod metrics;

pub use dashboard::{DashboardOptions, dashboard};
pub use listen::{Listening, listen, router};
pub use metrics::text;
