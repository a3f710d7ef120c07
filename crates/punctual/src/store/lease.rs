//! Leases: reserving jobs, extending leases, and ending them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CallId, check_batch, check_batch_bytes};
use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{JobRecord, Payload, State, check_lease, check_name, check_queue},
    json::opt_ms,
    limits::{BATCH_MAX, QUEUES_PER_RESERVE_MAX, RESULT_BYTES_MAX},
    notes::Notes,
    time::Timestamp,
    verdict::{EndReason, Verdict},
};

/// A lease: the exclusive right to settle one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The job.
    #[serde(rename = "id")]
    pub job: JobId,
    /// The fence: the number of the reservation. It strictly rises for an id and is never reused, not even if the id
    /// returns after its record was removed. Send it as a fencing token to the systems that the handler writes to.
    pub fence: u64,
}

/// A queue of a [`Reserve`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRequest {
    /// The name of the queue.
    pub queue: String,
    /// How many jobs it can have before the queues after it get any.
    #[serde(default)]
    pub share: usize,
    /// The most jobs it can have of this call, 0 to 1,000. Bounds its share and what is left over. It can exceed `n`.
    #[serde(default = "batch_max")]
    pub at_most: usize,
}

const fn batch_max() -> usize {
    BATCH_MAX
}

/// A request for due jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The call, for repetition (S3).
    pub call: CallId,
    /// The name of the worker, for people: at most 255 bytes without NUL.
    pub worker: String,
    /// The queues, at most 64. First each in turn gets up to its share. Then, while fewer than `n` jobs are found,
    /// each in turn gets what is left. Neither exceeds its `at_most`. `strict` gives each queue a share of `n`;
    /// `weighted` divides `n`. A queue that is named twice has two entries, each with its own bounds.
    pub queues: Vec<QueueRequest>,
    /// The most jobs, 0 to 1,000. With 0, the call only reclaims and returns what is due next.
    pub n: usize,
    /// The lease of jobs without one of their own; `None` means the queue's, else 15 s.
    pub lease: Option<Duration>,
    /// Whether a suspect can run beside the caller's other suspects (S9). If so, suspects are reserved like all other
    /// jobs, and no expired lease ends them. Otherwise a suspect is reserved alone, and its caller runs no other
    /// suspect beside it.
    pub company: bool,
}

impl Reserve {
    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
    pub fn check(&self) -> Result<()> {
        check_batch("jobs to reserve", self.n)?;
        if !self.worker.is_empty() {
            check_name("worker name", &self.worker)?;
        }
        if QUEUES_PER_RESERVE_MAX < self.queues.len() {
            let n = self.queues.len();
            return Err(Error::invalid(format!(
                "{n} queues are over the limit of {QUEUES_PER_RESERVE_MAX} in one reserve"
            )));
        }
        for request in &self.queues {
            check_name("queue", &request.queue)?;
            check_batch("jobs to reserve from one queue", request.at_most)?;
        }
        self.lease.map_or(Ok(()), |lease| check_lease("lease_ms", lease))
    }
}

/// A reserved job and its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    /// The right to settle it.
    pub lease: Lease,
    /// The time until which the lease is not reclaimed, unless it is extended.
    pub until: Timestamp,
    /// How long one extension lasts.
    pub lasts: Duration,
    /// The job as it was reserved.
    pub job: JobRecord,
}

/// A lease that a reserve or take reclaimed (S9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// The lease, which has ended.
    #[serde(flatten)]
    pub lease: Lease,
    /// The queue of the job.
    pub queue: String,
    /// The new state of the job: waiting, dead or cancelled.
    pub state: State,
}

/// The answer to a [`Reserve`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// The jobs, in the order in which they were reserved (S6). At most 1 MiB of payloads, or one job.
    pub jobs: Vec<Reserved>,
    /// Whether to call again: at the end of the call, due jobs are left in the queues that are not paused, or expired
    /// leases in any of them that no silence holds back (S9). A reserve returns fewer jobs than may start only together
    /// with `more`.
    pub more: bool,
    /// How long from the call until there may be something to do; zero if `more`, and to the fraction of a
    /// millisecond if the store knows it. It is the earliest `run_at` of a waiting job in the queues that are not
    /// paused, or the time at which a lease in any of them needs a mark or can be reclaimed (S9). `None` if there is
    /// neither. If [`Store::wait`](super::Store::wait) waits for these queues in the caller's process, it
    /// can be up to a minute later if two other processes wake at that time.
    pub next_due: Option<Duration>,
    /// The leases that this call reclaimed first, at most 32.
    pub reclaimed: Vec<Reclaimed>,
}

/// A lease to extend, and the notes of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The lease.
    #[serde(flatten)]
    pub lease: Lease,
    /// The new notes, which replace the stored ones; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Notes>,
    /// Whether another suspect runs beside it from now on, so that no expired lease ends it (S9). Stays in force.
    #[serde(default)]
    pub company: bool,
    /// The length of the lease from now on, for this extension and later ones, 1 s to 24 h; `None` keeps it. With
    /// a shorter one, the lease can end earlier than before.
    #[serde(default, rename = "lasts_ms", skip_serializing_if = "Option::is_none", with = "opt_ms")]
    pub lasts: Option<Duration>,
}

impl From<Lease> for Heartbeat {
    fn from(lease: Lease) -> Self {
        Self { lease, notes: None, company: false, lasts: None }
    }
}

/// The answer for one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseStatus {
    /// The lease was extended to now plus its length.
    Held,
    /// The lease is not current; nothing was changed (S8).
    Lost,
    /// The lease was extended, and the job's cancel is requested (S12).
    CancelRequested,
    /// A part of the store that may have the job is unavailable or did not answer, and no other part has it. Ask again. Only in
    /// stores with several shards.
    Away,
}

/// A lease and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The verdict.
    pub verdict: Verdict,
}

impl Settlement {
    /// Returns the result of the run, if it has one.
    pub(crate) const fn result(&self) -> Option<&Payload> {
        if let Verdict::AckWith { result } = &self.verdict { Some(result) } else { None }
    }
}

/// The answer for one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// This call ended the lease: the new state of the job, and why the store ended it if that is not what the
    /// verdict says.
    Settled(State, Option<EndReason>),
    /// This call changed nothing: the lease is not current (S8), or an earlier call with a lost answer settled it
    /// (S3).
    LeaseLost,
    /// A part of the store that may have the job is unavailable or did not answer, and no other part has it. Settle it
    /// again. Only in stores with several shards.
    Away {
        /// Whether the settlement was sent to such a part, so that the lease may have ended.
        sent: bool,
    },
}

/// A request to take jobs, at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The queue.
    pub queue: String,
    /// The most jobs, up to 1,000.
    pub n: usize,
    /// Only jobs with `run_at ≤ now − older_than`.
    pub older_than: Duration,
}

impl Take {
    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
    pub fn check(&self) -> Result<()> {
        check_batch("jobs to take", self.n)?;
        check_queue(&self.queue)
    }
}

/// Checks the heartbeats of one call.
pub(crate) fn check_extend(beats: &[Heartbeat]) -> Result<()> {
    check_batch("leases", beats.len())?;
    beats.iter().filter_map(|beat| beat.lasts).try_for_each(|lasts| check_lease("lasts_ms", lasts))?;
    let notes = beats.iter().filter_map(|beat| beat.notes.as_ref());
    let (mut bytes, mut n) = (0, 0);
    for notes in notes {
        notes.check()?;
        (bytes, n) = (bytes + notes.bytes(), n + 1);
    }
    check_batch_bytes("notes", bytes, n)
}

/// Checks the settlements of one call.
pub(crate) fn check_settle(batch: &[Settlement]) -> Result<()> {
    check_batch("settlements", batch.len())?;
    let results = batch.iter().filter_map(Settlement::result);
    let (mut bytes, mut n) = (0, 0);
    for result in results {
        check_result(result)?;
        (bytes, n) = (bytes + result.bytes.len(), n + 1);
    }
    check_batch_bytes("results", bytes, n)
}

/// Checks that a result has at most 64 KiB and a valid content type.
pub(crate) fn check_result(result: &Payload) -> Result<()> {
    let size = result.bytes.len();
    if RESULT_BYTES_MAX < size {
        let text = format!("a result of {size} bytes is over the limit of {RESULT_BYTES_MAX}");
        return Err(Error::new(ErrorKind::TooLarge, text)
            .with_hint("store large results elsewhere and give their address"));
    }
    check_name("content_type", &result.content_type)
}
