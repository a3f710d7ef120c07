//! The silences of a store: when it had no call for so long that a lease can have ended although its holder lives (S9, S14).
//!
//! A holder extends its lease every third of its length, and repeats a failed extension within a sixth. So a lease that has ended
//! proves that its holder is dead only if the store could be reached meanwhile. Each reserve, take, extend, settle, act and sweep
//! leaves a **mark**, its time. A gap between two marks is a silence: the store was away, its clock was set forward, or nobody
//! called. These look the same. A lease that ended in a silence longer than half of its length is held back for a pause after it,
//! in which its holder can extend it.
//!
//! Idle processes leave marks on purpose while they watch leases ([`watch_at`]), so a store that can be reached has no silences.
//!
//! A clock that goes back is noticed here, too: leases are shortened, and a window or lock has a [`Term`].
//!
//! The model and SQLite call it. The scripts of Redis repeat it in `store/redis/lua/silence.lua`.

use std::time::Duration;

use crate::core::{
    limits::{LEASE_MAX, LEASE_MIN, SILENCE_PAUSE_MIN, SILENCES_MAX},
    time::Timestamp,
};

/// The longest gap between two marks that no lease takes for a silence: half of the shortest lease, in milliseconds.
pub(crate) const GAP_MS: u64 = LEASE_MIN.as_millis() as u64 / 2;
/// A silence of this length or longer, in milliseconds, began before each lease that is current: twice the longest lease.
pub(crate) const SILENCE_MAX_MS: u64 = 2 * LEASE_MAX.as_millis() as u64;

/// A clock that went back by no more than this shortens no lease: calls that overlap can read their times in another order.
pub(crate) const STEP_BACK_MIN: Duration = Duration::from_mins(1);

/// How long a window or the holding of a lock is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Term {
    pub(crate) until: Timestamp,
    pub(crate) lasts: Duration,
    /// Its end while the clock is behind its beginning, since somebody needed it then.
    pub(crate) short: Option<Timestamp>,
}

impl Term {
    pub(crate) const fn new(until: Timestamp, lasts: Duration) -> Self {
        Self { until, lasts, short: None }
    }

    /// Returns when it ends, as it looks now. If that is not later than now, it is over.
    ///
    /// If the clock is behind its beginning by more than a minute, the clock went back, and it ends at most its length from the
    /// instant at which somebody first needed it (S14). When the clock is right again, it ends when it would have.
    pub(crate) fn end(&self, now: Timestamp) -> Timestamp {
        let longest = now.after(self.lasts);
        if self.until <= longest.after(STEP_BACK_MIN) {
            return self.until;
        }
        self.short.filter(|short| *short <= longest.after(STEP_BACK_MIN)).unwrap_or(longest)
    }

    /// Notes that somebody needs it; returns whether that changes it.
    pub(crate) fn note(&mut self, now: Timestamp) -> bool {
        let end = self.end(now);
        let is_changed = end != self.until && self.short != Some(end);
        if is_changed {
            self.short = Some(end);
        }
        is_changed
    }
}

/// A silence that may still hold leases back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Silence {
    /// When the mark came that ended it.
    pub(crate) ended: Timestamp,
    pub(crate) lasted_ms: u64,
}

impl Silence {
    fn began(&self) -> Timestamp {
        if SILENCE_MAX_MS <= self.lasted_ms {
            return Timestamp::default();
        }
        Timestamp::saturating_from_ms(self.ended.as_ms().saturating_sub(self.lasted_ms))
    }

    /// Returns until when it holds back a lease with this end and length, if it does.
    ///
    /// A lease that had ended before the silence began was seen by the mark before it. A lease that was extended after the silence
    /// was not in it.
    fn holds_back(&self, until: Timestamp, lasts_ms: u64) -> Option<Timestamp> {
        let is_long = lasts_ms < self.lasted_ms.saturating_mul(2);
        let is_in_it = self.began() < until && until < self.ended.after(Duration::from_millis(lasts_ms));
        (is_long && is_in_it).then(|| self.ended.after(pause(lasts_ms)))
    }

    /// Returns when it holds back no lease any more: it concerns leases that last less than twice as long.
    fn is_over_at(&self) -> Timestamp {
        self.ended.after(pause(self.lasted_ms.saturating_mul(2)))
    }
}

/// Returns for how long after a silence a lease of this length is held back: until the next heartbeat of its holder, and longer for a call
/// that is on its way. A holder that saw no failure, because only the clock was set forward, comes after a third of the lease.
fn pause(lasts_ms: u64) -> Duration {
    Duration::from_millis(lasts_ms.saturating_mul(2).div_ceil(5)).max(SILENCE_PAUSE_MIN)
}

/// What a store knows of its silences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Silences {
    /// Up to when a lease can have been extended by a clock that has gone back since. Before that time, leases can end later than
    /// their length from now.
    pub(crate) ahead: Timestamp,
    /// Those that may still hold leases back, oldest first.
    pub(crate) known: Vec<Silence>,
}

impl Silences {
    /// Notes a mark. `seen`: the mark before it, if there is one. Silences matter only while leases exist.
    pub(crate) fn note(&mut self, seen: Option<Timestamp>, now: Timestamp, leases_exist: bool) {
        let Some(seen) = seen else { return };
        if now.after(STEP_BACK_MIN) < seen && leases_exist {
            self.ahead = self.ahead.max(seen);
        }
        if self.ahead <= now {
            self.ahead = Timestamp::default();
        }
        for silence in &mut self.known {
            // The clock went back.
            silence.ended = silence.ended.min(now);
        }
        self.known.retain(|silence| now < silence.is_over_at());
        let lasted_ms = now.as_ms().saturating_sub(seen.as_ms()).min(SILENCE_MAX_MS);
        if leases_exist && GAP_MS < lasted_ms {
            // Each is forgotten after four fifths of its length, or 2 s, so there are never that many.
            self.known.truncate(SILENCES_MAX - 1);
            self.known.push(Silence { ended: now, lasted_ms });
        }
    }

    /// Returns when a lease can be reclaimed, as far as is known now: at its end, or after a pause.
    pub(crate) fn over_at(&self, until: Timestamp, lasts_ms: u64) -> Timestamp {
        let pauses = self.known.iter().filter_map(|silence| silence.holds_back(until, lasts_ms));
        pauses.max().map_or(until, |pause| pause.max(until))
    }

    /// Returns them as they are stored: `ahead` in 7 bytes, then of each silence 4 bytes (how long) and 7 (its end); big-endian.
    #[cfg(feature = "sqlite")]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.ahead.as_ms().to_be_bytes()[1..].to_vec();
        for silence in &self.known {
            let lasted_ms = u32::try_from(silence.lasted_ms).unwrap_or(u32::MAX);
            bytes.extend(lasted_ms.to_be_bytes());
            bytes.extend(&silence.ended.as_ms().to_be_bytes()[1..]);
        }
        bytes
    }

    /// Reads them. Bytes that are cut are left out.
    #[cfg(feature = "sqlite")]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
        let Some((ahead, known)) = bytes.split_at_checked(7) else { return Self::default() };
        let known = known.as_chunks::<11>().0.iter().take(SILENCES_MAX).map(|bytes| Silence {
            lasted_ms: number(&bytes[..4]),
            ended: Timestamp::saturating_from_ms(number(&bytes[4..])),
        });
        Self { ahead: Timestamp::saturating_from_ms(number(ahead)), known: known.collect() }
    }

    /// Returns whether leases can end later than they should, because the clock went back.
    pub(crate) fn can_end_late(&self, now: Timestamp) -> bool {
        now < self.ahead
    }
}

/// Returns how long before the end of a time others must have left marks, so that no lease that ends in this time is held back. Longest
/// first, at most 18.
///
/// It is for tests that let time pass as in a store that others call. Each gap is at most half as long as any lease that it could hold
/// back at the end. Those of the last two minutes are close enough that upkeep believes the clock at the end.
///
/// ```
/// # use std::time::Duration;
/// # use punctual::store::model::marks_before;
/// let marks: Vec<_> = marks_before(Duration::from_millis(1_200)).collect();
/// assert_eq!(marks, [Duration::from_secs(1), Duration::from_millis(500)]);
/// ```
pub fn marks_before(by: Duration) -> impl DoubleEndedIterator<Item = Duration> {
    const MARKS_MS: [u64; 18] = [
        32_768_000, 16_384_000, 8_192_000, 4_096_000, 2_048_000, 1_024_000, 512_000, 256_000, 128_000,
        64_000, 32_000, 16_000, 8_000, 4_000, 2_000, 1_500, 1_000, 500,
    ];
    MARKS_MS.into_iter().map(Duration::from_millis).filter(move |before| *before < by)
}

/// Returns when the next call is needed that leaves a mark for a lease, counted from the last mark, or at the latest when the
/// lease can be reclaimed.
pub(crate) fn watch_at(over_at: Timestamp, lasts_ms: u64, mark: Timestamp) -> Timestamp {
    over_at.min(mark.after(Duration::from_millis(lasts_ms.saturating_mul(2) / 5)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::saturating_from_ms(1_000_000_000_000 + ms)
    }

    /// Notes these marks, in milliseconds.
    fn marks(marks: &[u64]) -> Silences {
        let mut silences = Silences::default();
        for pair in marks.windows(2) {
            silences.note(Some(at(pair[0])), at(pair[1]), true);
        }
        silences
    }

    #[test]
    fn a_lease_is_over_at_its_end_if_marks_are_at_most_half_of_it_apart() {
        for (lasts, marked) in [(15_000, [0, 7_500, 15_000]), (1_000, [0, 500, 1_000])] {
            assert_eq!(marks(&marked).over_at(at(lasts), lasts), at(lasts));
        }
    }

    #[test]
    fn a_lease_that_ended_in_a_silence_is_held_back_for_two_fifths_of_it() {
        for (lasts, pause) in [(15_000, 6_000), (3_600_000, 1_440_000), (5_000, 2_000), (1_000, 2_000)] {
            for away in [lasts / 2 + 1, 5 * lasts, 100 * lasts] {
                let begun = lasts / 3;
                let back = begun + away;
                let silences = marks(&[0, begun, back]);
                assert_eq!(
                    silences.over_at(at(lasts), lasts),
                    at(lasts.max(back + pause)),
                    "{lasts} ms, away for {away}"
                );
            }
        }
    }

    #[test]
    fn a_silence_holds_back_no_lease_that_ended_before_it_or_was_extended_after_it() {
        let silences = marks(&[20_000, 60_000]);
        assert_eq!(silences.over_at(at(20_000), 15_000), at(20_000));
        assert_eq!(silences.over_at(at(20_001), 15_000), at(66_000));
        assert_eq!(silences.over_at(at(75_000), 15_000), at(75_000));
    }

    #[test]
    fn silences_hold_back_each_the_leases_that_ended_in_them() {
        let silences = marks(&[0, 100_000, 101_000, 102_500, 102_700]);
        let lasted: Vec<_> = silences.known.iter().map(|silence| silence.lasted_ms).collect();
        assert_eq!(lasted, [100_000, 1_000, 1_500]);
        assert_eq!(silences.over_at(at(50_000), 60_000), at(124_000));
        assert_eq!(silences.over_at(at(101_500), 2_000), at(104_500));
        assert_eq!(silences.over_at(at(100_500), 1_000), at(103_000), "it had ended before the last silence");
    }

    #[test]
    fn silences_are_forgotten_and_bounded() {
        assert_eq!(marks(&[0, 100_000, 180_000]).known.len(), 1);
        for gap in [501, 600, 1_000, 2_999, 3_001, 10_000, 100_000_000] {
            let many: Vec<u64> = (0..500).map(|n| n * gap).collect();
            assert!(marks(&many).known.len() <= 4);
        }
        let mut falling = vec![0];
        for step in 0..60 {
            falling.push(
                falling.last().unwrap() + 172_800_000_u64 * 3_u64.pow(step.min(20)) / 4_u64.pow(step.min(20)),
            );
        }
        assert!(marks(&falling).known.len() <= SILENCES_MAX / 2);
    }

    #[test]
    fn a_clock_that_goes_back_shortens_what_is_known() {
        let mut silences = marks(&[0, 100_000]);
        silences.note(Some(at(100_000)), at(39_000), true);
        assert_eq!((silences.ahead, silences.can_end_late(at(99_999))), (at(100_000), true));
        assert_eq!(silences.over_at(at(30_000), 15_000), at(45_000));
        silences.note(Some(at(99_900)), at(100_000), true);
        assert_eq!(silences.ahead, Timestamp::default());
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn silences_are_stored_and_read() {
        let mut silences = marks(&[0, 100_000, 101_000, 103_000]);
        silences.ahead = at(500_000);
        assert_eq!(Silences::from_bytes(&silences.to_bytes()), silences);
        assert_eq!(Silences::from_bytes(&silences.to_bytes()[..20]).known.len(), 1);
        assert_eq!(Silences::from_bytes(b"?"), Silences::default());
    }

    /// Marks at these times leave no silence for the lease, whatever its length.
    #[test]
    fn a_watched_lease_is_over_at_its_end() {
        for lasts in [1_000, 2_000, 15_000, 3_600_000, 86_400_000] {
            let mut marked = vec![0];
            while *marked.last().unwrap() < lasts {
                let last = *marked.last().unwrap();
                marked.push(watch_at(at(lasts), lasts, at(last)).as_ms() - at(0).as_ms());
            }
            assert_eq!(marked.len(), 4);
            assert_eq!(marks(&marked).over_at(at(lasts), lasts), at(lasts));
        }
    }
}
