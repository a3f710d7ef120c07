//! The stored form of a queue's settings: numbers that scripts read, the name, and the settings as JSON.

use std::collections::HashMap;

use crate::{
    core::{
        digest::group_digest,
        error::{Error, ErrorKind, Result},
        time::ceil_ms,
    },
    store::{
        GroupLimits, Keep, Order, QueueSettings, Rate,
        redis::{
            scripts::bytes::{Bytes, Put},
            sharded::layout::Layout,
        },
        version_defaults::{Defaults, defaults},
    },
};

/// The largest number that a script represents exactly.
const EXACT_MAX: u64 = (1 << 53) - 2;

/// Stands for a value that was not chosen; the same as in the scripts.
pub(crate) const OPEN: u64 = (1 << 53) - 1;

/// The share of one of several shards in a queue's limits (S15, S17).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The shard.
    of: u16,
    shards: u16,
    /// The shard of a pinned queue.
    pinned_to: Option<u16>,
}

impl Share {
    /// Returns the share by a layout.
    pub(crate) fn of(layout: &Layout, queue: &str, shard: u16) -> Self {
        Self { of: shard, shards: layout.shards, pinned_to: layout.home_of_queue(queue) }
    }

    /// Divides a limit that all shards have together. A shard that accepts no jobs any more has a share, too. For a
    /// pinned queue, its shard has the whole limit, and so do shards that only accept jobs that follow others of
    /// their key.
    fn of_cap(self, cap: u64) -> u64 {
        if self.pinned_to.is_some() {
            return cap;
        }
        let shards = u64::from(self.shards);
        cap / shards + u64::from(u64::from(self.of) % shards < cap % shards)
    }

    /// Divides a limit of running or starting jobs. For a pinned queue, every shard that still has earlier jobs has
    /// the whole limit, so that these can run.
    fn of_limit(self, limit: u64) -> u64 {
        if self.pinned_to.is_some() { limit } else { self.of_cap(limit) }
    }

    /// Divides a bound of retention, which all shards together can exceed by less than one job each, beside the slack of each. If a queue keeps
    /// some jobs, each shard keeps some. For a pinned queue, its shard has the whole bound, and earlier jobs in
    /// others stay until their time.
    fn of_kept(self, bound: u64) -> u64 {
        bound.div_ceil(self.kept_by())
    }

    /// Returns among how many shards such a bound is divided.
    fn kept_by(self) -> u64 {
        if self.pinned_to == Some(self.of) { 1 } else { self.shards.into() }
    }
}

/// Returns the settings of a queue in the form that `lua/base.lua` reads: the shard's share of the limits, and the
/// whole settings. Values that equal a default are left open: each reader uses the default of its own version.
pub(crate) fn encode(name: &str, settings: &QueueSettings, version: u32, share: Share) -> Vec<u8> {
    let mut row = Vec::with_capacity(512);
    let kept = [settings.done, settings.cancelled, settings.dead];
    let flags = [settings.paused.is_some(), settings.order == Order::Lifo]
        .into_iter()
        .chain([settings.max_jobs.is_some() || settings.max_bytes.is_some()])
        .chain(kept.iter().map(Keep::keeps_nothing))
        .chain([settings.concurrency.is_some() || settings.rate.is_some()])
        .chain([!settings.group.are_none() || !settings.groups.is_empty()]);
    row.push(flags.enumerate().fold(0, |all, (bit, is_set)| all | u8::from(is_set) << bit));
    row.number(version.into(), 4);
    row.number(settings.defaults.lease.map_or(0, ceil_ms), 4);
    for cap in [settings.max_jobs, settings.max_bytes] {
        row.number(cap.map_or(0, |cap| share.of_cap(cap.min(EXACT_MAX)) + 1), 7);
    }
    let Defaults { short, long, .. } = defaults();
    for (kept, default) in kept.into_iter().zip([short, short, long]) {
        let Keep { age_ms, count, bytes } = kept;
        let bounds = if kept == default {
            [OPEN, share.kept_by(), 0]
        } else {
            [age_ms, share.of_kept(count), share.of_kept(bytes)].map(|bound| bound.min(EXACT_MAX))
        };
        for bound in bounds {
            row.number(bound, 7);
        }
    }
    let limit = |n: u32| share.of_limit(n.into());
    row.number(settings.concurrency.map_or(0, |n| limit(n) + 1), 7);
    let rate = settings.rate.unwrap_or(Rate { max: 0, period_ms: 0, burst: 0 });
    row.number(limit(rate.max), 4);
    row.number(rate.period_ms, 7);
    // Each shard can start at least one job at once, so together as many as there are shards.
    row.number(if rate.burst == 0 { 0 } else { limit(rate.burst).max(1) }, 4);
    row.extend_from_slice(&group_limits(settings.group));
    row.chunk(name.as_bytes());
    row.extend_from_slice(settings.stored().as_bytes());
    row
}

/// Returns the limits of a group in the form that the scripts read: weight, concurrency plus 1 (0: unlimited), rate.
fn group_limits(limits: GroupLimits) -> Vec<u8> {
    let mut row = Vec::with_capacity(23);
    row.number(limits.weight().into(), 1);
    row.number(limits.concurrency.map_or(0, |n| u64::from(n) + 1), 7);
    let rate = limits.rate.unwrap_or(Rate { max: 0, period_ms: 0, burst: 0 });
    row.number(rate.max.into(), 4);
    row.number(rate.period_ms, 7);
    row.number(rate.burst.into(), 4);
    row
}

/// Returns the limits of single groups in the form that `lua/verbs/queue/set.lua` takes: the digest of each group, and its
/// limits.
pub(crate) fn encode_groups(settings: &QueueSettings) -> Vec<Vec<u8>> {
    let groups = settings.groups.keys();
    groups.flat_map(|name| [group_digest(name).to_vec(), group_limits(settings.of_group(name))]).collect()
}

/// Returns the settings of a row, and their version.
pub(crate) fn decode(row: &[u8]) -> Result<(u32, QueueSettings)> {
    let mut row = Bytes(row);
    row.byte()?;
    let version = row.number(4)? as u32;
    row.take(4 + 11 * 7 + 7 + 4 + 7 + 4 + 23)?;
    row.chunk()?;
    let settings = serde_json::from_slice(row.0)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "read the settings of a queue").with_source(e))?;
    Ok((version, settings))
}

/// What this process knows of queues. The store reports when that is outdated. Bounded: it is forgotten as a whole.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<String, (u32, QueueSettings)>);

impl Known {
    const QUEUES_MAX: usize = 10_000;

    pub(crate) fn of(&self, queue: &str) -> (u32, QueueSettings) {
        self.0.get(queue).cloned().unwrap_or_default()
    }

    pub(crate) fn learn(&mut self, queue: &str, row: &[u8]) -> Result<()> {
        if row.is_empty() {
            self.0.remove(queue);
            return Ok(());
        }
        if Self::QUEUES_MAX <= self.0.len() {
            self.0.clear();
        }
        self.0.insert(queue.to_owned(), decode(row)?);
        Ok(())
    }
}
