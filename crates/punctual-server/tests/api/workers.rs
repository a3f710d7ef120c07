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
    let doc = site.call(&site.tokens.mail_read, "doc", &json!({"get": {"key": key}})).await.json();
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
