//! Each call and resource with each body that changes what it needs, for each token.

use std::collections::BTreeSet;

use axum::{
    body::Body,
    http::{Method, Request},
};
use punctual::{JobId, Timestamp};
use punctual_server::token::Role::{self, Admin, Operate, Read};
use serde_json::{Value, json};

use crate::site::{Answer, Jobs, Site, Tokens, registration};

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum About {
    /// One queue, or nothing of the store: a token for this queue suffices.
    Queue,
    Store,
}
use About::{Queue, Store};

/// A call, or an operation on a resource such as `GET jobs/{id}`, with its body.
type Row = (&'static str, Value, Role, About);

/// An order to act on jobs of a queue.
fn order(queue: &str, dry_run: bool) -> Value {
    json!({"action": "cancel", "filter": format!("queue:{queue}"), "reason": "r", "dry_run": dry_run})
}

/// The operations on resources. `{id}` is the waiting job, or the operation.
fn of_resources(of: Jobs) -> Vec<Row> {
    let job = json!({"kind": "k", "queue": of.queue});
    vec![
        ("GET jobs/{id}", Value::Null, Read, Queue),
        ("GET jobs/{id}?wait_ms=1", Value::Null, Read, Queue),
        ("GET jobs/{id}/why", Value::Null, Read, Queue),
        ("GET queues/{name}", Value::Null, Read, Queue),
        ("POST jobs", job, Operate, Queue),
        ("PATCH jobs/{id}", json!({"run_at_ms": 5}), Operate, Queue),
        ("PATCH jobs/{id}", json!({"delay_ms": 5}), Operate, Queue),
        ("PATCH jobs/{id}", json!({"priority": "high"}), Operate, Queue),
        ("PATCH jobs/{id}", json!({"payload": 1}), Operate, Queue),
        ("DELETE jobs/{id}", Value::Null, Operate, Queue),
        ("POST jobs/{id}/cancel", Value::Null, Operate, Queue),
        ("POST jobs/{id}/cancel", json!({"reason": "x"}), Operate, Queue),
        ("POST jobs/{id}/retry", Value::Null, Operate, Queue),
        ("POST jobs/{id}/run-now", Value::Null, Operate, Queue),
        ("POST queues/{name}/pause", Value::Null, Operate, Queue),
        ("POST queues/{name}/pause", json!({"by": "x", "reason": "y"}), Operate, Queue),
        ("POST queues/{name}/resume", Value::Null, Operate, Queue),
        ("PATCH queues/{name}", json!({"max_jobs": 7}), Admin, Queue),
        ("POST queues/{name}/purge", Value::Null, Admin, Queue),
        ("POST queues/{name}/purge", json!({"limit": 1}), Admin, Queue),
        ("POST workers/{worker}/quiet", Value::Null, Operate, Queue),
        ("POST workers/{worker}/resume", Value::Null, Operate, Queue),
        ("POST workers/{worker}/stop", Value::Null, Operate, Queue),
        ("POST operations", order(of.queue, false), Operate, Queue),
        ("POST operations", order(of.queue, true), Operate, Queue),
        ("GET operations/{id}", Value::Null, Read, Queue),
        ("POST operations/{id}/cancel", Value::Null, Operate, Queue),
    ]
}

/// The calls on one queue and its jobs.
fn of_queue(of: Jobs) -> Vec<Row> {
    let name = of.queue;
    let mut rows = vec![
        ("count", json!({"queue": name}), Read, Queue),
        ("wait", json!({"queues": [name], "at_most_ms": 0}), Read, Queue),
        ("get", json!({"id": of.waiting}), Read, Queue),
        ("holder", json!({"key": of.key()}), Read, Queue),
        ("take", json!({"queue": name, "max": 1}), Operate, Queue),
        ("extend", json!({"leases": [of.lease()]}), Operate, Queue),
    ];
    for op in [
        ("show", json!("show"), Read),
        ("pause", json!({"pause": {"by": "x", "reason": "y"}}), Operate),
        ("resume", json!("resume"), Operate),
        ("open", json!({"open": {"group": null}}), Operate),
        ("set", json!({"set": {"max_jobs": 7}}), Admin),
        ("replace", json!({"replace": {"seen": {}, "new": {"max_jobs": 7}}}), Admin),
        ("purge", json!({"purge": 1}), Admin),
    ] {
        rows.push(("queue", json!({"name": name, "op": op.1}), op.2, Queue));
    }
    let key = format!("worker/{}", of.worker);
    let value = registration(&[name], Timestamp::default());
    for (op, needs) in [
        (json!({"get": {"key": key}}), Read),
        (json!({"put": {"key": key, "precondition": "if_absent", "value": value}}), Operate),
        (
            json!({"put": {"key": "worker/00000000000000c3", "precondition": "if_absent", "value": value}}),
            Operate,
        ),
        (json!({"remove": {"key": key, "precondition": {"if_version": 1}}}), Operate),
    ] {
        rows.push(("doc", op, needs, Queue));
    }
    for body in [
        json!({"jobs": [{"kind": "k", "queue": name}]}),
        json!({"jobs": [{"kind": "k", "queue": name}], "partial": true}),
        json!({"jobs": [{"kind": "k", "queue": name, "idempotency_key": "a"}], "instance": "a1", "call": 1}),
        json!({"jobs": [{"kind": "k", "queue": name, "idempotency_key": "a"}], "instance": "a1", "call": 1, "partial": true}),
    ] {
        rows.push(("enqueue", body, Operate, Queue));
    }
    for body in [
        json!({"queues": [name], "max": 1}),
        json!({"queues": [{"queue": name}], "max": 1}),
        json!({"queues": [name], "max": 1, "instance": "a1", "call": 1}),
    ] {
        rows.push(("reserve", body, Operate, Queue));
    }
    for verdict in [
        json!({"verdict": "ack"}),
        json!({"verdict": "ack", "result": 1}),
        json!({"verdict": "retry", "error": "x"}),
        json!({"verdict": "retry", "error": "x", "after_ms": 1}),
        json!({"verdict": "retry_after", "error": "x", "after_ms": 1}),
        json!({"verdict": "snooze", "after_ms": 1_000}),
        json!({"verdict": "release"}),
        json!({"verdict": "cancel"}),
        json!({"verdict": "dead", "error": "x"}),
    ] {
        rows.push(("settle", json!({"settle": [of.settlement(&verdict)]}), Operate, Queue));
    }
    let then = json!({"queues": [name], "max": 1});
    rows.push(("settle", json!({"settle": [], "then": then}), Operate, Queue));
    rows.extend(of_resources(of));
    rows
}

/// The operations on resources of the whole store.
fn of_names() -> Vec<Row> {
    let schedule = json!({"ticks": {"every_ms": 3_600_000}, "job": {"kind": "k", "queue": "mail"}});
    let job = json!({"kind": "k"});
    let subscription = |queue: &str| json!({"queue": queue});
    vec![
        ("GET schedules", Value::Null, Read, Store),
        ("GET schedules?after=a", Value::Null, Read, Store),
        ("GET schedules/nightly", Value::Null, Read, Store),
        ("PUT schedules/nightly", schedule.clone(), Admin, Store),
        ("PUT schedules/new", schedule, Admin, Store),
        ("DELETE schedules/nightly", Value::Null, Admin, Store),
        ("POST schedules/nightly/pause", json!({"by": "x", "reason": "y"}), Admin, Store),
        ("POST schedules/nightly/resume", Value::Null, Admin, Store),
        ("POST schedules/nightly/fire", Value::Null, Operate, Store),
        ("GET topics", Value::Null, Read, Store),
        ("GET topics/news", Value::Null, Read, Store),
        ("DELETE topics/news", Value::Null, Admin, Store),
        ("POST topics/news/subscribe", subscription("sms"), Admin, Store),
        ("POST topics/new/subscribe", subscription("mail"), Admin, Store),
        ("POST topics/news/unsubscribe", subscription("mail"), Admin, Store),
        ("POST topics/news/publish", job, Operate, Store),
    ]
}

/// The calls on everything.
fn of_store(of: Jobs, tokens: &Tokens) -> Vec<Row> {
    let mut rows = vec![
        ("store", json!({}), Read, Queue),
        ("identity", json!({}), Read, Queue),
        ("now", json!({}), Read, Queue),
        ("count", json!({}), Read, Store),
        ("list", json!({"limit": 10}), Read, Store),
        ("list", json!({"limit": 10, "filter": "queue:mail"}), Read, Store),
        ("upcoming", json!({"queue": null, "bucket_ms": 1_000, "buckets": 3}), Read, Store),
        ("upcoming", json!({"queue": "mail", "bucket_ms": 1_000, "buckets": 3}), Read, Store),
        ("queues", json!({}), Read, Store),
        ("GET jobs", Value::Null, Read, Store),
        ("GET jobs?filter=queue:mail&limit=10", Value::Null, Read, Store),
        ("GET stats", Value::Null, Read, Store),
        ("GET failures", Value::Null, Read, Store),
        ("GET events", Value::Null, Read, Store),
        ("GET upcoming", Value::Null, Read, Store),
        ("GET upcoming?queue=mail&bucket_ms=1000&buckets=3", Value::Null, Read, Store),
        ("GET queues", Value::Null, Read, Store),
        ("doctor", json!({}), Read, Store),
        // Upkeep is a part of each worker.
        ("sweep", json!({"limit": 10}), Operate, Queue),
        ("audit", json!({}), Read, Store),
        ("audit", json!({"repair": false}), Read, Store),
        ("audit", json!({"repair": true}), Admin, Store),
    ];
    for action in [
        json!({"action": "cancel"}),
        json!({"action": "reschedule", "delay_ms": 5}),
        json!({"action": "reschedule", "run_at_ms": 5}),
        json!({"action": "reschedule", "by_ms": 5}),
        json!({"action": "run_now"}),
        json!({"action": "reprioritise", "priority": "high"}),
        json!({"action": "edit", "payload": 1}),
        json!({"action": "retry"}),
        json!({"action": "delete"}),
    ] {
        rows.push(("act", json!({"targets": [{"id": of.waiting}], "action": action}), Operate, Store));
    }
    let by_key = json!({"targets": [{"key": of.key()}], "action": {"action": "cancel"}});
    rows.push(("act", by_key, Operate, Store));
    let put = |key: &str| json!({"put": {"key": key, "precondition": "always", "value": "2"}});
    let remove = |key: &str| json!({"remove": {"key": key, "precondition": "always"}});
    let get = |key: &str| json!({"get": {"key": key}});
    let list =
        |prefix: &str, after: Option<&str>| json!({"list": {"prefix": prefix, "after": after, "limit": 10}});
    for (op, needs) in [
        (get("note"), Read),
        (list("note", None), Read),
        (list("u", None), Read),
        (put("note"), Admin),
        (put("new"), Admin),
        (remove("note"), Admin),
        (get(&tokens.document), Admin),
        (get("token/"), Admin),
        (put("token/00000000"), Admin),
        (remove(&tokens.document), Admin),
        (list("", None), Admin),
        (list("", Some("token/")), Admin),
        (list("", Some("u")), Admin),
        (get("operation/0"), Admin),
        (put("operation/0"), Admin),
        (remove("operation/0"), Admin),
        (list("op", None), Admin),
        (get("activity/0"), Admin),
        (put("activity/0"), Admin),
        (remove("activity/0"), Admin),
        (list("activity/", None), Admin),
        (list("t", None), Admin),
        (list("token", Some("token.")), Admin),
        (list("token/", None), Admin),
        (list(&tokens.document, None), Admin),
    ] {
        rows.push(("doc", op, needs, Store));
    }
    // Only workers of its queues are shown.
    rows.push(("GET workers", Value::Null, Read, Queue));
    rows.push(("doc", list("worker/", None), Read, Store));
    for filter in ["state:waiting", "queue:mail,sms", "-queue:sms"] {
        let body = json!({"action": "cancel", "filter": filter, "reason": "r", "dry_run": true});
        rows.push(("POST operations", body, Operate, Store));
    }
    rows.push(("GET operations", Value::Null, Read, Store));
    rows.push(("GET activity", Value::Null, Read, Store));
    // The run of a tick reads its schedule.
    rows.push(("doc", get("schedule/x"), Read, Queue));
    rows.push(("doc", list("schedule/", None), Read, Store));
    rows.push(("doc", put("schedule/x"), Admin, Store));
    rows.push(("doc", remove("schedule/x"), Admin, Store));
    let board = |act: Value| json!({"board": {"name": "b", "window": null, "act": act}});
    let gcra = json!({"gcra": {"max": 1, "period_ms": 60_000, "burst": 1}});
    let log = json!({"log": {"max": 1, "period_ms": 60_000, "counts_refused": true}});
    for (op, needs) in [
        (json!({"limit": {"name": "x", "key": "y", "cost": 1, "rule": gcra}}), Operate),
        (json!({"limit": {"name": "x", "key": "y", "cost": 1, "rule": log}}), Operate),
        (json!({"lock": {"show": {"name": "l"}}}), Read),
        (json!({"lock": {"list": {"limit": 10}}}), Read),
        (json!({"lock": {"acquire": {"name": "m", "owner": "1", "lease_ms": 60_000}}}), Operate),
        (json!({"lock": {"extend": {"name": "l", "owner": "1", "lease_ms": 90_000}}}), Operate),
        (json!({"lock": {"release": {"name": "l", "owner": "1"}}}), Operate),
        (json!({"lock": {"release": {"name": "l"}}}), Operate),
        (board(json!({"rank": {"member": "ana"}})), Read),
        (board(json!({"top": {"n": 3}})), Read),
        (board(json!({"around": {"member": "ana", "n": 1}})), Read),
        (board(json!("size")), Read),
        (board(json!({"add": {"member": "bo", "by": 1, "members_max": 10}})), Operate),
        (board(json!({"add_all": {"members": [["bo", 1]], "members_max": 10}})), Operate),
        (board(json!({"set": {"member": "ana", "score": 1, "members_max": 10}})), Operate),
        (board(json!({"remove": {"member": "ana"}})), Operate),
    ] {
        rows.push(("tool", op, needs, Store));
    }
    rows
}

/// All of them, for the queue `mail`. Sites are alike, so that the ids of one are those of another.
fn rows(site: &Site) -> Vec<Row> {
    of_queue(site.mail).into_iter().chain(of_store(site.mail, &site.tokens)).chain(of_names()).collect()
}

/// Makes a call, or asks for a resource of these jobs.
async fn make(site: &Site, of: Jobs, token: &str, call: &str, body: &Value) -> Answer {
    let Some((method, path)) = call.split_once(' ') else { return site.call(token, call, body).await };
    let id = if path.starts_with("operations") { of.operation.to_owned() } else { of.waiting.to_string() };
    let path = path.replace("{id}", &id).replace("{name}", of.queue).replace("{worker}", of.worker);
    site.ask(token, method.parse().unwrap(), &path, Some(body).filter(|body| !body.is_null())).await
}

/// Makes the call of a row at a site of its own, and returns whether it was allowed.
///
/// What was refused, and what only looks, must have changed nothing.
async fn is_allowed(site: &Site, row: usize, token: &str) -> bool {
    let (call, body, needs, _) = rows(site).swap_remove(row);
    let before = site.everything().await;
    let answer = make(site, site.mail, token, call, &body).await;
    let is_refused = answer.status == 403 && answer.is(403, "forbidden");
    // A waiting job cannot be retried, and an operation that has ended not be cancelled, also not by those who may.
    let is_late = call.ends_with("/retry") || call == "POST operations/{id}/cancel";
    let is_done = matches!(answer.status, 200 | 201) || is_late && answer.is(409, "wrong_state");
    assert!(is_refused || is_done, "{call} {body}: {answer:?}");
    if answer.status == 403 || needs == Read {
        assert!(before == site.everything().await, "{call} {body} changed something");
    }
    // A limiter cannot be read without a step on it.
    if answer.status == 403 && body["limit"].is_object() {
        let again = site.call(&site.tokens.operate, call, &body).await;
        assert!(again.status == 403 || again.text.contains("allowed"), "{again:?}");
    }
    !is_refused
}

#[tokio::test]
async fn each_call_needs_a_role() {
    let n = rows(&Site::new().await).len();
    for row in 0..n {
        for role in Role::ALL {
            let site = Site::new().await;
            let tokens = &site.tokens;
            let token = [&tokens.read, &tokens.operate, &tokens.admin][role as usize];
            let (call, body, needs, _) = rows(&site).swap_remove(row);
            assert_eq!(is_allowed(&site, row, token).await, needs <= role, "{call} {body} as {role}");
        }
    }
}

#[tokio::test]
async fn a_token_for_a_queue_is_for_that_queue() {
    let n = rows(&Site::new().await).len();
    for row in 0..n {
        for role in Role::ALL {
            let site = Site::new().await;
            let tokens = &site.tokens;
            let token = [&tokens.mail_read, &tokens.mail_operate, &tokens.mail_admin][role as usize];
            let (call, body, needs, about) = rows(&site).swap_remove(row);
            let expected = needs <= role && about == Queue;
            assert_eq!(is_allowed(&site, row, token).await, expected, "{call} {body} as {role} of mail");
        }
    }
}

#[tokio::test]
async fn a_token_for_a_queue_reaches_no_other() {
    let n = of_queue(Site::new().await.sms).len();
    for row in 0..n {
        let site = Site::new().await;
        let (call, body, ..) = of_queue(site.sms).swap_remove(row);
        let before = site.everything().await;
        let answer = make(&site, site.sms, &site.tokens.mail_admin, call, &body).await;
        // A job of another queue is not there.
        let is_hidden = call == "get" && answer.status == 200 && answer.json()["job"].is_null()
            || call.contains("{id}") && answer.is(404, "not_found")
            || call.contains("{worker}") && answer.is(404, "not_found")
            || call == "doc" && answer.text == r#"{"is":null}"#;
        assert!(is_hidden || answer.is(403, "forbidden"), "{call} {body}: {answer:?}");
        assert!(before == site.everything().await, "{call} {body} changed something");
    }
}

#[tokio::test]
async fn a_batch_is_refused_if_a_part_of_it_is() {
    let site = Site::new().await;
    let (mail, sms) = (site.mail, site.sms);
    let ack = json!({"verdict": "ack"});
    let before = site.everything().await;
    for (call, body) in [
        ("enqueue", json!({"jobs": [{"kind": "k", "queue": "mail"}, {"kind": "k", "queue": "sms"}]})),
        ("enqueue", json!({"jobs": [{"kind": "k", "queue": "mail"}, {"kind": "k"}]})),
        ("reserve", json!({"queues": ["mail", "sms"], "max": 2})),
        ("reserve", json!({"queues": ["mail", {"queue": "sms"}], "max": 2})),
        ("extend", json!({"leases": [mail.lease(), sms.lease()]})),
        ("settle", json!({"settle": [mail.settlement(&ack), sms.settlement(&ack)]})),
        ("settle", json!({"settle": [mail.settlement(&ack)], "then": {"queues": ["sms"], "max": 1}})),
        ("wait", json!({"queues": ["mail", "sms"], "at_most_ms": 0})),
    ] {
        let answer = site.call(&site.tokens.mail_admin, call, &body).await;
        assert!(answer.is(403, "forbidden"), "{call} {body}: {answer:?}");
        assert!(before == site.everything().await, "{call} {body} changed something");
    }
}

#[tokio::test]
async fn a_repeated_reserve_shows_no_job_of_another_queue() {
    let site = Site::new().await;
    let body = json!({"queues": ["sms"], "max": 1, "instance": "a1", "call": 1});
    let reserved = site.call(&site.tokens.operate, "reserve", &body).await.json();
    assert_eq!(reserved["jobs"].as_array().unwrap().len(), 1);
    // The store answers with the jobs of the call, whatever the queues are now.
    for body in [
        json!({"queues": ["mail"], "max": 1, "instance": "a1", "call": 1}),
        json!({"settle": [], "then": {"queues": ["mail"], "max": 1, "instance": "a1", "call": 1}}),
    ] {
        let call = if body.get("then").is_some() { "settle" } else { "reserve" };
        let answer = site.call(&site.tokens.mail_operate, call, &body).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.text.contains("sms"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_read_only_server_refuses_every_change() {
    let n = rows(&Site::new().await).len();
    for row in 0..n {
        let site = Site::read_only().await;
        let (call, body, needs, _) = rows(&site).swap_remove(row);
        assert_eq!(is_allowed(&site, row, &site.tokens.admin).await, needs == Read, "{call} {body}");
    }
}

/// A probe may ask with HEAD.
#[tokio::test]
async fn a_read_only_server_answers_head() {
    let site = Site::read_only().await;
    for path in ["/healthz", "/readyz", "/api/v1/stats", "/jobs"] {
        let request = Request::head(path).body(Body::empty()).unwrap();
        let answer = site.request(&site.tokens.read, request).await;
        assert!(answer.status == 200 && answer.text.is_empty(), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn every_call_is_in_the_table_and_none_is_open() {
    let site = Site::new().await;
    let rows = rows(&site);
    let operation = |call: &str| match call.split_once(' ') {
        Some((method, path)) => {
            let path = format!("/api/v1/{}", path.split('?').next().unwrap());
            site.document.operation(&method.parse().unwrap(), &path).unwrap()
        }
        None => format!("POST {call}"),
    };
    let mut all: BTreeSet<String> = rows.iter().map(|row| operation(row.0)).collect();
    all.insert("GET openapi.json".to_owned());
    assert_eq!(all, site.document.operations());
    let before = site.everything().await;
    for (call, body, ..) in rows {
        let answer = make(&site, site.mail, "", call, &body).await;
        assert!(answer.is(401, "unauthenticated"), "{call}: {answer:?}");
    }
    assert!(before == site.everything().await);
}

/// An id of another queue's job is no duplicate: nothing of the caller's queue is there, and nothing of that job is said.
#[tokio::test]
async fn an_id_of_another_queue_is_a_conflict() {
    let site = Site::new().await;
    let job = json!({"id": site.sms.waiting, "kind": "k", "queue": "mail"});
    for token in [&site.tokens.mail_operate, &site.tokens.operate] {
        let answer =
            site.call(token, "enqueue", &json!({"jobs": [job, {"kind": "k", "queue": "mail"}]})).await.json();
        assert_eq!(answer["results"][0], json!({"status": "conflict", "id": site.sms.waiting}));
        assert_eq!(answer["results"][1]["status"], "inserted", "others of the call are stored: {answer}");
        let answer = site.ask(token, Method::POST, "jobs", Some(&job)).await;
        assert!(answer.is(409, "conflict") && !answer.text.contains("sms"), "{answer:?}");
    }
    // In its own queue it is a duplicate, and says where the job stands.
    let job = json!({"id": site.mail.waiting, "kind": "k", "queue": "mail"});
    let answer = site.call(&site.tokens.mail_operate, "enqueue", &json!({"jobs": [job]})).await.json();
    assert_eq!(
        (&answer["results"][0]["status"], &answer["results"][0]["state"]),
        (&json!("duplicate"), &json!("waiting"))
    );
}

/// An id that follows from queue, kind and key is public before its job is there. A token for another queue must not take it.
#[tokio::test]
async fn a_derived_id_needs_its_key() {
    let site = Site::new().await;
    let id = JobId::derived_of_kind("k", "sms", None, "welcome:43");
    let before = site.everything().await;
    for job in [
        json!({"id": id, "kind": "k", "queue": "mail"}),
        json!({"id": JobId::derived_of_kind("k", "mail", None, "x"), "kind": "k", "queue": "mail"}),
    ] {
        let token = &site.tokens.mail_admin;
        let answer =
            site.call(token, "enqueue", &json!({"jobs": [{"kind": "k", "queue": "mail"}, job]})).await;
        assert!(answer.is(403, "forbidden") && answer.text.contains("idempotency_key"), "{answer:?}");
        let numbered = json!({"jobs": [job], "instance": "b7", "call": 1});
        assert!(site.call(token, "enqueue", &numbered).await.is(403, "forbidden"));
        assert!(site.ask(token, Method::POST, "jobs", Some(&job)).await.is(403, "forbidden"));
        let lines = Request::post("/api/v1/jobs").header("content-type", "application/x-ndjson");
        let answer = site.request(token, lines.body(Body::from(job.to_string())).unwrap()).await;
        assert!(answer.text.contains("forbidden"), "{answer:?}");
        assert!(before == site.everything().await, "something changed");
    }
    // With the key, the server derives the id, and the caller with all rights meets the same one.
    let job = json!({"kind": "k", "queue": "mail", "idempotency_key": "x"});
    let first = site.ask(&site.tokens.mail_operate, Method::POST, "jobs", Some(&job)).await.json();
    assert_eq!(
        (&first["status"], &first["id"]),
        (&json!("inserted"), &json!(JobId::derived_of_kind("k", "mail", None, "x")))
    );
    let again = site
        .ask(
            &site.tokens.operate,
            Method::POST,
            "jobs",
            Some(&json!({"id": first["id"], "kind": "k", "queue": "mail"})),
        )
        .await;
    assert_eq!(again.json()["status"], "duplicate", "{again:?}");
    let job = json!({"kind": "k", "queue": "sms", "idempotency_key": "welcome:43"});
    let made = site.ask(&site.tokens.admin, Method::POST, "jobs", Some(&job)).await;
    assert_eq!((made.status, &made.json()["id"]), (201, &json!(id)));
}
