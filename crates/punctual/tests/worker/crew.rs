//! Which handler runs what, where, and within what: kinds, slots, queues, middleware, state.

use super::*;

async fn unknown(policy: UnknownKinds, times: u64) -> JobRecord {
    let mut rig = Rig::new();
    let id = rig.enqueue(1).await;
    let worker = rig.worker().queue("default").unknown_kinds(policy);
    let (stop, working) = start(worker.handle(async |_: Other, _: Ctx| {}));
    for round in 0..times {
        if 0 < round {
            // The last settle has taken effect once the loop waits again.
            rig.called("wait").await;
            rig.clock.advance(Duration::from_secs(1_000));
        }
        rig.called("settle").await;
    }
    stop.cancel();
    working.await.unwrap().unwrap();
    rig.get(id).await
}

/// Never dropped; held 10 s, doubling to 10 min, counting nothing.
#[tokio::test]
async fn an_unknown_kind_is_held() {
    for (times, pause) in [(1, 10), (2, 20), (3, 40), (8, 600)] {
        let job = unknown(UnknownKinds::Hold, times).await;
        let held_at = START + (times - 1) * 1_000_000;
        assert_eq!((job.state, job.attempt, job.snoozes), (State::Waiting, 1, times as u32));
        assert_eq!(job.run_at.as_ms() - held_at, pause * 1_000, "snooze {times}");
        assert_eq!(job.reason.as_deref(), Some("unknown_kind"));
    }
}

#[tokio::test]
async fn an_unknown_kind_may_be_dead_or_a_failure() {
    let job = unknown(UnknownKinds::Dead, 1).await;
    assert_eq!((job.state, job.reason.as_deref()), (State::Dead, Some("no handler for kind \"test.work\"")));
    let job = unknown(UnknownKinds::Retry, 1).await;
    assert_eq!((job.state, job.attempt), (State::Waiting, 2));
}

#[tokio::test]
async fn a_raw_handler_takes_every_other_kind() {
    let rig = Rig::new();
    rig.enqueue(1).await;
    rig.client.enqueue(Other {}).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let (tell_other, mut other_told) = unbounded_channel();
    let worker = rig.worker().queue("default").queue("other").handle(move |_: Other, _: Ctx| {
        let _ = tell_other.send(());
        std::future::ready(())
    });
    let (stop, working) = start(worker.handle_raw(move |job: JobRecord, ctx: Ctx| {
        let _ = tell.send((job.kind.clone(), job.payload.bytes.clone(), ctx.attempt()));
        std::future::ready(())
    }));
    assert_eq!(told.recv().await.unwrap(), ("test.work".to_owned(), b"{\"n\":1}".to_vec(), 1));
    // A worker that is asked to end begins nothing more: both have to have begun.
    other_told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 2);
    assert!(told.recv().await.is_none(), "once");
}

#[tokio::test]
async fn what_cannot_be_is_refused_when_the_worker_starts() {
    async fn refusal<S: Send + Sync + 'static>(worker: Worker<S>) -> (ErrorKind, String) {
        let error = worker.run_until(CancellationToken::new()).await.unwrap_err();
        (error.kind(), error.to_string())
    }
    let rig = Rig::new();
    let able = || rig.worker().handle(async |_: Work, _: Ctx| {});
    let two = refusal(able().handle(async |_: Work, _: Ctx| {})).await;
    assert_eq!(two, (ErrorKind::Conflict, "kind \"test.work\" has two handlers".to_owned()));
    assert_eq!(refusal(rig.worker()).await.1, "a worker needs a handler");
    assert_eq!(refusal(able().slots(0)).await.1, "slots 0 is not within 1 to 10000");
    assert_eq!(refusal(able().slots(10_001)).await.0, ErrorKind::Invalid);
    assert_eq!(
        refusal(able().queue("a").queue_slots("a", 0)).await.1,
        "slots of queue \"a\": 0 is not within 1 to 10000"
    );
    assert_eq!(
        refusal(able().queue("a").queue_slots("b", 1)).await.1,
        "slots for queue \"b\", which this worker does not serve"
    );
    assert_eq!(refusal(able().lease(Duration::from_millis(999))).await.0, ErrorKind::Invalid);
    assert_eq!(refusal(able().queue("$own")).await.0, ErrorKind::Invalid);
    assert_eq!(refusal(able().queue("a").queue("a")).await.1, "queue \"a\" is named twice");
    assert_eq!(refusal(able().queue("a").weighted([("b", 1)])).await.0, ErrorKind::Conflict);
    assert_eq!(refusal(able().weighted([("b", 0)])).await.0, ErrorKind::Invalid);
}

#[tokio::test]
async fn no_more_jobs_run_at_once_than_there_are_slots() {
    const SLOTS: usize = 3;
    const JOBS: usize = 14 * SLOTS;
    let rig = Rig::new();
    for n in 0..JOBS as u32 {
        rig.enqueue(n).await;
    }
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // No run ends before all slots are taken.
    let all = Arc::new(Barrier::new(SLOTS));
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(SLOTS).handle({
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        move |_: Work, _: Ctx| {
            let (now, most, all, tell) =
                (Arc::clone(&now), Arc::clone(&most), Arc::clone(&all), tell.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                all.wait().await;
                now.fetch_sub(1, Ordering::SeqCst);
                let _ = tell.send(());
            }
        }
    }));
    for _ in 0..JOBS {
        told.recv().await.unwrap();
    }
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, JOBS as u64);
    assert_eq!(most.load(Ordering::SeqCst), SLOTS);
}

/// A handler that tells the queue of each run. A run of `mail` ends when it is given a permit, others only when told to
/// stop.
fn gated() -> (Arc<Semaphore>, Gated, UnboundedReceiver<String>) {
    let (tell, told) = unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let gate = Arc::clone(&gate);
        move |_: Work, ctx: Ctx| {
            let _ = tell.send(ctx.queue().to_owned());
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                if ctx.queue() == "mail" {
                    gate.acquire().await.unwrap().forget();
                } else {
                    ctx.cancel_token().cancelled().await;
                }
            }) as Pin<Box<dyn Future<Output = ()> + Send>>
        }
    };
    (gate, Box::new(handler), told)
}

type Gated = Box<dyn Fn(Work, Ctx) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[tokio::test]
async fn no_more_jobs_of_a_queue_run_at_once_than_it_has_slots() {
    let serve: [fn(Worker) -> Worker; 2] =
        [|worker| worker.queue("mail").queue("bulk"), |worker| worker.weighted([("mail", 5), ("bulk", 1)])];
    for serve in serve {
        let mut rig = Rig::new();
        for (queue, jobs) in [("mail", 6), ("bulk", 3)] {
            for n in 0..jobs {
                rig.client.enqueue(Work { n }).queue(queue).await.unwrap().id().unwrap();
            }
        }
        let (gate, handler, mut told) = gated();
        let (stop, working) = start(serve(rig.worker().queue_slots("mail", 2)).handle(handler));
        let mut first = Vec::new();
        for _ in 0..5 {
            first.push(told.recv().await.unwrap());
        }
        first.sort_unstable();
        assert_eq!(first, ["bulk", "bulk", "bulk", "mail", "mail"]);
        // The loop waits, though four jobs are due and slots are free.
        rig.called("wait").await;
        for _ in 0..4 {
            assert!(told.try_recv().is_err());
            gate.add_permits(1);
            assert_eq!(told.recv().await.unwrap(), "mail");
            rig.called("wait").await;
        }
        gate.add_permits(2);
        stop.cancel();
        assert_eq!(working.await.unwrap().unwrap().done, 9);
    }
}

/// S13: a queue at its cap is neither asked nor waited for, not even while its jobs are due.
#[tokio::test]
async fn nothing_is_called_while_all_queues_are_at_their_caps() {
    let mut rig = Rig::new();
    let enqueue = async |n| rig.client.enqueue(Work { n }).queue("mail").await.unwrap().id().unwrap();
    enqueue(1).await;
    enqueue(2).await;
    let (gate, handler, mut told) = gated();
    let (stop, working) = start(rig.worker().queue("mail").queue_slots("mail", 1).handle(handler));
    assert_eq!(told.recv().await.unwrap(), "mail");
    enqueue(3).await;
    rig.clock.advance(SECOND / 2);
    for _ in 0..2 {
        gate.add_permits(1);
        assert_eq!(told.recv().await.unwrap(), "mail");
    }
    gate.add_permits(1);
    let mut calls = Vec::new();
    while calls.last() != Some(&"wait") {
        // Heartbeats and what is added to views come when their time is there; at the start it looks for schedules and which store it is,
        // sweeps and listens for cancels.
        calls.extend(
            rig.calls.recv().await.filter(|call| {
                !["extend", "doc", "identity", "listen", "now", "sweep", "tool"].contains(call)
            }),
        );
    }
    assert_eq!(calls, ["enqueue", "enqueue", "reserve", "enqueue", "settle", "settle", "settle", "wait"]);
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 3);
}

/// S6, through the loop: a slot at a time, in the order of the cycle.
#[tokio::test]
async fn weighted_queues_share_and_strict_ones_do_not() {
    async fn order(queues: impl FnOnce(Worker) -> Worker) -> String {
        let rig = Rig::new();
        for n in 0..8 {
            for queue in ["a", "b"] {
                rig.client.enqueue(Work { n }).queue(queue).await.unwrap().id().unwrap();
            }
        }
        let (tell, mut told) = unbounded_channel();
        let worker = queues(rig.worker().slots(1)).handle(move |_: Work, ctx: Ctx| {
            let _ = tell.send(ctx.queue().to_owned());
            std::future::ready(())
        });
        let (stop, working) = start(worker);
        let mut order = String::new();
        for _ in 0..16 {
            order += &told.recv().await.unwrap();
        }
        stop.cancel();
        working.await.unwrap().unwrap();
        order
    }
    assert_eq!(order(|worker| worker.weighted([("a", 3), ("b", 1)])).await, "aabaaabaaabbbbbb");
    assert_eq!(order(|worker| worker.queue("b").queue("a")).await, "bbbbbbbbaaaaaaaa");
}

#[tokio::test]
async fn middleware_wraps_every_run_the_first_one_outermost() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let layer = |name: &'static str| {
        let tell = tell.clone();
        move |call: Call, next: Next| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(format!("{name} before {}", call.kind()));
                let outcome = next.run(call).await;
                let _ = tell.send(format!("{name} after {outcome:?}"));
                if name == "outer" { Outcome::Dead("by the outer".into()) } else { outcome }
            }
        }
    };
    let worker = rig.worker().with(layer("outer")).with(layer("inner")).handle(async |_: Work, _: Ctx| {});
    let (stop, working) = start(worker);
    for expected in
        ["outer before test.work", "inner before test.work", "inner after Done", "outer after Done"]
    {
        assert_eq!(told.recv().await.unwrap(), expected);
    }
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().dead, 1);
    assert_eq!(rig.get(id).await.reason.as_deref(), Some("by the outer"));
}

#[tokio::test]
async fn handlers_share_the_state_and_see_their_job() {
    struct App {
        told: UnboundedSender<String>,
    }
    async fn work(job: Work, ctx: Ctx<App>) -> std::result::Result<(), std::io::Error> {
        let tags = ctx.tags().join(",");
        let line = format!("{} {} {}/{} {tags}", job.n, ctx.queue(), ctx.attempt(), ctx.max_attempts());
        assert!(ctx.headers().contains_key("trace") && 0 < ctx.fence() && ctx.run_at().as_ms() == START);
        let _ = ctx.state().told.send(line);
        let next = ctx.client().enqueue(Other {}).await.map_err(std::io::Error::other)?;
        assert!(next.is_new());
        Ok(())
    }
    let rig = Rig::new();
    let job = rig.client.enqueue(Work { n: 7 }).tag("vip").tag("eu").header("trace", "1");
    assert!(matches!(job.await.unwrap(), Enqueued::Inserted { .. }));
    let (told, mut lines) = unbounded_channel();
    let (stop, working) = start(rig.worker().state(App { told }).handle(work));
    assert_eq!(lines.recv().await.unwrap(), "7 default 1/3 vip,eu");
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 1);
    assert_eq!(rig.client.count(Some("other")).await.unwrap().waiting, 1);
}

/// What one wants to count of runs are their ends, whatever they are.
#[tokio::test]
async fn middleware_sees_panics_and_timeouts_as_outcomes() {
    let rig = Rig::new();
    rig.client.enqueue(Work { n: 1 }).await.unwrap();
    rig.client.enqueue(Work { n: 2 }).timeout(Duration::from_millis(1)).await.unwrap();
    let (tell, mut told) = unbounded_channel();
    let watch = move |call: Call, next: Next| {
        let tell = tell.clone();
        async move {
            let outcome = next.run(call).await;
            let _ = tell.send(format!("{outcome:?}"));
            outcome
        }
    };
    let worker = rig.worker().with(watch).handle(async |job: Work, _: Ctx| {
        assert!(job.n != 1, "number {}", job.n);
        pending::<()>().await;
    });
    let live = worker.live();
    let (stop, working) = start(worker);
    let mut ends = [told.recv().await.unwrap(), told.recv().await.unwrap()];
    ends.sort();
    assert!(ends[0].contains("panic: number 1") && ends[1].contains("timeout after 1ms"), "{ends:?}");
    // Counted while the worker runs.
    while live.now().retried < 2 {
        tokio::task::yield_now().await;
    }
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap(), live.now());
}

/// Nobody needs to name a queue twice.
#[tokio::test]
async fn without_a_queue_named_a_worker_serves_those_of_its_types() {
    let rig = Rig::new();
    let (other, one) = (rig.client.enqueue(Other {}).await.unwrap().id().unwrap(), rig.enqueue(1).await);
    let (tell, mut told) = unbounded_channel();
    let (again, handler) = (tell.clone(), move |_: Work, _: Ctx| {
        let _ = tell.send(());
        std::future::ready(())
    });
    let worker = rig.worker().handle(handler).handle(move |_: Other, _: Ctx| {
        let _ = again.send(());
        std::future::ready(())
    });
    let (stop, working) = start(worker);
    for _ in 0..2 {
        tokio::time::timeout(Duration::from_secs(10), told.recv()).await.unwrap();
    }
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 2);
    assert_eq!((rig.get(other).await.state, rig.get(one).await.state), (State::Done, State::Done));
}

#[test]
fn workers_of_a_process_have_names_of_their_own() {
    let client = Rig::new().client;
    let name = || format!("{:?}", Worker::new(&client)).split('"').nth(1).unwrap().to_owned();
    assert_ne!(name(), name());
}
