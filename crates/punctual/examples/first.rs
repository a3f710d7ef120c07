//! The README's program, to the letter.
//!
//! `cargo run -p punctual --example first`

use std::time::Duration;

use punctual::{Client, Ctx, Job, Worker};
use serde::{Deserialize, Serialize};

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "email.send", queue = "mail", max_attempts = 8, backoff = "exp 5s..6h", timeout = "30s")]
struct SendEmail {
    to: String,
}

async fn send_email(job: SendEmail, ctx: Ctx<()>) -> Result<(), std::io::Error> {
    println!("to {} (attempt {})", job.to, ctx.attempt());
    Ok(()) // an error would be retried by the backoff
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let client = Client::connect("sqlite:app.db").await?;
    client.enqueue(SendEmail { to: "ana@example.com".into() }).await?;
    client.enqueue(SendEmail { to: "bo@example.com".into() }).delay(Duration::from_secs(2)).await?;

    Worker::new(&client).queue("mail").handle(send_email).run().await?; // until Ctrl-C
    Ok(())
}
