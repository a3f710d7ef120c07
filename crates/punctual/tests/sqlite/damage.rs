//! What is planted in the file by other hands: found, mended, survived.

use super::*;

pub(super) async fn findings(store: &SqliteStore, repair: bool) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut next = Some(AuditCursor::default());
    while let Some(from) = next {
        let slice = store.audit(Audit { repair, from }).await.unwrap();
        assert!(slice.checked <= 1_000);
        all.extend(slice.findings);
        next = slice.next;
    }
    all
}

fn whats(findings: &[Finding]) -> Vec<&str> {
    let mut whats: Vec<&str> = findings.iter().map(|finding| &*finding.what).collect();
    whats.sort_unstable();
    whats.dedup();
    whats
}

/// A store with a job in every state, and a key.
async fn populated(folder: &Folder) -> (SqliteStore, [JobId; 4]) {
    let store = folder.open();
    let mut keyed = derived_job("waiting");
    keyed.unique = Some(Unique::key("k"));
    keyed.expires_at = Some(When::In(Duration::from_hours(2)));
    let jobs = [derived_job("running"), derived_job("done"), derived_job("dead"), keyed];
    let mut leases = Vec::new();
    for job in &jobs {
        enqueue(&store, job).await;
        if leases.len() < 3 {
            leases.push(reserve_one(&store).await);
        }
    }
    let dead = Verdict::Dead { error: "no such address".to_owned() };
    let batch = [
        Settlement { lease: leases[1], verdict: Verdict::Ack },
        Settlement { lease: leases[2], verdict: dead },
    ];
    let _ = store.settle(&batch, None).await.unwrap();
    (store, jobs.map(|job| job.id))
}

#[tokio::test]
async fn an_audit_of_a_sound_store_finds_nothing() {
    let folder = Folder::new();
    let (store, _) = populated(&folder).await;
    assert_eq!(findings(&store, false).await, []);
}

#[tokio::test]
async fn an_audit_finds_what_is_planted_and_mends_it_without_deleting_a_record() {
    for (what, damage) in [
        ("orphan", "DELETE FROM punctual_due"),
        ("orphan", "DELETE FROM punctual_lease"),
        ("orphan", "DELETE FROM punctual_ended WHERE st = 2"),
        ("two_places", "INSERT INTO punctual_ended SELECT id, q, 2, 5, 2, NULL FROM punctual_lease"),
        (
            "two_places",
            "INSERT INTO punctual_due SELECT q, pri, run_at, id FROM punctual_job WHERE id IN (SELECT id FROM punctual_lease)",
        ),
        ("no_record", "INSERT INTO punctual_due VALUES (1, 1, 5, x'00112233445577778899aabbccddeeff')"),
        ("no_record", "INSERT INTO punctual_due SELECT q, pri, run_at + 1, id FROM punctual_due"),
        ("no_record", "INSERT INTO punctual_lease (id, q, until) VALUES ('rubbish', 1, 5)"),
        ("no_record", "INSERT INTO punctual_ended VALUES (x'00', 1, 3, 5, 0, NULL)"),
        ("no_record", "INSERT INTO punctual_expiry VALUES (1, 5, x'00')"),
        ("no_record", "INSERT INTO punctual_past (id, attempt) VALUES (x'00', 3)"),
        ("stale_key", "INSERT INTO punctual_unique VALUES (1, x'01', x'00', 0, NULL, NULL, NULL)"),
        ("counter", "UPDATE punctual_queue SET waiting = waiting + 7, bytes = -1"),
        (
            "corrupt",
            "UPDATE punctual_job SET kind = x'ff', payload = 'text' WHERE id IN (SELECT id FROM punctual_due)",
        ),
        ("corrupt", "UPDATE punctual_job SET version = NULL WHERE id IN (SELECT id FROM punctual_lease)"),
        (
            "corrupt",
            "UPDATE punctual_job SET slot = slot + 1000000 WHERE id IN (SELECT id FROM punctual_due)",
        ),
        ("corrupt", "UPDATE punctual_queue SET settings = '{\"order\": 7}'"),
    ] {
        let folder = Folder::new();
        let (store, ids) = populated(&folder).await;
        folder.connect().execute_batch(damage).unwrap();
        let found = findings(&store, false).await;
        assert!(whats(&found).contains(&what), "{damage}: {found:#?}");
        if what == "counter" {
            let said = &found[0].detail;
            assert!(said.starts_with("waiting jobs: kept ") && !said.contains("running jobs"), "{said}");
        }
        assert!(found.iter().all(|finding| !finding.repaired));
        let mended = findings(&store, true).await;
        assert!(mended.iter().all(|finding| finding.repaired), "{damage}: {mended:#?}");
        assert_eq!(findings(&store, false).await, [], "{damage}");
        for id in ids {
            let job = store.get(id).await.unwrap().unwrap_or_else(|| panic!("{damage}: {id} is gone"));
            if what == "orphan" && mended.iter().any(|finding| finding.id == Some(id)) {
                assert_eq!((job.state, job.reason.as_deref()), (State::Dead, Some("orphan")), "{damage}");
            }
        }
    }
}

/// Rubbish in any column of any table never stops the store: the job becomes dead, its bytes are kept.
#[tokio::test]
async fn rubbish_is_met_without_a_panic() {
    let columns = |conn: &Connection, table: &str| -> Vec<String> {
        let mut stmt = conn.prepare("SELECT name FROM pragma_table_info(?1)").unwrap();
        stmt.query_map([table], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let tables = Folder::new();
    drop(tables.open());
    let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'punctual_meta'";
    let tables: Vec<String> = {
        let conn = tables.connect();
        let mut stmt = conn.prepare(names).unwrap();
        stmt.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    for table in &tables {
        let folder = Folder::new();
        let (store, ids) = populated(&folder).await;
        for n in 0..3 {
            let mut grouped = new_job(n);
            grouped.group = Some("g".to_owned());
            enqueue(&store, &grouped).await;
        }
        let app = folder.connect();
        for column in columns(&app, table) {
            for rubbish in ["NULL", "-1", "'text'", "x'ff00'", "9223372036854775807", "1.5"] {
                // A key that must not be NULL, or twice the same, can't be planted.
                let _ = app.execute(&format!("UPDATE {table} SET {column} = {rubbish}"), []);
                for id in ids {
                    let _ = store.get(id).await;
                }
                let _ = store.reserve(&want(10)).await;
                let _ =
                    store.take(&Take { queue: "mail".to_owned(), n: 10, older_than: Duration::ZERO }).await;
                let _ = store.count(None).await;
                let _ = store
                    .upcoming(&Upcoming { queue: None, bucket: Duration::from_secs(1), buckets: 9 })
                    .await;
                let _ = store.sweep(100).await;
                let _ = store.queue("mail", &QueueOp::Purge(1)).await;
                let _ = findings(&store, true).await;
                assert!(enqueue(&store, &new_job(7)).await.is_new(), "{table}.{column} = {rubbish}");
            }
        }
    }
}

/// Other jobs are counted, wherever the row stands.
#[tokio::test]
async fn a_due_time_that_cannot_be_read_hides_no_other_job() {
    for (table, column) in [("due", "pri"), ("due", "run_at"), ("grouped", "run_at")] {
        for rubbish in ["'text'", "1.5", "1.5e300", "x'00'"] {
            let folder = Folder::new();
            let store = folder.open();
            let mut ids = Vec::new();
            for n in 0..60 {
                let mut job = new_job(n);
                ids.push(job.id);
                job.queue = format!("q{}", n % 5);
                job.options.priority = Some(Priority::ALL[n as usize % 3]);
                job.group = (table == "grouped").then(|| format!("g{}", n % 2));
                enqueue(&store, &job).await;
            }
            let spoil = format!("UPDATE punctual_{table} SET {column} = {rubbish} WHERE id = ?1");
            assert_eq!(folder.connect().execute(&spoil, [ids[20].as_bytes()]).unwrap(), 1);
            // A number that is not whole still sorts among the others.
            let others = 59..=60;
            let counts = store.count(None).await.unwrap();
            assert!(
                counts.waiting == 60 && others.contains(&counts.due),
                "{table}.{column} = {rubbish}: {counts:?}"
            );
            let upcoming = Upcoming { queue: None, bucket: Duration::from_secs(1), buckets: 9 };
            let found = store.upcoming(&upcoming).await.unwrap();
            assert!(
                found.complete && others.contains(&found.overdue),
                "{table}.{column} = {rubbish}: {found:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_due_job_that_cannot_be_read_is_quarantined_and_blocks_nobody() {
    let folder = Folder::new();
    let store = folder.open();
    let (bad, good) = (new_job(1), new_job(2));
    enqueue(&store, &bad).await;
    enqueue(&store, &good).await;
    let app = folder.connect();
    app.execute("UPDATE punctual_job SET opts = '{' WHERE id = ?1", [bad.id.as_bytes()]).unwrap();
    let batch = store.reserve(&want(10)).await.unwrap();
    assert_eq!(batch.jobs.iter().map(|job| job.job.id).collect::<Vec<_>>(), [good.id]);
    let kept = store.get(bad.id).await.unwrap().unwrap();
    assert_eq!((kept.state, kept.reason.as_deref()), (State::Dead, Some("corrupt")));
    assert_eq!(kept.payload, bad.payload);
    assert_eq!(findings(&store, false).await, []);
}

/// Changes a byte in the id of an entry of the timeline, in the file itself.
fn change_a_byte(folder: &Folder, entry: i64) {
    let conn = folder.connect();
    let sql = "SELECT run_at, id FROM punctual_due ORDER BY pri, run_at, id LIMIT 1 OFFSET ?1";
    let (run_at, id): (i64, Vec<u8>) =
        conn.query_row(sql, [entry], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(conn);
    let mut bytes = std::fs::read(folder.path()).unwrap();
    // As SQLite stores them: a number of six bytes, then the id.
    let there = [&run_at.to_be_bytes()[2..], &id].concat();
    let at = bytes.windows(there.len()).position(|found| found == there).expect("it is in the file");
    bytes[at + 6] ^= 0xf0;
    std::fs::write(folder.path(), bytes).unwrap();
}

/// Runs what there is; returns how many jobs ran. A call that meets the damage is refused, and says so.
async fn drained(store: &SqliteStore, entry: i64) -> usize {
    const CALLS_MAX: u64 = 200;
    let (mut ran, mut idle) = (0, 0);
    for number in 1.. {
        assert!(number < CALLS_MAX, "entry {entry}: it finds the same again and again");
        match store.reserve(&want(8)).await {
            Ok(batch) => {
                idle += usize::from(batch.jobs.is_empty());
                ran += batch.jobs.len();
                let ack = |lease| Settlement { lease, verdict: Verdict::Ack };
                let acks: Vec<_> = batch.jobs.iter().map(|run| ack(run.lease)).collect();
                if !acks.is_empty() {
                    let _ = store.settle(&acks, None).await.unwrap();
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "entry {entry}: {error}");
                idle += 1;
            }
        }
        if idle == 3 {
            break;
        }
    }
    ran
}

/// S2: an entry whose place in its table is wrong takes no other job with it, no call finds it for ever, and a repair puts the table in
/// order.
#[tokio::test]
async fn an_entry_out_of_order_takes_no_other_with_it() {
    const JOBS: u64 = 300;
    let mut named = 0;
    for entry in [0, 1, 40, 150, 298, 299] {
        let folder = Folder::new();
        let store = folder.open();
        let jobs: Vec<_> = (0..JOBS).map(new_job).collect();
        store.enqueue(call(1), &jobs).await.unwrap();
        drop(store);
        change_a_byte(&folder, entry);
        let store = folder.open();
        let checks = store.doctor().await.unwrap();
        let integrity = checks.iter().find(|check| check.name == "integrity").unwrap();
        named += usize::from(integrity.fix.as_deref() == Some("run `punctual audit --repair`"));
        let before = drained(&store, entry).await;
        let found = findings(&store, true).await;
        findings(&store, true).await;
        assert_eq!(findings(&store, false).await, [], "entry {entry}");
        let after = drained(&store, entry).await;
        let dead = found.iter().filter(|finding| finding.what == "orphan").count();
        assert!(
            dead <= 1,
            "entry {entry}: {dead} jobs are dead, {before} ran before the repair and {after} after it"
        );
        assert_eq!(
            before + after + dead,
            JOBS as usize,
            "entry {entry}: {before} ran before the repair and {after} after it"
        );
    }
    // SQLite's check does not see it at the end of a page.
    assert!(3 <= named, "the doctor names {named}");
}
