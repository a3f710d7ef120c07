//! Topics by their address.

use axum::http::{Method, Request};
use serde_json::{Value, json};

use crate::site::{Answer, Site};

/// Sends a request about a topic as an admin, with a header.
async fn ask(site: &Site, method: &str, path: &str, header: Option<(&str, &str)>, body: &Value) -> Answer {
    let mut request = Request::builder().method(method).uri(format!("/api/v1/topics/{path}"));
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    site.request(&site.tokens.admin, request.body(body.into()).unwrap()).await
}

#[tokio::test]
async fn queues_are_subscribed_and_unsubscribed() {
    let site = Site::new().await;
    let (mail, sms) = (json!({"queue": "mail"}), json!({"queue": "sms"}));
    let made = site.ask(&site.tokens.admin, Method::POST, "topics/a%2Fb/subscribe", Some(&sms)).await;
    assert_eq!(
        (made.status, &made.json()["queues"], &made.json()["name"]),
        (200, &json!(["sms"]), &json!("a/b"))
    );
    let both = ask(&site, "POST", "a%2Fb/subscribe", None, &mail).await;
    assert_eq!(both.json()["queues"], json!(["mail", "sms"]));
    assert!(made.etag < both.etag);
    // A repeat changes nothing.
    let again = ask(&site, "POST", "a%2Fb/subscribe", None, &mail).await;
    assert_eq!((again.json(), &again.etag), (both.json(), &both.etag));
    let read = site.ask(&site.tokens.read, Method::GET, "topics/a%2Fb", None).await;
    assert_eq!((read.status, read.json(), &read.etag), (200, both.json(), &both.etag));
    let one = ask(&site, "POST", "a%2Fb/unsubscribe", None, &mail).await;
    assert_eq!(one.json()["queues"], json!(["sms"]));
    let page = site.ask(&site.tokens.read, Method::GET, "topics", None).await.json();
    assert_eq!((&page["topics"][0], &page["topics"][1]["name"]), (&one.json(), &json!("news")));
    let page = site.ask(&site.tokens.read, Method::GET, "topics?after=a%2Fb", None).await.json();
    assert_eq!(page["topics"].as_array().unwrap().len(), 1);
    let removed = ask(&site, "DELETE", "a%2Fb", None, &Value::Null).await;
    assert_eq!((removed.status, removed.json()), (200, json!({"status": "removed", "name": "a/b"})));
    for (method, path, body) in [
        ("GET", "a%2Fb", &Value::Null),
        ("DELETE", "a%2Fb", &Value::Null),
        ("POST", "a%2Fb/unsubscribe", &mail),
    ] {
        let answer = ask(&site, method, path, None, body).await;
        assert!(answer.is(404, "not_found"), "{method} {path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_change_of_a_topic_needs_the_version_of_if_match() {
    let site = Site::new().await;
    let (mail, sms) = (json!({"queue": "mail"}), json!({"queue": "sms"}));
    let first = site.ask(&site.tokens.read, Method::GET, "topics/news", None).await.etag.unwrap();
    let second = ask(&site, "POST", "news/subscribe", Some(("if-match", &first)), &sms).await;
    assert_eq!(second.status, 200);
    let before = site.everything().await;
    for (method, path, body) in [
        ("POST", "news/subscribe", &json!({"queue": "other"})),
        ("POST", "news/unsubscribe", &mail),
        ("DELETE", "news", &Value::Null),
        ("POST", "none/subscribe", &mail),
    ] {
        let answer = ask(&site, method, path, Some(("if-match", &first)), body).await;
        assert!(answer.is(412, "version_mismatch"), "{method} {path}: {answer:?}");
    }
    assert!(before == site.everything().await);
    let version = second.etag.unwrap();
    assert_eq!(ask(&site, "DELETE", "news", Some(("if-match", &version)), &Value::Null).await.status, 200);
}

#[tokio::test]
async fn a_job_is_published_once_for_each_key() {
    let site = Site::new().await;
    let job = json!({"kind": "k", "payload": {"n": 1}, "delay_ms": 60_000});
    let key = |key: &'static str| Some(("idempotency-key", key));
    let made = ask(&site, "POST", "news/publish", key("a"), &job).await;
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!((made.status, made.location), (201, Some(format!("../../jobs/{id}"))));
    let kept = site.ask(&site.tokens.read, Method::GET, &format!("jobs/{id}"), None).await.json();
    assert_eq!((&kept["queue"], &kept["headers"]["topic"]), (&json!("$topics"), &json!("news")));
    let again = ask(&site, "POST", "news/publish", key("a"), &job).await;
    assert_eq!(
        (again.status, &again.json()["status"], &again.json()["id"]),
        (200, &json!("duplicate"), &json!(id))
    );
    let mut own = job.clone();
    own["idempotency_key"] = json!("a");
    let again = ask(&site, "POST", "news/publish", None, &own).await;
    assert_eq!((again.status, &again.json()["id"]), (200, &json!(id)), "the key of the body is the same");
    for (path, key) in [("news/publish", key("b")), ("other/publish", key("a")), ("news/publish", None)] {
        assert_eq!(ask(&site, "POST", path, key, &job).await.status, 201, "{path} {key:?}");
    }
    let before = site.everything().await;
    for body in [
        json!({"kind": "k", "queue": "mail"}),
        json!({"kind": "k", "id": site.mail.waiting}),
        json!({"kind": "k", "across_kinds": true}),
        json!({"kind": "k", "idempotency_key": "b"}),
        json!({"kind": "k", "headers": {"topic": "x"}}),
        json!({"kind": ""}),
        json!({}),
    ] {
        let answer = ask(&site, "POST", "news/publish", key("a"), &body).await;
        assert!(answer.is(422, "invalid"), "{body}: {answer:?}");
    }
    for (path, body) in [
        ("news/subscribe", json!({"queue": "$topics"})),
        ("news/subscribe", json!({"queue": ""})),
        ("news/subscribe", json!({"queues": ["mail"]})),
        ("news/subscribe", Value::Null),
    ] {
        let answer = ask(&site, "POST", path, None, &body).await;
        assert!(answer.is(422, "invalid"), "{path} {body}: {answer:?}");
    }
    assert!(before == site.everything().await);
}
