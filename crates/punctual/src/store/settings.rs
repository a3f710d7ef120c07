//! What is set of a queue; it lives in the store, and is live for every worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, Result},
    job::JobOptions,
    limits::{CONCURRENCY_MAX, GROUP_LIMITS_MAX, GROUP_WEIGHT_MAX, NAME_BYTES_MAX, QUEUE_CONCURRENCY_MAX},
    rate::Rate,
};

use super::defaults::defaults;

/// Order of a queue behind its priorities (S6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// `run_at`, then id.
    #[default]
    Fifo,
    /// The reverse.
    Lifo,
}

/// Where the jobs of a queue live in a store of several shards; with one it changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In all of them: what has a placement key is placed by that.
    #[default]
    Spread,
    /// In one, by the queue's name: its order and its bounds are exact, and one server does all of it.
    Pinned,
}

/// How long ended jobs of one state are kept; whichever bound comes first. 0 in any of them keeps nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Milliseconds since the end.
    pub age_ms: u64,
    /// Jobs.
    pub count: u64,
    /// Bytes of payloads and results.
    pub bytes: u64,
}

impl Keep {
    /// Done and cancelled jobs: 24 h, 10,000 jobs, 64 MiB.
    pub const SHORT: Self = Self { age_ms: 24 * 3_600_000, count: 10_000, bytes: 64 << 20 };
    /// Dead jobs: 90 d, 100,000 jobs, 256 MiB.
    pub const LONG: Self = Self { age_ms: 90 * 24 * 3_600_000, count: 100_000, bytes: 256 << 20 };
    /// Nothing.
    pub const NOTHING: Self = Self { age_ms: 0, count: 0, bytes: 0 };

    /// Whether ended jobs are removed in the step that ends them.
    pub const fn keeps_nothing(&self) -> bool {
        self.age_ms == 0 || self.count == 0 || self.bytes == 0
    }
}

/// Settings of a queue; they live in the store and are live for every worker.
///
/// A setting that equals its default is not stored: whoever reads the queue uses the default of its own version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// Nothing is reserved or taken while it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// Order behind the priorities.
    pub order: Order,
    /// Where its jobs live.
    pub placement: Placement,
    /// Most waiting and running jobs; more are answered `Full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// Most payload bytes of waiting and running jobs; more are answered `Full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Most jobs that run at once (S15), 1 to 1,000,000. With several shards each has a fixed share, unless the queue is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often jobs may start (S15); shared as `concurrency` is. A spread queue of a store of several shards starts as many at
    /// once as there are shards, where its burst is smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// What each group may have, where it is not told for the group alone.
    #[serde(skip_serializing_if = "GroupLimits::are_none")]
    pub group: GroupLimits,
    /// What single groups may have, by their names, at most 1,000; what is missing there is as for all groups.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, GroupLimits>,
    /// Retention of done jobs.
    pub done: Keep,
    /// Retention of dead jobs.
    pub dead: Keep,
    /// Retention of cancelled jobs.
    pub cancelled: Keep,
    /// Options for jobs whose call and type chose none; applied at the enqueue.
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
    /// `Invalid`.
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

    /// What a store keeps of them: JSON without what equals its default.
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

    /// What a group may have: its own limits, else those of all groups.
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

/// What a group may have of its queue (S15, S16). A group lives in one shard, so that its limits are exact however many there
/// are; while their number or a pin changes, those of old and new shards add up until the old ones are drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupLimits {
    /// Its share beside others that have due jobs, 1 to 100; 1 unless said otherwise. Jobs without a group are one of weight 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Most of its jobs that run at once, 1 to 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often its jobs may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl GroupLimits {
    /// Whether they say nothing.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// The weight that counts.
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

/// Since when a queue is paused, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Unix milliseconds.
    pub since_ms: u64,
    /// Whoever paused it, for people.
    pub by: String,
    /// Why, for people.
    pub reason: String,
}
