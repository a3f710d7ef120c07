//! Who is let in, against the rules of tokens, rights, queues, guesses, hosts and proxies.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{ConnectInfo, Path},
    http::{Method, Request, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse as _, Redirect, Response},
    routing::get,
};
use punctual::{
    Client, ErrorKind,
    store::{DocOp, DocReply, Precondition},
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::{
    gate::{Caller, Gate, GateLayer, Needs, Proxy, Right},
    token::{self, Made, NewToken, Payloads, RANDOM_BYTES, Role, TOKENS_MAX},
};
use tokio::time::advance;
use tower::ServiceExt as _;

const LOOPBACK: &str = "127.0.0.1:50000";
const FAR: &str = "192.0.2.1:50000";
const FAR_TOO: &str = "198.51.100.1:50000";

/// The table of the router below.
fn rights(method: &Method, path: &str) -> Option<Needs> {
    match (method, path) {
        (_, "/healthz" | "/login") => Some(Needs::PUBLIC),
        (&Method::GET, "/" | "/api/v1/stats") => Some(Right::Read.in_store()),
        (&Method::POST, "/api/v1/stats") => Some(Right::Operate.in_store()),
        (&Method::PUT, "/api/v1/stats") => Some(Right::Admin.in_store()),
        (&Method::GET, "/api/v1/queues/mail" | "/api/v1/queues/sms") => Some(Right::Read.by_queue()),
        (&Method::POST, "/api/v1/queues/mail" | "/api/v1/queues/sms") => Some(Right::Operate.by_queue()),
        _ => None,
    }
}

/// Answers the caller.
fn routed(layer: GateLayer) -> Router {
    let caller =
        |Extension(caller): Extension<Caller>| async move { format!("{} {}", caller.name, caller.role) };
    // Asks for the queue only: the role is the layer's to check.
    let of_queue = |Extension(caller): Extension<Caller>, Path(queue): Path<String>| async move {
        match caller.may(Right::Read, Some(&queue)) {
            Ok(()) => queue.into_response(),
            Err(refusal) => refusal.into_response(),
        }
    };
    Router::new()
        .route("/", get(caller))
        .route("/healthz", get(async || "alive").post(async || "alive"))
        .route("/api/v1/stats", get(caller).post(caller).put(caller))
        .route("/api/v1/unlisted", get(caller))
        .route("/api/v1/queues/{queue}", get(of_queue).post(of_queue))
        .layer(layer)
}

fn router(gate: &Gate) -> Router {
    routed(gate.layer(rights))
}

/// A request. Its peer is [`FAR`], its host `jobs.example`.
struct Ask {
    method: Method,
    path: &'static str,
    peer: Option<&'static str>,
    headers: Vec<(&'static str, String)>,
}

fn ask(method: Method, path: &'static str) -> Ask {
    Ask { method, path, peer: Some(FAR), headers: Vec::new() }
}

fn look() -> Ask {
    ask(Method::GET, "/api/v1/stats")
}

/// From the same machine, by the name `localhost`.
fn near() -> Ask {
    look().from(LOOPBACK).header("host", "localhost:7890")
}

impl Ask {
    fn from(self, peer: &'static str) -> Self {
        Self { peer: Some(peer), ..self }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn with(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    fn cookie(self, token: &str) -> Self {
        self.header("cookie", format!("theme=dark; punctual_session={token}"))
    }

    fn request(self) -> Request<Body> {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(peer) = self.peer {
            let peer: SocketAddr = peer.parse().unwrap();
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        request
    }

    async fn send(self, gate: &Gate) -> Response {
        router(gate).oneshot(self.request()).await.unwrap()
    }

    /// The status, and the code of a problem or the text.
    async fn get(self, gate: &Gate) -> (u16, String) {
        let response = self.send(gate).await;
        let status = response.status().as_u16();
        let text = text(response).await;
        let problem: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let Some(problem) = problem else { return (status, text) };
        assert_eq!(problem["status"], status);
        for field in ["type", "title", "detail", "hint"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {problem}");
        }
        (status, problem["code"].as_str().unwrap().to_owned())
    }
}

async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 100_000).await.unwrap().to_vec()).unwrap()
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// Random bytes that are not.
fn bytes(seed: u8) -> [u8; RANDOM_BYTES] {
    std::array::from_fn(|n| seed.wrapping_mul(31).wrapping_add(n as u8))
}

async fn make(client: &Client, seed: u8, new: &NewToken) -> Made {
    token::make(client, new, bytes(seed)).await.unwrap()
}

/// A store with an admin's token.
async fn store() -> (TestQueue, Gate, String) {
    let t = TestQueue::new();
    let made = make(&t.client, 1, &NewToken::new("ana", Role::Admin)).await;
    let gate = Gate::new(&t.client);
    (t, gate, made.secret.expose().to_owned())
}

/// Logs in, and returns the session.
async fn session(gate: &Gate, token: &str) -> String {
    let (parts, ()) = Request::post("/login").header("host", "jobs.example").body(()).unwrap().into_parts();
    let cookie = gate.log_in(&parts, token).await.unwrap();
    cookie.split([';', '=']).nth(1).unwrap().to_owned()
}

/// A token that has the right form, and that nobody made.
fn guess(n: usize) -> String {
    format!("pt_{n:08x}_{n:064x}")
}

#[tokio::test]
async fn each_role_has_its_rights_and_no_more() {
    let t = TestQueue::new();
    let gate = Gate::new(&t.client);
    for (seed, role) in (1..).zip(Role::ALL) {
        let made = make(&t.client, seed, &NewToken::new("ana", role)).await;
        let needed = [Method::GET, Method::POST, Method::PUT];
        for (method, needed) in needed.into_iter().zip(Role::ALL) {
            let said = ask(method, "/api/v1/stats").with(made.secret.expose()).get(&gate).await;
            let expected =
                if needed <= role { (200, format!("ana {role}")) } else { refused(403, "forbidden") };
            assert_eq!(said, expected, "{role} where {needed} is needed");
        }
        // As a value, without a router.
        let caller = Caller::new("ana", role);
        for (right, needed) in [Right::Read, Right::Operate, Right::Admin].into_iter().zip(Role::ALL) {
            assert_eq!(caller.may(right, None).is_ok(), needed <= role, "{role} {right:?}");
            assert_eq!(caller.may(right, Some("mail")).is_ok(), needed <= role, "{role} {right:?}");
        }
    }
}

#[tokio::test]
async fn a_token_for_a_queue_is_refused_elsewhere() {
    let (t, gate, _) = store().await;
    let new = NewToken { queues: Some(vec!["mail".to_owned()]), ..NewToken::new("bo", Role::Operate) };
    let made = make(&t.client, 2, &new).await;
    let of = made.secret.expose();
    for method in [Method::GET, Method::POST] {
        let own = ask(method.clone(), "/api/v1/queues/mail").with(of).get(&gate).await;
        assert_eq!(own, (200, "mail".to_owned()));
        let other = ask(method, "/api/v1/queues/sms").with(of).get(&gate).await;
        assert_eq!(other, refused(403, "forbidden"));
    }
    // The whole store is more than its queue.
    assert_eq!(look().with(of).get(&gate).await, refused(403, "forbidden"));
    // An admin of a queue is no admin of the store.
    let new = NewToken { queues: Some(vec!["mail".to_owned()]), ..NewToken::new("cy", Role::Admin) };
    let made = make(&t.client, 3, &new).await;
    let put = ask(Method::PUT, "/api/v1/stats").with(made.secret.expose());
    assert_eq!(put.get(&gate).await, refused(403, "forbidden"));
}

#[tokio::test]
async fn a_role_that_is_too_low_is_refused_before_the_handler() {
    let (t, gate, _) = store().await;
    let made = make(&t.client, 2, &NewToken::new("bo", Role::Read)).await;
    let post = ask(Method::POST, "/api/v1/queues/mail").with(made.secret.expose());
    let response = post.send(&gate).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(text(response).await.contains("the token has the role read"));
}

#[tokio::test]
async fn a_route_that_nobody_listed_needs_an_admin() {
    let (t, gate, admin) = store().await;
    let operator = make(&t.client, 2, &NewToken::new("bo", Role::Operate)).await;
    let unlisted = || ask(Method::GET, "/api/v1/unlisted");
    assert_eq!(unlisted().with(operator.secret.expose()).get(&gate).await, refused(403, "forbidden"));
    assert_eq!(unlisted().with(&admin).get(&gate).await, (200, "ana admin".to_owned()));
    assert_eq!(unlisted().get(&gate).await, refused(401, "unauthenticated"));
    // So does a method that nobody listed, and a path that nobody serves.
    let put = ask(Method::PUT, "/api/v1/queues/mail").with(operator.secret.expose());
    assert_eq!(put.get(&gate).await, refused(403, "forbidden"));
    assert_eq!(ask(Method::GET, "/no").with(operator.secret.expose()).get(&gate).await.0, 403);
    assert_eq!(ask(Method::GET, "/no").with(&admin).get(&gate).await.0, 404);
}

#[tokio::test]
async fn head_needs_what_get_needs() {
    let (t, gate, _) = store().await;
    let reader = make(&t.client, 2, &NewToken::new("bo", Role::Read)).await;
    let head = ask(Method::HEAD, "/api/v1/stats").with(reader.secret.expose());
    assert_eq!(head.send(&gate).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_token_is_refused_within_a_second() {
    let (t, gate, admin) = store().await;
    let made = make(&t.client, 2, &NewToken::new("bo", Role::Read)).await;
    let of = made.secret.expose();
    assert_eq!(look().with(of).get(&gate).await.0, 200);
    assert!(token::revoke(&t.client, &made.token.id).await.unwrap());
    assert!(!token::revoke(&t.client, &made.token.id).await.unwrap());
    // Until then it is believed: not each request is a read of the store.
    advance(Duration::from_millis(999)).await;
    assert_eq!(look().with(of).get(&gate).await.0, 200);
    advance(Duration::from_millis(1)).await;
    assert_eq!(look().with(of).get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(look().with(&admin).get(&gate).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn an_expired_token_is_refused_also_while_it_is_believed() {
    let t = TestQueue::new();
    let gate = Gate::new(&t.client);
    let new = NewToken { expires_in: Some(Duration::from_millis(1_400)), ..NewToken::new("bo", Role::Read) };
    let made = make(&t.client, 2, &new).await;
    let of = made.secret.expose();
    assert_eq!(look().with(of).get(&gate).await.0, 200);
    // It is looked up again after 1 s, and then the time of the store counts.
    t.advance(Duration::from_secs(1));
    advance(Duration::from_secs(1)).await;
    assert_eq!(look().with(of).get(&gate).await.0, 200);
    t.advance(Duration::from_millis(399));
    advance(Duration::from_millis(399)).await;
    assert_eq!(look().with(of).get(&gate).await.0, 200);
    t.advance(Duration::from_millis(1));
    advance(Duration::from_millis(1)).await;
    let response = look().with(of).send(&gate).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert!(text(response).await.contains("has expired"));
    // And in a process that never saw it before.
    assert_eq!(look().with(of).get(&Gate::new(&t.client)).await, refused(401, "unauthenticated"));
}

#[tokio::test]
async fn a_token_needs_all_of_its_characters() {
    let (_t, gate, admin) = store().await;
    let with_end = |end: &str| format!("{}{end}", &admin[..admin.len() - end.len()]);
    let right = admin.chars().last().unwrap();
    let wrong = if right == '0' { "1" } else { "0" };
    let tokens = [
        with_end(wrong),
        admin[..admin.len() - 1].to_owned(),
        admin[..admin.len() - 2].to_owned(),
        format!("{admin}0"),
        format!("{admin}00"),
        admin.to_uppercase(),
        admin.replacen("pt_", "", 1),
        admin[..12].to_owned(),
        String::new(),
        "x".repeat(10_000),
    ];
    for (n, token) in tokens.into_iter().enumerate() {
        // Each from an address of its own, so that none of them is refused because of the others.
        let gate = Gate::clone(&gate);
        let mut request = look().with(&token).request();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, 0, n as u8], 1))));
        let response = router(&gate).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{token}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
    }
    assert_eq!(look().with(&admin).get(&gate).await.0, 200);
    // Two headers, or another scheme.
    assert_eq!(look().with(&admin).with(&admin).get(&gate).await, refused(401, "unauthenticated"));
    let basic = look().header("authorization", format!("Basic {admin}"));
    assert_eq!(basic.get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(look().header("authorization", format!("bearer {admin}")).get(&gate).await.0, 200);
}

/// A store that counts its calls of `doc`.
async fn counted() -> (Client, Arc<AtomicUsize>, String) {
    let t = TestQueue::new();
    let made = make(&t.client, 1, &NewToken::new("ana", Role::Admin)).await;
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reads);
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
        counter.fetch_add(usize::from(verb == "doc"), Relaxed);
        // Others get a turn while the store works.
        if verb == "doc" { Fault::Delay(Duration::from_millis(1)) } else { Fault::Pass }
    });
    (Client::new(Arc::new(store)), reads, made.secret.expose().to_owned())
}

#[tokio::test(start_paused = true)]
async fn guesses_lock_nobody_out_not_even_one_that_was_never_seen_from_the_same_address() {
    let (client, _, admin) = counted().await;
    let gate = Gate::new(&client);
    for n in 0..50 {
        assert_eq!(look().with(&guess(n)).get(&gate).await, refused(401, "unauthenticated"), "{n}");
    }
    // Behind a proxy all callers have one address. After a restart, the server has seen none of them.
    assert_eq!(look().with(&admin).get(&gate).await.0, 200);
    let (parts, ()) = Request::post("/login").header("host", "jobs.example").body(()).unwrap().into_parts();
    assert!(gate.log_in(&parts, &admin).await.is_ok());
    assert_eq!(look().from(FAR_TOO).with(&admin).get(&gate).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_that_is_repeated_is_one_guess() {
    let (client, reads, admin) = counted().await;
    let gate = Gate::new(&client);
    for _ in 0..100 {
        assert_eq!(look().with(&guess(1)).get(&gate).await, refused(401, "unauthenticated"));
    }
    assert_eq!(reads.load(Relaxed), 1);
    assert_eq!(look().with(&admin).get(&gate).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn guesses_are_one_read_at_a_time_from_however_many_addresses() {
    let t = TestQueue::new();
    let made = make(&t.client, 1, &NewToken::new("ana", Role::Admin)).await;
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (opened, closed, seen) = (Arc::clone(&open), Arc::clone(&open), Arc::clone(&most));
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
        if verb == "doc" {
            seen.fetch_max(opened.fetch_add(1, Relaxed) + 1, Relaxed);
            Fault::Delay(Duration::from_millis(1))
        } else {
            Fault::Pass
        }
    });
    let gate = Gate::new(&Client::new(Arc::new(store)));
    // Each of these addresses guesses.
    let addresses = [FAR, FAR_TOO, "203.0.113.1:50000", "203.0.113.2:50000"];
    for (n, address) in (0..40).zip(addresses.into_iter().cycle()) {
        assert_eq!(look().from(address).with(&guess(n)).get(&gate).await.0, 401);
        closed.store(0, Relaxed);
    }
    most.store(0, Relaxed);
    let guesses = (100..200).zip(addresses.into_iter().cycle()).map(|(n, address)| {
        let (gate, closed) = (gate.clone(), Arc::clone(&closed));
        tokio::spawn(async move {
            let status = look().from(address).with(&guess(n)).get(&gate).await.0;
            closed.fetch_sub(1, Relaxed);
            status
        })
    });
    for guess in guesses.collect::<Vec<_>>() {
        assert_eq!(guess.await.unwrap(), 401);
    }
    // One that has ended can be counted as open until its caller has its answer.
    assert!(most.load(Relaxed) <= 2, "{} at a time", most.load(Relaxed));
    assert_eq!(look().with(made.secret.expose()).get(&gate).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn many_requests_are_one_read_a_second() {
    let (client, reads, admin) = counted().await;
    let gate = Gate::new(&client);
    for second in 1..=3 {
        let requests = (0..100).map(|_| {
            let (gate, admin) = (gate.clone(), admin.clone());
            tokio::spawn(async move { look().with(&admin).get(&gate).await.0 })
        });
        for request in requests.collect::<Vec<_>>() {
            assert_eq!(request.await.unwrap(), 200);
        }
        assert_eq!(reads.load(Relaxed), second);
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_lets_nobody_in() {
    let t = TestQueue::new();
    let made = make(&t.client, 1, &NewToken::new("ana", Role::Admin)).await;
    // A lost answer is no change that may have been made: the call was not begun.
    for fault in [Fault::Before, Fault::After] {
        let store = FaultyStore::new(Arc::clone(t.client.store()), move |_| fault);
        let gate = Gate::new(&Client::new(Arc::new(store)));
        let response = look().with(made.secret.expose()).send(&gate).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        // Whether there are tokens is not known either.
        assert_eq!(near().get(&gate).await, refused(503, "store_unavailable"));
        // This was no guess.
        for _ in 0..20 {
            assert_eq!(look().with(made.secret.expose()).get(&gate).await.0, 503);
        }
    }
}

/// A store that hangs answers each call after 5 s, with an error. Callers of one address wait for it together.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_a_store_that_hangs_wait_once() {
    let t = TestQueue::new();
    let mut tokens = Vec::new();
    for n in 1..=12 {
        tokens.push(make(&t.client, n, &NewToken::new("ana", Role::Admin)).await.secret.expose().to_owned());
    }
    let fails = FaultyStore::new(Arc::clone(t.client.store()), |_| Fault::Before);
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let hangs = FaultyStore::new(Arc::new(fails), move |_| {
        counter.fetch_add(1, Relaxed);
        Fault::Late(Duration::from_secs(5))
    });
    let gate = Gate::new(&Client::new(Arc::new(hangs)));
    let begin = tokio::time::Instant::now();
    let with_tokens = tokens.iter().map(|token| look().with(token));
    let requests = with_tokens.chain((0..12).map(|_| near())).map(|ask| {
        let gate = gate.clone();
        tokio::spawn(async move { ask.get(&gate).await.0 })
    });
    for request in requests.collect::<Vec<_>>() {
        assert_eq!(request.await.unwrap(), 503);
    }
    // One look for a token, and one for whether there are tokens.
    assert_eq!((calls.load(Relaxed), begin.elapsed()), (2, Duration::from_secs(5)));
    // A caller that comes later looks again.
    assert_eq!(look().with(&tokens[0]).get(&gate).await.0, 503);
    assert_eq!(calls.load(Relaxed), 3);
}

/// Complaint 8: safe by default.
#[tokio::test(start_paused = true)]
async fn without_tokens_only_the_same_machine_is_let_in() {
    let t = TestQueue::new();
    for gate in [Gate::new(&t.client), Gate::open()] {
        assert_eq!(near().get(&gate).await, (200, "local admin".to_owned()));
        let v6 = look().from("[::1]:50000").header("host", "[::1]:7890");
        assert_eq!(v6.get(&gate).await.0, 200);
        let mapped = look().from("[::ffff:127.0.0.1]:50000").header("host", "127.0.0.1");
        assert_eq!(mapped.get(&gate).await.0, 200);
        assert_eq!(look().header("host", "localhost").get(&gate).await, refused(401, "unauthenticated"));
        let unknown = Ask { peer: None, ..near() };
        assert_eq!(unknown.get(&gate).await, refused(401, "unauthenticated"));
        // A proxy on the same machine brings requests of others.
        for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"] {
            assert_eq!(near().header(name, "192.0.2.1").get(&gate).await.0, 401, "{name}");
        }
    }
    let gate = Gate::new(&t.client);
    assert_eq!(near().get(&gate).await.0, 200);
    // From the first token on, each request needs one.
    let made = make(&t.client, 1, &NewToken::new("ana", Role::Read)).await;
    advance(Duration::from_secs(1)).await;
    assert_eq!(near().get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(near().with(made.secret.expose()).get(&gate).await.0, 200);
    // A token that cannot be read is a token.
    assert!(token::revoke(&t.client, &made.token.id).await.unwrap());
    put(&t.client, "token/00000000", b"{}").await;
    advance(Duration::from_secs(1)).await;
    assert_eq!(near().get(&gate).await, refused(401, "unauthenticated"));
    // After the last one is gone, a browser still has the cookie of an earlier one.
    assert!(token::revoke(&t.client, "00000000").await.unwrap());
    advance(Duration::from_secs(1)).await;
    assert_eq!(near().cookie(made.secret.expose()).get(&gate).await, (200, "local admin".to_owned()));
    assert_eq!(near().with(made.secret.expose()).get(&gate).await, refused(401, "unauthenticated"));
}

async fn put(client: &Client, key: &str, value: &[u8]) {
    let put = DocOp::Put { key: key.to_owned(), precondition: Precondition::Always, value: value.to_vec() };
    client.store().doc(&put).await.unwrap();
}

#[tokio::test]
async fn a_foreign_host_is_refused_while_there_are_no_tokens() {
    let gate = Gate::open().host("jobs.example");
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1:7890", 200),
        ("[::1]", 200),
        ("jobs.example:443", 200),
        ("evil.example", 421),
        ("evil.example:7890", 421),
        ("localhost.evil.example", 421),
        ("evil.example@localhost:x", 421),
        ("jobs.example.", 421),
        ("", 421),
    ] {
        assert_eq!(look().from(LOOPBACK).header("host", host).get(&gate).await.0, status, "{host}");
    }
    assert_eq!(look().from(LOOPBACK).get(&gate).await, refused(421, "host_not_allowed"));
    // With a token, the name does not matter: another site does not have it.
    let (_t, gate, admin) = store().await;
    assert_eq!(look().with(&admin).header("host", "evil.example").get(&gate).await.0, 200);
}

#[tokio::test]
async fn pages_of_other_sites_read_nothing_and_change_nothing() {
    let (_t, gate, token) = store().await;
    let admin = token.clone();
    let session = session(&gate, &token).await;
    let post = || ask(Method::POST, "/api/v1/stats").header("host", "jobs.example");
    let open = Gate::open();
    let local = || ask(Method::POST, "/api/v1/stats").from(LOOPBACK).header("host", "localhost:7890");
    let proxied = Gate::open().proxy(Proxy::new(["192.0.2.0/24"], Role::Admin).unwrap());
    let by_proxy = || post().header("x-forwarded-user", "ana");
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        let expected = refused(403, "cross_site");
        assert_eq!(post().cookie(&session).header(name, value).get(&gate).await, expected, "{value}");
        assert_eq!(local().header(name, value).get(&open).await, expected, "{value}");
        assert_eq!(by_proxy().header(name, value).get(&proxied).await, expected, "{value}");
        let public = ask(Method::POST, "/healthz").header(name, value);
        assert_eq!(public.get(&gate).await, expected, "{value}");
        // A page cannot add this header to a request to another site.
        assert_eq!(post().with(&admin).header(name, value).get(&gate).await.0, 200);
        // A page of another site has nothing to read here, not even a picture whose size it would see.
        let looks = [look().cookie(&session), near(), look().header("x-forwarded-user", "ana")];
        for (look, gate) in looks.into_iter().zip([&gate, &open, &proxied]) {
            let of_kind = |mode, dest| {
                let Ask { method, path, peer, headers } = &look;
                let look = Ask { method: method.clone(), path, peer: *peer, headers: headers.clone() };
                look.header(name, value).header("sec-fetch-mode", mode).header("sec-fetch-dest", dest)
            };
            for (mode, dest) in [("cors", "empty"), ("no-cors", "image"), ("navigate", "iframe")] {
                assert_eq!(of_kind(mode, dest).get(gate).await, expected, "{value} {mode} {dest}");
            }
            // Links from other sites lead here.
            assert_eq!(of_kind("navigate", "document").get(gate).await.0, 200, "{value}");
        }
        assert_eq!(look().with(&admin).header(name, value).get(&gate).await.0, 200);
    }
    assert_eq!(post().cookie(&session).header("origin", "https://jobs.example").get(&gate).await.0, 200);
    assert_eq!(post().cookie(&session).header("sec-fetch-site", "same-origin").get(&gate).await.0, 200);
    // Only a browser has cookies, and it says where a request comes from.
    assert_eq!(post().cookie(&session).get(&gate).await, refused(403, "cross_site"));
    assert_eq!(local().get(&open).await.0, 200);
    assert_eq!(by_proxy().get(&proxied).await.0, 200);
}

#[tokio::test]
async fn a_browser_is_let_in_by_its_session() {
    let (_t, gate, admin) = store().await;
    let (parts, ()) = Request::post("/login").header("host", "jobs.example").body(()).unwrap().into_parts();
    let cookie = gate.log_in(&parts, &format!(" {admin}\n")).await.unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
    let session = session(&gate, &admin).await;
    assert_eq!(look().cookie(&session).get(&gate).await, (200, "ana admin".to_owned()));
    // The cookie reaches every server on the host, so it is not the token, and no token is taken from it.
    assert!(!session.contains(admin.split('_').next_back().unwrap()), "{session}");
    for wrong in [&*admin, &*guess(1), &session[..session.len() - 1], &*format!("{session}0"), "ps_", "x"] {
        assert_eq!(look().cookie(wrong).get(&gate).await, refused(401, "unauthenticated"), "{wrong}");
    }
    let other =
        format!("{}{}", &session[..session.len() - 1], if session.ends_with('0') { '1' } else { '0' });
    assert_eq!(look().cookie(&other).get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(look().with(&session).get(&gate).await, refused(401, "unauthenticated"), "nor in a header");
    assert_eq!(gate.log_in(&parts, &guess(1)).await.unwrap_err().status, 401);
    assert_eq!(gate.log_in(&parts, &session).await.unwrap_err().status, 401);
    let (mut foreign, ()) = Request::post("/login").body(()).unwrap().into_parts();
    foreign.headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
    assert_eq!(gate.log_in(&foreign, &admin).await.unwrap_err().code, "cross_site");
    assert_eq!(Gate::open().log_in(&parts, &admin).await.unwrap_err().status, 401);
}

/// Over TLS, no server on another port and no page without TLS can set the cookie.
#[tokio::test]
async fn over_tls_only_a_cookie_of_the_whole_host_counts() {
    let (_t, gate, admin) = store().await;
    for (base, name) in [("/", "__Host-punctual_session"), ("/a/jobs", "__Host-punctual_session-a-jobs")] {
        let gate = gate.clone().base_path(base);
        let mut login = Request::post("/login").header("host", "jobs.example");
        login = login.header("x-forwarded-proto", "https");
        let (parts, ()) = login.body(()).unwrap().into_parts();
        let cookie = gate.log_in(&parts, &admin).await.unwrap();
        assert!(cookie.starts_with(&format!("{name}=ps_")), "{cookie}");
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/; Secure"), "{cookie}");
        let value = cookie.split([';', '=']).nth(1).unwrap();
        let with = |name: &str, proto: &str| {
            look().header("cookie", format!("{name}={value}")).header("x-forwarded-proto", proto)
        };
        assert_eq!(with(name, "https").get(&gate).await.0, 200);
        assert_eq!(with("punctual_session", "https").get(&gate).await.0, 401);
        assert_eq!(with("punctual_session", "http").get(&gate).await.0, 200);
    }
}

#[tokio::test]
async fn a_session_ends_with_the_logout_its_time_and_its_token() {
    let (t, gate, admin) = store().await;
    let other = Gate::new(&t.client);
    let made = make(&t.client, 2, &NewToken::new("bo", Role::Read)).await;
    let log_out = async |gate: &Gate, session: &str| {
        let request = Request::post("/logout").header("cookie", format!("punctual_session={session}"));
        gate.log_out(&request.body(()).unwrap().into_parts().0).await.unwrap()
    };
    let sessions = |t: &TestQueue| {
        let client = t.client.clone();
        async move {
            let list = DocOp::List { prefix: "session/".to_owned(), after: None, limit: 1_000 };
            let DocReply::Page { docs, .. } = client.store().doc(&list).await.unwrap() else {
                panic!("no page")
            };
            assert!(docs.iter().all(|doc| !String::from_utf8_lossy(&doc.value).contains("ps_")));
            docs.len()
        }
    };
    // The logout: also of a server that has not seen the session.
    let (one, two) = (session(&gate, &admin).await, session(&gate, made.secret.expose()).await);
    assert_eq!(look().cookie(&one).get(&gate).await.0, 200);
    assert!(log_out(&gate, &one).await.ends_with("; Max-Age=0"));
    assert_eq!(look().cookie(&one).get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(look().cookie(&one).get(&other).await, refused(401, "unauthenticated"));
    assert_eq!(look().cookie(&two).get(&other).await.0, 200);
    log_out(&gate, "ps_00000000_00000000_00").await;
    // Its time, by the clock of the store.
    let three = session(&gate, made.secret.expose()).await;
    t.advance(Duration::from_hours(7 * 24));
    let late = Gate::new(&t.client);
    assert_eq!(look().cookie(&three).get(&late).await, refused(401, "unauthenticated"));
    // Its token.
    let four = session(&late, made.secret.expose()).await;
    assert_eq!(sessions(&t).await, 1, "what is over was removed");
    assert!(token::revoke(&t.client, &made.token.id).await.unwrap());
    assert_eq!(look().cookie(&four).get(&Gate::new(&t.client)).await, refused(401, "unauthenticated"));
    assert_eq!(sessions(&t).await, 0);
}

#[tokio::test]
async fn a_token_has_twenty_sessions_and_the_oldest_ends() {
    let (t, gate, admin) = store().await;
    let mut all = Vec::new();
    for _ in 0..21 {
        all.push(session(&gate, &admin).await);
        t.advance(Duration::from_secs(1));
    }
    let gate = Gate::new(&t.client);
    for (n, session) in all.iter().enumerate() {
        assert_eq!(look().cookie(session).get(&gate).await.0, if n == 0 { 401 } else { 200 }, "{n}");
    }
}

#[tokio::test]
async fn the_user_that_a_proxy_names_counts_only_from_its_address() {
    let t = TestQueue::new();
    let proxy = Proxy::new(["192.0.2.0/24", "127.0.0.1", "::1"], Role::Operate)
        .unwrap()
        .header("X-Remote-User")
        .unwrap();
    let gate = Gate::new(&t.client).proxy(proxy);
    let named = || look().header("x-remote-user", "bo");
    assert_eq!(named().get(&gate).await, (200, "bo operate".to_owned()));
    assert_eq!(named().from("[::ffff:192.0.2.9]:1").get(&gate).await.0, 200);
    assert_eq!(named().from(FAR_TOO).get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(Ask { peer: None, ..named() }.get(&gate).await, refused(401, "unauthenticated"));
    // Nobody, or several at once.
    assert_eq!(look().header("x-remote-user", " ").get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(named().header("x-remote-user", "ana").get(&gate).await, refused(401, "unauthenticated"));
    assert_eq!(look().header("x-forwarded-user", "bo").get(&gate).await, refused(401, "unauthenticated"));
    // Its requests are not those of the same machine, even if it runs there and names nobody.
    assert_eq!(near().get(&gate).await, refused(401, "unauthenticated"));
    // It names users, and does not raise the role of a token.
    let made = make(&t.client, 1, &NewToken::new("cy", Role::Read)).await;
    assert_eq!(named().with(made.secret.expose()).get(&gate).await, (200, "cy read".to_owned()));
    assert_eq!(ask(Method::PUT, "/api/v1/stats").header("x-remote-user", "bo").get(&gate).await.0, 403);
    // How the user has logged in at the proxy is no token.
    let basic = || named().header("authorization", "Basic Ym86eA==");
    assert_eq!(basic().get(&gate).await, (200, "bo operate".to_owned()));
    assert_eq!(basic().from(FAR_TOO).get(&gate).await, refused(401, "unauthenticated"));
    // With a name of its own, the server tells pages that reach it by another one.
    let gate = gate.host("jobs.example");
    assert_eq!(named().get(&gate).await.0, 421);
    for wrong in ["192.0.2.0/33", "proxy.example", ""] {
        assert_eq!(Proxy::new([wrong], Role::Read).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
    }
}

#[tokio::test]
async fn guesses_through_a_proxy_count_for_its_clients() {
    let (_t, gate, admin) = store().await;
    let gate = gate.proxy(Proxy::new(["192.0.2.1"], Role::Read).unwrap());
    for n in 0..11 {
        // What the client adds itself comes first.
        let guess = look().with(&guess(n)).header("x-forwarded-for", format!("10.0.0.{n}, 203.0.113.5"));
        assert_eq!(guess.get(&gate).await.0, 401);
    }
    for client in ["203.0.113.5", "203.0.113.6"] {
        assert_eq!(look().with(&admin).header("x-forwarded-for", client).get(&gate).await.0, 200);
    }
}

#[tokio::test]
async fn a_public_route_needs_nothing_and_has_no_caller() {
    let (_t, gate, _) = store().await;
    assert_eq!(ask(Method::GET, "/healthz").get(&gate).await, (200, "alive".to_owned()));
}

#[tokio::test]
async fn people_get_a_page_and_programs_a_problem() {
    let (_t, gate, _) = store().await;
    let html = |path| ask(Method::GET, path).header("accept", "text/html,application/xhtml+xml;q=0.9");
    let response = html("/").send(&gate).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert!(text(response).await.contains("<h1>Not authenticated</h1>"));
    // The API answers as always.
    assert_eq!(html("/api/v1/stats").get(&gate).await, refused(401, "unauthenticated"));
    let layer = gate.layer(rights).on_page(|refusal, parts| {
        assert_eq!((refusal.status, parts.uri.path()), (StatusCode::UNAUTHORIZED, "/"));
        Redirect::to("login").into_response()
    });
    let response = routed(layer).oneshot(html("/").request()).await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["location"]),
        (StatusCode::SEE_OTHER, &"login".parse().unwrap())
    );
}

#[tokio::test]
async fn the_caller_says_whether_payloads_are_hidden() {
    let t = TestQueue::new();
    let new = NewToken { payloads: Payloads::Hidden, ..NewToken::new("bo", Role::Read) };
    let made = make(&t.client, 1, &new).await;
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.headers.insert("authorization", format!("Bearer {}", made.secret.expose()).parse().unwrap());
    let caller = Gate::new(&t.client).authenticate(&parts).await.unwrap();
    assert!(caller.payloads_hidden);
    assert_eq!(caller.token.as_deref(), Some(made.token.id.as_str()));
    assert!(!Caller::new("bo", Role::Read).payloads_hidden);
}

#[tokio::test]
async fn the_store_never_has_the_secret() {
    let t = TestQueue::new();
    let new = NewToken {
        queues: Some(vec!["mail".to_owned(), "sms".to_owned()]),
        payloads: Payloads::Hidden,
        expires_in: Some(Duration::from_hours(1)),
        created_by: "ana".to_owned(),
        ..NewToken::new("bo", Role::Operate)
    };
    let random = bytes(7);
    let made = token::make(&t.client, &new, random).await.unwrap();
    let (id, secret) = made.secret.expose().strip_prefix("pt_").unwrap().split_once('_').unwrap();
    assert_eq!((id, secret.len()), (made.token.id.as_str(), 64));
    let list = DocOp::List { prefix: String::new(), after: None, limit: 10 };
    let DocReply::Page { docs, .. } = t.client.store().doc(&list).await.unwrap() else { panic!() };
    assert_eq!(docs.len(), 1);
    let value = String::from_utf8(docs[0].value.clone()).unwrap();
    // Neither as text nor in a part of it, nor the bytes.
    for part in [&secret[..16], &secret[48..]] {
        assert!(!value.contains(part) && !docs[0].key.contains(part), "{value}");
    }
    assert!(!docs[0].value.windows(8).any(|window| window == &random[4..12]));
    assert_eq!(docs[0].key, format!("token/{id}"));
    // What is printed by mistake does not have it either.
    assert!(!format!("{made:?}").contains(&secret[..8]), "{made:?}");
    // The rest is there.
    let tokens = token::list(&t.client).await.unwrap();
    assert_eq!((&tokens.tokens[..], &tokens.unreadable[..]), (&[made.token.clone()][..], &[][..]));
    let now = t.client.store().now().await.unwrap();
    assert_eq!(
        (made.token.created_at, made.token.expires_at),
        (now, Some(now.after(Duration::from_hours(1))))
    );
    assert_eq!(made.token.queues.unwrap(), ["mail", "sms"]);
    assert_eq!((made.token.created_by.as_str(), made.token.payloads), ("ana", Payloads::Hidden));
}

#[tokio::test]
async fn a_token_that_cannot_be_read_is_refused_and_can_be_revoked() {
    let (t, gate, admin) = store().await;
    let made = make(&t.client, 2, &NewToken::new("bo", Role::Admin)).await;
    let key = format!("token/{}", made.token.id);
    let DocReply::Is(Some(doc)) = t.client.store().doc(&DocOp::Get { key: key.clone() }).await.unwrap()
    else {
        panic!()
    };
    // A newer version restricts it in a way that this one does not know.
    let value = String::from_utf8(doc.value).unwrap();
    put(&t.client, &key, value.replacen('{', "{\"networks\":[\"10.0.0.0/8\"],", 1).as_bytes()).await;
    assert_eq!(look().with(made.secret.expose()).get(&gate).await, refused(401, "unauthenticated"));
    let tokens = token::list(&t.client).await.unwrap();
    assert_eq!((tokens.tokens.len(), &tokens.unreadable[..]), (1, &[made.token.id.clone()][..]));
    assert!(token::revoke(&t.client, &made.token.id).await.unwrap());
    assert_eq!(look().with(&admin).get(&gate).await.0, 200);
}

#[tokio::test]
async fn limits_of_tokens_hold() {
    let t = TestQueue::new();
    let ok = NewToken::new("bo", Role::Read);
    let with_queues = |queues: usize| NewToken { queues: Some(vec!["q".to_owned(); queues]), ..ok.clone() };
    for wrong in [
        NewToken::new("", Role::Read),
        NewToken::new("a\nb", Role::Read),
        NewToken::new("x".repeat(101), Role::Read),
        NewToken { created_by: "x".repeat(101), ..ok.clone() },
        NewToken { expires_in: Some(Duration::ZERO), ..ok.clone() },
        with_queues(0),
        with_queues(101),
        NewToken { queues: Some(vec!["x".repeat(256)]), ..ok.clone() },
    ] {
        let error = token::make(&t.client, &wrong, bytes(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong:?}");
    }
    // The longest one fits into a document.
    let queues = Some(vec!["\u{1f600}".repeat(63); 100]);
    make(&t.client, 1, &NewToken { queues, ..ok.clone() }).await;
    let same = token::make(&t.client, &ok, bytes(1)).await.unwrap_err();
    assert_eq!(same.kind(), ErrorKind::Conflict);
    for id in ["", "xyz", "0000000G", "../00000", "000000000"] {
        assert_eq!(token::revoke(&t.client, id).await.unwrap_err().kind(), ErrorKind::Invalid, "{id}");
    }
    for n in 1..TOKENS_MAX {
        put(&t.client, &format!("token/{n:08}"), b"{}").await;
    }
    let full = token::make(&t.client, &ok, bytes(2)).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!(token::revoke(&t.client, "00000001").await.unwrap());
    make(&t.client, 2, &ok).await;
}

#[test]
fn random_bytes_differ() {
    assert_ne!(token::random().unwrap(), token::random().unwrap());
    assert_ne!(token::random().unwrap()[4..], [0; 32]);
}
