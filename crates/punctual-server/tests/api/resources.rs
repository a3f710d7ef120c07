//! Jobs and queues by their address: as the calls return them, for the same callers.

use axum::{
    body::Body,
    http::{Method, Request},
};
use punctual::store::{QueueOp, QueueSettings};
use serde_json::{Value, json};

use crate::site::{Answer, SECRET, Site};

#[tokio::test]
async fn a_resource_is_what_the_call_returns() {
    let site = Site::new().await;
    let (job, tokens) = (site.mail.waiting, &site.tokens);
    let answer = site.get(&tokens.read, &format!("/api/v1/jobs/{job}")).await;
    let call = site.call(&tokens.read, "get", &json!({"id": job})).await;
    assert_eq!((answer.status, answer.json()), (200, call.json()["job"].clone()));
    assert_eq!(answer.etag.as_deref(), Some("\"1\""));
    let answer = site.get(&tokens.read, "/api/v1/queues/mail").await;
    let call = site.call(&tokens.read, "queue", &json!({"name": "mail", "op": "show"})).await;
    assert_eq!((answer.status, answer.json()), (200, call.json()["info"].clone()));
    for (path, call, body) in [
        ("jobs", "list", json!({"limit": 50})),
        ("jobs?limit=1", "list", json!({"limit": 1})),
        (
            "jobs?filter=queue:sms+state:running&limit=7",
            "list",
            json!({"filter": "queue:sms state:running", "limit": 7}),
        ),
        ("queues", "queues", json!({})),
        ("queues?after=mail", "queues", json!({"after": "mail"})),
        ("upcoming", "upcoming", json!({"bucket_ms": 900_000, "buckets": 96})),
        (
            "upcoming?queue=mail&bucket_ms=5&buckets=2",
            "upcoming",
            json!({"queue": "mail", "bucket_ms": 5, "buckets": 2}),
        ),
    ] {
        let answer = site.ask(&tokens.read, Method::GET, path, None).await;
        let call = site.call(&tokens.read, call, &body).await;
        assert_eq!((answer.status, answer.json()), (200, call.json()), "{path}");
    }
    let page = site.ask(&tokens.read, Method::GET, "jobs?limit=3", None).await.json();
    let next = page["next"].as_str().unwrap();
    let page = site.ask(&tokens.read, Method::GET, &format!("jobs?limit=3&cursor={next}"), None).await.json();
    assert_eq!(page["jobs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_wrong_query_is_invalid() {
    let site = Site::new().await;
    for path in [
        "jobs?limit=0",
        "jobs?limit=1001",
        "jobs?limit=x",
        "jobs?limit=",
        "jobs?limit=1&limit=2",
        "jobs?lmit=1",
        "jobs?filter=nonsense:x",
        "jobs?filter=kind:k&filter=kind:k",
        "jobs?cursor=x",
        "queues?limit=1",
        "upcoming?buckets=0",
        "upcoming?bucket_ms=-1",
        "upcoming?for=24h",
    ] {
        let answer = site.ask(&site.tokens.read, Method::GET, path, None).await;
        assert!(answer.is(422, "invalid"), "{path}: {answer:?}");
    }
}

/// Enqueues a job, with a key in the header.
async fn keyed(site: &Site, key: &str, body: &Value) -> Answer {
    let request = Request::post("/api/v1/jobs").header("idempotency-key", key);
    site.request(&site.tokens.mail_operate, request.body(body.to_string().into()).unwrap()).await
}

#[tokio::test]
async fn a_job_is_enqueued_and_its_address_returned() {
    let site = Site::new().await;
    let job = json!({"kind": "k", "queue": "mail", "payload": {"n": 1}});
    let answer = site.ask(&site.tokens.mail_operate, Method::POST, "jobs", Some(&job)).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!((answer.status, &answer.json()["status"]), (201, &json!("inserted")));
    assert_eq!(answer.etag.as_deref(), Some("\"1\""));
    assert_eq!(answer.location, Some(format!("jobs/{id}")));
    let kept = site.ask(&site.tokens.read, Method::GET, &answer.location.unwrap(), None).await;
    assert_eq!((&kept.json()["payload"], kept.etag), (&json!({"n": 1}), answer.etag));

    let unique = |on_conflict: &str| json!({"kind": "k", "queue": "mail", "delay_ms": 5, "unique": {"key": "key", "on_conflict": on_conflict}});
    for (on_conflict, status) in
        [("keep", "duplicate"), ("replace", "replaced"), ("reschedule", "rescheduled")]
    {
        let job = unique(on_conflict);
        let answer = site.ask(&site.tokens.operate, Method::POST, "jobs", Some(&job)).await;
        assert_eq!((answer.status, &answer.json()["status"]), (200, &json!(status)), "{answer:?}");
        assert!(answer.location.is_none() && !answer.text.contains(SECRET), "{answer:?}");
    }
    for body in
        ["", "{}", "[]", "nonsense", r#"{"kind":""}"#, r#"{"kind":"k","quue":"mail"}"#, r#"{"jobs":[]}"#]
    {
        let request = Request::post("/api/v1/jobs").body(Body::from(body)).unwrap();
        let answer = site.request(&site.tokens.operate, request).await;
        assert!(answer.is(422, "invalid"), "{body}: {answer:?}");
    }
}

#[tokio::test]
async fn a_full_queue_is_an_error() {
    let site = Site::new().await;
    let full = QueueOp::Set(Box::new(QueueSettings { max_jobs: Some(2), ..QueueSettings::default() }));
    site.client().store().queue("mail", &full).await.unwrap();
    let before = site.everything().await;
    let job = json!({"kind": "k", "queue": "mail"});
    let answer = site.ask(&site.tokens.operate, Method::POST, "jobs", Some(&job)).await;
    assert!(answer.is(507, "store_full"), "{answer:?}");
    assert!(before == site.everything().await);
}

#[tokio::test]
async fn a_key_in_the_header_is_that_of_the_job() {
    let site = Site::new().await;
    let job = |more: &[(&str, &str)]| {
        let mut job = json!({"kind": "k", "queue": "mail"});
        for (name, value) in more {
            job[*name] = json!(value);
        }
        job
    };
    let answer = keyed(&site, "welcome:42", &job(&[])).await;
    assert_eq!(answer.status, 201);
    let id = &answer.json()["id"];
    // The same key in the body, in both, and in the call.
    for answer in [
        keyed(&site, "welcome:42", &job(&[])).await,
        keyed(&site, "welcome:42", &job(&[("idempotency_key", "welcome:42")])).await,
        site.ask(
            &site.tokens.operate,
            Method::POST,
            "jobs",
            Some(&job(&[("idempotency_key", "welcome:42")])),
        )
        .await,
    ] {
        assert_eq!(
            (answer.status, &answer.json()["status"], &answer.json()["id"]),
            (200, &json!("duplicate"), id)
        );
    }
    assert_eq!(keyed(&site, "welcome:43", &job(&[])).await.status, 201);
    for (key, body) in [
        ("welcome:42", job(&[("idempotency_key", "welcome:43")])),
        ("welcome:42", job(&[("id", id.as_str().unwrap())])),
        ("", job(&[])),
        (&"k".repeat(1_025), job(&[])),
    ] {
        let answer = keyed(&site, key, &body).await;
        assert!(answer.is(422, "invalid"), "{key} {body}: {answer:?}");
    }
    let twice = Request::post("/api/v1/jobs").header("idempotency-key", "a").header("idempotency-key", "b");
    let answer = site.request(&site.tokens.operate, twice.body(job(&[]).to_string().into()).unwrap()).await;
    assert!(answer.is(422, "invalid"), "{answer:?}");
}

#[tokio::test]
async fn an_address_has_the_rights_of_its_call() {
    let site = Site::new().await;
    let (mail, sms) =
        (format!("/api/v1/jobs/{}", site.mail.waiting), format!("/api/v1/jobs/{}", site.sms.waiting));
    let tokens = &site.tokens;
    for (token, path, status, code) in [
        ("", mail.as_str(), 401, "unauthenticated"),
        (&tokens.read, "/api/v1/jobs/x", 422, "invalid"),
        (&tokens.read, "/api/v1/queues/none", 404, "queue_unknown"),
        (&tokens.mail_read, &sms, 404, "not_found"),
        (&tokens.mail_read, "/api/v1/queues/sms", 403, "forbidden"),
        ("", "/api/v1/queues/mail", 401, "unauthenticated"),
    ] {
        let answer = site.get(token, path).await;
        assert!(answer.is(status, code), "{path}: {answer:?}");
    }
    for token in [&tokens.mail_read, &tokens.mail_operate, &tokens.admin] {
        assert!(site.get(token, &mail).await.text.contains(SECRET));
        assert_eq!(site.get(token, "/api/v1/queues/mail").await.status, 200);
    }
    assert!(site.get(&tokens.read, "/api/v1/jobs").await.text.contains(SECRET));
    for (token, path) in
        [(&tokens.blind, mail.as_str()), (&tokens.mail_blind, &mail), (&tokens.blind, "/api/v1/jobs")]
    {
        let answer = site.get(token, path).await;
        assert!(answer.status == 200 && !answer.text.contains(SECRET), "{answer:?}");
    }
    let answer = site.get(&tokens.blind, "/api/v1/jobs?filter=payload.password:h*").await;
    assert!(answer.is(403, "forbidden"), "{answer:?}");
    assert_eq!(Site::read_only().await.get(&tokens.read, "/api/v1/queues/mail").await.status, 200);
}

#[tokio::test]
async fn a_resource_has_no_other_methods() {
    let site = Site::new().await;
    let job = format!("jobs/{}", site.mail.waiting);
    let before = site.everything().await;
    let cancel = format!("{job}/cancel");
    for path in [
        "jobs",
        &job,
        &cancel,
        "queues",
        "queues/mail",
        "queues/mail/pause",
        "queues/mail/purge",
        "upcoming",
        "schedules",
        "schedules/nightly",
        "schedules/nightly/fire",
        "topics",
        "topics/news",
        "topics/news/publish",
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let method: Method = method.parse().unwrap();
            if site.document.operation(&method, &format!("/api/v1/{path}")).is_some() {
                continue;
            }
            let answer = site.ask(&site.tokens.admin, method.clone(), path, None).await;
            assert!(answer.is(405, "invalid"), "{method} {path}: {answer:?}");
        }
    }
    assert!(before == site.everything().await);
}
