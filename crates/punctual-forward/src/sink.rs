//! The interface of the targets.

use std::{future::Future, pin::Pin, time::Duration};

use punctual::{JobRecord, Result};

/// How long an attempt to connect can take.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A boxed future, because a forwarder does not know its target's type.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A target: another system that takes jobs. It keeps its own connection; a call that finds none makes one.
pub(crate) trait Sink: Send + Sync {
    /// Checks whether the target can be reached, and whether the names that are the same for all jobs exist there.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be reached now. Any other error needs a correction.
    fn check(&self) -> BoxFuture<'_, Result<()>>;

    /// Sends a job under an id that is unique across stores; returns when the target has confirmed it.
    fn send<'a>(&'a self, job: &'a JobRecord, id: &'a str)
    -> BoxFuture<'a, std::result::Result<(), Refusal>>;

    /// Returns why the target accepts nothing at the moment, if it has said so. Jobs that were sent wait meanwhile for their answers.
    fn held_up(&self) -> Option<String> {
        None
    }
}

/// Why a job was not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The target cannot be reached or did not answer. The job is not at fault. The target may already have it.
    Away(String),
    /// This process cannot send now, because it lacks a resource. Neither the job nor the target is at fault.
    Ours(String),
    /// The target requests a pause.
    Busy {
        /// The length of the pause, if given.
        after: Option<Duration>,
        /// Whether it holds for everything that this forwarder sends.
        all: bool,
        /// The target's message.
        error: String,
    },
    /// The target refuses this job now, and may take it after a correction.
    Refused(String),
    /// This job can never be forwarded, however often it is tried.
    Never(String),
}
