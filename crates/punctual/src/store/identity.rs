//! Which store it is: a number that is made once. It belongs to every id that leaves the store.

use std::fmt;

use crate::core::id::JobId;

/// The identity of a store; 16 hexadecimal digits as text.
///
/// It is made once and kept in the store. All handles of a store have the same one, whatever the number of its shards. A copy of a
/// store, such as a restored backup, has it, too.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let client = punctual::Client::connect("memory:").await?;
/// let (store, job) = (client.identity().await?, client.make_id());
/// assert_eq!(store.message_id(job), format!("{store}_{job}"));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(u64);

/// What a doctor says of a store that has none.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) const IDENTITY_NONE: &str = "none yet: it is made when it is first needed";

impl Identity {
    /// Of this number, which its caller draws.
    pub(crate) const fn of(number: u64) -> Self {
        Self(number)
    }

    /// The id of a job for other systems: the store, `_`, the job. It is the same for each attempt, and no other store has it.
    pub fn message_id(self, job: JobId) -> String {
        format!("{self}_{job}")
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
