//! Upkeep of the whole store (S17), also of queues that no worker serves.
//!
//! The upkeep in reserve and settle reaches only queues in use. Every worker sweeps from time to time. A sweep is
//! bounded and idempotent. It also reclaims expired leases of queues that nobody serves (S9). If it
//! finds one, the worker sweeps again when it can be reclaimed.

use std::{convert::Infallible, time::Duration};

use crate::{core::limits::BATCH_MAX, runtime::repeat::Pauses, store::Store};

/// How often a worker sweeps the store. Up to half is added, so that workers do not sweep all at once.
const SWEEP_EVERY: Duration = Duration::from_mins(3);
/// How long after its start a worker sweeps first: its first reserve reclaims the leases of its own queues, and reports them.
const SWEEP_AFTER_START: Duration = Duration::from_millis(100);
/// The shortest pause between two sweeps that reclaim leases.
const RECLAIM_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Calls in a row, each of up to 1,000 items. The next round continues with what is left.
const STEPS_MAX: usize = 100;

/// Sweeps the store soon after the worker has started, and then every few minutes.
pub(super) async fn keep_swept(store: &dyn Store) -> Infallible {
    let mut pauses = Pauses::default();
    tokio::time::sleep(SWEEP_AFTER_START).await;
    loop {
        let pause = match round(store).await {
            Ok(next_reclaim) => {
                pauses.reset();
                let pause = SWEEP_EVERY.mul_f64(1.0 + fastrand::f64() / 2.0);
                next_reclaim.map_or(pause, |next| pause.min(next.max(RECLAIM_PAUSE_MIN)))
            }
            Err(error) => {
                tracing::debug!(target: "punctual", %error, "could not sweep the store, will try again");
                pauses.next()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Sweeps until nothing is left; returns when a lease that a silence holds back can be reclaimed.
async fn round(store: &dyn Store) -> crate::Result<Option<Duration>> {
    let mut next_reclaim = None;
    for _ in 0..STEPS_MAX {
        let swept = store.sweep(BATCH_MAX).await?;
        next_reclaim = swept.next_reclaim_ms.map(Duration::from_millis).into_iter().chain(next_reclaim).min();
        if !swept.more {
            break;
        }
    }
    Ok(next_reclaim)
}
