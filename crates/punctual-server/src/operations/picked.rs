//! A job as a page shows it: what a form sends back, so that a job that has changed since is left alone.

use std::{fmt, str::FromStr};

use punctual::{
    JobId, JobRecord, State,
    store::{Guard, Selector, Target},
};

/// A job, and what it was when the page was made. As text: `ID.STATE.VERSION.QUEUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picked {
    pub(crate) id: JobId,
    pub(crate) state: State,
    version: u64,
    pub(crate) queue: String,
}

impl From<&JobRecord> for Picked {
    fn from(job: &JobRecord) -> Self {
        Self { id: job.id, state: job.state, version: job.version, queue: job.queue.clone() }
    }
}

impl Picked {
    /// Returns whether a job is as the page showed it, except for its state.
    pub(crate) fn is_version_of(&self, job: &JobRecord) -> bool {
        (self.id, self.version) == (job.id, job.version)
    }

    /// Returns the target of an action, guarded by what the page showed.
    pub(crate) fn target(&self) -> Target {
        let guard = Guard { queue: self.queue.clone(), state: self.state, version: Some(self.version) };
        Target { selector: Selector::Id(self.id), guard: Some(guard) }
    }
}

impl fmt::Display for Picked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.id, self.state, self.version, self.queue)
    }
}

impl FromStr for Picked {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(4, '.');
        let mut next = || parts.next().ok_or(());
        let id = next()?.parse().map_err(|_| ())?;
        let state = next()?;
        let state = State::ALL.into_iter().find(|known| known.name() == state).ok_or(())?;
        Ok(Self { id, state, version: next()?.parse().map_err(|_| ())?, queue: next()?.to_owned() })
    }
}
