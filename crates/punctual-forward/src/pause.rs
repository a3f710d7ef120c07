//! The pause after a failed attempt to connect.

use std::time::{Duration, Instant};

/// The pause between two attempts, however many callers wait.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);

/// The end of the pause, and the error of the last attempt.
pub(crate) struct Pause<E>(Option<(Instant, E)>);

impl<E> Default for Pause<E> {
    fn default() -> Self {
        Self(None)
    }
}

impl<E: Clone> Pause<E> {
    /// Returns the error of the last attempt during the pause.
    pub(crate) fn check(&self) -> Result<(), E> {
        match &self.0 {
            Some((until, why)) if Instant::now() < *until => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Notes how an attempt ended, and returns its result.
    pub(crate) fn note<T>(&mut self, attempt: Result<T, E>) -> Result<T, E> {
        self.0 = attempt.as_ref().err().map(|why| (Instant::now() + CONNECT_PAUSE, why.clone()));
        attempt
    }
}
