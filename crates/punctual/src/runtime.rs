//! The runtime layer: clients, workers, the toolkit and metrics, on tokio. It knows a store only as `dyn Store`.

pub(crate) mod client;
pub(crate) mod handler;
pub(crate) mod metrics;
pub(crate) mod middleware;
mod repeat;
#[cfg(feature = "testing")]
pub mod testing;
pub(crate) mod toolkit;
pub(crate) mod trace;
pub(crate) mod worker;
