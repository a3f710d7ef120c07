//! What a rate limiter asks of a store.

use std::time::Duration;

use super::{check_duration, check_number};
use crate::core::{
    error::Result,
    job::check_name,
    limits::{LOG_MAX, RATE_MAX, RATE_PERIOD_MAX, RATE_PERIOD_MIN},
    rate::{Log, Rate},
    time::ceil_ms,
};

/// Asks whether something may be done, and counts it if it may. A call whose answer was lost may have been counted; made again it
/// is counted again, so that never too many pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOp {
    /// The limiter: 1 to 255 bytes without NUL.
    pub name: String,
    /// Whom or what it counts apart: 1 to 255 bytes without NUL.
    pub key: String,
    /// What it counts as, 1 to as many as may pass at once.
    pub cost: u32,
    /// What may pass. Calls by a log and by a rate don't know of each other, be the names the same.
    pub rule: LimitRule,
}

/// What a rate limiter lets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitRule {
    /// At most `max` in any window of the period: the instants of what passed are kept. A window is half open: what passed at t
    /// counts before t + period.
    Log {
        /// So many, 1 to 10,000. Of a number that was raised the calls beyond the old one are not known any more.
        max: u32,
        /// How long a window is: whole milliseconds, 1 ms to 30 days.
        period: Duration,
        /// Whether what is refused counts, too; then who goes on asking stays refused.
        counts_refused: bool,
    },
    /// Evenly `max` in the period, and `burst` at once after a pause (so up to `burst + max` in a period): one instant is kept
    /// (GCRA). Where callers use several rules for one key, each call is held to its own: an instant that is further ahead than a
    /// rule leaves any is brought back to the furthest that it does.
    Gcra {
        /// So many, 1 to 1,000,000.
        max: u32,
        /// In this time: whole milliseconds, 1 ms to 30 days.
        period: Duration,
        /// So many at once, 1 to 1,000,000.
        burst: u32,
    },
}

/// Whether something may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Allowance {
    /// It may, and was counted.
    Allowed,
    /// It may not. The same call will be allowed this much later, and not before, if nobody else calls.
    RetryAfter(Duration),
}

impl Allowance {
    /// Whether it may be done.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed)
    }

    /// What is refused at `now_ms` until `at_ms`.
    pub(crate) const fn until(at_ms: u64, now_ms: u64) -> Self {
        Self::RetryAfter(Duration::from_millis(at_ms.saturating_sub(now_ms)))
    }
}

/// A rule as arithmetic has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arithmetic {
    Log(Log),
    Rate(Rate),
}

impl LimitRule {
    /// The most that one call may cost.
    pub const fn cost_max(&self) -> u32 {
        match self {
            Self::Log { max, .. } => *max,
            Self::Gcra { burst, .. } => *burst,
        }
    }

    pub(crate) fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Log { max, period, counts_refused } => {
                Arithmetic::Log(Log { max, period_ms: ceil_ms(period), counts_refused })
            }
            Self::Gcra { max, period, burst } => {
                Arithmetic::Rate(Rate { max, period_ms: ceil_ms(period), burst })
            }
        }
    }
}

impl LimitOp {
    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        check_name("limiter", &self.name)?;
        check_name("key", &self.key)?;
        let period = match self.rule {
            LimitRule::Log { max, period, .. } => {
                check_number("a limit", max.into(), LOG_MAX.into())?;
                period
            }
            LimitRule::Gcra { max, period, burst } => {
                check_number("a rate", max.into(), RATE_MAX.into())?;
                check_number("a burst", burst.into(), RATE_MAX.into())?;
                period
            }
        };
        check_duration("a period", period, RATE_PERIOD_MIN, RATE_PERIOD_MAX)?;
        check_number("a cost", self.cost.into(), self.rule.cost_max().into())
    }
}
