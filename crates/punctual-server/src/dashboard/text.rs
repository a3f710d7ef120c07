//! How times, durations and numbers are written. All times are those of the store's clock, in UTC.

use askama::{Template, filters::HtmlSafe};
use jiff::{civil::DateTime, tz::TimeZone};
pub(crate) use punctual::words::{relative, span};
use punctual::{Backoff, Timestamp, job::parse_duration, words};

/// Stands between groups of three digits.
pub(crate) const SEPARATOR: char = ',';

/// `1,204,331`.
pub(crate) fn count(n: u64) -> String {
    words::grouped(n, SEPARATOR)
}

/// `1 job`, `2 jobs`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    words::counted(n, noun, SEPARATOR)
}

/// Due jobs are counted up to a bound: `100,000+`.
pub(crate) fn due(n: u64) -> String {
    words::due(n, SEPARATOR)
}

/// `512 bytes`, `64.0 KiB`, `1.5 MiB`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => counted(bytes, "byte"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// At most `chars` characters, with `…` for what was cut.
pub(super) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars - 1).chain(['…']).collect(),
    }
}

/// Writes a backoff: `exponential 5s to 6h`.
pub(super) fn backoff(of: &Backoff) -> String {
    let pause = |text: &str| parse_duration(text).map_or_else(|_| text.to_owned(), span);
    let word = |text: &str| text.split("..").map(pause).collect::<Vec<_>>().join(" to ");
    of.to_string().split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Writes a time in a format of strftime, in UTC.
pub(super) fn clock(at: Timestamp, format: &str) -> String {
    clock_of(at, format, TimeZone::UTC)
}

fn clock_of(at: Timestamp, format: &str, zone: TimeZone) -> String {
    let ms = i64::try_from(at.as_ms()).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(instant) => instant.to_zoned(zone).strftime(format).to_string(),
        // The calendar ends one day before the last instant.
        Err(_) => "at the end of 9999".to_owned(),
    }
}

/// Writes a whole time: `2026-11-20 14:32:10 UTC`.
pub(crate) fn whole(at: Timestamp) -> String {
    clock(at, "%Y-%m-%d %H:%M:%S UTC")
}

/// Writes a whole time by the clocks of a time zone: `2026-11-20 15:32:10 CET` (default: UTC).
pub(super) fn zoned(at: Timestamp, zone: Option<&str>) -> String {
    let zone = zone.and_then(|name| TimeZone::get(name).ok()).unwrap_or(TimeZone::UTC);
    clock_of(at, "%Y-%m-%d %H:%M:%S %Z", zone)
}

/// Reads what a field for date and time sends, as UTC: `2026-11-20T14:32`.
pub(super) fn read_instant(text: &str) -> Option<Timestamp> {
    let instant = text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Timestamp::from_ms(u64::try_from(instant.as_millisecond()).ok()?).ok()
}

/// An instant as an element: relative text, with the whole time in its title.
#[derive(Debug, Clone, Template)]
#[template(path = "moment.html")]
pub(super) struct Moment {
    machine: String,
    whole: String,
    text: String,
}

impl HtmlSafe for Moment {}

impl Moment {
    /// Shows how far an instant is from now.
    pub(super) fn new(at: Timestamp, now: Timestamp) -> Self {
        Self { machine: clock(at, "%Y-%m-%dT%H:%M:%S%.3fZ"), whole: whole(at), text: relative(at, now) }
    }

    /// Shows the time of an instant.
    pub(super) fn absolute(at: Timestamp) -> Self {
        Self { text: clock(at, "%Y-%m-%d %H:%M:%S"), ..Self::new(at, at) }
    }

    /// Shows how long ago an instant was, as an age.
    pub(super) fn age(at: Timestamp, now: Timestamp) -> Self {
        Self { text: span(now.since(at)), ..Self::new(at, now) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_backoff_is_written_with_its_pauses_as_people_write_them() {
        assert_eq!(backoff(&Backoff::default()), "exponential 5s to 6h");
        let fixed = Backoff::fixed(Duration::from_secs(90)).jitter(true);
        assert_eq!(backoff(&fixed), "fixed 1m 30s to 6h with jitter");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([99_999, 100_000].map(due), ["99,999", "100,000+"]);
        assert_eq!([1, 1_536, 1 << 20].map(size), ["1 byte", "1.5 KiB", "1.0 MiB"]);
    }

    #[test]
    fn times_are_written_and_read_in_utc() {
        let at = Timestamp::saturating_from_ms(1_795_192_330_000);
        assert_eq!(whole(at), "2026-11-20 16:32:10 UTC");
        assert_eq!(read_instant("2026-11-20T16:32:10"), Some(at));
        assert_eq!(read_instant("2026-11-20T16:32").map(Timestamp::as_ms), Some(1_795_192_320_000));
        assert_eq!([read_instant("soon"), read_instant("1960-01-01T00:00")], [None, None]);
        assert_eq!(zoned(at, Some("Europe/Berlin")), "2026-11-20 17:32:10 CET");
        assert_eq!([zoned(at, None), zoned(at, Some("Nowhere"))], ["2026-11-20 16:32:10 UTC"; 2]);
        assert_eq!(whole(Timestamp::MAX), "at the end of 9999");
    }
}
