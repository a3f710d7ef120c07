//! How code that uses punctual is tested: a clock that the test sets, and jobs that run in the test itself.
//!
//! `cargo run -p punctual --example testing --features testing`

use std::time::Duration;

use punctual::{
    Client, Ctx, Job,
    testing::{self, TestQueue},
};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", max_attempts = 2, backoff = "fixed 10s")]
struct SendEmail {
    to: String,
}

const HOUR: Duration = Duration::from_hours(1);

/// The code under test: a welcome goes out an hour after the sign-up.
async fn sign_up(client: &Client, to: &str) -> punctual::Result<()> {
    client.enqueue(SendEmail { to: to.to_owned() }).delay(HOUR).await?;
    Ok(())
}

/// What the handler needs; a test gives it another one.
struct Smtp {
    works: bool,
}

async fn send_email(job: SendEmail, ctx: Ctx<Smtp>) -> Result<(), String> {
    if ctx.state().works { Ok(()) } else { Err(format!("could not send to {}", job.to)) }
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let t = TestQueue::new();
    sign_up(&t.client, "ana@example.com").await?;

    // What was enqueued, and for when?
    let emails = t.enqueued::<SendEmail>().await?;
    assert_eq!((emails[0].job.to.as_str(), emails[0].delay), ("ana@example.com", HOUR));

    // Nothing is due yet; an hour later it is. No time passes.
    let worker = |works| t.worker().state(Smtp { works }).handle(send_email);
    assert_eq!(t.drain(worker(true)).await?.runs(), 0);
    t.advance(HOUR);
    assert_eq!(t.drain(worker(false)).await?.retried, 1);
    t.advance(Duration::from_secs(10));
    let report = t.drain(worker(true)).await?;
    assert_eq!((report.done, report.dead), (1, 0));

    // Or call the handler: it is a function.
    let job = SendEmail { to: "bob@example.com".to_owned() };
    assert!(send_email(job, testing::ctx(Smtp { works: true })).await.is_ok());
    println!("all as it should be");
    Ok(())
}
