//! Schedules by their address.

use axum::http::{Method, Request};
use punctual::{job::Filter, store::List};
use serde_json::{Value, json};

use crate::site::{Answer, SECRET, Site};

/// Sends a request about a schedule as an admin, with `If-Match`.
async fn ask(site: &Site, method: &str, path: &str, version: Option<&str>, body: &Value) -> Answer {
    let mut request = Request::builder().method(method).uri(format!("/api/v1/schedules/{path}"));
    if let Some(version) = version {
        request = request.header("if-match", version);
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    site.request(&site.tokens.admin, request.body(body.into()).unwrap()).await
}

fn hourly(payload: &Value) -> Value {
    let job = json!({"kind": "k", "queue": "mail", "payload": payload, "group": "g", "max_attempts": 2});
    json!({"ticks": {"cron": "0 * * * *", "tz": "Europe/Berlin", "misfire": {"run_all": {"at_most": 3}}}, "job": job})
}

/// The waiting ticks of all schedules.
async fn ticks(site: &Site) -> usize {
    let filter = Filter::parse("state:waiting queue:mail group:g").unwrap();
    site.client().list(&List { filter, after: None, limit: 100 }).await.unwrap().jobs.len()
}

#[tokio::test]
async fn a_schedule_is_set_read_and_sent_again() {
    let site = Site::new().await;
    let body = hourly(&json!({"n": 12_345_678_901_234_567_890_u64, "a": [1.50]}));
    let made = site.ask(&site.tokens.admin, Method::PUT, "schedules/a%2Fb", Some(&body)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let shown = made.json();
    assert_eq!(
        (&shown["name"], &shown["ticks"], &shown["job"]),
        (&json!("a/b"), &body["ticks"], &body["job"])
    );
    assert_eq!(made.etag, Some(format!("\"{}\"", shown["generation"])));
    assert!(shown["next_at_ms"].is_u64() && ticks(&site).await == 1);
    let read = site.ask(&site.tokens.read, Method::GET, "schedules/a%2Fb", None).await;
    assert_eq!((read.status, read.json(), &read.etag), (200, shown.clone(), &made.etag));
    // The same again changes nothing, not even the generation.
    let again = site.ask(&site.tokens.admin, Method::PUT, "schedules/a%2Fb", Some(&shown)).await;
    assert_eq!((again.status, again.json(), &again.etag), (200, shown, &made.etag));
    let other = site.ask(&site.tokens.admin, Method::PUT, "schedules/a%2Fb", Some(&hourly(&json!(2)))).await;
    assert!(other.status == 200 && other.etag != made.etag && ticks(&site).await == 1, "{other:?}");
    let page = site.ask(&site.tokens.read, Method::GET, "schedules", None).await.json();
    let names: Vec<&Value> = page["schedules"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!((names, &page["unreadable"]), (vec![&json!("a/b"), &json!("nightly")], &json!([])));
    let page = site.ask(&site.tokens.read, Method::GET, "schedules?after=a%2Fb", None).await.json();
    assert_eq!(page["schedules"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_fired_and_removed() {
    let site = Site::new().await;
    let nothing = Value::Null;
    assert_eq!(ask(&site, "PUT", "s", None, &hourly(&json!(1))).await.status, 201);
    let paused = ask(&site, "POST", "s/pause", None, &json!({"reason": "moved"})).await;
    let pause = &paused.json()["paused"];
    assert_eq!(
        (&pause["by"], &pause["reason"], paused.json().get("next_at_ms")),
        (&json!("ana"), &json!("moved"), None)
    );
    assert_eq!(ticks(&site).await, 0);
    // A change keeps the pause.
    let put = ask(&site, "PUT", "s", None, &hourly(&json!(2))).await.json();
    assert_eq!(put["paused"]["by"], "ana");
    // It can be fired meanwhile.
    let fired = ask(&site, "POST", "s/fire", None, &nothing).await;
    let id = fired.json()["id"].as_str().unwrap().to_owned();
    assert_eq!((fired.status, fired.location), (201, Some(format!("../../jobs/{id}"))));
    let job = site.ask(&site.tokens.read, Method::GET, &format!("jobs/{id}"), None).await.json();
    assert_eq!((&job["payload"], &job["headers"]["schedule"]), (&json!(2), &json!("s")));
    let resumed = ask(&site, "POST", "s/resume", None, &nothing).await.json();
    assert!(resumed["paused"].is_null() && resumed["next_at_ms"].is_u64(), "{resumed}");
    assert_eq!(ticks(&site).await, 2);
    let removed = ask(&site, "DELETE", "s", None, &nothing).await;
    assert_eq!((removed.status, removed.json()), (200, json!({"status": "removed", "name": "s"})));
    assert_eq!(ticks(&site).await, 1, "what was fired stays");
    for (method, path) in
        [("GET", "s"), ("DELETE", "s"), ("POST", "s/pause"), ("POST", "s/resume"), ("POST", "s/fire")]
    {
        let answer = ask(&site, method, path, None, &nothing).await;
        assert!(answer.is(404, "not_found"), "{method} {path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_change_of_a_schedule_needs_the_version_of_if_match() {
    let site = Site::new().await;
    let (nothing, put) = (Value::Null, hourly(&json!(1)));
    let first = ask(&site, "PUT", "s", None, &put).await.etag.unwrap();
    let second = ask(&site, "PUT", "s", Some(&first), &hourly(&json!(2))).await;
    assert_eq!(second.status, 200);
    let before = site.everything().await;
    for (method, path, body) in [
        ("PUT", "s", &put),
        ("DELETE", "s", &nothing),
        ("POST", "s/pause", &nothing),
        ("POST", "s/resume", &nothing),
    ] {
        let answer = ask(&site, method, path, Some(&first), body).await;
        assert!(answer.is(412, "version_mismatch"), "{method} {path}: {answer:?}");
        let answer = ask(&site, method, path, Some("3"), body).await;
        assert!(answer.is(422, "invalid"), "{method} {path}: {answer:?}");
    }
    let answer = ask(&site, "PUT", "none", Some(&first), &put).await;
    assert!(answer.is(412, "version_mismatch"), "{answer:?}");
    assert!(before == site.everything().await);
    let either = format!("{first}, {}", second.etag.unwrap());
    assert_eq!(ask(&site, "DELETE", "s", Some(&either), &nothing).await.status, 200);
}

#[tokio::test]
async fn what_is_no_schedule_is_refused() {
    let site = Site::new().await;
    let before = site.everything().await;
    let ticks = json!({"every_ms": 60_000});
    let job = |more: Value| {
        let mut job = json!({"kind": "k", "queue": "mail"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"ticks": ticks, "job": job})
    };
    for body in [
        json!({}),
        json!({"ticks": ticks}),
        json!({"ticks": ["0 3 * * *", null, null, "skip"], "job": {"kind": "k"}}),
        json!({"ticks": {"cron": "0 3 * * *", "every_ms": 60_000}, "job": {"kind": "k"}}),
        json!({"ticks": {"cron": "61 3 * * *"}, "job": {"kind": "k"}}),
        json!({"ticks": {"every_ms": 1}, "job": {"kind": "k"}}),
        json!({"ticks": ticks, "job": {"kind": "k"}, "from_the_future": 1}),
        json!({"ticks": ticks, "job": ["k"]}),
        job(json!({"kind": ""})),
        job(json!({"idempotency_key": "k"})),
        job(json!({"id": site.mail.waiting})),
        job(json!({"delay_ms": 5})),
        job(json!({"unique": {"key": "k"}})),
        job(json!({"payload_base64": "/w=="})),
        job(json!({"headers": {"schedule": "x"}})),
    ] {
        let answer = ask(&site, "PUT", "s", None, &body).await;
        assert!(answer.is(422, "invalid"), "{body}: {answer:?}");
        assert!(!answer.text.contains(SECRET));
    }
    let answer = ask(&site, "PUT", &"n".repeat(201), None, &job(json!({}))).await;
    assert!(answer.is(422, "invalid"), "{answer:?}");
    let large = ask(&site, "PUT", "s", None, &job(json!({"payload": "x".repeat(100_000)}))).await;
    assert!(large.is(413, "payload_too_large"), "{large:?}");
    assert!(before == site.everything().await);
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_named_and_can_be_replaced() {
    let site = Site::new().await;
    for name in ["a", "b"] {
        let put = json!({"put": {"key": format!("schedule/{name}"), "precondition": "always", "value": "{\"x\":1}"}});
        assert_eq!(site.call(&site.tokens.admin, "doc", &put).await.status, 200);
    }
    let page = site.ask(&site.tokens.read, Method::GET, "schedules", None).await.json();
    assert_eq!(page["unreadable"], json!(["a", "b"]));
    assert_eq!(ask(&site, "PUT", "a", None, &hourly(&json!(1))).await.status, 200);
    assert_eq!(ask(&site, "DELETE", "b", None, &Value::Null).await.status, 200);
    let page = site.ask(&site.tokens.read, Method::GET, "schedules", None).await.json();
    assert_eq!((page["schedules"].as_array().unwrap().len(), &page["unreadable"]), (2, &json!([])));
}
