//! An operation, as its document has it.

use punctual::{Timestamp, job::Filter};
use serde::{Deserialize, Serialize};

use super::{order::ActionName, outcomes::Outcomes};

/// Where an operation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OperationState {
    Running,
    Done,
    Cancelled,
    Failed,
}

impl OperationState {
    pub(crate) const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Cancelled, Self::Failed];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// Which server takes the steps of an operation, and until when no other may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) instance: String,
    pub(super) until_ms: Timestamp,
}

/// An operation. All of it is bounded, so its document has at most 48 KiB: a filter has up to 4 KiB, and JSON escapes some bytes as six.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) action: ActionName,
    pub(crate) filter: String,
    pub(crate) reason: String,
    /// Who ordered it. Its rights were checked then.
    pub(crate) by: String,
    /// The id of its token, if it had one.
    pub(crate) token: Option<String>,
    /// When the jobs were counted. Jobs that arrived or ended later are not touched.
    pub(crate) confirmed_ms: Timestamp,
    /// The number of jobs that were counted.
    pub(crate) planned: u64,
    /// Whether there may have been more.
    pub(crate) at_least: bool,
    pub(crate) state: OperationState,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// Who cancelled it. It then takes no further step.
    pub(crate) cancelled_by: Option<String>,
    pub(crate) outcomes: Outcomes,
    pub(crate) ordered_ms: Timestamp,
    pub(crate) updated_ms: Timestamp,
    pub(crate) ended_ms: Option<Timestamp>,
    /// Where the listing continues; `None` at its beginning.
    pub(super) cursor: Option<String>,
    pub(super) lease: Option<Lease>,
}

impl Operation {
    pub(crate) fn is_ended(&self) -> bool {
        self.state != OperationState::Running
    }

    /// Whether it was cancelled, and the server that runs it has not noticed yet.
    pub(crate) fn is_stopping(&self) -> bool {
        !self.is_ended() && self.cancelled_by.is_some()
    }

    /// Returns the number of counted jobs that no step has handled.
    pub(crate) fn left(&self) -> u64 {
        if self.state == OperationState::Done {
            0
        } else {
            self.planned.saturating_sub(self.outcomes.total())
        }
    }

    /// Returns the queues that the filter names; `None` if it is about all.
    pub(crate) fn queues(&self) -> Option<Vec<String>> {
        Filter::parse(&self.filter).ok()?.queues().filter(|queues| !queues.is_empty())
    }

    /// Whether no server may take a step but this one.
    pub(super) fn is_held_by(&self, instance: &str) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.instance == instance)
    }

    /// Returns until when another server has it; `None` if it is free.
    pub(super) fn held_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.lease.as_ref().map(|lease| lease.until_ms).filter(|until| now < *until)
    }

    pub(super) fn end(&mut self, state: OperationState, now: Timestamp) {
        (self.state, self.updated_ms, self.ended_ms, self.lease) = (state, now, Some(now), None);
    }
}
