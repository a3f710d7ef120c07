//! The identity of a store: a number that is made once. It is part of every id that leaves the store.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::core::id::JobId;

/// The identity of a store. As text it has 16 hexadecimal digits.
///
/// It is made once and stored. All handles of a store have the same one, whatever the number of its shards. A copy of
/// a store, such as a restored backup, has it, too.
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

/// What a doctor says about a store that has none.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) const IDENTITY_NONE: &str = "none yet: it is made when it is first needed";

impl Identity {
    /// Makes an identity from a number that the caller drew.
    pub(crate) const fn of(number: u64) -> Self {
        Self(number)
    }

    /// Returns the id of a job for other systems: store, `_`, job.
    ///
    /// It is the same for each attempt, and no other store has it.
    pub fn message_id(self, job: JobId) -> String {
        format!("{self}_{job}")
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Identity {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| text.len() == 16);
        number.map(Self).ok_or_else(|| D::Error::custom("the identity of a store has 16 hexadecimal digits"))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
