//! Topics of a store whose shards change, and whose queues are pinned and spread again, between a worker that dies behind its
//! last job and the one that hands the publication out again: each subscription has one job of each.

use std::sync::Arc;

use punctual::{
    Ctx, JobRecord, Worker,
    store::Placement,
    testing::{Fault, FaultyStore, TestQueue},
    topic::TOPICS_QUEUE,
};

use super::*;

/// Past the lease of a worker that died, in steps that are no silences (S9).
const LAPSE: [Duration; 4] = [Duration::from_secs(4); 4];
const QUEUES: [&str; 3] = ["bulk", QUEUE, "parcels"];

async fn place(store: &RedisStore, queue: &str, placement: Placement) {
    let settings = QueueSettings { placement, ..QueueSettings::default() };
    store.queue(queue, &QueueOp::Set(Box::new(settings))).await.unwrap();
}

#[tokio::test]
async fn each_subscription_has_one_job_over_every_change() {
    for url in [Server::shared().url(), Cluster::shared().url()] {
        let clock = ManualClock::new(Clock::System.now());
        let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
        let client = Client::new(store.clone());
        let topic = client.topic("orders");
        for queue in QUEUES {
            topic.subscribe(queue).await.unwrap();
        }
        let never_settled = FaultyStore::new(store.clone(), |verb| match verb {
            "settle" => Fault::Before,
            _ => Fault::Pass,
        });
        let (dying, drains) = (Client::new(Arc::new(never_settled)), TestQueue::new());
        let ignore = async |_: JobRecord, _: Ctx| ();
        for n in 1..=12 {
            let job = NewJob::new(client.make_id(), "k", QUEUE, Payload::json("1"));
            // Placed by its group, or by its id.
            let group = (n % 2 == 0).then(|| format!("tenant {n}"));
            let id = inserted(&topic.push(vec![NewJob { group, ..job }]).await.unwrap()[0]);
            let died = drains.drain(Worker::new(&dying).queue("elsewhere").handle_raw(ignore)).await;
            assert_eq!(died.unwrap_err().kind(), ErrorKind::Unavailable);
            match n % 6 {
                1 => drop(store.reshard(4).await.unwrap()),
                2 => place(&store, QUEUE, Placement::Pinned).await,
                3 => drop(store.reshard(8).await.unwrap()),
                4 => place(&store, TOPICS_QUEUE, Placement::Pinned).await,
                5 => place(&store, QUEUE, Placement::Spread).await,
                _ => {
                    drop(store.reshard(3).await.unwrap());
                    place(&store, TOPICS_QUEUE, Placement::Spread).await;
                }
            }
            for step in LAPSE {
                clock.advance(step);
                // It reaches each shard.
                store.sweep(1_000).await.unwrap();
            }
            drains.drain(Worker::new(&client).queue("elsewhere").handle_raw(ignore)).await.unwrap();
            let publication = client.get(id).await.unwrap().unwrap();
            assert_eq!((publication.state, publication.failures.len()), (State::Done, 1), "{n}");
            for queue in QUEUES {
                assert_eq!(client.count(Some(queue)).await.unwrap().waiting, n, "{queue} {n}");
            }
        }
        assert!(is_clean(&store).await);
    }
}
