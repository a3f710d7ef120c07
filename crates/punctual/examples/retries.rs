//! Failures: retries by backoff, what a handler may say, and what becomes of the dead.
//!
//! `cargo run -p punctual --example retries`

use std::{sync::Arc, time::Duration};

use punctual::{
    Client, Ctx, Job, JobId, Outcome, State, Worker,
    store::{Acted, clock::Clock, memory::MemoryStore},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "fetch", max_attempts = 3, backoff = "exp 50ms..1s")]
struct Fetch {
    url: String,
}

async fn fetch(job: Fetch, ctx: Ctx) -> Result<Outcome, std::io::Error> {
    println!("{} attempt {}/{}", job.url, ctx.attempt(), ctx.max_attempts());
    match job.url.as_str() {
        // Counts nothing: not a failure, only not now.
        "busy" if ctx.record().snoozes == 0 => Ok(Outcome::Snooze(Duration::from_millis(100))),
        // Given up on at once: no repetition would help.
        "gone" => Ok(Outcome::Dead("410 gone".to_owned())),
        // An error waits for the backoff; so do a panic and a timeout.
        "flaky" if ctx.attempt() < 3 => Err(std::io::Error::other("connection reset")),
        "down" => Err(std::io::Error::other("connection refused")),
        _ => Ok(Outcome::Done),
    }
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let client = Client::new(Arc::new(MemoryStore::new(Clock::System)));
    for url in ["fine", "busy", "gone", "flaky", "down"] {
        client.enqueue(Fetch { url: url.to_owned() }).await?.id();
    }

    let (tell, mut dead) = mpsc::unbounded_channel::<JobId>();
    let worker = Worker::new(&client).handle(fetch).on_dead(move |job, reason| {
        println!("dead: {} ({reason}), failed {} times", job.id.short(), job.failures.len());
        let _ = tell.send(job.id);
        std::future::ready(())
    });
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run_until(stop.clone()));

    let two = [dead.recv().await, dead.recv().await];
    stop.cancel();
    let report = working.await.expect("invariant: the worker catches panics")?;
    println!(
        "{} done, {} retried, {} snoozed, {} dead",
        report.done, report.retried, report.snoozed, report.dead
    );
    assert_eq!((report.done, report.dead, report.snoozed), (3, 2, 1));

    // Dead jobs are kept for people, who may try them again: as if they had never run.
    for id in two.into_iter().flatten() {
        assert_eq!(client.retry(id).await?, Acted::Done(id, State::Waiting));
    }
    assert_eq!(client.count(None).await?.waiting, 2);
    Ok(())
}
