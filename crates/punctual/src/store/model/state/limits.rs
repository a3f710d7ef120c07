//! What holds due jobs back (S15): the limits of a queue. Those of a group are in `groups.rs`, concurrency keys in `keys.rs`.
//!
//! Nothing of a queue starts while as many of its jobs run as may, before its rate lets one more start, or before the time until
//! which a run closed its gate. Then nobody looks at its jobs.

use crate::{
    core::{
        job::{JobRecord, State},
        limits::GATE_MAX,
        rate::{Arrival, Rate},
        time::Timestamp,
    },
    store::model::Model,
};

/// What a queue or a group remembers for its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    /// Until when a run closed it.
    closed_until: Option<Timestamp>,
    /// When all that started would have, had it started evenly.
    arrival: Option<Arrival>,
}

impl Gate {
    /// When its rate, and whoever closed it, let a job start.
    pub(crate) fn opens_in_time(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        let by_rate =
            rate.map(|rate| Timestamp::saturating_from_ms(rate.opens_at(self.arrival, now.as_ms(), 1)));
        self.closed(now).into_iter().chain(by_rate).fold(now, Timestamp::max)
    }

    /// Until when a run closed it. What lies further ahead than it can was left by a clock that went back since.
    fn closed(self, now: Timestamp) -> Option<Timestamp> {
        self.closed_until.filter(|until| *until <= now.after(GATE_MAX))
    }

    /// A job starts.
    pub(crate) fn spend(&mut self, rate: Option<Rate>, now: Timestamp) {
        if let Some(rate) = rate {
            self.arrival = rate.pass(self.arrival, now.as_ms(), 1).ok();
        }
    }

    /// A run closes it.
    pub(crate) fn close(&mut self, until: Timestamp, now: Timestamp) {
        self.closed_until = self.closed(now).max(Some(until.min(now.after(GATE_MAX))));
    }

    /// An operator opens it.
    pub(crate) fn open(&mut self) {
        self.closed_until = None;
    }

    /// Whether it says more than a new one.
    pub(crate) fn remembers(self, now: Timestamp) -> bool {
        let last = self.closed_until.map(Timestamp::as_ms).max(self.arrival.map(|arrival| arrival.ms));
        last.is_some_and(|last| now.as_ms() <= last)
    }
}

impl Model {
    /// When the next job of a queue may start; `None`: when one of those that run has ended.
    pub(crate) fn opens(&self, queue: &str, now: Timestamp) -> Option<Timestamp> {
        let running = self.jobs(queue, State::Running).count();
        let is_full = self.settings(queue).concurrency.is_some_and(|most| most as usize <= running);
        (!is_full).then(|| self.opens_in_time(queue, now))
    }

    /// When its rate, and whoever closed its gate, let a job of a queue start.
    pub(crate) fn opens_in_time(&self, queue: &str, now: Timestamp) -> Timestamp {
        let gate = self.gates.get(queue).copied().unwrap_or_default();
        gate.opens_in_time(self.settings(queue).rate, now)
    }

    /// A job of a queue starts.
    pub(crate) fn spend(&mut self, queue: &str, now: Timestamp) {
        let rate = self.settings(queue).rate;
        self.gates.entry(queue.to_owned()).or_default().spend(rate, now);
    }

    /// A run closes the gate of its queue.
    pub(crate) fn close(&mut self, queue: &str, until: Timestamp, now: Timestamp) {
        self.gates.entry(queue.to_owned()).or_default().close(until, now);
    }

    /// An operator opens the gate of a queue.
    pub(crate) fn open(&mut self, queue: &str) {
        self.gates.entry(queue.to_owned()).or_default().open();
    }

    /// A job as it is read.
    pub(crate) fn shown(&self, job: &JobRecord, now: Timestamp) -> JobRecord {
        let blocked = job.state == State::Waiting
            && job.run_at <= now
            && (self.is_full(job)
                || self.opens(&job.queue, now) != Some(now)
                || self.is_group_closed(job, now));
        JobRecord { blocked, ..self.rows[&job.id].record() }
    }
}
