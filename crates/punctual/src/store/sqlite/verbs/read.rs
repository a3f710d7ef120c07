//! Reads: they change nothing, and hide ended jobs past the age of their retention.

pub(crate) mod due_times;

use rusqlite::params;

use crate::{
    core::{
        filter::Search,
        id::JobId,
        job::{JobRecord, State},
        limits::{BATCH_MAX, DUE_COUNT_MAX, LIST_BYTES_MAX, UPCOMING_SEARCH_MAX},
        time::ceil_ms,
    },
    store::{
        Counts, Histogram, List, ListCursor, Page, UniqueKey, Upcoming,
        sqlite::{
            engine::{
                fault::Step,
                row_number::{OTHERS, last_slot, ms_at, ms_of},
                sql::named,
                tx::{Tally, Tx, int},
            },
            state::{codec::Job, places::Place},
            verbs::{
                act::by_key,
                read::due_times::{count_due, walk},
                reserve::job_id,
                sweep::is_past,
            },
        },
    },
};

const FILE: &str = include_str!("../sql/read.sql");
const TOTAL: &str = named(FILE, "total");
const RUNNING_IDS: &str = named(FILE, "running_ids");
const ENDED_IDS: &str = named(FILE, "ended_ids");
const SLOTS_DOWN: &str = named(FILE, "slots_down");
const COUNTERS: &str = named(FILE, "counters");

/// Returns one job.
pub(crate) fn get(tx: &mut Tx<'_>, id: JobId) -> Step<Option<JobRecord>> {
    let job = tx.job(id)?;
    job.map_or(Ok(None), |job| record(tx, job))
}

/// Returns the job that holds a key.
pub(crate) fn holder(tx: &mut Tx<'_>, key: &UniqueKey) -> Step<Option<JobRecord>> {
    let job = by_key(tx, key)?;
    job.map_or(Ok(None), |job| record(tx, job))
}

/// Returns the record of a job, unless its age hides it.
fn record(tx: &mut Tx<'_>, job: Job) -> Step<Option<JobRecord>> {
    let place = Place::of(tx, &job)?;
    let Some(q) = tx.queue_by_qid(job.qid)? else { return Ok(Some(job.into_record("", &place))) };
    let queue = tx.at(q);
    let hidden = matches!(&place, Place::Ended(e) if is_past(queue.keep(e.state), e.at, tx.now));
    let name = queue.name.clone();
    let blocked = matches!(&place, Place::Waiting if job.run_at <= tx.now)
        && (tx.is_key_full(&job)? || !tx.is_open(q) || tx.is_group_closed(q, &job)?);
    Ok((!hidden).then(|| JobRecord { blocked, ..job.into_record(&name, &place) }))
}

// ── list ──

/// Returns a page of jobs, newest id first.
pub(crate) fn list(tx: &mut Tx<'_>, list: &List) -> Step<Page> {
    let total: i64 = tx.conn.prepare_cached(TOTAL)?.query_row([], |row| row.get(0))?;
    let mut page = Page { now: tx.now, total: total.max(0).cast_unsigned(), ..Page::default() };
    let (mut last, mut bytes, mut search) = (None, 0, Search::new(&list.filter));
    for id in candidates(tx, list)? {
        if page.jobs.len() == list.limit
            || page.searched == (page.jobs.len() + BATCH_MAX) as u64
            || LIST_BYTES_MAX <= bytes
            || search.is_spent()
        {
            page.next = last.map(ListCursor::behind);
            break;
        }
        page.searched += 1;
        last = Some(id);
        let Some(job) = tx.job(id)? else { continue };
        bytes += job.kept_bytes().unsigned_abs();
        page.jobs.extend(record(tx, job)?.filter(|record| search.matches(record, tx.now)));
    }
    Ok(page)
}

/// Returns ids for the page, newest first, and one more than it can check: from the states that the filter leaves, or
/// from all records.
fn candidates(tx: &mut Tx<'_>, list: &List) -> Step<Vec<JobId>> {
    let n = list.limit + BATCH_MAX + 1;
    let after = list.after.as_ref().map(ListCursor::id).transpose()?;
    let states = list.filter.states();
    let wants = |state: State| states.as_ref().is_none_or(|states| states.contains(&state));
    if wants(State::Waiting) {
        return newest(tx, after, n);
    }
    let mut ids = Vec::new();
    if wants(State::Running) {
        ids.extend(below(tx, RUNNING_IDS, after, n)?);
    }
    if State::ALL.into_iter().any(|state| state.is_ended() && wants(state)) {
        ids.extend(below(tx, ENDED_IDS, after, n)?);
    }
    ids.sort_unstable_by(|a, b| b.cmp(a));
    ids.dedup();
    ids.truncate(n);
    Ok(ids)
}

/// Returns the highest `n` ids of a table below `after`.
fn below(tx: &Tx<'_>, sql: &str, after: Option<JobId>, n: usize) -> Step<Vec<JobId>> {
    let mut stmt = tx.conn.prepare_cached(sql)?;
    let after = after.map_or([u8::MAX; 16], |id| *id.as_bytes());
    let rows =
        stmt.query_map(params![after, int(n)], |row| Ok(row.get_ref(0)?.as_blob().ok().and_then(job_id)))?;
    Ok(rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Returns the highest `n` ids of all records below `after`. Slots follow only the milliseconds of ids, and made and
/// other ids have separate ranges. So both ranges are read to the end of the millisecond of the `n`th id, and sorted.
fn newest(tx: &mut Tx<'_>, after: Option<JobId>, n: usize) -> Step<Vec<JobId>> {
    let reach = tx.reach()?;
    let mut ids = Vec::new();
    for made in [true, false] {
        let lowest = if made { 0 } else { OTHERS };
        let highest = if made { OTHERS - 1 } else { i64::MAX };
        let start =
            after.map_or(highest, |after| last_slot(made, ms_of(after)).saturating_add(reach).min(highest));
        let mut stmt = tx.conn.prepare_cached(SLOTS_DOWN)?;
        let mut rows = stmt.query(params![lowest, start])?;
        let (mut found, mut oldest) = (0, u64::MAX);
        while let Some(row) = rows.next()? {
            // Lower slots are of this millisecond or earlier.
            if n <= found && ms_at(row.get(0)?) < oldest {
                break;
            }
            let Some(id) = row.get_ref(1)?.as_blob().ok().and_then(job_id) else { continue };
            if after.is_none_or(|after| id < after) {
                ids.push(id);
                found += 1;
                oldest = oldest.min(ms_of(id));
            }
        }
    }
    ids.sort_unstable_by(|a, b| b.cmp(a));
    ids.truncate(n);
    Ok(ids)
}

// ── counts ──

/// Returns the stored counters of one queue or of all.
pub(crate) fn count(tx: &mut Tx<'_>, queue: Option<&str>) -> Step<Counts> {
    let Some(name) = queue else {
        let (mut all, mut counters) = (Tally::default(), tx.conn.prepare_cached(COUNTERS)?);
        for of in counters.query_map([], |row| Ok(Tally::read(row, 0)))? {
            all.shift(Tally::default(), of?);
        }
        return Ok(Counts { due: count_due(tx, None, DUE_COUNT_MAX)?, ..all.counts() });
    };
    match tx.queue(name)? {
        Some(q) => Ok(Counts { due: count_due(tx, Some(q), DUE_COUNT_MAX)?, ..tx.at(q).tally.counts() }),
        None => Ok(Counts::default()),
    }
}

/// Returns a histogram of due times.
pub(crate) fn upcoming(tx: &mut Tx<'_>, upcoming: &Upcoming) -> Step<Histogram> {
    let mut histogram =
        Histogram { now: tx.now, buckets: vec![0; upcoming.buckets], complete: true, ..Histogram::default() };
    let q = match upcoming.queue.as_deref().map(|name| tx.queue(name)).transpose()? {
        Some(None) => return Ok(histogram),
        q => q.flatten(),
    };
    let (now, width) = (tx.now_ms(), i64::try_from(ceil_ms(upcoming.bucket)).unwrap_or(i64::MAX).max(1));
    let last = now.saturating_add(width.saturating_mul(int(upcoming.buckets))).saturating_sub(1);
    let searched = walk(tx, q, last, UPCOMING_SEARCH_MAX, |run_at| {
        if run_at <= now {
            histogram.overdue += 1;
        } else if let Some(jobs) =
            usize::try_from((run_at - now) / width).ok().and_then(|i| histogram.buckets.get_mut(i))
        {
            *jobs += 1;
        }
    })?;
    histogram.complete = searched < UPCOMING_SEARCH_MAX;
    Ok(histogram)
}
