//! The step on a rate limiter.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::{check_duration, check_number};
use crate::core::{
    error::Result,
    job::check_name,
    json::ms,
    limits::{LOG_MAX, RATE_MAX, RATE_PERIOD_MAX, RATE_PERIOD_MIN},
    rate::{Log, Rate},
    time::ceil_ms,
};

/// Checks whether a call is allowed, and counts it if so.
///
/// If an answer is lost, the call may have been counted. A repeated call is counted again, so never too many pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitOp {
    /// The name of the limiter: 1 to 255 bytes without NUL.
    pub name: String,
    /// The key that is counted separately: 1 to 255 bytes without NUL.
    pub key: String,
    /// The cost of the call, from 1 to as many as can pass at once.
    pub cost: u32,
    /// The rule. Logs and rates are separate, even with the same names.
    pub rule: LimitRule,
}

/// The rule of a rate limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum LimitRule {
    /// At most `max` calls in any window of the period, with a log of their instants. A window is half open: a call
    /// that passed at t counts before t + period.
    Log {
        /// The number of calls, 1 to 10,000. After it was raised, calls beyond the old number are unknown.
        max: u32,
        /// The length of a window: whole milliseconds, 1 ms to 30 days.
        #[serde(rename = "period_ms", with = "ms")]
        period: Duration,
        /// Whether refused calls count, too. A caller that keeps asking then stays blocked.
        counts_refused: bool,
    },
    /// `max` calls per period, evenly, and `burst` at once after a pause, so up to `burst + max` in a period. One
    /// instant is kept (GCRA). If callers use several rules for one key, each call is checked by its own. An instant
    /// that is further ahead than a rule allows is cut to the furthest that it allows.
    Gcra {
        /// The number of calls, 1 to 1,000,000.
        max: u32,
        /// The period: whole milliseconds, 1 ms to 30 days.
        #[serde(rename = "period_ms", with = "ms")]
        period: Duration,
        /// The number of calls at once, 1 to 1,000,000.
        burst: u32,
    },
}

/// Whether a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
#[serde(rename_all = "snake_case")]
pub enum Allowance {
    /// It is allowed, and was counted.
    Allowed,
    /// It is refused. The same call will be allowed after this time, not earlier, if no others call.
    #[serde(rename = "retry_after_ms", with = "ms")]
    RetryAfter(Duration),
}

impl Allowance {
    /// Returns whether the call is allowed.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed)
    }

    /// Returns the refusal of a call at `now_ms` until `at_ms`.
    pub(crate) const fn until(at_ms: u64, now_ms: u64) -> Self {
        Self::RetryAfter(Duration::from_millis(at_ms.saturating_sub(now_ms)))
    }
}

/// The rule in the form of the arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arithmetic {
    Log(Log),
    Rate(Rate),
}

impl LimitRule {
    /// Returns the highest cost of one call.
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
    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
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
