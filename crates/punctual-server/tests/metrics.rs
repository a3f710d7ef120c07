//! What `/metrics` says, against what clients and workers did.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use punctual::{
    CancellationToken, Client, Ctx, Job, Outcome, Worker,
    client::Metrics,
    worker::{Health, WorkReport},
};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "mail \"send\"", queue = "mail", max_attempts = 2, backoff = "fixed 10ms")]
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
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, n)| (name.to_owned(), n.parse().unwrap()))
        .collect()
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
    assert!(text.contains(r#"kind="mail \"send\"""#), "{text}");
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

#[test]
fn metrics_and_health_are_answered_until_the_end() {
    let (metrics, health) = (Metrics::default(), Health::default());
    let listening = punctual_server::listen("127.0.0.1:0".parse().unwrap(), &metrics, &health).unwrap();
    let addr = listening.addr();
    let (status, body) = get(addr, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(body.contains("punctual_build_info{version="), "{body}");
    for path in ["/healthz", "/readyz"] {
        let (status, body) = get(addr, path);
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
        assert!(body.starts_with("ok, last iteration "), "{body}");
    }
    assert_eq!(get(addr, "/other").0, "HTTP/1.1 404 Not Found");
    let taken = punctual_server::listen(addr, &metrics, &health).unwrap_err();
    assert!(taken.to_string().contains(&addr.to_string()), "{taken}");
    drop(listening);
    // The thread ends soon after; nothing else says when.
    let begin = std::time::Instant::now();
    while TcpStream::connect(addr).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it still listens");
        std::thread::yield_now();
    }
}
