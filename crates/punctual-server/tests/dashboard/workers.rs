//! The page of workers and forwarders, and orders to them.

use std::time::Duration;

use axum::http::StatusCode;
use punctual::{
    Client, Payload,
    store::{DocOp, Precondition},
    testing::TestQueue,
    worker::WorkerOrder,
};
use punctual_server::DashboardOptions;
use serde_json::{Value, json};

use super::{
    html::{actions, links, unescape},
    site::{Site, job, reserve},
};

const ONE: &str = "00000000000000a1";
const TWO: &str = "00000000000000b2";

/// Registers a worker as it registers itself.
async fn register(client: &Client, id: &str, mut more: Value) {
    let now = client.store().now().await.unwrap();
    let fields = json!({
        "host": "web-1", "pid": 4711, "version": "1.2.3", "since_ms": now, "seen_ms": now, "slots": 50, "busy": 3,
        "queues": [{"name": "mail"}],
    });
    for (name, value) in fields.as_object().unwrap() {
        more.as_object_mut().unwrap().entry(name).or_insert_with(|| value.clone());
    }
    let put = DocOp::Put {
        key: format!("worker/{id}"),
        precondition: Precondition::Always,
        value: more.to_string().into_bytes(),
    };
    client.store().doc(&put).await.unwrap();
}

async fn order_of(client: &Client) -> Option<WorkerOrder> {
    client.worker(ONE).await.unwrap().unwrap().order
}

#[tokio::test]
async fn workers_and_forwarders_are_shown_with_what_they_do() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    let queues = json!([{"name": "mail", "weight": 3}, {"name": "a&b", "weight": 1}]);
    register(
        &t.client,
        ONE,
        json!({"name": "web <1>", "queues": queues, "kinds": ["email.send", "*"], "more_kinds": 2}),
    )
    .await;
    let forwards = json!({"to": "nats://host:4222", "sent": 1_204, "failed": 7, "error": "421 <later>"});
    register(&t.client, TWO, json!({"name": "web-1/4711", "forwards": forwards, "state": "quiet"})).await;
    let page = site.get("/workers").await.text;
    let text = unescape(&page);
    for shown in [
        "web <1>",
        "web-1/4711 · version 1.2.3",
        "3 of 50",
        "mail =3",
        "a&b =1",
        "email.send",
        "and 2 more",
        "working",
        "nats://host:4222",
        "1,204",
        "421 <later>",
        "quiet",
    ] {
        assert!(text.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("<later>") && !page.contains("No worker runs"), "{page}");
    let jobs = links(&page).into_iter().find(|link| link.contains("worker%3A")).unwrap();
    assert_eq!(site.get(&jobs).await.status, StatusCode::OK);
    let orders: Vec<String> =
        actions(&page).into_iter().filter(|action| action.contains("/workers/")).collect();
    let expected = [(ONE, "quiet"), (ONE, "stop"), (TWO, "resume"), (TWO, "stop")];
    assert_eq!(orders, expected.map(|(id, order)| format!("/workers/{id}/{order}")));
}

#[tokio::test]
async fn buttons_order_a_worker_and_stop_asks_first() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    register(&t.client, ONE, json!({"name": "one"})).await;
    for (order, of) in [("quiet", WorkerOrder::Quiet), ("resume", WorkerOrder::Resume)] {
        let answer = site.post(&format!("/workers/{ONE}/{order}"), &[]).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
        assert_eq!(order_of(&t.client).await, Some(of));
        let page = site.get(&answer.location).await.text;
        assert!(page.contains("within 17 s") && page.contains(&format!("ordered: {order}")), "{page}");
    }
    let stop = format!("/workers/{ONE}/stop");
    let asks = site.post(&stop, &[]).await;
    assert!(asks.status == StatusCode::OK && asks.text.contains("Stop one?"), "{}", asks.text);
    assert!(asks.text.contains("3 running jobs"), "{}", asks.text);
    assert_eq!(order_of(&t.client).await, Some(WorkerOrder::Resume), "nothing is ordered yet");
    let answer = site.post(&stop, &[("confirmed", "yes")]).await;
    assert_eq!(order_of(&t.client).await, Some(WorkerOrder::Stop));
    // There is nothing further to order.
    let page = site.get(&answer.location).await.text;
    assert!(actions(&page).iter().all(|action| !action.contains("/workers/")), "{page}");
    let gone = site.post(&format!("/workers/{TWO}/quiet"), &[]).await;
    assert!(site.get(&gone.location).await.text.contains("does not run any more"));
    let wrong = site.post("/workers/web-1/quiet", &[]).await;
    assert!(wrong.status.is_client_error(), "{}", wrong.status);
}

#[tokio::test]
async fn a_worker_that_was_not_seen_is_missing_and_takes_no_orders() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    register(&t.client, ONE, json!({"name": "one"})).await;
    t.advance(Duration::from_mins(1));
    let page = site.get("/workers").await.text;
    assert!(page.contains("missing") && !page.contains("<button class=\"danger\""), "{page}");
    t.advance(Duration::from_hours(24));
    assert!(site.get("/workers").await.text.contains("No worker runs"));
}

#[tokio::test]
async fn no_worker_is_a_page_that_teaches() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    t.client.push(vec![job(&t.client, "email.send", "mail", Payload::json("1"))]).await.unwrap();
    let page = site.get("/workers").await.text;
    for taught in ["No worker runs", "Worker::new(&amp;client)", "punctual work --exec", "email.send"] {
        assert!(page.contains(taught), "{taught}: {page}");
    }
}

#[tokio::test]
async fn the_overview_warns_of_due_jobs_that_no_worker_serves() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    for queue in ["mail", "paused", "other"] {
        t.client.push(vec![job(&t.client, "k", queue, Payload::json("1"))]).await.unwrap();
    }
    t.client.queue("paused").pause("ana", "").await.unwrap();
    let warns = async |queue: &str| {
        let page = site.get("/").await.text;
        let warning = page.split("no <a href=\"/workers\">worker</a> is registered").nth(1);
        warning.is_some_and(|rest| rest.split("</p>").next().unwrap().contains(queue))
    };
    t.advance(Duration::from_secs(59));
    assert!(!warns("mail").await, "a worker may be about to start");
    t.advance(Duration::from_secs(1));
    assert!(warns("mail").await && warns("other").await && !warns("paused").await);
    register(&t.client, ONE, json!({"name": "one"})).await;
    assert!(!warns("mail").await && warns("other").await);
    t.advance(Duration::from_mins(1));
    assert!(warns("mail").await, "it is missing");
    // Something runs its jobs, although it is not registered.
    t.client.push(vec![job(&t.client, "k", "mail", Payload::json("1"))]).await.unwrap();
    assert!(!reserve(&t.client, "mail", 1).await.is_empty());
    t.client.push(vec![job(&t.client, "k", "mail", Payload::json("1"))]).await.unwrap();
    t.advance(Duration::from_secs(10));
    assert!(!warns("mail").await);
}
