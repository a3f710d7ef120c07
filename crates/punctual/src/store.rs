//! The contract between the runtime and a store of jobs: few, batched, object-safe verbs.
//!
//! A store knows the time only from its clock, gets ids and jitter from its caller, and knows nothing of handlers. Each verb on one
//! job happens entirely or not at all (S2). The rules S1 to S17 are in `docs/contract.md`. The [model] is their executable form, and
//! every other store gives the same answers. The docs of the verbs below settle the details that the contract leaves open.

mod audit;
pub mod clock;
mod doc;
mod doctor;
#[cfg(feature = "testing")]
pub mod faulty;
#[cfg(feature = "http")]
pub mod http;
mod identity;
mod lease;
pub mod memory;
pub mod model;
mod notification;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "testing")]
pub(crate) mod scratch;
mod settings;
pub(crate) mod simulation;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub(crate) mod toolkit;
mod transaction;
pub mod url;
pub(crate) mod version_defaults;
#[cfg(feature = "wire")]
pub mod wire;

use std::{
    any::Any,
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    time::Duration,
};

use serde::{Deserialize, Serialize};

#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::identity::IDENTITY_NONE;
#[cfg(feature = "redis")]
pub(crate) use self::notification::is_of_queue;
pub(crate) use self::{
    doc::too_many,
    lease::{check_extend, check_result, check_settle},
    notification::{LOCK_NOTIFICATION, WORKER_NOTIFICATION, end_notification, end_of},
};
pub use self::{
    doc::{Doc, DocOp, DocReply, Precondition},
    doctor::{Check, CheckLevel},
    identity::Identity,
    lease::{
        Batch, EndReason, Heartbeat, Lease, LeaseStatus, QueueRequest, Reclaimed, Reserve, Reserved, Settled,
        Settlement, Take, Verdict,
    },
    settings::{GroupLimits, Keep, Order, Pause, Placement, QueueSettings},
    transaction::Transaction,
};
pub(crate) use crate::store::toolkit::Arithmetic;
pub(crate) use crate::store::toolkit::{Allowance, Bucket, Standing};
pub use crate::store::toolkit::{
    BoardAct, BoardOp, BoardReply, BoardWindow, Held, LimitOp, LimitRule, LockOp, LockReply, ToolOp,
    ToolReply,
};

pub use crate::core::rate::Rate;
use crate::core::{
    error::{Error, ErrorKind, Result},
    filter::Filter,
    id::JobId,
    job::{
        Concurrency, Job, JobRecord, NewJob, Payload, Priority, State, Unique, check_name, check_new_queue,
        check_payload, check_queue,
    },
    json::ms,
    limits::{BATCH_BYTES_MAX, BATCH_MAX, BUCKETS_MAX},
    time::{Timestamp, When},
    topic::TOPICS_QUEUE,
};

pub use audit::{Audit, AuditCursor, Audited, Finding};

/// The future of one call to a store.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The caller and the number of its call.
///
/// A call repeated with the same pair has its effect once (S3). An instance is a random number per process start or per
/// client, never a configured name. Its calls of one verb arrive in order, with rising numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// A random number. Enqueues and reserves of one instance are numbered separately.
    pub instance: u64,
    /// The number of the call, from 1.
    pub number: u64,
}

/// A job that an enqueue found instead of inserting its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Existing {
    /// The id of the existing job.
    pub id: JobId,
    /// Its kind, which can differ from that of the new job if keys are compared across kinds. `None` if its record is gone or
    /// cannot be read.
    pub kind: Option<String>,
    /// Its state; `None` if its record is gone and only its id is remembered.
    pub state: Option<State>,
    /// Its version; 0 if its record is gone.
    pub version: u64,
    /// Whether its cancel was requested.
    pub cancel_requested: bool,
}

/// The answer for one job of an enqueue. All answers are expected outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Enqueued {
    /// The job was inserted.
    Inserted {
        /// The id of the job.
        id: JobId,
        /// When it is due, by the store's clock.
        #[serde(rename = "run_at_ms")]
        run_at: Timestamp,
    },
    /// Its id or its unique key is taken by a job of its queue. Nothing was changed.
    Duplicate(Existing),
    /// A job of another queue has its id (S4). Nothing was changed, and the job is not stored.
    Conflict {
        /// The id.
        id: JobId,
    },
    /// The waiting holder of its unique key got the new payload, options and due time.
    Replaced {
        /// The id of the holder.
        id: JobId,
        /// When it is due.
        #[serde(rename = "run_at_ms")]
        run_at: Timestamp,
    },
    /// The waiting holder of its unique key got the new due time.
    Rescheduled {
        /// The id of the holder.
        id: JobId,
        /// When it is due.
        #[serde(rename = "run_at_ms")]
        run_at: Timestamp,
    },
    /// The queue is at its cap in jobs or bytes. Nothing was written for this job.
    Full,
}

impl Enqueued {
    /// Returns the id of the job; `None` if the queue was full, or if a job of another queue has its id.
    pub const fn id(&self) -> Option<JobId> {
        match self {
            Self::Inserted { id, .. } | Self::Replaced { id, .. } | Self::Rescheduled { id, .. } => Some(*id),
            Self::Duplicate(existing) => Some(existing.id),
            Self::Full | Self::Conflict { .. } => None,
        }
    }

    /// Returns whether a job was inserted.
    pub const fn is_new(&self) -> bool {
        matches!(self, Self::Inserted { .. })
    }

    /// Returns `inserted`, `duplicate`, `conflict`, `replaced`, `rescheduled` or `full`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Inserted { .. } => "inserted",
            Self::Duplicate(_) => "duplicate",
            Self::Conflict { .. } => "conflict",
            Self::Replaced { .. } => "replaced",
            Self::Rescheduled { .. } => "rescheduled",
            Self::Full => "full",
        }
    }
}

/// A job, named by its id or by the unique key that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// The job with this id.
    Id(JobId),
    /// The job that holds this unique key.
    Key(UniqueKey),
}

/// A unique key with everything that it is compared within (S4).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UniqueKey {
    /// The kind; `None` if the key is compared across kinds.
    pub kind: Option<String>,
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: Option<String>,
    /// The concurrency key.
    pub concurrency_key: Option<String>,
    /// The key itself.
    pub key: String,
}

impl UniqueKey {
    /// Returns the key of a job.
    pub fn of(job: &JobRecord) -> Option<Self> {
        Some(Self::within(
            &job.kind,
            &job.queue,
            job.group.as_ref(),
            job.concurrency.as_ref(),
            job.unique.as_ref()?,
        ))
    }

    /// Returns the key of a new job.
    pub fn of_new(job: &NewJob) -> Option<Self> {
        Some(Self::within(
            &job.kind,
            &job.queue,
            job.group.as_ref(),
            job.concurrency.as_ref(),
            job.unique.as_ref()?,
        ))
    }

    /// Returns the key by which to cancel or find a job without its id.
    ///
    /// This is correct if the call leaves the queue, group and concurrency key as the type says.
    ///
    /// ```
    /// # use punctual::{Client, Job, client::Cancelled, store::UniqueKey};
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
    /// `Invalid` if the type of the job has no unique key.
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

/// A job to act on, and the condition under which it is acted on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The job.
    #[serde(flatten)]
    pub selector: Selector,
    /// Checked in the step of the action, so that a job that has moved on since it was read is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
}

/// What a job must still be: in another queue it is `NotFound`, otherwise `WrongState`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Its queue.
    pub queue: String,
    /// Its state.
    pub state: State,
    /// Its version; `None` for any.
    pub version: Option<u64>,
}

impl From<JobId> for Target {
    fn from(id: JobId) -> Self {
        Self { selector: Selector::Id(id), guard: None }
    }
}

impl From<UniqueKey> for Target {
    fn from(key: UniqueKey) -> Self {
        Self { selector: Selector::Key(key), guard: None }
    }
}

/// An operator's action on a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Cancels a waiting job at once; requests the cancel of a running job (S12).
    Cancel {
        /// The reason, cut at 1 KiB (default: `cancelled`). It is not kept for a running job.
        reason: Option<String>,
    },
    /// Changes the due time of a waiting job. A time at or after its `expires_at` is allowed: the job then expires.
    Reschedule(When),
    /// Moves the due time of a waiting job by this many milliseconds, later or (if negative) earlier, but never before now.
    RescheduleBy(i64),
    /// Makes a waiting job due now. Limits still apply.
    RunNow,
    /// Changes the priority of a waiting job.
    Reprioritise(Priority),
    /// Changes the payload of a waiting job.
    EditPayload(Payload),
    /// Makes a dead, cancelled or done job wait again, as S11 describes.
    ///
    /// It takes its unique key again: always for a key until done. A key until start or for a window is taken only if the job
    /// was never reserved (and its window has not ended).
    Retry,
    /// Deletes the record of a job that is not running. A derived id is remembered; a waiting job counts as ended now.
    Delete,
}

impl Action {
    /// Returns the name of the action.
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

/// The answer for one action. All answers are expected outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acted {
    /// Done: the id, and the state of the job now (for `delete`, the state before).
    Done(JobId, State),
    /// Cancel: the job is running, and its worker is notified.
    Requested(JobId),
    /// There is no such job.
    NotFound,
    /// The state of the job does not allow the action.
    WrongState(JobId, State),
    /// Retry: this other job holds its unique key now (its record may be gone).
    UniqueConflict(JobId),
    /// Retry: since the layout changed, jobs of its concurrency key or group are in another shard; this is one of them. Retry
    /// when they have ended.
    LimiterConflict(JobId),
}

/// A request for a page of jobs.
///
/// The order is that of the store. Memory and SQLite list the newest ids first. Redis lists waiting jobs in the order in
/// which they run, then running ones, then ended ones, latest end first. A page can be shorter than its limit: it ends after
/// 1,000 jobs that do not match, with the job that brings the payloads and results read so far to 4 MiB, and with the job
/// that brings what the filter read and compared to 32 MiB.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Which jobs.
    pub filter: Filter,
    /// Where to continue, from [`Page::next`].
    pub after: Option<ListCursor>,
    /// The most jobs in the page, 1 to 1,000.
    pub limit: usize,
}

/// The position of a listing.
///
/// Its content belongs to the store. Its text needs no quotes in a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCursor(pub(crate) String);

impl ListCursor {
    /// Makes the position after a job, for listings by id.
    pub(crate) fn behind(id: JobId) -> Self {
        Self(id.to_string())
    }

    /// Returns the job after which the listing continues.
    ///
    /// # Errors
    /// `Invalid` for a position that no listing by id returned.
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

/// A page of jobs, and how much was searched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// The matching jobs.
    pub jobs: Vec<JobRecord>,
    /// Where to continue; `None` if everything was searched.
    pub next: Option<ListCursor>,
    /// The jobs that this call read: at most 1,000 in addition to those returned. Where a page ends is up to the store; all
    /// pages together are the same in every store.
    pub searched: u64,
    /// The jobs in the store, including those past their age that no sweep has removed yet.
    pub total: u64,
}

/// The number of jobs by state, from stored counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Waiting jobs, including retrying ones.
    pub waiting: u64,
    /// Waiting jobs that were tried before.
    pub retrying: u64,
    /// Waiting jobs that are due, also in a paused queue or blocked; counted up to 100,000.
    pub due: u64,
    /// Running jobs.
    pub running: u64,
    /// Done jobs that are kept.
    pub done: u64,
    /// Dead jobs.
    pub dead: u64,
    /// Cancelled jobs that are kept.
    pub cancelled: u64,
    /// Payload bytes of waiting and running jobs.
    pub bytes: u64,
    /// Unavailable parts of the store. Their jobs are not counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub parts_away: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(n: &u16) -> bool {
    *n == 0
}

impl Counts {
    /// Returns the number of all jobs.
    pub const fn total(&self) -> u64 {
        self.waiting + self.running + self.done + self.dead + self.cancelled
    }
}

/// An operation on a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum QueueOp {
    /// Returns its settings and counts.
    Show,
    /// Pauses it: nothing is reserved or taken until it is resumed. Replaces an earlier pause. Creates the queue if it is
    /// new.
    Pause {
        /// Who paused it, for people.
        by: String,
        /// Why, for people.
        reason: String,
    },
    /// Ends a pause.
    Resume,
    /// Replaces its settings, except the pause. Creates the queue if it is new.
    Set(Box<QueueSettings>),
    /// Replaces its settings, except the pause, if they are still those that the caller read; otherwise the answer is
    /// `Conflict`. A queue that does not exist has the default settings, and is created. If the settings are already the new
    /// ones, this is no conflict (S3).
    Replace(Box<Replace>),
    /// Ends a pause that a run requested (S15), of the queue or of one group. Rates and `concurrency` stay.
    Open {
        /// The group; `None` for the queue itself.
        group: Option<String>,
    },
    /// Deletes up to this many waiting jobs, 1 to 1,000, due or not, in the order in which they would run.
    Purge(usize),
}

/// New settings, and those that they replace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The settings as the caller read them. A pause is not compared.
    pub seen: QueueSettings,
    /// The new settings.
    pub new: QueueSettings,
}

impl Replace {
    /// Returns whether the stored settings are those that the caller read, or already the new ones.
    pub(crate) fn fits(&self, stored: &QueueSettings) -> bool {
        let is = |other: &QueueSettings| {
            *stored == QueueSettings { paused: stored.paused.clone(), ..other.clone() }
        };
        is(&self.seen) || is(&self.new)
    }
}

/// The answer to a [`QueueOp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueReply {
    /// There is no such queue.
    Unknown,
    /// The queue as it is now.
    Info(Box<QueueInfo>),
    /// Replace: the settings are not those that the caller read, but these. Nothing was changed.
    Conflict(Box<QueueInfo>),
    /// Purge: how many jobs were deleted.
    Purged {
        /// Jobs deleted by this call.
        deleted: u64,
        /// Whether waiting jobs are left. Call again if so.
        more: bool,
    },
}

/// A queue: its settings and counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// The name.
    pub name: String,
    /// The settings.
    pub settings: QueueSettings,
    /// The numbers of jobs.
    pub counts: Counts,
    /// When the oldest due job that no concurrency key holds back became due; `None` if there is none.
    #[serde(default, rename = "oldest_due_at_ms", skip_serializing_if = "Option::is_none")]
    pub oldest_due: Option<Timestamp>,
    /// When the oldest job that is blocked by its concurrency key became due, of up to 256 keys in each shard; `None`: none is.
    #[serde(default, rename = "oldest_blocked_at_ms", skip_serializing_if = "Option::is_none")]
    pub oldest_blocked: Option<Timestamp>,
    /// The time before which none of its jobs can start, by its rate or a run's pause; `None` if neither holds them back.
    #[serde(default, rename = "opens_at_ms", skip_serializing_if = "Option::is_none")]
    pub opens_at: Option<Timestamp>,
}

impl QueueInfo {
    /// Returns the info on a queue that does not exist: default settings and no jobs.
    #[cfg(feature = "sqlite")]
    pub(crate) fn unknown(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: QueueSettings::default(),
            counts: Counts::default(),
            oldest_due: None,
            oldest_blocked: None,
            opens_at: None,
        }
    }
}

/// A request for a histogram of waiting jobs by due time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upcoming {
    /// The queue; `None` for all.
    pub queue: Option<String>,
    /// The width of a bucket, at least 1 ms. Parts of a millisecond are rounded up.
    #[serde(rename = "bucket_ms", with = "ms")]
    pub bucket: Duration,
    /// The number of buckets from now on, 1 to 1,000.
    pub buckets: usize,
}

/// A histogram of waiting jobs by due time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Histogram {
    /// The time by the store's clock, at which the first bucket begins.
    #[serde(rename = "now_ms")]
    pub now: Timestamp,
    /// Jobs that are already due (`run_at ≤ now`).
    pub overdue: u64,
    /// Jobs per bucket. Bucket `i` begins `i` widths after now; an instant on a border belongs to the later bucket.
    pub buckets: Vec<u64>,
    /// Whether the search was complete; `false` if it stopped at its bound. Jobs after the last bucket are not counted.
    pub complete: bool,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Swept {
    /// Waiting jobs past `expires_at` that were cancelled.
    pub expired: u64,
    /// Ended jobs past their retention that were removed.
    pub removed: u64,
    /// Remembered ids, unique windows and call numbers that expired and were forgotten.
    pub forgotten: u64,
    /// Expired leases that were reclaimed.
    #[serde(default)]
    pub reclaimed: u64,
    /// Whether it reached its limit. Call again if so.
    pub more: bool,
    /// After how many milliseconds to sweep again, to reclaim leases that nobody else does (S9); `None`: there are none.
    /// If there is `more`, of the queues that were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reclaim_ms: Option<u64>,
}

/// What an `Ok` survives (S1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durability {
    /// A power cut of the store's machine.
    Full,
    /// The loss of the store's machine: as many replicas have the write as the address requests.
    Replicated,
    /// A crash of any process. A power cut can lose the last moments.
    Fast,
    /// Nothing: the store ends with its process.
    Memory,
}

impl Durability {
    /// Returns the name of the durability.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Replicated => "replicated",
            Self::Fast => "fast",
            Self::Memory => "memory",
        }
    }
}

/// Restricts [`Store`] to this project, whose wrappers in other crates implement this trait, too. It can change at any time.
#[doc(hidden)]
pub mod sealed {
    /// Marks a store of this project.
    pub trait Sealed {}
}

/// A store of jobs.
///
/// Any program can call it; only this project implements it, so that verbs can be added. All verbs take `&self` and can be
/// called from any task of any runtime. A batch has at most 1,000 items; a longer one is `Invalid`. [`Client`](crate::Client)
/// splits longer ones itself.
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// Returns the address of the store, without secrets.
    fn url(&self) -> &str;

    /// Returns what an `Ok` survives.
    fn durability(&self) -> Durability;

    /// Returns the shard that the next made id should name. A store that places the job elsewhere returns the id with that shard.
    fn shard(&self) -> u16 {
        0
    }

    /// Returns the concrete store, for a [`Transaction`] that needs one kind of store. A wrapper returns the inner one.
    #[doc(hidden)]
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Returns the identity of the store.
    ///
    /// It never changes and is the same for all handles and numbers of shards. A file gets it when it is first opened for writing,
    /// a store on Redis with the first such call. A server that was emptied is another store.
    ///
    /// # Errors
    /// `Unsupported` for a file without an identity that was opened read-only; otherwise if the store is unavailable.
    fn identity(&self) -> BoxFuture<'_, Result<Identity>>;

    /// Returns the time by the store's clock.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp>>;

    /// Enqueues jobs in order. Each job sees the effects of the earlier ones.
    ///
    /// The whole call is refused before any write if a job breaks a limit ([`NewJob::check`]) or expires at or before it is due. So
    /// it is if several jobs have more than 1 MiB of payloads together. Then, for each job: if its id is known, the answer is
    /// `Duplicate`, or `Conflict` if its record is in another queue. An id is known from a record, also one that reads hide by its
    /// age, or because it is remembered in the job's queue. Otherwise, if its unique key is held, the conflict rule decides.
    /// Otherwise, if the queue is at its cap, the answer is `Full`: it has `max_jobs` live jobs or more, or this payload would
    /// bring their bytes over `max_bytes`. Otherwise the job is inserted, and its queue is created if it is new. Only inserts are
    /// checked against the cap.
    ///
    /// Options that the job leaves open are taken from the queue's defaults now. What these leave open is not stored: each reader
    /// uses the default of its own version. The lease is the exception: each reservation chooses it.
    ///
    /// A derived id is remembered from the removal of its record until 24 h after its job ended. A job that was deleted or purged
    /// while waiting ended then. After that the id is unknown, swept or not.
    ///
    /// A unique key is held from the insert on (S4), within the kind of its job or across kinds. A key until done is freed by the
    /// end of the job. A key until start is freed by the first reservation or take, or by an end before it. A window ends `window`
    /// after `created_at` and is void from then on, swept or not. Earlier, only a cancel, delete or purge of a job that was never
    /// reserved frees it; expiry does not. The holder of a window may have ended, or be gone: it is then returned with state
    /// `None`. A duplicate has the kind of the existing job as it is by then ([`Existing::kind`]).
    ///
    /// `Replace` changes the holder's kind, payload, content type, options, tags, headers, `run_at` and `expires_at`, and raises
    /// its version. Its queue, group, concurrency key, unique key with scope, creation time, attempt, counts, reason and failures
    /// stay. `Reschedule` changes `run_at` and raises the version.
    ///
    /// A call is a repetition if its number is not above the instance's last one. Only its length is checked again. It writes
    /// nothing and answers for each job: if the last call has this number, `Full` as at the same position then, or `Inserted` as
    /// then if the record is there; else `Conflict` if a job of another queue has its id; else `Duplicate` with the job's own
    /// record or the holder of its key; else `Duplicate` with the job's own id and state `None`. A call that is refused, or in
    /// which every job is `Full` (also an empty call), does not count as the instance's last one.
    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>>;

    /// Enqueues as [`enqueue`](Self::enqueue) does, but with `None` for jobs whose part of the store is unavailable.
    ///
    /// The other jobs are stored. Repeat the call unchanged, with the same number: it continues with the jobs that have no answer
    /// yet.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); `Unavailable` if no part is available.
    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move { Ok(self.enqueue(call, jobs).await?.into_iter().map(Some).collect()) })
    }

    /// Reclaims expired leases, then reserves due jobs (S5, S6, S7, S9).
    ///
    /// 1. Repetition: if the instance's last reserve (also an empty one) has this number, the call returns those of its jobs
    ///    whose leases are current, in the same order. It extends these leases, because the answer may be late. A lower
    ///    number returns no jobs. Neither changes anything else: it leaves no mark, and nothing is reclaimed or swept. `more`
    ///    and `next_due` are as of now.
    /// 2. Leaves a mark, and notes the silence that it ends (S9): if leases exist anywhere in the store, a gap of more than half a
    ///    second since the last mark. Then looks at up to 32 leases with `until ≤ now` in the named queues, also in paused ones, by
    ///    (until, id), and reclaims those that no silence holds back. If the clock has gone back, it first looks at the 32 leases of
    ///    these queues that end last, and shortens those that end later than their length from now (S14).
    /// 3. Checks up to n + 256 due jobs of the queues that are not paused, in order, by shares as [`Reserve::queues`]
    ///    describes, until it has n. Groups of a queue are served fairly (S16): first, up to n + 32 groups that became
    ///    runnable are activated; then each job is the first of the group that is served next. A store can end the call after
    ///    64 services of groups ([`GROUP_SERVICES_MAX`](crate::core::limits::GROUP_SERVICES_MAX)), as if no more jobs had been
    ///    requested of any queue; `more` says whether some are left. A job past its `expires_at` (`expires_at ≤ now`) is
    ///    cancelled, reason `expired`. A job is blocked, and leaves the timeline, if as many jobs of its concurrency key run
    ///    in its queue and group as its own limit allows. Any other job is reserved. The call stops, in all queues, before a
    ///    job that would bring the payloads over 1 MiB, unless it is the first. It also stops before and after a suspect:
    ///    without company ([`Reserve::company`]), a suspect is reserved alone.
    /// 4. Sweeps up to 100 items: the named queues in turn, then the whole store, as [`Store::sweep`] does.
    ///
    /// Blocked jobs are re-checked after steps 2 and 4, and at the end of each verb with an event of a concurrency key. The events
    /// are: a job of the key is started, is taken, is blocked, ends its run, is changed while it waits, or stops waiting. Each
    /// event re-checks the first blocked job of the key, in order: if fewer than its limit run, it returns to the timeline. A
    /// settle does so before the reserve that follows it. A blocked job that is changed returns to the timeline, too.
    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>>;

    /// Extends leases to now plus their length (heartbeat), also an expired lease that is still current. A heartbeat can give its
    /// lease another length ([`Heartbeat::lasts`]).
    ///
    /// Stores the notes of the runs in the same step. The whole call is refused if notes are over 4 KiB or 64 lines, or if those of
    /// several leases are over 1 MiB.
    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>>;

    /// Ends leases in order, sweeps, and can then reserve in the same step and round trip.
    ///
    /// It sweeps up to its own length plus 100 items: the queues of the ended leases, in the order of their first appearance, then
    /// the whole store. The reserve works as a separate one after it would. A store can end the leases in several steps; the
    /// reserve is then part of the last one. The whole call is refused if either part breaks a limit. Pauses beyond the last
    /// instant are cut to it. If the reserve has no answer, because the shard that was asked did not reply, repeat it.
    ///
    /// Each answer says why the store ended a job, if that is not what the verdict says ([`EndReason`]); the record has the same
    /// reason. A job whose record cannot be read becomes dead by any verdict except a bare ack.
    ///
    /// A job that ends is removed in the same step if its queue keeps no jobs of its state ([`Keep::keeps_nothing`]). A result
    /// counts for a queue's retention as its payload does. Results over 64 KiB, or of several jobs over 1 MiB, are refused.
    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>>;

    /// Reserves and acks due jobs in one step: at most once.
    ///
    /// It reclaims, checks due jobs (with `run_at ≤ now − older_than`), stops at 1 MiB and sweeps as a reserve does. The records
    /// are as of the end: done. A store that can end a reserve after some services of groups continues here in a further step while
    /// fewer than `n` were taken.
    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>>;

    /// Returns when these queues may have work that the caller's last reserve did not see, or a lease in them needs a mark (S9),
    /// after `at_most` at the latest.
    ///
    /// It can return too early or too late, so the caller must reserve again in any case. Other names wait for other events:
    /// `$lock/NAME` until that lock may be free; `$end/ID`, with an id in 32 digits, until that job has ended or is gone;
    /// `$worker/NAME` until a cancel is requested for a job that runs under that name.
    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>>;

    /// Returns one job; `None` also for one that is past the age for which its queue keeps it (`finished_at + age ≤ now`).
    ///
    /// Get, list and holder hide such a job until a sweep removes it; nothing else does.
    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>>;

    /// Returns the job that holds a unique key.
    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>>;

    /// Returns a page of jobs.
    ///
    /// All pages together have each job that stays as it is exactly once. A job that starts, ends or is moved meanwhile can appear
    /// twice, or on Redis not at all. A waiting job past its `expires_at` stays waiting until a reserve, take or sweep ends it.
    /// This holds for all reads.
    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>>;

    /// Returns the stored counters of one queue (zeros if it is unknown), or of all.
    ///
    /// On Redis, the counters of some hundred queues and more are read one after the other: a job that changes its state meanwhile
    /// counts twice, or not at all.
    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>>;

    /// Returns a histogram of due times.
    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>>;

    /// Acts on jobs in order, also on those that reads hide by their age.
    ///
    /// A key selects its holder, if that has a record. The whole call is refused if the action breaks a limit, or if an edit of
    /// several jobs has more than 1 MiB of payloads together. Reschedule, reprioritise, edit and retry raise the version, whether
    /// or not a value changes. None of them is checked against a cap.
    ///
    /// It leaves a mark (S9). A lease that could be reclaimed for 60 s is reclaimed after the guard was checked and before the
    /// action. If that cancels the job, because a cancel had been requested, a cancel is `Done`.
    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>>;

    /// Shows or changes one queue.
    ///
    /// A queue exists for ever from its first job, pause or settings on. For any other, show, resume and purge return `Unknown`.
    /// Refuses settings whose defaults break a limit, and a name that no job can wait under.
    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>>;

    /// Returns the names of queues after `after`, sorted by bytes, at most 1,000.
    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>>;

    /// Does one step on the store's documents: small values with versions.
    ///
    /// Each step is atomic. Values that must change together belong into one document. In addition to the checks of
    /// [`DocOp::check`], a put that would make the 100,001st document is `StoreFull`.
    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>>;

    /// Does one atomic step on a tool: a rate limiter, a lock or a leaderboard.
    ///
    /// It uses the store's clock, and every store gives the same answers. Obsolete entries are removed on the way, in slices.
    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>>;

    /// Does bounded upkeep: at most `limit` items, 1 to 1,000.
    ///
    /// It leaves a mark (S9). Per queue, by name: up to 32 leases that could be reclaimed for 60 s are reclaimed, as a reserve
    /// does. Then waiting jobs past `expires_at` are cancelled (oldest first, then id). Then done, cancelled and dead jobs past a
    /// bound are removed, in this order (oldest end first, then id; all jobs of a state that keeps nothing). Then remembered ids
    /// past their time or number are forgotten (oldest end first, then id). Last, for the whole store: expired unique windows
    /// (oldest first), and calls of instances whose last one is an hour old (oldest first; enqueues and reserves separately). Each
    /// lease reclaimed, job ended or removed, and entry forgotten is one item. An entry that was replaced by a new one is none.
    /// Except for leases, it goes by steady time (S17).
    ///
    /// Each worker calls it when it starts, then every few minutes, and after [`Swept::next_reclaim_ms`]. So upkeep reaches queues that
    /// no worker serves. A store with very many queues can check some hundreds of them per call, and then returns `more`: the next call
    /// continues there. After a change of the number of shards, a call on Redis also reads some 4,000 records; these are no items.
    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>>;

    /// Checks the consistency of at most 1,000 records or entries.
    ///
    /// Other calls can run meanwhile. What they move between two slices is no finding, and a counter that is repaired is right at
    /// the end of the repair.
    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>>;

    /// Checks the store's version, durability, clock and notifications.
    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>>;
}

/// Checks that a batch has at most 1,000 items.
pub(crate) fn check_batch(what: &str, n: usize) -> Result<()> {
    if n <= BATCH_MAX {
        Ok(())
    } else {
        Err(Error::invalid(format!("{n} {what} are over the limit of {BATCH_MAX} in one call")))
    }
}

/// Checks everything about an enqueue that needs no store. `payload_bytes_max` is the store's limit of a payload, in bytes.
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

/// Checks the part of it that needs no clock.
pub(crate) fn check_jobs(jobs: &[NewJob], payload_bytes_max: usize) -> Result<()> {
    check_batch("jobs", jobs.len())?;
    let bytes: usize = jobs.iter().map(|job| job.payload.bytes.len()).sum();
    check_batch_bytes("payloads", bytes, jobs.len())?;
    jobs.iter().try_for_each(|job| job.check_with(payload_bytes_max))
}

/// Checks that a call has at most 1 MiB, unless it is of a single job.
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

/// Resolves an expiry. Unlike a due time, one in the past is not moved to now.
pub(crate) fn resolve_expiry(expires_at: When, now: Timestamp) -> Timestamp {
    match expires_at {
        When::At(t) => t,
        other => other.resolve(now),
    }
}

/// Checks everything about an act that needs no store. `payload_bytes_max` is the store's limit of a payload, in bytes.
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
    // Publications can be paused, too.
    if name != TOPICS_QUEUE {
        check_queue(name)?;
    }
    match op {
        QueueOp::Set(settings) => check_new_queue(name).and_then(|()| settings.check()),
        QueueOp::Replace(replace) => check_new_queue(name).and_then(|()| replace.new.check()),
        QueueOp::Open { group: Some(group) } => check_name("group", group),
        QueueOp::Purge(n) => check_limit("purge", *n),
        QueueOp::Show | QueueOp::Pause { .. } | QueueOp::Resume | QueueOp::Open { group: None } => Ok(()),
    }
}

/// Checks that the bound of a list, purge or sweep is 1 to 1,000.
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
