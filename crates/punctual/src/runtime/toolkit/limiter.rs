//! Rate limiters, through a client.

use std::time::Duration;

use super::unexpected;
use crate::{
    core::error::Result,
    runtime::client::Client,
    store::{Allowance, LimitOp, LimitRule, ToolOp, ToolReply},
};

/// A rate limiter: limits how often something can be done, separately for each key.
///
/// For example: attempts to log in, calls to an external service, replies of a user. Any number of processes share it
/// by its name.
///
/// By default it keeps a log of the calls that passed. At most `max` pass in any window of the period, however many
/// callers ask at once. A window is half open: a call that passed at t counts before t + period.
/// [`RateLimiter::evenly`] spreads calls instead, and keeps one instant per key (GCRA). Both need one round trip. A
/// key that was not used for a period takes no space.
///
/// Limits: names and keys have 1 to 255 bytes without NUL. A period is 1 ms to 30 days. A log holds up to 10,000
/// calls per period, with six bytes each; evenly, up to 1,000,000 calls. On Redis, all limiters of a store are in its
/// shard 0, and so on one server.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use punctual::{Client, store::{clock::Clock, memory::MemoryStore}, toolkit::Allowance};
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
    /// Returns the rate limiter of this name.
    ///
    /// At most `max` calls pass in any window of `period`, per key.
    ///
    /// Its limits are checked by the first call.
    pub fn rate_limiter(&self, name: impl Into<String>, max: u32, period: Duration) -> RateLimiter {
        let rule = LimitRule::Log { max, period, counts_refused: false };
        RateLimiter { client: self.clone(), name: name.into(), rule }
    }
}

impl RateLimiter {
    /// Also counts refused calls. A caller that keeps asking stays blocked.
    pub fn count_refused(mut self) -> Self {
        if let LimitRule::Log { counts_refused, .. } = &mut self.rule {
            *counts_refused = true;
        }
        self
    }

    /// Spreads calls evenly, with `burst` at once after a pause.
    ///
    /// One call passes every `period / max`.
    /// So up to `burst + max` can pass in some periods, and `max` per period on average. Refused calls do not count.
    pub fn evenly(mut self, burst: u32) -> Self {
        let (LimitRule::Log { max, period, .. } | LimitRule::Gcra { max, period, .. }) = self.rule;
        self.rule = LimitRule::Gcra { max, period, burst };
        self
    }

    /// Checks and counts a call that costs `cost`, at least 1: all of it or nothing.
    ///
    /// An allowed call was counted. A refused one returns when the same call would be allowed, to the millisecond, if
    /// no others call.
    ///
    /// After `UnknownOutcome`, the call may have been counted, and a repeated call is counted again. So never too
    /// many pass, but after such an error too few may.
    ///
    /// If the future is dropped, the limit may have been charged.
    ///
    /// # Errors
    /// `Invalid` if a limit is broken, or if `cost` is above what can pass at once; otherwise any error of the store.
    pub async fn check(&self, key: impl Into<String>, cost: u32) -> Result<Allowance> {
        let op = LimitOp { name: self.name.clone(), key: key.into(), cost, rule: self.rule };
        match self.client.store().tool(&ToolOp::Limit(op)).await? {
            ToolReply::Limit(said) => Ok(said),
            _ => Err(unexpected()),
        }
    }

    /// Checks and counts one call of `key`, for example a user or an address.
    ///
    /// Short for `check(key, 1)`.
    ///
    /// If the future is dropped, the limit may have been charged.
    ///
    /// # Errors
    /// As [`RateLimiter::check`].
    pub async fn is_allowed(&self, key: impl Into<String>) -> Result<bool> {
        Ok(self.check(key, 1).await?.is_allowed())
    }
}
