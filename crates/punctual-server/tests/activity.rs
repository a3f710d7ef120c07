//! The activity log: what is in it, what is not, and who sees what of it.

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
use futures_util::future::join_all;
use punctual::{
    CancellationToken, Client, JobId, NewJob, Payload,
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::{
    Server,
    gate::Gate,
    token::{self, Made, NewToken, Payloads, Role},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A server, and a caller with a token.
struct Caller {
    router: Router,
    token: Made,
}

impl Caller {
    async fn new(t: &TestQueue, router: &Router, name: &str, role: Role, payloads: Payloads) -> Self {
        let new = NewToken { payloads, ..NewToken::new(name, role) };
        let token = token::make(&t.client, &new, token::random().unwrap()).await.unwrap();
        Self { router: router.clone(), token }
    }

    async fn request(&self, mut request: Request<Body>) -> (u16, String) {
        let bearer = format!("Bearer {}", self.token.secret.expose());
        request.headers_mut().insert("authorization", bearer.parse().unwrap());
        request.headers_mut().insert("sec-fetch-site", "same-origin".parse().unwrap());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4_000))));
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = to_bytes(answer.into_body(), 10_000_000).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn api(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method.parse::<Method>().unwrap());
        let request = request.uri(format!("/api/v1/{path}")).body(Body::from(text)).unwrap();
        let (status, text) = self.request(request).await;
        assert!(status < 300, "{method} {path} {body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn form(&self, path: &str, fields: &[(&str, &str)]) {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let (status, text) = self.request(Request::post(path).body(Body::from(body)).unwrap()).await;
        assert_eq!(status, 303, "{path}: {text}");
    }

    /// The whole log, the oldest first.
    async fn log(&self) -> Vec<Value> {
        let page = self.api("GET", "activity?limit=1000", &Value::Null).await;
        assert_eq!(page["next"], Value::Null);
        page["entries"].as_array().unwrap().iter().rev().cloned().collect()
    }
}

async fn push(client: &Client, queue: &str, n: usize) -> Vec<JobId> {
    let job = |_| NewJob::new(client.make_id(), "k", queue, Payload::json(r#"{"password":"hunter2"}"#));
    let pushed = client.push((0..n).map(job).collect()).await.unwrap();
    pushed.iter().map(|pushed| pushed.id().unwrap()).collect()
}

/// Complaint 10: who did it, and why.
#[tokio::test]
async fn each_order_of_an_operator_is_in_the_log() {
    let t = TestQueue::new();
    let router = Server::new(&t.client).router(&CancellationToken::new());
    let ana = Caller::new(&t, &router, "ana", Role::Admin, Payloads::Shown).await;
    let ids = push(&t.client, "mail", 9).await;
    let target = |id: JobId| json!({"id": id});
    let cancel = json!({"action": "cancel", "reason": "wrong list"});
    let two = json!({"targets": [target(ids[0]), target(ids[0])], "action": cancel});
    ana.api("POST", "act", &two).await;
    ana.api("POST", &format!("jobs/{}/cancel", ids[1]), &json!({"reason": "one"})).await;
    ana.api("POST", &format!("jobs/{}/retry", ids[1]), &Value::Null).await;
    ana.api("PATCH", &format!("jobs/{}", ids[2]), &json!({"payload": {"password": "hunter3"}})).await;
    ana.api("POST", "queues/mail/pause", &json!({"reason": "moving"})).await;
    ana.api("POST", "queue", &json!({"name": "mail", "op": "resume"})).await;
    ana.api("POST", "queue", &json!({"name": "mail", "op": {"set": {"max_jobs": 70}}})).await;
    let put = json!({"put": {"key": "topic/news", "precondition": "always", "value": "hunter4"}});
    ana.api("POST", "doc", &put).await;
    ana.api("POST", "audit", &json!({"repair": true})).await;
    ana.form("/jobs/act", &[("action", "delete"), ("job", &format!("{}.waiting.1.mail", ids[3]))]).await;
    ana.form("/queues/mail/pause", &[("by", "someone"), ("reason", "page")]).await;
    ana.form("/queues/mail/resume", &[]).await;
    ana.form("/queues/mail/purge", &[("name", "mail")]).await;
    let log = ana.log().await;
    let seen: Vec<(&str, &str, u64)> = log
        .iter()
        .map(|entry| {
            let word = |name: &str| entry[name].as_str().unwrap();
            (word("via"), word("action"), entry["done"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("api", "cancel", 1),
            ("api", "cancel", 1),
            ("api", "retry", 1),
            ("api", "edit", 1),
            ("api", "pause", 0),
            ("api", "resume", 0),
            ("api", "settings", 0),
            ("api", "put", 0),
            ("api", "repair", 0),
            ("dashboard", "delete", 1),
            ("dashboard", "pause", 0),
            ("dashboard", "resume", 0),
            ("dashboard", "purge", 7),
        ],
        "{log:#?}"
    );
    assert!(log.iter().all(|entry| entry["by"] == "ana" && entry["token"] == ana.token.token.id.as_str()));
    assert_eq!((&log[0]["reason"], &log[0]["skipped"]), (&json!("wrong list"), &json!(1)), "{}", log[0]);
    assert_eq!(log[1]["jobs"], json!([ids[1]]));
    assert_eq!((&log[4]["queue"], &log[4]["reason"]), (&json!("mail"), &json!("moving")));
    assert_eq!(log[7]["document"], "topic/news");
    assert_eq!(log[10]["reason"], "page");
    assert!(!format!("{log:?}").contains("hunter"), "{log:?}");
    let (status, page) = ana.request(Request::get("/activity").body(Body::empty()).unwrap()).await;
    assert!(status == 200 && page.contains("wrong list") && page.contains("topic/news"), "{page}");
}

#[tokio::test]
async fn the_work_of_jobs_and_what_is_refused_is_not_in_the_log() {
    let t = TestQueue::new();
    let router = Server::new(&t.client).router(&CancellationToken::new());
    let ana = Caller::new(&t, &router, "ana", Role::Admin, Payloads::Shown).await;
    ana.api("POST", "enqueue", &json!({"jobs": [{"kind": "k", "queue": "mail"}]})).await;
    ana.api("POST", "jobs", &json!({"kind": "k", "queue": "mail"})).await;
    let jobs = ana.api("POST", "reserve", &json!({"queues": ["mail"], "max": 1})).await;
    let lease = json!({"id": jobs["jobs"][0]["id"], "fence": jobs["jobs"][0]["fence"]});
    ana.api("POST", "extend", &json!({"leases": [lease]})).await;
    let ack = json!({"id": lease["id"], "fence": lease["fence"], "verdict": "ack"});
    ana.api("POST", "settle", &json!({"settle": [ack]})).await;
    ana.api("POST", "take", &json!({"queue": "mail", "max": 1})).await;
    ana.api("POST", "queue", &json!({"name": "mail", "op": "show"})).await;
    ana.api("POST", "queue", &json!({"name": "mail", "op": {"open": {"group": null}}})).await;
    ana.api("POST", "doc", &json!({"get": {"key": "x"}})).await;
    let reader = Caller::new(&t, &router, "bo", Role::Read, Payloads::Shown).await;
    let request = Request::post("/api/v1/queues/mail/pause").body(Body::empty()).unwrap();
    assert_eq!(reader.request(request).await.0, 403);
    assert_eq!(ana.log().await, Vec::<Value>::new());
}

#[tokio::test]
async fn an_operation_is_in_the_log_when_it_is_ordered_and_when_it_ends() {
    let t = TestQueue::new();
    let router = Server::new(&t.client).router(&CancellationToken::new());
    let ana = Caller::new(&t, &router, "ana", Role::Operate, Payloads::Shown).await;
    let blind = Caller::new(&t, &router, "bo", Role::Read, Payloads::Hidden).await;
    push(&t.client, "mail", 3).await;
    for filter in ["queue:mail", "payload.password:hunter2"] {
        let order = json!({"action": "cancel", "filter": filter, "reason": "why"});
        let id = ana.api("POST", "operations", &order).await["id"].as_str().unwrap().to_owned();
        let patience = async {
            while ana.api("GET", &format!("operations/{id}"), &Value::Null).await["state"] == "running" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), patience).await.expect("it never ends");
    }
    let log = ana.log().await;
    let of = |n: usize| (log[n]["action"].as_str().unwrap(), log[n]["via"].as_str().unwrap());
    assert_eq!(log.len(), 4, "{log:#?}");
    assert_eq!((of(0), of(1)), (("order", "api"), ("done", "operation")));
    assert_eq!((&log[0]["planned"], &log[1]["done"]), (&json!(3), &json!(3)));
    for entry in &log {
        assert_eq!(
            (&entry["by"], &entry["operation_action"], &entry["reason"]),
            (&json!("ana"), &json!("cancel"), &json!("why"))
        );
    }
    assert_eq!(log[1]["filter"], "queue:mail");
    assert_eq!(log[3]["filter"], "payload.password:hunter2");
    let seen = blind.log().await;
    assert_eq!((&seen[1]["filter"], &seen[3]["filter"]), (&json!("queue:mail"), &Value::Null));
    let (_, page) = blind.request(Request::get("/activity").body(Body::empty()).unwrap()).await;
    assert!(page.contains("queue:mail") && !page.contains("hunter2"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn many_changes_of_a_caller_cost_few_writes() {
    let t = TestQueue::new();
    let ids = push(&t.client, "mail", 1_000).await;
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
        counted.fetch_add(u64::from(verb == "doc"), Ordering::Relaxed);
        Fault::Pass
    });
    let server = Server::new(&Client::new(Arc::new(store))).gate(Gate::new(&t.client));
    let router = server.router(&CancellationToken::new());
    let ana = Caller::new(&t, &router, "ana", Role::Operate, Payloads::Shown).await;
    let paths: Vec<String> = ids.iter().map(|id| format!("jobs/{id}/cancel")).collect();
    let reason = json!({"reason": "r"});
    join_all(paths.iter().map(|path| ana.api("POST", path, &reason))).await;
    let log = ana.log().await;
    let sum = |name: &str| log.iter().map(|entry| entry[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("done"), sum("times")), (1_000, 1_000));
    assert!(log.len() <= 20, "{} entries", log.len());
    assert!(log[0]["jobs"].as_array().unwrap().len() <= 5);
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls <= 60, "{calls} calls");
}

/// The change is made all the same, and is in the log when the store takes writes again.
#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_written_undoes_nothing() {
    let t = TestQueue::new();
    let ids = push(&t.client, "mail", 1).await;
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let on = Arc::clone(&fails);
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
        if verb == "doc" && on.load(Ordering::Relaxed) { Fault::Before } else { Fault::Pass }
    });
    let server = Server::new(&Client::new(Arc::new(store))).gate(Gate::new(&t.client));
    let router = server.router(&CancellationToken::new());
    let ana = Caller::new(&t, &router, "ana", Role::Operate, Payloads::Shown).await;
    ana.api("DELETE", &format!("jobs/{}", ids[0]), &Value::Null).await;
    assert_eq!(t.client.count(None).await.unwrap().total(), 0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    fails.store(false, Ordering::Relaxed);
    let log = ana.log().await;
    assert_eq!((log.len(), &log[0]["action"]), (1, &json!("delete")), "{log:?}");
}

/// A change that was made is in the log, also if nobody waits for its answer.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_leaves_its_entry() {
    let t = TestQueue::new();
    push(&t.client, "mail", 1).await;
    let store = FaultyStore::new(Arc::clone(t.client.store()), |verb| {
        if verb == "queue" { Fault::Delay(Duration::from_secs(1)) } else { Fault::Pass }
    });
    let server = Server::new(&Client::new(Arc::new(store)));
    let router = server.router(&CancellationToken::new());
    let ana = Caller::new(&t, &router, "ana", Role::Operate, Payloads::Shown).await;
    let pause = Request::post("/api/v1/queues/mail/pause").body(Body::empty()).unwrap();
    tokio::time::timeout(Duration::from_millis(500), ana.request(pause)).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let log = ana.log().await;
    assert_eq!((log.len(), &log[0]["action"], &log[0]["by"]), (1, &json!("pause"), &json!("ana")), "{log:?}");
}
