//! Messages of standard queues: sent, received, hidden, deleted, delayed, in batches.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use futures_util::poll;
use punctual::{
    Client, NewJob, Payload, State,
    job::Filter,
    store::List,
    testing::{Fault, FaultyStore},
};
use punctual_server::{Server, token::Role};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt as _;

use crate::site::{Site, body, url};

/// Whatever the state of the jobs is.
async fn states(site: &Site, queue: &str) -> Vec<State> {
    let list = List { filter: Filter::all().queue(queue), after: None, limit: 1_000 };
    let mut states: Vec<State> =
        site.client().list(&list).await.unwrap().jobs.iter().map(|job| job.state).collect();
    states.sort();
    states
}

#[tokio::test]
async fn a_message_is_received_with_all_that_was_sent_and_then_deleted() {
    let site = Site::with_queue().await;
    let sender = site.key(Role::Operate, None).await;
    let attributes = json!({
        "n": {"DataType": "Number.int", "StringValue": "7"},
        "s": {"DataType": "String", "StringValue": "ü:1\n2"},
        "b": {"DataType": "Binary", "BinaryValue": "AP8="},
    });
    let body = json!({
        "QueueUrl": url("q"), "MessageBody": "häll\n\"o\"", "MessageAttributes": attributes,
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5"}},
    });
    let sent = site.ask_as(&sender, "SendMessage", body).await.ok();
    let received = site.receive("q", 10).await;
    assert_eq!(received.len(), 1);
    let message = &received[0];
    assert_eq!(message["MessageId"], sent["MessageId"]);
    assert_eq!(message["Body"], "häll\n\"o\"");
    assert_eq!(message["MD5OfBody"], sent["MD5OfMessageBody"]);
    assert_eq!(message["MessageAttributes"], attributes);
    assert_eq!(message["MD5OfMessageAttributes"], sent["MD5OfMessageAttributes"]);
    assert!(sent["MD5OfMessageSystemAttributes"].is_string() && sent["SequenceNumber"].is_null());
    let system = &message["Attributes"];
    assert_eq!(system["ApproximateReceiveCount"], "1");
    assert_eq!(system["SenderId"], sender.id.as_str());
    assert_eq!(system["AWSTraceHeader"], "Root=1-5");
    let now = site.client().store().now().await.unwrap().as_ms().to_string();
    assert_eq!(system["SentTimestamp"], now.as_str());
    assert_eq!(system["ApproximateFirstReceiveTimestamp"], now.as_str());
    assert!(site.receive("q", 10).await.is_empty());
    site.delete("q", message).await;
    // Again, with a handle that has ended.
    site.delete("q", message).await;
    assert_eq!(states(&site, "q").await, [State::Done]);
}

#[tokio::test]
async fn only_attributes_that_are_asked_for_are_returned_and_digested() {
    let site = Site::with_queue().await;
    let text = |value: &str| json!({"DataType": "String", "StringValue": value});
    let attributes = json!({"a.x": text("1"), "a.y": text("2"), "b": text("3")});
    for (names, systems, expected) in [
        (json!([]), json!([]), vec![]),
        (json!(["b"]), json!(["SentTimestamp"]), vec!["b"]),
        (json!(["a.*"]), json!(["All"]), vec!["a.x", "a.y"]),
        (json!([".*"]), json!(["Nothing"]), vec!["a.x", "a.y", "b"]),
    ] {
        let send = json!({"QueueUrl": url("q"), "MessageBody": "x", "MessageAttributes": attributes});
        let sent = site.ask("SendMessage", send).await.ok();
        let receive = json!({
            "QueueUrl": url("q"), "MessageAttributeNames": names, "MessageSystemAttributeNames": systems,
        });
        let message = site.ask("ReceiveMessage", receive).await.ok()["Messages"][0].clone();
        let got: Vec<String> = message["MessageAttributes"]
            .as_object()
            .map(|all| all.keys().cloned().collect())
            .unwrap_or_default();
        assert_eq!(got, expected);
        assert_eq!(message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"], expected.len() == 3);
        assert_eq!(message["MD5OfMessageAttributes"].is_null(), expected.is_empty());
        let n = message["Attributes"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(
            n,
            match systems[0].as_str() {
                Some("SentTimestamp") => 1,
                Some("All") => 4,
                _ => 0,
            }
        );
        site.delete("q", &message).await;
    }
}

/// However often it is received and not deleted: a job of a worker would be dead after three expired leases.
#[tokio::test]
async fn a_message_comes_back_after_its_visibility_timeout_and_never_dies_of_that() {
    let site = Site::with_queue().await;
    let id = site.send("x").await;
    let mut first = None;
    for n in 1..=12 {
        let message = site.receive("q", 10).await.remove(0);
        assert_eq!(
            (&message["MessageId"], &message["Attributes"]["ApproximateReceiveCount"]),
            (&json!(id), &json!(n.to_string()))
        );
        first.get_or_insert(message["ReceiptHandle"].clone());
        site.t.advance(Duration::from_millis(9_999));
        assert!(site.receive("q", 10).await.is_empty(), "{n}");
        // At once, and not after a pause that grows.
        site.t.advance(Duration::from_millis(1));
    }
    // The handle of an earlier receive ends nothing, and that is no fault.
    let current = site.receive("q", 10).await.remove(0);
    site.ask("DeleteMessage", json!({"QueueUrl": url("q"), "ReceiptHandle": first})).await.ok();
    assert_eq!(states(&site, "q").await, [State::Running]);
    site.delete("q", &current).await;
    assert_eq!(states(&site, "q").await, [State::Done]);
}

#[tokio::test]
async fn a_visibility_timeout_is_changed() {
    let site = Site::with_queue().await;
    site.send("x").await;
    let message = site.receive("q", 1).await.remove(0);
    let change = async |message: &Value, seconds: i64| {
        let body = json!({
            "QueueUrl": url("q"), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds,
        });
        site.ask("ChangeMessageVisibility", body).await
    };
    change(&message, 15).await.ok();
    site.t.advance(Duration::from_secs(14));
    assert!(site.receive("q", 1).await.is_empty());
    change(&message, 2).await.ok();
    site.t.advance(Duration::from_secs(2));
    let message = site.receive("q", 1).await.remove(0);
    // Visible at once, and that counts as a receive.
    for n in 2..=6 {
        let message = if n == 2 { message.clone() } else { site.receive("q", 1).await.remove(0) };
        assert_eq!(message["Attributes"]["ApproximateReceiveCount"], n.to_string());
        change(&message, 0).await.ok();
        let lost = change(&message, 0).await;
        assert_eq!(lost.code(), "AWS.SimpleQueueService.MessageNotInflight");
    }
    for seconds in [-1, 43_201] {
        assert_eq!(change(&message, seconds).await.code(), "InvalidParameterValue");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_delayed_by_its_own_delay_or_its_queues() {
    let site = Site::with_queue().await;
    let week = 7 * 24 * 3_600;
    let send = async |more: Value| {
        let mut body = more;
        body["QueueUrl"] = json!(url("q"));
        body["MessageBody"] = json!("x");
        site.ask("SendMessage", body).await
    };
    // SQS refuses more than 15 min. The retention of the message begins when it is due.
    send(json!({"DelaySeconds": week})).await.ok();
    let names = json!(["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]);
    let counts =
        site.ask("GetQueueAttributes", json!({"QueueUrl": url("q"), "AttributeNames": names})).await.ok();
    assert_eq!(
        counts["Attributes"],
        json!({
            "ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesDelayed": "1",
        })
    );
    site.t.advance(Duration::from_secs(week - 1));
    // What the server knows of the clock of the store is forgotten.
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(site.receive("q", 1).await.is_empty());
    site.t.advance(Duration::from_secs(1));
    let message = site.receive("q", 1).await.remove(0);
    site.delete("q", &message).await;
    let set = json!({"QueueUrl": url("q"), "Attributes": {"DelaySeconds": "5"}});
    site.ask("SetQueueAttributes", set).await.ok();
    send(json!({})).await.ok();
    assert!(site.receive("q", 1).await.is_empty());
    site.t.advance(Duration::from_secs(5));
    let message = site.receive("q", 1).await.remove(0);
    site.delete("q", &message).await;
    send(json!({"DelaySeconds": 0})).await.ok();
    assert_eq!(site.receive("q", 1).await.len(), 1);
    assert_eq!(send(json!({"DelaySeconds": -1})).await.code(), "InvalidParameterValue");
}

#[tokio::test]
async fn a_message_ends_after_its_retention() {
    let site = Site::with_queue().await;
    let set = json!({"QueueUrl": url("q"), "Attributes": {"MessageRetentionPeriod": "60"}});
    site.ask("SetQueueAttributes", set).await.ok();
    site.send("x").await;
    site.t.advance(Duration::from_mins(1));
    assert!(site.receive("q", 1).await.is_empty());
    assert_eq!(states(&site, "q").await, [State::Cancelled]);
}

#[tokio::test]
async fn sizes_and_texts_are_bounded() {
    let site = Site::with_queue().await;
    let set = json!({"QueueUrl": url("q"), "Attributes": {"MaximumMessageSize": "1024"}});
    site.ask("SetQueueAttributes", set).await.ok();
    let send = async |body: &str, attributes: Value| {
        let body = json!({"QueueUrl": url("q"), "MessageBody": body, "MessageAttributes": attributes});
        site.ask("SendMessage", body).await
    };
    send(&"x".repeat(1_024), json!({})).await.ok();
    assert_eq!(send(&"x".repeat(1_025), json!({})).await.code(), "InvalidParameterValue");
    // Attributes count: name, type and value.
    let attributes = json!({"a": {"DataType": "String", "StringValue": "x"}});
    send(&"x".repeat(1_016), attributes.clone()).await.ok();
    assert_eq!(send(&"x".repeat(1_017), attributes).await.code(), "InvalidParameterValue");
    assert_eq!(send("", json!({})).await.code(), "MissingParameter");
    assert_eq!(send("a\u{1}b", json!({})).await.code(), "InvalidMessageContents");
    let set = json!({"QueueUrl": url("q"), "Attributes": {"MaximumMessageSize": "1048576"}});
    site.ask("SetQueueAttributes", set).await.ok();
    send(&"\n".repeat(1_048_576), json!({})).await.ok();
    let large = json!({"a": {"DataType": "String", "StringValue": "x".repeat(6 * 1_024)}});
    let answer = send("x", large).await;
    assert!(answer.code() == "InvalidParameterValue" && answer.text.contains("6144"), "{answer:?}");
    let many: serde_json::Map<String, Value> =
        (0..11).map(|n| (n.to_string(), json!({"DataType": "String", "StringValue": "x"}))).collect();
    assert_eq!(send("x", Value::Object(many)).await.code(), "InvalidParameterValue");
    for (name, value) in [
        ("MaxNumberOfMessages", 0),
        ("MaxNumberOfMessages", 11),
        ("WaitTimeSeconds", 21),
        ("VisibilityTimeout", -1),
    ] {
        let mut body = json!({"QueueUrl": url("q")});
        body[name] = json!(value);
        assert_eq!(site.ask("ReceiveMessage", body).await.code(), "InvalidParameterValue", "{name} {value}");
    }
}

#[tokio::test]
async fn entries_of_a_batch_succeed_and_fail_by_themselves() {
    let site = Site::with_queue().await;
    let entries = json!([
        {"Id": "a", "MessageBody": "1"},
        {"Id": "b", "MessageBody": ""},
        {"Id": "c", "MessageBody": "3", "MessageAttributes": {"a": {"DataType": "String", "StringValue": "x"}}},
        {"Id": "d", "MessageBody": "4", "DelaySeconds": -1},
    ]);
    let sent = site.ask("SendMessageBatch", json!({"QueueUrl": url("q"), "Entries": entries})).await.ok();
    let ids = |of: &Value| {
        of.as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["Id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(&sent["Successful"]), ids(&sent["Failed"])),
        (vec!["a".into(), "c".into()], vec!["b".into(), "d".into()])
    );
    assert_eq!(sent["Failed"][0]["SenderFault"], true);
    assert_eq!(sent["Failed"][0]["Code"], "MissingParameter");
    assert!(sent["Successful"][1]["MD5OfMessageAttributes"].is_string());
    let received = site.receive("q", 10).await;
    assert_eq!(received.iter().map(body).collect::<Vec<_>>(), ["1", "3"]);
    assert_eq!(received[1]["MessageId"], sent["Successful"][1]["MessageId"]);
    let entries = json!([
        {"Id": "a", "ReceiptHandle": received[0]["ReceiptHandle"], "VisibilityTimeout": 0},
        {"Id": "b", "ReceiptHandle": "x", "VisibilityTimeout": 0},
        {"Id": "c", "ReceiptHandle": received[1]["ReceiptHandle"], "VisibilityTimeout": 20},
        {"Id": "d", "ReceiptHandle": received[1]["ReceiptHandle"], "VisibilityTimeout": 43_201},
    ]);
    let changed = site
        .ask("ChangeMessageVisibilityBatch", json!({"QueueUrl": url("q"), "Entries": entries}))
        .await
        .ok();
    assert_eq!(
        (ids(&changed["Successful"]), ids(&changed["Failed"])),
        (vec!["a".into(), "c".into()], vec!["b".into(), "d".into()])
    );
    let again = site.receive("q", 10).await;
    assert_eq!(again.iter().map(body).collect::<Vec<_>>(), ["1"]);
    let entries = json!([
        {"Id": "a", "ReceiptHandle": received[0]["ReceiptHandle"]},
        {"Id": "b", "ReceiptHandle": "x"},
        {"Id": "c", "ReceiptHandle": received[1]["ReceiptHandle"]},
        {"Id": "d", "ReceiptHandle": again[0]["ReceiptHandle"]},
    ]);
    let deleted =
        site.ask("DeleteMessageBatch", json!({"QueueUrl": url("q"), "Entries": entries})).await.ok();
    assert_eq!(
        (ids(&deleted["Successful"]), ids(&deleted["Failed"])),
        (vec!["a".into(), "c".into(), "d".into()], vec!["b".into()])
    );
    assert_eq!(states(&site, "q").await, [State::Done, State::Done]);
}

#[tokio::test]
async fn a_batch_has_bounds() {
    let site = Site::with_queue().await;
    let send = async |bodies: Vec<(&str, String)>| {
        let entries: Vec<Value> =
            bodies.iter().map(|(id, body)| json!({"Id": id, "MessageBody": body})).collect();
        site.ask("SendMessageBatch", json!({"QueueUrl": url("q"), "Entries": entries})).await
    };
    let of_sqs = |name: &str| format!("AWS.SimpleQueueService.{name}");
    assert_eq!(send(vec![]).await.code(), of_sqs("EmptyBatchRequest"));
    assert_eq!(send(vec![("a", "x".into()); 11]).await.code(), of_sqs("TooManyEntriesInBatchRequest"));
    assert_eq!(send(vec![("a", "x".into()); 2]).await.code(), of_sqs("BatchEntryIdsNotDistinct"));
    assert_eq!(send(vec![("a b", "x".into())]).await.code(), of_sqs("InvalidBatchEntryId"));
    let half = "x".repeat(512 * 1_024);
    send(vec![("a", half.clone()), ("b", half.clone())]).await.ok();
    let answer = send(vec![("a", half.clone()), ("b", half), ("c", "x".into())]).await;
    assert_eq!(answer.code(), of_sqs("BatchRequestTooLong"));
    assert_eq!(states(&site, "q").await, [State::Waiting, State::Waiting]);
}

#[tokio::test(start_paused = true)]
async fn a_receive_waits_for_a_message() {
    let site = Site::with_queue().await;
    let ask = json!({"QueueUrl": url("q"), "WaitTimeSeconds": 20});
    let begin = Instant::now();
    assert_eq!(site.ask("ReceiveMessage", ask.clone()).await.ok(), json!({}));
    assert!((20_000..20_100).contains(&begin.elapsed().as_millis()));
    let mut waits = Box::pin(site.ask("ReceiveMessage", ask.clone()));
    let begin = Instant::now();
    assert!(poll!(&mut waits).is_pending());
    for _ in 0..20 {
        tokio::task::yield_now().await;
        assert!(poll!(&mut waits).is_pending());
    }
    site.send("x").await;
    assert_eq!(body(&waits.await.ok()["Messages"][0]), "x");
    assert!(begin.elapsed() < Duration::from_millis(50));
    // By default as long as the queue says.
    let set = json!({"QueueUrl": url("q"), "Attributes": {"ReceiveMessageWaitTimeSeconds": "3"}});
    site.ask("SetQueueAttributes", set).await.ok();
    let begin = Instant::now();
    assert_eq!(site.ask("ReceiveMessage", json!({"QueueUrl": url("q")})).await.ok(), json!({}));
    assert!((3_000..3_100).contains(&begin.elapsed().as_millis()));
    // A server that stops lets nobody wait.
    let mut waits = Box::pin(site.ask("ReceiveMessage", ask));
    assert!(poll!(&mut waits).is_pending());
    let begin = Instant::now();
    site.stop.cancel();
    assert_eq!(waits.await.ok(), json!({}));
    assert!(begin.elapsed() < Duration::from_millis(50));
}

/// The search of a client that went away goes on by itself, and what it finds is given back, so that it is not hidden from others.
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_hides_no_message() {
    let site = Site::with_queue().await;
    for n in 0..50 {
        site.send(&n.to_string()).await;
        let draft = site.draft("ReceiveMessage", &json!({"QueueUrl": url("q"), "WaitTimeSeconds": 20})).await;
        let mut gone = Box::pin(site.router.clone().oneshot(draft.request(&site.admin)));
        // At each of the places at which it waits for something.
        let mut is_answered = false;
        for _ in 0..n {
            is_answered = poll!(&mut gone).is_ready();
            if is_answered {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(gone);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let counts = site.client().count(Some("q")).await.unwrap();
        if is_answered {
            // Whether an answer is read is not known.
            assert!(0 < n);
            return;
        }
        assert_eq!((counts.waiting, counts.running), (1, 0), "{n}");
        let message = site.receive("q", 10).await.remove(0);
        assert_eq!(message["Attributes"]["ApproximateReceiveCount"], "1");
        site.delete("q", &message).await;
    }
    panic!("it was never answered");
}

#[tokio::test]
async fn jobs_of_other_programs_are_messages_too() {
    let site = Site::with_queue().await;
    let job = |bytes: &[u8]| {
        let payload = Payload { bytes: bytes.to_vec(), ..Payload::json("") };
        NewJob::new(site.client().make_id(), "email.send", "q", payload)
    };
    let jobs = vec![job(b"{\"to\":1}"), job(&[0xff, 0])];
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    site.client().push(jobs).await.unwrap();
    let received = site.receive("q", 10).await;
    assert_eq!(received.iter().map(body).collect::<Vec<_>>(), ["{\"to\":1}", "/wA="]);
    assert_eq!(
        received.iter().map(|message| message["MessageId"].as_str().unwrap()).collect::<Vec<_>>(),
        ids
    );
    assert_eq!(received[0]["Attributes"]["SenderId"], "punctual");
}

/// Trap: settings that a process remembers must not outlive a second.
#[tokio::test(start_paused = true)]
async fn another_server_process_sees_changes_within_a_second() {
    let site = Site::with_queue().await;
    let other = site.other();
    let send =
        async || site.ask_at(&other, "SendMessage", json!({"QueueUrl": url("q"), "MessageBody": "x"})).await;
    send().await.ok();
    let set = json!({"QueueUrl": url("q"), "Attributes": {"DelaySeconds": "900"}});
    site.ask("SetQueueAttributes", set).await.ok();
    tokio::time::advance(Duration::from_secs(1)).await;
    send().await.ok();
    assert_eq!(site.bodies("q", 10).await.len(), 1);
}

#[tokio::test]
async fn a_server_without_the_door_does_not_answer_the_protocol() {
    let site = Site::with_queue().await;
    let router = Server::new(site.client()).router(&site.stop);
    let draft = site.draft("ListQueues", &json!({})).await;
    let answer = router.oneshot(draft.request(&site.admin).map(Body::new)).await.unwrap();
    assert!(!answer.status().is_success() && answer.headers().get("x-amzn-requestid").is_none());
}

/// A router over the store of a site, whose calls of a verb fail as `fault` says, which gets the number of the call.
fn faulty(site: &Site, of: &'static str, mut fault: impl FnMut(usize) -> Fault + Send + 'static) -> Router {
    let mut n = 0;
    let store = FaultyStore::new(Arc::clone(site.client().store()), move |verb| {
        if verb != of {
            return Fault::Pass;
        }
        n += 1;
        fault(n)
    });
    Server::new(&Client::new(Arc::new(store))).sqs().router(&site.stop)
}

/// Otherwise the messages would be hidden, and counted as received, though nobody has them.
#[tokio::test(start_paused = true)]
async fn a_reserve_whose_answer_was_lost_is_repeated() {
    let site = Site::with_queue().await;
    let ask = json!({"QueueUrl": url("q"), "MaxNumberOfMessages": 10, "AttributeNames": ["All"]});
    site.send("x").await;
    let router = faulty(&site, "reserve", |n| match n {
        1 => Fault::After,
        // It is not known then, either.
        2 => Fault::Before,
        _ => Fault::Pass,
    });
    let received = site.ask_at(&router, "ReceiveMessage", ask.clone()).await.ok();
    assert_eq!(body(&received["Messages"][0]), "x");
    assert_eq!(received["Messages"][0]["Attributes"]["ApproximateReceiveCount"], "1");
    site.delete("q", &received["Messages"][0]).await;
    // A reserve that is part of a settle: of one that comes back after its timeout.
    site.send("y").await;
    assert_eq!(site.bodies("q", 1).await, ["y"]);
    site.t.advance(Duration::from_secs(10));
    let router = faulty(&site, "settle", |n| if n == 1 { Fault::After } else { Fault::Pass });
    let received = site.ask_at(&router, "ReceiveMessage", ask.clone()).await.ok();
    assert_eq!(body(&received["Messages"][0]), "y");
    assert_eq!(received["Messages"][0]["Attributes"]["ApproximateReceiveCount"], "2");
    // It is not repeated without an end.
    let router = faulty(&site, "reserve", |_| Fault::After);
    assert_eq!(site.ask_at(&router, "ReceiveMessage", ask).await.code(), "ServiceUnavailable");
}

/// Messages that came back by their timeouts are released once. They must not get the lease of a receiver to whom they do not go.
#[tokio::test(start_paused = true)]
async fn a_search_that_fails_hides_no_message() {
    type Faults = fn(usize) -> Fault;
    // The first settle is part of a round, the second one ends the search.
    let cases: [(Faults, u64); 3] = [
        (|n| if n == 1 { Fault::Before } else { Fault::Pass }, 4),
        (|n| if n <= 2 { Fault::Before } else { Fault::Pass }, 0),
        (|n| if n == 1 { Fault::InPart } else { Fault::Pass }, 3),
    ];
    for (faults, n) in cases {
        let site = Site::with_queue().await;
        for text in 0..4 {
            site.send(&text.to_string()).await;
        }
        assert_eq!(site.receive("q", 10).await.len(), 4);
        site.t.advance(Duration::from_secs(10));
        let router = faulty(&site, "settle", faults);
        let ask = json!({"QueueUrl": url("q"), "MaxNumberOfMessages": 10, "VisibilityTimeout": 43_200});
        let answer = site.ask_at(&router, "ReceiveMessage", ask).await;
        if n == 0 {
            assert_eq!(answer.code(), "ServiceUnavailable");
        } else {
            assert_eq!(answer.ok()["Messages"].as_array().unwrap().len() as u64, n);
        }
        // The clock of the runtime is paused, so this takes no time.
        let given_back = async {
            while site.client().count(Some("q")).await.unwrap().waiting != 4 - n {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_mins(1), given_back).await.expect("they stay hidden");
    }
}

#[tokio::test]
async fn one_entry_of_a_batch_does_not_fail_the_others() {
    let site = Site::with_queue().await;
    let entries = json!([
        {"Id": "a", "MessageBody": "1"},
        {"Id": "b", "MessageBody": "2", "DelaySeconds": i64::MAX},
        {"Id": "c", "MessageBody": "3"},
        {"Id": "d", "MessageBody": "4", "DelaySeconds": 366 * 86_400},
        {"Id": "e", "MessageBody": "5", "DelaySeconds": 366 * 86_400 + 1},
    ]);
    let sent = site.ask("SendMessageBatch", json!({"QueueUrl": url("q"), "Entries": entries})).await.ok();
    assert_eq!((sent["Failed"][0]["Id"].as_str(), sent["Failed"][1]["Id"].as_str()), (Some("b"), Some("e")));
    assert_eq!(sent["Failed"][0]["Code"], "InvalidParameterValue");
    assert_eq!(sent["Successful"].as_array().unwrap().len(), 3);
    let received = site.receive("q", 10).await;
    assert_eq!(received.len(), 2);
    // The leases of some have ended, those of others cannot be extended.
    let router = faulty(&site, "extend", |_| Fault::Before);
    let entries = json!([
        {"Id": "a", "ReceiptHandle": received[0]["ReceiptHandle"], "VisibilityTimeout": 20},
        {"Id": "b", "ReceiptHandle": received[1]["ReceiptHandle"], "VisibilityTimeout": 0},
    ]);
    let changes = json!({"QueueUrl": url("q"), "Entries": entries});
    let changed = site.ask_at(&router, "ChangeMessageVisibilityBatch", changes).await.ok();
    assert_eq!(changed["Successful"], json!([{"Id": "b"}]));
    assert_eq!(
        (&changed["Failed"][0]["Id"], &changed["Failed"][0]["Code"]),
        (&json!("a"), &json!("ServiceUnavailable"))
    );
    assert_eq!(site.bodies("q", 10).await, ["3"]);
}
