//! Settings of queues by their address, and purges.

use axum::http::{Method, Request};
use serde_json::{Value, json};

use crate::site::{Answer, Site};

async fn patch(site: &Site, version: Option<&str>, body: &Value) -> Answer {
    let mut request = Request::patch("/api/v1/queues/mail");
    if let Some(version) = version {
        request = request.header("if-match", version);
    }
    site.request(&site.tokens.mail_admin, request.body(body.to_string().into()).unwrap()).await
}

#[tokio::test]
async fn only_the_given_settings_change() {
    let site = Site::new().await;
    let ask =
        async |body: Value| site.ask(&site.tokens.admin, Method::PATCH, "queues/mail", Some(&body)).await;
    let pause = site.ask(&site.tokens.admin, Method::POST, "queues/mail/pause", None).await;
    let first = ask(json!({"max_jobs": 9, "rate": {"max": 3, "period_ms": 1000, "burst": 2}})).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert!(pause.etag.is_some() && pause.etag != first.etag);
    let second = ask(json!({
        "rate": null, "order": "lifo", "groups": {"a": {"weight": 3}, "b": {"concurrency": 1}},
        "defaults": {"max_attempts": 3}, "done": {"age_ms": 1, "count": 2, "bytes": 3},
    }))
    .await;
    let third =
        ask(json!({"groups": {"a": {"concurrency": 2}, "b": null}, "defaults": {"priority": "low"}})).await;
    assert_eq!((second.status, third.status), (200, 200));
    let settings = &third.json()["settings"];
    for (name, value) in [
        ("max_jobs", json!(9)),
        ("order", json!("lifo")),
        ("groups", json!({"a": {"weight": 3, "concurrency": 2}})),
        ("defaults", json!({"max_attempts": 3, "priority": "low"})),
        ("done", json!({"age_ms": 1, "count": 2, "bytes": 3})),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    assert!(settings["rate"].is_null() && settings["paused"]["by"] == "ana", "{settings}");
    let read = site.get(&site.tokens.read, "/api/v1/queues/mail").await;
    assert_eq!((read.json(), read.etag), (third.json(), third.etag));
    // A queue is created by its settings, as by all other ways to set them.
    let new = site.ask(&site.tokens.admin, Method::PATCH, "queues/new", Some(&json!({"max_jobs": 1}))).await;
    assert_eq!((new.status, &new.json()["settings"]["max_jobs"]), (200, &json!(1)));
}

#[tokio::test]
async fn a_change_of_settings_needs_the_version_of_if_match() {
    let site = Site::new().await;
    let etag = async || site.get(&site.tokens.read, "/api/v1/queues/mail").await.etag.unwrap();
    let first = etag().await;
    // Neither a job nor a pause is a change of settings.
    site.ask(&site.tokens.admin, Method::POST, "queues/mail/pause", None).await;
    let body = json!({"kind": "k", "queue": "mail"});
    assert_eq!(site.ask(&site.tokens.admin, Method::POST, "jobs", Some(&body)).await.status, 201);
    assert_eq!(etag().await, first);
    let second = patch(&site, Some(&first), &json!({"max_jobs": 9})).await;
    assert_eq!((second.status, second.etag.as_ref()), (200, Some(&etag().await)));
    let before = site.everything().await;
    for (version, status, code) in
        [(first.as_str(), 412, "version_mismatch"), ("9", 422, "invalid"), ("\"x\"", 422, "invalid")]
    {
        let answer = patch(&site, Some(version), &json!({"max_jobs": 8})).await;
        assert!(answer.is(status, code), "{version}: {answer:?}");
    }
    let request = Request::patch("/api/v1/queues/new").header("if-match", &first);
    let answer = site.request(&site.tokens.admin, request.body("{}".into()).unwrap()).await;
    assert!(answer.is(412, "version_mismatch"), "{answer:?}");
    for body in [
        json!({"paused": null}),
        json!({"concurrency": 0}),
        json!({"max_jobs": -1}),
        json!({"max_job": 1}),
        json!({"rate": {"max": 1}}),
        json!({"groups": 1}),
        json!({"groups": {"": {"weight": 1}}}),
        json!([1]),
    ] {
        let answer = patch(&site, None, &body).await;
        assert!(answer.is(422, "invalid"), "{body}: {answer:?}");
    }
    assert!(before == site.everything().await);
}

#[tokio::test]
async fn a_purge_deletes_so_many_waiting_jobs() {
    let site = Site::new().await;
    for _ in 0..4 {
        let body = json!({"kind": "k", "queue": "mail"});
        assert_eq!(site.ask(&site.tokens.operate, Method::POST, "jobs", Some(&body)).await.status, 201);
    }
    let purge = async |body: Option<Value>| {
        site.ask(&site.tokens.mail_admin, Method::POST, "queues/mail/purge", body.as_ref()).await
    };
    for (body, deleted, more) in [(Some(json!({"limit": 2})), 2, true), (None, 3, false), (None, 0, false)] {
        let answer = purge(body).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"deleted": deleted, "more": more})));
    }
    let counts = site.call(&site.tokens.read, "count", &json!({"queue": "mail"})).await.json();
    assert_eq!((&counts["waiting"], &counts["running"]), (&json!(0), &json!(1)));
    for body in [json!({"limit": 0}), json!({"limit": 1_001}), json!({"name": "mail"})] {
        assert!(purge(Some(body)).await.is(422, "invalid"));
    }
    let answer = site.ask(&site.tokens.admin, Method::POST, "queues/none/purge", None).await;
    assert!(answer.is(404, "queue_unknown"), "{answer:?}");
}
