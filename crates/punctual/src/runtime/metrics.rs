//! Counters and histograms of what clients and workers do, for a monitoring system.
//!
//! A client without metrics has none of this: no wrapper, no lock, no map. With metrics, its store is wrapped
//! (`metrics/measured.rs`): each call is timed, and enqueues, starts and reclaimed leases are read from its answers. A
//! worker adds what only it knows: the time of runs and their verdicts.

mod measured;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) use self::measured::Measured;
use crate::{
    core::{error::ErrorKind, job::State},
    runtime::worker::Lateness,
    store::Enqueued,
};

/// Most queues that are counted by name. Jobs of further queues are counted as [`Metrics::OTHER`].
const QUEUES_MAX: usize = 1_000;
/// Most kinds of one queue that are counted by name. Jobs of further kinds are counted as [`Metrics::OTHER`].
const KINDS_MAX: usize = 100;
/// Most pairs of a queue and a kind that are counted by name.
const PAIRS_MAX: usize = 2_000;
/// Upper bounds of the buckets of [`Durations`], in microseconds; the last bucket has none.
const BOUNDS_US: [u64; 16] = [
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
];

/// Counts what the clients and workers that share it do.
///
/// Give it to a client with [`Client::with_metrics`](crate::Client::with_metrics). Workers of that client use it, too.
/// It counts from its start on, in this process only. Cheap to clone; clones share everything.
///
/// Counting an event takes a lock and two look-ups in maps. Names are bounded: 1,000 queues, 100 kinds of a queue, and
/// 2,000 pairs of both. What is beyond is counted as [`other`](Self::OTHER).
///
/// ```
/// # use punctual::{Client, Job, client::Metrics};
/// # #[derive(Job, serde::Serialize, serde::Deserialize)] #[job(kind = "remind", queue = "mail")] struct Remind { user: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let metrics = Metrics::default();
/// let client = Client::connect("memory:").await?.with_metrics(&metrics);
/// client.enqueue(Remind { user: 7 }).await?;
///
/// let counted = metrics.now();
/// assert_eq!(counted.queues["mail"].kinds["remind"].enqueued["inserted"], 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Metrics {
    counted: Arc<Mutex<Counted>>,
}

/// What was counted until now.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Counted {
    /// What happened to jobs, by queue.
    pub queues: HashMap<String, QueueCounted>,
    /// How long calls to the store took until their answer, by the name of the verb, in order. Waits are not timed.
    pub calls: BTreeMap<&'static str, Durations>,
    /// Calls to the store that failed, by the name of the verb and the code of the error.
    pub errors: BTreeMap<(&'static str, &'static str), u64>,
    /// The pairs of a queue and a kind that have a name of their own.
    pairs: usize,
}

/// What happened to the jobs of one queue.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct QueueCounted {
    /// How late jobs started.
    pub lateness: Lateness,
    /// Expired leases that reserves of this process reclaimed.
    pub reclaimed: u64,
    /// What happened to jobs, by kind.
    pub kinds: HashMap<String, KindCounted>,
}

/// What happened to the jobs of one kind in one queue.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindCounted {
    /// Jobs that were enqueued, by what became of them: `inserted`, `duplicate`, `replaced`, `rescheduled` or `full`.
    pub enqueued: BTreeMap<&'static str, u64>,
    /// Runs that started.
    pub started: u64,
    /// Runs that were settled, by verdict (`ack`, `retry`, `snooze`, `release`, `cancel` or `dead`) and by the new state of
    /// the job (`waiting`, `done`, `dead` or `cancelled`; `lost` if the lease was lost and nothing changed).
    pub settled: BTreeMap<(&'static str, &'static str), u64>,
    /// How long runs took, from the start to the end of the handler.
    pub runs: Durations,
}

impl Metrics {
    /// The name under which jobs are counted whose queue or kind is beyond the bounds.
    pub const OTHER: &str = "other";

    /// Returns what was counted until now.
    pub fn now(&self) -> Counted {
        self.counted().clone()
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a job of an enqueue.
    fn enqueued(&self, queue: &str, kind: &str, answer: &Enqueued) {
        *self.counted().kind(queue, kind).enqueued.entry(answer.name()).or_default() += 1;
    }

    /// Counts a job that started so late.
    pub(crate) fn started(&self, queue: &str, kind: &str, late: Duration) {
        let mut counted = self.counted();
        counted.queue(queue).lateness.add(late);
        counted.kind(queue, kind).started += 1;
    }

    /// Counts a run whose handler has ended.
    pub(crate) fn ran(&self, queue: &str, kind: &str, took: Duration) {
        self.counted().kind(queue, kind).runs.add(took);
    }

    /// Counts a run that was settled and led to this state; `None`: its lease was lost.
    pub(crate) fn settled(&self, queue: &str, kind: &str, verdict: &'static str, state: Option<State>) {
        let state = state.map_or("lost", State::name);
        *self.counted().kind(queue, kind).settled.entry((verdict, state)).or_default() += 1;
    }

    /// Counts an expired lease that was reclaimed.
    fn reclaimed(&self, queue: &str) {
        self.counted().queue(queue).reclaimed += 1;
    }

    /// Counts a call to the store.
    fn called(&self, verb: &'static str, took: Duration, error: Option<ErrorKind>) {
        let mut counted = self.counted();
        counted.calls.entry(verb).or_default().add(took);
        if let Some(kind) = error {
            *counted.errors.entry((verb, kind.code())).or_default() += 1;
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Counted {
    fn queue(&mut self, name: &str) -> &mut QueueCounted {
        let name = if self.queues.contains_key(name) || self.queues.len() < QUEUES_MAX {
            name
        } else {
            Metrics::OTHER
        };
        // A look-up before the insert: a known name needs no copy.
        if !self.queues.contains_key(name) {
            self.queues.insert(name.to_owned(), QueueCounted::default());
        }
        self.queues.get_mut(name).expect("invariant: it was inserted")
    }

    fn kind(&mut self, queue: &str, kind: &str) -> &mut KindCounted {
        let has_room = self.pairs < PAIRS_MAX;
        let kinds = &mut self.queue(queue).kinds;
        let name = if kinds.contains_key(kind) || (has_room && kinds.len() < KINDS_MAX) {
            kind
        } else {
            Metrics::OTHER
        };
        let is_new = !kinds.contains_key(name);
        if is_new {
            self.queue(queue).kinds.insert(name.to_owned(), KindCounted::default());
            self.pairs += 1;
        }
        self.queue(queue).kinds.get_mut(name).expect("invariant: it was inserted")
    }
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    buckets: [u64; BOUNDS_US.len() + 1],
    sum: Duration,
}

impl Durations {
    fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum = self.sum.saturating_add(took);
    }

    /// Returns the sum of all durations.
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns how many durations were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the buckets in rising order.
    ///
    /// Each has an upper bound, inclusive (`None`: no bound), and a number of durations.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = BOUNDS_US.iter().map(|us| Some(Duration::from_micros(*us))).chain([None]);
        bounds.zip(self.buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut durations = Durations::default();
        for us in [0, 100, 101, 3_600_000_000, 3_600_000_001] {
            durations.add(Duration::from_micros(us));
        }
        let counted: Vec<u64> = durations.buckets().map(|(_, n)| n).collect();
        assert_eq!((counted[0], counted[1], counted[15], counted[16]), (2, 1, 1, 1));
        assert_eq!(durations.count(), 5);
    }

    #[test]
    fn names_beyond_the_bounds_are_counted_together() {
        let metrics = Metrics::default();
        for queue in 0..QUEUES_MAX + 5 {
            metrics.settled(&format!("q{queue}"), "k", "ack", Some(State::Done));
        }
        for kind in 0..KINDS_MAX + 5 {
            metrics.settled("q1", &format!("k{kind}"), "ack", Some(State::Done));
        }
        let counted = metrics.now();
        assert_eq!(counted.queues.len(), QUEUES_MAX + 1);
        assert_eq!(counted.queues[Metrics::OTHER].kinds["k"].settled[&("ack", "done")], 5);
        assert_eq!(counted.queues["q1"].kinds.len(), KINDS_MAX + 1);
        assert_eq!(counted.queues["q1"].kinds[Metrics::OTHER].settled[&("ack", "done")], 6);
    }

    #[test]
    fn pairs_of_queues_and_kinds_are_bounded_together() {
        let metrics = Metrics::default();
        for queue in 0..QUEUES_MAX {
            for kind in 0..4 {
                metrics.settled(&format!("q{queue}"), &format!("k{kind}"), "ack", Some(State::Done));
            }
        }
        let pairs: usize = metrics.now().queues.values().map(|queue| queue.kinds.len()).sum();
        assert!(pairs <= PAIRS_MAX + QUEUES_MAX, "{pairs} pairs");
    }
}
