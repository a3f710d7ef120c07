//! `punctual bench`: what this store does on this machine, beside plain SQL on the same disk in the same run.
//!
//! Every figure is measured through the public API, on a fresh store in a folder beside the given one, which is removed
//! afterwards. Payloads have 200 bytes; handlers do nothing.

mod reference;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use punctual::{
    Client, Ctx, JobRecord, NewJob, Payload, Timestamp, When, Worker,
    store::{
        Keep, QueueSettings,
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::reference::Reference;
use crate::quantile::quantile;

/// Bytes of one payload.
const PAYLOAD_BYTES: usize = 200;
/// The queue that is measured.
const QUEUE: &str = "bench";
/// Slots of the worker that drains.
const SLOTS: usize = 1_000;
/// Concurrent callers of the second single-call figure.
const CALLERS: usize = 64;
/// Jobs per second while lateness is measured.
const LATENESS_RATE: u64 = 200;

/// Sizes of the measurements.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Bench {
    /// Jobs of each throughput figure.
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Jobs that wait, due in 30 days, while lateness is measured.
    #[arg(long, default_value_t = 1_000_000)]
    waiting: usize,
    /// Seconds for each of lateness and idleness.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// Every figure of one run.
#[derive(Debug, Default, Serialize)]
struct Figures {
    store: String,
    /// Of what the store is built on, where its doctor names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    durability: &'static str,
    fsync_ms: f64,
    enqueue_bulk_per_s: f64,
    enqueue_single_per_s: f64,
    enqueue_single64_per_s: f64,
    lives_per_s: f64,
    lives_random_due_per_s: f64,
    lives_default_retention_per_s: f64,
    pickup_ms: Spread,
    lateness_ms: Spread,
    idle_ops_per_s: f64,
    idle_cpu_percent: f64,
    bytes_per_waiting_job: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<Reference>,
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Spread {
    fn of(mut ms: Vec<f64>) -> Self {
        ms.sort_by(f64::total_cmp);
        Self {
            p50: quantile(&ms, 0.5),
            p99: quantile(&ms, 0.99),
            p999: quantile(&ms, 0.999),
            max: quantile(&ms, 1.0),
        }
    }
}

/// Measures, prints a table or one JSON object.
pub(crate) async fn run(store: &str, sizes: &Bench, json: bool) -> Result<()> {
    let place = Place::new(store)?;
    let mut figures = Figures { store: store.to_owned(), ..Figures::default() };
    if let Some(folder) = place.folder() {
        step("one synced commit, and plain SQL");
        figures.fsync_ms = reference::fsync_ms(folder)?;
        figures.reference = Some(Reference::measure(folder, sizes.jobs, PAYLOAD_BYTES)?);
    }
    enqueues(&place, sizes, &mut figures).await?;
    lives(&place, sizes, &mut figures).await?;
    pickup(&place, &mut figures).await?;
    lateness(&place, sizes, &mut figures).await?;
    idle(&place, sizes, &mut figures).await?;
    if json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        print!("{figures}");
    }
    Ok(())
}

fn step(what: &str) {
    eprintln!("measuring {what} …");
}

/// Where fresh stores are made.
enum Place {
    Memory,
    Sqlite {
        folder: tempfile::TempDir,
        query: String,
    },
    /// Fresh prefixes of one server.
    Redis {
        url: String,
    },
}

impl Place {
    fn new(url: &str) -> Result<Self> {
        if url == "memory:" {
            return Ok(Self::Memory);
        }
        if url.starts_with("redis") {
            return Ok(Self::Redis { url: url.to_owned() });
        }
        let Some(rest) = url.strip_prefix("sqlite:") else {
            bail!("bench measures sqlite:, redis: and memory: stores, not {url}")
        };
        let (path, query) =
            rest.split_once('?').map_or((rest, String::new()), |(path, query)| (path, format!("?{query}")));
        let beside = Path::new(path).parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = tempfile::Builder::new()
            .prefix("punctual-bench-")
            .tempdir_in(beside)
            .with_context(|| format!("could not make a folder in {}", beside.display()))?;
        Ok(Self::Sqlite { folder, query })
    }

    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Memory | Self::Redis { .. } => None,
            Self::Sqlite { folder, .. } => Some(folder.path()),
        }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.folder().map(|folder| folder.join(format!("{name}.db")))
    }

    /// A client of a fresh store; `keep` is the retention of done jobs.
    async fn fresh(&self, name: &str, keep: Keep) -> Result<Client> {
        let client = match self {
            Self::Memory => Client::connect("memory:").await?,
            Self::Redis { url } => {
                let and = if url.contains('?') { '&' } else { '?' };
                Client::connect(&format!("{url}{and}prefix=bench-{:08x}-{name}", fastrand::u32(..))).await?
            }
            Self::Sqlite { folder, query } => {
                Client::connect(&format!(
                    "sqlite:{}{query}",
                    folder.path().join(format!("{name}.db")).display()
                ))
                .await?
            }
        };
        client.queue(QUEUE).set(QueueSettings { done: keep, ..QueueSettings::default() }).await?;
        Ok(client)
    }
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
    let callers: Vec<JoinHandle<punctual::Result<()>>> = (0..CALLERS)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    let _ = client.push(vec![job(&client, When::Now)]).await?;
                }
                Ok(())
            })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    figures.enqueue_single64_per_s = rate(each * CALLERS, begin.elapsed());
    Ok(())
}

/// Whole lives: enqueue in bulk, then drain by a worker; the figure is jobs over the sum of both times.
async fn lives(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step("lives, due in order");
    let client = place.fresh("in-order", Keep::NOTHING).await?;
    figures.lives_per_s = life(&client, sizes.jobs, |_| When::Now).await?;

    step("lives, at random due times");
    let client = place.fresh("random", Keep::NOTHING).await?;
    // Due at random over ten seconds that begin once everything is enqueued, and drained when all of them are due.
    let from = client.store().now().await?.after(Duration::from_secs(5));
    figures.lives_random_due_per_s =
        life(&client, sizes.jobs, |_| When::At(from.after(Duration::from_millis(fastrand::u64(..10_000)))))
            .await?;

    step("lives, default retention");
    let client = place.fresh("retention", Keep::SHORT).await?;
    figures.lives_default_retention_per_s = life(&client, sizes.jobs, |_| When::Now).await?;
    Ok(())
}

async fn life(client: &Client, count: usize, due: impl Fn(usize) -> When) -> Result<f64> {
    let begin = Instant::now();
    let jobs: Vec<NewJob> = (0..count).map(|n| job(client, due(n))).collect();
    let last = jobs.iter().filter_map(|j| if let When::At(t) = j.run_at { Some(t) } else { None }).max();
    let _ = client.push(jobs).await?;
    let enqueued = begin.elapsed();
    if let Some(last) = last {
        let now = client.store().now().await?;
        tokio::time::sleep(last.since(now) + Duration::from_millis(2)).await;
    }
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
    // The worker ends when it has settled all it ran: the drain includes the last ack.
    Worker::new(client).queue(QUEUE).slots(SLOTS).handle_raw(handler).run_until(stop).await?;
    Ok(rate(count, enqueued + begin.elapsed()))
}

/// Microseconds of the wall clock.
fn now_us() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e6
}

/// A worker whose handler notes how late each job starts against the instant that its payload names.
fn observer(
    client: &Client,
    stop: &CancellationToken,
) -> (Arc<Mutex<Vec<f64>>>, JoinHandle<punctual::Result<punctual::WorkReport>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
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
    (seen, tokio::spawn(worker.run_until(stop.clone())))
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
    let stop = CancellationToken::new();
    let (seen, worker) = observer(&client, &stop);
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..15))).await;
        let _ = client.push(vec![marked(&client, now_us(), When::Now)]).await?;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.cancel();
    worker.await??;
    figures.pickup_ms = Spread::of(std::mem::take(&mut *seen.lock().expect("no handler panics")));
    Ok(())
}

/// Starts against due times, at a steady rate, scheduled in random order, with a great many other jobs waiting.
async fn lateness(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step(&format!("lateness with {} jobs waiting", sizes.waiting));
    let client = place.fresh("lateness", Keep::NOTHING).await?;
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
    if let Some(file) = place.file("lateness") {
        figures.bytes_per_waiting_job = reference::size(&file)? as f64 / sizes.waiting.max(1) as f64;
    }
    let stop = CancellationToken::new();
    let (seen, worker) = observer(&client, &stop);
    let from = client.store().now().await?.after(Duration::from_secs(1)).as_ms();
    let count = sizes.seconds * LATENESS_RATE;
    let mut due: Vec<u64> = (0..count).map(|n| from + n * 1_000 / LATENESS_RATE).collect();
    fastrand::shuffle(&mut due);
    let jobs = due
        .iter()
        .map(|&ms| marked(&client, ms as f64 * 1e3, When::At(Timestamp::saturating_from_ms(ms))))
        .collect();
    let _ = client.push(jobs).await?;
    tokio::time::sleep(Duration::from_secs(sizes.seconds + 2)).await;
    stop.cancel();
    worker.await??;
    let seen = std::mem::take(&mut *seen.lock().expect("no handler panics"));
    anyhow::ensure!(seen.len() as u64 == count, "{} of {count} jobs ran", seen.len());
    anyhow::ensure!(seen.iter().all(|late| 0.0 <= *late), "a job started early");
    figures.lateness_ms = Spread::of(seen);
    Ok(())
}

/// A worker with nothing to do.
async fn idle(place: &Place, sizes: &Bench, figures: &mut Figures) -> Result<()> {
    step("idleness");
    let Some(file) = place.file("idle") else { return Ok(()) };
    let store = Arc::new(SqliteStore::open(file, SqliteOptions::default())?);
    let client = Client::new(store.clone());
    let stop = CancellationToken::new();
    let (_, worker) = observer(&client, &stop);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (operations, cpu) = (store.operations(), cpu_seconds());
    tokio::time::sleep(Duration::from_secs(sizes.seconds)).await;
    figures.idle_ops_per_s = (store.operations() - operations) as f64 / sizes.seconds as f64;
    figures.idle_cpu_percent = (cpu_seconds() - cpu) / sizes.seconds as f64 * 100.0;
    stop.cancel();
    worker.await??;
    Ok(())
}

/// Processor time of this process so far; 0 where the system doesn't tell.
fn cpu_seconds() -> f64 {
    // Fields 14 and 15 of proc(5) stat, in hundredths of a second; the name before them may hold spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.reference.unwrap_or_default();
        let version = self.version.as_ref().map(|version| format!(" · {version}")).unwrap_or_default();
        writeln!(
            f,
            "{}{version} · durability {} · {PAYLOAD_BYTES}-byte payloads · one synced commit {:.2} ms",
            self.store, self.durability, self.fsync_ms
        )?;
        writeln!(f, "{:<38}{:>12}{:>14}", "", "punctual", "plain SQL")?;
        let mut row = |what: &str, ours: f64, plain: f64| {
            let plain = if plain == 0.0 { String::new() } else { format!("{plain:.0}") };
            writeln!(f, "{what:<38}{ours:>12.0}{plain:>14}")
        };
        row("bulk enqueue, jobs/s", self.enqueue_bulk_per_s, plain.insert_per_s)?;
        row("single enqueue, 1 caller, jobs/s", self.enqueue_single_per_s, 0.0)?;
        row("single enqueue, 64 callers, jobs/s", self.enqueue_single64_per_s, 0.0)?;
        row("lives due in order, jobs/s", self.lives_per_s, plain.lives_per_s)?;
        row("lives at random due times, jobs/s", self.lives_random_due_per_s, plain.lives_random_due_per_s)?;
        row("lives, default retention, jobs/s", self.lives_default_retention_per_s, 0.0)?;
        row("bytes per waiting job", self.bytes_per_waiting_job, 0.0)?;
        let spread = |s: &Spread| {
            format!("p50 {:.2} · p99 {:.2} · p99.9 {:.2} · max {:.2} ms", s.p50, s.p99, s.p999, s.max)
        };
        writeln!(f, "{:<38}{}", "pick-up, enqueue call to start", spread(&self.pickup_ms))?;
        writeln!(f, "{:<38}{}", format!("lateness at {LATENESS_RATE} jobs/s"), spread(&self.lateness_ms))?;
        writeln!(
            f,
            "{:<38}{:.2} operations/s, {:.2} % of one CPU",
            "idle", self.idle_ops_per_s, self.idle_cpu_percent
        )
    }
}
