//! Concurrency keys: who runs, who waits for its turn, and whose turn comes.

use punctual::{
    JobId, NewJob, OnConflict, Payload, Priority, State, Unique, When,
    job::{Concurrency, Status},
    store::{Acted, Action, Enqueued, Order, QueueOp, QueueReply, Settled, Settlement, Verdict},
};

use crate::fixture::{CANCEL, Fixture, QUEUE, WATCH, at, dead, ids, retry, secs, snooze};

/// A key of which one job may run.
fn row(job: &mut NewJob) {
    keyed(job, "row:1", 1);
}

/// One that waits for five seconds at most.
fn expiring_row(job: &mut NewJob) {
    row(job);
    job.expires_at = Some(When::In(secs(5)));
}

fn keyed(job: &mut NewJob, key: &str, limit: u32) {
    job.concurrency = Some(Concurrency { key: key.to_owned(), limit });
}

/// So many jobs of one key, of which one may run.
async fn rows(t: &Fixture, n: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..n {
        ids.push(t.add_with(row).await);
    }
    ids
}

/// S15: of a key one job runs at a time, in order, and nobody is told to call again in vain.
pub(crate) async fn jobs_of_a_key_run_one_after_another(t: Fixture) {
    for id in rows(&t, 3).await {
        let batch = t.reserve(10).await;
        assert_eq!((ids(&batch), batch.more, batch.next_due), (vec![id], false, Some(WATCH)));
        assert_eq!(t.reserve(10).await.jobs, []);
        t.end(&batch.jobs[0], Verdict::Ack).await;
    }
    assert_eq!(t.reserve(10).await.next_due, None);
}

/// S15: a queue tells when the oldest job that its key holds back became due, beside the oldest that nothing holds back.
pub(crate) async fn a_queue_tells_its_oldest_blocked_job(t: Fixture) {
    let figures = async || {
        let info = t.info().await;
        (info.counts.due, info.oldest_due, info.oldest_blocked)
    };
    rows(&t, 3).await;
    assert_eq!(figures().await, (3, Some(at(0)), None));
    let first = t.reserve(1).await;
    t.pass(10).await;
    t.extend(first.jobs[0].lease).await;
    // Looked at, and found to be held back.
    assert_eq!(t.reserve(10).await.jobs, []);
    assert_eq!(figures().await, (2, None, Some(at(0))));

    let mut hurry = t.job_with(|job| keyed(job, "row:2", 1));
    hurry.options.priority = Some(Priority::High);
    t.enqueue_all(&[hurry.clone(), t.job_with(|job| keyed(job, "row:2", 1))]).await;
    let other = t.reserve(1).await;
    assert_eq!(ids(&other), [hurry.id]);
    assert_eq!(t.reserve(10).await.jobs, []);
    t.add().await;
    assert_eq!(figures().await, (4, Some(at(10_000)), Some(at(0))));

    // The next job of the first key is free: it was due before the one that still waits for the other key.
    t.end(&first.jobs[0], Verdict::Ack).await;
    assert_eq!(figures().await, (4, Some(at(0)), Some(at(0))));
    let next = t.reserve(1).await;
    t.end(&next.jobs[0], Verdict::Ack).await;
    t.end(&other.jobs[0], Verdict::Ack).await;
    assert_eq!(figures().await, (3, Some(at(0)), None));
}

/// S15: the oldest blocked job is found under whatever key it is.
pub(crate) async fn the_oldest_blocked_job_is_that_of_any_key(t: Fixture) {
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        t.run_with(|job| keyed(job, name, 1)).await;
    }
    let mut blocked = Vec::new();
    for name in names {
        t.pass(1).await;
        blocked.push(t.add_with(|job| keyed(job, name, 1)).await);
    }
    assert_eq!(t.reserve(10).await.jobs, []);
    for (n, id) in (1..).zip(blocked) {
        assert_eq!(t.info().await.oldest_blocked, Some(at(1_000 * n)));
        t.apply(id, CANCEL).await;
    }
    assert_eq!(t.info().await.oldest_blocked, None);
}

/// S15: a job may start while fewer than its limit run.
pub(crate) async fn as_many_jobs_of_a_key_run_as_may(t: Fixture) {
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(t.add_with(|job| keyed(job, "api", 3)).await);
    }
    let batch = t.reserve(10).await;
    assert_eq!(ids(&batch), jobs[..3]);
    t.end(&batch.jobs[1], Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(10).await), jobs[3..4]);
    t.end(&batch.jobs[0], Verdict::Ack).await;
    t.end(&batch.jobs[2], Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(10).await), jobs[4..]);
}

/// S15: a key is compared within its queue and group.
pub(crate) async fn a_concurrency_key_is_compared_within_queue_and_group(t: Fixture) {
    t.add_with(row).await;
    t.add_with(|job| keyed(job, "row:2", 1)).await;
    for group in ["a", "b"] {
        t.add_with(|job| {
            row(job);
            job.group = Some(group.to_owned());
        })
        .await;
    }
    t.add_with(|job| {
        row(job);
        job.queue = "push".to_owned();
    })
    .await;
    assert_eq!(t.reserve_by(&t.want_from(&[(QUEUE, 9), ("push", 9)], 9)).await.jobs.len(), 5);
}

/// S9, S15: what is blocked is looked at once: n + 256 candidates of one call, none replaced; those behind come next.
pub(crate) async fn what_is_blocked_leaves_the_way(t: Fixture) {
    let first = t.run_with(row).await;
    let jobs: Vec<NewJob> = (0..300).map(|_| t.job_with(row)).collect();
    t.enqueue_all(&jobs).await;
    let free = t.add().await;
    let batch = t.reserve(1).await;
    assert_eq!((ids(&batch), batch.more), (vec![], true));
    let batch = t.reserve(1).await;
    assert_eq!((ids(&batch), batch.more), (vec![free], false));
    assert_eq!((t.counts().await.waiting, t.counts().await.due), (300, 300));
    t.end(&first, Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(10).await), [jobs[0].id]);
}

/// S6, S15: the turn is that of the first by priority, time and id, not of the first that was held back.
pub(crate) async fn turns_are_in_the_order_of_the_queue(t: Fixture) {
    let first = t.run_with(row).await;
    let late = t.add_with(row).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    let high = t
        .add_with(|job| {
            row(job);
            job.options.priority = Some(Priority::High);
        })
        .await;
    let early = t.job_with(row);
    t.pass(1).await;
    let later = t.add_with(row).await;
    t.enqueue_all(std::slice::from_ref(&early)).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&first, Verdict::Ack).await;
    for id in [high, late, early.id, later] {
        let run = t.reserve_one().await;
        assert_eq!((run.job.id, run.job.run_at), (id, t.get(id).await.run_at));
        t.end(&run, Verdict::Ack).await;
    }
}

/// S6, S15: in a `lifo` queue the turn is that of the last.
pub(crate) async fn turns_of_a_lifo_queue_begin_with_the_last(t: Fixture) {
    t.set(|settings| settings.order = Order::Lifo).await;
    let first = t.run_with(row).await;
    let jobs = rows(&t, 2).await;
    let high = t
        .add_with(|job| {
            row(job);
            job.options.priority = Some(Priority::High);
        })
        .await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&first, Verdict::Ack).await;
    for id in [high, jobs[1], jobs[0]] {
        let run = t.reserve_one().await;
        assert_eq!(run.job.id, id);
        t.end(&run, Verdict::Ack).await;
    }
}

/// S15: whatever ends a run hands its turn over.
pub(crate) async fn every_end_of_a_run_hands_its_turn_over(t: Fixture) {
    let verdicts =
        [retry(secs(60)), snooze(secs(60)), Verdict::Cancel { reason: None }, dead(), Verdict::Ack];
    let mut run = t.run_with(row).await;
    for verdict in verdicts {
        let next = t.add_with(row).await;
        assert_eq!(t.reserve(9).await.jobs, []);
        t.end(&run, verdict).await;
        run = t.reserve_one().await;
        assert_eq!(run.job.id, next);
    }
    // What is released is the first again.
    t.add_with(row).await;
    t.end(&run, Verdict::Release).await;
    assert_eq!(t.reserve_one().await.job.id, run.job.id);
}

/// S9, S15: a lease that is reclaimed hands its turn over in the same call.
pub(crate) async fn a_lease_reclaimed_hands_its_turn_over(t: Fixture) {
    let run = t.run_with(|job| {
        row(job);
        job.options.max_attempts = Some(1);
    });
    let run = run.await;
    let next = t.add_with(row).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.pass(15).await;
    let batch = t.reserve(9).await;
    assert_eq!((batch.reclaimed.len(), ids(&batch)), (1, vec![next]));
    assert_eq!(t.state(run.job.id).await, State::Dead);
}

/// S8, S15: a lease that was lost gives no turn away, however often it is settled.
pub(crate) async fn a_turn_ends_once(t: Fixture) {
    let old = t.run_with(row).await;
    t.pass(15).await;
    let new = t.reserve_one().await;
    rows(&t, 2).await;
    for _ in 0..2 {
        assert_eq!(t.settle_one(old.lease, Verdict::Ack).await, Settled::LeaseLost);
        assert_eq!(t.reserve(9).await.jobs, []);
    }
    t.end(&new, Verdict::Ack).await;
    assert_eq!(t.settle_one(new.lease, Verdict::Ack).await, Settled::LeaseLost);
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: a settle and the reserve behind it are one step: the turn goes on in it.
pub(crate) async fn a_turn_goes_on_in_the_step_that_ends_it(t: Fixture) {
    let run = t.run_with(row).await;
    let next = rows(&t, 2).await[0];
    let ack = [Settlement { lease: run.lease, verdict: Verdict::Ack }];
    let (_, batch) = t.store.settle(&ack, Some(&t.want(9))).await.unwrap();
    assert_eq!(ids(&batch.unwrap()), [next]);
}

/// S15: who has the turn and is called off before it starts leaves it to the next.
pub(crate) async fn a_turn_that_is_not_taken_goes_to_the_next(t: Fixture) {
    let run = t.run_with(row).await;
    let jobs = rows(&t, 5).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.act(jobs[0], CANCEL).await, Acted::Done(jobs[0], State::Cancelled));
    assert_eq!(t.act(jobs[1], Action::Delete).await, Acted::Done(jobs[1], State::Waiting));
    t.apply(jobs[2], Action::Reschedule(When::In(secs(60)))).await;
    let run = t.reserve_one().await;
    assert_eq!(run.job.id, jobs[3]);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.reserve_one().await.job.id, jobs[4]);
}

/// S15: who has the turn and has expired leaves it to the next, which the same call tells of.
pub(crate) async fn a_turn_of_a_job_that_expired_goes_to_the_next(t: Fixture) {
    let run = t.run_with(row).await;
    for _ in 0..2 {
        t.add_with(expiring_row).await;
    }
    let next = t.add_with(row).await;
    // A full sweep of its own would end them: the hundred that ride come behind the look.
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&run, Verdict::Ack).await;
    t.pass(5).await;
    let batch = t.reserve(9).await;
    assert_eq!((ids(&batch), batch.more), (vec![], true));
    let run = t.reserve_one().await;
    assert_eq!(run.job.id, next);
    // One that has the turn and expires alone: no other expiry hands it over in its place.
    t.add_with(expiring_row).await;
    let next = t.add_with(row).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&run, Verdict::Ack).await;
    t.pass(5).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    assert_eq!(t.reserve_one().await.job.id, next);
}

/// S15: who is blocked while others with a higher limit are leaves the turn to the first of these.
pub(crate) async fn a_job_that_is_blocked_looks_for_the_first(t: Fixture) {
    let run = t.run_with(|job| keyed(job, "k", 2)).await;
    t.run_with(|job| keyed(job, "k", 2)).await;
    let wide = t.add_with(|job| keyed(job, "k", 2)).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    let narrow = t
        .add_with(|job| {
            keyed(job, "k", 1);
            job.options.priority = Some(Priority::Low);
        })
        .await;
    t.pause().await;
    t.end(&run, Verdict::Ack).await;
    t.apply(wide, Action::Reschedule(When::In(secs(1)))).await;
    t.queue(QueueOp::Resume).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.pass(1).await;
    assert_eq!(ids(&t.reserve(9).await), [wide]);
    assert_eq!(t.get(narrow).await.state, State::Waiting);
}

/// S14, S15: jobs that were due before the clock went back, and that would come first, hold up no job of their key.
pub(crate) async fn a_blocked_job_that_is_not_due_any_more_leaves_the_turn(t: Fixture) {
    let run = t.run_with(row).await;
    let due = t.add_with(row).await;
    t.clock.set(at(3_600_000));
    let urgent = t
        .add_with(|job| {
            row(job);
            job.options.priority = Some(Priority::High);
        })
        .await;
    assert_eq!(t.reserve(9).await.jobs, [], "both are blocked");
    t.clock.set(at(1_000));
    t.end(&run, Verdict::Ack).await;
    let run = t.reserve_one().await;
    assert_eq!(run.job.id, due);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.clock.set(at(3_600_000));
    assert_eq!(ids(&t.reserve(9).await), [urgent]);
}

/// S15: a job that is held back can be acted on as any that waits.
pub(crate) async fn a_blocked_job_is_a_waiting_one(t: Fixture) {
    let run = t.run_with(row).await;
    let jobs = rows(&t, 5).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    assert_eq!(t.act(jobs[0], CANCEL).await, Acted::Done(jobs[0], State::Cancelled));
    assert_eq!(t.act(jobs[1], Action::Delete).await, Acted::Done(jobs[1], State::Waiting));
    t.apply(jobs[2], Action::EditPayload(Payload::json("2"))).await;
    t.apply(jobs[3], Action::Reschedule(When::In(secs(10)))).await;
    t.apply(jobs[4], Action::Reprioritise(Priority::High)).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&run, Verdict::Ack).await;
    for id in [jobs[4], jobs[2]] {
        let run = t.reserve_one().await;
        assert_eq!(run.job.id, id);
        t.end(&run, Verdict::Ack).await;
    }
    t.pass(10).await;
    assert_eq!(t.reserve_one().await.job.id, jobs[3]);
    let counts = t.counts().await;
    assert_eq!((counts.waiting, counts.running, counts.bytes), (0, 1, 1));
}

/// S4, S15: a job that is held back can be replaced; its concurrency key stays.
pub(crate) async fn a_blocked_job_can_be_replaced(t: Fixture) {
    let run = t.run_with(row).await;
    let replace = |job: &mut NewJob| {
        row(job);
        job.unique = Some(Unique::key("k").until_start().on_conflict(OnConflict::Replace));
    };
    let id = t.add_with(replace).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    let answer = t
        .enqueue(t.job_with(|job| {
            replace(job);
            job.payload = Payload::json("[2,3]");
        }))
        .await;
    assert_eq!(answer, Enqueued::Replaced { id, run_at: at(0) });
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&run, Verdict::Ack).await;
    let next = t.reserve_one().await;
    assert_eq!((next.job.id, &next.job.payload.bytes[..]), (id, &b"[2,3]"[..]));
    t.add_with(row).await;
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: of jobs of one key with limits of their own, the first that is held back holds back those behind it.
pub(crate) async fn limits_of_one_key_may_differ(t: Fixture) {
    t.add_with(|job| keyed(job, "k", 2)).await;
    t.add_with(|job| keyed(job, "k", 2)).await;
    let runs = t.reserve(9).await.jobs;
    let narrow = t.add_with(|job| keyed(job, "k", 1)).await;
    let wide = t.add_with(|job| keyed(job, "k", 2)).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&runs[0], Verdict::Ack).await;
    // Who comes later does not overtake them.
    let last = t.add_with(|job| keyed(job, "k", 2)).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&runs[1], Verdict::Ack).await;
    assert_eq!(t.reserve_one().await.job.id, narrow);
    // One of the two that it may have beside it is free.
    let run = t.reserve_one().await;
    assert_eq!(run.job.id, wide);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.reserve_one().await.job.id, last);
}

/// S15: a job that is held back may expire, be purged, and is counted.
pub(crate) async fn a_blocked_job_expires_and_is_purged(t: Fixture) {
    t.run_with(row).await;
    let short = t.add_with(|job| {
        row(job);
        job.expires_at = Some(When::In(secs(5)));
    });
    let short = short.await;
    rows(&t, 2).await;
    t.add().await;
    t.pause().await;
    assert!(matches!(t.queue(QueueOp::Resume).await, QueueReply::Info(_)));
    assert_eq!(t.reserve(1).await.jobs.len(), 1);
    t.pass(5).await;
    assert_eq!(t.sweep(9).await.expired, 1);
    assert_eq!(t.state(short).await, State::Cancelled);
    assert_eq!(t.counts().await.waiting, 2);
    assert_eq!(t.queue(QueueOp::Purge(1)).await, QueueReply::Purged { deleted: 1, more: true });
    assert_eq!(t.queue(QueueOp::Purge(9)).await, QueueReply::Purged { deleted: 1, more: false });
    assert_eq!(t.counts().await.waiting, 0);
}

/// S15: a take obeys keys; what it takes is done at once and keeps nobody back.
pub(crate) async fn a_take_obeys_concurrency_keys(t: Fixture) {
    let run = t.run_with(row).await;
    let jobs = rows(&t, 3).await;
    assert_eq!(t.take(9).await, []);
    t.end(&run, Verdict::Ack).await;
    // One had the turn; its end gave it on.
    assert_eq!(t.take(9).await[0].id, jobs[0]);
    let rest: Vec<JobId> = [t.take(9).await, t.take(9).await].concat().iter().map(|job| job.id).collect();
    assert_eq!(rest, jobs[1..]);
    let jobs = rows(&t, 3).await;
    assert_eq!(t.take(9).await.iter().map(|job| job.id).collect::<Vec<_>>(), jobs);
}

/// S15: a due job whose key is full is shown so, wherever it is read.
pub(crate) async fn a_blocked_job_is_shown(t: Fixture) {
    let run = t.run_with(row).await;
    let jobs = rows(&t, 2).await;
    t.add_with(|job| {
        row(job);
        job.run_at = When::In(secs(60));
    })
    .await;
    t.reserve(1).await;
    let now = t.store.now().await.unwrap();
    assert_eq!(t.get(jobs[0]).await.status(now), Status::Blocked);
    assert_eq!(t.list("state:blocked", 9).await, [jobs[1], jobs[0]]);
    assert_eq!(t.list("state:ready", 9).await, []);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.get(jobs[1]).await.status(now), Status::Ready);
    assert_eq!(t.list("state:blocked", 9).await, []);
}

/// S15: a store with jobs that are held back is well.
pub(crate) async fn an_audit_finds_nothing_wrong_with_turns(t: Fixture) {
    t.run_with(row).await;
    rows(&t, 3).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    for repair in [false, true] {
        let mut audit = punctual::store::Audit { repair, from: punctual::store::AuditCursor::default() };
        loop {
            let audited = t.store.audit(audit.clone()).await.unwrap();
            assert_eq!(audited.findings, []);
            match audited.next {
                Some(next) => audit.from = next,
                None => break,
            }
        }
    }
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: bytes of ids and keys stand for nothing: every run counts, and every job that waits is found.
pub(crate) async fn no_id_and_no_key_is_missed(t: Fixture) {
    let last = (0..).map(|n: u32| JobId::derived(QUEUE, Some("row:1"), &n.to_string()));
    // Its bytes stand behind those of all others.
    let last = last.into_iter().find(|id| id.as_bytes()[0] == 255).expect("one in 256 is such an id");
    let run = |job: &mut NewJob| {
        row(job);
        job.id = last;
    };
    assert_eq!(t.run_with(run).await.job.id, last);
    t.add_with(row).await;
    assert_eq!(t.reserve(10).await.jobs, []);
    // One of these keys stands behind all others, too.
    for n in 0..600 {
        t.add_with(|job| keyed(job, &n.to_string(), 1)).await;
        t.add_with(|job| keyed(job, &n.to_string(), 1)).await;
    }
    let mut runs = 1;
    for _ in 0..8 {
        runs += t.reserve(500).await.jobs.len();
    }
    let counts = t.counts().await;
    assert_eq!((runs, counts.due, counts.waiting), (601, 601, 601));
    let answer = t.queue(QueueOp::Purge(1_000)).await;
    assert_eq!(answer, QueueReply::Purged { deleted: 601, more: false });
}
