//! An entry of the activity log.

use punctual::{ErrorKind, JobId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    gate::Caller,
    operations::{Operation, Outcomes, cut},
};

/// The longest name of a caller in bytes. A longer one is cut.
const NAME_BYTES_MAX: usize = 256;
/// The longest reason or filter in an entry, in bytes. A longer one is cut.
const TEXT_BYTES_MAX: usize = 512;
/// The most jobs that an entry names.
const JOBS_MAX: usize = 5;

/// Who gives an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Actor {
    #[serde(rename = "by")]
    pub(crate) name: String,
    /// The id of its token, if it has one.
    pub(crate) token: Option<String>,
}

impl Actor {
    /// Names a caller. Without a gate in front of the router, nobody knows it: `unknown` stands for it.
    pub(crate) fn of(caller: Option<&Caller>, unknown: &str) -> Self {
        let name = caller.map_or(unknown, |caller| caller.name.as_str());
        Self {
            name: cut(name, NAME_BYTES_MAX).to_owned(),
            token: caller.and_then(|caller| caller.token.clone()),
        }
    }
}

/// By which way an order came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Via {
    Dashboard,
    Api,
    /// A server that took the steps of an operation.
    Operation,
}

impl Via {
    pub(crate) const ALL: [&'static str; 3] = ["dashboard", "api", "operation"];

    pub(crate) const fn name(self) -> &'static str {
        Self::ALL[self as usize]
    }
}

/// An entry. All of it is bounded: it takes 16 KiB at most, and a few hundred bytes as a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at_ms: Timestamp,
    #[serde(flatten)]
    pub(crate) actor: Actor,
    pub(crate) via: Via,
    /// What was done, as a word such as `cancel`.
    pub(crate) action: String,
    /// How many changes of the same kind were merged into this entry.
    pub(crate) times: u64,
    /// What became of jobs.
    pub(crate) done: u64,
    pub(crate) requested: u64,
    pub(crate) skipped: u64,
    /// The first of the jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) jobs: Vec<JobId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<String>,
    /// The operation that was ordered, cancelled or ended, and its action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) act: Option<String>,
    /// The number of jobs that were counted when it was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) planned: Option<u64>,
    /// The key of a document, such as that of a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The code of an error after which nobody knows whether the change was made, or that ended an operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Entry {
    /// Makes an entry without a time, which it gets when it is written.
    pub(crate) fn new(actor: Actor, via: Via, action: &str) -> Self {
        Self {
            at_ms: Timestamp::default(),
            actor,
            via,
            action: action.to_owned(),
            times: 1,
            done: 0,
            requested: 0,
            skipped: 0,
            jobs: Vec::new(),
            queue: None,
            filter: None,
            operation: None,
            act: None,
            planned: None,
            document: None,
            reason: None,
            error: None,
        }
    }

    #[must_use]
    pub(crate) fn jobs(mut self, jobs: impl IntoIterator<Item = JobId>, outcomes: &Outcomes) -> Self {
        self.jobs = jobs.into_iter().take(JOBS_MAX).collect();
        (self.done, self.requested, self.skipped) = (outcomes.done, outcomes.requested, outcomes.skipped());
        self
    }

    #[must_use]
    pub(crate) fn queue(mut self, name: &str) -> Self {
        self.queue = text(name);
        self
    }

    #[must_use]
    pub(crate) fn document(mut self, key: &str) -> Self {
        self.document = text(key);
        self
    }

    #[must_use]
    pub(crate) fn operation(mut self, of: &Operation) -> Self {
        (self.operation, self.filter, self.reason) = (text(&of.id), text(&of.filter), text(&of.reason));
        self.act = Some(of.action.name().to_owned());
        self
    }

    #[must_use]
    pub(crate) fn reason(mut self, reason: &str) -> Self {
        self.reason = text(reason);
        self
    }

    /// Says that a change failed, if it may have been made all the same. `None` if it was not made.
    pub(crate) fn failed(mut self, kind: ErrorKind) -> Option<Self> {
        self.error = text(kind.code());
        (kind == ErrorKind::UnknownOutcome).then_some(self)
    }

    /// Whether two entries differ only in jobs and numbers.
    pub(super) fn is_like<'a>(&'a self, other: &'a Self) -> bool {
        // By reference: each entry that waits is compared.
        let of = |entry: &'a Self| {
            let Self { actor, via, action, queue, filter, operation, document, reason, error, .. } = entry;
            (actor, via, action, queue, filter, operation, document, reason, error)
        };
        of(self) == of(other)
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (sum, n) in [
            (&mut self.times, other.times),
            (&mut self.done, other.done),
            (&mut self.requested, other.requested),
            (&mut self.skipped, other.skipped),
        ] {
            *sum = sum.saturating_add(n);
        }
        self.jobs.extend(&other.jobs);
        self.jobs.truncate(JOBS_MAX);
    }
}

fn text(text: &str) -> Option<String> {
    Some(cut(text, TEXT_BYTES_MAX).to_owned()).filter(|text| !text.is_empty())
}
