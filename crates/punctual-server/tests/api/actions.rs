//! Actions on jobs and queues by their address.

use std::sync::Arc;

use axum::http::{Method, Request};
use punctual::JobId;
use serde_json::{Value, json};

use crate::site::{Answer, SECRET, Site};

/// Sends a request about a job, with `If-Match`.
async fn ask(
    site: &Site,
    method: &str,
    id: JobId,
    then: &str,
    version: Option<&str>,
    body: &Value,
) -> Answer {
    let mut request = Request::builder().method(method).uri(format!("/api/v1/jobs/{id}{then}"));
    if let Some(version) = version {
        request = request.header("if-match", version);
    }
    site.request(&site.tokens.mail_operate, request.body(body.to_string().into()).unwrap()).await
}

/// The job as it is now.
async fn job(site: &Site, id: JobId) -> Value {
    site.ask(&site.tokens.read, Method::GET, &format!("jobs/{id}"), None).await.json()
}

#[tokio::test]
async fn an_action_on_an_address_is_that_of_the_call() {
    let site = Site::new().await;
    let (waiting, running) = (site.mail.waiting, site.mail.running.job);
    let done = |state: &str| json!({"status": "done", "id": waiting, "state": state});
    for (method, then, body, expected, field, value) in [
        (
            "PATCH",
            "",
            json!({"run_at_ms": 1_995_192_330_000_u64}),
            "waiting",
            "run_at_ms",
            json!(1_995_192_330_000_u64),
        ),
        ("POST", "/run-now", json!({}), "waiting", "status", json!("ready")),
        ("PATCH", "", json!({"delay_ms": 60_000}), "waiting", "status", json!("scheduled")),
        ("PATCH", "", json!({"priority": "low"}), "waiting", "priority", json!("low")),
        ("PATCH", "", json!({"payload": {"n": 1}}), "waiting", "payload", json!({"n": 1})),
        ("PATCH", "", json!({"payload": null}), "waiting", "payload", Value::Null),
        ("PATCH", "", json!({"payload_base64": "/wA="}), "waiting", "payload_base64", json!("/wA=")),
        (
            "PATCH",
            "",
            json!({"payload": "a", "content_type": "text/plain"}),
            "waiting",
            "content_type",
            json!("text/plain"),
        ),
        ("POST", "/cancel", json!({"reason": "late"}), "cancelled", "reason", json!("late")),
        ("POST", "/retry", json!({}), "waiting", "status", json!("ready")),
    ] {
        let path = format!("jobs/{waiting}{then}");
        let method: Method = method.parse().unwrap();
        let is_listed = then.is_empty() || then == "/cancel";
        let answer =
            site.ask(&site.tokens.mail_operate, method, &path, Some(&body).filter(|_| is_listed)).await;
        assert_eq!((answer.status, answer.json()), (200, done(expected)), "{path} {body}");
        assert_eq!(job(&site, waiting).await[field], value, "{path} {body}");
    }
    let answer = ask(&site, "POST", running, "/cancel", None, &json!({})).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"status": "requested", "id": running})));
    assert_eq!(job(&site, running).await["cancel_requested"], true);
    let answer = ask(&site, "DELETE", waiting, "", None, &json!({})).await;
    assert_eq!((answer.status, answer.json()), (200, done("waiting")));
    assert!(ask(&site, "DELETE", waiting, "", None, &json!({})).await.is(404, "not_found"));
}

#[tokio::test]
async fn an_action_needs_the_version_of_if_match() {
    let site = Site::new().await;
    let id = site.mail.waiting;
    let edit = |n: u64| json!({"payload": n});
    assert_eq!(ask(&site, "PATCH", id, "", Some("\"1\""), &edit(1)).await.status, 200);
    let version = job(&site, id).await["version"].clone();
    assert_eq!(version, 2);
    let before = site.everything().await;
    for (version, status, code) in [
        ("\"1\"", 412, "version_mismatch"),
        ("\"1\", \"3\"", 412, "version_mismatch"),
        ("2", 422, "invalid"),
        ("W/\"2\"", 422, "invalid"),
        ("\"x\"", 422, "invalid"),
        ("\"2\", x", 422, "invalid"),
        ("", 422, "invalid"),
    ] {
        for (method, then, body) in [
            ("PATCH", "", edit(2)),
            ("DELETE", "", json!({})),
            ("POST", "/cancel", json!({})),
            ("POST", "/run-now", json!({})),
            ("POST", "/retry", json!({})),
        ] {
            let answer = ask(&site, method, id, then, Some(version), &body).await;
            assert!(answer.is(status, code), "{method} {then} {version}: {answer:?}");
        }
    }
    assert!(before == site.everything().await);
    for (n, version) in [(2, "\"2\""), (3, "\"2\", \"3\""), (4, "*")] {
        assert_eq!(ask(&site, "PATCH", id, "", Some(version), &edit(n)).await.status, 200, "{version}");
        assert_eq!(job(&site, id).await["payload"], n);
    }
}

#[tokio::test]
async fn an_action_that_does_not_fit_changes_nothing() {
    let site = Site::new().await;
    let (waiting, running, gone) = (site.mail.waiting, site.mail.running.job, site.client().make_id());
    let before = site.everything().await;
    let (none, edit) = (json!({}), json!({"payload": 1}));
    for (method, id, then, body, status, code) in [
        ("POST", waiting, "/retry", &none, 409, "wrong_state"),
        ("POST", running, "/retry", &none, 409, "wrong_state"),
        ("POST", running, "/run-now", &none, 409, "wrong_state"),
        ("PATCH", running, "", &edit, 409, "wrong_state"),
        ("DELETE", running, "", &none, 409, "wrong_state"),
        ("DELETE", gone, "", &none, 404, "not_found"),
        ("POST", gone, "/cancel", &none, 404, "not_found"),
        ("PATCH", site.sms.waiting, "", &edit, 404, "not_found"),
        ("PATCH", waiting, "", &none, 422, "invalid"),
        ("PATCH", waiting, "", &json!({"payload": 1, "priority": "low"}), 422, "invalid"),
        ("PATCH", waiting, "", &json!({"delay_ms": 1, "run_at_ms": 1}), 422, "invalid"),
        ("PATCH", waiting, "", &json!({"priority": "low", "content_type": "text/plain"}), 422, "invalid"),
        ("PATCH", waiting, "", &json!({"content_type": "text/plain"}), 422, "invalid"),
        ("PATCH", waiting, "", &json!({"by_ms": 1}), 422, "invalid"),
        ("PATCH", waiting, "", &json!({"queue": "sms"}), 422, "invalid"),
        ("POST", waiting, "/run-now", &json!({"reason": "x"}), 422, "invalid"),
        ("POST", waiting, "/cancel", &json!({"why": "x"}), 422, "invalid"),
    ] {
        for version in [None, Some("*")] {
            let answer = ask(&site, method, id, then, version, body).await;
            assert!(answer.is(status, code), "{method} {then} {body}: {answer:?}");
            assert!(!answer.text.contains(SECRET), "{answer:?}");
        }
    }
    // A caller that may only look learns nothing either.
    let answer = site.ask(&site.tokens.mail_read, Method::DELETE, &format!("jobs/{waiting}"), None).await;
    assert!(answer.is(403, "forbidden"), "{answer:?}");
    assert!(before == site.everything().await);
    let wrong = ask(&site, "POST", waiting, "/retry", Some("\"1\""), &none).await;
    assert!(wrong.is(409, "wrong_state"), "{wrong:?}");
}

#[tokio::test]
async fn a_retry_does_not_break_a_unique_key() {
    let site = Site::new().await;
    let first = site.mail.waiting;
    assert_eq!(ask(&site, "POST", first, "/cancel", None, &json!({})).await.status, 200);
    let new = json!({"kind": "k", "queue": "mail", "unique": {"key": "key"}});
    let second = site.ask(&site.tokens.operate, Method::POST, "jobs", Some(&new)).await;
    assert_eq!(second.status, 201);
    let answer = ask(&site, "POST", first, "/retry", None, &json!({})).await;
    assert!(answer.is(409, "unique_conflict"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_that_moves_on_is_acted_on_as_it_is_then() {
    let site = Arc::new(Site::new().await);
    let mut ids: Vec<JobId> = Vec::new();
    for _ in 0..100 {
        let new = json!({"kind": "k", "queue": "mail"});
        let answer = site.ask(&site.tokens.operate, Method::POST, "jobs", Some(&new)).await;
        ids.push(answer.json()["id"].as_str().unwrap().parse().unwrap());
    }
    let cancels = ids.into_iter().map(|id| {
        let site = Arc::clone(&site);
        tokio::spawn(async move { ask(&site, "POST", id, "/cancel", None, &json!({})).await.status })
    });
    let cancels: Vec<_> = cancels.collect();
    for _ in 0..20 {
        let body = json!({"queues": ["mail"], "max": 5});
        assert_eq!(site.call(&site.tokens.operate, "reserve", &body).await.status, 200);
    }
    for cancel in cancels {
        assert_eq!(cancel.await.unwrap(), 200, "waiting or running, it can be cancelled");
    }
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let site = Site::new().await;
    let ask = async |path: &str, body: Option<Value>| {
        site.ask(&site.tokens.mail_operate, Method::POST, path, body.as_ref()).await
    };
    let answer = ask("queues/mail/pause", None).await;
    assert_eq!(answer.json()["settings"]["paused"]["by"], "ana", "{answer:?}");
    let answer = ask("queues/mail/pause", Some(json!({"by": "bo", "reason": "tired"}))).await;
    let pause = &answer.json()["settings"]["paused"];
    assert_eq!((&pause["by"], &pause["reason"]), (&json!("bo"), &json!("tired")));
    let info = site.ask(&site.tokens.read, Method::GET, "queues/mail", None).await;
    assert_eq!(info.json(), answer.json());
    let answer = ask("queues/mail/resume", None).await;
    assert!(answer.status == 200 && answer.json()["settings"]["paused"].is_null(), "{answer:?}");
    for path in ["queues/mail/pause", "queues/mail/resume"] {
        let answer = ask(path, Some(json!({"why": "x"}))).await;
        assert!(answer.is(422, "invalid"), "{path}: {answer:?}");
    }
    let answer = site.ask(&site.tokens.operate, Method::POST, "queues/none/resume", None).await;
    assert!(answer.is(404, "queue_unknown"), "{answer:?}");
}
