//! What reads take and return: pages of jobs, and a histogram of due times.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, Result},
    filter::Filter,
    id::JobId,
    job::JobRecord,
    json::ms,
    limits::BUCKETS_MAX,
    time::Timestamp,
};

/// A request for a page of jobs.
///
/// The order is that of the store. Memory and SQLite list the newest ids first. Redis lists waiting jobs in the order in
/// which they run, then running ones, then ended ones, latest end first. A page can be shorter than its limit: it ends after
/// 1,000 jobs that do not match, with the job that brings the payloads and results read so far to 4 MiB, and with the job
/// that brings what the filter read and compared to 32 MiB.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Which jobs.
    pub filter: Filter,
    /// Where to continue, from [`Page::next`].
    pub after: Option<ListCursor>,
    /// The most jobs in the page, 1 to 1,000.
    pub limit: usize,
}

/// The position of a listing.
///
/// Its content belongs to the store. Its text needs no quotes in a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCursor(pub(crate) String);

impl ListCursor {
    /// Makes the position after a job, for listings by id.
    pub(crate) fn behind(id: JobId) -> Self {
        Self(id.to_string())
    }

    /// Returns the job after which the listing continues.
    ///
    /// # Errors
    /// `Invalid` for a position that no listing by id returned.
    pub(crate) fn id(&self) -> Result<JobId> {
        self.0.parse().map_err(|_| Self::unreadable())
    }

    pub(crate) fn unreadable() -> Error {
        Error::invalid("could not read the cursor of the listing")
            .with_hint("use the cursor that the page before this one returned, with the same store")
    }
}

impl From<String> for ListCursor {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A page of jobs, and how much was searched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// The matching jobs.
    pub jobs: Vec<JobRecord>,
    /// Where to continue; `None` if everything was searched.
    pub next: Option<ListCursor>,
    /// The jobs that this call read: at most 1,000 in addition to those returned. Where a page ends is up to the store; all
    /// pages together are the same in every store.
    pub searched: u64,
    /// The jobs in the store, including those past their age that no sweep has removed yet.
    pub total: u64,
}

/// A request for a histogram of waiting jobs by due time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upcoming {
    /// The queue; `None` for all.
    pub queue: Option<String>,
    /// The width of a bucket, at least 1 ms. Parts of a millisecond are rounded up.
    #[serde(rename = "bucket_ms", with = "ms")]
    pub bucket: Duration,
    /// The number of buckets from now on, 1 to 1,000.
    pub buckets: usize,
}

/// A histogram of waiting jobs by due time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Histogram {
    /// The time by the store's clock, at which the first bucket begins.
    #[serde(rename = "now_ms")]
    pub now: Timestamp,
    /// Jobs that are already due (`run_at ≤ now`).
    pub overdue: u64,
    /// Jobs per bucket. Bucket `i` begins `i` widths after now; an instant on a border belongs to the later bucket.
    pub buckets: Vec<u64>,
    /// Whether the search was complete; `false` if it stopped at its bound. Jobs after the last bucket are not counted.
    pub complete: bool,
}

/// Checks an [`Upcoming`].
pub(crate) fn check_upcoming(upcoming: &Upcoming) -> Result<()> {
    if upcoming.bucket.as_millis() == 0 || !(1..=BUCKETS_MAX).contains(&upcoming.buckets) {
        return Err(Error::invalid(format!(
            "upcoming takes buckets of at least 1 ms, 1 to {BUCKETS_MAX} of them"
        )));
    }
    Ok(())
}
