//! What a lock asks of a store.
//!
//! ```text
//!          acquire                          release, or the end of the lease
//!   free ───────────► held by one owner ───────────────────────────────────────► free
//!                      │  ▲
//!                      └──┘ extend, or acquire by the same owner: the lease begins anew, the fence stays
//! ```

use std::time::Duration;

use super::check_duration;
use crate::{
    core::{
        error::Result,
        job::check_name,
        limits::{LOCK_LEASE_MAX, LOCK_LEASE_MIN, NAME_BYTES_MAX},
        time::Timestamp,
    },
    store::{LOCK_BELL, check_limit},
};

/// Longest name of a lock, in bytes: so that the name of its bell is one of a queue.
const LOCK_NAME_BYTES_MAX: usize = NAME_BYTES_MAX - LOCK_BELL.len();

/// One step on a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOp {
    /// Takes it for the owner if it is free. Whoever holds it already goes on with the same fence, and the lease begins anew: so
    /// this may be made again (S3).
    Acquire {
        /// The lock: 1 to 249 bytes without NUL.
        name: String,
        /// A random number of the owner's own, by which it is known.
        owner: u128,
        /// How long it is held unless extended: whole milliseconds, 100 ms to 24 h.
        lease: Duration,
    },
    /// Begins the lease of its holder anew.
    Extend {
        /// The lock.
        name: String,
        /// Who must hold it.
        owner: u128,
        /// How long it is held from now on.
        lease: Duration,
    },
    /// Frees it, if the owner holds it, and rings for one that waits.
    Release {
        /// The lock.
        name: String,
        /// Who must hold it; `None`: whoever does, which is for operators.
        owner: Option<u128>,
    },
    /// Tells who holds it.
    Show {
        /// The lock.
        name: String,
    },
    /// Tells the locks that are held; first those whose leases end first, then by name.
    List {
        /// At most this many, 1 to 1,000.
        limit: usize,
    },
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lock.
    pub name: String,
    /// The number of this holding: above those of all earlier holdings of any lock of the store, so that who writes under it can be
    /// told from who wrote before.
    pub fence: u64,
    /// When the lease ends, unless extended; then it is free.
    pub until: Timestamp,
    /// How long that is from now, by the store's clock.
    pub left: Duration,
}

/// The answer to a [`LockOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockReply {
    /// The owner that asked holds it.
    Yours(Held),
    /// Somebody else holds it; nothing was changed.
    Taken(Held),
    /// It was held until now, by this owner or whoever was to be relieved of it.
    Released,
    /// Nobody holds it; nothing was changed.
    Free,
    /// Those that are held.
    Listed {
        /// The first of them.
        locks: Vec<Held>,
        /// Whether there are more.
        more: bool,
    },
}

impl LockOp {
    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        let lease = match self {
            Self::Acquire { lease, .. } | Self::Extend { lease, .. } => Some(lease),
            Self::Release { .. } | Self::Show { .. } | Self::List { .. } => None,
        };
        if let Some(lease) = lease {
            check_duration("the lease of a lock", *lease, LOCK_LEASE_MIN, LOCK_LEASE_MAX)?;
        }
        match self {
            Self::List { limit } => check_limit("list", *limit),
            Self::Acquire { name, .. }
            | Self::Extend { name, .. }
            | Self::Release { name, .. }
            | Self::Show { name } => check_lock(name),
        }
    }
}

fn check_lock(name: &str) -> Result<()> {
    if LOCK_NAME_BYTES_MAX < name.len() {
        let text = format!("lock of {} bytes is over the limit of {LOCK_NAME_BYTES_MAX}", name.len());
        return Err(crate::core::error::Error::invalid(text));
    }
    check_name("lock", name)
}
