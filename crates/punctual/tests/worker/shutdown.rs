//! How a worker ends, and how it tells that it lives.

use tokio::time::timeout;

use super::*;

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

/// Ends a worker gracefully the first time that it calls a verb, which meets `fault`.
fn ending_at(verb: &'static str, fault: Fault) -> (Rig, CancellationToken) {
    let stop = CancellationToken::new();
    let end = stop.clone();
    let rig = Rig::faulty(move |called| {
        if called != verb || end.is_cancelled() {
            return Fault::Pass;
        }
        end.cancel();
        fault
    });
    (rig, stop)
}

/// Both of the ways that a loop can wait between two looks at the signal: the notes of a run, and the reserve itself.
#[tokio::test]
async fn nothing_begins_after_the_signal() {
    let (rig, stop) = ending_at("extend", Fault::Pass);
    for n in [1, 2] {
        rig.client.enqueue(Work { n }).lease(LONG).await.unwrap();
    }
    let (tell, mut told) = unbounded_channel();
    let worker = rig.worker().slots(1).handle(move |job: Work, ctx: Ctx| {
        ctx.log("hello");
        let _ = tell.send(job.n);
        std::future::ready(())
    });
    let report = worker.run_until(stop).await.unwrap();
    assert_eq!((report.done, report.released), (1, 0), "it reserves nothing");
    assert_eq!((told.recv().await, told.recv().await), (Some(1), None));

    let (rig, stop) = ending_at("reserve", Fault::Pass);
    let id = rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::Done);
    let report = rig.worker().handle(handler).run_until(stop).await.unwrap();
    assert_eq!((report.released, told.recv().await), (1, None), "it gives back what was on its way");
    assert_eq!((rig.get(id).await.state, rig.get(id).await.attempt), (State::Waiting, 1));
}

/// It has nothing to give back.
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

/// S3: the store may have given it jobs, which nobody else gets for the length of a lease.
#[tokio::test]
async fn a_worker_that_ends_asks_again_for_what_it_may_have_reserved() {
    let (rig, stop) = ending_at("reserve", Fault::After);
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
