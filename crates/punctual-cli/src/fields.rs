//! `--fields a,b`: prints only these fields, in this order.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use punctual::{Timestamp, job::did_you_mean};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::value::RawValue;

use crate::{
    errors::{Failure, Result},
    output::{Table, cut},
    times::{span, wall},
};

/// Characters of a value in a table.
const CELL_CHARS: usize = 200;

/// Names of fields, each of them once; a dot leads into an object.
#[derive(Clone, Debug)]
pub(crate) struct Fields(Vec<String>);

impl Fields {
    /// Checks the requested fields against the known ones.
    pub(crate) fn of(names: &[String], known: &[&str]) -> Result<Self> {
        let mut fields: Vec<String> = Vec::new();
        for name in names {
            if !known.contains(&name.as_str()) {
                return Err(Failure::invalid(format!("unknown field `{name}`")).hint(
                    match did_you_mean(name, known.iter().copied()) {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => format!("the fields are {}", known.join(", ")),
                    },
                ));
            }
            if !fields.contains(name) {
                fields.push(name.clone());
            }
        }
        Ok(Self(fields))
    }

    /// Picks them from something that is an object as JSON. What it does not have is `null`.
    pub(crate) fn pick(&self, value: &impl Serialize) -> serde_json::Result<Picked<'_>> {
        let whole = serde_json::value::to_raw_value(value)?;
        let values = self.0.iter().map(|name| find(&whole, name)).collect();
        Ok(Picked { names: &self.0, values })
    }

    /// A table of what was picked, a row each.
    pub(crate) fn table(&self, rows: &[Picked<'_>], now: Timestamp, zone: &TimeZone) -> Table {
        let head =
            |name: &String| name.strip_suffix("_ms").unwrap_or(name).to_uppercase().replace(['_', '.'], " ");
        let mut table = Table::new(self.0.iter().map(head));
        for row in rows {
            table.row(row.cells(now, zone));
        }
        table
    }
}

/// Returns the value of a name, as it was written.
fn find(value: &RawValue, name: &str) -> Box<RawValue> {
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
    match (fields.get(first), rest) {
        (Some(found), Some(rest)) => find(found, rest),
        (Some(found), None) => (*found).to_owned(),
        (None, _) => RawValue::NULL.to_owned(),
    }
}

/// What was picked of one thing.
pub(crate) struct Picked<'a> {
    names: &'a [String],
    values: Vec<Box<RawValue>>,
}

impl Serialize for Picked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.values.len()))?;
        for (name, value) in self.names.iter().zip(&self.values) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Picked<'_> {
    /// The values for people: texts without their quotes, instants on the wall, durations in words.
    fn cells(&self, now: Timestamp, zone: &TimeZone) -> Vec<String> {
        let cell = |name: &str, raw: &str| {
            let number = raw.parse::<u64>();
            let is_instant = name.ends_with("_at_ms") || name == "lease_until_ms";
            match number {
                _ if raw == "null" => String::new(),
                Ok(ms) if is_instant => wall(Timestamp::saturating_from_ms(ms), now, zone),
                Ok(ms) if name.ends_with("_ms") => span(std::time::Duration::from_millis(ms)),
                _ => {
                    let text = serde_json::from_str::<String>(raw);
                    cut(text.as_deref().unwrap_or(raw), CELL_CHARS)
                }
            }
        };
        self.names.iter().zip(&self.values).map(|(name, value)| cell(name, value.get())).collect()
    }
}
