//! What a step on a queue takes and returns, and counts of jobs.

use serde::{Deserialize, Serialize};

use super::{check_limit, settings::QueueSettings};
use crate::core::{
    error::Result,
    job::{check_name, check_new_queue, check_queue},
    time::Timestamp,
    topic::TOPICS_QUEUE,
};

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
