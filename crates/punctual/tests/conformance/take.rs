//! Taking: reserve and ack in one step.

use punctual::{
    State, When,
    store::{Acted, Action, Keep, Order},
};

use crate::fixture::{Fixture, at, bytes, millis, secs};

/// S7, S11: a job taken is done at once, and its record is as of then.
pub(crate) async fn a_taken_job_is_done_at_once(t: Fixture) {
    let id = t.add().await;
    t.pass(2).await;
    let taken = t.take(5).await;
    assert_eq!((taken.len(), taken[0].id), (1, id));
    assert_eq!((taken[0].state, taken[0].finished_at), (State::Done, Some(at(2_000))));
    assert_eq!((taken[0].attempt, taken[0].started_at, &taken[0].running), (1, None, &None));
    assert_eq!(t.get(id).await, taken[0]);
    assert_eq!((t.take(5).await, t.reserve(5).await.jobs), (vec![], vec![]));
}

/// S5: only jobs that became due at least that long ago, to the millisecond.
pub(crate) async fn only_jobs_that_are_old_enough_are_taken(t: Fixture) {
    let old = t.add().await;
    t.add_with(|job| job.run_at = When::In(millis(1))).await;
    t.clock.set(at(9_999));
    assert_eq!(t.take_older(5, secs(10)).await, []);
    t.clock.set(at(10_000));
    let taken: Vec<_> = t.take_older(5, secs(10)).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, [old]);
    assert_eq!(t.take_older(5, std::time::Duration::MAX).await, []);
}

/// S6: jobs are taken in the order in which they would start, up to n.
pub(crate) async fn jobs_are_taken_in_order(t: Fixture) {
    let added = t.add_many(3).await;
    t.set(|queue| queue.order = Order::Lifo).await;
    let taken: Vec<_> = t.take(2).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, [added[2], added[1]]);
}

/// S13: a take stops at 1 MiB of payloads, as a reserve does.
pub(crate) async fn a_take_carries_up_to_a_mebibyte(t: Fixture) {
    for size in [600_000, 600_000, 1] {
        t.add_with(|job| job.payload = bytes(size)).await;
    }
    assert_eq!(t.take(5).await.len(), 1);
    assert_eq!(t.take(5).await.len(), 2);
}

/// S9: a take reclaims leases past their time first, and may take their jobs.
pub(crate) async fn a_take_reclaims_first(t: Fixture) {
    let run = t.run().await;
    t.pass(15).await;
    let taken = t.take(1).await;
    assert_eq!((taken[0].id, taken[0].attempt), (run.job.id, 2));
    assert_eq!((taken[0].expired_leases, taken[0].failures.len()), (0, 1));
}

/// S9: an expired job is ended instead of taken.
pub(crate) async fn an_expired_job_is_not_taken(t: Fixture) {
    let id = t.add_with(|job| job.expires_at = Some(When::In(secs(1)))).await;
    t.pass(1).await;
    assert_eq!(t.take(1).await, []);
    assert_eq!(t.get(id).await.reason.as_deref(), Some("expired"));
}

/// S17: the retention of done jobs holds: where nothing is kept, a taken job exists only with the caller.
pub(crate) async fn a_taken_job_is_kept_as_done_jobs_are(t: Fixture) {
    t.set(|queue| queue.done = Keep::NOTHING).await;
    let id = t.add().await;
    assert_eq!(t.take(1).await[0].state, State::Done);
    assert_eq!((t.find(id).await, t.counts().await.total()), (None, 0));
}

/// S11: a job that was taken and is kept may be retried.
pub(crate) async fn a_taken_job_may_be_retried(t: Fixture) {
    let id = t.add().await;
    t.take(1).await;
    assert_eq!(t.act(id, Action::Retry).await, Acted::Done(id, State::Waiting));
    assert_eq!(t.reserve_one().await.job.id, id);
}
