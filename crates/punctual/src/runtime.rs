//! The runtime layer: clients, workers and the toolkit, on tokio. It knows a store only as `dyn Store`.

pub(crate) mod client;
pub(crate) mod handler;
pub(crate) mod middleware;
mod repeat;
#[cfg(feature = "testing")]
pub mod testing;
pub(crate) mod toolkit;
pub(crate) mod worker;
