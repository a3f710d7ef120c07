//! A server in front of a store in memory, and requests to it.

use std::net::SocketAddr;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::{Method, Request, header::CONTENT_TYPE},
};
use futures_util::StreamExt as _;
use punctual::{
    CancellationToken, Client, JobId, NewJob, Payload, Timestamp, Unique,
    job::Filter,
    store::{
        BoardAct, BoardOp, CallId, DocOp, Lease, List, LockOp, Precondition, QueueOp, QueueRequest, Reserve,
        ToolOp,
    },
    testing::TestQueue,
};
use punctual_server::{
    DashboardOptions, Server,
    token::{self, NewToken, Payloads, RANDOM_BYTES, Role},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::document::Document;

/// Every call.
pub(crate) const CALLS: [&str; 22] = [
    "store", "identity", "now", "enqueue", "reserve", "extend", "settle", "take", "wait", "get", "holder",
    "list", "count", "upcoming", "act", "queue", "queues", "doc", "tool", "sweep", "audit", "doctor",
];

/// The codes of problems. The list is closed.
pub(crate) const CODES: [&str; 21] = [
    "not_found",
    "queue_unknown",
    "wrong_state",
    "unique_conflict",
    "limiter_conflict",
    "version_mismatch",
    "lease_lost",
    "conflict",
    "invalid",
    "unsupported",
    "outdated",
    "payload_too_large",
    "unauthenticated",
    "forbidden",
    "rate_limited",
    "overloaded",
    "store_unavailable",
    "store_full",
    "corrupt",
    "unknown_outcome",
    "timed_out",
];

/// A payload that no answer to some callers may contain.
pub(crate) const SECRET: &str = "hunter2";

/// A server and its store. The queues `mail` and `sms` have a waiting and a running job each.
pub(crate) struct Site {
    pub(crate) t: TestQueue,
    pub(crate) stop: CancellationToken,
    pub(crate) mail: Jobs,
    pub(crate) sms: Jobs,
    pub(crate) tokens: Tokens,
    pub(crate) document: &'static Document,
    pub(crate) router: Router,
}

/// The jobs of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Jobs {
    pub(crate) queue: &'static str,
    /// An operation on the queue that has ended.
    pub(crate) operation: &'static str,
    /// It holds the unique key `key`.
    pub(crate) waiting: JobId,
    pub(crate) running: Lease,
    /// The id of a worker that serves the queue.
    pub(crate) worker: &'static str,
}

/// The document of a worker.
pub(crate) fn registration(queues: &[&str], seen: Timestamp) -> String {
    let queues: Vec<Value> = queues.iter().map(|queue| json!({"name": queue})).collect();
    json!({"name": "w", "seen_ms": seen, "queues": queues}).to_string()
}

/// Tokens, by what they are for.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) read: String,
    pub(crate) operate: String,
    pub(crate) admin: String,
    pub(crate) mail_read: String,
    pub(crate) mail_operate: String,
    pub(crate) mail_admin: String,
    /// For the whole store, without payloads.
    pub(crate) blind: String,
    /// For the queue `mail`, without payloads.
    pub(crate) mail_blind: String,
    /// The key of the document of a token.
    pub(crate) document: String,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{}: {e}", self.text))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_else(|| panic!("no code: {}", self.text)).to_owned()
    }

    pub(crate) fn is(&self, status: u16, code: &str) -> bool {
        self.status == status && self.code() == code
    }
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with(DashboardOptions::default()).await
    }

    pub(crate) async fn read_only() -> Self {
        Self::with(DashboardOptions { read_only: true, ..DashboardOptions::default() }).await
    }

    async fn with(options: DashboardOptions) -> Self {
        let t = TestQueue::new();
        let tokens = tokens(&t.client).await;
        let (mut mail, mut sms) = (jobs(&t.client, "mail", 1).await, jobs(&t.client, "sms", 2).await);
        let doc = DocOp::Put { key: "note".into(), precondition: Precondition::Always, value: b"1".to_vec() };
        t.client.store().doc(&doc).await.unwrap();
        // A paused schedule has no tick that would be one more job.
        let schedule = json!({
            "ticks": {"cron": "0 3 * * *", "tz": "Europe/Berlin", "misfire": "skip"},
            "job": {
                "kind": "k", "queue": "mail", "payload": json!({"password": SECRET}).to_string(),
                "content_type": "application/json", "headers": {"cookie": SECRET},
            },
            "paused": {"since_ms": 5, "by": "ana", "reason": "moved"},
        });
        for (key, value) in [("schedule/nightly", schedule), ("topic/news", json!({"queues": ["mail"]}))] {
            let value = value.to_string().into_bytes();
            let doc = DocOp::Put { key: key.into(), precondition: Precondition::Always, value };
            t.client.store().doc(&doc).await.unwrap();
        }
        let lock = LockOp::Acquire { name: "l".into(), owner: 1, lease: std::time::Duration::from_mins(1) };
        t.client.store().tool(&ToolOp::Lock(lock)).await.unwrap();
        let act = BoardAct::Set { member: "ana".into(), score: 5, members_max: 10 };
        let board = BoardOp { name: "b".into(), window: None, act };
        t.client.store().tool(&ToolOp::Board(board)).await.unwrap();
        let stop = CancellationToken::new();
        let router = Server::new(&t.client).router(&stop);
        let document = Document::of(&router).await;
        let mut site = Self { t, stop, mail, sms, tokens, document, router };
        for of in [&mut mail, &mut sms] {
            of.operation = site.operation(of.queue).await;
        }
        (site.mail, site.sms) = (mail, sms);
        site.router = Server::new(&site.t.client).dashboard(options).router(&site.stop);
        site
    }

    /// Orders an operation that has nothing to do, and waits for its end.
    pub(crate) async fn operation(&self, queue: &str) -> &'static str {
        let body = json!({"action": "delete", "filter": format!("queue:{queue} kind:none"), "reason": "r"});
        let ordered = self.ask(&self.tokens.admin, Method::POST, "operations", Some(&body)).await;
        let place = ordered.location.clone().unwrap_or_else(|| panic!("{ordered:?}"));
        while self.ask(&self.tokens.admin, Method::GET, &place, None).await.json()["state"] == "running" {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        place.strip_prefix("operations/").unwrap().to_owned().leak()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.t.client
    }

    /// Makes a call.
    pub(crate) async fn call(&self, token: &str, call: &str, body: &Value) -> Answer {
        let answer = self.send(token, call, body.to_string()).await;
        if answer.status == 200 {
            self.document.check_request(&format!("POST {call}"), body);
        }
        answer
    }

    /// Makes a call with any body.
    pub(crate) async fn send(&self, token: &str, call: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(format!("/api/v1/{call}")).body(body.into()).unwrap();
        self.request(token, request).await
    }

    /// Sends a request, and checks the form of its answer.
    pub(crate) async fn request(&self, token: &str, mut request: Request<Body>) -> Answer {
        let is_of_api = request.uri().path().starts_with("/api");
        let operation = self.document.operation(request.method(), request.uri().path());
        let peer: SocketAddr = "192.0.2.1:50000".parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        if !token.is_empty() {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let retry_after = answer.headers().contains_key("retry-after");
        let content_type = answer.headers().get(CONTENT_TYPE).map(|value| value.to_str().unwrap().to_owned());
        let [etag, location] = ["etag", "location"]
            .map(|name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned()));
        let is_stream = content_type.as_deref() == Some("text/event-stream");
        let bytes = if is_stream {
            // It has no end.
            answer.into_body().into_data_stream().next().await.unwrap().unwrap()
        } else {
            to_bytes(answer.into_body(), usize::MAX).await.unwrap()
        };
        let answer = Answer { status, etag, location, text: String::from_utf8(bytes.to_vec()).unwrap() };
        let is_lines = content_type.as_deref() == Some("application/x-ndjson");
        if !is_of_api || is_stream || is_lines {
            assert_eq!(status, if is_of_api { 200 } else { status });
            return answer;
        }
        if let Some(operation) = operation {
            self.document.check_answer(&operation, status, &answer.text);
        }
        if matches!(status, 200 | 201) {
            assert_eq!(content_type.as_deref(), Some("application/json"));
            return answer;
        }
        assert_eq!(content_type.as_deref(), Some("application/problem+json"), "{answer:?}");
        assert!(CODES.contains(&answer.code().as_str()), "{answer:?}");
        assert!(status < 500 || matches!(status, 503 | 507), "{answer:?}");
        assert_eq!(answer.json()["status"], status, "{answer:?}");
        assert_eq!(retry_after, status == 503, "{answer:?}");
        for field in ["type", "title", "detail"] {
            assert!(
                answer.json()[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field}: {answer:?}"
            );
        }
        answer
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        self.request(token, Request::builder().method(Method::GET).uri(path).body(Body::empty()).unwrap())
            .await
    }

    /// Sends a request about a resource. A body that is accepted must be as in the document.
    pub(crate) async fn ask(&self, token: &str, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let path = format!("/api/v1/{path}");
        let operation = self.document.operation(&method, path.split('?').next().unwrap());
        let text = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).body(text.into()).unwrap();
        let answer = self.request(token, request).await;
        if let (Some(operation), Some(body), 200 | 201) = (operation, body, answer.status) {
            self.document.check_request(&operation, body);
        }
        answer
    }

    /// Everything that can be read of the store.
    pub(crate) async fn everything(&self) -> String {
        let store = self.client().store();
        let list = List { filter: Filter::all(), after: None, limit: 1_000 };
        let jobs = store.list(&list).await.unwrap();
        let mut queues = Vec::new();
        for name in store.queues(None).await.unwrap() {
            queues.push(store.queue(&name, &QueueOp::Show).await.unwrap());
        }
        let docs = DocOp::List { prefix: String::new(), after: None, limit: 1_000 };
        let docs = store.doc(&docs).await.unwrap();
        let locks = store.tool(&ToolOp::Lock(LockOp::List { limit: 1_000 })).await.unwrap();
        let board = BoardOp { name: "b".into(), window: None, act: BoardAct::Top { n: 100 } };
        let board = store.tool(&ToolOp::Board(board)).await.unwrap();
        format!("{jobs:#?}{queues:#?}{docs:#?}{locks:#?}{board:#?}")
    }
}

/// A payload with a secret.
pub(crate) fn secret() -> Payload {
    Payload::json(format!(r#"{{"password":"{SECRET}"}}"#))
}

async fn jobs(client: &Client, queue: &'static str, instance: u64) -> Jobs {
    let store = client.store();
    let job = || {
        let mut job = NewJob::new(client.make_id(), "k", queue, secret());
        job.headers = [("cookie".to_owned(), SECRET.to_owned())].into();
        job
    };
    let running = job();
    store.enqueue(CallId { instance, number: 1 }, &[running]).await.unwrap();
    let want = Reserve {
        call: CallId { instance, number: 1 },
        worker: "w".into(),
        queues: vec![QueueRequest { queue: queue.into(), share: 0, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    let running = store.reserve(&want).await.unwrap().jobs[0].lease;
    let waiting = NewJob { unique: Some(Unique::key("key")), ..job() };
    let waiting = store.enqueue(CallId { instance, number: 2 }, &[waiting]).await.unwrap()[0].id().unwrap();
    let worker = if queue == "mail" { "00000000000000a1" } else { "00000000000000b2" };
    let value = registration(&[queue], store.now().await.unwrap()).into_bytes();
    let key = format!("worker/{worker}");
    store.doc(&DocOp::Put { key, precondition: Precondition::Always, value }).await.unwrap();
    Jobs { queue, operation: "", waiting, running, worker }
}

async fn tokens(client: &Client) -> Tokens {
    let mut seed = 0;
    let mut document = String::new();
    let mut make = async |role, queue: Option<&str>, payloads| {
        seed += 1_u8;
        let random: [u8; RANDOM_BYTES] = std::array::from_fn(|n| seed.wrapping_mul(31).wrapping_add(n as u8));
        let queues = queue.map(|queue| vec![queue.to_owned()]);
        let new = NewToken { queues, payloads, ..NewToken::new("ana", role) };
        let made = token::make(client, &new, random).await.unwrap();
        document = format!("token/{}", made.token.id);
        made.secret.expose().to_owned()
    };
    let (shown, hidden) = (Payloads::Shown, Payloads::Hidden);
    let (read, operate, admin) = (
        make(Role::Read, None, shown).await,
        make(Role::Operate, None, shown).await,
        make(Role::Admin, None, shown).await,
    );
    let (mail_read, mail_operate, mail_admin) = (
        make(Role::Read, Some("mail"), shown).await,
        make(Role::Operate, Some("mail"), shown).await,
        make(Role::Admin, Some("mail"), shown).await,
    );
    let blind = make(Role::Admin, None, hidden).await;
    let mail_blind = make(Role::Operate, Some("mail"), hidden).await;
    Tokens { read, operate, admin, mail_read, mail_operate, mail_admin, blind, mail_blind, document }
}

impl Jobs {
    /// The unique key of the waiting job.
    pub(crate) fn key(&self) -> Value {
        json!({"kind": "k", "queue": self.queue, "group": null, "concurrency_key": null, "key": "key"})
    }

    /// The lease of the running job.
    pub(crate) fn lease(&self) -> Value {
        json!({"id": self.running.job, "fence": self.running.fence})
    }

    /// A settlement of it.
    pub(crate) fn settlement(&self, verdict: &Value) -> Value {
        let mut settlement = self.lease();
        settlement.as_object_mut().unwrap().extend(verdict.as_object().unwrap().clone());
        settlement
    }
}
