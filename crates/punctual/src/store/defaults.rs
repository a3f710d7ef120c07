//! What applies to jobs and queues where nobody chose. No store keeps it: each reader uses the defaults of its own version.

use super::Keep;
use crate::core::limits::MAX_ATTEMPTS_DEFAULT;

/// The defaults of a version of punctual, as far as stores reckon with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it from outside"))]
pub struct Defaults {
    /// How long done and cancelled jobs are kept.
    pub short: Keep,
    /// How long dead jobs are kept.
    pub long: Keep,
    /// How often a job is tried.
    pub max_attempts: u32,
}

/// Those of this version.
const OWN: Defaults = Defaults { short: Keep::SHORT, long: Keep::LONG, max_attempts: MAX_ATTEMPTS_DEFAULT };

// Scripts on Redis read the flags of a queue, which say that nothing is kept, before they read how long.
const _: () = assert!(!OWN.short.keeps_nothing() && !OWN.long.keeps_nothing());

/// The defaults that apply now.
#[cfg(not(feature = "testing"))]
pub(crate) const fn defaults() -> Defaults {
    OWN
}

#[cfg(feature = "testing")]
static ASSUMED: std::sync::RwLock<Defaults> = std::sync::RwLock::new(OWN);

/// The defaults that apply now.
#[cfg(feature = "testing")]
pub(crate) fn defaults() -> Defaults {
    *ASSUMED.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Lets the whole process go on as a version of other defaults. Scripts of Redis keep those that they were first used with.
#[cfg(feature = "testing")]
pub(crate) fn assume(defaults: Defaults) {
    *ASSUMED.write().unwrap_or_else(std::sync::PoisonError::into_inner) = defaults;
}
