//! Walks over the due times of waiting jobs, of one queue or of all: how many are due, and when the others are.

use rusqlite::{Statement, params};

use crate::store::sqlite::engine::{
    fault::Step,
    sql::named,
    tx::{Q, Tx},
};

const FILE: &str = include_str!("../../sql/due_times.sql");
const UNGROUPED: &str = named(FILE, "ungrouped");
const GROUPED: &str = named(FILE, "grouped");

/// Counts the due jobs of a queue, or of all, blocked or not, up to `limit`.
pub(crate) fn count_due(tx: &Tx<'_>, q: Option<Q>, limit: u64) -> Step<u64> {
    walk(tx, q, tx.now_ms(), limit, |_| {})
}

/// Calls `each` with the due times, up to and with `last`, of the waiting jobs of a queue or of all. Blocked jobs are due now.
/// Returns the number of calls, which is at most `limit`.
///
/// The index is sorted by queue and priority first. So a queue whose first job is due after `last` costs one seek, however
/// many jobs it has.
pub(crate) fn walk(tx: &Tx<'_>, q: Option<Q>, last: i64, limit: u64, mut each: impl FnMut(i64)) -> Step<u64> {
    let blocked = tx.count_blocked(q, limit)?;
    (0..blocked).for_each(|_| each(tx.now_ms()));
    let mut left = limit - blocked;
    let qid = q.map(|q| tx.at(q).qid);
    for sql in [UNGROUPED, GROUPED] {
        let mut places = tx.conn.prepare_cached(sql)?;
        let mut from = (qid.unwrap_or(i64::MIN), i64::MIN, i64::MIN);
        while let Some(next) = within(&mut places, from, qid, last, &mut left, &mut each)? {
            from = next;
        }
    }
    Ok(limit - left)
}

/// Reads places until one is due after `last`, and returns behind which to go on: after all of this queue and priority.
/// `None` at the end, also at a row that cannot be read.
fn within(
    places: &mut Statement<'_>,
    from: (i64, i64, i64),
    qid: Option<i64>,
    last: i64,
    left: &mut u64,
    each: &mut impl FnMut(i64),
) -> Step<Option<(i64, i64, i64)>> {
    let mut rows = places.query(params![from.0, from.1, from.2])?;
    while 0 < *left
        && let Some(row) = rows.next()?
        && let (Ok(q), Ok(pri), Ok(run_at)) = (row.get(0), row.get(1), row.get(2))
        && qid.is_none_or(|qid| qid == q)
    {
        if last < run_at {
            return Ok(Some((q, pri, i64::MAX)));
        }
        each(run_at);
        *left -= 1;
    }
    Ok(None)
}
