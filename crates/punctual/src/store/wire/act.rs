//! The body of an act, and its answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    items,
    line::split,
    record::{payload, present},
    view::{PayloadView, exact},
};
use crate::{
    core::{
        error::{Error, Result},
        id::JobId,
        job::{Priority, State},
        time::{Timestamp, When},
    },
    store::{Acted, Action, Target},
};

/// An action. Only the fields of its kind may be there.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActionBody<'a> {
    /// `cancel`, `reschedule`, `run_now`, `reprioritise`, `edit`, `retry` or `delete`. Required.
    pub action: String,
    /// For `cancel`: the reason.
    pub reason: Option<String>,
    /// For `reschedule`: the new due time.
    pub run_at_ms: Option<Timestamp>,
    /// For `reschedule`: the new due time, from now on.
    pub delay_ms: Option<u64>,
    /// For `reschedule`: by how much to move the due time, later or (if negative) earlier.
    pub by_ms: Option<i64>,
    /// For `reprioritise`: the new priority.
    pub priority: Option<Priority>,
    /// For `edit`: the new payload as JSON or text.
    #[serde(borrow, deserialize_with = "present")]
    pub payload: Option<&'a RawValue>,
    /// For `edit`: the new payload in base64.
    pub payload_base64: Option<String>,
    /// For `edit`: the type of the payload (default: JSON).
    pub content_type: Option<String>,
}

const ACTIONS: &str = "write cancel, reschedule, run_now, reprioritise, edit, retry or delete";

impl ActionBody<'_> {
    /// Returns the action.
    ///
    /// # Errors
    /// `Invalid` for an unknown action, a missing field, or a field that does not belong to the action.
    pub fn action(self) -> Result<Action> {
        let allowed: &[&str] = match self.action.as_str() {
            "cancel" => &["reason"],
            "reschedule" => &["run_at_ms", "delay_ms", "by_ms"],
            "reprioritise" => &["priority"],
            "edit" => &["payload"],
            "run_now" | "retry" | "delete" => &[],
            "" => return Err(Error::invalid("action is missing").with_hint(ACTIONS)),
            other => {
                let shown: String = other.chars().take(32).collect();
                return Err(Error::invalid(format!("{shown:?} is no action")).with_hint(ACTIONS));
            }
        };
        let given = [
            ("reason", self.reason.is_some()),
            ("run_at_ms", self.run_at_ms.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("by_ms", self.by_ms.is_some()),
            ("priority", self.priority.is_some()),
            ("payload", self.payload.is_some() || self.payload_base64.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(field, given)| *given && !allowed.contains(field)) {
            return Err(Error::invalid(format!("{field} does not belong to the action {}", self.action)));
        }
        let missing = |what: &str| Error::invalid(format!("{what} is missing"));
        Ok(match self.action.as_str() {
            "cancel" => Action::Cancel { reason: self.reason },
            "reschedule" => match (self.run_at_ms, self.delay_ms, self.by_ms) {
                (Some(at), None, None) => Action::Reschedule(When::At(at)),
                (None, Some(delay), None) => Action::Reschedule(When::In(Duration::from_millis(delay))),
                (None, None, Some(by)) => Action::RescheduleBy(by),
                _ => return Err(Error::invalid("a reschedule takes one of run_at_ms, delay_ms and by_ms")),
            },
            "reprioritise" => Action::Reprioritise(self.priority.ok_or_else(|| missing("priority"))?),
            "edit" => {
                let payload = payload(self.payload, self.payload_base64, self.content_type)?;
                Action::EditPayload(payload.ok_or_else(|| missing("payload"))?)
            }
            "retry" => Action::Retry,
            "delete" => Action::Delete,
            _ => Action::RunNow,
        })
    }
}

/// An [`Action`] as [`ActionBody`] reads it.
#[derive(Debug, Default, Serialize)]
pub struct ActionView<'a> {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(flatten)]
    payload: Option<PayloadView<'a>>,
}

impl<'a> From<&'a Action> for ActionView<'a> {
    fn from(action: &'a Action) -> Self {
        let view = Self::default();
        match action {
            Action::Cancel { reason } => Self { action: "cancel", reason: reason.as_deref(), ..view },
            Action::Reschedule(when) => {
                let (delay_ms, run_at_ms) = if *when == When::Now { (Some(0), None) } else { split(*when) };
                Self { action: "reschedule", run_at_ms, delay_ms, ..view }
            }
            Action::RescheduleBy(by) => Self { action: "reschedule", by_ms: Some(*by), ..view },
            Action::RunNow => Self { action: "run_now", ..view },
            Action::Reprioritise(priority) => {
                Self { action: "reprioritise", priority: Some(*priority), ..view }
            }
            Action::EditPayload(payload) => Self { action: "edit", payload: Some(exact(payload)), ..view },
            Action::Retry => Self { action: "retry", ..view },
            Action::Delete => Self { action: "delete", ..view },
        }
    }
}

/// The body of an act. `A` is the form of the action.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActBody<A> {
    /// The jobs: `{"id": …}` or `{"key": {…}}`, with a `guard` if they must not have moved on. At most 1,000.
    #[serde(deserialize_with = "items")]
    pub targets: Vec<Target>,
    /// What to do with each of them.
    pub action: A,
}

/// What became of a job that was acted on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ActedBody {
    /// Done.
    Done {
        /// The job.
        id: JobId,
        /// Its state now (for `delete`, the state before).
        state: State,
    },
    /// The job is running, and its worker is notified of the cancel.
    Requested {
        /// The job.
        id: JobId,
    },
    /// There is no such job.
    NotFound,
    /// The state of the job does not allow the action.
    WrongState {
        /// The job.
        id: JobId,
        /// Its state.
        state: State,
    },
    /// Another job holds its unique key.
    UniqueConflict {
        /// The other job.
        id: JobId,
    },
    /// Jobs of its concurrency key or group are in another shard.
    LimiterConflict {
        /// One of them.
        id: JobId,
    },
}

impl From<Acted> for ActedBody {
    fn from(acted: Acted) -> Self {
        match acted {
            Acted::Done(id, state) => Self::Done { id, state },
            Acted::Requested(id) => Self::Requested { id },
            Acted::NotFound => Self::NotFound,
            Acted::WrongState(id, state) => Self::WrongState { id, state },
            Acted::UniqueConflict(id) => Self::UniqueConflict { id },
            Acted::LimiterConflict(id) => Self::LimiterConflict { id },
        }
    }
}

impl From<ActedBody> for Acted {
    fn from(body: ActedBody) -> Self {
        match body {
            ActedBody::Done { id, state } => Self::Done(id, state),
            ActedBody::Requested { id } => Self::Requested(id),
            ActedBody::NotFound => Self::NotFound,
            ActedBody::WrongState { id, state } => Self::WrongState(id, state),
            ActedBody::UniqueConflict { id } => Self::UniqueConflict(id),
            ActedBody::LimiterConflict { id } => Self::LimiterConflict(id),
        }
    }
}

/// The answers to an act, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct ActReply {
    /// What became of each job.
    pub results: Vec<ActedBody>,
}
