//! Mail about sold items: callbacks by their names, three priorities, some of it later, and a name without a handler.
//!
//! A queue made at home is a list of `[name, arguments]` that a loop pops and looks up; one list for each priority; a sorted
//! set for what comes later, and a mover from there to the lists, under a lock. That leaves open what becomes of a mail that
//! was just being moved, of one that could not be sent, and of one whose name this version of the program does not know. Here
//! the name is the job's *kind*; the priority decides among jobs that are due; and a job for later waits where all others do,
//! so that nothing moves it. A kind without a handler is held until a worker comes that has one.
//!
//! ```sh
//! cargo run -p punctual --example sold_items
//! cargo run -p punctual --example sold_items --features redis -- --store redis://localhost
//! ```

#[path = "support/place.rs"]
mod place;

use std::time::Duration;

use punctual::{Client, Ctx, Job, State, Worker};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ITEMS: [&str; 2] = ["lamp", "clock"];
/// Two days, for those who can wait that long.
const REMIND_AFTER: Duration = Duration::from_secs(1);
/// How long to wait for a mail, at most.
const PATIENCE: Duration = Duration::from_mins(1);

/// To the seller.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "mail.sold", queue = "mail", priority = "high")]
struct Sold {
    item: String,
}

/// To the buyer.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "mail.receipt", queue = "mail")]
struct Receipt {
    item: String,
}

/// To all who had an eye on it.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "mail.gone", queue = "mail", priority = "low")]
struct Gone {
    item: String,
}

/// Only the next version of the worker knows it.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "mail.voucher", queue = "mail")]
struct Voucher {
    item: String,
}

/// Hears of all mail that was sent.
type Outbox = mpsc::UnboundedSender<String>;

async fn sold(job: Sold, ctx: Ctx<Outbox>) -> Result<(), Failure> {
    send(format!("please pack the {}", job.item), &ctx)
}

async fn receipt(job: Receipt, ctx: Ctx<Outbox>) -> Result<(), Failure> {
    send(format!("you bought a {}", job.item), &ctx)
}

async fn gone(job: Gone, ctx: Ctx<Outbox>) -> Result<(), Failure> {
    send(format!("the {} is gone", job.item), &ctx)
}

async fn voucher(job: Voucher, ctx: Ctx<Outbox>) -> Result<(), Failure> {
    send(format!("thank you for buying a {}", job.item), &ctx)
}

fn send(text: String, ctx: &Ctx<Outbox>) -> Result<(), Failure> {
    println!("{:<7} {:<13} {text}", ctx.record().priority.name(), ctx.kind());
    Ok(ctx.state().send(text)?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let client = Client::connect(&place.url).await?;

    // The least urgent come first, and before all of them one that this worker does not know.
    let new = client.enqueue(Voucher { item: "lamp".to_owned() }).await?.id().ok_or("the queue is full")?;
    for item in ITEMS.map(str::to_owned) {
        client.enqueue(Gone { item: item.clone() }).await?;
        client.enqueue(Receipt { item: item.clone() }).await?;
        client.enqueue(Sold { item }).await?;
    }

    // One mail at a time, so that their order can be seen.
    let (outbox, mut sent) = mpsc::unbounded_channel();
    let mailer = || Worker::new(&client).queue("mail").slots(1).state(outbox.clone());
    let stop = CancellationToken::new();
    let worker = mailer().handle(sold).handle(receipt).handle(gone);
    let working = tokio::spawn(worker.run_until(stop.clone()));
    let mut order = Vec::new();
    while order.len() < 3 * ITEMS.len() {
        order.push(timeout(PATIENCE, sent.recv()).await?.ok_or("the worker ended")?);
    }

    // Later, with an id by which it could be cancelled.
    let later = client.enqueue(Sold { item: "lamp".to_owned() }).delay(REMIND_AFTER).await?;
    let later =
        client.finished(later.id().ok_or("the queue is full")?, PATIENCE).await?.ok_or("it is gone")?;
    let waited = later.started_at.or(later.finished_at).ok_or("it has run")?.since(later.created_at);
    println!(
        "        sent {} ms after it was enqueued, for {} ms",
        waited.as_millis(),
        REMIND_AFTER.as_millis()
    );
    stop.cancel();
    let report = working.await??;

    // The job without a handler is held. It runs when a worker has a handler for it.
    let held = client.get(new).await?.ok_or("it was dropped")?;
    println!("        {} is held: {}", held.kind, held.reason.as_deref().unwrap_or_default());
    let stop = CancellationToken::new();
    let working = tokio::spawn(mailer().handle(voucher).run_until(stop.clone()));
    client.run_now(new).await?;
    let known = client.finished(new, PATIENCE).await?.ok_or("it was dropped")?;
    stop.cancel();
    working.await??;

    let expected =
        ["please pack the lamp", "please pack the clock", "you bought a lamp", "you bought a clock"];
    assert_eq!(order[..4], expected, "high before normal");
    assert_eq!(order[4..], ["the lamp is gone", "the clock is gone"], "normal before low");
    assert!(REMIND_AFTER <= waited, "never early");
    assert_eq!((held.state, held.reason.as_deref()), (State::Waiting, Some("unknown_kind")));
    assert_eq!((known.state, known.attempt), (State::Done, 1), "to be held is no failure");
    println!(
        "checked  {} of {} mails sent, in the order of their priorities, 1 not early, 1 held and sent later",
        report.done + 1,
        client.count(Some("mail")).await?.total()
    );
    Ok(())
}
