//! What a handler may say about a run.

use std::{error::Error, fmt, time::Duration};

use serde::Serialize;

use crate::core::job::Payload;

/// Causes of an error that are told: a chain that has no end is cut.
const CAUSES_MAX: usize = 16;

/// The end of a run, as its handler puts it.
///
/// A handler may return `()`, an `Outcome`, or a `Result` of either: `Ok` is taken as it is, an `Err` means
/// [`Outcome::Retry`] by the job's backoff. A panic and a timeout count as errors.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The work is done.
    Done,
    /// The work is done, and this came of it: kept with the job as long as its record is, and told by
    /// [`Client::finished`](crate::Client::finished). At most 64 KiB; a job with a larger one is dead, since to run it again
    /// would not make it smaller.
    DoneWith(Payload),
    /// It failed: again after this pause, or by the job's backoff. Counts an attempt.
    Retry {
        /// The pause; `None`: the job's backoff.
        after: Option<Duration>,
        /// What went wrong, for people.
        error: String,
    },
    /// It failed since something outside asks for a pause (as HTTP's 429 does): again after it, and none of the jobs of
    /// its group, else of its queue, starts before. Counts an attempt. Closes them for 24 h at most.
    RetryAfter {
        /// The pause.
        after: Duration,
        /// What went wrong, for people.
        error: String,
    },
    /// Not now: again after this pause, at least 100 ms. Counts nothing.
    Snooze(Duration),
    /// Give it up for good, for people to look at.
    Dead(String),
    /// Call it off: the job ends cancelled.
    Cancel,
}

impl Outcome {
    /// The work is done, and this came of it, as JSON. What can't be written as JSON makes the job dead.
    ///
    /// ```
    /// use punctual::{Outcome, Payload};
    ///
    /// #[derive(serde::Serialize)]
    /// struct Imported { rows: u64 }
    ///
    /// let outcome = Outcome::done_with(Imported { rows: 3 });
    /// assert_eq!(outcome, Outcome::DoneWith(Payload::json(r#"{"rows":3}"#)));
    /// ```
    pub fn done_with(result: impl Serialize) -> Self {
        match serde_json::to_vec(&result) {
            Ok(bytes) => Self::DoneWith(Payload::json(bytes)),
            Err(error) => Self::Dead(format!("could not encode the result: {error}")),
        }
    }

    /// A failure that waits for the job's backoff.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { after: None, error: error.to_string() }
    }

    /// A failure that closes the job's group for a while, or its queue if it has none.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::RetryAfter { after, error: error.to_string() }
    }
}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a job handler cannot return `{Self}`",
    note = "return `()`, `punctual::Outcome`, or a `Result` of either"
)]
pub trait IntoOutcome {
    /// The outcome meant.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<T: IntoOutcome, E: Into<Box<dyn Error + Send + Sync>>> IntoOutcome for Result<T, E> {
    /// An error becomes a retry, with all its causes; so does a text.
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(said) => said.into_outcome(),
            Err(error) => {
                let error: Box<dyn Error + Send + Sync> = error.into();
                Outcome::retry(chain(&*error))
            }
        }
    }
}

/// An error and what caused it, as `a: b: c`; a cause that the words before tell already is not told again.
fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    for _ in 0..CAUSES_MAX {
        let Some(because) = cause else { break };
        let words = because.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = because.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::error::{Error as Own, ErrorKind};

    #[test]
    fn a_failure_tells_all_its_causes() {
        let cause = Own::new(ErrorKind::Unavailable, "request failed")
            .with_source(std::io::Error::other("connection reset"));
        let failed = |result: Result<(), Own>| result.into_outcome();
        assert_eq!(failed(Err(cause)), Outcome::retry("request failed: connection reset"));
        assert_eq!(Err::<(), _>("plain").into_outcome(), Outcome::retry("plain"));
    }
}
