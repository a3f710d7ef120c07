//! Keeps the leases of a worker's runs, tells the store what they tell of themselves, and hears of cancels and losses. Runs
//! beside the loop, so that a slow settle or reserve costs no lease; never settles anything.

use std::{convert::Infallible, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::runs::Runs;
use crate::{
    error::Result,
    limits::{BATCH_BYTES_MAX, BATCH_MAX, NOTES_BYTES_MAX},
    repeat::Pauses,
    store::{Heartbeat, Lease, LeaseStatus, Store},
};

/// Between two times that the store is told what runs tell, if no heartbeat comes before.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a run that ended waits until the store has heard its last words.
const LAST_WORDS_MAX: Duration = Duration::from_millis(300);
/// Longest wait for a cancel: none is trusted.
const CANCEL_WAIT_MAX: Duration = Duration::from_mins(10);
/// Between two looks for cancels, so that a bell that rings for ever costs little; and where the store can't be waited for.
const CANCEL_PAUSE: Duration = Duration::from_millis(100);
const CANCEL_PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Extends all leases every third of the shortest one, for ever; and meanwhile those of runs that have something to tell.
pub(super) async fn heartbeat(store: &dyn Store, runs: &Runs) -> Infallible {
    let (mut pauses, mut told) = (Pauses::default(), None::<Instant>);
    loop {
        let news = async {
            runs.news.notified().await;
            if let Some(last) = told {
                tokio::time::sleep_until(last + TELL_EVERY).await;
            }
        };
        let is_beat = tokio::select! {
            biased;
            () = runs.beat() => true,
            () = news => false,
        };
        let _order = runs.telling().await;
        let beats = if is_beat { runs.to_extend(Instant::now()) } else { runs.to_tell(None, Instant::now()) };
        if beats.iter().any(|beat| beat.notes.is_some()) {
            told = Some(Instant::now());
        }
        for beats in slices(&beats) {
            let (missed, error) = match extend(store, runs, beats).await {
                Ok(missed) => (missed, "a part of the store cannot be reached".to_owned()),
                Err(error) => (beats.len(), error.to_string()),
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

/// One call's worth each.
fn slices(beats: &[Heartbeat]) -> impl Iterator<Item = &[Heartbeat]> {
    let has_notes = beats.iter().any(|beat| beat.notes.is_some());
    beats.chunks(if has_notes { BATCH_BYTES_MAX / NOTES_BYTES_MAX } else { BATCH_MAX })
}

/// The leases that something is told of.
fn told(beats: &[Heartbeat]) -> impl Iterator<Item = &Lease> {
    beats.iter().filter(|beat| beat.notes.is_some()).map(|beat| &beat.lease)
}

/// One call; answers how many leases it could not be asked for.
async fn extend(store: &dyn Store, runs: &Runs, beats: &[Heartbeat]) -> Result<usize> {
    let statuses = store.extend(beats).await.inspect_err(|_| runs.keep_news(told(beats)))?;
    let mut missed = 0;
    for (beat, status) in beats.iter().zip(statuses) {
        if status == LeaseStatus::Away {
            missed += 1;
            runs.keep_news(told(std::slice::from_ref(beat)));
        }
        runs.heard(beat.lease, status);
    }
    Ok(missed)
}

/// Tells the store what runs told before they ended, for as long as that may take: nothing but words depends on it.
pub(super) async fn last_words(store: &dyn Store, runs: &Runs, of: &[Lease]) {
    let telling = async {
        let _order = runs.telling().await;
        for beats in slices(&runs.to_tell(Some(of), Instant::now())) {
            if let Err(error) = extend(store, runs, beats).await {
                tracing::debug!(target: "punctual", %error, "could not write the last notes of runs");
                return;
            }
        }
    };
    if timeout(LAST_WORDS_MAX, telling).await.is_err() {
        // Should the settle be repeated, they are, too.
        runs.keep_news(of.iter());
        tracing::debug!(target: "punctual", "could not write the last notes of runs in time");
    }
}

/// Brings the heartbeat of these runs forward whenever somebody asks to cancel a job that this worker runs; for ever.
pub(super) async fn cancels(store: &dyn Store, bell: String, runs: &[&Runs]) -> Infallible {
    let bell = [bell];
    loop {
        // The pause is over by the time that a ring comes, as a rule: who rings again finds somebody.
        let (rung, ()) = tokio::join!(store.wait(&bell, CANCEL_WAIT_MAX), sleep(CANCEL_PAUSE));
        match rung {
            Ok(()) => runs.iter().for_each(|runs| runs.beat_again_at(Instant::now())),
            Err(error) => {
                tracing::debug!(target: "punctual", %error, "could not wait for cancels: heartbeats hear of them");
                sleep(CANCEL_PAUSE_AFTER_ERROR).await;
            }
        }
    }
}
