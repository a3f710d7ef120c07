//! Limits of queues: how many run, how often one starts, and limiters that a run closes for a while.

use std::time::Duration;

use punctual::{
    ErrorKind, JobId, State, When,
    job::{Concurrency, Status},
    store::{QueueOp, QueueReply, QueueSettings, Rate, Settlement, Verdict},
};

use crate::fixture::{CANCEL, Fixture, QUEUE, WATCH, at, ids, millis, secs};

const fn rate(max: u32, period_ms: u64, burst: u32) -> Rate {
    Rate { max, period_ms, burst }
}

fn retry_after(after: Duration) -> Verdict {
    Verdict::RetryAfter { at: When::In(after), error: "429".to_owned() }
}

/// S15: of a queue as many jobs run as its limit says; one starts when one of them has ended, and nobody is told to call in vain.
pub(crate) async fn a_queue_runs_as_many_jobs_as_may(t: Fixture) {
    t.set(|settings| settings.concurrency = Some(2)).await;
    let jobs = t.add_many(4).await;
    let batch = t.reserve(9).await;
    assert_eq!((ids(&batch), batch.more, batch.next_due), (jobs[..2].to_vec(), false, Some(WATCH)));
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&batch.jobs[1], Verdict::Release).await;
    assert_eq!(ids(&t.reserve(9).await), jobs[1..2]);
    let ack = [Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack }];
    let (_, next) = t.store.settle(&ack, Some(&t.want(9))).await.unwrap();
    assert_eq!(ids(&next.unwrap()), jobs[2..3]);
    // A lease that is reclaimed makes room, too: the first of those that are due starts.
    t.pass(15).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 2);
}

/// S15: other queues of the same call are not held back.
pub(crate) async fn a_limit_is_that_of_its_queue(t: Fixture) {
    t.set(|settings| settings.concurrency = Some(1)).await;
    t.add_many(2).await;
    for _ in 0..2 {
        t.add_with(|job| "push".clone_into(&mut job.queue)).await;
    }
    let batch = t.reserve_by(&t.want_from(&[(QUEUE, 9), ("push", 9)], 9)).await;
    let queues: Vec<_> = batch.jobs.iter().map(|reserved| reserved.job.queue.as_str()).collect();
    assert_eq!((queues, batch.more), (vec![QUEUE, "push", "push"], false));
}

/// S5, S15: jobs start evenly by a rate, to the millisecond, and the answer says when.
pub(crate) async fn a_rate_starts_jobs_evenly(t: Fixture) {
    t.set(|settings| settings.rate = Some(rate(3, 1_000, 1))).await;
    let jobs = t.add_many(5).await;
    // A step is 333 1/3 ms, and what starts in a later millisecond than it might puts off the next one.
    for (n, job) in (0..).zip(&jobs) {
        if 0 < n {
            t.clock.set(at(n * 334 - 1));
            assert_eq!(t.reserve(9).await.jobs, []);
            t.clock.set(at(n * 334));
        }
        let batch = t.reserve(9).await;
        let wait = if n < 4 { millis(334) } else { WATCH };
        assert_eq!((ids(&batch), batch.more, batch.next_due), (vec![*job], false, Some(wait)));
    }
}

/// S15: after a pause so many start at once as the burst says, and no more than burst + rate × t in any time t.
pub(crate) async fn a_burst_starts_at_once(t: Fixture) {
    t.set(|settings| settings.rate = Some(rate(10, 1_000, 4))).await;
    t.add_many(20).await;
    let mut started = t.reserve(9).await.jobs.len();
    assert_eq!(started, 4);
    t.clock.set(at(250));
    started += t.reserve(9).await.jobs.len();
    assert_eq!(started, 6);
    t.clock.set(at(10_000));
    assert_eq!(t.reserve(9).await.jobs.len(), 4);
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: what expires, is held back or is called off spends nothing of a rate.
pub(crate) async fn only_what_starts_spends_of_a_rate(t: Fixture) {
    t.set(|settings| settings.rate = Some(rate(1, 1_000, 2))).await;
    let row = || Some(Concurrency { key: "row".to_owned(), limit: 1 });
    t.run_with(|job| job.concurrency = row()).await;
    let short = t.add_with(|job| job.expires_at = Some(When::In(millis(1)))).await;
    t.add_with(|job| job.concurrency = row()).await;
    let off = t.add().await;
    t.apply(off, CANCEL).await;
    let free = t.add_many(2).await;
    t.clock.set(at(1));
    assert_eq!(ids(&t.reserve(9).await), free[..1]);
    assert_eq!(t.state(short).await, State::Cancelled);
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: settings that change, a pause too, don't begin a rate anew.
pub(crate) async fn a_rate_goes_on_over_other_settings(t: Fixture) {
    t.set(|settings| settings.rate = Some(rate(1, 1_000, 1))).await;
    t.add_many(2).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.pause().await;
    assert!(matches!(t.queue(QueueOp::Resume).await, QueueReply::Info(_)));
    t.set(|settings| (settings.rate, settings.max_jobs) = (Some(rate(1, 1_000, 1)), Some(9))).await;
    t.clock.set(at(999));
    assert_eq!(t.reserve(9).await.jobs, []);
    t.clock.set(at(1_000));
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S14, S15: a clock that goes back far voids what a rate kept; one that goes back a little is followed.
pub(crate) async fn a_rate_follows_the_clock(t: Fixture) {
    t.set(|settings| settings.rate = Some(rate(1, 1_000, 1))).await;
    t.pass(60).await;
    t.add_many(3).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.clock.set(at(59_000));
    assert_eq!(t.reserve(9).await.next_due, Some(millis(1_000)));
    t.clock.set(at(60_999));
    assert_eq!(t.reserve(9).await.jobs, []);
    t.clock.set(at(61_000));
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S15: a limit of a queue that is raised or taken away counts at once.
pub(crate) async fn limits_are_live(t: Fixture) {
    t.set(|settings| settings.concurrency = Some(1)).await;
    t.add_many(5).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.set(|settings| settings.concurrency = Some(3)).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 2);
    t.set(|settings| settings.concurrency = Some(1)).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.set(|_| ()).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 2);
}

/// S15: a take starts no more than may run or start, and keeps no place.
pub(crate) async fn a_take_obeys_limits(t: Fixture) {
    t.set(|settings| (settings.concurrency, settings.rate) = (Some(1), Some(rate(1, 1_000, 3)))).await;
    let jobs = t.add_many(5).await;
    let taken: Vec<JobId> = t.take(9).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, jobs[..3]);
    t.pass(2).await;
    assert_eq!(t.reserve(1).await.jobs.len(), 1);
    assert_eq!(t.take(9).await, []);
}

/// S10, S15: a run may close its queue for a while: the job fails, and nothing of its queue starts until then.
pub(crate) async fn a_run_closes_the_limiter_of_its_queue(t: Fixture) {
    let run = t.run().await;
    let job = t.end(&run, retry_after(secs(30))).await;
    assert_eq!((job.state, job.attempt, job.run_at), (State::Waiting, 2, at(30_000)));
    assert_eq!(job.failures[0].error, "429");
    let other = t.add().await;
    t.add_with(|job| "push".clone_into(&mut job.queue)).await;
    let batch = t.reserve_by(&t.want_from(&[(QUEUE, 9), ("push", 9)], 9)).await;
    assert_eq!(batch.jobs.len(), 1);
    assert_eq!(batch.jobs[0].job.queue, "push");
    assert!(!batch.more);
    assert_eq!(t.take(9).await, []);
    assert_eq!(t.info().await.opens_at, Some(at(30_000)));
    t.clock.set(at(29_999));
    assert_eq!(t.reserve(9).await.jobs, []);
    t.clock.set(at(30_000));
    assert_eq!(t.info().await.opens_at, None);
    assert_eq!(ids(&t.reserve(9).await), [other, run.job.id]);
}

/// S15: a limiter is closed until the latest of what was asked for, and for a day at most.
pub(crate) async fn a_limiter_is_closed_for_a_day_at_most(t: Fixture) {
    t.add_many(3).await;
    let runs = t.reserve(3).await.jobs;
    t.end(&runs[0], retry_after(secs(60))).await;
    t.end(&runs[1], retry_after(secs(30))).await;
    assert_eq!(t.info().await.opens_at, Some(at(60_000)));
    t.end(&runs[2], retry_after(secs(90 * 24 * 3_600))).await;
    let day = 24 * 3_600_000;
    assert_eq!(t.info().await.opens_at, Some(at(day)));
    assert_eq!(t.get(runs[2].job.id).await.run_at, at(90 * day));
    // One that lies further ahead than it can was left by a clock that went back.
    t.clock.set(punctual::Timestamp::saturating_from_ms(crate::fixture::START_MS - 1));
    assert_eq!(t.info().await.opens_at, None);
}

/// S15: an operator opens a limiter that a run closed; what a rate and `concurrency` hold back stays so.
pub(crate) async fn an_operator_opens_a_limiter(t: Fixture) {
    let open = || QueueOp::Open { group: None };
    assert_eq!(t.queue(open()).await, QueueReply::Unknown);
    // Also where nothing waits for it.
    let run = t.run_with(|_| ()).await;
    t.end(&run, retry_after(secs(3_600))).await;
    t.apply(run.job.id, CANCEL).await;
    t.queue(open()).await;
    assert_eq!(t.info().await.opens_at, None);
    t.add_many(2).await;
    let runs = t.reserve(1).await.jobs;
    t.end(&runs[0], retry_after(secs(3_600))).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    let QueueReply::Info(info) = t.queue(open()).await else { panic!("the queue is there") };
    assert_eq!(info.opens_at, None);
    assert_eq!(t.reserve(9).await.jobs.len(), 1, "the other one may start; the first waits for its own time");
    t.set(|queue| queue.rate = Some(Rate { max: 1, period_ms: 60_000, burst: 1 })).await;
    t.add_many(2).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.queue(open()).await;
    assert_eq!((t.info().await.opens_at, t.reserve(9).await.jobs.len()), (Some(at(60_000)), 0));
}

/// S8, S15: a lease that was lost closes nothing.
pub(crate) async fn a_lost_lease_closes_no_limiter(t: Fixture) {
    let run = t.run().await;
    t.pass(15).await;
    t.reserve(0).await;
    let _ = t.settle_one(run.lease, retry_after(secs(60))).await;
    assert_eq!(t.info().await.opens_at, None);
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S15: a due job whose queue is full or closed is shown so.
pub(crate) async fn a_job_behind_a_limit_is_shown_as_blocked(t: Fixture) {
    t.set(|settings| settings.concurrency = Some(1)).await;
    let run = t.run().await;
    let job = t.add().await;
    let later = t.add_with(|job| job.run_at = When::In(secs(9))).await;
    let now = t.store.now().await.unwrap();
    assert_eq!(t.get(job).await.status(now), Status::Blocked);
    assert_eq!(t.get(later).await.status(now), Status::Scheduled);
    assert_eq!(t.list("state:blocked", 9).await, [job]);
    assert_eq!(t.counts().await.due, 1);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.get(job).await.status(now), Status::Ready);
}

/// S15: limits that make no sense are refused.
pub(crate) async fn limits_of_queues_are_checked(t: Fixture) {
    let day = 24 * 3_600_000;
    let bad: [fn(&mut QueueSettings); 7] = [
        |settings| settings.concurrency = Some(0),
        |settings| settings.concurrency = Some(1_000_001),
        |settings| settings.rate = Some(rate(0, 1_000, 1)),
        |settings| settings.rate = Some(rate(1_000_001, 1_000, 1)),
        |settings| settings.rate = Some(rate(1, 0, 1)),
        |settings| settings.rate = Some(rate(1, 30 * 24 * 3_600_000 + 1, 1)),
        |settings| settings.rate = Some(rate(1, 1_000, 0)),
    ];
    for bad in bad {
        let mut settings = QueueSettings::default();
        bad(&mut settings);
        let refused = t.store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    t.set(|settings| {
        (settings.concurrency, settings.rate) = (Some(1_000_000), Some(rate(1_000_000, 30 * day, 1_000_000)));
    })
    .await;
    t.add_many(1_000).await;
    assert_eq!(t.reserve(1_000).await.jobs.len(), 1_000);
}
