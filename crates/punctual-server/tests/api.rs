//! The HTTP API: rights of each call, bodies that are wrong, waits, and calls without numbers.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::BTreeSet,
    future::{Future as _, poll_fn},
    net::SocketAddr,
    task::Poll,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::{Request, StatusCode, header},
};
use futures_util::future::join_all;
use punctual::{
    CancellationToken, Client, NewJob, Payload, State,
    store::{CallId, Counts, QueueRequest, Reserve, Reserved},
};
use punctual_server::{
    DashboardOptions, Server, api,
    token::{self, NewToken, Payloads, Role},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::ServiceExt as _;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// Each call with a body that it accepts, the least role, and whether a token for the queue `mail` suffices.
fn calls(job: &Reserved) -> Vec<(&'static str, Value, Role, bool)> {
    let (id, fence) = (job.lease.job, job.lease.fence);
    let lease = json!({"id": id, "fence": fence});
    let queue = |op: Value| json!({"name": "mail", "op": op});
    let settings = json!({"done": {"age_ms": 1, "count": 1, "bytes": 1}});
    let (read, operate, admin) = (Role::Read, Role::Operate, Role::Admin);
    vec![
        ("store", json!({}), read, true),
        ("identity", json!({}), read, true),
        ("now", json!({}), read, true),
        ("get", json!({"id": id}), read, true),
        (
            "holder",
            json!({"key": {"kind": "k", "queue": "mail", "group": null, "concurrency_key": null, "key": "x"}}),
            read,
            true,
        ),
        ("list", json!({"limit": 10}), read, false),
        ("count", json!({"queue": "mail"}), read, true),
        ("count", json!({}), read, false),
        ("upcoming", json!({"queue": null, "bucket_ms": 1_000, "buckets": 1}), read, false),
        ("queues", json!({}), read, false),
        ("wait", json!({"queues": ["mail"], "at_most_ms": 0}), read, true),
        ("doctor", json!({}), read, false),
        ("audit", json!({}), read, false),
        ("doc", json!({"get": {"key": "schedule/x"}}), read, true),
        ("doc", json!({"get": {"key": "topic/x"}}), read, false),
        ("doc", json!({"list": {"prefix": "schedule/", "limit": 10}}), read, false),
        ("tool", json!({"lock": {"show": {"name": "x"}}}), read, false),
        ("tool", json!({"board": {"name": "b", "act": {"top": {"n": 1}}}}), read, false),
        ("queue", queue(json!("show")), read, true),
        ("enqueue", json!({"jobs": [{"kind": "k", "queue": "mail"}]}), operate, true),
        ("reserve", json!({"queues": ["mail"], "max": 0}), operate, true),
        ("extend", json!({"leases": [lease]}), operate, true),
        ("settle", json!({"settle": []}), operate, true),
        ("settle", json!({"settle": [], "then": {"queues": ["mail"], "max": 0}}), operate, true),
        ("take", json!({"queue": "mail", "max": 0}), operate, true),
        ("act", json!({"targets": [], "action": {"action": "delete"}}), operate, false),
        ("sweep", json!({"limit": 1}), operate, true),
        ("tool", json!({"lock": {"release": {"name": "x"}}}), operate, false),
        ("tool", json!({"board": {"name": "b", "act": {"remove": {"member": "m"}}}}), operate, false),
        (
            "tool",
            json!({"limit": {"name": "l", "key": "k", "cost": 1, "rule": {"gcra": {"max": 1, "period_ms": 1_000, "burst": 1}}}}),
            operate,
            false,
        ),
        ("queue", queue(json!({"pause": {"by": "a", "reason": "b"}})), operate, true),
        ("queue", queue(json!({"open": {"group": null}})), operate, true),
        ("queue", queue(json!("resume")), operate, true),
        ("queue", queue(json!({"set": settings})), admin, true),
        ("queue", queue(json!({"replace": {"seen": {}, "new": {}}})), admin, true),
        ("queue", queue(json!({"purge": 1})), admin, true),
        ("doc", json!({"put": {"key": "schedule/x", "precondition": "always", "value": "1"}}), admin, false),
        ("doc", json!({"remove": {"key": "schedule/x", "precondition": "always"}}), admin, false),
        ("doc", json!({"get": {"key": "token/0"}}), admin, false),
        ("doc", json!({"list": {"prefix": "", "limit": 10}}), admin, false),
        ("audit", json!({"repair": true}), admin, false),
    ]
}

/// A server and its store, which has a running and a waiting job in `mail`, and one in `bulk`.
struct Site {
    client: Client,
    router: Router,
    running: Reserved,
}

fn job(client: &Client, queue: &str) -> NewJob {
    NewJob::new(client.make_id(), "k", queue, Payload::json(r#""sesame""#))
}

fn from(queue: &str, number: u64) -> Reserve {
    let queues = vec![QueueRequest { queue: queue.to_owned(), share: 0, at_most: 1 }];
    let call = CallId { instance: 9, number };
    Reserve { call, worker: "w".to_owned(), queues, n: 1, lease: None, company: false }
}

impl Site {
    async fn new(options: DashboardOptions) -> Self {
        let client = Client::connect("memory:").await.unwrap();
        client.push(["mail", "mail", "bulk"].map(|queue| job(&client, queue)).into()).await.unwrap();
        let running = client.store().reserve(&from("mail", 1)).await.unwrap().jobs.remove(0);
        let router = Server::new(&client).dashboard(options).router(&CancellationToken::new());
        Self { client, router, running }
    }

    async fn token(&self, change: impl FnOnce(&mut NewToken)) -> String {
        let mut new = NewToken::new("ana", Role::Admin);
        change(&mut new);
        token::make(&self.client, &new, token::random().unwrap()).await.unwrap().secret.expose().to_owned()
    }

    async fn call(&self, token: &str, call: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request =
            Request::post(format!("/api/v1/{call}")).header(header::AUTHORIZATION, format!("Bearer {token}"));
        let mut request = request.body(body.into()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4_000))));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    /// What a refused call must leave as it is.
    async fn state(&self) -> (Counts, Vec<String>, Value) {
        let counts = self.client.store().count(None).await.unwrap();
        let queue = self.client.store().queue("mail", &punctual::store::QueueOp::Show).await.unwrap();
        (counts, self.client.store().queues(None).await.unwrap(), serde_json::to_value(queue).unwrap())
    }
}

#[tokio::test]
async fn each_call_needs_its_role_and_a_refused_one_changes_nothing() {
    for role in Role::ALL {
        for mail_only in [false, true] {
            let site = Site::new(DashboardOptions::default()).await;
            let token = site
                .token(|new| {
                    new.role = role;
                    new.queues = mail_only.then(|| vec!["mail".to_owned()]);
                })
                .await;
            for (call, body, least, by_queue) in calls(&site.running) {
                let before = site.state().await;
                let (status, answer) = site.call(&token, call, body.to_string()).await;
                let is_allowed = least <= role && (by_queue || !mail_only);
                assert_eq!(
                    status == StatusCode::OK,
                    is_allowed,
                    "{role} {mail_only} {call} {body}: {answer}"
                );
                if !is_allowed {
                    assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")));
                    assert_eq!(site.state().await, before, "{role} {call} {body}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_read_only_server_refuses_every_change() {
    let site = Site::new(DashboardOptions { read_only: true, ..DashboardOptions::default() }).await;
    let token = site.token(|_| ()).await;
    for (call, body, least, _) in calls(&site.running) {
        let before = site.state().await;
        let (status, answer) = site.call(&token, call, body.to_string()).await;
        assert_eq!(status == StatusCode::OK, least == Role::Read, "{call} {body}: {answer}");
        assert_eq!(site.state().await, before, "{call} {body}");
    }
}

#[tokio::test]
async fn a_token_for_one_queue_reaches_no_job_of_another() {
    let site = Site::new(DashboardOptions::default()).await;
    let token = site.token(|new| new.queues = Some(vec!["mail".to_owned()])).await;
    let other = site.client.store().reserve(&from("bulk", 2)).await.unwrap().jobs.remove(0);
    let (id, fence) = (other.lease.job, other.lease.fence);
    let lease = json!({"id": id, "fence": fence});
    let settled = json!({"id": id, "fence": fence, "verdict": "ack"});
    for (call, body) in [
        ("enqueue", json!({"jobs": [{"kind": "k", "queue": "mail"}, {"kind": "k", "queue": "bulk"}]})),
        ("reserve", json!({"queues": ["mail", "bulk"], "max": 1})),
        ("extend", json!({"leases": [lease]})),
        ("settle", json!({"settle": [settled]})),
        ("settle", json!({"settle": [], "then": {"queues": ["bulk"], "max": 1}})),
        ("take", json!({"queue": "bulk", "max": 1})),
        ("wait", json!({"queues": ["bulk"], "at_most_ms": 0})),
    ] {
        let (status, answer) = site.call(&token, call, body.to_string()).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{call} {body}: {answer}");
    }
    let (status, answer) = site.call(&token, "get", json!({"id": id}).to_string()).await;
    assert_eq!((status, &answer["job"]), (StatusCode::OK, &Value::Null));
    assert_eq!(site.client.get(id).await.unwrap().unwrap().state, State::Running);
}

#[tokio::test]
async fn hidden_payloads_are_in_no_answer() {
    let site = Site::new(DashboardOptions::default()).await;
    let token = site.token(|new| new.payloads = Payloads::Hidden).await;
    let shown = site.token(|_| ()).await;
    let id = site.running.lease.job;
    for (call, body) in [
        ("get", json!({"id": id})),
        ("list", json!({"limit": 10})),
        ("reserve", json!({"queues": ["mail"], "max": 1, "instance": "1", "call": 1})),
        ("take", json!({"queue": "bulk", "max": 1})),
    ] {
        let (status, answer) = site.call(&token, call, body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{call}: {answer}");
        assert!(!answer.to_string().contains("sesame"), "{call}: {answer}");
    }
    let (_, answer) = site.call(&shown, "get", json!({"id": id}).to_string()).await;
    assert!(answer.to_string().contains("sesame"), "{answer}");
}

/// Bodies that fit no call, and what is said of them.
#[tokio::test]
async fn a_wrong_body_is_a_problem_and_nothing_else() {
    let site = Site::new(DashboardOptions::default()).await;
    let token = site.token(|_| ()).await;
    let deep = "[".repeat(100_000);
    let bodies: Vec<Vec<u8>> = vec![
        b"{".to_vec(),
        b"[]".to_vec(),
        b"null".to_vec(),
        b"\xff\xfe".to_vec(),
        br#"{"limit":1000000000}"#.to_vec(),
        br#"{"limit":-1}"#.to_vec(),
        br#"{"limit":1e400}"#.to_vec(),
        br#"{"max":NaN}"#.to_vec(),
        br#"{"jobs":[5]}"#.to_vec(),
        br#"{"nonsense":1}"#.to_vec(),
        br#"{"limit":1,"limit":2}"#.to_vec(),
        format!(r#"{{"jobs":{deep}"#).into_bytes(),
        deep.into_bytes(),
    ];
    let names: BTreeSet<&str> = calls(&site.running).into_iter().map(|(call, ..)| call).collect();
    for call in names {
        for body in &bodies {
            let (status, answer) = site.call(&token, call, body.clone()).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{call} {shown}: {answer}");
            assert_eq!(answer["code"], "invalid", "{call} {shown}: {answer}");
            assert!(answer.to_string().len() < 1_000, "{call} {shown}");
        }
    }
    let (status, answer) = site.call(&token, "enqueue", vec![b' '; 33 << 20]).await;
    assert_eq!((status, &answer["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("payload_too_large")));
    for path in ["nonsense", "get/5", ""] {
        let (status, answer) = site.call(&token, path, "{}").await;
        assert_eq!((status, &answer["code"]), (StatusCode::NOT_FOUND, &json!("not_found")), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let site = Site::new(DashboardOptions::default()).await;
    let token = site.token(|_| ()).await;
    let never = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let (status, answer) = site.call(&token, "enqueue", never).await;
    assert_eq!((status, &answer["code"]), (StatusCode::REQUEST_TIMEOUT, &json!("timed_out")));
}

#[tokio::test]
async fn an_enqueue_that_is_refused_stores_nothing_however_large_it_is() {
    let site = Site::new(DashboardOptions::default()).await;
    let token = site.token(|_| ()).await;
    let before = site.state().await;
    let good = json!({"kind": "k", "queue": "mail"});
    let mut jobs = vec![good; 1_000];
    jobs.push(json!({"kind": "", "queue": "mail"}));
    let (status, answer) = site.call(&token, "enqueue", json!({"jobs": jobs}).to_string()).await;
    assert_eq!((status, &answer["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("payload_too_large")));
    let (status, _) = site.call(&token, "enqueue", json!({"jobs": jobs[1..]}).to_string()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(site.state().await, before);
}

/// More callers than there are lanes for calls without a number.
#[tokio::test]
async fn reserves_without_a_number_get_each_job_once() {
    let client = Client::connect("memory:").await.unwrap();
    client.push((0..200).map(|_| job(&client, "mail")).collect()).await.unwrap();
    let router = api(&client, &CancellationToken::new());
    let reserve = async || {
        let body = json!({"queues": ["mail"], "max": 5}).to_string();
        let request = Request::post("/api/v1/reserve").body(Body::from(body)).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        let jobs = answer["jobs"].as_array().unwrap();
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all: Vec<String> = join_all((0..40).map(|_| reserve())).await.concat();
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (200, 200));
}

#[tokio::test]
async fn a_numbered_reserve_may_be_repeated_and_a_retry_follows_the_backoff() {
    let site = Site::new(DashboardOptions::default()).await;
    let token = site.token(|_| ()).await;
    let body = json!({"queues": ["mail"], "max": 1, "instance": "7f3a", "call": 1}).to_string();
    let (_, first) = site.call(&token, "reserve", body.clone()).await;
    let (_, again) = site.call(&token, "reserve", body).await;
    let lease = |answer: &Value| (answer["jobs"][0]["id"].clone(), answer["jobs"][0]["fence"].clone());
    assert_eq!(lease(&first), lease(&again));
    let half = json!({"queues": ["mail"], "max": 1, "instance": "7f3a"}).to_string();
    assert_eq!(site.call(&token, "reserve", half).await.0, StatusCode::UNPROCESSABLE_ENTITY);

    let (id, fence) = lease(&first);
    let settle = json!({"settle": [{"id": id, "fence": fence, "verdict": "retry", "error": "no route"}]});
    let (_, settled) = site.call(&token, "settle", settle.to_string()).await;
    assert_eq!(settled["results"][0], json!({"status": "settled", "state": "waiting"}));
    let (_, answer) = site.call(&token, "get", json!({"id": id}).to_string()).await;
    let job = &answer["job"];
    let pause = job["run_at_ms"].as_u64().unwrap() - job["failures"][0]["ended_ms"].as_u64().unwrap();
    // The backoff of a job begins with 5 s and adds a random part.
    assert!((1..=10_000).contains(&pause), "{job}");
}

#[tokio::test]
async fn a_wait_ends_with_a_job_and_with_the_server() {
    let client = Client::connect("memory:").await.unwrap();
    let stop = CancellationToken::new();
    let router = api(&client, &stop);
    let wait = || {
        let body = json!({"queues": ["mail"], "at_most_ms": 1_000_000}).to_string();
        let request = Request::post("/api/v1/wait").body(Body::from(body)).unwrap();
        Box::pin(timeout(PATIENCE, router.clone().oneshot(request)))
    };
    let mut waiting = wait();
    assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
    client.push(vec![job(&client, "mail")]).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    client.store().reserve(&from("mail", 1)).await.unwrap();
    let mut waiting = wait();
    assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
    stop.cancel();
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
}
