//! Counters and histograms of what clients and workers do, for a monitoring system.
//!
//! A client without metrics has none of this: no wrapper, no lock, no map. With metrics, its store is wrapped
//! (`metrics/measured.rs`): each call is timed, and reclaimed leases are read from its answers. The client adds its
//! enqueues when it has their final answers. A worker adds starts, run times and verdicts.

mod measured;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) use self::measured::Measured;
use crate::{
    core::{error::ErrorKind, id::JobId, job::State},
    runtime::worker::Lateness,
    store::{Batch, Enqueued},
};

/// Most queues that are counted by name. Jobs of further queues are counted as [`Metrics::OTHER`].
const QUEUES_MAX: usize = 1_000;
/// Most kinds of one queue that are counted by name. Jobs of further kinds are counted as [`Metrics::OTHER`].
const KINDS_MAX: usize = 100;
/// Most pairs of a queue and a kind that are counted by name.
const PAIRS_MAX: usize = 2_000;
/// The outcome of an enqueue that inserted its job.
const INSERTED: &str = "inserted";
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
/// Counting an event takes a lock and some look-ups in maps. Names are bounded: 1,000 queues, 100 kinds of a queue, and
/// 2,000 pairs of both. Jobs of further queues and kinds are counted as [`other`](Self::OTHER), together with those
/// that have this name.
///
/// Not counted: enqueues in a transaction of the caller, enqueues whose future was dropped or that failed, jobs that
/// were taken, and runs of a test's drain. A publication counts as an enqueue in `$topics` only.
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
    /// How often a store was found to be another one than before, and the jobs of before were not in it.
    pub store_changes: u64,
    /// The pairs of a queue and a kind that are counted by name.
    pairs: usize,
}

/// What happened to the jobs of one queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueCounted {
    /// How late jobs started.
    pub lateness: Lateness,
    /// Expired leases that reserves of this process reclaimed, by the new state of the job: `waiting`, `dead` or
    /// `cancelled`.
    pub reclaimed: BTreeMap<&'static str, u64>,
    /// What happened to jobs, by kind.
    pub kinds: HashMap<String, KindCounted>,
}

impl Default for QueueCounted {
    /// States that alerts ask for begin at 0, because a counter that begins with its first event has no increase.
    fn default() -> Self {
        let reclaimed = [(State::Waiting.name(), 0), (State::Dead.name(), 0)].into();
        Self { lateness: Lateness::default(), reclaimed, kinds: HashMap::new() }
    }
}

/// What happened to the jobs of one kind in one queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KindCounted {
    /// Jobs that were enqueued, by outcome: `inserted`, `duplicate`, `replaced`, `rescheduled` or `full`.
    pub enqueued: BTreeMap<&'static str, u64>,
    /// Runs that started.
    pub started: u64,
    /// Runs that were settled, by verdict (`ack`, `retry`, `snooze`, `release`, `cancel` or `dead`) and by the new state of
    /// the job (`waiting`, `done`, `dead` or `cancelled`; `lost` if the lease was lost and nothing changed).
    pub settled: BTreeMap<(&'static str, &'static str), u64>,
    /// How long runs took, until their handlers ended or were aborted.
    pub runs: Durations,
}

impl Default for KindCounted {
    /// Verdicts that alerts ask for begin at 0, because a counter that begins with its first event has no increase.
    fn default() -> Self {
        let (waiting, done, dead) = (State::Waiting.name(), State::Done.name(), State::Dead.name());
        let settled = [("ack", done), ("retry", waiting), ("retry", dead), ("dead", dead)];
        let settled = settled.map(|names| (names, 0)).into();
        Self { enqueued: BTreeMap::new(), started: 0, settled, runs: Durations::default() }
    }
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

    /// Counts the jobs of an enqueue, each with its id, queue and kind, and its answer.
    ///
    /// If the answer to a call was lost, its repetition finds the caller's own jobs: those count as inserted. For a derived
    /// id nobody can tell.
    pub(crate) fn enqueued<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a (JobId, String, String), &'a Enqueued)>,
    ) {
        let mut counted = self.counted();
        for ((id, queue, kind), answer) in jobs {
            let is_own =
                matches!(answer, Enqueued::Duplicate(existing) if existing.id == *id) && !id.is_derived();
            let status = if is_own { INSERTED } else { answer.name() };
            *counted.kind(queue, kind).enqueued.entry(status).or_default() += 1;
        }
    }

    /// Counts a started run and its lateness.
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

    /// Counts the expired leases that a reserve reclaimed.
    fn reclaimed(&self, batch: &Batch) {
        if batch.reclaimed.is_empty() {
            return;
        }
        let mut counted = self.counted();
        for reclaimed in &batch.reclaimed {
            *counted.queue(&reclaimed.queue).reclaimed.entry(reclaimed.state.name()).or_default() += 1;
        }
    }

    /// Counts a call to the store.
    fn called(&self, verb: &'static str, took: Duration) {
        self.counted().calls.entry(verb).or_default().add(took);
    }

    /// Counts that a store was another one than before.
    fn store_changed(&self) {
        self.counted().store_changes += 1;
    }

    /// Counts a failed call to the store.
    fn failed(&self, verb: &'static str, kind: ErrorKind) {
        *self.counted().errors.entry((verb, kind.code())).or_default() += 1;
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Counted {
    fn queue(&mut self, name: &str) -> &mut QueueCounted {
        let is_known = self.queues.contains_key(name);
        let name = if is_known || self.queues.len() < QUEUES_MAX { name } else { Metrics::OTHER };
        // Looked up first: a known name needs no copy.
        if !self.queues.contains_key(name) {
            self.queues.insert(name.to_owned(), QueueCounted::default());
        }
        self.queues.get_mut(name).expect("invariant: it was inserted")
    }

    fn kind(&mut self, queue: &str, kind: &str) -> &mut KindCounted {
        let has_room = self.pairs < PAIRS_MAX;
        let kinds = &self.queue(queue).kinds;
        let is_new = !kinds.contains_key(kind);
        let is_named = !is_new || (has_room && kinds.len() < KINDS_MAX);
        if is_new && is_named {
            self.pairs += 1;
        }
        let kinds = &mut self.queue(queue).kinds;
        let name = if is_named { kind } else { Metrics::OTHER };
        if !kinds.contains_key(name) {
            kinds.insert(name.to_owned(), KindCounted::default());
        }
        kinds.get_mut(name).expect("invariant: it was inserted")
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
        let counted = metrics.now();
        let kinds = || counted.queues.values().flat_map(|queue| &queue.kinds);
        let named = kinds().filter(|(kind, _)| *kind != Metrics::OTHER).count();
        assert_eq!((named, kinds().count()), (PAIRS_MAX, PAIRS_MAX + 500));
        let all: u64 = kinds().map(|(_, counted)| counted.settled[&("ack", "done")]).sum();
        assert_eq!(all, 4 * QUEUES_MAX as u64);
    }
}
