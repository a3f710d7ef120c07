//! Instants, and the ways in which a caller names one. No clock is read here.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::core::{
    error::{Error, Result},
    limits::{DELAY_MAX_MS, INSTANT_MAX_MS},
};

/// An instant in Unix milliseconds, from 0 to the end of the year 9999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last instant: the end of the year 9999.
    pub const MAX: Self = Self(INSTANT_MAX_MS);

    /// Makes an instant from Unix milliseconds.
    ///
    /// # Errors
    /// `Invalid` after the year 9999.
    pub fn from_ms(ms: u64) -> Result<Self> {
        if ms <= INSTANT_MAX_MS {
            Ok(Self(ms))
        } else {
            Err(Error::invalid(format!("instant {ms} ms is past the year 9999 (at most {INSTANT_MAX_MS})")))
        }
    }

    /// Makes an instant from Unix milliseconds, cut at the end of the year 9999.
    pub const fn saturating_from_ms(ms: u64) -> Self {
        if ms <= INSTANT_MAX_MS { Self(ms) } else { Self::MAX }
    }

    /// Returns the instant in Unix milliseconds.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// Returns the instant `by` later, at most [`Timestamp::MAX`].
    ///
    /// Parts of a millisecond are rounded up, so that a delay is never shortened.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self::saturating_from_ms(self.0.saturating_add(ceil_ms(by)))
    }

    /// Returns the time from `earlier` to this instant; zero if this is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Returns a duration in whole milliseconds, rounded up.
pub(crate) fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Writes it as Unix milliseconds, a number.
impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

/// Reads Unix milliseconds, a number up to the end of the year 9999.
impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::from_ms(u64::deserialize(d)?).map_err(D::Error::custom)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

impl TryFrom<SystemTime> for Timestamp {
    type Error = Error;

    /// Converts the time. Instants before 1970 become 1970, because both are due now.
    fn try_from(t: SystemTime) -> Result<Self> {
        Self::from_ms(ceil_ms(t.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(t: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_millis(t.0)
    }
}

/// An instant as a caller names it.
///
/// The store resolves it once, by its own clock (S14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// The store's current time.
    #[default]
    Now,
    /// This long after now.
    In(Duration),
    /// At this instant. A past one means now.
    At(Timestamp),
}

impl When {
    /// Returns the instant, when the store's clock shows `now`.
    ///
    /// A past one becomes `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::In(d) => now.after(d),
            Self::At(t) => t.max(now),
        }
    }

    /// Checks that a delay is at most [`DELAY_MAX_MS`].
    ///
    /// # Errors
    /// `Invalid`, with `field`.
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
    /// Converts the time. Instants after the year 9999 become its end; those before 1970 are due now.
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
