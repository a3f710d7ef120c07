//! What a worker lacks to start runs: descriptors, processes, memory. Runs that could not begin spend no attempts, and it reserves nothing for a
//! while, so that other workers run these jobs.
//!
//! ```text
//! well ──a run could not begin──► nothing is reserved for 1 s ──► one job is reserved ──it began──► well
//!                                      ▲         2, 4 … 30 s           │ it could not begin
//!                                      └───────────────────────────────┘
//! ```

use std::time::Duration;

use tokio::time::Instant;

/// The first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a loop knows of that.
#[derive(Debug, Default)]
pub(super) struct Starved {
    /// Since when, and why; `None` if all is well.
    since: Option<(Instant, String)>,
    pause: Duration,
    until: Option<Instant>,
}

impl Starved {
    /// Notes that a run could not begin; returns the pause if it is the first since all was well.
    pub(super) fn note(&mut self, why: &str, now: Instant) -> Option<Duration> {
        let is_news = self.since.is_none();
        let (_, reason) = self.since.get_or_insert_with(|| (now, String::new()));
        why.clone_into(reason);
        // Several runs that were reserved together are one failure.
        if self.until.is_none_or(|until| until <= now) {
            self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            self.until = Some(now + self.pause);
        }
        is_news.then_some(self.pause)
    }

    /// Notes that a run began at `at`; returns for how long that was not so. Runs of before the end of the pause say nothing.
    pub(super) fn began(&mut self, at: Instant, now: Instant) -> Option<Duration> {
        if self.until.is_some_and(|until| at < until) {
            return None;
        }
        let (since, _) = self.since.take()?;
        (self.pause, self.until) = (Duration::ZERO, None);
        Some(now.duration_since(since))
    }

    /// Returns until when nothing is reserved.
    pub(super) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// Returns whether only one job is reserved at a time.
    pub(super) const fn is_probing(&self) -> bool {
        self.since.is_some()
    }

    /// Describes it for health.
    pub(super) fn held_up(&self, now: Instant) -> Option<String> {
        let (since, why) = self.since.as_ref()?;
        Some(format!("this worker cannot start jobs: {why} (for {} s)", now.duration_since(*since).as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_run_begins() {
        let (mut starved, begin) = (Starved::default(), Instant::now());
        let second = |n| begin + Duration::from_secs(n);
        assert_eq!((starved.quiet_until(second(0)), starved.is_probing()), (None, false));
        assert_eq!(starved.note("no descriptors", second(0)), Some(PAUSE_MIN));
        // One that was reserved with it, and one that ran all the time.
        assert_eq!(
            (starved.note("no descriptors", second(0)), starved.began(second(0), second(9))),
            (None, None)
        );
        assert_eq!(starved.quiet_until(second(0)), Some(second(1)));
        assert_eq!((starved.quiet_until(second(1)), starved.is_probing()), (None, true));
        let mut pauses = Vec::new();
        let mut now = second(1);
        for _ in 0..6 {
            assert_eq!(starved.note("no memory", now), None);
            let until = starved.quiet_until(now).unwrap();
            pauses.push(until.duration_since(now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
        assert_eq!(
            starved.held_up(second(91)).unwrap(),
            "this worker cannot start jobs: no memory (for 91 s)"
        );
        assert_eq!(starved.began(second(91), second(91)), Some(Duration::from_secs(91)));
        assert_eq!((starved.held_up(second(91)), starved.is_probing()), (None, false));
        assert_eq!(starved.note("no memory", second(99)), Some(PAUSE_MIN));
    }
}
