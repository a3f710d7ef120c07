//! Reads: they change nothing, and hide ended jobs past their age.

use crate::{
    error::Result,
    id::JobId,
    job::JobRecord,
    limits::{BATCH_MAX, DUE_COUNT_MAX},
    store::{
        Check, CheckLevel, Counts, Durability, Histogram, List, Page, Store, UniqueKey, Upcoming,
        check_limit, check_upcoming, clock::Clock,
    },
    time::{Timestamp, ceil_ms},
};

use super::{
    RedisStore,
    bytes::Bytes,
    digits, queue, record,
    reply::{self, Reply},
    scripts::SCRIPTS,
};

/// Most jobs of one slice of a listing.
const SLICE_MAX: usize = 256;

pub(super) async fn now(store: &RedisStore) -> Result<Timestamp> {
    if let Clock::Manual(clock) = &store.clock {
        return Ok(clock.now());
    }
    let mut reply = Reply::of(store.link.command(redis::cmd("TIME")).await?)?;
    let (seconds, micros) = (reply.number()?, reply.number()?);
    Ok(Timestamp::saturating_from_ms(seconds * 1_000 + micros / 1_000))
}

pub(super) async fn get(
    store: &RedisStore,
    id: Option<JobId>,
    key: Option<&UniqueKey>,
) -> Result<Option<JobRecord>> {
    let id = id.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
    let digest = key.map_or_else(Vec::new, |key| record::digest_of(key).to_vec());
    let mut reply = store.ask(&SCRIPTS.get, &[], vec![id, digest]).await?;
    if reply.is_over() {
        return Ok(None);
    }
    let (id, rec, past, run) = (reply.bytes()?, reply.bytes()?, reply.bytes()?, reply.bytes()?);
    record::decode(Bytes(&id).id()?, &rec, &past, &run).map(Some)
}

pub(super) async fn list(store: &RedisStore, list: &List) -> Result<Page> {
    check_limit("list", list.limit)?;
    let mut page = Page::default();
    let mut after = list.after;
    // As many as may match, and one that tells whether there are more; then more and more.
    let mut slice = list.limit + 1;
    loop {
        slice = slice.min(SLICE_MAX);
        let args = vec![after.map_or_else(Vec::new, |id| id.as_bytes().to_vec()), digits(slice as u64)];
        slice *= 4;
        let mut reply = store.ask(&SCRIPTS.list, &[], args).await?;
        (page.now, page.total) = (reply.time()?, reply.number()?);
        if reply.is_over() {
            page.next = None;
            return Ok(page);
        }
        while !reply.is_over() {
            if page.jobs.len() == list.limit || page.searched == (page.jobs.len() + BATCH_MAX) as u64 {
                page.next = after;
                return Ok(page);
            }
            let (id, rec, past, run) = (reply.bytes()?, reply.bytes()?, reply.bytes()?, reply.bytes()?);
            let hidden = reply.number()? != 0;
            let id = Bytes(&id).id()?;
            page.searched += 1;
            after = Some(id);
            let job = record::decode(id, &rec, &past, &run)?;
            if !hidden && list.filter.matches(&job, page.now) {
                page.jobs.push(job);
            }
        }
    }
}

/// Reads what `lua/counting.lua` answers.
pub(super) fn counts(reply: &mut Reply) -> Result<Counts> {
    Ok(Counts {
        waiting: reply.number()?,
        retrying: reply.number()?,
        due: reply.number()?.min(DUE_COUNT_MAX),
        running: reply.number()?,
        done: reply.number()?,
        dead: reply.number()?,
        cancelled: reply.number()?,
        bytes: reply.number()?,
    })
}

pub(super) async fn count(store: &RedisStore, queue: Option<&str>) -> Result<Counts> {
    let name = queue.unwrap_or_default().as_bytes().to_vec();
    counts(&mut store.ask(&SCRIPTS.count, &[], vec![name]).await?)
}

pub(super) async fn upcoming(store: &RedisStore, upcoming: &Upcoming) -> Result<Histogram> {
    check_upcoming(upcoming)?;
    let mut histogram =
        Histogram { buckets: vec![0; upcoming.buckets], complete: true, ..Histogram::default() };
    histogram.now = now(store).await?;
    let mut names = upcoming.queue.iter().cloned().collect::<Vec<_>>();
    loop {
        if upcoming.queue.is_none() {
            names = queue::queues(store, names.last().map(String::as_str)).await?;
        }
        for name in &names {
            add(store, upcoming, name, &mut histogram).await?;
        }
        if upcoming.queue.is_some() || names.len() < BATCH_MAX {
            return Ok(histogram);
        }
    }
}

/// Adds the jobs of one queue, seen at the same instant as the others.
async fn add(store: &RedisStore, upcoming: &Upcoming, queue: &str, histogram: &mut Histogram) -> Result<()> {
    let script = &SCRIPTS.upcoming;
    let args = [
        digits(histogram.now.as_ms()),
        queue.as_bytes().to_vec(),
        // A wider bucket reaches past the end of time, too.
        digits(ceil_ms(upcoming.bucket).min(1 << 48)),
        digits(upcoming.buckets as u64),
    ];
    let mut reply = Reply::of(store.link.call(script, &store.keys, &args).await?)?;
    reply.time()?;
    histogram.overdue += reply.number()?;
    while !reply.is_over() {
        let (bucket, jobs) = (reply.number()?, reply.number()?);
        if let Some(sum) = histogram.buckets.get_mut(bucket as usize) {
            *sum += jobs;
        }
    }
    Ok(())
}

pub(super) async fn doctor(store: &RedisStore) -> Result<Vec<Check>> {
    let info = reply::bytes(store.link.command(redis::cmd("INFO")).await?)?;
    let info = String::from_utf8_lossy(&info);
    let told = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let policy = told("maxmemory_policy");
    let evicts = policy != "noeviction" && told("maxmemory") != "0";
    let keeps = told("aof_enabled") == "1";
    let check = |is_well: bool, otherwise, name, text, fix: &str| Check {
        level: if is_well { CheckLevel::Ok } else { otherwise },
        name,
        text,
        fix: (!is_well).then(|| fix.to_owned()),
    };
    Ok(vec![
        check(true, CheckLevel::Ok, "server", format!("version {}", told("redis_version")), ""),
        check(
            keeps || store.durability() == Durability::Full,
            CheckLevel::Warn,
            "durability",
            format!(
                "{}: a crash of any of our processes loses nothing; appendonly is {}",
                store.durability().name(),
                if keeps {
                    "on"
                } else {
                    "off, so a restart of the server loses what its last snapshot lacks"
                }
            ),
            "set appendonly yes on the server",
        ),
        check(
            !evicts,
            CheckLevel::Fail,
            "eviction",
            format!("maxmemory-policy is {policy}"),
            "set maxmemory-policy noeviction: any other deletes jobs when memory is full",
        ),
        check(true, CheckLevel::Ok, "clock", format!("the server's clock shows {}", now(store).await?), ""),
    ])
}
