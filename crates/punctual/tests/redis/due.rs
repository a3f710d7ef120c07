//! A time at which something is due wakes one of many idle workers, and a spare, counted by the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use punctual::{
    Client, Ctx, JobRecord, NewJob, Payload, When, Worker,
    store::{CallId, QueueRequest, Reserve, Store},
    worker::Lateness,
};
use tokio_util::sync::CancellationToken;

use super::{
    console::{Console, calls},
    open,
    server::Server,
    until_blocked,
};

const WORKERS: usize = 20;
const JOBS: u64 = 40;
const APART: Duration = Duration::from_millis(100);
/// A reserve, and the settle that reserves again; what the spare looks for, whom a slow machine wakes at each time; and who starts.
/// If each worker woke, there would be twenty.
const SCRIPTS_FOR_A_JOB: u64 = 5;
/// By then all jobs are handed over.
const AHEAD: Duration = Duration::from_secs(1);
const RUN_MAX: Duration = Duration::from_mins(1);
/// A spare looks a second later than the one that was told first. Without it a worker looks by itself a minute later.
const SPARE: Duration = Duration::from_secs(1);
/// How much later a slow machine may be at it.
const SLOW: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_millis(1_500);
/// Jobs that are due so far apart while others are pushed for now.
const CLOSE: Duration = Duration::from_millis(5);
const CLOSE_JOBS: u32 = 400;
/// Of workers of one slot, which are busy half of the time.
const BUSY_WORKERS: usize = 3;
const BUSY_FOR: Duration = Duration::from_secs(12);
/// Of a worker that ended with a notification left, and the next one.
const ROUNDS: u32 = 20;
const SOON: Duration = Duration::from_millis(200);
/// A process that leaves a time to others looks by itself so much later at the earliest.
const LEFT_MIN: Duration = Duration::from_secs(5);
const LOOKS_MAX: u32 = 40;

/// Workers at work, each with a store of its own.
struct Fleet {
    server: Server,
    client: Client,
    done: Arc<AtomicU64>,
    end: CancellationToken,
    working: Vec<tokio::task::JoinHandle<punctual::Result<punctual::worker::WorkReport>>>,
}

impl Fleet {
    async fn start(workers: usize, server: Server, url: &str) -> Self {
        let (done, end) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let mut working = Vec::new();
        for _ in 0..workers {
            let counted = Arc::clone(&done);
            let handle = move |_: JobRecord, _: Ctx| {
                counted.fetch_add(1, Ordering::Relaxed);
                async {}
            };
            let worker = Worker::new(&Client::new(open(url).await)).queue("mail").register(false);
            let worker = worker.handle_raw(handle);
            working.push(tokio::spawn(worker.run_until(end.clone())));
        }
        let client = Client::new(open(url).await);
        Self { server, client, done, end, working }
    }

    async fn push(&self, run_at: impl IntoIterator<Item = When>) {
        let job = |run_at| NewJob {
            run_at,
            ..NewJob::new(self.client.make_id(), "email.send", "mail", Payload::json("1"))
        };
        self.client.push(run_at.into_iter().map(job).collect::<Vec<_>>()).await.unwrap();
    }

    async fn until_done(&self, n: u64) {
        let begin = Instant::now();
        while self.done.load(Ordering::Relaxed) < n {
            assert!(begin.elapsed() < RUN_MAX, "{} of {n} jobs run", self.done.load(Ordering::Relaxed));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Answers how late jobs were.
    async fn end(self) -> Lateness {
        self.end.cancel();
        let mut lateness = Lateness::default();
        for worker in self.working {
            lateness.merge(&worker.await.unwrap().unwrap().lateness);
        }
        lateness
    }
}

/// Twenty idle workers send no more for a scheduled job than one would, and some looks of spares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduled_job_wakes_one_of_many_idle_workers() {
    let server = Server::start(&[]);
    let url = server.url();
    let fleet = Fleet::start(WORKERS, server, &url).await;
    fleet.push([When::Now]).await;
    fleet.until_done(1).await;
    until_blocked(&fleet.server, WORKERS).await;
    let mut console = Console::open(&fleet.server.socket()).unwrap();
    assert!(console.until_quiet(QUIET, LOOKS_MAX).unwrap(), "the workers never rest");
    fleet.push((0..JOBS as u32).map(|n| When::In(AHEAD + n * APART))).await;
    fleet.until_done(1 + JOBS).await;
    tokio::time::sleep(QUIET).await;
    let seen = calls(&console.say(&["INFO", "commandstats"]).unwrap());
    let half = fleet.end().await.quantile(0.5);
    // Without the worker that wakes for a time, all would wait for the spare.
    assert!(half < SPARE / 2, "half of the jobs are {half:?} late");
    let of = |name| seen.get(name).copied().unwrap_or_default();
    // The views of the last hour are no job's: each of their scripts takes the size of its board twice, which nothing else does.
    let scripts = of("evalsha").saturating_sub(of("zcard") / 2);
    println!("{WORKERS} idle workers, {JOBS} jobs {APART:?} apart: {scripts} scripts, {seen:?}");
    assert!(scripts <= SCRIPTS_FOR_A_JOB * JOBS, "{scripts} scripts for {JOBS} jobs");
}

/// A worker that wakes for a time is told of other work just before it, over and over: it wakes for that time all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_is_not_forgotten_over_jobs_for_now() {
    for workers in [1, 3] {
        let server = Server::start(&[]);
        let url = server.url();
        let fleet = Fleet::start(workers, server, &url).await;
        until_blocked(&fleet.server, workers).await;
        let mut due: Vec<u32> = (0..CLOSE_JOBS).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut due);
        fleet.push(due.into_iter().map(|n| When::In(AHEAD + n * CLOSE))).await;
        let mut pushed = u64::from(CLOSE_JOBS);
        let begin = Instant::now();
        while begin.elapsed() < AHEAD + CLOSE_JOBS * CLOSE {
            fleet.push([When::Now]).await;
            pushed += 1;
            tokio::time::sleep(CLOSE / 2).await;
        }
        fleet.until_done(pushed).await;
        let latest = fleet.end().await.max();
        println!("{workers} workers: {} ms late at most", latest.as_millis());
        assert!(latest < LEFT_MIN, "{latest:?}");
    }
}

/// A notification for now is left of a worker that ended; jobs are pushed for later while the next worker starts. It starts them in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_is_heard_beside_a_ring_for_now_that_nobody_took() {
    let server = Server::start(&[]);
    let client = Client::new(open(&server.url()).await);
    let job =
        |run_at| NewJob { run_at, ..NewJob::new(client.make_id(), "email.send", "mail", Payload::json("1")) };
    // One that is due much later, as in a queue that is never empty.
    client.push(vec![job(When::In(Duration::from_hours(1)))]).await.unwrap();
    for round in 0..ROUNDS {
        let work = async |jobs: Vec<NewJob>| {
            let (n, end) = (jobs.len() as u64, CancellationToken::new());
            let (done, stop) = (AtomicU64::new(0), end.clone());
            let done = Arc::new(done);
            let handle = move |_: JobRecord, _: Ctx| {
                if done.fetch_add(1, Ordering::Relaxed) + 1 == n {
                    stop.cancel();
                }
                async {}
            };
            let worker = Worker::new(&client).queue("mail").handle_raw(handle).run_until(end);
            let push = async { client.push(jobs).await.unwrap() };
            let (report, _) = tokio::join!(tokio::time::timeout(RUN_MAX, worker), push);
            report.unwrap_or_else(|_| panic!("round {round}: the jobs were not run")).unwrap().lateness.max()
        };
        work((0..20).map(|_| job(When::Now)).collect()).await;
        let latest = work((0..20).map(|n| job(When::In(SOON + n * CLOSE))).collect()).await;
        assert!(latest < LEFT_MIN, "round {round}: {latest:?}");
    }
}

/// Workers of one slot are busy for longer than what rang for them is kept, stop, and start again, while jobs come for now and for
/// later: no time is forgotten over all that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_time_is_forgotten_whatever_workers_do() {
    let (seed, server) = (fastrand::u64(..), Server::start(&[]));
    let (url, mut random) = (server.url(), fastrand::Rng::with_seed(seed));
    let client = Client::new(open(&url).await);
    let (done, mut pushed, mut latest) = (Arc::new(AtomicU64::new(0)), 0, Duration::ZERO);
    let start = async || {
        let (counted, end) = (Arc::clone(&done), CancellationToken::new());
        let handle = move |job: JobRecord, _: Ctx| {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(u64::from(job.payload.bytes.len() as u32)))
        };
        let worker = Worker::new(&Client::new(open(&url).await)).queue("mail").slots(1).handle_raw(handle);
        (tokio::spawn(worker.run_until(end.clone())), end)
    };
    let mut workers = Vec::new();
    for _ in 0..BUSY_WORKERS {
        workers.push(start().await);
    }
    let begin = Instant::now();
    while begin.elapsed() < BUSY_FOR {
        // Its length is how long it runs, in ms: more than a second, or next to nothing.
        let runs_ms = if random.bool() { random.usize(1_000..1_600) } else { 2 };
        let run_at =
            if random.bool() { When::Now } else { When::In(Duration::from_millis(random.u64(1..4_000))) };
        let payload = Payload::json(vec![b'1'; runs_ms]);
        let job = NewJob { run_at, ..NewJob::new(client.make_id(), "email.send", "mail", payload) };
        client.push(vec![job]).await.unwrap();
        pushed += 1;
        tokio::time::sleep(Duration::from_millis(random.u64(200..800))).await;
        if random.u8(..) < 40 {
            let (working, end) = workers.remove(random.usize(..workers.len()));
            end.cancel();
            workers.push(start().await);
            latest = latest.max(working.await.unwrap().unwrap().lateness.max());
        }
    }
    while done.load(Ordering::Relaxed) < pushed {
        assert!(begin.elapsed() < BUSY_FOR + RUN_MAX, "seed {seed}: jobs wait for ever");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (working, end) in workers {
        end.cancel();
        latest = latest.max(working.await.unwrap().unwrap().lateness.max());
    }
    println!("seed {seed}: {pushed} jobs, {} ms late at most", latest.as_millis());
    assert!(latest < LEFT_MIN, "seed {seed}: {latest:?}");
}

/// S9, for jobs that are due: the process that was told of a time is dead by then, and the spare's look finds the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduled_job_is_a_second_late_at_most_where_the_holder_of_its_time_is_dead() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let key = super::key(&url, "w:mail");
    // The holder gets the notification before anybody else, and never answers it.
    let mut dead = Console::open(&server.socket()).unwrap();
    dead.send(&["BZPOPMIN", &key, "0"]).unwrap();
    until_blocked(&server, 1).await;
    let fleet = Fleet::start(2, server, &url).await;
    until_blocked(&fleet.server, 3).await;
    // The workers were there before the job: none of them knows of its time by itself.
    let due = store.now().await.unwrap().after(AHEAD);
    fleet.push([When::At(due)]).await;
    until_blocked(&fleet.server, 2).await;
    let begin = Instant::now();
    fleet.until_done(1).await;
    let late = begin.elapsed().saturating_sub(AHEAD);
    println!("{} ms late", late.as_millis());
    assert!(late < SPARE + SLOW, "{late:?}");
    fleet.end().await;
}

/// S9: a process that starts trusts no time of others. The one that was told when a lease needs a call is dead, and so is the lease's
/// holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_looks_after_a_lease_whose_watchers_are_dead() {
    const LEASE: Duration = Duration::from_secs(5);
    let server = Server::start(&[]);
    let url = server.url();
    let dead = open(&url).await;
    let client = Client::new(dead.clone());
    let mut job = NewJob::new(client.make_id(), "email.send", "mail", Payload::json("1"));
    job.options.lease = Some(LEASE);
    client.push(vec![job]).await.unwrap();
    let reserve = |number| Reserve {
        call: CallId { instance: 7, number },
        worker: "w".into(),
        queues: vec![QueueRequest { queue: "mail".into(), share: 1, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    let lease = dead.reserve(&reserve(1)).await.unwrap().jobs[0].lease;
    let mut console = Console::open(&server.socket()).unwrap();
    let told = console.say(&["ZPOPMIN", &super::key(&url, "w:mail"), "10"]).unwrap();
    println!("told to the dead: {told:?}");
    // A heartbeat moves the end of the lease, and leaves the time to those who were told.
    let begin = dead.now().await.unwrap();
    while dead.now().await.unwrap() <= begin.after(Duration::from_millis(2)) {}
    dead.extend(&[lease.into()]).await.unwrap();

    // What it leaves to others it looks at more than a minute later.
    let (store, mut number) = (open(&url).await, 0);
    let begin = Instant::now();
    loop {
        number += 1;
        let reserve = Reserve { call: CallId { instance: 59_999, number }, ..reserve(0) };
        let batch = store.reserve(&reserve).await.unwrap();
        if !batch.reclaimed.is_empty() {
            break;
        }
        store.wait(&["mail".to_owned()], batch.next_due.unwrap()).await.unwrap();
    }
    assert!(begin.elapsed() < LEASE + SLOW, "it reclaimed after {:?}", begin.elapsed());
}
