//! Backoff policies: how long to wait before a retry. They are stored, and evaluated by the runtime, never by a
//! store.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::core::{
    duration::parse_duration,
    error::{Error, Result},
    limits::BACKOFF_MAX_MS,
    time::ceil_ms,
};

/// A retry policy: how the pause grows, its upper bound, and jitter.
///
/// ```
/// use punctual::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::exponential(Duration::from_secs(5)).max(Duration::from_secs(60)).jitter(false);
/// let pauses: Vec<u64> = (1..=5).map(|attempt| backoff.delay(attempt, 0.0).as_secs()).collect();
/// assert_eq!(pauses, [5, 10, 20, 40, 60]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Backoff {
    /// How the pause grows.
    #[serde(rename = "type")]
    growth: Growth,
    /// The first pause, in milliseconds.
    base_ms: u64,
    /// The longest pause, in milliseconds.
    max_ms: u64,
    /// Whether each pause is random, between half and all of its length.
    jitter: bool,
}

/// A policy as it is written, with optional fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "type")]
    growth: Growth,
    base_ms: u64,
    max_ms: Option<u64>,
    jitter: Option<bool>,
}

impl From<Written> for Backoff {
    fn from(written: Written) -> Self {
        let Written { growth, base_ms, max_ms, jitter } = written;
        let usual = Self::new(growth, Duration::ZERO);
        Self {
            growth,
            base_ms,
            max_ms: max_ms.unwrap_or(usual.max_ms),
            jitter: jitter.unwrap_or(usual.jitter),
        }
    }
}

/// How the pause of a [`Backoff`] grows with the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// Always the base.
    Fixed,
    /// Base × attempt.
    Linear,
    /// Base × 2^(attempt − 1).
    Exponential,
}

/// The longest pause, in milliseconds (default).
const MAX_DEFAULT_MS: u64 = 6 * 3600 * 1000;

impl Default for Backoff {
    /// Returns the default policy: exponential, 5 s to 6 h, with jitter.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(5))
    }
}

impl Backoff {
    /// Makes a policy of `growth` from `base`, with pauses of at most 6 h.
    ///
    /// Linear and exponential policies have jitter; fixed ones have none.
    pub fn new(growth: Growth, base: Duration) -> Self {
        let jitter = growth != Growth::Fixed;
        Self { growth, base_ms: ceil_ms(base), max_ms: MAX_DEFAULT_MS, jitter }
    }

    /// Makes a policy with the same pause after each failure, without jitter.
    ///
    /// See [`Backoff::jitter`].
    pub fn fixed(base: Duration) -> Self {
        Self::new(Growth::Fixed, base)
    }

    /// Makes a policy whose pause grows by `base` with each attempt, with jitter.
    pub fn linear(base: Duration) -> Self {
        Self::new(Growth::Linear, base)
    }

    /// Makes a policy whose pause doubles with each attempt, with jitter.
    pub fn exponential(base: Duration) -> Self {
        Self::new(Growth::Exponential, base)
    }

    /// Sets the longest pause (default: 6 h).
    #[must_use]
    pub fn max(mut self, max: Duration) -> Self {
        self.max_ms = ceil_ms(max);
        self
    }

    /// Switches jitter on or off.
    ///
    /// With jitter, each pause is random, between half and all of its length. So jobs that failed together are not
    /// retried together.
    #[must_use]
    pub const fn jitter(mut self, jitter: bool) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns the pause after failed attempt number `attempt` (from 1).
    ///
    /// `random` is in `[0, 1)`. With jitter, the pause is between half and all of its length. Without jitter,
    /// `random` is ignored.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let attempt = attempt.max(1);
        let grown = match self.growth {
            Growth::Fixed => self.base_ms,
            Growth::Linear => self.base_ms.saturating_mul(u64::from(attempt)),
            Growth::Exponential => self.base_ms.saturating_mul(1 << (attempt - 1).min(40)),
        };
        let pause = grown.min(self.max_ms);
        let drawn =
            if self.jitter { pause - (pause as f64 * 0.5 * random.clamp(0.0, 1.0)) as u64 } else { pause };
        Duration::from_millis(drawn)
    }

    /// Checks the pauses of the policy.
    ///
    /// # Errors
    /// `Invalid` if a pause exceeds [`BACKOFF_MAX_MS`], or if the longest pause is below the base.
    pub fn check(&self) -> Result<()> {
        let over = |field: &str, ms: u64| {
            Err(Error::invalid(format!(
                "backoff {field} {ms} ms is over the limit of {BACKOFF_MAX_MS} ms (30 days)"
            )))
        };
        if self.base_ms > BACKOFF_MAX_MS {
            over("base_ms", self.base_ms)
        } else if self.max_ms > BACKOFF_MAX_MS {
            over("max_ms", self.max_ms)
        } else if self.max_ms < self.base_ms {
            Err(Error::invalid(format!("backoff max_ms {} is below base_ms {}", self.max_ms, self.base_ms)))
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let growth = match self.growth {
            Growth::Fixed => "fixed",
            Growth::Linear => "linear",
            Growth::Exponential => "exponential",
        };
        write!(f, "{growth} {}ms..{}ms", self.base_ms, self.max_ms)?;
        match (self.jitter, self.growth) {
            (true, Growth::Fixed) => f.write_str(" with jitter"),
            (false, Growth::Linear | Growth::Exponential) => f.write_str(" without jitter"),
            _ => Ok(()),
        }
    }
}

/// Parses `exp 5s..6h`, `linear 10s..1h` or `fixed 30s`: growth, base, and longest pause (default: 6 h).
///
/// `exp` and `linear` have jitter, `fixed` has none. Append ` with jitter` or ` without jitter` to change that.
impl FromStr for Backoff {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("{:?} is not a backoff", s.chars().take(64).collect::<String>()))
                .with_hint("write `exp 5s..6h`, `linear 10s..1h` or `fixed 30s`, and ` without jitter` for exact pauses")
        };
        let (text, jitter) = match s.trim() {
            text if text.ends_with(" without jitter") => {
                (text.trim_end_matches(" without jitter"), Some(false))
            }
            text if text.ends_with(" with jitter") => (text.trim_end_matches(" with jitter"), Some(true)),
            text => (text, None),
        };
        let (growth, range) = text.trim().split_once(' ').ok_or_else(wrong)?;
        let growth = match growth {
            "fixed" => Growth::Fixed,
            "linear" | "lin" => Growth::Linear,
            "exponential" | "exp" => Growth::Exponential,
            _ => return Err(wrong()),
        };
        let (base, max) = range.split_once("..").map_or((range, None), |(b, m)| (b, Some(m)));
        let mut backoff = Self::new(growth, parse_duration(base).map_err(|_| wrong())?);
        match max {
            Some(max) => backoff.max_ms = ceil_ms(parse_duration(max).map_err(|_| wrong())?),
            None => backoff.max_ms = backoff.max_ms.max(backoff.base_ms),
        }
        backoff.jitter = jitter.unwrap_or(backoff.jitter);
        backoff.check()?;
        Ok(backoff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_caps_and_never_overflows() {
        let exp = Backoff::default().jitter(false);
        assert_eq!(exp.delay(1, 0.9), Duration::from_secs(5));
        assert_eq!(exp.delay(3, 0.9), Duration::from_secs(20));
        assert_eq!(exp.delay(u32::MAX, 0.9), Duration::from_hours(6));
        assert_eq!(
            Backoff::linear(Duration::from_secs(2)).jitter(false).delay(4, 0.0),
            Duration::from_secs(8)
        );
        assert!(!Backoff::fixed(Duration::MAX).max(Duration::MAX).delay(u32::MAX, 1.0).is_zero());
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        for random in [0.0, 0.3, 0.999_999] {
            let d = Backoff::fixed(Duration::from_secs(10)).jitter(true).delay(1, random);
            assert!((Duration::from_secs(5)..=Duration::from_secs(10)).contains(&d), "{d:?}");
        }
    }

    #[test]
    fn what_is_fixed_is_exact_and_what_grows_is_spread_unless_said_otherwise() {
        let first = |text: &str| text.parse::<Backoff>().unwrap().delay(1, 0.999_999).as_secs();
        assert_eq!([first("fixed 10s"), first("fixed 10s with jitter")], [10, 5]);
        assert_eq!([first("exp 10s..1h"), first("exp 10s..1h without jitter")], [5, 10]);
        for text in ["fixed 10s", "fixed 10s with jitter", "linear 1s..9s", "exp 5s..6h without jitter"] {
            let backoff: Backoff = text.parse().unwrap();
            assert_eq!(backoff.to_string().parse::<Backoff>().unwrap(), backoff, "{backoff}");
        }
    }

    #[test]
    fn absurd_policies_are_refused() {
        assert!(Backoff::fixed(Duration::MAX).check().is_err());
        assert!(Backoff::fixed(Duration::from_secs(9)).max(Duration::from_secs(1)).check().is_err());
        assert!("exp 5s..1s".parse::<Backoff>().is_err());
        assert!("exp 99999999999999999999s".parse::<Backoff>().is_err());
        assert!("often 5s".parse::<Backoff>().is_err());
        assert_eq!("exp 5s..6h".parse::<Backoff>().unwrap(), Backoff::default());
    }
}
