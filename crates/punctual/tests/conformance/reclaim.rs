//! Leases past their time: when they are reclaimed, and what becomes of their jobs.

use punctual::{
    NewJob, Priority, State, When,
    job::Failure,
    store::{
        Acted, Action, Guard, Heartbeat, LeaseStatus, QueueOp, Reclaimed, Reserve, Settled, Target, Verdict,
    },
};

use crate::fixture::{CANCEL, Fixture, QUEUE, START_MS, WATCH, WORKER, at, ids, millis, retry, secs, snooze};

/// S9: a lease ends when somebody takes it back, not by itself; the next reserve does, at its time and not before.
pub(crate) async fn a_lease_is_reclaimed_at_its_time(t: Fixture) {
    let run = t.run().await;
    t.pass(14).await;
    t.clock.advance(millis(999));
    assert_eq!(t.reserve(0).await.reclaimed, []);
    t.clock.advance(millis(1));
    assert_eq!(t.state(run.job.id).await, State::Running);
    let reclaimed = Reclaimed { lease: run.lease, queue: QUEUE.to_owned(), state: State::Waiting };
    assert_eq!(t.reserve(0).await.reclaimed, [reclaimed]);
}

/// S9: attempt and expired leases grow by one, `run_at` stays, and the job may start again in the same call.
pub(crate) async fn a_job_reclaimed_keeps_its_time_and_counts_an_expired_lease(t: Fixture) {
    let run = t.run().await;
    t.pass(15).await;
    t.reserve(0).await;
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.run_at), (State::Waiting, at(0)));
    assert_eq!((job.attempt, job.expired_leases, job.snoozes), (2, 1, 0));
    assert_eq!((job.started_at, job.running, job.finished_at), (None, None, None));
    let failure = Failure {
        attempt: 1,
        started_ms: START_MS,
        ended_ms: START_MS + 15_000,
        worker: WORKER.to_owned(),
        error: "lease expired".to_owned(),
    };
    assert_eq!(job.failures, [failure]);
}

/// S7, S9: what is reclaimed is reserved in the same call, under a new lease.
pub(crate) async fn a_job_reclaimed_may_start_again_in_the_same_call(t: Fixture) {
    let old = t.run().await;
    t.pass(15).await;
    let batch = t.reserve(1).await;
    assert_eq!((ids(&batch), batch.reclaimed.len()), (vec![old.job.id], 1));
    assert!(old.lease.fence < batch.jobs[0].lease.fence);
    assert_eq!((batch.jobs[0].job.attempt, batch.jobs[0].until), (2, at(30_000)));
}

/// A job with these low 16 bits in its id.
fn with_low16(t: &Fixture, low16: u16) -> NewJob {
    NewJob { id: t.id(low16), ..t.job() }
}

/// S9: after two expired leases in a row a job whose next attempt is its last is due later, each one at its own instant.
pub(crate) async fn the_second_crash_in_a_row_parts_jobs_with_one_attempt_left(t: Fixture) {
    let jobs = [0x0000, 0x8000, 0x0001, 0xffff].map(|low16| {
        let mut job = with_low16(&t, low16);
        job.options.max_attempts = Some(3);
        job
    });
    t.enqueue_all(&jobs).await;
    for _ in 0..2 {
        assert_eq!(t.reserve(4).await.jobs.len(), 4);
        t.pass(15).await;
    }
    assert_eq!(t.reserve(4).await.jobs, []);
    // now + 15,000 ms × (1 + low 16 bits / 65,536), cut to whole milliseconds
    for (job, run_at) in jobs.iter().zip([45_000, 52_500, 45_000, 59_999]) {
        let job = t.get(job.id).await;
        assert_eq!((job.expired_leases, job.attempt, job.run_at), (2, 3, at(run_at)));
    }
}

/// S9: two expired leases in a row leave a job due at once that has attempts to spare; the third parts it from its bystanders.
pub(crate) async fn the_third_crash_in_a_row_parts_a_job_from_its_bystanders(t: Fixture) {
    let jobs = [0x0000, 0x8000, 0x0001, 0xffff].map(|low16| with_low16(&t, low16));
    t.enqueue_all(&jobs).await;
    for expired_leases in 0..3 {
        let batch = t.reserve_by(&Reserve { company: true, ..t.want(4) }).await;
        assert_eq!(
            batch.jobs.iter().map(|reserved| reserved.job.expired_leases).collect::<Vec<_>>(),
            [expired_leases; 4]
        );
        t.pass(15).await;
    }
    assert_eq!(t.reserve(4).await.jobs, []);
    // now + 30,000 ms × (1 + low 16 bits / 65,536), cut to whole milliseconds
    for (job, run_at) in jobs.iter().zip([75_000, 90_000, 75_000, 104_999]) {
        let job = t.get(job.id).await;
        assert_eq!((job.expired_leases, job.attempt, job.run_at), (3, 4, at(run_at)));
    }
}

/// S9: the pause grows with the length of the lease that was in force.
pub(crate) async fn the_pause_after_a_crash_follows_the_lease_in_force(t: Fixture) {
    let mut job = NewJob { id: t.id(0x4000), ..t.job_with(|job| job.options.lease = Some(secs(18))) };
    job.options.max_attempts = Some(3);
    let id = job.id;
    t.enqueue_all(&[job]).await;
    t.reserve_one().await;
    t.pass(18).await;
    t.reserve_one().await;
    t.pass(18).await;
    t.reserve(0).await;
    // 36,000 + 18,000 × 1.25
    assert_eq!(t.get(id).await.run_at, at(58_500));
}

/// S9: a job that would be dead of one more crash is reserved alone, so that no other can be blamed for it, nor it for
/// another; the jobs behind it wait for the next call.
pub(crate) async fn a_job_on_its_last_chance_is_reserved_alone(t: Fixture) {
    let [first, second] = [0x0000, 0x0001].map(|low16| with_low16(&t, low16));
    t.enqueue_all(&[first.clone(), second.clone()]).await;
    for _ in 0..2 {
        assert_eq!(ids(&t.reserve(4).await), [first.id, second.id]);
        t.pass(15).await;
    }
    let fresh = t.add().await;
    for (id, more) in [(first.id, true), (second.id, true), (fresh, false)] {
        let batch = t.reserve(4).await;
        assert_eq!((ids(&batch), batch.more), (vec![id], more));
    }
}

/// S9: behind others, a job on its last chance ends the batch.
pub(crate) async fn a_job_on_its_last_chance_waits_behind_others(t: Fixture) {
    let last = t.add().await;
    for _ in 0..2 {
        t.reserve_one().await;
        t.pass(15).await;
    }
    t.reserve(0).await;
    let before = NewJob { id: t.id(1), ..t.job_with(|job| job.options.priority = Some(Priority::High)) };
    t.enqueue_all(std::slice::from_ref(&before)).await;
    let batch = t.reserve(4).await;
    assert_eq!((ids(&batch), batch.more), (vec![before.id], true));
    assert_eq!(ids(&t.reserve(4).await), [last]);
}

/// S9: with company a crash may be the fault of others: it is counted, and ends nobody.
pub(crate) async fn with_company_jobs_on_their_last_chance_come_like_others_and_no_crash_ends_them(
    t: Fixture,
) {
    let jobs = [0x0000, 0x0001].map(|low16| with_low16(&t, low16));
    t.enqueue_all(&jobs).await;
    for _ in 0..2 {
        assert_eq!(t.reserve(4).await.jobs.len(), 2);
        t.pass(15).await;
    }
    t.reserve(0).await;
    let fresh = t.add().await;
    let batch = t.reserve_by(&Reserve { company: true, ..t.want(4) }).await;
    assert_eq!(ids(&batch), [jobs[0].id, jobs[1].id, fresh]);
    t.pass(15).await;
    let batch = t.reserve(0).await;
    assert_eq!(batch.reclaimed.iter().map(|taken| taken.state).collect::<Vec<_>>(), [State::Waiting; 3]);
    for (id, counted) in [(jobs[0].id, (3, 4)), (fresh, (1, 2))] {
        let job = t.get(id).await;
        assert_eq!((job.expired_leases, job.attempt), counted);
    }
}

/// S9: it is told so from without; then, again alone, its crash is its own fault.
pub(crate) async fn a_run_that_is_told_to_have_company_is_not_ended_by_its_crash(t: Fixture) {
    let id = t.add().await;
    assert_eq!((crash(&t).await, crash(&t).await), (State::Waiting, State::Waiting));
    let run = t.reserve_one().await;
    let beats = [Heartbeat { company: true, ..run.lease.into() }, run.lease.into()];
    for beat in beats {
        assert_eq!(t.store.extend(&[beat]).await.expect("it is held"), [LeaseStatus::Held]);
    }
    t.pass(15).await;
    assert_eq!(t.reserve(0).await.reclaimed[0].state, State::Waiting);
    t.pass(60).await;
    assert_eq!(crash(&t).await, State::Dead);
    let job = t.get(id).await;
    assert_eq!((job.expired_leases, job.attempt, job.reason.as_deref()), (4, 4, Some("crashes")));
}

/// Reserves the one due job and lets its lease pass; answers where the job goes.
async fn crash(t: &Fixture) -> State {
    t.reserve_one().await;
    t.pass(15).await;
    t.reserve(0).await.reclaimed[0].state
}

/// S9: the third expired lease in a row is the last: dead, reason `crashes`.
pub(crate) async fn the_third_crash_in_a_row_is_dead(t: Fixture) {
    let id = t.add().await;
    assert_eq!((crash(&t).await, crash(&t).await), (State::Waiting, State::Waiting));
    assert_eq!(crash(&t).await, State::Dead);
    let job = t.get(id).await;
    assert_eq!((job.state, job.reason.as_deref()), (State::Dead, Some("crashes")));
    assert_eq!((job.attempt, job.expired_leases, job.failures.len()), (3, 3, 3));
    assert_eq!(job.finished_at, Some(at(45_000)));
}

/// S9: the poison limit is checked before the attempts.
pub(crate) async fn the_poison_limit_is_checked_before_the_attempts(t: Fixture) {
    let id = t.add_with(|job| job.options.max_attempts = Some(3)).await;
    assert_eq!((crash(&t).await, crash(&t).await), (State::Waiting, State::Waiting));
    t.pass(15).await;
    assert_eq!(crash(&t).await, State::Dead);
    assert_eq!(t.get(id).await.reason.as_deref(), Some("crashes"));
}

/// S9, S10: a lease reclaimed is an attempt: the last one ends dead, reason `attempts`.
pub(crate) async fn a_crash_of_the_last_attempt_is_dead(t: Fixture) {
    let run = t.run_with(|job| job.options.max_attempts = Some(2)).await;
    t.end(&run, retry(secs(0))).await;
    t.reserve_one().await;
    t.pass(15).await;
    t.reserve(0).await;
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.reason.as_deref()), (State::Dead, Some("attempts")));
    assert_eq!((job.attempt, job.expired_leases, job.failures.len()), (2, 1, 2));
}

/// S9: `max_attempts = 1` means: never again after a crash.
pub(crate) async fn one_attempt_means_never_again_after_a_crash(t: Fixture) {
    let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
    t.pass(15).await;
    assert_eq!(t.reserve(1).await.jobs, []);
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.reason.as_deref(), job.attempt), (State::Dead, Some("attempts"), 1));
}

/// S9, S10: a verdict ends a row of expired leases, unless the worker held the job; the attempt goes on counting.
pub(crate) async fn a_verdict_ends_a_row_of_expired_leases_unless_the_job_was_held(t: Fixture) {
    let held = Verdict::Snooze { after: millis(100), reason: Some("held".to_owned()) };
    for (verdict, left) in
        [(retry(secs(0)), 0), (snooze(millis(100)), 0), (held, 1), (Verdict::Release, 0), (Verdict::Ack, 0)]
    {
        let run = t.run().await;
        t.pass(15).await;
        let again = t.reserve_one().await;
        assert_eq!((again.job.expired_leases, again.job.attempt), (1, 2));
        assert_eq!(t.end(&again, verdict).await.expired_leases, left);
        t.queue(QueueOp::Purge(1)).await;
        assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::LeaseLost);
    }
}

/// S10: a crash gives no verdict, so a row of snoozes goes on; the reason of the last one is gone.
pub(crate) async fn a_row_of_snoozes_outlives_a_crash(t: Fixture) {
    let run = t.run().await;
    let reason = Some("unknown_kind".to_owned());
    t.end(&run, Verdict::Snooze { after: millis(100), reason }).await;
    t.clock.advance(millis(100));
    t.reserve_one().await;
    t.pass(15).await;
    t.reserve(0).await;
    let job = t.get(run.job.id).await;
    assert_eq!((job.snoozes, job.expired_leases, job.reason), (1, 1, None));
}

/// S9, S13: one call reclaims 32 leases, and says that more are left.
pub(crate) async fn one_call_reclaims_32_leases(t: Fixture) {
    t.add_many(40).await;
    assert_eq!(t.reserve(40).await.jobs.len(), 40);
    t.pass(15).await;
    let batch = t.reserve(0).await;
    assert_eq!((batch.reclaimed.len(), batch.more), (32, true));
    assert_eq!((t.counts().await.running, t.counts().await.waiting), (8, 32));
    assert_eq!(t.reserve(0).await.reclaimed.len(), 8);
    assert_eq!(t.reserve(0).await.reclaimed.len(), 0);
}

/// S9: leases past their time make `more`, also when no job is due.
pub(crate) async fn leases_left_past_their_time_are_more(t: Fixture) {
    for _ in 0..33 {
        t.add_with(|job| job.options.max_attempts = Some(1)).await;
    }
    assert_eq!(t.reserve(33).await.jobs.len(), 33);
    t.pass(15).await;
    let batch = t.reserve(5).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, true, Some(secs(0))));
    let batch = t.reserve(5).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, None));
}

/// S9: the oldest end of a lease comes first, then the id.
pub(crate) async fn leases_are_reclaimed_oldest_first(t: Fixture) {
    let mut runs = Vec::new();
    for lease in [9, 3, 6, 3] {
        runs.push(t.run_with(|job| job.options.lease = Some(secs(lease))).await.lease);
    }
    t.pass(9).await;
    let reclaimed: Vec<_> = t.reserve(0).await.reclaimed.iter().map(|back| back.lease).collect();
    assert_eq!(reclaimed, [runs[1], runs[3], runs[2], runs[0]]);
}

/// S9: only the queues that a call names lose leases, over all of them oldest first.
pub(crate) async fn leases_are_reclaimed_in_the_named_queues_only(t: Fixture) {
    let mail = t.run_with(|job| job.options.lease = Some(secs(6))).await;
    let bulk = t.add_with(|job| (job.queue, job.options.lease) = ("bulk".to_owned(), Some(secs(3)))).await;
    t.reserve_by(&t.want_from(&[("bulk", 1)], 1)).await;
    t.pass(6).await;
    assert_eq!(t.reserve_by(&t.want_from(&[("other", 1)], 1)).await.reclaimed, []);
    let both = Reserve { n: 0, ..t.want_from(&[(QUEUE, 1), ("bulk", 1)], 1) };
    let reclaimed: Vec<_> = t.reserve_by(&both).await.reclaimed.iter().map(|back| back.lease.job).collect();
    assert_eq!(reclaimed, [bulk, mail.job.id]);
}

/// S9: a paused queue gives no jobs, but its leases are reclaimed.
pub(crate) async fn leases_of_a_paused_queue_are_reclaimed(t: Fixture) {
    let run = t.run().await;
    t.pause().await;
    assert_eq!(t.reserve(1).await.next_due, Some(WATCH));
    t.pass(15).await;
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.reclaimed.len()), (0, 1));
    assert_eq!((batch.more, batch.next_due), (false, None));
    assert_eq!(t.state(run.job.id).await, State::Waiting);
}

/// S9: reads, heartbeats of others and settles reclaim nothing.
pub(crate) async fn extends_settles_and_reads_reclaim_nothing(t: Fixture) {
    let (run, other) = (t.run().await, t.run().await);
    t.pass(16).await;
    t.extend(other.lease).await;
    t.list("", 10).await;
    t.end(&other, Verdict::Ack).await;
    assert_eq!(t.state(run.job.id).await, State::Running);
    t.take(0).await;
    assert_eq!(t.state(run.job.id).await, State::Waiting);
}

/// S9: a sweep reclaims leases of queues that nobody serves, 32 of a queue at most, within its limit.
pub(crate) async fn a_sweep_reclaims_in_all_queues(t: Fixture) {
    t.add_many(40).await;
    assert_eq!(t.reserve(40).await.jobs.len(), 40);
    t.pass(75).await;
    let swept = t.sweep(10).await;
    assert_eq!((swept.reclaimed, swept.more), (10, true));
    let swept = t.sweep(1_000).await;
    assert_eq!((swept.reclaimed, swept.next_reclaim_ms), (30, None));
    assert_eq!((t.counts().await.running, t.counts().await.waiting), (0, 40));
    t.add_many(33).await;
    assert_eq!(t.reserve(73).await.jobs.len(), 73);
    t.pass(75).await;
    let swept = t.sweep(1_000).await;
    assert_eq!((swept.reclaimed, swept.next_reclaim_ms), (32, Some(0)));
}

/// S9: a sweep leaves a lease that is over to the workers of its queue for a minute, and reports when to sweep again.
pub(crate) async fn a_sweep_reports_when_to_reclaim(t: Fixture) {
    let run = t.run().await;
    t.pass(74).await;
    let swept = t.sweep(1_000).await;
    assert_eq!((swept.reclaimed, swept.next_reclaim_ms), (0, Some(1_000)));
    t.pass(1).await;
    let swept = t.sweep(1_000).await;
    assert_eq!((swept.reclaimed, swept.next_reclaim_ms), (1, None));
    assert_eq!(t.state(run.job.id).await, State::Waiting);
    t.queue(QueueOp::Purge(1)).await;
    let run = t.run().await;
    t.silence(90);
    assert_eq!(t.sweep(1_000).await.next_reclaim_ms, Some(6_000), "a silence holds it back, and needs marks");
    t.pass(66).await;
    assert_eq!(t.sweep(1_000).await.reclaimed, 1);
    assert_eq!(t.state(run.job.id).await, State::Waiting);
}

/// S9: an operator's action on a job whose lease is over meets it as if it had been reclaimed before.
pub(crate) async fn an_action_reclaims_the_lease_of_its_job_first(t: Fixture) {
    for (action, state) in [
        (CANCEL, Some(State::Cancelled)),
        (Action::Delete, None),
        (Action::RunNow, Some(State::Waiting)),
        (Action::Reschedule(secs(5).into()), Some(State::Waiting)),
    ] {
        let (run, other) = (t.run().await, t.run().await);
        let acted = t.act(run.job.id, action.clone()).await;
        assert!(
            matches!(acted, Acted::Requested(_) | Acted::WrongState(_, State::Running)),
            "{action:?}: {acted:?}"
        );
        if matches!(acted, Acted::Requested(_)) {
            t.end(&run, Verdict::Ack).await;
            t.end(&other, Verdict::Ack).await;
            continue;
        }
        t.pass(75).await;
        let guarded = Target {
            guard: Some(Guard { queue: QUEUE.to_owned(), state: State::Running, version: None }),
            ..run.job.id.into()
        };
        assert!(
            matches!(t.act(guarded, action.clone()).await, Acted::Done(id, _) if id == run.job.id),
            "{action:?}"
        );
        assert_eq!(t.store.get(run.job.id).await.unwrap().map(|job| job.state), state);
        assert_eq!(t.state(other.job.id).await, State::Running, "only the job of the action");
        t.queue(QueueOp::Purge(10)).await;
        t.reserve(0).await;
        t.queue(QueueOp::Purge(10)).await;
    }
    let run = t.run().await;
    t.pass(75).await;
    assert_eq!(t.act(run.job.id, CANCEL).await, Acted::Done(run.job.id, State::Cancelled));
    assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::LeaseLost);
}

/// S9, S12: a second cancel ends a job whose lease is over, whether or not its queue keeps it.
pub(crate) async fn a_cancel_that_was_requested_is_done_when_the_lease_is_over(t: Fixture) {
    let run = t.run().await;
    assert_eq!(t.act(run.job.id, CANCEL).await, Acted::Requested(run.job.id));
    t.silence(600);
    assert_eq!(t.act(run.job.id, CANCEL).await, Acted::Requested(run.job.id), "its worker may live");
    t.pass(66).await;
    assert_eq!(t.act(run.job.id, CANCEL).await, Acted::Done(run.job.id, State::Cancelled));
}

/// S9: taking back meets an expired job as any other; it is then ended instead of started.
pub(crate) async fn a_job_reclaimed_past_its_expiry_does_not_start_again(t: Fixture) {
    let run = t.run_with(|job| job.expires_at = Some(When::In(secs(10)))).await;
    t.pass(15).await;
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.reclaimed[0].state), (0, State::Waiting));
    assert_eq!(t.get(run.job.id).await.reason.as_deref(), Some("expired"));
}

/// S9, S12: whose cancel was asked for is cancelled when its lease is reclaimed, even at the last attempt.
pub(crate) async fn a_job_to_be_cancelled_is_cancelled_when_reclaimed(t: Fixture) {
    let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
    t.apply(run.job.id, CANCEL).await;
    t.pass(15).await;
    assert_eq!(t.reserve(1).await.reclaimed[0].state, State::Cancelled);
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.reason.as_deref()), (State::Cancelled, Some("cancelled")));
    assert_eq!((job.cancel_requested, job.finished_at), (false, Some(at(15_000))));
}
