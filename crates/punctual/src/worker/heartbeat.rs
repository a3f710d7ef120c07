//! Keeps the leases of a worker's runs, and hears of cancels and losses. Runs beside the loop, so that a slow settle or
//! reserve costs no lease; never settles anything.

use std::convert::Infallible;

use tokio::time::Instant;

use super::runs::Runs;
use crate::{
    limits::BATCH_MAX,
    repeat::Pauses,
    store::{LeaseStatus, Store},
};

/// Extends all leases every third of the shortest one, for ever.
pub(super) async fn heartbeat(store: &dyn Store, runs: &Runs) -> Infallible {
    let mut pauses = Pauses::default();
    loop {
        runs.beat().await;
        let leases = runs.to_extend(Instant::now());
        for leases in leases.chunks(BATCH_MAX) {
            let (missed, error) = match store.extend(leases).await {
                Ok(statuses) => {
                    let away = statuses.iter().filter(|status| **status == LeaseStatus::Away).count();
                    leases.iter().zip(statuses).for_each(|(lease, status)| runs.heard(*lease, status));
                    (away, "a part of the store is away".to_owned())
                }
                Err(error) => (leases.len(), error.to_string()),
            };
            if missed == 0 {
                pauses.reset();
            } else {
                let pause = pauses.next();
                tracing::warn!(target: "punctual", %error, ?pause, leases = missed, "could not extend leases");
                runs.beat_again_at(Instant::now() + pause);
            }
        }
    }
}
