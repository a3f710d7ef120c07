//! Numbers for calls whose callers do not number them.
//!
//! The calls of one instance must reach the store in order (S3), so each instance has one call at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use punctual::store::CallId;
use tokio::sync::{Mutex, MutexGuard};

/// Most calls without a number at once. Further ones wait.
const LANES: usize = 16;

/// An instance, for one call. It holds the number of its last call.
pub(crate) type Lane<'a> = MutexGuard<'a, CallId>;

/// The instances.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: [Mutex<CallId>; LANES],
    next: AtomicUsize,
}

impl Lanes {
    /// Makes instances of numbers that `draw` draws.
    pub(crate) fn new(mut draw: impl FnMut() -> u64) -> Self {
        let lanes = std::array::from_fn(|_| Mutex::new(CallId { instance: draw(), number: 0 }));
        Self { lanes, next: AtomicUsize::default() }
    }

    /// Returns a free instance, or waits for one.
    pub(crate) async fn free(&self) -> Lane<'_> {
        for lane in &self.lanes {
            if let Ok(lane) = lane.try_lock() {
                return lane;
            }
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) % LANES;
        self.lanes[next].lock().await
    }
}
