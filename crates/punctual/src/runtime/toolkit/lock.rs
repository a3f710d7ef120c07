//! Locks, through a client.

use std::time::Duration;

use tokio::time::Instant;

use super::unexpected;
use crate::{
    core::{error::Result, limits::LOCK_LEASE_DEFAULT},
    runtime::client::Client,
    store::{Held, LOCK_NOTIFICATION, LockOp, LockReply, ToolOp, ToolReply},
};

/// The longest wait before the lock is tried again, whatever notifications arrived.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// A lock that one process at a time holds, for a lease, with a fence.
///
/// A process can go on working after its lease ended, for example because it slept. So send the fence with each write
/// to another system, and let that system refuse lower fences than it has seen. Fences rise over all holdings, also
/// over those that expired. After a power cut they rise as far as the store's clock does.
///
/// A release wakes the callers that wait, and each also tries again when the lease ends. Nothing is polled. Which
/// caller gets the lock next is random: there is no order. Leases last 100 ms to 24 h (default: 30 s). Names have 1
/// to 249 bytes without NUL. On Redis, all locks of a store are in its shard 0, and as safe as the durability of the
/// store. With `fast`, a failover can grant a lock that is still held, with a higher fence.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use punctual::{Client, store::{clock::Clock, memory::MemoryStore}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let client = Client::new(Arc::new(MemoryStore::new(Clock::System)));
/// let rebuild = client.lock("rebuild-index").lease(Duration::from_secs(10));
/// let guard = rebuild.acquire(Duration::from_secs(5)).await?.expect("nobody else wants it");
/// let fence = guard.fence(); // for whatever is written to
/// assert!(rebuild.try_acquire().await?.is_none());
/// assert!(guard.extend().await?); // from time to time, for as long as it is needed
/// assert!(guard.release().await?);
/// assert!(rebuild.try_acquire().await?.expect("it is free").fence() > fence);
/// # Ok::<(), punctual::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Lock {
    client: Client,
    name: String,
    lease: Duration,
}

/// A held lock.
///
/// If it is dropped, the lock stays held until its lease ends. Use [`LockGuard::release`] to free it at once.
#[derive(Debug)]
#[must_use = "release it, or it stays locked until its lease ends"]
pub struct LockGuard {
    lock: Lock,
    owner: u128,
    held: Held,
}

impl Client {
    /// Returns the lock of this name. Its limits are checked by the first call.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock { client: self.clone(), name: name.into(), lease: LOCK_LEASE_DEFAULT }
    }

    /// Returns up to `limit` held locks, by the end of their leases.
    ///
    /// `limit` is at most 1,000. Also returns whether there are more.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn locks(&self, limit: usize) -> Result<(Vec<Held>, bool)> {
        match ask(self, LockOp::List { limit }).await? {
            LockReply::Listed { locks, more } => Ok((locks, more)),
            _ => Err(unexpected()),
        }
    }
}

impl Lock {
    /// Sets the lease of the lock, 100 ms to 24 h (default: 30 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Acquires the lock if it is free; returns `None` if it is held.
    ///
    /// If the future is dropped, the lock can be held without a guard until its lease ends.
    ///
    /// # Errors
    /// `Invalid` if a limit is broken; otherwise any error of the store. After `UnknownOutcome`, the lock can be held
    /// without a guard until its lease ends.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        Ok(self.take(new_owner()).await?.ok())
    }

    /// Acquires the lock, waiting up to `wait`.
    ///
    /// Returns `None` if it is still held then.
    ///
    /// If the future is dropped, the lock can be held without a guard until its lease ends.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn acquire(&self, wait: Duration) -> Result<Option<LockGuard>> {
        let (end, owner) = (Instant::now().checked_add(wait), new_owner());
        let name = [[LOCK_NOTIFICATION, &self.name].concat()];
        loop {
            let held = match self.take(owner).await? {
                Ok(guard) => return Ok(Some(guard)),
                Err(held) => held,
            };
            let left = end.map_or(LOOK_AGAIN, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            // At least 1 ms, because the lease ends in the next millisecond.
            let at_most = held.left.max(Duration::from_millis(1)).min(left).min(LOOK_AGAIN);
            self.client.store().wait(&name, at_most).await?;
        }
    }

    /// Returns the current holding, or `None` if the lock is free.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn holder(&self) -> Result<Option<Held>> {
        match ask(&self.client, LockOp::Show { name: self.name.clone() }).await? {
            LockReply::Taken(held) => Ok(Some(held)),
            LockReply::Free => Ok(None),
            _ => Err(unexpected()),
        }
    }

    /// Frees the lock although another process holds it; returns whether it was held.
    ///
    /// For operators.
    ///
    /// The holder learns of it with its next extension.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn force_release(&self) -> Result<bool> {
        self.release_of(None).await
    }

    async fn take(&self, owner: u128) -> Result<std::result::Result<LockGuard, Held>> {
        let op = LockOp::Acquire { name: self.name.clone(), owner, lease: self.lease };
        match ask(&self.client, op).await? {
            LockReply::Yours(held) => Ok(Ok(LockGuard { lock: self.clone(), owner, held })),
            LockReply::Taken(held) => Ok(Err(held)),
            _ => Err(unexpected()),
        }
    }

    async fn release_of(&self, owner: Option<u128>) -> Result<bool> {
        match ask(&self.client, LockOp::Release { name: self.name.clone(), owner }).await? {
            LockReply::Released => Ok(true),
            LockReply::Free | LockReply::Taken(_) => Ok(false),
            _ => Err(unexpected()),
        }
    }
}

impl LockGuard {
    /// Returns the fence of this holding.
    ///
    /// It is above those of all earlier holdings of any lock of the store.
    pub const fn fence(&self) -> u64 {
        self.held.fence
    }

    /// Returns the holding as it was acquired.
    pub const fn held(&self) -> &Held {
        &self.held
    }

    /// Renews the lease.
    ///
    /// `false` means that another process acquired the lock after its lease had ended, or that it was freed. If nobody else acquired it, it
    /// is extended even after its end, as when the clock was set forward.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`]. The call can be repeated.
    pub async fn extend(&self) -> Result<bool> {
        let Lock { client, name, lease } = &self.lock;
        let op = LockOp::Extend { name: name.clone(), owner: self.owner, lease: *lease };
        match ask(client, op).await? {
            LockReply::Yours(_) => Ok(true),
            LockReply::Free | LockReply::Taken(_) => Ok(false),
            _ => Err(unexpected()),
        }
    }

    /// Frees the lock, and wakes a caller that waits for it.
    ///
    /// Returns whether it was held until now.
    ///
    /// If the future is dropped, the lock can stay held until its lease ends.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn release(self) -> Result<bool> {
        self.lock.release_of(Some(self.owner)).await
    }
}

fn new_owner() -> u128 {
    fastrand::u128(..)
}

async fn ask(client: &Client, op: LockOp) -> Result<LockReply> {
    match client.store().tool(&ToolOp::Lock(op)).await? {
        ToolReply::Lock(said) => Ok(said),
        _ => Err(unexpected()),
    }
}
