//! How a run ends, and why a store ends a job otherwise.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::{job::Payload, time::When};

/// How a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The work is done, also if a cancel was requested.
    Ack,
    /// The work is done, and this result is kept with the job's record.
    AckWith {
        /// The result, at most 64 KiB.
        result: Payload,
    },
    /// The run failed and is retried at `at`; counts an attempt. After the last attempt the job is dead, reason
    /// `attempts`.
    Retry {
        /// When the job is due again, resolved by the store's clock.
        at: When,
        /// The error, cut at 1 KiB.
        error: String,
    },
    /// A retry that also pauses the job's group until then, or its queue if it has no group: for another system that
    /// requests a pause. The pause is 24 h at most. With several shards, it holds in the job's shard.
    RetryAfter {
        /// When the job is due again and the pause ends.
        at: When,
        /// The error, cut at 1 KiB.
        error: String,
    },
    /// Runs again after this pause, at least 100 ms; counts nothing. The 10,000th in a row makes the job dead, reason
    /// `snoozes`.
    Snooze {
        /// The pause.
        after: Duration,
        /// Why the worker did not run the job, cut at 1 KiB; `None` if it did. It is kept until the next run is settled or reclaimed.
        /// With a reason, the number of expired leases in a row stays.
        reason: Option<String>,
    },
    /// Returns the job with its own `run_at`; counts nothing.
    Release,
    /// Cancels the job.
    Cancel {
        /// The reason (default: `cancelled`).
        reason: Option<String>,
    },
    /// Gives the job up. The error is the reason, and the attempt is kept among the failures.
    Dead {
        /// The error, cut at 1 KiB.
        error: String,
    },
}

/// Why a store ended a job, if that is not what the verdict says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its last attempt failed: it is dead.
    Attempts,
    /// Its 10,000th snooze in a row: it is dead.
    Snoozes,
    /// A cancel was requested while it ran: it is cancelled by any verdict except an ack.
    CancelRequested,
    /// Its record cannot be read: it is dead.
    Corrupt,
}

impl EndReason {
    /// Returns the word that [`JobRecord::reason`](crate::JobRecord::reason) has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Snoozes => "snoozes",
            Self::CancelRequested => "cancelled",
            Self::Corrupt => "corrupt",
        }
    }
}
