//! The limiters of queues (S15). Those of groups are in `groups.rs`, concurrency keys in `keys.rs`. The rules are
//! stated in the model's `limits.rs`.

use rusqlite::Row;

use crate::{
    core::{
        limits::{INSTANT_MAX_MS, PAUSE_MAX},
        rate::{Rate, Tat},
        time::Timestamp,
    },
    store::sqlite::{
        engine::tx::{Q, Tx, instant, ms},
        state::codec::Columns,
    },
};

/// The state of the limiter of a queue or group, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limiter {
    pub(crate) closed: i64,
    pub(crate) tat: i64,
    pub(crate) part: i64,
}

impl Limiter {
    /// Reads the three columns from `from` on.
    pub(crate) fn read(row: &Row<'_>, from: usize) -> Self {
        let mut c = Columns::new(row);
        let mut time = |at| c.int(at).min(INSTANT_MAX_MS.cast_signed());
        Self { closed: time(from), tat: time(from + 1), part: c.int(from + 2) }
    }

    /// Returns the theoretical arrival time. An invalid value reads as one that no rate accepts, or as none.
    fn tat(self) -> Option<Tat> {
        let (ms, part) = (u64::try_from(self.tat).ok()?, u32::try_from(self.part).ok()?);
        (0 < ms).then_some(Tat { ms, part })
    }

    /// Returns the end of the pause, if it is possible.
    fn closed_until(self, now: Timestamp) -> Option<Timestamp> {
        Some(instant(self.closed)).filter(|until| *until <= now.after(PAUSE_MAX))
    }

    /// Returns the first instant at which its rate and its pause allow a start. If they do now, it is a past one.
    pub(crate) fn opening(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        let by_rate = rate.map(|rate| Timestamp::saturating_from_ms(rate.opening(self.tat(), now.as_ms())));
        self.closed_until(now)
            .into_iter()
            .chain(by_rate)
            .fold(Timestamp::saturating_from_ms(0), Timestamp::max)
    }

    /// Returns when its rate and its pause allow a start, from now on.
    pub(crate) fn opens_in_time(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        self.opening(rate, now).max(now)
    }

    /// Counts the start of a job.
    pub(crate) fn spend(&mut self, rate: Option<Rate>, now: Timestamp) {
        if let Some(Ok(Tat { ms, part })) = rate.map(|rate| rate.pass(self.tat(), now.as_ms(), 1)) {
            (self.tat, self.part) = (ms.cast_signed(), part.into());
        }
    }

    /// Sets a pause at the request of a run.
    pub(crate) fn close(&mut self, until: Timestamp, now: Timestamp) {
        self.closed = ms(self.closed_until(now).max(Some(until.min(now.after(PAUSE_MAX)))).unwrap_or(until));
    }

    /// Ends a pause at the request of an operator.
    pub(crate) fn open(&mut self) {
        self.closed = 0;
    }

    /// Returns until when its state differs from that of a new one, if so.
    pub(crate) fn remembers(self, now: Timestamp) -> Option<i64> {
        let last = self.closed.max(self.tat);
        (0 < last && ms(now) <= last).then_some(last)
    }
}

impl Tx<'_> {
    /// Returns when the next job of a queue can start; `None` if a running job must end first.
    pub(crate) fn opens(&self, q: Q) -> Option<Timestamp> {
        let queue = self.at(q);
        let is_full = queue.settings.concurrency.is_some_and(|most| i64::from(most) <= queue.tally.running);
        (!is_full).then(|| self.opens_in_time(q))
    }

    pub(crate) fn is_open(&self, q: Q) -> bool {
        self.opens(q) == Some(self.now)
    }

    /// Returns when the rate and the pause of a queue allow a start.
    pub(crate) fn opens_in_time(&self, q: Q) -> Timestamp {
        let queue = self.at(q);
        queue.limiter.opens_in_time(queue.settings.rate, self.now)
    }

    /// Counts the start of a job of a queue.
    pub(crate) fn spend(&mut self, q: Q) {
        let (rate, now) = (self.at(q).settings.rate, self.now);
        self.limiter(q).spend(rate, now);
    }

    /// Pauses a queue at the request of a run.
    pub(crate) fn close(&mut self, q: Q, until: Timestamp) {
        let now = self.now;
        self.limiter(q).close(until, now);
    }

    /// Ends the pause of a queue at the request of an operator.
    pub(crate) fn open(&mut self, q: Q) {
        self.limiter(q).open();
    }
}
