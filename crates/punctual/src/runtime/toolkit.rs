//! Tools that applications share between processes: locks, rate limiters and leaderboards.
//!
//! Each call is one atomic step of the store, by the store's clock.

mod leaderboard;
mod limiter;
mod lock;
pub(crate) mod stats;

pub use crate::runtime::toolkit::stats::{LastHour, Ran};
pub use leaderboard::Leaderboard;
pub use limiter::RateLimiter;
pub use lock::{Lock, LockGuard};

use crate::core::error::{Error, ErrorKind};

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered for another tool")
}
