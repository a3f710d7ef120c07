//! Damage that something else did: each column of each table is changed in all ways, and whole tables are emptied.

use std::sync::Arc;

use rusqlite::{Connection, types::Value};

use super::*;
use crate::damaged::{Damaged, Of, sample};

/// The tables of which a row is damaged.
const TABLES: [&str; 13] = [
    "due", "lease", "ended", "expiry", "unique", "memory", "call", "queue", "job", "past", "parked",
    "grouped", "group",
];
/// The most rows of a table that are damaged in one column, one in a store: these in each way if `PUNCTUAL_DAMAGE` is `all`, else one of them.
const ROWS_MAX: usize = 3;
/// There are so many cases at least.
const CASES_MIN: usize = 300;

/// A way to damage a value; `None` if it changes nothing.
type Way = (&'static str, fn(&Value) -> Option<Value>);

const WAYS: [Way; 9] = [
    ("nothing", |_| Some(Value::Null)),
    ("a text", |_| Some(Value::Text("abc".to_owned()))),
    ("bytes", |_| Some(Value::Blob(vec![1, 2, 3]))),
    ("a fraction", |_| Some(Value::Real(1.5))),
    ("the largest number", |_| Some(Value::Integer(i64::MAX))),
    ("below zero", |_| Some(Value::Integer(-7))),
    ("zero", |_| Some(Value::Integer(0))),
    ("flipped", |value| {
        Some(match value {
            Value::Integer(n) => Value::Integer(n ^ 16),
            Value::Blob(bytes) => Value::Blob(flipped(bytes)?),
            Value::Text(text) => Value::Text(String::from_utf8(flipped(text.as_bytes())?).ok()?),
            _ => return None,
        })
    }),
    ("twice as long", |value| {
        Some(match value {
            Value::Blob(bytes) => Value::Blob([&bytes[..], bytes].concat()),
            Value::Text(text) => Value::Text([&text[..], text].concat()),
            _ => return None,
        })
    }),
];

fn flipped(bytes: &[u8]) -> Option<Vec<u8>> {
    let middle = bytes.len() / 2;
    bytes.get(middle)?;
    Some(bytes.iter().enumerate().map(|(at, byte)| if at == middle { byte ^ 1 } else { *byte }).collect())
}

/// The columns of a table, and those of its key.
fn columns(conn: &Connection, table: &str) -> (Vec<String>, Vec<String>) {
    let mut stmt =
        conn.prepare(&format!("SELECT name, pk FROM pragma_table_info('punctual_{table}')")).unwrap();
    let rows = stmt.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))).unwrap();
    let all: Vec<_> = rows.map(Result::unwrap).collect();
    let keys = all.iter().filter(|(_, pk)| 0 < *pk).map(|(name, _)| name.clone()).collect();
    (all.into_iter().map(|(name, _)| name).collect(), keys)
}

/// Damages a column of the row of number `n`, or removes the row. Returns whether there is such a row that this changes.
fn damage(conn: &Connection, table: &str, column: Option<&str>, n: usize, way: &Way) -> bool {
    let keys = columns(conn, table).1.join(", ");
    let of = format!("FROM punctual_{table} ORDER BY {keys} LIMIT 1 OFFSET {n}");
    let row = format!("({keys}) IN (SELECT {keys} {of})");
    let Some(column) = column else {
        return 0 < conn.execute(&format!("DELETE FROM punctual_{table} WHERE {row}"), []).unwrap();
    };
    let Ok(was) = conn.query_row(&format!("SELECT \"{column}\" {of}"), [], |row| row.get::<_, Value>(0))
    else {
        return false;
    };
    let Some(value) = way.1(&was).filter(|value| *value != was) else { return false };
    // Some columns take no such value.
    conn.execute(&format!("UPDATE punctual_{table} SET \"{column}\" = ?1 WHERE {row}"), [value])
        .is_ok_and(|n| 0 < n)
}

fn store_in(folder: &Folder) -> (SqliteStore, ManualClock) {
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    (SqliteStore::open(folder.path(), options).unwrap(), clock)
}

async fn tried(table: &str, column: Option<&str>, n: usize, way: &Way) -> Option<Vec<String>> {
    let folder = Folder::new();
    let (store, clock) = store_in(&folder);
    let damaged = Damaged::fill(Arc::new(store), clock).await;
    if !damage(&folder.connect(), table, column, n, way) {
        return None;
    }
    let of = match table {
        "queue" => Of::Queue,
        "job" => Of::Record { is_gone: column.is_none() },
        // An entry of a group stands for all its jobs.
        "group" => Of::Jobs(2),
        _ => Of::Jobs(1),
    };
    Some(damaged.judge(of, (n + way.0.len()).is_multiple_of(2)).await)
}

#[tokio::test]
async fn damage_of_a_column_stops_nobody_else() {
    let folder = Folder::new();
    drop(folder.open());
    let conn = folder.connect();
    let (mut cases, mut wrong) = (0, Vec::new());
    for table in TABLES {
        let all = columns(&conn, table).0;
        let one_by_one = all.iter().flat_map(|column| WAYS.iter().map(|way| (Some(&**column), way)));
        for (column, way) in one_by_one.chain([(None, &WAYS[0])]) {
            for n in sample(ROWS_MAX, 1) {
                let Some(found) = tried(table, column, n, way).await else { continue };
                cases += 1;
                if !found.is_empty() {
                    wrong.push(format!(
                        "{table} {} {}: {}",
                        column.unwrap_or("removed"),
                        way.0,
                        found.join("; ")
                    ));
                }
            }
        }
    }
    println!("{cases} cases, {} wrong", wrong.len());
    assert!(CASES_MIN <= cases, "only {cases} cases: what is filled has too few rows");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All rows of a table are gone. Those of records are what cannot be found elsewhere.
#[tokio::test]
async fn a_table_without_its_rows_stops_nobody_else() {
    let mut wrong = Vec::new();
    for table in TABLES.iter().chain(&["state", "keyed"]).filter(|table| **table != "job") {
        for looks_first in [false, true] {
            let folder = Folder::new();
            let (store, clock) = store_in(&folder);
            let damaged = Damaged::fill(Arc::new(store), clock).await;
            folder.connect().execute(&format!("DELETE FROM punctual_{table}"), []).unwrap();
            let of = if *table == "queue" { Of::Queue } else { Of::Order };
            let found = damaged.judge(of, looks_first).await;
            if !found.is_empty() {
                wrong.push(format!("{table} {looks_first}: {}", found.join("; ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The row with the version of the tables is gone: they still show it.
#[tokio::test]
async fn a_file_that_does_not_say_its_version_is_opened_by_that_version() {
    let folder = Folder::new();
    let (store, clock) = store_in(&folder);
    let damaged = Damaged::fill(Arc::new(store), clock.clone()).await;
    folder.connect().execute("DELETE FROM punctual_meta", []).unwrap();
    let options = || SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    drop(SqliteStore::open(folder.path(), options()).unwrap());
    assert_eq!(damaged.judge(Of::Order, true).await, [""; 0]);
    // Tables of another version, perhaps of a newer one.
    folder.connect().execute_batch("DELETE FROM punctual_meta; CREATE TABLE punctual_newer (x)").unwrap();
    let error = SqliteStore::open(folder.path(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("does not say which schema version"), "{error}");
}
