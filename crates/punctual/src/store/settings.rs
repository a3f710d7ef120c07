//! What is set of a queue; it lives in the store, and is live for every worker.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    job::JobOptions,
    limits::QUEUE_CONCURRENCY_MAX,
    rate::Rate,
};

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
    /// Payload bytes.
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
        Self {
            paused: None,
            order: Order::Fifo,
            placement: Placement::Spread,
            max_jobs: None,
            max_bytes: None,
            concurrency: None,
            rate: None,
            done: Keep::SHORT,
            dead: Keep::LONG,
            cancelled: Keep::SHORT,
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
        if let Some(n) = self.concurrency.filter(|n| !(1..=QUEUE_CONCURRENCY_MAX).contains(n)) {
            return Err(Error::invalid(format!(
                "concurrency {n} is not within 1 to {QUEUE_CONCURRENCY_MAX}"
            ))
            .with_hint("pause the queue if nothing shall run"));
        }
        self.rate.map_or(Ok(()), |rate| rate.check())?;
        self.defaults.check()
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
