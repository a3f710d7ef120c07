//! A reminder half an hour after a click on "recharge": cancelled when the recharge comes, moved when the user clicks again.
//!
//! A queue made at home keeps users in M sorted sets by the hash of their number, spread over machines that scan them, and
//! copies what is due to RabbitMQ. That leaves open what becomes of a reminder between the set and the broker, how M is
//! changed, and how one that was scanned already is cancelled. Here each user has one reminder, by a *unique key* that
//! another click moves and the recharge cancels; the store spreads jobs over its shards, whose number changes while all goes
//! on; and a forwarder has a job until the broker has confirmed it.
//!
//! ```sh
//! cargo run -p punctual-forward --example recharge_reminder -- --amqp amqp://localhost/%2f [--store redis://localhost]
//! ```

#[path = "../../punctual/examples/support/place.rs"]
mod place;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::StreamExt;
use lapin::{
    Connection, ConnectionProperties, Consumer, ExchangeKind,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use place::argument;
use punctual::{
    Client, Job, OnConflict, Unique, Worker,
    client::Cancelled,
    store::{Enqueued, UniqueKey, clock::Clock, redis::RedisStore},
    worker::Shutdown,
};
use punctual_forward::Forwarder;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Half an hour, for users who can wait that long.
const REMIND_AFTER: Duration = Duration::from_secs(2);
/// Between the first click and the second one.
const CLICKS_AGAIN_AFTER: Duration = Duration::from_millis(500);
const USERS: u32 = 20;
const SHARDS: u16 = 4;
/// How long to wait for a reminder, at most.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "recharge.remind", queue = "reminders")]
struct Remind {
    user: u32,
}

/// The user clicks: the reminder comes half an hour behind the last click.
async fn click(client: &Client, user: u32) -> punctual::Result<Enqueued> {
    let one_each = Unique::key(user.to_string()).on_conflict(OnConflict::Reschedule);
    client.enqueue(Remind { user }).unique(one_each).delay(REMIND_AFTER).await
}

/// The recharge has come: nobody has to know the reminder's id.
async fn recharge(client: &Client, user: u32) -> punctual::Result<Cancelled> {
    let key = user.to_string();
    let reminder = UniqueKey {
        kind: Some(Remind::KIND.to_owned()),
        queue: Remind::QUEUE.to_owned(),
        group: None,
        concurrency_key: None,
        key,
    };
    client.cancel(reminder).await
}

/// Whoever sends the reminders out: a queue of RabbitMQ behind an exchange, both gone with the connection.
async fn listen(broker: &Connection, exchange: &str) -> lapin::Result<Consumer> {
    let (none, channel) = (FieldTable::default(), broker.create_channel().await?);
    let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.into(), ExchangeKind::Direct, options, none.clone()).await?;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare("".into(), options, none.clone()).await?.name().clone();
    let bind = QueueBindOptions::default();
    channel.queue_bind(queue.clone(), exchange.into(), Remind::KIND.into(), bind, none.clone()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    channel.basic_consume(queue, "".into(), options, none).await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let amqp = argument("--amqp").ok_or("where is RabbitMQ? add --amqp amqp://localhost/%2f")?;
    let exchange = format!("scenario-{:08x}", fastrand::u32(..));
    let broker = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let mut arrivals = listen(&broker, &exchange).await?;

    // A file is one; a store on Redis is spread over shards, here from the second half of the users on.
    let redis = if place.url.starts_with("redis") {
        Some(Arc::new(RedisStore::open(&place.url, Clock::System).await?))
    } else {
        None
    };
    let client = match &redis {
        Some(store) => Client::new(store.clone()),
        None => Client::connect(&place.url).await?,
    };

    // All click; every fifth user recharges, and every fourth of the others clicks again.
    let mut due = BTreeMap::new();
    let mut shards = BTreeMap::<u16, u32>::new();
    for user in 1..=USERS {
        if let Some(store) = redis.as_ref().filter(|_| user == USERS / 2) {
            store.reshard(SHARDS).await?;
        }
        let Enqueued::Inserted { id, run_at } = click(&client, user).await? else {
            return Err("each user has one reminder".into());
        };
        due.insert(user, (id, run_at));
        *shards.entry(id.shard()).or_default() += 1;
    }
    println!("{USERS} users click; reminders by shard: {shards:?}");
    let (mut recharged, mut moved) = (0, 0);
    for user in (1..=USERS).filter(|user| user % 5 == 0) {
        assert_eq!(recharge(&client, user).await?, Cancelled::Done);
        due.remove(&user);
        recharged += 1;
    }
    println!("{recharged} recharge: their reminders are cancelled");
    sleep(CLICKS_AGAIN_AFTER).await;
    for (user, (id, run_at)) in due.iter_mut().filter(|(user, _)| *user % 4 == 0) {
        let first = *run_at;
        let Enqueued::Rescheduled { id: same, run_at: later } = click(&client, *user).await? else {
            return Err("a second click moves the reminder".into());
        };
        assert!(*id == same && CLICKS_AGAIN_AFTER <= later.since(first));
        *run_at = later;
        moved += 1;
    }
    println!("{moved} click again: their reminders are moved");

    // The forwarder is the handler: a job is done when the broker has confirmed it.
    let forwarder = Forwarder::to(&format!("{amqp}?exchange={exchange}&routing_key={{kind}}"))?;
    forwarder.check().await?;
    let worker = Worker::new(&client).queue(Remind::QUEUE).handle_raw(forwarder.handler());
    let stop = Shutdown::default();
    let working = tokio::spawn(worker.run_until(stop.clone()));

    let mut latest = Duration::ZERO;
    let mut reminded = BTreeMap::<u32, u32>::new();
    while reminded.len() < due.len() {
        let message = timeout(PATIENCE, arrivals.next()).await?.ok_or("the broker went away")??;
        let (now, Remind { user }) = (Clock::System.now(), serde_json::from_slice(&message.data)?);
        let (_, run_at) = due.get(&user).ok_or("one was reminded who had recharged")?;
        assert!(*run_at <= now, "never early");
        latest = latest.max(now.since(*run_at));
        *reminded.entry(user).or_default() += 1;
    }
    println!("{} messages from RabbitMQ, at most {} ms late", reminded.len(), latest.as_millis());
    for (id, _) in due.values() {
        client.finished(*id, PATIENCE).await?;
    }
    stop.graceful.cancel();
    working.await??;

    let counts = client.count(Some(Remind::QUEUE)).await?;
    assert_eq!((counts.done, counts.cancelled, counts.waiting), (16, 4, 0), "each ended as it had to");
    assert!(reminded.values().all(|times| *times == 1), "each once, since the broker was always there");
    println!("checked  16 of {USERS} reminded once each, none early, {recharged} cancelled, {moved} moved");
    Ok(())
}
