//! Counts of what a forwarder did.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counts of what a [`Forwarder`](crate::Forwarder) did since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Jobs forwarded and confirmed.
    pub forwarded: u64,
    /// Attempts that the target refused, or whose job could not be sent.
    pub refused: u64,
    /// Attempts repeated in place because the target was unavailable or did not confirm. What it took without a
    /// confirm, it has twice.
    pub again: u64,
    /// Jobs in flight now.
    pub in_flight: u64,
    /// The last error, until an attempt succeeds.
    pub trouble: Option<String>,
}

/// The live counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    forwarded: AtomicU64,
    refused: AtomicU64,
    again: AtomicU64,
    in_flight: AtomicU64,
    is_troubled: AtomicU64,
    trouble: Mutex<String>,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        Counts {
            forwarded: self.so_far(),
            refused: self.refused.load(Relaxed),
            again: self.again.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            trouble: (0 < self.is_troubled.load(Relaxed)).then(|| trouble.clone()),
        }
    }

    /// Returns the number of jobs forwarded so far.
    pub(crate) fn so_far(&self) -> u64 {
        self.forwarded.load(Relaxed)
    }

    pub(crate) fn forwarded(&self) {
        self.forwarded.fetch_add(1, Relaxed);
        if 0 < self.is_troubled.load(Relaxed) {
            self.is_troubled.store(0, Relaxed);
        }
    }

    pub(crate) fn refused(&self, error: &str) {
        self.refused.fetch_add(1, Relaxed);
        self.trouble(error);
    }

    /// Returns whether it is the first error after a success.
    pub(crate) fn again(&self, error: &str) -> bool {
        self.again.fetch_add(1, Relaxed);
        self.trouble(error)
    }

    /// Counts one more job in flight until the returned guard is dropped.
    pub(crate) fn depart(&self) -> Departed<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        Departed(self)
    }

    /// Notes what jobs wait for; returns whether it is the first trouble after a success.
    pub(crate) fn trouble(&self, error: &str) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *trouble != error {
            error.clone_into(&mut trouble);
        }
        self.is_troubled.swap(1, Relaxed) == 0
    }
}

/// A job in flight.
pub(crate) struct Departed<'a>(&'a Tally);

impl Drop for Departed<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
