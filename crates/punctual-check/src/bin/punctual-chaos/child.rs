//! The processes that are killed. Each writes a history of its own.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use punctual::{
    Client, Ctx, JobRecord, Worker,
    store::sqlite::{SqliteOptions, SqliteStore},
};
use punctual_check::{
    Recorder, RecordingStore,
    event::{Hex, What},
};

use crate::jobs::{self, QUEUE};

/// Jobs that a producer hands over at once.
const BATCH: u32 = 1_000;

/// `worker DB HISTORY PROC SLOTS LEASE_MS` or `producer DB HISTORY PROC JOBS`.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a process can start threads");
    match runtime.block_on(child(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("punctual-chaos child: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn child(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["worker", db, history, proc, slots, lease_ms] => {
            let (slots, lease) = (slots.parse()?, Duration::from_millis(lease_ms.parse()?));
            let (client, recorder) = open(db, history, proc, slots)?;
            work(&client, recorder, slots, lease).await
        }
        ["producer", db, history, proc, jobs] => {
            let (client, _) = open(db, history, proc, 0)?;
            produce(&client, jobs.parse()?).await
        }
        _ => Err(format!("{args:?} are no arguments of a child").into()),
    }
}

fn open(
    db: &str,
    history: &str,
    proc: &str,
    slots: usize,
) -> Result<(Client, Arc<Recorder>), Box<dyn std::error::Error>> {
    let recorder = Arc::new(Recorder::create(Path::new(history), proc, slots as u64)?);
    let store = Arc::new(SqliteStore::open(db, SqliteOptions::default())?);
    Ok((Client::new(Arc::new(RecordingStore::new(store, Arc::clone(&recorder)))), recorder))
}

/// Works until SIGTERM, or SIGKILL.
async fn work(
    client: &Client,
    recorder: Arc<Recorder>,
    slots: usize,
    lease: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let name = recorder.proc().to_owned();
    Worker::new(client)
        .name(name)
        .queue(QUEUE)
        .slots(slots)
        .lease(lease)
        .handle_raw(move |job: JobRecord, ctx: Ctx| {
            let recorder = Arc::clone(&recorder);
            async move {
                let (id, fence) = (job.id, ctx.fence());
                recorder.note(What::Start { id, fence, sum: Hex::fingerprint(&job.payload.bytes) });
                let outcome = jobs::handle(&job, &ctx).await;
                recorder.note(What::End { id, fence });
                outcome
            }
        })
        .run()
        .await?;
    Ok(())
}

/// Hands over all jobs, from the first on, whatever an earlier run of it did.
async fn produce(client: &Client, jobs: u32) -> Result<(), Box<dyn std::error::Error>> {
    for from in (0..jobs).step_by(BATCH as usize) {
        client.push((from..jobs.min(from + BATCH)).map(jobs::plain).collect()).await?;
    }
    Ok(())
}
