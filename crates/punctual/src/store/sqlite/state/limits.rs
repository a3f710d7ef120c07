//! What holds due jobs back (S15): the limits of queues. Those of groups are in `groups.rs`, concurrency keys in `keys.rs`.
//! The rules are stated in the model's `limits.rs`.

use rusqlite::Row;

use crate::{
    core::{
        limits::GATE_MAX,
        rate::{Arrival, Rate},
        time::Timestamp,
    },
    store::sqlite::{
        engine::tx::{Q, Tx, instant, ms},
        state::codec::Columns,
    },
};

/// What a queue or a group remembers for its limits, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) closed: i64,
    pub(crate) arrival: i64,
    pub(crate) part: i64,
}

impl Gate {
    /// Reads the three columns from `from` on.
    pub(crate) fn read(row: &Row<'_>, from: usize) -> Self {
        let mut c = Columns::new(row);
        Self { closed: c.int(from), arrival: c.int(from + 1), part: c.int(from + 2) }
    }

    /// Rubbish reads as an arrival that no rate believes, or as none.
    fn arrival(self) -> Option<Arrival> {
        let (ms, part) = (u64::try_from(self.arrival).ok()?, u32::try_from(self.part).ok()?);
        (0 < ms).then_some(Arrival { ms, part })
    }

    /// Until when it is closed, if it can be.
    fn closed_until(self, now: Timestamp) -> Option<Timestamp> {
        Some(instant(self.closed)).filter(|until| *until <= now.after(GATE_MAX))
    }

    /// When its rate, and whoever closed it, let a job start.
    pub(crate) fn opens_in_time(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        let by_rate =
            rate.map(|rate| Timestamp::saturating_from_ms(rate.opens_at(self.arrival(), now.as_ms(), 1)));
        self.closed_until(now).into_iter().chain(by_rate).fold(now, Timestamp::max)
    }

    /// A job starts.
    pub(crate) fn spend(&mut self, rate: Option<Rate>, now: Timestamp) {
        if let Some(Ok(Arrival { ms, part })) = rate.map(|rate| rate.pass(self.arrival(), now.as_ms(), 1)) {
            (self.arrival, self.part) = (ms.cast_signed(), part.into());
        }
    }

    /// A run closes it.
    pub(crate) fn close(&mut self, until: Timestamp, now: Timestamp) {
        self.closed = ms(self.closed_until(now).max(Some(until.min(now.after(GATE_MAX)))).unwrap_or(until));
    }

    /// An operator opens it.
    pub(crate) fn open(&mut self) {
        self.closed = 0;
    }

    /// Until when it says more than a new one, if it does.
    pub(crate) fn remembers(self, now: Timestamp) -> Option<i64> {
        let last = self.closed.max(self.arrival);
        (0 < last && ms(now) <= last).then_some(last)
    }
}

impl Tx<'_> {
    /// When the next job of a queue may start; `None`: when one of those that run has ended.
    pub(crate) fn opens(&self, q: Q) -> Option<Timestamp> {
        let queue = self.at(q);
        let is_full = queue.settings.concurrency.is_some_and(|most| i64::from(most) <= queue.tally.running);
        (!is_full).then(|| self.opens_in_time(q))
    }

    pub(crate) fn is_open(&self, q: Q) -> bool {
        self.opens(q) == Some(self.now)
    }

    /// When its rate, and whoever closed its gate, let a job of a queue start.
    pub(crate) fn opens_in_time(&self, q: Q) -> Timestamp {
        let queue = self.at(q);
        queue.gate.opens_in_time(queue.settings.rate, self.now)
    }

    /// A job of a queue starts.
    pub(crate) fn spend(&mut self, q: Q) {
        let (rate, now) = (self.at(q).settings.rate, self.now);
        self.gate(q).spend(rate, now);
    }

    /// A run closes the gate of its queue.
    pub(crate) fn close(&mut self, q: Q, until: Timestamp) {
        let now = self.now;
        self.gate(q).close(until, now);
    }

    /// An operator opens the gate of a queue.
    pub(crate) fn open(&mut self, q: Q) {
        self.gate(q).open();
    }
}
