//! Scopes: which jobs, workers, steps and faults are explored. Each is small enough to visit all of its states.

use std::time::Duration;

use punctual::{
    JobId, NewJob, OnConflict, Payload, Priority, Timestamp, Unique, When,
    job::{Concurrency, IdMaker},
    store::{GroupLimits, QueueSettings},
};

/// The queue of all jobs.
pub const QUEUE: &str = "mail";

/// The time at which each exploration begins, in Unix ms.
pub const BEGIN_MS: u64 = 1_795_000_000_000;

/// The lease of all jobs: the default.
pub const LEASE: Duration = Duration::from_secs(15);

/// How long a failed job waits for its next attempt.
pub const BACKOFF: Duration = Duration::from_secs(10);

/// How far a jump moves the clock: past the end of each lease.
pub const JUMP: Duration = Duration::from_secs(25);

/// How far the clock goes back in a scope that lets it.
pub const STEP_BACK: Duration = Duration::from_secs(3);

/// The attempts of a job that names none.
pub const ATTEMPTS: u32 = 2;

/// How a worker ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The work is done.
    Ack,
    /// It failed, and is tried again after [`BACKOFF`].
    Retry,
    /// The same, and the group or queue is paused until then.
    RetryAfter,
    /// The job goes back as it came.
    Release,
    /// It is given up.
    Dead,
}

/// What is explored.
#[expect(clippy::struct_excessive_bools, reason = "each lets another kind of step happen")]
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its name.
    pub name: &'static str,
    /// What it shows, for people.
    pub about: &'static str,
    /// The jobs. They are stored at the beginning, unless `enqueues`.
    pub jobs: Vec<NewJob>,
    /// The settings of the queue.
    pub settings: QueueSettings,
    /// Whether each enqueue is a step.
    pub enqueues: bool,
    /// How many workers there are.
    pub workers: usize,
    /// How many jobs a worker holds at most.
    pub slots: usize,
    /// How many jobs a worker asks for.
    pub batches: &'static [usize],
    /// How runs end.
    pub ends: &'static [End],
    /// Whether a worker also settles and reserves in one call.
    pub settles_and_reserves: bool,
    /// Whether workers extend their leases.
    pub extends: bool,
    /// Whether answers of enqueues, reserves and settles can be lost.
    pub loses_answers: bool,
    /// Whether workers crash.
    pub crashes: bool,
    /// How often these happen at most.
    pub budget: Budget,
}

/// How often steps happen that nothing else bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Cancels by an operator.
    pub cancels: u8,
    /// Retries by an operator.
    pub retries: u8,
    /// Times at which an operator makes a waiting job due.
    pub run_nows: u8,
    /// Stops of the clock 1 ms before something is due or ends. Each adds instants that are 1 ms apart from all others.
    pub stops_before: u8,
    /// Jumps of the clock.
    pub jumps: u8,
    /// Steps of the clock back.
    pub backs: u8,
}

impl Scope {
    fn new(name: &'static str, about: &'static str, jobs: Vec<NewJob>) -> Self {
        Self {
            name,
            about,
            jobs,
            settings: QueueSettings::default(),
            enqueues: false,
            workers: 2,
            slots: 1,
            batches: &[1],
            ends: &[End::Ack, End::Retry],
            settles_and_reserves: false,
            extends: true,
            loses_answers: true,
            crashes: true,
            budget: Budget::default(),
        }
    }

    /// Returns the number of a job of this scope, from 0.
    pub fn number_of(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == id)
    }

    /// Returns how often a job can run.
    pub fn attempts(&self, job: usize) -> u32 {
        self.jobs[job].options.max_attempts.unwrap_or(ATTEMPTS)
    }

    /// All scopes, the smallest first.
    pub fn all() -> Vec<Self> {
        vec![
            Self {
                extends: false,
                loses_answers: false,
                budget: Budget { stops_before: 1, ..Budget::default() },
                ..Self::new(
                    "pair",
                    "two jobs, one of them due later: crashes, retries and late settles",
                    pair(),
                )
            },
            Self::new("lost", "the same with heartbeats and lost answers", pair()),
            Self {
                budget: Budget { cancels: 2, retries: 1, ..Budget::default() },
                ..Self::new("cancel", "cancels and an operator's retry against everything else", pair())
            },
            Self {
                slots: 2,
                batches: &[1, 2],
                settles_and_reserves: true,
                ..Self::new("batch", "three jobs, two slots, settle and reserve in one call", three())
            },
            Self {
                slots: 2,
                batches: &[1, 2],
                budget: Budget { cancels: 1, ..Budget::default() },
                ..Self::new(
                    "key",
                    "a concurrency key of 1, with a job of higher priority that is due later",
                    keyed([1, 1, 1]),
                )
            },
            Self {
                slots: 2,
                batches: &[1, 2],
                budget: Budget { cancels: 1, ..Budget::default() },
                ..Self::new(
                    "mixed-key",
                    "jobs of one concurrency key with limits 1, 2 and 1",
                    keyed([1, 2, 1]),
                )
            },
            Self {
                enqueues: true,
                budget: Budget { cancels: 1, retries: 1, ..Budget::default() },
                ..Self::new("unique", "enqueues of jobs that share a unique key, with each scope", unique())
            },
            Self {
                slots: 2,
                batches: &[1, 2],
                ends: &[End::Ack, End::RetryAfter],
                settings: QueueSettings {
                    concurrency: Some(3),
                    group: GroupLimits { concurrency: Some(1), ..GroupLimits::default() },
                    ..QueueSettings::default()
                },
                ..Self::new(
                    "group",
                    "two groups with a limit of 1 and an ungrouped job, runs that pause",
                    grouped(),
                )
            },
            Self {
                slots: 2,
                batches: &[1, 2],
                ends: &[End::Ack, End::Release],
                ..Self::new("poison", "jobs whose workers crash four times", poison())
            },
            Self {
                budget: Budget { jumps: 1, backs: 1, ..Budget::default() },
                extends: false,
                ..Self::new("clock", "a clock that jumps and goes back", pair())
            },
            Self {
                workers: 3,
                slots: 2,
                batches: &[1, 2],
                ends: &[End::Ack, End::Retry, End::Release],
                budget: Budget { cancels: 1, run_nows: 1, ..Budget::default() },
                ..Self::new(
                    "three",
                    "three jobs and three workers, two of the jobs with a concurrency key",
                    mixed(),
                )
            },
        ]
    }

    /// Returns the scope of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|scope| scope.name == name)
    }
}

/// Returns the beginning of each exploration.
pub fn begin() -> Timestamp {
    Timestamp::saturating_from_ms(BEGIN_MS)
}

/// Makes `N` jobs that are due now and can run twice.
fn jobs<const N: usize>() -> [NewJob; N] {
    let mut ids = IdMaker::default();
    std::array::from_fn(|i| {
        // The last 16 bits decide how long a job waits after expired leases (S9): 0 or half of a step, so that few instants
        // differ.
        let id = ids.make(BEGIN_MS, 0, 0x8000 * (i as u64 % 2));
        let mut job = NewJob::new(id, "k", QUEUE, Payload::json("1"));
        job.options.max_attempts = Some(ATTEMPTS);
        job
    })
}

fn later(job: NewJob) -> NewJob {
    NewJob { run_at: When::In(BACKOFF), ..job }
}

fn pair() -> Vec<NewJob> {
    let [a, b] = jobs();
    vec![a, later(b)]
}

fn three() -> Vec<NewJob> {
    let [a, b, c] = jobs();
    vec![a, b, later(c)]
}

fn keyed(limits: [u32; 3]) -> Vec<NewJob> {
    let jobs = jobs::<3>().into_iter().zip(limits);
    let mut jobs: Vec<NewJob> = jobs
        .map(|(job, limit)| NewJob { concurrency: Some(Concurrency { key: "to".to_owned(), limit }), ..job })
        .collect();
    jobs[2].run_at = When::In(BACKOFF);
    jobs[2].options.priority = Some(Priority::High);
    jobs
}

fn unique() -> Vec<NewJob> {
    let [a, b, c, d] = jobs();
    let with = |job: NewJob, unique: Unique| NewJob { unique: Some(unique), ..job };
    vec![
        with(a, Unique::key("x")),
        later(with(b, Unique::key("x").on_conflict(OnConflict::Reschedule))),
        with(c, Unique::key("y").until_start()),
        with(d, Unique::key("y").until_start()),
    ]
}

fn grouped() -> Vec<NewJob> {
    let [a, b, c, d] = jobs();
    let of = |job: NewJob, group: &str| NewJob { group: Some(group.to_owned()), ..job };
    vec![of(a, "a"), of(b, "a"), later(of(c, "b")), d]
}

fn poison() -> Vec<NewJob> {
    let [mut a, mut b] = jobs();
    (a.options.max_attempts, b.options.max_attempts) = (Some(4), Some(4));
    vec![a, b]
}

fn mixed() -> Vec<NewJob> {
    let [a, b, c] = jobs();
    let with =
        |job: NewJob| NewJob { concurrency: Some(Concurrency { key: "to".to_owned(), limit: 1 }), ..job };
    vec![with(a), with(b), later(c)]
}
