//! `reserve`: reclaims expired leases, picks due jobs in order (pick.rs), leases them.

pub(crate) mod pick;

use std::time::Duration;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params, types::Value};

use self::pick::Pick;
use crate::{
    core::{
        id::JobId,
        job::Priority,
        lifecycle::{is_last_chance, lease_ms, reclaimed},
        limits::{ORPHANED_AFTER, RECLAIM_MAX, SWEEP_RIDE_MAX, WATCHED_MAX},
        silence::watch_at,
        time::{Timestamp, ceil_ms},
    },
    store::{
        Batch, Lease, QueueRequest, Reclaimed, Reserve, Reserved,
        sqlite::{
            engine::{
                fault::{Step, all_removed},
                sql::named,
                tx::{Numbered, Q, Tx, due_time, instant, int, ms},
            },
            state::{
                codec::Job,
                groups::group_of,
                places::{DELETE_LEASE, LEASE, LeaseRow, PUT_LEASE, Place},
            },
            verbs::{extend::extend_lease, sweep},
        },
    },
};

const FILE: &str = include_str!("../sql/reserve.sql");
const PAST_THEIR_TIME: &str = named(FILE, "past_their_time");
const FIRST_DUE: &str = named(FILE, "first_due");
const FIRST_TO_END: &str = named(FILE, "first_to_end");
const LAST_TO_END: &str = named(FILE, "last_to_end");
const SHORTEN: &str = named(FILE, "shorten");
const END_ENDLESS: &str = named(FILE, "end_endless");

/// Other processes learn of leases that last this long or longer in time without a notification: they look once a second.
const UNTOLD_MIN: Duration = Duration::from_millis(2_500);

/// A numbered reserve (S3).
pub(crate) fn reserve(tx: &mut Tx<'_>, request: &Reserve) -> Step<Batch> {
    let mut queues = Vec::with_capacity(request.queues.len());
    for each in &request.queues {
        if let Some(q) = tx.queue(&each.queue)? {
            queues.push((q, each));
        }
    }
    let named: Vec<Q> = queues.iter().map(|(q, _)| *q).collect();
    if let Some((number, answer)) = tx.last_call(request.call, Numbered::Reserve)?
        && request.call.number <= number
    {
        let jobs = if request.call.number == number { replay(tx, &answer)? } else { Vec::new() };
        return batch(tx, &named, jobs, Vec::new());
    }
    tx.mark()?;
    let reclaimed = reclaim(tx, &named)?;
    tx.hand_over()?;
    let jobs = lease_due(tx, &queues, request)?;
    tx.put_call(request.call, Numbered::Reserve, &answer(&jobs))?;
    sweep::ride(tx, &named, SWEEP_RIDE_MAX)?;
    tx.hand_over()?;
    let batch = batch(tx, &named, jobs, reclaimed)?;
    if !batch.jobs.is_empty() {
        let shortest = batch.jobs.iter().map(|job| job.lasts).min().filter(|lasts| *lasts < UNTOLD_MIN);
        let watch_at = shortest.map(|lasts| watch_at(Timestamp::MAX, ceil_ms(lasts), tx.now));
        // A caller that got jobs may be busy now, so another one must wake for what is left.
        for q in named {
            if let Some(t) = first_due(tx, q)?.into_iter().chain(watch_at).min() {
                tx.notify(q, t);
            }
        }
    }
    Ok(batch)
}

/// Returns what a repetition needs: the first fence (the others follow it) and the ids.
fn answer(jobs: &[Reserved]) -> Vec<u8> {
    let Some(first) = jobs.first() else { return Vec::new() };
    let ids = jobs.iter().flat_map(|job| job.lease.job.as_bytes());
    first.lease.fence.to_le_bytes().iter().chain(ids).copied().collect()
}

/// Extends and returns the jobs of a stored answer whose leases are current.
fn replay(tx: &mut Tx<'_>, answer: &[u8]) -> Step<Vec<Reserved>> {
    let Some((first, ids)) = answer.split_first_chunk() else { return Ok(Vec::new()) };
    let first = u64::from_le_bytes(*first);
    let mut jobs = Vec::new();
    for (id, fence) in ids.as_chunks().0.iter().zip(first..) {
        let Ok(id) = JobId::from_bytes(*id) else { continue };
        let lease = Lease { job: id, fence };
        if let Some(mut row) = tx.lease(id)?.filter(|row| row.is(&lease))
            && let Some(job) = tx.job(id)?
        {
            extend_lease(tx, id, &mut row)?;
            jobs.push((lease, row, job));
        }
    }
    jobs.into_iter().map(|(lease, row, job)| reserved(tx, lease, row, job)).collect()
}

fn reserved(tx: &mut Tx<'_>, lease: Lease, row: LeaseRow, job: Job) -> Step<Reserved> {
    let name = tx.name_of(job.qid)?;
    let (until, lasts) = (row.until, Duration::from_millis(row.lasts_ms.cast_unsigned()));
    Ok(Reserved { lease, until, lasts, job: job.into_record(&name, &Place::Running(row)) })
}

/// Looks at the expired leases that ended first, and reclaims those that no silence holds back (S9).
pub(crate) fn reclaim(tx: &mut Tx<'_>, queues: &[Q]) -> Step<Vec<Reclaimed>> {
    reclaim_at_most(tx, queues, RECLAIM_MAX, Duration::ZERO)
}

/// The same, but it looks at no more than `limit` of them, and reclaims those that have been over for `after`.
pub(crate) fn reclaim_at_most(
    tx: &mut Tx<'_>,
    queues: &[Q],
    limit: usize,
    after: Duration,
) -> Step<Vec<Reclaimed>> {
    shorten(tx, queues)?;
    let limit = limit.min(RECLAIM_MAX);
    let mut expired: Vec<(i64, Vec<u8>, i64)> = Vec::new();
    let mut nameless: Vec<(Q, Value)> = Vec::new();
    for (at, q) in queues.iter().enumerate() {
        if queues[..at].contains(q) {
            continue;
        }
        let mut stmt = tx.conn.prepare_cached(PAST_THEIR_TIME)?;
        let mut rows = stmt.query(params![tx.at(*q).qid, tx.now_ms(), int(limit)])?;
        while let Some(row) = rows.next()? {
            match row.get(1)? {
                Value::Blob(id) => {
                    expired.push((row.get(0).unwrap_or_default(), id, row.get(2).unwrap_or_default()));
                }
                other => nameless.push((*q, other)),
            }
        }
    }
    for (q, id) in nameless {
        // Of no job: it would be met for ever.
        all_removed(tx.conn.prepare_cached(DELETE_LEASE)?.execute([id])?, 1)?;
        tx.tally(q).running -= 1;
    }
    if expired.is_empty() {
        return Ok(Vec::new());
    }
    expired.sort_unstable();
    expired.truncate(limit);
    let now = tx.now;
    let silences = tx.silences()?;
    expired.retain(|&(until, _, lasts)| silences.over_at(instant(until), length(lasts)).after(after) <= now);
    let mut answers = Vec::with_capacity(expired.len());
    for (_, id, _) in expired {
        answers.extend(reclaim_one(tx, &id)?);
    }
    Ok(answers)
}

/// Gives leases of a queue an end that have none which can be read: something else damaged them.
pub(crate) fn end_endless(tx: &Tx<'_>, q: Q) -> Step<()> {
    tx.conn.prepare_cached(END_ENDLESS)?.execute(params![tx.at(q).qid, tx.now_ms()])?;
    Ok(())
}

/// Reclaims the lease of a running job if nobody else has for some time (S9). Returns whether it did.
pub(crate) fn reclaim_if_over(tx: &mut Tx<'_>, id: JobId, row: &LeaseRow) -> Step<bool> {
    let (now, lasts_ms) = (tx.now, length(row.lasts_ms));
    let longest = now.after(Duration::from_millis(lasts_ms));
    let until = if tx.silences()?.can_end_late(now) { row.until.min(longest) } else { row.until };
    if until < row.until {
        tx.conn.prepare_cached(SHORTEN)?.execute(params![id.as_bytes(), ms(until)])?;
    }
    let is_over = tx.silences()?.over_at(until, lasts_ms).after(ORPHANED_AFTER) <= now;
    if is_over {
        reclaim_one(tx, id.as_bytes())?;
    }
    Ok(is_over)
}

/// Shortens leases that end later than their length from now, because the clock went back: those that end last (S14).
fn shorten(tx: &mut Tx<'_>, queues: &[Q]) -> Step<()> {
    let now = tx.now;
    if !tx.silences()?.can_end_late(now) {
        return Ok(());
    }
    let mut last: Vec<(i64, Vec<u8>, i64)> = Vec::new();
    for q in queues {
        let mut stmt = tx.conn.prepare_cached(LAST_TO_END)?;
        let mut rows = stmt.query(params![tx.at(*q).qid, int(RECLAIM_MAX)])?;
        while let Some(row) = rows.next()? {
            let id = row.get_ref(0)?.as_bytes().unwrap_or_default().to_vec();
            last.push((row.get(1).unwrap_or_default(), id, row.get(2).unwrap_or_default()));
        }
    }
    last.sort_unstable();
    last.dedup();
    for (until, id, lasts) in last.into_iter().rev().take(RECLAIM_MAX) {
        let longest = ms(now.after(Duration::from_millis(length(lasts))));
        if longest < until {
            tx.conn.prepare_cached(SHORTEN)?.execute(params![id, longest])?;
        }
    }
    Ok(())
}

/// Returns the length of a lease as it is stored, in milliseconds.
fn length(lasts: i64) -> u64 {
    lasts.max(0).cast_unsigned()
}

fn reclaim_one(tx: &mut Tx<'_>, id: &[u8]) -> Step<Option<Reclaimed>> {
    let row = tx.conn.prepare_cached(LEASE)?.query_row([id], |row| Ok(LeaseRow::read(row))).optional()?;
    // The index by time has it, and the table does not.
    let Some(row) = row else { return all_removed(0, 1).map(|()| None) };
    let Some(q) = tx.queue_by_qid(row.qid)? else { return Ok(None) };
    let job = job_id(id).map_or(Ok(None), |id| tx.job(id))?;
    let Some(mut job) = job else {
        // A lease without a record is dropped, as `audit` does.
        tx.drop_lease(q, id)?;
        tx.end_turn_of_unknown(q, id)?;
        return Ok(None);
    };
    let (state, _) = tx.end_run(q, &row, &mut job, reclaimed)?;
    let lease = Lease { job: job.id, fence: row.fence.cast_unsigned() };
    Ok(Some(Reclaimed { lease, queue: tx.at(q).name.clone(), state }))
}

/// Leases due jobs: first each queue in turn its share, then each in turn what is left, up to its bound.
fn lease_due(tx: &mut Tx<'_>, queues: &[(Q, &QueueRequest)], request: &Reserve) -> Step<Vec<Reserved>> {
    let mut pick = Pick::new(tx.now, request.n).by_lease(request.company);
    let mut jobs: Vec<Reserved> = Vec::new();
    let mut put = tx.conn.prepare_cached(PUT_LEASE)?;
    let mut room: Vec<usize> = queues.iter().map(|(_, request)| request.at_most).collect();
    for share_only in [true, false] {
        for (&(q, each), room) in queues.iter().zip(&mut room) {
            let (had, share) = (jobs.len(), if share_only { each.share } else { request.n });
            pick.run(tx, q, share.min(*room), |tx, q, job| {
                let reserved = lease_one(tx, &mut put, q, job, request)?;
                let given = reserved.is_some();
                jobs.extend(reserved);
                Ok(given)
            })?;
            *room -= jobs.len() - had;
        }
    }
    Ok(jobs)
}

fn lease_one(
    tx: &mut Tx<'_>,
    put: &mut CachedStatement<'_>,
    q: Q,
    mut job: Job,
    request: &Reserve,
) -> Step<Option<Reserved>> {
    let fence = tx.next_fence()?;
    tx.free_key_at_start(&mut job)?;
    let key = tx.key_of(&job)?;
    let queue = tx.at(q);
    let lasts =
        Duration::from_millis(lease_ms(job.opts.lease(), request.lease, queue.settings.defaults.lease));
    let mut flags = 0;
    if job.holds_until_done() {
        flags |= LeaseRow::KEY;
    }
    if job.has_history {
        flags |= LeaseRow::HISTORY;
    }
    if request.company && is_last_chance(job.history.expired_leases) {
        flags |= LeaseRow::COMPANY;
    }
    let gid = group_of(&job);
    if job.opts.concurrency.is_some() || gid.is_some() {
        flags |= LeaseRow::KEYED;
    }
    let row = LeaseRow {
        fence,
        qid: queue.qid,
        until: tx.now.after(lasts),
        lasts_ms: lasts.as_millis() as i64,
        started_at: tx.now,
        bytes: job.bytes(),
        flags,
        worker: request.worker.clone(),
    };
    let inserted = put.execute(params![
        job.id.as_bytes(),
        row.fence,
        row.qid,
        ms(row.until),
        row.lasts_ms,
        ms(row.started_at),
        row.bytes,
        row.flags,
        row.worker,
    ])?;
    if inserted == 0 {
        // It is in two places: running wins, and its timeline entry is removed with the others.
        return Ok(None);
    }
    if let Some((key, _)) = key {
        tx.take_slot(q, &job, key)?;
    }
    if let Some(gid) = gid {
        tx.run(&job, &gid)?;
    }
    let lease = Lease { job: job.id, fence: fence.cast_unsigned() };
    let until = row.until;
    let record = job.into_record(&tx.at(q).name, &Place::Running(row));
    tx.tally(q).running += 1;
    Ok(Some(Reserved { lease, until, lasts, job: record }))
}

/// Returns the id in these bytes, if it is valid.
pub(crate) fn job_id(bytes: &[u8]) -> Option<JobId> {
    JobId::from_bytes(bytes.try_into().ok()?).ok()
}

/// Returns when the first waiting job of a queue is due and can start; `None` if the queue is paused or full.
pub(crate) fn first_due(tx: &mut Tx<'_>, q: Q) -> Step<Option<Timestamp>> {
    let queue = tx.at(q);
    if queue.settings.paused.is_some() {
        return Ok(None);
    }
    let qid = queue.qid;
    let Some(opens) = tx.opens(q) else { return Ok(None) };
    let rest = first_due_of(tx.conn, qid)?;
    let first = tx.first_coming(q)?.into_iter().chain(rest).min();
    Ok(first.map(|first| first.max(opens)))
}

/// Returns when the first ungrouped waiting job of a queue is due.
pub(crate) fn first_due_of(conn: &Connection, qid: i64) -> rusqlite::Result<Option<Timestamp>> {
    let mut stmt = conn.prepare_cached(FIRST_DUE)?;
    let mut first: Option<i64> = None;
    for priority in Priority::ALL {
        let run_at = stmt.query_row(params![qid, priority as i64], |row| due_time(row, 0)).optional()?;
        first = first.into_iter().chain(run_at.flatten()).min();
    }
    Ok(first.map(instant))
}

/// Returns when a call is needed for a lease of this queue, if one is, counted from the mark `from`. `by_sweep`: when a sweep is, for
/// those that have expired.
fn watch(tx: &mut Tx<'_>, q: Q, from: Timestamp, by_sweep: bool) -> Step<Option<Timestamp>> {
    let (qid, now) = (tx.at(q).qid, tx.now);
    let mut first = Vec::new();
    {
        let mut stmt = tx.conn.prepare_cached(FIRST_TO_END)?;
        let mut rows = stmt.query(params![qid, int(WATCHED_MAX)])?;
        while let Some(row) = rows.next()? {
            // One without an end is mended by a sweep.
            if let Ok(until) = row.get(0) {
                first.push((instant(until), length(row.get(1).unwrap_or_default())));
            }
        }
    }
    if first.is_empty() {
        return Ok(None);
    }
    let silences = tx.silences()?;
    let after = if by_sweep { ORPHANED_AFTER } else { Duration::ZERO };
    let watched = first.into_iter().filter(|(until, _)| !by_sweep || *until <= now);
    let at = |(until, lasts)| {
        let over_at = silences.over_at(until, lasts).after(after);
        // Without a length it needs no mark.
        if lasts == 0 { over_at } else { watch_at(over_at, lasts, from) }
    };
    Ok(watched.map(at).min())
}

/// Returns when a sweep can reclaim the first of the expired leases.
pub(crate) fn next_reclaim(tx: &mut Tx<'_>, queues: &[Q]) -> Step<Option<Timestamp>> {
    let mut next = None;
    for &q in queues {
        next = watch(tx, q, tx.now, true)?.into_iter().chain(next).min();
    }
    Ok(next)
}

/// Makes the answer, with what is next in these queues.
fn batch(tx: &mut Tx<'_>, queues: &[Q], jobs: Vec<Reserved>, reclaimed: Vec<Reclaimed>) -> Step<Batch> {
    let next_due = next(tx, queues, tx.now)?.map(|t| t.since(tx.now).saturating_sub(tx.into_ms));
    Ok(Batch { now: tx.now, jobs, more: next_due.is_some_and(|d| d.is_zero()), next_due, reclaimed })
}

/// Returns when a waiting job is due, or a call is needed for a lease, in these queues; the time can be in the past. `mark`: the mark
/// from which leases are watched.
pub(crate) fn next(tx: &mut Tx<'_>, queues: &[Q], mark: Timestamp) -> Step<Option<Timestamp>> {
    let mut next: Option<Timestamp> = None;
    for &q in queues {
        let due = first_due(tx, q)?;
        let lease = watch(tx, q, mark, false)?;
        next = next.into_iter().chain(due).chain(lease).min();
    }
    Ok(next)
}
