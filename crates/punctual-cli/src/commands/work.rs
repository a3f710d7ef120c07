//! `punctual work --exec CMD`: a worker that runs a command for each job.
//!
//! The command reads the payload from stdin and the other fields of the job from its environment. Nothing of a job is ever part
//! of the command line. With `--keep`, the command stays, and runs one job after the other.

#[cfg(unix)]
mod capture;
#[cfg(unix)]
mod child;
#[cfg(unix)]
mod children;
#[cfg(unix)]
mod command;
#[cfg(unix)]
mod frame;
#[cfg(unix)]
mod memory;
#[cfg(unix)]
pub(crate) mod process;
#[cfg(unix)]
pub(crate) mod supervisor;

use std::{convert::Infallible, str::FromStr, time::Duration};

use punctual::{
    Ctx, JobRecord, Outcome, Worker,
    job::{parse_duration, parse_size},
    worker::{Health, LiveReport, Shutdown, WorkReport},
};
use serde::Serialize;
use tokio::time::timeout;

#[cfg(unix)]
use self::{
    child::Manner,
    children::{Children, Wear},
    memory::Memory,
    process::{How, Runner},
};
use super::{Session, health::HealthArgs};
use crate::{
    errors::{Failure, Result},
    output::grouped,
    requests::Requests,
    times::span,
};

/// The time to wait for a command to end while its lease is extended: longer than the kernel keeps an unkillable process waiting for
/// a disk.
const GONE_MAX: Duration = Duration::from_hours(24);
/// How long a worker that ends waits for commands after SIGKILL.
const KILLED_MAX: Duration = Duration::from_secs(10);
/// The jobs that run at once, each in a process of its own.
const SLOTS: usize = 8;
/// The least memory of a child that can be its limit. Less is a number without its unit.
const CHILD_BYTES_MIN: u64 = 1 << 20;
/// The most children.
const KEEP_MAX: i64 = 1_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command reads the payload from stdin. Its environment has PUNCTUAL_JOB_ID, PUNCTUAL_KIND, PUNCTUAL_QUEUE, \
PUNCTUAL_GROUP, PUNCTUAL_ATTEMPT, PUNCTUAL_MAX_ATTEMPTS, PUNCTUAL_FENCE, PUNCTUAL_RUN_AT_MS, PUNCTUAL_CONTENT_TYPE, and as \
JSON PUNCTUAL_TAGS and PUNCTUAL_HEADERS. PUNCTUAL_STORE is removed (see --pass-store). TRACEPARENT is that of the run, if \
traces are sent.

The exit code decides what happens to the job. 0: done. 75: run again after --snooze. 100: dead. Any other: retry after the \
job's backoff; the end of stderr is kept as the error.

A timeout, a cancel or a lost lease ends the command and everything that it started, with SIGTERM, then SIGKILL. The job is \
settled after all of these processes are gone. If the worker is killed, its commands are killed, too. Processes that a \
command leaves behind when it exits by itself are not touched.

With --keep, N children of the command stay, and each runs one job after the other. A child reads jobs and writes \
verdicts on a socket, its stdin, as docs/pipe-workers.md describes; clients/ has libraries for it. A child that ends is \
started again, after all that it had started was ended. The jobs that it had are retried, with the exit status as their \
error.

SIGTERM, SIGHUP and SIGINT stop the worker. It starts no more jobs, and running commands may finish within --grace. After \
that time, or at a second signal, they are ended. Their jobs are released, and no attempt is counted.

Examples:
  punctual work --exec 'jq .to' --result --log
  punctual work --exec 'python3 worker.py' --keep 4 -q mail
  punctual work --exec ./run --weighted -q mail=3 -q bulk=1 --slots 32 --queue-slots bulk=4")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Work {
    /// Command that `sh -c` runs for each job, or with --keep for each child.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// Keep N children of the command, each of which runs one job after the other (default: one process for each job).
    #[arg(long, value_name = "N", conflicts_with_all = ["result", "log", "snooze"], value_parser = clap::value_parser!(u16).range(1..=KEEP_MAX))]
    keep: Option<u16>,
    /// End a child after so many jobs, and start another one (default: no limit).
    #[arg(long, value_name = "N", requires = "keep", value_parser = clap::value_parser!(u64).range(1..))]
    jobs_per_child: Option<u64>,
    /// Memory of a child and what it started, such as 512MiB, above which it is replaced after a job (default: no limit).
    #[arg(long, value_name = "SIZE", requires = "keep", value_parser = memory_per_child)]
    memory_per_child: Option<u64>,
    /// Queue to serve, or NAME=WEIGHT with --weighted; may be repeated (default: default).
    #[arg(short, long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Share the slots between the queues by their weights.
    #[arg(long)]
    weighted: bool,
    /// Serve a later queue only with slots that the earlier queues leave free (the default).
    #[arg(long, conflicts_with = "weighted")]
    strict: bool,
    /// Number of jobs that run at once in this process (default: 8, or that of --keep).
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Number of jobs of one queue that run at once in this process, as mail=5; may be repeated (default: --slots).
    #[arg(long, value_name = "QUEUE=N", value_parser = queue_slots)]
    queue_slots: Vec<(String, usize)>,
    /// Lease of jobs that have none of their own: if the worker dies, a job runs again after this time (default: the queue's, else 15 s).
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    lease: Option<Duration>,
    /// Delay of a job after exit code 75, without --keep (default: 30 s).
    #[arg(long, value_parser = parse_duration, default_value = "30s", hide_default_value = true, value_name = "DURATION")]
    snooze: Duration,
    /// Keep what the command prints to stdout as the result of the job: JSON or text, at most 64 KiB.
    #[arg(long)]
    result: bool,
    /// Keep the last lines that the command prints to stderr in the log of the job.
    #[arg(long)]
    log: bool,
    /// Time for running commands to finish after the worker was asked to stop (default: 30 s).
    #[arg(long, value_parser = parse_duration, default_value = "30s", hide_default_value = true, value_name = "DURATION")]
    grace: Duration,
    /// Time between SIGTERM and SIGKILL for a command that is ended (default: 5 s).
    #[arg(long, value_parser = parse_duration, default_value = "5s", hide_default_value = true, value_name = "DURATION")]
    kill_after: Duration,
    /// Pass `PUNCTUAL_STORE` to commands, including a password in it.
    #[arg(long)]
    pass_store: bool,
    #[command(flatten)]
    pub(super) health: HealthArgs,
    /// Name of the worker, shown by `ls` and `show` (default: host name and process id).
    #[arg(long)]
    name: Option<String>,
}

#[cfg(not(unix))]
pub(crate) async fn run(_: &mut Session, _: &Work) -> Result {
    Err(Failure::no_process_groups("work --exec"))
}

#[cfg(unix)]
pub(crate) async fn run(session: &mut Session, args: &Work) -> Result {
    if args.exec.trim().is_empty() {
        return Err(Failure::invalid("the command of --exec is empty")
            .why("each job would be done, and nothing would have run")
            .hint("write a command, as in --exec ./run; a variable in it may be unset"));
    }
    let names = args.queues.iter().map(|queue| if args.weighted { split::<u32>(queue).0 } else { queue });
    super::check_served(&session.client, names).await?;
    let health = args.health.health();
    if let Some(n) = args.keep.map(usize::from) {
        let manner = Manner {
            health: health.clone(),
            command: args.exec.as_str().into(),
            kill_after: args.kill_after,
            pass_store: args.pass_store,
            worker: args.name.as_deref().map(Into::into),
            client: session.client.clone(),
        };
        let wear = Wear { jobs_max: args.jobs_per_child, bytes_max: args.bytes_max()? };
        crate::descriptors::raise();
        let shutdown = Shutdown::default();
        let children = Children::start(manner, n, wear, shutdown.graceful.clone());
        let run = {
            let children = children.clone();
            move |job: JobRecord, ctx: Ctx<()>| children.clone().run(job, ctx)
        };
        let served = serve(session, args, &health, n, run, shutdown, || children.give_back()).await;
        if timeout(gone_max(args), children.stop()).await.is_err() {
            tracing::error!("a killed child has not ended; the worker ends without it");
        }
        return served;
    }
    let runner = Runner::new(How {
        command: args.exec.as_str().into(),
        snooze: args.snooze,
        kill_after: args.kill_after,
        result: args.result,
        log: args.log,
        pass_store: args.pass_store,
        health: health.clone(),
    });
    let run = {
        let runner = runner.clone();
        move |job: JobRecord, ctx: Ctx<()>| runner.clone().run(job, ctx)
    };
    serve(session, args, &health, SLOTS, run, Shutdown::default(), || runner.give_back()).await
}

/// How long a worker that ends waits until what it has to end is gone: a child is asked first, then gets SIGTERM, then SIGKILL.
#[cfg(unix)]
fn gone_max(args: &Work) -> Duration {
    2 * args.kill_after + KILLED_MAX
}

/// Serves the queues until the worker is stopped. `give_back` ends what runs.
#[cfg(unix)]
async fn serve<R: Future<Output = Outcome> + Send + 'static, G: Future<Output = ()>>(
    session: &mut Session,
    args: &Work,
    health: &Health,
    slots: usize,
    run: impl Fn(JobRecord, Ctx<()>) -> R + Send + Sync + 'static,
    shutdown: Shutdown,
    give_back: impl FnOnce() -> G,
) -> Result {
    let _reporting = health.start().await?;
    let listening = args.health.listen(&mut session.client, health)?;
    super::health::say(session, listening.as_ref());
    // The runner keeps these times itself, and is not dropped before its commands are gone.
    let mut worker = Worker::new(&session.client)
        .slots(args.slots.unwrap_or(slots))
        // The longest one: the log leaves it out.
        .shutdown_grace(Duration::MAX)
        .cancel_grace(GONE_MAX)
        .timeout_grace(GONE_MAX)
        .health(health)
        .handle_raw(run);
    #[cfg(feature = "otel")]
    {
        worker = worker.continue_trace(session.continues_traces);
    }
    if let Some(lease) = args.lease {
        worker = worker.lease(lease);
    }
    if let Some(name) = &args.name {
        worker = worker.name(name);
    }
    // In the configuration file, both can be set.
    if args.weighted && !args.strict {
        worker = worker.weighted(args.weights()?);
    } else {
        for queue in args.names()? {
            worker = worker.queue(queue);
        }
    }
    for (queue, slots) in &args.queue_slots {
        worker = worker.queue_slots(queue, *slots);
    }
    let (requests, live) = (Requests::listen()?, worker.live());
    let report = tokio::select! {
        report = worker.run_until(shutdown.clone()) => report?,
        never = end(requests, &live, &shutdown, give_back(), args) => match never {},
    };
    if session.format.is_json() {
        session.report(&Report::from(&report)).await?;
    } else {
        session.say(&told(&report));
    }
    Ok(())
}

/// Turns signals into a shutdown. After the first, or an order to stop, commands may finish within the grace period. After that, or at the second signal,
/// they are ended, and their jobs are released when all of their processes are gone.
#[cfg(unix)]
async fn end(
    mut requests: Requests,
    live: &LiveReport,
    shutdown: &Shutdown,
    give_back: impl Future<Output = ()>,
    args: &Work,
) -> Infallible {
    tokio::select! {
        _ = requests.next() => {}
        () = live.stopping() => {}
    }
    tracing::info!(target: "punctual", grace = ?args.grace, "asked to stop; running commands may finish");
    shutdown.graceful.cancel();
    tokio::select! {
        _ = requests.next() => {}
        () = tokio::time::sleep(args.grace) => {}
    }
    if timeout(gone_max(args), give_back).await.is_err() {
        tracing::error!("a killed command has not ended; its job is released anyway");
    }
    shutdown.now.cancel();
    std::future::pending().await
}

impl Work {
    /// The most bytes of memory of a child, and how to look at them.
    #[cfg(unix)]
    fn bytes_max(&self) -> Result<Option<(u64, Memory)>> {
        let Some(most) = self.memory_per_child else { return Ok(None) };
        let memory = Memory::of_system().map_err(|e| {
            Failure::unsupported("--memory-per-child does not work on this system")
                .why(format!("the system does not say how much memory processes have: {e}"))
                .hint("mount /proc, or use --jobs-per-child")
        })?;
        Ok(Some((most, memory)))
    }

    /// Queues in their order.
    fn names(&self) -> Result<Vec<String>> {
        let weighted = self.queues.iter().find(|queue| split::<u32>(queue).1.is_some());
        match weighted {
            Some(queue) => Err(Failure::invalid(format!("-q {queue} has a weight"))
                .hint("add --weighted, or remove the weight")),
            None if self.queues.is_empty() => Ok(vec!["default".to_owned()]),
            None => Ok(self.queues.clone()),
        }
    }

    /// Queues with their weights, 1 where none is given.
    fn weights(&self) -> Result<Vec<(String, u32)>> {
        if self.queues.is_empty() {
            return Err(Failure::invalid("--weighted needs queues")
                .hint("name them with weights: -q mail=3 -q bulk=1"));
        }
        Ok(self
            .queues
            .iter()
            .map(|queue| split(queue))
            .map(|(name, weight)| (name.to_owned(), weight.unwrap_or(1)))
            .collect())
    }
}

/// Splits a name and its weight: the number after the last `=`. A name can contain `=`, too.
fn split<N: FromStr>(queue: &str) -> (&str, Option<N>) {
    match queue.rsplit_once('=').map(|(name, number)| (name, number.parse())) {
        Some((name, Ok(number))) => (name, Some(number)),
        _ => (queue, None),
    }
}

/// A name and the slots of that queue.
fn queue_slots(text: &str) -> std::result::Result<(String, usize), String> {
    match split(text) {
        (name, Some(slots)) => Ok((name.to_owned(), slots)),
        (_, None) => Err("write a queue and its slots, such as mail=5".to_owned()),
    }
}

/// The memory that a child may have.
fn memory_per_child(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text) {
        Ok(bytes) if CHILD_BYTES_MIN <= bytes => Ok(bytes),
        Ok(bytes) => Err(format!("{bytes} bytes are too few: write at least 1MiB, such as 512MiB")),
        Err(e) => Err(format!("{e}: {}", e.hint().unwrap_or_default())),
    }
}

/// What the worker did, as JSON.
#[derive(Serialize)]
struct Report {
    done: u64,
    retried: u64,
    snoozed: u64,
    released: u64,
    dead: u64,
    cancelled: u64,
    lost: u64,
    taken_back: u64,
    publications: u64,
    lateness_p50_ms: u128,
    lateness_p99_ms: u128,
    lateness_max_ms: u128,
}

impl From<&WorkReport> for Report {
    fn from(report: &WorkReport) -> Self {
        let lateness = &report.lateness;
        Self {
            done: report.done,
            retried: report.retried,
            snoozed: report.snoozed,
            released: report.released,
            dead: report.dead,
            cancelled: report.cancelled,
            lost: report.lost,
            taken_back: report.reclaimed,
            publications: report.publications,
            lateness_p50_ms: lateness.quantile(0.5).as_millis(),
            lateness_p99_ms: lateness.quantile(0.99).as_millis(),
            lateness_max_ms: lateness.max().as_millis(),
        }
    }
}

fn told(report: &WorkReport) -> String {
    let counts = [
        (report.done, "done"),
        (report.retried, "retried"),
        (report.snoozed, "snoozed"),
        (report.released, "released"),
        (report.dead, "dead"),
        (report.cancelled, "cancelled"),
        (report.lost, "lost"),
        (report.publications, "published"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(n, word)| 0 < *n || *word == "done")
        .map(|(n, word)| format!("{} {word}", grouped(*n)))
        .collect();
    format!("{} · latest start {} late", counts.join(", "), span(report.lateness.max()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_number_behind_the_last_sign() {
        assert_eq!(split::<u32>("mail"), ("mail", None));
        assert_eq!(split("mail=3"), ("mail", Some(3)));
        assert_eq!(split::<u32>("a=b"), ("a=b", None));
        assert_eq!(split("a=b=2"), ("a=b", Some(2)));
    }
}
