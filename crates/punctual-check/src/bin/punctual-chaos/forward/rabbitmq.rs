//! The drill on a broker of RabbitMQ, by way of a network that can lose confirms.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::FieldTable,
};
use serde_json::json;

use super::{
    arrivals::Arrivals,
    frames::Proxy,
    judge::judge,
    scene::{Bad, SLOTS, Scene},
    wall_us,
};
use crate::{
    broker::{BODY_MAX, Broker},
    drill::Outcome,
    profile::Profile,
};

/// Exchange, queue and routing key of the other side.
const NAME: &str = "orders";
/// Messages that the reader may hold.
const AHEAD: u16 = 2_000;
/// Between two attempts of the reader.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the forwarder waits for a confirm.
const ANSWER: Duration = Duration::from_secs(5);
/// So many of 100 confirms are lost.
const LOST_PERCENT: u64 = 20;

/// When what happens after the first job is due, and for how long.
struct Plan {
    over: Duration,
    kill: Duration,
    delete: (Duration, Duration),
    bad: Duration,
    lose: (Duration, Duration),
    alarm: (Duration, Duration),
    stop: (Duration, Duration),
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A fault that begins before the one before it is made up for begins later.
const FULL: Plan = Plan {
    over: Duration::from_mins(1),
    kill: ms(4_000),
    delete: (ms(10_000), ms(2_000)),
    bad: ms(15_000),
    lose: (ms(18_000), ms(3_000)),
    alarm: (ms(28_000), ms(20_000)),
    stop: (ms(54_000), ms(30_000)),
};
const SMALL: Plan = Plan {
    over: Duration::from_secs(22),
    kill: ms(1_000),
    delete: (ms(3_500), ms(500)),
    bad: ms(5_500),
    lose: (ms(6_500), ms(800)),
    alarm: (ms(12_500), ms(1_000)),
    stop: (ms(16_500), ms(0)),
};

pub(super) async fn run(profile: &Profile, dir: PathBuf) -> Outcome<bool> {
    let plan = if profile.is_small { &SMALL } else { &FULL };
    let mut broker = Broker::start();
    let proxy = Proxy::to(broker.port()).await?;
    let mut scene = Scene::set(profile, dir).await?;
    declare(&channel(&broker.url()).await?.1).await?;
    let reading = tokio::spawn(read(broker.url(), Arc::clone(&scene.arrivals)));
    let to = format!(
        "{}?exchange={{header.exchange}}&routing_key={{header.key}}&answer={}s",
        Broker::url_by(proxy.port()),
        ANSWER.as_secs()
    );
    let route = |exchange: &str, key: &str| vec![("exchange", exchange.to_owned()), ("key", key.to_owned())];
    let bad = [
        Bad { headers: route("gone", NAME), bytes: 200, words: "404 NOT_FOUND", count: 3 },
        Bad { headers: route(NAME, "nobody"), bytes: 200, words: "unroutable: 312 NO_ROUTE", count: 20 },
        Bad { headers: route(NAME, NAME), bytes: BODY_MAX + 1, words: "406 PRECONDITION_FAILED", count: 3 },
    ];
    scene.begin(&to, plan.over, &route(NAME, NAME), &bad, plan.bad).await?;

    scene.until(plan.kill).await;
    scene.kill()?;

    scene.until(plan.delete.0).await;
    let begin = wall_us();
    delete(&broker.url()).await?;
    tokio::time::sleep(plan.delete.1).await;
    declare(&channel(&broker.url()).await?.1).await?;
    // Each of its jobs was told so: none is in doubt.
    scene.ended("the queue deleted", begin, 0).await?;

    scene.until(plan.bad).await;
    let begin = wall_us();
    // Until the last of them was tried twice.
    tokio::time::sleep(ms(1_000)).await;
    // Each of these closes the channel twice, once for each attempt.
    let closed = 2 * u64::from(bad[0].count + bad[2].count);
    scene.ended("the channel closed", begin, closed * SLOTS as u64).await?;

    scene.until(plan.lose.0).await;
    let begin = wall_us();
    proxy.lose(LOST_PERCENT);
    tokio::time::sleep(plan.lose.1).await;
    proxy.lose(0);
    let lost = proxy.lost();
    eprintln!("confirms of {lost} messages were lost");
    // Who waits for them is not due any more, and running.
    tokio::time::sleep(ANSWER).await;
    scene.ended("confirms lost", begin, lost).await?;

    scene.until(plan.alarm.0).await;
    let begin = wall_us();
    broker.set_memory_alarm(true);
    tokio::time::sleep(plan.alarm.1 / 2).await;
    scene.kill()?;
    tokio::time::sleep(plan.alarm.1 / 2).await;
    broker.set_memory_alarm(false);
    scene.ended("a memory alarm", begin, 0).await?;

    scene.until(plan.stop.0).await;
    let begin = wall_us();
    broker.kill();
    tokio::time::sleep(plan.stop.1 / 2).await;
    scene.kill()?;
    tokio::time::sleep(plan.stop.1 / 2).await;
    broker.restart();
    scene.ended("the broker killed and started again", begin, SLOTS as u64).await?;

    scene.rest().await?;
    reading.abort();
    judge(&scene, "rabbitmq", json!({ "lost_confirms": lost })).await
}

/// A connection, and a channel of it.
async fn channel(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// Makes the exchange and the queue, unless they are there.
async fn declare(channel: &Channel) -> lapin::Result<()> {
    let none = FieldTable::default;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(NAME.into(), lapin::ExchangeKind::Direct, durable, none()).await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(NAME.into(), durable, none()).await?;
    channel.queue_bind(NAME.into(), NAME.into(), NAME.into(), QueueBindOptions::default(), none()).await
}

/// Whatever is in a queue goes with it, confirmed or not, which is not the forwarder's doing: so nothing is routed to it any
/// more first, and it is read to its end.
async fn delete(url: &str) -> lapin::Result<()> {
    let (connection, first) = channel(url).await?;
    first.queue_unbind(NAME.into(), NAME.into(), NAME.into(), FieldTable::default()).await?;
    tokio::time::sleep(PAUSE).await;
    let options = QueueDeleteOptions { if_empty: true, ..QueueDeleteOptions::default() };
    loop {
        // A refusal closes the channel.
        let channel = connection.create_channel().await?;
        match channel.queue_delete(NAME.into(), options).await {
            Ok(_) => return Ok(()),
            Err(error) if error.to_string().contains("PRECONDITION") => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads until it is told to end, whatever becomes of the broker and the queue.
async fn read(url: String, arrivals: Arc<Arrivals>) {
    loop {
        let _ = read_on(&url, &arrivals).await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read_on(url: &str, arrivals: &Arrivals) -> lapin::Result<()> {
    let (_connection, channel) = channel(url).await?;
    channel.basic_qos(AHEAD, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let mut messages =
        channel.basic_consume(NAME.into(), "reader".into(), options, FieldTable::default()).await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        if let Some(id) = message.properties.message_id() {
            arrivals.note(id.as_str(), message.redelivered);
        }
        message.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
