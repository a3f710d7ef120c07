//! Dead-letter queues.

use std::time::Duration;

use punctual::{JobId, JobRecord, NewJob, Payload, State, job::Filter, store::List};
use serde_json::{Value, json};

use crate::site::{Site, body, url};

async fn site(receives: u32) -> Site {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "dead"})).await.ok();
    let attributes = json!({"RedrivePolicy": policy("dead", receives)});
    site.ask("CreateQueue", json!({"QueueName": "q", "Attributes": attributes})).await.ok();
    site
}

fn policy(queue: &str, receives: u32) -> String {
    let arn = format!("arn:aws:sqs:eu-test-1:000000000000:{queue}");
    json!({"deadLetterTargetArn": arn, "maxReceiveCount": receives}).to_string()
}

async fn jobs(site: &Site, queue: &str) -> Vec<JobRecord> {
    let list = List { filter: Filter::all().queue(queue), after: None, limit: 1_000 };
    site.client().list(&list).await.unwrap().jobs
}

/// Receives all that is there, and lets it come back.
async fn fail(site: &Site) -> usize {
    let n = site.receive("q", 10).await.len();
    site.t.advance(Duration::from_secs(10));
    n
}

#[tokio::test]
async fn a_message_moves_when_it_would_be_received_too_often() {
    let site = site(2).await;
    let id = site.send("x").await;
    let sent = site.client().store().now().await.unwrap().as_ms().to_string();
    for n in 1..=2 {
        assert_eq!(fail(&site).await, 1, "{n}");
    }
    assert!(site.receive("q", 10).await.is_empty());
    let letter = site.receive("dead", 10).await.remove(0);
    assert_eq!((body(&letter), &letter["MessageId"]), ("x".to_owned(), &json!(id)));
    assert_eq!(letter["Attributes"]["SentTimestamp"], sent.as_str());
    assert_eq!(letter["Attributes"]["DeadLetterQueueSourceArn"], "arn:aws:sqs:eu-test-1:000000000000:q");
    assert_eq!(letter["Attributes"]["ApproximateReceiveCount"], "1");
    let old = jobs(&site, "q").await.remove(0);
    assert_eq!(old.state, State::Cancelled);
    assert_eq!(old.reason.as_deref(), Some("received more than 2 times: moved to dead"));
    site.delete("dead", &letter).await;
    assert!(site.receive("dead", 10).await.is_empty());
}

#[tokio::test]
async fn a_visibility_timeout_of_0_counts_as_received() {
    let site = site(3).await;
    site.send("x").await;
    for _ in 0..3 {
        let message = site.receive("q", 1).await.remove(0);
        let change =
            json!({"QueueUrl": url("q"), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0});
        site.ask("ChangeMessageVisibility", change).await.ok();
    }
    assert!(site.receive("q", 1).await.is_empty());
    assert_eq!(site.bodies("dead", 1).await, ["x"]);
}

/// Trap: the move adds headers, and a message can have as many as fit.
#[tokio::test]
async fn a_message_with_all_the_attributes_that_fit_can_move() {
    let site = site(1).await;
    let mut attributes = serde_json::Map::new();
    // 10 names of 256 bytes, and values that fill 6 KiB.
    for n in 0..10 {
        let value = if n == 0 { "x".repeat(6_144 - 10 * (14 + 256 + 7) - 9 * 300) } else { "x".repeat(300) };
        attributes.insert(format!("{n:0256}"), json!({"DataType": "String", "StringValue": value}));
    }
    let attributes = Value::Object(attributes);
    let trace = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "x".repeat(512)}});
    let send = json!({
        "QueueUrl": url("q"), "MessageBody": "x", "MessageAttributes": attributes, "MessageSystemAttributes": trace,
        "MessageGroupId": "g".repeat(128),
    });
    site.ask("SendMessage", send).await.ok();
    assert_eq!(fail(&site).await, 1);
    assert!(site.receive("q", 10).await.is_empty());
    let letter = site.receive("dead", 10).await.remove(0);
    assert_eq!(letter["MessageAttributes"], attributes);
    assert!(letter["Attributes"]["DeadLetterQueueSourceArn"].is_string());
    site.delete("dead", &letter).await;
    // A job of another program has no room at all.
    let mut job = NewJob::new(site.client().make_id(), "k", "q", Payload::json("7"));
    job.headers.insert("h".to_owned(), "x".repeat(8 * 1024 - 1));
    site.client().push(vec![job]).await.unwrap();
    assert_eq!(fail(&site).await, 1);
    assert!(site.receive("q", 10).await.is_empty());
    assert_eq!(site.bodies("dead", 10).await, ["7"]);
}

/// Trap: the id of a dead letter is derived, so that a repeated move makes no second one. An operator who lets the message wait again
/// begins another life of it.
#[tokio::test]
async fn a_message_that_dies_again_after_it_was_moved_back_is_not_lost() {
    let site = site(1).await;
    let id: JobId = site.send("x").await.parse().unwrap();
    for life in 1..=3 {
        assert_eq!(fail(&site).await, 1, "{life}");
        assert!(site.receive("q", 10).await.is_empty());
        let letter = site.receive("dead", 10).await.remove(0);
        site.delete("dead", &letter).await;
        site.client().retry(id).await.unwrap();
    }
}

#[tokio::test]
async fn a_move_that_was_cut_off_is_repeated_without_a_second_letter() {
    let site = site(1).await;
    site.send("x").await;
    assert_eq!(fail(&site).await, 1);
    // A server that was killed after the enqueue: the letter is there, and the message, too.
    let job = jobs(&site, "q").await.remove(0);
    let mut letter = NewJob::new(site.client().make_id(), &job.kind, "dead", job.payload.clone());
    letter.id = letter.derived_id(&format!("q/{}/{}", job.id, job.version));
    site.client().push(vec![letter]).await.unwrap();
    assert!(site.receive("q", 10).await.is_empty());
    assert_eq!(jobs(&site, "dead").await.len(), 1);
    assert_eq!(jobs(&site, "q").await[0].state, State::Cancelled);
}

/// Trap: many at once are moved in few looks, and a receive that moves them ends soon.
#[tokio::test]
async fn hundreds_of_dead_letters_do_not_keep_a_live_message_from_its_receiver() {
    let site = site(1).await;
    for n in 0..300 {
        site.send(&n.to_string()).await;
    }
    for _ in 0..30 {
        assert_eq!(site.receive("q", 10).await.len(), 10);
    }
    site.t.advance(Duration::from_secs(10));
    site.send("live").await;
    let begin = std::time::Instant::now();
    assert_eq!(site.bodies("q", 1).await, ["live"]);
    // Each search moves some more.
    for _ in 0..4 {
        assert!(site.bodies("q", 1).await.is_empty());
    }
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(site.client().count(Some("dead")).await.unwrap().waiting, 300);
    let counts = site.client().count(Some("q")).await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (0, 1, 0));
}

#[tokio::test]
async fn without_its_dead_letter_queue_a_message_stays() {
    let site = site(1).await;
    site.send("x").await;
    assert_eq!(fail(&site).await, 1);
    site.ask("DeleteQueue", json!({"QueueUrl": url("dead")})).await.ok();
    assert_eq!(site.bodies("q", 1).await, ["x"]);
}

#[tokio::test]
async fn a_line_goes_on_after_its_dead_letter() {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "dead.fifo"})).await.ok();
    let attributes = json!({"RedrivePolicy": policy("dead.fifo", 1), "ContentBasedDeduplication": "true"});
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": attributes})).await.ok();
    for text in ["0", "1"] {
        let body = json!({"QueueUrl": url("q.fifo"), "MessageBody": text, "MessageGroupId": "a"});
        site.ask("SendMessage", body).await.ok();
        site.t.advance(Duration::from_millis(1));
    }
    assert_eq!(site.bodies("q.fifo", 10).await, ["0"]);
    site.t.advance(Duration::from_secs(10));
    assert_eq!(site.bodies("q.fifo", 10).await, ["1"]);
    let letter = site.receive("dead.fifo", 10).await.remove(0);
    assert_eq!((body(&letter), &letter["Attributes"]["MessageGroupId"]), ("0".to_owned(), &json!("a")));
}
