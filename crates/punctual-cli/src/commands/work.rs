//! `punctual work --exec CMD`: a worker that runs a command per job.
//!
//! The payload goes to the command's stdin and what else it may know into its environment; nothing of a job is ever part of
//! the command line.

mod process;

use std::{io::Write as _, str::FromStr, time::Duration};

use punctual::{Ctx, JobRecord, WorkReport, Worker, parse_duration};
use serde::Serialize;

use self::process::Runner;
use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{grouped, json},
    times::span,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command finds the payload on stdin, and in its environment PUNCTUAL_JOB_ID, PUNCTUAL_KIND, PUNCTUAL_QUEUE,
PUNCTUAL_ATTEMPT, PUNCTUAL_FENCE and PUNCTUAL_RUN_AT_MS. Its exit code is the verdict: 0 done; 75 later (--snooze);
100 dead; any other: again by the job's backoff, with the last of stderr as the error. Timeout, cancel and a lost lease
end its whole process group: SIGTERM, then SIGKILL.")]
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
    /// The worker's name, for people. Default: host and process id.
    #[arg(long)]
    name: Option<String>,
}

pub(crate) async fn run(session: &mut Session, args: &Work) -> Result {
    let runner = Runner::new(&args.exec, args.snooze, args.result, args.log);
    let run = {
        let runner = runner.clone();
        move |job: JobRecord, ctx: Ctx<()>| runner.clone().run(job, ctx)
    };
    let mut worker =
        Worker::new(&session.client).slots(args.slots).shutdown_grace(args.grace).handle_raw(run);
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
    let report = worker.run().await?;
    // Commands that were told to end are seen to their end, or they would outlive what bounds them.
    runner.ended().await;
    if session.format.is_json() {
        json(&mut session.out, &Report::from(&report))?;
        session.out.flush()?;
    } else {
        session.say(&told(&report));
    }
    Ok(())
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
