//! `punctual work --exec CMD`: a worker that runs a command per job.
//!
//! The payload goes to the command's stdin and what else it may know into its environment; nothing of a job is ever part of
//! the command line.

#[cfg(unix)]
mod capture;
#[cfg(unix)]
mod command;
#[cfg(unix)]
mod process;
#[cfg(unix)]
pub(crate) mod supervisor;

use std::{convert::Infallible, io::Write as _, str::FromStr, time::Duration};

use punctual::{Ctx, JobRecord, Shutdown, WorkReport, Worker, parse_duration};
use serde::Serialize;
use tokio::time::timeout;

#[cfg(unix)]
use self::process::{How, Runner};
use super::{Session, health::HealthArgs};
use crate::{
    errors::{Failure, Result},
    output::{grouped, json},
    requests::Requests,
    times::span,
};

/// How long the end of a command is waited for, its lease being extended: longer than any disk is away for which the kernel makes
/// processes wait that it can't end.
const GONE_MAX: Duration = Duration::from_hours(24);
/// How long a worker that ends waits for commands after SIGKILL.
const KILLED_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command has the payload on stdin, which is a complete file. Its environment has PUNCTUAL_JOB_ID, PUNCTUAL_KIND,
PUNCTUAL_QUEUE, PUNCTUAL_GROUP, PUNCTUAL_ATTEMPT, PUNCTUAL_MAX_ATTEMPTS, PUNCTUAL_FENCE, PUNCTUAL_RUN_AT_MS,
PUNCTUAL_CONTENT_TYPE, and as JSON PUNCTUAL_TAGS and PUNCTUAL_HEADERS. PUNCTUAL_STORE is removed (--pass-store).

Its exit code is the verdict: 0 done; 75 later (--snooze); 100 dead; any other: again by the job's backoff, with the last of
stderr as the error. Timeout, cancel and a lost lease end everything that it started: SIGTERM, then SIGKILL. The verdict
follows when all of it is gone. If the worker is killed, its commands are killed, too. What a command leaves running when
it exits by itself is not touched.

SIGTERM, SIGHUP and SIGINT end the worker: it reserves nothing more, and running commands may finish within --grace. Then, or
at a second signal, they are ended, and their jobs are given back without counting an attempt.

  punctual work --exec ./deliver -q mail --slots 8
  punctual work --exec 'jq .to' --result --log")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Work {
    /// What sh -c runs for every job.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// A queue to serve, strictly in the order given; with --weighted NAME=WEIGHT. Default: default.
    #[arg(short, long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Share the slots by weight.
    #[arg(long)]
    weighted: bool,
    /// A later queue gets what the earlier ones left (the default).
    #[arg(long, conflicts_with = "weighted")]
    strict: bool,
    /// Jobs at once in this process.
    #[arg(long, default_value_t = 8)]
    slots: usize,
    /// Jobs of one queue at once in this process, as mail=5; may be given for several queues.
    #[arg(long, value_name = "QUEUE=N", value_parser = queue_slots)]
    queue_slots: Vec<(String, usize)>,
    /// The lease of jobs without one of their own; it is extended while the command runs.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    lease: Option<Duration>,
    /// How long exit code 75 puts a job off.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    snooze: Duration,
    /// What a command prints is the result of its job, at most 64 KiB: as JSON if it is, else as text.
    #[arg(long)]
    result: bool,
    /// Keep the last lines that a command writes to stderr with its job.
    #[arg(long)]
    log: bool,
    /// How long running commands may go on when the worker is asked to end.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    grace: Duration,
    /// How long a command that has to end may go on after SIGTERM before it is killed.
    #[arg(long, value_parser = parse_duration, default_value = "5s", value_name = "DURATION")]
    kill_after: Duration,
    /// Leave `PUNCTUAL_STORE`, and a password in it, in the environment of commands.
    #[arg(long)]
    pass_store: bool,
    #[command(flatten)]
    health: HealthArgs,
    /// The worker's name, for people. Default: host and process id.
    #[arg(long)]
    name: Option<String>,
}

#[cfg(not(unix))]
pub(crate) async fn run(_: &mut Session, _: &Work) -> Result {
    Err(Failure::no_process_groups("work --exec"))
}

#[cfg(unix)]
pub(crate) async fn run(session: &mut Session, args: &Work) -> Result {
    let runner = Runner::new(How {
        command: args.exec.as_str().into(),
        snooze: args.snooze,
        kill_after: args.kill_after,
        result: args.result,
        log: args.log,
        pass_store: args.pass_store,
    });
    let run = {
        let runner = runner.clone();
        move |job: JobRecord, ctx: Ctx<()>| runner.clone().run(job, ctx)
    };
    let health = args.health.health();
    let _reporting = health.start().await?;
    // The runner keeps these times itself, and is not dropped before its commands are gone.
    let mut worker = Worker::new(&session.client)
        .slots(args.slots)
        .shutdown_grace(GONE_MAX)
        .cancel_grace(GONE_MAX)
        .timeout_grace(GONE_MAX)
        .health(&health)
        .handle_raw(run);
    if let Some(lease) = args.lease {
        worker = worker.lease(lease);
    }
    if let Some(name) = &args.name {
        worker = worker.name(name);
    }
    if args.weighted {
        worker = worker.weighted(args.weights()?);
    } else {
        for queue in args.names()? {
            worker = worker.queue(queue);
        }
    }
    for (queue, slots) in &args.queue_slots {
        worker = worker.queue_slots(queue, *slots);
    }
    let (shutdown, requests) = (Shutdown::default(), Requests::listen()?);
    let report = tokio::select! {
        report = worker.run_until(shutdown.clone()) => report?,
        never = end(requests, &shutdown, &runner, args) => match never {},
    };
    if session.format.is_json() {
        json(&mut session.out, &Report::from(&report))?;
        session.out.flush()?;
    } else {
        session.say(&told(&report));
    }
    Ok(())
}

/// Turns signals into shutdown: with the first the commands may finish within the grace; then, or with the second, they are ended,
/// and their jobs given back when nothing is left of them.
#[cfg(unix)]
async fn end(mut requests: Requests, shutdown: &Shutdown, runner: &Runner, args: &Work) -> Infallible {
    requests.next().await;
    shutdown.graceful.cancel();
    tokio::select! {
        _ = requests.next() => {}
        () = tokio::time::sleep(args.grace) => {}
    }
    if timeout(args.kill_after + KILLED_MAX, runner.give_back()).await.is_err() {
        tracing::error!("a killed command is still there: its job is given back all the same");
    }
    shutdown.now.cancel();
    std::future::pending().await
}

impl Work {
    /// Queues in their order.
    fn names(&self) -> Result<Vec<String>> {
        let weighted = self.queues.iter().find(|queue| split::<u32>(queue).1.is_some());
        match weighted {
            Some(queue) => Err(Failure::invalid(format!("-q {queue} has a weight"))
                .hint("add --weighted, or leave the weight out")),
            None if self.queues.is_empty() => Ok(vec!["default".to_owned()]),
            None => Ok(self.queues.clone()),
        }
    }

    /// Queues with their weights, 1 where none is given.
    fn weights(&self) -> Result<Vec<(String, u32)>> {
        if self.queues.is_empty() {
            return Err(Failure::invalid("--weighted needs queues").hint("-q mail=3 -q bulk=1"));
        }
        Ok(self
            .queues
            .iter()
            .map(|queue| split(queue))
            .map(|(name, weight)| (name.to_owned(), weight.unwrap_or(1)))
            .collect())
    }
}

/// A name and its weight: a `=` with a number behind it. A name may have one of its own before that.
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
        (_, None) => Err("expected a queue and its slots, as mail=5".to_owned()),
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
            taken_back: report.taken_back,
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
