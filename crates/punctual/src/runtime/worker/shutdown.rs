//! How a worker comes to its end.
//!
//! ```text
//! Working ──graceful──► Draining ──now, or the grace is over──► Ending ──all settled, or out of time──► ended
//! ```
//!
//! * **Working**: reserves, runs, settles.
//! * **Draining**: reserves nothing; every run's token fired; runs that end are settled by their own verdict.
//! * **Ending**: tasks are aborted; what was stopped is released, which counts no attempt.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long aborted tasks may take to be gone before their jobs are released regardless: one that blocks its thread never
/// goes.
pub(super) const ABORT_MAX: Duration = Duration::from_secs(1);
/// How long the store may take for the last settlements.
const LAST_SETTLE_MAX: Duration = Duration::from_secs(5);

/// Two signals that end a worker: let running handlers finish within the grace, or release everything now.
///
/// A single [`CancellationToken`] converts into the graceful one.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Reserve nothing more, fire the handlers' tokens, wait for them up to the grace.
    pub graceful: CancellationToken,
    /// Don't wait any longer.
    pub now: CancellationToken,
}

impl From<CancellationToken> for Shutdown {
    fn from(graceful: CancellationToken) -> Self {
        Self { graceful, now: CancellationToken::new() }
    }
}

/// Where a worker stands on its way to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Working,
    Draining {
        /// When the grace is over.
        until: Instant,
    },
    Ending {
        /// When aborted tasks are waited for no longer.
        until: Instant,
    },
}

impl Phase {
    /// Its name, for the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Draining { .. } => "draining",
            Self::Ending { .. } => "ending",
        }
    }
}

impl Shutdown {
    /// The phase that follows `phase` by now; `None`: it goes on.
    pub(super) fn step(&self, phase: Phase, grace: Duration, now: Instant) -> Option<Phase> {
        match phase {
            Phase::Working if self.graceful.is_cancelled() || self.now.is_cancelled() => {
                Some(Phase::Draining { until: now + grace })
            }
            Phase::Draining { until } if until <= now || self.now.is_cancelled() => {
                Some(Phase::Ending { until: now + ABORT_MAX })
            }
            _ => None,
        }
    }

    /// Waits until [`Shutdown::step`] has something to say, or until the time of the phase is over.
    pub(super) async fn stirred(&self, phase: Phase) {
        match phase {
            Phase::Working => tokio::select! {
                () = self.graceful.cancelled() => {}
                () = self.now.cancelled() => {}
            },
            Phase::Draining { until } => tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.now.cancelled() => {}
            },
            Phase::Ending { until } => tokio::time::sleep_until(until).await,
        }
    }

    /// Waits until the worker has to be gone, whatever the store does.
    pub(super) async fn out_of_time(&self, grace: Duration) {
        tokio::select! {
            () = self.now.cancelled() => {}
            () = async {
                self.graceful.cancelled().await;
                tokio::time::sleep(grace).await;
            } => {}
        }
        tokio::time::sleep(ABORT_MAX + LAST_SETTLE_MAX).await;
    }
}
