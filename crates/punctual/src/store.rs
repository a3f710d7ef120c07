//! The contract between the runtime and a store of jobs: few, batched, object-safe verbs.
//!
//! A store knows the time only from its clock, gets ids and jitter from its caller, and knows nothing of handlers. Each verb on one
//! job happens entirely or not at all (S2). The rules S1 to S17 are in `docs/contract.md`. The [model] is their executable form, and
//! every other store gives the same answers. The docs of the verbs below settle the details that the contract leaves open.

mod act;
mod audit;
mod call;
pub mod clock;
mod doc;
mod doctor;
mod enqueue;
#[cfg(feature = "testing")]
pub mod faulty;
#[cfg(feature = "http")]
pub mod http;
mod identity;
mod lease;
pub mod memory;
pub mod model;
mod notification;
mod queue;
mod read;
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
pub(crate) mod why;
#[cfg(feature = "wire")]
pub mod wire;

use std::{any::Any, fmt::Debug, future::Future, pin::Pin, time::Duration};

use serde::{Deserialize, Serialize};

#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::identity::IDENTITY_NONE;
pub(crate) use self::{
    act::check_act,
    call::{all_answered, reply},
    doc::too_many,
    enqueue::{check_enqueue, resolve_expiry},
    lease::{check_extend, check_result, check_settle},
    notification::{LOCK_NOTIFICATION, WORKER_NOTIFICATION, end_notification, end_of},
    queue::check_queue_op,
    read::check_upcoming,
};
pub use self::{
    act::{Acted, Action, Guard, Selector, Target},
    audit::{Audit, AuditCursor, Audited, Finding},
    call::{Answer, Call, Reply},
    doc::{Doc, DocOp, DocReply, Precondition},
    doctor::{Check, CheckLevel},
    enqueue::{CallId, Enqueued, Existing},
    identity::Identity,
    lease::{
        Batch, Heartbeat, Lease, LeaseStatus, QueueRequest, Reclaimed, Reserve, Reserved, Settled,
        Settlement, Take,
    },
    queue::{Counts, QueueInfo, QueueOp, QueueReply, Replace},
    read::{Histogram, List, ListCursor, Page, Upcoming},
    settings::{GroupLimits, Keep, Order, Placement, QueueSettings},
    transaction::Transaction,
};
#[cfg(feature = "redis")]
pub(crate) use self::{enqueue::check_jobs, notification::is_of_queue};
pub use crate::core::{
    pause::Pause,
    unique_key::UniqueKey,
    verdict::{EndReason, Verdict},
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
    id::JobId,
    job::{JobRecord, NewJob},
    limits::{BATCH_BYTES_MAX, BATCH_MAX},
    time::Timestamp,
};

/// The future of one call to a store.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    fn shard(&self) -> u16;

    /// Returns the concrete store, for a [`Transaction`] that needs one kind of store. A wrapper returns the inner one.
    #[doc(hidden)]
    fn as_any(&self) -> Option<&dyn Any>;

    /// Answers a call, with the reply to its verb.
    ///
    /// A wrapper changes what it wants to, and passes the call on. If the future is dropped before its end, the call may or may not
    /// have its effect.
    ///
    /// # Errors
    /// Those of the typed methods.
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>>;

    /// Returns the identity of the store.
    ///
    /// It never changes and is the same for all handles and numbers of shards. A file gets it when it is first opened for writing,
    /// a store on Redis with the first such call. A server that was emptied is another store.
    ///
    /// # Errors
    /// `Unsupported` for a file without an identity that was opened read-only; otherwise if the store is unavailable.
    fn identity(&self) -> Answer<'_, Identity> {
        Answer::of(self.call(Call::Identity))
    }

    /// Returns the time by the store's clock.
    fn now(&self) -> Answer<'_, Timestamp> {
        Answer::of(self.call(Call::Now))
    }

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
    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> Answer<'a, Vec<Enqueued>> {
        Answer::of(self.call(Call::Enqueue { call, jobs, partial: false }))
    }

    /// Enqueues as [`enqueue`](Self::enqueue) does, but with `None` for jobs whose part of the store is unavailable.
    ///
    /// The other jobs are stored. Repeat the call unchanged, with the same number: it continues with the jobs that have no answer
    /// yet.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); `Unavailable` if no part is available.
    fn enqueue_each<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> Answer<'a, Vec<Option<Enqueued>>> {
        Answer::of(self.call(Call::Enqueue { call, jobs, partial: true }))
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
    fn reserve<'a>(&'a self, want: &'a Reserve) -> Answer<'a, Batch> {
        Answer::of(self.call(Call::Reserve(want)))
    }

    /// Extends leases to now plus their length (heartbeat), also an expired lease that is still current. A heartbeat can give its
    /// lease another length ([`Heartbeat::lasts`]).
    ///
    /// Stores the notes of the runs in the same step. The whole call is refused if notes are over 4 KiB or 64 lines, or if those of
    /// several leases are over 1 MiB.
    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> Answer<'a, Vec<LeaseStatus>> {
        Answer::of(self.call(Call::Extend(beats)))
    }

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
    ) -> Answer<'a, (Vec<Settled>, Option<Batch>)> {
        Answer::of(self.call(Call::Settle { batch, then }))
    }

    /// Reserves and acks due jobs in one step: at most once.
    ///
    /// It reclaims, checks due jobs (with `run_at ≤ now − older_than`), stops at 1 MiB and sweeps as a reserve does. The records
    /// are as of the end: done. A store that can end a reserve after some services of groups continues here in a further step while
    /// fewer than `n` were taken.
    fn take<'a>(&'a self, take: &'a Take) -> Answer<'a, Vec<JobRecord>> {
        Answer::of(self.call(Call::Take(take)))
    }

    /// Returns when these queues may have work that the caller's last reserve did not see, or a lease in them needs a mark (S9),
    /// after `at_most` at the latest.
    ///
    /// It can return too early or too late, so the caller must reserve again in any case. Other names wait for other events:
    /// `$lock/NAME` until that lock may be free; `$end/ID`, with an id in 32 digits, until that job has ended or is gone;
    /// `$worker/NAME` until a cancel is requested for a job that runs under that name.
    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> Answer<'a, ()> {
        Answer::of(self.call(Call::Wait { queues, at_most }))
    }

    /// Returns one job; `None` also for one that is past the age for which its queue keeps it (`finished_at + age ≤ now`).
    ///
    /// Get, list and holder hide such a job until a sweep removes it; nothing else does.
    fn get(&self, id: JobId) -> Answer<'_, Option<JobRecord>> {
        Answer::of(self.call(Call::Get(id)))
    }

    /// Returns the job that holds a unique key.
    fn holder<'a>(&'a self, key: &'a UniqueKey) -> Answer<'a, Option<JobRecord>> {
        Answer::of(self.call(Call::Holder(key)))
    }

    /// Returns a page of jobs.
    ///
    /// All pages together have each job that stays as it is exactly once. A job that starts, ends or is moved meanwhile can appear
    /// twice, or on Redis not at all. A waiting job past its `expires_at` stays waiting until a reserve, take or sweep ends it.
    /// This holds for all reads.
    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Answer::of(self.call(Call::List(list)))
    }

    /// Returns the stored counters of one queue (zeros if it is unknown), or of all.
    ///
    /// On Redis, the counters of some hundred queues and more are read one after the other: a job that changes its state meanwhile
    /// counts twice, or not at all.
    fn count<'a>(&'a self, queue: Option<&'a str>) -> Answer<'a, Counts> {
        Answer::of(self.call(Call::Count(queue)))
    }

    /// Returns a histogram of due times.
    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> Answer<'a, Histogram> {
        Answer::of(self.call(Call::Upcoming(upcoming)))
    }

    /// Acts on jobs in order, also on those that reads hide by their age.
    ///
    /// A key selects its holder, if that has a record. The whole call is refused if the action breaks a limit, or if an edit of
    /// several jobs has more than 1 MiB of payloads together. Reschedule, reprioritise, edit and retry raise the version, whether
    /// or not a value changes. None of them is checked against a cap.
    ///
    /// It leaves a mark (S9). A lease that could be reclaimed for 60 s is reclaimed after the guard was checked and before the
    /// action. If that cancels the job, because a cancel had been requested, a cancel is `Done`.
    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> Answer<'a, Vec<Acted>> {
        Answer::of(self.call(Call::Act { targets, action }))
    }

    /// Shows or changes one queue.
    ///
    /// A queue exists for ever from its first job, pause or settings on. For any other, show, resume and purge return `Unknown`.
    /// Refuses settings whose defaults break a limit, and a name that no job can wait under.
    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> Answer<'a, QueueReply> {
        Answer::of(self.call(Call::Queue { name, op }))
    }

    /// Returns the names of queues after `after`, sorted by bytes, at most 1,000.
    fn queues<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, Vec<String>> {
        Answer::of(self.call(Call::Queues(after)))
    }

    /// Does one step on the store's documents: small values with versions.
    ///
    /// Each step is atomic. Values that must change together belong into one document. In addition to the checks of
    /// [`DocOp::check`], a put that would make the 100,001st document is `StoreFull`.
    fn doc<'a>(&'a self, op: &'a DocOp) -> Answer<'a, DocReply> {
        Answer::of(self.call(Call::Doc(op)))
    }

    /// Does one atomic step on a tool: a rate limiter, a lock or a leaderboard.
    ///
    /// It uses the store's clock, and every store gives the same answers. Obsolete entries are removed on the way, in slices.
    fn tool<'a>(&'a self, op: &'a ToolOp) -> Answer<'a, ToolReply> {
        Answer::of(self.call(Call::Tool(op)))
    }

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
    fn sweep(&self, limit: usize) -> Answer<'_, Swept> {
        Answer::of(self.call(Call::Sweep(limit)))
    }

    /// Checks the consistency of at most 1,000 records or entries.
    ///
    /// Other calls can run meanwhile. What they move between two slices is no finding, and a counter that is repaired is right at
    /// the end of the repair.
    fn audit(&self, audit: Audit) -> Answer<'_, Audited> {
        Answer::of(self.call(Call::Audit(audit)))
    }

    /// Checks the store's version, durability, clock and notifications.
    fn doctor(&self) -> Answer<'_, Vec<Check>> {
        Answer::of(self.call(Call::Doctor))
    }
}

/// Checks that a batch has at most 1,000 items.
pub(crate) fn check_batch(what: &str, n: usize) -> Result<()> {
    if n <= BATCH_MAX {
        Ok(())
    } else {
        Err(Error::invalid(format!("{n} {what} are over the limit of {BATCH_MAX} in one call")))
    }
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

/// Checks that the bound of a list, purge or sweep is 1 to 1,000.
pub(crate) fn check_limit(what: &str, limit: usize) -> Result<()> {
    if (1..=BATCH_MAX).contains(&limit) {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what} limit {limit} is not within 1 to {BATCH_MAX}")))
    }
}
