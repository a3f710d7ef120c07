//! Leases over all shards: `reserve`, `settle`, `extend`, `take`.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{Says, in_homes};
use crate::{
    core::{
        error::{ErrorKind, Result},
        job::JobRecord,
    },
    store::{
        Batch, BoxFuture, Heartbeat, Lease, LeaseStatus, Reserve, Settled, Settlement, Take, check_extend,
        check_settle,
        redis::{
            Live, RedisStore,
            connection::fault,
            lock,
            notify::Heard,
            sharded::shard::Shard,
            verbs::{
                extend,
                reserve::{self, Looked},
                settle, take,
            },
        },
    },
};

/// When to check again for a shard that could not be reached.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How a reserve is tried: with which layout, and which shard first.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) live: Arc<Live>,
    pub(crate) first: usize,
    pub(crate) asked: Arc<Mutex<Asked>>,
    pub(crate) follows_a_settle: bool,
}

/// The shards that a reserve has asked so far.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// A repetition asks these again, even if they are known to be empty.
    shards: BTreeSet<usize>,
    /// The shards that have given jobs, or may have in an answer that was lost. A repetition begins with one of them.
    open: BTreeSet<usize>,
    /// The open shards that were asked again.
    repeated: BTreeSet<usize>,
}

impl Asked {
    /// Returns the shard to begin a repetition with.
    pub(crate) fn first_open(&self) -> Option<usize> {
        self.open.first().copied()
    }
}

impl Try {
    /// Asks a shard for jobs. `has_jobs` tells it of an answer.
    ///
    /// A shard that was unreachable a moment ago is skipped. Only one whose answer was lost is asked once more all the same, which
    /// takes one attempt to connect, since nobody gets the jobs of that answer before their leases are over.
    async fn ask<T>(
        &self,
        shards: &[Arc<Shard>],
        at: usize,
        call: impl Future<Output = Result<T>>,
        has_jobs: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let (was_open, insists) = {
            let mut asked = lock(&self.asked);
            asked.shards.insert(at);
            // Before the call, because its answer may be lost.
            let was_open = !asked.open.insert(at);
            (was_open, was_open && asked.repeated.insert(at))
        };
        let answer = if !insists && is_away(shards, at) { Err(fault::away()) } else { call.await };
        let stays_open = match &answer {
            Ok(answer) => has_jobs(answer),
            // A refusal says nothing about an earlier call.
            Err(error) => was_open || error.kind() == ErrorKind::UnknownOutcome,
        };
        if !stays_open {
            lock(&self.asked).open.remove(&at);
        }
        answer
    }
}

pub(crate) async fn reserve(store: &RedisStore, request: &Reserve) -> Result<Batch> {
    request.check()?;
    store.catch_up().await;
    let attempt = store.attempt_to_reserve(request, None);
    let first = ask(store, &attempt, attempt.first, request).await;
    rest(store, &attempt, request, first).await
}

async fn ask(store: &RedisStore, attempt: &Try, at: usize, request: &Reserve) -> Result<Batch> {
    let shards = &attempt.live.shards;
    lock(&store.woken).remove(&at);
    let before = shards[at].notifier.heard();
    let call = reserve::reserve(&shards[at], request);
    let answer = attempt.ask(shards, at, call, |looked| !looked.batch.jobs.is_empty()).await;
    note(&shards[at], request, answer, before)
}

/// Notes a shard's answer to a reserve.
fn note(shard: &Shard, request: &Reserve, answer: Result<Looked>, before: Heard) -> Result<Batch> {
    let (looked, error) = match answer {
        Ok(looked) => (Some(looked), None),
        Err(error) => (None, Some(error)),
    };
    let batch = shard.reserved(request, looked, before);
    batch.ok_or_else(|| error.expect("invariant: there is an answer or an error"))
}

/// Makes a call. With several shards, it does not wait for one that was unreachable a moment ago.
async fn within_reach<T>(
    shards: &[Arc<Shard>],
    at: usize,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    if is_away(shards, at) { Err(fault::away()) } else { call.await }
}

pub(crate) fn is_away(shards: &[Arc<Shard>], at: usize) -> bool {
    1 < shards.len() && shards.get(at).is_some_and(|shard| shard.is_away())
}

/// Asks one shard after another until one has jobs, which start at once. The next call asks the others.
///
/// So a job that must be reserved alone is. A shard that cannot be reached is skipped, so that jobs of the others do
/// not wait. A shard that is known to be empty is not asked, unless this call may have asked it before.
async fn rest(store: &RedisStore, attempt: &Try, request: &Reserve, first: Result<Batch>) -> Result<Batch> {
    let shards = &attempt.live.shards;
    let (mut first, mut all, mut has_more, mut away) = (Some(first), None::<Batch>, None, None);
    // For all shards at once, because this reserve uses up what is known. `None`: the shard may have something.
    let quiet: Vec<_> = shards
        .iter()
        .enumerate()
        .map(|(at, shard)| {
            let is_open = store.has_rung(at) || lock(&attempt.asked).shards.contains(&at);
            let lasts = shard.quiet_for(request, attempt.follows_a_settle).filter(|_| !is_open);
            shard.quiet.used(request);
            lasts.map(|lasts| shard.look_in(request, lasts))
        })
        .collect();
    let mut until = None::<Duration>;
    for i in 0..shards.len() {
        let at = (attempt.first + i) % shards.len();
        let answer = match first.take() {
            Some(first) => first,
            None => match quiet[at] {
                Some(lasts) => {
                    until = until.into_iter().chain([lasts]).min();
                    continue;
                }
                None => ask(store, attempt, at, request).await,
            },
        };
        match answer {
            Ok(batch) if !batch.jobs.is_empty() => {
                lock(&store.givers).note(&attempt.live.layout, at, &batch.jobs);
                store.expect_work(batch.more.then_some(at));
                let others: Vec<_> =
                    (i + 1..shards.len()).map(|i| quiet[(attempt.first + i) % shards.len()]).collect();
                let more =
                    batch.more || others.iter().any(Option::is_none) || RedisStore::is_behind(&attempt.live);
                let (reclaimed, before) =
                    all.map_or_else(Default::default, |all| (all.reclaimed, all.next_due));
                let dues = others.into_iter().flatten().chain(before).chain(until);
                let next_due = dues.chain(batch.next_due).min().filter(|next| *next < Duration::MAX);
                return Ok(Batch {
                    more,
                    next_due,
                    reclaimed: [reclaimed, batch.reclaimed].concat(),
                    ..batch
                });
            }
            Ok(batch) => {
                has_more = has_more.or(batch.more.then_some(at));
                all = Some(match all {
                    Some(all) => merge(all, batch),
                    None => batch,
                });
            }
            Err(error) if error.kind() == ErrorKind::Unavailable && 1 < shards.len() => away = Some(error),
            Err(error) => return Err(error),
        }
    }
    store.expect_work(has_more);
    let mut all = match (all, away.take()) {
        (Some(all), error) => {
            away = error;
            all
        }
        // Those that are available are known to be empty.
        (None, error) if quiet.iter().any(Option::is_some) => {
            away = error;
            let now = shards[attempt.first].server_now();
            Batch { now, jobs: Vec::new(), more: false, next_due: None, reclaimed: Vec::new() }
        }
        (None, error) => return Err(error.expect("invariant: each shard has answered something")),
    };
    all.next_due = all.next_due.into_iter().chain(until).min().filter(|next| *next < Duration::MAX);
    if away.is_some() {
        all.next_due = Some(all.next_due.map_or(LOOK_AGAIN, |next| next.min(LOOK_AGAIN)));
    }
    // Shard 0 has the layout.
    all.more |= RedisStore::is_behind(&attempt.live) && !is_away(shards, 0);
    Ok(all)
}

/// Merges the answers of two shards without jobs.
fn merge(mut all: Batch, other: Batch) -> Batch {
    all.now = all.now.max(other.now);
    all.more |= other.more;
    all.next_due = all.next_due.into_iter().chain(other.next_due).min();
    all.reclaimed.extend(other.reclaimed);
    all
}

pub(crate) async fn settle(
    store: &RedisStore,
    batch: &[Settlement],
    then: Option<&Reserve>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    check_settle(batch)?;
    then.map_or(Ok(()), Reserve::check)?;
    if then.is_some() {
        store.catch_up().await;
    }
    let live = store.live_for(batch.iter().map(|settlement| settlement.lease.job)).await?;
    let home = batch.first().map(|settlement| homes_of(store, &live, settlement.lease)[0]);
    let reserving = then.map(|request| (request, store.attempt_to_reserve(request, home)));
    if let [shard] = &live.shards[..]
        && reserving.as_ref().is_none_or(|(_, attempt)| attempt.live.shards.len() == 1)
    {
        let (settled, reserved) = settle_in(shard, batch, then).await?;
        return finish(store, settled, reserving, reserved.map(Ok)).await;
    }
    let homes: Vec<_> = batch.iter().map(|settlement| homes_of(store, &live, settlement.lease)).collect();
    let first = reserving.as_ref().map(|(_, attempt)| attempt.first);
    let reserved = Mutex::new(None);
    let settled = {
        let (live, reserving, reserved) = (&live, &reserving, &reserved);
        let call = |round, at, group: Vec<usize>| -> BoxFuture<'_, _> {
            Box::pin(async move {
                let part: Vec<Settlement> = group.iter().map(|&i| batch[i].clone()).collect();
                // The first shard that is asked for jobs is asked together with the settlements for it.
                let then = reserving.as_ref().filter(|(_, attempt)| round == 0 && attempt.first == at);
                // A repetition can name a shard that is not part of the layout any more.
                let shard: Option<&Arc<_>> =
                    live.shards.get(at).or_else(|| reserving.as_ref()?.1.live.shards.get(at));
                let Some(shard) = shard else { return Ok(vec![Settled::LeaseLost; part.len()]) };
                let call = settle_in(shard, &part, then.map(|(request, _)| *request));
                let answer = match then {
                    Some((_, attempt)) => {
                        lock(&store.woken).remove(&at);
                        let has_jobs = |(_, batch): &(_, Option<Batch>)| {
                            batch.as_ref().is_some_and(|batch| !batch.jobs.is_empty())
                        };
                        attempt.ask(&live.shards, at, call, has_jobs).await
                    }
                    None => within_reach(&live.shards, at, call).await,
                };
                match answer {
                    Ok((settled, batch)) => {
                        if let Some(batch) = batch {
                            *lock(reserved) = Some(Ok(batch));
                        }
                        Ok(settled)
                    }
                    // Jobs of the others do not wait for it. Jobs that it may have given are requested again.
                    Err(error) if error.kind() == ErrorKind::UnknownOutcome => {
                        Ok(vec![Settled::Away { sent: true }; part.len()])
                    }
                    Err(error) if error.kind() == ErrorKind::Unavailable => {
                        if then.is_some() {
                            *lock(reserved) = Some(Err(error));
                        }
                        Ok(vec![Settled::Away { sent: false }; part.len()])
                    }
                    Err(error) => Err(error),
                }
            })
        };
        let says = |settled| match settled {
            Settled::LeaseLost => Says::Absent,
            Settled::Away { sent: false } => Says::Unreached,
            Settled::Away { sent: true } => Says::Unanswered,
            Settled::Settled(..) => Says::Found,
        };
        in_homes(&homes, first, Settled::LeaseLost, says, call).await?
    };
    let over = batch.iter().zip(&settled).filter(|(_, answer)| !matches!(answer, Settled::Away { .. }));
    lock(&store.givers).forget(over.map(|(settlement, _)| settlement.lease));
    let reserved = reserved.into_inner().unwrap_or_else(PoisonError::into_inner);
    finish(store, settled, reserving, reserved).await
}

/// Settles in one shard, and notes the answer of the reserve that can follow.
async fn settle_in(
    shard: &Shard,
    part: &[Settlement],
    then: Option<&Reserve>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    let before = shard.notifier.heard();
    let answer = settle::settle(shard, part, then).await;
    let Some(request) = then else { return answer.map(|(settled, _)| (settled, None)) };
    match answer {
        Ok((settled, looked)) => Ok((settled, shard.reserved(request, looked, before))),
        Err(error) => {
            shard.reserved(request, None, before);
            Err(error)
        }
    }
}

/// Asks the other shards, too, if a reserve follows.
async fn finish(
    store: &RedisStore,
    settled: Vec<Settled>,
    reserving: Option<(&Reserve, Try)>,
    first: Option<Result<Batch>>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    let reserved = match (reserving, first) {
        (Some((request, attempt)), Some(first)) => {
            let reserved = rest(store, &attempt, request, first).await;
            let is_untouched = settled.iter().all(|answer| *answer == Settled::Away { sent: false });
            Some(reserved.map_err(|error| if is_untouched { error } else { error.in_part() })?)
        }
        _ => None,
    };
    Ok((settled, reserved))
}

/// How long a shard may take to have a mark: others do not wait for one that hangs.
const MARK_MAX: Duration = Duration::from_secs(1);

/// Extends nothing, so that each shard which can be reached has a mark (S9). Fails if none can, or if one refuses it.
async fn mark_all(shards: &[Arc<Shard>]) -> Result<Vec<LeaseStatus>> {
    let calls = shards.iter().enumerate().map(async |(at, shard)| {
        let call = within_reach(shards, at, extend::extend(shard, &[]));
        timeout(MARK_MAX, call).await.unwrap_or_else(|_| Err(fault::away()))
    });
    let mut all = join_all(calls).await;
    let is_refused = |answer: &Result<_>| answer.as_ref().is_err_and(|error| !fault::is_away(error));
    let tells = all.iter().position(is_refused).or_else(|| all.iter().position(Result::is_ok));
    all.swap_remove(tells.unwrap_or_default())
}

pub(crate) async fn extend(store: &RedisStore, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
    check_extend(beats)?;
    let live = store.live_for(beats.iter().map(|beat| beat.lease.job)).await?;
    if let [shard] = &live.shards[..] {
        return extend::extend(shard, beats).await;
    }
    if beats.is_empty() {
        return mark_all(&live.shards).await;
    }
    let homes: Vec<_> = beats.iter().map(|beat| homes_of(store, &live, beat.lease)).collect();
    let live = &live;
    let call = |_, at: usize, group: Vec<usize>| -> BoxFuture<'_, _> {
        let part: Vec<Heartbeat> = group.into_iter().map(|i| beats[i].clone()).collect();
        Box::pin(async move {
            let call = extend::extend(&live.shards[at], &part);
            match within_reach(&live.shards, at, call).await {
                // The answers of the others are used.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome) => {
                    Ok(vec![LeaseStatus::Away; part.len()])
                }
                answer => answer,
            }
        })
    };
    let says = |status| match status {
        LeaseStatus::Lost => Says::Absent,
        LeaseStatus::Away => Says::Unreached,
        LeaseStatus::Held | LeaseStatus::CancelRequested => Says::Found,
    };
    let statuses = in_homes(&homes, None, LeaseStatus::Lost, says, call).await?;
    let over = beats.iter().zip(&statuses).filter(|(_, status)| **status == LeaseStatus::Lost);
    lock(&store.givers).forget(over.map(|(beat, _)| beat.lease));
    Ok(statuses)
}

/// Returns the shards where a lease may be, the likeliest first: the one that gave it, if that is known.
fn homes_of(store: &RedisStore, live: &Live, lease: Lease) -> Vec<usize> {
    match lock(&store.givers).of(lease).filter(|at| *at < live.shards.len()) {
        Some(at) => vec![at],
        None => live.layout.homes_of(lease.job).into_iter().map(usize::from).collect(),
    }
}

/// Takes from one available shard after another, with one script or a few. Taken jobs exist only with the caller, so
/// a lost answer ends the call with the jobs so far.
pub(crate) async fn take(store: &RedisStore, take: &Take) -> Result<Vec<JobRecord>> {
    take.check()?;
    store.catch_up().await;
    let (live, first) = (store.live(), store.next_turn());
    let (mut jobs, mut away, mut has_answer) = (Vec::new(), None, false);
    // For a shard that has more: the bytes that came from it.
    let (mut i, mut so_far) = (0, None::<u64>);
    while i < live.shards.len() {
        let at = (first + i) % live.shards.len();
        let part = Take { n: take.n - jobs.len(), ..take.clone() };
        match within_reach(&live.shards, at, take::take(&live.shards[at], &part, so_far)).await {
            Ok((taken, has_more)) => {
                has_answer = true;
                let bytes: usize = taken.iter().map(|job| job.payload.bytes.len()).sum();
                so_far = has_more.then(|| so_far.unwrap_or(0) + bytes as u64);
                jobs.extend(taken);
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => (away, so_far) = (Some(error), None),
            Err(error) if jobs.is_empty() => return Err(error),
            Err(error) => {
                away = Some(error);
                break;
            }
        }
        if jobs.len() == take.n {
            return Ok(jobs);
        }
        if so_far.is_none() {
            i += 1;
        }
    }
    match away {
        Some(error) if !has_answer => Err(error),
        Some(error) => {
            tracing::warn!(target: "punctual", error = &error as &dyn std::error::Error, "took from some shards only");
            Ok(jobs)
        }
        None => Ok(jobs),
    }
}
