//! A worker of the demo: records each start and end before anything else happens.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use punctual::{Client, Ctx, JobRecord, Outcome, Worker};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    TICK,
    absence::{Absences, Span},
};

/// Jobs at once in one worker.
const SLOTS: usize = 50;
/// How long a slow job takes.
const SLOW: Duration = Duration::from_millis(400);
/// How long any other takes.
const QUICK: Duration = Duration::from_millis(2);

/// Arguments of the hidden `demo-worker`.
#[derive(clap::Args, Debug)]
pub(crate) struct DemoWorker {
    /// Its name in the store.
    #[arg(long)]
    name: String,
    /// The file to write its history to.
    #[arg(long)]
    history: PathBuf,
    /// A queue to serve; may be repeated.
    #[arg(long = "queue", required = true)]
    queues: Vec<String>,
    /// Its lease.
    #[arg(long)]
    lease_ms: u64,
}

/// A line of a history.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Run(Event),
    /// The worker could not reach the store, nor renew its leases.
    Away(Span),
}

/// A start or an end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) id: punctual::JobId,
    pub(crate) worker: String,
    pub(crate) fence: u64,
    /// Where the run before this one ended with its lease: whose that was.
    pub(crate) taken_from: Option<String>,
    /// The due time in force.
    pub(crate) run_at_ms: u64,
    /// The wall clock, in microseconds.
    pub(crate) at_us: u64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Start,
    /// The handler came to its end, and asked for a retry or not.
    Done,
    Failed,
}

fn write_line(mut file: &File, line: &Line) -> Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    Ok(file.write_all(&line)?)
}

/// Writes down when the store can't be reached from here: its parent's calls may have found it meanwhile.
async fn watch(client: &Client, store: &str, queue: &str, file: &File) -> Result<()> {
    let absences = Absences::of(store);
    loop {
        absences.outlast(async || client.count(Some(queue)).await).await?;
        for span in absences.take() {
            write_line(file, &Line::Away(span))?;
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Serves the demo's queues until it is killed, or the demo is gone.
pub(crate) async fn run_worker(store: &str, args: &DemoWorker) -> Result<()> {
    // One write per line, straight to the kernel: a line survives SIGKILL once its call returned.
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&args.history)
        .context("could not open the history")?;
    let (name, file) = (args.name.clone(), Arc::new(file));
    let history = Arc::clone(&file);
    let handler = move |job: JobRecord, ctx: Ctx<()>| {
        let (name, file) = (name.clone(), Arc::clone(&file));
        async move {
            let last = job.failures.last().filter(|_| 0 < job.expired_leases);
            let write = |what| -> Result<()> {
                let at_us = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64;
                let run_at_ms = job.run_at.as_ms();
                let event = Event {
                    id: job.id,
                    worker: name.clone(),
                    fence: ctx.fence(),
                    taken_from: last.map(|failure| failure.worker.clone()),
                    run_at_ms,
                    at_us,
                    what,
                };
                write_line(&file, &Line::Run(event))
            };
            write(What::Start)?;
            tokio::time::sleep(if job.kind == "demo.slow" { SLOW } else { QUICK }).await;
            let fails =
                job.kind == "demo.always-fails" || (job.kind == "demo.fails-once" && job.attempt == 1);
            write(if fails { What::Failed } else { What::Done })?;
            anyhow::Ok(if fails {
                Outcome::retry("the demo fails this run on purpose")
            } else {
                Outcome::Done
            })
        }
    };
    // It may be started just when the store is away.
    let client = Absences::default().outlast(async || Client::connect(store).await).await?;
    let mut worker =
        Worker::new(&client).name(&args.name).slots(SLOTS).lease(Duration::from_millis(args.lease_ms));
    for queue in &args.queues {
        worker = worker.queue(queue);
    }
    let gone = CancellationToken::new();
    let told = gone.clone();
    // The demo holds the other end and writes nothing: the end of stdin is that of the demo.
    std::thread::Builder::new().name("demo watcher".into()).spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        told.cancel();
    })?;
    let mut work = pin!(worker.handle_raw(handler).run_until(gone));
    tokio::select! {
        done = &mut work => done?,
        Err(_) = watch(&client, store, &args.queues[0], &history) => work.await?,
    };
    Ok(())
}
