//! Reads and prints times for people. Other modules get [`When`]s and texts; the calendar is used only here.

use std::env;

use jiff::{
    SignedDuration, Timestamp as Moment, Zoned, civil,
    fmt::temporal::Pieces,
    tz::{Offset, TimeZone, TimeZoneDatabase},
};
pub(crate) use punctual::words::{relative, span};
use punctual::{Error, Timestamp, When, job::parse_duration};

/// Returns whether `--tz` means the zone of this machine.
pub(crate) fn is_local(name: &str) -> bool {
    name == "local"
}

/// Reads `--tz`: `local`, `utc`, or a name such as `Europe/Berlin`.
pub(crate) fn zone(name: &str) -> Result<TimeZone, Error> {
    match name {
        "local" => Ok(TimeZone::system()),
        "utc" | "UTC" => Ok(TimeZone::UTC),
        name => named(name).map_err(|e| {
            Error::invalid(format!("there is no time zone {:?}", shown(name)))
                .with_source(e)
                .with_hint("write local, utc or a name such as Europe/Berlin")
        }),
    }
}

/// Returns the zone of a name. Those in `Etc/` are always the same, whatever the files of this machine say.
pub(crate) fn named(name: &str) -> Result<TimeZone, jiff::Error> {
    let is_fixed = name.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("etc/"));
    if is_fixed { TimeZoneDatabase::bundled().get(name) } else { TimeZone::get(name) }
}

/// Returns the name of a zone, under which a store keeps it.
///
/// In a container into which `/etc/localtime` is mounted, the zone of the machine has the name of the image's and the rules
/// of the host's. Workers elsewhere would tick by the rules of the name.
///
/// # Errors
/// `Invalid` for a zone without a name, and for one whose rules are not those of its name within a year of `now`.
pub(crate) fn zone_name(zone: &TimeZone, now: Moment) -> Result<&str, Error> {
    const HINT: &str = "name the time zone: --tz Europe/Berlin or --tz utc";
    let Some(name) = zone.iana_name() else {
        return Err(Error::invalid("the time zone of this machine has no name").with_hint(HINT));
    };
    let Ok(known) = TimeZoneDatabase::bundled().get(name) else { return Ok(name) };
    let days = (-366_i64..=366).map(|day| now.saturating_add(SignedDuration::from_hours(24 * day)));
    let other = days.flatten().find(|day| zone.to_offset(*day) != known.to_offset(*day));
    let Some(day) = other else { return Ok(name) };
    let (date, here, by_name) = (day.strftime("%F"), zone.to_offset(day), known.to_offset(day));
    Err(Error::invalid(format!(
        "the time zone of this machine is called {name}, but does not have its rules: on {date}, its offset is {here} and not {by_name}"
    ))
    .with_hint(HINT))
}

/// Reads a time: `now`, `+2h`, RFC 3339, `2026-12-24T18:00[Europe/Berlin]`, `2026-12-24 18:00`, `tomorrow 09:00`,
/// `today 17:00`. A time without a zone is in the zone of `now`. A bare number is refused, since it may be seconds or
/// milliseconds.
pub(crate) fn when(text: &str, now: &Zoned) -> Result<When, Error> {
    let text = text.trim();
    if text == "now" {
        return Ok(When::Now);
    }
    if let Some(delay) = text.strip_prefix('+') {
        return parse_duration(delay).map(When::In);
    }
    let since_1970 = if let Ok(zoned) = text.parse::<Zoned>() {
        zoned.timestamp().as_duration()
    } else if let Ok(moment) = text.parse::<Moment>() {
        moment.as_duration()
    } else if let Some(time) = with_offset(text) {
        time
    } else {
        let civil = civil_time(text, now).ok_or_else(|| {
            Error::invalid(format!("{:?} is not a time", shown(text))).with_hint(
                "write 2026-12-24T18:00:00Z, 2026-12-24T18:00[Europe/Berlin], tomorrow 09:00 or +2h",
            )
        })?;
        is_known(now.time_zone())?;
        // In a gap of the clock, the time after the gap is used; in a fold, the first of the two.
        let zoned = civil.to_zoned(now.time_zone().clone());
        zoned.map_or_else(
            |_| at_offset(civil, now.time_zone().to_offset(Moment::MAX)),
            |zoned| zoned.timestamp().as_duration(),
        )
    };
    let ms = since_1970.as_nanos().div_euclid(1_000_000) + i128::from(since_1970.as_nanos() % 1_000_000 != 0);
    let ms = u64::try_from(ms).map_err(|_| Error::invalid(format!("{:?} is before 1970", shown(text))))?;
    Timestamp::from_ms(ms).map(When::At)
}

/// Reads a time with an offset that is later than the last one of the calendar, which ends a day before the year 9999 does.
fn with_offset(text: &str) -> Option<SignedDuration> {
    let pieces = Pieces::parse(text).ok().filter(|pieces| pieces.time_zone_annotation().is_none())?;
    let offset = pieces.to_numeric_offset()?;
    Some(at_offset(pieces.date().to_datetime(pieces.time()?), offset))
}

/// Returns the time since 1970 of a wall clock with this offset.
fn at_offset(civil: civil::DateTime, offset: Offset) -> SignedDuration {
    civil.duration_since(civil::date(1970, 1, 1).at(0, 0, 0, 0))
        - SignedDuration::from_secs(offset.seconds().into())
}

/// Refuses the zone of a variable `TZ` that names none: it would be UTC. A machine without a zone has UTC.
fn is_known(zone: &TimeZone) -> Result<(), Error> {
    let name = env::var_os("TZ").filter(|name| !name.is_empty() && zone.is_unknown());
    name.map_or(Ok(()), |name| {
        let shown = shown(&name.to_string_lossy());
        Err(Error::invalid(format!("the variable TZ is {shown:?}, which is no time zone"))
            .with_hint("correct it, name a zone (--tz Europe/Berlin), or write the time with one"))
    })
}

/// Reads a date or time of the wall clock, in the zone of `now`.
fn civil_time(text: &str, now: &Zoned) -> Option<civil::DateTime> {
    let day = |days: i64| now.date().checked_add(SignedDuration::from_hours(24 * days)).ok();
    // The parser below ignores a zone, and a valid zone was parsed before.
    if text.contains('[') {
        return None;
    }
    let (date, time) = if let Some(time) = text.strip_prefix("tomorrow ") {
        (day(1)?, time)
    } else if let Some(time) = text.strip_prefix("today ") {
        (day(0)?, time)
    } else if text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    } else {
        return text.parse().ok();
    };
    Some(date.to_datetime(time.trim().parse().ok()?))
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Prints the wall-clock time of `at`, without the date if it is that of `now`.
pub(crate) fn wall(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let zoned = |t: Timestamp| {
        let ms = i64::try_from(t.as_ms()).ok()?;
        Some(Moment::from_millisecond(ms).ok()?.to_zoned(zone.clone()))
    };
    match (zoned(at), zoned(now)) {
        (Some(at), Some(now)) if at.date() == now.date() => at.strftime("%H:%M:%S").to_string(),
        (Some(at), _) => at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        // The calendar ends one day before the last instant.
        (None, _) => "at the end of 9999".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn berlin() -> Zoned {
        "2026-11-20T14:32:10[Europe/Berlin]".parse().unwrap()
    }

    fn at(text: &str) -> u64 {
        match when(text, &berlin()).unwrap_or_else(|e| panic!("{text}: {e}")) {
            When::At(t) => t.as_ms(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn times_are_read_in_every_form() {
        let christmas = 1_798_131_600_000; // 2026-12-24T17:00:00Z
        for text in [
            "2026-12-24T17:00:00Z",
            "2026-12-24T18:00:00+01:00",
            "2026-12-24T18:00[Europe/Berlin]",
            "2026-12-24T18:00",
            "2026-12-24 18:00",
            "2026-12-24T12:00[America/New_York]",
        ] {
            assert_eq!(at(text), christmas, "{text}");
        }
        assert_eq!(at("tomorrow 09:00"), at("2026-11-21T08:00:00Z"));
        assert_eq!(at("today 17:30"), at("2026-11-20T16:30:00Z"));
        assert_eq!(at("2026-12-24T17:00:00.000000001Z"), christmas + 1, "never early");
        // The calendar ends a day before the last instant.
        let last = punctual::Timestamp::MAX.as_ms();
        for text in
            ["9999-12-31T23:59:59.999Z", "9999-12-31T22:59:59.999-01:00", "9999-12-31 23:59:59.999+00"]
        {
            assert_eq!(at(text), last, "{text}");
        }
        assert_eq!(at("9999-12-31T23:59:59"), last - 999 - 3_600_000, "by the clock of Berlin");
        assert_eq!(when("+2h", &berlin()).unwrap(), When::In(Duration::from_hours(2)));
        assert_eq!(when("now", &berlin()).unwrap(), When::Now);
        // The clocks go forward at 02:00 and back at 03:00.
        assert_eq!(at("2026-03-29T02:30"), at("2026-03-29T01:30:00Z"));
        assert_eq!(at("2026-10-25T02:30"), at("2026-10-25T00:30:00Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "soon",
            "1795192330000",
            "20261224",
            "-1",
            "10000-01-01T00:00:00Z",
            "9999-12-31T23:59:59-01:00",
            "9999-12-31T23:59:59[Nowhere/City]",
            "1960-01-01T00:00:00Z",
            "2026-02-30T00:00",
            "tomorrow",
            "tomorrow 25:00",
            "+2",
            "2026-12-24T18:00[Nowhere/City]",
        ] {
            assert!(when(text, &berlin()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_last_instant_is_shown_too() {
        let now = Timestamp::saturating_from_ms(1_795_192_330_000);
        assert_eq!(wall(Timestamp::MAX, now, &TimeZone::UTC), "at the end of 9999");
        assert_eq!(wall(now, now, &TimeZone::UTC), "16:32:10");
        assert_eq!(wall(now.after(Duration::from_hours(24)), now, &TimeZone::UTC), "2026-11-21 16:32:10");
    }
}
