//! Caps of a queue, in jobs and bytes: only inserts meet them.

use punctual::{
    State, When,
    store::{Acted, Action, Enqueued, Verdict},
};

use crate::fixture::{Fixture, bytes, dead, secs};

/// S13: a queue holds at most as many waiting and running jobs as its cap says; a full one writes nothing.
pub(crate) async fn max_jobs_counts_waiting_and_running_ones(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(2)).await;
    t.run().await;
    t.add_with(|job| job.run_at = When::In(secs(60))).await;
    let third = t.job();
    assert_eq!(t.enqueue(third.clone()).await, Enqueued::Full);
    assert_eq!(t.find(third.id).await, None);
    assert_eq!(t.counts().await.total(), 2);
}

/// S13: an ended job no longer counts for the cap.
pub(crate) async fn an_ended_job_makes_room(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(1)).await;
    let run = t.run().await;
    assert_eq!(t.enqueue(t.job()).await, Enqueued::Full);
    t.end(&run, Verdict::Ack).await;
    assert!(t.enqueue(t.job()).await.is_new());
}

/// S13: a job is refused if it would bring the bytes over the cap; a smaller one behind it may still fit.
pub(crate) async fn max_bytes_counts_payloads_of_live_jobs(t: Fixture) {
    t.set(|queue| queue.max_bytes = Some(100)).await;
    t.add_with(|job| job.payload = bytes(60)).await;
    let jobs = [41, 40, 1, 0].map(|n| t.job_with(|job| job.payload = bytes(n)));
    let answers = t.enqueue_all(&jobs).await;
    assert_eq!(
        answers.iter().map(Enqueued::name).collect::<Vec<_>>(),
        ["full", "inserted", "full", "inserted"]
    );
    assert_eq!(t.counts().await.bytes, 100);
}

/// S13: a cap of 0 takes no job at all.
pub(crate) async fn a_cap_of_zero_takes_nothing(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(0)).await;
    assert_eq!(t.enqueue(t.job()).await, Enqueued::Full);
}

/// S11, S13: an operator's retry and edit meet no cap.
pub(crate) async fn acts_meet_no_cap(t: Fixture) {
    t.set(|queue| (queue.max_jobs, queue.max_bytes) = (Some(1), Some(10))).await;
    let run = t.run().await;
    t.end(&run, dead()).await;
    let second = t.add().await;
    assert_eq!(t.act(run.job.id, Action::Retry).await, Acted::Done(run.job.id, State::Waiting));
    let edit = Action::EditPayload(bytes(50));
    assert_eq!(t.act(second, edit).await, Acted::Done(second, State::Waiting));
    assert_eq!((t.counts().await.waiting, t.counts().await.bytes), (2, 51));
}
