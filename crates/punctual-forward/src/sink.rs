//! What takes jobs over.

use std::{future::Future, pin::Pin, time::Duration};

use punctual::{JobRecord, Result};

/// How long making a connection may take.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A future on the heap, since a forwarder does not know its sink.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Another system that takes jobs over. It keeps its connection by itself: a call that finds none makes one.
pub(crate) trait Sink: Send + Sync {
    /// Looks whether it can be reached, and whether it knows whom it is told to hand jobs to, as far as that is the same
    /// for all jobs.
    ///
    /// # Errors
    /// `Unavailable`: it can't be reached now. Everything else will not mend itself.
    fn check(&self) -> BoxFuture<'_, Result<()>>;

    /// Hands a job over under an id, which no job of another store has; comes back when the other side answers for it.
    fn send<'a>(&'a self, job: &'a JobRecord, id: &'a str)
    -> BoxFuture<'a, std::result::Result<(), Refusal>>;
}

/// Why a job was not handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The other side can't be reached, or did not answer: nothing is known against this job. It may have it already.
    Away(String),
    /// This process can't ask now, for want of something of its own: nothing is known against this job, nor against the other side.
    Ours(String),
    /// The other side asks for a pause, of this length if it says so. `all`: not for this job alone.
    Busy {
        /// The pause it asks for.
        after: Option<Duration>,
        /// Whether it asks on behalf of all that this forwarder hands over.
        all: bool,
        /// Its words.
        error: String,
    },
    /// The other side does not take this job now; it may take it once somebody mended that.
    Refused(String),
    /// This job can't be handed over, however often it is tried.
    Never(String),
}
