//! S9: jobs that one more crash would end run apart from each other, and hold up nobody else.

use super::*;
use tokio::time::timeout;

/// Longer than anything takes here, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(10);

impl Rig {
    /// A worker ran all jobs that are due and was not heard of again, twice: each is on its last chance, and due.
    pub(super) async fn crash_all_twice(&self, n: usize) {
        for number in 1..=2 {
            let crashed = Reserve {
                call: punctual::store::CallId { instance: 7, number },
                worker: "crashed".into(),
                queues: vec![QueueRequest { queue: "default".into(), share: n, at_most: n }],
                n,
                lease: None,
                company: false,
            };
            assert_eq!(self.client.store().reserve(&crashed).await.unwrap().jobs.len(), n);
            self.clock.advance(SECOND);
        }
        let look = Reserve {
            call: punctual::store::CallId { instance: 7, number: 3 },
            worker: "crashed".into(),
            queues: vec![QueueRequest { queue: "default".into(), share: 0, at_most: 0 }],
            n: 0,
            lease: None,
            company: false,
        };
        assert_eq!(self.client.store().reserve(&look).await.unwrap().reclaimed.len(), n);
        self.clock.advance(3 * SECOND);
    }
}

type Run = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A handler that tells of each start, and ends a run for each permit.
pub(super) fn held_back(
    end: &Arc<Semaphore>,
) -> (impl Fn(Work, Ctx) -> Run + Send + Sync + 'static, UnboundedReceiver<u32>) {
    let ((tell, told), end) = (unbounded_channel(), Arc::clone(end));
    let handler = move |job: Work, _: Ctx| -> Run {
        let (tell, end) = (tell.clone(), Arc::clone(&end));
        Box::pin(async move {
            let _ = tell.send(job.n);
            end.acquire().await.unwrap().forget();
            Outcome::Done
        })
    };
    (handler, told)
}

/// How many runs start while none ends.
async fn starts(told: &mut UnboundedReceiver<u32>, at_most: usize) -> usize {
    let mut n = 0;
    while n < at_most && timeout(PATIENCE, told.recv()).await.is_ok() {
        n += 1;
    }
    n
}

/// S9: all that a worker ran when it died twice run beside each other again: no crash of one is blamed on another then.
#[tokio::test]
async fn jobs_that_crashed_twice_with_their_worker_run_together() {
    let rig = Rig::new();
    for n in 0..30 {
        rig.enqueue(n).await;
    }
    rig.crash_all_twice(30).await;
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let (stop, working) = start(rig.worker().slots(50).handle(handler));
    assert_eq!(starts(&mut told, 30).await, 30);
    end.add_permits(30);
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.dead), (30, 0));
}

/// S9: they are told apart by and by: behind a third crash sixteen run beside each other, and still none is dead.
#[tokio::test]
async fn a_crash_of_many_ends_none_and_parts_them() {
    let rig = Rig::new();
    for n in 0..30 {
        rig.client.enqueue(Work { n }).max_attempts(9).await.unwrap();
    }
    rig.crash_all_twice(30).await;
    let together = Reserve {
        call: punctual::store::CallId { instance: 8, number: 1 },
        worker: "crashed".into(),
        queues: vec![QueueRequest { queue: "default".into(), share: 30, at_most: 30 }],
        n: 30,
        lease: None,
        company: true,
    };
    assert_eq!(rig.client.store().reserve(&together).await.unwrap().jobs.len(), 30);
    rig.clock.advance(SECOND);
    let look = Reserve { n: 0, call: punctual::store::CallId { instance: 8, number: 2 }, ..together };
    assert_eq!(rig.client.store().reserve(&look).await.unwrap().reclaimed.len(), 30);
    rig.clock.advance(5 * SECOND);
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let (stop, working) = start(rig.worker().slots(50).handle(handler));
    assert_eq!(starts(&mut told, 16).await, 16);
    rig.enqueue(30).await;
    assert_eq!(timeout(PATIENCE, told.recv()).await.unwrap(), Some(30), "no suspect waits for them");
    end.add_permits(31);
    assert_eq!(starts(&mut told, 14).await, 14);
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.dead), (31, 0));
}

#[tokio::test]
async fn a_job_on_its_last_chance_that_never_ends_holds_up_nobody() {
    let rig = Rig::new();
    rig.enqueue(0).await;
    rig.crash_all_twice(1).await;
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let (stop, working) = start(rig.worker().slots(5).handle(handler));
    assert_eq!(timeout(PATIENCE, told.recv()).await.unwrap(), Some(0));
    for n in 1..5 {
        rig.enqueue(n).await;
    }
    assert_eq!(starts(&mut told, 4).await, 4);
    end.add_permits(5);
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 5);
}
