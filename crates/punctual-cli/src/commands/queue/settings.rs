//! Reads `key=value` for the settings of a queue.

use punctual::{Error, Result, store::QueueSettings};

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
    settings.set_named(key, value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual::{
        Priority,
        store::{GroupLimits, Order, Placement, Rate},
    };

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
        for (key, _) in QueueSettings::KEYS {
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
