//! The ends of a run, verdict by verdict.

use punctual::{
    State, Timestamp, When,
    job::Failure,
    store::{Action, EndReason, Lease, QueueOp, Reserve, Settled, Settlement, Verdict},
};

use crate::fixture::{Fixture, START_MS, WORKER, at, dead, ids, millis, retry, secs, snooze};

// ── ack ──

/// S11: an acked job is done; its last run and end are kept.
pub(crate) async fn an_ack_ends_the_job_done(t: Fixture) {
    let run = t.run().await;
    t.pass(3).await;
    let job = t.end(&run, Verdict::Ack).await;
    assert_eq!((job.state, job.attempt, job.reason), (State::Done, 1, None));
    assert_eq!((job.finished_at, job.started_at, job.running), (Some(at(3_000)), None, None));
}

/// S9: passing its time alone ends no lease: who is late still settles.
pub(crate) async fn a_late_settle_counts_as_long_as_nothing_was_reclaimed(t: Fixture) {
    let run = t.run().await;
    t.pass(3_600).await;
    assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
}

// ── fences ──

/// S8: a worker that stalled past its lease does not settle the run that replaced it.
pub(crate) async fn a_stale_lease_changes_nothing(t: Fixture) {
    let old = t.run().await;
    t.pass(15).await;
    let new = t.reserve_one().await;
    for verdict in [Verdict::Ack, retry(secs(1)), snooze(secs(1)), Verdict::Release, dead()] {
        assert_eq!(t.settle_one(old.lease, verdict).await, Settled::LeaseLost);
    }
    assert_eq!(t.get(old.job.id).await, new.job);
    assert_eq!(t.settle_one(new.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
}

/// S8: neither a fence of another run nor one nobody ever gave settles anything.
pub(crate) async fn only_the_very_lease_settles(t: Fixture) {
    let (first, second) = (t.run().await, t.run().await);
    let job = first.job.id;
    for fence in [0, first.lease.fence - 1, first.lease.fence + 1, second.lease.fence, u64::MAX >> 1] {
        assert_eq!(t.settle_one(Lease { job, fence }, Verdict::Ack).await, Settled::LeaseLost);
    }
    let unknown = Lease { job: t.id(0), fence: first.lease.fence };
    assert_eq!(t.settle_one(unknown, Verdict::Ack).await, Settled::LeaseLost);
    assert_eq!(t.state(job).await, State::Running);
}

/// S3, S8: a settle repeated after a lost answer changes nothing, and says so.
pub(crate) async fn a_repeated_settle_answers_lease_lost(t: Fixture) {
    let run = t.run().await;
    let after = t.end(&run, retry(secs(5))).await;
    t.pass(1).await;
    assert_eq!(t.settle_one(run.lease, retry(secs(5))).await, Settled::LeaseLost);
    assert_eq!(t.get(run.job.id).await, after);
}

/// S2, S8: leases of one call end in order, each on its own: the first verdict on a lease counts.
pub(crate) async fn leases_of_one_call_end_in_order(t: Fixture) {
    let (first, second) = (t.run().await, t.run().await);
    let settlement = |lease, verdict| Settlement { lease, verdict };
    let batch = [
        settlement(first.lease, dead()),
        settlement(first.lease, Verdict::Ack),
        settlement(second.lease, Verdict::Ack),
    ];
    let (answers, reserved) = t.store.settle(&batch, None).await.unwrap();
    let expected =
        [Settled::Settled(State::Dead, None), Settled::LeaseLost, Settled::Settled(State::Done, None)];
    assert_eq!((&answers[..], reserved), (&expected[..], None));
}

/// S11: once a job ended, no lease of it changes anything.
pub(crate) async fn an_ended_job_is_not_settled_again(t: Fixture) {
    for end in [Verdict::Ack, dead(), Verdict::Cancel { reason: None }] {
        let run = t.run().await;
        let ended = t.end(&run, end).await;
        t.pass(1).await;
        for verdict in [Verdict::Ack, retry(secs(0)), Verdict::Release] {
            assert_eq!(t.settle_one(run.lease, verdict).await, Settled::LeaseLost);
        }
        assert_eq!(t.get(run.job.id).await, ended);
    }
}

/// S11: a settle answers why the store ended a job, where that is not what the verdict says; the record has the same reason.
pub(crate) async fn a_settle_answers_why_a_job_ended_otherwise(t: Fixture) {
    for (verdict, is_asked, expected) in [
        (Verdict::Ack, true, None),
        (dead(), false, None),
        (Verdict::Cancel { reason: None }, false, None),
        (retry(secs(0)), false, Some(EndReason::Attempts)),
        (retry(secs(0)), true, Some(EndReason::CancelRequested)),
        (Verdict::Release, false, None),
    ] {
        let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
        if is_asked {
            t.apply(run.job.id, Action::Cancel { reason: None }).await;
        }
        let answer = t.settle_one(run.lease, verdict.clone()).await;
        let job = t.get(run.job.id).await;
        assert_eq!(answer, Settled::Settled(job.state, expected), "{verdict:?}");
        if let Some(reason) = expected {
            assert_eq!(job.reason.as_deref(), Some(reason.name()), "{verdict:?}");
        }
    }
}

// ── retry ──

/// S10: a failure counts an attempt, is kept with its words, and the job is due when the verdict says.
pub(crate) async fn a_retry_counts_an_attempt(t: Fixture) {
    t.pass(1).await;
    let run = t.run().await;
    t.pass(2).await;
    let job = t.end(&run, retry(secs(10))).await;
    assert_eq!((job.state, job.attempt, job.run_at), (State::Waiting, 2, at(13_000)));
    assert_eq!((job.started_at, job.finished_at, job.reason), (None, None, None));
    let failure = Failure {
        attempt: 1,
        started_ms: START_MS + 1_000,
        ended_ms: START_MS + 3_000,
        worker: WORKER.to_owned(),
        error: "no route".to_owned(),
    };
    assert_eq!(job.failures, [failure]);
}

/// S10: the last attempt that fails ends dead, reason `attempts`; the attempt stays what it was.
pub(crate) async fn a_retry_of_the_last_attempt_is_dead(t: Fixture) {
    let run = t.run_with(|job| job.options.max_attempts = Some(2)).await;
    t.end(&run, retry(secs(0))).await;
    let run = t.reserve_one().await;
    t.pass(1).await;
    let job = t.end(&run, retry(secs(0))).await;
    assert_eq!((job.state, job.attempt, job.reason.as_deref()), (State::Dead, 2, Some("attempts")));
    assert_eq!((job.failures.len(), job.finished_at), (2, Some(at(1_000))));
}

/// S10: one attempt means one run.
pub(crate) async fn one_attempt_means_never_again_after_a_failure(t: Fixture) {
    let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
    let answer = t.settle_one(run.lease, retry(secs(0))).await;
    assert_eq!(answer, Settled::Settled(State::Dead, Some(EndReason::Attempts)));
}

/// S5: a retry in the past is due now; one past the end of time is due at the end.
pub(crate) async fn a_retry_may_name_any_instant(t: Fixture) {
    let ask = |at: When| Verdict::Retry { at, error: String::new() };
    let run = t.run().await;
    let job = t.end(&run, ask(When::At(Timestamp::saturating_from_ms(5)))).await;
    assert_eq!(job.run_at, at(0));
    let run = t.reserve_one().await;
    assert_eq!(t.end(&run, ask(When::At(at(777)))).await.run_at, at(777));
    t.pass(1).await;
    let run = t.reserve_one().await;
    assert_eq!(t.end(&run, ask(When::In(std::time::Duration::MAX))).await.run_at, Timestamp::MAX);
}

/// S13: of many failures the last eight are kept, oldest first.
pub(crate) async fn the_last_eight_failures_are_kept(t: Fixture) {
    let id = t.add().await;
    for n in 1..=10 {
        let run = t.reserve_one().await;
        t.end(&run, Verdict::Retry { at: When::Now, error: format!("failure {n}") }).await;
    }
    let failures = t.get(id).await.failures;
    let kept: Vec<(u32, &str)> = failures.iter().map(|f| (f.attempt, f.error.as_str())).collect();
    assert_eq!(kept.len(), 8);
    assert_eq!((kept[0], kept[7]), ((3, "failure 3"), (10, "failure 10")));
}

/// S13: an error is cut at 1 KiB, between two characters.
pub(crate) async fn an_error_is_cut_at_a_kibibyte(t: Fixture) {
    let run = t.run().await;
    let error = format!("{}ü", "x".repeat(1_023));
    let job = t.end(&run, Verdict::Dead { error }).await;
    assert_eq!(job.reason, Some("x".repeat(1_023)));
    assert_eq!(job.failures[0].error, "x".repeat(1_023));
}

// ── snooze and release ──

/// S10: a snooze counts nothing but itself; the job is due after the pause.
pub(crate) async fn a_snooze_counts_no_attempt(t: Fixture) {
    let run = t.run().await;
    t.pass(1).await;
    let job = t.end(&run, snooze(secs(10))).await;
    assert_eq!((job.state, job.attempt, job.run_at), (State::Waiting, 1, at(11_000)));
    assert_eq!((job.snoozes, job.failures.len()), (1, 0));
}

/// S10: a shorter snooze is lengthened to 100 ms.
pub(crate) async fn the_shortest_snooze_is_100_ms(t: Fixture) {
    let run = t.run().await;
    assert_eq!(t.end(&run, snooze(millis(1))).await.run_at, at(100));
}

/// S5: a snooze past the end of time ends with it.
pub(crate) async fn the_longest_snooze_ends_with_time(t: Fixture) {
    let run = t.run().await;
    assert_eq!(t.end(&run, snooze(std::time::Duration::MAX)).await.run_at, Timestamp::MAX);
}

/// S10: why a job snoozes is told until its next run was settled.
pub(crate) async fn the_reason_of_a_snooze_is_kept_until_the_next_run_ended(t: Fixture) {
    let run = t.run().await;
    let unknown = Verdict::Snooze { after: secs(1), reason: Some("unknown_kind".to_owned()) };
    assert_eq!(t.end(&run, unknown).await.reason.as_deref(), Some("unknown_kind"));
    t.pass(1).await;
    let run = t.reserve_one().await;
    assert_eq!(run.job.reason.as_deref(), Some("unknown_kind"));
    assert_eq!(t.end(&run, Verdict::Release).await.reason, None);
}

/// S10: any other verdict ends a row of snoozes.
pub(crate) async fn any_other_verdict_ends_a_row_of_snoozes(t: Fixture) {
    for verdict in
        [Verdict::Release, retry(millis(100)), Verdict::Ack, dead(), Verdict::Cancel { reason: None }]
    {
        let run = t.run().await;
        assert_eq!(t.end(&run, snooze(millis(100))).await.snoozes, 1);
        t.clock.advance(millis(100));
        let run = t.reserve_one().await;
        assert_eq!((run.job.snoozes, t.end(&run, verdict).await.snoozes), (1, 0));
        t.queue(QueueOp::Purge(1)).await;
    }
}

/// S10: the 10,000th snooze in a row is the last.
pub(crate) async fn the_ten_thousandth_snooze_in_a_row_is_dead(t: Fixture) {
    let id = t.add().await;
    for _ in 1..=9_999 {
        let run = t.reserve_one().await;
        assert_eq!(t.settle_one(run.lease, snooze(millis(0))).await, Settled::Settled(State::Waiting, None));
        t.clock.advance(millis(100));
    }
    let run = t.reserve_one().await;
    assert_eq!((run.job.snoozes, run.job.attempt), (9_999, 1));
    let answer = t.settle_one(run.lease, snooze(millis(0))).await;
    assert_eq!(answer, Settled::Settled(State::Dead, Some(EndReason::Snoozes)));
    let job = t.get(id).await;
    assert_eq!((job.reason.as_deref(), job.snoozes, job.attempt), (Some("snoozes"), 10_000, 1));
}

/// S10: a released job is as it was, with its own `run_at`: a shutdown counts nothing.
pub(crate) async fn a_release_counts_nothing(t: Fixture) {
    let before = t.get(t.add().await).await;
    t.pass(5).await;
    let run = t.reserve_one().await;
    t.pass(5).await;
    assert_eq!(t.end(&run, Verdict::Release).await, before);
    assert_eq!(ids(&t.reserve(1).await), [before.id]);
}

// ── cancel and dead ──

/// S11: a handler may call its job off, in its own words.
pub(crate) async fn a_run_may_call_its_job_off(t: Fixture) {
    for (reason, kept) in [(Some("not needed".to_owned()), "not needed"), (None, "cancelled")] {
        let run = t.run().await;
        let job = t.end(&run, Verdict::Cancel { reason }).await;
        assert_eq!((job.state, job.reason.as_deref()), (State::Cancelled, Some(kept)));
        assert_eq!((job.finished_at, job.failures.len()), (Some(at(0)), 0));
    }
}

/// S11: a job given up on keeps the words, as its reason and among its failures, whatever attempts are left.
pub(crate) async fn a_run_may_give_its_job_up(t: Fixture) {
    let run = t.run().await;
    let job = t.end(&run, dead()).await;
    assert_eq!((job.state, job.attempt, job.reason.as_deref()), (State::Dead, 1, Some("no such address")));
    assert_eq!((job.failures.len(), job.failures[0].error.as_str()), (1, "no such address"));
}

// ── settle, then reserve ──

/// S2: a reserve behind a settle sees what it did, in the same step.
pub(crate) async fn a_reserve_behind_a_settle_sees_what_it_did(t: Fixture) {
    let run = t.run().await;
    let batch = [Settlement { lease: run.lease, verdict: Verdict::Release }];
    let (answers, reserved) = t.store.settle(&batch, Some(&t.want(5))).await.unwrap();
    let reserved = reserved.expect("a reserve was asked for");
    assert_eq!(answers, [Settled::Settled(State::Waiting, None)]);
    assert_eq!(ids(&reserved), [run.job.id]);
    assert!(run.lease.fence < reserved.jobs[0].lease.fence);
}

/// S2: a call is refused as a whole if either part breaks a limit.
pub(crate) async fn a_settle_is_refused_with_the_reserve_behind_it(t: Fixture) {
    let run = t.run().await;
    let batch = [Settlement { lease: run.lease, verdict: Verdict::Ack }];
    let too_many = Reserve { n: 1_001, ..t.want(1) };
    assert!(t.store.settle(&batch, Some(&too_many)).await.is_err());
    assert_eq!(t.state(run.job.id).await, State::Running);
}

/// S3: an empty settle is answered; one with a reserve is that reserve.
pub(crate) async fn an_empty_settle_is_answered(t: Fixture) {
    let id = t.add().await;
    assert_eq!(t.store.settle(&[], None).await.unwrap(), (Vec::new(), None));
    let (answers, reserved) = t.store.settle(&[], Some(&t.want(1))).await.unwrap();
    assert_eq!((answers.len(), ids(&reserved.unwrap())), (0, vec![id]));
}
