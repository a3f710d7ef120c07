//! The handlers of a worker, by kind, and what happens to kinds without one.

use std::{collections::HashMap, fmt, time::Duration};

use super::run::guarded;
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::JobRecord,
        time::When,
    },
    runtime::{handler::Erased, middleware::Layer},
    store::{Verdict, why::UNKNOWN_KIND},
};

/// What a worker does with a job whose kind has no handler.
///
/// Such a job is never dropped.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKinds {
    /// Snoozes it for 10 s, doubling to 10 min, with the reason `unknown_kind`. Counts no failure.
    ///
    /// Use it for a rolling deploy: the job waits until a worker has the handler.
    #[default]
    Hold,
    /// Marks it dead, for people to look at.
    Dead,
    /// Counts a failure, and retries it by its backoff.
    Retry,
}

/// The start of the error of a run that failed because its kind has no handler.
pub(crate) const NO_HANDLER: &str = "no handler for kind ";

/// The first pause of a held job, doubled by each snooze in a row up to [`HOLD_MAX`].
const HOLD_MIN: Duration = Duration::from_secs(10);
const HOLD_MAX: Duration = Duration::from_mins(10);

/// All handlers of a worker.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<&'static str, Erased>,
    /// The handler for every kind without one of its own.
    raw: Option<Erased>,
    unknown: UnknownKinds,
}

impl Handlers {
    /// Makes one handler for all kinds.
    pub(crate) fn of_one(handler: Erased) -> Self {
        Self { raw: Some(handler), ..Self::default() }
    }

    /// Adds the handler of a kind.
    ///
    /// # Errors
    /// `Conflict` if the kind has one.
    pub(crate) fn add(&mut self, kind: &'static str, handler: Erased) -> Result<()> {
        match self.by_kind.insert(kind, handler) {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Conflict, format!("kind {kind:?} has two handlers"))
                .with_hint("give the two types of job different kinds, or register one handler only")),
        }
    }

    /// Adds the handler of every other kind.
    pub(crate) fn add_raw(&mut self, handler: Erased) -> Result<()> {
        match self.raw.replace(handler) {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Conflict, "there are two handlers for all other kinds")),
        }
    }

    pub(crate) fn set_unknown(&mut self, unknown: UnknownKinds) {
        self.unknown = unknown;
    }

    /// Wraps every handler in middleware, the first layer outermost. Timeouts and panics reach it as outcomes.
    pub(crate) fn wrap(&mut self, layers: &[Layer], timeout_grace: Duration) {
        for handler in self.by_kind.values_mut().chain(&mut self.raw) {
            *handler = guarded(handler.clone(), timeout_grace);
        }
        for layer in layers.iter().rev() {
            for handler in self.by_kind.values_mut().chain(&mut self.raw) {
                *handler = layer(handler.clone());
            }
        }
    }

    /// Returns whether every kind has a handler.
    pub(crate) fn handles_all(&self) -> bool {
        self.raw.is_some()
    }

    /// Returns the kinds that have handlers, sorted. `*` stands for all other kinds.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds: Vec<&str> =
            self.by_kind.keys().copied().chain(self.raw.as_ref().map(|_| "*")).collect();
        kinds.sort_unstable();
        kinds
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.raw.is_none()
    }

    pub(crate) fn handler(&self, kind: &str) -> Option<&Erased> {
        self.by_kind.get(kind).or(self.raw.as_ref())
    }

    /// Returns the verdict on a job without a handler.
    pub(crate) fn unknown(&self, job: &JobRecord) -> Verdict {
        let error = || format!("{NO_HANDLER}{:?}", job.kind);
        match self.unknown {
            UnknownKinds::Hold => {
                let after = HOLD_MIN.saturating_mul(1 << job.snoozes.min(16)).min(HOLD_MAX);
                Verdict::Snooze { after, reason: Some(UNKNOWN_KIND.to_owned()) }
            }
            UnknownKinds::Dead => Verdict::Dead { error: error() },
            UnknownKinds::Retry => {
                let pause = job.backoff.delay(job.attempt, fastrand::f64());
                Verdict::Retry { at: When::In(pause), error: error() }
            }
        }
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew")
            .field("kinds", &self.by_kind.keys())
            .field("raw", &self.raw.is_some())
            .field("unknown", &self.unknown)
            .finish()
    }
}
