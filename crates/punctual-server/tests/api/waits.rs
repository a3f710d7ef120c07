//! Waits: they end when there is work, at their end, and when the server stops.

use std::time::Duration;

use axum::http::Method;
use futures_util::poll;
use serde_json::json;
use tokio::time::Instant;

use crate::site::Site;

async fn enqueue(site: &Site, queue: &str) {
    let body = json!({"jobs": [{"kind": "k", "queue": queue}]});
    assert_eq!(site.call(&site.tokens.admin, "enqueue", &body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_a_job_arrives() {
    let site = Site::new().await;
    let body = json!({"queues": ["new"], "at_most_ms": 20_000});
    let start = Instant::now();
    let mut wait = Box::pin(site.call(&site.tokens.read, "wait", &body));
    assert!(poll!(&mut wait).is_pending());
    enqueue(&site, "other").await;
    assert!(poll!(&mut wait).is_pending());
    enqueue(&site, "new").await;
    assert_eq!(wait.await.status, 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_end() {
    let site = Site::new().await;
    for (at_most, expected) in [(0, 0), (3_000, 3_000), (25_000, 25_000), (u64::MAX, 25_000)] {
        let start = Instant::now();
        let body = json!({"queues": ["new"], "at_most_ms": at_most});
        assert_eq!(site.call(&site.tokens.read, "wait", &body).await.status, 200);
        let took = start.elapsed().as_millis() as u64;
        assert!((expected..expected + 10).contains(&took), "{at_most}: {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_the_server_stops() {
    let site = Site::new().await;
    let body = json!({"queues": ["new"], "at_most_ms": 20_000});
    let start = Instant::now();
    let mut wait = Box::pin(site.call(&site.tokens.read, "wait", &body));
    assert!(poll!(&mut wait).is_pending());
    site.stop.cancel();
    assert_eq!(wait.await.status, 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
    // So does one that comes later.
    assert_eq!(site.call(&site.tokens.read, "wait", &body).await.status, 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_takes_no_notification_from_another() {
    let site = Site::new().await;
    let body = json!({"queues": ["new"], "at_most_ms": 20_000});
    let start = Instant::now();
    let mut gone = Box::pin(site.call(&site.tokens.read, "wait", &body));
    let mut stays = Box::pin(site.call(&site.tokens.read, "wait", &body));
    assert!(poll!(&mut gone).is_pending() && poll!(&mut stays).is_pending());
    drop(gone);
    enqueue(&site, "new").await;
    assert_eq!(stays.await.status, 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_end_of_a_job_ends_with_it() {
    let site = Site::new().await;
    let id = site.mail.running.job.to_string().replace('-', "");
    let body = json!({"queues": [format!("$end/{id}")], "at_most_ms": 20_000});
    let start = Instant::now();
    let mut wait = Box::pin(site.call(&site.tokens.mail_read, "wait", &body));
    assert!(poll!(&mut wait).is_pending());
    let ack = json!({"settle": [site.mail.settlement(&json!({"verdict": "ack"}))]});
    assert_eq!(site.call(&site.tokens.admin, "settle", &ack).await.status, 200);
    assert_eq!(wait.await.status, 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_job_by_its_address_is_waited_for() {
    let site = Site::new().await;
    let path = |wait_ms: u64| format!("jobs/{}?wait_ms={wait_ms}", site.mail.running.job);
    let wait = async |wait_ms| site.ask(&site.tokens.mail_read, Method::GET, &path(wait_ms), None).await;
    let start = Instant::now();
    // No longer than it was asked for, and than a proxy waits.
    for (wait_ms, expected) in [(0, 0), (3_000, 3_000), (60_000, 25_000), (u64::MAX, 25_000)] {
        let start = Instant::now();
        let answer = wait(wait_ms).await;
        assert_eq!((answer.status, &answer.json()["state"]), (200, &json!("running")));
        let took = start.elapsed().as_millis() as u64;
        assert!((expected..expected + 10).contains(&took), "{wait_ms}: {took}");
    }
    let mut waits = Box::pin(wait(20_000));
    assert!(poll!(&mut waits).is_pending());
    let ack = json!({"settle": [site.mail.settlement(&json!({"verdict": "ack", "result": {"n": 1}}))]});
    let begin = Instant::now();
    assert_eq!(site.call(&site.tokens.admin, "settle", &ack).await.status, 200);
    let answer = waits.await;
    assert_eq!((&answer.json()["state"], &answer.json()["result"]), (&json!("done"), &json!({"n": 1})));
    assert!(begin.elapsed() < Duration::from_millis(10) && answer.etag.is_some());
    // One that has ended is not waited for.
    assert_eq!(wait(20_000).await.json()["state"], "done");
    assert!(begin.elapsed() < Duration::from_millis(10) && start.elapsed() < Duration::from_mins(1));
    for query in ["wait_ms=x", "wait_ms=-1", "wait=1"] {
        let path = format!("jobs/{}?{query}", site.mail.waiting);
        let answer = site.ask(&site.tokens.read, Method::GET, &path, None).await;
        assert!(answer.is(422, "invalid"), "{query}: {answer:?}");
    }
    let other = format!("jobs/{}?wait_ms=20000", site.sms.waiting);
    let begin = Instant::now();
    assert!(site.ask(&site.tokens.mail_read, Method::GET, &other, None).await.is(404, "not_found"));
    assert!(begin.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_job_ends_with_the_server_and_with_its_record() {
    let site = Site::new().await;
    let wait = async |id| {
        let path = format!("jobs/{id}?wait_ms=20000");
        site.ask(&site.tokens.read, Method::GET, &path, None).await
    };
    let start = Instant::now();
    let mut gone = Box::pin(wait(site.sms.waiting));
    let mut stays = Box::pin(wait(site.mail.waiting));
    assert!(poll!(&mut gone).is_pending() && poll!(&mut stays).is_pending());
    let path = format!("jobs/{}", site.sms.waiting);
    assert_eq!(site.ask(&site.tokens.operate, Method::DELETE, &path, None).await.status, 200);
    assert!(gone.await.is(404, "not_found"));
    site.stop.cancel();
    assert_eq!(stays.await.json()["state"], "waiting");
    assert!(start.elapsed() < Duration::from_secs(16), "{:?}", start.elapsed());
}
