//! Steady time: the clock as upkeep believes it (S17).
//!
//! What upkeep removes does not come back, so upkeep does not follow a step of the clock at once. A step forward and a time in which
//! nobody called look the same: a gap between two marks ([`silence`](super::silence)). After a gap of more than two minutes, steady time goes
//! on from the mark before it, until the clock has gone on for some time, or the next gap comes after that time. Then it is the clock
//! again. A clock that goes back to steady time, or near it, is believed at once: by an earlier time, less is removed.
//!
//! ```text
//! clock   ──────────────┊ gap ┊────────────────────┬──────►      ┊ a year ┊──── back ──►
//! steady  ──────────────┬──────────────────────────┘       ──────┬─────────────┴───────►
//!                       goes on from here, for TRUSTED_AFTER
//! ```
//!
//! The model and SQLite call it. The scripts of Redis repeat it in `store/redis/lua/base.lua`.

use std::time::Duration;

use crate::core::{silence::STEP_BACK_MIN, time::Timestamp};

/// How long a clock must go on after a gap before it is believed.
pub(crate) const TRUSTED_AFTER: Duration = Duration::from_mins(2);
/// A gap between two marks that is no longer than this is believed at once. It is no shorter than the other time: of calls that come in
/// between, each would begin a new doubt before the last one is over, for ever.
pub(crate) const STEP_MIN: Duration = TRUSTED_AFTER;

/// A gap that is not believed yet. The default is one of long ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Doubt {
    /// When the mark came that ended it.
    pub(crate) since: Timestamp,
    /// Steady time at that mark.
    pub(crate) from: Timestamp,
}

impl Doubt {
    /// Returns whether a mark at `now` changes what is doubted. `seen`: the mark before it.
    pub(crate) fn is_changed_by(seen: Timestamp, now: Timestamp) -> bool {
        seen.after(STEP_MIN) < now || now.after(STEP_BACK_MIN) < seen
    }

    /// Returns until when steady time differs from the clock.
    pub(crate) fn until(self) -> Timestamp {
        self.since.after(TRUSTED_AFTER)
    }

    /// Returns what is doubted after a mark at `now`.
    #[must_use]
    pub(crate) fn noted(self, seen: Timestamp, now: Timestamp) -> Self {
        if !Self::is_changed_by(seen, now) {
            return self;
        }
        // A clock that stands after this time has gone on, also if nobody called meanwhile.
        let from = if self.until() <= now { seen } else { self.steady(seen) };
        if now <= from.after(STEP_MIN) { Self::default() } else { Self { since: now, from } }
    }

    /// Returns steady time.
    pub(crate) fn steady(self, now: Timestamp) -> Timestamp {
        if self.until() <= now {
            return now;
        }
        now.min(self.from.after(now.since(self.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 365 * 24 * 3_600_000;

    fn at(ms: u64) -> Timestamp {
        Timestamp::saturating_from_ms(1_000_000_000_000 + ms)
    }

    /// Returns steady time at the last of these marks, in milliseconds.
    fn steady(marks: &[u64]) -> u64 {
        let mut doubt = Doubt::default();
        for pair in marks.windows(2) {
            doubt = doubt.noted(at(pair[0]), at(pair[1]));
        }
        doubt.steady(at(marks[marks.len() - 1])).as_ms() - 1_000_000_000_000
    }

    #[test]
    fn a_step_that_is_taken_back_changes_nothing() {
        for step in [125_000, 3_600_000, YEAR] {
            assert_eq!(steady(&[0, 1_000, 1_000 + step]), 1_000);
            assert_eq!(steady(&[0, 1_000, 1_000 + step, 3_000 + step]), 3_000);
            assert_eq!(steady(&[0, 1_000, 1_000 + step, 60_000 + step, 61_000]), 61_000);
            // There and back, again and again.
            assert_eq!(steady(&[0, step, 1_000, step, 2_000, step, step + 5_000]), 7_000);
            assert_eq!(steady(&[0, step, 1_000, 2_000]), 2_000);
        }
    }

    #[test]
    fn a_step_that_stays_is_believed_after_a_while() {
        let marks: Vec<u64> = [0].into_iter().chain((0..5).map(|n| YEAR + n * 30_000)).collect();
        assert_eq!(steady(&marks[..5]), 90_000);
        assert_eq!(steady(&marks), YEAR + 120_000);
    }

    #[test]
    fn a_step_that_is_taken_back_in_part_is_a_step() {
        assert_eq!(steady(&[0, YEAR, YEAR / 2]), 0);
        assert_eq!(steady(&[0, YEAR, YEAR / 2, YEAR / 2 + 119_999]), 119_999);
        // A step back alone is believed, and a step forward to what the clock showed before is not.
        assert_eq!(steady(&[YEAR, 0]), 0);
        assert_eq!(steady(&[YEAR, 0, YEAR]), 0);
        // Two steps, none of which is one by itself.
        assert_eq!(steady(&[0, YEAR, YEAR - 50_000, YEAR - 100_000]), 0);
    }

    #[test]
    fn a_store_that_is_called_once_an_hour_is_one_call_late() {
        let hours: Vec<u64> = (0..5).flat_map(|n| [n * 3_600_000, n * 3_600_000 + 500]).collect();
        assert_eq!(steady(&hours), 3 * 3_600_000 + 1_000);
        for gap in [61_000, 90_000, 119_999, 120_001, 150_000] {
            let marks: Vec<u64> = (0..100).map(|n| n * gap).collect();
            assert!(98 * gap <= steady(&marks), "{gap}");
        }
        // Idle workers sweep every 3 min.
        assert_eq!(steady(&[0, 180_000, 360_000, 540_000]), 360_000);
    }

    #[test]
    fn gaps_of_up_to_two_minutes_are_believed_at_once() {
        assert_eq!(steady(&[0, 120_000, 240_000, 245_000]), 245_000);
        assert_eq!(steady(&[0, 60_000, 1_000]), 1_000);
    }
}
