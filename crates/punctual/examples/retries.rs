//! Failures: retries by backoff, what a handler may say, and what becomes of the dead.
//!
//! `cargo run -p punctual --example retries`

use std::time::Duration;

use punctual::{Client, Ctx, Job, Outcome, State, Worker, job::Filter, store::Action};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "fetch", max_attempts = 3, backoff = "exp 50ms..1s")]
struct Fetch {
    url: String,
}

/// Tells of jobs that have ended.
type Ended = mpsc::UnboundedSender<()>;

async fn fetch(job: Fetch, ctx: Ctx<Ended>) -> Result<Outcome, std::io::Error> {
    println!("{} attempt {}/{}", job.url, ctx.attempt(), ctx.max_attempts());
    match job.url.as_str() {
        // Counts nothing: not a failure, only not now.
        "busy" if ctx.record().snoozes == 0 => return Ok(Outcome::Snooze(Duration::from_millis(100))),
        // Given up on at once: no repetition would help.
        "gone" => return Ok(Outcome::Dead("410 gone".to_owned())),
        // An error waits for the backoff; so do a panic and a timeout.
        "flaky" if ctx.attempt() < 3 => return Err(std::io::Error::other("connection reset")),
        "down" => return Err(std::io::Error::other("connection refused")),
        _ => {}
    }
    let _ = ctx.state().send(());
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let client = Client::connect("memory:").await?;
    for url in ["fine", "busy", "gone", "flaky", "down"] {
        client.enqueue(Fetch { url: url.to_owned() }).await?;
    }

    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).state(ended.clone()).handle(fetch).on_dead(move |job, reason| {
        println!("dead: {} ({reason}), failed {} times", job.id.short(), job.failures.len());
        let _ = ended.send(());
        std::future::ready(())
    });
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..5 {
        has_ended.recv().await;
    }
    stop.cancel();

    let report = working.await.expect("invariant: the worker catches panics")?;
    println!(
        "{} done, {} retried, {} snoozed, {} dead",
        report.done, report.retried, report.snoozed, report.dead
    );
    assert_eq!((report.done, report.retried, report.snoozed, report.dead), (3, 4, 1, 2));

    // Dead jobs are kept for people, who may try them again: as if they had never run.
    let dead = Filter::all().state([State::Dead]);
    let again = client.act_where(&dead, &Action::Retry, |_| {}).await?;
    assert_eq!((again.done, client.count(None).await?.waiting), (2, 2));
    Ok(())
}
