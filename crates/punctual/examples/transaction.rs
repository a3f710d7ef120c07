//! A job and the row that it belongs to, in one transaction: both are there, or neither.
//!
//! `cargo run -p punctual --example transaction`

use std::time::Duration;

use punctual::{
    Client, Job,
    store::sqlite::rusqlite::{Connection, TransactionBehavior},
};
use serde::{Deserialize, Serialize};

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "order.confirm", queue = "mail")]
struct Confirm {
    order: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shop.db");
    let client = Client::connect(&format!("sqlite:{}", path.display())).await?;

    // The application's own connection, as durable as the store promises to be.
    let mut db = Connection::open(&path)?;
    db.busy_timeout(Duration::from_secs(5))?;
    db.pragma_update(None, "synchronous", "full")?;
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)", [])?;

    for (order, is_paid) in [(1, true), (2, false)] {
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute("INSERT INTO orders (id) VALUES (?1)", [order])?;
        let (_, notification) = client.enqueue(Confirm { order }).in_tx(&tx)?;
        if is_paid {
            tx.commit()?;
            // Wakes a worker. A job whose notification was never sent is found all the same, a little later.
            notification.send();
        } else {
            // The order and its job are gone together.
            tx.rollback()?;
            drop(notification);
        }
    }

    let orders: u32 = db.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
    let jobs = client.count(Some("mail")).await?.waiting;
    println!("{orders} order, {jobs} job");
    assert_eq!((orders, jobs), (1, 1));
    Ok(())
}
