//! A store that is made for a test: empty, with a clock of its own, and gone afterwards with every key; no other is touched.

use std::time::Duration;

use punctual::{Client, Ctx, ErrorKind, Job, store::redis::RedisStore, testing::TestQueue};
use serde::{Deserialize, Serialize};

use super::Server;

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "work", queue = "mail")]
struct Work {}

fn url(server: &Server, prefix: &str) -> String {
    format!("redis+unix://{}?prefix={prefix}", server.socket().display())
}

#[tokio::test]
async fn a_store_made_for_a_test_goes_with_all_its_keys() {
    let server = Server::start(&[]);
    let other = Client::connect(&url(&server, "test-70")).await.unwrap();
    other.enqueue(Work {}).await.unwrap();
    let before: i64 = server.say(&["DBSIZE"]).trim().trim_start_matches(':').parse().unwrap();

    let t = TestQueue::connect(&url(&server, "test-7")).await.unwrap();
    let store =
        RedisStore::open(&url(&server, "test-7"), punctual::testing::Clock::Manual(t.clock.clone())).await;
    store.unwrap().reshard(3).await.unwrap();
    t.client
        .enqueue_many((0..50).map(|_| Work {}))
        .each(|_, spec| _ = spec.delay(Duration::from_secs(9)))
        .await
        .unwrap();
    assert!(t.client.rate_limiter("l", 1, Duration::from_secs(9)).is_allowed("ana").await.unwrap());
    t.client.leaderboard("b").add("ana", 1).await.unwrap();
    t.client.topic("t").subscribe("mail").await.unwrap();
    t.advance(Duration::from_secs(9));
    assert_eq!(t.drain(t.worker().handle(async |_: Work, _: Ctx| {})).await.unwrap().done, 50);
    t.destroy().await.unwrap();

    let left = server.say(&["KEYS", "test-7:*"]);
    assert!(!left.contains("test-7"), "{left}");
    let after: i64 = server.say(&["DBSIZE"]).trim().trim_start_matches(':').parse().unwrap();
    assert_eq!((after, other.count(None).await.unwrap().waiting), (before, 1));
}

#[tokio::test]
async fn no_test_opens_the_store_of_somebody_else() {
    let server = Server::start(&[]);
    for prefix in ["pq", "shop", "test-used"] {
        let production = Client::connect(&url(&server, prefix)).await.unwrap();
        if prefix == "test-used" {
            production.enqueue(Work {}).await.unwrap();
        }
        let refused = TestQueue::connect(&url(&server, prefix)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{prefix}");
    }
}
