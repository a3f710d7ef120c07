//! Order and deduplication, and tenants of standard queues.

use std::time::Duration;

use serde_json::{Value, json};

use crate::site::{Answer, Site, body, url};

async fn site() -> Site {
    let site = Site::new().await;
    let attributes = json!({"FifoQueue": "true"});
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": attributes})).await.ok();
    site
}

async fn send(site: &Site, group: &str, id: &str, text: &str) -> Answer {
    let body = json!({
        "QueueUrl": url("q.fifo"), "MessageBody": text, "MessageGroupId": group, "MessageDeduplicationId": id,
    });
    site.ask("SendMessage", body).await
}

#[tokio::test]
async fn messages_of_a_group_come_in_order_one_at_a_time_and_groups_side_by_side() {
    let site = site().await;
    for n in 0..3 {
        for group in ["a", "b"] {
            send(&site, group, &format!("{group}{n}"), &format!("{group}{n}")).await.ok();
        }
    }
    for n in 0..3 {
        let received = site.receive("q.fifo", 10).await;
        let mut bodies: Vec<String> = received.iter().map(body).collect();
        bodies.sort();
        assert_eq!(bodies, [format!("a{n}"), format!("b{n}")]);
        assert!(site.receive("q.fifo", 10).await.is_empty());
        for message in &received {
            assert_eq!(message["Attributes"]["MessageGroupId"], body(message)[..1]);
            assert_eq!(message["Attributes"]["MessageDeduplicationId"], body(message));
            site.delete("q.fifo", message).await;
        }
    }
    assert!(site.receive("q.fifo", 10).await.is_empty());
}

/// Whether its time ends or is ended, and however often: the next one of its group waits.
#[tokio::test]
async fn a_message_that_comes_back_keeps_its_place() {
    let site = site().await;
    for n in 0..3 {
        send(&site, "a", &n.to_string(), &n.to_string()).await.ok();
        site.t.advance(Duration::from_millis(1));
    }
    for n in 1..=12 {
        let message = site.receive("q.fifo", 10).await.remove(0);
        assert_eq!(
            (body(&message), &message["Attributes"]["ApproximateReceiveCount"]),
            ("0".into(), &json!(n.to_string()))
        );
        if n % 2 == 0 {
            site.t.advance(Duration::from_secs(10));
        } else {
            let change = json!({
                "QueueUrl": url("q.fifo"), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0,
            });
            site.ask("ChangeMessageVisibility", change).await.ok();
            assert!(site.receive("q.fifo", 10).await.is_empty());
            site.t.advance(Duration::from_secs(1));
        }
    }
    for n in 0..3 {
        let message = site.receive("q.fifo", 10).await.remove(0);
        assert_eq!(body(&message), n.to_string());
        site.delete("q.fifo", &message).await;
    }
}

#[tokio::test]
async fn a_message_that_was_sent_before_is_accepted_and_not_sent_again_for_five_minutes() {
    let site = site().await;
    let first = send(&site, "a", "1", "x").await.ok();
    let again = send(&site, "a", "1", "y").await.ok();
    assert_eq!(
        (&first["MessageId"], &first["SequenceNumber"]),
        (&again["MessageId"], &again["SequenceNumber"])
    );
    assert_eq!(first["SequenceNumber"].as_str().unwrap().len(), 20);
    let message = site.receive("q.fifo", 10).await.remove(0);
    assert_eq!(message["Attributes"]["SequenceNumber"], first["SequenceNumber"]);
    site.delete("q.fifo", &message).await;
    // Also after it was deleted.
    send(&site, "a", "1", "z").await.ok();
    assert!(site.receive("q.fifo", 10).await.is_empty());
    site.t.advance(Duration::from_millis(299_999));
    send(&site, "a", "1", "z").await.ok();
    assert!(site.receive("q.fifo", 10).await.is_empty());
    site.t.advance(Duration::from_millis(1));
    send(&site, "a", "1", "z").await.ok();
    assert_eq!(site.bodies("q.fifo", 10).await, ["z"]);
    // Within a message group only.
    send(&site, "b", "1", "b").await.ok();
    assert_eq!(site.bodies("q.fifo", 10).await, ["b"]);
}

#[tokio::test]
async fn content_can_stand_for_an_id() {
    let site = site().await;
    let send = async |text: &str| {
        let body = json!({"QueueUrl": url("q.fifo"), "MessageBody": text, "MessageGroupId": "a"});
        site.ask("SendMessage", body).await
    };
    assert_eq!(send("x").await.code(), "InvalidParameterValue");
    let set = json!({"QueueUrl": url("q.fifo"), "Attributes": {"ContentBasedDeduplication": "true"}});
    site.ask("SetQueueAttributes", set).await.ok();
    let (first, again, other) = (send("x").await.ok(), send("x").await.ok(), send("y").await.ok());
    assert_eq!(first["MessageId"], again["MessageId"]);
    assert_ne!(first["MessageId"], other["MessageId"]);
}

#[tokio::test]
async fn what_is_not_for_a_queue_of_this_kind_is_refused() {
    let site = site().await;
    let send = async |more: Value| {
        let mut body = more;
        body["QueueUrl"] = json!(url("q.fifo"));
        body["MessageBody"] = json!("x");
        site.ask("SendMessage", body).await
    };
    assert_eq!(send(json!({"MessageDeduplicationId": "1"})).await.code(), "MissingParameter");
    let delayed = json!({"MessageGroupId": "a", "MessageDeduplicationId": "1", "DelaySeconds": 1});
    assert_eq!(send(delayed).await.code(), "InvalidParameterValue");
    assert_eq!(
        send(json!({"MessageGroupId": "a b", "MessageDeduplicationId": "1"})).await.code(),
        "InvalidParameterValue"
    );
    site.ask("CreateQueue", json!({"QueueName": "q"})).await.ok();
    let body = json!({"QueueUrl": url("q"), "MessageBody": "x", "MessageDeduplicationId": "1"});
    assert_eq!(site.ask("SendMessage", body).await.code(), "InvalidParameterValue");
}

#[tokio::test]
async fn a_message_group_of_a_standard_queue_is_a_tenant_with_a_fair_share() {
    let site = Site::with_queue().await;
    let send = async |group: &str, text: &str| {
        let body = json!({"QueueUrl": url("q"), "MessageBody": text, "MessageGroupId": group});
        site.ask("SendMessage", body).await.ok();
    };
    for n in 0..100 {
        send("noisy", &format!("noisy{n}")).await;
    }
    send("quiet", "quiet0").await;
    send("quiet", "quiet1").await;
    let received = site.receive("q", 10).await;
    let quiet: Vec<&Value> = received.iter().filter(|message| body(message).starts_with("quiet")).collect();
    assert_eq!((received.len(), quiet.len()), (10, 2));
    assert_eq!(quiet[0]["Attributes"]["MessageGroupId"], "quiet");
}

/// A purge, and a queue that was made again, have no history.
#[tokio::test(start_paused = true)]
async fn an_id_can_be_sent_again_after_a_purge_and_to_another_queue_of_the_name() {
    let site = site().await;
    let queue = json!({"QueueUrl": url("q.fifo")});
    let create = async || {
        site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}}))
            .await
            .ok()
    };
    let take = async |text: &str| {
        send(&site, "a", "1", text).await.ok();
        let message = site.receive("q.fifo", 10).await.remove(0);
        assert_eq!(
            (body(&message), &message["Attributes"]["MessageDeduplicationId"]),
            (text.into(), &json!("1"))
        );
        site.delete("q.fifo", &message).await;
        // Within it, it is the same message.
        send(&site, "a", "1", text).await.ok();
        assert!(site.receive("q.fifo", 10).await.is_empty());
    };
    take("0").await;
    site.ask("PurgeQueue", queue.clone()).await.ok();
    take("1").await;
    site.ask("DeleteQueue", queue.clone()).await.ok();
    create().await;
    take("2").await;
    site.ask("DeleteQueue", queue).await.ok();
    // Also if nothing is left of the old queue.
    let doc = punctual::store::DocOp::Get { key: "sqs/q.fifo".to_owned() };
    while site.client().store().doc(&doc).await.unwrap() != punctual::store::DocReply::Is(None) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    site.t.advance(Duration::from_secs(2));
    create().await;
    take("3").await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_of_the_generation_of_its_queue_and_keeps_its_id() {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "dead.fifo", "Attributes": {"FifoQueue": "true"}}))
        .await
        .ok();
    let arn = "arn:aws:sqs:eu-test-1:000000000000:dead.fifo";
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let attributes = json!({"FifoQueue": "true", "RedrivePolicy": policy});
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": attributes})).await.ok();
    send(&site, "a", "1", "x").await.ok();
    site.ask("PurgeQueue", json!({"QueueUrl": url("dead.fifo")})).await.ok();
    assert_eq!(site.receive("q.fifo", 10).await.len(), 1);
    // By its time alone, it could still be of before the purge.
    site.t.advance(Duration::from_secs(10));
    assert!(site.receive("q.fifo", 10).await.is_empty());
    let letter = site.receive("dead.fifo", 10).await.remove(0);
    assert_eq!((body(&letter), &letter["Attributes"]["MessageDeduplicationId"]), ("x".into(), &json!("1")));
}
