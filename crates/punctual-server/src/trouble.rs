//! Logs why the store fails. Callers get the error without its causes, because causes can quote stored values. The log says
//! each kind of trouble once, and counts it while it lasts.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use punctual::{Error, ErrorKind};
use tokio::time::{Duration, Instant};

/// After how long a trouble that goes on is said again, with how many answers it failed.
const SAID_AGAIN: Duration = Duration::from_mins(1);

/// Why an answer of the store failed, as the log has it. An extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct Causes(Arc<(ErrorKind, String)>);

impl Causes {
    /// Returns the causes of an error that is no fault of the caller's.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let is_of_store = matches!(
            error.kind(),
            ErrorKind::Unavailable
                | ErrorKind::UnknownOutcome
                | ErrorKind::Closed
                | ErrorKind::StoreFull
                | ErrorKind::Corrupt
                | ErrorKind::Outdated
        );
        is_of_store.then(|| Self(Arc::new((error.kind(), error.with_causes()))))
    }

    /// Leaves the causes in an answer.
    pub(crate) fn put(causes: Option<&Self>, answer: &mut Response) {
        if let Some(causes) = causes {
            answer.extensions_mut().insert(causes.clone());
        }
    }
}

/// The trouble that the log has, of each kind the last: the words differ with the calls that meet it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Vec<Said>>>);

#[derive(Debug)]
struct Said {
    kind: ErrorKind,
    at: Instant,
    /// How many answers failed for it since.
    again: u64,
}

impl Trouble {
    /// Notes a failed answer; returns how many others failed for the same since the log had it, if the log is to have it now.
    fn failed(&self, causes: &Causes, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(said) = all.iter_mut().find(|said| said.kind == causes.0.0) else {
            all.push(Said { kind: causes.0.0, at: now, again: 0 });
            return Some(0);
        };
        if now < said.at + SAID_AGAIN {
            said.again += 1;
            return None;
        }
        let again = std::mem::take(&mut said.again);
        // What was counted long ago is no news of this trouble.
        let is_same = now < said.at + 2 * SAID_AGAIN;
        said.at = now;
        Some(if is_same { again } else { 0 })
    }
}

/// Says why answers fail.
pub(crate) async fn said(State(trouble): State<Trouble>, request: Request, next: Next) -> Response {
    let answer = next.run(request).await;
    if let Some(causes) = answer.extensions().get::<Causes>()
        && let Some(again) = trouble.failed(causes, Instant::now())
    {
        tracing::warn!(target: "punctual", error = %causes.0.1, others = again, "a request failed because of the store");
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(kind: ErrorKind, why: &'static str) -> Option<Causes> {
        Causes::of(&Error::new(kind, "could not write to jobs.db").with_source(why))
    }

    #[tokio::test(start_paused = true)]
    async fn a_trouble_is_said_with_its_causes_once_and_counted() {
        let (trouble, now) = (Trouble::default(), Instant::now());
        let full = causes(ErrorKind::StoreFull, "no space left on device").unwrap();
        assert_eq!(full.0.1, "could not write to jobs.db: no space left on device");
        let broken = causes(ErrorKind::UnknownOutcome, "input/output error").unwrap();
        assert_eq!([&full, &full, &full].map(|why| trouble.failed(why, now)), [Some(0), None, None]);
        assert_eq!([&broken, &full, &broken].map(|why| trouble.failed(why, now)), [Some(0), None, None]);
        assert_eq!(trouble.failed(&full, now + SAID_AGAIN), Some(3));
        assert_eq!(trouble.failed(&broken, now + 2 * SAID_AGAIN), Some(0));
        assert!(causes(ErrorKind::Invalid, "a name").is_none());
    }
}
