//! Waiting over all shards. For the end of a job, the shard that has it is informed, so that the end is notified.

use std::{sync::Arc, time::Duration};

use futures_util::future::select_all;

use crate::{
    core::{error::Result, time::Timestamp},
    store::{
        end_of, is_of_queue,
        redis::{
            Live, RedisStore, clock_changed, lock, notify::Woken, scripts::SCRIPTS, sharded::shard::Shard,
        },
    },
};

/// Waits for a notification of any of these names in any shard, a new layout, or a test that sets its clock; `at_most` so long.
/// Returns at once if one of the named jobs has ended.
pub(crate) async fn wait(store: &RedisStore, queues: &[String], at_most: Duration) -> Result<()> {
    store.catch_up().await;
    if any_ended(store, queues).await? {
        return Ok(());
    }
    let mut changes = store.live.subscribe();
    let live = Arc::clone(&changes.borrow_and_update());
    let names: Vec<Vec<String>> =
        (0..live.shards.len()).map(|at| notifications_in(&live, at, queues)).collect();
    let listening = live
        .shards
        .iter()
        .zip(&names)
        .enumerate()
        .filter(|(_, (_, names))| queues.is_empty() || !names.is_empty());
    let waits = listening.map(|(at, (shard, names))| {
        let wait = shard.wait(names, at_most);
        Box::pin(async move { (at, wait.await) })
    });
    // The first notification ends the wait. The shards take turns to be first.
    let mut waits: Vec<_> = waits.collect();
    let turn = fastrand::usize(..waits.len().max(1));
    waits.rotate_left(turn);
    tokio::select! {
        ((at, woken), ..) = select_all(waits) => if woken == Woken::Work {
            if queues.iter().any(|name| is_of_queue(name)) {
                lock(&store.woken).insert(at);
            }
            // A notification that is left over from an earlier end is not passed on.
            if any_ended(store, queues).await? {
                pass_on(&live.shards[at], queues);
            }
        },
        _ = changes.changed() => {}
        () = clock_changed(&store.clock) => {}
    }
    Ok(())
}

/// Returns whether one of the named jobs has ended or is gone. Marks the live ones as watched.
async fn any_ended(store: &RedisStore, names: &[String]) -> Result<bool> {
    for id in names.iter().filter_map(|name| end_of(name)) {
        let live = store.current().await?;
        let mut lives = false;
        for home in live.layout.homes_of(id) {
            let shard = &live.shards[usize::from(home)];
            let mut reply = shard.ask(&SCRIPTS.watch, &[], vec![id.as_bytes().to_vec()]).await?;
            let state = reply.bytes()?;
            shard.notify(&reply.bytes()?)?;
            match &state[..] {
                b"ended" => return Ok(true),
                b"lives" => lives = true,
                _ => {}
            }
        }
        if !lives {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns which of these names a shard may notify: that of an end only if the job may be there. At least one shard
/// has each name.
fn notifications_in(live: &Live, at: usize, names: &[String]) -> Vec<String> {
    let may_notify = |name: &&String| {
        end_of(name).is_none_or(|id| live.layout.homes_of(id).into_iter().any(|home| usize::from(home) == at))
    };
    names.iter().filter(may_notify).cloned().collect()
}

/// An end concerns all callers that wait for it, and a notification reaches one. So the receiver notifies the next
/// one.
fn pass_on(shard: &Shard, names: &[String]) {
    let ends = names.iter().filter(|name| end_of(name).is_some());
    let notifications: Vec<_> = ends.map(|name| (name.clone(), Timestamp::default())).collect();
    shard.notifier.notify(&notifications, shard.server_now());
}
