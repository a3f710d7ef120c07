//! What is the embedded store's own: its file, several handles on it, the application's transactions, damage.
#![cfg(feature = "sqlite")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod audit;
mod compact;
mod damage;
#[path = "../support/damage.rs"]
mod damaged;
mod damaged_columns;
#[cfg(target_os = "linux")]
mod full;
mod group;
mod pages;
#[cfg(unix)]
mod paths;
mod plans;
#[cfg(target_os = "linux")]
mod power;
#[cfg(unix)]
mod processes;
mod recover;
#[cfg(unix)]
mod replaced;
mod settle;
mod transaction;
mod versions;
mod wait;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use punctual::{
    ErrorKind, JobId, NewJob, Payload, Priority, State, Timestamp, Unique, When,
    job::IdMaker,
    store::{
        Action, Audit, AuditCursor, CallId, Check, CheckLevel, Durability, Enqueued, Finding, Keep, Lease,
        QueueOp, QueueReply, QueueRequest, QueueSettings, Rate, Reserve, Settled, Settlement, Store, Take,
        Upcoming, Verdict,
        clock::{Clock, ManualClock},
        sqlite::{SqliteOptions, SqliteStore},
    },
    testing::pass_time,
};
use rusqlite::{Connection, TransactionBehavior, types::Value};

use damage::findings;

#[derive(Debug)]
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        // In memory where there is such a place: no test here is about a disk.
        let shm = Path::new("/dev/shm");
        Self(if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("jobs.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path(), SqliteOptions::default()).unwrap()
    }

    /// A connection as an application would have one.
    fn connect(&self) -> Connection {
        let conn = Connection::open(self.path()).unwrap();
        conn.busy_timeout(Duration::from_secs(30)).unwrap();
        conn
    }
}

fn call(number: u64) -> CallId {
    CallId { instance: fastrand::u64(..), number }
}

fn new_job(n: u64) -> NewJob {
    let id = IdMaker::default().make(1_795_000_000_000 + n, 0, fastrand::u64(..));
    NewJob::new(id, "email.send", "mail", Payload::json("{}"))
}

fn derived_job(key: &str) -> NewJob {
    NewJob::new(JobId::derived("mail", None, key), "email.send", "mail", Payload::json("{}"))
}

fn want(n: usize) -> Reserve {
    let queues = vec![QueueRequest { queue: "mail".to_owned(), share: n, at_most: n }];
    Reserve { call: call(1), worker: "w".to_owned(), queues, n, lease: None, company: false }
}

async fn reserve_one(store: &SqliteStore) -> Lease {
    store.reserve(&want(1)).await.unwrap().jobs[0].lease
}

async fn enqueue(store: &SqliteStore, job: &NewJob) -> Enqueued {
    store.enqueue(call(1), std::slice::from_ref(job)).await.unwrap().remove(0)
}

async fn state(store: &SqliteStore, id: JobId) -> Option<State> {
    store.get(id).await.unwrap().map(|job| job.state)
}

// ── the file ──

/// S1: what was answered is there for the next process.
#[tokio::test]
async fn a_job_survives_its_process() {
    let folder = Folder::new();
    let job = new_job(1);
    assert!(enqueue(&folder.open(), &job).await.is_new());
    assert_eq!(state(&folder.open(), job.id).await, Some(State::Waiting));
}

#[cfg(unix)]
#[tokio::test]
async fn nobody_else_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let store = folder.open();
    enqueue(&store, &new_job(1)).await;
    for entry in std::fs::read_dir(folder.0.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = Folder::new();
    drop(folder.open());
    folder.connect().execute("UPDATE punctual_meta SET v = v + 1 WHERE k = 'schema'", []).unwrap();
    let error = SqliteStore::open(folder.path(), SqliteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Outdated);
    assert!(error.to_string().contains("has schema version 8, this punctual knows up to 7"), "{error}");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_kept() {
    let folder = Folder::new();
    let text = "not a database, whatever its name says. ".repeat(40);
    std::fs::write(folder.path(), &text).unwrap();
    let error = SqliteStore::open(folder.path(), SqliteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(error.hint().is_some());
    assert_eq!(std::fs::read_to_string(folder.path()).unwrap(), text);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error =
        SqliteStore::open(Path::new("/no/such/folder/jobs.db"), SqliteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("/no/such/folder/jobs.db"), "{error}");
}

/// A pipe would be waited for, and a folder be a disk error.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused() {
    let folder = Folder::new();
    let socket = folder.path();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, what) in [(&*socket, "no regular file"), (socket.parent().unwrap(), "a folder")] {
        let error = SqliteStore::open(path, SqliteOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().ends_with(what), "{error}");
    }
}

/// A slip in a path leaves nothing behind.
#[test]
fn a_file_that_is_not_there_is_made_only_where_that_is_wanted() {
    let folder = Folder::new();
    let existing = || SqliteOptions { create: false, ..SqliteOptions::default() };
    let file = folder.path();
    for path in [file.clone(), file.join("no/such/folder/jobs.db")] {
        let error = SqliteStore::open(&path, existing()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.to_string(), format!("there is no store at {}", path.display()));
    }
    let beside = std::fs::read_dir(file.parent().unwrap()).unwrap();
    assert_eq!(beside.count(), 0, "neither a store nor a sidecar");
    drop(folder.open());
    SqliteStore::open(file, existing()).unwrap();
}

/// Whoever only wants to look changes nothing in a file that is somebody else's, and leaves nothing beside it.
#[test]
fn a_file_of_somebody_else_is_left_alone() {
    let folder = Folder::new();
    let app = folder.connect();
    app.execute_batch("PRAGMA journal_mode = DELETE; CREATE TABLE orders (id INTEGER PRIMARY KEY);").unwrap();
    drop(app);
    let other = folder.path().with_file_name("other");
    std::fs::write(&other, "hello, this is text of somebody else's, and quite long enough for a header of 100 bytes or more, hello")
        .unwrap();
    let before = std::fs::read(folder.path()).unwrap();
    let existing = SqliteOptions { create: false, ..SqliteOptions::default() };
    let error = SqliteStore::open(folder.path(), existing.clone()).unwrap_err();
    assert_eq!(error.to_string(), format!("there is no store in {}", folder.path().display()));
    assert_eq!(std::fs::read(folder.path()).unwrap(), before);
    for options in [existing, SqliteOptions::default()] {
        SqliteStore::open(&other, options).unwrap_err();
    }
    let beside = std::fs::read_dir(folder.path().parent().unwrap()).unwrap();
    assert_eq!(beside.count(), 2, "no sidecar");
}

#[tokio::test]
async fn the_file_may_be_the_applications_own() {
    let folder = Folder::new();
    let app = folder.connect();
    app.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders DEFAULT VALUES;")
        .unwrap();
    let store = folder.open();
    enqueue(&store, &new_job(1)).await;
    let others = "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE 'punctual\\_%' ESCAPE '\\'
        AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    assert_eq!(app.query_row(others, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    assert_eq!(app.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}

/// S1: a store that can't give a level says so instead of pretending.
#[test]
fn a_file_is_opened_as_no_less_and_no_more_than_it_is() {
    for durability in [Durability::Memory, Durability::Replicated] {
        let options = SqliteOptions { durability, ..SqliteOptions::default() };
        let error = SqliteStore::open(Folder::new().path(), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn an_earlier_file_gets_its_identity_when_it_is_opened_for_writing() {
    let folder = Folder::new();
    let put = || {
        let count = "SELECT count(*) FROM punctual_meta WHERE k = 'identity'";
        folder.connect().query_row(count, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    drop(folder.open());
    folder.connect().execute("DELETE FROM punctual_meta WHERE k = 'identity'", []).unwrap();
    let look = || {
        let options = SqliteOptions { read_only: true, ..SqliteOptions::default() };
        SqliteStore::open(folder.path(), options).unwrap()
    };
    let refused = look().identity().await.unwrap_err();
    assert_eq!((refused.kind(), put()), (ErrorKind::Unsupported, 0), "{refused}");
    let told = look().doctor().await.unwrap();
    assert!(
        told.iter().any(|check| check.name == "identity" && check.text.starts_with("none yet")),
        "{told:?}"
    );

    let store = folder.open();
    let identity = store.identity().await.unwrap();
    assert_eq!((look().identity().await.unwrap(), put()), (identity, 1));
    let told = store.doctor().await.unwrap();
    assert!(
        told.iter().any(|check| check.name == "identity" && check.text == identity.to_string()),
        "{told:?}"
    );

    // Where the disk was full when it was opened, it gets one when it is first asked for.
    let opened_early = folder.open();
    folder.connect().execute("DELETE FROM punctual_meta WHERE k = 'identity'", []).unwrap();
    let told = opened_early.identity().await;
    assert!(told.is_ok(), "{told:?}");
    let identity = told.unwrap();
    assert_eq!((look().identity().await.unwrap(), put()), (identity, 1));

    // A backup that is restored is the same store.
    let copy = folder.path().with_extension("copy");
    folder.connect().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let restored = SqliteStore::open(&copy, SqliteOptions::default()).unwrap();
    assert_eq!(restored.identity().await.unwrap(), identity);
}

#[tokio::test]
async fn the_doctor_finds_a_new_store_healthy() {
    let folder = Folder::new();
    for durability in [Durability::Full, Durability::Fast] {
        let options = SqliteOptions { durability, ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path(), options).unwrap();
        let checks = store.doctor().await.unwrap();
        let names: Vec<&str> = checks.iter().map(|check| &*check.name).collect();
        assert_eq!(
            names,
            ["version", "file", "identity", "durability", "integrity", "clock", "bell", "disk", "log"]
        );
        assert!(checks.iter().all(|check| check.level == CheckLevel::Ok), "{checks:#?}");
        assert!(checks[3].text.starts_with(durability.name()), "{}", checks[3].text);
    }
}

/// A clock that jumped forward for a moment leaves jobs behind that are due far in the future.
#[tokio::test]
async fn the_doctor_knows_that_the_clock_was_ahead() {
    let folder = Folder::new();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(1_800_000_000_000));
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path(), options).unwrap();
    let now = clock.now();
    let says =
        async || store.doctor().await.unwrap().into_iter().find(|check| check.name == "clock").unwrap();
    clock.set(now.after(Duration::from_hours(24)));
    enqueue(&store, &new_job(1)).await;
    reserve_one(&store).await;
    assert_eq!(says().await.level, CheckLevel::Ok);
    clock.set(now);
    let check = says().await;
    assert!(check.level == CheckLevel::Warn && check.text.contains("went back by 86400 s"), "{check:?}");
    store.reserve(&Reserve { call: call(2), ..want(1) }).await.unwrap();
    let check = says().await;
    assert!(check.level == CheckLevel::Warn && check.text.contains("was 86400 s ahead of now"), "{check:?}");
}

/// One operation that SQLite itself refuses costs the others of its group nothing.
#[tokio::test]
async fn a_failing_call_costs_nobody_else() {
    let folder = Folder::new();
    let store = folder.open();
    folder
        .connect()
        .execute_batch(
            "CREATE TRIGGER bad BEFORE INSERT ON punctual_job WHEN new.kind = 'bad'
             BEGIN SELECT RAISE(ABORT, 'planted'); END;",
        )
        .unwrap();
    let jobs: Vec<NewJob> = (0..40)
        .map(|n| {
            let mut job = new_job(n);
            if n % 10 == 3 {
                job.kind = "bad".to_owned();
            }
            job
        })
        .collect();
    let store = std::sync::Arc::new(store);
    let calls: Vec<_> = jobs
        .iter()
        .cloned()
        .map(|job| {
            let store = std::sync::Arc::clone(&store);
            tokio::spawn(
                async move { store.enqueue(call(1), &[job]).await.map(|answers| answers[0].is_new()) },
            )
        })
        .collect();
    for (n, answer) in calls.into_iter().enumerate() {
        assert_eq!(answer.await.unwrap().is_ok_and(|new| new), n % 10 != 3, "job {n}");
    }
    assert_eq!(store.count(None).await.unwrap().waiting, 36);
}

/// Two ids with the same slot are two jobs, both found, one after the other's end too.
#[tokio::test]
async fn ids_that_share_a_slot_are_told_apart() {
    let folder = Folder::new();
    let store = folder.open();
    let jobs: Vec<NewJob> = (0..5)
        .map(|low| {
            let id = IdMaker::default().make(1_795_000_000_000, 0, low);
            NewJob::new(id, "k", "mail", Payload::json(low.to_string()))
        })
        .collect();
    let answers = store.enqueue(call(1), &jobs).await.unwrap();
    assert!(answers.iter().all(Enqueued::is_new));
    for job in &jobs {
        assert_eq!(store.get(job.id).await.unwrap().unwrap().payload, job.payload);
        assert!(!enqueue(&store, job).await.is_new());
    }
    let taken =
        store.take(&Take { queue: "mail".to_owned(), n: 2, older_than: Duration::ZERO }).await.unwrap();
    assert_eq!(taken.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[0].id, jobs[1].id]);
    assert_eq!(store.reserve(&want(9)).await.unwrap().jobs.len(), 3);
    assert!(findings(&store, false).await.is_empty());
}

// ── several handles ──

/// S7: what one handle reserved, another does not.
#[tokio::test]
async fn two_handles_share_their_jobs() {
    let folder = Folder::new();
    let (a, b) = (folder.open(), folder.open());
    for n in 0..10 {
        enqueue(&a, &new_job(n)).await;
    }
    let (first, second) = (a.reserve(&want(6)).await.unwrap(), b.reserve(&want(6)).await.unwrap());
    assert_eq!((first.jobs.len(), second.jobs.len()), (6, 4));
    let lease = first.jobs[0].lease;
    let (settled, _) = b.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.unwrap();
    assert_eq!(settled, [Settled::Settled(State::Done, None)]);
}

/// Far shorter than the shortest slice of a wait: only a notification can be as fast.
const NOTIFIED_MAX: Duration = Duration::from_millis(700);

async fn waits(store: &SqliteStore, at_most: Duration) -> Duration {
    let start = Instant::now();
    store.wait(&["mail".to_owned()], at_most).await.unwrap();
    start.elapsed()
}

#[tokio::test]
async fn a_waiter_is_woken_by_its_own_handle_and_by_another() {
    let folder = Folder::new();
    let (a, b) = (folder.open(), folder.open());
    for producer in [&a, &b] {
        let (job, before) = (new_job(1), a.operations());
        let (waited, _) = tokio::join!(waits(&a, Duration::from_secs(30)), async {
            // By then the waiter has asked for the version and for what is next.
            while a.operations() < before + 2 {
                tokio::task::yield_now().await;
            }
            enqueue(producer, &job).await
        });
        assert!(waited < NOTIFIED_MAX, "{waited:?}");
        let lease = reserve_one(&a).await;
        let _ = a.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_sleeps_until_the_next_job_is_due() {
    let folder = Folder::new();
    let store = folder.open();
    let mut job = new_job(1);
    job.run_at = When::In(Duration::from_millis(300));
    let Enqueued::Inserted { run_at, .. } = enqueue(&store, &job).await else { panic!("it is new") };
    store.wait(&["mail".to_owned()], Duration::from_secs(30)).await.unwrap();
    let now = store.now().await.unwrap();
    assert!(run_at <= now && now.since(run_at) < NOTIFIED_MAX, "{run_at} {now}");
}

#[tokio::test]
async fn one_waiter_is_woken_for_one_job_and_the_rest_sleep_on() {
    let folder = Folder::new();
    let stores: Vec<SqliteStore> = (0..3).map(|_| folder.open()).collect();
    let waits = stores.iter().map(|store| Box::pin(waits(store, Duration::from_secs(30))));
    let mut waits: Vec<_> = waits.collect();
    // All of them have looked and sleep.
    for wait in &mut waits {
        tokio::select! { biased; _ = wait => panic!("nothing is due"), () = tokio::time::sleep(Duration::from_millis(100)) => {} }
    }
    let producer = folder.open();
    enqueue(&producer, &new_job(1)).await;
    // Who is woken takes the job; the others have nothing to find when they look.
    let (_, at, others) = futures_util::future::select_all(waits).await;
    assert_eq!(stores[at].reserve(&want(1)).await.unwrap().jobs.len(), 1);
    for wait in others {
        let slept_on = tokio::time::timeout(Duration::from_millis(700), wait).await;
        assert!(slept_on.is_err(), "a second one was woken");
    }
}

#[tokio::test]
async fn a_waiter_with_nothing_to_do_costs_nothing() {
    let folder = Folder::new();
    let store = folder.open();
    let mut wait = Box::pin(waits(&store, Duration::from_secs(30)));
    tokio::select! { biased; _ = &mut wait => panic!("nothing is due"), () = tokio::time::sleep(Duration::from_millis(100)) => {} }
    let before = store.operations();
    assert!(tokio::time::timeout(Duration::from_millis(600), wait).await.is_err());
    assert_eq!(store.operations(), before);
}

// ── the application's transactions ──

#[tokio::test]
async fn jobs_are_committed_with_the_applications_rows_or_not_at_all() {
    let folder = Folder::new();
    let store = folder.open();
    let mut app = folder.connect();
    app.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)", []).unwrap();
    let (kept, dropped) = (new_job(1), new_job(2));
    for (job, commit) in [(&kept, true), (&dropped, false)] {
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO orders DEFAULT VALUES", []).unwrap();
        let (answers, notification) = store.enqueue_in(&tx, std::slice::from_ref(job)).unwrap();
        assert!(answers[0].is_new());
        if commit {
            tx.commit().unwrap();
            notification.send();
        }
    }
    assert_eq!(app.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    assert_eq!(state(&store, kept.id).await, Some(State::Waiting));
    assert_eq!(state(&store, dropped.id).await, None);
    assert_eq!(store.count(None).await.unwrap().waiting, 1);
}

#[tokio::test]
async fn an_unsent_notification_makes_a_job_late_and_loses_none() {
    let folder = Folder::new();
    let store = folder.open();
    let mut wait = Box::pin(waits(&store, Duration::from_secs(30)));
    tokio::select! { biased; _ = &mut wait => panic!("nothing is due"), () = tokio::time::sleep(Duration::from_millis(100)) => {} }
    let mut app = folder.connect();
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (_, notification) = store.enqueue_in(&tx, &[new_job(1)]).unwrap();
    tx.commit().unwrap();
    drop(notification);
    // The first slice of a wait ends after a second, and finds it.
    assert!(wait.await < Duration::from_secs(5));
    assert_eq!(store.reserve(&want(1)).await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn a_run_ends_with_the_applications_rows_or_not_at_all() {
    let folder = Folder::new();
    let store = folder.open();
    let mut app = folder.connect();
    let job = new_job(1);
    enqueue(&store, &job).await;
    let lease = reserve_one(&store).await;
    for (commit, expected) in [(false, State::Running), (true, State::Done)] {
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let (settled, notification) = store.settle_in(&tx, lease, Verdict::Ack).unwrap();
        assert_eq!(settled, Settled::Settled(State::Done, None));
        if commit {
            tx.commit().unwrap();
            notification.send();
        } else {
            drop(tx);
        }
        assert_eq!(state(&store, job.id).await, Some(expected));
    }
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(store.settle_in(&tx, lease, Verdict::Ack).unwrap().0, Settled::LeaseLost);
}

#[tokio::test]
async fn a_connection_that_would_weaken_the_store_is_refused() {
    let (folder, other) = (Folder::new(), Folder::new());
    let store = folder.open();
    drop(other.open());
    let refused = |conn: &mut Connection, why: &str| {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let error = store.enqueue_in(&tx, &[new_job(1)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains(why) && error.hint().is_some(), "{error}");
    };
    refused(&mut other.connect(), "is not one of");
    let mut fast = folder.connect();
    fast.pragma_update(None, "synchronous", "NORMAL").unwrap();
    refused(&mut fast, "synchronous is 1");
    let mut hasty = folder.connect();
    hasty.busy_timeout(Duration::ZERO).unwrap();
    refused(&mut hasty, "no busy timeout");
}

// ── upkeep ──

/// S17: retention removes what it must even where thousands end in one go, in bounded steps.
#[tokio::test]
async fn retention_keeps_up_with_a_flood() {
    let folder = Folder::new();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_000_000_000));
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path(), options).unwrap();
    let done = Keep { count: 100, ..Keep::SHORT };
    let _ = store
        .queue("mail", &QueueOp::Set(Box::new(QueueSettings { done, ..QueueSettings::default() })))
        .await;
    for n in 0..5 {
        let jobs: Vec<NewJob> = (0..500).map(|i| new_job(n * 500 + i)).collect();
        let _ = store.enqueue(call(1), &jobs).await.unwrap();
        let batch = store.reserve(&want(500)).await.unwrap();
        let acks: Vec<_> =
            batch.jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        let _ = store.settle(&acks, None).await.unwrap();
        assert_eq!(store.count(None).await.unwrap().done, 100);
    }
    pass_time(&store, &clock, Duration::from_hours(25)).await;
    let swept = store.sweep(1_000).await.unwrap();
    // The hundred jobs, and the calls of ten instances.
    assert_eq!((swept.removed, swept.forgotten, swept.more), (100, 10, false));
    assert_eq!(findings(&store, false).await, []);
}

/// S17: of a million remembered ids the oldest are forgotten, before their time is over. Their number is kept: here it is told.
#[tokio::test]
async fn no_more_than_a_million_ids_are_remembered() {
    let folder = Folder::new();
    let store = folder.open();
    let settings = QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() };
    store.queue("mail", &QueueOp::Set(Box::new(settings))).await.unwrap();
    let jobs: Vec<NewJob> = ["first", "second", "third"].map(derived_job).into();
    for job in &jobs {
        enqueue(&store, job).await;
        let _ = store
            .settle(&[Settlement { lease: reserve_one(&store).await, verdict: Verdict::Ack }], None)
            .await
            .unwrap();
        // Of those that ended in one millisecond none is the oldest.
        let ended = store.now().await.unwrap();
        while store.now().await.unwrap() == ended {
            tokio::task::yield_now().await;
        }
    }
    drop(store);
    folder.connect().execute("UPDATE punctual_queue SET remembered = 1000001", []).unwrap();
    let store = folder.open();
    assert_eq!(store.sweep(10).await.unwrap().forgotten, 1);
    let mut known = Vec::new();
    for job in &jobs {
        let answer =
            store.enqueue(call(fastrand::u64(..)), std::slice::from_ref(job)).await.unwrap().remove(0);
        known.push(matches!(answer, Enqueued::Duplicate(_)));
    }
    assert_eq!(known, [false, true, true]);
}
