//! What the disk may do to the embedded store: S1 and S2 seen from outside, by system calls.
//!
//! strace plays the faulty disk. Where it can't be had, the tests say so, and in CI they fail.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use punctual::{
    NewJob, Payload,
    job::IdMaker,
    store::{
        CallId, LeaseStatus, QueueRequest, Reserve, Settled, Settlement, Store, Verdict,
        clock::{Clock, ManualClock},
        sqlite::{SqliteOptions, SqliteStore},
    },
};

const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");

fn url(store: &Path) -> String {
    format!("sqlite:{}", store.display())
}

fn punctual(store: &Path, args: &[&str]) -> Output {
    Command::new(PUNCTUAL).args(args).arg("--store").arg(url(store)).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// strace with these options around `punctual push`, its log in `log`; `None` where strace can't trace.
fn straced_push(store: &Path, log: &Path, options: &[&str]) -> Option<Output> {
    straced(store, log, options, &["push", "k", "{}"])
}

/// The same around any command.
fn straced(store: &Path, log: &Path, options: &[&str], words: &[&str]) -> Option<Output> {
    if !Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("MISSING: strace can't trace here, so the disk's faults were not tried");
        assert!(std::env::var_os("CI").is_none(), "CI needs strace");
        return None;
    }
    let mut strace = Command::new("strace");
    strace
        .arg("-f")
        .arg("-o")
        .arg(log)
        .args(options)
        .arg(PUNCTUAL)
        .args(words)
        .arg("--store")
        .arg(url(store));
    Some(strace.output().unwrap())
}

fn waiting(store: &Path) -> u64 {
    let output = punctual(store, &["stats", "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stats["waiting"].as_u64().unwrap()
}

/// S1: with durability full, the answer comes after the sync that covers it.
#[test]
fn an_enqueue_answers_only_after_the_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    let Some(output) = straced_push(&store, &log, &["-y", "-e", "trace=fdatasync,fsync,write,pwrite64"])
    else {
        return;
    };
    assert!(output.status.success(), "{}", stderr(&output));

    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let receipt = lines.iter().position(|l| l.contains(" write(1<")).unwrap();
    let last_write =
        lines[..receipt].iter().rposition(|l| l.contains("pwrite64(") && l.contains("-wal>")).unwrap();
    let synced = lines[last_write..receipt].iter().any(|l| l.contains("sync(") && l.contains("-wal>"));
    assert!(synced, "the receipt was printed before the log was synced:\n{log}");
}

/// S9: a process that waits for its disk holds up no heartbeat of another one.
#[test]
fn a_sync_that_takes_long_holds_up_no_other_process() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    if !Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("MISSING: strace can't trace here, so the disk's faults were not tried");
        assert!(std::env::var_os("CI").is_none(), "CI needs strace");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
        let id = IdMaker::default().make(Clock::System.now().as_ms(), 0, 1);
        let job = NewJob::new(id, "k", "mail", Payload::json("{}"));
        store.enqueue(CallId { instance: 1, number: 1 }, &[job]).await.unwrap();
        let queues = vec![QueueRequest { queue: "mail".to_owned(), share: 1, at_most: 1 }];
        let call = CallId { instance: 1, number: 1 };
        let want = Reserve { call, worker: "w".to_owned(), queues, n: 1, lease: None, company: false };
        let lease = store.reserve(&want).await.unwrap().jobs[0].lease;
        let size = || std::fs::metadata(format!("{}-wal", path.display())).map_or(0, |log| log.len());
        let (written, stands_still) = (size(), Duration::from_secs(20));
        let inject = format!("inject=fdatasync,fsync:delay_enter={}", stands_still.as_micros());
        let mut push = Command::new("strace");
        push.arg("-f").arg("-o").arg(&log).args(["-e", &inject, PUNCTUAL, "push", "k", "{}", "--store"]);
        let mut push = push.arg(url(&path)).process_group(0).stdout(Stdio::null()).spawn().unwrap();
        // It has written its job to the log, and waits for the disk.
        let begin = Instant::now();
        while size() == written {
            assert!(begin.elapsed() < Duration::from_mins(2), "it does not get to the log");
            std::thread::sleep(Duration::from_millis(5));
        }
        let begin = Instant::now();
        let said = store.extend(&[lease.into()]).await.unwrap();
        let took = begin.elapsed();
        let group = format!("-{}", push.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).status());
        push.wait().unwrap();
        assert_eq!(said, [LeaseStatus::Held]);
        assert!(took < stands_still / 2, "a heartbeat waited {took:?} for the disk of another process");
    });
}

/// S1: a sync that fails is an error that people see, and no receipt.
#[test]
fn a_failed_sync_is_no_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    let Some(output) = straced_push(&store, &log, &["-e", "inject=fdatasync,fsync:error=EIO"]) else {
        return;
    };
    assert!([Some(5), Some(8)].contains(&output.status.code()), "{:?} {}", output.status, stderr(&output));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("error:"), "{}", stderr(&output));

    // The disk is well again: whatever the failed call left is whole, and the store goes on.
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    assert!(punctual(&store, &["audit"]).status.success());
    assert!((2..=3).contains(&waiting(&store)));
}

/// S2: a full disk refuses the job as a whole, and the store goes on when there is room again.
#[test]
fn a_full_disk_refuses_and_nothing_is_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    let wal = format!("{}-wal", store.display());
    let options = ["-P", wal.as_str(), "-e", "inject=pwrite64:error=ENOSPC"];
    let Some(output) = straced_push(&store, &log, &options) else { return };
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("store_full"), "{}", stderr(&output));

    assert_eq!(waiting(&store), 1);
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    assert_eq!(waiting(&store), 2);
    assert!(punctual(&store, &["audit"]).status.success());
}

/// A compaction that finds the disk full leaves the file as it was, and its own log does not fill the disk for others.
#[test]
fn a_full_disk_refuses_a_compaction_and_the_store_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    let wal = format!("{}-wal", store.display());
    // The log has room for the beginning.
    let options = ["-P", wal.as_str(), "-e", "inject=pwrite64:error=ENOSPC:when=5+"];
    let Some(output) = straced(&store, &log, &options, &["compact"]) else { return };
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("store_full"), "{}", stderr(&output));
    assert_eq!(std::fs::metadata(&wal).map_or(0, |log| log.len()), 0);

    assert_eq!(waiting(&store), 1);
    assert!(punctual(&store, &["audit"]).status.success());
    assert!(punctual(&store, &["compact"]).status.success());
    assert_eq!(waiting(&store), 1);
}

/// S14: a compaction that was killed held up heartbeats, too; nobody but the store itself is left to know of it.
#[test]
fn no_lease_is_reclaimed_since_a_compaction_that_was_killed_held_up_its_heartbeat() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = ManualClock::new(Clock::System.now());
        let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
        let store = SqliteStore::open(&path, options).unwrap();
        let id = IdMaker::default().make(clock.now().as_ms(), 0, 1);
        let job = NewJob::new(id, "k", "mail", Payload::json("{}"));
        store.enqueue(CallId { instance: 1, number: 1 }, &[job]).await.unwrap();
        let reserve = async |number| {
            let queues = vec![QueueRequest { queue: "mail".to_owned(), share: 1, at_most: 1 }];
            let call = CallId { instance: 1, number };
            let want = Reserve { call, worker: "w".to_owned(), queues, n: 1, lease: None, company: false };
            store.reserve(&want).await.unwrap().jobs
        };
        let lease = reserve(1).await[0].lease;
        let wal = format!("{}-wal", path.display());
        // By then it has begun to write the file anew.
        let options = ["-P", wal.as_str(), "-e", "inject=pwrite64:signal=KILL:when=20"];
        let Some(output) = straced(&path, &log, &options, &["compact"]) else { return };
        assert!(!output.status.success(), "it was not killed: {}", stderr(&output));
        // Not long enough to look like a jump of the clock.
        clock.advance(Duration::from_secs(16));
        let reclaimed = reserve(2).await;
        assert_eq!(reclaimed.len(), 0, "it was reclaimed");
        let settled = store.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.unwrap().0;
        assert!(!matches!(settled[0], Settled::LeaseLost), "{settled:?}");
    });
}

/// A file of an earlier version has no identity yet. On a full disk it gets none, and whatever writes nothing goes on.
#[test]
fn a_full_disk_keeps_nobody_from_opening_an_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = (dir.path().join("jobs.db"), dir.path().join("strace"));
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    let old = rusqlite::Connection::open(&store).unwrap();
    old.execute("DELETE FROM punctual_meta WHERE k = 'identity'", []).unwrap();
    drop(old);
    let wal = format!("{}-wal", store.display());
    let options = ["-P", wal.as_str(), "-e", "inject=pwrite64:error=ENOSPC"];
    let Some(output) = straced(&store, &log, &options, &["stats", "--json"]) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let options = ["-P", wal.as_str(), "-e", "inject=pwrite64:error=ENOSPC"];
    let refused = straced(&store, &log, &options, &["push", "k", "{}"]).unwrap();
    assert!(stderr(&refused).contains("store_full"), "{}", stderr(&refused));

    assert_eq!(waiting(&store), 1);
    assert!(punctual(&store, &["audit"]).status.success());
    let count = "SELECT count(*) FROM punctual_meta WHERE k = 'identity'";
    let identified =
        rusqlite::Connection::open(&store).unwrap().query_row(count, [], |row| row.get::<_, i64>(0));
    assert_eq!(identified.unwrap(), 1, "it got one when there was room");
}

/// A stranger's transaction on the same file delays a call; it does not fail it.
#[test]
fn a_lock_held_by_a_stranger_only_delays() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("jobs.db");
    assert!(punctual(&store, &["push", "k", "{}"]).status.success());
    let stranger = rusqlite::Connection::open(&store).unwrap();
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();

    let begin = Instant::now();
    let held = Duration::from_millis(1_500);
    std::thread::scope(|scope| {
        let push = scope.spawn(|| punctual(&store, &["push", "k", "{}"]));
        // The stranger's own business, which the call must outlast.
        std::thread::sleep(held);
        stranger.execute_batch("COMMIT").unwrap();
        let output = push.join().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    });
    assert!(held <= begin.elapsed());
    assert_eq!(waiting(&store), 2);
}
