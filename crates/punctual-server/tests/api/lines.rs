//! Jobs as lines.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::ConnectInfo,
    http::{Request, header::CONTENT_TYPE},
};
use futures_util::{StreamExt as _, stream};
use punctual::store::{QueueOp, QueueSettings, wire::LINE_BYTES_MAX};
use punctual_server::token;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};
use tower::ServiceExt as _;

use crate::site::Site;

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_mins(1);

/// A stream that is open in both directions.
struct Stream {
    body: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
    answers: BodyDataStream,
}

fn request(token: &str, body: Body) -> Request<Body> {
    let peer: SocketAddr = "192.0.2.1:50000".parse().unwrap();
    Request::post("/api/v1/jobs")
        .header("content-type", "application/x-ndjson; charset=utf-8")
        .header("authorization", format!("Bearer {token}"))
        .extension(ConnectInfo(peer))
        .body(body)
        .unwrap()
}

impl Stream {
    async fn open(site: &Site, token: &str) -> Self {
        let (body, parts) = mpsc::unbounded_channel();
        let parts = stream::unfold(parts, |mut parts| async { Some((parts.recv().await?, parts)) });
        let answer = site.router.clone().oneshot(request(token, Body::from_stream(parts))).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/x-ndjson");
        Self { body, answers: answer.into_body().into_data_stream() }
    }

    fn send(&self, text: impl Into<Bytes>) {
        self.body.send(Ok(text.into())).unwrap();
    }

    /// The answers of the next batch.
    async fn next(&mut self) -> Vec<Value> {
        let bytes = timeout(LONG, self.answers.next()).await.unwrap().unwrap().unwrap();
        lines(str::from_utf8(&bytes).unwrap())
    }

    async fn ends(mut self) -> bool {
        timeout(LONG, self.answers.next()).await.unwrap().is_none()
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn job(n: usize) -> String {
    json!({"kind": "k", "queue": "bulk", "payload": n, "idempotency_key": format!("{n}")}).to_string() + "\n"
}

/// Sends a whole body, and returns all answers.
async fn all(site: &Site, token: &str, body: impl Into<Body>) -> Vec<Value> {
    lines(&site.request(token, request(token, body.into())).await.text)
}

/// The code of each answer, or its status.
fn codes(answers: &[Value]) -> Vec<&str> {
    answers.iter().map(|it| it["problem"]["code"].as_str().or(it["status"].as_str()).unwrap()).collect()
}

async fn waiting(site: &Site) -> Value {
    site.call(&site.tokens.read, "count", &json!({"queue": "bulk"})).await.json()["waiting"].clone()
}

#[tokio::test]
async fn each_line_is_a_job_and_has_an_answer_in_order() {
    let site = Site::new().await;
    let text: String = (1..=2_500).map(job).collect();
    let answers = all(&site, &site.tokens.operate, text.clone()).await;
    assert_eq!(answers.len(), 2_500);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["line"], &answer["status"]), (&json!(n + 1), &json!("inserted")));
    }
    assert_eq!(waiting(&site).await, 2_500);
    // A repeat stores nothing twice.
    let again = all(&site, &site.tokens.operate, text).await;
    assert!(
        again
            .iter()
            .zip(&answers)
            .all(|(again, first)| again["status"] == "duplicate" && again["id"] == first["id"])
    );
    assert_eq!(waiting(&site).await, 2_500);
    // Bytes can arrive in any pieces, and the last line needs no line break.
    let text = format!("{}\r\n\n  \n{}", job(3_001).trim(), job(3_002).trim());
    let bytes: Vec<_> = text.bytes().map(|byte| Ok::<_, Infallible>(vec![byte])).collect();
    let answers = all(&site, &site.tokens.operate, Body::from_stream(stream::iter(bytes))).await;
    let numbers: Vec<&Value> = answers.iter().map(|answer| &answer["line"]).collect();
    assert_eq!((numbers, codes(&answers)), (vec![&json!(1), &json!(4)], vec!["inserted", "inserted"]));
    assert_eq!(all(&site, &site.tokens.operate, "").await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_bad_line_has_a_problem_in_its_place_and_the_others_are_stored() {
    let site = Site::new().await;
    let settings = QueueSettings { max_jobs: Some(1), ..QueueSettings::default() };
    site.client().store().queue("full", &QueueOp::Set(Box::new(settings))).await.unwrap();
    let mut body = Vec::new();
    for line in [
        job(1).as_bytes(),
        b"nonsense\n",
        b"{\"kind\":\"\xff\"}\n",
        b"[\"k\"]\n",
        b"{\"kind\":\"k\",\"quue\":\"bulk\"}\n",
        b"{\"kind\":\"k\",\"queue\":\"full\"}\n{\"kind\":\"k\",\"queue\":\"full\"}\n",
        b"{\"kind\":\"k\",\"queue\":\"$topics\"}\n",
        format!("{{\"kind\":\"k\",\"payload\":\"{}\"}}\n", "x".repeat(1 << 20)).as_bytes(),
        "y".repeat(LINE_BYTES_MAX + 1).as_bytes(),
        b"\n",
        job(2).as_bytes(),
    ] {
        body.extend_from_slice(line);
    }
    let answers = all(&site, &site.tokens.operate, body).await;
    let expected = [
        "inserted",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "inserted",
        "full",
        "invalid",
        "payload_too_large",
        "payload_too_large",
        "inserted",
    ];
    assert_eq!(codes(&answers), expected);
    assert!(answers.iter().enumerate().all(|(at, answer)| answer["line"] == at + 1));
    assert_eq!(
        (&answers[4]["problem"]["hint"], &answers[4]["problem"]["status"]),
        (&json!("did you mean `queue`?"), &json!(422))
    );
    assert_eq!(waiting(&site).await, 2);
}

#[tokio::test]
async fn a_stream_has_the_rights_of_its_token() {
    let site = Site::new().await;
    let body = |queue: &str| json!({"kind": "k", "queue": queue}).to_string() + "\n";
    let two = body("mail") + &body("sms");
    let answers = all(&site, &site.tokens.mail_operate, two).await;
    assert_eq!(codes(&answers), ["inserted", "forbidden"]);
    let known = json!({"kind": "k", "queue": "mail", "id": site.sms.waiting}).to_string();
    let answers = all(&site, &site.tokens.mail_operate, known).await;
    assert_eq!(answers, [json!({"line": 1, "status": "conflict", "id": site.sms.waiting})]);
    for token in [&site.tokens.read, &site.tokens.mail_read] {
        let answer = site.request(token, request(token, body("mail").into())).await;
        assert!(answer.is(403, "forbidden"), "{answer:?}");
    }
    let keyed = Request::post("/api/v1/jobs")
        .header("content-type", "application/x-ndjson")
        .header("idempotency-key", "k");
    let answer = site.request(&site.tokens.operate, keyed.body(body("mail").into()).unwrap()).await;
    assert!(answer.is(422, "invalid"), "{answer:?}");
    let read_only = Site::read_only().await;
    let token = &read_only.tokens.admin;
    let answer = read_only.request(token, request(token, body("mail").into())).await;
    assert!(answer.is(403, "forbidden"), "{answer:?}");
}

#[tokio::test]
async fn answers_come_while_the_body_is_still_sent() {
    let site = Site::new().await;
    let mut stream = Stream::open(&site, &site.tokens.operate).await;
    stream.send(job(1) + &job(2) + &job(3)[..10]);
    assert_eq!(codes(&stream.next().await), ["inserted", "inserted"]);
    assert_eq!(waiting(&site).await, 2);
    stream.send(job(3)[10..].to_owned());
    assert_eq!(stream.next().await[0]["line"], 3);
    // A body that breaks off ends with the line from which on nothing was stored.
    stream.send(job(4) + &job(5)[..10]);
    stream.body.send(Err(std::io::Error::other("gone"))).unwrap();
    assert_eq!(stream.next().await[0]["line"], 4);
    let last = stream.next().await;
    assert_eq!((&last[0]["from_line"], codes(&last)), (&json!(5), vec!["invalid"]));
    assert!(stream.ends().await);
    assert_eq!(waiting(&site).await, 4);
}

#[tokio::test]
async fn no_more_is_read_than_what_the_client_takes_answers_of() {
    let site = Site::new().await;
    let n = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&n);
    let endless = stream::repeat_with(move || {
        let n = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok::<_, Infallible>(job(n))
    });
    let token = &site.tokens.operate;
    let answer = site.router.clone().oneshot(request(token, Body::from_stream(endless))).await.unwrap();
    // A batch that waits to be sent, one that is stored, and one that is read.
    timeout(LONG, async {
        while n.load(std::sync::atomic::Ordering::SeqCst) < 2_000 {
            tokio::task::yield_now().await;
        }
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let read = n.load(std::sync::atomic::Ordering::SeqCst);
    assert!(read <= 4_000, "{read} lines were read");
    let mut answers = answer.into_body().into_data_stream();
    assert!(answers.next().await.is_some());
    drop(answers);
    let stopped = async {
        loop {
            let before = n.load(std::sync::atomic::Ordering::SeqCst);
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
            }
            if n.load(std::sync::atomic::Ordering::SeqCst) == before {
                break;
            }
        }
    };
    timeout(LONG, stopped).await.expect("a client that went away is noticed");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_answers_or_sends_nothing_is_given_up() {
    let site = Site::new().await;
    let mut silent = Stream::open(&site, &site.tokens.operate).await;
    silent.send(job(1) + "{");
    assert_eq!(codes(&silent.next().await), ["inserted"]);
    let last = silent.next().await;
    assert_eq!((&last[0]["from_line"], codes(&last)), (&json!(2), vec!["timed_out"]));
    assert!(silent.ends().await);
    // Nor is a stream held with a byte at a time.
    let mut trickle = Stream::open(&site, &site.tokens.operate).await;
    for byte in "\n ".chars().cycle().take(5) {
        trickle.send(byte.to_string());
        tokio::time::sleep(Duration::from_secs(25)).await;
    }
    assert_eq!(codes(&trickle.next().await), ["timed_out"]);
    // Answers that were not taken are not complete.
    let mut slow = Stream::open(&site, &site.tokens.operate).await;
    for n in 2..=4 {
        slow.send(job(n));
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(codes(&slow.next().await), ["inserted"]);
    assert!(slow.answers.next().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_server_and_with_its_token() {
    let site = Site::new().await;
    let mut revoked = Stream::open(&site, &site.tokens.mail_admin).await;
    revoked.send(json!({"kind": "k", "queue": "mail"}).to_string() + "\n");
    assert_eq!(codes(&revoked.next().await), ["inserted"]);
    let secret = site.tokens.mail_admin.strip_prefix("pt_").unwrap();
    token::revoke(site.client(), secret.split('_').next().unwrap()).await.unwrap();
    // As long as a token is believed.
    let believed = std::time::Instant::now();
    while believed.elapsed() < Duration::from_millis(1_100) {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    revoked.send(json!({"kind": "k", "queue": "mail"}).to_string() + "\n");
    let last = revoked.next().await;
    assert_eq!((&last[0]["from_line"], codes(&last)), (&json!(2), vec!["unauthenticated"]));
    assert!(revoked.ends().await);

    let mut stream = Stream::open(&site, &site.tokens.operate).await;
    stream.send(job(1));
    assert_eq!(codes(&stream.next().await), ["inserted"]);
    site.stop.cancel();
    let last = stream.next().await;
    assert_eq!((&last[0]["from_line"], codes(&last)), (&json!(2), vec!["store_unavailable"]));
    assert!(stream.ends().await);
}

#[tokio::test]
async fn so_many_streams_are_open_at_once_and_no_more() {
    let site = Site::new().await;
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(Stream::open(&site, &site.tokens.operate).await);
    }
    // A caller has half of them.
    let answer = site.request(&site.tokens.operate, request(&site.tokens.operate, job(1).into())).await;
    assert!(answer.is(503, "overloaded"), "{answer:?}");
    for _ in 0..16 {
        open.push(Stream::open(&site, &site.tokens.admin).await);
    }
    let token = &site.tokens.operate;
    let answer = site.request(token, request(token, job(1).into())).await;
    assert!(answer.is(503, "overloaded"), "{answer:?}");
    drop(open.remove(0));
    timeout(LONG, async {
        while site.router.clone().oneshot(request(token, job(1).into())).await.unwrap().status() != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}
