//! Schedules of a store whose shards change, and whose queue is pinned and spread again: each tick runs once.

use std::sync::{Arc, Mutex};

use punctual::{
    Ctx, Worker,
    client::Cancelled,
    schedule::{Cron, Misfire, Schedule},
    store::Placement,
    testing::TestQueue,
};

use super::*;

const MINUTE: Duration = Duration::from_mins(1);
/// A whole minute.
const BEGIN: u64 = 1_767_225_600_000;

async fn place(store: &RedisStore, placement: Placement) {
    let settings = QueueSettings { placement, ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
}

#[tokio::test]
async fn a_schedule_goes_on_over_every_change() {
    for url in [Server::shared().url(), Cluster::shared().url()] {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(BEGIN));
        let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
        let client = Client::new(store.clone());
        let cron = Cron::every(MINUTE).unwrap().on_misfire(Misfire::RunAll { at_most: 100 }).unwrap();
        let tick = NewJob::new(client.make_id(), "tick", QUEUE, Payload::json("1"));
        client.schedule("often").put(Schedule::new(cron, tick).unwrap()).await.unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let (mut expected, drains) = (Vec::new(), TestQueue::new());
        for minute in 1..=24 {
            match minute % 8 {
                1 => drop(store.reshard(4).await.unwrap()),
                2 | 7 => place(&store, Placement::Pinned).await,
                3 => drop(store.reshard(8).await.unwrap()),
                5 => place(&store, Placement::Spread).await,
                6 => drop(store.reshard(3).await.unwrap()),
                _ => {}
            }
            let waiting = client.schedule("often").waiting().await.unwrap().expect("a tick waits");
            if minute % 5 == 0 {
                // Called off by hand: left out, whatever its id is by now.
                assert_eq!(client.cancel(waiting.id).await.unwrap(), Cancelled::Done);
                assert_eq!(client.enqueue_ticks().await.unwrap(), 1);
            } else {
                expected.push(minute);
            }
            clock.advance(MINUTE);
            let note = {
                let ran = Arc::clone(&ran);
                move |_: punctual::JobRecord, ctx: Ctx| {
                    let ran = Arc::clone(&ran);
                    async move {
                        ran.lock().unwrap().push((ctx.scheduled_for().unwrap().as_ms() - BEGIN) / 60_000);
                    }
                }
            };
            drains.drain(Worker::new(&client).queue(QUEUE).handle_raw(note)).await.unwrap();
        }
        assert_eq!(*ran.lock().unwrap(), expected);
        assert!(is_clean(&store).await);
    }
}

/// A pinned queue has its jobs in another shard than their ids say, which are then answered with that shard in them.
#[tokio::test]
async fn a_tick_that_comes_back_passes_over_one_that_runs_in_a_pinned_queue() {
    let clock = ManualClock::new(Timestamp::saturating_from_ms(BEGIN));
    let url = Server::shared().url();
    let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
    store.reshard(4).await.unwrap();
    place(&store, Placement::Pinned).await;
    let client = Client::new(store.clone());
    let cron = Cron::every(MINUTE).unwrap().on_misfire(Misfire::RunAll { at_most: 100 }).unwrap();
    let tick = NewJob::new(client.make_id(), "tick", QUEUE, Payload::json("1"));
    client.schedule("often").put(Schedule::new(cron, tick).unwrap()).await.unwrap();
    let reserve = async |number| {
        let queues = vec![QueueRequest { queue: QUEUE.to_owned(), share: 1, at_most: 1 }];
        let call = CallId { instance: 7, number };
        let request =
            Reserve { call, worker: "another".to_owned(), queues, n: 1, lease: None, company: false };
        store.reserve(&request).await.unwrap().jobs[0].lease
    };
    clock.advance(MINUTE * 3);
    let first = reserve(1).await;
    assert_eq!(client.enqueue_ticks().await.unwrap(), 1);
    let _fourth = {
        clock.advance(MINUTE);
        reserve(2).await
    };
    assert_eq!(client.enqueue_ticks().await.unwrap(), 1);
    store.settle(&[Settlement { lease: first, verdict: Verdict::Release }], None).await.unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let note = {
        let ran = Arc::clone(&ran);
        move |_: punctual::JobRecord, ctx: Ctx| {
            let ran = Arc::clone(&ran);
            async move {
                ran.lock().unwrap().push((ctx.scheduled_for().unwrap().as_ms() - BEGIN) / 60_000);
            }
        }
    };
    TestQueue::new().drain(Worker::new(&client).queue(QUEUE).handle_raw(note)).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), [1, 2, 3]);
    let waiting = client.schedule("often").waiting().await.unwrap().expect("a tick waits");
    assert_eq!(waiting.run_at.as_ms(), BEGIN + 5 * 60_000);
}
