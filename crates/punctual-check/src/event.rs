//! The lines of a history: plain data, one type per kind of event, the same for whoever writes and reads them.
//!
//! Nothing here judges. Numbers over 2^53 (instances, fingerprints) are written as hexadecimal text, so that tools which
//! read every number as a float don't round them.

use std::fmt;

use punctual::{
    JobId, JobRecord, OnConflict, State, Unique, When,
    job::{Concurrency, Scope},
    store::UniqueKey,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The referee's axis: `CLOCK_MONOTONIC` in nanoseconds, one for all processes of a machine.
    pub m: u64,
    /// The wall clock, in Unix milliseconds.
    pub w: u64,
    /// Ties an `ok`, `fail` or `info` to its `invoke`, within one file; 0 elsewhere.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n: u64,
    /// What happened.
    pub what: What,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The first line of each file.
    Open {
        /// Random per process start; nemesis lines name it.
        proc: String,
        /// For people.
        pid: u32,
        /// Jobs it may run at once.
        slots: u64,
        /// Publications it may hand out beside them.
        #[serde(default, skip_serializing_if = "is_zero")]
        publications: u64,
    },
    /// A call is about to be made.
    Invoke(Op),
    /// It was answered.
    Ok(Answer),
    /// It was refused: it changed nothing and never will.
    Fail(String),
    /// Its outcome is unknown.
    Info(String),
    /// A handler begins.
    Start {
        /// The job.
        id: JobId,
        /// Its reservation.
        fence: u64,
        /// The fingerprint of the payload it was handed.
        sum: Hex,
    },
    /// A handler returned.
    End {
        /// The job.
        id: JobId,
        /// Its reservation.
        fence: u64,
    },
    /// The nemesis killed this process, and waited until it was gone.
    Killed {
        /// As its `open` line names it.
        proc: String,
    },
    /// The nemesis asked this process to end: it ends what it runs, and reserves nothing from then on.
    Draining {
        /// As its `open` line names it.
        proc: String,
    },
    /// The nemesis killed the store's server, and waited until it was gone.
    ServerKilled {
        /// On the referee's axis, just before the kill.
        since: u64,
    },
    /// The nemesis stopped this process for a while, with all that it was at: it made no call, and no heartbeat, from then until
    /// now.
    Frozen {
        /// As its `open` line names it.
        proc: String,
        /// On the referee's axis, just before it was stopped.
        since: u64,
        /// Whether it may have held a lock meanwhile that all others waited for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_lock: bool,
    },
    /// The nemesis did harm of another sort, that may cost leases or make jobs late: so many times, from then until now.
    Harmed {
        /// On the referee's axis, just before the first time.
        since: u64,
        /// How many times. 0: it makes jobs late, and costs no lease, as an outage of the store that all met.
        times: u64,
        /// Which process alone it met, as its `open` line names it; `None`: all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proc: Option<String>,
    },
    /// The machine stood still: from then until now, the watch of this process was not run, or what it wrote was not synced.
    Stalled {
        /// On the referee's axis.
        since: u64,
    },
    /// The nemesis will do no harm from here on.
    Healed,
    /// At most so many jobs of each group of this queue may run at once. Noted before the first of its jobs is enqueued.
    GroupLimit {
        /// The queue.
        queue: String,
        /// How many.
        running: u32,
    },
    /// The driver changed how jobs are placed in the store's shards, from then until now.
    Changed {
        /// On the referee's axis, just before the change.
        since: u64,
        /// To what, for people.
        to: String,
    },
    /// The nemesis moved the store's clock: elapsed time on the referee's axis proves nothing any more about when a job is due. It
    /// makes jobs late, and costs no lease.
    ClockStepped,
    /// A page of what the store holds, read after everything came to rest.
    Dump {
        /// The store's clock.
        now: u64,
        /// Jobs.
        jobs: Vec<Dumped>,
        /// Whether this is the last page: without one there is no verdict on losses.
        last: bool,
    },
    /// What the store's own consistency check found at rest.
    Audit {
        /// One line per finding.
        findings: Vec<String>,
    },
}

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Jobs are handed over.
    Enqueue {
        /// A repeated call has the same pair.
        call: CallId,
        /// In order.
        jobs: Vec<Wanted>,
    },
    /// Due jobs are asked for.
    Reserve {
        /// A repeated call has the same pair.
        call: CallId,
    },
    /// Heartbeats.
    Extend {
        /// In order.
        leases: Vec<LeaseId>,
        /// Those of them that have company from now on (S9).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        company: Vec<LeaseId>,
    },
    /// Runs end.
    Settle {
        /// In order.
        runs: Vec<Ended>,
        /// The reserve in the same step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<CallId>,
    },
    /// An at-most-once pop.
    Take,
    /// Upkeep. It takes leases back that nobody has taken back for a minute.
    Sweep,
    /// An operator acts.
    Act {
        /// What is done.
        deed: Deed,
        /// In order; `null` where the job is named by its unique key.
        targets: Vec<Option<JobId>>,
    },
    /// Waiting jobs of a queue are deleted.
    Purge {
        /// Which queue.
        queue: String,
    },
}

/// The answer to a call, item by item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Op::Enqueue`].
    Enqueue(Vec<Accepted>),
    /// To [`Op::Reserve`].
    Reserve(Reservations),
    /// To [`Op::Extend`]: whether each is still held; `null` for `Away`.
    Extend(Vec<Option<bool>>),
    /// To [`Op::Settle`]: the state that follows, or `null` for `LeaseLost` and `Away`.
    Settle {
        /// In order.
        states: Vec<Option<State>>,
        /// The places of those that were `Away`: what became of them is not known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        away: Vec<usize>,
        /// The reserve in the same step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Reservations>,
    },
    /// To [`Op::Take`].
    Take(Vec<JobId>),
    /// To [`Op::Sweep`]: how many leases it took back. It does not say which.
    Sweep(u64),
    /// To [`Op::Act`].
    Act(Vec<Effect>),
    /// To [`Op::Purge`].
    Purge,
}

/// (instance, number), as [`punctual::store::CallId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallId(pub Hex, pub u64);

impl From<punctual::store::CallId> for CallId {
    fn from(call: punctual::store::CallId) -> Self {
        Self(Hex(call.instance), call.number)
    }
}

/// A job and the number of its reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseId(pub JobId, pub u64);

/// A job as an enqueue hands it over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// The fingerprint of its payload.
    pub sum: Hex,
    /// When it is due.
    #[serde(default, skip_serializing_if = "Due::is_now")]
    pub due: Due,
    /// The key that it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<Key>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its concurrency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// From when on it must not start any more. It ends by itself then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Due>,
    /// How the writer of the drill knows that it must end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Expect>,
    /// Whether it is a tick of a schedule. Its worker enqueues the next one before its handler begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tick: bool,
}

/// When something is due, as a caller put it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Due {
    /// Now.
    #[default]
    Now,
    /// So many milliseconds after the call.
    In(u64),
    /// At this instant of the store's clock, Unix milliseconds.
    At(u64),
}

impl Due {
    const fn is_now(&self) -> bool {
        matches!(self, Self::Now)
    }
}

impl From<When> for Due {
    fn from(when: When) -> Self {
        match when {
            When::Now => Self::Now,
            When::In(d) => Self::In(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            When::At(t) => Self::At(t.as_ms()),
        }
    }
}

/// A unique key with its scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// (kind, queue, group, concurrency key, key) in one text.
    pub name: String,
    /// How long it is held.
    pub scope: Scope,
    /// Whether a holder takes over the payload of a later enqueue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaces: bool,
}

impl Key {
    /// The key of a job that asks for this one.
    pub fn new(of: &UniqueKey, unique: &Unique) -> Self {
        Self {
            name: format!("{:?}", (&of.kind, &of.queue, &of.group, &of.concurrency_key, &of.key)),
            scope: unique.scope,
            replaces: unique.on_conflict == OnConflict::Replace,
        }
    }
}

/// How a job must end, whatever happens to the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// Done.
    Done,
    /// Done; or, where the nemesis met it three times in a row, dead of that.
    DoneOrCrashes,
    /// Dead, reason `crashes`: it kills every worker that runs it.
    Crashes,
}

/// What became of one job of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    /// It is new, and due then.
    Inserted {
        /// Unix milliseconds.
        run_at: u64,
        /// The job's id, where it is not the one that was asked for: an id names the shard that its job is placed in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<JobId>,
    },
    /// Its id, or its key, is that of this job.
    Duplicate(JobId),
    /// The same, and that job's record is gone. A repeated call answers so, too, if it can't tell any more.
    Gone(JobId),
    /// The holder of its key took over its payload.
    Replaced(JobId),
    /// The holder of its key took over its time.
    Rescheduled(JobId),
    /// The queue was full.
    Full,
}

/// The answer of a reserve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservations {
    /// The store's clock.
    pub now: u64,
    /// New leases, in order.
    pub jobs: Vec<Reservation>,
    /// Leases reclaimed first, with the state that followed.
    #[serde(rename = "taken_back", default, skip_serializing_if = "Vec::is_empty")]
    pub reclaimed: Vec<(LeaseId, State)>,
}

/// A job under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The job.
    pub id: JobId,
    /// The number of the reservation.
    pub fence: u64,
    /// The number of the run.
    pub attempt: u32,
    /// Leases reclaimed in a row before it.
    #[serde(rename = "crashes")]
    pub expired_leases: u32,
    /// Whether it was reserved with company (S9).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub company: bool,
    /// Its attempts.
    pub max_attempts: u32,
    /// When it was due.
    pub run_at: u64,
    /// When it was enqueued.
    pub created_at: u64,
    /// Until when the lease may not be reclaimed.
    pub until: u64,
    /// How long the lease lasts, in milliseconds.
    pub lasts: u64,
    /// The fingerprint of its payload.
    pub sum: Hex,
}

/// A lease and the verdict on its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The job.
    pub id: JobId,
    /// The number of the reservation.
    pub fence: u64,
    /// How it ended.
    pub verdict: Said,
}

/// A verdict, as far as it matters to a judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Done.
    Ack,
    /// Failed; again then.
    Retry(Due),
    /// Again after so many milliseconds.
    Snooze(u64),
    /// Be due so many milliseconds later: its worker did not run it.
    Hold(u64),
    /// Back as it was.
    Release,
    /// Called off.
    Cancel,
    /// Given up on.
    Dead,
}

/// An operator's action, as far as it matters to a judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// Call it off.
    Cancel,
    /// Due at another time.
    Reschedule(Due),
    /// Due so much later or earlier, or now.
    Move,
    /// Another level.
    Reprioritise,
    /// Another payload.
    Edit(Hex),
    /// Ended jobs run again.
    Retry,
    /// Remove the record.
    Delete,
}

/// What an action did to one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Done.
    Done(JobId),
    /// Cancel: the run that goes on decides.
    Requested(JobId),
    /// Nothing was changed, since the job is in this state.
    Refused(JobId, State),
    /// Nothing was changed.
    Missed,
}

/// A job at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dumped {
    /// The job.
    pub id: JobId,
    /// Where it stands.
    pub state: State,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its last run.
    pub attempt: u32,
    /// Leases reclaimed in a row.
    #[serde(rename = "crashes")]
    pub expired_leases: u32,
    /// When it is due, by the store's clock; 0: a history that does not say so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run_at: u64,
}

impl From<&JobRecord> for Dumped {
    fn from(job: &JobRecord) -> Self {
        Self {
            id: job.id,
            state: job.state,
            reason: job.reason.clone(),
            attempt: job.attempt,
            expired_leases: job.expired_leases,
            run_at: job.run_at.as_ms(),
        }
    }
}

/// A number that is written as hexadecimal text.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hex(pub u64);

impl Hex {
    /// The fingerprint of a payload (FNV-1a): tells payloads apart that were mixed up, not those that an adversary forged.
    pub fn fingerprint(bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}
