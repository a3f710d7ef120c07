//! How many jobs a second are forwarded to RabbitMQ from Redis, beside a program that only publishes, with as many messages on
//! their way, on one channel, to the same broker, in the same run.
//!
//! Both publish 200 bytes to one durable queue, as persistent messages, and count what the broker confirmed. Rounds of both
//! alternate, and medians are told.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
    },
    types::FieldTable,
};
use punctual::{
    Client, NewJob, Payload,
    limits::BATCH_MAX,
    store::{Keep, QueueOp, QueueSettings, url::connect},
};
use serde_json::json;

use super::QUEUE;
use crate::{
    broker::Broker,
    crew::Crew,
    drill::Outcome,
    place::{Fsync, Place, Wanted},
    profile::Profile,
};

/// The queue of the broker.
const NAME: &str = "throughput";
const BYTES: usize = 200;
const ROUNDS: usize = 3;
/// Messages on their way at once.
const WINDOWS: [usize; 2] = [256, 1_024];
/// Messages are kept on disk.
const PERSISTENT: u8 = 2;
/// The longest that a round may take.
const PATIENCE: Duration = Duration::from_mins(5);
/// Between two looks how far it is.
const LOOK: Duration = Duration::from_millis(2);

/// Measures and tells; there is nothing to judge.
pub(super) async fn run(profile: &Profile, dir: &Path) -> Outcome<bool> {
    let broker = Broker::start();
    let place = Place::make(&Wanted::Server(Fsync::EverySec), dir);
    let connection = Connection::connect(&broker.url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(NAME.into(), durable, FieldTable::default()).await?;
    for window in WINDOWS {
        let (mut forwarded, mut published) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            published.push(publish(&connection, profile.jobs, window).await?);
            empty(&channel).await?;
            let folder = dir.join(format!("{window}-{round}"));
            std::fs::create_dir_all(&folder)?;
            forwarded.push(forward(&broker, &place, folder, profile.jobs, window).await?);
            empty(&channel).await?;
            let (f, p) = (forwarded[round - 1], published[round - 1]);
            eprintln!(
                "{window} on their way, round {round}: {f:.0} jobs/s forwarded, {p:.0} messages/s just published"
            );
        }
        let (f, p) = (median(&mut forwarded), median(&mut published));
        eprintln!("{window} on their way: {f:.0} jobs/s, {p:.0} messages/s, {:.1} %", 100.0 * f / p);
        println!(
            "{}",
            json!({ "window": window, "jobs": profile.jobs, "forwarded_per_s": f, "published_per_s": p, "ratio": f / p })
        );
    }
    channel.queue_delete(NAME.into(), QueueDeleteOptions::default()).await?;
    Ok(true)
}

async fn empty(channel: &Channel) -> lapin::Result<()> {
    channel.queue_purge(NAME.into(), QueuePurgeOptions::default()).await?;
    Ok(())
}

/// The middle one.
fn median(rates: &mut [f64]) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Messages a second of who only publishes.
async fn publish(connection: &Connection, messages: u32, window: usize) -> Outcome<f64> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let body = vec![b'x'; BYTES];
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let one = |n: u32| {
        let properties = BasicProperties::default()
            .with_message_id(format!("message {n}").into())
            .with_delivery_mode(PERSISTENT);
        let publish = channel.basic_publish("".into(), NAME.into(), options, &body, properties);
        async move { publish.await?.await }
    };
    let begin = Instant::now();
    let mut pending = FuturesUnordered::new();
    for n in 0..messages {
        if pending.len() == window {
            confirmed(pending.next().await)?;
        }
        pending.push(one(n));
    }
    while let Some(said) = pending.next().await {
        confirmed(Some(said))?;
    }
    let rate = f64::from(messages) / begin.elapsed().as_secs_f64();
    drop(pending);
    channel.close(200, "".into()).await?;
    Ok(rate)
}

fn confirmed(said: Option<lapin::Result<lapin::Confirmation>>) -> Outcome<()> {
    match said {
        Some(Ok(lapin::Confirmation::Ack(None))) => Ok(()),
        other => Err(format!("not confirmed: {other:?}").into()),
    }
}

/// Jobs a second of a forwarder, a process of its own, from the first that is done to the last.
async fn forward(
    broker: &Broker,
    place: &Place,
    folder: std::path::PathBuf,
    jobs: u32,
    window: usize,
) -> Outcome<f64> {
    let client = Client::new(connect(&place.url).await?);
    let none = Keep { age_ms: 0, count: 0, bytes: 0 };
    let settings = QueueSettings { done: none, ..QueueSettings::default() };
    client.store().queue(QUEUE, &QueueOp::Set(Box::new(settings))).await?;
    let text = format!("\"{}\"", "x".repeat(BYTES - 2));
    for from in (0..jobs).step_by(BATCH_MAX) {
        let job = |_| NewJob::new(client.make_id(), "order.paid", QUEUE, Payload::json(text.clone()));
        client.push((from..jobs.min(from + BATCH_MAX as u32)).map(job).collect()).await?;
    }
    let to = format!("{}?routing_key={NAME}", broker.url());
    let args = vec![to, window.to_string(), "15000".to_owned()];
    let mut crew = Crew::start("forwarder", &place.url, folder, args, 1)?;
    let left = async || -> Outcome<u64> {
        let counts = client.count(Some(QUEUE)).await?;
        Ok(counts.waiting + counts.running)
    };
    let patience = Instant::now();
    let (mut begin, mut first) = (Instant::now(), u64::from(jobs));
    // The process starts, and connects: that is not what is measured.
    while first == u64::from(jobs) {
        (first, begin) = (left().await?, Instant::now());
        if PATIENCE < patience.elapsed() {
            return Err("nothing is forwarded".into());
        }
        tokio::time::sleep(LOOK).await;
    }
    while 0 < left().await? {
        if PATIENCE < patience.elapsed() {
            return Err("a round takes too long".into());
        }
        tokio::time::sleep(LOOK).await;
    }
    let rate = first as f64 / begin.elapsed().as_secs_f64();
    crew.stop()?;
    Ok(rate)
}
