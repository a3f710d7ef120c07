//! The pauses between repetitions of a call that failed: 10 ms, doubling to 1 s. What may be repeated, and for how long,
//! is the caller's to decide.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Pauses that grow until a call succeeds.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    last: Option<Duration>,
}

impl Pauses {
    /// How long to wait before the next repetition.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.last.map_or(FIRST, |last| (last * 2).min(LONGEST));
        self.last = Some(pause);
        pause
    }

    /// Starts again from the shortest: a call succeeded.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_start_again_after_a_success() {
        let mut pauses = Pauses::default();
        let grown: Vec<u128> = (0..9).map(|_| pauses.next().as_millis()).collect();
        assert_eq!(grown, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        pauses.reset();
        assert_eq!(pauses.next(), FIRST);
    }
}
