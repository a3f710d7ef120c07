//! Reads `key=value` for the settings of a queue.

use std::time::Duration;

use punctual::{
    Error, Result,
    job::{did_you_mean, parse_duration},
    store::{GroupLimits, Order, Placement, QueueSettings, Rate},
};

/// Every key and the values that it takes.
pub(crate) const KEYS: [(&str, &str); 26] = [
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

const WEIGHT: &str = "a number from 1 to 100, or none";

/// The list of keys below the options of `queue set --help`.
pub(crate) const HELP: &str = "\
Keys:
  order=fifo|lifo                        earlier or later due jobs first, within a priority (default: fifo)
  placement=spread|pinned                all shards of a store on Redis, or one of them (default: spread)
  max_jobs=N, max_bytes=64MiB            cap of waiting and running jobs and their payloads (default: none)
  concurrency=N                          jobs that may run at once (default: none)
  rate=100/1m, rate=\"100/1m burst 10\"    starts per period, evenly or with a burst (default: none)
  group.{weight,concurrency,rate}        limits of each group; a weight is its share, 1 to 100 (default: 1)
  groups.NAME.{weight,concurrency,rate}  limits of the group NAME, which override those of all groups
  retention.STATE.age=24h                how long ended jobs are kept (default: 24 h, dead 90 d)
  retention.STATE.count=N                number of ended jobs that are kept (default: 10,000, dead 100,000)
  retention.STATE.bytes=64MiB            size of their payloads (default: 64 MiB, dead 256 MiB)
  defaults.KEY=VALUE                     value for jobs that have none of their own (default: none)

STATE is done, dead or cancelled; an age of 0s keeps no jobs. KEY is priority, max_attempts, backoff, timeout or lease.

Examples:
  punctual queue set mail order=lifo defaults.max_attempts=5
  punctual queue set mail retention.done.age=7d group.concurrency=2
  punctual queue set --from queues.json";

/// Applies one `key=value` to the settings.
pub(super) fn apply(settings: &mut QueueSettings, change: &str) -> Result<()> {
    // The name of a group may hold anything, what a group may have holds no `=`.
    let parts = if change.starts_with("groups.") { change.rsplit_once('=') } else { change.split_once('=') };
    let (key, value) = parts.ok_or_else(|| {
        Error::invalid(format!("{change:?} is not a setting"))
            .with_hint("write key=value, such as order=lifo")
    })?;
    if let Some(rest) = key.strip_prefix("retention.")
        && let Some((state, bound)) = rest.split_once('.')
    {
        let keep = match state {
            "done" => Some(&mut settings.done),
            "dead" => Some(&mut settings.dead),
            "cancelled" => Some(&mut settings.cancelled),
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
        return limit_group(&mut settings.group, key, limit, value);
    }
    if let Some((name, limit)) = key.strip_prefix("groups.").and_then(|rest| rest.rsplit_once('.')) {
        let mut limits = settings.groups.get(name).copied().unwrap_or_default();
        limit_group(&mut limits, key, limit, value)?;
        if limits.are_none() {
            settings.groups.remove(name);
        } else {
            settings.groups.insert(name.to_owned(), limits);
        }
        return Ok(());
    }
    let defaults = &mut settings.defaults;
    match key {
        "order" => {
            settings.order = match value {
                "fifo" => Order::Fifo,
                "lifo" => Order::Lifo,
                _ => return Err(wrong(key, value)),
            }
        }
        "placement" => {
            settings.placement = match value {
                "spread" => Placement::Spread,
                "pinned" => Placement::Pinned,
                _ => return Err(wrong(key, value)),
            }
        }
        "max_jobs" => settings.max_jobs = or_none(value, |v| number(key, v))?,
        "max_bytes" => settings.max_bytes = or_none(value, |v| bytes(key, v))?,
        "concurrency" => {
            settings.concurrency = or_none(value, |v| v.parse().map_err(|_| wrong(key, v)))?;
        }
        "rate" => settings.rate = or_none(value, |v| rate(key, v))?,
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
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let (digits, shift) = units
        .into_iter()
        .find_map(|(unit, shift)| Some((value.strip_suffix(unit)?, shift)))
        .unwrap_or((value, 0));
    let n = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    n.ok_or_else(|| wrong(key, value))
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
    match KEYS.iter().find(|(name, _)| *name == known) {
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
    let names = KEYS.map(|(name, _)| name);
    Error::invalid(format!("unknown setting `{shown}`")).with_hint(match did_you_mean(key, names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the settings are {}", names.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use punctual::Priority;

    use super::*;

    #[test]
    fn every_key_is_applied() {
        let mut settings = QueueSettings::default();
        for change in [
            "order=lifo",
            "placement=pinned",
            "max_jobs=10",
            "max_bytes=2MiB",
            "concurrency=5",
            "rate=100/1m burst 10",
            "group.weight=2",
            "group.rate=10/1s",
            "groups.acme.com.weight=5",
            "groups.acme.com.concurrency=3",
            "groups.a=b.rate=1/1s burst 2",
            "retention.done.age=1h",
            "retention.dead.count=5",
            "retention.cancelled.bytes=0",
            "defaults.priority=low",
            "defaults.max_attempts=3",
            "defaults.backoff=fixed 30s",
            "defaults.timeout=1m",
            "defaults.lease=20s",
        ] {
            apply(&mut settings, change).unwrap();
        }
        assert_eq!(
            (settings.order, settings.placement, settings.max_jobs, settings.max_bytes),
            (Order::Lifo, Placement::Pinned, Some(10), Some(2 << 20))
        );
        assert_eq!((settings.done.age_ms, settings.dead.count, settings.cancelled.bytes), (3_600_000, 5, 0));
        assert_eq!(settings.defaults.priority, Some(Priority::Low));
        assert_eq!(settings.defaults.lease, Some(Duration::from_secs(20)));
        let rate = |burst| Some(Rate { max: 100, period_ms: 60_000, burst });
        assert_eq!((settings.concurrency, settings.rate), (Some(5), rate(10)));
        let second = |max, burst| Some(Rate { max, period_ms: 1_000, burst });
        let of_all = GroupLimits { weight: Some(2), concurrency: None, rate: second(10, 1) };
        let acme = GroupLimits { weight: Some(5), concurrency: Some(3), rate: None };
        let odd = GroupLimits { rate: second(1, 2), ..GroupLimits::default() };
        assert_eq!(settings.group, of_all);
        assert_eq!(settings.groups, [("acme.com".to_owned(), acme), ("a=b".to_owned(), odd)].into());
        for change in ["groups.a=b.rate=none", "groups.acme.com.weight=none", "group.weight=none"] {
            apply(&mut settings, change).unwrap();
        }
        let acme = GroupLimits { weight: None, ..acme };
        assert_eq!(settings.groups, [("acme.com".to_owned(), acme)].into(), "nothing is left of the other");
        assert_eq!(settings.group, GroupLimits { weight: None, ..of_all });
        apply(&mut settings, "rate=100/1m").unwrap();
        assert_eq!(settings.rate, rate(1));
        apply(&mut settings, "rate=none").unwrap();
        assert_eq!(settings.rate, None);
        apply(&mut settings, "max_jobs=none").unwrap();
        apply(&mut settings, "placement=spread").unwrap();
        assert_eq!((settings.max_jobs, settings.placement), (None, Placement::Spread));
    }

    #[test]
    fn every_key_that_is_suggested_exists() {
        for (key, _) in KEYS {
            let message = apply(&mut QueueSettings::default(), &format!("{key}=?")).unwrap_err().to_string();
            assert!(!message.starts_with("unknown"), "{key}: {message}");
        }
    }

    #[test]
    fn slips_are_named() {
        let mut settings = QueueSettings::default();
        assert_eq!(apply(&mut settings, "max_job=1").unwrap_err().hint(), Some("did you mean `max_jobs`?"));
        let wrong = apply(&mut settings, "groups.acme.weight=heavy").unwrap_err();
        assert_eq!(wrong.to_string(), "\"heavy\" is not a value of groups.acme.weight");
        assert_eq!(wrong.hint(), Some("write a number from 1 to 100, or none"));
        let unknown = apply(&mut settings, "groups.acme.wait=3").unwrap_err();
        assert_eq!(unknown.hint(), Some("the settings of a group are weight, concurrency and rate"));
        for change in [
            "order",
            "order=up",
            "placement=here",
            "retention.done.size=1",
            "max_bytes=99999999999GiB",
            "max_jobs=-1",
            "concurrency=-1",
            "rate=100",
            "rate=100/",
            "rate=x/1m",
            "rate=100/1m burst",
            "group=3",
            "group.wait=3",
            "group.weight=heavy",
            "groups.acme=3",
            "groups.acme.wait=3",
            "groups.acme.concurrency=-1",
            "groups.acme.rate=5",
        ] {
            assert!(apply(&mut settings, change).is_err(), "{change}");
        }
    }
}
