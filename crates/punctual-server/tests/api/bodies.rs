//! Bodies that no call should ever get.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::Request,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::site::{CALLS, Site};

/// The server still does its work, and nothing has changed.
async fn goes_on(site: &Site, before: &str, after: &str) {
    let answer = site.call(&site.tokens.read, "count", &json!({})).await;
    assert_eq!(answer.status, 200, "after {after}: {answer:?}");
    assert!(before == site.everything().await, "{after} changed something");
}

#[tokio::test]
async fn a_body_of_no_call_is_a_problem_of_every_call() {
    let site = Site::new().await;
    let before = site.everything().await;
    let deep = |open: &str, close: &str| (open.repeat(100_000) + &close.repeat(100_000)).into_bytes();
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("no JSON", b"nonsense".to_vec()),
        ("a form", b"queue=mail&max=1".to_vec()),
        ("half", b"{\"".to_vec()),
        ("two", b"{}{}".to_vec()),
        ("a string", b"\"x\"".to_vec()),
        ("a number", b"5".to_vec()),
        ("null", b"null".to_vec()),
        ("an empty list", b"[]".to_vec()),
        ("a list", b"[\"mail\", 1, 1]".to_vec()),
        ("an unknown field", b"{\"from_the_future\":1}".to_vec()),
        ("NaN", b"{\"limit\":NaN}".to_vec()),
        ("infinity", b"{\"limit\":1e999}".to_vec()),
        ("invalid UTF-8", b"{\"\xff\xfe\":1}".to_vec()),
        ("a lone surrogate", b"{\"\\ud800\":1}".to_vec()),
        ("NUL", b"{\"\0\":1}".to_vec()),
        ("a byte order mark", b"\xef\xbb\xbf{}".to_vec()),
        ("deep lists", deep("[", "]")),
        ("deep objects", deep("{\"a\":", "}")),
        ("a deep unknown field", [b"{\"x\":".to_vec(), deep("[", "]"), b"}".to_vec()].concat()),
        ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xabV\x02\x00".to_vec()),
    ];
    for call in CALLS {
        for (name, body) in &bodies {
            let answer = site.send(&site.tokens.admin, call, body.clone()).await;
            assert!(answer.is(422, "invalid"), "{call} with {name}: {answer:?}");
            assert!(answer.text.len() < 1_000, "{call} with {name} repeats it");
        }
    }
    goes_on(&site, &before, "these bodies").await;
}

/// It says why, and not that it is no JSON, or too large.
#[tokio::test]
async fn an_encoded_or_broken_body_is_refused_as_what_it_is() {
    let site = Site::new().await;
    let before = site.everything().await;
    let request = |path: &str, encoding: &str, body: Body| {
        let request = Request::builder().method("POST").uri(path).header("content-encoding", encoding);
        request.body(body).unwrap()
    };
    for path in ["/api/v1/enqueue", "/api/v1/jobs", "/api/v1/count"] {
        for encoding in ["gzip", "br", "deflate, gzip"] {
            let body = Body::from(&b"\x1f\x8b\x08"[..]);
            let answer = site.request(&site.tokens.admin, request(path, encoding, body)).await;
            assert!(answer.is(415, "invalid"), "{path} {encoding}: {answer:?}");
        }
        let broken = stream::iter([Ok(Bytes::from_static(b"{\"kind\"")), Err("the client went away")]);
        let body = Body::from_stream(broken);
        let answer = site.request(&site.tokens.admin, request(path, "identity", body)).await;
        assert!(answer.is(400, "invalid"), "{path}: {answer:?}");
        assert!(answer.text.contains("the body ended before all of it had arrived"), "{answer:?}");
    }
    let plain = request("/api/v1/count", "Identity", Body::from("{}"));
    assert_eq!(site.request(&site.tokens.admin, plain).await.status, 200);
    goes_on(&site, &before, "these bodies").await;
}

#[tokio::test]
async fn a_wrong_value_is_a_problem() {
    let site = Site::new().await;
    let before = site.everything().await;
    let (id, key, lease) = (site.mail.waiting, site.mail.key(), site.mail.lease());
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let board = |act: &str| format!(r#"{{"board":{{"name":"b","window":null,"act":{act}}}}}"#);
    for (call, body) in [
        ("list", r#"{"limit":1000000000}"#.to_owned()),
        ("list", r#"{"limit":-1}"#.to_owned()),
        ("list", r#"{"limit":0}"#.to_owned()),
        ("list", r#"{"limit":1.5}"#.to_owned()),
        ("list", r#"{"limit":1e2}"#.to_owned()),
        ("list", r#"{"limit":18446744073709551616}"#.to_owned()),
        ("list", r#"{"limit":"10"}"#.to_owned()),
        ("list", r#"{"limit":10,"limit":10}"#.to_owned()),
        ("list", r#"{"limit":10,"filter":"kimd:x"}"#.to_owned()),
        ("list", r#"{"limit":10,"cursor":"nonsense"}"#.to_owned()),
        ("list", r#"{"limit":10,"cursor":5}"#.to_owned()),
        ("sweep", r#"{"limit":1000000000}"#.to_owned()),
        ("sweep", r#"{"limit":0}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1000000000}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":-1}"#.to_owned()),
        ("reserve", r#"{"queues":[5],"max":1}"#.to_owned()),
        ("reserve", r#"{"queues":[""],"max":1}"#.to_owned()),
        ("reserve", r#"{"queues":[{"queue":"mail","of":1}],"max":1}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"lease_ms":18446744073709551615}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"instance":"a1"}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"call":1}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"instance":"a","call":-1}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"instance":"x","call":1}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"instance":"","call":1}"#.to_owned()),
        ("reserve", r#"{"queues":["mail"],"max":1,"instance":"11111111111111111","call":1}"#.to_owned()),
        ("reserve", json!({"queues": vec!["mail"; 65], "max": 1}).to_string()),
        ("reserve", json!({"queues": ["mail"], "max": 1, "worker": "w".repeat(256)}).to_string()),
        ("reserve", r#"{"queues":["mail"],"max":1,"worker":"a\u0000b"}"#.to_owned()),
        ("take", r#"{"queue":"mail","max":1000000000}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"queue":"mail"}]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[[]]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[5]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"kind":"k","delay_ms":-1}]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"kind":"k","delay_ms":18446744073709551615}]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"kind":"k","run_at_ms":9223372036854775808}]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"kind":"k","kind":"l"}]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"kind":"k"},{"kind":""}]}"#.to_owned()),
        ("enqueue", r#"{"jobs":[{"kind":"k","payload":1,"payload_base64":"MQ=="}]}"#.to_owned()),
        ("enqueue", format!(r#"{{"jobs":[{{"kind":"k","tags":{deep}}}]}}"#)),
        ("enqueue", json!({"jobs": vec![json!({"kind": "k"}); 1_001]}).to_string()),
        (
            "enqueue",
            json!({"jobs": vec![json!({"kind": "k"}); 1_001], "instance": "1", "call": 1}).to_string(),
        ),
        ("extend", json!({"leases": vec![lease.clone(); 1_001]}).to_string()),
        ("extend", json!({"leases": [{"id": id}]}).to_string()),
        ("extend", json!({"leases": [{"id": "x", "fence": 1}]}).to_string()),
        ("settle", json!({"settle": vec![json!({}); 1_001]}).to_string()),
        ("settle", json!({"settle": [{}]}).to_string()),
        ("settle", json!({"settle": [{"id": id, "fence": -1, "verdict": "ack"}]}).to_string()),
        ("settle", json!({"settle": [{"id": id, "fence": 1, "verdict": "done"}]}).to_string()),
        ("settle", json!({"settle": [{"id": id, "fence": 1, "verdict": "retry", "by": 1}]}).to_string()),
        ("wait", json!({"queues": vec![""; 1_001], "at_most_ms": 0}).to_string()),
        ("wait", r#"{"queues":["mail"],"at_most_ms":-1}"#.to_owned()),
        ("wait", r#"{"queues":["mail"],"at_most_ms":18446744073709551616}"#.to_owned()),
        ("get", r#"{"id":"../../etc/passwd"}"#.to_owned()),
        ("get", r#"{"id":null}"#.to_owned()),
        ("holder", r#"{"key":"x"}"#.to_owned()),
        ("upcoming", r#"{"queue":null,"bucket_ms":0,"buckets":1}"#.to_owned()),
        ("upcoming", r#"{"queue":null,"bucket_ms":1,"buckets":1000000000}"#.to_owned()),
        (
            "act",
            json!({"targets": vec![json!({"key": key}); 1_001], "action": {"action": "retry"}}).to_string(),
        ),
        ("act", json!({"targets": [{}], "action": {"action": "retry"}}).to_string()),
        ("act", json!({"targets": [{"id": id}], "action": {"action": "kill"}}).to_string()),
        (
            "act",
            format!(
                r#"{{"targets":[{{"id":"{id}"}}],"action":{{"action":"reschedule","delay_ms":{}}}}}"#,
                u64::MAX
            ),
        ),
        (
            "act",
            format!(
                r#"{{"targets":[{{"id":"{id}"}}],"action":{{"action":"reschedule","run_at_ms":{}}}}}"#,
                u64::MAX
            ),
        ),
        ("queue", r#"{"name":"","op":"show"}"#.to_owned()),
        ("queue", r#"{"name":"mail","op":"drop"}"#.to_owned()),
        ("queue", r#"{"name":"mail","op":{"purge":1000000000}}"#.to_owned()),
        ("queue", r#"{"name":"mail","op":{"set":{"max_jobs":-1}}}"#.to_owned()),
        ("queue", r#"{"name":"mail","op":{"set":{"of":1}}}"#.to_owned()),
        ("queue", r#"{"name":"mail","op":{"show":1,"resume":1}}"#.to_owned()),
        ("doc", r#"{"get":{"key":""}}"#.to_owned()),
        ("doc", r#"{"list":{"prefix":"","after":null,"limit":1000000000}}"#.to_owned()),
        ("doc", r#"{"put":{"key":"k","precondition":"never","value":"x"}}"#.to_owned()),
        ("doc", r#"{"put":{"key":"k","precondition":"always","value":[256]}}"#.to_owned()),
        ("tool", r#"{"lock":{"list":{"limit":1000000000}}}"#.to_owned()),
        ("tool", r#"{"lock":{"acquire":{"name":"x","owner":1,"lease_ms":60000}}}"#.to_owned()),
        (
            "tool",
            r#"{"lock":{"acquire":{"name":"x","owner":"1","lease_ms":18446744073709551615}}}"#.to_owned(),
        ),
        ("tool", board(r#"{"top":{"n":1000000000}}"#)),
        ("audit", r#"{"repair":1}"#.to_owned()),
        ("audit", r#"{"from":"x"}"#.to_owned()),
    ] {
        let shown: String = body.chars().take(200).collect();
        let answer = site.send(&site.tokens.admin, call, body).await;
        assert!(answer.is(422, "invalid"), "{call} {shown}: {answer:?}");
        assert!(answer.text.len() < 1_000, "{call} {shown} is repeated");
    }
    goes_on(&site, &before, "these values").await;
}

#[tokio::test]
async fn the_largest_numbers_break_nothing() {
    let site = Site::new().await;
    let (id, lease) = (site.mail.waiting, site.mail.lease());
    let max = u64::MAX;
    let by = |by: i64| json!({"targets": [{"id": id}], "action": {"action": "reschedule", "by_ms": by}});
    let keep = json!({"age_ms": max, "count": max, "bytes": max});
    let set = json!({"max_jobs": max, "max_bytes": max, "done": keep, "dead": keep, "cancelled": keep});
    let board = |act: Value| json!({"board": {"name": "b", "window": null, "act": act}});
    let (low, high) = (i64::MIN, i64::MAX);
    let rows = vec![
        ("wait", json!({"queues": ["mail"], "at_most_ms": max})),
        ("upcoming", json!({"queue": null, "bucket_ms": max, "buckets": 1_000})),
        ("act", by(low)),
        ("act", by(high)),
        (
            "act",
            json!({"targets": [{"id": id, "guard": {"queue": "mail", "state": "waiting", "version": max}}], "action": {"action": "run_now"}}),
        ),
        ("queue", json!({"name": "mail", "op": {"set": set}})),
        ("extend", json!({"leases": [{"id": site.mail.running.job, "fence": max}]})),
        ("extend", json!({"leases": [lease]})),
        ("settle", json!({"settle": [{"id": id, "fence": max, "verdict": "ack"}]})),
        (
            "settle",
            json!({"settle": [site.mail.settlement(&json!({"verdict": "retry_after", "error": "x", "after_ms": max}))]}),
        ),
        ("settle", json!({"settle": [site.sms.settlement(&json!({"verdict": "snooze", "after_ms": max}))]})),
        ("take", json!({"queue": "mail", "max": 1, "older_than_ms": max})),
        (
            "reserve",
            json!({"queues": [{"queue": "mail", "share": max, "at_most": 1_000}], "max": 1_000, "instance": "ffffffffffffffff", "call": max}),
        ),
        ("reserve", json!({"queues": ["mail"], "max": 1_000, "instance": "ffffffffffffffff", "call": max})),
        ("enqueue", json!({"jobs": [{"kind": "k"}], "instance": "ffffffffffffffff", "call": max})),
        ("enqueue", json!({"jobs": [{"kind": "k", "concurrency_key": "x", "concurrency_limit": u32::MAX}]})),
        ("enqueue", json!({"jobs": [{"kind": "k", "unique": {"key": "x", "scope": {"window_ms": max}}}]})),
        ("doc", json!({"put": {"key": "n", "precondition": {"if_version": max}, "value": "x"}})),
        ("tool", board(json!({"set": {"member": "ana", "score": high, "members_max": u32::MAX}}))),
        ("tool", board(json!({"add": {"member": "ana", "by": high, "members_max": 10}}))),
        ("tool", board(json!({"add": {"member": "ana", "by": low, "members_max": 10}}))),
        ("tool", board(json!({"add_all": {"members": [["ana", low], ["ana", low]], "members_max": 10}}))),
        ("tool", board(json!({"around": {"member": "ana", "n": max}}))),
        (
            "tool",
            json!({"board": {"name": "b", "window": {"bucket": "day", "buckets": u16::MAX}, "act": "size"}}),
        ),
        (
            "tool",
            json!({"limit": {"name": "x", "key": "y", "cost": u32::MAX, "rule": {"gcra": {"max": u32::MAX, "period_ms": max, "burst": u32::MAX}}}}),
        ),
        ("tool", json!({"lock": {"acquire": {"name": "m", "owner": "f".repeat(32), "lease_ms": 60_000}}})),
        ("audit", json!({"from": [255, 255, 0, 1, 2, 3]})),
        ("list", json!({"limit": 1_000, "filter": "attempt:>9223372036854775807"})),
        ("list", json!({"limit": 1_000, "filter": "due:<99999999d created:>99999999d"})),
        ("sweep", json!({"limit": 1_000})),
        ("list", json!({"limit": 1_000})),
        ("queue", json!({"name": "mail", "op": "show"})),
    ];
    for (call, body) in rows {
        let answer = site.call(&site.tokens.admin, call, &body).await;
        let is_fine =
            answer.status == 200 || answer.is(422, "invalid") || answer.is(413, "payload_too_large");
        assert!(is_fine, "{call} {body}: {answer:?}");
    }
    let answer = site.call(&site.tokens.admin, "audit", &json!({})).await;
    assert_eq!(answer.json()["findings"], json!([]));
}

/// A body that comes in pieces, and has no known length.
fn endless() -> Body {
    let piece = Bytes::from(vec![b' '; 64 * 1024]);
    Body::from_stream(stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone())))
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let site = Site::new().await;
    let before = site.everything().await;
    for call in CALLS {
        let answer = site.send(&site.tokens.admin, call, endless()).await;
        assert!(answer.is(413, "payload_too_large"), "{call}: {answer:?}");
    }
    let answer = site.send(&site.tokens.admin, "enqueue", vec![b' '; 40 << 20]).await;
    assert!(answer.is(413, "payload_too_large"), "{answer:?}");
    goes_on(&site, &before, "these bodies").await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_refused_in_the_end() {
    let site = Site::new().await;
    let before = site.everything().await;
    for call in CALLS {
        let start = Instant::now();
        let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let answer = site.send(&site.tokens.admin, call, body).await;
        assert!(answer.is(408, "timed_out"), "{call}: {answer:?}");
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }
    goes_on(&site, &before, "these bodies").await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused() {
    let site = Site::new().await;
    let before = site.everything().await;
    let parts = [Ok(Bytes::from_static(b"{\"limit\":")), Err(std::io::Error::other("gone"))];
    let answer = site.send(&site.tokens.admin, "list", Body::from_stream(stream::iter(parts))).await;
    assert!((400..500).contains(&answer.status), "{answer:?}");
    goes_on(&site, &before, "this body").await;
}

#[tokio::test(start_paused = true)]
async fn bodies_in_progress_have_a_bound_together() {
    let site = Site::new().await;
    // A part arrives, and the rest never does.
    let piece = Bytes::from(vec![b' '; 8 << 20]);
    let pending = |sent: usize| {
        let piece = piece.slice(..sent);
        let sent = stream::once(async move { Ok::<_, std::io::Error>(piece) });
        Body::from_stream(sent.chain(stream::pending()))
    };
    let send = async |sent: usize| site.send(&site.tokens.admin, "enqueue", pending(sent)).await;
    let mut open: Vec<_> = (0..100).map(|n| Box::pin(send(if n < 50 { 0 } else { 8 << 20 }))).collect();
    let mut refused = 0;
    for (n, send) in open.iter_mut().enumerate() {
        // It waits for its body, or is refused at once.
        if let std::task::Poll::Ready(answer) = futures_util::poll!(send) {
            assert!(answer.is(503, "overloaded") && 50 <= n, "{n}: {answer:?}");
            refused += 1;
        }
    }
    assert_eq!(refused, 50 - 256 / 8, "what has not arrived takes no room");
    // Small requests go on meanwhile.
    let answer = site.call(&site.tokens.read, "count", &json!({})).await;
    assert_eq!(answer.status, 200);
    // And large ones when those before them have ended.
    drop(open);
    let jobs = vec![json!({"kind": "k", "payload": "x".repeat(500)}); 1_000];
    let answer = site.call(&site.tokens.admin, "enqueue", &json!({"jobs": jobs})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn an_empty_body_is_a_call_without_arguments() {
    let site = Site::new().await;
    for call in ["store", "identity", "now", "count", "queues", "audit", "doctor"] {
        assert_eq!(site.send(&site.tokens.admin, call, "").await.status, 200, "{call}");
    }
    assert!(site.send(&site.tokens.admin, "list", "").await.is(422, "invalid"));
}

#[tokio::test]
async fn an_enqueue_that_is_refused_stores_nothing_however_many_jobs_it_has() {
    let site = Site::new().await;
    let before = site.everything().await;
    let good = json!({"kind": "k", "queue": "mail"});
    let mut jobs = vec![good.clone(); 1_001];
    let answer = site.call(&site.tokens.admin, "enqueue", &json!({"jobs": jobs})).await;
    assert!(answer.is(422, "invalid"), "{answer:?}");
    jobs[1] = json!({"kind": "", "queue": "mail"});
    let answer = site.call(&site.tokens.admin, "enqueue", &json!({"jobs": jobs[1..]})).await;
    assert!(answer.is(422, "invalid"), "{answer:?}");
    // Together they are more than one call can store.
    let large = json!({"kind": "k", "queue": "mail", "payload": "x".repeat(1_000_000)});
    let answer = site.call(&site.tokens.admin, "enqueue", &json!({"jobs": vec![large; 20]})).await;
    assert!(answer.is(413, "payload_too_large"), "{answer:?}");
    goes_on(&site, &before, "these jobs").await;
}
