//! Orders that are not paid in time are closed, each once, and three services hear of each, once: whoever crashes meanwhile.
//!
//! A queue made at home keeps order numbers in a sorted set by their time, and a pool of threads takes out what is due. That
//! leaves open what becomes of an order whose consumer crashes with it, and how more than one service hears of it. Here the
//! close of an order is a delayed job, cancelled when the order is paid; what a consumer held that crashed goes to another.
//! The shop's database closes an order only where it is unpaid, and the event is published under the order's number: so a
//! second run changes nothing, and makes up for what the first one left out. A topic makes of the event a job for each
//! service that has subscribed.
//!
//! ```sh
//! cargo run -p punctual --example order_timeout
//! cargo run -p punctual --example order_timeout --features redis -- --store redis://localhost
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
use place::argument;
use punctual::{Client, Ctx, Job, State, Worker, client::Cancelled};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Half an hour, for customers who can wait that long.
const PAY_WITHIN: Duration = Duration::from_secs(2);
const ORDERS: u32 = 12;
const SERVICES: [&str; 3] = ["coupons", "mail", "stock"];
/// How long to wait for an event, at most.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "order.close", queue = "orders", lease = "1s")]
struct CloseOrder {
    order: u32,
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "order.closed")]
struct OrderClosed {
    order: u32,
}

/// The shop's own database, which knows nothing of jobs.
fn open(file: &str) -> rusqlite::Result<Connection> {
    let shop = Connection::open(file)?;
    shop.busy_timeout(PATIENCE)?;
    Ok(shop)
}

const TABLE: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT, closings INT)";
const PLACE: &str = "INSERT INTO orders VALUES (?1, 'unpaid', 0)";
const PAY: &str = "UPDATE orders SET state = 'paid' WHERE id = ?1 AND state = 'unpaid'";
/// Leaves one alone that is closed already, and finds none that is paid.
const CLOSE: &str = "UPDATE orders SET closings = closings + (state = 'unpaid'), state = 'closed' \
    WHERE id = ?1 AND state <> 'paid'";

async fn close(job: CloseOrder, ctx: Ctx<String>) -> Result<(), Failure> {
    let order = job.order;
    if open(ctx.state())?.execute(CLOSE, [order])? == 0 {
        return Ok(()); // it was paid in the last moment
    }
    println!("order {order} is closed (attempt {})", ctx.attempt());
    if argument("--stumbles").is_some() {
        println!("stops before it publishes that order {order} is closed");
        std::future::pending::<()>().await;
    }
    let event = ctx.client().topic("order.closed").publish(OrderClosed { order });
    event.idempotency_key(order.to_string()).await?;
    Ok(())
}

type Heard = mpsc::UnboundedSender<(String, u32)>;

async fn hear(job: OrderClosed, ctx: Ctx<Heard>) -> Result<(), Failure> {
    Ok(ctx.state().send((ctx.queue().to_owned(), job.order))?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let client = Client::connect(&place.url).await?;
    if consumer::is_consumer() {
        let shop = argument("--shop").ok_or("a consumer needs a shop")?;
        let worker = Worker::new(&client).queue("orders").slots(1).state(shop).handle(close);
        worker.run_until(consumer::let_go()).await?;
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let shop_file = folder.path().join("shop.db").display().to_string();
    let shop = open(&shop_file)?;
    shop.execute(TABLE, [])?;

    // Twelve orders are placed, and some of them are paid.
    let mut unpaid = BTreeMap::new();
    for order in 1..=ORDERS {
        shop.execute(PLACE, [order])?;
        let job = client.enqueue(CloseOrder { order }).delay(PAY_WITHIN).idempotency_key(order.to_string());
        unpaid.insert(order, job.await?.id().ok_or("the queue is full")?);
    }
    for order in [4, 8, 12] {
        assert_eq!(shop.execute(PAY, [order])?, 1);
        let job = unpaid.remove(&order).ok_or("it was not placed")?;
        assert_eq!(client.cancel(job).await?, Cancelled::Done);
        println!("order {order} is paid: its close is cancelled");
    }

    // Three services listen; in life, each is a program of its own.
    let (heard, mut hears) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let mut services = Vec::new();
    for service in SERVICES {
        client.topic("order.closed").subscribe(service).await?;
        let worker = Worker::new(&client).name(service).queue(service).state(heard.clone()).handle(hear);
        services.push(tokio::spawn(worker.run_until(stop.clone())));
    }

    // Three processes close orders. One of them dies between closing one and telling of it.
    let arguments = ["--store", &place.url, "--shop", &shop_file];
    let mut first = Consumer::start("consumer 1", &[&arguments[..], &["--stumbles", "yes"]].concat())?;
    first.until_says("stops before").await;
    let _others = [Consumer::start("consumer 2", &arguments)?, Consumer::start("consumer 3", &arguments)?];
    first.kill()?;
    println!("consumer 1 is killed");

    let mut told = BTreeSet::new();
    while told.len() < unpaid.len() * SERVICES.len() {
        let (service, order) = timeout(PATIENCE, hears.recv()).await?.ok_or("the services ended")?;
        assert!(unpaid.contains_key(&order), "no service hears of an order that is paid");
        assert!(told.insert((service, order)), "and none hears of one twice");
    }
    let mut crashes = 0;
    for job in unpaid.values() {
        let job = client.finished(*job, PATIENCE).await?.ok_or("its record is gone")?;
        assert_eq!(job.state, State::Done);
        crashes += job.failures.len();
    }
    stop.cancel();
    let mut done = 0;
    for service in services {
        done += service.await??.done;
    }

    let is_right = "SELECT count(*) FROM orders WHERE closings = (state = 'closed') AND state <> 'unpaid'";
    let right: u32 = shop.query_row(is_right, [], |row| row.get(0))?;
    assert_eq!((right, unpaid.len()), (ORDERS, 9), "each that was not paid is closed, once, and no other");
    assert_eq!((told.len(), done), (27, 27), "each service heard of each, once");
    assert!(0 < crashes, "what the dead one held was delivered again");
    println!("checked  9 of {ORDERS} orders closed once each, {done} events: one each to each of 3 services");
    Ok(())
}
