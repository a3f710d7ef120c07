//! S1: whatever was acknowledged before a SIGKILL is there after it, and the file is whole.
//!
//! The parent starts this very program again as a child (see [`child`]), which works on a file and says on its standard
//! output what was acknowledged; it is killed in the middle of more.
#![cfg(feature = "sqlite")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::{HashMap, HashSet},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use punctual::{
    JobId, NewJob, Payload,
    store::{
        Audit, CallId, QueueRequest, Reserve, Settled, Settlement, Store, Verdict,
        sqlite::{SqliteOptions, SqliteStore},
    },
};

/// Jobs in one call of the child.
const BATCH: u32 = 10;
/// Times that a child is killed per test.
const ROUNDS: u32 = 6;

fn open(file: &Path) -> SqliteStore {
    SqliteStore::open(file, SqliteOptions::default()).unwrap()
}

fn id(n: u32) -> JobId {
    JobId::derived("q", None, &n.to_string())
}

fn jobs(from: u32) -> Vec<NewJob> {
    (from..from + BATCH).map(|n| NewJob::new(id(n), "k", "q", Payload::json(n.to_string()))).collect()
}

/// Does nothing, unless it was started by a test below, with a role and a file: then it works until it is killed.
#[test]
fn child() {
    let Ok(role) = std::env::var("PUNCTUAL_CRASH_ROLE") else { return };
    let file = std::env::var("PUNCTUAL_CRASH_FILE").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&file));
        match role.as_str() {
            "enqueue" => enqueue(&store).await,
            "settle" => settle(&store).await,
            other => panic!("unknown role {other}"),
        }
    });
}

/// Tells the parent; a whole line at once.
fn acknowledged(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\nACK {what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

async fn enqueue(store: &SqliteStore) {
    let begin = u32::try_from(store.count(None).await.unwrap().total()).unwrap();
    let instance = fastrand::u64(..);
    for (number, from) in (1..).zip((begin..).step_by(BATCH as usize)) {
        let answers = store.enqueue(CallId { instance, number }, &jobs(from)).await.unwrap();
        assert!(answers.iter().all(punctual::store::Enqueued::is_new));
        acknowledged(&from.to_string());
    }
}

async fn settle(store: &SqliteStore) {
    let mut want = Reserve {
        call: CallId { instance: fastrand::u64(..), number: 0 },
        worker: "child".to_owned(),
        queues: vec![QueueRequest { queue: "q".to_owned(), share: BATCH as usize, at_most: BATCH as usize }],
        n: BATCH as usize,
        lease: None,
        company: false,
    };
    loop {
        want.call.number += 1;
        let reserved = store.reserve(&want).await.unwrap().jobs;
        let batch: Vec<Settlement> = reserved
            .iter()
            .map(|job| Settlement { lease: job.lease, verdict: verdict(job.lease.job) })
            .collect();
        let (answers, _) = store.settle(&batch, None).await.unwrap();
        assert!(!batch.is_empty(), "the child ran out of jobs");
        for (settlement, answer) in batch.iter().zip(answers) {
            let Settled::Settled(state, _) = answer else { panic!("a fresh lease was lost") };
            acknowledged(&format!("{} {}", settlement.lease.job, state.name()));
        }
    }
}

/// Ends of all three sorts.
fn verdict(id: JobId) -> Verdict {
    match id.low16() % 3 {
        0 => Verdict::Ack,
        1 => Verdict::Cancel { reason: None },
        _ => Verdict::Dead { error: "no".to_owned() },
    }
}

/// Starts a child, kills it some time after `acks` acknowledgements, and gives all that it acknowledged.
fn killed(role: &str, file: &Path, acks: usize) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("PUNCTUAL_CRASH_ROLE", role)
        .env("PUNCTUAL_CRASH_FILE", file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("ACK ").map(str::to_owned));
    let mut told: Vec<String> = lines.by_ref().take(acks).collect();
    // Anywhere within the next calls.
    let moment = Instant::now() + Duration::from_micros(fastrand::u64(..3_000));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    told.extend(lines);
    assert!(acks <= told.len(), "the child ended by itself after {} acknowledgements", told.len());
    told
}

async fn assert_whole(store: &dyn Store) {
    let mut audit = Audit::default();
    loop {
        let slice = store.audit(audit.clone()).await.unwrap();
        assert_eq!(slice.findings, []);
        match slice.next {
            Some(next) => audit.from = next,
            None => break,
        }
    }
}

#[tokio::test]
async fn acknowledged_enqueues_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.db");
    let mut acked = HashSet::new();
    for round in 0..ROUNDS {
        let told = killed("enqueue", &file, 3 + 5 * round as usize);
        acked.extend(told.iter().map(|from| from.parse::<u32>().unwrap()));
        let store = open(&file);
        for from in &acked {
            for n in *from..from + BATCH {
                assert!(store.get(id(n)).await.unwrap().is_some(), "job {n} was acknowledged, and is gone");
            }
        }
        // The call in the middle of which it was killed took effect entirely, or not at all.
        let there = store.count(None).await.unwrap().total();
        assert_eq!(there % u64::from(BATCH), 0, "half a call took effect");
        let beyond = there - u64::try_from(acked.len()).unwrap() * u64::from(BATCH);
        assert!(beyond <= u64::from(BATCH * (round + 1)), "{beyond} jobs more than acknowledged");
        assert_whole(&store).await;
    }
}

#[tokio::test]
async fn acknowledged_settlements_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.db");
    let store = open(&file);
    for (number, from) in (1..).zip((0..6_000).step_by(BATCH as usize)) {
        let _ = store.enqueue(CallId { instance: 1, number }, &jobs(from)).await.unwrap();
    }
    drop(store);
    let mut acked: HashMap<JobId, String> = HashMap::new();
    for round in 0..ROUNDS {
        for line in killed("settle", &file, 30 + 20 * round as usize) {
            let (id, state) = line.split_once(' ').unwrap();
            assert_eq!(acked.insert(id.parse().unwrap(), state.to_owned()), None, "{id} ended twice");
        }
        let store: Arc<dyn Store> = Arc::new(open(&file));
        for (id, state) in &acked {
            let job = store.get(*id).await.unwrap().expect("ended jobs are kept");
            assert_eq!(job.state.name(), state, "{id}");
        }
        let counts = store.count(None).await.unwrap();
        assert_eq!(counts.total(), 6_000);
        let ended = counts.done + counts.dead + counts.cancelled;
        assert!(acked.len() as u64 <= ended && counts.running <= u64::from(BATCH * (round + 1)));
        assert_whole(&*store).await;
    }
}
