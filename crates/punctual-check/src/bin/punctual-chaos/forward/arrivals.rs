//! What arrived on the other side: which job, and when.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::wall_us;

/// All that arrived so far.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// When each job arrived, as often as it did, in microseconds by the system's clock.
    of: Mutex<BTreeMap<String, Vec<u64>>>,
    /// What the other side handed out again by itself, since its reader had not said that it has it.
    handed_out_again: AtomicU64,
}

impl Arrivals {
    /// Notes one. `is_again`: the other side says that it may have handed it out before.
    pub(super) fn note(&self, id: &str, is_again: bool) {
        // Behind the store, the job.
        let id = id.rsplit_once('_').map_or(id, |(_, job)| job);
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        match of.get_mut(id) {
            Some(_) if is_again => {
                self.handed_out_again.fetch_add(1, Relaxed);
            }
            Some(times) => times.push(wall_us()),
            None => {
                of.insert(id.to_owned(), vec![wall_us()]);
            }
        }
    }

    /// Whether this job arrived.
    pub(super) fn has(&self, id: &str) -> bool {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// So many jobs arrived.
    pub(super) fn count(&self) -> usize {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn handed_out_again(&self) -> u64 {
        self.handed_out_again.load(Relaxed)
    }

    pub(super) fn all(&self) -> BTreeMap<String, Vec<u64>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
