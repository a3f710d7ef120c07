//! What the fields of an expression say. It refuses those that never do what they say, and never computes a tick.
//!
//! The parser of `croner` reads more than it understands: it ignores a step beyond its field, an empty item of a list,
//! and in which field a name stands.

use std::fmt::Write as _;

use crate::core::error::{Error, Result};

/// The hint for a text that is no expression at all.
pub(super) const FORM: &str = "write five fields as in \"30 2 * * MON-FRI\", or six with seconds in front";

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// One of the fields of an expression.
struct Field {
    name: &'static str,
    /// Its first and last value.
    first: u16,
    last: u16,
    /// How many of its values make a whole one of the next larger unit, if that is always the same number.
    whole: Option<u16>,
    /// What its values are called.
    names: &'static [&'static str],
    /// Its unit in an interval.
    unit: Option<&'static str>,
}

const FIELDS: [Field; 6] = [
    Field { name: "second", first: 0, last: 59, whole: Some(60), names: &[], unit: Some("s") },
    Field { name: "minute", first: 0, last: 59, whole: Some(60), names: &[], unit: Some("m") },
    Field { name: "hour", first: 0, last: 23, whole: Some(24), names: &[], unit: Some("h") },
    Field { name: "day of month", first: 1, last: 31, whole: None, names: &[], unit: Some("d") },
    Field { name: "month", first: 1, last: 12, whole: Some(12), names: &MONTHS, unit: None },
    Field { name: "day of week", first: 0, last: 6, whole: Some(7), names: &WEEKDAYS, unit: Some("d") },
];
const DAY: usize = 3;
const MONTH: usize = 4;
const WEEKDAY: usize = 5;

/// Returns the expression that a name such as `@midnight` stands for, as stores keep it.
///
/// # Errors
/// `Invalid` for a name that is not known.
pub(super) fn nickname(text: &str) -> Result<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "@hourly" => Ok("@hourly"),
        // Each of the two has one form in a store, which earlier versions read, too.
        "@daily" | "@midnight" => Ok("@daily"),
        "@weekly" => Ok("@weekly"),
        "@monthly" => Ok("@monthly"),
        "@yearly" | "@annually" => Ok("@yearly"),
        _ => Err(Error::invalid(format!("{text:?} is not a cron expression")).with_hint(
            "write @hourly, @daily, @weekly, @monthly or @yearly, or an interval such as \"@every 10m\"",
        )),
    }
}

/// Returns whether both day fields must match a day, as in Vixie cron: one of them begins with `*`.
///
/// If both name days, a day that matches one of them is enough.
pub(super) fn both_days(text: &str) -> bool {
    let mut from_the_end = text.split_whitespace().rev();
    let (weekday, day) = (from_the_end.next(), from_the_end.nth(1));
    [day, weekday].into_iter().flatten().any(|field| field.starts_with(['*', '?']))
}

/// Returns the place of the first field: the seconds can be left out.
///
/// # Errors
/// `Invalid` unless there are five or six fields.
pub(super) fn first_field(text: &str) -> Result<usize> {
    match text.split_whitespace().count() {
        5 => Ok(1),
        6 => Ok(0),
        n => {
            let fields = if n == 1 { "field" } else { "fields" };
            let text = format!("{text:?} is not a cron expression: it has {n} {fields}");
            Err(Error::invalid(text).with_hint(FORM))
        }
    }
}

/// Checks that each item of each field does what it says.
///
/// # Errors
/// `Invalid` for an item that does not, with the field and what to write instead.
pub(super) fn check(text: &str) -> Result<()> {
    if text.starts_with('@') {
        return Ok(());
    }
    let from = first_field(text)?;
    let upper = text.to_uppercase();
    let fields: Vec<&str> = upper.split_whitespace().collect();
    for (place, items) in (from..).zip(&fields) {
        // croner's sign for "and"; what follows is an ordinary field.
        let items = if place == WEEKDAY { items.strip_prefix('+').unwrap_or(items) } else { items };
        for item in items.split(',') {
            check_item(place, item).map_err(|problem| problem.error(text, place, item))?;
        }
        if place == DAY
            && items.split(',').any(|item| item == "L")
            && items.split(',').any(|item| item == "LW")
        {
            let problem = Problem {
                what: "L and LW exclude each other".to_owned(),
                hint: "write one of them".to_owned(),
            };
            return Err(problem.error(text, place, items));
        }
    }
    check_days(text, fields[DAY - from], fields[MONTH - from])
}

/// Why an item is refused, and what to write instead.
struct Problem {
    what: String,
    hint: String,
}

impl Problem {
    fn error(self, text: &str, place: usize, item: &str) -> Error {
        let (name, what) = (FIELDS[place].name, self.what);
        Error::invalid(format!("{text:?} is not a cron expression: {item:?} in the field {name}: {what}"))
            .with_hint(self.hint)
    }
}

fn check_item(place: usize, item: &str) -> std::result::Result<(), Problem> {
    let field = &FIELDS[place];
    let no_value = |part: &str| {
        let (first, last) = (field.first, field.last);
        let mut hint = format!("write {first} to {last}");
        if let [first, .., last] = field.names {
            let _ = write!(hint, " or {first} to {last}");
        }
        Problem { what: format!("{part:?} is no {}", field.name), hint }
    };
    if item.is_empty() {
        return Err(Problem {
            what: "an item of the list is empty".to_owned(),
            hint: "write a value, or remove the comma".to_owned(),
        });
    }
    // What `#` and `L` say of weekdays, and `L` and `W` of days.
    let plain = match place {
        DAY if item == "L" || item == "LW" => return Ok(()),
        DAY => item.strip_suffix('W').unwrap_or(item),
        WEEKDAY => match item.split_once('#') {
            Some((plain, "1" | "2" | "3" | "4" | "5" | "L")) => plain,
            Some(_) => {
                return Err(Problem {
                    what: "what follows # is not 1 to 5 or L".to_owned(),
                    hint: "write FRI#2 for the second Friday of the month, FRI#L for the last".to_owned(),
                });
            }
            None if item == "L" => {
                return Err(Problem {
                    what: "L needs a day of the week here".to_owned(),
                    hint: "write FRIL for the last Friday of the month, SAT for each Saturday".to_owned(),
                });
            }
            None => item.strip_suffix('L').unwrap_or(item),
        },
        _ => item,
    };
    let (range, step) = plain.split_once('/').map_or((plain, None), |(range, step)| (range, Some(step)));
    let is_star = range == "*" || range == "?" && (place == DAY || place == WEEKDAY);
    let (first, last) = if is_star {
        (field.first, field.last)
    } else {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let value = |part: &str| value(field, part).ok_or_else(|| no_value(part));
        (value(first)?, value(last)?)
    };
    // Zero, and what is no number, is refused by the parser.
    let Some(step) = step.and_then(|step| step.parse::<u32>().ok()).filter(|step| *step != 0) else {
        return Ok(());
    };
    let whole =
        first == field.first && field.last <= last && field.whole.is_some_and(|n| step == u32::from(n));
    if whole || first > last || step <= u32::from(last - first) {
        return Ok(());
    }
    let hint = match field.unit {
        Some(unit) => {
            format!("for an interval write \"@every {step}{unit}\"; for this value alone write {first}")
        }
        None => format!("for this value alone write {first}"),
    };
    Err(Problem { what: format!("the step is beyond {first} to {last}, so only {first} is left"), hint })
}

/// Returns the value of a number or name.
fn value(field: &Field, part: &str) -> Option<u16> {
    if let Some(at) = field.names.iter().position(|name| *name == part) {
        return Some(field.first + u16::try_from(at).ok()?);
    }
    let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if is_number { Some(part.parse().unwrap_or(u16::MAX)) } else { None }
}

/// Checks that one of the months has one of the days. Otherwise the field would be ignored beside a day of the week.
fn check_days(text: &str, days: &str, months: &str) -> Result<()> {
    const LONGEST: [u16; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = &FIELDS[MONTH];
    let mut longest = 0;
    for item in months.split(',') {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (value(month, first), value(month, last)),
            None if range == "*" => (Some(1), Some(12)),
            None => (value(month, range), value(month, range)),
        };
        let (Some(first), Some(last), Ok(step)) = (first, last, step.parse::<usize>()) else { return Ok(()) };
        for month in (first..=last.min(12)).step_by(step.max(1)) {
            longest = longest.max(LONGEST.get(usize::from(month) - 1).copied().unwrap_or(31));
        }
    }
    let earliest = days.split(',').map(|item| {
        let item = item.strip_suffix('W').unwrap_or(item);
        item.split(['-', '/']).next().and_then(|first| value(&FIELDS[DAY], first)).unwrap_or(1)
    });
    if longest != 0 && earliest.min().is_some_and(|earliest| longest < earliest) {
        return Err(Error::invalid(format!(
            "{text:?} never ticks by its day of month: no such month has it"
        ))
        .with_hint("check that the month has such a day, or write L for its last day"));
    }
    Ok(())
}
