//! A search: a filter that is compared with many jobs, and how much work that was.
//!
//! A filter within its limits can be dear: many values with stars, long texts. So a search counts its steps, and a store
//! ends a page whose search has spent what one page may.

use super::{Filter, Term, Test, payload::Paths};
use crate::core::{job::JobRecord, limits::LIST_STEPS_MAX, time::Timestamp};

/// A filter that is compared with one job after the other.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// The terms that need no payload. They come first, so that other payloads are not read.
    plain: Vec<Term>,
    /// The other terms, and their nodes in the tree of paths. Terms of one path are neighbours.
    inside: Vec<(usize, Term)>,
    paths: Paths,
    steps: u64,
}

impl Search {
    pub(crate) fn new(filter: &Filter) -> Self {
        let (mut plain, mut inside, mut paths) = (Vec::new(), Vec::new(), Paths::new());
        for term in &filter.terms {
            match &term.test {
                Test::Payload(path, _) => inside.push((paths.add(path), term.clone())),
                _ => plain.push(term.clone()),
            }
        }
        inside.sort_by_key(|(node, _)| *node);
        Self { plain, inside, paths, steps: 0 }
    }

    /// Returns whether a job matches when the store's clock shows `now`.
    pub(crate) fn matches(&mut self, job: &JobRecord, now: Timestamp) -> bool {
        let Self { plain, inside, paths, steps } = self;
        if !plain.iter().all(|term| term.test.holds(job, now, None, steps) != term.negated) {
            return false;
        }
        if inside.is_empty() {
            return true;
        }
        let text = paths.walk(&job.payload.bytes, steps);
        let (mut of, mut value) = (None, None);
        inside.iter().all(|(node, term)| {
            if of != Some(*node) {
                (of, value) = (Some(*node), text.and_then(|text| paths.text(text, *node)));
                *steps += value.as_ref().map_or(0, |value| value.len() as u64);
            }
            term.test.holds(job, now, value.as_deref(), steps) != term.negated
        })
    }

    /// Returns whether it has read and compared as much as one page may: the page ends here.
    pub(crate) fn is_spent(&self) -> bool {
        LIST_STEPS_MAX <= self.steps
    }

    /// Returns the bytes of payloads and texts that were read and compared.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
}
