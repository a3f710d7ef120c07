//! Broken twins: stores with one deliberate bug each. The exploration of each must fail, by the rule named for it.

use crate::rule::Rule;

/// A deliberate bug of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A settle is accepted whatever its fence is.
    SettleWithoutFence,
    /// A cancel ends a running job at once.
    CancelEndsRun,
    /// A job starts 1 ms before it is due.
    StartsEarly,
    /// The lease of a crashed worker never ends.
    CrashKeepsLease,
    /// A concurrency key is counted per worker.
    KeyPerWorker,
    /// A repeated reserve reserves again.
    RepeatReservesAgain,
    /// A lease is reclaimed 1 ms before its end.
    ReclaimsEarly,
    /// A job is acked as it is reserved.
    AcksAtReserve,
    /// A retry counts no attempt.
    RetryUncounted,
    /// A late retry by an old lease makes an ended job wait again.
    LateRetryRevives,
    /// A worker that got nothing may sleep for ever.
    SleepsForEver,
    /// A unique key is not seen while its holder runs.
    RunningHolderUnseen,
    /// A reserve that finds nothing returns a job that runs.
    SharesRunningJob,
    /// A reserve passes over jobs that were tried before.
    PassesOverRetries,
    /// Jobs start in the reverse order.
    ReverseOrder,
    /// Jobs that were tried before are not counted as such.
    CountsNoRetries,
}

impl Broken {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::SettleWithoutFence,
        Self::CancelEndsRun,
        Self::StartsEarly,
        Self::CrashKeepsLease,
        Self::KeyPerWorker,
        Self::RepeatReservesAgain,
        Self::ReclaimsEarly,
        Self::AcksAtReserve,
        Self::RetryUncounted,
        Self::LateRetryRevives,
        Self::SleepsForEver,
        Self::RunningHolderUnseen,
        Self::SharesRunningJob,
        Self::PassesOverRetries,
        Self::ReverseOrder,
        Self::CountsNoRetries,
    ];

    /// Returns its name, the scope that shows it, and the rule that it breaks.
    const fn facts(self) -> (&'static str, &'static str, Rule) {
        match self {
            Self::SettleWithoutFence => ("settle-without-fence", "pair", Rule::Fenced),
            Self::CancelEndsRun => ("cancel-ends-run", "cancel", Rule::AnswersHold),
            Self::StartsEarly => ("starts-early", "pair", Rule::NeverEarly),
            Self::CrashKeepsLease => ("crash-keeps-lease", "pair", Rule::Ends),
            Self::KeyPerWorker => ("key-per-worker", "key", Rule::Limits),
            Self::RepeatReservesAgain => ("repeat-reserves-again", "batch", Rule::Once),
            Self::ReclaimsEarly => ("reclaims-early", "pair", Rule::LeaseTime),
            Self::AcksAtReserve => ("acks-at-reserve", "pair", Rule::AnswersHold),
            Self::RetryUncounted => ("retry-uncounted", "pair", Rule::Attempts),
            Self::LateRetryRevives => ("late-retry-revives", "pair", Rule::EndedStays),
            Self::SleepsForEver => ("sleeps-for-ever", "pair", Rule::Wakes),
            Self::RunningHolderUnseen => ("running-holder-unseen", "unique", Rule::UniqueKey),
            Self::SharesRunningJob => ("shares-running-job", "pair", Rule::OneLease),
            Self::PassesOverRetries => ("passes-over-retries", "pair", Rule::Starts),
            Self::ReverseOrder => ("reverse-order", "batch", Rule::Order),
            Self::CountsNoRetries => ("counts-no-retries", "pair", Rule::Counts),
        }
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Returns the name of the scope that shows it.
    pub const fn scope(self) -> &'static str {
        self.facts().1
    }

    /// Returns the rule that it breaks.
    pub const fn rule(self) -> Rule {
        self.facts().2
    }

    /// Returns the twin of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|broken| broken.name() == name)
    }
}
