//! Which jobs: the terms of a filter, and whether a job matches them. The language's text form is read by
//! [`Filter::parse`].

use crate::{
    job::{JobRecord, State},
    time::Timestamp,
};

/// A conjunction of terms; the empty filter matches every job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    terms: Vec<Term>,
}

/// One term.
#[derive(Clone, Debug, PartialEq)]
enum Term {
    /// Any of these queues.
    Queue(Vec<String>),
    /// Any of these states.
    State(Vec<State>),
}

impl Filter {
    /// Matches every job.
    pub fn all() -> Self {
        Self::default()
    }

    /// Adds: in this queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.terms.push(Term::Queue(vec![queue.into()]));
        self
    }

    /// Adds: in one of these states.
    #[must_use]
    pub fn state(mut self, states: impl Into<Vec<State>>) -> Self {
        self.terms.push(Term::State(states.into()));
        self
    }

    /// Whether `job` matches, when the store's clock shows `now`.
    pub fn matches(&self, job: &JobRecord, now: Timestamp) -> bool {
        let _ = now;
        self.terms.iter().all(|term| match term {
            Term::Queue(names) => names.contains(&job.queue),
            Term::State(states) => states.contains(&job.state),
        })
    }

    /// States outside of which nothing can match; `None`: any. Stores narrow their search by it.
    pub fn states(&self) -> Option<Vec<State>> {
        self.terms.iter().find_map(|term| match term {
            Term::State(states) => Some(states.clone()),
            Term::Queue(_) => None,
        })
    }

    /// Queues outside of which nothing can match; `None`: any. Stores narrow their search by it.
    pub fn queues(&self) -> Option<Vec<String>> {
        self.terms.iter().find_map(|term| match term {
            Term::Queue(names) => Some(names.clone()),
            Term::State(_) => None,
        })
    }
}
