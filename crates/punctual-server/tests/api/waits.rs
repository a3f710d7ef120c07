//! Waits: they end when there is work, at their end, and when the server stops.

use std::time::Duration;

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
