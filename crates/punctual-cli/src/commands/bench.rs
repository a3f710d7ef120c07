//! `punctual bench`: measures a store on this machine, next to the bare statements or scripts of a queue on the same disk or server.
//!
//! Each figure is measured through the public API, on fresh stores: files in a folder next to the given one, or keys under the given
//! prefix. They are removed afterwards, also after an error or a signal. Payloads have 200 bytes; handlers do nothing.

mod figures;
mod instructions;
mod place;
mod reference;
mod script;
mod server;
mod tools;

use std::{
    io::{self, Write as _},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use punctual::{
    Client, Ctx, JobRecord, NewJob, Payload, Timestamp, When, Worker,
    store::{
        Keep,
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use self::{
    figures::{Figures, ServerFigures, Spread},
    place::Place,
    reference::Reference,
    server::{Cost, Usage},
};
use crate::{
    errors::Failure,
    requests::{Requests, exit_code},
};

/// Bytes of one payload.
const PAYLOAD_BYTES: usize = 200;
/// The queue that is measured.
const QUEUE: &str = "bench";
/// Concurrent callers of the second single-call figure.
const CALLERS: usize = 64;
/// Jobs per second that any store takes in bulk, so that those at random due times are there before the first is due.
const ENQUEUED_PER_S: usize = 20_000;
/// What a worker may need until it is as idle as it gets.
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// Jobs per second while lateness is measured.
const LATENESS_RATE: u64 = 200;

/// Sizes of the measurements.
#[derive(clap::Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The command creates stores of its own next to --store, and removes them at the end. \"plain SQL\" and \"bare scripts\" are \
the least that any queue on the same disk or server must do. Payloads have 200 bytes, and handlers do nothing.

Examples:
  punctual bench --jobs 10000 --waiting 100000 --seconds 3
  punctual bench --store redis://localhost -o json
  punctual bench tools --store redis://localhost"
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    part: Option<Part>,
    /// Number of jobs of each throughput figure (default: 100,000).
    #[arg(long, default_value_t = 100_000, hide_default_value = true, value_name = "N")]
    jobs: usize,
    /// Number of slots of the worker that drains the queue (default: 1,000).
    #[arg(long, default_value_t = 1_000, hide_default_value = true, value_name = "N")]
    slots: usize,
    /// Number of jobs, due in 30 days, that wait while lateness and a drain are measured (default: 1,000,000).
    #[arg(long, default_value_t = 1_000_000, hide_default_value = true, value_name = "N")]
    waiting: usize,
    /// Seconds for each of random due times, lateness and idleness, 1 to 3,600 (default: 10).
    #[arg(long, default_value_t = 10, hide_default_value = true, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
}

/// What is measured instead of jobs.
#[derive(clap::Subcommand, Clone, Debug)]
enum Part {
    /// Measure rate limiters and leaderboards, on Redis next to scripts that are written by hand.
    Tools(tools::Sizes),
    /// Count the instructions of a Redis server for one job at a time, under callgrind.
    Instructions(instructions::Sizes),
}

/// Measures, prints a table or one JSON object.
pub(crate) async fn run(store: &str, sizes: &Bench, json: bool) -> crate::errors::Result {
    // Whatever ends it, what it made goes.
    let mut requests = Requests::listen()?;
    if let Some(Part::Instructions(sizes)) = &sizes.part {
        // It has a server of its own, so the store may be away.
        let figures = tokio::select! {
            figures = instructions::measure(sizes) => figures.map_err(Failure::from)?,
            request = requests.next() => return Err(Failure::Silent(exit_code(request))),
        };
        return print(&shown(&figures, json)?);
    }
    let place = Place::new(store).await?;
    let told = tokio::select! {
        told = tell(&place, sizes, json) => told.map_err(Failure::from),
        request = requests.next() => Err(Failure::Silent(exit_code(request))),
    };
    let removed = place.remove().await;
    let told = told?;
    removed?;
    print(&told)
}

fn print(told: &str) -> crate::errors::Result {
    let mut out = io::stdout();
    out.write_all(told.as_bytes())?;
    Ok(out.flush()?)
}

fn shown(figures: &(impl serde::Serialize + std::fmt::Display), json: bool) -> Result<String> {
    Ok(if json { serde_json::to_string(figures)? + "\n" } else { figures.to_string() })
}

/// Measures what is asked for; answers what is to be printed.
async fn tell(place: &Place, sizes: &Bench, json: bool) -> Result<String> {
    match &sizes.part {
        Some(Part::Tools(sizes)) => shown(&tools::measure(place, sizes).await?, json),
        _ => shown(&measure(place, sizes).await?, json),
    }
}

async fn measure(place: &Place, sizes: &Bench) -> Result<Figures> {
    let mut figures = Figures { store: place.shown().to_owned(), ..Figures::default() };
    if let Some(folder) = place.folder() {
        step("one synced commit, and plain SQL");
        figures.fsync_ms = Some(reference::fsync_ms(folder)?);
        figures.reference = Some(Reference::measure(folder, sizes.jobs, PAYLOAD_BYTES)?);
    }
    if let Some((server, prefix)) = place.server() {
        step("bare scripts");
        let prefix = format!("{prefix}bare:");
        figures.reference = Some(script::measure(server, &prefix, sizes.jobs, PAYLOAD_BYTES).await?);
    }
    enqueues(place, sizes, &mut figures).await?;
    lives(place, sizes, &mut figures).await?;
    pickup(place, &mut figures).await?;
    waiting(place, sizes, &mut figures).await?;
    idle(place, sizes, &mut figures).await?;
    Ok(figures)
}

fn step(what: &str) {
    // A closed stderr is not an error.
    let _ = writeln!(io::stderr(), "measuring {what} …");
}

fn job(client: &Client, run_at: When) -> NewJob {
    let payload = Payload::json(vec![b'1'; PAYLOAD_BYTES]);
    NewJob { run_at, ..NewJob::new(client.make_id(), "bench", QUEUE, payload) }
}

/// Jobs per second of a count and the time it took.
fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

async fn enqueues(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step("enqueues");
    let client = place.fresh("enqueue", Keep::NOTHING).await?;
    figures.durability = client.store().durability().name();
    let checks = client.store().doctor().await?;
    let version = checks.into_iter().find(|check| check.name == "version");
    figures.version = version.map(|check| check.text);
    let begin = Instant::now();
    let jobs = (0..sizes.jobs).map(|_| job(&client, When::Now)).collect();
    let _ = client.push(jobs).await?;
    figures.enqueue_bulk_per_s = rate(sizes.jobs, begin.elapsed());

    let singles = sizes.jobs / 50;
    let begin = Instant::now();
    for _ in 0..singles {
        let _ = client.push(vec![job(&client, When::Now)]).await?;
    }
    figures.enqueue_single_per_s = rate(singles, begin.elapsed());

    let each = sizes.jobs / 5 / CALLERS;
    let begin = Instant::now();
    let callers: Vec<AbortOnDropHandle<punctual::Result<()>>> = (0..CALLERS)
        .map(|_| {
            let client = client.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                for _ in 0..each {
                    let _ = client.push(vec![job(&client, When::Now)]).await?;
                }
                Ok(())
            }))
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    figures.enqueue_single64_per_s = rate(each * CALLERS, begin.elapsed());
    place.forget("enqueue").await
}

/// Enqueues in bulk, then drains by a worker. The figure is the number of jobs divided by the sum of both times.
async fn lives(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step("enqueue and run, in order");
    let client = place.fresh("in-order", Keep::NOTHING).await?;
    let in_order = life(place, &client, sizes.jobs, sizes.slots, |_| When::Now).await?;
    (figures.lives_per_s, figures.drain_per_s) = (in_order.per_s(), in_order.drain_per_s());
    place.forget("in-order").await?;

    step("enqueue and run, random due times");
    let client = place.fresh("random", Keep::NOTHING).await?;
    // Due at random over seconds that begin once everything is enqueued, and drained when all of them are due.
    let ahead = Duration::from_secs((sizes.jobs / ENQUEUED_PER_S).max(1) as u64);
    let from = client.store().now().await?.after(ahead);
    let span_ms = sizes.seconds * 1_000;
    let due = |_| When::At(from.after(Duration::from_millis(fastrand::u64(..span_ms))));
    let random = life(place, &client, sizes.jobs, sizes.slots, due).await?;
    figures.lives_random_due_per_s = random.per_s();
    place.forget("random").await?;

    step("enqueue and run, default retention");
    let client = place.fresh("kept", Keep::SHORT).await?;
    let kept = life(place, &client, sizes.jobs, sizes.slots, |_| When::Now).await?;
    figures.lives_default_retention_per_s = kept.per_s();
    place.forget("kept").await?;

    step("enqueue and run, one by one");
    let singles = (sizes.jobs / 50).max(1);
    let client = place.fresh("single-kept", Keep::SHORT).await?;
    let single_kept = single_lives(place, &client, singles).await?;
    figures.lives_one_by_one_per_s = single_kept.per_s();
    place.forget("single-kept").await?;
    if place.server().is_some() {
        let client = place.fresh("single", Keep::NOTHING).await?;
        let single = single_lives(place, &client, singles).await?;
        place.forget("single").await?;
        figures.server = in_order.cost.zip(kept.cost).zip(single.cost.zip(single_kept.cost)).map(
            |((nothing_kept, kept), (single, single_kept))| {
                ServerFigures::of(nothing_kept, kept, single, single_kept)
            },
        );
        figures.instructions = instructions::one_by_one().await?;
    }
    Ok(())
}

/// What became of many jobs.
struct Lives {
    count: usize,
    enqueued: Duration,
    drained: Duration,
    /// To the server of the store, if it has one.
    cost: Option<Cost>,
}

impl Lives {
    fn per_s(&self) -> f64 {
        rate(self.count, self.enqueued + self.drained)
    }

    fn drain_per_s(&self) -> f64 {
        rate(self.count, self.drained)
    }
}

async fn life(
    place: &Place,
    client: &Client,
    count: usize,
    slots: usize,
    due: impl Fn(usize) -> When,
) -> Result<Lives> {
    let before = usage(place).await?;
    let begin = Instant::now();
    let jobs: Vec<NewJob> = (0..count).map(|n| job(client, due(n))).collect();
    let last = jobs.iter().filter_map(|j| if let When::At(t) = j.run_at { Some(t) } else { None }).max();
    let _ = client.push(jobs).await?;
    let enqueued = begin.elapsed();
    if let Some(last) = last {
        let now = client.store().now().await?;
        tokio::time::sleep(last.since(now) + Duration::from_millis(2)).await;
    }
    let drained = drain(client, count, slots).await?;
    Ok(Lives { count, enqueued, drained, cost: cost(place, before, count).await? })
}

/// Jobs in calls of one: enqueued by one caller, then run by a worker with one slot.
async fn single_lives(place: &Place, client: &Client, count: usize) -> Result<Lives> {
    let before = usage(place).await?;
    let begin = Instant::now();
    for _ in 0..count {
        let _ = client.push(vec![job(client, When::Now)]).await?;
    }
    let enqueued = begin.elapsed();
    let drained = drain(client, count, 1).await?;
    Ok(Lives { count, enqueued, drained, cost: cost(place, before, count).await? })
}

/// Lets one worker run so many jobs, and answers how long that took, the last ack included.
async fn drain(client: &Client, count: usize, slots: usize) -> Result<Duration> {
    let begin = Instant::now();
    let left = Arc::new(AtomicU64::new(count as u64));
    let stop = CancellationToken::new();
    let handler = {
        let (left, stop) = (Arc::clone(&left), stop.clone());
        move |_: JobRecord, _: Ctx<()>| {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                stop.cancel();
            }
            std::future::ready(())
        }
    };
    // The worker ends when it has settled all it ran.
    Worker::new(client).queue(QUEUE).slots(slots).handle_raw(handler).run_until(stop).await?;
    Ok(begin.elapsed())
}

/// What the store's server did so far, if it has one.
async fn usage(place: &Place) -> Result<Option<Usage>> {
    match place.server() {
        Some((server, _)) => Ok(Some(server.usage().await?)),
        None => Ok(None),
    }
}

/// What each of so many lives cost the server since then.
async fn cost(place: &Place, before: Option<Usage>, lives: usize) -> Result<Option<Cost>> {
    Ok(usage(place).await?.zip(before).map(|(after, before)| after.since(before, lives)))
}

/// Microseconds of the wall clock.
fn now_us() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e6
}

/// A worker whose handler notes how late each job starts against the instant that its payload names.
struct Observer {
    seen: Arc<Mutex<Vec<f64>>>,
    /// Ends the worker, also when the measurement is given up.
    stop: DropGuard,
    worker: AbortOnDropHandle<punctual::Result<punctual::worker::WorkReport>>,
}

impl Observer {
    fn start(client: &Client) -> Self {
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let handler = {
            let seen = Arc::clone(&seen);
            move |job: JobRecord, _: Ctx<()>| {
                let at_us = String::from_utf8_lossy(&job.payload.bytes).trim().parse::<f64>();
                if let (Ok(at_us), Ok(mut seen)) = (at_us, seen.lock()) {
                    seen.push((now_us() - at_us) / 1e3);
                }
                std::future::ready(())
            }
        };
        let worker = Worker::new(client).queue(QUEUE).slots(50).handle_raw(handler);
        let worker = tokio::spawn(worker.run_until(stop.clone()));
        Self { seen, stop: stop.drop_guard(), worker: AbortOnDropHandle::new(worker) }
    }

    /// Ends the worker, and answers the milliseconds that were seen.
    async fn end(self) -> Result<Vec<f64>> {
        drop(self.stop);
        self.worker.await??;
        Ok(std::mem::take(&mut *self.seen.lock().expect("no handler panics")))
    }
}

/// A job whose payload says against which instant its start is judged, filled up to the usual size.
fn marked(client: &Client, at_us: f64, run_at: When) -> NewJob {
    let mut job = job(client, run_at);
    job.payload = Payload::json(format!("{at_us:<PAYLOAD_BYTES$.0}"));
    job
}

/// From just before the enqueue call to the start of the handler, one job at a time, the worker idle.
async fn pickup(place: &Place, figures: &mut Figures) -> Result<()> {
    step("pick-up latency");
    let client = place.fresh("pickup", Keep::NOTHING).await?;
    let observer = Observer::start(&client);
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..15))).await;
        let _ = client.push(vec![marked(&client, now_us(), When::Now)]).await?;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    figures.pickup_ms = Spread::of(observer.end().await?);
    place.forget("pickup").await
}

/// What a great many waiting jobs take, and how the queue does beside them.
async fn waiting(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step(&format!("a drain and lateness with {} jobs waiting", sizes.waiting));
    let client = place.fresh("lateness", Keep::NOTHING).await?;
    let before = place.bytes("lateness").await?;
    let far = client.store().now().await?.after(Duration::from_hours(30 * 24));
    let mut left = sizes.waiting;
    while 0 < left {
        let n = left.min(50_000);
        let jobs = (0..n)
            .map(|_| job(&client, When::At(far.after(Duration::from_millis(fastrand::u64(..86_400_000))))))
            .collect();
        let _ = client.push(jobs).await?;
        left -= n;
    }
    figures.waiting_jobs = sizes.waiting;
    figures.bytes_per_waiting_job = place
        .bytes("lateness")
        .await?
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before) as f64 / sizes.waiting.max(1) as f64);
    let beside = life(place, &client, sizes.jobs, sizes.slots, |_| When::Now).await?;
    figures.drain_beside_waiting_per_s = beside.drain_per_s();
    figures.lateness_ms = lateness(&client, sizes.seconds).await?;
    place.forget("lateness").await
}

/// Starts against due times, at a steady rate, scheduled in random order.
async fn lateness(client: &Client, seconds: u64) -> Result<Spread> {
    let observer = Observer::start(client);
    let from = client.store().now().await?.after(Duration::from_secs(1)).as_ms();
    let count = seconds * LATENESS_RATE;
    let mut due: Vec<u64> = (0..count).map(|n| from + n * 1_000 / LATENESS_RATE).collect();
    fastrand::shuffle(&mut due);
    let jobs = due
        .iter()
        .map(|&ms| marked(client, ms as f64 * 1e3, When::At(Timestamp::saturating_from_ms(ms))))
        .collect();
    let _ = client.push(jobs).await?;
    tokio::time::sleep(Duration::from_secs(seconds + 2)).await;
    let seen = observer.end().await?;
    anyhow::ensure!(seen.len() as u64 == count, "{} of {count} jobs ran", seen.len());
    anyhow::ensure!(seen.iter().all(|late| 0.0 <= *late), "a job started early");
    Ok(Spread::of(seen))
}

/// A worker with nothing to do.
async fn idle(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step("the idle worker");
    let (file, server) = (place.file("idle"), place.server());
    let (client, store) = match (file, server) {
        (None, None) => return Ok(()),
        (Some(file), _) => {
            let store = Arc::new(SqliteStore::open(file, SqliteOptions::default())?);
            (Client::new(store.clone()), Some(store))
        }
        (None, Some(_)) => (place.fresh("idle", Keep::NOTHING).await?, None),
    };
    let operations = async || -> Result<u64> {
        Ok(match (&store, server) {
            (Some(store), _) => store.operations(),
            (None, Some((server, _))) => server.usage().await?.commands,
            (None, None) => 0,
        })
    };
    let observer = Observer::start(&client);
    tokio::time::sleep(QUIET_AFTER.min(Duration::from_secs(sizes.seconds))).await;
    let (before, cpu) = (operations().await?, cpu_seconds());
    tokio::time::sleep(Duration::from_secs(sizes.seconds)).await;
    let cpu = cpu_seconds() - cpu;
    figures.idle_ops_per_s = Some((operations().await? - before) as f64 / sizes.seconds as f64);
    figures.idle_cpu_percent = Some(cpu / sizes.seconds as f64 * 100.0);
    observer.end().await?;
    place.forget("idle").await
}

/// Processor time of this process so far; 0 if the system does not report it.
fn cpu_seconds() -> f64 {
    // Fields 14 and 15 of proc(5) stat, in hundredths of a second; the name before them may hold spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
