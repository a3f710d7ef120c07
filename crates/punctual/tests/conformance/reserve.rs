//! Reserving: only what is due, each job to one worker, bounded, and what is told about the next one.

use punctual::{
    State, When,
    job::Concurrency,
    store::{Enqueued, Reserve, Reserved, Settled, Verdict},
};

use crate::fixture::{Fixture, QUEUE, WATCH, WORKER, at, bytes, ids, millis, secs};

/// S5: not a millisecond early, by the store's clock.
pub(crate) async fn a_job_starts_at_its_time_and_never_before(t: Fixture) {
    let id = t.add_with(|job| job.run_at = When::In(millis(10_500))).await;
    t.clock.set(at(10_499));
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, Some(millis(1))));
    t.clock.set(at(10_500));
    assert_eq!(ids(&t.reserve(1).await), [id]);
}

/// S5: a job that is due brings none along that is not, though it be a millisecond.
pub(crate) async fn a_due_job_brings_none_along_early(t: Fixture) {
    let due = t.add().await;
    t.add_with(|job| job.run_at = When::In(millis(1))).await;
    let batch = t.reserve(2).await;
    assert_eq!((ids(&batch), batch.more, batch.next_due), (vec![due], false, Some(millis(1))));
}

/// S7: a job under a current lease is given to nobody else.
pub(crate) async fn a_job_has_one_current_lease(t: Fixture) {
    t.add_many(2).await;
    let first = t.reserve(1).await;
    let second = t.reserve(5).await;
    assert_eq!((first.jobs.len(), second.jobs.len()), (1, 1));
    assert_ne!(first.jobs[0].job.id, second.jobs[0].job.id);
    assert_eq!(t.reserve(5).await.jobs, []);
}

/// S7: a reserved job tells under which lease it runs.
pub(crate) async fn a_reserved_job_tells_of_its_lease(t: Fixture) {
    let id = t.add().await;
    t.pass(2).await;
    let Reserved { lease, until, lasts, job } = t.reserve_one().await;
    assert_eq!((lease.job, until, lasts), (id, at(17_000), secs(15)));
    assert_eq!((job.state, job.attempt, job.started_at), (State::Running, 1, Some(at(2_000))));
    assert_eq!((job.run_at, job.finished_at), (at(0), None));
    let running = job.running.clone().expect("it runs");
    assert_eq!((running.fence, running.worker.as_str(), running.until), (lease.fence, WORKER, at(17_000)));
    assert_eq!(t.get(id).await, job);
}

/// S8: fences rise from reservation to reservation, of one job and over all of them.
pub(crate) async fn fences_rise_with_every_reservation(t: Fixture) {
    t.add_many(3).await;
    let mut last = 0;
    for _ in 0..3 {
        for run in t.reserve(3).await.jobs {
            assert!(last < run.lease.fence);
            last = run.lease.fence;
            t.end(&run, Verdict::Release).await;
        }
    }
}

/// S1: fences are above the clock in microseconds, so that they don't go back should the store lose its last ones.
pub(crate) async fn a_fence_is_above_the_clock(t: Fixture) {
    let first = t.run().await.lease.fence;
    assert!(1_800_000_000_000_000 < first);
    t.pass(1).await;
    assert!(1_800_000_001_000_000 < t.run().await.lease.fence);
}

/// S9: the lease is the job's own, else the call's, else the queue's, else 15 s.
pub(crate) async fn the_lease_is_the_jobs_else_the_calls_else_the_queues(t: Fixture) {
    assert_eq!(t.run().await.lasts, secs(15));
    t.set(|queue| queue.defaults.lease = Some(secs(20))).await;
    assert_eq!(t.run().await.lasts, secs(20));
    t.add().await;
    let by_call = t.reserve_by(&Reserve { lease: Some(secs(30)), ..t.want(1) }).await;
    assert_eq!((by_call.jobs[0].lasts, by_call.jobs[0].until), (secs(30), at(30_000)));
    t.add_with(|job| job.options.lease = Some(secs(40))).await;
    let by_job = t.reserve_by(&Reserve { lease: Some(secs(30)), ..t.want(1) }).await;
    assert_eq!(by_job.jobs[0].lasts, secs(40));
}

/// S14: the queue's lease is looked up at the reservation, not at the enqueue.
pub(crate) async fn each_reservation_chooses_the_lease_anew(t: Fixture) {
    t.set(|queue| queue.defaults.lease = Some(secs(20))).await;
    let id = t.add().await;
    t.set(|queue| queue.defaults.lease = Some(secs(25))).await;
    let run = t.reserve_one().await;
    assert_eq!((run.job.id, run.job.lease, run.lasts), (id, None, secs(25)));
}

/// S13: never more than asked for; `more` says that due jobs are left.
pub(crate) async fn at_most_n_jobs_are_reserved(t: Fixture) {
    let added = t.add_many(3).await;
    let batch = t.reserve(2).await;
    assert_eq!((ids(&batch), batch.more, batch.next_due), (added[..2].to_vec(), true, Some(secs(0))));
    let batch = t.reserve(2).await;
    assert_eq!((ids(&batch), batch.more), (added[2..].to_vec(), false));
}

/// S13: n = 0 reserves nothing, and tells what is next.
pub(crate) async fn a_reserve_of_none_tells_what_is_next(t: Fixture) {
    t.add_with(|job| job.run_at = When::In(secs(9))).await;
    let batch = t.reserve(0).await;
    assert_eq!((batch.now, batch.more, batch.next_due), (at(0), false, Some(secs(9))));
    t.pass(9).await;
    let batch = t.reserve(0).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, true, Some(secs(0))));
}

/// S5, S9: the next time is the earliest `run_at`, or when a lease in these queues needs a call; `None`: there is neither.
pub(crate) async fn the_next_time_is_the_earliest_due_job_or_lease(t: Fixture) {
    let empty = t.reserve(1).await;
    assert_eq!((empty.more, empty.next_due), (false, None));
    t.run().await;
    assert_eq!(t.reserve(1).await.next_due, Some(WATCH));
    t.add_with(|job| job.run_at = When::In(secs(20))).await;
    assert_eq!(t.reserve(1).await.next_due, Some(WATCH));
    t.add_with(|job| job.run_at = When::In(secs(5))).await;
    t.add_with(|job| (job.queue, job.run_at) = ("bulk".to_owned(), When::In(secs(1)))).await;
    t.pass(2).await;
    assert_eq!(t.reserve(1).await.next_due, Some(secs(3)));
}

/// S13: a queue that nobody knows gives nothing, and is not made by asking.
pub(crate) async fn a_reserve_makes_no_queue(t: Fixture) {
    let batch = t.reserve_by(&t.want_from(&[("nobody", 1)], 1)).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, None));
    assert_eq!(t.store.queues(None).await.unwrap(), [""; 0]);
}

/// S13: a reserve without queues is answered.
pub(crate) async fn a_reserve_may_name_no_queue(t: Fixture) {
    t.add().await;
    let batch = t.reserve_by(&t.want_from(&[], 5)).await;
    assert_eq!((batch.now, batch.jobs.len(), batch.next_due), (at(0), 0, None));
}

// ── bounds ──

/// S13: an answer carries up to 1 MiB of payloads, to the byte.
pub(crate) async fn an_answer_carries_up_to_a_mebibyte(t: Fixture) {
    for size in [524_288, 524_287, 1, 1] {
        t.add_with(|job| job.payload = bytes(size)).await;
    }
    let batch = t.reserve(10).await;
    let sizes: Vec<usize> = batch.jobs.iter().map(|run| run.job.payload.bytes.len()).collect();
    assert_eq!((sizes, batch.more), (vec![524_288, 524_287, 1], true));
    assert_eq!(t.reserve(10).await.jobs.len(), 1);
}

/// S13: the job that does not fit ends the call in all queues; smaller ones behind it don't overtake.
pub(crate) async fn a_job_that_does_not_fit_ends_the_call_in_all_queues(t: Fixture) {
    let first = t.add_with(|job| job.payload = bytes(600_000)).await;
    let second = t.add_with(|job| job.payload = bytes(600_000)).await;
    t.add().await;
    t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let queues = [(QUEUE, 10), ("bulk", 10)];
    let batch = t.reserve_by(&t.want_from(&queues, 10)).await;
    assert_eq!((ids(&batch), batch.more), (vec![first], true));
    let batch = t.reserve_by(&t.want_from(&queues, 10)).await;
    assert_eq!((ids(&batch).len(), ids(&batch)[0], batch.more), (3, second, false));
}

/// S13: the largest job travels alone.
pub(crate) async fn the_largest_job_travels_alone(t: Fixture) {
    let large = t.add_with(|job| job.payload = bytes(1_048_576)).await;
    let small = t.add().await;
    assert_eq!(ids(&t.reserve(10).await), [large]);
    assert_eq!(ids(&t.reserve(10).await), [small]);
}

/// S9, S13: one call looks at n + 256 due jobs; the sweep that rides along ends another 100.
pub(crate) async fn a_reserve_looks_at_n_and_256_candidates(t: Fixture) {
    let expiring: Vec<_> =
        (0..400).map(|_| t.job_with(|job| job.expires_at = Some(When::In(secs(1))))).collect();
    assert!(t.enqueue_all(&expiring).await.iter().all(Enqueued::is_new));
    let good = t.add().await;
    t.pass(1).await;
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.more), (0, true));
    assert_eq!((t.counts().await.cancelled, t.counts().await.waiting), (357, 44));
    assert_eq!(ids(&t.reserve(1).await), [good]);
    assert_eq!(t.counts().await.cancelled, 400);
}

// ── expiry ──

/// S11: a job past its `expires_at` is ended instead of started, to the millisecond.
pub(crate) async fn an_expired_job_is_never_started(t: Fixture) {
    let expiring = |job: &mut punctual::NewJob| job.expires_at = Some(When::In(secs(10)));
    let (early, late) = (t.add_with(expiring).await, t.add_with(expiring).await);
    t.clock.set(at(9_999));
    assert_eq!(ids(&t.reserve(1).await), [early]);
    t.clock.set(at(10_000));
    assert_eq!(t.reserve(1).await.jobs, []);
    let job = t.get(late).await;
    assert_eq!((job.state, job.reason.as_deref()), (State::Cancelled, Some("expired")));
    assert_eq!((job.finished_at, job.attempt), (Some(at(10_000)), 1));
}

/// S17: a job that runs past its `expires_at` goes on; it only never starts again (the sweep of that settle ends it).
pub(crate) async fn a_running_job_is_not_ended_by_its_expiry(t: Fixture) {
    let run = t.run_with(|job| job.expires_at = Some(When::In(secs(1)))).await;
    t.pass(2).await;
    t.sweep(100).await;
    assert_eq!(t.settle_one(run.lease, Verdict::Release).await, Settled::Settled(State::Waiting, None));
    assert_eq!(t.get(run.job.id).await.reason.as_deref(), Some("expired"));
}

// ── wait ──

/// S13: a wait returns at once when something is due already.
pub(crate) async fn a_wait_returns_at_once_when_a_job_is_due(t: Fixture) {
    t.add().await;
    let queues = [QUEUE.to_owned()];
    let wait = t.store.wait(&queues, secs(3_600));
    tokio::time::timeout(secs(20), wait).await.expect("it returns").unwrap();
}

/// S13: an enqueue wakes who waits for its queue, long before the bound.
pub(crate) async fn an_enqueue_ends_a_wait(t: Fixture) {
    let queues = ["bulk".to_owned(), QUEUE.to_owned()];
    let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, secs(3_600)));
    let (woken, _) = tokio::join!(wait, t.add());
    woken.expect("it returns").unwrap();
}

/// S13: who got jobs may be busy from then on: what it left wakes another.
pub(crate) async fn what_a_reserve_left_ends_the_next_wait(t: Fixture) {
    let queues = [QUEUE.to_owned()];
    t.add_many(2).await;
    for _ in 0..2 {
        let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, secs(3_600)));
        wait.await.expect("it returns").unwrap();
        assert_eq!(t.reserve(1).await.jobs.len(), 1);
    }
}

/// S13, S15: the end of a run wakes who waits for the turn of a job that was held back by its key.
pub(crate) async fn a_turn_that_is_handed_over_ends_a_wait(t: Fixture) {
    let key = || Some(Concurrency { key: "row".to_owned(), limit: 1 });
    for _ in 0..2 {
        t.add_with(|job| job.concurrency = key()).await;
    }
    a_run_that_ends_ends_a_wait(&t).await;
}

/// S13, S15: the end of a run wakes who waits for a queue that was full.
pub(crate) async fn a_place_in_a_queue_ends_a_wait(t: Fixture) {
    t.set(|settings| settings.concurrency = Some(1)).await;
    t.add_many(2).await;
    a_run_that_ends_ends_a_wait(&t).await;
}

/// One of two jobs may run, for longer than anybody waits here.
async fn a_run_that_ends_ends_a_wait(t: &Fixture) {
    let queues = [QUEUE.to_owned()];
    let want = Reserve { lease: Some(secs(3_600)), ..t.want(9) };
    let runs = t.reserve_by(&want).await.jobs;
    let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, secs(3_600)));
    let (woken, _) = tokio::join!(wait, t.end(&runs[0], Verdict::Ack));
    woken.expect("it returns").unwrap();
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S13: a wait is bounded.
pub(crate) async fn a_wait_ends_at_its_bound(t: Fixture) {
    let queues = [QUEUE.to_owned()];
    let wait = t.store.wait(&queues, millis(10));
    tokio::time::timeout(secs(20), wait).await.expect("it returns").unwrap();
}
