//! Counts of a worker's activity.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    core::{
        job::{JobRecord, State},
        time::Timestamp,
    },
    store::Verdict,
};

/// Counts of what a worker did until it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// Runs after which the job was done.
    pub done: u64,
    /// Runs that failed and are retried.
    pub retried: u64,
    /// Runs that were snoozed.
    pub snoozed: u64,
    /// Runs that were released at shutdown, without counting an attempt.
    pub released: u64,
    /// Runs after which the job was dead.
    pub dead: u64,
    /// Runs after which the job was cancelled.
    pub cancelled: u64,
    /// Runs whose lease was lost before they were settled. They changed nothing.
    pub lost: u64,
    /// Expired leases that this worker's reserves reclaimed.
    pub reclaimed: u64,
    /// Publications distributed to all subscriptions of their topics. They count nowhere else.
    pub publications: u64,
    /// How late jobs started.
    pub lateness: Lateness,
}

impl WorkReport {
    /// Returns the number of runs that ended, in whatever way.
    pub const fn runs(&self) -> u64 {
        self.done + self.retried + self.snoozed + self.released + self.dead + self.cancelled + self.lost
    }

    /// Counts a run whose settlement was answered.
    pub(crate) fn settled(&mut self, verdict: &Verdict, state: State) {
        let count = match (state, verdict) {
            (State::Done, _) => &mut self.done,
            (State::Dead, _) => &mut self.dead,
            (State::Cancelled, _) => &mut self.cancelled,
            (_, Verdict::Retry { .. } | Verdict::RetryAfter { .. }) => &mut self.retried,
            (_, Verdict::Snooze { .. }) => &mut self.snoozed,
            _ => &mut self.released,
        };
        *count += 1;
    }
}

/// Live counts of a worker's activity. Cheap to clone; clones read the same counts.
#[derive(Clone, Debug, Default)]
pub struct LiveReport {
    report: Arc<Mutex<WorkReport>>,
    /// Fires when the worker has set its schedules or has ended.
    started: CancellationToken,
    /// Fires when the worker shuts down or has ended.
    stopping: CancellationToken,
}

impl LiveReport {
    /// Returns the counts until now.
    ///
    /// Publications are counted only when the worker ends.
    pub fn now(&self) -> WorkReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the worker has started and set its [schedules](crate::Worker::cron), or has ended.
    ///
    /// A store that is unavailable is waited for.
    ///
    /// Dropping the future changes nothing.
    pub async fn started(&self) {
        self.started.cancelled().await;
    }

    /// Waits until the worker shuts down or has ended, whatever asked for it: a signal, its caller, or
    /// [an order](crate::Client::order_worker).
    ///
    /// Dropping the future changes nothing.
    pub async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    pub(crate) fn put(&self, report: &WorkReport) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone_from(report);
    }

    /// Returns the token that wakes callers of [`LiveReport::started`].
    pub(crate) const fn start(&self) -> &CancellationToken {
        &self.started
    }

    /// Returns the token that wakes callers of [`LiveReport::stopping`].
    pub(crate) const fn stop(&self) -> &CancellationToken {
        &self.stopping
    }
}

/// Upper bounds of the buckets of [`Lateness`], in milliseconds; the last bucket has none.
const BOUNDS_MS: [u64; 16] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000];

/// A histogram of lateness: `started_at − run_at` by the store's clock.
///
/// For a job that was due before it was enqueued, lateness counts from the enqueue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    buckets: [u64; BOUNDS_MS.len() + 1],
    max_ms: u64,
    sum_ms: u64,
}

impl Lateness {
    /// Returns how late a job started: at `now`, if the record does not say when.
    pub(crate) fn of(job: &JobRecord, now: Timestamp) -> Duration {
        job.started_at.unwrap_or(now).since(job.run_at.max(job.created_at))
    }

    pub(crate) fn add(&mut self, late: Duration) {
        let ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
        self.max_ms = self.max_ms.max(ms);
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    /// Adds the counts of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += more;
        }
        self.max_ms = self.max_ms.max(other.max_ms);
        self.sum_ms = self.sum_ms.saturating_add(other.sum_ms);
    }

    /// Returns the number of jobs counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the lateness of all jobs.
    pub const fn sum(&self) -> Duration {
        Duration::from_millis(self.sum_ms)
    }

    /// Returns the greatest lateness, exact to the millisecond.
    pub const fn max(&self) -> Duration {
        Duration::from_millis(self.max_ms)
    }

    /// Returns a lateness that at least the fraction `q` of all jobs did not exceed.
    ///
    /// It is an upper bound of a bucket, or the exact maximum if that is less. It is zero if nothing was counted.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((self.count() as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bound, n) in BOUNDS_MS.iter().zip(self.buckets) {
            seen += n;
            if rank <= seen {
                return Duration::from_millis(*bound).min(self.max());
            }
        }
        self.max()
    }

    /// Returns the buckets in rising order.
    ///
    /// Each has an upper bound, inclusive (`None`: no bound), and a number of jobs.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = BOUNDS_MS.iter().map(|ms| Some(Duration::from_millis(*ms))).chain([None]);
        bounds.zip(self.buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(ms: &[u64]) -> Lateness {
        let mut lateness = Lateness::default();
        for ms in ms {
            lateness.add(Duration::from_millis(*ms));
        }
        lateness
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let counted: Vec<u64> = late(&[0, 1, 2, 3, 5, 6]).buckets().map(|(_, n)| n).collect();
        assert_eq!(counted[..4], [2, 1, 2, 1]);
    }

    #[test]
    fn quantiles_are_bounds_and_never_above_the_maximum() {
        let lateness = late(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 37]);
        assert_eq!(lateness.quantile(0.5), Duration::from_millis(1));
        assert_eq!(lateness.quantile(0.9), Duration::from_millis(1));
        assert_eq!(lateness.quantile(0.99), Duration::from_millis(37));
        assert_eq!(late(&[u64::MAX]).quantile(1.0), Duration::from_millis(u64::MAX));
        assert_eq!(late(&[]).quantile(0.5), Duration::ZERO);
    }
}
