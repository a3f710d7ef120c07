//! What holds due jobs back (S15): concurrency keys, and the limits of a queue. Those of a group are in `fair.rs`.
//!
//! Nothing of a queue starts while as many of its jobs run as may, before its rate lets one more start, or before the time until
//! which a run closed its gate. Then nobody looks at its jobs.
//!
//! A due job that a reserve looks at while as many of its key run as may, or while one that comes first is parked, is *parked*: it
//! leaves the timeline, so that nobody looks at it again in vain. Each event of a key (a run that starts or ends, a waiting
//! job that leaves or is parked) gives the first of its parked jobs a look: if it may run, it is back in the timeline, with
//! its own `run_at`. So while the first may run, some job of the key is in the timeline, whose own next event looks again:
//! none is left behind.

use super::Model;
use crate::core::{
    digest::digest,
    id::JobId,
    job::{JobRecord, State},
    limits::GATE_MAX,
    rate::{Arrival, Rate},
    time::Timestamp,
};

/// What a queue or a group remembers for its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate {
    /// Until when a run closed it.
    closed_until: Option<Timestamp>,
    /// When all that started would have, had it started evenly.
    arrival: Option<Arrival>,
}

impl Gate {
    /// When its rate, and whoever closed it, let a job start.
    pub(super) fn opens_in_time(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        let by_rate =
            rate.map(|rate| Timestamp::saturating_from_ms(rate.opens_at(self.arrival, now.as_ms(), 1)));
        self.closed(now).into_iter().chain(by_rate).fold(now, Timestamp::max)
    }

    /// Until when a run closed it. What lies further ahead than it can was left by a clock that went back since.
    fn closed(self, now: Timestamp) -> Option<Timestamp> {
        self.closed_until.filter(|until| *until <= now.after(GATE_MAX))
    }

    /// A job starts.
    pub(super) fn spend(&mut self, rate: Option<Rate>, now: Timestamp) {
        if let Some(rate) = rate {
            self.arrival = rate.pass(self.arrival, now.as_ms(), 1).ok();
        }
    }

    /// A run closes it.
    pub(super) fn close(&mut self, until: Timestamp, now: Timestamp) {
        self.closed_until = self.closed(now).max(Some(until.min(now.after(GATE_MAX))));
    }

    /// An operator opens it.
    pub(super) fn open(&mut self) {
        self.closed_until = None;
    }

    /// Whether it says more than a new one.
    pub(super) fn remembers(self, now: Timestamp) -> bool {
        let last = self.closed_until.map(Timestamp::as_ms).max(self.arrival.map(|arrival| arrival.ms));
        last.is_some_and(|last| now.as_ms() <= last)
    }
}

/// A concurrency key with what it is compared within: queue, group, key.
pub(super) type Key = (String, Option<String>, String);

pub(super) fn key(job: &JobRecord) -> Option<Key> {
    let concurrency = job.concurrency.as_ref()?;
    Some((job.queue.clone(), job.group.clone(), concurrency.key.clone()))
}

/// What stands for the key of a parked job.
pub(super) fn digest_of(job: &JobRecord) -> Option<[u8; 16]> {
    let concurrency = job.concurrency.as_ref()?;
    Some(digest(&[Some(&job.queue), job.group.as_deref(), Some(&concurrency.key)]))
}

impl Model {
    // ── queues ──

    /// When the next job of a queue may start; `None`: when one of those that run has ended.
    pub(super) fn opens(&self, queue: &str, now: Timestamp) -> Option<Timestamp> {
        let running = self.jobs(queue, State::Running).count();
        let is_full = self.settings(queue).concurrency.is_some_and(|most| most as usize <= running);
        (!is_full).then(|| self.opens_in_time(queue, now))
    }

    /// When its rate, and whoever closed its gate, let a job of a queue start.
    pub(super) fn opens_in_time(&self, queue: &str, now: Timestamp) -> Timestamp {
        let gate = self.gates.get(queue).copied().unwrap_or_default();
        gate.opens_in_time(self.settings(queue).rate, now)
    }

    /// A job of a queue starts.
    pub(super) fn spend(&mut self, queue: &str, now: Timestamp) {
        let rate = self.settings(queue).rate;
        self.gates.entry(queue.to_owned()).or_default().spend(rate, now);
    }

    /// A run closes the gate of its queue.
    pub(super) fn close(&mut self, queue: &str, until: Timestamp, now: Timestamp) {
        self.gates.entry(queue.to_owned()).or_default().close(until, now);
    }

    /// An operator opens the gate of a queue.
    pub(super) fn open(&mut self, queue: &str) {
        self.gates.entry(queue.to_owned()).or_default().open();
    }

    // ── concurrency keys ──

    /// Whether as many jobs of a job's key run as may beside it.
    pub(super) fn is_full(&self, job: &JobRecord) -> bool {
        let Some(concurrency) = &job.concurrency else { return false };
        let running = self.jobs(&job.queue, State::Running).filter(|other| key(other) == key(job));
        concurrency.limit as usize <= running.count()
    }

    /// Whether a due job waits for its turn: its key is full, or one of those that are parked comes first.
    pub(super) fn waits_for_turn(&self, job: &JobRecord) -> bool {
        let of = key(job);
        let mut ahead: Vec<_> =
            self.parked(&job.queue).filter(|other| of.is_some() && key(other) == of).collect();
        ahead.push(job);
        self.is_full(job) || self.in_order(&job.queue, ahead).first() != Some(&job.id)
    }

    /// Notes an event of the key that a job has.
    pub(super) fn touch(&mut self, id: JobId) {
        self.touched.extend(key(&self.rows[&id].job));
    }

    /// A waiting job leaves its place, be it for another among those that wait.
    pub(super) fn leave_waiting(&mut self, id: JobId) {
        if self.rows[&id].job.state == State::Waiting {
            self.row_mut(id).parked = false;
            self.touch(id);
        }
    }

    /// Parks a due job.
    pub(super) fn park(&mut self, id: JobId) {
        self.row_mut(id).parked = true;
        self.touch(id);
    }

    /// For each event, the first of the parked jobs of its key returns to the timeline if it may run; groups that have nothing to
    /// start any more leave the rings.
    pub(super) fn hand_over(&mut self, now: Timestamp) {
        for touched in std::mem::take(&mut self.touched) {
            let parked = self.parked(&touched.0).filter(|job| key(job).as_ref() == Some(&touched)).collect();
            if let Some(&first) = self.in_order(&touched.0, parked).first()
                && !self.is_full(&self.rows[&first].job)
            {
                self.row_mut(first).parked = false;
            }
        }
        self.thin_rings(now);
    }

    /// Parked jobs of a queue.
    pub(super) fn parked<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a JobRecord> {
        self.jobs(queue, State::Waiting).filter(|job| self.rows[&job.id].parked)
    }

    /// A job as it is read.
    pub(super) fn shown(&self, job: &JobRecord, now: Timestamp) -> JobRecord {
        let blocked = job.state == State::Waiting
            && job.run_at <= now
            && (self.is_full(job)
                || self.opens(&job.queue, now) != Some(now)
                || self.is_group_closed(job, now));
        JobRecord { blocked, ..self.rows[&job.id].record() }
    }
}
