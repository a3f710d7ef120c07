//! What callers may do, by role and by queue.

use punctual_server::{
    DashboardOptions,
    token::{NewToken, Payloads, Role},
};
use serde_json::{Value, json};

use crate::site::{Key, Site, key, url};

const DENIED: &str = "AccessDenied";

fn policy(queue: &str) -> Value {
    let policy =
        json!({"deadLetterTargetArn": format!("arn:aws:sqs:r:000000000000:{queue}"), "maxReceiveCount": 1});
    json!({"RedrivePolicy": policy.to_string()})
}

#[tokio::test]
async fn each_action_needs_its_role() {
    let site = Site::with_queue().await;
    let (read, operate) = (site.key(Role::Read, None).await, site.key(Role::Operate, None).await);
    for (action, least) in [
        ("GetQueueUrl", 0),
        ("GetQueueAttributes", 0),
        ("ListQueueTags", 0),
        ("ListQueues", 0),
        ("SendMessage", 1),
        ("SendMessageBatch", 1),
        ("ReceiveMessage", 1),
        ("DeleteMessage", 1),
        ("DeleteMessageBatch", 1),
        ("ChangeMessageVisibility", 1),
        ("ChangeMessageVisibilityBatch", 1),
        ("CreateQueue", 2),
        ("DeleteQueue", 2),
        ("SetQueueAttributes", 2),
        ("PurgeQueue", 2),
        ("TagQueue", 2),
        ("UntagQueue", 2),
    ] {
        let body = json!({
            "QueueUrl": url("q"), "QueueName": "q", "MessageBody": "x", "ReceiptHandle": "x", "VisibilityTimeout": 1,
        });
        for (n, key) in [&read, &operate].into_iter().enumerate() {
            let answer = site.ask_as(key, action, body.clone()).await;
            let is_denied = answer.error.as_deref() == Some("AccessDenied;Sender");
            assert_eq!(is_denied, n < least, "{action} {n}: {answer:?}");
            assert!(!is_denied || answer.status == 403);
        }
    }
}

#[tokio::test]
async fn a_key_of_some_queues_is_for_these_and_sees_no_others() {
    let site = Site::with_queue().await;
    site.ask("CreateQueue", json!({"QueueName": "other"})).await.ok();
    let own = site.key(Role::Admin, Some(&["q", "new"])).await;
    for (action, more) in [
        ("GetQueueUrl", json!({"QueueName": "other"})),
        ("CreateQueue", json!({"QueueName": "other"})),
        ("DeleteQueue", json!({})),
        ("PurgeQueue", json!({})),
        ("GetQueueAttributes", json!({})),
        ("SetQueueAttributes", json!({})),
        ("TagQueue", json!({})),
        ("SendMessage", json!({"MessageBody": "x"})),
        ("ReceiveMessage", json!({})),
    ] {
        // Whether it is there is not said.
        for name in ["other", "nowhere"] {
            let mut body = more.clone();
            body["QueueUrl"] = json!(url(name));
            assert_eq!(site.ask_as(&own, action, body).await.code(), DENIED, "{action} {name}");
        }
    }
    let listed = site.ask_as(&own, "ListQueues", json!({})).await.ok();
    assert_eq!(listed, json!({"QueueUrls": [url("q")]}));
    site.ask_as(&own, "CreateQueue", json!({"QueueName": "new"})).await.ok();
}

#[tokio::test]
async fn a_dead_letter_queue_must_be_one_that_the_caller_may_send_to() {
    let site = Site::with_queue().await;
    for name in ["other", "mine"] {
        site.ask("CreateQueue", json!({"QueueName": name})).await.ok();
    }
    let own = site.key(Role::Admin, Some(&["q", "new", "mine"])).await;
    let set = async |key: &Key, queue: &str| {
        let body = json!({"QueueUrl": url("q"), "Attributes": policy(queue)});
        site.ask_as(key, "SetQueueAttributes", body).await
    };
    let create = async |key: &Key, queue: &str| {
        let body = json!({"QueueName": "new", "Attributes": policy(queue)});
        site.ask_as(key, "CreateQueue", body).await
    };
    assert_eq!(set(&own, "other").await.code(), DENIED);
    assert_eq!(create(&own, "other").await.code(), DENIED);
    for key in [&own, &site.admin] {
        for name in ["$topics", "q/../other", ""] {
            assert_eq!(set(key, name).await.code(), "InvalidAttributeValue", "{name}");
            assert_eq!(create(key, name).await.code(), "InvalidAttributeValue", "{name}");
        }
    }
    assert_eq!(set(&site.admin, "nowhere").await.code(), "InvalidAttributeValue");
    set(&own, "mine").await.ok();
    create(&own, "mine").await.ok();
    // Other attributes can be set by one who may not send there.
    site.ask("SetQueueAttributes", json!({"QueueUrl": url("q"), "Attributes": policy("other")})).await.ok();
    let body = json!({"QueueUrl": url("q"), "Attributes": {"DelaySeconds": "1"}});
    site.ask_as(&own, "SetQueueAttributes", body).await.ok();
}

#[tokio::test]
async fn a_handle_of_another_queue_ends_nothing_there() {
    let site = Site::with_queue().await;
    site.ask("CreateQueue", json!({"QueueName": "other"})).await.ok();
    site.ask("SendMessage", json!({"QueueUrl": url("other"), "MessageBody": "x"})).await.ok();
    let message = site.receive("other", 1).await.remove(0);
    let handle = message["ReceiptHandle"].as_str().unwrap();
    // As the one of a queue would have it: the last bytes name the queue.
    site.send("own").await;
    let own = site.receive("q", 1).await.remove(0);
    let own = own["ReceiptHandle"].as_str().unwrap();
    let made_up = made_up(handle, own);
    let key = site.key(Role::Operate, Some(&["q"])).await;
    for handle in [handle, &made_up] {
        for (action, more) in
            [("DeleteMessage", json!({})), ("ChangeMessageVisibility", json!({"VisibilityTimeout": 0}))]
        {
            let mut body = more;
            body["QueueUrl"] = json!(url("q"));
            body["ReceiptHandle"] = json!(handle);
            assert_eq!(site.ask_as(&key, action, body).await.code(), "ReceiptHandleIsInvalid", "{action}");
        }
        let entries = json!([{"Id": "a", "ReceiptHandle": handle}, {"Id": "b", "ReceiptHandle": own}]);
        let body = json!({"QueueUrl": url("q"), "Entries": entries});
        let answer = site.ask_as(&key, "DeleteMessageBatch", body).await.ok();
        assert_eq!(answer["Successful"], json!([{"Id": "b"}]));
        assert_eq!(answer["Failed"][0]["Code"], "ReceiptHandleIsInvalid");
    }
    let counts = site.client().count(Some("other")).await.unwrap();
    assert_eq!((counts.running, counts.done), (1, 0));
}

/// The lease of one handle under the queue of another.
fn made_up(lease: &str, queue: &str) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let [mut lease, queue] = [lease, queue].map(|text| URL_SAFE_NO_PAD.decode(text).unwrap());
    lease.truncate(25);
    lease.extend(&queue[25..]);
    URL_SAFE_NO_PAD.encode(lease)
}

#[tokio::test]
async fn who_sees_no_payloads_receives_no_messages() {
    let site = Site::with_queue().await;
    let new = NewToken { payloads: Payloads::Hidden, ..NewToken::new("cy", Role::Operate) };
    let blind = key(site.client(), new).await;
    site.ask_as(&blind, "SendMessage", json!({"QueueUrl": url("q"), "MessageBody": "x"})).await.ok();
    assert_eq!(site.ask_as(&blind, "ReceiveMessage", json!({"QueueUrl": url("q")})).await.code(), DENIED);
    assert_eq!(site.bodies("q", 1).await, ["x"]);
}

#[tokio::test]
async fn a_server_that_is_read_only_changes_nothing() {
    let site = Site::with(DashboardOptions { read_only: true, ..DashboardOptions::default() }).await;
    site.ask_at(&site.other(), "CreateQueue", json!({"QueueName": "q"})).await.ok();
    for action in ["CreateQueue", "SendMessage", "ReceiveMessage", "PurgeQueue"] {
        let body = json!({"QueueUrl": url("q"), "QueueName": "r", "MessageBody": "x"});
        assert_eq!(site.ask(action, body).await.code(), DENIED, "{action}");
    }
    site.ask("GetQueueAttributes", json!({"QueueUrl": url("q")})).await.ok();
}
