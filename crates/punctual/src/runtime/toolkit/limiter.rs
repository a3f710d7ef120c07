//! Rate limiters, through a client.

use std::time::Duration;

use super::unexpected;
use crate::{
    core::error::Result,
    runtime::client::Client,
    store::{Allowance, LimitOp, LimitRule, ToolOp, ToolReply},
};

/// Limits how often something may be done, for each key apart: attempts to log in, calls of somebody else's service, replies of a
/// user. Any number of processes share it; its name is all that they must agree on.
///
/// It keeps a log of the calls that passed, and lets at most `max` pass in any window of the period, be it asked by 64 at once: a
/// window is half open, so that what passed at t counts before t + period. [`RateLimiter::evenly`] spreads them instead, and keeps
/// one instant for each key (GCRA), whatever the numbers. Either is one round trip; a key that was not called for a period takes
/// no room.
///
/// Limits: names and keys of 1 to 255 bytes without NUL; periods of 1 ms to 30 days; up to 10,000 in a log's period, six bytes
/// each, and 1,000,000 evenly. On Redis all limiters of a store are in its shard 0, hence on one server.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use punctual::{Allowance, Client, store::{clock::Clock, memory::MemoryStore}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let client = Client::new(Arc::new(MemoryStore::new(Clock::System)));
/// // Two replies a minute for each user.
/// let replies = client.rate_limiter("reply", 2, Duration::from_secs(60));
/// assert!(replies.is_allowed("user-17").await?);
/// assert!(replies.is_allowed("user-17").await?);
/// match replies.check("user-17", 1).await? {
///     Allowance::Allowed => unreachable!("two have passed"),
///     Allowance::RetryAfter(wait) => assert!(wait <= Duration::from_secs(60)),
/// }
/// assert!(replies.is_allowed("user-18").await?);
/// # Ok::<(), punctual::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RateLimiter {
    client: Client,
    name: String,
    rule: LimitRule,
}

impl Client {
    /// A rate limiter by its name, which lets at most `max` pass in any window of `period`, for each key. Limits are checked with
    /// the first call.
    pub fn rate_limiter(&self, name: impl Into<String>, max: u32, period: Duration) -> RateLimiter {
        let rule = LimitRule::Log { max, period, counts_refused: false };
        RateLimiter { client: self.clone(), name: name.into(), rule }
    }
}

impl RateLimiter {
    /// Counts what is refused, too: who goes on asking stays refused.
    pub fn count_refused(mut self) -> Self {
        if let LimitRule::Log { counts_refused, .. } = &mut self.rule {
            *counts_refused = true;
        }
        self
    }

    /// Lets `max` pass in a period evenly, one every `period / max`, and `burst` at once after a pause. So up to `burst + max` pass
    /// in some periods; in the long run it is `max`. What is refused does not count.
    pub fn evenly(mut self, burst: u32) -> Self {
        let (LimitRule::Log { max, period, .. } | LimitRule::Gcra { max, period, .. }) = self.rule;
        self.rule = LimitRule::Gcra { max, period, burst };
        self
    }

    /// Whether something may be done that counts as `cost`, at least 1: all of it or nothing. What is allowed was counted; what is
    /// refused says when the same call will be allowed, to the millisecond, if nobody else calls.
    ///
    /// After an error of the kind `UnknownOutcome` it may have been counted; asked again it is counted again. So never too many
    /// pass, and after such an error maybe too few.
    ///
    /// Dropped, it may have been charged.
    ///
    /// # Errors
    /// `Invalid` for what breaks a limit, also for a cost above what may pass at once; what the store says.
    pub async fn check(&self, key: impl Into<String>, cost: u32) -> Result<Allowance> {
        let op = LimitOp { name: self.name.clone(), key: key.into(), cost, rule: self.rule };
        match self.client.store().tool(&ToolOp::Limit(op)).await? {
            ToolReply::Limit(said) => Ok(said),
            _ => Err(unexpected()),
        }
    }

    /// Whether something may be done once more by `key`, a user or an address, say: `check(key, 1)`.
    ///
    /// Dropped, it may have been charged.
    ///
    /// # Errors
    /// As [`RateLimiter::check`].
    pub async fn is_allowed(&self, key: impl Into<String>) -> Result<bool> {
        Ok(self.check(key, 1).await?.is_allowed())
    }
}
