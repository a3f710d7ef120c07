//! Earlier numbers of shards, and when a store forgets them.

use super::{super::console::calls, *};

/// What [`scripts_to_enqueue`] enqueues.
const JOBS: u64 = 3 * 8;

/// How many scripts it takes to enqueue jobs with keys and groups one by one.
async fn scripts_to_enqueue(server: &Server, store: &RedisStore, name: &str) -> u64 {
    let mut producer = Producer::new();
    let jobs = |name: String| {
        (0..8).flat_map(move |n| {
            let (key, group) = (format!("key {name} {n}"), format!("group {name} {n}"));
            [keyed(&key), NewJob { group: Some(group), ..job(id(0)) }, derived(&key)]
        })
    };
    let calls = || calls(&server.say(&["INFO", "commandstats"]))["evalsha"];
    // From then on it knows the layout, and what each shard knows of the queue.
    for job in jobs(format!("{name} before")) {
        producer.enqueue(store, &[job]).await;
    }
    let before = calls();
    for job in jobs(name.to_owned()) {
        inserted(&producer.enqueue(store, &[job]).await[0]);
    }
    calls() - before
}

/// An old number of shards costs a second look only as long as something may be where it leads.
#[tokio::test]
async fn an_old_number_of_shards_is_forgotten_when_the_store_is_empty() {
    let server = Server::start(&[]);
    let clock = ManualClock::new(Timestamp::saturating_from_ms(1_800_000_000_000));
    let fresh = open(&server.url()).await;
    assert_eq!(scripts_to_enqueue(&server, &fresh, "one shard").await, JOBS);
    let fresh = open(&server.url()).await;
    fresh.reshard(4).await.unwrap();
    assert_eq!(scripts_to_enqueue(&server, &fresh, "several from the start").await, JOBS);

    let store = RedisStore::open(&server.url(), Clock::Manual(clock.clone())).await.unwrap();
    let settings =
        QueueSettings { done: Keep::NOTHING, cancelled: Keep::NOTHING, ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
    let mut producer = Producer::new();
    let old = NewJob { run_at: When::In(Duration::from_hours(1)), ..keyed("old") };
    let old_id = inserted(&producer.enqueue(&store, std::slice::from_ref(&old)).await[0]);
    store.reshard(4).await.unwrap();
    assert!(JOBS < scripts_to_enqueue(&server, &store, "beside an old job").await);
    let again = producer.enqueue(&store, &[keyed("old")]).await;
    assert!(matches!(again[0], Enqueued::Duplicate(Existing { id, .. }) if id == old_id), "{again:?}");
    clock.advance(Duration::from_hours(2));
    assert_eq!(drain(&store).await.len() as u64, 2 * JOBS + 1);
    // The ids that stand for idempotency keys are remembered for a day.
    store.sweep(1_000).await.unwrap();
    assert!(JOBS < scripts_to_enqueue(&server, &store, "beside remembered ids").await);
    drain(&store).await;
    clock.advance(Duration::from_hours(25));
    while store.sweep(1_000).await.unwrap().more {}
    assert_eq!(jobs(&store).await, [0; 4]);
    assert_eq!(scripts_to_enqueue(&server, &store, "with nothing left").await, JOBS);
}
