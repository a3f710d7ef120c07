//! Tools: what applications need beside jobs and want to share between processes. Each is a state of its own in the store, and
//! each step on one is atomic.

mod board;
mod limit;
mod lock;

pub use board::{BoardAct, BoardOp, BoardReply, BoardWindow, Bucket, Standing};
pub(crate) use limit::Arithmetic;
pub use limit::{Allowance, LimitOp, LimitRule};
pub use lock::{Held, LockOp, LockReply};

use std::time::Duration;

use crate::core::error::{Error, Result};

/// How long what a tool keeps stays there after it came to its end, and counts for nothing: should the clock go back, it is as
/// it was.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) const TOOL_MEMORY: Duration = Duration::from_hours(24);
/// Rows past their end that one step removes by the way; more than it adds, so that they get fewer.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) const TOOL_FORGET_MAX: usize = 8;

/// One step on a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolOp {
    /// Of a rate limiter.
    Limit(LimitOp),
    /// Of a lock.
    Lock(LockOp),
    /// Of a leaderboard.
    Board(BoardOp),
}

/// The answer to a [`ToolOp`], of the same tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolReply {
    /// Of a rate limiter.
    Limit(Allowance),
    /// Of a lock.
    Lock(LockReply),
    /// Of a leaderboard.
    Board(BoardReply),
}

impl ToolOp {
    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Limit(op) => op.check(),
            Self::Lock(op) => op.check(),
            Self::Board(op) => op.check(),
        }
    }
}

/// Refuses a duration outside of these bounds.
pub(crate) fn check_duration(what: &str, d: Duration, min: Duration, max: Duration) -> Result<()> {
    if (min..=max).contains(&d) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} of {d:?} is not within {min:?} to {max:?}")))
}

/// Refuses a number outside of these bounds.
pub(crate) fn check_number(what: &str, n: u64, max: u64) -> Result<()> {
    if (1..=max).contains(&n) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} of {n} is not within 1 to {max}")))
}
