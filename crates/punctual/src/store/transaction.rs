//! The interface between the client and a transaction of the application's own.
//!
//! The client knows no concrete store, and a store knows no client. Both know this trait.

use super::{Acted, Action, Enqueued, Lease, Settled, Store, Target, Verdict};
use crate::core::{error::Result, job::NewJob};

pub(crate) mod sealed {
    /// Marks the transactions that a store of this library can join.
    pub trait Sealed {}
}

/// A transaction of the application's own, in the database of the store.
///
/// What is done in it exists once it commits, and not at all if it does not.
///
/// It is implemented for `rusqlite::Transaction`, if the store is an SQLite file. On other stores every call is
/// `Unsupported`: Redis has no transaction that an application could share.
pub trait Transaction: sealed::Sealed {
    /// Notifies waiting callers of what was done. Use it after the commit.
    type Notification;

    /// Enqueues untyped jobs. Returns one answer per job, in order.
    ///
    /// # Errors
    /// As [`Store::enqueue`]; `Unsupported` if the store cannot join this transaction. After any error, roll the
    /// transaction back.
    fn enqueue(&self, store: &dyn Store, jobs: &[NewJob]) -> Result<(Vec<Enqueued>, Self::Notification)>;

    /// Acts on jobs. Returns one answer per target, in order.
    ///
    /// # Errors
    /// As [`Transaction::enqueue`].
    fn act(
        &self,
        store: &dyn Store,
        targets: &[Target],
        action: &Action,
    ) -> Result<(Vec<Acted>, Self::Notification)>;

    /// Settles one run.
    ///
    /// # Errors
    /// As [`Transaction::enqueue`].
    fn settle(
        &self,
        store: &dyn Store,
        lease: Lease,
        verdict: Verdict,
    ) -> Result<(Settled, Self::Notification)>;
}
