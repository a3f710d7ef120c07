//! The pause of a queue or schedule.

use serde::{Deserialize, Serialize};

/// The pause of a queue or schedule: since when, by whom and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// When it started, in Unix milliseconds.
    pub since_ms: u64,
    /// The name of the person or program that paused it.
    pub by: String,
    /// The reason, for people.
    pub reason: String,
}
