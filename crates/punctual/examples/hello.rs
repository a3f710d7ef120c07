//! The smallest whole: define a job, enqueue it, run it.
//!
//! `cargo run -p punctual --example hello`

use punctual::{Client, Ctx, Job, Worker};
use tokio_util::sync::CancellationToken;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "greet")]
struct Greet {
    name: String,
}

async fn greet(job: Greet, ctx: Ctx<CancellationToken>) {
    println!("Hello, {}! This is attempt {}.", job.name, ctx.attempt());
    ctx.state().cancel(); // one greeting is enough for today
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    // Ends with this process; `sqlite:jobs.db` keeps its jobs.
    let client = Client::connect("memory:").await?;
    client.enqueue(Greet { name: "Ana".to_owned() }).await?;

    let stop = CancellationToken::new();
    let report = Worker::new(&client).state(stop.clone()).handle(greet).run_until(stop).await?;
    assert_eq!(report.done, 1);
    Ok(())
}
