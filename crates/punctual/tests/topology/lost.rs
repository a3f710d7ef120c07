//! An answer is lost, or a part of a call cannot be made, and by the time of its repetition something has changed.

use std::time::Duration;

use punctual::{
    JobId, NewJob, Timestamp, When,
    store::{
        Call, Store,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use super::{
    at_last,
    outage::{AWAY, EARLIER, SHARDS, cluster, job},
    server::Cluster,
};

/// An id that leads to this shard, and nowhere else.
fn in_shard(shard: u16) -> JobId {
    punctual::IdMaker::default().make(Clock::System.now().as_ms(), shard, fastrand::u64(..))
}

/// A store of several shards whose ids of now are looked for in one place.
async fn spread(cluster: &Cluster) -> String {
    let url = cluster.url();
    let now_ms = Clock::System.now().as_ms();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(now_ms - EARLIER.as_millis() as u64));
    let changer = RedisStore::open(&url, Clock::Manual(clock)).await.unwrap();
    changer.reshard(SHARDS).await.unwrap();
    url
}

/// S2: a call of which one shard has done its part is not refused by another one, be it that a job has expired since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_done_in_part_is_not_refused_when_its_rest_has_expired() {
    let mut cluster = cluster();
    let url = spread(&cluster).await;
    let clock = ManualClock::new(Clock::System.now());
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    let there = job(in_shard(3));
    let soon = When::At(clock.now().after(Duration::from_secs(5)));
    let away = NewJob { expires_at: Some(soon), ..job(in_shard(1)) };
    let (call, jobs) = (Call { instance: 1, number: 1 }, [there.clone(), away.clone()]);
    cluster.servers[AWAY].kill();
    let error = store.enqueue(call, &jobs).await.unwrap_err();
    assert!(error.is_repeatable(), "{error:?}");
    assert!(store.get(there.id).await.unwrap().is_some(), "its part is done");

    cluster.servers[AWAY].restart();
    at_last(async || store.get(away.id).await).await;
    clock.advance(Duration::from_secs(6));
    let answers = store.enqueue(call, &jobs).await;
    assert!(answers.is_ok(), "{answers:?}");
    assert!(answers.unwrap().iter().all(|answer| answer.id().is_some()), "each has an answer");
    while store.sweep(100).await.unwrap().more {}
    assert_eq!(store.get(away.id).await.unwrap().unwrap().state, punctual::State::Cancelled);
}
