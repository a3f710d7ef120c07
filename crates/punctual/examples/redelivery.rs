//! What a crashed consumer held is delivered again, and an acknowledgement that comes too late changes nothing.
//!
//! A queue made at home moves a message to a backup list as it hands it out, removes it there when it is acknowledged, and
//! puts back after a timeout what was not. That leaves open who acknowledges what: a consumer that was only slow removes the
//! entry that by then is another's. Here a consumer holds a job under a *lease*, whose number, the *fence*, rises with each
//! delivery: whoever comes with an old one is told that it has lost its lease. The worker extends leases by itself, however
//! long a job takes, and counts crashes, so that a job that takes its consumers down is given up on in the end.
//!
//! ```sh
//! cargo run -p punctual --example redelivery
//! cargo run -p punctual --example redelivery --features redis -- --store redis://localhost
//! ```

#[path = "support/consumer.rs"]
mod consumer;
#[path = "support/place.rs"]
mod place;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use consumer::Consumer;
use punctual::{
    Client, Ctx, Job, Worker,
    client::Spec,
    store::{CallId, QueueRequest, Reserve, Settled, Settlement, Verdict},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PARCELS: u32 = 6;
/// What the consumer holds that crashes.
const HELD: usize = 3;
/// How long to wait for a delivery, at most.
const PATIENCE: Duration = Duration::from_mins(1);

/// The lease is short, so that what a consumer held comes back soon; 15 s unless chosen otherwise.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "parcel.send", queue = "parcels", lease = "1s")]
struct SendParcel {
    parcel: u32,
}

/// A delivery, as its handler sees it.
struct Delivery {
    parcel: u32,
    attempt: u32,
    expired_leases: u32,
    fence: u64,
}

async fn send(job: SendParcel, ctx: Ctx<mpsc::UnboundedSender<Delivery>>) -> Result<(), Failure> {
    let (attempt, expired_leases, fence) = (ctx.attempt(), ctx.record().expired_leases, ctx.fence());
    println!("parcel {} sent: attempt {attempt}, crashes {expired_leases}", job.parcel);
    Ok(ctx.state().send(Delivery { parcel: job.parcel, attempt, expired_leases, fence })?)
}

/// The consumer that will crash: it never comes to an end with what it holds.
async fn hold(job: SendParcel, _ctx: Ctx) {
    println!("holds parcel {}", job.parcel);
    std::future::pending::<()>().await;
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let client = Client::connect(&place.url).await?;
    if consumer::is_consumer() {
        let worker = Worker::new(&client).queue("parcels").slots(HELD).handle(hold);
        worker.run_until(consumer::let_go()).await?;
        return Ok(());
    }

    // Each job carries its own id: a producer whose answer was lost says it again, and nothing is there twice.
    for _ in 0..2 {
        let parcels = client.enqueue_many((1..=PARCELS).map(|parcel| SendParcel { parcel }));
        let own_id = |job: &SendParcel, spec: &mut Spec| {
            spec.idempotency_key(format!("parcel-{}", job.parcel));
        };
        let new = parcels.each(own_id).await?.iter().filter(|answer| answer.is_new()).count();
        println!("the producer says {PARCELS} parcels: {new} are new");
    }

    // One consumer crashes with three of them.
    let mut crashing = Consumer::start("consumer", &["--store", &place.url])?;
    let mut held = BTreeSet::new();
    for _ in 0..HELD {
        held.insert(crashing.until_says("holds parcel ").await.parse::<u32>()?);
    }
    crashing.kill()?;
    println!("the consumer is killed");

    // Another one works with bare verbs and sends no heartbeat: it sleeps through its lease, with one parcel.
    let call = CallId { instance: fastrand::u64(..), number: 1 };
    let queues = vec![QueueRequest { queue: "parcels".to_owned(), share: 1, at_most: 1 }];
    let asleep = Reserve { call, worker: "asleep".to_owned(), queues, n: 1, lease: None, company: false };
    let asleep = client.store().reserve(&asleep).await?.jobs.pop().ok_or("no parcel is due")?;
    let slept = SendParcel::decode(&asleep.job.payload)?.parcel;
    held.insert(slept);

    // The third one delivers what is left at once, and the rest when the leases of those two have ended.
    let (delivered, mut deliveries) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = Worker::new(&client).queue("parcels").state(delivered).handle(send);
    let working = tokio::spawn(worker.run_until(stop.clone()));
    let mut sent = BTreeMap::new();
    while sent.len() < PARCELS as usize {
        let delivery = timeout(PATIENCE, deliveries.recv()).await?.ok_or("the worker ended")?;
        let again = sent.insert(delivery.parcel, delivery);
        assert!(again.is_none(), "no parcel is sent twice");
    }

    // The sleeper wakes up, and acknowledges what has long been another's.
    let ack = Settlement { lease: asleep.lease, verdict: Verdict::Ack };
    let (answers, _) = client.store().settle(&[ack], None).await?;
    println!("the one that slept acknowledges: {:?}", answers[0]);
    assert_eq!(answers, [Settled::LeaseLost]);

    stop.cancel();
    let report = working.await??;
    let again: BTreeSet<u32> = sent.values().filter(|is| 1 < is.attempt).map(|is| is.parcel).collect();
    assert_eq!(again, held, "what those two held came again, and nothing else");
    assert!(sent.values().all(|is| is.attempt == is.expired_leases + 1), "and each crash is counted");
    assert!(asleep.lease.fence < sent[&slept].fence, "fences rise");
    let counts = client.count(Some("parcels")).await?;
    assert_eq!((counts.done, counts.waiting, counts.running, counts.dead), (u64::from(PARCELS), 0, 0, 0));
    println!(
        "checked  {} parcels sent once each, {} of them by redelivery, 0 left",
        report.done,
        again.len()
    );
    Ok(())
}
