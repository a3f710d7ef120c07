//! What an enqueue takes and returns.

use serde::{Deserialize, Serialize};

use super::{check_batch, check_batch_bytes};
use crate::core::{
    error::{Error, Result},
    id::JobId,
    job::{NewJob, State},
    time::{Timestamp, When},
};

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

/// Resolves an expiry. Unlike a due time, one in the past is not moved to now.
pub(crate) fn resolve_expiry(expires_at: When, now: Timestamp) -> Timestamp {
    match expires_at {
        When::At(t) => t,
        other => other.resolve(now),
    }
}
