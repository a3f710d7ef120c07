//! Typed jobs in a transaction of the application's own.

use std::{sync::Arc, time::Duration};

use punctual::{
    Backoff, Client, ErrorKind, Job,
    client::Cancelled,
    store::{
        Enqueued, QueueSettings,
        memory::MemoryStore,
        sqlite::rusqlite::{Connection, TransactionBehavior},
    },
    testing::Clock,
};
use serde::{Deserialize, Serialize};

use super::{Folder, new_job};

#[derive(Job, Serialize, Deserialize)]
#[job(
    kind = "order.close",
    queue = "orders",
    max_attempts = 3,
    backoff = "fixed 7s",
    timeout = "9s",
    unique = "key"
)]
struct Close {
    order: String,
}

impl Close {
    fn key(&self) -> String {
        self.order.clone()
    }
}

fn close(order: &str) -> Close {
    Close { order: order.to_owned() }
}

async fn begin(folder: &Folder) -> (Client, Connection) {
    let client = Client::connect(&format!("sqlite:{}", folder.path().display())).await.unwrap();
    let app = folder.connect();
    app.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)", []).unwrap();
    (client, app)
}

/// Queue, attempts, backoff, timeout and unique key of the type go along, and so do the choices of the call.
#[tokio::test]
async fn a_typed_job_in_a_transaction_keeps_what_its_type_says() {
    let folder = Folder::new();
    let (client, mut app) = begin(&folder).await;
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO orders VALUES ('a')", []).unwrap();
    let delayed = client.enqueue(close("a")).delay(Duration::from_mins(30)).tag("shop");
    let (enqueued, notification) = delayed.in_tx(&tx).unwrap();
    let again = client.enqueue(close("a")).in_tx(&tx).unwrap().0;
    assert!(matches!(again, Enqueued::Duplicate(_)), "{again:?}");
    tx.commit().unwrap();
    notification.send();

    let job = client.get(enqueued.id().unwrap()).await.unwrap().unwrap();
    assert_eq!(
        (job.kind.as_str(), job.queue.as_str(), job.tags.as_slice()),
        ("order.close", "orders", ["shop".to_owned()].as_slice())
    );
    assert_eq!(job.run_at.as_ms() - job.created_at.as_ms(), 1_800_000);
    assert_eq!(job.max_attempts, 3);
    assert_eq!(job.timeout, Duration::from_secs(9));
    assert_eq!(job.backoff, Backoff::fixed(Duration::from_secs(7)));
}

#[tokio::test]
async fn what_is_rolled_back_leaves_no_job_and_cancels_none() {
    let folder = Folder::new();
    let (client, mut app) = begin(&folder).await;
    let kept = client.enqueue(close("kept")).await.unwrap().id().unwrap();

    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let enqueued = client.enqueue(close("gone")).in_tx(&tx).unwrap().0;
    assert_eq!(client.cancel_in(&tx, kept).unwrap().0, Cancelled::Done);
    tx.rollback().unwrap();
    assert!(client.get(enqueued.id().unwrap()).await.unwrap().is_none());
    assert_eq!(client.count(Some("orders")).await.unwrap().waiting, 1);

    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (cancelled, notification) = client.cancel_in(&tx, kept).unwrap();
    tx.commit().unwrap();
    notification.send();
    assert_eq!(cancelled, Cancelled::Done);
    let counts = client.count(Some("orders")).await.unwrap();
    assert_eq!((counts.waiting, counts.cancelled), (0, 1));
}

/// A job that a full queue refused must not be overlooked: the caller decides whether its own rows go on without it.
#[tokio::test]
async fn a_full_queue_is_an_error_in_a_transaction_that_may_go_on() {
    let folder = Folder::new();
    let (client, mut app) = begin(&folder).await;
    client
        .queue("orders")
        .set(QueueSettings { max_jobs: Some(1), ..QueueSettings::default() })
        .await
        .unwrap();

    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO orders VALUES ('a')", []).unwrap();
    client.enqueue(close("a")).in_tx(&tx).unwrap().1.send();
    let refused = client.enqueue(close("b")).in_tx(&tx).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full);
    tx.commit().unwrap();
    assert_eq!(client.count(Some("orders")).await.unwrap().waiting, 1);

    let many = client.enqueue_many([close("c"), close("d")]).await.unwrap_err();
    assert_eq!(many.kind(), ErrorKind::Full);
    assert!(many.to_string().contains("2 of 2"), "{many}");
}

#[tokio::test]
async fn another_store_says_that_it_cannot_join_a_transaction() {
    let folder = Folder::new();
    let (_client, mut app) = begin(&folder).await;
    let elsewhere = Client::new(Arc::new(MemoryStore::new(Clock::System)));
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let error = elsewhere.enqueue(close("a")).in_tx(&tx).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("sqlite:FILE"), "{error}");
    assert_eq!(elsewhere.count(None).await.unwrap().waiting, 0);
}

/// A program that was killed, or a sync that failed, may have left a hole in the log. Whoever opens the file next mends it, so that a program
/// that only enqueues in its own transactions is not refused for ever.
#[tokio::test]
async fn a_hole_that_was_left_behind_refuses_no_transaction() {
    let folder = Folder::new();
    let before = folder.open();
    std::fs::write(folder.0.path().join("jobs.db-lock"), "!").unwrap();
    let store = folder.open();
    let mut app = folder.connect();
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (enqueued, notification) = store.enqueue_in(&tx, &[new_job(1)]).unwrap();
    tx.commit().unwrap();
    notification.send();
    assert!(enqueued[0].is_new());
    drop(before);
}
