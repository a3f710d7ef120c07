//! Power cuts after syncs that failed: a disk of our own (`disk.c`) in front of the processes of a store keeps a journal, from which what it
//! would hold after a power cut at any moment is rebuilt.
//!
//! As Linux does, the disk drops what a failed sync should have written, and tells it once to each descriptor that was open then.

use std::{
    collections::BTreeSet,
    error::Error as _,
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use super::{damage::findings, processes::say, *};

/// How many failing syncs a life is tried with; as many as `PUNCTUAL_POWER_CUTS` says, or all of them if it says `all`.
const SYNCS_TRIED: u64 = 6;
/// The jobs of a life, unless `PUNCTUAL_POWER_JOBS` says how many, and the size of all together: the log is copied into the database before the
/// last of them.
const JOBS: u64 = 40;
const BYTES: u64 = 20_000_000;

fn jobs() -> u64 {
    std::env::var("PUNCTUAL_POWER_JOBS").map_or(JOBS, |jobs| jobs.parse().unwrap())
}

/// Does nothing, unless it was started by a test below with a file: then it does what it reads.
#[test]
fn child_that_lives() {
    let Ok(file) = std::env::var("PUNCTUAL_TEST_DISK_FILE") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = match SqliteStore::open(file, SqliteOptions::default()) {
            Ok(store) => store,
            Err(error) => return say(&format!("failed {:?} {error}", error.kind())),
        };
        let mut lease = None;
        say("ready");
        for (n, line) in std::io::stdin().lines().enumerate() {
            let done = match line.unwrap().as_str() {
                "enqueue" => {
                    let mut job = new_job(n as u64);
                    job.payload = Payload::json(format!("\"{}\"", "x".repeat((BYTES / jobs()) as usize)));
                    let call = call(n as u64);
                    store.enqueue(call, &[job]).await.map(|enqueued| enqueued[0].id().unwrap())
                }
                "reserve" => match store.reserve(&want(1)).await {
                    Ok(batch) if batch.jobs.is_empty() => {
                        say("nothing");
                        continue;
                    }
                    Ok(batch) => {
                        lease = Some(batch.jobs[0].lease);
                        Ok(batch.jobs[0].lease.job)
                    }
                    Err(error) => Err(error),
                },
                "extend" => store.extend(&[lease.unwrap().into()]).await.map(|_| lease.unwrap().job),
                "settle" => {
                    let settlement = Settlement { lease: lease.unwrap(), verdict: Verdict::Ack };
                    store.settle(&[settlement], None).await.map(|_| lease.unwrap().job)
                }
                other => panic!("{other}?"),
            };
            match done {
                Ok(id) => say(&format!("done {id}")),
                Err(error) => say(&format!("failed {:?} {error} {:?}", error.kind(), error.source())),
            }
        }
    });
}

/// A process of the store.
struct Process {
    child: Child,
    stdin: ChildStdin,
    said: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts one. Whoever cannot open the store for a failing disk is started again.
    fn start(disk: &Path, folder: &Path, fails: (u64, u64)) -> Self {
        const STARTS_MAX: usize = 30;
        for n in 0..STARTS_MAX {
            match Self::started(disk, folder, fails) {
                Ok(process) => return process,
                Err(said) if n + 1 == STARTS_MAX => {
                    panic!("syncs {fails:?} fail, the store cannot be opened: {said}")
                }
                Err(_) => {}
            }
        }
        unreachable!()
    }

    fn started(disk: &Path, folder: &Path, fails: (u64, u64)) -> std::result::Result<Self, String> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "power::child_that_lives", "--nocapture"])
            .env("LD_PRELOAD", disk)
            .env("DISK_JOURNAL", folder.join("journal"))
            .env("DISK_FAILS", format!("{} {}", fails.0, fails.1))
            .env("PUNCTUAL_TEST_DISK_FILE", folder.join("jobs.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, stdin, said };
        let said = process.hear();
        let is_typed = ["ready", "failed Unavailable", "failed UnknownOutcome"]
            .iter()
            .any(|words| said.starts_with(words));
        assert!(is_typed, "{said}");
        if said == "ready" { Ok(process) } else { Err(said) }
    }

    fn hear(&mut self) -> String {
        let line = self
            .said
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("SAID ")?.to_owned()));
        line.expect("the process ended")
    }

    /// Does this, and returns the job that it concerned, if there is one, or the kind of the error.
    fn does(&mut self, what: &str) -> std::result::Result<Option<JobId>, String> {
        self.stdin.write_all(format!("{what}\n").as_bytes()).unwrap();
        let said = self.hear();
        match said.split_once(' ') {
            None => Ok(None),
            Some(("done", id)) => Ok(Some(id.parse().unwrap())),
            Some((_, error)) => Err(error.to_owned()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // As a power cut ends it.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What was answered, and how long the journal was then.
struct Answer {
    id: JobId,
    is_end: bool,
    at: usize,
}

/// Compiles the disk.
fn disk(folder: &Path) -> PathBuf {
    let disk = folder.join("disk.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqlite/disk.c");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&disk)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .status();
    assert!(made.unwrap().success(), "a C compiler is needed");
    disk
}

/// Lives: several processes in turn enqueue jobs and run some. Returns what was answered as durable, and what was refused.
fn live(disk: &Path, folder: &Path, processes: usize, fails: (u64, u64)) -> (Vec<Answer>, BTreeSet<String>) {
    let mut processes: Vec<_> = (0..processes).map(|_| Process::start(disk, folder, fails)).collect();
    let (mut answers, mut refused) = (Vec::new(), BTreeSet::new());
    for n in 0..jobs() {
        let turn = n as usize % processes.len();
        let process = &mut processes[turn];
        let mut does = |what: &str| {
            let said = process.does(what);
            let at = fs::metadata(folder.join("journal")).unwrap().len() as usize;
            match said {
                Ok(Some(id)) => {
                    if what == "enqueue" || what == "settle" {
                        answers.push(Answer { id, is_end: what == "settle", at });
                    }
                    return true;
                }
                Ok(None) => {}
                Err(error) => drop(refused.insert(error)),
            }
            false
        };
        // Heartbeats and reserves are not synced: what is synced afterwards may be behind them.
        if n % 4 == 3 && does("reserve") {
            does("extend");
            does("settle");
        }
        does("enqueue");
    }
    (answers, refused)
}

/// One change of a file of which the disk was told.
enum Change {
    Bytes(usize, Vec<u8>),
    Length(usize),
}

/// What the disk holds of a file, and what it may hold besides, because it was not told to sync it.
#[derive(Default)]
struct Held {
    file: Vec<u8>,
    unsynced: Vec<Change>,
}

impl Held {
    fn change(file: &mut Vec<u8>, change: &Change, bytes_max: usize) {
        match change {
            Change::Bytes(at, bytes) => {
                let bytes = &bytes[..bytes.len().min(bytes_max)];
                file.resize(file.len().max(at + bytes.len()), 0);
                file[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Change::Length(length) => file.resize(*length, 0),
        }
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            Self::change(&mut self.file, &change, usize::MAX);
        }
    }

    /// What it holds after a power cut: of what was not synced nothing, all, or any part, cut at any sector.
    fn after_cut(&self, kept: Kept) -> Vec<u8> {
        const SECTOR: usize = 512;
        let mut file = self.file.clone();
        let mut random = fastrand::Rng::with_seed(kept as u64);
        for change in &self.unsynced {
            let bytes = match kept {
                Kept::Nothing => 0,
                Kept::All => usize::MAX,
                Kept::Some => random.usize(..=8) * SECTOR,
            };
            if bytes != 0 {
                Self::change(&mut file, change, bytes);
            }
        }
        file
    }
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    Nothing,
    All,
    Some,
}

/// Reads the journal of a disk (`disk.c`), record by record.
struct Journal {
    bytes: Vec<u8>,
    read: usize,
    database: Held,
    log: Held,
    has_failed: bool,
}

impl Journal {
    fn of(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("journal")).unwrap();
        Self { bytes, read: 0, database: Held::default(), log: Held::default(), has_failed: false }
    }

    /// Goes on to this length of the journal.
    fn go_to(&mut self, length: usize) {
        while self.read + 32 <= length {
            let number = |at: usize| {
                let bytes = self.bytes[self.read + 8 * at..][..8].try_into().unwrap();
                usize::try_from(i64::from_le_bytes(bytes)).unwrap()
            };
            let (what, file, at, n) = (number(0), number(1), number(2), number(3));
            self.read += 32;
            let held = if file == 1 { &mut self.database } else { &mut self.log };
            match what {
                1 => {
                    held.unsynced.push(Change::Bytes(at, self.bytes[self.read..self.read + n].to_vec()));
                    self.read += n;
                }
                2 => held.sync(),
                // Dropped.
                3 => {
                    held.unsynced.clear();
                    self.has_failed = true;
                }
                4 => held.unsynced.push(Change::Length(at)),
                5 => *held = Held::default(),
                other => panic!("{other}?"),
            }
        }
    }

    /// Returns a store in the files that the disk holds after a power cut now.
    fn after_cut(&self, kept: Kept) -> Folder {
        let folder = Folder::new();
        fs::write(folder.path(), self.database.after_cut(kept)).unwrap();
        fs::write(folder.0.path().join("jobs.db-wal"), self.log.after_cut(kept)).unwrap();
        folder
    }
}

/// Asserts that nothing that was answered before a power cut is lost; returns how many cuts were tried.
async fn assert_nothing_is_lost(folder: &Path, answers: &[Answer], what: &str) -> usize {
    let mut journal = Journal::of(folder);
    let (mut cuts, mut after_failure) = (0, 0);
    for (n, answer) in answers.iter().enumerate() {
        journal.go_to(answer.at);
        after_failure += usize::from(journal.has_failed);
        // The first ones after the failure, some on the way, and the last.
        if !((1..=3).contains(&after_failure) || n % 16 == 15 || n + 1 == answers.len()) {
            continue;
        }
        for kept in [Kept::Nothing, Kept::All, Kept::Some] {
            let what = format!("{what}, cut after answer {n}, kept of the rest: {kept:?}");
            let disk = journal.after_cut(kept);
            let store = SqliteStore::open(disk.path(), SqliteOptions::default());
            let store = store.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            for answered in &answers[..=n] {
                let job = store.get(answered.id).await.unwrap();
                let job = job.unwrap_or_else(|| panic!("{what}: a job that was accepted is gone"));
                assert!(!answered.is_end || job.state == State::Done, "{what}: a verdict is gone");
            }
            assert_eq!(findings(&store, false).await, [], "{what}");
            let check: String = disk.connect().query_row("PRAGMA quick_check", [], |row| row.get(0)).unwrap();
            assert_eq!(check, "ok", "{what}");
            cuts += 1;
        }
    }
    cuts
}

/// S1: what was answered survives a power cut, also if a sync failed before: each one of a life's, alone or with those after it.
#[tokio::test]
async fn what_was_answered_survives_a_power_cut_after_a_failed_sync() {
    let tools = tempfile::tempdir().unwrap();
    let disk = disk(tools.path());
    let tried = std::env::var("PUNCTUAL_POWER_CUTS").unwrap_or_else(|_| SYNCS_TRIED.to_string());
    for processes in [1, 3] {
        // A life without a failure counts them.
        let folder = Folder::new();
        let (answers, refused) = live(&disk, folder.0.path(), processes, (0, 0));
        assert!(refused.is_empty(), "{refused:?}");
        let mut cuts = assert_nothing_is_lost(folder.0.path(), &answers, "no sync fails").await;
        let counted = fs::read(folder.0.path().join("journal.count")).unwrap();
        let syncs = u64::from_le_bytes(counted[..8].try_into().unwrap());
        assert!(jobs() <= syncs);
        let tried = if tried == "all" { syncs } else { tried.parse().unwrap() };
        let step = (syncs / tried.max(1)).max(1);
        for fails in (1..=syncs).rev().step_by(step as usize) {
            for last in [fails, fails + 12] {
                let folder = Folder::new();
                let what = format!("{processes} processes, syncs {fails} to {last} fail");
                let (answers, refused) = live(&disk, folder.0.path(), processes, (fails, last));
                let are_typed = refused.iter().all(|error| {
                    ["Unavailable ", "UnknownOutcome "].iter().any(|kind| error.starts_with(kind))
                });
                assert!(are_typed, "{what}: {refused:?}");
                // One failure costs nobody an answer, but for one of SQLite's own syncs, when a log is begun anew.
                let is_own = |error: &String| error.starts_with("UnknownOutcome could not write to");
                assert!(fails < last || refused.iter().all(is_own), "{what}: {refused:?}");
                cuts += assert_nothing_is_lost(folder.0.path(), &answers, &what).await;
            }
        }
        println!("{processes} processes: {syncs} syncs, {cuts} power cuts");
    }
}
