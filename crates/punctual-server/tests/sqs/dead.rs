//! Dead-letter queues.

use std::{mem, sync::Arc, time::Duration};

use axum::Router;
use punctual::{
    Client, JobId, JobOptions, JobRecord, NewJob, Payload, State,
    job::{Concurrency, Filter},
    store::{List, QueueOp, QueueSettings},
    testing::{Fault, FaultyStore},
};
use punctual_server::Server;
use serde_json::{Value, json};
use tokio::{join, sync::Notify, time::Instant};

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
    site.ask("CreateQueue", json!({"QueueName": "dead.fifo", "Attributes": {"FifoQueue": "true"}}))
        .await
        .ok();
    let attributes = json!({"FifoQueue": "true", "RedrivePolicy": policy("dead.fifo", 1), "ContentBasedDeduplication": "true"});
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

/// They would pass a message on for ever.
#[tokio::test]
async fn two_queues_are_not_dead_letter_queues_of_each_other() {
    let site = site(2).await;
    let set = json!({"QueueUrl": url("dead"), "Attributes": {"RedrivePolicy": policy("q", 2)}});
    assert_eq!(site.ask("SetQueueAttributes", set.clone()).await.code(), "InvalidAttributeValue");
    let none = json!({"QueueUrl": url("q"), "Attributes": {"RedrivePolicy": ""}});
    site.ask("SetQueueAttributes", none).await.ok();
    site.ask("SetQueueAttributes", set).await.ok();
}

/// A job of another program, which can run only so often.
fn job(site: &Site, queue: &str, max_attempts: u32) -> NewJob {
    let mut job = NewJob::new(site.client().make_id(), "k", queue, Payload::json("7"));
    job.options = JobOptions { max_attempts: Some(max_attempts), ..JobOptions::default() };
    job
}

/// A job is dead after its last attempt. A message is not: it goes on as another job.
#[tokio::test]
async fn a_message_outlives_the_attempts_of_its_job() {
    for max_attempts in 1..=4 {
        let site = Site::with_queue().await;
        let job = job(&site, "q", max_attempts);
        let id = job.id.to_string();
        site.client().push(vec![job]).await.unwrap();
        let mut first = None;
        for n in 1..=9 {
            let message = site.receive("q", 1).await.remove(0);
            assert_eq!((body(&message), &message["MessageId"]), ("7".to_owned(), &json!(id)));
            let system = &message["Attributes"];
            assert_eq!(system["ApproximateReceiveCount"], n.to_string(), "{max_attempts}");
            let sent = first.get_or_insert_with(|| system["SentTimestamp"].clone());
            assert_eq!(&system["SentTimestamp"], sent);
            if n % 2 == 0 {
                let handle = &message["ReceiptHandle"];
                let change = json!({"QueueUrl": url("q"), "ReceiptHandle": handle, "VisibilityTimeout": 0});
                site.ask("ChangeMessageVisibility", change).await.ok();
            } else {
                site.t.advance(Duration::from_secs(10));
            }
        }
        let counts = site.client().count(Some("q")).await.unwrap();
        assert_eq!((counts.dead, counts.waiting + counts.running), (0, 1));
    }
}

#[tokio::test]
async fn receives_of_earlier_jobs_of_a_message_count_for_its_redrive_policy() {
    let site = site(5).await;
    site.client().push(vec![job(&site, "q", 3)]).await.unwrap();
    for n in 1..=5 {
        assert_eq!(fail(&site).await, 1, "{n}");
    }
    assert!(site.receive("q", 10).await.is_empty());
    let letter = site.receive("dead", 10).await.remove(0);
    assert_eq!(letter["Attributes"]["ApproximateReceiveCount"], "1");
    assert_eq!(site.client().count(Some("q")).await.unwrap().dead, 0);
}

#[tokio::test]
async fn a_message_keeps_its_place_in_a_line_when_it_goes_on_as_another_job() {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}})).await.ok();
    let of_group = |text: &str, max_attempts| {
        let concurrency = Some(Concurrency { key: "a".to_owned(), limit: 1 });
        NewJob { payload: Payload::json(text), concurrency, ..job(&site, "q.fifo", max_attempts) }
    };
    site.client().push(vec![of_group("0", 2)]).await.unwrap();
    site.t.advance(Duration::from_millis(1));
    site.client().push(vec![of_group("1", 9)]).await.unwrap();
    site.t.advance(Duration::from_millis(1));
    for _ in 0..4 {
        assert_eq!(site.bodies("q.fifo", 10).await, ["0"]);
        site.t.advance(Duration::from_secs(10));
    }
}

async fn room_for(site: &Site, queue: &str, max_jobs: Option<u64>) {
    let settings = QueueSettings { max_jobs, ..QueueSettings::default() };
    site.client().store().queue(queue, &QueueOp::Set(Box::new(settings))).await.unwrap();
}

/// It must not be hidden as long as its receiver would have worked on it.
#[tokio::test]
async fn a_dead_letter_for_which_there_is_no_room_is_tried_again_soon() {
    let site = site(1).await;
    room_for(&site, "dead", Some(1)).await;
    for text in ["0", "1"] {
        site.send(text).await;
    }
    assert_eq!(fail(&site).await, 2);
    let hours = json!({"QueueUrl": url("q"), "VisibilityTimeout": 43_200});
    assert_eq!(site.ask("ReceiveMessage", hours).await.ok(), json!({}));
    let counts = site.client().count(Some("q")).await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.cancelled), (1, 0, 1));
    let letter = site.receive("dead", 10).await.remove(0);
    site.delete("dead", &letter).await;
    room_for(&site, "dead", None).await;
    site.t.advance(Duration::from_secs(10));
    assert!(site.receive("q", 10).await.is_empty());
    assert_ne!(site.bodies("dead", 10).await, [body(&letter)]);
    assert_eq!(site.client().count(Some("q")).await.unwrap().cancelled, 2);
}

/// A server process whose enqueues fail as `fault` says.
fn failing(site: &Site, mut fault: impl FnMut() -> Fault + Send + 'static) -> Router {
    let store = FaultyStore::new(Arc::clone(site.client().store()), move |verb| {
        if verb == "enqueue" { fault() } else { Fault::Pass }
    });
    Server::new(&Client::new(Arc::new(store))).sqs().router(&site.stop)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_dead_letter_keeps_no_receiver_waiting() {
    // Nor does it keep the others until their visibility timeout has ended.
    for (hidden_s, at_most_ms) in [(43_200, 4_500), (1, 600)] {
        let site = site(1).await;
        let router = failing(&site, || Fault::Before);
        site.send("dead").await;
        assert_eq!(fail(&site).await, 1);
        site.send("live").await;
        let begin = Instant::now();
        let ask = json!({"QueueUrl": url("q"), "MaxNumberOfMessages": 10, "VisibilityTimeout": hidden_s});
        let received = site.ask_at(&router, "ReceiveMessage", ask).await.ok();
        assert_eq!(body(&received["Messages"][0]), "live");
        assert!(begin.elapsed() < Duration::from_millis(at_most_ms), "{:?}", begin.elapsed());
        let counts = site.client().count(Some("q")).await.unwrap();
        assert_eq!((counts.waiting, counts.running), (1, 1));
        site.delete("q", &received["Messages"][0]).await;
        site.t.advance(Duration::from_secs(10));
        assert!(site.receive("q", 10).await.is_empty());
        assert_eq!(site.bodies("dead", 10).await, ["dead"]);
    }
}

/// Trap: an enqueue of several is answered when all of them are.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_whose_part_of_the_store_is_away_keeps_no_other_in_its_queue() {
    let site = site(1).await;
    for text in ["0", "1"] {
        site.send(text).await;
    }
    assert_eq!(fail(&site).await, 2);
    let mut first = None;
    // The first call gets no answer, however often it is repeated. Others that come at once get theirs.
    let router = failing(&site, move || {
        let now = Instant::now();
        if first.replace(first.unwrap_or(now)) == Some(now) { Fault::Pass } else { Fault::Away }
    });
    let ask = json!({"QueueUrl": url("q"), "MaxNumberOfMessages": 10, "VisibilityTimeout": 10});
    assert_eq!(site.ask_at(&router, "ReceiveMessage", ask).await.ok(), json!({}));
    let counts = site.client().count(Some("q")).await.unwrap();
    assert_eq!((counts.waiting, counts.cancelled), (1, 1));
    site.t.advance(Duration::from_secs(10));
    assert!(site.receive("q", 10).await.is_empty());
    let mut letters = site.bodies("dead", 10).await;
    letters.sort();
    assert_eq!(letters, ["0", "1"]);
}

/// Trap: its new job may be there. Both would be received, one of them after the other was deleted.
#[tokio::test(start_paused = true)]
async fn a_message_whose_move_has_no_answer_is_received_as_one_job_only() {
    let site = Site::with_queue().await;
    site.client().push(vec![job(&site, "q", 2)]).await.unwrap();
    let router = failing(&site, || Fault::After);
    let ask = json!({"QueueUrl": url("q"), "VisibilityTimeout": 10});
    let received = site.ask_at(&router, "ReceiveMessage", ask).await.ok();
    assert_eq!(body(&received["Messages"][0]), "7");
    site.delete("q", &received["Messages"][0]).await;
    site.t.advance(Duration::from_secs(10));
    assert!(site.receive("q", 10).await.is_empty());
    let counts = site.client().count(Some("q")).await.unwrap();
    assert_eq!((counts.done, counts.cancelled), (1, 1));
}

/// A letter has the generation of the dead-letter queue, by which a purge knows what was there before it.
#[tokio::test(start_paused = true)]
async fn a_search_that_began_before_a_purge_moves_later_messages_behind_it() {
    let site = site(1).await;
    for text in ["0", "1"] {
        site.send(text).await;
    }
    assert_eq!(fail(&site).await, 2);
    let asked = Arc::new(Notify::new());
    let (asks, mut is_first) = (Arc::clone(&asked), true);
    let router = failing(&site, move || {
        asks.notify_one();
        let slow = Fault::Delay(Duration::from_millis(1_900));
        if mem::take(&mut is_first) { slow } else { Fault::Pass }
    });
    let purge = async {
        asked.notified().await;
        site.ask("PurgeQueue", json!({"QueueUrl": url("dead")})).await.ok();
    };
    // It asks for one message, and then for all that are dead.
    let ask = json!({"QueueUrl": url("q"), "VisibilityTimeout": 10});
    let (received, ()) = join!(site.ask_at(&router, "ReceiveMessage", ask), purge);
    assert_eq!(received.ok(), json!({}));
    assert_eq!(site.client().count(Some("q")).await.unwrap().cancelled, 2);
    assert_eq!(site.bodies("dead", 10).await, ["1"]);
}

#[tokio::test]
async fn a_message_that_went_on_as_another_job_gets_its_place_among_dead_letters() {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "dead.fifo", "Attributes": {"FifoQueue": "true"}}))
        .await
        .ok();
    let attributes = json!({"FifoQueue": "true", "RedrivePolicy": policy("dead.fifo", 1)});
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": attributes})).await.ok();
    let earlier = json!({
        "QueueUrl": url("dead.fifo"), "MessageBody": "0", "MessageGroupId": "a", "MessageDeduplicationId": "0",
    });
    site.ask("SendMessage", earlier).await.ok();
    site.t.advance(Duration::from_millis(1));
    let concurrency = Some(Concurrency { key: "a".to_owned(), limit: 1 });
    let later = NewJob { payload: Payload::json("1"), concurrency, ..job(&site, "q.fifo", 2) };
    site.client().push(vec![later]).await.unwrap();
    assert_eq!(site.bodies("q.fifo", 10).await, ["1"]);
    site.t.advance(Duration::from_secs(10));
    assert!(site.bodies("q.fifo", 10).await.is_empty());
    assert_eq!(site.client().count(Some("dead.fifo")).await.unwrap().waiting, 2);
    assert_eq!(site.bodies("dead.fifo", 10).await, ["0"]);
}

/// Otherwise each search would find the same ones first, and none behind them.
#[tokio::test]
async fn a_dead_letter_of_a_line_that_cannot_move_is_hidden_for_some_time() {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "dead.fifo", "Attributes": {"FifoQueue": "true"}}))
        .await
        .ok();
    let attributes = json!({"FifoQueue": "true", "RedrivePolicy": policy("dead.fifo", 1), "ContentBasedDeduplication": "true"});
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": attributes})).await.ok();
    let send = json!({"QueueUrl": url("q.fifo"), "MessageBody": "0", "MessageGroupId": "a"});
    site.ask("SendMessage", send).await.ok();
    site.client().push(vec![job(&site, "dead.fifo", 9)]).await.unwrap();
    room_for(&site, "dead.fifo", Some(1)).await;
    assert_eq!(site.bodies("q.fifo", 10).await, ["0"]);
    let waits = async || site.client().count(Some("q.fifo")).await.unwrap().waiting;
    let hours = json!({"QueueUrl": url("q.fifo"), "MaxNumberOfMessages": 10, "VisibilityTimeout": 43_200});
    // However often: a job must not die of that.
    for _ in 0..6 {
        site.t.advance(Duration::from_secs(10));
        // It came back by the end of a lease, and must not have two of these in a row.
        assert_eq!(site.ask("ReceiveMessage", hours.clone()).await.ok(), json!({}));
        assert_eq!(waits().await, 1);
        assert_eq!(site.ask("ReceiveMessage", hours.clone()).await.ok(), json!({}));
        assert_eq!(waits().await, 0);
    }
    room_for(&site, "dead.fifo", None).await;
    site.t.advance(Duration::from_secs(10));
    assert_eq!(site.ask("ReceiveMessage", hours).await.ok(), json!({}));
    assert_eq!(site.bodies("dead.fifo", 10).await.len(), 2);
}
