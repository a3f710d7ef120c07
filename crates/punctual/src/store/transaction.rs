//! The seam between the client and a transaction of the application's own. The client names no store, and a store knows
//! no client: both know this trait.

use super::{Acted, Action, Enqueued, Lease, Settled, Store, Target, Verdict};
use crate::core::{error::Result, job::NewJob};

pub(crate) mod sealed {
    /// Implemented by the transactions that a store of this library can join.
    pub trait Sealed {}
}

/// A transaction of the application's own, in the database that the store lives in. What is done in it exists from its
/// commit on, or not at all.
///
/// Implemented for `rusqlite::Transaction` where the store is an SQLite file. Every call is `Unsupported` on other stores:
/// Redis has no transaction that an application could share.
pub trait Transaction: sealed::Sealed {
    /// Wakes whoever waits for what was done; ring it after the commit.
    type Bell;

    /// Enqueues untyped jobs: one answer per job, in order.
    ///
    /// # Errors
    /// As [`Store::enqueue`]; `Unsupported` on a store that can't join this transaction. After any error the transaction
    /// must be rolled back.
    fn enqueue(&self, store: &dyn Store, jobs: &[NewJob]) -> Result<(Vec<Enqueued>, Self::Bell)>;

    /// Acts on jobs: one answer per target, in order.
    ///
    /// # Errors
    /// As [`Transaction::enqueue`].
    fn act(&self, store: &dyn Store, targets: &[Target], action: &Action)
    -> Result<(Vec<Acted>, Self::Bell)>;

    /// Settles one run.
    ///
    /// # Errors
    /// As [`Transaction::enqueue`].
    fn settle(&self, store: &dyn Store, lease: Lease, verdict: Verdict) -> Result<(Settled, Self::Bell)>;
}
