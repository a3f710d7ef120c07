//! The contract between the runtime and whatever keeps the jobs: few, batched, object-safe verbs.
//!
//! A store knows the time only from its clock, ids and jitter only from its caller, and nothing of handlers. Every verb
//! on one job happens entirely or not at all (S2); a store checks and decides everything before its first write.
//! The rules named S1 … S17 are written out in `docs/contract.md`; the [model] is their executable
//! form, and every other store answers as it does, reply by reply. Where the contract leaves a detail open, the docs of
//! the verbs below settle it.

mod audit;
mod bell;
pub mod clock;
pub(crate) mod defaults;
mod doc;
#[cfg(feature = "testing")]
pub mod faulty;
mod identity;
mod lease;
pub mod memory;
pub mod model;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "testing")]
pub(crate) mod scratch;
mod settings;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod toolkit;
mod transaction;
pub mod url;

use std::{
    any::Any,
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    time::Duration,
};

use serde::Serialize;

#[cfg(feature = "redis")]
pub(crate) use self::bell::is_of_queue;
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::identity::IDENTITY_NONE;
pub(crate) use self::{
    bell::{LOCK_BELL, WORKER_BELL, end_bell, end_of},
    doc::too_many,
    lease::{check_extend, check_result, check_settle},
};
pub use self::{
    doc::{Doc, DocOp, DocReply, Only},
    identity::Identity,
    lease::{
        Batch, EndReason, Heartbeat, Lease, LeaseStatus, Reserve, Reserved, Settled, Settlement, Take,
        TakenBack, Verdict, Want,
    },
    settings::{GroupLimits, Keep, Order, Pause, Placement, QueueSettings},
    transaction::Transaction,
};
pub(crate) use crate::store::toolkit::Arithmetic;
pub use crate::store::toolkit::{
    Allowance, BoardAct, BoardOp, BoardReply, BoardWindow, Bucket, Held, LimitOp, LimitRule, LockOp,
    LockReply, Standing, ToolOp, ToolReply,
};

pub use crate::core::rate::Rate;
use crate::core::{
    error::{Error, ErrorKind, Result},
    filter::Filter,
    id::JobId,
    job::{
        Concurrency, Job, JobRecord, NewJob, Payload, Priority, State, Unique, check_name, check_payload,
        check_queue,
    },
    limits::{BATCH_BYTES_MAX, BATCH_MAX, BUCKETS_MAX},
    time::{Timestamp, When},
    topic::TOPICS_QUEUE,
};

pub use audit::{Audit, AuditCursor, Audited, Finding};

/// The future of one call to a store.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who calls, and which of its calls this is: a call repeated with the same pair has its effect once (S3).
///
/// An instance is random per process start (or per client), never a configured name. Its calls of one verb arrive in
/// order, with rising numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// Random; enqueues and reserves of one instance are numbered apart.
    pub instance: u64,
    /// 1, 2, 3, …
    pub number: u64,
}

/// A job that an enqueue met instead of inserting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// The job that is there already.
    pub id: JobId,
    /// Its kind, which is another one than that of the new job where keys are compared across kinds; `None`: its record is gone,
    /// or can't be read.
    pub kind: Option<String>,
    /// Where it stands; `None`: its record is gone, its id is remembered.
    pub state: Option<State>,
    /// Its version; 0 when its record is gone.
    pub version: u64,
    /// Whether its cancel was asked for.
    pub cancel_requested: bool,
}

/// What became of one job of an enqueue. All of them are expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is new.
    Inserted {
        /// The job.
        id: JobId,
        /// When it is due, by the store's clock.
        run_at: Timestamp,
    },
    /// Its id or its unique key is taken; nothing was changed.
    Duplicate(Existing),
    /// The waiting holder of its unique key has the new payload, options and time.
    Replaced {
        /// The holder.
        id: JobId,
        /// When it is due.
        run_at: Timestamp,
    },
    /// The waiting holder of its unique key has the new time.
    Rescheduled {
        /// The holder.
        id: JobId,
        /// When it is due.
        run_at: Timestamp,
    },
    /// The queue's cap in jobs or bytes is reached; nothing was written for this job.
    Full,
}

impl Enqueued {
    /// The job that now stands for what was asked; `None` when the queue was full.
    pub const fn id(&self) -> Option<JobId> {
        match self {
            Self::Inserted { id, .. } | Self::Replaced { id, .. } | Self::Rescheduled { id, .. } => Some(*id),
            Self::Duplicate(existing) => Some(existing.id),
            Self::Full => None,
        }
    }

    /// Whether a job was inserted.
    pub const fn is_new(&self) -> bool {
        matches!(self, Self::Inserted { .. })
    }

    /// The word people and programs see: `inserted`, `duplicate`, `replaced`, `rescheduled`, `full`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Inserted { .. } => "inserted",
            Self::Duplicate(_) => "duplicate",
            Self::Replaced { .. } => "replaced",
            Self::Rescheduled { .. } => "rescheduled",
            Self::Full => "full",
        }
    }
}

/// A job by id, or by the unique key it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// This job.
    Id(JobId),
    /// The job that holds this key.
    Key(UniqueKey),
}

/// A unique key with all that it is compared within (S4).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueKey {
    /// Its kind; `None`: it is one across kinds.
    pub kind: Option<String>,
    /// Its queue.
    pub queue: String,
    /// Its group.
    pub group: Option<String>,
    /// Its concurrency key.
    pub concurrency_key: Option<String>,
    /// The key.
    pub key: String,
}

impl UniqueKey {
    /// The key of a job.
    pub fn of(job: &JobRecord) -> Option<Self> {
        Some(Self::within(
            &job.kind,
            &job.queue,
            job.group.as_ref(),
            job.concurrency.as_ref(),
            job.unique.as_ref()?,
        ))
    }

    /// The key that a new job asks for.
    pub fn of_new(job: &NewJob) -> Option<Self> {
        Some(Self::within(
            &job.kind,
            &job.queue,
            job.group.as_ref(),
            job.concurrency.as_ref(),
            job.unique.as_ref()?,
        ))
    }

    /// The key that an enqueue of this job holds, if the call leaves queue, group and concurrency key as the type says: to cancel
    /// or to look up a job without knowing its id.
    ///
    /// ```
    /// # use punctual::{Cancelled, Client, Job, store::UniqueKey};
    /// #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// #[job(kind = "order.close", queue = "orders", unique = "key")]
    /// struct CloseUnpaid { order: u64 }
    ///
    /// impl CloseUnpaid {
    ///     fn key(&self) -> String { self.order.to_string() }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// let client = Client::connect("memory:").await?;
    /// client.enqueue(CloseUnpaid { order: 7 }).delay(std::time::Duration::from_secs(1_800)).await?;
    /// let cancelled = client.cancel(UniqueKey::held_by(&CloseUnpaid { order: 7 })?).await?;
    /// assert_eq!(cancelled, Cancelled::Done);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a job whose type names no unique key.
    pub fn held_by<J: Job>(job: &J) -> Result<Self> {
        match job.unique() {
            Some(unique) => Ok(Self::within(J::KIND, J::QUEUE, None, None, &unique)),
            None => Err(Error::invalid(format!("jobs of kind {:?} have no unique key", J::KIND))
                .with_hint("add `unique = \"…\"` to the type, or build the key that the enqueue chose")),
        }
    }

    fn within(
        kind: &str,
        queue: &str,
        group: Option<&String>,
        concurrency: Option<&Concurrency>,
        unique: &Unique,
    ) -> Self {
        Self {
            kind: unique.kind_of(kind).map(str::to_owned),
            queue: queue.to_owned(),
            group: group.cloned(),
            concurrency_key: concurrency.map(|concurrency| concurrency.key.clone()),
            key: unique.key.clone(),
        }
    }
}

/// A job to act on, and what must still be true of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The job.
    pub which: Which,
    /// Checked in the action's own step, so that a job that moved on since it was read is left alone.
    pub guard: Option<Guard>,
}

/// How a job must still stand. One that is in another queue is answered `NotFound`, any other that differs `WrongState`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Its queue.
    pub queue: String,
    /// Its state.
    pub state: State,
    /// Its version; `None`: any.
    pub version: Option<u64>,
}

impl From<JobId> for Target {
    fn from(id: JobId) -> Self {
        Self { which: Which::Id(id), guard: None }
    }
}

impl From<UniqueKey> for Target {
    fn from(key: UniqueKey) -> Self {
        Self { which: Which::Key(key), guard: None }
    }
}

/// What an operator may do to jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Waiting: cancelled at once. Running: asks its worker (S12).
    Cancel {
        /// Why; `cancelled` where nothing is said. Cut at 1 KiB; not kept for a running job.
        reason: Option<String>,
    },
    /// Waiting: due at another time. At or past its `expires_at` is allowed: the job then ends expired.
    Reschedule(When),
    /// Waiting: due this many milliseconds later (earlier, if negative) than it was; never before now.
    RescheduleBy(i64),
    /// Waiting: due now. Skips no gate.
    RunNow,
    /// Waiting: another level.
    Reprioritise(Priority),
    /// Waiting: another payload.
    EditPayload(Payload),
    /// Dead, cancelled, done: waiting again, as S11 says. Takes its unique key again: one until done always, one until
    /// start or for a window only if the job was never reserved (and its window has not ended).
    Retry,
    /// All but running: the record is removed; a derived id is remembered. A waiting job counts as ended now.
    Delete,
}

impl Action {
    /// The word people see.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cancel { .. } => "cancel",
            Self::Reschedule(_) | Self::RescheduleBy(_) => "reschedule",
            Self::RunNow => "run-now",
            Self::Reprioritise(_) => "reprioritise",
            Self::EditPayload(_) => "edit",
            Self::Retry => "retry",
            Self::Delete => "delete",
        }
    }
}

/// What became of one action. All of them are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acted {
    /// Done; this job, now in this state (for `delete`: the state it was deleted from).
    Done(JobId, State),
    /// Cancel: the job is running, and its worker will be told.
    Requested(JobId),
    /// There is no such job.
    NotFound,
    /// The job is in a state in which this can't be done.
    WrongState(JobId, State),
    /// Retry: another job holds its unique key by now, this one (its record may be gone).
    UniqueConflict(JobId),
    /// Retry: the jobs of its concurrency key or group have been in another shard since the store was spread in another way; this
    /// is one of them. Retry the job when they have ended.
    GateConflict(JobId),
}

/// A page of jobs, in the order of their store: memory and SQLite tell the newest ids first, Redis the waiting jobs as they
/// will run, then the running ones, then the ended ones from the last to the first. A page may be shorter than its limit: it ends
/// after 1,000 jobs that don't match, and with the job that brings the payloads and results looked at to 4 MiB.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Which jobs.
    pub filter: Filter,
    /// Go on from here, as [`Page::next`] gave it.
    pub after: Option<ListCursor>,
    /// At most this many jobs in the page, 1 to 1,000.
    pub limit: usize,
}

/// Where a listing goes on; what it says is its store's own business. Its text needs no quotes in a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCursor(pub(crate) String);

impl ListCursor {
    /// Behind a job, where jobs are listed by their ids.
    pub(crate) fn behind(id: JobId) -> Self {
        Self(id.to_string())
    }

    /// The job behind which the listing goes on.
    ///
    /// # Errors
    /// `Invalid` for what no listing by ids gave.
    pub(crate) fn id(&self) -> Result<JobId> {
        self.0.parse().map_err(|_| Self::unreadable())
    }

    pub(crate) fn unreadable() -> Error {
        Error::invalid("could not read the cursor of the listing")
            .with_hint("use the cursor that the page before this one returned, with the same store")
    }
}

impl From<String> for ListCursor {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The answer to a [`List`]: what was found, and what was searched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The store's clock at the call.
    pub now: Timestamp,
    /// Matching jobs.
    pub jobs: Vec<JobRecord>,
    /// Where to go on; `None`: everything was searched.
    pub next: Option<ListCursor>,
    /// Jobs looked at by this call, at most 1,000 beyond those returned. Which ones a store has to look at, and so where
    /// a page ends, is its own business; all pages together are the same in every store.
    pub searched: u64,
    /// Jobs in the store, those past their age that no sweep has removed yet included.
    pub total: u64,
}

/// How many jobs, from kept counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Waiting, retrying included.
    pub waiting: u64,
    /// Of these: in a later attempt than the first.
    pub retrying: u64,
    /// Of the waiting ones: due now (also in a paused queue, or blocked), counted up to 100,000 in one answer.
    pub due: u64,
    /// Under a lease.
    pub running: u64,
    /// Kept done jobs.
    pub done: u64,
    /// Dead jobs.
    pub dead: u64,
    /// Kept cancelled jobs.
    pub cancelled: u64,
    /// Payload bytes of waiting and running jobs.
    pub bytes: u64,
    /// Parts of the store that can't be reached: their jobs are not counted.
    #[serde(skip_serializing_if = "is_zero")]
    pub parts_away: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(n: &u16) -> bool {
    *n == 0
}

impl Counts {
    /// All jobs.
    pub const fn total(&self) -> u64 {
        self.waiting + self.running + self.done + self.dead + self.cancelled
    }
}

/// What to do with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueOp {
    /// Tell about it.
    Show,
    /// Reserve and take nothing from it until resumed; replaces an earlier pause. Makes the queue if it is new.
    Pause {
        /// For people.
        by: String,
        /// For people.
        reason: String,
    },
    /// End a pause.
    Resume,
    /// Replace its settings, all but the pause. Makes the queue if it is new.
    Set(Box<QueueSettings>),
    /// Replace its settings, all but the pause, if they still are those that the caller saw; else answer `Conflict`. A queue that
    /// does not exist has the default settings, and is made. Settings that already are the new ones are no conflict (S3).
    Replace(Box<Replace>),
    /// Open its gate, or that of one of its groups: jobs that a run holds back may start again (S15). Rates and `concurrency` stay.
    Open {
        /// This group alone; `None`: the queue itself.
        group: Option<String>,
    },
    /// Delete up to this many waiting jobs, 1 to 1,000, due or not, first those that would run first.
    Purge(usize),
}

/// Settings that replace others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replace {
    /// What they were when the caller read them; a pause among them is not compared.
    pub seen: QueueSettings,
    /// What they are to be.
    pub new: QueueSettings,
}

impl Replace {
    /// Whether settings are those that the caller saw, or already the new ones.
    pub(crate) fn fits(&self, stored: &QueueSettings) -> bool {
        let is = |other: &QueueSettings| {
            *stored == QueueSettings { paused: stored.paused.clone(), ..other.clone() }
        };
        is(&self.seen) || is(&self.new)
    }
}

/// The answer to a [`QueueOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueReply {
    /// There is no such queue.
    Unknown,
    /// The queue as it is now.
    Info(Box<QueueInfo>),
    /// Replace: the settings are others than the caller saw, namely these; nothing was changed.
    Conflict(Box<QueueInfo>),
    /// Purge: so many were deleted; whether some are left.
    Purged {
        /// Jobs deleted by this call.
        deleted: u64,
        /// Whether to call again.
        more: bool,
    },
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: QueueSettings,
    /// Its jobs.
    pub counts: Counts,
    /// When its oldest due job became due; `None`: nothing is due.
    #[serde(skip)]
    pub oldest_due: Option<Timestamp>,
    /// Until when none of its jobs may start, by its rate or since a run closed its gate; `None`: neither holds them back.
    #[serde(skip)]
    pub opens_at: Option<Timestamp>,
}

impl QueueInfo {
    /// Of a queue that does not exist: the default settings, and no jobs.
    #[cfg(feature = "sqlite")]
    pub(crate) fn unknown(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: QueueSettings::default(),
            counts: Counts::default(),
            oldest_due: None,
            opens_at: None,
        }
    }
}

/// A histogram of waiting jobs by due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcoming {
    /// One queue, or all.
    pub queue: Option<String>,
    /// Width of a bucket, at least 1 ms; parts of a millisecond count as a whole one.
    pub bucket: Duration,
    /// How many buckets from now on, 1 to 1,000.
    pub buckets: usize,
}

/// The answer to an [`Upcoming`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histogram {
    /// The store's clock at the call, where the first bucket begins.
    pub now: Timestamp,
    /// Due already (`run_at ≤ now`).
    pub overdue: u64,
    /// Jobs per bucket; bucket `i` begins `i` widths after now, and an instant on the border belongs to the later one.
    pub buckets: Vec<u64>,
    /// Waiting jobs behind the last bucket are not counted; `false`: the search stopped at its bound before the end.
    pub complete: bool,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Waiting jobs past `expires_at`, now cancelled.
    pub expired: u64,
    /// Ended jobs past their retention, removed.
    pub removed: u64,
    /// Remembered ids, unique windows and call numbers past their time, forgotten.
    pub forgotten: u64,
    /// Whether it did as much as its limit: call again.
    pub more: bool,
}

/// What `Ok` survives (S1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durability {
    /// A power cut of the store's machine.
    Full,
    /// The loss of the store's machine: so many others have it as the address asks for.
    Replicated,
    /// A crash of any process; a power cut may lose the last moments.
    Fast,
    /// Nothing: the store ends with its process.
    Memory,
}

impl Durability {
    /// The word people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Replicated => "replicated",
            Self::Fast => "fast",
            Self::Memory => "memory",
        }
    }
}

/// One line of a store's self-examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// How it stands.
    pub level: CheckLevel,
    /// What was looked at, in a word.
    pub name: &'static str,
    /// What was seen.
    pub text: String,
    /// What to try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How a [`Check`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckLevel {
    /// As it should be.
    Ok,
    /// Works, with a risk.
    Warn,
    /// Must be mended.
    Fail,
}

impl CheckLevel {
    /// The word people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// Keeps [`Store`] to this project: its verbs change with the contract. The project's own wrappers in other crates (its judge's, and
/// those of its tests) implement this one, too; for everybody else it may change at any time.
#[doc(hidden)]
pub mod sealed {
    /// A store of this project.
    pub trait Sealed {}
}

/// Where jobs live. Anyone may call it; only this project implements it, so that a verb can be added without breaking anybody.
///
/// All verbs take `&self` and may be called from any task of any runtime. A batch is at most 1,000 items; a longer one is
/// `Invalid`, and [`Client`](crate::Client) splits by itself.
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// The address people know it by, without secrets.
    fn url(&self) -> &str;

    /// What `Ok` survives.
    fn durability(&self) -> Durability;

    /// The shard for the next made id to name. A store may put the job elsewhere all the same, under the same id of another
    /// shard, which it answers.
    fn shard(&self) -> u16 {
        0
    }

    /// The store itself, for a [`Transaction`] that belongs to one kind of store. A store that wraps another one answers for
    /// that one.
    #[doc(hidden)]
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Which store it is: always the same answer, from every handle and after every change of its shards. A file has one from its
    /// first opening for writing on, a store on Redis from the first such call on. Each handle asks its store once.
    ///
    /// # Errors
    /// `Unsupported` for a file without one that was opened to be looked at; else where the store can't be reached.
    fn identity(&self) -> BoxFuture<'_, Result<Identity>>;

    /// The store's clock.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp>>;

    /// Hands jobs over, in order, each seeing what the earlier ones did.
    ///
    /// The whole call is refused before any write if a job breaks a limit ([`NewJob::check`]), expires at or before it is
    /// due, or if several jobs have more than 1 MiB of payloads together. Then, per job: its id is known (a record, also
    /// one that reads hide by its age; or remembered in the job's queue) → `Duplicate`; its unique key is held → by the
    /// conflict rule (an id is looked at before the key); the queue is at its cap (`max_jobs` live jobs or more, or this
    /// payload would bring their bytes over `max_bytes`) → `Full`; otherwise it is inserted, which makes the queue if it
    /// is new. Options the job leaves open are taken from the queue's defaults now (what these leave open, too, is not stored, and the
    /// default applies of the version that reads the job), all but the lease, which each
    /// reservation chooses. Only inserts meet the cap.
    ///
    /// A derived id is remembered from the removal of its record until 24 h after its job ended (one deleted or purged
    /// while waiting ended then); past that it is unknown, swept or not.
    ///
    /// A unique key is held from the insert on (S4), within the kind of its job, unless it is one across kinds. One until done is freed by the end, one until start by the first
    /// reservation or take, or an end before it. A window ends `window` after `created_at` and is void from then on,
    /// swept or not; before, only a cancel, delete or purge of a job that was never reserved frees it (expiry doesn't). Its
    /// holder may have ended, or be gone: then it is told with state `None`. A duplicate has the kind of the job that it met as it
    /// is by then ([`Existing::kind`]).
    ///
    /// `Replace` gives the holder kind, payload, content type, options, tags, headers, `run_at` and `expires_at`, and
    /// raises its version; queue, group, concurrency key, unique key with its scope, creation time, attempt, counts, reason
    /// and failures stay. `Reschedule` gives it `run_at` and raises its version.
    ///
    /// Repeated with a number not above the instance's last one, the call is not checked again (but for its length),
    /// writes nothing and answers per job: `Full` where the last call, if it has this number, answered so at the same
    /// place; the job's own record, else the holder of its key, as `Duplicate`; else `Duplicate` with the job's own id and
    /// state `None`. A call that is refused, or in which every job is `Full` (an empty one too), does not count as the
    /// instance's last one.
    fn enqueue<'a>(&'a self, call: Call, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>>;

    /// The same, where a store of several parts may answer `None` for jobs whose part can't be reached: the others are stored.
    /// Repeated as it was, with the same number, the call goes on with those that have no answer yet.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); where no part can be reached, `Unavailable`.
    fn enqueue_each<'a>(
        &'a self,
        call: Call,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move { Ok(self.enqueue(call, jobs).await?.into_iter().map(Some).collect()) })
    }

    /// Takes back, then reserves (S5, S6, S7, S9).
    ///
    /// 1. If the instance's last reserve (an empty one too) has this number, answers those of its jobs whose leases are
    ///    current, in the same order, and extends these: the answer may have been away for longer than they last. A lower
    ///    number answers no jobs. Both change nothing else, leave no time, take nothing back and sweep nothing; `more` and
    ///    `next_due` are as of now.
    /// 2. Takes back up to 32 leases with `until ≤ now` in the named queues (paused ones too), by (until, id), unless the
    ///    clock has just jumped (S14): if leases exist anywhere in the store and now is more than 20 s after its last
    ///    reserve, take, extend or settle, nothing is taken back for 5 s from now on. Each of these four calls, an empty
    ///    one too, first looks for the jump and then leaves its own time, also when the clock went back; 5 s that, after
    ///    such a step, would end more than 5 s from now are void. If the last of these calls came in such 5 s, a silence after
    ///    it is no second jump.
    /// 3. Looks at up to n + 256 due jobs of the queues that are not paused, in order, by shares as [`Reserve::wants`]
    ///    says, while it has fewer than n. Groups of a queue take turns (S16): first up to n + 32 that have become due and may
    ///    start something join those that do; then each job is the first of the group whose turn it is. A store may end the call
    ///    after 64 turns of groups ([`GROUP_TURNS_MAX`](crate::core::limits::GROUP_TURNS_MAX)): it is as if no more jobs had been
    ///    asked for, of any queue, and `more` says whether some are left. A job past its
    ///    `expires_at` (`expires_at ≤ now`) ends cancelled, reason `expired`; one with as many jobs of its concurrency key
    ///    running as may (its own limit; within its queue and group) is parked: it waits out of the timeline; any other is
    ///    reserved. Stops, in all queues, before a job that would bring the payloads over 1 MiB, unless it is the first; and
    ///    before and behind a job that would be dead of one more crash: without company ([`Reserve::company`]) it comes alone.
    /// 4. Sweeps up to 100 items: these queues in turn, then store-wide, as [`Store::sweep`] does.
    ///
    /// Turns are handed over behind 2 and 4, and at the end of every verb that does one of these to a job with a concurrency key:
    /// starts it, ends its run, takes it, parks it, changes it while it waits, or makes it wait no more. Each such event gives
    /// one job a look, the first in order of those of the key that are parked: if fewer than its limit run, it is back in the
    /// timeline. So does a settle before the reserve behind it. A job that is changed while it is parked is back, too.
    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>>;

    /// Extends leases to now plus their length, by heartbeat; also one past its time, as long as it is current. What a run tells is
    /// kept in the same step. Refused as a whole if notes are over 4 KiB or 64 lines, or those of several leases over 1 MiB.
    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>>;

    /// Ends leases, in order, sweeps up to its own length plus 100 items (the queues of the leases it ended, in the order
    /// of their first appearance, then store-wide), and may then reserve in the same step and round trip, as a reserve
    /// behind it would. A store may end the leases in several steps, of some each; the reserve is then in the last one. Refused as a
    /// whole if either part breaks a limit; pauses past the end of time are cut to it. A reserve that has no answer, since the shard
    /// that was asked has none, is to be repeated.
    ///
    /// Each answer says why the store ended a job, where that is not what the verdict says ([`EndReason`]); the record has the same
    /// reason. A job whose record can't be read ends dead by any verdict but a bare ack.
    ///
    /// A job that ends is removed in the same step if its queue keeps none of its state ([`Keep::keeps_nothing`]). A result counts
    /// against what is kept of a queue as its payload does; results over 64 KiB, or of several jobs over 1 MiB, are refused.
    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>>;

    /// Takes back, looks at due jobs (with `run_at ≤ now − older_than`), stops at 1 MiB and sweeps as reserve does, and
    /// acks what it reserves in the same step: at most once. The records are as of the end: done. A store that may end a reserve
    /// after some turns of groups goes on here in a further step, while fewer than `n` were taken.
    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>>;

    /// Returns as soon as there may be work in these queues that the caller's last reserve did not see, at the latest
    /// after `at_most`. Never trusted: the caller reserves again either way. Under the name `$lock/NAME` it returns as soon as
    /// that lock may be free; under `$end/ID`, an id in 32 digits, as soon as that job has ended or is gone; under `$worker/NAME` as soon
    /// as a cancel is asked for of a job that runs under that name.
    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>>;

    /// One job; `None` also for one past the age its queue keeps it for (`finished_at + age ≤ now`). Get, list and holder
    /// hide such a job until a sweep removes it; nothing else does.
    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>>;

    /// The job that holds a unique key.
    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>>;

    /// A page of jobs. All pages together have each job that stays as it is exactly once; one that starts, ends or is moved
    /// meanwhile may be told twice, or by Redis not at all.
    ///
    /// A waiting job past its `expires_at` is waiting until a reserve, take or sweep ends it; so in every read.
    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>>;

    /// Kept counters of one queue (zeros for an unknown one), or of all.
    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>>;

    /// A histogram of due times.
    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>>;

    /// Acts on jobs, in order, also on those that reads hide by their age; a key leads to its holder if that has a record.
    /// Refused as a whole if the action breaks a limit, or if an edit of several jobs has more than 1 MiB of payloads
    /// together. Reschedule, reprioritise, edit and retry raise the version, whether or not they change a value; none
    /// of them meets a cap.
    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>>;

    /// One queue. It exists from its first job, pause or settings on, for ever; show, resume and purge of any other answer
    /// `Unknown`. Refuses settings whose defaults break a limit, and a name that no job may wait under.
    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>>;

    /// Names of queues behind `after`, in order of bytes, at most 1,000.
    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>>;

    /// One step on the store's documents: small values with versions. Each has its effect by itself; what must change together
    /// belongs into one document.
    ///
    /// Beside what [`DocOp::check`] refuses, a put that would make the 100,001st document is `StoreFull`.
    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>>;

    /// One atomic step on a tool: a rate limiter, a lock or a leaderboard. Answered by the store's clock, alike by every
    /// store. What no answer depends on any more is removed by the way, in slices.
    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>>;

    /// Bounded upkeep, at most `limit` items, 1 to 1,000. Per queue, by name: waiting jobs past `expires_at` (oldest
    /// first, then id) end cancelled; then done, then cancelled, then dead jobs past a bound are removed (oldest end
    /// first, then id; all of a state that keeps nothing); then remembered ids past their time or number are forgotten
    /// (oldest end first, then id). Last, store-wide: unique windows past their time (oldest first), calls of instances
    /// whose last one is an hour old (oldest first; enqueues and reserves apart). Each job ended or removed, and each
    /// entry forgotten, is one item; an entry that a new one took the place of is none.
    ///
    /// Each worker calls it when it starts and every few minutes, so that upkeep reaches queues that nobody serves, too (S17). A store
    /// with very many queues may look at some hundreds of them in each call: it answers `more`, and the next call goes on there. After a
    /// change of the number of shards, a call on Redis also reads some 4,000 records, to forget the earlier number; these are no items.
    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>>;

    /// A slice of a consistency check, at most 1,000 records or entries. Others may be at work meanwhile: what they move
    /// between two slices is no finding, and what a repair makes of a counter is right at its end.
    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>>;

    /// Looks at itself: version, durability, clock, bell.
    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>>;
}

/// Refuses a batch over 1,000.
pub(crate) fn check_batch(what: &str, n: usize) -> Result<()> {
    if n <= BATCH_MAX {
        Ok(())
    } else {
        Err(Error::invalid(format!("{n} {what} are over the limit of {BATCH_MAX} in one call")))
    }
}

/// Checks all of an enqueue that needs no store; `payload_bytes_max` is the store's limit of one payload.
pub(crate) fn check_enqueue(jobs: &[NewJob], now: Timestamp, payload_bytes_max: usize) -> Result<()> {
    check_jobs(jobs, payload_bytes_max)?;
    for job in jobs {
        if let Some(expires_at) = job.expires_at {
            let (expires_at, run_at) = (resolve_expiry(expires_at, now), job.run_at.resolve(now));
            if expires_at <= run_at {
                return Err(Error::invalid(format!("expires_at {expires_at} is not after run_at {run_at}")));
            }
        }
    }
    Ok(())
}

/// The part of it that needs no clock.
pub(crate) fn check_jobs(jobs: &[NewJob], payload_bytes_max: usize) -> Result<()> {
    check_batch("jobs", jobs.len())?;
    let bytes: usize = jobs.iter().map(|job| job.payload.bytes.len()).sum();
    check_batch_bytes("payloads", bytes, jobs.len())?;
    jobs.iter().try_for_each(|job| job.check_with(payload_bytes_max))
}

/// Refuses more than 1 MiB in one call, unless it is of a single job.
fn check_batch_bytes(what: &str, bytes: usize, n: usize) -> Result<()> {
    if bytes <= BATCH_BYTES_MAX || n <= 1 {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::TooLarge,
            format!("{what} of {bytes} bytes are over the limit of {BATCH_BYTES_MAX} in one call"),
        ))
    }
}

/// An expiry is taken literally: one in the past is not moved to now.
pub(crate) fn resolve_expiry(expires_at: When, now: Timestamp) -> Timestamp {
    match expires_at {
        When::At(t) => t,
        other => other.resolve(now),
    }
}

/// Checks all of an act that needs no store; `payload_bytes_max` is the store's limit of one payload.
pub(crate) fn check_act(targets: &[Target], action: &Action, payload_bytes_max: usize) -> Result<()> {
    check_batch("targets", targets.len())?;
    match action {
        Action::Reschedule(when) => when.check("run_at"),
        Action::EditPayload(payload) => {
            check_payload(payload, payload_bytes_max)?;
            check_batch_bytes("payloads", payload.bytes.len().saturating_mul(targets.len()), targets.len())
        }
        _ => Ok(()),
    }
}

/// Checks a [`QueueOp`] and the name of its queue.
pub(crate) fn check_queue_op(name: &str, op: &QueueOp) -> Result<()> {
    // Also publications may have to pause.
    if name != TOPICS_QUEUE {
        check_queue(name)?;
    }
    match op {
        QueueOp::Set(settings) => settings.check(),
        QueueOp::Replace(replace) => replace.new.check(),
        QueueOp::Open { group: Some(group) } => check_name("group", group),
        QueueOp::Purge(n) => check_limit("purge", *n),
        QueueOp::Show | QueueOp::Pause { .. } | QueueOp::Resume | QueueOp::Open { group: None } => Ok(()),
    }
}

/// Refuses a bound outside 1 to 1,000 on what a list, purge or sweep does in one call.
pub(crate) fn check_limit(what: &str, limit: usize) -> Result<()> {
    if (1..=BATCH_MAX).contains(&limit) {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what} limit {limit} is not within 1 to {BATCH_MAX}")))
    }
}

/// Checks an [`Upcoming`].
pub(crate) fn check_upcoming(upcoming: &Upcoming) -> Result<()> {
    if upcoming.bucket.as_millis() == 0 || !(1..=BUCKETS_MAX).contains(&upcoming.buckets) {
        return Err(Error::invalid(format!(
            "upcoming takes buckets of at least 1 ms, 1 to {BUCKETS_MAX} of them"
        )));
    }
    Ok(())
}
