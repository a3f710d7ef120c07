//! Tools: rate limiters, locks and leaderboards, which applications share between processes.
//!
//! Each has its own state in the store, and each step on one is atomic.

mod board;
mod limit;
mod lock;

pub use board::{BoardAct, BoardOp, BoardReply, BoardWindow, Bucket, Standing};
pub(crate) use limit::Arithmetic;
pub use limit::{Allowance, LimitOp, LimitRule};
pub use lock::{Held, LockOp, LockReply};

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::core::error::{Error, Result};

/// How long expired entries of tools are kept, without effect. If the clock goes back, they are valid again.
pub(crate) const TOOL_MEMORY: Duration = Duration::from_hours(24);
/// Expired rows that one step removes. It is more than a step adds, so that they get fewer.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) const TOOL_FORGET_MAX: usize = 8;

/// A step on a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOp {
    /// On a rate limiter.
    Limit(LimitOp),
    /// On a lock.
    Lock(LockOp),
    /// On a leaderboard.
    Board(BoardOp),
}

/// The answer to a [`ToolOp`], of the same tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolReply {
    /// Of a rate limiter.
    Limit(Allowance),
    /// Of a lock.
    Lock(LockReply),
    /// Of a leaderboard.
    Board(BoardReply),
}

impl ToolOp {
    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Limit(op) => op.check(),
            Self::Lock(op) => op.check(),
            Self::Board(op) => op.check(),
        }
    }
}

/// Checks the bounds of a duration.
pub(crate) fn check_duration(what: &str, d: Duration, min: Duration, max: Duration) -> Result<()> {
    if (min..=max).contains(&d) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} of {d:?} is not within {min:?} to {max:?}")))
}

/// Checks the bounds of a number.
pub(crate) fn check_number(what: &str, n: u64, max: u64) -> Result<()> {
    if (1..=max).contains(&n) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} of {n} is not within 1 to {max}")))
}
