//! Reads: sums of what the shards have, and one shard behind another where jobs are listed.

use super::{all, queue};
use crate::{
    error::Result,
    id::{JobId, SHARDS_MAX},
    job::JobRecord,
    limits::{BATCH_MAX, LIST_BYTES_MAX},
    store::{
        Counts, Histogram, List, ListCursor, Page, UniqueKey, Upcoming, check_limit, check_upcoming,
        redis::{Live, RedisStore, read},
    },
};

pub(in crate::store::redis) async fn get(store: &RedisStore, id: JobId) -> Result<Option<JobRecord>> {
    let live = store.refresh().await?;
    for home in live.layout.homes_of(id) {
        if let Some(job) = read::get(&live.shards[usize::from(home)], Some(id), None).await? {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

pub(in crate::store::redis) async fn holder(
    store: &RedisStore,
    key: &UniqueKey,
) -> Result<Option<JobRecord>> {
    let live = store.refresh().await?;
    for home in homes_of_key(&live, key) {
        if let Some(job) = read::get(&live.shards[home], None, Some(key)).await? {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

pub(super) fn homes_of_key(live: &Live, key: &UniqueKey) -> impl Iterator<Item = usize> {
    let placement_key = key.group.as_ref().or(key.concurrency_key.as_ref()).unwrap_or(&key.key);
    live.layout.homes_of_key(&key.queue, placement_key).into_iter().map(usize::from)
}

/// A cursor of all shards: which one, then its own.
fn split_cursor(cursor: &ListCursor) -> Result<(u16, Option<ListCursor>)> {
    let (shard, own) = cursor.0.split_once('.').ok_or_else(ListCursor::unreadable)?;
    let shard = shard.parse().ok().filter(|shard| *shard < SHARDS_MAX).ok_or_else(ListCursor::unreadable)?;
    Ok((shard, Some(own).filter(|own| !own.is_empty()).map(|own| ListCursor(own.to_owned()))))
}

pub(in crate::store::redis) async fn list(store: &RedisStore, list: &List) -> Result<Page> {
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
        // Whoever has looked at much without finding it looks on in the next call.
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

pub(in crate::store::redis) async fn count(store: &RedisStore, queue: Option<&str>) -> Result<Counts> {
    let live = store.refresh().await?;
    let counts = all(live.shards.iter().map(|shard| read::count(shard, queue))).await?;
    Ok(counts.into_iter().fold(Counts::default(), read::sum))
}

pub(in crate::store::redis) async fn upcoming(store: &RedisStore, upcoming: &Upcoming) -> Result<Histogram> {
    check_upcoming(upcoming)?;
    let live = store.refresh().await?;
    let mut histogram =
        Histogram { buckets: vec![0; upcoming.buckets], complete: true, ..Histogram::default() };
    histogram.now = read::now(&live.shards[0]).await?;
    let mut names = upcoming.queue.iter().cloned().collect::<Vec<_>>();
    loop {
        if upcoming.queue.is_none() {
            names = queue::names(&live, names.last().map(String::as_str)).await?;
        }
        for name in &names {
            for shard in &live.shards {
                read::add_upcoming(shard, upcoming, name, &mut histogram).await?;
            }
        }
        if upcoming.queue.is_some() || names.len() < BATCH_MAX {
            return Ok(histogram);
        }
    }
}
