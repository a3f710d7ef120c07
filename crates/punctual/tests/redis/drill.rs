//! Workers and producers at work in this process, each with a store and a history of its own, while a test does harm; then
//! everything is drained, dumped and judged.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, Result, Worker,
    store::{Store, clock::Clock, redis::RedisStore},
    worker::WorkReport,
};
use punctual_check::{
    History, Options, Recorder, RecordingStore, TAG_DONE_OR_CRASHES, Verdict, Word,
    event::{Hex, What},
    judge, monotonic_ns,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const QUEUE: &str = "mail";
/// Jobs that a producer hands over at once.
const BATCH: u32 = 10;
/// Between two batches of a producer.
const BETWEEN_BATCHES: Duration = Duration::from_millis(20);
/// How long everything may take to come to rest once the harm is over: a connection that fell silent costs a minute, and machines are slow.
const DRAIN_MAX: Duration = Duration::from_mins(3);
/// How often a test looks whether something has come about.
const LOOK: Duration = Duration::from_millis(5);
/// Short, so that leases are lost where they can be.
const LEASE: Duration = Duration::from_secs(2);
const SLOTS: usize = 8;
/// How many leases each slot may lose to one fault, which several connections notice one after another.
const FELT: u64 = 4;
/// The kind of a job that runs for [`LONG_RUN`].
pub(crate) const LONG: &str = "drill.long";
/// Many times a heartbeat, and longer than whatever a test does meanwhile.
const LONG_RUN: Duration = Duration::from_secs(18);

/// What is at work.
pub(crate) struct Drill {
    name: &'static str,
    dir: tempfile::TempDir,
    clock: Clock,
    /// Of workers that start from now on.
    pub(crate) lease: Duration,
    /// Straight to the server, whatever happens to the others' way.
    store: RecordingStore,
    recorder: Arc<Recorder>,
    /// On the axis of the histories.
    begun: u64,
    /// The last job that somebody made.
    made: Arc<AtomicU32>,
    files: u32,
    /// Whether its workers register themselves.
    pub(crate) registers: bool,
    working: CancellationToken,
    producing: CancellationToken,
    workers: Vec<JoinHandle<Result<WorkReport>>>,
    producers: Vec<JoinHandle<Result<()>>>,
}

/// What came of it.
pub(crate) struct Figures {
    name: &'static str,
    pub(crate) verdict: Verdict,
    faults: u64,
    /// From the end of the harm until all was done.
    recovered: Duration,
}

impl Drill {
    /// On the store at `url`, which is straight to its server.
    pub(crate) async fn begin(name: &'static str, url: &str) -> Self {
        Self::with_clock(name, url, Clock::System).await
    }

    /// The same, with another clock than the server's.
    pub(crate) async fn with_clock(name: &'static str, url: &str, clock: Clock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Arc::new(recorder(dir.path(), "driver", 0));
        let inner = Arc::new(RedisStore::open(url, clock.clone()).await.unwrap());
        let store = RecordingStore::new(inner, Arc::clone(&recorder));
        Self {
            name,
            dir,
            clock,
            lease: LEASE,
            store,
            recorder,
            begun: monotonic_ns(),
            made: Arc::default(),
            files: 0,
            registers: true,
            working: CancellationToken::new(),
            producing: CancellationToken::new(),
            workers: Vec::new(),
            producers: Vec::new(),
        }
    }

    async fn open(&mut self, url: &str, role: &str, slots: usize) -> (Client, Arc<Recorder>) {
        self.files += 1;
        let recorder = Arc::new(recorder(self.dir.path(), &format!("{role}-{}", self.files), slots as u64));
        let inner = Arc::new(RedisStore::open(url, self.clock.clone()).await.unwrap());
        (Client::new(Arc::new(RecordingStore::new(inner, Arc::clone(&recorder)))), recorder)
    }

    /// Starts workers, each with a store of its own.
    pub(crate) async fn work(&mut self, n: usize, url: &str) {
        for _ in 0..n {
            let (client, recorder) = self.open(url, "worker", SLOTS).await;
            let worker = Worker::new(&client)
                .name(recorder.proc())
                .queue(QUEUE)
                .slots(SLOTS)
                .register(self.registers)
                .lease(self.lease)
                .handle_raw(move |job: JobRecord, ctx: Ctx| {
                    let recorder = Arc::clone(&recorder);
                    async move {
                        let (id, fence) = (job.id, ctx.fence());
                        recorder.note(What::Start { id, fence, sum: Hex::fingerprint(&job.payload.bytes) });
                        let short = Duration::from_millis(fastrand::u64(..5));
                        tokio::time::sleep(if job.kind == LONG { LONG_RUN } else { short }).await;
                        recorder.note(What::End { id, fence });
                    }
                });
            self.workers.push(tokio::spawn(worker.run_until(self.working.clone())));
        }
    }

    /// Starts producers, each with a store of its own, that go on until [`rest`](Self::rest).
    pub(crate) async fn produce(&mut self, n: usize, url: &str) {
        for _ in 0..n {
            let (client, _) = self.open(url, "producer", 0).await;
            let (made, enough) = (Arc::clone(&self.made), self.producing.clone());
            self.producers.push(tokio::spawn(async move {
                while !enough.is_cancelled() {
                    client.push(batch(&made, BATCH)).await?;
                    tokio::time::sleep(BETWEEN_BATCHES).await;
                }
                Ok(())
            }));
        }
    }

    /// Hands jobs over, straight to the server.
    pub(crate) async fn push(&self, n: u32) {
        let jobs = batch(&self.made, n);
        Client::new(Arc::new(self.store.clone())).push(jobs).await.unwrap();
    }

    /// Hands jobs over that all have this about them.
    pub(crate) async fn push_with(&self, n: u32, with: impl Fn(&mut NewJob)) {
        let mut jobs = batch(&self.made, n);
        jobs.iter_mut().for_each(with);
        Client::new(Arc::new(self.store.clone())).push(jobs).await.unwrap();
    }

    /// Notes that the store's clock is about to be stepped.
    pub(crate) fn clock_steps(&self) {
        self.recorder.note(What::ClockStepped);
    }

    /// The store, straight.
    pub(crate) const fn store(&self) -> &RecordingStore {
        &self.store
    }

    /// Jobs handed over so far, answered or not.
    pub(crate) fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }

    /// Jobs that are done, as far as the server can say so now.
    pub(crate) async fn done(&self) -> u64 {
        self.store.count(Some(QUEUE)).await.map_or(0, |counts| counts.done)
    }

    /// Waits until so many jobs more are done.
    pub(crate) async fn until_done(&self, more: u64) {
        let (begin, enough) = (Instant::now(), self.done().await + more);
        while self.done().await < enough {
            assert!(begin.elapsed() < DRAIN_MAX, "{}: nothing is done any more", self.name);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until nothing waits or runs.
    pub(crate) async fn drained(&self) -> Duration {
        let begin = Instant::now();
        while self.store.count(Some(QUEUE)).await.map_or(1, |counts| counts.waiting + counts.running) != 0 {
            assert!(begin.elapsed() < DRAIN_MAX, "{}: it does not come to rest", self.name);
            tokio::time::sleep(LOOK).await;
        }
        begin.elapsed()
    }

    /// The harm is over: lets producers end, drains, stops the workers, dumps and judges. Nobody may have met an error.
    pub(crate) async fn rest(mut self, faults: u64) -> Figures {
        self.producing.cancel();
        let healed = Instant::now();
        for producer in std::mem::take(&mut self.producers) {
            producer.await.unwrap().expect("a producer's client repeats what may be repeated");
        }
        self.drained().await;
        let recovered = healed.elapsed();
        self.working.cancel();
        for worker in std::mem::take(&mut self.workers) {
            worker.await.unwrap().expect("a worker goes on");
        }
        self.recorder.note(What::Harmed { since: self.begun, times: FELT * faults, proc: None });
        self.store.dump().await.unwrap();
        let history = History::read(&[self.dir.path().to_owned()]).unwrap();
        let verdict = judge(&history, Options::default());
        let figures = Figures { name: self.name, verdict, faults, recovered };
        println!("{figures}");
        let verdict = &figures.verdict;
        assert_eq!(verdict.verdict, Word::Valid, "{}: {verdict}", self.name);
        assert_eq!((verdict.attempt, verdict.waiting), (self.made().into(), 0), "{}: {verdict}", self.name);
        figures
    }
}

fn recorder(dir: &Path, name: &str, slots: u64) -> Recorder {
    Recorder::create(&dir.join(format!("{name}.ndjson")), name, slots, 0).unwrap()
}

/// The next jobs.
fn batch(made: &AtomicU32, n: u32) -> Vec<NewJob> {
    let first = made.fetch_add(n, Ordering::Relaxed);
    (first..first + n).map(job).collect()
}

fn job(n: u32) -> NewJob {
    let id = JobId::derived(QUEUE, None, &format!("job {n}"));
    let mut job = NewJob::new(id, "drill", QUEUE, Payload::json(n.to_string()));
    job.tags = vec![TAG_DONE_OR_CRASHES.to_owned()];
    job
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = &self.verdict;
        write!(
            f,
            "{}: {} jobs, {} faults, {} lost, {} early, {} duplicates unexplained ({} explained), {} recovered, \
             latest start {} ms, at rest {} ms after the last fault",
            self.name,
            verdict.attempt,
            self.faults,
            verdict.lost,
            verdict.early,
            verdict.duplicated.unexplained,
            verdict.duplicated.explained,
            verdict.recovered,
            verdict.lateness_ms.max,
            self.recovered.as_millis(),
        )
    }
}
