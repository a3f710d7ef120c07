//! Silences: when the store had no call for so long that a lease can have ended although its holder lives.

use punctual::{
    State, When,
    store::{Action, LeaseStatus, QueueOp, Take, Verdict},
};

use crate::fixture::{Fixture, at, ids, millis, secs};

/// S9, S14: a lease that ended while the store had no call is held back until its holder can have extended it.
pub(crate) async fn a_lease_that_ended_in_a_silence_is_held_back(t: Fixture) {
    for (lease, away, pause) in
        [(1, 1, 2), (2, 3, 2), (15, 16, 6), (15, 86_400, 6), (3_600, 3_601, 1_440), (86_400, 90_000, 34_560)]
    {
        t.run_with(|job| (job.options.lease, job.options.max_attempts) = (Some(secs(lease)), Some(1))).await;
        t.silence(away);
        let batch = t.reserve(1).await;
        let watch = millis(pause * 1_000).min(millis(lease * 400));
        assert_eq!(
            (batch.reclaimed.len(), batch.more, batch.next_due),
            (0, false, Some(watch)),
            "a lease of {lease} s"
        );
        assert_eq!(t.reserve(1).await.reclaimed, [], "nor by a second call at the same instant");
        t.pass(pause - 1).await;
        t.clock.advance(millis(999));
        assert_eq!(t.reserve(1).await.reclaimed, [], "a lease of {lease} s");
        t.clock.advance(millis(1));
        assert_eq!(t.reserve(0).await.reclaimed.len(), 1, "a lease of {lease} s");
    }
}

/// S14: a gap of half of a lease is no silence yet.
pub(crate) async fn half_of_a_lease_is_no_silence(t: Fixture) {
    for (gap, reclaimed) in [(7_500, 1), (7_501, 0)] {
        t.run_with(|job| job.options.max_attempts = Some(1)).await;
        t.clock.advance(millis(15_000 - gap));
        t.mark().await;
        t.clock.advance(millis(gap));
        assert_eq!(t.reserve(0).await.reclaimed.len(), reclaimed, "a gap of {gap} ms");
    }
}

/// S9, S14: a silence concerns reclaiming only: due jobs start, and a holder that lives on keeps its lease.
pub(crate) async fn a_silence_makes_jobs_due_and_lets_holders_extend(t: Fixture) {
    let run = t.run().await;
    let due = t.add_with(|job| job.run_at = When::In(secs(3_600))).await;
    t.silence(3_600);
    assert_eq!(ids(&t.reserve(5).await), [due]);
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    t.pass(5).await;
    assert_eq!(t.reserve(5).await.reclaimed, []);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(3_615_000));
}

/// S14: what is a silence for a short lease is none for a long one.
pub(crate) async fn a_silence_is_measured_against_each_lease(t: Fixture) {
    let long = t.run_with(|job| job.options.lease = Some(secs(30))).await;
    t.pass(22).await;
    let short = t.run_with(|job| job.options.lease = Some(secs(6))).await;
    t.silence(8);
    let reclaimed: Vec<_> = t.reserve(0).await.reclaimed.iter().map(|back| back.lease).collect();
    assert_eq!(reclaimed, [long.lease]);
    t.clock.advance(millis(2_400));
    let reclaimed: Vec<_> = t.reserve(0).await.reclaimed.iter().map(|back| back.lease).collect();
    assert_eq!(reclaimed, [short.lease]);
}

/// S14: the marks of a store are those of all queues.
pub(crate) async fn calls_of_any_queue_end_a_silence(t: Fixture) {
    let run = t.run().await;
    for _ in 0..2 {
        t.clock.advance(millis(7_500));
        t.reserve_by(&t.want_from(&[("bulk", 1)], 1)).await;
    }
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, run.lease);
}

/// S14: reserve, take, extend, settle, act and sweep leave marks, empty ones too.
pub(crate) async fn each_call_of_a_worker_or_operator_leaves_a_mark(t: Fixture) {
    let take = Take { queue: "bulk".to_owned(), n: 0, older_than: secs(0) };
    for verb in ["reserve", "take", "extend", "settle", "act", "sweep"] {
        t.run_with(|job| job.options.max_attempts = Some(1)).await;
        t.clock.advance(millis(7_500));
        match verb {
            "reserve" => drop(t.reserve(0).await),
            "take" => drop(t.store.take(&take).await.unwrap()),
            "extend" => drop(t.store.extend(&[]).await.unwrap()),
            "settle" => drop(t.store.settle(&[], None).await.unwrap()),
            "act" => drop(t.act(t.id(0xffff), Action::RunNow).await),
            _ => drop(t.sweep(10).await),
        }
        t.clock.advance(millis(7_500));
        assert_eq!(t.reserve(0).await.reclaimed.len(), 1, "{verb}");
    }
}

/// S14: enqueues, reads and settings leave no mark.
pub(crate) async fn enqueues_and_reads_leave_no_mark(t: Fixture) {
    let run = t.run().await;
    t.silence(7);
    t.add_with(|job| job.run_at = When::In(secs(600))).await;
    t.list("", 10).await;
    t.pause().await;
    t.silence(8);
    assert_eq!(t.reserve(0).await.reclaimed, []);
    assert_eq!(t.state(run.job.id).await, State::Running);
}

/// S9, S14: a store that only takes call now and then reclaims with the second one.
pub(crate) async fn rare_calls_reclaim_too(t: Fixture) {
    let run = t.run().await;
    t.silence(30);
    assert_eq!(t.take(1).await.len(), 0, "its holder may live");
    t.silence(30);
    let taken: Vec<_> = t.take(1).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, [run.job.id], "60 s after the start of a lease of 15 s, by the second take");
    let run = t.run().await;
    for _ in 0..2 {
        t.silence(29);
        t.mark().await;
        t.silence(1);
        t.take(0).await;
    }
    assert_eq!(t.state(run.job.id).await, State::Waiting, "nor do calls that come in pairs put it off");
}

/// S9, S14: a lease that had ended before a silence is not held back by it.
pub(crate) async fn a_silence_after_the_end_of_a_lease_is_none(t: Fixture) {
    let run = t.run().await;
    t.pass(15).await;
    t.mark().await;
    t.silence(600);
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, run.lease);
}

/// S14: nor is one that began, or was extended, after it.
pub(crate) async fn a_lease_that_began_after_a_silence_is_not_held_back(t: Fixture) {
    let other = t.run_with(|job| job.options.lease = Some(secs(3_600))).await;
    t.silence(600);
    let run = t.run_with(|job| job.options.lease = Some(secs(1))).await;
    t.extend(other.lease).await;
    t.pass(1).await;
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, run.lease);
}

/// S14: each silence has a pause of its own.
pub(crate) async fn each_silence_has_its_pause(t: Fixture) {
    for _ in 0..3 {
        t.run_with(|job| job.options.max_attempts = Some(1)).await;
        t.silence(30);
        assert_eq!(t.reserve(0).await.reclaimed, []);
        t.pass(6).await;
        assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
    }
}

/// S9: calls that come when they are asked for reclaim a lease at its end, whatever its length.
pub(crate) async fn a_watched_lease_is_reclaimed_at_its_end(t: Fixture) {
    for lease in [1, 2, 15, 30, 3_600, 86_400] {
        let (begin, mut calls) = (t.clock.now(), 0);
        t.run_with(|job| (job.options.lease, job.options.max_attempts) = (Some(secs(lease)), Some(1))).await;
        loop {
            let batch = t.reserve(0).await;
            if !batch.reclaimed.is_empty() {
                break;
            }
            calls += 1;
            t.clock.advance(batch.next_due.expect("a lease"));
        }
        assert_eq!((t.clock.now().since(begin), calls), (secs(lease), 3));
    }
}

/// S9: of the leases that end first, the shortest decides when the next call is needed.
pub(crate) async fn the_watch_goes_by_the_shortest_lease(t: Fixture) {
    t.run_with(|job| job.options.lease = Some(secs(10))).await;
    assert_eq!(t.reserve(0).await.next_due, Some(secs(4)));
    t.run_with(|job| job.options.lease = Some(secs(60))).await;
    assert_eq!(t.reserve(0).await.next_due, Some(secs(4)));
    t.clock.advance(secs(9));
    t.run_with(|job| job.options.lease = Some(secs(2))).await;
    assert_eq!(t.reserve(0).await.next_due, Some(millis(800)));
}

/// S14: a lease that ends later than its length from now was given by a clock that went back. It ends at now plus its length, from the
/// first call that sees it.
pub(crate) async fn a_lease_that_ends_too_late_is_shortened(t: Fixture) {
    t.clock.set(at(3_600_000));
    let runs = [t.run().await, t.run_with(|job| job.options.lease = Some(secs(7_200))).await];
    t.clock.set(at(0));
    t.reserve(0).await;
    let mut untils = Vec::new();
    for run in &runs {
        untils.push(t.get(run.job.id).await.running.unwrap().until);
    }
    assert_eq!(untils, [at(15_000), at(7_200_000)]);
    t.pass(15).await;
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, runs[0].lease);
    t.clock.set(at(3_700_000));
    assert_eq!(t.extend(runs[1].lease).await, LeaseStatus::Held);
}

/// S14: a clock that goes back by a minute or less shortens no lease.
pub(crate) async fn a_small_step_back_shortens_no_lease(t: Fixture) {
    for (back, until) in [(60_000, 75_000), (60_001, 15_000)] {
        t.clock.set(at(back));
        let run = t.run().await;
        t.clock.set(at(0));
        t.reserve(0).await;
        assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(until), "back by {back} ms");
    }
}

/// S9, S14: a worker that dies while the clock is ahead holds its job no longer than its lease, whichever call comes.
pub(crate) async fn a_clock_there_and_back_holds_no_job_of_a_dead_worker(t: Fixture) {
    for verb in ["reserve", "take", "sweep", "cancel"] {
        t.queue(QueueOp::Purge(10)).await;
        t.clock.advance(secs(6 * 3_600));
        let run = t.run().await;
        t.clock.set(at(t.clock.now().as_ms() - at(6 * 3_600_000).as_ms()));
        for _ in 0..12 {
            match verb {
                "reserve" => drop(t.reserve(0).await),
                "take" => drop(t.take(0).await),
                "sweep" => drop(t.sweep(100).await),
                _ => drop(t.act(run.job.id, Action::Cancel { reason: None }).await),
            }
            t.clock.advance(millis(7_500));
        }
        assert_ne!(
            t.state(run.job.id).await,
            State::Running,
            "{verb}, some leases after the clock was right again"
        );
    }
}

/// S14: a pause after a silence ends at the same distance from now if the clock goes back.
pub(crate) async fn a_pause_does_not_outlast_a_step_back(t: Fixture) {
    let run = t.run_with(|job| job.options.lease = Some(secs(1))).await;
    t.clock.set(at(100_000));
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.clock.set(at(50_000));
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.clock.set(at(52_000));
    assert_eq!(t.reserve(0).await.reclaimed[0].lease, run.lease);
    assert!(matches!(t.settle_one(run.lease, Verdict::Ack).await, punctual::store::Settled::LeaseLost));
}
