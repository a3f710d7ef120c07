//! `act`: each target in the shard that has it.

use super::{
    in_homes,
    read::{self, homes_of_key},
};
use crate::{
    core::{
        error::Result,
        id::JobId,
        job::{JobRecord, Scope},
    },
    store::{
        Acted, Action, BoxFuture, Target, UniqueKey, Which,
        redis::{RedisStore, verbs::act},
    },
};

/// Answers for jobs that may not wait again where they are: with the number of shards, or the way its queue is placed, the home
/// of a key has changed, so that the job's own shard may not know who holds it, or whom it limits.
async fn refuse_held(store: &RedisStore, targets: &[Target], acted: &mut [Acted]) -> Result<()> {
    for (target, acted) in targets.iter().zip(acted) {
        let Which::Id(id) = target.which else { continue };
        let Some(job) = read::get(store, id).await?.filter(|job| job.state.is_ended()) else { continue };
        if let Some(other) = live_elsewhere(store, &job).await? {
            *acted = Acted::GateConflict(other);
            continue;
        }
        // What is held until the start or for a while may be free for good: that its own shard knows.
        let is_until_done = job.unique.as_ref().is_some_and(|unique| unique.scope == Scope::UntilDone);
        let Some(key) = UniqueKey::of(&job).filter(|_| is_until_done) else { continue };
        if let Some(holder) = read::holder(store, &key).await?.filter(|holder| holder.id != id) {
            *acted = Acted::UniqueConflict(holder.id);
        }
    }
    Ok(())
}

/// A job of the same group, else of the same concurrency key, that waits or runs in another shard: only one may have such (S15).
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
    let homes = |which: &Which| match which {
        Which::Id(id) => live.layout.homes_of(*id).into_iter().map(usize::from).collect(),
        Which::Key(key) => homes_of_key(&live, key).collect::<Vec<_>>(),
    };
    let mut acted = vec![Acted::NotFound; targets.len()];
    if matches!(action, Action::Retry) && live.layout.has_other_homes() {
        refuse_held(store, targets, &mut acted).await?;
    }
    let todo: Vec<usize> = (0..targets.len()).filter(|&i| acted[i] == Acted::NotFound).collect();
    let homes_of_todo: Vec<_> = todo.iter().map(|&i| homes(&targets[i].which)).collect();
    let (live, unanswered) = (&live, &todo);
    let call = |_, at: usize, group: Vec<usize>| -> BoxFuture<'_, _> {
        let part: Vec<Target> = group.into_iter().map(|n| targets[unanswered[n]].clone()).collect();
        Box::pin(async move { act::act(&live.shards[at], &part, action).await })
    };
    let answers = in_homes(&homes_of_todo, None, Acted::NotFound, call).await?;
    todo.into_iter().zip(answers).for_each(|(i, answer)| acted[i] = answer);
    Ok(acted)
}
