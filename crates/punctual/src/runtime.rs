//! The runtime layer: clients, workers, the toolkit and metrics, on tokio. It knows a store only as `dyn Store`.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, DefaultHasher},
};

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

/// A map that is iterated in the same order whenever the same keys were inserted in the same order, so that simulated fleets
/// repeat exactly. Use it for a bounded number of keys: whoever chooses them can make them collide.
type SteadyMap<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
