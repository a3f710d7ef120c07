//! The defaults of jobs and queues. No store keeps them: each reader uses the defaults of its own version.

use super::Keep;
use crate::core::limits::MAX_ATTEMPTS_DEFAULT;

/// The defaults of a version of punctual, as far as stores use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it from outside"))]
pub struct Defaults {
    /// How long done and cancelled jobs are kept.
    pub short: Keep,
    /// How long dead jobs are kept.
    pub long: Keep,
    /// How often a job can run.
    pub max_attempts: u32,
}

/// The defaults of this version.
const OWN: Defaults = Defaults { short: Keep::SHORT, long: Keep::LONG, max_attempts: MAX_ATTEMPTS_DEFAULT };

// Redis scripts read a queue's flag "keeps nothing" before its retention.
const _: () = assert!(!OWN.short.keeps_nothing() && !OWN.long.keeps_nothing());

/// Returns the defaults in force.
#[cfg(not(feature = "testing"))]
pub(crate) const fn defaults() -> Defaults {
    OWN
}

#[cfg(feature = "testing")]
static ASSUMED: std::sync::RwLock<Defaults> = std::sync::RwLock::new(OWN);

/// Returns the defaults in force.
#[cfg(feature = "testing")]
pub(crate) fn defaults() -> Defaults {
    *ASSUMED.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes this process use other defaults. Redis scripts keep those with which they were first used.
#[cfg(feature = "testing")]
pub(crate) fn assume(defaults: Defaults) {
    *ASSUMED.write().unwrap_or_else(std::sync::PoisonError::into_inner) = defaults;
}
