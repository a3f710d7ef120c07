//! What an audit asks, and what it finds: every job in exactly one place, every entry with a record.

use serde::Serialize;

use crate::core::id::JobId;

/// A slice of a consistency check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Mend what is found, never by deleting a record.
    pub repair: bool,
    /// Go on from here, as [`Audited::next`] gave it; the default is the beginning.
    pub from: AuditCursor,
}

/// Where an audit goes on; what it holds is its store's own business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditCursor(pub(crate) Vec<u8>);

/// What a slice of an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// Records and entries looked at, at most 1,000; how a store cuts its slices is its own business.
    pub checked: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Where to go on; `None`: everything was checked.
    pub next: Option<AuditCursor>,
}

/// Something that an audit found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The job, where one is concerned and its id can be read.
    pub id: Option<JobId>,
    /// The queue, where it is known.
    pub queue: Option<String>,
    /// What is wrong, in a word: `orphan`, `two_places`, `no_record`, `corrupt`, `counter`, `stale_key`, `astray`.
    pub what: &'static str,
    /// The same for people.
    pub detail: String,
    /// Whether this call mended it.
    pub repaired: bool,
}
