//! What operators do to single jobs, by id or by key.

use punctual::{
    Client, Payload, Priority, State, Timestamp, Unique, When,
    job::Filter,
    store::{Acted, Action, Guard, Keep, LeaseStatus, Selector, Settled, Target, Verdict},
};

use crate::fixture::{
    CANCEL, Fixture, QUEUE, at, bytes, dead, duplicate, ids, key, millis, retry, secs, snooze,
};

/// Everything that acts on waiting jobs only.
fn changes() -> [Action; 5] {
    [
        Action::Reschedule(When::In(secs(9))),
        Action::RescheduleBy(1_000),
        Action::RunNow,
        Action::Reprioritise(Priority::Low),
        Action::EditPayload(Payload::json("2")),
    ]
}

/// S5, S14: a job is rescheduled to any time, by the store's clock; earlier than now means now.
pub(crate) async fn a_job_is_rescheduled(t: Fixture) {
    let id = t.add().await;
    t.pass(5).await;
    let times = [
        (When::In(secs(10)), at(15_000)),
        (When::At(at(77_000)), at(77_000)),
        (When::At(at(1)), at(5_000)),
        (When::Now, at(5_000)),
    ];
    for (when, run_at) in times {
        assert_eq!(t.act(id, Action::Reschedule(when)).await, Acted::Done(id, State::Waiting));
        assert_eq!(t.get(id).await.run_at, run_at);
    }
}

/// S5: a job is moved by a time, forth and back, never before now nor past the end of time.
pub(crate) async fn a_job_is_rescheduled_by_a_time(t: Fixture) {
    let id = t.add_with(|job| job.run_at = When::In(secs(10))).await;
    t.pass(1).await;
    let steps = [(5_000, at(15_000)), (-3_000, at(12_000)), (-99_000, at(1_000)), (i64::MAX, Timestamp::MAX)];
    for (ms, run_at) in steps {
        t.apply(id, Action::RescheduleBy(ms)).await;
        assert_eq!(t.get(id).await.run_at, run_at);
    }
    t.apply(id, Action::RescheduleBy(i64::MIN)).await;
    assert_eq!(t.get(id).await.run_at, at(1_000));
}

/// S5: a job is made due now.
pub(crate) async fn a_job_is_run_now(t: Fixture) {
    let id = t.add_with(|job| job.run_at = When::In(secs(600))).await;
    t.pass(1).await;
    t.apply(id, Action::RunNow).await;
    assert_eq!(t.get(id).await.run_at, at(1_000));
    assert_eq!(ids(&t.reserve(1).await), [id]);
}

/// S2: an edit replaces payload and content type, and the counted bytes with them.
pub(crate) async fn a_payload_is_edited(t: Fixture) {
    let id = t.add().await;
    t.apply(id, Action::EditPayload(bytes(40))).await;
    assert_eq!((t.get(id).await.payload, t.counts().await.bytes), (bytes(40), 40));
    assert_eq!(t.reserve_one().await.job.payload, bytes(40));
}

/// S4: every change by a caller raises the version, also one to the same value; nothing else does.
pub(crate) async fn every_change_by_a_caller_raises_the_version(t: Fixture) {
    let id = t.add().await;
    t.apply(id, Action::Reprioritise(Priority::Normal)).await;
    t.apply(id, Action::RescheduleBy(0)).await;
    t.apply(id, Action::RunNow).await;
    t.apply(id, Action::EditPayload(Payload::json("1"))).await;
    assert_eq!(t.get(id).await.version, 5);
    let run = t.reserve_one().await;
    t.end(&run, retry(secs(0))).await;
    let run = t.reserve_one().await;
    t.extend(run.lease).await;
    t.end(&run, dead()).await;
    assert_eq!(t.get(id).await.version, 5);
    t.apply(id, Action::Retry).await;
    assert_eq!(t.get(id).await.version, 6);
}

/// S12: reschedule, run now, reprioritise and edit act on waiting jobs only, and tell in which state the job is.
pub(crate) async fn changes_act_on_waiting_jobs_only(t: Fixture) {
    let run = t.run().await;
    for action in changes() {
        assert_eq!(t.act(run.job.id, action).await, Acted::WrongState(run.job.id, State::Running));
    }
    assert_eq!(t.get(run.job.id).await, run.job);
    let ended = t.end(&run, Verdict::Ack).await;
    for action in changes() {
        assert_eq!(t.act(run.job.id, action).await, Acted::WrongState(run.job.id, State::Done));
    }
    assert_eq!(t.get(run.job.id).await, ended);
}

/// S5: a reschedule past the expiry is allowed: the job then ends expired.
pub(crate) async fn a_job_may_be_rescheduled_past_its_expiry(t: Fixture) {
    let id = t.add_with(|job| job.expires_at = Some(When::In(secs(10)))).await;
    t.apply(id, Action::Reschedule(When::In(secs(10)))).await;
    assert_eq!(t.get(id).await.expires_at, Some(at(10_000)));
    t.pass(10).await;
    assert_eq!(t.reserve(1).await.jobs, []);
    assert_eq!(t.get(id).await.reason.as_deref(), Some("expired"));
}

// ── delete ──

/// S11: all but running jobs are deleted; the answer tells from which state.
pub(crate) async fn all_but_running_jobs_are_deleted(t: Fixture) {
    let run = t.run().await;
    assert_eq!(t.act(run.job.id, Action::Delete).await, Acted::WrongState(run.job.id, State::Running));
    t.end(&run, dead()).await;
    let waiting = t.add().await;
    for (id, state) in [(run.job.id, State::Dead), (waiting, State::Waiting)] {
        assert_eq!(t.act(id, Action::Delete).await, Acted::Done(id, state));
        assert_eq!((t.find(id).await, t.act(id, Action::Delete).await), (None, Acted::NotFound));
    }
    assert_eq!((t.counts().await.total(), t.counts().await.bytes), (0, 0));
}

/// S2: targets of one call are decided in order, each seeing what became of the earlier ones.
pub(crate) async fn targets_are_acted_on_in_order(t: Fixture) {
    let id = t.add_with(|job| job.unique = Some(Unique::key("k"))).await;
    let targets = [t.id(0).into(), key("k").into(), Target::from(id), key("k").into()];
    let answers = t.store.act(&targets, &CANCEL).await.unwrap();
    let expected = [
        Acted::NotFound,
        Acted::Done(id, State::Cancelled),
        Acted::WrongState(id, State::Cancelled),
        Acted::NotFound,
    ];
    assert_eq!(answers, expected);
}

/// S12: what an action by filter expects is checked in its own step: a job that moved on is left alone.
pub(crate) async fn a_job_that_moved_on_is_left_alone(t: Fixture) {
    let run = t.run().await;
    let target = |queue: &str, state| {
        let guard = Guard { queue: queue.to_owned(), state, version: None };
        Target { selector: Selector::Id(run.job.id), guard: Some(guard) }
    };
    assert_eq!(t.act(target("bulk", State::Running), CANCEL).await, Acted::NotFound);
    let moved_on = Acted::WrongState(run.job.id, State::Running);
    assert_eq!(t.act(target(QUEUE, State::Waiting), CANCEL).await, moved_on);
    assert!(!t.get(run.job.id).await.cancel_requested);
    assert_eq!(t.act(target(QUEUE, State::Running), CANCEL).await, Acted::Requested(run.job.id));
}

/// S2: who read a job changes it as it was read, or not at all.
pub(crate) async fn a_job_is_changed_by_who_knows_its_version(t: Fixture) {
    let id = t.add().await;
    let edit = async |version| {
        let guard = Guard { queue: QUEUE.to_owned(), state: State::Waiting, version: Some(version) };
        let target = Target { selector: Selector::Id(id), guard: Some(guard) };
        t.act(target, Action::EditPayload(Payload::json(version.to_string()))).await
    };
    let (done, refused) = (Acted::Done(id, State::Waiting), Acted::WrongState(id, State::Waiting));
    for (version, answer, payload) in [
        (1, done, "1"),
        (1, refused, "1"),
        (3, refused, "1"),
        (0, refused, "1"),
        (u64::MAX, refused, "1"),
        (2, done, "2"),
    ] {
        assert_eq!(edit(version).await, answer, "{version}");
        assert_eq!(t.get(id).await.payload, Payload::json(payload), "{version}");
    }
}

/// S17: acts reach a job that reads hide by its age.
pub(crate) async fn acts_reach_jobs_that_reads_hide(t: Fixture) {
    t.set(|queue| queue.done.age_ms = 1_000).await;
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    t.pass(1).await;
    assert_eq!(t.find(run.job.id).await, None);
    assert_eq!(t.act(run.job.id, Action::Retry).await, Acted::Done(run.job.id, State::Waiting));
    assert_eq!(t.state(run.job.id).await, State::Waiting);
}

// ── an operator's retry ──

/// S11: a retry starts the counting anew, drops the expiry, and is due now; failures and fence go on.
pub(crate) async fn a_retry_starts_the_counting_anew(t: Fixture) {
    let run = t
        .run_with(|job| (job.options.max_attempts, job.expires_at) = (Some(2), Some(When::In(secs(99)))))
        .await;
    t.pass(15).await;
    let second = t.reserve_one().await;
    let ended = t.end(&second, retry(secs(0))).await;
    assert_eq!((ended.state, ended.attempt, ended.failures.len()), (State::Dead, 2, 2));
    t.pass(5).await;
    assert_eq!(t.act(run.job.id, Action::Retry).await, Acted::Done(run.job.id, State::Waiting));
    let job = t.get(run.job.id).await;
    assert_eq!((job.attempt, job.expired_leases, job.snoozes), (1, 0, 0));
    assert_eq!((job.run_at, job.expires_at, job.finished_at), (at(20_000), None, None));
    assert_eq!((job.reason, job.failures.len(), job.version), (None, 2, 2));
    let third = t.reserve_one().await;
    assert!(second.lease.fence < third.lease.fence);
    assert_eq!((third.job.attempt, third.job.max_attempts), (1, 2));
}

/// S10, S11: a retry sets the expired leases and snoozes of a job to 0.
pub(crate) async fn a_retry_forgives_expired_leases_and_snoozes(t: Fixture) {
    let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
    t.end(&run, snooze(millis(100))).await;
    t.clock.advance(millis(100));
    t.reserve_one().await;
    t.pass(15).await;
    t.reserve(0).await;
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.expired_leases, job.snoozes), (State::Dead, 1, 1));
    t.apply(run.job.id, Action::Retry).await;
    let job = t.get(run.job.id).await;
    assert_eq!((job.state, job.expired_leases, job.snoozes), (State::Waiting, 0, 0));
}

/// S11: dead, cancelled and done jobs are retried; others are not.
pub(crate) async fn only_ended_jobs_are_retried(t: Fixture) {
    let id = t.add().await;
    assert_eq!(t.act(id, Action::Retry).await, Acted::WrongState(id, State::Waiting));
    for verdict in [Verdict::Ack, dead(), Verdict::Cancel { reason: None }] {
        let run = t.reserve_one().await;
        assert_eq!(t.act(id, Action::Retry).await, Acted::WrongState(id, State::Running));
        t.end(&run, verdict).await;
        assert_eq!(t.act(id, Action::Retry).await, Acted::Done(id, State::Waiting));
    }
}

/// S11: nothing but an operator's action changes an ended job.
pub(crate) async fn only_an_operator_changes_an_ended_job(t: Fixture) {
    let run = t.run().await;
    let ended = t.end(&run, dead()).await;
    t.pass(1).await;
    let again = t.job_with(|job| job.id = run.job.id);
    assert_eq!(t.enqueue(again).await, duplicate(run.job.id, State::Dead, 1));
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Lost);
    assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::LeaseLost);
    assert_eq!((t.reserve(5).await.jobs, t.take(5).await), (vec![], vec![]));
    assert_eq!(t.get(run.job.id).await, ended);
}

/// S17: a job that was kept for nothing can't be retried: it is gone.
pub(crate) async fn what_is_not_kept_can_not_be_retried(t: Fixture) {
    t.set(|queue| queue.cancelled = Keep::NOTHING).await;
    let id = t.add().await;
    assert_eq!(t.act(id, CANCEL).await, Acted::Done(id, State::Cancelled));
    assert_eq!(t.act(id, Action::Retry).await, Acted::NotFound);
}

/// S11: an action by filter meets each job once, also where it moves jobs to places that it has yet to see.
pub(crate) async fn an_action_by_filter_meets_each_job_once(t: Fixture) {
    t.add_many(600).await;
    let ids = t.list("", 1_000).await;
    let client = Client::new(t.store.clone());
    for ms in [60_000, -30_000] {
        let done = client.act_where(&Filter::all(), &Action::RescheduleBy(ms), |_| ()).await.unwrap();
        assert_eq!((done.matched, done.done), (600, 600));
    }
    for id in ids {
        assert_eq!(t.get(id).await.run_at, at(30_000));
    }
}
