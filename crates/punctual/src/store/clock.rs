//! The clock of a store: the only place in the library that reads a clock for scheduling (S14).

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

use super::simulation;
use crate::core::time::Timestamp;

/// The system's clock, or a clock that a test sets.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's clock. Its steps are followed, not hidden.
    System,
    /// A clock that stands still until it is set or advanced.
    Manual(ManualClock),
}

impl Clock {
    /// Returns the time in ms, rounded down so that nothing starts early.
    pub fn now(&self) -> Timestamp {
        self.read().0
    }

    /// Returns the time as [`now`](Self::now) does, and how much of its millisecond has passed.
    pub(crate) fn read(&self) -> (Timestamp, Duration) {
        match self {
            Self::System => {
                let real = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let since = simulation::since_epoch().unwrap_or_else(real);
                let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                (
                    Timestamp::saturating_from_ms(ms),
                    Duration::from_nanos((since.subsec_nanos() % 1_000_000).into()),
                )
            }
            Self::Manual(clock) => (clock.now(), Duration::ZERO),
        }
    }
}

/// Returns how far the clock was ahead of now when the last fence was made. A fence is never below the clock in
/// microseconds, and never goes back.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) fn was_ahead(fence: u64, now: Timestamp) -> Duration {
    Timestamp::saturating_from_ms(fence / 1_000).since(now)
}

/// Returns what `doctor` says about a clock that was ahead by this much, and what to try.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) fn told_ahead(ahead: Duration) -> (String, &'static str) {
    let text = format!(
        "was {} s ahead of now once, and went back: jobs that were enqueued meanwhile may be due as much later",
        ahead.as_secs()
    );
    (
        text,
        "look at what waits (punctual upcoming) and reschedule it; workers mend schedules within 20 minutes",
    )
}

/// A clock for tests. Clones share it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<watch::Sender<Timestamp>>);

impl ManualClock {
    /// Makes a clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(watch::Sender::new(start)))
    }

    /// Returns its time.
    pub fn now(&self) -> Timestamp {
        *self.0.borrow()
    }

    /// Advances it.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now = now.after(by));
    }

    /// Sets it, forwards or back.
    pub fn set(&self, to: Timestamp) {
        self.0.send_replace(to);
    }

    /// Returns a receiver that is notified when the clock is set.
    pub(crate) fn changes(&self) -> watch::Receiver<Timestamp> {
        self.0.subscribe()
    }
}
