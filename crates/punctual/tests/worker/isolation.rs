//! S9: jobs that one more crash would end run apart from each other, and hold up nobody else.

use super::*;
use tokio::time::timeout;

/// Longer than anything takes here, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(10);

impl Rig {
    /// A worker ran all jobs that are due and was not heard of again, twice: each is on its last chance, and due.
    pub(super) async fn crash_all_twice(&self, n: usize) {
        self.crash(&[("default", n)], false, 1).await;
        self.crash(&[("default", n)], false, 2).await;
    }

    /// A worker ran so many jobs of these queues, all that are due, and was not heard of again.
    async fn crash(&self, jobs: &[(&str, usize)], company: bool, number: u64) {
        let n = jobs.iter().map(|(_, n)| n).sum();
        let queues =
            jobs.iter().map(|(queue, n)| QueueRequest { queue: (*queue).to_owned(), share: *n, at_most: *n });
        let crashed = Reserve {
            call: punctual::store::CallId { instance: 7, number: 2 * number },
            worker: "crashed".into(),
            queues: queues.collect(),
            n,
            lease: None,
            company,
        };
        assert_eq!(self.client.store().reserve(&crashed).await.unwrap().jobs.len(), n);
        pass_time(&self.memory, &self.clock, SECOND).await;
        let look = Reserve {
            n: 0,
            call: punctual::store::CallId { instance: 7, number: 2 * number + 1 },
            ..crashed
        };
        assert_eq!(self.client.store().reserve(&look).await.unwrap().reclaimed.len(), n);
        self.clock.advance(5 * SECOND);
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
    rig.crash(&[("default", 30)], true, 3).await;
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

/// A suspect that is held takes a slot of its queue, so no more of its jobs run than may.
#[tokio::test]
async fn a_suspect_that_is_held_takes_a_slot_of_its_queue() {
    let rig = Rig::new();
    let enqueue = async |n, queue: &str| {
        rig.client.enqueue(Work { n }).queue(queue).max_attempts(9).await.unwrap();
    };
    for n in 0..16 {
        enqueue(n, "bulk").await;
    }
    enqueue(16, "mail").await;
    let all = [("bulk", 16), ("mail", 1)];
    for (company, number) in [(false, 1), (false, 2), (true, 3)] {
        rig.crash(&all, company, number).await;
    }
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let worker = rig.worker().queue("bulk").queue("mail").queue_slots("mail", 1).slots(50);
    let (stop, working) = start(worker.handle(handler));
    assert_eq!(starts(&mut told, 16).await, 16);
    enqueue(17, "mail").await;
    // Once the second of these runs, what came before the first has been looked at.
    for n in [18, 19] {
        enqueue(n, "bulk").await;
        assert_eq!(timeout(PATIENCE, told.recv()).await.unwrap(), Some(n));
    }
    end.add_permits(1);
    assert_eq!(timeout(PATIENCE, told.recv()).await.unwrap(), Some(16));
    end.add_permits(19);
    assert_eq!(timeout(PATIENCE, told.recv()).await.unwrap(), Some(17));
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 20);
}

/// S9: suspects that one worker cannot start go back, so an idle worker runs them, and they stay suspects.
#[tokio::test]
async fn suspects_that_wait_for_another_go_to_an_idle_worker() {
    let rig = Rig::new();
    for n in 0..4 {
        rig.client.enqueue(Work { n }).max_attempts(20).await.unwrap();
    }
    for number in 1..=5 {
        rig.crash(&[("default", 4)], 2 < number, number).await;
        rig.clock.advance(8 * SECOND);
    }
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let (stop, busy) = start(rig.worker().slots(8).handle(handler));
    assert!(told.recv().await.is_some());
    let count = async || rig.client.count(None).await.unwrap();
    while count().await.running < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (handler, told_idle) = held_back(&end);
    let (stop_idle, idle) = start(rig.worker().name("idle").slots(8).handle(handler));
    let started = async {
        while told_idle.is_empty() {
            if 0 < count().await.waiting {
                rig.clock.advance(punctual::limits::SNOOZE_MIN);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(3 * PATIENCE, started).await.expect("the idle worker got none");
    assert!(told.is_empty(), "no two of them run in one worker");
    end.add_permits(4);
    while count().await.done < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.cancel();
    stop_idle.cancel();
    let [busy, idle] = [busy.await.unwrap().unwrap(), idle.await.unwrap().unwrap()];
    assert_eq!((busy.done + idle.done, busy.lost + idle.lost), (4, 0));
    for job in rig
        .client
        .list(&punctual::store::List { filter: punctual::job::Filter::all(), after: None, limit: 9 })
        .await
        .unwrap()
        .jobs
    {
        assert_eq!((job.state, job.attempt), (State::Done, 6));
    }
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
