//! Jobs and queues by their address: as the calls return them, for the same callers.

use axum::{body::Body, http::Request};
use serde_json::json;

use crate::site::{SECRET, Site};

#[tokio::test]
async fn a_job_or_queue_by_its_address_is_what_the_call_returns() {
    let site = Site::new().await;
    let (job, tokens) = (site.mail.waiting, &site.tokens);
    let answer = site.get(&tokens.read, &format!("/api/v1/jobs/{job}")).await;
    let call = site.call(&tokens.read, "get", &json!({"id": job})).await;
    assert_eq!((answer.status, answer.json()), (200, call.json()["job"].clone()));
    site.document.check_answer("jobs/{id}", 200, &answer.text);
    let answer = site.get(&tokens.read, "/api/v1/queues/mail").await;
    let call = site.call(&tokens.read, "queue", &json!({"name": "mail", "op": "show"})).await;
    assert_eq!((answer.status, answer.json()), (200, call.json()["info"].clone()));
    site.document.check_answer("queues/{name}", 200, &answer.text);
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
        let path = if path.contains("jobs") { "jobs/{id}" } else { "queues/{name}" };
        site.document.check_answer(path, status, &answer.text);
    }
    for token in [&tokens.mail_read, &tokens.mail_operate, &tokens.admin] {
        assert!(site.get(token, &mail).await.text.contains(SECRET));
        assert_eq!(site.get(token, "/api/v1/queues/mail").await.status, 200);
    }
    for token in [&tokens.blind, &tokens.mail_blind] {
        let answer = site.get(token, &mail).await;
        assert!(answer.status == 200 && !answer.text.contains(SECRET), "{answer:?}");
    }
    let request = Request::delete(&mail).body(Body::empty()).unwrap();
    let answer = site.request(&tokens.admin, request).await;
    assert!(answer.is(405, "invalid"), "{answer:?}");
    assert_eq!(Site::read_only().await.get(&tokens.read, "/api/v1/queues/mail").await.status, 200);
}
