//! What keeps a loop from its store: calls that fail, and calls without an answer. The log says it once, and health reports it.
//!
//! ```text
//! none ──failed──► in trouble ──answered──► none
//! ```
//!
//! It decides nothing: the loop repeats its calls whatever it says.

use std::{
    convert::Infallible,
    future::pending,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::health::Liveness;
use crate::core::{
    error::{Error, ErrorKind, chain},
    job::cut_error,
};

/// After how long the log and the health have that a call waits for its answer.
const SAID_AFTER: Duration = Duration::from_secs(4);

/// Calls of a loop that have failed since the last one that was answered.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// When the first of them failed.
    since: Option<Instant>,
    /// The newest error, as health reports it.
    why: String,
    /// The kinds of errors that the log has.
    said: Vec<ErrorKind>,
    /// Whether the log has that a call waits, and no call was answered in time since.
    is_silence_said: AtomicBool,
    /// Whether the last wait for notifications failed, which the log has.
    pub(super) cannot_wait: bool,
}

impl Trouble {
    /// Notes a failed call; returns whether the log does not have an error of this kind yet.
    pub(super) fn failed(&mut self, error: &Error, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let what =
            if error.is_repeatable() { "the store cannot be reached" } else { "the store refuses calls" };
        cut_error(&format!("{what}: {}", chain(error))).clone_into(&mut self.why);
        let is_news = !self.said.contains(&error.kind());
        if is_news {
            self.said.push(error.kind());
        }
        is_news
    }

    /// Notes that a call was answered; returns how long the trouble lasted, if there was any.
    pub(super) fn answered(&mut self, now: Instant) -> Option<Duration> {
        let since = self.since.take()?;
        self.said.clear();
        Some(now.duration_since(since))
    }

    /// Describes what holds up jobs: the newest error, or a call that has waited for its answer for this long.
    pub(super) fn held_up(&self, waited: Duration, now: Instant) -> Option<String> {
        match self.since {
            Some(since) => Some(format!("{} (for {} s)", self.why, now.duration_since(since).as_secs())),
            None if waited.is_zero() => None,
            None => Some(format!("the store has not answered for {} s", waited.as_secs())),
        }
    }

    /// Makes a call. While it waits for the answer, it signals that the loop is alive, and says what it waits for.
    pub(super) async fn asking<T>(&self, liveness: &Liveness, call: impl Future<Output = T>) -> T {
        let begin = Instant::now();
        let held_up = || {
            let now = Instant::now();
            self.held_up(now.duration_since(begin), now)
        };
        let said = async {
            sleep(SAID_AFTER).await;
            // Else the log has the error of a call before.
            if self.since.is_none() && !self.is_silence_said.swap(true, Relaxed) {
                tracing::warn!(target: "punctual", "the store has not answered for {SAID_AFTER:?}; what needs it waits");
            }
            liveness.note(held_up());
            pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            answer = call => {
                if begin.elapsed() < SAID_AFTER {
                    self.is_silence_said.store(false, Relaxed);
                }
                answer
            }
            never = liveness.keep_waiting(&held_up) => match never {},
            never = said => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::runtime::worker::health::Health;

    /// The call hangs for longer than after which a loop without an iteration is stuck.
    #[tokio::test(start_paused = true)]
    async fn a_loop_that_waits_for_the_store_is_alive_and_says_so() {
        let (health, trouble) = (Health::default(), Trouble::default());
        let member = health.join(CancellationToken::new());
        let call = sleep(Duration::from_secs(90));
        let looking = async {
            sleep(SAID_AFTER + Duration::from_millis(1)).await;
            assert!(health.now().text.starts_with("held up: the store has not answered for 4 s"));
            for _ in 0..7 {
                sleep(Duration::from_secs(11)).await;
                let now = health.now();
                assert!(now.is_alive && now.is_ready, "{now:?}");
                assert!(now.text.starts_with("held up: the store has not answered for "), "{now:?}");
            }
        };
        tokio::join!(trouble.asking(member.liveness(), call), looking);
    }

    #[test]
    fn each_kind_of_error_is_said_once_until_the_store_answers() {
        let (mut trouble, begin) = (Trouble::default(), Instant::now());
        let second = |n| begin + Duration::from_secs(n);
        let [away, lost, refused] =
            [ErrorKind::Unavailable, ErrorKind::UnknownOutcome, ErrorKind::Unsupported]
                .map(|kind| Error::new(kind, "no"));
        assert_eq!(trouble.held_up(Duration::ZERO, second(0)), None);
        let news = [&away, &away, &lost, &away, &refused].map(|error| trouble.failed(error, second(1)));
        assert_eq!(news, [true, false, true, false, true]);
        let why = "the store refuses calls: no (for 6 s)";
        assert_eq!(trouble.held_up(Duration::ZERO, second(7)).unwrap(), why);
        assert_eq!(trouble.answered(second(9)), Some(Duration::from_secs(8)));
        assert_eq!(trouble.answered(second(9)), None);
        let silent = trouble.held_up(Duration::from_secs(5), second(9)).unwrap();
        assert_eq!(silent, "the store has not answered for 5 s");
        assert!(trouble.failed(&away, second(9)));
    }
}
