//! What calls do, also when they are repeated, lost or reordered.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{body::Body, http::Request};
use serde_json::{Value, json};

use crate::site::Site;

async fn call(site: &Site, call: &str, body: Value) -> Value {
    let answer = site.call(&site.tokens.admin, call, &body).await;
    assert_eq!(answer.status, 200, "{call} {body}: {answer:?}");
    answer.json()
}

fn ids(batch: &Value) -> Vec<String> {
    batch["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_unknown_route_is_a_problem() {
    let site = Site::new().await;
    let request =
        |method: &str, path: &str| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    for (method, path, status, code) in [
        ("POST", "/api/v1/nothing", 404, "not_found"),
        ("POST", "/api/v1/", 404, "not_found"),
        ("POST", "/api/v1/list/x", 404, "not_found"),
        ("POST", "/api/v2/list", 404, "not_found"),
        ("POST", "/api/v1/..%2flist", 404, "not_found"),
        ("GET", "/api/v1/queues/%ff", 404, "not_found"),
        ("GET", "/api/v1/jobs/%ff", 404, "not_found"),
        ("GET", "/api/v1/schedules/%ff", 404, "not_found"),
        ("POST", "/api/v1/topics/a%ff/subscribe", 404, "not_found"),
        ("POST", "/api/v1/%ff", 404, "not_found"),
        ("GET", "/api/v1/list", 405, "invalid"),
        ("DELETE", "/api/v1/list", 405, "invalid"),
        ("PUT", "/api/v1/enqueue", 405, "invalid"),
    ] {
        let answer = site.request(&site.tokens.admin, request(method, path)).await;
        assert!(answer.is(status, code), "{method} {path}: {answer:?}");
    }
    // What is not known is for admins.
    for path in ["/api/v1/nothing", "/api/v1/%6cist"] {
        let answer = site.request(&site.tokens.operate, request("POST", path)).await;
        assert!(answer.is(403, "forbidden"), "{path}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reserves_without_a_number_lose_no_job_and_give_none_twice() {
    let site = Arc::new(Site::new().await);
    let jobs = vec![json!({"kind": "k", "queue": "many"}); 1_000];
    call(&site, "enqueue", json!({"jobs": jobs})).await;
    let reserve = |site: Arc<Site>| async move {
        let mut found = Vec::new();
        loop {
            let batch = call(&site, "reserve", json!({"queues": ["many"], "max": 7})).await;
            let some = ids(&batch);
            if some.is_empty() {
                return found;
            }
            found.extend(some);
        }
    };
    let tasks: Vec<_> = (0..32).map(|_| tokio::spawn(reserve(Arc::clone(&site)))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    assert_eq!(all.len(), 1_000);
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 1_000);
}

#[tokio::test]
async fn a_dropped_reserve_leaves_no_lane_locked() {
    let site = Site::new().await;
    call(&site, "enqueue", json!({"jobs": vec![json!({"kind": "k", "queue": "many"}); 100]})).await;
    let body = json!({"queues": ["many"], "max": 1});
    for _ in 0..50 {
        // It is dropped while it waits for its body, or at its first step.
        let mut dropped = Box::pin(site.call(&site.tokens.admin, "reserve", &body));
        let _ = futures_util::poll!(&mut dropped);
    }
    let mut found = BTreeSet::new();
    for _ in 0..100 {
        found.extend(ids(&call(&site, "reserve", body.clone()).await));
    }
    assert!(50 <= found.len(), "{}", found.len());
}

#[tokio::test]
async fn a_repeated_reserve_returns_the_same_jobs() {
    let site = Site::new().await;
    call(&site, "enqueue", json!({"jobs": vec![json!({"kind": "k", "queue": "many"}); 9]})).await;
    let numbered = |n: u64| json!({"queues": ["many"], "max": 3, "instance": "a1", "call": n});
    let first = ids(&call(&site, "reserve", numbered(1)).await);
    assert_eq!(first.len(), 3);
    assert_eq!(ids(&call(&site, "reserve", numbered(1)).await), first);
    let second = ids(&call(&site, "reserve", numbered(2)).await);
    assert!(second.iter().all(|id| !first.contains(id)));
    // A copy of the first call that arrives late.
    assert_eq!(ids(&call(&site, "reserve", numbered(1)).await), Vec::<String>::new());
    // As part of a settle.
    let then = json!({"settle": [], "then": numbered(3)});
    let third = ids(&call(&site, "settle", then.clone()).await["batch"]);
    assert_eq!(third.len(), 3);
    assert_eq!(ids(&call(&site, "settle", then).await["batch"]), third);
}

#[tokio::test]
async fn a_repeated_enqueue_inserts_once() {
    let site = Site::new().await;
    let numbered = |n: u64| {
        let job = json!({"kind": "k", "queue": "q", "idempotency_key": format!("key {n}")});
        json!({"jobs": [job], "instance": "a1", "call": n})
    };
    let status = |reply: &Value| reply["results"][0]["status"].as_str().unwrap().to_owned();
    assert_eq!(status(&call(&site, "enqueue", numbered(2)).await), "inserted");
    assert_eq!(status(&call(&site, "enqueue", numbered(2)).await), "inserted");
    assert_eq!(status(&call(&site, "enqueue", numbered(1)).await), "duplicate");
    assert_eq!(call(&site, "count", json!({"queue": "q"})).await["waiting"], 1);
    // A refused call does not count.
    let refused = json!({"jobs": [{"kind": "", "idempotency_key": "x"}], "instance": "a1", "call": 3});
    assert!(site.call(&site.tokens.admin, "enqueue", &refused).await.is(422, "invalid"));
    // A repetition would get an id that no job has.
    let refused = json!({"jobs": [{"kind": "k", "queue": "q"}], "instance": "a1", "call": 3});
    assert!(site.call(&site.tokens.admin, "enqueue", &refused).await.is(422, "invalid"));
    assert_eq!(status(&call(&site, "enqueue", numbered(3)).await), "inserted");
    // Without a number, ids and keys make it safe.
    let keyed = json!({"jobs": [{"kind": "k", "queue": "q", "idempotency_key": "x"}]});
    assert_eq!(status(&call(&site, "enqueue", keyed.clone()).await), "inserted");
    assert_eq!(status(&call(&site, "enqueue", keyed).await), "duplicate");
}

#[tokio::test]
async fn a_repeated_settle_is_lost() {
    let site = Site::new().await;
    let body = json!({"settle": [site.mail.settlement(&json!({"verdict": "ack", "result": {"n": 1}}))]});
    assert_eq!(
        call(&site, "settle", body.clone()).await["results"],
        json!([{"status": "settled", "state": "done"}])
    );
    assert_eq!(call(&site, "settle", body).await["results"], json!([{"status": "lease_lost"}]));
    let beat = json!({"leases": [site.mail.lease()]});
    assert_eq!(call(&site, "extend", beat).await["results"], json!(["lost"]));
}

#[tokio::test]
async fn a_retry_without_a_time_follows_the_backoff() {
    let site = Site::new().await;
    let backoff = json!({"type": "linear", "base_ms": 10_000, "jitter": false});
    call(&site, "enqueue", json!({"jobs": [{"kind": "k", "queue": "q", "backoff": backoff}]})).await;
    for pause in [10_000, 20_000, 30_000] {
        let batch = call(&site, "reserve", json!({"queues": ["q"], "max": 1})).await;
        let (id, fence) = (&batch["jobs"][0]["id"], &batch["jobs"][0]["fence"]);
        let retry = json!({"id": id, "fence": fence, "verdict": "retry", "error": "no"});
        call(&site, "settle", json!({"settle": [retry]})).await;
        let job = call(&site, "get", json!({"id": id})).await;
        let now = call(&site, "now", json!({})).await["now_ms"].as_u64().unwrap();
        assert_eq!(job["job"]["run_at_ms"], now + pause);
        site.t.advance(Duration::from_millis(pause));
    }
    // An explicit time wins, also zero.
    let batch = call(&site, "reserve", json!({"queues": ["q"], "max": 1})).await;
    let (id, fence) = (&batch["jobs"][0]["id"], &batch["jobs"][0]["fence"]);
    let retry = json!({"id": id, "fence": fence, "verdict": "retry", "error": "no", "after_ms": 0});
    call(&site, "settle", json!({"settle": [retry]})).await;
    let now = call(&site, "now", json!({})).await["now_ms"].as_u64().unwrap();
    assert_eq!(call(&site, "get", json!({"id": id})).await["job"]["run_at_ms"], now);
    // A job that is gone holds up nothing.
    let gone = json!({"id": site.client().make_id(), "fence": 1, "verdict": "retry", "error": "no"});
    assert_eq!(
        call(&site, "settle", json!({"settle": [gone]})).await["results"],
        json!([{"status": "lease_lost"}])
    );
}

#[tokio::test]
async fn a_payload_is_kept_byte_by_byte() {
    let site = Site::new().await;
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for payload in [r#"{"n": 12345678901234567890.10,  "a":1,"a":2}"#, "null", "1e999", deep.as_str()] {
        let body = format!(r#"{{"jobs":[{{"kind":"k","queue":"q","payload":{payload}}}]}}"#);
        let answer = site.send(&site.tokens.admin, "enqueue", body).await;
        assert_eq!(answer.status, 200);
        let id = answer.json()["results"][0]["id"].clone();
        let job = site.client().get(id.as_str().unwrap().parse().unwrap()).await.unwrap().unwrap();
        assert!(job.payload.bytes == payload.as_bytes());
        let answer = site.call(&site.tokens.admin, "get", &json!({"id": id})).await;
        assert!(answer.text.contains(&format!(r#""payload":{payload},"#)));
    }
}
