//! Extend: moves the end of a current lease. Any other lease changes nothing (S8).

use std::time::Duration;

use crate::{
    core::{
        error::Result,
        time::{Timestamp, ceil_ms},
    },
    store::{
        Heartbeat, Lease, LeaseStatus, check_extend,
        model::{Model, Row},
    },
};

impl Model {
    /// [`Store::extend`](crate::store::Store::extend).
    pub fn extend(&mut self, now: Timestamp, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
        check_extend(beats)?;
        self.mark(now);
        Ok(beats.iter().map(|beat| self.extend_one(now, beat)).collect())
    }

    fn extend_one(&mut self, now: Timestamp, beat: &Heartbeat) -> LeaseStatus {
        let Heartbeat { lease, notes, company, lasts } = beat;
        if !self.extend_lease(now, *lease, *lasts) {
            return LeaseStatus::Lost;
        }
        let Row { job, cancel_reported, company: has_company, .. } = self.row_mut(lease.job);
        *cancel_reported = job.cancel_requested;
        *has_company |= company;
        if let Some(notes) = notes {
            job.notes.clone_from(notes);
        }
        if job.cancel_requested { LeaseStatus::CancelRequested } else { LeaseStatus::Held }
    }

    /// Moves the end of a lease to now plus its length, or plus a new length; returns `false` if it is not current.
    pub(crate) fn extend_lease(&mut self, now: Timestamp, lease: Lease, lasts: Option<Duration>) -> bool {
        if self.run_of(lease).is_none() {
            return false;
        }
        let Row { job, lasts_ms, .. } = self.row_mut(lease.job);
        let running = job.running.as_mut().expect("invariant: a current lease belongs to a running job");
        *lasts_ms = lasts.map_or(*lasts_ms, ceil_ms);
        running.until = now.after(Duration::from_millis(*lasts_ms));
        true
    }
}
