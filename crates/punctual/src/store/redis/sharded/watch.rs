//! Waiting for the end of a job: the shard that has it is told, so that whoever ends it rings.

use crate::{
    core::{error::Result, time::Timestamp},
    store::{
        end_of,
        redis::{Live, RedisStore, scripts::SCRIPTS, sharded::shard::Shard},
    },
};

/// Whether one of the jobs whose ends these bells tell has ended, or is gone. Those that live are noted as watched.
pub(crate) async fn any_ended(store: &RedisStore, bells: &[String]) -> Result<bool> {
    for id in bells.iter().filter_map(|bell| end_of(bell)) {
        let live = store.current().await?;
        let mut lives = false;
        for home in live.layout.homes_of(id) {
            let shard = &live.shards[usize::from(home)];
            let mut reply = shard.ask(&SCRIPTS.watch, &[], vec![id.as_bytes().to_vec()]).await?;
            let state = reply.bytes()?;
            shard.ring(&reply.bytes()?)?;
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

/// Which of these bells a shard may ring: that of an end only where the job may be. Never none in all of them.
pub(crate) fn bells_in(live: &Live, at: usize, bells: &[String]) -> Vec<String> {
    let may_ring = |bell: &&String| {
        end_of(bell).is_none_or(|id| live.layout.homes_of(id).into_iter().any(|home| usize::from(home) == at))
    };
    bells.iter().filter(may_ring).cloned().collect()
}

/// An end is for all who wait for it, and a ring for one: who heard it rings for the next.
pub(crate) fn pass_on(shard: &Shard, bells: &[String]) {
    let ends = bells.iter().filter(|bell| end_of(bell).is_some());
    let rings: Vec<_> = ends.map(|bell| (bell.clone(), Timestamp::default())).collect();
    shard.bell.ring(&rings, shard.server_now());
}
