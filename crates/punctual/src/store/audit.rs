//! Requests and answers of an audit: every job is in exactly one place, and every entry has a record.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::core::id::JobId;

/// A request to check a slice of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    /// Whether to repair what is found. A repair never deletes a record.
    pub repair: bool,
    /// Where to continue, from [`Audited::next`]; the default is the beginning.
    pub from: AuditCursor,
}

/// The position of an audit. Its content belongs to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditCursor(pub(crate) Vec<u8>);

/// The result of a slice of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    /// Records and entries checked, at most 1,000. How slices are cut is up to the store.
    pub checked: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Where to continue; `None` if everything was checked.
    pub next: Option<AuditCursor>,
}

/// An inconsistency that an audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The id of the job, if one is concerned and its id can be read.
    pub id: Option<JobId>,
    /// The queue, if it is known.
    pub queue: Option<String>,
    /// What is wrong, in a word: `orphan`, `two_places`, `no_record`, `corrupt`, `counter`, `stale_key`, `astray`.
    pub what: Cow<'static, str>,
    /// The same, described for people.
    pub detail: String,
    /// Whether this call repaired it.
    pub repaired: bool,
}
