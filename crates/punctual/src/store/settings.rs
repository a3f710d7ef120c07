//! The settings of a queue. They are stored, and take effect for all workers at once.

mod named;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, Result},
    job::JobOptions,
    limits::{
        CONCURRENCY_MAX, GROUP_LIMITS_MAX, GROUP_WEIGHT_MAX, KEEP_SLACK_BYTES_MAX, KEEP_SLACK_DIVISOR,
        KEEP_SLACK_JOBS_MAX, NAME_BYTES_MAX, QUEUE_CONCURRENCY_MAX,
    },
    pause::Pause,
    rate::Rate,
};

use super::version_defaults::defaults;

/// The order of a queue after its priorities (S6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// By `run_at`, then id.
    #[default]
    Fifo,
    /// The reverse.
    Lifo,
}

/// Where the jobs of a queue are, in a store with several shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In all shards. Jobs with a placement key are placed by it.
    #[default]
    Spread,
    /// In one shard, by the name of the queue. Its order and limits are exact, and one server does all its work.
    Pinned,
}

/// How long ended jobs of one state are kept.
///
/// The first bound reached applies; 0 in any of them keeps nothing. Jobs and bytes can exceed their bound for a while, by a sixteenth
/// of it (S17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// The age since the end, in milliseconds.
    pub age_ms: u64,
    /// The number of jobs.
    pub count: u64,
    /// The bytes of payloads and results.
    pub bytes: u64,
}

impl Keep {
    /// Done and cancelled jobs: 24 h, 10,000 jobs, 64 MiB.
    pub const SHORT: Self = Self { age_ms: 24 * 3_600_000, count: 10_000, bytes: 64 << 20 };
    /// Dead jobs: 90 d, 100,000 jobs, 256 MiB.
    pub const LONG: Self = Self { age_ms: 90 * 24 * 3_600_000, count: 100_000, bytes: 256 << 20 };
    /// Nothing.
    pub const NOTHING: Self = Self { age_ms: 0, count: 0, bytes: 0 };

    /// Returns whether ended jobs are removed in the step that ends them.
    pub const fn keeps_nothing(&self) -> bool {
        self.age_ms == 0 || self.count == 0 || self.bytes == 0
    }

    /// Returns whether `jobs` or `bytes` exceeds its bound.
    pub(crate) const fn is_exceeded(&self, jobs: u64, bytes: u64) -> bool {
        self.count < jobs || self.bytes < bytes
    }

    /// Returns the bounds with their slack. Upkeep as a part of another call starts above these, and removes down to `self`.
    pub(crate) fn with_slack(self) -> Self {
        Self {
            count: self.count.saturating_add((self.count / KEEP_SLACK_DIVISOR).min(KEEP_SLACK_JOBS_MAX)),
            bytes: self.bytes.saturating_add((self.bytes / KEEP_SLACK_DIVISOR).min(KEEP_SLACK_BYTES_MAX)),
            ..self
        }
    }
}

/// The settings of a queue.
///
/// They are stored, and take effect for all workers at once.
///
/// A setting that equals its default is not stored: each reader uses the default of its own version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// The pause, if it is paused. Nothing is reserved or taken meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// The order after the priorities.
    pub order: Order,
    /// Where its jobs are.
    pub placement: Placement,
    /// The most waiting and running jobs. Further enqueues return `Full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// The most payload bytes of waiting and running jobs. Further enqueues return `Full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// The most jobs that run at once, 1 to 1,000,000 (S15). With several shards each has a fixed share, unless the
    /// queue is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often jobs can start (S15). It is shared as `concurrency` is. A queue over several shards starts as many
    /// jobs at once as there are shards if its burst is smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The limits of each group that has none of its own.
    #[serde(skip_serializing_if = "GroupLimits::are_none")]
    pub group: GroupLimits,
    /// The limits of single groups, by name, at most 1,000. A missing value is that of all groups.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, GroupLimits>,
    /// Retention of done jobs.
    pub done: Keep,
    /// Retention of dead jobs.
    pub dead: Keep,
    /// Retention of cancelled jobs.
    pub cancelled: Keep,
    /// Defaults of the queue for options that neither call nor type chose. Applied at the enqueue.
    pub defaults: JobOptions,
}

impl Default for QueueSettings {
    fn default() -> Self {
        let of = defaults();
        Self {
            paused: None,
            order: Order::Fifo,
            placement: Placement::Spread,
            max_jobs: None,
            max_bytes: None,
            concurrency: None,
            rate: None,
            group: GroupLimits::default(),
            groups: BTreeMap::new(),
            done: of.short,
            dead: of.long,
            cancelled: of.short,
            defaults: JobOptions::default(),
        }
    }
}

impl QueueSettings {
    /// Checks limits and defaults.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
    pub fn check(&self) -> Result<()> {
        check_concurrency(self.concurrency, QUEUE_CONCURRENCY_MAX)?;
        self.rate.map_or(Ok(()), |rate| rate.check())?;
        self.group.check()?;
        if GROUP_LIMITS_MAX < self.groups.len() {
            let n = self.groups.len();
            return Err(Error::invalid(format!(
                "{n} groups have limits of their own; at most {GROUP_LIMITS_MAX} may"
            ))
            .with_hint("set the limits of most groups for all groups"));
        }
        for (name, limits) in &self.groups {
            if name.is_empty() || NAME_BYTES_MAX < name.len() {
                return Err(Error::invalid(format!(
                    "the name of a group has {} bytes, not 1 to {NAME_BYTES_MAX}",
                    name.len()
                )));
            }
            limits.check().map_err(|e| Error::invalid(format!("group {name:?}: {e}")))?;
        }
        self.defaults.check()
    }

    /// Returns the settings in force if the stored ones cannot be read: a newer version may have written them, so nothing is allowed that they
    /// might forbid.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn unreadable() -> Self {
        let reason =
            "its settings can't be read by this version; set them anew, or start the version that wrote them";
        let pause = Pause { since_ms: 0, by: "punctual".to_owned(), reason: reason.to_owned() };
        let all = Keep { age_ms: u64::MAX, count: u64::MAX, bytes: u64::MAX };
        Self { paused: Some(pause), done: all, dead: all, cancelled: all, ..Self::default() }
    }

    /// Returns the stored form: JSON without the settings that equal their defaults.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn stored(&self) -> String {
        let json = |settings: &Self| match serde_json::to_value(settings) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => unreachable!("invariant: settings are plain data, which JSON can hold"),
        };
        let (mut fields, open) = (json(self), json(&Self::default()));
        fields.retain(|name, value| open.get(name) != Some(value));
        serde_json::Value::Object(fields).to_string()
    }

    /// Returns the limits of a group: its own, else those of all groups.
    #[must_use]
    pub fn of_group(&self, group: &str) -> GroupLimits {
        let own = self.groups.get(group).copied().unwrap_or_default();
        GroupLimits {
            weight: own.weight.or(self.group.weight),
            concurrency: own.concurrency.or(self.group.concurrency),
            rate: own.rate.or(self.group.rate),
        }
    }
}

fn check_concurrency(concurrency: Option<u32>, max: u32) -> Result<()> {
    match concurrency.filter(|n| !(1..=max).contains(n)) {
        None => Ok(()),
        Some(n) => Err(Error::invalid(format!("concurrency {n} is not within 1 to {max}"))
            .with_hint("pause the queue if no job should run")),
    }
}

/// The limits of a group in its queue (S15, S16).
///
/// A group lives in one shard, so its limits are exact. While the number of shards or a pin changes, those of old and
/// new shards add up until the old shards are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupLimits {
    /// Its share beside other groups with due jobs, 1 to 100 (default: 1). Ungrouped jobs are one group of weight 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The most of its jobs that run at once, 1 to 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often its jobs can start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl GroupLimits {
    /// Returns whether no limit is set.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the weight in force.
    pub(crate) fn weight(&self) -> u32 {
        self.weight.unwrap_or(1)
    }

    fn check(&self) -> Result<()> {
        if let Some(weight) = self.weight.filter(|weight| !(1..=GROUP_WEIGHT_MAX).contains(weight)) {
            return Err(Error::invalid(format!("weight {weight} is not within 1 to {GROUP_WEIGHT_MAX}")));
        }
        check_concurrency(self.concurrency, CONCURRENCY_MAX)?;
        self.rate.map_or(Ok(()), |rate| rate.check())
    }
}
