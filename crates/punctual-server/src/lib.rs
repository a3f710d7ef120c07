#![doc = include_str!("../README.md")]

mod accept;
mod activity;
mod answers;
mod api;
mod dashboard;
mod failures;
mod figures;
pub mod gate;
mod listen;
#[cfg(feature = "mcp")]
mod mcp;
mod metrics;
mod operations;
mod ready;
mod reserved;
mod rights;
mod server;
mod session;
mod shares;
#[cfg(feature = "sqs")]
mod sqs;
mod tls;
pub mod token;
mod trace;
mod trouble;
mod why;

pub use api::api;
pub use dashboard::{DashboardOptions, dashboard};
pub use listen::{Listening, listen, router};
pub use metrics::text;
pub use reserved::is_reserved;
pub use server::Server;
pub use tls::Tls;
