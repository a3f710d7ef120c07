//! What a forwarder did so far.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// What a [`Forwarder`](crate::Forwarder) did since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Jobs handed over and confirmed.
    pub forwarded: u64,
    /// Refused by the other side, or not fit to be handed over; each try counts.
    pub refused: u64,
    /// Tried again in place, since the other side was away or did not confirm: what it took without saying so it has twice.
    pub again: u64,
    /// On their way now.
    pub in_flight: u64,
    /// The last thing that went wrong, until something goes well again.
    pub trouble: Option<String>,
}

/// The same, being counted.
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

    /// How many were handed over so far.
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

    /// Answers whether it is the first trouble after something went well.
    pub(crate) fn again(&self, error: &str) -> bool {
        self.again.fetch_add(1, Relaxed);
        self.trouble(error)
    }

    /// Counts one more on its way, for as long as the answer lives.
    pub(crate) fn depart(&self) -> Departed<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        Departed(self)
    }

    fn trouble(&self, error: &str) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *trouble != error {
            error.clone_into(&mut trouble);
        }
        self.is_troubled.swap(1, Relaxed) == 0
    }
}

/// A job on its way.
pub(crate) struct Departed<'a>(&'a Tally);

impl Drop for Departed<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
