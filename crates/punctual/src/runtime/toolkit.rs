//! Tools that applications share between processes, beside their jobs: what any number of callers on any machine ask, one answers,
//! the store, in one atomic step, by its own clock.

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
