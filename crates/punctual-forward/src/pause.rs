//! The pause behind an attempt to connect that failed.

use std::time::{Duration, Instant};

/// Between two attempts, however many wait for one.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);

/// Until when nobody tries to connect, and why not.
pub(crate) struct Pause<E>(Option<(Instant, E)>);

impl<E> Default for Pause<E> {
    fn default() -> Self {
        Self(None)
    }
}

impl<E: Clone> Pause<E> {
    /// Why the last attempt failed, while nobody may try again.
    pub(crate) fn check(&self) -> Result<(), E> {
        match &self.0 {
            Some((until, why)) if Instant::now() < *until => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Notes how an attempt ended, and hands it on.
    pub(crate) fn note<T>(&mut self, attempt: Result<T, E>) -> Result<T, E> {
        self.0 = attempt.as_ref().err().map(|why| (Instant::now() + CONNECT_PAUSE, why.clone()));
        attempt
    }
}
