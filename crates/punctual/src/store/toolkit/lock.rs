//! The steps on a lock.
//!
//! ```text
//!          acquire                          release, or the end of the lease
//!   free ───────────► held by one owner ───────────────────────────────────────► free
//!                      │  ▲
//!                      └──┘ extend, or acquire by the same owner: the lease starts anew, the fence stays
//! ```

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::check_duration;
use crate::{
    core::{
        error::Result,
        job::check_name,
        json::{hex, ms, opt_hex},
        limits::{LOCK_LEASE_MAX, LOCK_LEASE_MIN, NAME_BYTES_MAX},
        time::Timestamp,
    },
    store::{LOCK_NOTIFICATION, check_limit},
};

/// The longest name of a lock, in bytes, so that the name of its notification fits the name of a queue.
const LOCK_NAME_BYTES_MAX: usize = NAME_BYTES_MAX - LOCK_NOTIFICATION.len();

/// A step on a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum LockOp {
    /// Acquires the lock for the owner if it is free. An owner that already holds it keeps its fence, and the lease
    /// starts anew. So the step can be repeated safely (S3).
    Acquire {
        /// The name of the lock: 1 to 249 bytes without NUL.
        name: String,
        /// A random number that identifies the owner.
        #[serde(with = "hex")]
        owner: u128,
        /// How long it is held unless it is extended: whole milliseconds, 100 ms to 24 h.
        #[serde(rename = "lease_ms", with = "ms")]
        lease: Duration,
    },
    /// Restarts the lease of its holder. Also if it has ended, unless another owner acquired the lock since or it was released: the clock may
    /// have been set forward. A lock is forgotten a day after its end.
    Extend {
        /// The name of the lock.
        name: String,
        /// The owner that must hold it.
        #[serde(with = "hex")]
        owner: u128,
        /// The new lease from now on.
        #[serde(rename = "lease_ms", with = "ms")]
        lease: Duration,
    },
    /// Frees the lock, if the owner holds it, and notifies a waiting caller.
    Release {
        /// The name of the lock.
        name: String,
        /// The owner that must hold it; `None` frees it whichever owner holds it, for operators.
        #[serde(default, with = "opt_hex", skip_serializing_if = "Option::is_none")]
        owner: Option<u128>,
    },
    /// Returns the holding of a lock.
    Show {
        /// The name of the lock.
        name: String,
    },
    /// Returns the locks that are held, by the end of their leases, then by name.
    List {
        /// The most locks, 1 to 1,000.
        limit: usize,
    },
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The name of the lock.
    pub name: String,
    /// The fence: the number of this holding. It is above those of all earlier holdings of any lock of the store, so
    /// that other systems can refuse writes of an earlier holder.
    pub fence: u64,
    /// When the lease ends, unless it is extended. Then the lock is free.
    #[serde(rename = "until_ms")]
    pub until: Timestamp,
    /// The time until then, by the store's clock.
    #[serde(rename = "left_ms", with = "ms")]
    pub left: Duration,
}

/// The answer to a [`LockOp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockReply {
    /// The owner that asked holds it.
    Yours(Held),
    /// Another owner holds it; nothing was changed.
    Taken(Held),
    /// It was held until now, and is free.
    Released,
    /// It was not held; nothing was changed.
    Free,
    /// Locks that are held.
    Listed {
        /// The locks, in order.
        locks: Vec<Held>,
        /// Whether there are more.
        more: bool,
    },
}

impl LockOp {
    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
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
