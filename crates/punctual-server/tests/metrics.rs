//! What `/metrics` says, against what clients and workers did.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "metrics/gauges.rs"]
mod gauges;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use punctual::{
    CancellationToken, Client, Ctx, Job, Outcome, Worker,
    client::Metrics,
    store::url::connect,
    testing::{Fault, FaultyStore},
    worker::{Health, WorkReport},
};

const OK: &str = "HTTP/1.1 200 OK";
const NOT_READY: &str = "HTTP/1.1 503 Service Unavailable";
/// For a machine that is four times slower.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "mail \"send\"\\", queue = "mail", max_attempts = 2, backoff = "fixed 10ms")]
struct Mail {
    n: u32,
}

const JOBS: u32 = 20;

/// Every fourth job fails in each attempt. The last job ends the worker.
async fn mail(job: Mail, ctx: Ctx<CancellationToken>) -> Outcome {
    if job.n == JOBS {
        ctx.state().cancel();
    }
    if job.n.is_multiple_of(4) { Outcome::retry("no") } else { Outcome::Done }
}

/// Runs some jobs with metrics; returns the text and the worker's report.
async fn ran() -> (String, WorkReport) {
    let metrics = Metrics::default();
    let client = Client::connect("memory:").await.unwrap().with_metrics(&metrics);
    for n in 0..JOBS {
        client.enqueue(Mail { n }).await.unwrap();
    }
    let repeated = client.enqueue(Mail { n: 1 }).idempotency_key("once");
    repeated.await.unwrap();
    client.enqueue(Mail { n: 1 }).idempotency_key("once").await.unwrap();
    client.enqueue(Mail { n: JOBS }).delay(Duration::from_millis(200)).await.unwrap();
    let end = CancellationToken::new();
    let worker = Worker::new(&client).state(end.clone()).queue("mail").handle(mail);
    let report = worker.run_until(end).await.unwrap();
    (punctual_server::text(&metrics), report)
}

/// The samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, n) = line.rsplit_once(' ').unwrap();
        assert!(samples.insert(name.to_owned(), n.parse().unwrap()).is_none(), "{name} is there twice");
    }
    samples
}

#[tokio::test]
async fn counters_equal_what_the_worker_reports() {
    let (text, report) = ran().await;
    let samples = samples(&text);
    let matching = |begin: &str, part: &str| -> f64 {
        let matching = samples.iter().filter(|(name, _)| name.starts_with(begin) && name.contains(part));
        matching.map(|(_, n)| n).sum()
    };
    let sum = |begin: &str, part: &str| matching(begin, part) as u64;
    assert_eq!(sum("punctual_jobs_enqueued_total{", "status=\"inserted\""), u64::from(JOBS) + 2, "{text}");
    assert_eq!(sum("punctual_jobs_enqueued_total{", "status=\"duplicate\""), 1, "{text}");
    assert_eq!(sum("punctual_jobs_settled_total{", "verdict=\"ack\""), report.done, "{text}");
    let retries = sum("punctual_jobs_settled_total{", "verdict=\"retry\"");
    assert_eq!(retries, report.retried + report.dead, "{text}");
    assert_eq!(sum("punctual_jobs_settled_total{", "state=\"dead\""), report.dead, "{text}");
    assert_eq!(sum("punctual_jobs_started_total{", ""), report.runs(), "{text}");
    let lateness = &report.lateness;
    assert_eq!(sum("punctual_job_lateness_seconds_count{", "queue=\"mail\""), lateness.count(), "{text}");
    let ms = (matching("punctual_job_lateness_seconds_sum{", "") * 1_000.0).round() as u128;
    assert_eq!(ms, lateness.sum().as_millis(), "{text}");
    assert_eq!(sum("punctual_job_run_seconds_count{", ""), report.runs(), "{text}");
    assert!(0 < sum("punctual_store_operation_seconds_count{", "operation=\"settle\""), "{text}");
}

#[tokio::test]
async fn the_text_is_well_formed() {
    let (text, _) = ran().await;
    assert!(!text.contains("EOF") && !text.contains("# UNIT"), "{text}");
    assert!(text.contains("# TYPE punctual_jobs_started_total counter\n"), "{text}");
    assert!(text.contains(r#"kind="mail \"send\"\\""#), "{text}");
    let samples = samples(&text);
    let mut histograms = 0;
    for (name, n) in &samples {
        assert!(name.starts_with("punctual_"), "{name}");
        // Buckets of a histogram are cumulative; the last one has all.
        if name.contains("le=\"+Inf\",") {
            let count = name.replace("_bucket{", "_count{").replace("le=\"+Inf\",", "");
            assert_eq!(samples[&count].to_bits(), n.to_bits(), "{count}");
            histograms += 1;
        }
    }
    assert!(5 < histograms, "{text}");
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let mut words = line.split(' ').skip(2);
        assert!(words.next().unwrap().starts_with("punctual_"), "{line}");
        assert!(["counter", "histogram", "gauge"].contains(&words.next().unwrap()), "{line}");
    }
}

/// The status line and the body of an answer.
fn get(addr: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_health_are_answered_until_the_end() {
    let (metrics, health) = (Metrics::default(), Health::default());
    let listening = punctual_server::listen("127.0.0.1:0".parse().unwrap(), &metrics, &health).unwrap();
    let addr = listening.addr();
    let (status, body) = get(addr, "/metrics");
    assert_eq!(status, OK);
    assert!(body.contains("punctual_build_info{version="), "{body}");
    assert_eq!(get(addr, "/healthz").0, OK);
    assert_eq!(get(addr, "/readyz").0, NOT_READY, "no worker runs yet");
    assert_eq!(get(addr, "/other").0, "HTTP/1.1 404 Not Found");

    let client = Client::connect("memory:").await.unwrap();
    let end = CancellationToken::new();
    let worker = Worker::new(&client).state(end.clone()).queue("mail").handle(mail).health(&health);
    let working = tokio::spawn(worker.run_until(end.clone()));
    let begin = Instant::now();
    while get(addr, "/readyz").0 != OK {
        assert!(begin.elapsed() < PATIENCE, "{:?}", get(addr, "/readyz"));
    }
    assert!(get(addr, "/readyz").1.starts_with("ok, last iteration "));
    end.cancel();
    working.await.unwrap().unwrap();
    assert_eq!((get(addr, "/healthz").0.as_str(), get(addr, "/readyz").0.as_str()), (OK, NOT_READY));

    let taken = punctual_server::listen(addr, &metrics, &health).unwrap_err();
    assert!(taken.to_string().contains(&addr.to_string()), "{taken}");
    drop(listening);
    assert!(TcpStream::connect(addr).is_err(), "it still listens");
}

#[test]
fn silent_clients_hold_up_others_for_a_while_only() {
    let listening =
        punctual_server::listen("127.0.0.1:0".parse().unwrap(), &Metrics::default(), &Health::default())
            .unwrap();
    let silent: Vec<TcpStream> = (0..70).map(|_| TcpStream::connect(listening.addr()).unwrap()).collect();
    let begin = Instant::now();
    assert_eq!(get(listening.addr(), "/healthz").0, OK);
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    drop(silent);
}

#[tokio::test]
async fn metrics_that_are_given_twice_count_once() {
    let (first, second) = (Metrics::default(), Metrics::default());
    let client = Client::connect("memory:").await.unwrap();
    let client = client.with_metrics(&first).with_metrics(&second).with_metrics(&second);
    client.enqueue(Mail { n: 1 }).await.unwrap();
    assert!(first.now().queues.is_empty() && first.now().calls.is_empty());
    assert_eq!(second.now().queues["mail"].kinds[Mail::KIND].enqueued["inserted"], 1);
    assert_eq!(second.now().calls["enqueue"].count(), 1);
}

/// The first answer is lost: the repetition finds the caller's own job.
#[tokio::test]
async fn a_job_whose_first_answer_was_lost_counts_as_inserted_once() {
    let lost = AtomicBool::new(false);
    let store = FaultyStore::new(connect("memory:").await.unwrap(), move |verb| {
        if verb == "enqueue" && !lost.swap(true, Ordering::Relaxed) { Fault::After } else { Fault::Pass }
    });
    let metrics = Metrics::default();
    let client = Client::new(Arc::new(store)).with_metrics(&metrics);
    client.enqueue(Mail { n: 1 }).await.unwrap();
    let counted = metrics.now();
    assert_eq!(counted.queues["mail"].kinds[Mail::KIND].enqueued, BTreeMap::from([("inserted", 1)]));
    assert_eq!((counted.calls["enqueue"].count(), counted.errors[&("enqueue", "unknown_outcome")]), (2, 1));
}
