//! Recovery of damaged files: all that was not hit is in the new file, and runs.

use punctual::{job::Concurrency, store::sqlite::Recovered};

use super::*;

/// Jobs of a file.
const JOBS: u64 = 1_000;
/// Jobs of the file that loses each of its pages in turn.
const FEW: u64 = 200;
/// Files of which bits are flipped, and how many bits of each.
const FUZZED: u64 = 10;
const FLIPPED: u64 = 20;
/// The jobs that are reserved, the first of them that end, and those of them that end dead.
const RESERVED: usize = 40;
const ENDED: usize = 30;
const DEAD: u64 = ENDED as u64 / 2;
/// How often a new file is repaired at most.
const REPAIRS: usize = 2;
/// The bytes of a page, and those of its own header.
const PAGE_BYTES: usize = 4_096;
const HEAD_BYTES: usize = 12;
/// More rows than a page has.
const ROWS_MAX: u64 = 100;

/// The page in question, what a tool of SQLite says of it, and how many records are in it.
struct Place {
    page: usize,
    what: String,
    records: u64,
}

/// Makes a file with jobs in each state, with groups, keys, and one record in several pages. Returns its bytes.
async fn made(folder: &Folder, jobs: u64) -> Vec<u8> {
    let store = folder.open();
    let job = |n: u64| {
        let mut job = new_job(n);
        match n % 5 {
            1 => job.group = Some(format!("g{}", n % 7)),
            2 => job.concurrency = Some(Concurrency { key: format!("c{}", n % 11), limit: 1 }),
            3 => job.expires_at = Some(When::In(Duration::from_hours(2))),
            4 => job.unique = Some(Unique::key(format!("u{n}"))),
            _ => {}
        }
        let bytes = if n == jobs / 2 { 20_000 } else { 100 };
        NewJob { payload: Payload::json(vec![b'1'; bytes]), ..job }
    };
    for first in (0..jobs).step_by(100) {
        let batch: Vec<NewJob> = (first..(first + 100).min(jobs)).map(job).collect();
        let _ = store.enqueue(call(1), &batch).await.unwrap();
    }
    let held = store.reserve(&want(RESERVED)).await.unwrap().jobs;
    let verdict = |at: usize| match at % 2 {
        0 => Verdict::Ack,
        _ => Verdict::Dead { error: "no such address".to_owned() },
    };
    let ended: Vec<_> = held.iter().take(ENDED).enumerate().collect();
    let ended: Vec<_> =
        ended.into_iter().map(|(at, job)| Settlement { lease: job.lease, verdict: verdict(at) }).collect();
    let _ = store.settle(&ended, None).await.unwrap();
    drop(store);
    let checkpoint = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    assert_eq!(folder.connect().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], checkpoint).unwrap(), 0);
    std::fs::read(folder.path()).unwrap()
}

/// Recovers a file of these bytes, and repairs the new one until nothing is left to repair.
async fn recovered(bytes: &[u8]) -> punctual::Result<(Folder, SqliteStore, Recovered)> {
    let folder = Folder::new();
    let damaged = folder.path().with_file_name("damaged.db");
    std::fs::write(&damaged, bytes).unwrap();
    let recovered =
        SqliteStore::recover(&format!("sqlite:{}", damaged.display()), folder.path(), |_, _| {}).await?;
    assert_eq!(std::fs::read(&damaged).unwrap(), bytes, "the damaged file is as it was");
    let store = folder.open();
    for _ in 0..REPAIRS {
        let _ = findings(&store, true).await;
    }
    assert_eq!(findings(&store, false).await, []);
    Ok((folder, store, recovered))
}

/// Runs all that is due, and returns how many were done before or are now.
async fn run_all(store: &SqliteStore) -> u64 {
    loop {
        let batch = store.reserve(&want(100)).await.unwrap().jobs;
        if batch.is_empty() {
            break;
        }
        let ends: Vec<_> =
            batch.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        let _ = store.settle(&ends, None).await.unwrap();
    }
    store.count(None).await.unwrap().done
}

#[tokio::test]
async fn a_file_that_is_whole_is_copied_as_it_is() {
    let folder = Folder::new();
    let bytes = made(&folder, FEW).await;
    let before = folder.open().count(None).await.unwrap();
    let (_new, store, read) = recovered(&bytes).await.unwrap();
    assert_eq!((read.jobs, read.lost_rows, read.lost_pages), (FEW, 0, 0));
    assert_eq!(store.count(None).await.unwrap(), before);
    assert_eq!(store.identity().await.unwrap(), folder.open().identity().await.unwrap());
}

/// Pages that were freed still have the rows of deleted jobs.
#[tokio::test]
async fn deleted_jobs_do_not_come_back() {
    let folder = Folder::new();
    made(&folder, FEW).await;
    let conn = folder.connect();
    for table in ["job", "due", "grouped", "lease", "ended"] {
        conn.execute(&format!("DELETE FROM punctual_{table}"), []).unwrap();
    }
    let free: u32 = conn.query_row("PRAGMA freelist_count", [], |row| row.get(0)).unwrap();
    assert!(5 < free, "{free} free pages");
    drop(conn);
    let (_new, store, read) = recovered(&std::fs::read(folder.path()).unwrap()).await.unwrap();
    assert_eq!((read.jobs, read.lost_pages, store.count(None).await.unwrap().total()), (0, 0, 0));
}

/// What is in the log alone is copied, too, and a program that has the file open goes on.
#[tokio::test]
async fn what_is_in_the_log_is_copied() {
    let (folder, other) = (Folder::new(), Folder::new());
    let store = folder.open();
    let job = new_job(1);
    enqueue(&store, &job).await;
    let url = format!("sqlite:{}", folder.path().display());
    let read = SqliteStore::recover(&url, other.path(), |_, _| {}).await.unwrap();
    assert_eq!((read.jobs, read.lost_rows), (1, 0));
    assert_eq!(state(&other.open(), job.id).await, Some(State::Waiting));
    enqueue(&store, &new_job(2)).await;
}

#[tokio::test]
async fn nothing_is_written_over_and_only_files_are_recovered() {
    let folder = Folder::new();
    enqueue(&folder.open(), &new_job(1)).await;
    let url = format!("sqlite:{}", folder.path().display());
    let taken = folder.path().with_file_name("taken");
    std::fs::write(&taken, "mine").unwrap();
    let error = SqliteStore::recover(&url, &taken, |_, _| {}).await.unwrap_err();
    assert_eq!((error.kind(), std::fs::read(&taken).unwrap()), (ErrorKind::Conflict, b"mine".to_vec()));
    let new = folder.path().with_file_name("new");
    for (url, kind) in [
        ("redis://localhost:1", ErrorKind::Unsupported),
        ("sqlite:/no/such/file", ErrorKind::Unavailable),
        (&*format!("sqlite:{}", taken.display()), ErrorKind::Corrupt),
    ] {
        let error = SqliteStore::recover(url, &new, |_, _| {}).await.unwrap_err();
        assert_eq!((error.kind(), error.hint().is_some()), (kind, true), "{error}");
        assert!(!new.exists(), "{url}");
    }
}

/// Each page of a file is lost in turn: the records in it are lost, and no others. So a page that is reached through a lost one is
/// found without it.
#[tokio::test]
async fn a_page_that_is_lost_costs_its_own_records_alone() {
    let folder = Folder::new();
    let bytes = made(&folder, FEW).await;
    let before = folder.open().count(None).await.unwrap();
    let conn = folder.connect();
    let of = "SELECT pageno, name || ' ' || pagetype, iif(name = 'punctual_job', iif(pagetype = 'leaf', ncell, 1), 0) FROM dbstat";
    let place = |row: &rusqlite::Row<'_>| {
        let (page, records): (u32, u32) = (row.get(0)?, row.get(2)?);
        Ok(Place { page: page as usize, what: row.get(1)?, records: records.into() })
    };
    let places: Vec<Place> =
        conn.prepare(of).unwrap().query_map([], place).unwrap().map(Result::unwrap).collect();
    assert!(places.iter().any(|place| place.what == "punctual_job internal"), "the records have a tree");
    for Place { page, what, records } in places {
        let mut bytes = bytes.clone();
        bytes[(page - 1) * PAGE_BYTES..page * PAGE_BYTES].fill(0);
        let read = recovered(&bytes).await;
        if page == 1 {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
            continue;
        }
        let (_new, store, read) = read.unwrap();
        // An overflow page can belong to a record or to another row.
        let (most, least) = match what.rsplit_once(' ') {
            Some((_, "internal")) => (0, 0),
            Some((_, "overflow")) => (records, 0),
            _ => (records, records),
        };
        assert!((FEW - most..=FEW - least).contains(&read.jobs), "page {page}, {what}: {read:?}");
        let counts = store.count(None).await.unwrap();
        assert_eq!(counts.total(), read.jobs, "page {page}, {what}");
        // Without these tables, ended and running jobs are not known.
        let is_known = ["job", "ended", "lease", "queue"]
            .iter()
            .all(|name| !what.starts_with(&format!("punctual_{name} ")));
        if is_known {
            assert_eq!(counts, before, "page {page}, {what}");
        }
    }
}

/// All queues, ends and leases are lost, and so is the row of documents: nothing that has ended runs, and documents can be written.
#[tokio::test]
async fn an_ended_job_does_not_run_if_all_ends_are_lost() {
    let folder = Folder::new();
    made(&folder, FEW).await;
    let conn = folder.connect();
    for table in ["queue", "ended", "lease", "docs"] {
        conn.execute(&format!("DELETE FROM punctual_{table}"), []).unwrap();
    }
    drop(conn);
    let (_new, store, read) = recovered(&std::fs::read(folder.path()).unwrap()).await.unwrap();
    let counts = store.count(None).await.unwrap();
    assert_eq!((read.jobs, counts.total(), counts.dead), (FEW, FEW, RESERVED as u64), "{counts:?}");
    let put = punctual::store::DocOp::Put {
        key: "a".to_owned(),
        precondition: punctual::store::Precondition::IfAbsent,
        value: b"1".to_vec(),
    };
    assert!(matches!(store.doc(&put).await.unwrap(), punctual::store::DocReply::Is(Some(_))));
}

/// A file whose records lead to freed pages, on which deleted jobs still are.
#[tokio::test]
async fn a_wrong_page_brings_no_deleted_job_back() {
    let folder = Folder::new();
    made(&folder, FEW).await;
    let conn = folder.connect();
    conn.execute("PRAGMA secure_delete = OFF", []).ok();
    let root: u32 = conn
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'punctual_job'", [], |row| row.get(0))
        .unwrap();
    // The later half of the records and their places.
    for table in ["due", "grouped", "expiry", "job"] {
        let of = "SELECT id FROM punctual_job ORDER BY slot LIMIT -1 OFFSET 100";
        conn.execute(&format!("DELETE FROM punctual_{table} WHERE id IN ({of})"), []).unwrap();
    }
    drop(conn);
    let mut bytes = std::fs::read(folder.path()).unwrap();
    let number = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let trunk = number(&bytes, 32) as usize;
    let freed = number(&bytes, (trunk - 1) * PAGE_BYTES + 8);
    // The last child of the root of the records.
    let last = (root as usize - 1) * PAGE_BYTES + 8;
    assert_eq!(bytes[last - 8], 5, "the root has children");
    bytes[last..last + 4].copy_from_slice(&freed.to_be_bytes());
    let (_new, store, read) = recovered(&bytes).await.unwrap();
    assert!(0 < read.lost_pages && read.jobs <= 100, "{read:?}");
    assert_eq!(store.count(None).await.unwrap().total(), read.jobs);
}

/// Ten files, twenty flipped bits in each: a bit costs at most one job, or those of a page if it is in the page's own header. All others run.
#[tokio::test]
async fn flipped_bits_cost_the_jobs_that_they_hit_alone() {
    let folder = Folder::new();
    let bytes = made(&folder, JOBS).await;
    let (mut lost, mut flipped_heads) = (0, 0);
    for seed in 0..FUZZED {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = bytes.clone();
        let mut heads = 0;
        for _ in 0..FLIPPED {
            // The first page has the header of the file: without that, only a backup helps.
            let at = rng.usize(PAGE_BYTES..bytes.len());
            bytes[at] ^= 1 << rng.u8(0..8);
            heads += u64::from(at % PAGE_BYTES < HEAD_BYTES);
        }
        let (_new, store, read) = recovered(&bytes).await.unwrap();
        let done = run_all(&store).await;
        let held = store.count(None).await.unwrap();
        println!("file {seed}: {read:?}, {done} done, {} dead, {} run", held.dead, held.running);
        // Some had ended, some run; the rest is lost, or dead since it cannot be read any more.
        let most = FLIPPED + heads * ROWS_MAX;
        assert!(JOBS <= done + held.dead + held.running + most, "file {seed}: {held:?} {read:?}");
        let running = (RESERVED - ENDED) as u64;
        assert!(JOBS - DEAD - running <= done + most, "file {seed}: {held:?}");
        lost += JOBS - done - held.dead.min(DEAD) - held.running;
        flipped_heads += heads;
    }
    println!("{lost} of {} jobs lost, {flipped_heads} heads of pages hit", FUZZED * JOBS);
}
