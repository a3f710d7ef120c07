//! Instants and how a caller names one. No clock is read here.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::core::{
    error::{Error, Result},
    limits::{DELAY_MAX_MS, INSTANT_MAX_MS},
};

/// An instant: milliseconds since 1970-01-01T00:00:00Z, from 0 to the end of the year 9999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last instant there is.
    pub const MAX: Self = Self(INSTANT_MAX_MS);

    /// Makes an instant of Unix milliseconds.
    ///
    /// # Errors
    /// `Invalid` past the year 9999.
    pub fn from_ms(ms: u64) -> Result<Self> {
        if ms <= INSTANT_MAX_MS {
            Ok(Self(ms))
        } else {
            Err(Error::invalid(format!("instant {ms} ms is past the year 9999 (at most {INSTANT_MAX_MS})")))
        }
    }

    /// Makes an instant of Unix milliseconds; what is past the year 9999 becomes its end.
    pub const fn saturating_from_ms(ms: u64) -> Self {
        if ms <= INSTANT_MAX_MS { Self(ms) } else { Self::MAX }
    }

    /// Unix milliseconds.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// The instant `by` later, at most [`Timestamp::MAX`]; parts of a millisecond count as a whole one, so that a delay is
    /// never shortened.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self::saturating_from_ms(self.0.saturating_add(ceil_ms(by)))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Whole milliseconds of a duration, rounded up.
pub(crate) fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

impl TryFrom<SystemTime> for Timestamp {
    type Error = Error;

    /// Instants before 1970 become 1970: they are due now either way.
    fn try_from(t: SystemTime) -> Result<Self> {
        Self::from_ms(ceil_ms(t.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(t: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_millis(t.0)
    }
}

/// An instant as a caller names it; the store resolves it once, by its own clock (S14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Now.
    #[default]
    Now,
    /// This much after now.
    In(Duration),
    /// At this instant; earlier than now means now.
    At(Timestamp),
}

impl When {
    /// The instant meant, when the store's clock shows `now`. Earlier than now means now.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::In(d) => now.after(d),
            Self::At(t) => t.max(now),
        }
    }

    /// Refuses a delay longer than [`DELAY_MAX_MS`].
    ///
    /// # Errors
    /// `Invalid`, naming `field`.
    pub fn check(self, field: &str) -> Result<()> {
        match self {
            Self::In(d) if ceil_ms(d) > DELAY_MAX_MS => Err(Error::invalid(format!(
                "{field}: a delay of {} s is over the limit of {DELAY_MAX_MS} ms",
                d.as_secs()
            ))),
            _ => Ok(()),
        }
    }
}

impl From<Duration> for When {
    fn from(d: Duration) -> Self {
        Self::In(d)
    }
}

impl From<Timestamp> for When {
    fn from(t: Timestamp) -> Self {
        Self::At(t)
    }
}

impl From<SystemTime> for When {
    /// Instants past the year 9999 become its end; those before 1970 are due now either way.
    fn from(t: SystemTime) -> Self {
        Self::At(Timestamp::try_from(t).unwrap_or(Timestamp::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_shortened() {
        let now = Timestamp::saturating_from_ms(1_000);
        assert_eq!(now.after(Duration::from_micros(1)).as_ms(), 1_001);
        assert_eq!(When::In(Duration::from_micros(1_500)).resolve(now).as_ms(), 1_002);
    }

    #[test]
    fn the_past_is_now_and_the_far_future_has_an_end() {
        let now = Timestamp::saturating_from_ms(5_000);
        assert_eq!(When::At(Timestamp::saturating_from_ms(1)).resolve(now), now);
        assert_eq!(now.after(Duration::MAX), Timestamp::MAX);
        assert!(Timestamp::from_ms(INSTANT_MAX_MS + 1).is_err());
        assert!(When::In(Duration::MAX).check("delay").is_err());
    }
}
