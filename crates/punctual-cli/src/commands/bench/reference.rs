//! The reference on a disk: the bare statements of a queue, on the same disk and engine.
//!
//! Narrow tables, full sync, 100 jobs a transaction: a payload table, a table of (due, id), and a table of leases. No ids
//! that lead anywhere, no limits, no unique keys, no order but time, no fences, no counters, no wake-up.

#![expect(clippy::cast_possible_wrap, reason = "numbers of jobs fit what SQLite stores")]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use rusqlite::Connection;
use serde::Serialize;

use crate::quantile::quantile;

/// Jobs of one transaction.
const BATCH: usize = 100;
/// Commits of which the middle one is taken.
const COMMITS: usize = 200;

/// What plain SQL does here, or bare scripts do; the server's share of it where there is a server.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Reference {
    /// Inserts into the payload table and the timeline, in order.
    pub(super) insert_per_s: f64,
    /// Insert, lease and ack, due in order.
    pub(super) lives_per_s: f64,
    /// The same at random due times.
    pub(super) lives_random_due_per_s: f64,
    /// Microseconds in scripts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_us_per_life: Option<f64>,
    /// Microseconds of processor time of the main thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_cpu_us_per_life: Option<f64>,
    /// The same, one job a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_us_per_life_single: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_cpu_us_per_life_single: Option<f64>,
}

impl Reference {
    pub(super) fn measure(folder: &Path, jobs: usize, payload_bytes: usize) -> Result<Self> {
        let (insert, in_order) =
            lives(&folder.join("reference-in-order.db"), jobs, payload_bytes, |n| n as i64)?;
        let (_, random) =
            lives(&folder.join("reference-random.db"), jobs, payload_bytes, |_| fastrand::i64(0..1 << 40))?;
        let rate = |took: Duration| jobs as f64 / took.as_secs_f64();
        Ok(Self {
            insert_per_s: rate(insert),
            lives_per_s: rate(in_order),
            lives_random_due_per_s: rate(random),
            ..Self::default()
        })
    }
}

fn open(path: &Path) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.set_prepared_statement_cache_capacity(16);
    Ok(db)
}

/// The middle time of one commit that the disk has confirmed.
pub(super) fn fsync_ms(folder: &Path) -> Result<f64> {
    let db = open(&folder.join("reference-fsync.db"))?;
    db.execute_batch("CREATE TABLE t(x)")?;
    let mut ms = Vec::with_capacity(COMMITS);
    for n in 0..COMMITS {
        let begin = Instant::now();
        db.execute("INSERT INTO t VALUES (?1)", [n as i64])?;
        ms.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    ms.sort_by(f64::total_cmp);
    Ok(quantile(&ms, 0.5))
}

/// Times of all inserts, and of whole lives.
fn lives(
    path: &Path,
    jobs: usize,
    payload_bytes: usize,
    due: impl Fn(usize) -> i64,
) -> Result<(Duration, Duration)> {
    let db = open(path)?;
    db.execute_batch(
        "CREATE TABLE payload(id INTEGER PRIMARY KEY, body BLOB);
         CREATE TABLE due(at INTEGER, id INTEGER, PRIMARY KEY(at, id)) WITHOUT ROWID;
         CREATE TABLE lease(id INTEGER PRIMARY KEY, until INTEGER);",
    )?;
    let body = vec![b'1'; payload_bytes];
    let begin = Instant::now();
    for from in (0..jobs).step_by(BATCH) {
        let tx = db.unchecked_transaction()?;
        for n in from..jobs.min(from + BATCH) {
            tx.prepare_cached("INSERT INTO payload VALUES (?1, ?2)")?.execute((n as i64, &body))?;
            tx.prepare_cached("INSERT INTO due VALUES (?1, ?2)")?.execute((due(n), n as i64))?;
        }
        tx.commit()?;
    }
    let inserted = begin.elapsed();
    loop {
        let tx = db.unchecked_transaction()?;
        let leased: Vec<(i64, i64, Vec<u8>)> = tx
            .prepare_cached(
                "SELECT at, due.id, body FROM due JOIN payload USING (id) ORDER BY at, due.id LIMIT ?1",
            )?
            .query_map([BATCH as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<Result<_, _>>()?;
        let Some((at, id, _)) = leased.last() else { break };
        tx.prepare_cached("DELETE FROM due WHERE (at, id) <= (?1, ?2)")?.execute((at, id))?;
        for (at, id, _) in &leased {
            tx.prepare_cached("INSERT INTO lease VALUES (?1, ?2)")?.execute((id, at))?;
        }
        tx.commit()?;
        let tx = db.unchecked_transaction()?;
        for (_, id, _) in &leased {
            tx.prepare_cached("DELETE FROM lease WHERE id = ?1")?.execute([id])?;
            tx.prepare_cached("DELETE FROM payload WHERE id = ?1")?.execute([id])?;
        }
        tx.commit()?;
    }
    Ok((inserted, begin.elapsed()))
}

/// Bytes of a database with its log.
pub(super) fn size(file: &Path) -> Result<i64> {
    let db = Connection::open(file)?;
    // Pages in use, whether they are in the log or in the file by now.
    let pages: i64 = db.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    let bytes: i64 = db.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    Ok(pages * bytes)
}
