//! Remembers which shard gave a lease, where the present number of shards leads to another one.
//!
//! A job stays in its shard when the number of shards changes, so its id alone can lead to several. Whoever has the lease asks the
//! one that gave it, and no other: neither one that is away, nor one that would answer in vain.

use std::collections::HashMap;

use crate::store::{Lease, Reserved, redis::sharded::layout::Layout};

/// The most leases that are remembered. After that, a new one takes the place of any other. The lease of that one is looked for
/// wherever its id leads.
const LEASES_MAX: usize = 10_000;

/// The shard of each lease.
#[derive(Debug, Default)]
pub(crate) struct Givers(HashMap<Lease, usize>);

impl Givers {
    /// Notes who gave these jobs. It costs nothing if the store always had this number of shards.
    pub(crate) fn note(&mut self, layout: &Layout, at: usize, jobs: &[Reserved]) {
        if !layout.has_other_homes() {
            return;
        }
        let leads_elsewhere = |lease: &Lease| layout.homes_of(lease.job).first() != Some(&(at as u16));
        for lease in jobs.iter().map(|reserved| reserved.lease).filter(leads_elsewhere) {
            if LEASES_MAX <= self.0.len() && !self.0.contains_key(&lease) {
                let any = self.0.keys().next().copied();
                any.map(|any| self.0.remove(&any));
            }
            self.0.insert(lease, at);
        }
    }

    /// Returns the shard that gave a lease, if that is known.
    pub(crate) fn of(&self, lease: Lease) -> Option<usize> {
        self.0.get(&lease).copied()
    }

    /// Forgets leases that are over.
    pub(crate) fn forget(&mut self, leases: impl Iterator<Item = Lease>) {
        if !self.0.is_empty() {
            for lease in leases {
                self.0.remove(&lease);
            }
        }
    }
}
