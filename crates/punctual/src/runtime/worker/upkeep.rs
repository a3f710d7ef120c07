//! Upkeep of the whole store (S17), also of the queues that nobody serves: what rides on reserve and settle reaches only the queues
//! that somebody works on. Every worker does it from time to time; it is bounded, and done twice it changes nothing more.

use std::{convert::Infallible, time::Duration};

use crate::{core::limits::BATCH_MAX, runtime::repeat::Pauses, store::Store};

/// How often a worker sweeps the store, and up to half more, so that many of them don't do it at once.
const SWEEP_EVERY: Duration = Duration::from_mins(3);
/// Calls in a row, each of up to 1,000 items; the next round goes on with what is left.
const STEPS_MAX: usize = 100;

/// Sweeps the store as the worker starts, and then every few minutes.
pub(super) async fn keep_swept(store: &dyn Store) -> Infallible {
    let mut pauses = Pauses::default();
    loop {
        let pause = match round(store).await {
            Ok(()) => {
                pauses.reset();
                SWEEP_EVERY.mul_f64(1.0 + fastrand::f64() / 2.0)
            }
            Err(error) => {
                tracing::debug!(target: "punctual", %error, "could not sweep the store, will try again");
                pauses.next()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn round(store: &dyn Store) -> crate::Result<()> {
    for _ in 0..STEPS_MAX {
        if !store.sweep(BATCH_MAX).await?.more {
            break;
        }
    }
    Ok(())
}
