//! Queues over all shards. Every shard has the settings of each queue, and its share of the limits. Settings are
//! decided in shard 0; a caller that changes them copies them to the other shards before it gets its answer. The
//! placement of a queue is part of the layout. The settings are one step ahead of it: a process that finds a
//! difference changes the layout.

use std::collections::BTreeSet;

use super::all;
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::cut_error,
        limits::BATCH_MAX,
    },
    store::{
        Pause, Placement, QueueInfo, QueueOp, QueueReply, QueueSettings, check_queue_op,
        redis::{
            Live, RedisStore,
            verbs::{
                queue::{self, New, Seen, Set},
                read,
            },
        },
    },
};

/// How often settings can change during one call.
const TRIES_MAX: usize = 16;
/// The version of a queue without settings. A shard has the queue once it has had a job of it.
const DEFAULT_VERSION: u32 = 1;

pub(crate) async fn queue(store: &RedisStore, name: &str, op: &QueueOp) -> Result<QueueReply> {
    check_queue_op(name, op)?;
    let mut live = store.refresh().await?;
    if let QueueOp::Purge(limit) = op {
        return purge(&live, name, *limit).await;
    }
    let mut op = op;
    if let QueueOp::Open { group } = op {
        // A queue is in each shard, and a group in one of them, which is found by asking all.
        all(live.shards.iter().map(|shard| queue::open(shard, name, group.as_deref()))).await?;
        op = &QueueOp::Show;
    }
    for _ in 0..TRIES_MAX {
        let seen = all(live.shards.iter().map(|shard| queue::see(shard, name))).await?;
        let decided = seen.first().map_or(0, |seen| seen.version);
        let is_whole = seen.iter().all(|other| other.version == decided);
        let seen = merge(seen);
        if DEFAULT_VERSION < seen.version && !is_whole {
            // The caller that set it was interrupted.
            let (layout, epoch) = (&live.layout, live.layout.epoch);
            let new = New { name, settings: &seen.settings, version: seen.version, layout, epoch };
            copy(&live, &new, 0).await?;
            live = store.refresh().await?;
            continue;
        }
        let placement = live.layout.placement(name);
        if 0 < seen.version && seen.settings.placement != placement {
            live = store.place_queue(&live, name, seen.settings.placement).await?;
            continue;
        }
        let makes = matches!(op, QueueOp::Pause { .. } | QueueOp::Set(_) | QueueOp::Replace(_));
        if seen.version == 0 && !makes {
            return Ok(QueueReply::Unknown);
        }
        let settings = match op {
            QueueOp::Show | QueueOp::Open { .. } | QueueOp::Purge(_) => {
                return Ok(QueueReply::Info(info(name, seen)));
            }
            QueueOp::Resume => QueueSettings { paused: None, ..seen.settings.clone() },
            QueueOp::Pause { by, reason } => {
                let (by, reason) = (cut_error(by).to_owned(), cut_error(reason).to_owned());
                QueueSettings {
                    paused: Some(Pause { since_ms: seen.now.as_ms(), by, reason }),
                    ..seen.settings.clone()
                }
            }
            QueueOp::Set(new) => QueueSettings { paused: seen.settings.paused.clone(), ..(**new).clone() },
            QueueOp::Replace(change) if !change.fits(&seen.settings) => {
                return Ok(QueueReply::Conflict(info(name, seen)));
            }
            QueueOp::Replace(change) => {
                QueueSettings { paused: seen.settings.paused.clone(), ..change.new.clone() }
            }
        };
        check_caps(name, &settings, live.layout.shards)?;
        let (layout, epoch) = (&live.layout, live.layout.epoch);
        let is_placed = settings.placement == placement;
        if !is_placed {
            layout.placing(name, settings.placement, epoch, seen.now)?;
        }
        let new =
            New { name, settings: &settings, version: seen.version.max(DEFAULT_VERSION) + 1, layout, epoch };
        match queue::set(&live.shards[0], &new, Some(decided)).await? {
            Set::Done => {
                let is_copied = copy(&live, &new, 1).await?;
                if is_copied {
                    // What is left is to finish the change as after an interrupted caller, or to pass on its
                    // consequences.
                    op = &QueueOp::Show;
                }
                if !(is_copied && is_placed) {
                    live = store.refresh().await?;
                }
            }
            Set::Others => {}
            Set::Moved => live = store.refresh().await?,
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("the settings of queue {name:?} keep changing")))
}

/// Copies to the shards from `first` on what was decided in shard 0; returns `false` if there is a later layout.
async fn copy(live: &Live, new: &New<'_>, first: usize) -> Result<bool> {
    let told = all(live.shards.iter().skip(first).map(|shard| queue::set(shard, new, None))).await?;
    Ok(!told.iter().any(|set| matches!(set, Set::Moved)))
}

/// Copies the settings of all queues to the shards from `first` on, with their shares by the layout, in calls of this
/// epoch.
pub(crate) async fn copy_all(live: &Live, first: usize, epoch: u32) -> Result<()> {
    let mut after = None;
    while let Some(names) = next_names(live, &mut after).await? {
        for name in &names {
            copy_one(live, name, first, epoch).await?;
        }
    }
    Ok(())
}

/// Copies the settings of one queue.
pub(crate) async fn copy_one(live: &Live, name: &str, first: usize, epoch: u32) -> Result<()> {
    let seen = merge(all(live.shards.iter().map(|shard| queue::see(shard, name))).await?);
    let new = New { name, settings: &seen.settings, version: seen.version, layout: &live.layout, epoch };
    copy(live, &new, first).await?;
    Ok(())
}

/// Refuses to use more shards for a queue than its limits of jobs, bytes, running jobs or starts per period (S15). A
/// pinned queue has them in one shard.
///
/// # Errors
/// `Conflict` if there are more.
pub(crate) fn check_caps(name: &str, settings: &QueueSettings, shards: u16) -> Result<()> {
    if settings.placement == Placement::Pinned {
        return Ok(());
    }
    let (concurrency, rate) =
        (settings.concurrency.map(u64::from), settings.rate.map(|rate| u64::from(rate.max)));
    for (what, cap) in [
        ("max_jobs", settings.max_jobs),
        ("max_bytes", settings.max_bytes),
        ("concurrency", concurrency),
        ("rate", rate),
    ] {
        if let Some(cap) = cap.filter(|cap| 0 < *cap && *cap < shards.into()) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("queue {name:?} has {what} {cap}, too few to be shared by {shards} shards"),
            )
            .with_hint(format!(
                "set the cap to {shards} or more or to none, pin the queue, or use fewer shards"
            )));
        }
    }
    Ok(())
}

/// Merges what all shards know of a queue. The settings are those that were decided last.
fn merge(seen: Vec<Seen>) -> Seen {
    let merged = seen.into_iter().reduce(|sum, other| {
        let counts = read::sum(sum.counts, other.counts);
        let oldest_due = sum.oldest_due.into_iter().chain(other.oldest_due).min();
        let oldest_blocked = sum.oldest_blocked.into_iter().chain(other.oldest_blocked).min();
        // If one shard is open, the queue is. For a pinned queue, only its shard counts.
        let opens_at = match sum.settings.placement {
            Placement::Spread => sum.opens_at.and_then(|one| Some(one.min(other.opens_at?))),
            Placement::Pinned => sum.opens_at.max(other.opens_at),
        };
        // If both are equally new, the first one wins, which is that of shard 0.
        let newer = if sum.version < other.version { other } else { sum };
        Seen { counts, oldest_due, oldest_blocked, opens_at, ..newer }
    });
    merged.expect("invariant: a store has a shard")
}

fn info(name: &str, seen: Seen) -> Box<QueueInfo> {
    let Seen { settings, counts, oldest_due, oldest_blocked, opens_at, .. } = seen;
    Box::new(QueueInfo { name: name.to_owned(), settings, counts, oldest_due, oldest_blocked, opens_at })
}

async fn purge(live: &Live, name: &str, limit: usize) -> Result<QueueReply> {
    let (mut purged, mut is_more, mut is_known) = (0, false, false);
    for shard in &live.shards {
        // With nothing left to delete, it still says whether there is more.
        let answer = queue::purge(shard, name, limit - purged as usize).await;
        if let Some((deleted, more)) =
            answer.map_err(|error| if purged == 0 { error } else { error.in_part() })?
        {
            (purged, is_more, is_known) = (purged + deleted, is_more || more, true);
        }
    }
    Ok(if is_known { QueueReply::Purged { deleted: purged, more: is_more } } else { QueueReply::Unknown })
}

pub(crate) async fn queues(store: &RedisStore, after: Option<&str>) -> Result<Vec<String>> {
    let live = store.refresh().await?;
    names(&live, after).await
}

/// Returns the names after `after`, and advances it; `None` after the last ones.
pub(crate) async fn next_names(live: &Live, after: &mut Option<String>) -> Result<Option<Vec<String>>> {
    let names = names(live, after.as_deref()).await?;
    *after = names.last().cloned().or(after.take());
    Ok(Some(names).filter(|names| !names.is_empty()))
}

pub(crate) async fn names(live: &Live, after: Option<&str>) -> Result<Vec<String>> {
    let names = all(live.shards.iter().map(|shard| queue::queues(shard, after))).await?;
    let names: BTreeSet<String> = names.into_iter().flatten().collect();
    Ok(names.into_iter().take(BATCH_MAX).collect())
}
