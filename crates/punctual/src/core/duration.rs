//! Parses durations as people write them, for backoff policies, filters and the command line.

use std::time::Duration;

use crate::core::error::{Error, Result};

/// Units, longest first.
pub const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses a duration: `500ms`, `90s`, `10m`, `1h30m`, `2d`.
///
/// The text has whole numbers with units, the longest unit first.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(punctual::job::parse_duration("1h30m")?, Duration::from_secs(5_400));
/// assert!(punctual::job::parse_duration("90").is_err());
/// # Ok::<(), punctual::Error>(())
/// ```
///
/// # Errors
/// `Invalid` for any other text, and for 2^64 ms or more.
pub fn parse_duration(text: &str) -> Result<Duration> {
    milliseconds(text.trim()).map(Duration::from_millis).ok_or_else(|| {
        Error::invalid(format!("{:?} is not a duration", text.chars().take(64).collect::<String>()))
            .with_hint("write 500ms, 90s, 10m, 1h30m or 2d")
    })
}

fn milliseconds(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let (mut rest, mut units, mut total) = (text, &UNITS[..], 0_u64);
    while !rest.is_empty() {
        let (digits, unit_on) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, after) =
            unit_on.split_at(unit_on.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_on.len()));
        // Each unit at most once and in order: `30m1h` is probably a mistake.
        let place = units.iter().position(|(name, _)| *name == unit)?;
        total = total.checked_add(digits.parse::<u64>().ok()?.checked_mul(units[place].1)?)?;
        (rest, units) = (after, &units[place + 1..]);
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up() {
        for (text, ms) in [
            ("0s", 0),
            ("500ms", 500),
            ("90s", 90_000),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("1d2h3m4s5ms", 93_784_005),
            (" 5s ", 5_000),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", " ", "5", "s", "-5s", "1.5h", "30m1h", "1h1h", "5 s", "5x", "5s!", "99999999999999999999s"]
        {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        assert!(parse_duration(&format!("{}d", u64::MAX)).is_err());
    }
}
