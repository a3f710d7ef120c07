//! Times in which the store could not be reached, because of a failover or a restart. Calls are repeated for a while. The demo and its
//! workers record these times, since workers can lose their leases then.

use std::{
    cell::RefCell,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::LEASE;

/// For how long a call is repeated.
const PATIENCE: Duration = Duration::from_secs(30);
/// Before a call is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// With a failover, a call that takes longer than this counts as an absence, too: half of a lease, which is extended more often.
const PROMPT: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 2);

/// A stretch of the wall clock, in microseconds: from the beginning of a call that was not answered promptly to its answer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Span {
    from: u64,
    to: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Absences {
    spans: RefCell<Vec<Span>>,
    /// Whether other servers take over from one that is away. A store that is slow and can't be away explains nothing.
    takes_over: bool,
}

impl Absences {
    pub(super) fn of(store: &str) -> Self {
        let takes_over = store.contains("+sentinel:") || store.contains("+cluster:");
        Self { takes_over, ..Self::default() }
    }

    /// Returns the absences that were not returned before.
    pub(super) fn take(&self) -> Vec<Span> {
        self.spans.take()
    }

    /// Adds an absence that another process noticed.
    pub(super) fn add(&self, span: Span) {
        self.spans.borrow_mut().push(span);
    }

    /// Makes a call, again while its error says that this is right.
    pub(super) async fn outlast<T>(&self, call: impl AsyncFn() -> punctual::Result<T>) -> Result<T> {
        let (begin, from, mut failed) = (Instant::now(), now_us(), false);
        loop {
            match call().await {
                Ok(answer) => {
                    if failed || self.takes_over && PROMPT < begin.elapsed() {
                        self.add(Span { from, to: now_us() });
                    }
                    return Ok(answer);
                }
                Err(error) if error.is_repeatable() && begin.elapsed() < PATIENCE => {
                    tokio::time::sleep(PAUSE).await;
                    failed = true;
                }
                Err(error) => return Err(error).context("the store stayed away"),
            }
        }
    }

    /// Whether the store was away at some time between these.
    pub(super) fn touch(&self, from_us: u64, to_us: u64) -> bool {
        self.spans.borrow().iter().any(|span| span.from <= to_us && from_us <= span.to)
    }

    /// How long it was away in all, to whomever.
    pub(super) fn in_all(&self) -> Duration {
        let mut spans = self.spans.borrow().clone();
        spans.sort_by_key(|span| span.from);
        let (mut sum, mut until) = (0, 0);
        for span in spans {
            sum += span.to.saturating_sub(span.from.max(until));
            until = span.to.max(until);
        }
        Duration::from_micros(sum)
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use punctual::{Error, ErrorKind};

    use super::*;

    #[tokio::test]
    async fn a_call_outlasts_an_absence_which_is_written_down() {
        let (absences, calls) = (Absences::default(), Cell::new(0));
        let before = now_us();
        let answer = absences.outlast(async || {
            calls.set(calls.get() + 1);
            match calls.get() {
                1 => Err(Error::new(ErrorKind::Unavailable, "away")),
                2 => Err(Error::new(ErrorKind::UnknownOutcome, "back, and away again")),
                _ => Ok(()),
            }
        });
        answer.await.unwrap();
        assert_eq!(calls.get(), 3);
        assert!(absences.touch(before, now_us()) && !absences.touch(0, before - 1));
        assert!(PAUSE * 2 <= absences.in_all());
    }

    #[test]
    fn what_two_met_at_once_counts_once() {
        let absences = Absences::default();
        for (from, to) in [(10, 30), (0, 20), (15, 18), (40, 45)] {
            absences.add(Span { from, to });
        }
        assert_eq!(absences.in_all(), Duration::from_micros(35));
    }

    #[tokio::test]
    async fn what_does_not_pass_is_told_at_once() {
        let absences = Absences::default();
        let refused = async || Err::<(), _>(Error::new(ErrorKind::Unsupported, "no"));
        assert!(absences.outlast(refused).await.is_err());
        assert_eq!(absences.in_all(), Duration::ZERO);
    }
}
