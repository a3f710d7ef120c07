//! One greedy caller: for each kind of request the dearest one that the limits allow, by a token with the least rights that may make
//! it, from many clients that read nothing. Meanwhile others are answered, and the server's memory is bounded.
//!
//! `cargo test --workspace --test cli -- greedy --nocapture` prints a line for each.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{fixture::Cli, redis::server::Server, serve::Served};

/// How long an answer for others may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients that ask for the same at once and read nothing.
const CLIENTS: usize = 20;
/// By how much the memory of the server may rise, whatever they ask for: room for answers, four pages in the making, bodies, page caches, and
/// what the allocator keeps of them.
const MEMORY_MAX: usize = 200 << 20;

/// Connections that stay open after their answer.
const CONNECTIONS: usize = 200;
/// By how much each of them may raise the memory of the server: its buffers, and the state of its task.
const CONNECTION_MAX: usize = 32 << 10;

struct Site {
    served: Served,
    host: String,
}

impl Site {
    fn new(store: Cli) -> Self {
        let served = Served::start(store, "");
        let host = served.url.split('/').nth(2).unwrap().to_owned();
        Self { served, host }
    }

    /// Sends a request, and does not read the answer.
    fn send(&self, token: &str, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (host, length) = (&self.host, body.len());
        let token =
            if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{token}content-length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        stream
    }

    /// Sends a request; returns the body of its answer.
    #[track_caller]
    fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> String {
        let mut stream = self.send(token, method, path, &body.to_string());
        let (mut text, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let n = stream.read(&mut part).unwrap_or_else(|e| panic!("{method} {path}: no answer: {e}"));
            text.extend(&part[..n]);
            let whole = String::from_utf8_lossy(&text).into_owned();
            let (head, body) = whole.split_once("\r\n\r\n").unwrap_or_default();
            let length =
                head.to_ascii_lowercase().split_once("content-length: ").map(|(_, rest)| rest.to_owned());
            let length = length.and_then(|rest| rest.lines().next()?.parse::<usize>().ok());
            if n == 0 || length.is_some_and(|length| length <= body.len()) {
                assert!(head.starts_with("HTTP/1.1 20"), "{method} {path}: {whole:.600}");
                return body.to_owned();
            }
        }
    }

    /// A worker of another queue works, and health is known.
    #[track_caller]
    fn serves_others(&self, worker: &str) -> Duration {
        let begin = Instant::now();
        self.ask("", "GET", "/healthz", &Value::Null);
        self.ask("", "GET", "/readyz", &Value::Null);
        self.ask(worker, "POST", "/api/v1/jobs", &json!({"kind": "k", "queue": "a"}));
        let reserve = json!({"queues": ["a"], "max": 1, "lease_ms": 60_000});
        let batch: Value =
            serde_json::from_str(&self.ask(worker, "POST", "/api/v1/reserve", &reserve)).unwrap();
        let job = &batch["jobs"][0];
        let lease = json!({"id": job["id"], "fence": job["fence"]});
        let held = self.ask(worker, "POST", "/api/v1/extend", &json!({"leases": [lease]}));
        assert!(held.contains("held"), "{held} {batch}");
        let settle = json!({"settle": [{"id": job["id"], "fence": job["fence"], "verdict": "ack"}]});
        let settled = self.ask(worker, "POST", "/api/v1/settle", &settle);
        assert!(settled.contains("settled"), "{settled}");
        self.ask(worker, "POST", "/api/v1/count", &json!({"queue": "a"}));
        begin.elapsed()
    }

    fn memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.served.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }
}

/// The dearest filter for a payload within the limits of a filter.
fn dear(queue: &str) -> String {
    let path = "a.".repeat(15);
    format!("{queue} {}", vec![format!("-payload.{path}k1:2"); 62].join(" "))
}

fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |all, byte| format!("{all}%{byte:02x}"))
}

/// Fills a queue with what is dear to read, and asks for it in every way.
fn greedy(store: Cli) {
    let site = Site::new(store);
    let operate = site.served.token("--role operate --queue b");
    let (narrow, wide) = (site.served.token("--role read --queue b"), site.served.token("--role read"));
    let worker = site.served.token("--role operate --queue a");

    let inner: Vec<String> = (0..70_000).map(|n| format!("\"k{n}\":1")).collect();
    let deep = format!("{}{{{}}}{}", "{\"a\":".repeat(15), inner.join(","), "}".repeat(15));
    let deep: Value = serde_json::from_str(&deep).unwrap();
    let mut ids = Vec::new();
    for n in 0..4 {
        let job = json!({"kind": "k", "queue": "b", "delay_ms": 999_999_999, "payload": deep, "idempotency_key": n.to_string()});
        let stored: Value = serde_json::from_str(&site.ask(&operate, "POST", "/api/v1/jobs", &job)).unwrap();
        ids.push(stored["id"].as_str().unwrap().to_owned());
    }
    let id = &ids[0];
    let plain = json!({"kind": "k", "queue": "b", "payload": "p".repeat(4_000), "delay_ms": 999_999_999, "headers": {"h": "x".repeat(7_000)}});
    for _ in 0..5 {
        site.ask(&operate, "POST", "/api/v1/enqueue", &json!({"jobs": vec![plain.clone(); 200]}));
    }
    site.serves_others(&worker);
    let before = site.memory();

    let stars = format!("payload.a:{}", vec!["*b*"; 64].join(","));
    let list = |filter: &str| json!({"filter": filter, "limit": 1_000}).to_string();
    let mut held = Vec::new();
    for (name, token, method, path, body) in [
        (
            "a page of the dashboard",
            &narrow,
            "GET",
            format!("/jobs?filter={}", percent(&dear("queue:b"))),
            String::new(),
        ),
        ("a list with many paths", &wide, "POST", "/api/v1/list".to_owned(), list(&dear("queue:b"))),
        ("a list with many stars", &wide, "POST", "/api/v1/list".to_owned(), list(&stars)),
        ("a list of all", &wide, "GET", "/api/v1/jobs?limit=1000".to_owned(), String::new()),
        ("failures", &wide, "GET", "/api/v1/failures".to_owned(), String::new()),
        (
            "what is due when",
            &wide,
            "POST",
            "/api/v1/upcoming".to_owned(),
            json!({"bucket_ms": 1, "buckets": 1_000}).to_string(),
        ),
        ("a count", &narrow, "POST", "/api/v1/count".to_owned(), json!({"queue": "b"}).to_string()),
        ("doctor", &wide, "POST", "/api/v1/doctor".to_owned(), "{}".to_owned()),
        ("a large job", &narrow, "GET", format!("/api/v1/jobs/{id}"), String::new()),
        ("the page of a large job", &narrow, "GET", format!("/jobs/{id}"), String::new()),
        (
            "documents",
            &wide,
            "POST",
            "/api/v1/doc".to_owned(),
            json!({"op": {"list": {"prefix": "", "limit": 1_000}}}).to_string(),
        ),
        ("the document of the API", &String::new(), "GET", "/api/v1/openapi.json".to_owned(), String::new()),
    ] {
        // The last one leaves at once, the others stay and read nothing.
        held.extend((1..CLIENTS).map(|_| site.send(token, method, &path, &body)));
        drop(site.send(token, method, &path, &body));
        let took = site.serves_others(&worker);
        let more = site.memory().saturating_sub(before);
        println!("{name}: others had their answers within {} ms; {} MiB more", took.as_millis(), more >> 20);
        assert!(more < MEMORY_MAX, "{name}: {} MiB more", more >> 20);
    }
}

#[test]
fn a_connection_that_stays_costs_little() {
    let site = Site::new(Cli::new());
    // What the first requests make is made once.
    site.ask("", "GET", "/healthz", &Value::Null);
    let before = site.memory();
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| site.send("", "GET", "/healthz", "")).collect();
    for stream in &mut streams {
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    let each = site.memory().saturating_sub(before) / CONNECTIONS;
    println!("{each} bytes a connection");
    assert!(each < CONNECTION_MAX, "{each} bytes a connection");
}

#[test]
fn a_greedy_caller_holds_up_nobody_else() {
    greedy(Cli::new());
}

#[test]
fn a_greedy_caller_holds_up_nobody_else_on_redis() {
    let server = Server::start(&[]);
    greedy(Cli::with_store(&server.url()));
}
