//! Purging and deleting queues.

use std::time::Duration;

use futures_util::poll;
use serde_json::{Value, json};

use crate::site::{Answer, Site, url};

/// Makes a request that waits for the clock of the store to go on.
async fn ask(site: &Site, action: &str, body: Value) -> Answer {
    let mut asked = Box::pin(site.ask(action, body));
    loop {
        if let std::task::Poll::Ready(answer) = poll!(&mut asked) {
            return answer;
        }
        site.t.advance(Duration::from_millis(1));
        tokio::time::advance(Duration::from_millis(1)).await;
    }
}

async fn purge(site: &Site) {
    ask(site, "PurgeQueue", json!({"QueueUrl": url("q")})).await.ok();
}

/// Waits until the messages of a queue are gone.
async fn cleaned(site: &Site) {
    while site.client().count(Some("q")).await.unwrap().waiting != 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Trap: only what was there when it was asked.
#[tokio::test(start_paused = true)]
async fn a_purge_removes_what_was_sent_before_it_and_nothing_later() {
    let site = Site::with_queue().await;
    for n in 0..5 {
        site.send(&n.to_string()).await;
    }
    let delayed = json!({"QueueUrl": url("q"), "MessageBody": "later", "DelaySeconds": 5});
    site.ask("SendMessage", delayed).await.ok();
    let hidden = site.receive("q", 1).await.remove(0);
    purge(&site).await;
    site.send("new").await;
    assert_eq!(site.bodies("q", 10).await, ["new"]);
    // Not even what was received, or delayed.
    site.t.advance(Duration::from_secs(9));
    assert!(site.bodies("q", 10).await.is_empty());
    site.t.advance(Duration::from_secs(1));
    assert_eq!(site.bodies("q", 10).await, ["new"]);
    site.delete("q", &hidden).await;
    cleaned(&site).await;
}

/// As after a kill of the server that was about to remove them.
#[tokio::test(start_paused = true)]
async fn a_purge_holds_for_messages_that_nobody_has_removed_yet() {
    let site = Site::with_queue().await;
    let hidden = site.send("x").await;
    assert_eq!(site.bodies("q", 1).await, ["x"]);
    site.stop.cancel();
    purge(&site).await;
    site.send("new").await;
    site.t.advance(Duration::from_secs(10));
    assert_eq!(site.bodies("q", 10).await, ["new"]);
    let job = site.client().get(hidden.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(job.reason.as_deref(), Some("purged"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_queue_is_gone_with_its_messages() {
    let site = Site::with_queue().await;
    for n in 0..5 {
        site.send(&n.to_string()).await;
    }
    site.ask("DeleteQueue", json!({"QueueUrl": url("q")})).await.ok();
    for (action, more) in [
        ("SendMessage", json!({"MessageBody": "x"})),
        ("ReceiveMessage", json!({})),
        ("GetQueueAttributes", json!({})),
    ] {
        let mut body = more;
        body["QueueUrl"] = json!(url("q"));
        assert_eq!(site.ask(action, body).await.code(), "AWS.SimpleQueueService.NonExistentQueue");
    }
    assert_eq!(site.ask("ListQueues", json!({})).await.ok(), json!({}));
    cleaned(&site).await;
    // The mark goes, too.
    let doc = punctual::store::DocOp::Get { key: "sqs/q".to_owned() };
    while site.client().store().doc(&doc).await.unwrap() != punctual::store::DocReply::Is(None) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    site.ask("CreateQueue", json!({"QueueName": "q"})).await.ok();
    assert!(site.bodies("q", 10).await.is_empty());
}

/// Trap: another process that still believes in the queue can send to it for a second.
#[tokio::test(start_paused = true)]
async fn a_message_that_was_sent_to_a_deleted_queue_does_not_come_back_with_its_name() {
    let site = Site::with_queue().await;
    let other = site.other();
    let send = async || {
        site.ask_at(&other, "SendMessage", json!({"QueueUrl": url("q"), "MessageBody": "old"})).await
    };
    send().await.ok();
    site.ask("DeleteQueue", json!({"QueueUrl": url("q")})).await.ok();
    send().await.ok();
    ask(&site, "CreateQueue", json!({"QueueName": "q"})).await.ok();
    site.send("new").await;
    assert_eq!(site.bodies("q", 10).await, ["new"]);
    // Without another queue of the name, it is removed.
    send().await.ok();
    site.ask("DeleteQueue", json!({"QueueUrl": url("q")})).await.ok();
    send().await.ok();
    cleaned(&site).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(send().await.code(), "AWS.SimpleQueueService.NonExistentQueue");
}
