//! The outcome of a run, as its handler returns it.

use std::{error::Error, fmt, time::Duration};

use serde::Serialize;

use crate::core::{error::chain, job::Payload};

/// The outcome of a run.
///
/// A handler can return `()`, an `Outcome`, or a `Result` of either. The value in `Ok` is used; an `Err` means
/// [`Outcome::Retry`] by the job's backoff. A panic and a timeout count as errors.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The work is done.
    Done,
    /// The work is done, with this result. At most 64 KiB.
    ///
    /// The result is kept with the job's record, and [`Client::finished`](crate::Client::finished) returns it. A
    /// larger result makes the job dead, because another run would not make it smaller.
    DoneWith(Payload),
    /// The run failed. The job is retried after this pause, or by its backoff. Counts an attempt.
    Retry {
        /// The pause; `None` means the job's backoff.
        after: Option<Duration>,
        /// The error, for people.
        error: String,
    },
    /// The run failed because another system requested a pause, for example with HTTP 429. Counts an attempt.
    ///
    /// The job is retried after the pause. No job of its group starts before, or of its queue if it has no group. The
    /// pause is 24 h at most.
    RetryAfter {
        /// The pause.
        after: Duration,
        /// The error, for people.
        error: String,
    },
    /// Not now: the job runs again after this pause, at least 100 ms. Counts nothing.
    Snooze(Duration),
    /// The run could not begin, because this worker lacks something: descriptors, processes, memory. The text says what.
    ///
    /// Counts no attempt: the job goes back for a second, for another worker, as after a snooze. This one reserves nothing for a second, and
    /// longer if that happens again, up to 30 s. Its health says why.
    NotStarted(String),
    /// Gives the job up, for people to look at. The text is the reason.
    Dead(String),
    /// Cancels the job.
    Cancel,
}

impl Outcome {
    /// Returns [`Outcome::DoneWith`] with `result` as JSON.
    ///
    /// If it cannot be written as JSON, the job is dead.
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

    /// Returns a failure that is retried by the job's backoff.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { after: None, error: error.to_string() }
    }

    /// Returns a failure that pauses the job's group, or its queue if it has no group.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::RetryAfter { after, error: error.to_string() }
    }
}

/// A type that a handler can return.
#[diagnostic::on_unimplemented(
    message = "a job handler cannot return `{Self}`",
    note = "return `()`, `punctual::Outcome`, or a `Result` of either"
)]
pub trait IntoOutcome {
    /// Converts the value into an outcome.
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
    /// An error becomes a retry, with the text of all its causes. So does a text.
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
