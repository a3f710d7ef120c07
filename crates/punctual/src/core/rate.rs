//! The arithmetic of rates, for rate limiters and for the limits of queues.
//!
//! It uses whole numbers only. Nothing is rounded except a waiting time, which is rounded up.
//!
//! Two ways to keep a rate:
//!
//! * [`Rate`] is the generic cell rate algorithm (ITU-T I.371, 2004, annex A; as a rate limiter: "Rate Limiting,
//!   Cells, and GCRA", Brandur Leach, 2015). It keeps one instant per key, the theoretical arrival time: when all
//!   calls that passed would have arrived at an even pace. A call passes if this instant is at most `burst` steps
//!   ahead.
//! * [`Log`] keeps the instants of calls that passed, and is exact for each window. A call passes if the call `max`
//!   before it is out of the window.

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, Result},
    limits::{RATE_MAX, RATE_PERIOD_MAX},
};

/// `max` calls per period, evenly, and `burst` at once after a pause.
///
/// In any time t, at most `burst + t × max / period` calls pass. With a burst of 1, at most `max` pass in any period.
// One step, `period / max`, is a whole number of parts; `max` parts are a millisecond. So any rate is exact.
//
//         ├──────────── burst steps ────────────┤
//   ──────┼─────────────────┬───────────────────┼────────►
//        now         arrival of all           furthest      a call that would bring the time beyond the furthest waits
//                     that passed
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls per period, 1 to 1,000,000.
    pub max: u32,
    /// The period, 1 ms to 30 days. So `max` periods in parts stay below 2^53, up to which Redis scripts count
    /// exactly.
    pub period_ms: u64,
    /// Calls at once after a pause, 1 to 1,000,000 (usually 1).
    #[serde(default = "one")]
    pub burst: u32,
}

const fn one() -> u32 {
    1
}

/// A theoretical arrival time: milliseconds and parts; `max` parts are a millisecond.
///
/// It belongs to one rate. Under another rate it is wrong by less than a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tat {
    pub(crate) ms: u64,
    pub(crate) part: u32,
}

/// How far ahead of now a time can be that another rule left: the longest period, in ms.
pub(crate) const AHEAD_MAX_MS: u64 = RATE_PERIOD_MAX.as_millis() as u64;

impl Tat {
    const fn at(ms: u64) -> Self {
        Self { ms, part: 0 }
    }
}

impl Rate {
    /// Checks the bounds.
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

    /// Returns the length of `n` steps.
    const fn steps(self, n: u32) -> Tat {
        let (parts, max) = (n as u64 * self.period_ms, self.max as u64);
        Tat { ms: parts / max, part: (parts % max) as u32 }
    }

    const fn add(self, a: Tat, b: Tat) -> Tat {
        let part = a.part as u64 + b.part as u64;
        Tat { ms: a.ms + b.ms + part / self.max as u64, part: (part % self.max as u64) as u32 }
    }

    /// Adjusts a kept time for a limiter whose callers use several rules for one key; returns it, and whether it
    /// must be stored.
    ///
    /// A time further ahead than this rule allows was left by another rule, or by a clock that went back. It is
    /// cut to the furthest that this rule allows. Ignoring it would let more pass than either rule does. A time
    /// beyond that and more than [`AHEAD_MAX_MS`] ahead of now is from neither, and is ignored.
    pub(crate) fn clamped(self, kept: Option<Tat>, now_ms: u64) -> (Option<Tat>, bool) {
        let furthest = self.furthest(now_ms);
        match self.fitting(kept) {
            Some(kept) if kept <= furthest => (Some(kept), false),
            Some(kept) if kept.ms <= now_ms.saturating_add(AHEAD_MAX_MS) => (Some(furthest), true),
            _ => (None, false),
        }
    }

    /// Limits the parts: another rate may have left more than a millisecond of this one has.
    fn fitting(self, kept: Option<Tat>) -> Option<Tat> {
        kept.map(|kept| Tat { part: kept.part.min(self.max - 1), ..kept })
    }

    /// Returns a kept time if it is valid now.
    ///
    /// One further ahead than this rate allows was left by another rate, or by a clock that went back. It is ignored,
    /// because a step of the clock would otherwise pause a queue for as long.
    fn believed(self, kept: Option<Tat>, now_ms: u64) -> Option<Tat> {
        self.fitting(kept).filter(|kept| *kept <= self.furthest(now_ms))
    }

    /// Returns whether a kept time is ignored now.
    pub(crate) fn is_void(self, kept: Option<Tat>, now_ms: u64) -> bool {
        kept.is_some() && self.believed(kept, now_ms).is_none()
    }

    fn furthest(self, now_ms: u64) -> Tat {
        self.add(Tat::at(now_ms), self.steps(self.burst))
    }

    /// Lets a call of `cost` pass at `now_ms` and returns the new time, or refuses it.
    ///
    /// A refusal changes nothing, and returns the first millisecond at which the call would pass if no others arrive.
    /// `kept` is the stored time, if any. `cost` is 1 to `burst`.
    pub(crate) fn pass(self, kept: Option<Tat>, now_ms: u64, cost: u32) -> std::result::Result<Tat, u64> {
        let kept = self.believed(kept, now_ms).map_or(Tat::at(now_ms), |kept| kept.max(Tat::at(now_ms)));
        let next = self.add(kept, self.steps(cost));
        let furthest = self.furthest(now_ms);
        if next <= furthest {
            return Ok(next);
        }
        Err(self.reached(next))
    }

    /// Returns the first millisecond at which a call passes, which is a past one if it passes now.
    pub(crate) fn opening(self, kept: Option<Tat>, now_ms: u64) -> u64 {
        self.believed(kept, now_ms).map_or(0, |kept| self.reached(self.add(kept, self.steps(1))))
    }

    /// Returns the first millisecond at which a time is not further ahead than this rate allows.
    const fn reached(self, next: Tat) -> u64 {
        let burst = self.steps(self.burst);
        let ms = next.ms.saturating_sub(burst.ms);
        if burst.part < next.part { ms + 1 } else { ms }
    }
}

/// At most `max` calls in any window of a period. A window is half open: a call that passed at t counts before t +
/// period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// Calls in any window.
    pub(crate) max: u32,
    /// The length of a window, in milliseconds.
    pub(crate) period_ms: u64,
    /// Whether refused calls count, too.
    pub(crate) counts_refused: bool,
}

/// The decision on a call under a [`Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// It passes. Enter this instant `cost` times.
    Passed(u64),
    /// It is refused until the second instant, if no others call. If refused calls count, enter the first instant
    /// `cost` times.
    Refused(Option<u64>, u64),
}

impl Log {
    /// Returns whether a log starts anew.
    ///
    /// It does if its last entry has expired (at `ends_ms`, by the period under which it was made). It also does if
    /// that entry is more than a period ahead, because the clock went back.
    pub(crate) const fn begins_anew(self, last_ms: u64, ends_ms: u64, now_ms: u64) -> bool {
        ends_ms <= now_ms || now_ms.saturating_add(self.period_ms) < last_ms
    }

    /// Decides on a call of `cost`, 1 to `max`.
    ///
    /// `kept(i)` returns the instant of the entry `i` before the last: 0 is the last. It returns nothing for a log
    /// that starts anew. Only the newest `max` entries are read.
    ///
    /// If the clock went back by up to a period, the new entry has the instant of the last entry. So instants never
    /// fall, and no window has more than `max` calls.
    pub(crate) fn judge(self, kept: impl Fn(u32) -> Option<u64>, now_ms: u64, cost: u32) -> Logged {
        let Some(last) = kept(0) else { return Logged::Passed(now_ms) };
        let entered = last.max(now_ms);
        // With this call, `others` more may be in the window. The entry before these must be out of it.
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

    fn tat(ms: u64, part: u32) -> Tat {
        Tat { ms: NOW + ms, part }
    }

    #[test]
    fn a_burst_passes_at_once_and_then_one_per_step() {
        let rate = Rate { max: 3, period_ms: 1_000, burst: 2 };
        let first = rate.pass(None, NOW, 1).unwrap();
        assert_eq!(first, tat(333, 1));
        let second = rate.pass(Some(first), NOW, 1).unwrap();
        assert_eq!(second, tat(666, 2));
        // 1,000 ms minus two steps of 333 1/3 ms is 333 1/3 ms, rounded up to 334.
        assert_eq!(rate.pass(Some(second), NOW, 1), Err(NOW + 334));
        assert_eq!(rate.pass(Some(second), NOW + 333, 1), Err(NOW + 334));
        assert_eq!(rate.pass(Some(second), NOW + 334, 1), Ok(tat(1_000, 0)));
        assert_eq!(rate.pass(Some(second), NOW + 334, 2), Err(NOW + 667));
        // It opens at the same instant, whenever it is asked.
        for now in [NOW, NOW + 333, NOW + 334, NOW + 9_000] {
            assert_eq!(rate.opening(Some(second), now), NOW + 334);
        }
    }

    #[test]
    fn three_a_second_are_three_thousand_in_a_thousand_seconds() {
        // A burst of 1 would lose the parts that whole milliseconds cut off.
        let rate = Rate { max: 3, period_ms: 1_000, burst: 2 };
        let (mut kept, mut now, mut passed) = (None, NOW, 0);
        while now < NOW + 1_000_000 {
            match rate.pass(kept, now, 1) {
                Ok(next) => (kept, passed) = (Some(next), passed + 1),
                Err(at) => now = at,
            }
        }
        assert_eq!((passed, kept), (3_001, Some(tat(1_000_333, 1))));
    }

    #[test]
    fn many_steps_of_a_fraction_of_a_millisecond_are_exact() {
        let rate = Rate { max: 1_000_000, period_ms: 7, burst: 1_000_000 };
        assert_eq!(rate.pass(None, NOW, 1_000_000), Ok(tat(7, 0)));
        assert_eq!(rate.pass(None, NOW, 999_999), Ok(tat(6, 999_993)));
        assert_eq!(rate.pass(Some(tat(6, 999_993)), NOW, 2), Err(NOW + 1));
        assert_eq!(rate.pass(Some(tat(6, 999_993)), NOW, 1), Ok(tat(7, 0)));
    }

    #[test]
    fn what_a_clock_that_went_back_left_ahead_is_void() {
        let rate = Rate { max: 2, period_ms: 1_000, burst: 4 };
        assert_eq!(rate.believed(Some(tat(2_000, 0)), NOW), Some(tat(2_000, 0)));
        assert_eq!(rate.believed(Some(tat(2_000, 1)), NOW), None);
        assert_eq!(rate.believed(None, NOW), None);
        // A limiter cuts it to the furthest, if another rule can have left it.
        let ahead = |ms| Some(Tat::at(NOW + ms));
        assert_eq!(rate.clamped(ahead(2_000), NOW), (ahead(2_000), false));
        assert_eq!(rate.clamped(Some(tat(1_999, 2)), NOW), (Some(tat(1_999, 1)), false));
        assert_eq!(rate.clamped(ahead(2_001), NOW), (ahead(2_000), true));
        assert_eq!(rate.clamped(ahead(AHEAD_MAX_MS), NOW), (ahead(2_000), true));
        assert_eq!(rate.clamped(ahead(AHEAD_MAX_MS + 1), NOW), (None, false));
        // Valid or not, a time in the past counts as now.
        assert_eq!(rate.pass(Some(Tat::at(5)), NOW, 1), Ok(tat(500, 0)));
    }

    #[test]
    fn a_limiter_opens_for_what_it_has_room_for() {
        // One per 400 ms, three at once.
        let rate = Rate { max: 5, period_ms: 2_000, burst: 3 };
        // Time after now, cost; when.
        for (ahead, cost, opens) in [
            (0, 1, 0),
            (0, 3, 0),
            (800, 1, 0),
            (801, 1, 1),
            (1_200, 1, 400),
            (1_200, 2, 800),
            (1_200, 3, 1_200),
        ] {
            let at = rate.pass(Some(Tat::at(NOW + ahead)), NOW, cost).err();
            assert_eq!(at, Some(NOW + opens).filter(|at| NOW < *at), "{ahead}, {cost}");
        }
        let opening = |ahead| rate.opening(Some(Tat::at(NOW + ahead)), NOW);
        assert_eq!([0, 800, 801, 1_200].map(opening), [NOW - 800, NOW, NOW + 1, NOW + 400]);
        // There was no call, or another rule left it.
        assert_eq!([rate.opening(None, NOW), opening(1_201)], [0, 0]);
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
        // Last entry and end of the log, relative to now.
        for (last, ends, anew) in [(0, 1, false), (0, 0, true), (100, 200, false), (101, 201, true)] {
            assert_eq!(log.begins_anew(NOW + last, NOW + ends, NOW), anew, "{last}, {ends}");
        }
    }

    /// The simplest possible log.
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
        // Five calls need all others out of the window; the last of these came at 10.
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
        // If the clock goes back further than a window, the log starts anew.
        log.1 = vec![NOW + 101, NOW + 101];
        assert_eq!([log.come(0, 1), log.come(1, 1)], [Ok(()), Ok(())]);
    }
}
