//! The server on a port: connections, clients that go away, and the stop.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use punctual::{
    CancellationToken, Client, ErrorKind, NewJob, Payload,
    store::{Enqueued, http::HttpStore},
    testing::{Fault, FaultyStore},
};
use punctual_server::{
    Server,
    token::{self, NewToken, Role},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Handle,
    sync::oneshot,
    task::JoinHandle,
    time::Instant,
};

/// A server on a free port, in front of an empty store. Without a token, programs on this machine can do everything.
pub(crate) struct Live {
    pub(crate) client: Client,
    pub(crate) addr: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) served: JoinHandle<punctual::Result<()>>,
    /// How many waits the store was asked for.
    waits: Arc<AtomicUsize>,
    /// How many times it was asked for its time.
    nows: Arc<AtomicUsize>,
}

impl Live {
    /// `slow` is how long the store takes to say its time.
    pub(crate) async fn new(slow: Duration) -> Self {
        let inner = Client::connect("memory:").await.unwrap();
        let (waits, nows) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counted = (Arc::clone(&waits), Arc::clone(&nows));
        let store = FaultyStore::new(Arc::clone(inner.store()), move |verb| {
            match verb {
                "wait" => drop(counted.0.fetch_add(1, SeqCst)),
                "now" => {
                    counted.1.fetch_add(1, SeqCst);
                    if !slow.is_zero() {
                        return Fault::Delay(slow);
                    }
                }
                _ => {}
            }
            Fault::Pass
        });
        let client = Client::new(Arc::new(store));
        let (stop, (ready, addr)) = (CancellationToken::new(), oneshot::channel());
        let (server, until) = (Server::new(&client), stop.clone());
        let served = tokio::spawn(async move {
            let any = "127.0.0.1:0".parse().unwrap();
            server.serve(any, &until, |addr| ready.send(addr).unwrap()).await
        });
        Self { client, addr: addr.await.unwrap(), stop, served, waits, nows }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Sends a call on a connection of its own.
    async fn begin(&self, call: &str, body: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(request(call, body).as_bytes()).await.unwrap();
        stream
    }

    async fn call(&self, call: &str, body: &str) -> String {
        read(self.begin(call, body).await).await
    }
}

fn request(call: &str, body: &str) -> String {
    let n = body.len();
    format!(
        "POST /api/v1/{call} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {n}\r\n\r\n{body}"
    )
}

/// Reads until the server closes the connection.
async fn read(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection that is reset after the answer has answered.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

/// Lets the others run until this is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "not within 20 s: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_no_wait_behind() {
    let live = Live::new(Duration::ZERO).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let idle = tasks();
    let body = r#"{"queues":["mail"],"at_most_ms":20000}"#;
    let gone = live.begin("wait", body).await;
    let stays = live.begin("wait", body).await;
    until("two waits", || live.waits.load(SeqCst) == 2).await;
    assert_eq!(tasks(), idle + 2);
    drop(gone);
    until("one wait is left", || tasks() == idle + 1).await;
    // The other one gets the notification.
    let pushed = live.call("enqueue", r#"{"jobs":[{"kind":"k","queue":"mail"}]}"#).await;
    assert!(pushed.starts_with("HTTP/1.1 200"), "{pushed}");
    let answer = read(stays).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until("no wait is left", || tasks() == idle).await;
}

#[tokio::test]
async fn silent_connections_stop_nobody() {
    let live = Live::new(Duration::ZERO).await;
    let mut open = Vec::new();
    for n in 0..500 {
        let mut stream = live.connect().await;
        if n % 2 == 0 {
            stream.write_all(b"POST /api/v1/now HTTP/1.1\r\nhost: local").await.unwrap();
        }
        open.push(stream);
    }
    let answer = live.call("now", "{}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(open);
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_cut_off() {
    let live = Live::new(Duration::ZERO).await;
    for head in ["", "POST /api/v1/now HTTP/1.1\r\nhost: local"] {
        let mut stream = live.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let start = Instant::now();
        let answer = read(stream).await;
        assert!(!answer.contains(" 200 "), "{answer}");
        let took = start.elapsed();
        assert!((Duration::from_secs(59)..Duration::from_secs(62)).contains(&took), "{head:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_stop_answers_what_is_in_progress() {
    let live = Live::new(Duration::from_secs(5)).await;
    let slow = live.begin("now", "{}").await;
    let wait = live.begin("wait", r#"{"queues":["mail"],"at_most_ms":20000}"#).await;
    // Connections that are open and ask for nothing hold up nothing.
    let silent = live.connect().await;
    until("both are in progress", || live.nows.load(SeqCst) == 1 && live.waits.load(SeqCst) == 1).await;
    let start = Instant::now();
    live.stop.cancel();
    let answer = read(wait).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let answer = read(slow).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("now_ms"), "{answer}");
    live.served.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert!(TcpStream::connect(live.addr).await.is_err());
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn the_stop_does_not_wait_for_ever() {
    let live = Live::new(Duration::from_hours(2)).await;
    let stuck = live.begin("now", "{}").await;
    until("it is in progress", || live.nows.load(SeqCst) == 1).await;
    let start = Instant::now();
    live.stop.cancel();
    live.served.await.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), 30);
    assert_eq!(read(stuck).await, "");
}

#[tokio::test]
async fn a_large_body_is_answered_before_it_is_read() {
    let live = Live::new(Duration::ZERO).await;
    let mut stream = live.connect().await;
    let head = "POST /api/v1/enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    let answer = live.call("now", "{}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_head_has_a_bound() {
    let live = Live::new(Duration::ZERO).await;
    for (bytes, expected) in [(16 << 10, "HTTP/1.1 200"), (200 << 10, "HTTP/1.1 431")] {
        let mut stream = live.connect().await;
        let filler = "x".repeat(bytes);
        let head = format!(
            "POST /api/v1/now HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {filler}\r\n\r\n"
        );
        // The server can close the connection while it is written to.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), expected, "{bytes}");
    }
}

#[tokio::test]
async fn garbage_instead_of_http_ends_its_connection_only() {
    let live = Live::new(Duration::ZERO).await;
    let long = format!("POST /api/v1/now HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/v1/now HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/v1/now HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/v1/now HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        long.as_bytes(),
    ] {
        let mut stream = live.connect().await;
        // The server can close the connection while it is written to.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let answer = read(stream).await;
        assert!(!answer.contains(" 200 ") && !answer.contains(" 500 "), "{answer}");
    }
    let answer = live.call("now", "{}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(live.client);
}

/// A client knows the id that follows from its key, and sends the key, so that a token for the queue suffices.
#[tokio::test]
async fn a_token_for_a_queue_enqueues_by_keys_over_http() {
    let live = Live::new(Duration::ZERO).await;
    let new = NewToken { queues: Some(vec!["mail".to_owned()]), ..NewToken::new("bo", Role::Operate) };
    let made = token::make(&live.client, &new, token::random().unwrap()).await.unwrap();
    let url = format!("http://:{}@{}", made.secret.expose(), live.addr);
    let narrow = Client::new(Arc::new(HttpStore::open(&url).await.unwrap()));
    for across_kinds in [false, true] {
        let mut job = NewJob::new(narrow.make_id(), "k", "mail", Payload::json("1"));
        job.derive_id("welcome:42", across_kinds);
        let first = narrow.push(vec![job.clone()]).await.unwrap();
        assert!(matches!(first[0], Enqueued::Inserted { id, .. } if id == job.id), "{first:?}");
        for client in [&narrow, &live.client] {
            let again = client.push(vec![job.clone()]).await.unwrap();
            assert!(matches!(&again[0], Enqueued::Duplicate(met) if met.id == job.id), "{again:?}");
        }
        let unproven = NewJob { idempotency_key: None, ..job };
        assert_eq!(narrow.push(vec![unproven]).await.unwrap_err().kind(), ErrorKind::Forbidden);
    }
    live.stop.cancel();
}
