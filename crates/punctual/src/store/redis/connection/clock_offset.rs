//! How far the server's clock is ahead of a steady one here, as learned from answers.
//!
//! The clock of this machine is not used: when it is set back (a synchronisation, a guest that goes on), the time of the server would seem to go back,
//! too, until the next answer, and jobs that are due would wait for it.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant},
};

use crate::{core::time::Timestamp, store::clock::Clock};

/// A clock that shows the time of this machine at its start, and goes on from there steadily; or the one that a test sets.
#[derive(Debug)]
pub(crate) struct Steady {
    clock: Clock,
    start: (Instant, Timestamp),
}

impl Steady {
    pub(crate) fn start(clock: &Clock) -> Self {
        Self { clock: clock.clone(), start: (Instant::now(), clock.now()) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.clock {
            // Rounded down, so that nothing starts early.
            Clock::System => {
                let passed_ms = self.start.0.elapsed().as_millis();
                self.start.1.after(Duration::from_millis(u64::try_from(passed_ms).unwrap_or(u64::MAX)))
            }
            Clock::Manual(clock) => clock.now(),
        }
    }
}

/// An offset in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Offset(AtomicI64);

impl Offset {
    /// Learns from an answer with the server's time, which was read between question and answer.
    ///
    /// The known offset is kept as far as it agrees with that. So an answer that took long, on its way or in a busy
    /// process, makes no job late.
    pub(crate) fn learn(&self, asked: Timestamp, server: Timestamp, answered: Timestamp) {
        let ahead_of = |here: Timestamp| server.as_ms().cast_signed() - here.as_ms().cast_signed();
        let (least, most) = (ahead_of(answered), ahead_of(asked));
        let known = self.0.load(Ordering::Relaxed);
        // If the clock was set back meanwhile, only its current time is known.
        self.0.store(known.min(most).max(least), Ordering::Relaxed);
    }

    /// Returns the server's time when the steady clock shows `here`.
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
    fn a_clock_of_a_test_is_shown_and_that_of_the_machine_gone_on_from() {
        let clock = crate::store::clock::ManualClock::new(at(7));
        let steady = Steady::start(&Clock::Manual(clock.clone()));
        clock.set(at(3));
        assert_eq!(steady.now(), at(3));
        let before = Clock::System.now();
        let steady = Steady::start(&Clock::System);
        assert!(before <= steady.now());
        // Whatever the clock of the machine shows since.
        let steady = Steady { clock: Clock::System, start: (Instant::now(), at(7)) };
        assert!((at(7)..at(60_000)).contains(&steady.now()));
    }

    #[test]
    fn a_late_answer_does_not_set_the_clock_back() {
        let offset = Offset::default();
        offset.learn(at(1000), at(51_000), at(1002));
        assert_eq!(offset.apply(at(2000)), at(51_998));
        // Read at once, and received 8 s later.
        offset.learn(at(2000), at(52_000), at(10_000));
        assert_eq!(offset.apply(at(10_000)), at(59_998));
        // A more accurate answer.
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
