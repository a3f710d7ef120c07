//! The rules that every state keeps, each a property of the exploration.

use std::fmt;

/// A rule of the contract, as the exploration checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// S7.
    OneLease,
    /// S5.
    NeverEarly,
    /// S15.
    Limits,
    /// S11 and S12.
    EndedStays,
    /// S1, S2 and S12: a record is what the answers so far say.
    AnswersHold,
    /// S9 and S10.
    Attempts,
    /// Counts and audit.
    Counts,
    /// S8 and S10.
    Fenced,
    /// S3.
    Once,
    /// S4.
    UniqueKey,
    /// S9 and S14.
    LeaseTime,
    /// Liveness in one call.
    Starts,
    /// Liveness of a worker that sleeps as long as it is told.
    Wakes,
    /// S6.
    Order,
    /// Liveness of the whole: a drain from this state ends.
    Ends,
}

impl Rule {
    /// Returns the rule in words: the name of its property.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneLease => "a job has one lease at a time",
            Self::NeverEarly => "no job starts before it is due",
            Self::Limits => "no more jobs run than a limit allows",
            Self::EndedStays => "an ended job never runs again",
            Self::AnswersHold => "what was answered holds",
            Self::Attempts => "attempts are counted, and bounded",
            Self::Counts => "counts and audit agree with the jobs",
            Self::Fenced => "only the current lease settles or extends",
            Self::Once => "a repeated call has its effect once",
            Self::UniqueKey => "one job holds a unique key",
            Self::LeaseTime => "a lease ends by its settle, or after its time",
            Self::Starts => "a reserve starts what can start",
            Self::Wakes => "no worker is told to sleep too long",
            Self::Order => "jobs start in their order",
            Self::Ends => "everything ends when faults stop",
        }
    }
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broke {
    /// The rule.
    pub rule: Rule,
    /// What happened.
    pub how: String,
}

impl fmt::Display for Broke {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}: {}", self.rule.name(), self.how)
    }
}

/// What a check returns.
pub type Checked = Result<(), Broke>;

/// Returns an error unless a condition holds.
pub fn check(holds: bool, rule: Rule, how: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Broke { rule, how: how() }) }
}
