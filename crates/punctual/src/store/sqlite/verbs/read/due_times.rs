//! Walks over the due times of waiting jobs, of one queue or of all: how many are due, and when the others are.

use rusqlite::{CachedStatement, Params, params};

use crate::store::sqlite::engine::{
    fault::Step,
    sql::named,
    tx::{Q, Tx},
};

const FILE: &str = include_str!("../../sql/due_times.sql");
/// The jobs without a group, then those of groups.
const TABLES: [Table; 2] = [
    Table { first: named(FILE, "first"), count: named(FILE, "count"), times: named(FILE, "times") },
    Table {
        first: named(FILE, "first_grouped"),
        count: named(FILE, "count_grouped"),
        times: named(FILE, "times_grouped"),
    },
];

/// A table with due times: its first one behind a place, how many are in a place, and these.
struct Table {
    first: &'static str,
    count: &'static str,
    times: &'static str,
}

/// Counts the due jobs of a queue, or of all, blocked or not, up to `limit`.
pub(crate) fn count_due(tx: &Tx<'_>, q: Option<Q>, limit: u64) -> Step<u64> {
    let blocked = tx.count_blocked(q, limit)?;
    let found = places(tx, q, tx.now_ms(), limit - blocked, |table, place| {
        let n = tx.conn.prepare_cached(table.count)?.query_row(place, |row| row.get::<_, i64>(0))?;
        Ok(n.cast_unsigned())
    })?;
    Ok(blocked + found)
}

/// Calls `each` with the due times, up to and with `last`, of the waiting jobs of a queue or of all. Blocked jobs are due now.
/// Returns the number of calls, which is at most `limit`.
pub(crate) fn walk(tx: &Tx<'_>, q: Option<Q>, last: i64, limit: u64, mut each: impl FnMut(i64)) -> Step<u64> {
    let blocked = tx.count_blocked(q, limit)?;
    (0..blocked).for_each(|_| each(tx.now_ms()));
    let found = places(tx, q, last, limit - blocked, |table, place| {
        let (mut times, mut n) = (tx.conn.prepare_cached(table.times)?, 0);
        let mut rows = times.query(place)?;
        while let Some(row) = rows.next()? {
            // What cannot be read is left to an audit.
            if let Ok(run_at) = row.get(0) {
                each(run_at);
            }
            n += 1;
        }
        Ok(n)
    })?;
    Ok(blocked + found)
}

/// Visits each queue and priority whose first job is due at `last` or before. `visit` gets the parameters of the statements of the
/// table: queue, priority, `last`, and how many jobs are left of `limit`. It returns how many it found. Returns the sum.
///
/// A queue and priority whose first job is due after `last` costs one seek, however many jobs it has.
fn places(
    tx: &Tx<'_>,
    q: Option<Q>,
    last: i64,
    limit: u64,
    mut visit: impl FnMut(&Table, [i64; 4]) -> Step<u64>,
) -> Step<u64> {
    let (qid, mut found) = (q.map(|q| tx.at(q).qid), 0);
    for table in &TABLES {
        let mut statement = tx.conn.prepare_cached(table.first)?;
        let mut from = (qid.unwrap_or(i64::MIN), i64::MIN, i64::MIN);
        while found < limit
            && let Some((q, pri, run_at)) = first(&mut statement, params![from.0, from.1, from.2])?
            && qid.is_none_or(|qid| qid == q)
        {
            if run_at <= last {
                found += visit(table, [q, pri, last, (limit - found).cast_signed()])?;
            }
            from = (q, pri, i64::MAX);
        }
    }
    Ok(found)
}

/// Returns the first place that can be read.
fn first(statement: &mut CachedStatement<'_>, behind: impl Params) -> Step<Option<(i64, i64, i64)>> {
    let mut rows = statement.query(behind)?;
    while let Some(row) = rows.next()? {
        if let (Ok(q), Ok(pri), Ok(run_at)) = (row.get(0), row.get(1), row.get(2)) {
            return Ok(Some((q, pri, run_at)));
        }
    }
    Ok(None)
}
