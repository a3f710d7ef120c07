//! punctual as one of the queues that `scripts/peers` compares: the same commands, and the same job, as every other.
//!
//! ```text
//! peer worker SLOTS | enq N single|bulk | lat N | delay N SPAN | far N | slow
//! ```
//!
//! `PEER_URL` is the store, `OUT` the file to which each job appends one line by one system call: a tag, the instant that
//! its payload names, and the instant of its start, in seconds. Done jobs are not kept; with `KEEP=1` they are.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::Write as _,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use punctual::{
    Client, Ctx, Job, Worker,
    store::{Keep, QueueSettings},
};
use serde::{Deserialize, Serialize};

/// Jobs of one bulk enqueue.
const BULK: usize = 1_000;
/// With the instant a payload of about 200 bytes.
const PAD_BYTES: usize = 170;
/// Delayed jobs are due from here on.
const HEAD_START_MS: u64 = 3_000;
/// Far jobs are due after so long, over a day.
const FAR: Duration = Duration::from_hours(30 * 24);
const DAY_MS: u64 = 86_400_000;
/// How long a job may need until it starts, and how often to look whether it has.
const START_MAX: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_micros(500);

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "job", queue = "q")]
struct NoOp {
    t: f64,
    pad: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "slow", queue = "q")]
struct Slow {
    t: f64,
}

impl NoOp {
    fn new(t: f64) -> Self {
        Self { t, pad: "x".repeat(PAD_BYTES) }
    }
}

/// The file that the jobs write.
struct Output(File);

impl Output {
    fn open() -> Result<Arc<Self>> {
        let file = OpenOptions::new().append(true).create(true).open(path()?)?;
        Ok(Arc::new(Self(file)))
    }

    fn tell(&self, tag: &str, reference: f64) -> std::io::Result<()> {
        let line = format!("{tag} {reference:.6} {:.6}\n", now());
        (&self.0).write_all(line.as_bytes())
    }
}

fn path() -> Result<String> {
    env::var("OUT").context("OUT names no file")
}

fn size() -> Result<u64> {
    Ok(fs::metadata(path()?)?.len())
}

/// Unix time in seconds.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

async fn run(job: NoOp, ctx: Ctx<Arc<Output>>) -> std::io::Result<()> {
    ctx.state().tell("J", job.t)
}

async fn run_slow(job: Slow, ctx: Ctx<Arc<Output>>) -> std::io::Result<()> {
    let seconds = env::var("SLOW_S").ok().and_then(|text| text.parse().ok()).unwrap_or(20.0);
    ctx.state().tell("S", job.t)?;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    ctx.state().tell("E", job.t)
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let client = Client::connect(&env::var("PEER_URL").context("PEER_URL names no store")?).await?;
    if env::var("KEEP").is_err() {
        let settings = QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() };
        client.queue("q").set(settings).await?;
    }
    match words[..] {
        ["worker", slots] => work(&client, number(slots)?).await,
        ["enq", n, "bulk"] => enqueue_bulk(&client, number(n)?).await,
        ["enq", n, "single"] => enqueue_single(&client, number(n)?).await,
        ["lat", n] => enqueue_to_idle_worker(&client, number(n)?).await,
        ["delay", n, span] => delay(&client, number(n)?, number(span)?).await,
        ["far", n] => far(&client, number(n)?).await,
        ["slow"] => {
            client.enqueue(Slow { t: now() }).await?;
            Ok(())
        }
        _ => bail!("unknown command: {words:?}"),
    }
}

fn number<T: FromStr>(word: &str) -> Result<T> {
    word.parse().ok().with_context(|| format!("{word:?} is no number"))
}

/// Works until it is killed.
async fn work(client: &Client, slots: usize) -> Result<()> {
    let worker = Worker::new(client).queue("q").slots(slots).state(Output::open()?);
    worker.handle(run).handle(run_slow).run().await?;
    Ok(())
}

async fn enqueue_bulk(client: &Client, n: usize) -> Result<()> {
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    for from in (0..n).step_by(BULK) {
        client.enqueue_many((from..n.min(from + BULK)).map(|_| NoOp::new(0.0))).await?;
    }
    report_with_cpu("enq_bulk", n, begin, cpu);
    Ok(())
}

async fn enqueue_single(client: &Client, n: usize) -> Result<()> {
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..n {
        client.enqueue(NoOp::new(now())).await?;
    }
    report_with_cpu("enq_single", n, begin, cpu);
    Ok(())
}

/// One job at a time; the next 5 to 35 ms after the last one has started.
async fn enqueue_to_idle_worker(client: &Client, n: usize) -> Result<()> {
    for _ in 0..n {
        let (before, begin) = (size()?, Instant::now());
        client.enqueue(NoOp::new(now())).await?;
        while size()? == before && begin.elapsed() < START_MAX {
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..35))).await;
    }
    Ok(())
}

/// Due evenly over a span, at whole milliseconds, in random order.
async fn delay(client: &Client, n: usize, span_s: f64) -> Result<()> {
    let begin = Instant::now();
    let first_ms = (now() * 1e3) as u64 + HEAD_START_MS;
    let mut due_ms: Vec<u64> =
        (0..n).map(|i| first_ms + (span_s * 1e3 * i as f64 / n as f64) as u64).collect();
    fastrand::shuffle(&mut due_ms);
    for ms in due_ms {
        let at = UNIX_EPOCH + Duration::from_millis(ms);
        client.enqueue(NoOp::new(ms as f64 / 1e3)).at(at).await?;
    }
    report("schedule", n, begin, "");
    Ok(())
}

async fn far(client: &Client, n: usize) -> Result<()> {
    let begin = Instant::now();
    for from in (0..n).step_by(BULK) {
        let jobs = (from..n.min(from + BULK)).map(|_| NoOp::new(0.0));
        client
            .enqueue_many(jobs)
            .each(|_, spec| {
                spec.delay(FAR + Duration::from_millis(fastrand::u64(..DAY_MS)));
            })
            .await?;
    }
    report("far", n, begin, "");
    Ok(())
}

fn report_with_cpu(operation: &str, n: usize, begin: Instant, cpu: f64) {
    let cpu_us = (cpu_seconds() - cpu) / n.max(1) as f64 * 1e6;
    report(operation, n, begin, &format!(r#","cpu_us":{cpu_us:.1}"#));
}

fn report(operation: &str, n: usize, begin: Instant, more: &str) {
    let per_s = n as f64 / begin.elapsed().as_secs_f64();
    println!(r#"{{"op":"{operation}","n":{n},"per_s":{per_s:.0}{more}}}"#);
}

/// Processor time of this process so far; 0 where the system doesn't tell.
fn cpu_seconds() -> f64 {
    // Fields 14 and 15 of proc(5) stat, in hundredths of a second; the name before them may hold spaces.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
