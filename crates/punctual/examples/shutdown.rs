//! Shutdown: handlers are asked to stop, may finish within the grace, and what doesn't is given back uncounted.
//!
//! `cargo run -p punctual --example shutdown`. A program of yours calls `.run()`, which listens for SIGINT and SIGTERM.

use std::time::Duration;

use punctual::{Client, Ctx, Job, Outcome, State, Worker};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "import")]
struct Import {
    chunks: u32,
}

type Started = mpsc::UnboundedSender<()>;

async fn import(job: Import, ctx: Ctx<Started>) -> Outcome {
    let _ = ctx.state().send(());
    let stop = ctx.cancel_token();
    for chunk in 0..job.chunks {
        if stop.is_cancelled() {
            println!("asked to stop ({:?}), goes on later from chunk {chunk}", ctx.stop_reason());
            return Outcome::Snooze(Duration::from_secs(5)); // counts nothing
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Outcome::Done
}

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "stubborn")]
struct Stubborn {}

async fn stubborn(_job: Stubborn, ctx: Ctx<Started>) {
    let _ = ctx.state().send(());
    std::future::pending::<()>().await; // does not look at its token
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let client = Client::connect("memory:").await?;
    client.enqueue(Import { chunks: 1_000 }).await?;
    let stubborn_one = client.enqueue(Stubborn {}).await?.id().expect("invariant: no cap, never full");

    let (started, mut is_started) = mpsc::unbounded_channel();
    let worker = Worker::new(&client)
        .state(started)
        .shutdown_grace(Duration::from_millis(200))
        .handle(import)
        .handle(stubborn);
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run_until(stop.clone()));
    is_started.recv().await;
    is_started.recv().await;
    stop.cancel();

    let report = working.await.expect("invariant: the worker catches panics")?;
    println!("{} snoozed by itself, {} released by the worker", report.snoozed, report.released);
    assert_eq!((report.snoozed, report.released), (1, 1));
    let job = client.get(stubborn_one).await?.expect("invariant: a waiting job is kept");
    assert_eq!((job.state, job.attempt), (State::Waiting, 1), "a shutdown is no failure");
    Ok(())
}
