//! Waiting for the end of a job: the shard that has it is informed, so that the end is notified.

use crate::{
    core::{error::Result, time::Timestamp},
    store::{
        end_of,
        redis::{Live, RedisStore, scripts::SCRIPTS, sharded::shard::Shard},
    },
};

/// Returns whether one of the named jobs has ended or is gone. Marks the live ones as watched.
pub(crate) async fn any_ended(store: &RedisStore, names: &[String]) -> Result<bool> {
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
pub(crate) fn notifications_in(live: &Live, at: usize, names: &[String]) -> Vec<String> {
    let may_notify = |name: &&String| {
        end_of(name).is_none_or(|id| live.layout.homes_of(id).into_iter().any(|home| usize::from(home) == at))
    };
    names.iter().filter(may_notify).cloned().collect()
}

/// An end concerns all callers that wait for it, and a notification reaches one. So the receiver notifies the next
/// one.
pub(crate) fn pass_on(shard: &Shard, names: &[String]) {
    let ends = names.iter().filter(|name| end_of(name).is_some());
    let notifications: Vec<_> = ends.map(|name| (name.clone(), Timestamp::default())).collect();
    shard.notifier.notify(&notifications, shard.server_now());
}
