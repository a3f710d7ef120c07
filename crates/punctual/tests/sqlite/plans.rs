//! How SQLite finds what the statements ask for: by an index, in its order.

use super::*;

/// Statements that look at all of a table, or sort, on purpose, with the reason.
const KNOWN: &[(&str, &str)] = &[
    ("tx.any_lease", "one row of it"),
    ("tx.state", "one row is all there is"),
    ("queue.names", "a page of names, in the order of their index"),
    ("read.total", "as many rows as there are queues"),
    ("read.counters", "the same"),
    ("concurrency_keys.keys_of", "a job without a record"),
    ("concurrency_keys.count_all", "up to a limit"),
];
/// Files whose statements run seldom, over everything.
const WHOLE: &[&str] = &["audit", "recover", "schema"];

const FILES: &[(&str, &str)] = &[
    ("audit", include_str!("../../src/store/sqlite/sql/audit.sql")),
    ("board", include_str!("../../src/store/sqlite/sql/board.sql")),
    ("doc", include_str!("../../src/store/sqlite/sql/doc.sql")),
    ("due_times", include_str!("../../src/store/sqlite/sql/due_times.sql")),
    ("fair", include_str!("../../src/store/sqlite/sql/groups.sql")),
    ("concurrency_keys", include_str!("../../src/store/sqlite/sql/concurrency_keys.sql")),
    ("job", include_str!("../../src/store/sqlite/sql/codec.sql")),
    ("limit", include_str!("../../src/store/sqlite/sql/limit.sql")),
    ("lock", include_str!("../../src/store/sqlite/sql/lock.sql")),
    ("place", include_str!("../../src/store/sqlite/sql/places.sql")),
    ("queue", include_str!("../../src/store/sqlite/sql/queue.sql")),
    ("read", include_str!("../../src/store/sqlite/sql/read.sql")),
    ("recover", include_str!("../../src/store/sqlite/sql/recover.sql")),
    ("reserve", include_str!("../../src/store/sqlite/sql/reserve.sql")),
    ("schema", include_str!("../../src/store/sqlite/sql/schema.sql")),
    ("settle", include_str!("../../src/store/sqlite/sql/settle.sql")),
    ("sweep", include_str!("../../src/store/sqlite/sql/sweep.sql")),
    ("tx", include_str!("../../src/store/sqlite/sql/tx.sql")),
    ("unique", include_str!("../../src/store/sqlite/sql/unique_keys.sql")),
];

#[test]
fn every_statement_finds_its_rows_by_an_index_and_in_its_order() {
    let folder = Folder::new();
    drop(folder.open());
    let conn = folder.connect();
    let (mut checked, mut bad) = (0, Vec::new());
    for (file, text) in FILES {
        for part in text.split("-- name: ").skip(1) {
            let (name, rest) = part.split_once('\n').unwrap();
            let statement = rest.split(";\n").next().unwrap();
            let name = format!("{file}.{name}");
            let mut stmt = conn.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
            let mut rows = stmt.raw_query();
            checked += 1;
            while let Some(row) = rows.next().unwrap() {
                let step: String = row.get(3).unwrap();
                // Of what a part of the statement has found.
                let is_inner = step == "SCAN CONSTANT ROW" || step.ends_with("(subquery-1)");
                let is_bad = step.starts_with("SCAN") && !is_inner || step.contains("TEMP B-TREE");
                let is_known = WHOLE.contains(file) || KNOWN.iter().any(|(known, _)| *known == name);
                if is_bad && !is_known {
                    bad.push(format!("{name}: {step}"));
                }
            }
        }
    }
    assert!(100 < checked, "{checked} statements");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sqlite/sql");
    let names =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| !name.starts_with('0')).count(), FILES.len(), "each file is looked at");
    assert_eq!(bad, Vec::<String>::new());
}
