//! What an operator's action takes and returns, and how it names its job.

use serde::{Deserialize, Serialize};

use super::{check_batch, check_batch_bytes};
use crate::core::{
    error::Result,
    id::JobId,
    job::{Payload, Priority, State, check_payload},
    time::When,
    unique_key::UniqueKey,
};

/// A job, named by its id or by the unique key that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// The job with this id.
    Id(JobId),
    /// The job that holds this unique key.
    Key(UniqueKey),
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
