//! The figures of the overview, failures, and the stream of both.

use axum::http::Method;
use serde_json::{Value, json};

use crate::site::Site;

/// Ends the running job of a queue.
async fn settle(site: &Site, verdict: Value) {
    let body = json!({"settle": [site.mail.settlement(&verdict)]});
    assert_eq!(site.call(&site.tokens.admin, "settle", &body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn stats_are_the_counts_and_the_queues() {
    let site = Site::new().await;
    let stats = site.ask(&site.tokens.read, Method::GET, "stats", None).await.json();
    let counts = site.call(&site.tokens.read, "count", &json!({})).await.json();
    assert_eq!((&stats["counts"], &stats["more"]), (&counts, &json!(false)));
    let queue = site.get(&site.tokens.read, "/api/v1/queues/sms").await.json();
    let shown = &stats["queues"][1];
    assert_eq!((&shown["name"], &shown["counts"]), (&json!("sms"), &queue["counts"]));
    assert_eq!(shown["oldest_due_at_ms"], queue["oldest_due_at_ms"]);
    assert_eq!(stats["last_hour"], json!({"kinds": [], "queues": [], "groups": [], "errors": []}));
    // One reading serves all callers for a second.
    settle(&site, json!({"verdict": "ack"})).await;
    assert_eq!(site.ask(&site.tokens.read, Method::GET, "stats", None).await.json(), stats);
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    let later = site.ask(&site.tokens.read, Method::GET, "stats", None).await.json();
    assert_eq!(later["counts"]["done"], 1);
}

#[tokio::test]
async fn failures_are_grouped_by_what_their_errors_have_in_common() {
    let site = Site::new().await;
    settle(&site, json!({"verdict": "dead", "error": "no user 7 in \"de\""})).await;
    for queue in ["mail", "sms"] {
        let reserve = json!({"queues": [queue], "max": 1});
        let reserved = site.call(&site.tokens.operate, "reserve", &reserve).await.json();
        let mut retry = json!({"verdict": "retry", "error": "no user 15 in \"en\"", "after_ms": 1000});
        for field in ["id", "fence"] {
            retry[field] = reserved["jobs"][0][field].clone();
        }
        assert_eq!(site.call(&site.tokens.operate, "settle", &json!({"settle": [retry]})).await.status, 200);
    }
    let failures = site.ask(&site.tokens.read, Method::GET, "failures", None).await.json();
    let group = &failures["groups"][0];
    for (field, value) in [
        ("kind", json!("k")),
        ("fingerprint", json!("no user # in …")),
        ("dead", json!(1)),
        ("retrying", json!(2)),
        ("filter", json!("state:dead,retrying kind:k error:\"no user\"")),
    ] {
        assert_eq!(group[field], value, "{field}");
    }
    for (field, value) in
        [("found", json!(1)), ("jobs", json!(3)), ("total", json!(4)), ("complete", json!(true))]
    {
        assert_eq!(failures[field], value, "{field}");
    }
    let query = form_urlencoded::Serializer::new("jobs?".to_owned())
        .append_pair("filter", group["filter"].as_str().unwrap())
        .finish();
    let jobs = site.ask(&site.tokens.read, Method::GET, &query, None).await.json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 3);
}
