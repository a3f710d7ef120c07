//! `reserve`: reclaims expired leases, picks due jobs in order (pick.rs), leases them.

pub(crate) mod pick;

use std::time::Duration;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use self::pick::Pick;
use crate::{
    core::{
        id::JobId,
        job::Priority,
        lifecycle::{is_last_chance, lease_ms, reclaimed},
        limits::{RECLAIM_MAX, SWEEP_RIDE_MAX},
        time::Timestamp,
    },
    store::{
        Batch, Lease, QueueRequest, Reclaimed, Reserve, Reserved,
        sqlite::{
            engine::{
                fault::Step,
                sql::named,
                tx::{Numbered, Q, Tx, instant, int, ms},
            },
            state::{
                codec::Job,
                groups::group_of,
                places::{LEASE, LeaseRow, PUT_LEASE, Place},
            },
            verbs::{extend::extend_lease, sweep},
        },
    },
};

const FILE: &str = include_str!("../sql/reserve.sql");
const PAST_THEIR_TIME: &str = named(FILE, "past_their_time");
const FIRST_DUE: &str = named(FILE, "first_due");
const FIRST_LEASE: &str = named(FILE, "first_lease");

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
    tx.touch_clock()?;
    let reclaimed = reclaim(tx, &named)?;
    tx.hand_over()?;
    let jobs = lease_due(tx, &queues, request)?;
    tx.put_call(request.call, Numbered::Reserve, &answer(&jobs))?;
    sweep::ride(tx, &named, SWEEP_RIDE_MAX)?;
    tx.hand_over()?;
    let batch = batch(tx, &named, jobs, reclaimed)?;
    if !batch.jobs.is_empty() {
        // A caller that got jobs may be busy now, so another one must wake for what is left.
        for q in named {
            if let Some(t) = first_due(tx, q)? {
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

/// Reclaims up to 32 expired leases, oldest first (S9), unless the clock has just jumped (S14).
pub(crate) fn reclaim(tx: &mut Tx<'_>, queues: &[Q]) -> Step<Vec<Reclaimed>> {
    if tx.grace()?.is_some() {
        return Ok(Vec::new());
    }
    let mut expired: Vec<(i64, Vec<u8>)> = Vec::new();
    for (at, q) in queues.iter().enumerate() {
        if queues[..at].contains(q) {
            continue;
        }
        let mut stmt = tx.conn.prepare_cached(PAST_THEIR_TIME)?;
        let mut rows = stmt.query(params![tx.at(*q).qid, tx.now_ms(), int(RECLAIM_MAX)])?;
        while let Some(row) = rows.next()? {
            expired.push((
                row.get(0).unwrap_or_default(),
                row.get_ref(1)?.as_bytes().unwrap_or_default().to_vec(),
            ));
        }
    }
    expired.sort_unstable();
    expired.truncate(RECLAIM_MAX);
    let mut answers = Vec::with_capacity(expired.len());
    for (_, id) in expired {
        answers.extend(reclaim_one(tx, &id)?);
    }
    Ok(answers)
}

fn reclaim_one(tx: &mut Tx<'_>, id: &[u8]) -> Step<Option<Reclaimed>> {
    let row = tx.conn.prepare_cached(LEASE)?.query_row([id], |row| Ok(LeaseRow::read(row))).optional()?;
    let Some(row) = row else { return Ok(None) };
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
        let run_at: Option<i64> =
            stmt.query_row(params![qid, priority as i64], |row| row.get(0)).optional()?;
        first = first.into_iter().chain(run_at).min();
    }
    Ok(first.map(instant))
}

/// Returns when the first lease of a queue expires. Expired ones count at the end of the pause, if there is one.
fn first_lease(tx: &mut Tx<'_>, q: Q) -> Step<Option<Timestamp>> {
    let grace = tx.grace()?;
    let qid = tx.at(q).qid;
    let mut stmt = tx.conn.prepare_cached(FIRST_LEASE)?;
    let mut first_after = |t: i64| -> rusqlite::Result<Option<Timestamp>> {
        Ok(stmt.query_row([qid, t], |row| row.get(0)).optional()?.map(instant))
    };
    let first = first_after(-1)?;
    match grace {
        Some(end) if first.is_some_and(|first| first <= tx.now) => {
            Ok(first_after(tx.now_ms())?.into_iter().chain([end]).min())
        }
        _ => Ok(first),
    }
}

/// Makes the answer, with what is next in these queues.
fn batch(tx: &mut Tx<'_>, queues: &[Q], jobs: Vec<Reserved>, reclaimed: Vec<Reclaimed>) -> Step<Batch> {
    let next_due = next(tx, queues)?.map(|t| t.since(tx.now).saturating_sub(tx.into_ms));
    Ok(Batch { now: tx.now, jobs, more: next_due.is_some_and(|d| d.is_zero()), next_due, reclaimed })
}

/// Returns when a waiting job is due or a lease expires in these queues; the time can be in the past.
pub(crate) fn next(tx: &mut Tx<'_>, queues: &[Q]) -> Step<Option<Timestamp>> {
    let mut next: Option<Timestamp> = None;
    for &q in queues {
        let due = first_due(tx, q)?;
        let lease = first_lease(tx, q)?;
        next = next.into_iter().chain(due).chain(lease).min();
    }
    Ok(next)
}
