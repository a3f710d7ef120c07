//! Operations: they go on after a restart and after the death of a server, on each job once, and can be cancelled.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::{Method, Request},
};
use punctual::{
    CancellationToken, Client, NewJob, Payload, When,
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::{
    Server,
    token::{self, NewToken, Payloads, Role},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A server of a store, and what ends it.
struct Served {
    router: Router,
    stop: CancellationToken,
    acts: Arc<AtomicU64>,
}

impl Served {
    /// Serves a store. `fault` chooses what becomes of a call, by its verb and by the number of actions so far.
    fn with(t: &TestQueue, fault: impl Fn(&'static str, u64) -> Fault + Send + 'static) -> Self {
        let acts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&acts);
        let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
            let n = counted.fetch_add(u64::from(verb == "act"), Ordering::Relaxed);
            fault(verb, n)
        });
        let stop = CancellationToken::new();
        let router = Server::new(&Client::new(Arc::new(store))).router(&stop);
        Self { router, stop, acts }
    }

    fn new(t: &TestQueue) -> Self {
        Self::with(t, |_, _| Fault::Pass)
    }

    async fn send(&self, token: &str, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut request =
            Request::builder().method(method).uri(format!("/api/v1/{path}")).header("host", "localhost");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut request = request.body(Body::from(body)).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4_000))));
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = to_bytes(answer.into_body(), 10_000_000).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    async fn order(&self, action: &str, filter: &str) -> String {
        let body = json!({"action": action, "filter": filter, "reason": "test"});
        let (status, answer) = self.send("", Method::POST, "operations", &body).await;
        assert_eq!(status, 201, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    async fn show(&self, id: &str) -> Value {
        self.send("", Method::GET, &format!("operations/{id}"), &Value::Null).await.1
    }

    /// Waits until an operation is as it should be.
    async fn until(&self, id: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let patience = async {
            loop {
                let operation = self.show(id).await;
                if is_it(&operation) {
                    return operation;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let patience = tokio::time::timeout(Duration::from_mins(5), patience).await;
        let Ok(operation) = patience else { panic!("never: {}", self.show(id).await) };
        operation
    }

    async fn ended(&self, id: &str) -> Value {
        self.until(id, |operation| operation["state"] != "running").await
    }
}

async fn stores() -> [TestQueue; 2] {
    let path = tempfile::tempdir().unwrap().keep().join("test.db");
    [TestQueue::new(), TestQueue::connect(&format!("sqlite:{}", path.display())).await.unwrap()]
}

/// Enqueues jobs that are not due: the store in memory takes long to find whether a due job is blocked.
async fn push(t: &TestQueue, queue: &str, n: usize) {
    for batch in (0..n).collect::<Vec<_>>().chunks(1_000) {
        let job = |_| NewJob {
            run_at: When::In(Duration::from_hours(1)),
            ..NewJob::new(t.client.make_id(), "k", queue, Payload::json("1"))
        };
        t.client.push(batch.iter().map(job).collect()).await.unwrap();
    }
}

fn done(operation: &Value) -> u64 {
    operation["outcomes"]["done"].as_u64().unwrap()
}

#[tokio::test]
async fn an_operation_of_a_dead_server_goes_on_elsewhere_on_each_job_once() {
    for t in stores().await {
        push(&t, "mail", 1_300).await;
        // All calls of the first server fail from its third action on, as if it were gone.
        let is_dead = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (died, acts) = (Arc::clone(&is_dead), 2);
        let first = Served::with(&t, move |verb, n| {
            if verb == "act" && acts <= n {
                died.store(true, Ordering::Relaxed);
            }
            if died.load(Ordering::Relaxed) { Fault::Before } else { Fault::Pass }
        });
        let id = first.order("cancel", "queue:mail").await;
        while !is_dead.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(first);
        let second = Served::new(&t);
        assert_eq!(second.show(&id).await["state"], "running");
        let held = done(&second.show(&id).await);
        assert!(0 < held && held <= 500, "{held}");
        // The lease ends 15 s after the last step. A server that starts then takes it at once.
        t.clock.advance(Duration::from_secs(14));
        assert_eq!(second.acts.load(Ordering::Relaxed), 0, "another server acted beside the lease");
        t.clock.advance(Duration::from_secs(2));
        let third = Served::new(&t);
        let end = third.ended(&id).await;
        assert_eq!((end["state"].as_str(), end["planned"].as_u64()), (Some("done"), Some(1_300)));
        assert_eq!(done(&end), 1_300, "{end}");
        assert_eq!(t.client.count(None).await.unwrap().cancelled, 1_300);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn an_operation_of_a_server_that_stops_goes_on_at_once() {
    let t = TestQueue::new();
    push(&t, "mail", 1_300).await;
    let first =
        Served::with(
            &t,
            |verb, _| {
                if verb == "act" { Fault::Delay(Duration::from_millis(50)) } else { Fault::Pass }
            },
        );
    let id = first.order("delete", "queue:mail").await;
    first.until(&id, |operation| 0 < done(operation)).await;
    first.stop.cancel();
    // The clock of the store stands still, so no lease ends. The first server gives it back.
    let second = Served::new(&t);
    let end = async {
        loop {
            // A look at the store, as an order makes it.
            second.order("delete", "queue:none").await;
            if second.show(&id).await["state"] == "done" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), end).await.expect("it never goes on");
    assert_eq!(t.client.count(None).await.unwrap().total(), 0);
    assert_eq!(done(&second.show(&id).await), 1_300);
    assert!(first.acts.load(Ordering::Relaxed) < 6 && 0 < second.acts.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_server_leaves_alone_what_another_one_runs() {
    let t = TestQueue::new();
    push(&t, "mail", 1_000).await;
    let slow =
        Served::with(
            &t,
            |verb, _| {
                if verb == "act" { Fault::Delay(Duration::from_millis(50)) } else { Fault::Pass }
            },
        );
    let other = Served::new(&t);
    let id = slow.order("cancel", "queue:mail").await;
    slow.until(&id, |operation| 0 < done(operation)).await;
    // The order makes the other server look at all operations. It has no job to act on.
    let none = other.order("cancel", "queue:none").await;
    other.ended(&none).await;
    let end = other.ended(&id).await;
    assert_eq!((done(&end), other.acts.load(Ordering::Relaxed)), (1_000, 0), "{end}");
    assert_eq!(slow.acts.load(Ordering::Relaxed), 4, "a step has 250 jobs");
}

#[tokio::test]
async fn a_cancel_takes_effect_before_the_next_step() {
    let t = TestQueue::new();
    push(&t, "mail", 5_000).await;
    let served =
        Served::with(
            &t,
            |verb, _| {
                if verb == "act" { Fault::Delay(Duration::from_millis(50)) } else { Fault::Pass }
            },
        );
    // Another server cancels it.
    let other = Served::new(&t);
    let id = served.order("cancel", "queue:mail").await;
    served.until(&id, |operation| 0 < done(operation)).await;
    let cancel = format!("operations/{id}/cancel");
    let (status, answer) = other.send("", Method::POST, &cancel, &Value::Null).await;
    assert_eq!((status, answer["cancelled_by"].as_str()), (200, Some("local")), "{answer}");
    let acts = served.acts.load(Ordering::Relaxed);
    let end = served.ended(&id).await;
    assert_eq!(end["state"], "cancelled");
    assert!(served.acts.load(Ordering::Relaxed) <= acts + 1);
    let cancelled = t.client.count(None).await.unwrap().cancelled;
    assert_eq!(done(&end), cancelled, "the step that was under way is counted");
    assert!(0 < cancelled && cancelled < 5_000, "{cancelled}");
    let (status, answer) = other.send("", Method::POST, &cancel, &Value::Null).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("wrong_state")), "{answer}");
}

/// Calls fail before and after they take effect. Time in the process flies, so that pauses take none.
#[tokio::test(start_paused = true)]
async fn an_operation_outlasts_failures_of_the_store() {
    for seed in 0..10 {
        let t = TestQueue::new();
        push(&t, "mail", 1_300).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let is_on = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let fails = Arc::clone(&is_on);
        let random = std::sync::Mutex::new(move || random.u32(0..12));
        let served = Served::with(&t, move |_, _| {
            let n = (random.lock().unwrap())();
            match n {
                0 if fails.load(Ordering::Relaxed) => Fault::Before,
                1 if fails.load(Ordering::Relaxed) => Fault::After,
                _ => Fault::Pass,
            }
        });
        let id = served.order("cancel", "queue:mail").await;
        is_on.store(true, Ordering::Relaxed);
        let watcher = Served::new(&t);
        let end = watcher.ended(&id).await;
        assert_eq!(end["state"], "done", "{end}");
        assert_eq!(t.client.count(None).await.unwrap().cancelled, 1_300, "seed {seed}: {end}");
        assert!(done(&end) <= 1_300, "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_run_at_once_and_a_hundred_are_kept() {
    let t = TestQueue::new();
    push(&t, "mail", 1).await;
    let is_stuck = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let stuck = Arc::clone(&is_stuck);
    let served = Served::with(&t, move |verb, _| {
        if verb == "act" && stuck.load(Ordering::Relaxed) { Fault::Before } else { Fault::Pass }
    });
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(served.order("delete", "queue:mail").await);
    }
    let body = json!({"action": "delete", "filter": "queue:mail"});
    let (status, answer) = served.send("", Method::POST, "operations", &body).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("conflict")), "{answer}");
    is_stuck.store(false, Ordering::Relaxed);
    for id in &ids {
        served.ended(id).await;
    }
    for _ in 0..95 {
        t.clock.advance(Duration::from_millis(1));
        let id = served.order("delete", "queue:mail").await;
        served.ended(&id).await;
        ids.push(id);
    }
    let (_, all) = served.send("", Method::GET, "operations", &Value::Null).await;
    let all = all["operations"].as_array().unwrap().clone();
    assert_eq!(all.len(), 100);
    let newest: Vec<&str> = ids.iter().rev().take(95).map(String::as_str).collect();
    assert_eq!(all.iter().take(95).map(|of| of["id"].as_str().unwrap()).collect::<Vec<_>>(), newest);
    assert!(all.iter().all(|of| of["state"] == "done"));
}

#[tokio::test]
async fn a_dry_run_counts_and_an_order_needs_what_it_says() {
    let t = TestQueue::new();
    push(&t, "mail", 7).await;
    let served = Served::new(&t);
    let order = async |body: Value| served.send("", Method::POST, "operations", &body).await;
    let (status, answer) = order(json!({"action": "cancel", "filter": "queue:mail", "dry_run": true})).await;
    assert_eq!((status, &answer["count"], &answer["at_least"]), (200, &json!(7), &json!(false)));
    assert_eq!(answer["by_state"], json!({"waiting": 7, "running": 0}));
    for body in [
        json!({"action": "cancel", "filter": "queue:mail"}),
        json!({"action": "cancel", "filter": "queue:mail", "reason": "  "}),
        json!({"action": "cancel", "filter": "", "reason": "x"}),
        json!({"action": "retry", "filter": "state:waiting"}),
        json!({"action": "edit", "filter": "queue:mail"}),
        json!({"action": "delete"}),
        json!({"action": "delete", "filter": "kimd:x"}),
        json!({"action": "delete", "filter": "queue:mail", "cursor": "x"}),
    ] {
        let (status, answer) = order(body.clone()).await;
        assert_eq!((status, answer["code"].as_str()), (422, Some("invalid")), "{body}: {answer}");
    }
    assert_eq!(t.client.count(None).await.unwrap().waiting, 7);
    let (_, all) = served.send("", Method::GET, "operations", &Value::Null).await;
    assert_eq!(all, json!({"operations": []}));
}

#[tokio::test]
async fn an_operation_belongs_to_the_queues_of_its_filter_and_outlives_its_token() {
    let t = TestQueue::new();
    push(&t, "mail", 600).await;
    push(&t, "sms", 1).await;
    let served =
        Served::with(
            &t,
            |verb, _| {
                if verb == "act" { Fault::Delay(Duration::from_millis(20)) } else { Fault::Pass }
            },
        );
    let make = async |role, queue: Option<&str>, payloads| {
        let queues = queue.map(|queue| vec![queue.to_owned()]);
        let new = NewToken { queues, payloads, ..NewToken::new("ana", role) };
        token::make(&t.client, &new, token::random().unwrap()).await.unwrap()
    };
    let mail = make(Role::Operate, Some("mail"), Payloads::Shown).await;
    let reader = make(Role::Read, Some("mail"), Payloads::Shown).await;
    let sms = make(Role::Operate, Some("sms"), Payloads::Shown).await;
    let blind = make(Role::Operate, None, Payloads::Hidden).await;
    let all = make(Role::Operate, None, Payloads::Shown).await;
    let order = |filter: &str| json!({"action": "cancel", "filter": filter, "reason": "r"});
    let send = async |of: &token::Made, method, path: &str, body: &Value| {
        served.send(of.secret.expose(), method, path, body).await
    };
    for (of, filter) in
        [(&mail, "queue:sms"), (&mail, "kind:k"), (&reader, "queue:mail"), (&blind, "payload.a:1")]
    {
        let (status, answer) = send(of, Method::POST, "operations", &order(filter)).await;
        assert_eq!((status, answer["code"].as_str()), (403, Some("forbidden")), "{filter}: {answer}");
    }
    let (_, secret) = send(&all, Method::POST, "operations", &order("payload.user:ana")).await;
    let secret = format!("operations/{}", secret["id"].as_str().unwrap());
    assert_eq!(send(&all, Method::GET, &secret, &Value::Null).await.1["filter"], "payload.user:ana");
    let (status, hidden) = send(&blind, Method::GET, &secret, &Value::Null).await;
    assert!(status == 200 && !hidden.to_string().contains("user"), "{hidden}");
    let (status, ordered) = send(&mail, Method::POST, "operations", &order("queue:mail")).await;
    assert_eq!(status, 201, "{ordered}");
    let id = ordered["id"].as_str().unwrap();
    let (place, cancel) = (format!("operations/{id}"), format!("operations/{id}/cancel"));
    assert_eq!(
        (ordered["by"].as_str(), ordered["token"].as_str()),
        (Some("ana"), Some(mail.token.id.as_str()))
    );
    assert_eq!(send(&reader, Method::GET, &place, &Value::Null).await.0, 200);
    assert_eq!(send(&reader, Method::POST, &cancel, &Value::Null).await.0, 403);
    assert_eq!(send(&sms, Method::GET, &place, &Value::Null).await.0, 404);
    assert_eq!(send(&sms, Method::POST, &cancel, &Value::Null).await.0, 404);
    assert_eq!(send(&mail, Method::GET, "operations", &Value::Null).await.0, 403);
    assert!(token::revoke(&t.client, &mail.token.id).await.unwrap());
    let patience = async {
        while send(&all, Method::GET, &place, &Value::Null).await.1["state"] == "running" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), patience).await.expect("it never ends");
    assert_eq!(t.client.count(Some("mail")).await.unwrap().cancelled, 600);
}
