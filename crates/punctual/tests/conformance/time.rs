//! Steps of the store's clock, back and forth, and the pause in taking back after a jump.

use punctual::{
    State, When,
    store::{Action, Settled, Take, Verdict},
};

use crate::fixture::{Fixture, QUEUE, at, ids, millis, retry, secs};

/// S14: the store tells the time of its own clock, and reads it anew for each call.
pub(crate) async fn the_store_goes_by_its_own_clock(t: Fixture) {
    assert_eq!(t.store.now().await.unwrap(), at(0));
    t.clock.set(at(7));
    assert_eq!(t.store.now().await.unwrap(), at(7));
    assert_eq!(t.reserve(0).await.now, at(7));
}

/// S14: when the clock jumped more than 20 s past the last turn while leases exist, nothing is reclaimed for 5 s.
pub(crate) async fn nothing_is_reclaimed_for_a_heartbeat_after_a_jump(t: Fixture) {
    let run = t.run().await;
    t.clock.set(at(20_001));
    let batch = t.reserve(1).await;
    assert_eq!((batch.reclaimed.len(), batch.more, batch.next_due), (0, false, Some(secs(5))));
    assert_eq!(t.reserve(1).await.reclaimed, [], "nor by a second call at the same instant");
    t.clock.set(at(25_000));
    let batch = t.reserve(1).await;
    assert_eq!((batch.reclaimed.len(), batch.next_due), (0, Some(millis(1))));
    t.clock.set(at(25_001));
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, run.lease);
}

/// S14: 20 s are no jump yet: a default lease and its heartbeat.
pub(crate) async fn twenty_seconds_are_no_jump(t: Fixture) {
    t.run().await;
    t.clock.set(at(20_000));
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S14: the pause concerns taking back only: due jobs start, and a holder that lives on keeps its lease.
pub(crate) async fn a_jump_makes_jobs_due_and_lets_holders_extend(t: Fixture) {
    let run = t.run().await;
    let due = t.add_with(|job| job.run_at = When::In(secs(3_600))).await;
    t.pass(3_600);
    assert_eq!(ids(&t.reserve(5).await), [due]);
    t.extend(run.lease).await;
    t.pass(5);
    assert_eq!(t.reserve(5).await.reclaimed, []);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(3_615_000));
}

/// S14: a jump is looked for where leases exist, in whatever queue.
pub(crate) async fn leases_of_any_queue_make_a_jump(t: Fixture) {
    t.add_with(|job| (job.queue, job.options.lease) = ("bulk".to_owned(), Some(secs(600)))).await;
    t.reserve_by(&t.want_from(&[("bulk", 1)], 1)).await;
    t.pass(21);
    t.run_with(|job| job.options.lease = Some(secs(1))).await;
    t.pass(1);
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.pass(4);
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S14: without a lease anywhere, a long silence is no jump.
pub(crate) async fn a_silence_without_leases_is_no_jump(t: Fixture) {
    t.reserve(0).await;
    t.pass(3_600);
    t.run_with(|job| job.options.lease = Some(secs(1))).await;
    t.pass(1);
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S14: reserve, take, extend and settle leave their time, empty ones too.
pub(crate) async fn each_turn_of_a_worker_leaves_its_time(t: Fixture) {
    let take = Take { queue: "bulk".to_owned(), n: 0, older_than: secs(0) };
    for verb in ["reserve", "take", "extend", "settle"] {
        t.run_with(|job| (job.options.lease, job.options.max_attempts) = (Some(secs(30)), Some(1))).await;
        t.pass(18);
        match verb {
            "reserve" => drop(t.reserve(0).await),
            "take" => drop(t.store.take(&take).await.unwrap()),
            "extend" => drop(t.store.extend(&[]).await.unwrap()),
            _ => drop(t.store.settle(&[], None).await.unwrap()),
        }
        t.pass(16);
        assert_eq!(t.reserve(0).await.reclaimed.len(), 1, "34 s after the reserve, 16 s after the {verb}");
    }
}

/// S14: each of these calls looks for the jump as well, so that the next one takes nothing back.
pub(crate) async fn each_turn_of_a_worker_looks_for_a_jump(t: Fixture) {
    t.run().await;
    t.pass(100);
    t.store.extend(&[]).await.unwrap();
    t.pass(4);
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.pass(1);
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S9, S14: a jump has one pause. A long silence after a call in that pause is no second jump, or a store that only takes call now and
/// then would never reclaim.
pub(crate) async fn a_silence_after_a_pause_is_no_second_jump(t: Fixture) {
    let run = t.run().await;
    t.pass(30);
    assert_eq!(t.take(1).await.len(), 0, "this silence may have been a jump");
    t.pass(30);
    let taken: Vec<_> = t.take(1).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, [run.job.id], "60 s after the start of a lease of 15 s, by the second take");
}

/// S9, S14: nor does an extend before each take put off taking back for ever.
pub(crate) async fn calls_that_come_in_pairs_reclaim_too(t: Fixture) {
    let run = t.run().await;
    for _ in 0..2 {
        t.pass(29);
        t.store.extend(&[]).await.unwrap();
        t.pass(1);
        t.take(0).await;
    }
    assert_eq!(t.state(run.job.id).await, State::Waiting, "60 s after the start of a lease of 15 s");
}

/// S14: once a call came after the pause, the next jump has a pause of its own.
pub(crate) async fn each_jump_has_its_pause(t: Fixture) {
    for _ in 0..2 {
        t.run_with(|job| job.options.max_attempts = Some(1)).await;
        t.pass(30);
        assert_eq!(t.reserve(0).await.reclaimed, []);
        t.pass(5);
        assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
    }
}

/// S14: enqueues, acts, reads and sweeps are no turns: they tell nothing of whether workers live.
pub(crate) async fn other_calls_leave_no_time(t: Fixture) {
    let run = t.run().await;
    t.pass(19);
    t.add_with(|job| job.run_at = When::In(secs(600))).await;
    t.list("", 10).await;
    t.sweep(10).await;
    t.pause().await;
    t.pass(2);
    assert_eq!(t.reserve(0).await.reclaimed, []);
    assert_eq!(t.state(run.job.id).await, State::Running);
}

/// S5, S14: the clock back by d makes jobs late by d; nothing starts early, and nothing is lost.
pub(crate) async fn a_step_back_makes_jobs_late(t: Fixture) {
    t.clock.set(at(60_000));
    let id = t.add().await;
    t.clock.set(at(50_000));
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.next_due), (0, Some(secs(10))));
    t.clock.set(at(60_000));
    assert_eq!(ids(&t.reserve(1).await), [id]);
}

/// S8, S10, S14: fences rise whatever the clock does.
pub(crate) async fn fences_rise_when_the_clock_goes_back(t: Fixture) {
    t.clock.set(at(3_600_000));
    let run = t.run().await;
    t.end(&run, Verdict::Release).await;
    t.clock.set(at(3_600_000 - 60_000));
    t.apply(run.job.id, Action::RunNow).await;
    assert!(run.lease.fence < t.reserve_one().await.lease.fence);
}

/// S8, S10, S14: nor does a take on a clock that went back lower the fences behind it.
pub(crate) async fn a_take_lowers_no_fence(t: Fixture) {
    t.clock.set(at(3_600_000));
    let run = t.run().await;
    t.clock.set(at(0));
    t.add().await;
    assert_eq!(t.take(1).await.len(), 1);
    assert!(run.lease.fence < t.run().await.lease.fence);
}

/// S14: a step back is left as the last time, too: coming forth again is a jump.
pub(crate) async fn coming_back_from_a_step_back_is_a_jump(t: Fixture) {
    t.clock.set(at(100_000));
    t.run().await;
    t.clock.set(at(0));
    t.reserve(0).await;
    t.clock.set(at(120_000));
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.pass(5);
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S14: after a step back a pause would last for longer than it may: it is void.
pub(crate) async fn a_pause_that_a_step_back_would_lengthen_is_void(t: Fixture) {
    let run = t.run_with(|job| job.options.lease = Some(secs(1))).await;
    t.clock.set(at(100_000));
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.clock.set(at(99_999));
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, run.lease);
}

/// S14: a pause that was void once does not come back with the clock.
pub(crate) async fn a_void_pause_stays_void(t: Fixture) {
    t.run_with(|job| job.options.lease = Some(secs(1))).await;
    for ms in [100_000, 99_000] {
        t.clock.set(at(ms));
        t.store.extend(&[]).await.unwrap();
    }
    t.clock.set(at(100_500));
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S14: what is told of the next due time knows of the step back as well.
pub(crate) async fn a_void_pause_is_not_waited_for(t: Fixture) {
    t.run_with(|job| job.options.lease = Some(secs(1))).await;
    let next = t.want(1);
    t.clock.set(at(100_000));
    t.reserve_by(&next).await;
    t.clock.set(at(50_000));
    let repeated = t.reserve_by(&next).await;
    assert_eq!((repeated.more, repeated.next_due), (true, Some(secs(0))));
}

/// S9, S14: a smaller step forth may take leases back early; the fence bounds the harm.
pub(crate) async fn a_small_step_forth_takes_leases_back_early(t: Fixture) {
    let run = t.run().await;
    t.pass(15);
    let again = t.reserve_one().await;
    t.clock.set(at(1_000));
    assert_eq!(t.settle_one(run.lease, retry(secs(0))).await, Settled::LeaseLost);
    assert_eq!(t.end(&again, Verdict::Ack).await.finished_at, Some(at(1_000)));
}

/// S14: a wait goes by the store's clock as well: a job that a turn of the clock makes due ends it.
pub(crate) async fn a_turn_of_the_clock_ends_a_wait(t: Fixture) {
    t.add_with(|job| job.run_at = When::In(secs(1))).await;
    let queues = [QUEUE.to_owned()];
    let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, secs(3_600)));
    let (woken, ()) = tokio::join!(wait, async { t.pass(1) });
    woken.expect("it returns").unwrap();
}
