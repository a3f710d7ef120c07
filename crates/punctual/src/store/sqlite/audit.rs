//! `audit`: every job in exactly one place, every entry with a record, every counter right. Repairs delete no record.
//!
//! It checks the order of each table, then the records by row number, the entries for missing records, and counts (`count`). A slice has
//! up to 1,000 rows, or one whole table whose order it checks. Findings about rows are made in a consistent state of the file. Before a
//! repair they are checked again in a write transaction, so a job that was just being moved is no finding.

mod count;

use std::time::Duration;

use rusqlite::{Connection, params, params_from_iter, types::Value};

use super::SqliteStore;
use crate::{
    core::{
        digest::group_digest,
        error::{Error, Result},
        id::JobId,
        job::State,
        limits::BATCH_MAX,
        silence::STEP_BACK_MIN,
    },
    store::{
        Audit, AuditCursor, Audited, Finding,
        sqlite::{
            engine::{
                fault::Step,
                file::CHECKED_BYTES_MAX,
                row_number::Found,
                sql::named,
                tx::{Q, Tx, int, ms},
            },
            state::{
                codec::Job,
                groups::{as_key, group_of},
                keys::Key,
                places::{EndedRow, LeaseRow, Place},
            },
            verbs::reserve::job_id,
        },
    },
};
use count::At;

pub(super) use count::Count;

const FILE: &str = include_str!("sql/audit.sql");
const RECORDS: &str = named(FILE, "records");
const HAS_ENDED: &str = named(FILE, "has_ended");
const RUNS_AS: &str = named(FILE, "runs_as");
const MOVE_RECORD: &str = named(FILE, "move_record");
const NAME_RECORD: &str = named(FILE, "name_record");
const MEND_LEASE: &str = named(FILE, "mend_lease");
const QUEUES_OF: &str = named(FILE, "queues_of");
const SET_QUEUE: &str = named(FILE, "set_queue");

/// No queue has this number, or a larger one.
const FOUND_MAX: i64 = 1 << 31;

/// A table of entries, most of which name a job.
struct Entries {
    /// The statement that lists rows, with the columns of the key first.
    list: &'static str,
    drop: &'static str,
    key_columns: usize,
    /// The column with the id of the job, if there is one.
    id_column: Option<usize>,
    queue_column: Option<usize>,
    what: &'static str,
    detail: &'static str,
}

const TABLES: [Entries; 10] = [
    Entries {
        list: named(FILE, "due"),
        drop: named(FILE, "drop_due"),
        key_columns: 4,
        id_column: Some(3),
        queue_column: Some(0),
        what: "no_record",
        detail: "an entry of the timeline that belongs to no record",
    },
    Entries {
        list: named(FILE, "lease"),
        drop: named(FILE, "drop_lease"),
        key_columns: 1,
        id_column: Some(0),
        queue_column: Some(1),
        what: "no_record",
        detail: "a lease that belongs to no record",
    },
    Entries {
        list: named(FILE, "ended"),
        drop: named(FILE, "drop_ended"),
        key_columns: 1,
        id_column: Some(0),
        queue_column: Some(1),
        what: "no_record",
        detail: "an entry of an ended job that belongs to no record",
    },
    Entries {
        list: named(FILE, "expiry"),
        drop: named(FILE, "drop_expiry"),
        key_columns: 3,
        id_column: Some(2),
        queue_column: Some(0),
        what: "no_record",
        detail: "an expiry that belongs to no record",
    },
    Entries {
        list: named(FILE, "unique"),
        drop: named(FILE, "drop_unique"),
        key_columns: 2,
        id_column: Some(2),
        queue_column: Some(0),
        what: "stale_key",
        detail: "a unique key whose job is gone or ended",
    },
    Entries {
        list: named(FILE, "history"),
        drop: named(FILE, "drop_history"),
        key_columns: 1,
        id_column: Some(0),
        queue_column: None,
        what: "no_record",
        detail: "failures that belong to no record",
    },
    Entries {
        list: named(FILE, "blocked"),
        drop: named(FILE, "drop_blocked"),
        key_columns: 5,
        id_column: Some(4),
        queue_column: Some(0),
        what: "no_record",
        detail: "an entry of a blocked job that belongs to no record",
    },
    Entries {
        list: named(FILE, "keyed"),
        drop: named(FILE, "drop_keyed"),
        key_columns: 3,
        id_column: Some(2),
        queue_column: Some(0),
        what: "stale_key",
        detail: "a place among the runs of a concurrency key or group whose job does not run",
    },
    Entries {
        list: named(FILE, "group"),
        drop: named(FILE, "drop_group"),
        key_columns: 2,
        id_column: None,
        queue_column: Some(0),
        what: "stale_key",
        detail: "a group that is not filed where its jobs say",
    },
    Entries {
        list: named(FILE, "grouped"),
        drop: named(FILE, "drop_grouped"),
        key_columns: 5,
        id_column: Some(4),
        queue_column: Some(0),
        what: "no_record",
        detail: "an entry of a group that belongs to no record",
    },
];
const DUE: usize = 0;
const EXPIRY: usize = 3;
const UNIQUE: usize = 4;
const BLOCKED: usize = 6;
const KEYED: usize = 7;
/// This table comes before the next one, whose check files groups that are filed nowhere.
const GROUP: usize = 8;
const GROUPED: usize = 9;

/// The tables whose rows are in the order of a key that is not the row number.
const TREES: [&str; 12] = [
    "due", "grouped", "parked", "expiry", "lease", "ended", "past", "unique", "memory", "keyed", "group",
    "call",
];

/// The first byte of a cursor for trees.
const TREES_TAG: u8 = 253;
/// The first byte of a cursor for records; any other is the number of a table.
const RECORDS_TAG: u8 = 254;
const COUNTERS_TAG: u8 = 255;

/// Where a slice starts.
#[derive(Clone, Debug, PartialEq)]
enum From {
    /// At this table of [`TREES`].
    Trees(usize),
    /// At this row number.
    Records(i64),
    /// In this table, after this key.
    Entries(usize, Vec<Value>),
    /// At the counters: at the beginning, or where a count continues.
    Counters(Option<At>),
}

impl From {
    /// Returns the beginning of a table, or of what follows the last one.
    fn table(table: usize) -> Self {
        TABLES
            .get(table)
            .map_or(Self::Counters(None), |entries| Self::Entries(table, lowest(entries.key_columns)))
    }

    fn write(&self) -> AuditCursor {
        let mut bytes = Vec::new();
        match self {
            Self::Trees(table) => bytes.extend([TREES_TAG, *table as u8]),
            Self::Records(slot) => {
                bytes.push(RECORDS_TAG);
                bytes.extend_from_slice(&slot.to_be_bytes());
            }
            Self::Entries(table, key) => {
                bytes.push(*table as u8);
                for value in key {
                    let (tag, value): (u8, &[u8]) = match value {
                        Value::Integer(n) => (0, &n.to_be_bytes()),
                        Value::Blob(blob) => (1, blob),
                        Value::Text(text) => (2, text.as_bytes()),
                        Value::Real(n) => (3, &n.to_be_bytes()),
                        Value::Null => (4, &[]),
                    };
                    bytes.push(tag);
                    bytes.extend_from_slice(&(value.len() as u32).to_be_bytes());
                    bytes.extend_from_slice(value);
                }
            }
            Self::Counters(at) => {
                bytes.push(COUNTERS_TAG);
                if let Some(At { snapshot, step }) = at {
                    bytes.extend_from_slice(&snapshot.to_be_bytes());
                    bytes.extend_from_slice(&step.to_be_bytes());
                }
            }
        }
        AuditCursor(bytes)
    }

    /// Parses what [`From::write`] wrote. Anything else is no cursor of this store.
    fn read(cursor: &AuditCursor) -> Option<Self> {
        match cursor.0.as_slice() {
            [] => Some(Self::Trees(0)),
            [TREES_TAG, table] => {
                Some(usize::from(*table)).filter(|table| *table < TREES.len()).map(Self::Trees)
            }
            [COUNTERS_TAG] => Some(Self::Counters(None)),
            [COUNTERS_TAG, at @ ..] => {
                let (snapshot, step) = at.split_first_chunk()?;
                let (snapshot, step) =
                    (u64::from_be_bytes(*snapshot), u32::from_be_bytes(step.try_into().ok()?));
                Some(Self::Counters(Some(At { snapshot, step })))
            }
            [RECORDS_TAG, slot @ ..] => Some(Self::Records(i64::from_be_bytes(slot.try_into().ok()?))),
            [table, rest @ ..] => {
                let (mut rest, mut key) = (rest, Vec::new());
                while let Some(([tag, len @ ..], behind)) = rest.split_first_chunk::<5>() {
                    let (value, behind) = behind.split_at_checked(u32::from_be_bytes(*len) as usize)?;
                    key.push(match tag {
                        0 => Value::Integer(i64::from_be_bytes(value.try_into().ok()?)),
                        1 => Value::Blob(value.to_vec()),
                        2 => Value::Text(String::from_utf8(value.to_vec()).ok()?),
                        3 => Value::Real(f64::from_be_bytes(value.try_into().ok()?)),
                        _ => Value::Null,
                    });
                    rest = behind;
                }
                let table = usize::from(*table);
                (TABLES.get(table)?.key_columns == key.len()).then_some(Self::Entries(table, key))
            }
        }
    }
}

/// Checks one slice.
pub(super) async fn audit(store: &SqliteStore, Audit { repair, from }: Audit) -> Result<Audited> {
    let from =
        From::read(&from).ok_or_else(|| Error::invalid("the audit's cursor is not one of this store"))?;
    match from {
        From::Trees(table) => return tree(store, table, repair).await,
        From::Counters(at) => return count::slice(store, at, repair).await,
        From::Records(_) | From::Entries(..) => {}
    }
    let at = from.clone();
    let found = store.reader.search(move |tx| rows(tx, at, false)).await?;
    if !repair || found.findings.is_empty() {
        return Ok(found);
    }
    // Checked again in a write transaction: a finding counts only if it is still there.
    store.write(BATCH_MAX, 0, true, move |tx| rows(tx, from.clone(), true)).await
}

/// Whether a line of SQLite's own check is about rows that are out of order or missing from an index, so that an audit can mend it.
pub(crate) fn says_out_of_order(said: &str) -> bool {
    ["order", "non-unique", "missing from index", "wrong # of entries"].iter().any(|word| said.contains(word))
}

/// Checks whether the rows of a table of entries are in order, as nothing can be found in one otherwise. It reads the whole table, beside
/// other calls; not in a large file, as `doctor` does not.
async fn tree(store: &SqliteStore, table: usize, repair: bool) -> Result<Audited> {
    let name = TREES[table];
    let next = if table + 1 < TREES.len() { From::Trees(table + 1) } else { From::Records(i64::MIN) };
    let check = move |conn: &Connection| {
        let sql = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
        let bytes: i64 = conn.query_row(sql, [], |row| row.get(0))?;
        if CHECKED_BYTES_MAX < bytes.cast_unsigned() {
            return Ok(false);
        }
        let mut stmt = conn.prepare(&format!("PRAGMA integrity_check('punctual_{name}')"))?;
        let mut rows = stmt.query([])?;
        let mut is_out_of_order = false;
        while let Some(row) = rows.next()? {
            let said = row.get_ref(0)?.as_str().unwrap_or_default();
            is_out_of_order |= says_out_of_order(said);
        }
        Ok(is_out_of_order)
    };
    let mut done = Audited { next: Some(next.write()), ..Audited::default() };
    if store.reader.aside(check).await? {
        if repair {
            let rewrite = move |tx: &mut Tx<'_>| -> Step<()> {
                // Of rows with one key, the first stays. A delete without a condition needs no order.
                tx.conn.execute_batch(&format!(
                    "CREATE TEMP TABLE mended AS SELECT * FROM punctual_{name}; DELETE FROM punctual_{name};
                    INSERT OR IGNORE INTO punctual_{name} SELECT * FROM mended; DROP TABLE mended;"
                ))?;
                count::raise_repairs(tx)
            };
            store.write(BATCH_MAX, 0, true, rewrite).await?;
        }
        done.findings.push(Finding {
            id: None,
            queue: None,
            what: "corrupt".into(),
            detail: format!("table punctual_{name} is out of order; a repair writes it anew"),
            repaired: repair,
        });
    }
    Ok(done)
}

/// Checks a slice of records or entries.
fn rows(tx: &mut Tx<'_>, from: From, repair: bool) -> Step<Audited> {
    let mut slice = Slice { repair, done: Audited::default() };
    let next = match from {
        From::Records(slot) => slice.records(tx, slot)?,
        From::Entries(table, key) => slice.entries(tx, table, &key)?,
        other @ (From::Trees(_) | From::Counters(_)) => other,
    };
    if slice.done.findings.iter().any(|finding| finding.repaired) {
        count::raise_repairs(tx)?;
    }
    tx.hand_over()?;
    slice.done.next = Some(next.write());
    Ok(slice.done)
}

/// Returns up to `n` rows of a list after a key.
fn page(tx: &Tx<'_>, list: &'static str, behind: &[Value], n: usize) -> Step<Vec<Vec<Value>>> {
    let mut stmt = tx.conn.prepare_cached(list)?;
    let columns = stmt.column_count();
    let limit = Value::Integer(int(n));
    let rows = stmt.query_map(params_from_iter(behind.iter().chain([&limit])), |row| {
        (0..columns).map(|at| row.get(at)).collect::<rusqlite::Result<Vec<Value>>>()
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns a key below all keys with this many columns.
fn lowest(key_columns: usize) -> Vec<Value> {
    vec![Value::Integer(i64::MIN); key_columns]
}

struct Slice {
    repair: bool,
    done: Audited,
}

impl Slice {
    fn found(&mut self, id: Option<JobId>, queue: Option<String>, what: &'static str, detail: &str) {
        let detail = detail.to_owned();
        self.done.findings.push(Finding { id, queue, what: what.into(), detail, repaired: self.repair });
    }

    // ── records ──

    fn records(&mut self, tx: &mut Tx<'_>, from: i64) -> Step<From> {
        let rows: Vec<(i64, Option<JobId>)> = {
            let mut stmt = tx.conn.prepare_cached(RECORDS)?;
            let read = stmt.query_map(params![from, int(BATCH_MAX)], |row| {
                Ok((row.get(0)?, row.get_ref(1)?.as_blob().ok().and_then(job_id)))
            })?;
            read.collect::<Result<_, _>>()?
        };
        let last = rows.last().filter(|_| rows.len() == BATCH_MAX).map(|(slot, _)| slot.saturating_add(1));
        self.done.checked = rows.len() as u64;
        for (at, id) in rows {
            match id {
                Some(id) => self.record(tx, at, id)?,
                None => self.nameless(tx, at)?,
            }
        }
        Ok(last.map_or_else(|| From::table(0), From::Records))
    }

    /// Gives a record without a readable id another one. Then it is in no place, and dead.
    fn nameless(&mut self, tx: &mut Tx<'_>, at: i64) -> Step<()> {
        let id = JobId::derived("punctual", None, &format!("the record in slot {at}"));
        self.found(
            Some(id),
            None,
            "corrupt",
            "a record without an id; a repair gives it this one, and makes it dead",
        );
        let Found::Free(free) = tx.find_slot(id)? else { return Ok(()) };
        if self.repair {
            tx.conn.prepare_cached(NAME_RECORD)?.execute(params![at, free, id.as_bytes()])?;
            self.record(tx, free, id)?;
        }
        Ok(())
    }

    /// Returns the queue of a record whose own is not there: that of its place, or one that is made of its number.
    fn queue_of_place(&mut self, tx: &mut Tx<'_>, slot: i64, id: JobId) -> Step<Option<Q>> {
        let detail = "a record of a queue that is not there; a repair puts it into that of its place, or into a new one with `found` in its name";
        self.found(Some(id), None, "corrupt", detail);
        if !self.repair {
            return Ok(None);
        }
        let numbers = tx.conn.prepare_cached(QUEUES_OF)?.query_row(params![id.as_bytes(), slot], |row| {
            [0, 1, 2].into_iter().map(|at| row.get::<_, Value>(at)).collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let mut numbers = numbers
            .into_iter()
            .filter_map(|value| if let Value::Integer(n) = value { Some(n) } else { None });
        for qid in numbers.clone() {
            if let Some(q) = tx.queue_by_qid(qid)? {
                tx.conn.prepare_cached(SET_QUEUE)?.execute(params![slot, qid])?;
                return Ok(Some(q));
            }
        }
        let number = numbers.rfind(|qid| (1..FOUND_MAX).contains(qid));
        let q = match number {
            Some(qid) => tx.found_queue(qid)?,
            None => tx.queue_or_new("found")?,
        };
        tx.conn.prepare_cached(SET_QUEUE)?.execute(params![slot, tx.at(q).qid])?;
        Ok(Some(q))
    }

    fn record(&mut self, tx: &mut Tx<'_>, mut at: i64, id: JobId) -> Step<()> {
        let (first, last) = tx.slots(id)?;
        if !(first..=last).contains(&at) {
            self.found(Some(id), None, "corrupt", "a record that lies where its id does not lead");
            if !self.repair {
                return Ok(());
            }
            let Found::Free(free) = tx.find_slot(id)? else { return Ok(()) };
            tx.conn.prepare_cached(MOVE_RECORD)?.execute([at, free])?;
            at = free;
        }
        let Some(mut job) = tx.job(id)? else { return Ok(()) };
        let q = match tx.queue_by_qid(job.qid)? {
            Some(q) => q,
            None => match self.queue_of_place(tx, at, id)? {
                Some(q) => q,
                None => return Ok(()),
            },
        };
        if tx.at(q).name.is_empty() {
            self.found(
                Some(id),
                None,
                "corrupt",
                "a queue without a name; a repair gives it one with `found` in it",
            );
            if self.repair {
                tx.found_queue(tx.at(q).qid)?;
            }
        }
        if tx.at(q).qid != job.qid {
            let Some(again) = tx.job(id)? else { return Ok(()) };
            job = again;
        }
        let lease = tx.lease(id)?;
        let has_ended = tx.conn.prepare_cached(HAS_ENDED)?.exists([id.as_bytes()])?;
        let (is_due, is_blocked) = (tx.is_due(&job)?, tx.is_blocked(&job)?);
        if let Some(lease) = &lease {
            self.lease(tx, q, &job, lease)?;
            self.turn(tx, q, &job)?;
        }
        let queue = || Some(tx.at(q).name.clone());
        match usize::from(lease.is_some())
            + usize::from(is_due)
            + usize::from(is_blocked)
            + usize::from(has_ended)
        {
            0 => {
                self.found(Some(id), queue(), "orphan", "a record in no place; a repair makes it dead");
                if self.repair {
                    tx.put_ended(q, id, State::Dead, job.kept_bytes(), Some("orphan"))?;
                }
            }
            1 if job.corrupt && !has_ended => {
                self.found(
                    Some(id),
                    queue(),
                    "corrupt",
                    "a record with columns that can't be read; a repair makes it dead",
                );
                if self.repair {
                    quarantine(tx, q, &job, lease.is_some())?;
                }
            }
            1 => {}
            _ => {
                self.found(
                    Some(id),
                    queue(),
                    "two_places",
                    "a job in more than one place; running wins, then waiting",
                );
                if self.repair {
                    part(tx, q, &job, lease.is_some(), is_due, has_ended)?;
                }
            }
        }
        Ok(())
    }

    /// Checks whether a lease can be found and can end.
    fn lease(&mut self, tx: &mut Tx<'_>, q: Q, job: &Job, lease: &LeaseRow) -> Step<()> {
        let longest = tx.now.after(Duration::from_millis(lease.lasts_ms.cast_unsigned()));
        let is_too_long = longest.after(STEP_BACK_MIN) < lease.until && !tx.can_end_late()?;
        if lease.qid == job.qid && !is_too_long {
            return Ok(());
        }
        let detail = "a lease of another queue, or one that ends too late; a repair lets it end after its length from now at the latest";
        self.found(Some(job.id), Some(tx.at(q).name.clone()), "corrupt", detail);
        if self.repair {
            let until = ms(lease.until.min(longest));
            tx.conn.prepare_cached(MEND_LEASE)?.execute(params![job.id.as_bytes(), job.qid, until])?;
        }
        Ok(())
    }

    /// Checks whether a running job is counted for its key and its group.
    fn turn(&mut self, tx: &mut Tx<'_>, q: Q, job: &Job) -> Step<()> {
        let key = tx.key_of(job)?.map(|(key, _)| key);
        for key in key.into_iter().chain(group_of(job)) {
            if tx.conn.prepare_cached(RUNS_AS)?.exists(params![job.qid, key, job.id.as_bytes()])? {
                continue;
            }
            let detail = "runs without a place among those of its concurrency key or group";
            self.found(Some(job.id), Some(tx.at(q).name.clone()), "stale_key", detail);
            if self.repair {
                tx.run(job, &key)?;
                tx.touch_event(q, key);
            }
        }
        Ok(())
    }

    // ── entries ──

    fn entries(&mut self, tx: &mut Tx<'_>, table: usize, behind: &[Value]) -> Step<From> {
        let entries = &TABLES[table];
        let mut rows = page(tx, entries.list, behind, BATCH_MAX)?;
        self.done.checked = rows.len() as u64;
        let mut seen = None;
        for row in &rows {
            let id = match entries.id_column.map(|at| &row[at]) {
                Some(Value::Blob(id)) => job_id(id),
                _ => None,
            };
            if self.repair && matches!(table, BLOCKED | KEYED | GROUP) {
                // The repair can unblock a job.
                touch(tx, row)?;
            }
            if belongs(tx, table, row, id)? {
                if table == GROUPED {
                    self.unfiled(tx, row, id, &mut seen)?;
                }
                continue;
            }
            let queue = match entries.queue_column.map(|at| &row[at]) {
                Some(Value::Integer(qid)) => Some(tx.name_of(*qid)?),
                _ => None,
            };
            self.found(id, queue.filter(|name| !name.is_empty()), entries.what, entries.detail);
            // A group with a readable name is filed again.
            let is_filed_again = table == GROUP && says_its_name(row) && is_of_a_queue(tx, row)?;
            if self.repair && !is_filed_again {
                let key = params_from_iter(&row[..entries.key_columns]);
                tx.conn.prepare_cached(entries.drop)?.execute(key)?;
            }
        }
        let last = rows.pop().filter(|_| rows.len() + 1 == BATCH_MAX);
        Ok(last.map_or_else(
            || From::table(table + 1),
            |mut row| {
                row.truncate(entries.key_columns);
                From::Entries(table, row)
            },
        ))
    }

    /// Returns whether the group of a waiting job is not filed. Reported once for consecutive jobs of a group.
    fn unfiled(
        &mut self,
        tx: &mut Tx<'_>,
        row: &[Value],
        id: Option<JobId>,
        seen: &mut Option<(Q, Key)>,
    ) -> Step<()> {
        let Some(job) = id.map_or(Ok(None), |id| tx.job(id))? else { return Ok(()) };
        let (Some(q), Some(gid)) = (tx.queue_by_qid(job.qid)?, as_key(&row[1])) else { return Ok(()) };
        if seen.replace((q, gid)) == Some((q, gid)) || tx.is_filed(q, gid)? {
            return Ok(());
        }
        let detail = "a job whose group is filed nowhere, so that it never runs";
        self.found(id, Some(tx.at(q).name.clone()), "orphan", detail);
        if self.repair {
            tx.touch_group(q, gid, job.opts.group.as_deref());
        }
        Ok(())
    }
}

/// Returns whether the key of a group's row is the digest of its name.
fn says_its_name(row: &[Value]) -> bool {
    matches!(&row[2], Value::Text(name) if as_key(&row[1]) == Some(group_digest(name)))
}

/// Returns whether the queue of an entry exists; its number comes first.
fn is_of_a_queue(tx: &mut Tx<'_>, row: &[Value]) -> Step<bool> {
    let Value::Integer(qid) = row[0] else { return Ok(false) };
    Ok(tx.queue_by_qid(qid)?.is_some())
}

/// Notes an event of the concurrency key or group of an entry, if it has one.
fn touch(tx: &mut Tx<'_>, row: &[Value]) -> Step<()> {
    if let [Value::Integer(qid), Value::Blob(key), ..] = row
        && let Some(q) = tx.queue_by_qid(*qid)?
        && let Ok(key) = key.as_slice().try_into()
    {
        tx.touch_event(q, key);
    }
    Ok(())
}

/// Returns whether an entry belongs to a record.
fn belongs(tx: &mut Tx<'_>, table: usize, row: &[Value], id: Option<JobId>) -> Step<bool> {
    if table == UNIQUE && row[3] != Value::Null {
        // A window outlives its job.
        return Ok(true);
    }
    if table == GROUP {
        return match (&row[0], as_key(&row[1])) {
            (Value::Integer(qid), Some(gid)) if says_its_name(row) => match tx.queue_by_qid(*qid)? {
                Some(q) => tx.is_filed_right(q, gid),
                None => Ok(false),
            },
            _ => Ok(false),
        };
    }
    let Some(job) = id.map_or(Ok(None), |id| tx.job(id))? else { return Ok(false) };
    Ok(match table {
        DUE => {
            let place = [job.qid, job.priority as i64, ms(job.run_at)].map(Value::Integer);
            row[..3] == place && job.opts.group.is_none()
        }
        GROUPED => {
            let gid = group_of(&job).map(|gid| Value::Blob(gid.to_vec()));
            row[..4]
                == [
                    Value::Integer(job.qid),
                    gid.unwrap_or(Value::Null),
                    Value::Integer(job.priority as i64),
                    Value::Integer(ms(job.run_at)),
                ]
        }
        EXPIRY => job.expires_at.map(ms).map(Value::Integer).as_ref() == Some(&row[1]),
        BLOCKED => {
            let key = tx.key_of(&job)?.map(|(key, _)| Value::Blob(key.to_vec()));
            row[..4]
                == [
                    Value::Integer(job.qid),
                    key.unwrap_or(Value::Null),
                    Value::Integer(job.priority as i64),
                    Value::Integer(ms(job.run_at)),
                ]
        }
        KEYED => {
            let (key, runs_as) = (tx.key_of(&job)?.map(|(key, _)| key), as_key(&row[1]));
            runs_as.is_some() && (runs_as == key || runs_as == group_of(&job)) && tx.lease(job.id)?.is_some()
        }
        UNIQUE => !Place::of(tx, &job)?.state().is_ended(),
        _ => true,
    })
}

/// Makes a job whose record cannot be read dead, and keeps its bytes.
fn quarantine(tx: &mut Tx<'_>, q: Q, job: &Job, is_running: bool) -> Step<()> {
    let id = job.id;
    if is_running {
        tx.drop_lease(q, id.as_bytes())?;
    } else {
        tx.stop_waiting(q, job)?;
    }
    let bytes = tx.payload_bytes(id)?.unwrap_or_default();
    tx.tally(q).bytes -= bytes;
    tx.put_ended(q, id, State::Dead, bytes, Some("corrupt"))
}

/// Leaves a job in only one of its places.
fn part(tx: &mut Tx<'_>, q: Q, job: &Job, is_running: bool, is_due: bool, has_ended: bool) -> Step<()> {
    if is_running || is_due {
        tx.unblock(q, job)?;
    }
    if is_due && is_running {
        tx.drop_due(q, job)?;
    }
    if !has_ended {
        return Ok(());
    }
    // It is also in another place, so it has not ended. The counters are recomputed at the end.
    let ended = EndedRow { state: State::Dead, at: tx.now, bytes: 0, reason: None };
    tx.leave_ended(q, job.id.as_bytes(), &ended)
}
