//! Purging and deleting queues.

use std::time::Duration;

use axum::Router;
use punctual::{
    CancellationToken, JobId, NewJob, Payload, Timestamp,
    store::{DocOp, DocReply},
};
use punctual_server::Server;
use serde_json::json;
use tokio::{
    join,
    time::{Instant, advance, sleep, timeout},
};

use crate::site::{Site, url};

async fn purge(site: &Site) {
    site.ask("PurgeQueue", json!({"QueueUrl": url("q")})).await.ok();
}

async fn delete(site: &Site) {
    site.ask("DeleteQueue", json!({"QueueUrl": url("q")})).await.ok();
}

/// Makes `q` again, by this server process.
async fn make_again(site: &Site, router: &Router) {
    site.ask_at(router, "CreateQueue", json!({"QueueName": "q"})).await.ok();
}

/// A server process that goes on after that of the site was stopped.
fn survivor(site: &Site) -> Router {
    Server::new(site.client()).sqs().router(&CancellationToken::new())
}

/// Waits until a job is removed, or has ended.
async fn gone(site: &Site, id: &str) {
    let id = id.parse().unwrap();
    until(async || site.client().get(id).await.unwrap().is_none_or(|job| job.state.is_ended())).await;
}

/// Waits until the messages of a queue are gone.
async fn cleaned(site: &Site) {
    until(async || site.client().count(Some("q")).await.unwrap().waiting == 0).await;
}

/// Waits until nothing is left of a deleted queue.
async fn mark_removed(site: &Site) {
    let doc = DocOp::Get { key: "sqs/q".to_owned() };
    until(async || site.client().store().doc(&doc).await.unwrap() == DocReply::Is(None)).await;
}

/// Waits until something is so. The clock of the runtime is paused, so this takes no time.
async fn until(is_so: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_so().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_mins(1), wait).await.expect("it never was so");
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
    mark_removed(&site).await;
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
    make_again(&site, &site.router).await;
    site.send("new").await;
    assert_eq!(site.bodies("q", 10).await, ["new"]);
    // Without another queue of the name, it is removed.
    send().await.ok();
    site.ask("DeleteQueue", json!({"QueueUrl": url("q")})).await.ok();
    send().await.ok();
    cleaned(&site).await;
    advance(Duration::from_secs(1)).await;
    assert_eq!(send().await.code(), "AWS.SimpleQueueService.NonExistentQueue");
}

/// The removal of the old messages comes later than the first of the new queue.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_made_again_keeps_its_messages() {
    let site = Site::with_queue().await;
    let old = site.send("old").await;
    delete(&site).await;
    make_again(&site, &site.router).await;
    let new = [site.send("new").await, site.send("newer").await];
    assert_eq!(site.bodies("q", 1).await, ["new"]);
    gone(&site, &old).await;
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        site.t.advance(Duration::from_secs(1));
    }
    let mut bodies = site.bodies("q", 10).await;
    bodies.sort();
    assert_eq!(bodies, ["new", "newer"]);
    for id in new {
        assert!(!site.client().get(id.parse().unwrap()).await.unwrap().unwrap().cancel_requested);
    }
}

/// As that of another part of the store can be.
#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_loses_no_message() {
    let site = Site::with_queue().await;
    site.t.advance(Duration::from_mins(1));
    let back = |by: u64| {
        let now = site.t.clock.now();
        site.t.clock.set(Timestamp::from_ms(now.as_ms() - by).unwrap());
    };
    site.send("old").await;
    purge(&site).await;
    back(5_000);
    site.send("a").await;
    assert_eq!(site.bodies("q", 10).await, ["a"]);
    delete(&site).await;
    make_again(&site, &site.router).await;
    back(5_000);
    site.send("b").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(site.bodies("q", 10).await, ["b"]);
}

/// The answer comes when no process believes in the time before it.
#[tokio::test(start_paused = true)]
async fn what_is_sent_after_the_answer_is_kept_by_each_process() {
    let site = Site::with_queue().await;
    let other = site.other();
    let send = async |text: &str| {
        let body = json!({"QueueUrl": url("q"), "MessageBody": text});
        site.ask_at(&other, "SendMessage", body).await.ok();
    };
    send("old").await;
    purge(&site).await;
    send("a").await;
    assert_eq!(site.bodies("q", 10).await, ["a"]);
    delete(&site).await;
    make_again(&site, &site.router).await;
    send("b").await;
    assert_eq!(site.bodies("q", 10).await, ["b"]);
}

/// It has no generation.
#[tokio::test(start_paused = true)]
async fn a_job_that_was_enqueued_by_other_means_is_purged_by_its_time() {
    let site = Site::with_queue().await;
    let push = async |text: &str, generation: Option<&str>| {
        let mut job = NewJob::new(site.client().make_id(), "k", "q", Payload::json(text));
        if let Some(generation) = generation {
            job.headers.insert("sqs.generation".to_owned(), generation.to_owned());
        }
        site.client().push(vec![job]).await.unwrap();
    };
    push("1", None).await;
    push("2", Some("x")).await;
    push("3", Some("3")).await;
    purge(&site).await;
    assert!(site.bodies("q", 10).await.is_empty());
    site.t.advance(Duration::from_millis(1));
    push("4", None).await;
    push("5", Some("x")).await;
    // A copy of an old message, with its headers.
    site.t.advance(Duration::from_secs(10));
    push("6", Some("3")).await;
    let mut bodies = site.bodies("q", 10).await;
    bodies.sort();
    assert_eq!(bodies, ["4", "5", "6"]);
}

/// Gone messages stand before live ones until they are removed.
#[tokio::test(start_paused = true)]
async fn a_live_message_is_received_behind_hundreds_that_are_gone() {
    let site = Site::with_queue().await;
    for n in 0..300 {
        site.send(&n.to_string()).await;
    }
    site.stop.cancel();
    purge(&site).await;
    site.t.advance(Duration::from_millis(1));
    site.send("live").await;
    assert_eq!(site.bodies("q", 1).await, ["live"]);
}

/// After a kill of the server that was about to remove them.
#[tokio::test(start_paused = true)]
async fn a_removal_that_was_cut_off_is_taken_up_again() {
    let site = Site::with_queue().await;
    let waiting = async || site.client().count(Some("q")).await.unwrap().waiting;
    // More than one receive drops by itself.
    for _ in 0..4 {
        let make = || NewJob::new(site.client().make_id(), "k", "q", Payload::json("7"));
        site.client().push((0..500).map(|_| make()).collect()).await.unwrap();
    }
    site.stop.cancel();
    purge(&site).await;
    assert_eq!(waiting().await, 2_000);
    // By a receive that meets one.
    let other = survivor(&site);
    let receive = json!({"QueueUrl": url("q"), "MaxNumberOfMessages": 1});
    assert_eq!(site.ask_at(&other, "ReceiveMessage", receive).await.ok(), json!({}));
    cleaned(&site).await;
    for n in 0..50 {
        site.send(&n.to_string()).await;
    }
    delete(&site).await;
    assert_eq!(waiting().await, 50);
    // By another queue of the name.
    make_again(&site, &other).await;
    cleaned(&site).await;
}

/// Trap: the removal that the first deletion began ends while another process still believes in the second queue.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_deleted_twice_takes_along_what_is_sent_before_all_know_of_the_second_time() {
    let site = Site::with_queue().await;
    let other = site.other();
    let send = async || {
        site.ask_at(&other, "SendMessage", json!({"QueueUrl": url("q"), "MessageBody": "old"})).await
    };
    delete(&site).await;
    make_again(&site, &site.router).await;
    sleep(Duration::from_millis(500)).await;
    send().await.ok();
    delete(&site).await;
    sleep(Duration::from_millis(700)).await;
    send().await.ok();
    make_again(&site, &site.router).await;
    assert!(site.bodies("q", 10).await.is_empty());
}

/// What other programs enqueue after a queue was deleted is not its own.
#[tokio::test(start_paused = true)]
async fn a_deleted_queue_takes_only_what_was_there() {
    let site = Site::with_queue().await;
    let push = async || {
        let job = NewJob::new(site.client().make_id(), "k", "q", Payload::json("7"));
        site.client().push(vec![job]).await.unwrap();
    };
    push().await;
    let old = site.send("old").await;
    delete(&site).await;
    site.t.advance(Duration::from_millis(1));
    push().await;
    gone(&site, &old).await;
    mark_removed(&site).await;
    make_again(&site, &site.router).await;
    assert_eq!(site.bodies("q", 10).await, ["7"]);
}

/// Trap: some stores search all jobs for those of a queue, the newest first.
#[tokio::test(start_paused = true)]
async fn a_deleted_queue_is_removed_behind_many_newer_jobs_of_others() {
    let site = Site::with_queue().await;
    let old = site.send("old").await;
    site.t.advance(Duration::from_millis(1));
    for _ in 0..22 {
        let make = || NewJob::new(site.client().make_id(), "k", "other", Payload::json("7"));
        site.client().push((0..500).map(|_| make()).collect()).await.unwrap();
    }
    delete(&site).await;
    mark_removed(&site).await;
    assert!(site.client().get(old.parse().unwrap()).await.unwrap().is_none());
    assert_eq!(site.client().count(Some("other")).await.unwrap().waiting, 11_000);
}

/// Trap: the second caller finds it there, while another process still believes in the old one.
#[tokio::test(start_paused = true)]
async fn a_queue_that_another_caller_has_just_made_again_is_answered_when_all_have_seen_it() {
    let site = Site::with_queue().await;
    let other = site.other();
    let send = async |text: &str| {
        let body = json!({"QueueUrl": url("q"), "MessageBody": text});
        site.ask_at(&other, "SendMessage", body).await.ok();
    };
    send("old").await;
    delete(&site).await;
    let second = async {
        until(async || site.ask("GetQueueUrl", json!({"QueueName": "q"})).await.status == 200).await;
        make_again(&site, &site.router).await;
        send("new").await;
    };
    join!(make_again(&site, &site.router), second);
    assert_eq!(site.bodies("q", 10).await, ["new"]);
    // Later ones need not wait.
    site.t.advance(Duration::from_secs(2));
    let begin = Instant::now();
    make_again(&site, &site.router).await;
    assert!(begin.elapsed() < Duration::from_secs(1));
}

/// What is left of a message that moved to a dead-letter queue is older than the purge.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_retried_after_a_purge_is_received() {
    let site = Site::with_queue().await;
    site.ask("CreateQueue", json!({"QueueName": "dead"})).await.ok();
    let policy =
        json!({"deadLetterTargetArn": "arn:aws:sqs:eu-test-1:000000000000:dead", "maxReceiveCount": 3});
    let set = json!({"QueueUrl": url("q"), "Attributes": {"RedrivePolicy": policy.to_string()}});
    site.ask("SetQueueAttributes", set).await.ok();
    let receive = async || {
        let bodies = site.bodies("q", 10).await;
        site.t.advance(Duration::from_secs(10));
        bodies
    };
    let id = site.send("x").await;
    for _ in 0..3 {
        assert_eq!(receive().await, ["x"]);
    }
    assert!(receive().await.is_empty());
    assert_eq!(site.bodies("dead", 10).await, ["x"]);
    purge(&site).await;
    site.t.advance(Duration::from_millis(1));
    site.client().retry(id.parse::<JobId>().unwrap()).await.unwrap();
    assert_eq!(receive().await, ["x"]);
    // Also when it comes back.
    assert_eq!(receive().await, ["x"]);
    // The next purge takes it.
    purge(&site).await;
    assert!(receive().await.is_empty());
    gone(&site, &id).await;
}
