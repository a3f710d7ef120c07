//! Workers over HTTP: who sees them, who orders them, and what a token can write of them.

use axum::http::Method;
use punctual::{
    Timestamp,
    store::{DocOp, Precondition},
};
use serde_json::{Value, json};

use crate::site::{Answer, Site, registration};

async fn ask(site: &Site, token: &str, method: Method, path: &str) -> Answer {
    site.ask(token, method, path, None).await
}

/// The ids of the workers that a token sees.
async fn seen(site: &Site, token: &str) -> Vec<String> {
    let page = ask(site, token, Method::GET, "workers").await.json();
    let workers = page["workers"].as_array().unwrap();
    workers.iter().map(|worker| worker["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_token_for_a_queue_sees_its_workers_only() {
    let site = Site::new().await;
    let (mail, sms) = (site.mail.worker, site.sms.worker);
    assert_eq!(seen(&site, &site.tokens.read).await, [mail, sms]);
    assert_eq!(seen(&site, &site.tokens.mail_read).await, [mail]);
    let after = format!("workers?after={mail}");
    let page = ask(&site, &site.tokens.read, Method::GET, &after).await.json();
    assert_eq!((page["workers"].as_array().unwrap().len(), &page["next"]), (1, &Value::Null));
    assert_eq!(page["workers"][0]["state"], "working");
}

/// One that serves another queue, too, is seen, and belongs to others.
#[tokio::test]
async fn a_token_for_a_queue_changes_only_workers_of_its_queues() {
    let site = Site::new().await;
    let both = "00000000000000d4";
    let key = format!("worker/{both}");
    let value = registration(&["mail", "sms"], site.client().store().now().await.unwrap()).into_bytes();
    let put = DocOp::Put { key: key.clone(), precondition: Precondition::Always, value };
    site.client().store().doc(&put).await.unwrap();
    assert_eq!(seen(&site, &site.tokens.mail_read).await, [site.mail.worker, both]);
    let hidden = site.call(&site.tokens.mail_read, "doc", &json!({"get": {"key": key}})).await;
    assert_eq!(hidden.text, r#"{"is":null}"#, "the document names the other queue");
    let doc = site.call(&site.tokens.read, "doc", &json!({"get": {"key": key}})).await.json();
    let version = &doc["is"]["version"];
    let before = site.everything().await;
    let own = registration(&["mail"], Timestamp::default());
    let foreign = registration(&["mail", "sms"], Timestamp::default());
    let nobodys = registration(&[], Timestamp::default());
    let new = "worker/00000000000000e5";
    for op in [
        json!({"put": {"key": key, "precondition": {"if_version": version}, "value": own}}),
        json!({"remove": {"key": key, "precondition": {"if_version": version}}}),
        json!({"put": {"key": new, "precondition": "if_absent", "value": foreign}}),
        json!({"put": {"key": new, "precondition": "if_absent", "value": nobodys}}),
        json!({"list": {"prefix": "worker/", "limit": 10}}),
    ] {
        let answer = site.call(&site.tokens.mail_operate, "doc", &op).await;
        assert!(answer.is(403, "forbidden"), "{op}: {answer:?}");
    }
    let answer = ask(&site, &site.tokens.mail_operate, Method::POST, &format!("workers/{both}/stop")).await;
    assert!(answer.is(403, "forbidden"), "{answer:?}");
    for op in [
        json!({"put": {"key": new, "precondition": "always", "value": own}}),
        json!({"put": {"key": new, "precondition": "if_absent", "value": "1"}}),
        json!({"put": {"key": "worker/x", "precondition": "if_absent", "value": own}}),
        json!({"remove": {"key": format!("worker/{}", site.mail.worker), "precondition": "always"}}),
    ] {
        let answer = site.call(&site.tokens.operate, "doc", &op).await;
        assert!(answer.is(422, "invalid"), "{op}: {answer:?}");
    }
    assert!(before == site.everything().await, "something changed");
}

/// A token for one queue can register workers, and must not fill the pages on which others look for theirs.
#[tokio::test]
async fn registrations_of_a_token_for_a_queue_are_bounded_and_hide_no_others() {
    let site = Site::new().await;
    let now = site.client().store().now().await.unwrap();
    let key = |n: usize| format!("worker/0000000000000{n:03x}");
    let put = |n: usize, value: String| json!({"put": {"key": key(n), "precondition": "if_absent", "value": value}});
    let padded = |bytes: usize| {
        json!({"name": "w", "seen_ms": now, "queues": [{"name": "mail"}], "kinds": ["k".repeat(bytes)]})
            .to_string()
    };
    for wrong in [
        padded(16 * 1024),
        json!({"name": "w".repeat(256), "seen_ms": now, "queues": [{"name": "mail"}]}).to_string(),
    ] {
        let answer = site.call(&site.tokens.mail_operate, "doc", &put(0x300, wrong)).await;
        assert!(answer.is(422, "invalid"), "{answer:?}");
    }
    // The site has one of this queue.
    for n in 0x300..0x300 + 63 {
        let answer = site.call(&site.tokens.mail_operate, "doc", &put(n, padded(15 * 1024))).await;
        assert_eq!(answer.status, 200, "{n:x}: {answer:?}");
    }
    let answer = site.call(&site.tokens.mail_operate, "doc", &put(0x3ff, padded(1))).await;
    assert!(answer.is(507, "store_full"), "{answer:?}");
    // The real ones are on the first page, before and after these.
    let all = site.client().workers(None).await.unwrap();
    assert_eq!((all.workers.len(), all.next), (65, None));
    assert!(all.workers.iter().any(|info| info.id == site.sms.worker));
    // One that is missing makes room.
    site.t.advance(std::time::Duration::from_mins(2));
    let now = site.client().store().now().await.unwrap();
    let value = registration(&["mail"], now);
    assert_eq!(site.call(&site.tokens.mail_operate, "doc", &put(0x3ff, value)).await.status, 200);
    assert_eq!(site.client().workers(None).await.unwrap().workers.len(), 65);
}

#[tokio::test]
async fn a_worker_is_ordered_by_its_address() {
    let site = Site::new().await;
    for order in ["quiet", "resume", "stop"] {
        let path = format!("workers/{}/{order}", site.mail.worker);
        let worker = ask(&site, &site.tokens.mail_operate, Method::POST, &path).await;
        assert_eq!((worker.status, &worker.json()["order"]), (200, &json!(order)), "{worker:?}");
        let read = ask(&site, &site.tokens.mail_read, Method::GET, "workers").await.json();
        assert_eq!(read["workers"][0]["order"], order);
    }
    let absent = ask(&site, &site.tokens.operate, Method::POST, "workers/00000000000000ff/stop").await;
    assert!(absent.is(404, "not_found"), "{absent:?}");
    let wrong = ask(&site, &site.tokens.operate, Method::POST, "workers/web-1/stop").await;
    assert!(wrong.is(422, "invalid"), "{wrong:?}");
}
