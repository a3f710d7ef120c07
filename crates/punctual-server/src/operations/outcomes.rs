//! What became of jobs that were acted on.

use punctual::{
    JobId, State,
    store::{Acted, Action},
};
use serde::{Deserialize, Serialize};

use super::picked::Picked;

/// The number of jobs by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Outcomes {
    pub(crate) done: u64,
    /// Running jobs whose worker was asked to stop.
    pub(crate) requested: u64,
    /// Jobs that do not exist any more.
    pub(crate) gone: u64,
    /// Jobs that changed after they were shown.
    #[serde(rename = "changed")]
    pub(crate) moved: u64,
    /// Jobs whose state does not allow the action.
    #[serde(rename = "wrong_state")]
    pub(crate) unfit: u64,
    /// Jobs whose unique key another job holds.
    #[serde(rename = "unique_conflict")]
    pub(crate) taken: u64,
    /// Jobs whose group or concurrency key is now in another shard.
    #[serde(rename = "limiter_conflict")]
    pub(crate) elsewhere: u64,
    /// One of the jobs that stand in the way.
    pub(crate) other: Option<JobId>,
}

impl Outcomes {
    /// Counts what became of jobs that a page or a listing showed.
    pub(crate) fn of(jobs: &[Picked], acted: &[Acted], action: &Action) -> Self {
        let mut sum = Self::default();
        for (job, acted) in jobs.iter().zip(acted) {
            match acted {
                Acted::WrongState(..) if is_fit(action, job.state) => sum.moved += 1,
                acted => sum.count(acted),
            }
        }
        sum
    }

    /// Counts what became of jobs of which nothing else is known.
    pub(crate) fn of_all(acted: &[Acted]) -> Self {
        let mut sum = Self::default();
        for acted in acted {
            sum.count(acted);
        }
        sum
    }

    fn count(&mut self, acted: &Acted) {
        match acted {
            Acted::Done(..) => self.done += 1,
            Acted::Requested(_) => self.requested += 1,
            Acted::NotFound => self.gone += 1,
            Acted::WrongState(..) => self.unfit += 1,
            Acted::UniqueConflict(other) => (self.taken, self.other) = (self.taken + 1, Some(*other)),
            Acted::LimiterConflict(other) => {
                (self.elsewhere, self.other) = (self.elsewhere + 1, Some(*other));
            }
        }
    }

    /// Returns the number of jobs to which nothing was done.
    pub(crate) fn skipped(&self) -> u64 {
        let Self { gone, moved, unfit, taken, elsewhere, .. } = *self;
        [gone, moved, unfit, taken, elsewhere].into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the number of all jobs.
    pub(crate) fn total(&self) -> u64 {
        self.done.saturating_add(self.requested).saturating_add(self.skipped())
    }

    /// Adds what became of further jobs.
    pub(crate) fn add(&mut self, further: &Self) {
        let Self { done, requested, gone, moved, unfit, taken, elsewhere, other } = *further;
        for (sum, n) in [
            (&mut self.done, done),
            (&mut self.requested, requested),
            (&mut self.gone, gone),
            (&mut self.moved, moved),
            (&mut self.unfit, unfit),
            (&mut self.taken, taken),
            (&mut self.elsewhere, elsewhere),
        ] {
            *sum = sum.saturating_add(n);
        }
        self.other = other.or(self.other);
    }
}

/// Returns the reason of an action; empty if it has none.
pub(crate) fn reason_of(action: &Action) -> &str {
    match action {
        Action::Cancel { reason } => reason.as_deref().unwrap_or_default(),
        _ => "",
    }
}

/// Returns whether an action is possible for jobs of a state.
pub(crate) const fn is_fit(action: &Action, state: State) -> bool {
    match action {
        Action::Cancel { .. } => matches!(state, State::Waiting | State::Running),
        Action::Retry => state.is_ended(),
        Action::Delete => !matches!(state, State::Running),
        _ => matches!(state, State::Waiting),
    }
}
