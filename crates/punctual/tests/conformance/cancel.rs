//! Cancel, in each state, and who wins.

use punctual::{
    State, When,
    store::{Acted, Action, EndReason, Settled, Verdict},
};

use crate::fixture::{CANCEL, Fixture, at, dead, millis, retry, secs, snooze};

/// S12: a waiting job is cancelled at once, and never starts afterwards.
pub(crate) async fn a_waiting_job_is_cancelled_at_once(t: Fixture) {
    let id = t.add_with(|job| job.run_at = When::In(secs(1))).await;
    assert_eq!(t.act(id, CANCEL).await, Acted::Done(id, State::Cancelled));
    t.pass(60).await;
    assert_eq!((t.reserve(5).await.jobs, t.take(5).await), (vec![], vec![]));
    let job = t.get(id).await;
    assert_eq!((job.reason.as_deref(), job.finished_at), (Some("cancelled"), Some(at(0))));
    assert_eq!((job.attempt, job.cancel_requested), (1, false));
}

/// S12, S13: the words of whoever cancels a waiting job are kept, cut at 1 KiB.
pub(crate) async fn the_reason_of_a_cancel_is_kept(t: Fixture) {
    for (reason, kept) in [("no longer needed".to_owned(), 16), ("x".repeat(2_000), 1_024)] {
        let id = t.add().await;
        t.apply(id, Action::Cancel { reason: Some(reason.clone()) }).await;
        assert_eq!(t.get(id).await.reason.as_deref(), Some(&reason[..kept]));
    }
}

/// S12: a job between two attempts waits as any other.
pub(crate) async fn a_retrying_job_is_cancelled_at_once(t: Fixture) {
    let run = t.run().await;
    t.end(&run, retry(secs(5))).await;
    assert_eq!(t.act(run.job.id, CANCEL).await, Acted::Done(run.job.id, State::Cancelled));
    assert_eq!((t.get(run.job.id).await.attempt, t.counts().await.retrying), (2, 0));
}

/// S12: of a running job the cancel is requested; it runs on, and asking again changes nothing.
pub(crate) async fn a_running_job_is_asked_to_stop(t: Fixture) {
    let run = t.run().await;
    for _ in 0..2 {
        let ask = Action::Cancel { reason: Some("stop".to_owned()) };
        assert_eq!(t.act(run.job.id, ask).await, Acted::Requested(run.job.id));
    }
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.cancel_requested, &job.reason), (State::Running, true, &None));
    assert_eq!((job.running, job.version), (run.job.running, 1));
}

/// S12: an ack after the request is a finished job: done.
pub(crate) async fn an_ack_wins_over_a_requested_cancel(t: Fixture) {
    let run = t.run().await;
    t.apply(run.job.id, CANCEL).await;
    let job = t.end(&run, Verdict::Ack).await;
    assert_eq!((job.state, job.reason, job.cancel_requested), (State::Done, None, false));
}

/// S12: any other end of the run obeys the request, also that of the last attempt.
pub(crate) async fn any_other_end_obeys_a_requested_cancel(t: Fixture) {
    let ends = [
        retry(secs(1)),
        snooze(millis(100)),
        Verdict::Release,
        Verdict::Cancel { reason: Some("mine".to_owned()) },
        dead(),
    ];
    for verdict in ends {
        let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
        t.apply(run.job.id, CANCEL).await;
        let answer = t.settle_one(run.lease, verdict).await;
        assert_eq!(answer, Settled::Settled(State::Cancelled, Some(EndReason::CancelRequested)));
        let job = t.get(run.job.id).await;
        assert_eq!((job.reason.as_deref(), job.cancel_requested), (Some("cancelled"), false));
        assert_eq!((job.attempt, job.finished_at), (1, Some(at(0))));
    }
}

/// S12: taking back obeys it too: no crash makes a job run again that somebody cancelled.
pub(crate) async fn a_crash_obeys_a_requested_cancel(t: Fixture) {
    let run = t.run().await;
    t.apply(run.job.id, CANCEL).await;
    t.pass(15).await;
    let batch = t.reserve(5).await;
    assert_eq!((batch.jobs.len(), batch.reclaimed[0].state), (0, State::Cancelled));
    let job = t.get(run.job.id).await;
    assert_eq!((job.attempt, job.expired_leases, job.cancel_requested), (1, 1, false));
}

/// S12: of cancel and reserve one wins, and the loser is told.
pub(crate) async fn of_cancel_and_reserve_one_wins(t: Fixture) {
    let cancelled = t.add().await;
    t.apply(cancelled, CANCEL).await;
    assert_eq!(t.reserve(1).await.jobs, []);
    let run = t.run().await;
    assert_eq!(t.act(run.job.id, CANCEL).await, Acted::Requested(run.job.id));
}

/// S12: of cancel and settle one wins, and the loser is told.
pub(crate) async fn of_cancel_and_settle_one_wins(t: Fixture) {
    let ends = [(Verdict::Ack, State::Done), (dead(), State::Dead)];
    for (verdict, state) in ends {
        let run = t.run().await;
        t.end(&run, verdict).await;
        assert_eq!(t.act(run.job.id, CANCEL).await, Acted::WrongState(run.job.id, state));
    }
}

/// S12: of cancel and reschedule one wins, and the loser is told.
pub(crate) async fn of_cancel_and_reschedule_one_wins(t: Fixture) {
    let id = t.add().await;
    t.apply(id, Action::Reschedule(When::In(secs(9)))).await;
    assert_eq!(t.act(id, CANCEL).await, Acted::Done(id, State::Cancelled));
    for late in [Action::RunNow, CANCEL] {
        assert_eq!(t.act(id, late).await, Acted::WrongState(id, State::Cancelled));
    }
    assert_eq!(t.get(id).await.run_at, at(9_000));
}

/// S11, S12: a cancel before the retry of an operator is over with it.
pub(crate) async fn a_retry_forgets_the_cancel(t: Fixture) {
    let run = t.run().await;
    t.apply(run.job.id, CANCEL).await;
    t.end(&run, Verdict::Release).await;
    t.apply(run.job.id, Action::Retry).await;
    let run = t.reserve_one().await;
    assert_eq!(t.settle_one(run.lease, Verdict::Release).await, Settled::Settled(State::Waiting, None));
}
