//! `act`: acts on each target in the shard that has it.

use super::{
    Says, in_homes,
    read::{self, homes_of_key},
};
use crate::{
    core::{
        error::Result,
        id::JobId,
        job::{JobRecord, Scope},
    },
    store::{
        Acted, Action, BoxFuture, Selector, Target, UniqueKey,
        redis::{RedisStore, verbs::act},
    },
};

/// Refuses to retry jobs whose key has another home now, by the number of shards or the placement of its queue. The
/// job's own shard may then not know the holder of the key, or the jobs that it is limited with.
async fn refuse_held(store: &RedisStore, targets: &[Target], acted: &mut [Acted]) -> Result<()> {
    for (target, acted) in targets.iter().zip(acted) {
        let Selector::Id(id) = target.selector else { continue };
        let Some(job) = read::get(store, id).await?.filter(|job| job.state.is_ended()) else { continue };
        if let Some(other) = live_elsewhere(store, &job).await? {
            *acted = Acted::LimiterConflict(other);
            continue;
        }
        // Only its own shard knows whether a key until start or a window is free for good.
        let is_until_done = job.unique.as_ref().is_some_and(|unique| unique.scope == Scope::UntilDone);
        let Some(key) = UniqueKey::of(&job).filter(|_| is_until_done) else { continue };
        if let Some(holder) = read::holder(store, &key).await?.filter(|holder| holder.id != id) {
            *acted = Acted::UniqueConflict(holder.id);
        }
    }
    Ok(())
}

/// Finds a job of the same group, or else of the same concurrency key, that waits or runs in another shard. Only one
/// shard can have such jobs (S15).
async fn live_elsewhere(store: &RedisStore, job: &JobRecord) -> Result<Option<JobId>> {
    let key = job.group.as_ref().or(job.concurrency.as_ref().map(|concurrency| &concurrency.key));
    let Some(key) = key else { return Ok(None) };
    let live = store.live();
    for home in live.layout.homes_of_key(&job.queue, key) {
        let found = act::live(&live.shards[usize::from(home)], job).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

pub(crate) async fn act(store: &RedisStore, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
    act::check(targets, action)?;
    let live = store.refresh().await?;
    if let [shard] = &live.shards[..] {
        return act::act(shard, targets, action).await;
    }
    let homes = |selector: &Selector| match selector {
        Selector::Id(id) => live.layout.homes_of(*id).into_iter().map(usize::from).collect(),
        Selector::Key(key) => homes_of_key(&live, key).collect::<Vec<_>>(),
    };
    let mut acted = vec![Acted::NotFound; targets.len()];
    if matches!(action, Action::Retry) && live.layout.has_other_homes() {
        refuse_held(store, targets, &mut acted).await?;
    }
    let todo: Vec<usize> = (0..targets.len()).filter(|&i| acted[i] == Acted::NotFound).collect();
    let homes_of_todo: Vec<_> = todo.iter().map(|&i| homes(&targets[i].selector)).collect();
    let (live, unanswered) = (&live, &todo);
    let call = |_, at: usize, group: Vec<usize>| -> BoxFuture<'_, _> {
        let part: Vec<Target> = group.into_iter().map(|n| targets[unanswered[n]].clone()).collect();
        Box::pin(async move { act::act(&live.shards[at], &part, action).await })
    };
    let says = |acted| if acted == Acted::NotFound { Says::Absent } else { Says::Found };
    let answers = in_homes(&homes_of_todo, None, Acted::NotFound, says, call).await?;
    todo.into_iter().zip(answers).for_each(|(i, answer)| acted[i] = answer);
    Ok(acted)
}
