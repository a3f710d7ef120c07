//! How far the server's clock is ahead of this machine's, as far as answers tell.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::core::time::Timestamp;

/// An offset in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Offset(AtomicI64);

impl Offset {
    /// Learns from an answer that tells the server's time: it was read between the question and the answer. What was known
    /// stands as far as it agrees with that, so that an answer which took long, on its way or in a busy process, makes
    /// nobody late.
    pub(crate) fn learn(&self, asked: Timestamp, server: Timestamp, answered: Timestamp) {
        let ahead_of = |here: Timestamp| server.as_ms().cast_signed() - here.as_ms().cast_signed();
        let (least, most) = (ahead_of(answered), ahead_of(asked));
        let known = self.0.load(Ordering::Relaxed);
        // Where the clock was set back meanwhile nothing is known but what it shows now.
        self.0.store(known.min(most).max(least), Ordering::Relaxed);
    }

    /// The server's time when it is `here` on this machine.
    pub(crate) fn apply(&self, here: Timestamp) -> Timestamp {
        Timestamp::saturating_from_ms(here.as_ms().saturating_add_signed(self.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::saturating_from_ms(ms)
    }

    #[test]
    fn a_late_answer_does_not_set_the_clock_back() {
        let offset = Offset::default();
        offset.learn(at(1000), at(51_000), at(1002));
        assert_eq!(offset.apply(at(2000)), at(51_998));
        // Read at once, and heard of 8 s later.
        offset.learn(at(2000), at(52_000), at(10_000));
        assert_eq!(offset.apply(at(10_000)), at(59_998));
        // A better one.
        offset.learn(at(11_000), at(61_000), at(11_000));
        assert_eq!(offset.apply(at(11_000)), at(61_000));
    }

    #[test]
    fn steps_of_either_clock_are_followed() {
        let offset = Offset::default();
        for (asked, server, answered) in [(100, 5000, 101), (102, 80, 102), (50, 90, 40)] {
            offset.learn(at(asked), at(server), at(answered));
            let now = offset.apply(at(answered));
            assert!(at(server) <= now && now <= at(server + 1), "{now:?}");
        }
    }
}
