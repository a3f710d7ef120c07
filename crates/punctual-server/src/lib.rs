#![doc = include_str!("../README.md")]

mod api;
mod dashboard;
pub mod gate;
mod listen;
mod metrics;
pub mod token;

pub use api::api;
pub use dashboard::{DashboardOptions, dashboard};
pub use listen::{Listening, listen, router};
pub use metrics::text;
