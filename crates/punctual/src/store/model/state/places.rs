//! The states of a job: waiting, running or ended, and the moves between them.

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
    /// Returns the jobs of a queue in one state, by id.
    pub(crate) fn jobs<'a>(&'a self, queue: &'a str, state: State) -> impl Iterator<Item = &'a JobRecord> {
        self.rows_of(queue, state).map(|row| &row.job)
    }

    /// Returns the timeline: the waiting jobs that are not blocked.
    pub(crate) fn timeline<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a JobRecord> {
        self.rows_of(queue, State::Waiting).filter(|row| !row.blocked).map(|row| &row.job)
    }

    fn rows_of<'a>(&'a self, queue: &'a str, state: State) -> impl Iterator<Item = &'a Row> {
        // The state first: it is cheaper to compare, and most jobs have ended.
        self.rows.values().filter(move |row| row.job.state == state && row.job.queue == queue)
    }

    /// Returns waiting jobs of a queue in the order in which they run (S6).
    pub(crate) fn in_order(&self, queue: &str, mut jobs: Vec<&JobRecord>) -> Vec<JobId> {
        match self.settings(queue).order {
            Order::Fifo => jobs.sort_by_key(|job| (job.priority, job.run_at, job.id)),
            Order::Lifo => {
                jobs.sort_by_key(|job| (job.priority, std::cmp::Reverse((job.run_at, job.id))));
            }
        }
        jobs.into_iter().map(|job| job.id).collect()
    }

    /// Returns the running job of a lease, if the lease is current (S8).
    pub(crate) fn run_of(&self, lease: Lease) -> Option<&Row> {
        let row = self.rows.get(&lease.job)?;
        (row.job.running.as_ref()?.fence == lease.fence).then_some(row)
    }

    /// Ends a job; returns its record as of the end, which may already be removed.
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

    /// Removes a record. A derived id is remembered (S17).
    pub(crate) fn remove(&mut self, id: JobId, now: Timestamp) {
        let row = self.rows.remove(&id).expect("invariant: the caller found this row");
        let ended_at = row.job.finished_at.unwrap_or(now);
        if id.is_derived() && self.doubt.steady(now) < ended_at.after(ID_MEMORY) {
            self.remembered.insert((row.job.queue, id), ended_at);
        }
    }

    /// Removes a job that an operator deletes or purges. Unlike age, that frees the window of a job that never
    /// started.
    pub(crate) fn delete(&mut self, id: JobId, now: Timestamp) {
        self.leave_waiting(id);
        if !(is_window(&self.row_mut(id).job) && self.row_mut(id).started) {
            self.free_key(id);
        }
        self.remove(id, now);
    }
}
