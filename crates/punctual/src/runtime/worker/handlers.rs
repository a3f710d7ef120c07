//! Who handles which kind, and what becomes of a kind that nobody handles.

use std::{collections::HashMap, fmt, time::Duration};

use super::run::guarded;
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::JobRecord,
        time::When,
    },
    runtime::{handler::Erased, middleware::Layer},
    store::Verdict,
};

/// What a worker does with a job whose kind it has no handler for. It is never dropped.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKinds {
    /// Snoozes it, 10 s doubling to 10 min, reason `unknown_kind`: counts no failure, and waits for the deploy that
    /// brings the handler.
    #[default]
    Hold,
    /// Ends it dead, for people.
    Dead,
    /// Counts a failure, and retries it by its backoff.
    Retry,
}

/// Why a job waits whose kind no worker handled: the reason of a snooze.
pub(crate) const UNKNOWN_KIND: &str = "unknown_kind";
/// How the error begins of a run that failed for that.
pub(crate) const NO_HANDLER: &str = "no handler for kind ";

/// First pause of a held job, doubled by every snooze in a row up to [`HOLD_MAX`].
const HOLD_MIN: Duration = Duration::from_secs(10);
const HOLD_MAX: Duration = Duration::from_mins(10);

/// All handlers of a worker.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<&'static str, Erased>,
    /// For every kind without a handler of its own.
    raw: Option<Erased>,
    unknown: UnknownKinds,
}

impl Handlers {
    /// One handler for all.
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

    /// Wraps every handler, whose timeouts and panics are outcomes to them; the first layer is the outermost.
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

    /// Whether every kind has a handler.
    pub(crate) fn handles_all(&self) -> bool {
        self.raw.is_some()
    }

    /// The kinds that have handlers, for people.
    pub(crate) fn kinds(&self) -> String {
        let mut kinds: Vec<&str> =
            self.by_kind.keys().copied().chain(self.raw.as_ref().map(|_| "*")).collect();
        kinds.sort_unstable();
        kinds.join(", ")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.raw.is_none()
    }

    pub(crate) fn handler(&self, kind: &str) -> Option<&Erased> {
        self.by_kind.get(kind).or(self.raw.as_ref())
    }

    /// What becomes of a job that nobody handles.
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
