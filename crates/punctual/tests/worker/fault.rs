//! A store that fails, and panics in the worker itself.

use tokio::time::timeout;

use super::*;

/// Only the first call of a verb meets the fault.
fn first(verb: &'static str, fault: Fault) -> impl FnMut(&'static str) -> Fault + Send {
    let mut is_first = true;
    move |called| {
        if called == verb && is_first {
            is_first = false;
            fault
        } else {
            Fault::Pass
        }
    }
}

/// S3: the answer of the first reserve is lost. Repeated with its number, it answers the same jobs.
#[tokio::test]
async fn a_reserve_whose_answer_was_lost_costs_nothing() {
    let rig = Rig::faulty(first("reserve", Fault::After));
    let id = rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().handle(handler));
    assert_eq!(told.recv().await, Some(1));
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.reclaimed, report.lost), (1, 0, 0));
    assert_eq!((rig.get(id).await.attempt, rig.get(id).await.expired_leases), (1, 0));
}

/// S9: a heartbeat without an answer costs no lease, also of a run that began after it.
#[tokio::test]
async fn a_heartbeat_that_hangs_holds_up_no_other() {
    let mut rig = Rig::faulty(first("extend", Fault::Delay(Duration::from_hours(1))));
    rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(2).handle(move |job: Work, ctx: Ctx| {
        let _ = tell.send(job.n);
        async move { ctx.cancel_token().cancelled().await }
    }));
    assert_eq!(told.recv().await, Some(1));
    rig.called("extend").await;
    let id = rig.enqueue(2).await;
    assert_eq!(told.recv().await, Some(2));
    rig.clock.advance(Duration::from_millis(600));
    let extended = async {
        while rig.get(id).await.running.unwrap().until.as_ms() != START + 1_600 {
            rig.called("extend").await;
        }
    };
    timeout(PATIENCE, extended).await.expect("no heartbeat follows the one that hangs");
    stop.cancel();
    working.abort();
}

/// S9: nor do notes without an answer.
#[tokio::test]
async fn notes_that_hang_hold_up_no_heartbeat() {
    let mut rig = Rig::faulty(first("extend", Fault::Delay(Duration::from_hours(1))));
    rig.client.enqueue(Work { n: 1 }).lease(Duration::from_secs(12)).await.unwrap();
    let (stop, working) = start(rig.worker().handle(async |_: Work, ctx: Ctx| {
        ctx.log("hello");
        ctx.cancel_token().cancelled().await;
    }));
    rig.called("extend").await;
    rig.called("extend").await;
    stop.cancel();
    working.abort();
}

/// S3: a repeated settle answers `LeaseLost`, which the worker reads as settled, by what its verdict led to.
#[tokio::test]
async fn a_settle_whose_answer_was_lost_counts_once() {
    for (outcome, count) in [
        (Outcome::Done, (|report| report.done) as fn(&WorkReport) -> u64),
        (Outcome::retry("no"), |report| report.retried),
        (Outcome::Snooze(SECOND), |report| report.snoozed),
        (Outcome::Dead("never".into()), |report| report.dead),
        (Outcome::Cancel, |report| report.cancelled),
    ] {
        let mut rig = Rig::faulty(first("settle", Fault::After));
        rig.enqueue(1).await;
        let (handler, _told) = telling(move |_| outcome.clone());
        let (stop, working) = start(rig.worker().handle(handler));
        rig.called("settle").await;
        rig.called("settle").await;
        stop.cancel();
        let report = working.await.unwrap().unwrap();
        assert_eq!((count(&report), report.runs(), report.lost), (1, 1, 0), "{report:?}");
    }
}

/// What the log and health say of trouble with the store is that of `Trouble`; here is what the worker does.
///
/// Each refusal meets the first settle, of a run that has ended, and the reserve after it.
#[tokio::test]
async fn a_refusal_that_names_no_settlement_costs_no_verdict_and_no_worker() {
    use ErrorKind::{Corrupt, StoreFull, TooLarge, Unavailable, UnknownOutcome, Unsupported};
    for fault in [
        Fault::Refused(Unsupported),
        Fault::Refused(Corrupt),
        Fault::Refused(StoreFull),
        Fault::Foreign(Unavailable),
        Fault::Foreign(UnknownOutcome),
        Fault::Foreign(TooLarge),
    ] {
        for verb in ["settle", "reserve"] {
            let mut before = i32::from(verb == "reserve");
            let rig = Rig::faulty(move |called| {
                if called != verb || before < 0 {
                    return Fault::Pass;
                }
                before -= 1;
                if before < 0 { fault } else { Fault::Pass }
            });
            let (handler, mut told) = telling(|_| Outcome::Done);
            let (stop, working) = start(rig.worker().handle(handler));
            for n in 1..=3 {
                rig.enqueue(n).await;
                assert_eq!(told.recv().await, Some(n), "{verb}: {fault:?}");
            }
            stop.cancel();
            let report = working.await.unwrap().unwrap();
            assert_eq!((report.done, report.runs(), report.lost), (3, 3, 0), "{verb}: {fault:?}: {report:?}");
            assert_eq!(rig.client.count(None).await.unwrap().done, 3, "{verb}: {fault:?}");
        }
    }
}

/// A gateway that refuses what is in a verdict, for example an error text that looks like an attack, holds up that verdict alone.
#[tokio::test]
async fn a_verdict_that_is_not_let_through_holds_up_no_other_job() {
    let is_open = CancellationToken::new();
    let open = is_open.clone();
    let rig = Rig::faulty(move |verb| {
        let is_refused = verb == "settle" && !open.is_cancelled();
        if is_refused { Fault::Foreign(ErrorKind::Unavailable) } else { Fault::Pass }
    });
    let (handler, mut told) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().slots(1).handle(handler));
    for n in 1..=3 {
        rig.enqueue(n).await;
        let started = timeout(PATIENCE, told.recv()).await;
        assert_eq!(started.expect("nothing is reserved while a verdict is held back"), Some(n));
    }
    is_open.cancel();
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.runs(), report.lost), (3, 3, 0), "{report:?}");
}

/// At its start, what is wrong is shown. A refused token ends it at any time, and so does a newer store.
#[tokio::test]
async fn a_worker_ends_by_a_refusal_only_at_its_start() {
    use ErrorKind::{Closed, Forbidden, Outdated, Unauthenticated, Unsupported};
    for kind in [Unsupported, Unauthenticated, Outdated] {
        let rig = Rig::faulty(first("reserve", Fault::Refused(kind)));
        let (handler, _told) = telling(|_| Outcome::Done);
        let (_stop, working) = start(rig.worker().handle(handler));
        assert_eq!(working.await.unwrap().unwrap_err().kind(), kind);
    }
    for kind in [Closed, Forbidden, Outdated, Unauthenticated] {
        let rig = Rig::faulty(first("settle", Fault::Refused(kind)));
        rig.enqueue(1).await;
        let (handler, _told) = telling(|_| Outcome::Done);
        let (_stop, working) = start(rig.worker().handle(handler));
        assert_eq!(working.await.unwrap().unwrap_err().kind(), kind);
    }
}

/// Only the store's own refusal of a verdict gives it up; the others of its call are settled.
#[tokio::test]
async fn a_verdict_that_the_store_refuses_is_given_up_alone() {
    let mut rig = Rig::new();
    let (refused, other) = (rig.enqueue(1).await, rig.enqueue(2).await);
    rig.client = Client::new(Arc::new(FaultyStore::new(Arc::new(rig.memory.clone()), move |_| {
        Fault::RefusedOf(refused, ErrorKind::Invalid)
    })));
    let both = Arc::new(Barrier::new(2));
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(2).handle(move |job: Work, _| {
        let (both, tell) = (Arc::clone(&both), tell.clone());
        async move {
            both.wait().await;
            let _ = tell.send(job.n);
            Outcome::Done
        }
    }));
    for _ in 0..2 {
        timeout(PATIENCE, told.recv()).await.unwrap().unwrap();
    }
    stop.cancel();
    let report = timeout(PATIENCE, working).await.unwrap().unwrap().unwrap();
    assert_eq!((report.done, report.lost), (1, 1), "{report:?}");
    assert_eq!((rig.get(refused).await.state, rig.get(other).await.state), (State::Running, State::Done));
}

/// A supervisor that watches the health must not start workers again because their store is away.
#[tokio::test]
async fn a_worker_whose_store_is_away_is_alive_and_says_so() {
    for (fault, words) in [
        (Fault::Before, "held up: the store cannot be reached: "),
        (Fault::Refused(ErrorKind::StoreFull), "held up: the store refuses calls: "),
        (Fault::Delay(Duration::from_hours(1)), "held up: the store has not answered for "),
    ] {
        let is_away = CancellationToken::new();
        let away = is_away.clone();
        let rig = Rig::faulty(move |verb| {
            if matches!(verb, "reserve" | "settle") && away.is_cancelled() { fault } else { Fault::Pass }
        });
        let health = punctual::worker::Health::default();
        let (handler, mut told) = telling(|_| Outcome::Done);
        let (stop, working) = start(rig.worker().health(&health).handle(handler));
        rig.enqueue(1).await;
        assert_eq!(told.recv().await, Some(1));
        is_away.cancel();
        rig.enqueue(2).await;
        let says = async {
            loop {
                let now = health.now();
                assert!(now.is_alive, "{now:?}");
                if now.text.starts_with(words) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, says).await.unwrap_or_else(|_| panic!("never {words}, but {:?}", health.now()));
        stop.cancel();
        working.abort();
    }
}

/// Some of a settle may be away: the worker goes on with what there is, and settles these again.
#[tokio::test]
async fn what_is_away_is_settled_again() {
    let mut rig = Rig::faulty(first("settle", Fault::InPart));
    let ids = [rig.enqueue(1).await, rig.enqueue(2).await, rig.enqueue(3).await, rig.enqueue(4).await];
    let all = Arc::new(tokio::sync::Barrier::new(4));
    let (stop, working) = start(rig.worker().slots(4).handle(move |_: Work, _| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            Outcome::Done
        }
    }));
    rig.called("settle").await;
    rig.called("settle").await;
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.runs(), report.lost), (4, 4, 0), "{report:?}");
    for id in ids {
        assert_eq!(rig.get(id).await.state, State::Done);
    }
}

/// Every third call fails, two thirds of these after they took effect: still every job runs exactly once.
#[tokio::test]
async fn with_a_store_that_keeps_failing_every_job_runs_once() {
    for seed in 1..=3 {
        let clock = ManualClock::new(Timestamp::from_ms(START).unwrap());
        let memory = Arc::new(MemoryStore::new(Clock::Manual(clock)));
        let quiet = Client::new(memory.clone());
        quiet.enqueue_many((0..100).map(|n| Work { n })).await.unwrap();
        let faulty = Client::new(Arc::new(FaultyStore::seeded(memory, seed, 3)));
        let (handler, mut told) = telling(|_| Outcome::Done);
        let (stop, working) = start(Worker::new(&faulty).slots(10).handle(handler));
        let mut ran = Vec::new();
        while ran.len() < 100 {
            ran.push(told.recv().await.unwrap());
        }
        stop.cancel();
        let report = working.await.unwrap().unwrap();
        assert_eq!((report.done, report.runs(), report.lost), (100, 100, 0), "seed {seed}");
        ran.sort_unstable();
        assert!(ran.iter().copied().eq(0..100), "seed {seed}");
        assert_eq!(quiet.count(None).await.unwrap().done, 100);
    }
}

/// The loop is supervised: it goes on where it was.
#[tokio::test]
async fn a_panic_in_the_loop_does_not_end_the_worker() {
    let mut settles = 0;
    let rig = Rig::faulty(move |verb| {
        settles += u32::from(verb == "settle");
        assert!(verb != "settle" || settles != 1, "on purpose");
        Fault::Pass
    });
    rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().handle(handler));
    assert_eq!(told.recv().await, Some(1));
    rig.enqueue(2).await;
    assert_eq!(told.recv().await, Some(2));
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 2);
}

#[tokio::test]
async fn a_panic_in_the_heartbeat_does_not_end_it() {
    let mut beats = 0;
    let mut rig = Rig::faulty(move |verb| {
        beats += u32::from(verb == "extend");
        assert!(verb != "extend" || beats != 1, "on purpose");
        Fault::Pass
    });
    rig.enqueue(1).await;
    let (handler, _told) = endless();
    let (stop, working) = start(rig.worker().shutdown_grace(Duration::ZERO).handle(handler));
    rig.called("extend").await;
    rig.called("extend").await;
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().released, 1);
}
