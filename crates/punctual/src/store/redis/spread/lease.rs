//! What has to do with leases: `reserve`, `settle`, `extend`, `take`.

use std::{collections::BTreeMap, sync::Arc};

use super::{all, share};
use crate::{
    error::Result,
    id::JobId,
    job::JobRecord,
    store::{
        Batch, Lease, LeaseStatus, Reserve, Settled, Settlement, Take, Want, check_batch,
        redis::{Live, RedisStore, reserve, settle},
    },
};

/// How a reserve is tried: by which layout, and in which shard first.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Try {
    pub(in crate::store::redis) live: Arc<Live>,
    pub(in crate::store::redis) first: usize,
}

pub(in crate::store::redis) async fn reserve(store: &RedisStore, want: &Reserve) -> Result<Batch> {
    want.check()?;
    let attempt = store.attempt_to_reserve(want.call);
    let first = reserve::reserve(&attempt.live.shards[attempt.first], want).await?;
    rest(store, &attempt, want, first).await
}

/// Asks the other shards where the first one had nothing, each for its share. Where it had something that runs at once, and
/// the others are asked next.
async fn rest(store: &RedisStore, attempt: &Try, want: &Reserve, first: Batch) -> Result<Batch> {
    let (shards, others) = (&attempt.live.shards, attempt.live.shards.len() - 1);
    let at = |i: usize| (attempt.first + i) % shards.len();
    let mut has_more = first.more.then_some(attempt.first);
    let mut batch = first;
    if !batch.jobs.is_empty() {
        batch.more |= 0 < others;
    } else if 0 < others {
        let calls = (1..=others).map(|i| {
            let n = |total| share(total, others, i - 1);
            let part = |want: &Want| Want { share: n(want.share), at_most: n(want.at_most), ..want.clone() };
            let wants = want.wants.iter().map(part).collect();
            let part = Reserve { n: n(want.n), wants, ..want.clone() };
            async move { reserve::reserve(&shards[at(i)], &part).await }
        });
        for (i, other) in all(calls).await?.into_iter().enumerate() {
            if other.more {
                has_more = Some(at(i + 1));
            }
            // The later one: nothing in the batch is due after it.
            batch.now = batch.now.max(other.now);
            batch.more |= other.more;
            batch.next_due = batch.next_due.into_iter().chain(other.next_due).min();
            batch.jobs.extend(other.jobs);
            batch.taken_back.extend(other.taken_back);
        }
    }
    store.expect_work(has_more);
    let queues = want.wants.iter().map(|want| want.queue.as_str());
    batch.more |= store.hear_of_change(&attempt.live, queues).await;
    Ok(batch)
}

pub(in crate::store::redis) async fn settle(
    store: &RedisStore,
    batch: &[Settlement],
    then: Option<&Reserve>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    check_batch("settlements", batch.len())?;
    then.map_or(Ok(()), Reserve::check)?;
    let live = store.live_for(batch.iter().map(|settlement| settlement.lease.job)).await?;
    let reserving = then.map(|want| (want, store.attempt_to_reserve(want.call)));
    if let [shard] = &live.shards[..]
        && reserving.as_ref().is_none_or(|(_, attempt)| attempt.live.shards.len() == 1)
    {
        let (settled, reserved) = settle::settle(shard, batch, then).await?;
        return finish(store, settled, reserving, reserved).await;
    }
    let mut groups = by_home(&live, batch.iter().map(|settlement| settlement.lease.job), 0);
    if let Some((_, attempt)) = &reserving {
        groups.entry(attempt.first).or_default();
    }
    let mut settled = vec![Settled::LeaseLost; batch.len()];
    let mut reserved = None;
    for round in 1.. {
        let calls = groups.into_iter().map(|(at, group)| {
            let part: Vec<Settlement> = group.iter().map(|&i| batch[i].clone()).collect();
            // The first shard to be asked for jobs is asked with what ended there.
            let then = reserving.as_ref().filter(|(_, attempt)| round == 1 && attempt.first == at);
            // One that is gone from the layout may still be repeated to.
            let shard = live.shards.get(at).or_else(|| reserving.as_ref()?.1.live.shards.get(at));
            async move {
                let Some(shard) = shard else { return Ok((group, Vec::new(), None)) };
                let (settled, reserved) = settle::settle(shard, &part, then.map(|(want, _)| *want)).await?;
                Ok((group, settled, reserved))
            }
        });
        let mut lost = Vec::new();
        for (group, answers, batch) in all(calls).await? {
            reserved = reserved.or(batch);
            for (i, answer) in group.into_iter().zip(answers) {
                settled[i] = answer;
                if answer == Settled::LeaseLost {
                    lost.push(i);
                }
            }
        }
        groups = again(by_home(&live, lost.iter().map(|&i| batch[i].lease.job), round), &lost);
        if groups.is_empty() {
            break;
        }
    }
    finish(store, settled, reserving, reserved).await
}

/// Asks the other shards, too, where a reserve follows.
async fn finish(
    store: &RedisStore,
    settled: Vec<Settled>,
    reserving: Option<(&Reserve, Try)>,
    first: Option<Batch>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    let reserved = match (reserving, first) {
        (Some((want, attempt)), Some(first)) => Some(rest(store, &attempt, want, first).await?),
        _ => None,
    };
    Ok((settled, reserved))
}

pub(in crate::store::redis) async fn extend(
    store: &RedisStore,
    leases: &[Lease],
) -> Result<Vec<LeaseStatus>> {
    check_batch("leases", leases.len())?;
    let live = store.live_for(leases.iter().map(|lease| lease.job)).await?;
    if let [shard] = &live.shards[..] {
        return settle::extend(shard, leases).await;
    }
    let mut statuses = vec![LeaseStatus::Lost; leases.len()];
    let mut groups = by_home(&live, leases.iter().map(|lease| lease.job), 0);
    for round in 1.. {
        let calls = groups.into_iter().map(|(at, group)| {
            let part: Vec<Lease> = group.iter().map(|&i| leases[i]).collect();
            let shard = &live.shards[at];
            async move { Ok((group, settle::extend(shard, &part).await?)) }
        });
        let mut lost = Vec::new();
        for (group, answers) in all(calls).await? {
            for (i, answer) in group.into_iter().zip(answers) {
                statuses[i] = answer;
                if answer == LeaseStatus::Lost {
                    lost.push(i);
                }
            }
        }
        groups = again(by_home(&live, lost.iter().map(|&i| leases[i].job), round), &lost);
        if groups.is_empty() {
            break;
        }
    }
    Ok(statuses)
}

/// Jobs by the shard that is their `round`-th likeliest home, as far as they have so many.
pub(super) fn by_home(
    live: &Live,
    jobs: impl IntoIterator<Item = JobId>,
    round: usize,
) -> BTreeMap<usize, Vec<usize>> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, id) in jobs.into_iter().enumerate() {
        if let Some(home) = live.layout.homes_of(id).get(round) {
            groups.entry(usize::from(*home)).or_default().push(i);
        }
    }
    groups
}

/// The same groups of a list's members by their places in that list.
pub(super) fn again(groups: BTreeMap<usize, Vec<usize>>, list: &[usize]) -> BTreeMap<usize, Vec<usize>> {
    groups.into_iter().map(|(at, group)| (at, group.into_iter().map(|i| list[i]).collect())).collect()
}

/// Takes from one shard after another: what was taken is with the caller only, so that a shard which can't be reached ends
/// the call with what there is.
pub(in crate::store::redis) async fn take(store: &RedisStore, take: &Take) -> Result<Vec<JobRecord>> {
    take.check()?;
    let (live, first) = (store.live(), store.next_turn());
    let mut jobs = Vec::new();
    for i in 0..live.shards.len() {
        let shard = &live.shards[(first + i) % live.shards.len()];
        let part = Take { n: take.n - jobs.len(), ..take.clone() };
        match reserve::take(shard, &part).await {
            Ok(taken) => jobs.extend(taken),
            Err(e) if jobs.is_empty() => return Err(e),
            Err(e) => {
                tracing::warn!(target: "punctual", error = &e as &dyn std::error::Error, "took from some shards only");
                break;
            }
        }
        if jobs.len() == take.n {
            break;
        }
    }
    store.hear_of_change(&live, [take.queue.as_str()]).await;
    Ok(jobs)
}
