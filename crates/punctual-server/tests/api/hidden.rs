//! Tokens that must not see payloads.

use axum::http::Method;
use serde_json::{Value, json};

use crate::site::{SECRET, Site};

/// Makes a call that must be allowed, and whose answer must have no secret.
async fn blind(site: &Site, call: &str, body: Value) -> Value {
    // The call is one whose answer has secrets for others.
    let answer = site.call(&site.tokens.blind, call, &body).await;
    assert_eq!(answer.status, 200, "{call} {body}: {answer:?}");
    assert!(!answer.text.contains(SECRET), "{call} {body}: {answer:?}");
    answer.json()
}

#[tokio::test]
async fn hidden_payloads_are_in_no_answer() {
    let site = Site::new().await;
    let (mail, sms) = (site.mail, site.sms);
    // A result, too.
    let result = json!({"verdict": "ack", "result": SECRET});
    let settled =
        site.call(&site.tokens.admin, "settle", &json!({"settle": [sms.settlement(&result)]})).await;
    assert_eq!(settled.status, 200);
    let seen = site.call(&site.tokens.read, "get", &json!({"id": sms.running.job})).await.json();
    assert_eq!(seen["job"]["result"], SECRET);

    let got = blind(&site, "get", json!({"id": sms.running.job})).await;
    assert_eq!((&got["job"]["payload"], &got["job"]["result"]), (&Value::Null, &Value::Null));
    assert_eq!(got["job"]["kind"], "k");
    blind(&site, "get", json!({"id": mail.waiting})).await;
    assert_eq!(blind(&site, "holder", json!({"key": mail.key()})).await["job"]["kind"], "k");
    let page = blind(&site, "list", json!({"limit": 10})).await;
    assert_eq!(page["jobs"].as_array().unwrap().len(), 4);
    let numbered = json!({"queues": ["mail"], "max": 5, "instance": "a1", "call": 1});
    assert_eq!(blind(&site, "reserve", numbered.clone()).await["jobs"].as_array().unwrap().len(), 1);
    // And when it is repeated.
    assert_eq!(blind(&site, "reserve", numbered).await["jobs"].as_array().unwrap().len(), 1);
    let then = json!({"settle": [], "then": {"queues": ["sms"], "max": 5}});
    let settled = blind(&site, "settle", then).await;
    assert_eq!(settled["batch"]["jobs"].as_array().unwrap().len(), 1);

    let site = Site::new().await;
    let taken = blind(&site, "take", json!({"queue": "mail", "max": 5})).await;
    assert_eq!(taken["jobs"].as_array().unwrap().len(), 1);
    // Also for a token of one queue.
    let body = json!({"id": site.mail.running.job});
    let answer = site.call(&site.tokens.mail_blind, "get", &body).await;
    assert!(answer.status == 200 && !answer.text.contains(SECRET), "{answer:?}");
}

#[tokio::test]
async fn hidden_payloads_cannot_be_guessed_by_filters() {
    let site = Site::new().await;
    for filter in
        ["payload.password:hunter2", "-payload.password:hunter*", "state:waiting payload.password:h*"]
    {
        let body = json!({"limit": 10, "filter": filter});
        let answer = site.call(&site.tokens.blind, "list", &body).await;
        assert!(answer.is(403, "forbidden"), "{filter}: {answer:?}");
        let answer = site.call(&site.tokens.read, "list", &body).await;
        assert_eq!(answer.status, 200, "{filter}: {answer:?}");
        // Nor on the pages.
        let query = form_urlencoded::Serializer::new(String::new()).append_pair("filter", filter).finish();
        for page in ["/jobs"] {
            let answer = site.get(&site.tokens.blind, &format!("{page}?{query}")).await;
            assert_eq!(answer.status, 403, "{page} {filter}: {}", answer.text);
            let answer = site.get(&site.tokens.read, &format!("{page}?{query}")).await;
            assert_eq!(answer.status, 200, "{page} {filter}");
        }
    }
    let answer =
        site.call(&site.tokens.blind, "list", &json!({"limit": 10, "filter": "kind:payload.x"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn documents_are_refused_to_callers_without_payloads() {
    // A schedule is a document with a payload.
    let site = Site::new().await;
    for op in [
        json!({"get": {"key": "schedule/nightly"}}),
        json!({"list": {"prefix": "schedule/", "after": null, "limit": 10}}),
        json!({"list": {"prefix": "", "after": null, "limit": 10}}),
        json!({"remove": {"key": "schedule/nightly", "precondition": "if_absent"}}),
    ] {
        let answer = site.call(&site.tokens.blind, "doc", &op).await;
        assert!(answer.is(403, "forbidden"), "{op}: {answer:?}");
    }
}

#[tokio::test]
async fn a_schedule_is_shown_without_its_payload() {
    let site = Site::new().await;
    for (method, path) in [
        (Method::GET, "schedules"),
        (Method::GET, "schedules/nightly"),
        (Method::POST, "schedules/nightly/pause"),
        (Method::POST, "schedules/nightly/resume"),
    ] {
        let seen = site.ask(&site.tokens.admin, method.clone(), path, None).await;
        assert!(seen.status == 200 && seen.text.matches(SECRET).count() == 2, "{path}: {seen:?}");
        let seen = site.ask(&site.tokens.blind, method, path, None).await;
        assert!(seen.status == 200 && !seen.text.contains(SECRET), "{path}: {seen:?}");
    }
    // What was read without its payload is not sent again.
    let seen = site.ask(&site.tokens.blind, Method::GET, "schedules/nightly", None).await.json();
    let put = site.ask(&site.tokens.blind, Method::PUT, "schedules/nightly", Some(&seen)).await;
    assert!(put.is(403, "forbidden"), "{put:?}");
    let kept = site.ask(&site.tokens.admin, Method::GET, "schedules/nightly", None).await;
    assert!(kept.text.contains(SECRET), "what is hidden is kept: {kept:?}");
    let fired = site.ask(&site.tokens.blind, Method::POST, "schedules/nightly/fire", None).await;
    assert!(fired.status == 201 && !fired.text.contains(SECRET), "{fired:?}");
}

#[tokio::test]
async fn hidden_payloads_are_on_no_page() {
    let site = Site::new().await;
    let page = format!("/jobs/{}", site.mail.waiting);
    let seen = site.get(&site.tokens.read, &page).await;
    assert!(seen.status == 200 && seen.text.contains(SECRET));
    let seen = site.get(&site.tokens.blind, &page).await;
    assert_eq!(seen.status, 200);
    assert!(!seen.text.contains(SECRET), "{}", seen.text);
}
