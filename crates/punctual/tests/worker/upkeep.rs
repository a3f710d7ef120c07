//! What a worker does for the queues that nobody serves.

use punctual::{
    NewJob, Payload, When,
    store::{Keep, QueueOp, QueueSettings, Settlement, Verdict},
};

use super::*;

/// S17: retention and expiry reach a queue that was renamed, and that no worker reserves from any more.
#[tokio::test]
async fn a_worker_keeps_up_queues_that_it_does_not_serve() {
    let rig = Rig::new();
    let store = Arc::clone(rig.client.store());
    let settings = QueueSettings { done: Keep { age_ms: 1_000, ..Keep::SHORT }, ..QueueSettings::default() };
    store.queue("old", &QueueOp::Set(Box::new(settings))).await.unwrap();
    let job = |key| NewJob::new(JobId::derived("old", None, key), "test.other", "old", Payload::json("{}"));
    let (done, expires) = (job("done"), NewJob { expires_at: Some(When::In(SECOND)), ..job("expires") });
    let call = punctual::store::CallId { instance: 1, number: 1 };
    let _ = store.enqueue(call, &[done]).await.unwrap();
    let want = Reserve {
        call,
        worker: "w".to_owned(),
        queues: vec![QueueRequest { queue: "old".to_owned(), share: 1, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    let lease = store.reserve(&want).await.unwrap().jobs[0].lease;
    let _ = store.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.unwrap();
    let _ = store.enqueue(punctual::store::CallId { number: 2, ..call }, &[expires]).await.unwrap();
    rig.clock.advance(2 * SECOND);

    let (stop, working) = start(rig.worker().handle(|_: Work, _: Ctx| std::future::ready(())));
    let upkept = async {
        loop {
            let counts = store.count(Some("old")).await.unwrap();
            if (counts.waiting, counts.done, counts.cancelled) == (0, 0, 1) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let upkept = tokio::time::timeout(10 * SECOND, upkept).await;
    assert!(upkept.is_ok(), "nobody keeps up the queue: {:?}", store.count(Some("old")).await.unwrap());
    stop.cancel();
    working.await.unwrap().unwrap();
}
