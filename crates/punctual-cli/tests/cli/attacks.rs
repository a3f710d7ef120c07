//! Attacks on a real server: each one prints what it got, and afterwards the server answers others as before.
//!
//! `cargo test -p punctual-cli --test cli -- attacks --nocapture` prints a line for each.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    fixture::{Cli, wait},
    serve::Served,
};

/// How long an answer may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_mins(1);
/// Most bytes that are sent of something that has no end.
const SENT_MAX: usize = 256 << 20;

/// A server with a job to look for.
struct Target {
    served: Served,
    host: String,
    token: Option<String>,
}

impl Target {
    fn new(options: &str) -> Self {
        let served = Served::start(Cli::new(), options);
        served.behind("push k {\"secret\":1} -q mail");
        let host = served.url.split('/').nth(2).unwrap().to_owned();
        Self { host, served, token: None }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes, and returns the status of the answer and the answer. 0: the connection ended without one.
    fn send(&self, bytes: &[u8]) -> (u16, String) {
        let mut stream = self.connect();
        // The server may answer before it has read all, and end the connection.
        let _ = stream.write_all(bytes);
        answer(stream)
    }

    /// Sends a request with some headers, each with its end of line.
    fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let host = if headers.contains("host:") { String::new() } else { format!("host: {}\r\n", self.host) };
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let token = token.filter(|_| !headers.contains("authorization:")).unwrap_or_default();
        let length = body.len();
        self.send(
            format!("{method} {path} HTTP/1.1\r\n{host}{token}{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}")
                .as_bytes(),
        )
    }

    /// The server answers others, and the store is as it was.
    #[track_caller]
    fn is_well(&self, attack: &str, got: &str) {
        println!("{attack}: {got}");
        assert_eq!(self.request("GET", "/readyz", "", "").0, 200, "{attack}");
        let (status, counts) = self.request("POST", "/api/v1/count", "", "{}");
        assert_eq!(status, 200, "{attack}: {counts}");
        assert!(counts.contains("\"waiting\":1,\"retrying\":0,\"due\":1,"), "{attack}: {counts}");
    }

    /// Sends one request, which must get this status.
    #[track_caller]
    fn gets(&self, attack: &str, status: u16, (got, text): (u16, String)) {
        assert_eq!(got, status, "{attack}: {text}");
        let code = text.split_once("\"code\":\"").and_then(|(_, rest)| rest.split('"').next());
        self.is_well(attack, &format!("{got} {}", code.unwrap_or_default()));
    }
}

/// Reads an answer until its end.
fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    let mut part = [0; 16 * 1024];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => bytes.extend(&part[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no answer: {:?}", String::from_utf8_lossy(&bytes))
            }
            // What the server did not read is in its buffer when it closes.
            Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0), text)
}

/// The memory of a process, in bytes.
fn memory(id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn requests_of_other_sites_and_under_other_names() {
    let target = Target::new("");
    for (attack, headers) in [
        ("cross-site POST, as a browser says", "sec-fetch-site: cross-site\r\n"),
        ("cross-site POST, by its origin", "origin: https://evil.example\r\n"),
        ("POST of a page in a sandbox", "origin: null\r\n"),
        ("POST of a sister site", "sec-fetch-site: same-site\r\n"),
    ] {
        let form = format!("{headers}content-type: application/x-www-form-urlencoded\r\n");
        target.gets(attack, 403, target.request("POST", "/queues/mail/pause", &form, "by=x&reason=y"));
        let path = "/api/v1/queues/mail/pause";
        target.gets(&format!("{attack}, to the API"), 403, target.request("POST", path, headers, "{}"));
    }
    for (attack, host) in [
        ("foreign Host", "evil.example"),
        ("rebinding: a name that leads here", "evil.example:7890"),
        ("a name that begins as ours", "localhost.evil.example"),
    ] {
        let host = format!("host: {host}\r\n");
        target.gets(attack, 421, target.request("GET", "/jobs", &host, ""));
        target.gets(
            &format!("{attack}, to the API"),
            421,
            target.request("POST", "/api/v1/list", &host, "{}"),
        );
    }
    target.gets(
        "two Hosts",
        421,
        target.send(
            format!(
                "GET / HTTP/1.1\r\nhost: {}\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
                target.host
            )
            .as_bytes(),
        ),
    );
}

#[test]
fn bodies_without_end_and_numbers_without_measure() {
    let target = Target::new("");
    let head = format!("POST /api/v1/enqueue HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", target.host);

    let before = memory(target.served.id());
    let mut stream = target.connect();
    stream.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).unwrap();
    let (chunk, mut sent) = ([&b"4000\r\n"[..], &[b' '; 0x4000], b"\r\n"].concat(), 0);
    while sent < SENT_MAX && stream.write_all(&chunk).is_ok() {
        sent += chunk.len();
    }
    assert!(sent < SENT_MAX, "{sent} bytes were taken");
    // Its answer may be lost with the connection.
    let status = answer(stream).0;
    assert!([0, 413].contains(&status), "{status}");
    target.is_well("endless chunked body", &format!("ended after {} MiB", sent >> 20));

    let mut bomb = Command::new("sh");
    bomb.args(["-c", "head -c 200000000 /dev/zero | gzip -1"]).stdout(Stdio::piped());
    let bomb = bomb.output().unwrap().stdout;
    let gzip = format!("{head}content-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bomb.len());
    // It is not read, so its answer may be lost with the connection, too.
    let (status, text) = target.send(&[gzip.as_bytes(), &bomb].concat());
    assert!([0, 415].contains(&status), "{status}: {text}");
    target.is_well("gzip bomb of 200 MB", &status.to_string());

    let deep = "[".repeat(100_000);
    target.gets("JSON 100,000 arrays deep", 422, target.request("POST", "/api/v1/enqueue", "", &deep));
    // The store does not read payloads, so it keeps this one. Whoever reads it for others must stand it.
    let payload = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let job = format!(r#"{{"kind":"deep","payload":{payload},"delay_ms":60000,"idempotency_key":"deep"}}"#);
    let (status, stored) = target.request("POST", "/api/v1/jobs", "", &job);
    assert_eq!(status, 201, "{stored}");
    let id = stored.split_once("\"id\":\"").unwrap().1[..36].to_owned();
    for path in [format!("/jobs/{id}"), "/jobs?filter=payload.a.a:1".to_owned(), format!("/api/v1/jobs/{id}")]
    {
        assert_eq!(target.request("GET", &path, "", "").0, 200, "{path}");
    }
    let (status, _) = target.request("DELETE", &format!("/api/v1/jobs/{id}"), "", "");
    target.is_well("a payload 100,000 objects deep", &format!("kept, shown and deleted ({status})"));
    for (attack, method, path, body) in [
        ("limit=1e9 in an address", "GET", "/api/v1/jobs?limit=1e9", ""),
        ("limit=1000000000 in an address", "GET", "/api/v1/jobs?limit=1000000000", ""),
        ("limit 1e9 in a body", "POST", "/api/v1/list", r#"{"limit":1e9}"#),
        ("a million buckets", "GET", "/api/v1/upcoming?buckets=1000000&bucket_ms=1", ""),
        ("reserve of a billion", "POST", "/api/v1/reserve", r#"{"queues":["q"],"max":1000000000}"#),
        ("a wait of a year", "POST", "/api/v1/wait", r#"{"queues":["q"],"at_most_ms":-1}"#),
    ] {
        target.gets(attack, 422, target.request(method, path, "", body));
    }
    let long = "a".repeat(1 << 20);
    target.gets("address of 1 MiB", 431, target.request("GET", &format!("/jobs?filter={long}"), "", ""));
    target.gets("header of 1 MiB", 431, target.request("GET", "/", &format!("x-a: {long}\r\n"), ""));
    target.gets("10,000 headers", 431, target.request("GET", "/", &"a: b\r\n".repeat(10_000), ""));
    let after = memory(target.served.id());
    // What one body may have, and what the allocator keeps of it.
    assert!(after < before + (192 << 20), "{before} bytes before, {after} after");
    println!("memory: {} MiB before, {} MiB after", before >> 20, after >> 20);
}

#[test]
fn paths_out_of_the_server_and_requests_in_requests() {
    let target = Target::new("");
    for path in [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/style.css/../../etc/passwd",
        "/jobs/..%2f..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/queues/..%5c..%5cetc%5cpasswd",
        "/%00",
        "/jobs/%ff%fe",
        "//evil.example/%2f..",
        "/jobs?filter=%00",
    ] {
        let (status, text) = target.request("GET", path, "", "");
        assert!((200..500).contains(&status) && !text.contains("root:"), "{path}: {status} {text}");
        let location = text.lines().find(|line| line.to_ascii_lowercase().starts_with("location:"));
        assert_eq!(location, None, "{path}");
        println!("path traversal {path}: {status}");
    }
    let both = "POST /api/v1/count HTTP/1.1\r\nhost: HOST\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /jobs HTTP/1.1\r\nhost: HOST\r\nconnection: close\r\n\r\n";
    let (status, text) = target.send(both.replace("HOST", &target.host).as_bytes());
    // At most one of both lengths counts, and the connection is not used again.
    assert!(text.matches("HTTP/1.1 ").count() <= 1, "{text}");
    println!("two lengths of one body: {status}");
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /\x7f\r\n\r\n",
    ] {
        let (status, _) = target.send(garbage.as_bytes());
        assert!([0, 400, 505].contains(&status), "{garbage:?}: {status}");
    }
    assert_eq!(target.request("GET", "/healthz", "", "").0, 200);
}

#[test]
fn connections_that_are_held_open() {
    // The test needs as many as it holds.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    }
    let target = Target::new("");
    let half = |_| {
        let mut stream = target.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: 127.0").unwrap();
        stream
    };
    let held: Vec<TcpStream> = (0..500).map(half).collect();
    target.is_well("500 half-open requests", "held, and others are answered");
    drop(held);

    let n = maximum.map_or(5_000, |most| usize::try_from(most / 2).unwrap_or(usize::MAX).min(5_000));
    let get = format!("GET /events HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", target.host);
    let ask = |_| {
        let mut stream = target.connect();
        stream.write_all(get.as_bytes()).unwrap();
        stream
    };
    let begins = |stream: &mut TcpStream| {
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        &head == b"HTTP/1.1 200"
    };
    let mut held: Vec<TcpStream> = Vec::new();
    while held.len() < n {
        // So many wait at once to be accepted.
        let mut more: Vec<TcpStream> = (0..100).map(ask).collect();
        assert!(more.iter_mut().all(begins));
        held.append(&mut more);
    }
    if n == 5_000 {
        target.gets("the 5,001st stream of events", 503, target.send(get.as_bytes()));
    }
    target.is_well(&format!("{n} streams of events"), "held, and others are answered");
    for stream in &held {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    let free = || begins(&mut ask(0)).then_some(());
    wait(free, || "no stream became free".to_owned());
}

#[test]
fn tokens_that_are_guessed_revoked_or_too_weak() {
    let mut target = Target::new("");
    let (reader, admin) = (target.served.token("--role read"), target.served.token("--role admin"));
    target.token = Some(admin);
    // Until then the server believes that there are no tokens.
    let needed =
        || (target.request("POST", "/api/v1/count", "authorization: none\r\n", "{}").0 == 401).then_some(());
    wait(needed, || "no token is needed".to_owned());

    // A token that only reads, on every route of the document.
    let dump = || {
        let docs = target.request("POST", "/api/v1/doc", "", r#"{"op":{"list":{"prefix":"","limit":1000}}}"#);
        let jobs = target.request("POST", "/api/v1/list", "", r#"{"limit":1000}"#);
        let queues = target.request("POST", "/api/v1/queue", "", r#"{"name":"mail","op":"show"}"#);
        [docs.1, jobs.1, queues.1].map(|text| steady(&text)).join("\n")
    };
    let before = dump();
    let (_, document) = target.request("GET", "/api/v1/openapi.json", "", "");
    let document: serde_json::Value =
        serde_json::from_str(document.split_once("\r\n\r\n").unwrap().1).unwrap();
    let id = serde_json::from_str::<serde_json::Value>(
        target.request("GET", "/api/v1/jobs", "", "").1.split_once("\r\n\r\n").unwrap().1,
    )
    .unwrap()["jobs"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let as_reader = format!("authorization: Bearer {reader}\r\n");
    let (mut asked, mut refused) = (0, 0);
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", &id).replace("{name}", "mail");
        let path = if path.starts_with("/api") { path } else { format!("/api/v1{path}") };
        for method in
            methods.as_object().unwrap().keys().filter(|name| *name != "get" && *name != "parameters")
        {
            let (status, text) = target.request(&method.to_uppercase(), &path, &as_reader, "{}");
            assert!(status < 500, "{method} {path}: {text}");
            asked += 1;
            refused += u32::from(status == 403);
        }
    }
    for page in ["/jobs/act", "/jobs/confirm", "/jobs/matching", "/queues/mail/pause", "/queues/mail/purge"] {
        let form = format!("{as_reader}content-type: application/x-www-form-urlencoded\r\n");
        assert_eq!(
            target.request("POST", page, &form, "name=mail&filter=queue:mail&action=delete").0,
            403,
            "{page}"
        );
    }
    assert_eq!(dump(), before);
    assert!(10 < refused, "{refused} of {asked}");
    target.is_well(
        "a token that only reads, on every route",
        &format!("{refused} of {asked} refused, nothing changed"),
    );

    target.served.behind(&format!("token revoke {}", &reader[3..11]));
    let revoked = Instant::now();
    let is_out = || (target.request("GET", "/jobs", &as_reader, "").0 == 401).then_some(());
    wait(is_out, || "it is still let in".to_owned());
    target.is_well("a revoked token", &format!("401 after {} ms", revoked.elapsed().as_millis()));

    let mut statuses = Vec::new();
    for n in 0..20 {
        let guess = format!("authorization: Bearer pt_00000000_{n:064}\r\n");
        statuses.push(target.request("POST", "/api/v1/count", &guess, "{}").0);
    }
    assert_eq!(statuses, [401; 20]);
    // A token that this server has not seen comes from the same address.
    let unseen = target.served.token("--role read");
    let unseen = format!("authorization: Bearer {unseen}\r\n");
    assert_eq!(target.request("POST", "/api/v1/now", &unseen, "{}").0, 200);
    target.is_well("20 guesses of a token", "20 × 401, and one that was never seen is let in");
}

/// A text without instants and lengths of time.
fn steady(text: &str) -> String {
    let body = text.split_once("\r\n\r\n").map_or(text, |(_, body)| body);
    let fields = body.split(',').filter(|field| !field.contains("_ms\":"));
    fields.collect::<Vec<_>>().join(",")
}
