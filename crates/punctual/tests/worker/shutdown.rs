//! How a worker ends, and how it tells that it lives.

use tokio::time::timeout;

use super::{isolation::held_back, *};

#[tokio::test]
async fn shutdown_lets_handlers_finish() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(None);
            ctx.cancel_token().cancelled().await;
            let _ = tell.send(ctx.stop_reason());
        }
    }));
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(told.recv().await.unwrap(), Some(Stop::Shutdown));
    assert_eq!(working.await.unwrap().unwrap().done, 1);
    assert_eq!(rig.get(id).await.state, State::Done);
}

#[tokio::test]
async fn an_error_after_shutdown_began_is_still_a_failure() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let _ = tell.send(());
        async move {
            ctx.cancel_token().cancelled().await;
            Outcome::retry("half done")
        }
    }));
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().retried, 1);
    assert_eq!(rig.get(id).await.attempt, 2);
}

/// S10: what the grace was too short for is released, and counts nothing.
#[tokio::test]
async fn what_has_not_ended_when_the_grace_is_over_is_released() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (handler, mut told) = endless();
    let (stop, working) = start(rig.worker().shutdown_grace(Duration::from_millis(10)).handle(handler));
    told.recv().await.unwrap();
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    let job = rig.get(id).await;
    assert_eq!((report.released, report.runs()), (1, 1));
    assert_eq!((job.state, job.attempt, job.run_at.as_ms()), (State::Waiting, 1, START));
}

#[tokio::test]
async fn the_second_signal_does_not_wait_for_the_grace() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (handler, mut told) = endless();
    let worker = rig.worker().shutdown_grace(Duration::from_hours(1)).handle(handler);
    let shutdown = Shutdown::default();
    let working = tokio::spawn(worker.run_until(shutdown.clone()));
    told.recv().await.unwrap();
    shutdown.graceful.cancel();
    shutdown.now.cancel();
    assert_eq!(working.await.unwrap().unwrap().released, 1);
    assert_eq!(rig.get(id).await.state, State::Waiting);
}

/// A rig, and a token that fires at a worker's `nth` call of a verb. The calls of it meet these faults.
fn ending_at<const N: usize>(verb: &'static str, nth: usize, faults: [Fault; N]) -> (Rig, CancellationToken) {
    let stop = CancellationToken::new();
    let (fire, mut calls, mut faults) = (stop.clone(), 0, faults.into_iter());
    let rig = Rig::faulty(move |called| {
        if called != verb {
            return Fault::Pass;
        }
        calls += 1;
        if calls == nth {
            fire.cancel();
        }
        faults.next().unwrap_or(Fault::Pass)
    });
    (rig, stop)
}

/// The signal comes while the worker tells the last notes of a run, and while it reserves.
#[tokio::test]
async fn nothing_begins_after_the_signal() {
    // The notes were refused the first time.
    let (mut rig, stop) = ending_at("extend", 2, [Fault::Before]);
    for n in [1, 2] {
        rig.client.enqueue(Work { n }).lease(LONG).await.unwrap();
    }
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let worker = rig.worker().slots(1).handle(move |job: Work, ctx: Ctx| {
        ctx.log("hello");
        handler(job, ctx)
    });
    let working = tokio::spawn(worker.run_until(stop));
    rig.called("extend").await;
    end.add_permits(2);
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.released), (1, 0), "it reserves nothing");
    assert_eq!((told.recv().await.is_some(), told.recv().await), (true, None));

    let (rig, stop) = ending_at("reserve", 1, []);
    let id = rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::Done);
    let report = rig.worker().handle(handler).run_until(stop).await.unwrap();
    assert_eq!((report.released, told.recv().await), (1, None), "it gives back what was on its way");
    assert_eq!((rig.get(id).await.state, rig.get(id).await.attempt), (State::Waiting, 1));
}

/// A suspect that waits for another one (S9) begins when the store has heard that this one has company. The signal comes meanwhile.
#[tokio::test]
async fn a_suspect_that_waits_does_not_begin_after_the_signal() {
    let (mut rig, stop) = ending_at("extend", 1, []);
    for n in 0..2 {
        rig.enqueue(n).await;
    }
    rig.crash_all_twice(2).await;
    let end = Arc::new(Semaphore::new(0));
    let (handler, mut told) = held_back(&end);
    let working = tokio::spawn(rig.worker().handle(handler).run_until(stop));
    rig.called("extend").await;
    end.add_permits(2);
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.released), (1, 1));
    assert_eq!((told.recv().await.is_some(), told.recv().await), (true, None));
}

/// A refused reserve has reserved nothing, so the worker need not wait for the store.
#[tokio::test]
async fn a_worker_whose_reserve_fails_ends_at_once() {
    let mut rig = Rig::faulty(|verb| if verb == "reserve" { Fault::Before } else { Fault::Pass });
    let (handler, _) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().shutdown_grace(Duration::from_hours(1)).handle(handler));
    rig.called("reserve").await;
    stop.cancel();
    let ended = timeout(PATIENCE, working).await.expect("it goes on to ask for jobs");
    assert_eq!(ended.unwrap().unwrap().runs(), 0);
}

/// S3: the store may have given it jobs, which nobody else gets for the length of a lease. That the repetition is refused does not
/// change that.
#[tokio::test]
async fn a_worker_that_ends_asks_again_for_what_it_may_have_reserved() {
    let (rig, stop) = ending_at("reserve", 1, [Fault::After, Fault::Before]);
    let id = rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::Done);
    let report = rig.worker().handle(handler).run_until(stop).await.unwrap();
    assert_eq!((report.released, told.recv().await), (1, None));
    assert_eq!(rig.get(id).await.state, State::Waiting);
}

/// Its thread can't be had back, but the job can: the fence keeps the two runs apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_handler_does_not_hold_up_the_end() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (unblock, blocks) = std::sync::mpsc::channel::<()>();
    let blocks = Mutex::new(blocks);
    let worker = rig.worker().shutdown_grace(Duration::ZERO).handle(move |_: Work, _: Ctx| {
        let _ = tell.send(());
        let _ = blocks.lock().unwrap().recv();
        std::future::ready(())
    });
    let (stop, working) = start(worker);
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().released, 1);
    assert_eq!((rig.get(id).await.state, rig.get(id).await.attempt), (State::Waiting, 1));
    drop(unblock);
}

#[tokio::test]
async fn a_worker_that_is_dropped_releases_its_jobs() {
    let mut rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (handler, mut told) = endless();
    let (_stop, working) = start(rig.worker().handle(handler));
    told.recv().await.unwrap();
    working.abort();
    rig.called("settle").await;
    // The call was made; its effect is there once the next one is answered.
    while rig.get(id).await.state == State::Running {
        tokio::task::yield_now().await;
    }
    assert_eq!((rig.get(id).await.state, rig.get(id).await.attempt), (State::Waiting, 1));
}

#[tokio::test]
async fn an_idle_worker_ends_at_once() {
    let mut rig = Rig::new();
    let (handler, _) = endless();
    let (stop, working) = start(rig.worker().handle(handler));
    rig.called("wait").await;
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().runs(), 0);
}

#[tokio::test]
async fn health_is_told_by_port_and_file() {
    let mut rig = Rig::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("health");
    // A port that is free now; nobody else in this test asks for one.
    let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (handler, _) = endless();
    let (stop, working) = start(rig.worker().health_addr(addr).health_file(&file).handle(handler));
    rig.called("wait").await;
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\r\n\r\nok, last iteration "), "{answer}");
    stop.cancel();
    working.await.unwrap().unwrap();
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("ok, last iteration "));
}

#[tokio::test]
async fn a_health_port_that_is_taken_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let rig = Rig::new();
    let (handler, _) = endless();
    let worker = rig.worker().health_addr(taken.local_addr().unwrap()).handle(handler);
    let error = worker.run_until(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn a_backoff_of_the_derive_is_what_it_says() {
    let backoff = Backoff::fixed(Duration::from_secs(10));
    assert_eq!(Work::options().backoff, Some(backoff));
}
