//! Where a job stands: among those that wait, under a lease, or ended; and the moves between these places.

use crate::{
    core::{
        id::JobId,
        job::{JobRecord, State},
        limits::ID_MEMORY,
        time::Timestamp,
    },
    store::{
        Lease, Order,
        model::{Model, Row, keep, state::keys::is_window},
    },
};

impl Model {
    /// Jobs of a queue in one state, in the order of their ids.
    pub(crate) fn jobs<'a>(&'a self, queue: &'a str, state: State) -> impl Iterator<Item = &'a JobRecord> {
        self.rows.values().map(|row| &row.job).filter(move |job| job.queue == queue && job.state == state)
    }

    /// The timeline: waiting jobs that are not parked.
    pub(crate) fn timeline<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a JobRecord> {
        self.jobs(queue, State::Waiting).filter(|job| !self.rows[&job.id].parked)
    }

    /// Waiting jobs of a queue in the order in which they run (S6).
    pub(crate) fn in_order(&self, queue: &str, mut jobs: Vec<&JobRecord>) -> Vec<JobId> {
        match self.settings(queue).order {
            Order::Fifo => jobs.sort_by_key(|job| (job.priority, job.run_at, job.id)),
            Order::Lifo => {
                jobs.sort_by_key(|job| (job.priority, std::cmp::Reverse((job.run_at, job.id))));
            }
        }
        jobs.into_iter().map(|job| job.id).collect()
    }

    /// The running job of a lease, if the lease is current (S8).
    pub(crate) fn run_of(&self, lease: Lease) -> Option<&Row> {
        let row = self.rows.get(&lease.job)?;
        (row.job.running.as_ref()?.fence == lease.fence).then_some(row)
    }

    /// Ends a job; answers its record as of the end, which may be gone already.
    pub(crate) fn end(
        &mut self,
        id: JobId,
        state: State,
        reason: Option<String>,
        now: Timestamp,
    ) -> JobRecord {
        self.leave_waiting(id);
        let row = self.row_mut(id);
        (row.job.state, row.job.reason, row.job.finished_at) = (state, reason, Some(now));
        let ended = row.record();
        if !is_window(&ended) {
            self.free_key(id);
        }
        if keep(&self.settings(&ended.queue), state).keeps_nothing() {
            self.remove(id, now);
        }
        ended
    }

    /// Removes a record; a derived id outlives it (S17).
    pub(crate) fn remove(&mut self, id: JobId, now: Timestamp) {
        let row = self.rows.remove(&id).expect("invariant: the caller found this row");
        let ended_at = row.job.finished_at.unwrap_or(now);
        if id.is_derived() && now < ended_at.after(ID_MEMORY) {
            self.remembered.insert((row.job.queue, id), ended_at);
        }
    }

    /// Removes a job that somebody deletes or purges; unlike age, that frees a window whose job never started.
    pub(crate) fn delete(&mut self, id: JobId, now: Timestamp) {
        self.leave_waiting(id);
        if !(is_window(&self.row_mut(id).job) && self.row_mut(id).started) {
            self.free_key(id);
        }
        self.remove(id, now);
    }
}
