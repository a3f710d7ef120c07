//! Jobs for later: never early, and how late they were.
//!
//! `cargo run -p punctual --example delayed`

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use punctual::{
    Client, Ctx, Job, Worker,
    store::{Acted, clock::Clock},
};
use tokio_util::sync::CancellationToken;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "remind")]
struct Remind {
    text: String,
}

fn remind(text: &str) -> Remind {
    Remind { text: text.to_owned() }
}

/// What the handlers share: the jobs that are still to come, and how to end the worker.
struct App {
    to_come: AtomicU64,
    stop: CancellationToken,
}

async fn say(job: Remind, ctx: Ctx<App>) {
    let now = Clock::System.now();
    assert!(ctx.run_at() <= now, "never early");
    println!("{} ({} ms after it was due)", job.text, now.since(ctx.run_at()).as_millis());
    if ctx.state().to_come.fetch_sub(1, Ordering::SeqCst) == 1 {
        ctx.state().stop.cancel();
    }
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let client = Client::connect("memory:").await?;
    client.enqueue(remind("now")).await?;
    client.enqueue(remind("a moment later")).delay(Duration::from_millis(150)).await?;
    client.enqueue(remind("at an instant")).at(SystemTime::now() + Duration::from_millis(300)).await?;

    // A job that waits can be moved, or cancelled.
    let moved = client.enqueue(remind("sooner than planned")).delay(Duration::from_hours(1)).await?;
    let id = moved.id().expect("invariant: a queue without a cap is never full");
    assert!(matches!(client.reschedule(id, Duration::from_millis(200)).await?, Acted::Done(..)));

    let stop = CancellationToken::new();
    let app = App { to_come: AtomicU64::new(4), stop: stop.clone() };
    let report = Worker::new(&client).state(app).handle(say).run_until(stop).await?;
    println!("{} jobs, the latest started {:?} late", report.done, report.lateness.max());
    assert_eq!(report.done, 4);
    Ok(())
}
