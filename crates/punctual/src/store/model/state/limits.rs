//! The limiters of a queue (S15). Those of a group are in `groups.rs`, concurrency keys in `keys.rs`.
//!
//! No job of a queue starts while its `concurrency` is used up, before its rate allows another start, or during a
//! pause that a run requested. Its jobs are not even checked then.

use crate::{
    core::{
        job::{JobRecord, State},
        limits::PAUSE_MAX,
        rate::{Rate, Tat},
        time::Timestamp,
    },
    store::model::Model,
};

/// The state of the limiter of a queue or group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limiter {
    /// The end of a pause that a run requested.
    closed_until: Option<Timestamp>,
    /// The theoretical arrival time of all jobs that started.
    tat: Option<Tat>,
}

impl Limiter {
    /// Returns the first instant at which its rate and its pause allow a start. If they do now, it is a past one.
    pub(crate) fn opening(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        let by_rate = rate.map(|rate| Timestamp::saturating_from_ms(rate.opening(self.tat, now.as_ms())));
        self.closed(now).into_iter().chain(by_rate).fold(Timestamp::saturating_from_ms(0), Timestamp::max)
    }

    /// Returns when its rate and its pause allow a start, from now on.
    pub(crate) fn opens_in_time(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        self.opening(rate, now).max(now)
    }

    /// Returns the end of the pause. One further ahead than possible was left by a clock that went back, and is
    /// ignored.
    fn closed(self, now: Timestamp) -> Option<Timestamp> {
        self.closed_until.filter(|until| *until <= now.after(PAUSE_MAX))
    }

    /// Counts the start of a job.
    pub(crate) fn spend(&mut self, rate: Option<Rate>, now: Timestamp) {
        if let Some(rate) = rate {
            self.tat = rate.pass(self.tat, now.as_ms(), 1).ok();
        }
    }

    /// Sets a pause at the request of a run.
    pub(crate) fn close(&mut self, until: Timestamp, now: Timestamp) {
        self.closed_until = self.closed(now).max(Some(until.min(now.after(PAUSE_MAX))));
    }

    /// Ends a pause at the request of an operator.
    pub(crate) fn open(&mut self) {
        self.closed_until = None;
    }

    /// Returns whether some of its state is ignored now. Time alone can then close it: the state counts again when the clock
    /// comes near to it.
    pub(crate) fn is_void(self, rate: Option<Rate>, now: Timestamp) -> bool {
        self.closed(now) != self.closed_until || rate.is_some_and(|rate| rate.is_void(self.tat, now.as_ms()))
    }

    /// Returns whether its state differs from that of a new one.
    pub(crate) fn remembers(self, now: Timestamp) -> bool {
        let last = self.closed_until.map(Timestamp::as_ms).max(self.tat.map(|tat| tat.ms));
        last.is_some_and(|last| now.as_ms() <= last)
    }
}

#[cfg(feature = "testing")]
impl Limiter {
    /// Returns the end of the last pause, which may have passed.
    pub(crate) fn pause(self) -> Option<Timestamp> {
        self.closed_until
    }

    /// Hashes what decides later starts.
    pub(crate) fn hash_future(
        self,
        name: &str,
        code_if_ahead: impl Fn(Timestamp) -> Option<i64>,
        hasher: &mut impl std::hash::Hasher,
    ) {
        use std::hash::Hash;
        let tat =
            self.tat.and_then(|tat| Some((code_if_ahead(Timestamp::saturating_from_ms(tat.ms))?, tat.part)));
        (name, self.closed_until.and_then(&code_if_ahead), tat).hash(hasher);
    }
}

impl Model {
    /// Returns when the next job of a queue can start; `None` if a running job must end first.
    pub(crate) fn opens(&self, queue: &str, now: Timestamp) -> Option<Timestamp> {
        let running = self.jobs(queue, State::Running).count();
        let is_full = self.settings(queue).concurrency.is_some_and(|most| most as usize <= running);
        (!is_full).then(|| self.opens_in_time(queue, now))
    }

    /// Returns when the rate and the pause of a queue allow a start.
    pub(crate) fn opens_in_time(&self, queue: &str, now: Timestamp) -> Timestamp {
        let limiter = self.limiters.get(queue).copied().unwrap_or_default();
        limiter.opens_in_time(self.settings(queue).rate, now)
    }

    /// Counts the start of a job of a queue.
    pub(crate) fn spend(&mut self, queue: &str, now: Timestamp) {
        let rate = self.settings(queue).rate;
        self.limiters.entry(queue.to_owned()).or_default().spend(rate, now);
    }

    /// Pauses a queue at the request of a run.
    pub(crate) fn close(&mut self, queue: &str, until: Timestamp, now: Timestamp) {
        self.limiters.entry(queue.to_owned()).or_default().close(until, now);
    }

    /// Ends the pause of a queue at the request of an operator.
    pub(crate) fn open(&mut self, queue: &str) {
        self.limiters.entry(queue.to_owned()).or_default().open();
    }

    /// Returns a job as reads return it.
    pub(crate) fn shown(&self, job: &JobRecord, now: Timestamp) -> JobRecord {
        let blocked = job.state == State::Waiting
            && job.run_at <= now
            && (self.is_full(job)
                || self.opens(&job.queue, now) != Some(now)
                || self.is_group_closed(job, now));
        JobRecord { blocked, ..self.rows[&job.id].record() }
    }
}
