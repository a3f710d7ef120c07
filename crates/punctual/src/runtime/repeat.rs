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

/// How often a change is made anew that others were ahead of.
const TRIES_MAX: u32 = 64;

/// The tries of a change of what others change at the same time: each but the first begins after a pause of random length, or those
/// who start together would meet again and again. All of them together last 32 s at the most likely, 64 s at the most.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    made: u32,
    pauses: Pauses,
}

impl Tries {
    /// Waits until the next try; `false`: there were as many as there may be. `random` draws from `[0, 1)`.
    pub(crate) async fn next(&mut self, random: impl FnOnce() -> f64) -> bool {
        if TRIES_MAX <= self.made {
            return false;
        }
        if 0 < self.made {
            tokio::time::sleep(self.pauses.next().mul_f64(random())).await;
        }
        self.made += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_end_and_pauses_between_them_are_random() {
        let (mut tries, begin, mut n) = (Tries::default(), tokio::time::Instant::now(), 0);
        assert!(tries.next(|| unreachable!("the first try waits for nothing")).await);
        while tries.next(|| 0.5).await {
            n += 1;
        }
        assert_eq!((n, begin.elapsed().as_secs()), (63, 28));
    }

    #[test]
    fn pauses_double_up_to_a_second_and_start_again_after_a_success() {
        let mut pauses = Pauses::default();
        let grown: Vec<u128> = (0..9).map(|_| pauses.next().as_millis()).collect();
        assert_eq!(grown, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        pauses.reset();
        assert_eq!(pauses.next(), FIRST);
    }
}
