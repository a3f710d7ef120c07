//! Rate limiters, with one row per key.

use rusqlite::{OptionalExtension, params};

use super::forget;
use crate::{
    core::rate::{Log, Logged, Rate, Tat},
    store::{
        Allowance, Arithmetic, LimitOp,
        sqlite::engine::{fault::Step, sql::named, tx::Tx},
    },
};

const FILE: &str = include_str!("../sql/limit.sql");
const GET: &str = named(FILE, "get");
const NEW: &str = named(FILE, "new");
const PUT: &str = named(FILE, "put");
const FORGET: &str = named(FILE, "forget");

/// Bytes of an instant.
const INSTANT: usize = 6;

/// A kept row.
struct Row {
    lid: i64,
    ends: u64,
    kept: Vec<u8>,
}

pub(crate) fn limit(tx: &Tx<'_>, op: &LimitOp) -> Step<Allowance> {
    let now = tx.now.as_ms();
    match op.rule.arithmetic() {
        Arithmetic::Log(log) => by_log(tx, log, now, op),
        Arithmetic::Rate(rate) => by_rate(tx, rate, now, op),
    }
}

fn by_log(tx: &Tx<'_>, log: Log, now: u64, op: &LimitOp) -> Step<Allowance> {
    let row = get(tx, 0, op)?;
    let calls = row.as_ref().map_or(&[][..], |row| row.kept.as_chunks::<INSTANT>().0);
    let ends = row.as_ref().map_or(0, |row| row.ends);
    let calls = match calls.last() {
        Some(last) if log.begins_anew(instant(*last), ends, now) => &[],
        _ => calls,
    };
    let kept = |back: u32| calls.iter().rev().nth(back as usize).map(|at| instant(*at));
    let (entered, said) = match log.judge(kept, now, op.cost) {
        Logged::Passed(at) => (Some(at), Allowance::Allowed),
        Logged::Refused(at, until) => (at, Allowance::until(until, now)),
    };
    if let Some(at) = entered {
        let older = calls.len().min((log.max - op.cost) as usize);
        let mut bytes = calls[calls.len() - older..].concat();
        bytes.extend((0..op.cost).flat_map(|_| at.to_be_bytes()[8 - INSTANT..].to_vec()));
        put(tx, 0, op, row.as_ref(), at + log.period_ms, &bytes)?;
    }
    Ok(said)
}

fn instant(bytes: [u8; INSTANT]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn by_rate(tx: &Tx<'_>, rate: Rate, now: u64, op: &LimitOp) -> Step<Allowance> {
    let row = get(tx, 1, op)?;
    let kept = row.as_ref().map(|row| {
        let part = row.kept.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        Tat { ms: row.ends, part }
    });
    let (kept, is_changed) = rate.clamped(kept, now);
    let (keep, said) = match rate.pass(kept, now, op.cost) {
        Ok(next) => (Some(next), Allowance::Allowed),
        Err(at) => (kept.filter(|_| is_changed), Allowance::until(at, now)),
    };
    if let Some(tat) = keep {
        put(tx, 1, op, row.as_ref(), tat.ms, &tat.part.to_be_bytes())?;
    }
    Ok(said)
}

fn get(tx: &Tx<'_>, kind: i64, op: &LimitOp) -> Step<Option<Row>> {
    let mut stmt = tx.conn.prepare_cached(GET)?;
    let row = stmt.query_row(params![kind, op.name, op.key], |row| {
        Ok(Row { lid: row.get(0)?, ends: row.get::<_, i64>(1)?.max(0).cast_unsigned(), kept: row.get(2)? })
    });
    Ok(row.optional()?)
}

/// Stores a row, and removes some that expired long ago.
fn put(tx: &Tx<'_>, kind: i64, op: &LimitOp, row: Option<&Row>, ends: u64, kept: &[u8]) -> Step<()> {
    let ends = ends.cast_signed();
    match row {
        Some(row) => tx.conn.prepare_cached(PUT)?.execute(params![row.lid, ends, kept])?,
        None => tx.conn.prepare_cached(NEW)?.execute(params![kind, op.name, op.key, ends, kept])?,
    };
    forget(tx, FORGET)
}
