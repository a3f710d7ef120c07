//! The answers of a doctor: checks of a store's version, durability, clock and notifications.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// One result of a store's self-check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The level.
    pub level: CheckLevel,
    /// What was checked, in a word.
    pub name: Cow<'static, str>,
    /// What was found.
    pub text: String,
    /// What to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// The level of a [`Check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckLevel {
    /// As it should be.
    Ok,
    /// Works, but with a risk.
    Warn,
    /// Must be repaired.
    Fail,
}

impl CheckLevel {
    /// Returns the name of the level.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}
