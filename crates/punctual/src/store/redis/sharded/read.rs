//! Reads over all shards: sums of what the shards have, and listings of one shard after another.

use super::{all, lease::is_away};
use crate::{
    core::{
        error::{Error, Result},
        id::JobId,
        job::JobRecord,
        limits::{LIST_BYTES_MAX, SHARDS_MAX},
        time::Timestamp,
    },
    store::{
        BoxFuture, Counts, Histogram, List, ListCursor, Page, UniqueKey, Upcoming, check_limit,
        check_upcoming,
        redis::{Live, RedisStore, connection::fault, sharded::shard::Shard, verbs::read},
    },
};

/// Returns the time of shard 0, or of the first available shard.
pub(crate) async fn now(store: &RedisStore) -> Result<Timestamp> {
    let live = store.live();
    let ask = |shard| -> BoxFuture<'_, _> { Box::pin(async move { read::now(shard).await.map(Some) }) };
    first_there(&live, 0..live.shards.len(), ask).await?.ok_or_else(fault::away)
}

/// Asks one shard after another until one has the answer. If no available shard has it, an unavailable one may.
async fn first_there<'a, T>(
    live: &'a Live,
    shards: impl IntoIterator<Item = usize>,
    ask: impl Fn(&'a Shard) -> BoxFuture<'a, Result<Option<T>>>,
) -> Result<Option<T>> {
    let mut away = None::<Error>;
    for at in shards {
        let answer = if is_away(&live.shards, at) { Err(fault::away()) } else { ask(&live.shards[at]).await };
        match answer {
            Ok(None) => {}
            Ok(known) => return Ok(known),
            Err(error) if fault::is_away(&error) => away = Some(error),
            Err(error) => return Err(error),
        }
    }
    away.map_or(Ok(None), Err)
}

pub(crate) async fn get(store: &RedisStore, id: JobId) -> Result<Option<JobRecord>> {
    let live = store.current().await?;
    let homes = live.layout.homes_of(id).into_iter().map(usize::from);
    first_there(&live, homes, |shard| Box::pin(read::get(shard, Some(id), None))).await
}

pub(crate) async fn holder(store: &RedisStore, key: &UniqueKey) -> Result<Option<JobRecord>> {
    let live = store.current().await?;
    first_there(&live, homes_of_key(&live, key), |shard| Box::pin(read::get(shard, None, Some(key)))).await
}

pub(crate) fn homes_of_key(live: &Live, key: &UniqueKey) -> impl Iterator<Item = usize> {
    let placement_key = key.group.as_ref().or(key.concurrency_key.as_ref()).unwrap_or(&key.key);
    live.layout.homes_of_key(&key.queue, placement_key).into_iter().map(usize::from)
}

/// Splits a cursor over all shards into the shard and its own cursor.
fn split_cursor(cursor: &ListCursor) -> Result<(u16, Option<ListCursor>)> {
    let (shard, own) = cursor.0.split_once('.').ok_or_else(ListCursor::unreadable)?;
    let shard = shard.parse().ok().filter(|shard| *shard < SHARDS_MAX).ok_or_else(ListCursor::unreadable)?;
    Ok((shard, Some(own).filter(|own| !own.is_empty()).map(|own| ListCursor(own.to_owned()))))
}

pub(crate) async fn list(store: &RedisStore, list: &List) -> Result<Page> {
    check_limit("list", list.limit)?;
    let (first, mut after) = list.after.as_ref().map_or(Ok((0, None)), split_cursor)?;
    let live = store.refresh().await?;
    if live.shards.len() <= usize::from(first) {
        return Err(ListCursor::unreadable());
    }
    let mut all_of_it = Page::default();
    for (at, shard) in live.shards.iter().enumerate().skip(first.into()) {
        let left = list.limit - all_of_it.jobs.len();
        let cursor = |own: &str| Some(ListCursor(format!("{at}.{own}")));
        let bytes: u64 = all_of_it.jobs.iter().map(JobRecord::kept_bytes).sum();
        // A call that has read much without a match continues in the next one.
        if left == 0 || (all_of_it.jobs.len() as u64) < all_of_it.searched || LIST_BYTES_MAX <= bytes {
            all_of_it.next = cursor("");
            break;
        }
        let page = read::list(shard, &List { after: after.take(), limit: left, ..list.clone() }).await?;
        (all_of_it.now, all_of_it.total) = (page.now, page.total);
        all_of_it.searched += page.searched;
        all_of_it.jobs.extend(page.jobs);
        if let Some(next) = page.next {
            all_of_it.next = cursor(&next.0);
            break;
        }
    }
    if 1 < live.shards.len() {
        all_of_it.total = all(live.shards.iter().map(|shard| read::total(shard))).await?.into_iter().sum();
    }
    Ok(all_of_it)
}

/// Counts the jobs of available shards, and the shards that are unavailable.
pub(crate) async fn count(store: &RedisStore, queue: Option<&str>) -> Result<Counts> {
    let live = store.current().await?;
    let counts = live.shards.iter().enumerate().map(async |(at, shard)| {
        let counts =
            if is_away(&live.shards, at) { Err(fault::away()) } else { read::count(shard, queue).await };
        match counts {
            Err(error) if 1 < live.shards.len() && fault::is_away(&error) => Ok((None, Some(error))),
            counts => counts.map(|counts| (Some(counts), None)),
        }
    });
    let (counts, away): (Vec<_>, Vec<_>) = all(counts).await?.into_iter().unzip();
    let missing = counts.iter().filter(|counts| counts.is_none()).count() as u16;
    let sum = counts.into_iter().flatten().reduce(read::sum);
    match (sum, away.into_iter().flatten().next()) {
        (None, Some(error)) => Err(error),
        (sum, _) => Ok(Counts { parts_away: missing, ..sum.unwrap_or_default() }),
    }
}

pub(crate) async fn upcoming(store: &RedisStore, upcoming: &Upcoming) -> Result<Histogram> {
    check_upcoming(upcoming)?;
    let live = store.refresh().await?;
    // All shards are read for the same instant.
    let now = read::now(&live.shards[0]).await?;
    let mut sum =
        Histogram { now, buckets: vec![0; upcoming.buckets], complete: true, ..Histogram::default() };
    for found in all(live.shards.iter().map(|shard| read::upcoming(shard, now, upcoming))).await? {
        sum.overdue += found.overdue;
        for (sum, jobs) in sum.buckets.iter_mut().zip(found.buckets) {
            *sum += jobs;
        }
    }
    Ok(sum)
}
