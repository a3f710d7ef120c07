//! What a handler says, and what becomes of its job.

use super::*;

#[tokio::test]
async fn done_is_acked() {
    let (report, job) = run_one(Outcome::Done).await;
    assert_eq!((report.done, report.runs(), job.state), (1, 1, State::Done));
}

/// S10: a failure counts, and waits for its backoff.
#[tokio::test]
async fn an_error_waits_for_the_backoff_of_the_job() {
    let (report, job) = run_one(Outcome::retry("smtp 421")).await;
    assert_eq!((report.retried, job.state, job.attempt), (1, State::Waiting, 2));
    let pause = job.run_at.as_ms() - START;
    assert!((5_000..=10_000).contains(&pause), "with jitter between half and all of 10 s: {pause}");
    assert_eq!(job.failures[0].error, "smtp 421");
    assert_eq!(job.failures[0].worker, "test");
}

#[tokio::test]
async fn a_retry_may_name_its_pause() {
    let outcome = Outcome::Retry { after: Some(Duration::from_secs(77)), error: "later".into() };
    let (_, job) = run_one(outcome).await;
    assert_eq!(job.run_at.as_ms(), START + 77_000);
}

/// S10: a snooze counts nothing.
#[tokio::test]
async fn a_snooze_counts_nothing() {
    let (report, job) = run_one(Outcome::Snooze(Duration::from_secs(5))).await;
    assert_eq!((report.snoozed, job.state, job.attempt, job.snoozes), (1, State::Waiting, 1, 1));
    assert_eq!(job.run_at.as_ms(), START + 5_000);
}

#[tokio::test]
async fn an_absurd_pause_is_cut_and_not_refused() {
    let (report, job) = run_one(Outcome::Snooze(Duration::MAX)).await;
    assert_eq!((report.snoozed, report.lost, job.state), (1, 0, State::Waiting));
}

#[tokio::test]
async fn dead_and_cancel_end_the_job() {
    let (report, job) = run_one(Outcome::Dead("no such user".into())).await;
    assert_eq!((report.dead, job.state, job.reason.as_deref()), (1, State::Dead, Some("no such user")));
    let (report, job) = run_one(Outcome::Cancel).await;
    assert_eq!((report.cancelled, job.state), (1, State::Cancelled));
}

#[tokio::test]
async fn a_panic_is_a_failure_and_the_worker_goes_on() {
    let rig = Rig::new();
    let bad = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(1).handle(move |job: Work, _: Ctx| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(job.n);
            assert!(job.n != 1, "number {}", job.n);
        }
    }));
    assert_eq!(told.recv().await, Some(1));
    let good = rig.enqueue(2).await;
    assert_eq!(told.recv().await, Some(2));
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.retried, report.done), (1, 1));
    assert_eq!(rig.get(bad).await.failures[0].error, "panic: number 1");
    assert_eq!(rig.get(good).await.state, State::Done);
}

#[tokio::test]
async fn a_panic_in_a_destructor_is_a_failure_too() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("boom");
        }
    }
    let rig = Rig::new();
    let id = rig.client.enqueue(Work { n: 1 }).timeout(Duration::from_millis(1)).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, _: Ctx| {
        let _ = tell.send(());
        async {
            let _bomb = Bomb;
            pending::<()>().await;
        }
    }));
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().retried, 1);
    assert_eq!(rig.get(id).await.attempt, 2);
}

/// An undecodable payload is dead, with the decoder's words.
#[tokio::test]
async fn what_cannot_be_decoded_is_dead() {
    let mut rig = Rig::new();
    let id = rig.enqueue(1).await;
    let _ = rig.client.edit(id, punctual::Payload::json("{\"m\":1}")).await.unwrap();
    let (handler, _) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().handle(handler));
    rig.called("settle").await;
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().dead, 1);
    let reason = rig.get(id).await.reason.unwrap();
    assert!(reason.contains("test.work") && reason.contains("missing field `n`"), "{reason}");
}

#[tokio::test]
async fn a_pause_that_a_run_asks_for_is_cut_to_what_its_worker_grants() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::retry_after(Duration::from_hours(5), "later"));
    let (stop, working) = start(rig.worker().retry_after_max(Duration::from_mins(1)).handle(handler));
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().retried, 1);
    let granted = Timestamp::from_ms(START + 60_000).unwrap();
    let queue = rig.client.queue("default").show().await.unwrap().unwrap();
    assert_eq!((rig.get(id).await.run_at, queue.opens_at), (granted, Some(granted)));
}

/// A run that its worker could not begin counts nothing, and another worker gets the job.
#[tokio::test]
async fn what_could_not_begin_is_no_attempt_and_runs_elsewhere() {
    let rig = Rig::new();
    for n in 1..=8 {
        rig.enqueue(n).await;
    }
    let starved = rig
        .worker()
        .name("starved")
        .slots(4)
        .handle(async |_: Work, _: Ctx| Outcome::NotStarted("too many open files".to_owned()));
    let (stop_starved, starving) = start(starved);
    // What it reserved before it knew went back.
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(1).handle(move |job: Work, ctx: Ctx| {
        let _ = tell.send((job.n, ctx.attempt()));
        std::future::ready(())
    }));
    let mut ran = Vec::new();
    while ran.len() < 8 {
        tokio::select! {
            some = told.recv() => ran.push(some.unwrap()),
            // What could not begin waits for a second by the clock of the store.
            () = tokio::time::sleep(Duration::from_millis(20)) => rig.clock.advance(Duration::from_secs(1)),
        }
    }
    ran.sort_unstable();
    assert_eq!(ran, (1..=8).map(|n| (n, 1)).collect::<Vec<_>>());
    stop_starved.cancel();
    stop.cancel();
    let report = starving.await.unwrap().unwrap();
    assert_eq!((report.retried, report.dead, report.done), (0, 0, 0));
    working.await.unwrap().unwrap();
}
