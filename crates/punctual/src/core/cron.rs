//! When a schedule ticks: arithmetic on instants, without a clock. `croner` and `jiff` provide the calendar.

use std::{fmt, time::Duration};

use croner::parser::{CronParser, Year};
use jiff::{
    Timestamp as Moment, Zoned,
    tz::{AmbiguousOffset, TimeZone},
};
use serde::{Deserialize, Serialize};

use crate::core::{
    duration::parse_duration,
    error::{Error, Result},
    limits::{CRON_BYTES_MAX, EVERY_MAX, EVERY_MIN, MISSED_MAX},
    time::{Timestamp, ceil_ms},
};

/// What happens to missed ticks.
///
/// A tick is missed if the next one became due before it could start, because no worker ran or the queue was paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// Cancels them, reason `missed`. The schedule goes on with the next tick.
    Skip,
    /// Runs one tick for all of them.
    #[default]
    RunOnce,
    /// Runs the last `at_most` of them in order, one after another. Earlier ones are cancelled.
    RunAll {
        /// Most missed ticks that run, 1 to 1,000.
        at_most: u32,
    },
}

/// When a schedule ticks: by a cron expression in a time zone, or at an interval.
///
/// An expression has five fields: minute, hour, day of month, month, day of week. It can have six, with seconds in
/// front. `MON`, `JAN`, `L`, `W`, `#` and `@daily` are understood.
///
/// Changes of the clock follow the Open Cron Pattern Specification and Vixie cron. A tick is *fixed* if hour, minute
/// and second have one value each. Any other tick has a wildcard, step, list or range, for example `*/5 * * * *` or
/// `0 2,14 * * *`. Where the clock jumps forward, a fixed tick in the gap comes right after the gap; other ticks in
/// the gap are skipped. Where the clock goes back, a fixed tick comes only in the first of the two hours; other ticks
/// come in both.
///
/// ```
/// use punctual::{Timestamp, schedule::Cron};
///
/// let nightly = Cron::new("30 2 * * *")?.in_tz("America/New_York")?;
/// // 2026-03-08T00:00 in New York, where the clock then jumps from 02:00 to 03:00.
/// let midnight = Timestamp::from_ms(1_772_946_000_000)?;
/// let tick = nightly.next(midnight).unwrap();
/// assert_eq!(tick.since(midnight).as_secs(), 2 * 3_600); // at 03:00, right behind the gap
/// # Ok::<(), punctual::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Cron {
    rule: Rule,
    misfire: Misfire,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Expression { text: String, pattern: Box<croner::Cron>, zone: TimeZone },
    Every { ms: u64 },
}

/// A note on a tick whose local time is skipped or repeated by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickNote {
    /// The clock skips the requested time. This tick is the first instant after the gap.
    BehindGap,
    /// The clock shows this time twice, and this is the first.
    FirstOfTwo,
    /// The clock shows this time twice, and this is the second.
    SecondOfTwo,
}

impl Cron {
    /// Parses a cron expression, or `@every 10m` for an interval.
    ///
    /// It ticks in UTC unless [another zone](Cron::in_tz) is set. (The command line uses the machine's zone unless
    /// `--tz` names another.)
    ///
    /// # Errors
    /// `Invalid` for an expression that cannot be parsed, or that never ticks, for example on the 30th of February.
    pub fn new(expression: &str) -> Result<Self> {
        let text = expression.trim();
        if CRON_BYTES_MAX < text.len() {
            let n = text.len();
            return Err(Error::invalid(format!(
                "cron expression of {n} bytes is over the limit of {CRON_BYTES_MAX}"
            )));
        }
        if let Some(interval) = text.strip_prefix("@every ") {
            return Self::every(parse_duration(interval)?);
        }
        let hint = "write five fields as in \"30 2 * * MON-FRI\", or six with seconds in front";
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let pattern = parser.parse(text).map_err(|e| {
            Error::invalid(format!("{text:?} is not a cron expression: {e}")).with_source(e).with_hint(hint)
        })?;
        let rule =
            Rule::Expression { text: text.to_owned(), pattern: Box::new(pattern), zone: TimeZone::UTC };
        let cron = Self { rule, misfire: Misfire::default() };
        if cron.next(Timestamp::default()).is_none() {
            return Err(Error::invalid(format!("{text:?} never ticks"))
                .with_hint("check that the month has such a day"));
        }
        Ok(cron)
    }

    /// Ticks at an interval of 1 s to 366 days, counted from 1970-01-01T00:00Z.
    ///
    /// An interval of one hour ticks on the hour. Parts of a millisecond are rounded up.
    ///
    /// # Errors
    /// `Invalid`, with the limits.
    pub fn every(interval: Duration) -> Result<Self> {
        if !(EVERY_MIN..=EVERY_MAX).contains(&interval) {
            return Err(Error::invalid(format!(
                "every_ms {} is not within {} to {}",
                ceil_ms(interval),
                ceil_ms(EVERY_MIN),
                ceil_ms(EVERY_MAX)
            )));
        }
        Ok(Self { rule: Rule::Every { ms: ceil_ms(interval) }, misfire: Misfire::default() })
    }

    /// Sets the time zone by its IANA name, for example `Europe/Berlin`.
    ///
    /// # Errors
    /// `Invalid` if there is no such zone; `Conflict` for an interval, which has no zone.
    pub fn in_tz(mut self, name: &str) -> Result<Self> {
        let Rule::Expression { zone, .. } = &mut self.rule else {
            return Err(Error::new(crate::core::error::ErrorKind::Conflict, "an interval has no time zone"));
        };
        *zone = TimeZone::get(name).map_err(|e| {
            let shown: String = name.chars().take(64).collect();
            Error::invalid(format!("there is no time zone {shown:?}"))
                .with_source(e)
                .with_hint("write a name such as Europe/Berlin or UTC")
        })?;
        Ok(self)
    }

    /// Sets what happens to missed ticks (default: [`Misfire::RunOnce`]).
    ///
    /// # Errors
    /// `Invalid` for a bound outside 1 to 1,000.
    pub fn on_misfire(mut self, misfire: Misfire) -> Result<Self> {
        if let Misfire::RunAll { at_most } = misfire
            && !(1..=MISSED_MAX).contains(&at_most)
        {
            return Err(Error::invalid(format!("at_most {at_most} is not within 1 to {MISSED_MAX}")));
        }
        self.misfire = misfire;
        Ok(self)
    }

    /// Returns what happens to missed ticks.
    pub const fn misfire(&self) -> Misfire {
        self.misfire
    }

    /// Returns the expression; `None` for an interval.
    pub fn expression(&self) -> Option<&str> {
        match &self.rule {
            Rule::Expression { text, .. } => Some(text),
            Rule::Every { .. } => None,
        }
    }

    /// Returns the name of the zone; `None` for an interval.
    pub fn tz(&self) -> Option<&str> {
        match &self.rule {
            Rule::Expression { zone, .. } => Some(zone.iana_name().unwrap_or("UTC")),
            Rule::Every { .. } => None,
        }
    }

    /// Returns the first tick after an instant.
    ///
    /// `None` means that there is none before the year 5000.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.rule {
            Rule::Every { ms } => Timestamp::from_ms((after.as_ms() / ms + 1) * ms).ok(),
            Rule::Expression { pattern, zone, .. } => {
                instant(&pattern.find_next_occurrence(&whole_second(after, zone)?, false).ok()?)
            }
        }
    }

    /// Returns the last tick at or before an instant; `None` if there is none.
    pub fn last(&self, up_to: Timestamp) -> Option<Timestamp> {
        match &self.rule {
            Rule::Every { ms } => Some(Timestamp::saturating_from_ms(up_to.as_ms() / ms * ms)),
            Rule::Expression { pattern, zone, .. } => {
                instant(&pattern.find_previous_occurrence(&whole_second(up_to, zone)?, true).ok()?)
            }
        }
    }

    /// Returns a note if the local time of a tick is skipped or repeated by the clock.
    pub fn note(&self, tick: Timestamp) -> Option<TickNote> {
        let Rule::Expression { pattern, zone, .. } = &self.rule else { return None };
        let zoned = whole_second(tick, zone)?;
        if !pattern.is_time_matching(&zoned).ok()? {
            return Some(TickNote::BehindGap);
        }
        match zone.to_ambiguous_timestamp(zoned.datetime()).offset() {
            AmbiguousOffset::Fold { before, .. } if zoned.offset() == before => Some(TickNote::FirstOfTwo),
            AmbiguousOffset::Fold { .. } => Some(TickNote::SecondOfTwo),
            AmbiguousOffset::Gap { .. } | AmbiguousOffset::Unambiguous { .. } => None,
        }
    }

    /// Describes the expression or interval in words.
    pub fn describe(&self) -> String {
        match &self.rule {
            Rule::Expression { pattern, .. } => pattern.describe(),
            Rule::Every { ms } => format!("Every {:?}.", Duration::from_millis(*ms)),
        }
    }

    /// Returns the earliest tick up to now that runs by [`Misfire::RunAll`]. `tick` is the first missed one.
    pub(crate) fn first_to_run(&self, tick: Timestamp, now: Timestamp, at_most: u32) -> Timestamp {
        let mut first = now;
        for _ in 0..at_most {
            let Some(last) = self.last(first).filter(|last| tick < *last) else { return tick };
            match last.as_ms().checked_sub(1) {
                Some(before) => first = Timestamp::saturating_from_ms(before),
                None => return tick,
            }
        }
        self.next(first).unwrap_or(tick)
    }
}

impl fmt::Display for Cron {
    /// Prints `30 2 * * * Europe/Berlin`, or `@every 600s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Rule::Expression { text, .. } => write!(f, "{text} {}", self.tz().unwrap_or("UTC")),
            Rule::Every { ms } => write!(f, "@every {:?}", Duration::from_millis(*ms)),
        }
    }
}

/// The form in a document.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tz: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    #[serde(default)]
    misfire: Misfire,
}

impl From<Cron> for Stored {
    fn from(cron: Cron) -> Self {
        let tz = cron.tz().map(str::to_owned);
        match cron.rule {
            Rule::Expression { text, .. } => {
                Self { cron: Some(text), tz, every_ms: None, misfire: cron.misfire }
            }
            Rule::Every { ms } => Self { cron: None, tz, every_ms: Some(ms), misfire: cron.misfire },
        }
    }
}

impl TryFrom<Stored> for Cron {
    type Error = Error;

    fn try_from(stored: Stored) -> Result<Self> {
        let cron = match (stored.cron, stored.every_ms) {
            (Some(text), None) => Self::new(&text)?,
            (None, Some(ms)) => Self::every(Duration::from_millis(ms))?,
            _ => return Err(Error::invalid("a schedule has either cron or every_ms")),
        };
        let cron = stored.tz.map_or(Ok(cron.clone()), |tz| cron.in_tz(&tz))?;
        cron.on_misfire(stored.misfire)
    }
}

/// Returns an instant as local time in whole seconds, because no tick lies within a second.
fn whole_second(t: Timestamp, zone: &TimeZone) -> Option<Zoned> {
    let seconds = i64::try_from(t.as_ms() / 1_000).ok()?;
    Some(Moment::from_second(seconds).ok()?.to_zoned(zone.clone()))
}

fn instant(zoned: &Zoned) -> Option<Timestamp> {
    Timestamp::from_ms(u64::try_from(zoned.timestamp().as_millisecond()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an instant in RFC 3339.
    fn at(text: &str) -> Timestamp {
        instant(&text.parse::<Moment>().unwrap().to_zoned(TimeZone::UTC)).unwrap()
    }

    fn ticks(expression: &str, zone: &str, from: &str, n: usize) -> Vec<String> {
        let cron = Cron::new(expression).unwrap().in_tz(zone).unwrap();
        let mut tick = at(from);
        (0..n)
            .map(|_| {
                let before = tick;
                tick = cron.next(before).unwrap();
                assert!(before < tick);
                assert_eq!(cron.last(tick), Some(tick));
                whole_second(tick, &TimeZone::get(zone).unwrap())
                    .unwrap()
                    .strftime("%m-%d %H:%M:%S %:z")
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn fixed_times_in_a_gap_come_right_behind_it() {
        let from = "2026-03-07T12:00:00Z";
        for expression in ["0 2 * * *", "30 2 * * *"] {
            let at = &expression[..2].trim();
            assert_eq!(
                ticks(expression, "America/New_York", from, 2),
                ["03-08 03:00:00 -04:00".to_owned(), format!("03-09 02:{at:0>2}:00 -04:00")],
            );
        }
        // The clock of Lord Howe jumps forward by half an hour, from 02:00 to 02:30.
        let from = "2026-10-03T12:00:00Z";
        assert_eq!(
            ticks("15 2 * * *", "Australia/Lord_Howe", from, 2),
            ["10-04 02:30:00 +11:00", "10-05 02:15:00 +11:00"]
        );
        assert_eq!(ticks("45 2 * * *", "Australia/Lord_Howe", from, 1), ["10-04 02:45:00 +11:00"]);
    }

    #[test]
    fn fixed_times_that_come_twice_tick_once() {
        assert_eq!(
            ticks("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", 2),
            ["11-01 01:30:00 -04:00", "11-02 01:30:00 -05:00"]
        );
        assert_eq!(
            ticks("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T03:00:00Z", 2),
            ["04-05 01:45:00 +11:00", "04-06 01:45:00 +10:30"]
        );
    }

    #[test]
    fn steps_go_by_the_clock_on_the_wall() {
        assert_eq!(
            ticks("*/30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", 3),
            ["03-08 01:30:00 -05:00", "03-08 03:00:00 -04:00", "03-08 03:30:00 -04:00"]
        );
        assert_eq!(
            ticks("*/30 * * * *", "America/New_York", "2026-11-01T04:30:00Z", 5),
            [
                "11-01 01:00:00 -04:00",
                "11-01 01:30:00 -04:00",
                "11-01 01:00:00 -05:00",
                "11-01 01:30:00 -05:00",
                "11-01 02:00:00 -05:00"
            ]
        );
        assert_eq!(
            ticks("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:15:00Z", 6),
            [
                "04-05 01:30:00 +11:00",
                "04-05 01:45:00 +11:00",
                "04-05 01:30:00 +10:30",
                "04-05 01:45:00 +10:30",
                "04-05 02:00:00 +10:30",
                "04-05 02:15:00 +10:30"
            ]
        );
    }

    #[test]
    fn a_list_of_hours_is_no_fixed_time() {
        assert_eq!(
            ticks("30 2,14 * * *", "America/New_York", "2026-03-08T05:00:00Z", 1),
            ["03-08 14:30:00 -04:00"]
        );
        assert_eq!(
            ticks("30 1,13 * * *", "America/New_York", "2026-11-01T04:00:00Z", 2),
            ["11-01 01:30:00 -04:00", "11-01 01:30:00 -05:00"]
        );
    }

    #[test]
    fn six_fields_have_seconds() {
        assert_eq!(
            ticks("*/20 59 23 31 12 *", "UTC", "2026-12-31T23:59:30Z", 2),
            ["12-31 23:59:40 +00:00", "12-31 23:59:00 +00:00"]
        );
    }

    #[test]
    fn what_is_strange_on_the_wall_is_told() {
        let cron = |text: &str| Cron::new(text).unwrap().in_tz("America/New_York").unwrap();
        assert_eq!(cron("30 2 * * *").note(at("2026-03-08T07:00:00Z")), Some(TickNote::BehindGap));
        let (daily, steps) = (cron("30 1 * * *"), cron("*/30 * * * *"));
        assert_eq!(daily.note(at("2026-11-01T05:30:00Z")), Some(TickNote::FirstOfTwo));
        assert_eq!(steps.note(at("2026-11-01T06:30:00Z")), Some(TickNote::SecondOfTwo));
        assert_eq!(steps.note(at("2026-11-01T07:30:00Z")), None);
        assert_eq!(Cron::every(Duration::from_mins(1)).unwrap().note(at("2026-11-01T06:30:00Z")), None);
    }

    #[test]
    fn parts_of_a_second_are_no_tick() {
        let cron = Cron::new("* * * * * *").unwrap();
        let whole = at("2026-01-01T00:00:01Z");
        let ms = |ms: u64| Timestamp::saturating_from_ms(whole.as_ms() + ms);
        assert_eq!((cron.next(ms(0)), cron.next(ms(999))), (Some(ms(1_000)), Some(ms(1_000))));
        assert_eq!((cron.last(ms(999)), cron.last(ms(1_000))), (Some(ms(0)), Some(ms(1_000))));
    }

    #[test]
    fn an_interval_counts_from_the_epoch() {
        let cron = Cron::every(Duration::from_mins(90)).unwrap();
        let ms = Timestamp::saturating_from_ms;
        assert_eq!((cron.next(ms(0)), cron.next(ms(5_399_999))), (Some(ms(5_400_000)), Some(ms(5_400_000))));
        assert_eq!((cron.last(ms(5_399_999)), cron.last(ms(5_400_000))), (Some(ms(0)), Some(ms(5_400_000))));
        assert_eq!(cron.next(Timestamp::MAX), None);
        assert_eq!(Cron::new(" @every 1h30m").unwrap(), cron);
        assert!(Cron::new("@every 1ms").is_err() && Cron::new("@every").is_err());
    }

    #[test]
    fn the_last_of_missed_ticks_run() {
        let cron = Cron::every(Duration::from_mins(1)).unwrap();
        let minute = |n: u64| Timestamp::saturating_from_ms(n * 60_000);
        let now = Timestamp::saturating_from_ms(10 * 60_000 + 7);
        for (tick, at_most, first) in [(4, 10, 4), (4, 7, 4), (4, 6, 5), (4, 1, 10), (10, 1, 10)] {
            assert_eq!(cron.first_to_run(minute(tick), now, at_most), minute(first), "{tick} {at_most}");
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in [
            "",
            " ",
            "* * * *",
            "* * * * * * *",
            "60 * * * *",
            "* * 30 2 *",
            "@never",
            "1--100000000 * * * *",
            "*/0 * * * *",
            "a b c d e",
            "0 0 * * MON-",
            "\0",
            "２ * * * *",
        ] {
            let error = Cron::new(text).unwrap_err();
            assert_eq!(error.kind(), crate::core::error::ErrorKind::Invalid, "{text:?}");
        }
        assert!(Cron::new(&"*".repeat(300)).is_err());
        assert!(Cron::new("* * * * *").unwrap().in_tz("Europe/Nowhere").is_err());
        assert!(Cron::every(Duration::from_millis(999)).is_err());
        assert!(Cron::every(Duration::from_hours(24 * 367)).is_err());
        for at_most in [0, 1_001] {
            assert!(Cron::new("@daily").unwrap().on_misfire(Misfire::RunAll { at_most }).is_err());
        }
    }

    #[test]
    fn a_document_has_it_as_it_was() {
        let cron = Cron::new("@daily").unwrap().in_tz("Europe/Berlin").unwrap();
        for cron in [
            cron.on_misfire(Misfire::RunAll { at_most: 7 }).unwrap(),
            Cron::every(Duration::from_secs(5)).unwrap(),
        ] {
            let text = serde_json::to_string(&cron).unwrap();
            assert_eq!(serde_json::from_str::<Cron>(&text).unwrap(), cron, "{text}");
        }
        for text in [
            "{}",
            r#"{"cron":"@daily","every_ms":1000}"#,
            r#"{"cron":"x"}"#,
            r#"{"every_ms":1000,"tz":"UTC"}"#,
        ] {
            assert!(serde_json::from_str::<Cron>(text).is_err(), "{text}");
        }
    }
}
