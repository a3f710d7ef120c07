//! Publications beside the jobs of a worker.

use super::*;
use punctual::topic::TOPICS_QUEUE;

impl Rig {
    /// A worker that hands out publications, as workers do.
    fn serving(&self) -> Worker {
        self.worker().serve_topics(true)
    }

    async fn publish(&self, n: u32) -> JobId {
        self.client.topic("news").publish(Work { n }).await.unwrap().id().unwrap()
    }

    async fn until_done(&mut self, id: JobId) {
        // A call is heard of before it has its effect: whatever comes next, looks among it.
        while self.get(id).await.state != State::Done {
            self.calls.recv().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_publication_needs_no_slot_of_a_job() {
    let mut rig = Rig::new();
    rig.client.topic("news").subscribe("elsewhere").await.unwrap();
    rig.enqueue(1).await;
    let (handler, mut runs) = endless();
    let (stop, working) = start(rig.serving().slots(1).shutdown_grace(Duration::ZERO).handle(handler));
    runs.recv().await.unwrap();
    let id = rig.publish(2).await;
    rig.until_done(id).await;
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.publications, report.done, report.released, report.runs()), (1, 0, 1, 1));
    assert_eq!(rig.client.count(Some("elsewhere")).await.unwrap().waiting, 1);
}

#[tokio::test]
async fn a_worker_runs_what_it_handed_out() {
    let rig = Rig::new();
    rig.client.topic("news").subscribe("default").await.unwrap();
    let (handler, mut told) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.serving().handle(handler));
    for n in 1..=20 {
        rig.publish(n).await;
    }
    let mut ran = Vec::new();
    while ran.len() < 20 {
        ran.push(told.recv().await.unwrap());
    }
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.publications, report.done), (20, 20));
    ran.sort_unstable();
    assert!(ran.into_iter().eq(1..=20));
}

#[tokio::test]
async fn a_worker_that_is_told_so_leaves_publications_alone() {
    let mut rig = Rig::new();
    rig.client.topic("news").subscribe("default").await.unwrap();
    let (stop, working) = start(rig.worker().handle(async |_: Work, _: Ctx| ()));
    rig.called("wait").await;
    let id = rig.publish(1).await;
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().publications, 0);
    assert_eq!(rig.get(id).await.state, State::Waiting);
}

/// The answers of a third of all calls are lost, or they fail: still each publication is handed out once.
#[tokio::test]
async fn with_a_store_that_keeps_failing_each_publication_is_handed_out_once() {
    for seed in 1..=3 {
        let clock = ManualClock::new(Timestamp::from_ms(START).unwrap());
        let memory = Arc::new(MemoryStore::new(Clock::Manual(clock)));
        let quiet = Client::new(memory.clone());
        for queue in ["default", "elsewhere"] {
            quiet.topic("news").subscribe(queue).await.unwrap();
        }
        for n in 0..30 {
            quiet.topic("news").publish(Work { n }).await.unwrap();
        }
        // Documents are left alone: one that can't be read costs an attempt, and its pause by this clock has no end.
        let mut random = fastrand::Rng::with_seed(seed);
        let faulty = FaultyStore::new(memory, move |verb| match random.u8(0..9) {
            _ if verb == "doc" => Fault::Pass,
            0 => Fault::Before,
            1 => Fault::After,
            2 => Fault::InPart,
            _ => Fault::Pass,
        });
        let (handler, mut told) = telling(|_| Outcome::Done);
        let (stop, working) = start(Worker::new(&Client::new(Arc::new(faulty))).handle(handler));
        for _ in 0..30 {
            told.recv().await.unwrap();
        }
        while quiet.count(Some(TOPICS_QUEUE)).await.unwrap().done < 30 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        let report = working.await.unwrap().unwrap();
        assert_eq!((report.publications, report.done), (30, 30), "seed {seed}");
        let elsewhere = quiet.count(Some("elsewhere")).await.unwrap();
        assert_eq!((elsewhere.waiting, quiet.count(None).await.unwrap().total()), (30, 90));
    }
}
