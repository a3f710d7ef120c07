//! Locks, through a client.

use std::time::Duration;

use tokio::time::Instant;

use super::unexpected;
use crate::{
    core::{error::Result, limits::LOCK_LEASE_DEFAULT},
    runtime::client::Client,
    store::{Held, LOCK_BELL, LockOp, LockReply, ToolOp, ToolReply},
};

/// A wait asks again after this long, whatever it heard.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// A lock that one of any number of processes holds at a time, for a lease, with a fence.
///
/// Nobody can be kept from working on behind the end of its lease, since it may have slept through it: so hand the fence to
/// whatever is written to under the lock, and let that refuse a fence below one it has seen. Fences rise over all holdings, also
/// over those that ended by themselves. Behind a power cut they rise as far as the store's clock does.
///
/// Who waits for it is woken by its release, and looks by itself at the end of the lease; nobody polls. Who gets it then is chance:
/// there is no line. Leases last 100 ms to 24 h, 30 s unless chosen otherwise; names have 1 to 249 bytes without NUL. On Redis all locks of a
/// store are in its shard 0, and as safe as its durability: with `fast`, one that takes over may give a lock that is held to somebody
/// else, under a higher fence.
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

/// The right to what a lock guards, until its lease ends: dropped, it is left to that. Only [`LockGuard::release`] frees it at once.
#[derive(Debug)]
#[must_use = "release it, or it stays locked until its lease ends"]
pub struct LockGuard {
    lock: Lock,
    owner: u128,
    held: Held,
}

impl Client {
    /// A lock by its name. Limits are checked with the first call.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock { client: self.clone(), name: name.into(), lease: LOCK_LEASE_DEFAULT }
    }

    /// The locks that are held, at most 1,000; first those whose leases end first. Answers, too, whether there are more.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn locks(&self, limit: usize) -> Result<(Vec<Held>, bool)> {
        match ask(self, LockOp::List { limit }).await? {
            LockReply::Listed { locks, more } => Ok((locks, more)),
            _ => Err(unexpected()),
        }
    }
}

impl Lock {
    /// How long it is held unless extended: 100 ms to 24 h.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Takes the lock if it is free.
    ///
    /// Dropped, it may leave the lock held by nobody until the lease ends.
    ///
    /// # Errors
    /// `Invalid` for what breaks a limit; what the store says. After `UnknownOutcome` it may be held, by nobody, until the lease
    /// ends.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        Ok(self.take(new_owner()).await?.ok())
    }

    /// Takes the lock, and waits for it that long; `None`: somebody else holds it still.
    ///
    /// Dropped, it may leave the lock held by nobody until the lease ends, and not longer.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn acquire(&self, wait: Duration) -> Result<Option<LockGuard>> {
        let (end, owner) = (Instant::now().checked_add(wait), new_owner());
        let bell = [[LOCK_BELL, &self.name].concat()];
        loop {
            let held = match self.take(owner).await? {
                Ok(guard) => return Ok(Some(guard)),
                Err(held) => held,
            };
            let left = end.map_or(LOOK_AGAIN, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            // Not of zero: the lease ends in the next millisecond.
            let at_most = held.left.max(Duration::from_millis(1)).min(left).min(LOOK_AGAIN);
            self.client.store().wait(&bell, at_most).await?;
        }
    }

    /// Who holds it, if somebody does.
    ///
    /// Dropped, it has changed nothing.
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

    /// Frees it, whoever holds it: for operators. Answers whether somebody did; who works on under it finds out with its next
    /// extension.
    ///
    /// Dropped, it may have been done or not; it may be made again.
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
    /// The number of this holding: above those of all earlier holdings of any lock of the store.
    pub const fn fence(&self) -> u64 {
        self.held.fence
    }

    /// How it was held when it was acquired.
    pub const fn held(&self) -> &Held {
        &self.held
    }

    /// Begins the lease anew; `false`: it has ended, or an operator ended it, and somebody else may have the lock.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`]; may be made again.
    pub async fn extend(&self) -> Result<bool> {
        let Lock { client, name, lease } = &self.lock;
        let op = LockOp::Extend { name: name.clone(), owner: self.owner, lease: *lease };
        match ask(client, op).await? {
            LockReply::Yours(_) => Ok(true),
            LockReply::Free | LockReply::Taken(_) => Ok(false),
            _ => Err(unexpected()),
        }
    }

    /// Frees the lock, and wakes one that waits for it. Answers whether it was held until now.
    ///
    /// Dropped, the lock may stay held until its lease ends.
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
