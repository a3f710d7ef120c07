//! When a schedule ticks: arithmetic on instants, without a clock. `croner` and `jiff` provide the calendar.

mod fields;
#[cfg(test)]
mod tests;
mod words;

use std::{fmt, time::Duration};

use croner::parser::{CronParser, Year};
use jiff::{
    Timestamp as Moment, Zoned,
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
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
/// If day of month and day of week both name days, a day that matches one of them is enough: `0 0 1 * MON` ticks on
/// the 1st and on each Monday. If one of the two fields begins with `*`, a day must match both, as in Vixie cron:
/// `0 0 */2 * MON` ticks on Mondays with an odd date, and `0 0 1-31/2 * MON` on odd dates and on Mondays.
///
/// An item that cannot do what it says is refused, for example `*/90` in the minutes.
///
/// Changes of the clock have rules of their own. A tick is *fixed* if hour, minute and second have one value each.
/// Any other tick has a wildcard, step, list or range, for example `*/5 * * * *` or `0 2,14 * * *`. Where the clock jumps forward, a fixed tick in the gap comes right after the gap; other ticks in
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
    /// `@midnight` is read as `@daily`, and `@annually` as `@yearly`.
    ///
    /// # Errors
    /// `Invalid` for an expression that cannot be parsed, or that never ticks, for example on the 30th of February. Also
    /// for an item that does not do what it says, for example a step beyond its field.
    pub fn new(expression: &str) -> Result<Self> {
        let text = expression.trim();
        check_length(text)?;
        fields::check(text)?;
        let cron = Self::parse(text)?;
        cron.check()?;
        Ok(cron)
    }

    /// Checks that it ticks, and that each field does what it says.
    ///
    /// Earlier versions did not check all of this. What they stored goes on as before, until its expression is changed.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(text) = self.expression() else { return Ok(()) };
        fields::check(text)?;
        if self.next(Timestamp::default()).is_none() {
            return Err(Error::invalid(format!("{text:?} never ticks"))
                .with_hint("check that the month has such a day"));
        }
        Ok(())
    }

    /// Parses an expression of a store, which may be older than [`check`](Self::check).
    fn parse(expression: &str) -> Result<Self> {
        let text = expression.trim();
        check_length(text)?;
        if let Some(interval) = text.strip_prefix("@every ") {
            return Self::every(parse_duration(interval)?);
        }
        let text = if text.starts_with('@') {
            fields::nickname(text)?
        } else {
            fields::first_field(text).map(|_| text)?
        };
        let both_days = fields::both_days(text);
        let parser = CronParser::builder().year(Year::Disallowed).dom_and_dow(both_days).build();
        let pattern = parser.parse(text).map_err(|e| {
            Error::invalid(format!("{text:?} is not a cron expression: {e}"))
                .with_source(e)
                .with_hint(fields::FORM)
        })?;
        let rule =
            Rule::Expression { text: text.to_owned(), pattern: Box::new(pattern), zone: TimeZone::UTC };
        Ok(Self { rule, misfire: Misfire::default() })
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
        // These have the same rules for ever. On a machine with a mounted /etc/localtime, the file of such a name can have
        // those of another zone.
        let is_fixed = name.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("etc/"));
        let found = if is_fixed { TimeZoneDatabase::bundled().get(name) } else { TimeZone::get(name) };
        *zone = found.map_err(|e| {
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
            Rule::Expression { text, pattern, .. } => words::describe(text, pattern),
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
            (Some(text), None) => Self::parse(&text)?,
            (None, Some(ms)) => Self::every(Duration::from_millis(ms))?,
            _ => return Err(Error::invalid("a schedule has either cron or every_ms")),
        };
        let cron = stored.tz.map_or(Ok(cron.clone()), |tz| cron.in_tz(&tz))?;
        cron.on_misfire(stored.misfire)
    }
}

fn check_length(text: &str) -> Result<()> {
    match text.len() {
        n if CRON_BYTES_MAX < n => {
            Err(Error::invalid(format!("cron expression of {n} bytes is over the limit of {CRON_BYTES_MAX}")))
        }
        _ => Ok(()),
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
