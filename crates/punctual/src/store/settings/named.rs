//! Single settings of a queue by name, as people write them: `concurrency` is `20`, `retention.done.age` is `24h`.

use std::time::Duration;

use super::{GroupLimits, Keep, Order, Placement, QueueSettings};
use crate::core::{
    backoff::Backoff,
    duration::{UNITS, parse_duration},
    error::{Error, Result},
    rate::Rate,
    size::{self, parse_size},
    suggest::did_you_mean,
};

const WEIGHT: &str = "a number from 1 to 100, or none";

impl QueueSettings {
    /// All names, and the values that each takes. Optional ones also take `none`.
    #[doc(hidden)]
    pub const KEYS: [(&'static str, &'static str); 26] = [
        ("order", "fifo or lifo"),
        ("placement", "spread or pinned"),
        ("max_jobs", "a number, or none"),
        ("max_bytes", "bytes such as 64MiB, or none"),
        ("concurrency", "a number, or none"),
        ("rate", "starts per period such as 100/1m or 100/1m burst 10, or none"),
        ("group.weight", WEIGHT),
        ("group.concurrency", "a number, or none"),
        ("group.rate", "starts per period such as 100/1m or 100/1m burst 10, or none"),
        ("groups.NAME.weight", WEIGHT),
        ("groups.NAME.concurrency", "a number, or none"),
        ("groups.NAME.rate", "starts per period such as 100/1m or 100/1m burst 10, or none"),
        ("retention.done.age", "a duration"),
        ("retention.done.count", "a number"),
        ("retention.done.bytes", "bytes"),
        ("retention.dead.age", "a duration"),
        ("retention.dead.count", "a number"),
        ("retention.dead.bytes", "bytes"),
        ("retention.cancelled.age", "a duration"),
        ("retention.cancelled.count", "a number"),
        ("retention.cancelled.bytes", "bytes"),
        ("defaults.priority", "high, normal, low, or none"),
        ("defaults.max_attempts", "a number, or none"),
        ("defaults.backoff", "exp 5s..6h, or none"),
        ("defaults.timeout", "a duration, or none"),
        ("defaults.lease", "a duration, or none"),
    ];

    /// Sets one setting. It does not check limits.
    ///
    /// # Errors
    /// `Invalid` for an unknown name, or a value that the setting does not take.
    #[doc(hidden)]
    pub fn set_named(&mut self, key: &str, value: &str) -> Result<()> {
        if let Some(rest) = key.strip_prefix("retention.")
            && let Some((state, bound)) = rest.split_once('.')
        {
            let keep = match state {
                "done" => Some(&mut self.done),
                "dead" => Some(&mut self.dead),
                "cancelled" => Some(&mut self.cancelled),
                _ => None,
            };
            if let Some(keep) = keep {
                match bound {
                    "age" => keep.age_ms = milliseconds(key, value)?,
                    "count" => keep.count = number(key, value)?,
                    "bytes" => keep.bytes = bytes(key, value)?,
                    _ => return Err(unknown(key)),
                }
                return Ok(());
            }
        }
        if let Some(limit) = key.strip_prefix("group.") {
            return limit_group(&mut self.group, key, limit, value);
        }
        if let Some((name, limit)) = key.strip_prefix("groups.").and_then(|rest| rest.rsplit_once('.')) {
            let mut limits = self.groups.get(name).copied().unwrap_or_default();
            limit_group(&mut limits, key, limit, value)?;
            if limits.are_none() {
                self.groups.remove(name);
            } else {
                self.groups.insert(name.to_owned(), limits);
            }
            return Ok(());
        }
        let defaults = &mut self.defaults;
        match key {
            "order" => {
                self.order = match value {
                    "fifo" => Order::Fifo,
                    "lifo" => Order::Lifo,
                    _ => return Err(wrong(key, value)),
                }
            }
            "placement" => {
                self.placement = match value {
                    "spread" => Placement::Spread,
                    "pinned" => Placement::Pinned,
                    _ => return Err(wrong(key, value)),
                }
            }
            "max_jobs" => self.max_jobs = or_none(value, |v| number(key, v))?,
            "max_bytes" => self.max_bytes = or_none(value, |v| bytes(key, v))?,
            "concurrency" => {
                self.concurrency = or_none(value, |v| v.parse().map_err(|_| wrong(key, v)))?;
            }
            "rate" => self.rate = or_none(value, |v| rate(key, v))?,
            "defaults.priority" => defaults.priority = or_none(value, str::parse)?,
            "defaults.max_attempts" => {
                defaults.max_attempts = or_none(value, |v| v.parse().map_err(|_| wrong(key, v)))?;
            }
            "defaults.backoff" => defaults.backoff = or_none(value, str::parse)?,
            "defaults.timeout" => defaults.timeout = or_none(value, |v| duration(key, v))?,
            "defaults.lease" => defaults.lease = or_none(value, |v| duration(key, v))?,
            _ => return Err(unknown(key)),
        }
        Ok(())
    }

    /// Returns one setting as [`set_named`](Self::set_named) takes it; `None` for an unknown name.
    #[doc(hidden)]
    pub fn named(&self, key: &str) -> Option<String> {
        if let Some((state, bound)) = key.strip_prefix("retention.").and_then(|rest| rest.split_once('.')) {
            return keep_text(self.keep(state)?, bound);
        }
        if let Some(limit) = key.strip_prefix("group.") {
            return limit_text(&self.group, limit);
        }
        if let Some((name, limit)) = key.strip_prefix("groups.").and_then(|rest| rest.rsplit_once('.')) {
            return limit_text(&self.groups.get(name).copied().unwrap_or_default(), limit);
        }
        let defaults = &self.defaults;
        Some(match key {
            "order" => match self.order {
                Order::Fifo => "fifo".to_owned(),
                Order::Lifo => "lifo".to_owned(),
            },
            "placement" => match self.placement {
                Placement::Spread => "spread".to_owned(),
                Placement::Pinned => "pinned".to_owned(),
            },
            "max_jobs" => text(self.max_jobs),
            "max_bytes" => text(self.max_bytes.map(bytes_text)),
            "concurrency" => text(self.concurrency),
            "rate" => text(self.rate.map(rate_text)),
            "defaults.priority" => text(defaults.priority),
            "defaults.max_attempts" => text(defaults.max_attempts),
            "defaults.backoff" => text(defaults.backoff.as_ref().map(backoff_text)),
            "defaults.timeout" => text(defaults.timeout.map(duration_text)),
            "defaults.lease" => text(defaults.lease.map(duration_text)),
            _ => return None,
        })
    }

    fn keep(&self, state: &str) -> Option<&Keep> {
        match state {
            "done" => Some(&self.done),
            "dead" => Some(&self.dead),
            "cancelled" => Some(&self.cancelled),
            _ => None,
        }
    }
}

fn keep_text(keep: &Keep, bound: &str) -> Option<String> {
    match bound {
        "age" => Some(duration_text(Duration::from_millis(keep.age_ms))),
        "count" => Some(keep.count.to_string()),
        "bytes" => Some(bytes_text(keep.bytes)),
        _ => None,
    }
}

fn limit_text(limits: &GroupLimits, limit: &str) -> Option<String> {
    match limit {
        "weight" => Some(text(limits.weight)),
        "concurrency" => Some(text(limits.concurrency)),
        "rate" => Some(text(limits.rate.map(rate_text))),
        _ => None,
    }
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

/// `100/1m`, or `100/1m burst 10`.
fn rate_text(rate: Rate) -> String {
    let burst = if rate.burst == 1 { String::new() } else { format!(" burst {}", rate.burst) };
    format!("{}/{}{burst}", rate.max, duration_text(Duration::from_millis(rate.period_ms)))
}

/// Writes bytes in the largest unit of which they are a whole number.
fn bytes_text(n: u64) -> String {
    let unit = size::UNITS.into_iter().rev().find(|(_, shift)| 0 < n && n.trailing_zeros() >= *shift);
    unit.map_or_else(|| n.to_string(), |(unit, shift)| format!("{}{unit}", n >> shift))
}

/// Writes a duration without loss, in milliseconds: `1h30m`.
fn duration_text(length: Duration) -> String {
    let (mut rest, mut text) = (u64::try_from(length.as_millis()).unwrap_or(u64::MAX), String::new());
    for (unit, ms) in UNITS {
        if ms <= rest {
            text.push_str(&(rest / ms).to_string());
            text.push_str(unit);
            rest %= ms;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// `exponential 5s..6h`.
fn backoff_text(of: &Backoff) -> String {
    let pause = |text: &str| parse_duration(text).map_or_else(|_| text.to_owned(), duration_text);
    let word = |text: &str| text.split("..").map(pause).collect::<Vec<_>>().join("..");
    of.to_string().split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Changes one limit of a group, or of all groups.
fn limit_group(limits: &mut GroupLimits, key: &str, limit: &str, value: &str) -> Result<()> {
    let small = |v: &str| v.parse().map_err(|_| wrong(key, v));
    match limit {
        "weight" => limits.weight = or_none(value, small)?,
        "concurrency" => limits.concurrency = or_none(value, small)?,
        "rate" => limits.rate = or_none(value, |v| rate(key, v))?,
        _ => return Err(unknown(key)),
    }
    Ok(())
}

/// `100/1m`, or `100/1m burst 10`.
fn rate(key: &str, value: &str) -> Result<Rate> {
    let read = || {
        let (starts, burst) = match value.split_once(" burst ") {
            Some((starts, burst)) => (starts, burst.trim().parse().ok()?),
            None => (value, 1),
        };
        let (max, period) = starts.split_once('/')?;
        let period_ms = u64::try_from(parse_duration(period).ok()?.as_millis()).ok()?;
        Some(Rate { max: max.parse().ok()?, period_ms, burst })
    };
    read().ok_or_else(|| wrong(key, value))
}

fn or_none<T>(value: &str, read: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    if value == "none" { Ok(None) } else { read(value).map(Some) }
}

fn number(key: &str, value: &str) -> Result<u64> {
    value.parse().map_err(|_| wrong(key, value))
}

/// A number, with a unit if it is a round one.
fn bytes(key: &str, value: &str) -> Result<u64> {
    parse_size(value).map_err(|_| wrong(key, value))
}

fn duration(key: &str, value: &str) -> Result<Duration> {
    parse_duration(value).map_err(|_| wrong(key, value))
}

fn milliseconds(key: &str, value: &str) -> Result<u64> {
    let ms = duration(key, value)?.as_millis();
    u64::try_from(ms).map_err(|_| wrong(key, value))
}

fn wrong(key: &str, value: &str) -> Error {
    let value: String = value.chars().take(64).collect();
    let wrong = Error::invalid(format!("{value:?} is not a value of {key}"));
    let of_group = key.strip_prefix("groups.").and_then(|rest| rest.rsplit_once('.'));
    let known = of_group.map_or(key.to_owned(), |(_, limit)| format!("group.{limit}"));
    match QueueSettings::KEYS.iter().find(|(name, _)| *name == known) {
        Some((_, takes)) => wrong.with_hint(format!("write {takes}")),
        None => wrong,
    }
}

fn unknown(key: &str) -> Error {
    let shown: String = key.chars().take(64).collect();
    if key.starts_with("groups.") || key.starts_with("group.") {
        return Error::invalid(format!("unknown setting `{shown}`"))
            .with_hint("the settings of a group are weight, concurrency and rate");
    }
    let names = QueueSettings::KEYS.map(|(name, _)| name);
    Error::invalid(format!("unknown setting `{shown}`")).with_hint(match did_you_mean(key, names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the settings are {}", names.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read_again() {
        for (key, value) in [
            ("order", "lifo"),
            ("placement", "pinned"),
            ("max_jobs", "10"),
            ("max_bytes", "2MiB"),
            ("max_bytes", "2049KiB"),
            ("max_bytes", "1023"),
            ("concurrency", "5"),
            ("rate", "100/1m burst 10"),
            ("rate", "1/1h30m"),
            ("group.weight", "2"),
            ("group.concurrency", "3"),
            ("group.rate", "10/1s"),
            ("groups.a.b.weight", "5"),
            ("retention.done.age", "1d2h3m4s5ms"),
            ("retention.done.age", "0s"),
            ("retention.dead.count", "0"),
            ("retention.cancelled.bytes", "0"),
            ("defaults.priority", "low"),
            ("defaults.max_attempts", "3"),
            ("defaults.backoff", "exponential 5s..6h"),
            ("defaults.backoff", "fixed 1m30s..6h with jitter"),
            ("defaults.timeout", "1m"),
            ("defaults.lease", "20s"),
        ] {
            let mut settings = QueueSettings::default();
            settings.set_named(key, value).unwrap();
            assert_eq!(settings.named(key).as_deref(), Some(value), "{key}");
        }
        let settings = QueueSettings::default();
        for (key, takes) in QueueSettings::KEYS {
            let (text, mut same) = (settings.named(key).unwrap(), settings.clone());
            same.set_named(key, &text).unwrap();
            assert_eq!(same, settings, "{key}={text}");
            assert_eq!(text == "none", takes.ends_with("none"), "{key}={text}");
        }
        assert_eq!(settings.named("group.wait").or(settings.named("x")), None);
    }
}
