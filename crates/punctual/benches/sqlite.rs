//! How fast the embedded store is: `cargo bench -p punctual --bench sqlite`. Prints what it measured beside the cost of one
//! sync of the same disk in the same run, since every figure that contains a commit depends on it.
//!
//! Figures are for durability full, payloads of 200 bytes and batches of 500. A life is enqueue, reserve and ack.
//! `PUNCTUAL_BENCH_DIR` says where the files go; a name on the command line runs that part alone.
#![expect(clippy::unwrap_used, reason = "a bench that can't do its work has nothing to say")]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use punctual::{
    JobId, NewJob, Payload, When,
    job::IdMaker,
    store::{
        CallId, Keep, QueueOp, QueueRequest, QueueSettings, Reserve, Settled, Settlement, Store, Verdict,
        sqlite::{SqliteOptions, SqliteStore},
    },
};

const BATCH: usize = 500;
const JOBS: usize = 100_000;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        let folder =
            tempfile::tempdir_in(std::env::var("PUNCTUAL_BENCH_DIR").unwrap_or("/tmp".into())).unwrap();
        println!("one sync          {:>12?}", sync_cost(folder.path()));
        let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
        let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
        if wanted("bulk enqueue") {
            bulk(folder.path()).await;
        }
        for (name, random, keep) in [
            ("lives, in order", false, Keep::NOTHING),
            ("lives, random", true, Keep::NOTHING),
            ("lives, kept", false, Keep::SHORT),
            ("lives, random kept", true, Keep::SHORT),
        ] {
            if wanted(name) {
                lives(folder.path(), name, random, keep).await;
            }
        }
        if wanted("single enqueue") {
            single(folder.path()).await;
        }
    });
}

struct Bench {
    store: SqliteStore,
    ids: IdMaker,
    random: fastrand::Rng,
    call: u64,
}

impl Bench {
    fn open(folder: &Path, name: &str) -> Self {
        let path = folder.join(name.replace([' ', ','], "-"));
        let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
        Self { store, ids: IdMaker::default(), random: fastrand::Rng::with_seed(7), call: 0 }
    }

    fn call(&mut self) -> CallId {
        self.call += 1;
        CallId { instance: 1, number: self.call }
    }

    fn id(&mut self) -> JobId {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        self.ids.make(now as u64, 0, self.random.u64(..))
    }

    fn batch(&mut self, n: usize, spread: Option<Duration>) -> Vec<NewJob> {
        (0..n)
            .map(|_| {
                let payload = Payload::json(vec![b'x'; 200]);
                let mut job = NewJob::new(self.id(), "bench", "default", payload);
                if let Some(spread) = spread {
                    job.run_at = When::In(spread.mul_f64(self.random.f64()));
                }
                job
            })
            .collect()
    }

    async fn keep(&self, done: Keep) {
        let settings = QueueSettings { done, ..QueueSettings::default() };
        let _ = self.store.queue("default", &QueueOp::Set(Box::new(settings))).await.unwrap();
    }

    fn want(&mut self) -> Reserve {
        let queues = vec![QueueRequest { queue: "default".into(), share: BATCH, at_most: BATCH }];
        Reserve { call: self.call(), worker: "bench".into(), queues, n: BATCH, lease: None, company: false }
    }
}

async fn bulk(folder: &Path) {
    let mut bench = Bench::open(folder, "bulk");
    let batches: Vec<_> = (0..JOBS / BATCH).map(|_| bench.batch(BATCH, None)).collect();
    let start = Start::now();
    for batch in batches {
        let answers =
            bench.store.enqueue(CallId { instance: 9, number: bench.call + 1 }, &batch).await.unwrap();
        assert!(answers.iter().all(punctual::store::Enqueued::is_new));
        bench.call += 1;
    }
    let (wall, cpu) = start.elapsed();
    report("bulk enqueue", JOBS, wall, cpu);
}

/// A backlog, then all of it reserved and acknowledged; the settle carries the next reserve.
async fn lives(folder: &Path, name: &str, random: bool, keep: Keep) {
    let mut bench = Bench::open(folder, name);
    bench.keep(keep).await;
    let spread = random.then_some(Duration::from_secs(2));
    let batches: Vec<_> = (0..JOBS / BATCH).map(|_| bench.batch(BATCH, spread)).collect();
    let start = Start::now();
    for batch in batches {
        let call = bench.call();
        let answers = bench.store.enqueue(CallId { instance: 9, ..call }, &batch).await.unwrap();
        assert!(answers.iter().all(punctual::store::Enqueued::is_new));
    }
    let enqueued = start.elapsed();
    if random {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let restart = Start::now();
    let mut done = 0;
    let want = bench.want();
    let mut jobs = bench.store.reserve(&want).await.unwrap().jobs;
    while done < JOBS {
        let acks: Vec<_> =
            jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        let want = bench.want();
        let (settled, next) = bench.store.settle(&acks, Some(&want)).await.unwrap();
        assert!(settled.iter().all(|s| matches!(s, Settled::Settled(..))));
        done += settled.len();
        jobs = next.unwrap().jobs;
    }
    let drained = restart.elapsed();
    let (wall, cpu) = (enqueued.0 + drained.0, enqueued.1 + drained.1);
    report(name, JOBS, wall, cpu);
    report("  its enqueue", JOBS, enqueued.0, enqueued.1);
}

async fn single(folder: &Path) {
    const SINGLES: usize = 2_000;
    let mut bench = Bench::open(folder, "single");
    let start = Start::now();
    for job in bench.batch(SINGLES, None) {
        let call = bench.call();
        let _ = bench.store.enqueue(call, std::slice::from_ref(&job)).await.unwrap();
    }
    let (wall, cpu) = start.elapsed();
    report("single enqueue", SINGLES, wall, cpu);
}

fn rate(n: usize, took: Duration) -> f64 {
    n as f64 / took.as_secs_f64()
}

fn report(name: &str, n: usize, wall: Duration, cpu: Duration) {
    println!("{name:<18}{:>11.0}/s{:>11.0} per second of processor time", rate(n, wall), rate(n, cpu));
}

/// A moment, by the clock on the wall and by the processor time of this process.
struct Start(Instant, Duration);

impl Start {
    fn now() -> Self {
        Self(Instant::now(), processor_time())
    }

    fn elapsed(&self) -> (Duration, Duration) {
        (self.0.elapsed(), processor_time().saturating_sub(self.1))
    }
}

/// User and system time of this process, where the system tells; a busy neighbour does not change it much.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// The median of a hundred appends, each synced.
fn sync_cost(folder: &Path) -> Duration {
    use std::io::Write;
    let mut file = std::fs::File::create(folder.join("sync")).unwrap();
    let mut took: Vec<Duration> = (0..100)
        .map(|_| {
            file.write_all(&[0; 8_192]).unwrap();
            let start = Instant::now();
            file.sync_data().unwrap();
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[50]
}
