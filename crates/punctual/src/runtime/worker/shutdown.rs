//! The shutdown of a worker.
//!
//! ```text
//! Working ──graceful──► Draining ──now, or the grace is over──► Ending ──all settled, or out of time──► ended
//! ```
//!
//! * **Working**: reserves, runs, settles.
//! * **Draining**: reserves nothing, but repeats a reserve whose answer was lost, to give back what it reserved; the token of every
//!   run has fired; runs that end are settled by their own verdict.
//! * **Ending**: tasks are aborted; stopped runs are released, which counts no attempt.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long aborted tasks can take before their jobs are released anyway. A task that blocks its thread never ends.
pub(super) const ABORT_MAX: Duration = Duration::from_secs(1);
/// How long the store can take for the last settlements.
const LAST_SETTLE_MAX: Duration = Duration::from_secs(5);

/// Two signals that end a worker: gracefully, or at once.
///
/// A single [`CancellationToken`] converts into the graceful signal.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Reserves nothing more, fires the handlers' tokens, and waits for handlers up to the grace period.
    pub graceful: CancellationToken,
    /// Ends the wait and releases everything.
    pub now: CancellationToken,
}

impl From<CancellationToken> for Shutdown {
    fn from(graceful: CancellationToken) -> Self {
        Self { graceful, now: CancellationToken::new() }
    }
}

/// The phase of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Working,
    Draining {
        /// When the grace period is over.
        until: Instant,
    },
    Ending {
        /// When the wait for aborted tasks is over.
        until: Instant,
    },
}

impl Phase {
    /// Returns its name, for the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Draining { .. } => "draining",
            Self::Ending { .. } => "ending",
        }
    }
}

impl Shutdown {
    /// Returns whether the worker was asked to end.
    pub(super) fn is_asked(&self) -> bool {
        self.graceful.is_cancelled() || self.now.is_cancelled()
    }

    /// Returns the phase that follows `phase` now; `None` if it continues.
    pub(super) fn step(&self, phase: Phase, grace: Duration, now: Instant) -> Option<Phase> {
        match phase {
            Phase::Working if self.is_asked() => Some(Phase::Draining { until: now + grace }),
            Phase::Draining { until } if until <= now || self.now.is_cancelled() => {
                Some(Phase::Ending { until: now + ABORT_MAX })
            }
            _ => None,
        }
    }

    /// Waits until [`Shutdown::step`] can return a new phase.
    pub(super) async fn stirred(&self, phase: Phase) {
        match phase {
            Phase::Working => tokio::select! {
                biased;
                () = self.graceful.cancelled() => {}
                () = self.now.cancelled() => {}
            },
            Phase::Draining { until } => tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => {}
                () = self.now.cancelled() => {}
            },
            Phase::Ending { until } => tokio::time::sleep_until(until).await,
        }
    }

    /// Waits until the worker must end, whatever the store does.
    pub(super) async fn out_of_time(&self, grace: Duration) {
        tokio::select! {
            biased;
            () = self.now.cancelled() => {}
            () = async {
                self.graceful.cancelled().await;
                tokio::time::sleep(grace).await;
            } => {}
        }
        tokio::time::sleep(ABORT_MAX + LAST_SETTLE_MAX).await;
    }
}
