//! The store that is a client of a server: what it makes of lost answers, other answers and other servers.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use punctual::{
    CancellationToken, Client, Error, ErrorKind, NewJob, Payload, State,
    job::Filter,
    store::{
        Audit, CallId, DocOp, Enqueued, Lease, List, Precondition, QueueOp, QueueReply, QueueRequest,
        Reserve, Settled, Settlement, Store as _, Take, Upcoming, Verdict, http::HttpStore,
    },
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::live::Live;

/// A server that answers `store` as a server of punctual does, and every other call with `answer`.
struct Fake {
    addr: SocketAddr,
    /// The requests that it got.
    seen: Arc<Mutex<Vec<String>>>,
}

const STORE: &str = r#"{"durability":"memory","shard":0,"version":"9.9.9","from_the_future":{}}"#;

fn http(status: &str, content_type: &str, body: &str) -> String {
    let n = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\nconnection: close\r\ncontent-length: {n}\r\n\r\n{body}"
    )
}

/// Reads a request with its body.
pub(crate) async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut some = [0; 4096];
        let n = stream.read(&mut some).await.unwrap_or(0);
        bytes.extend_from_slice(&some[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let head = text.find("\r\n\r\n");
        if n == 0 || head.is_some_and(|head| head + 4 + length.unwrap_or(0) <= bytes.len()) {
            return text;
        }
    }
}

impl Fake {
    /// An empty answer cuts the connection.
    async fn new(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let all = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read(&mut stream).await;
                let is_store = request.starts_with("POST /api/v1/store ");
                all.lock().unwrap().push(request);
                let answer =
                    if is_store { http("200 OK", "application/json", STORE) } else { answer.clone() };
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { addr, seen }
    }

    async fn store(&self) -> HttpStore {
        HttpStore::open(&format!("http://:{TOKEN}@{}", self.addr)).await.unwrap()
    }
}

const TOKEN: &str = "pt_00c0ffee_0123456789abcdef";

/// The error of a call that gets this answer. It must not contain the token.
async fn error_of(answer: String) -> Error {
    let store = Fake::new(answer).await.store().await;
    let error = store.now().await.unwrap_err();
    let shown = format!("{error} {error:?} {:?} {store:?} {}", error.hint(), store.url());
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
    error
}

#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome() {
    let whole = http("200 OK", "application/json", r#"{"now_ms":1}"#);
    for cut in [0, 5, whole.len() - 1] {
        let error = error_of(whole[..cut].to_owned()).await;
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "cut after {cut}: {error:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let error = HttpStore::open(&format!("http://:{TOKEN}@{addr}")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!format!("{error} {error:?}").contains("0123456789abcdef"), "{error:?}");
}

#[tokio::test]
async fn answers_of_proxies_and_problems_have_kinds() {
    use ErrorKind::{
        Closed, Conflict, Corrupt, Forbidden, Invalid, Outdated, StoreFull, TooLarge, Unauthenticated,
        Unavailable, UnknownOutcome, Unsupported,
    };
    let html = |status| http(status, "text/html", "<html>sorry</html>");
    let foreign = r#"{"type":"about:blank","code":"unauthenticated","detail":"log in"}"#;
    for (answer, kind) in [
        (html("200 OK"), UnknownOutcome),
        (http("200 OK", "application/json", "[]"), UnknownOutcome),
        (http("200 OK", "application/json", "{}"), UnknownOutcome),
        (http("200 OK", "application/json", r#"{"now_ms":-1}"#), UnknownOutcome),
        (http("204 No Content", "application/json", ""), UnknownOutcome),
        (html("500 Internal Server Error"), UnknownOutcome),
        (html("501 Not Implemented"), UnknownOutcome),
        (html("502 Bad Gateway"), UnknownOutcome),
        (html("503 Service Unavailable"), UnknownOutcome),
        (html("504 Gateway Timeout"), UnknownOutcome),
        (html("302 Found"), Unavailable),
        (html("400 Bad Request"), Unavailable),
        (html("401 Unauthorized"), Unavailable),
        (html("403 Forbidden"), Unavailable),
        (html("404 Not Found"), Unavailable),
        (html("405 Method Not Allowed"), Unavailable),
        (html("408 Request Timeout"), Unavailable),
        (html("421 Misdirected Request"), Unavailable),
        (html("429 Too Many Requests"), Unavailable),
        // A smaller call can pass.
        (html("413 Payload Too Large"), TooLarge),
        (http("401 Unauthorized", "application/problem+json", foreign), Unavailable),
    ] {
        let error = error_of(answer.clone()).await;
        assert_eq!((error.kind(), error.is_foreign()), (kind, true), "{answer}: {error:?}");
    }
    for (status, code, kind) in [
        ("503 Service Unavailable", "store_unavailable", Unavailable),
        ("503 Service Unavailable", "overloaded", Unavailable),
        ("429 Too Many Requests", "rate_limited", Unavailable),
        ("408 Request Timeout", "timed_out", Unavailable),
        ("504 Gateway Timeout", "unknown_outcome", UnknownOutcome),
        ("507 Insufficient Storage", "store_full", StoreFull),
        ("422 Unprocessable Entity", "invalid", Invalid),
        ("413 Payload Too Large", "payload_too_large", TooLarge),
        ("409 Conflict", "conflict", Conflict),
        ("500 Internal Server Error", "corrupt", Corrupt),
        ("501 Not Implemented", "unsupported", Unsupported),
        ("501 Not Implemented", "outdated", Outdated),
        ("401 Unauthorized", "unauthenticated", Unauthenticated),
        ("403 Forbidden", "forbidden", Forbidden),
        ("400 Bad Request", "from_the_future", Unsupported),
        ("503 Service Unavailable", "from_the_future", Unavailable),
    ] {
        let body = format!(
            r#"{{"type":"https://punctual.dev/problems/x","code":"{code}","detail":"no","hint":"try","status":0,"from_the_future":1}}"#
        );
        let error = error_of(http(status, "application/problem+json", &body)).await;
        // Only this client knows how it gets a token.
        let hint = if kind == Unauthenticated {
            "name a file with a token: https://HOST?token_file=PATH"
        } else {
            "try"
        };
        assert_eq!(
            (error.kind(), error.is_foreign(), error.to_string(), error.hint()),
            (kind, false, "no".to_owned(), Some(hint)),
            "{code}"
        );
        assert_ne!(error.kind(), Closed);
    }
}

/// Nothing has shown yet that a server of punctual is there: the address is wrong, or needs another token.
#[tokio::test]
async fn the_first_answer_shows_a_wrong_address() {
    for (status, kind) in [
        ("200 OK", ErrorKind::Unsupported),
        ("302 Found", ErrorKind::Unsupported),
        ("401 Unauthorized", ErrorKind::Unauthenticated),
        ("403 Forbidden", ErrorKind::Forbidden),
        ("404 Not Found", ErrorKind::Unsupported),
        ("500 Internal Server Error", ErrorKind::Unsupported),
        ("502 Bad Gateway", ErrorKind::UnknownOutcome),
        ("503 Service Unavailable", ErrorKind::Unavailable),
    ] {
        let fake = Fake::new(http(status, "text/html", "<html>sorry</html>")).await;
        // The fake knows no base path, so this is its answer to each call.
        let error = HttpStore::open(&format!("http://{}/base", fake.addr)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = Fake::new(http("200 OK", "application/json", r#"{"now_ms":1}"#)).await;
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let answer = format!(
            "HTTP/1.1 {status}\r\nlocation: http://{}/api/v1/now\r\ncontent-length: 0\r\n\r\n",
            other.addr
        );
        assert_eq!(error_of(answer).await.kind(), ErrorKind::Unavailable, "{status}");
    }
    assert!(other.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_token_is_sent_and_never_shown() {
    let fake = Fake::new(http("200 OK", "application/json", r#"{"now_ms":1}"#)).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a+token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    for url in [
        format!("http://:{TOKEN}@{}/base/", fake.addr),
        format!("http://{}/base?token_file={}", fake.addr, path.display()),
    ] {
        fake.seen.lock().unwrap().clear();
        // The fake knows no base path, so its answer is that of another call.
        let error = HttpStore::open(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!format!("{error} {error:?}").contains("0123456789abcdef"), "{error:?}");
        let seen = fake.seen.lock().unwrap().join("");
        assert!(seen.starts_with("POST /base/api/v1/store "), "{seen}");
        assert!(seen.contains(&format!("authorization: Bearer {TOKEN}\r\n")), "{seen}");
        assert!(!seen.lines().next().unwrap().contains(TOKEN));
    }
    for url in [
        format!("http://{TOKEN}@{}", fake.addr),
        format!("http://user:{TOKEN}@{}", fake.addr),
        format!("http://:{TOKEN}@"),
        format!("http://:{TOKEN}@{}:99999", fake.addr.ip()),
        format!("http://{}?token={TOKEN}", fake.addr),
        format!("http://{}?{TOKEN}", fake.addr),
        format!("http://:{TOKEN}@{}?token_file=x", fake.addr),
    ] {
        let error = HttpStore::open(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        let shown = format!("{error} {error:?} {:?}", error.hint());
        assert!(!shown.contains("_0123456789"), "{shown}");
    }
}

#[tokio::test]
async fn an_answer_of_the_wrong_length_is_refused() {
    let lease = Lease { job: Client::connect("memory:").await.unwrap().make_id(), fence: 1 };
    for results in ["[]", "[null,null]"] {
        let body = format!(r#"{{"results":{results}}}"#);
        let store = Fake::new(http("200 OK", "application/json", &body)).await.store().await;
        let job = NewJob::new(lease.job, "k", "q", Payload::json("1"));
        let call = CallId { instance: 1, number: 1 };
        let settlement = Settlement { lease, verdict: Verdict::Ack };
        let errors = [
            store.enqueue(call, std::slice::from_ref(&job)).await.unwrap_err(),
            store.enqueue_each(call, &[job]).await.unwrap_err(),
            store.extend(&[lease.into()]).await.unwrap_err(),
            store.settle(&[settlement], None).await.unwrap_err(),
            store.act(&[lease.job.into()], &punctual::store::Action::Retry).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::UnknownOutcome), "{errors:?}");
    }
    // Only a part of an enqueue can have no answer, and only if the caller can bear it.
    let body = r#"{"results":[null],"shard":0}"#;
    let store = Fake::new(http("200 OK", "application/json", body)).await.store().await;
    let (job, call) =
        (NewJob::new(lease.job, "k", "q", Payload::json("1")), CallId { instance: 1, number: 1 });
    assert_eq!(store.enqueue_each(call, std::slice::from_ref(&job)).await.unwrap(), [None]);
    assert_eq!(store.enqueue(call, &[job]).await.unwrap_err().kind(), ErrorKind::UnknownOutcome);
}

/// Adds a field to what a newer server could add one to.
fn add(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for name in
                ["jobs", "results", "reclaimed", "findings", "checks", "docs", "failures", "log", "locks"]
            {
                fields.get_mut(name).into_iter().for_each(add);
            }
            for name in ["job", "batch", "info", "counts", "is", "page", "progress"] {
                fields.get_mut(name).into_iter().for_each(add);
            }
            fields.insert("from_the_future".into(), Value::from(vec![1]));
        }
        Value::Array(items) => items.iter_mut().for_each(add),
        _ => {}
    }
}

async fn newer(request: Request, next: Next) -> Response {
    let call = request.uri().path().rsplit('/').next().unwrap().to_owned();
    let (parts, body) = next.run(request).await.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    let mut value: Value = serde_json::from_slice(&bytes).unwrap();
    match value.as_object_mut() {
        // Its only field says which answer it is.
        Some(fields) if matches!(call.as_str(), "queue" | "doc" | "tool") => {
            fields.values_mut().for_each(add);
        }
        _ => add(&mut value),
    }
    let mut parts = parts;
    parts.headers.remove("content-length");
    Response::from_parts(parts, Body::from(value.to_string()))
}

#[tokio::test]
async fn answers_of_a_newer_server_are_understood() {
    let client = Client::connect("memory:").await.unwrap();
    let api: Router =
        punctual_server::api(&client, &CancellationToken::new()).layer(middleware::from_fn(newer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(api.clone());
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let store = HttpStore::open(&url).await.unwrap();
    let call = |number| CallId { instance: 1, number };
    let job = |n| NewJob::new(client.make_id(), "k", "q", Payload::json(format!("{n}")));

    store.identity().await.unwrap();
    store.now().await.unwrap();
    let first = store.enqueue(call(1), &[job(1), job(2), job(3)]).await.unwrap();
    assert!(first.iter().all(Enqueued::is_new));
    let id = first[0].id().unwrap();
    let again = NewJob::new(id, "k", "q", Payload::json("1"));
    let other = CallId { instance: 2, number: 1 };
    assert!(matches!(store.enqueue(other, &[again]).await.unwrap()[0], Enqueued::Duplicate(_)));
    let want = |number| Reserve {
        call: call(number),
        worker: "w".into(),
        queues: vec![QueueRequest { queue: "q".into(), share: 0, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    let batch = store.reserve(&want(1)).await.unwrap();
    let lease: Lease = batch.jobs[0].lease;
    assert_eq!((lease.job, &batch.jobs[0].job.payload.bytes[..]), (id, &b"1"[..]));
    store.extend(&[lease.into()]).await.unwrap();
    let retry = Settlement {
        lease,
        verdict: Verdict::Retry { at: punctual::When::In(Duration::from_mins(1)), error: "no".into() },
    };
    let (settled, batch) = store.settle(&[retry], Some(&want(2))).await.unwrap();
    assert_eq!(settled, [Settled::Settled(State::Waiting, None)]);
    assert_eq!(batch.unwrap().jobs.len(), 1);
    assert_eq!(
        store.take(&Take { queue: "q".into(), n: 5, older_than: Duration::ZERO }).await.unwrap().len(),
        1
    );
    assert_eq!(store.get(id).await.unwrap().unwrap().failures.len(), 1);
    let list = List { filter: Filter::all(), after: None, limit: 10 };
    assert_eq!(store.list(&list).await.unwrap().jobs.len(), 3);
    assert_eq!(store.count(None).await.unwrap().total(), 3);
    store.upcoming(&Upcoming { queue: None, bucket: Duration::from_secs(1), buckets: 2 }).await.unwrap();
    store.act(&[id.into()], &punctual::store::Action::RunNow).await.unwrap();
    assert!(matches!(store.queue("q", &QueueOp::Show).await.unwrap(), QueueReply::Info(_)));
    assert_eq!(store.queues(None).await.unwrap(), ["q"]);
    let put = DocOp::Put { key: "d".into(), precondition: Precondition::Always, value: vec![0, 255] };
    store.doc(&put).await.unwrap();
    store.doc(&DocOp::List { prefix: String::new(), after: None, limit: 10 }).await.unwrap();
    store.sweep(10).await.unwrap();
    store.audit(Audit::default()).await.unwrap();
    store.doctor().await.unwrap();
    store.wait(&["q".to_owned()], Duration::ZERO).await.unwrap();
}

/// A proxy that cuts every second answer of some calls after the request went through.
async fn lossy(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, cuts) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&cuts);
    tokio::spawn(async move {
        let mut n = 0;
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            let request = read(&mut from).await;
            let mut server = TcpStream::connect(to).await.unwrap();
            let closing = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
            server.write_all(closing.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            server.read_to_end(&mut answer).await.unwrap();
            n += 1;
            if n % 2 == 0
                && ["enqueue", "reserve", "settle"].iter().any(|call| request.contains(&format!("/{call} ")))
            {
                count.fetch_add(1, SeqCst);
                continue;
            }
            from.write_all(&answer).await.unwrap();
        }
    });
    (addr, cuts)
}

#[tokio::test]
async fn jobs_behind_a_proxy_that_loses_answers_run_once() {
    let live = Live::new(Duration::ZERO).await;
    let (addr, cuts) = lossy(live.addr).await;
    let url = format!("http://localhost:{}", addr.port());
    let store = Arc::new(HttpStore::open(&url).await.unwrap());
    let client = Client::new(store.clone());
    for n in 0..20 {
        // The client repeats what was lost.
        let job = NewJob::new(client.make_id(), "k", "q", Payload::json(format!("{n}")));
        client.push(vec![job]).await.unwrap();
    }
    assert_eq!(live.client.count(None).await.unwrap().waiting, 20);
    let mut seen = Vec::new();
    let mut number = 0;
    while seen.len() < 20 {
        number += 1;
        let want = Reserve {
            call: CallId { instance: 7, number },
            worker: "w".into(),
            queues: vec![QueueRequest { queue: "q".into(), share: 0, at_most: 3 }],
            n: 3,
            lease: None,
            company: false,
        };
        let batch = loop {
            match store.reserve(&want).await {
                Ok(batch) => break batch,
                Err(error) => assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error:?}"),
            }
        };
        assert!(!batch.jobs.is_empty());
        let acks: Vec<_> =
            batch.jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        while let Err(error) = store.settle(&acks, None).await {
            assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error:?}");
        }
        seen.extend(batch.jobs.into_iter().map(|job| job.lease.job));
    }
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), live.client.count(None).await.unwrap().done), (20, 20));
    assert!(10 < cuts.load(SeqCst), "{cuts:?}");
}
