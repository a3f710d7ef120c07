//! The arithmetic of rates, for rate limiters and for the gates of queues. Only whole numbers: nothing is
//! rounded but the answer to "how long", which is rounded up.
//!
//! Two ways to keep a rate:
//!
//! * [`Rate`] is the generic cell rate algorithm (ITU-T I.371, 2004, annex A; as a rate limiter: "Rate Limiting, Cells, and GCRA",
//!   Brandur Leach, 2015). All that is kept of a key is one instant, the theoretical arrival time: when all that passed would
//!   have come, had it come evenly. What comes passes if that instant is at most `burst` steps ahead.
//! * [`Log`] keeps the instants of what passed, and is exact for each window: what comes passes if the one that came `max`
//!   before it is out of the window.

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, Result},
    limits::{RATE_MAX, RATE_PERIOD_MAX},
};

/// So many in a period, evenly, and so many at once after a pause: in any time t no more pass than `burst + t × max / period`, with
/// a burst of 1 no more than `max` in any period.
// One step, `period / max`, is a whole number of parts, `max` of which make
// a millisecond: so that any rate is kept exactly.
//
//         ├──────────── burst steps ────────────┤
//   ──────┼─────────────────┬───────────────────┼────────►
//        now         arrival of all           furthest      what would bring the arrival behind the furthest waits
//                     that passed
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// So many pass in a period, 1 to 1,000,000.
    pub max: u32,
    /// 1 ms to 30 days, so that `max` periods in parts are below 2^53, which scripts of Redis can count.
    pub period_ms: u64,
    /// So many pass at once after a pause, 1 to 1,000,000; usually 1.
    #[serde(default = "one")]
    pub burst: u32,
}

const fn one() -> u32 {
    1
}

/// A theoretical arrival time: milliseconds, and parts of one, `max` of which make a millisecond. It belongs to one rate; under
/// another it is off by less than a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    pub(crate) ms: u64,
    pub(crate) part: u32,
}

/// How far ahead an arrival may be, beyond what its own rule leaves, to be another rule's: the longest period, in ms.
pub(crate) const AHEAD_MAX_MS: u64 = RATE_PERIOD_MAX.as_millis() as u64;

impl Arrival {
    const fn at(ms: u64) -> Self {
        Self { ms, part: 0 }
    }
}

impl Rate {
    /// Refuses what is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, n) in [("max", self.max), ("burst", self.burst)] {
            if !(1..=RATE_MAX).contains(&n) {
                return Err(Error::invalid(format!("the rate's {what} {n} is not within 1 to {RATE_MAX}")));
            }
        }
        if !(1..=RATE_PERIOD_MAX.as_millis() as u64).contains(&self.period_ms) {
            let ms = self.period_ms;
            return Err(Error::invalid(format!(
                "the rate's period of {ms} ms is not within 1 ms to 30 days"
            )));
        }
        Ok(())
    }

    /// How long so many steps last.
    const fn steps(self, n: u32) -> Arrival {
        let (parts, max) = (n as u64 * self.period_ms, self.max as u64);
        Arrival { ms: parts / max, part: (parts % max) as u32 }
    }

    const fn add(self, a: Arrival, b: Arrival) -> Arrival {
        let part = a.part as u64 + b.part as u64;
        Arrival { ms: a.ms + b.ms + part / self.max as u64, part: (part % self.max as u64) as u32 }
    }

    /// A kept arrival as a limiter counts it whose callers may use several rules for one key, with whether it differs from what is
    /// kept, and is to be kept in its place. What another rule left further ahead than any that this rule leaves is brought back to the
    /// furthest of this rule: void, it would let more pass than either rule. So is what a clock that went back left. What is
    /// [`AHEAD_MAX_MS`] ahead by neither is void.
    pub(crate) fn clamped(self, kept: Option<Arrival>, now_ms: u64) -> (Option<Arrival>, bool) {
        let furthest = self.furthest(now_ms);
        match self.fitting(kept) {
            Some(kept) if kept <= furthest => (Some(kept), false),
            Some(kept) if kept.ms <= now_ms.saturating_add(AHEAD_MAX_MS) => (Some(furthest), true),
            _ => (None, false),
        }
    }

    /// Another rate may have left more parts than a millisecond of this one has.
    fn fitting(self, kept: Option<Arrival>) -> Option<Arrival> {
        kept.map(|kept| Arrival { part: kept.part.min(self.max - 1), ..kept })
    }

    /// A kept arrival as it counts now. One further ahead than any that this rate leaves was left by another rate, or by a clock
    /// that went back since; it is void, or a step of the clock would close a gate for as long.
    fn believed(self, kept: Option<Arrival>, now_ms: u64) -> Option<Arrival> {
        self.fitting(kept).filter(|kept| *kept <= self.furthest(now_ms))
    }

    fn furthest(self, now_ms: u64) -> Arrival {
        self.add(Arrival::at(now_ms), self.steps(self.burst))
    }

    /// Lets `cost` pass at `now_ms`, and tells the arrival to keep from then on; or else nothing changes, and it tells the first
    /// millisecond at which it would pass if nobody else came. `kept`: the arrival of all that passed before, if any; `cost`: 1
    /// to `burst`.
    pub(crate) fn pass(
        self,
        kept: Option<Arrival>,
        now_ms: u64,
        cost: u32,
    ) -> std::result::Result<Arrival, u64> {
        let kept =
            self.believed(kept, now_ms).map_or(Arrival::at(now_ms), |kept| kept.max(Arrival::at(now_ms)));
        let next = self.add(kept, self.steps(cost));
        let furthest = self.furthest(now_ms);
        if next <= furthest {
            return Ok(next);
        }
        let burst = self.steps(self.burst);
        let ms = next.ms - burst.ms;
        Err(if burst.part < next.part { ms + 1 } else { ms })
    }

    /// The first millisecond at which `cost` passes, now included: when a gate opens.
    pub(crate) fn opens_at(self, kept: Option<Arrival>, now_ms: u64, cost: u32) -> u64 {
        self.pass(kept, now_ms, cost).err().unwrap_or(now_ms)
    }
}

/// At most `max` in any window of a period. A window is half open: what passed at t counts before t + period, and not then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// So many pass in any window.
    pub(crate) max: u32,
    /// How long a window is.
    pub(crate) period_ms: u64,
    /// Whether what is refused counts, too.
    pub(crate) counts_refused: bool,
}

/// What becomes of a call under a [`Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// It passes, and is to be entered `cost` times with this instant.
    Passed(u64),
    /// It is refused until the second instant if nobody else comes, and, where refused ones count, to be entered `cost` times
    /// with the first.
    Refused(Option<u64>, u64),
}

impl Log {
    /// Whether a log begins anew: its last entry is past, by the period that it was made under, which ends at `ends_ms`; or it lies
    /// further ahead than a period, where a clock that went back since left it.
    pub(crate) const fn begins_anew(self, last_ms: u64, ends_ms: u64, now_ms: u64) -> bool {
        ends_ms <= now_ms || now_ms.saturating_add(self.period_ms) < last_ms
    }

    /// Judges a call of `cost`, 1 to `max`. `kept` tells the instant that was entered so many before the last: 0 is the last; it
    /// knows none of a log that begins anew. None is asked for beyond the newest `max`.
    ///
    /// After a clock that went back by up to a period what is entered has the instant of the last entry, so that instants rise in
    /// the order of entering, and no window ever has more than `max`.
    pub(crate) fn judge(self, kept: impl Fn(u32) -> Option<u64>, now_ms: u64, cost: u32) -> Logged {
        let Some(last) = kept(0) else { return Logged::Passed(now_ms) };
        let entered = last.max(now_ms);
        // With it, so many others may be in the window; the one before these must be out of it.
        let others = self.max - cost;
        let blocking = |others| kept(others).map_or(0, |at| at.saturating_add(self.period_ms));
        let ends = blocking(others);
        if ends <= now_ms {
            return Logged::Passed(entered);
        }
        if !self.counts_refused {
            return Logged::Refused(None, ends);
        }
        let ends = others.checked_sub(cost).map_or(entered.saturating_add(self.period_ms), blocking);
        Logged::Refused(Some(entered), ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn arrival(ms: u64, part: u32) -> Arrival {
        Arrival { ms: NOW + ms, part }
    }

    #[test]
    fn a_burst_passes_at_once_and_then_one_per_step() {
        let rate = Rate { max: 3, period_ms: 1_000, burst: 2 };
        let first = rate.pass(None, NOW, 1).unwrap();
        assert_eq!(first, arrival(333, 1));
        let second = rate.pass(Some(first), NOW, 1).unwrap();
        assert_eq!(second, arrival(666, 2));
        // 1,000 ms less two steps of 333 1/3 ms: at 333 1/3, hence at 334.
        assert_eq!(rate.pass(Some(second), NOW, 1), Err(NOW + 334));
        assert_eq!(rate.pass(Some(second), NOW + 333, 1), Err(NOW + 334));
        assert_eq!(rate.pass(Some(second), NOW + 334, 1), Ok(arrival(1_000, 0)));
        assert_eq!(rate.opens_at(Some(second), NOW + 334, 2), NOW + 667);
    }

    #[test]
    fn three_a_second_are_three_thousand_in_a_thousand_seconds() {
        // A burst of one would lose what whole milliseconds cut off.
        let rate = Rate { max: 3, period_ms: 1_000, burst: 2 };
        let (mut kept, mut now, mut passed) = (None, NOW, 0);
        while now < NOW + 1_000_000 {
            match rate.pass(kept, now, 1) {
                Ok(next) => (kept, passed) = (Some(next), passed + 1),
                Err(at) => now = at,
            }
        }
        assert_eq!((passed, kept), (3_001, Some(arrival(1_000_333, 1))));
    }

    #[test]
    fn many_steps_of_a_fraction_of_a_millisecond_are_exact() {
        let rate = Rate { max: 1_000_000, period_ms: 7, burst: 1_000_000 };
        assert_eq!(rate.pass(None, NOW, 1_000_000), Ok(arrival(7, 0)));
        assert_eq!(rate.pass(None, NOW, 999_999), Ok(arrival(6, 999_993)));
        assert_eq!(rate.pass(Some(arrival(6, 999_993)), NOW, 2), Err(NOW + 1));
        assert_eq!(rate.pass(Some(arrival(6, 999_993)), NOW, 1), Ok(arrival(7, 0)));
    }

    #[test]
    fn what_a_clock_that_went_back_left_ahead_is_void() {
        let rate = Rate { max: 2, period_ms: 1_000, burst: 4 };
        assert_eq!(rate.believed(Some(arrival(2_000, 0)), NOW), Some(arrival(2_000, 0)));
        assert_eq!(rate.believed(Some(arrival(2_000, 1)), NOW), None);
        assert_eq!(rate.believed(None, NOW), None);
        // A limiter brings it back to the furthest, if another rule may have left it.
        let ahead = |ms| Some(Arrival::at(NOW + ms));
        assert_eq!(rate.clamped(ahead(2_000), NOW), (ahead(2_000), false));
        assert_eq!(rate.clamped(Some(arrival(1_999, 2)), NOW), (Some(arrival(1_999, 1)), false));
        assert_eq!(rate.clamped(ahead(2_001), NOW), (ahead(2_000), true));
        assert_eq!(rate.clamped(ahead(AHEAD_MAX_MS), NOW), (ahead(2_000), true));
        assert_eq!(rate.clamped(ahead(AHEAD_MAX_MS + 1), NOW), (None, false));
        // Not believed in or not, what is behind counts as now.
        assert_eq!(rate.pass(Some(Arrival::at(5)), NOW, 1), Ok(arrival(500, 0)));
    }

    #[test]
    fn a_gate_opens_for_what_it_has_room_for() {
        // One in 400 ms, three at once.
        let rate = Rate { max: 5, period_ms: 2_000, burst: 3 };
        // Arrival after now, cost; when.
        for (ahead, cost, opens) in [
            (0, 1, 0),
            (0, 3, 0),
            (800, 1, 0),
            (801, 1, 1),
            (1_200, 1, 400),
            (1_200, 2, 800),
            (1_200, 3, 1_200),
        ] {
            assert_eq!(
                rate.opens_at(Some(Arrival::at(NOW + ahead)), NOW, cost),
                NOW + opens,
                "{ahead}, {cost}"
            );
        }
        assert_eq!(rate.opens_at(None, NOW, 3), NOW);
        // Left by another rule.
        assert_eq!(rate.opens_at(Some(Arrival::at(NOW + 1_201)), NOW, 3), NOW);
    }

    #[test]
    fn a_rate_has_bounds() {
        let of = |max, period_ms, burst| Rate { max, period_ms, burst }.check().is_ok();
        let month = 30 * 24 * 3_600_000;
        assert!(of(1, 1, 1) && of(1_000_000, month, 1_000_000));
        assert!(!(of(0, 1, 1) || of(1, 0, 1) || of(1, 1, 0)));
        assert!(!(of(1_000_001, 1, 1) || of(1, month + 1, 1) || of(1, 1, 1_000_001)));
    }

    #[test]
    fn a_log_begins_anew_at_its_end_and_where_it_lies_further_ahead_than_a_period() {
        let log = Log { max: 2, period_ms: 100, counts_refused: false };
        // Last entry and end of the log, from now on.
        for (last, ends, anew) in [(0, 1, false), (0, 0, true), (100, 200, false), (101, 201, true)] {
            assert_eq!(log.begins_anew(NOW + last, NOW + ends, NOW), anew, "{last}, {ends}");
        }
    }

    /// A log that is kept in the plainest way.
    struct Kept(Log, Vec<u64>);

    impl Kept {
        fn come(&mut self, ms: u64, cost: u32) -> std::result::Result<(), u64> {
            if let Some(&last) = self.1.last()
                && self.0.begins_anew(last, last + self.0.period_ms, NOW + ms)
            {
                self.1.clear();
            }
            let at = |back: u32| self.1.iter().rev().nth(back as usize).copied();
            let (enter, said) = match self.0.judge(at, NOW + ms, cost) {
                Logged::Passed(at) => (Some(at), Ok(())),
                Logged::Refused(at, until) => (at, Err(until - NOW)),
            };
            self.1.extend(enter.into_iter().flat_map(|at| (0..cost).map(move |_| at)));
            said
        }
    }

    #[test]
    fn a_window_is_half_open() {
        let mut log = Kept(Log { max: 2, period_ms: 100, counts_refused: false }, vec![]);
        assert_eq!([log.come(0, 1), log.come(0, 1), log.come(0, 1)], [Ok(()), Ok(()), Err(100)]);
        assert_eq!(log.come(99, 1), Err(100));
        assert_eq!([log.come(100, 1), log.come(101, 1), log.come(102, 1)], [Ok(()), Ok(()), Err(200)]);
    }

    #[test]
    fn a_cost_needs_room_for_all_of_it() {
        let mut log = Kept(Log { max: 5, period_ms: 100, counts_refused: false }, vec![]);
        assert_eq!([log.come(0, 2), log.come(10, 2), log.come(20, 2)], [Ok(()), Ok(()), Err(100)]);
        // Five need all others out, of which the last came at 10.
        assert_eq!([log.come(20, 5), log.come(20, 1)], [Err(110), Ok(())]);
        assert_eq!([log.come(100, 2), log.come(100, 1)], [Ok(()), Err(110)]);
    }

    #[test]
    fn refused_ones_count_where_that_is_asked_for() {
        let mut log = Kept(Log { max: 2, period_ms: 100, counts_refused: true }, vec![]);
        assert_eq!([log.come(0, 2), log.come(60, 1), log.come(90, 1)], [Ok(()), Err(100), Err(160)]);
        assert_eq!(log.come(95, 2), Err(195));
        assert_eq!([log.come(194, 1), log.come(293, 1)], [Err(195), Ok(())]);
        assert_eq!([log.come(394, 2), log.come(493, 1)], [Ok(()), Err(494)]);
    }

    #[test]
    fn a_clock_that_goes_back_lets_no_more_pass_in_any_window() {
        let mut log = Kept(Log { max: 2, period_ms: 100, counts_refused: false }, vec![]);
        assert_eq!([log.come(100, 1), log.come(50, 1), log.come(60, 1)], [Ok(()), Ok(()), Err(200)]);
        assert_eq!(log.1, [NOW + 100, NOW + 100]);
        assert_eq!(log.come(0, 1), Err(200));
        // Further back than a window it begins anew.
        log.1 = vec![NOW + 101, NOW + 101];
        assert_eq!([log.come(0, 1), log.come(1, 1)], [Ok(()), Ok(())]);
    }
}
