//! What has to do with leases: reserving jobs, extending their leases, and ending them.

use std::time::Duration;

use super::{Call, check_batch, check_batch_bytes};
use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{JobRecord, Payload, State, check_lease, check_name, check_queue},
    limits::{QUEUES_PER_RESERVE_MAX, RESULT_BYTES_MAX},
    notes::Notes,
    time::{Timestamp, When},
};

/// The exclusive right to settle one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// Which job.
    pub job: JobId,
    /// The reservation's number: strictly rises for an id, and is never reused, not even when the id comes back after its
    /// record was pruned. Hand it to whatever the handler writes to, as a fencing token.
    pub fence: u64,
}

/// One queue of a [`Reserve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its name.
    pub queue: String,
    /// Jobs it may have before the queues behind it get any.
    pub share: usize,
    /// The most jobs it may have of this call, 0 to 1,000: bounds its share and what is left over alike. `n` sets no
    /// bound of its own.
    pub at_most: usize,
}

/// A call for due jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// For repetition (S3).
    pub call: Call,
    /// The worker's name, for people.
    pub worker: String,
    /// Which queues, at most 64. First each in turn gets up to its share; then, while fewer than `n` are found, each in
    /// turn gets what is left; neither beyond its `at_most`. `strict` gives every queue a share of `n`; `weighted` splits
    /// `n`. A queue named twice is two wants, each with its own bounds.
    pub wants: Vec<Want>,
    /// At most this many jobs, 0 to 1,000. 0 only takes back and tells what is next.
    pub n: usize,
    /// The lease for jobs without one of their own; `None`: the queue's, else 15 s.
    pub lease: Option<Duration>,
    /// Whether a job that one more crash would end may run beside the caller's others (S9). Then these come like all others, and
    /// no crash ends them; else such a job comes alone, and its caller runs no other of them beside it.
    pub company: bool,
}

impl Reserve {
    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        check_batch("jobs to reserve", self.n)?;
        if QUEUES_PER_RESERVE_MAX < self.wants.len() {
            let n = self.wants.len();
            return Err(Error::invalid(format!(
                "{n} queues are over the limit of {QUEUES_PER_RESERVE_MAX} in one reserve"
            )));
        }
        for want in &self.wants {
            check_name("queue", &want.queue)?;
            check_batch("jobs to reserve from one queue", want.at_most)?;
        }
        self.lease.map_or(Ok(()), check_lease)
    }
}

/// A job under a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    /// The right to settle it.
    pub lease: Lease,
    /// Until when the lease may not be taken back, unless extended.
    pub until: Timestamp,
    /// How long one extension lasts.
    pub lasts: Duration,
    /// The job, as of this reservation.
    pub job: JobRecord,
}

/// A lease that a reserve or take took back (S9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// The lease that is no more.
    pub lease: Lease,
    /// The job's queue.
    pub queue: String,
    /// Where the job went: waiting, dead or cancelled.
    pub state: State,
}

/// The answer to a [`Reserve`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The store's clock at the call.
    pub now: Timestamp,
    /// The jobs, in the order in which they were reserved (S6). At most 1 MiB of payloads, or one job.
    pub jobs: Vec<Reserved>,
    /// Whether, at the end of the call, due jobs are left in those of these queues that are not paused, or leases past
    /// their time in any of them (none count while nothing is taken back, S14): call again. A reserve answers fewer jobs than were
    /// asked for and may start only if it says so here.
    pub more: bool,
    /// Zero if `more`. Else how long from the call, to the fraction of a millisecond where the store knows it, until the
    /// earliest `run_at` of a waiting job in those of these queues that are not paused, or `until` of a lease in any of them
    /// (one past its time counts at the end of the pause of S14); `None`: there is neither. For a caller in whose process
    /// [`Store::wait`](super::Store::wait) waits for these queues, it may be up to a minute later if two other processes wake at
    /// that time.
    pub next_due: Option<Duration>,
    /// The leases that this call took back first, at most 32.
    pub taken_back: Vec<TakenBack>,
}

/// A lease to extend, and what its run tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which run.
    pub lease: Lease,
    /// Replaces what is kept of the job's notes; `None`: nothing is new.
    pub notes: Option<Notes>,
    /// From now on another job runs beside it that a crash might be the fault of, so that none ends it (S9). Stays.
    pub company: bool,
}

impl From<Lease> for Heartbeat {
    fn from(lease: Lease) -> Self {
        Self { lease, notes: None, company: false }
    }
}

/// What a heartbeat learns about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Extended to now plus its length.
    Held,
    /// Not current (any more); nothing was changed (S8).
    Lost,
    /// Extended, and somebody asked to cancel the job (S12).
    CancelRequested,
    /// The part of the store that has the job could not be reached, or did not answer: ask again. Only where a store has
    /// several shards.
    Away,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The work is done, also if a cancel was asked for.
    Ack,
    /// As an ack; and this is kept with the job, as long as its record is.
    AckWith {
        /// What the run has made: at most 64 KiB.
        result: Payload,
    },
    /// It failed: again at `at`; counts an attempt. At the last attempt the job is dead, reason `attempts`.
    Retry {
        /// When it is due again, resolved by the store's clock.
        at: When,
        /// What went wrong; cut at 1 KiB.
        error: String,
    },
    /// As a retry; and until then none of its group's jobs starts, or of its queue's if it has no group: for an answer from outside
    /// that asks for a pause. The gate is closed for 24 h at most; with several shards, that of the job's shard.
    RetryAfter {
        /// When it is due again, and the gate opens.
        at: When,
        /// What went wrong; cut at 1 KiB.
        error: String,
    },
    /// Again after this pause, at least 100 ms; counts nothing. The 10,000th in a row: dead, reason `snoozes`.
    Snooze {
        /// The pause.
        after: Duration,
        /// Why, kept with the job until its next run was settled or taken back; cut at 1 KiB.
        reason: Option<String>,
    },
    /// Back as it was, with its own `run_at`; counts nothing.
    Release,
    /// Called off: cancelled.
    Cancel {
        /// Why; `cancelled` where nothing is said.
        reason: Option<String>,
    },
    /// Given up on; the error is the reason, and the attempt is kept among the failures.
    Dead {
        /// What went wrong; cut at 1 KiB.
        error: String,
    },
}

/// A lease and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which run.
    pub lease: Lease,
    /// How it ended.
    pub verdict: Verdict,
}

impl Settlement {
    /// What the run gave, if it did.
    pub(crate) const fn result(&self) -> Option<&Payload> {
        if let Verdict::AckWith { result } = &self.verdict { Some(result) } else { None }
    }
}

/// Why a store ended a job at the end of a run, other than for what the verdict says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Its last attempt failed: dead.
    Attempts,
    /// Its 10,000th snooze in a row: dead.
    Snoozes,
    /// A cancel was requested while it ran: cancelled, by any verdict but an ack.
    CancelRequested,
    /// Its record can't be read: dead.
    Corrupt,
}

impl EndReason {
    /// The word that [`JobRecord::reason`] has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Snoozes => "snoozes",
            Self::CancelRequested => "cancelled",
            Self::Corrupt => "corrupt",
        }
    }
}

/// What became of one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// The lease ended by this call: where the job stands now, and why the store ended it where that is not what the verdict
    /// says.
    Settled(State, Option<EndReason>),
    /// This call changed nothing: the lease is not current (S8), or an earlier, unanswered call settled it (S3).
    LeaseLost,
    /// The part of the store that has the job could not be reached, or did not answer: settle it again. Only where a store
    /// has several shards.
    Away {
        /// Whether it was sent: then the lease may have ended.
        sent: bool,
    },
}

/// A call for an at-most-once pop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Where.
    pub queue: String,
    /// At most this many, up to 1,000.
    pub n: usize,
    /// Only jobs with `run_at ≤ now − older_than`.
    pub older_than: Duration,
}

impl Take {
    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        check_batch("jobs to take", self.n)?;
        check_queue(&self.queue)
    }
}

/// Checks the heartbeats of one call.
pub(crate) fn check_extend(beats: &[Heartbeat]) -> Result<()> {
    check_batch("leases", beats.len())?;
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

/// Refuses a result over 64 KiB, and a content type that is no name.
pub(crate) fn check_result(result: &Payload) -> Result<()> {
    let size = result.bytes.len();
    if RESULT_BYTES_MAX < size {
        let text = format!("a result of {size} bytes is over the limit of {RESULT_BYTES_MAX}");
        return Err(Error::new(ErrorKind::TooLarge, text)
            .with_hint("store large results elsewhere and give their address"));
    }
    check_name("content_type", &result.content_type)
}
