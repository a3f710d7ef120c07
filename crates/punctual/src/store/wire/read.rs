//! Bodies of the other calls: enqueue, wait, reads, queues and upkeep. What has no body here is its own form.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::items;
use crate::{
    core::{
        error::Result,
        filter::Filter,
        id::JobId,
        json::{ms, opt_hex},
        time::Timestamp,
    },
    store::{CallId, Check, Durability, Enqueued, Identity, List, ListCursor, QueueOp, UniqueKey},
};

/// The body of a call without arguments.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// The body of an enqueue. `J` is the form of a new job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnqueueBody<J> {
    /// A random number of the caller, as hexadecimal digits. Without it, only jobs with ids or keys can be enqueued again.
    #[serde(default, with = "opt_hex", skip_serializing_if = "Option::is_none")]
    pub instance: Option<u128>,
    /// The number of the call, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    /// Whether jobs whose part of the store is unavailable get the answer `null` (default: the call then fails).
    #[serde(default)]
    pub partial: bool,
    /// The jobs, at most 1,000.
    #[serde(deserialize_with = "items", bound(deserialize = "J: Deserialize<'de>"))]
    pub jobs: Vec<J>,
}

impl<J> EnqueueBody<J> {
    /// Returns the number of the call; `None` if the caller gave none.
    ///
    /// # Errors
    /// `Invalid` if the caller gave only one half of it.
    pub fn number(&self) -> Result<Option<CallId>> {
        super::number(self.instance, self.call)
    }
}

/// The answers to an enqueue, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnqueueReply {
    /// What became of each job.
    pub results: Vec<Option<Enqueued>>,
    /// The shard for which the caller should make its next ids.
    #[serde(default)]
    pub shard: u16,
}

/// Longest wait of one request. Proxies end requests that are silent for a minute.
pub const WAIT_MAX: Duration = Duration::from_secs(25);

/// The body of a wait.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitBody {
    /// Queues, or the other names that [`Store::wait`](crate::store::Store::wait) knows: at most 1,000.
    #[serde(deserialize_with = "items")]
    pub queues: Vec<String>,
    /// The longest wait in milliseconds. The server returns after [`WAIT_MAX`] at the latest.
    #[serde(with = "ms", rename = "at_most_ms")]
    pub at_most: Duration,
}

/// The answer to a wait. It does not say why the wait ended.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WaitReply {}

/// The body of a get.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetBody {
    /// The job.
    pub id: JobId,
}

/// The body of a holder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HolderBody {
    /// The key.
    pub key: UniqueKey,
}

/// A job, if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobReply<J> {
    /// The job.
    pub job: Option<J>,
}

/// The answer to a take.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobsReply<J> {
    /// The jobs.
    pub jobs: Vec<J>,
}

/// The body of a list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListBody {
    /// Which jobs (default: all).
    #[serde(default)]
    pub filter: Filter,
    /// Where to continue: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<ListCursor>,
    /// The most jobs, 1 to 1,000.
    pub limit: usize,
}

impl From<&List> for ListBody {
    fn from(list: &List) -> Self {
        Self { filter: list.filter.clone(), cursor: list.after.clone(), limit: list.limit }
    }
}

impl From<ListBody> for List {
    fn from(body: ListBody) -> Self {
        Self { filter: body.filter, after: body.cursor, limit: body.limit }
    }
}

/// A page of jobs. `J` is the form of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct PageBody<J> {
    /// The time by the store's clock.
    pub now_ms: Timestamp,
    /// The matching jobs.
    pub jobs: Vec<J>,
    /// Where to continue; absent if everything was searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<ListCursor>,
    /// The jobs that this call read.
    pub searched: u64,
    /// The jobs in the store.
    pub total: u64,
}

/// The body of a count.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CountBody {
    /// The queue (default: all).
    pub queue: Option<String>,
}

/// The body of a call on one queue.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueCallBody {
    /// The name of the queue.
    pub name: String,
    /// What to do.
    pub op: QueueOp,
}

/// The body of a listing of queues.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuesBody {
    /// The name after which to continue.
    pub after: Option<String>,
}

/// The names of queues.
#[derive(Debug, Serialize, Deserialize)]
pub struct QueuesReply {
    /// At most 1,000, sorted by bytes.
    pub names: Vec<String>,
}

/// The body of a sweep.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepBody {
    /// The most items, 1 to 1,000.
    pub limit: usize,
}

/// The checks of a doctor.
#[derive(Debug, Serialize, Deserialize)]
pub struct DoctorReply {
    /// The checks.
    pub checks: Vec<Check>,
}

/// The time by the store's clock.
#[derive(Debug, Serialize, Deserialize)]
pub struct NowReply {
    /// The time.
    pub now_ms: Timestamp,
}

/// What a store says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoreReply {
    /// What an acknowledged job survives.
    pub durability: Durability,
    /// The shard for which the caller should make its next ids.
    pub shard: u16,
    /// The version of the server.
    pub version: String,
}

/// The identity of a store.
#[derive(Debug, Serialize, Deserialize)]
pub struct IdentityReply {
    /// 16 hexadecimal digits.
    pub identity: Identity,
}
