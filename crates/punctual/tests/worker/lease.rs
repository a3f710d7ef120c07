//! Time: when a run starts, how long it may take, and how long its lease is kept.

use super::*;

/// S5: not before its time by the store's clock, and then without anybody polling.
#[tokio::test]
async fn a_delayed_job_starts_when_it_is_due() {
    let mut rig = Rig::new();
    let job = rig.client.enqueue(Work { n: 1 }).delay(Duration::from_mins(1));
    job.await.unwrap().id().unwrap();
    let (handler, mut told) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().handle(handler));
    rig.called("wait").await;
    rig.clock.advance(Duration::from_millis(59_999));
    rig.enqueue(2).await;
    assert_eq!(told.recv().await, Some(2), "the one that is due");
    rig.clock.advance(Duration::from_millis(3));
    assert_eq!(told.recv().await, Some(1));
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!(report.lateness.count(), 2);
    assert_eq!(report.lateness.max(), Duration::from_millis(2));
}

#[tokio::test]
async fn a_run_is_stopped_at_its_timeout() {
    let rig = Rig::new();
    let id =
        rig.client.enqueue(Work { n: 1 }).timeout(Duration::from_millis(30)).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, _: Ctx| {
        let told = Told(tell.clone());
        async move {
            let _told = told;
            pending::<()>().await;
        }
    }));
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().retried, 1);
    let job = rig.get(id).await;
    assert_eq!((job.attempt, job.failures[0].error.as_str()), (2, "timeout after 30ms"));
}

/// Where the worker gives a grace for it, a run ends what it has to behind its timeout, under its lease.
#[tokio::test]
async fn a_run_may_end_in_the_grace_behind_its_timeout_and_keeps_its_lease() {
    let mut rig = Rig::new();
    let id = rig.client.enqueue(Work { n: 1 }).timeout(Duration::from_millis(1)).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let go = Arc::new(tokio::sync::Notify::new());
    let (stop, working) = start(rig.worker().timeout_grace(Duration::from_hours(1)).handle({
        let go = Arc::clone(&go);
        move |_: Work, ctx: Ctx| {
            let (tell, go) = (tell.clone(), Arc::clone(&go));
            async move {
                ctx.cancel_token().cancelled().await;
                let _ = tell.send(ctx.stop_reason());
                go.notified().await;
                Outcome::retry("all was put away")
            }
        }
    }));
    assert_eq!(told.recv().await.unwrap(), Some(Stop::TimedOut));
    rig.clock.advance(Duration::from_millis(500));
    rig.called("extend").await;
    rig.called("extend").await;
    assert_eq!(rig.get(id).await.running.unwrap().until.as_ms() - START, 1_500, "extended");
    go.notify_one();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().retried, 1);
    assert_eq!(rig.get(id).await.failures[0].error, "all was put away");
}

/// A run that goes on behind that grace is dropped.
#[tokio::test]
async fn a_run_is_dropped_at_the_end_of_the_grace_behind_its_timeout() {
    let rig = Rig::new();
    let id =
        rig.client.enqueue(Work { n: 1 }).timeout(Duration::from_millis(10)).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let worker = rig.worker().timeout_grace(Duration::from_millis(10));
    let (stop, working) = start(worker.handle(move |_: Work, _: Ctx| {
        let _ = tell.send(());
        pending::<()>()
    }));
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().retried, 1);
    assert_eq!(rig.get(id).await.failures[0].error, "timeout after 10ms");
}

/// A handler that blocks its thread can't be stopped: past its timeout its lease is left to lapse, its slot stays taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_run_past_its_timeout_is_not_extended() {
    let mut rig = Rig::new();
    let blocked = rig.client.enqueue(Work { n: 1 }).timeout(Duration::from_millis(1)).await.unwrap();
    let patient = rig.enqueue(2).await;
    let (tell, mut told) = unbounded_channel();
    let (unblock, blocks) = std::sync::mpsc::channel::<()>();
    let blocks = Arc::new(Mutex::new(blocks));
    let (stop, working) = start(rig.worker().slots(2).handle(move |job: Work, ctx: Ctx| {
        let (tell, blocks) = (tell.clone(), Arc::clone(&blocks));
        async move {
            let _ = tell.send(job.n);
            if job.n == 1 {
                let _ = blocks.lock().unwrap().recv();
            } else {
                ctx.cancel_token().cancelled().await;
            }
        }
    }));
    told.recv().await.unwrap();
    told.recv().await.unwrap();
    rig.clock.advance(Duration::from_millis(500));
    rig.called("extend").await;
    rig.called("extend").await;
    let until = |job: JobRecord| job.running.unwrap().until.as_ms() - START;
    assert_eq!(until(rig.get(blocked.id().unwrap()).await), 1_000, "left alone");
    assert_eq!(until(rig.get(patient).await), 1_500, "extended");
    unblock.send(()).unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 2, "a lease past its time still settles");
}

/// Heartbeats come from a thread of their own: a handler that blocks the whole runtime keeps its lease.
#[tokio::test]
async fn a_handler_that_blocks_the_runtime_keeps_its_lease() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let calls = Arc::new(Mutex::new(rig.calls));
    let clock = rig.clock.clone();
    let stop = CancellationToken::new();
    let worker = Worker::new(&rig.client).handle({
        let stop = stop.clone();
        move |_: Work, _: Ctx| {
            let (calls, clock, stop) = (Arc::clone(&calls), clock.clone(), stop.clone());
            async move {
                for _ in 0..2 {
                    clock.advance(Duration::from_millis(900));
                    while calls.lock().unwrap().blocking_recv_here() != "extend" {}
                }
                stop.cancel();
            }
        }
    });
    assert_eq!(worker.run_until(stop).await.unwrap().done, 1);
    assert_eq!(rig.client.get(id).await.unwrap().unwrap().expired_leases, 0);
}

/// A receiver that blocks its thread, also within a runtime.
trait BlockHere {
    fn blocking_recv_here(&mut self) -> &'static str;
}

impl BlockHere for UnboundedReceiver<&'static str> {
    fn blocking_recv_here(&mut self) -> &'static str {
        loop {
            match self.try_recv() {
                Ok(verb) => return verb,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// What a handler does once its token fired, and what came of it.
async fn cancelled_run(end: Outcome) -> (WorkReport, JobRecord) {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let (tell, end) = (tell.clone(), end.clone());
        async move {
            let _ = tell.send(None);
            ctx.cancel_token().cancelled().await;
            let _ = tell.send(ctx.stop_reason());
            end
        }
    }));
    told.recv().await.unwrap();
    assert_eq!(rig.client.cancel(id).await.unwrap(), Cancelled::Requested);
    assert_eq!(told.recv().await.unwrap(), Some(Stop::Cancelled));
    stop.cancel();
    (working.await.unwrap().unwrap(), rig.get(id).await)
}

/// S12: the token fires within a heartbeat, and the end of the run decides.
#[tokio::test]
async fn a_cancel_fires_the_token_and_an_error_after_it_is_no_failure() {
    let (report, job) = cancelled_run(Outcome::retry("stopped")).await;
    assert_eq!((report.cancelled, report.retried, job.state), (1, 0, State::Cancelled));
    assert!(job.failures.is_empty());
}

/// S12: work that was finished is done.
#[tokio::test]
async fn work_finished_in_spite_of_a_cancel_is_done() {
    let (report, job) = cancelled_run(Outcome::Done).await;
    assert_eq!((report.done, job.state), (1, State::Done));
}

/// S8, S9: somebody else has the job; whatever this run says changes nothing.
#[tokio::test]
async fn a_lost_lease_fires_the_token_and_the_run_changes_nothing() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(1).handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(None);
            ctx.cancel_token().cancelled().await;
            let _ = tell.send(ctx.stop_reason());
            Outcome::Dead("too late".into())
        }
    }));
    told.recv().await.unwrap();
    pass_time(&rig.memory, &rig.clock, Duration::from_secs(2)).await;
    let other = Reserve {
        call: punctual::store::CallId { instance: 7, number: 1 },
        worker: "other".into(),
        queues: vec![QueueRequest { queue: "default".into(), share: 1, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    let batch = rig.client.store().reserve(&other).await.unwrap();
    assert_eq!((batch.reclaimed.len(), batch.jobs.len()), (1, 1));
    assert_eq!(told.recv().await.unwrap(), Some(Stop::LeaseLost));
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.lost, report.dead), (1, 0));
    let job = rig.get(id).await;
    assert_eq!((job.state, job.running.unwrap().worker.as_str()), (State::Running, "other"));
}

/// S8: what has lost its lease is extended no more, also while its run goes on.
#[tokio::test]
async fn a_lost_lease_is_not_extended_again() {
    let mut rig = Rig::new();
    rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let worker = rig.worker().slots(1).cancel_grace(Duration::from_mins(1));
    let (stop, working) = start(worker.handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(None);
            ctx.cancel_token().cancelled().await;
            let _ = tell.send(ctx.stop_reason());
            std::future::pending::<()>().await;
        }
    }));
    told.recv().await.unwrap();
    pass_time(&rig.memory, &rig.clock, Duration::from_secs(2)).await;
    let queues = vec![QueueRequest { queue: "default".into(), share: 1, at_most: 1 }];
    let call = punctual::store::CallId { instance: 7, number: 1 };
    let other = Reserve { call, worker: "other".into(), queues, n: 1, lease: None, company: false };
    assert_eq!(rig.client.store().reserve(&other).await.unwrap().reclaimed.len(), 1);
    assert_eq!(told.recv().await.unwrap(), Some(Stop::LeaseLost));
    while rig.calls.try_recv().is_ok() {}
    // It reclaims each half a second, since its slot is taken. A heartbeat would come each third of a second.
    let (mut reclaims, mut beats) = (0, 0);
    while reclaims < 4 {
        match rig.calls.recv().await.unwrap() {
            "reserve" => reclaims += 1,
            "extend" => beats += 1,
            _ => {}
        }
    }
    assert_eq!(beats, 0);
    stop.cancel();
    working.abort();
}

/// S9: a worker reclaims the leases of others while all of its slots are taken, or those of a queue.
#[tokio::test]
async fn a_worker_reclaims_where_it_has_no_free_slot() {
    for (slots, of_queue) in [(1, None), (2, Some(1))] {
        let mut rig = Rig::new();
        rig.client.enqueue(Work { n: 1 }).max_attempts(1).await.unwrap();
        rig.crash_with_one("default").await;
        rig.enqueue(2).await;
        let (tell, mut told) = unbounded_channel();
        let tell_of_dead = tell.clone();
        let mut worker = rig.worker().slots(slots).on_dead(move |_, reason| {
            let _ = tell_of_dead.send(reason);
            std::future::ready(())
        });
        if let Some(of_queue) = of_queue {
            worker = worker.queue_slots("default", of_queue);
        }
        let (stop, working) = start(worker.handle(move |job: Work, ctx: Ctx| {
            let _ = tell.send(job.n.to_string());
            async move { ctx.cancel_token().cancelled().await }
        }));
        assert_eq!(told.recv().await.unwrap(), "2");
        rig.called("extend").await;
        for _ in 0..4 {
            rig.clock.advance(Duration::from_millis(300));
            // A gap that is longer than half of the lease would hold the other one back. The first of two may have begun before.
            rig.called("extend").await;
            rig.called("extend").await;
        }
        // A heartbeat comes each third of a second.
        let mut beats = 0;
        loop {
            match rig.calls.recv().await.unwrap() {
                "reserve" => break,
                "extend" => beats += 1,
                _ => {}
            }
            assert!(beats < 20, "{slots} slots: nothing is reclaimed");
        }
        assert_eq!(told.recv().await.unwrap(), "attempts", "{slots} slots");
        stop.cancel();
        assert_eq!(working.await.unwrap().unwrap().reclaimed, 1);
    }
}
