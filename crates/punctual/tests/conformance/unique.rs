//! Unique keys: what they are compared within, how long they are held, and what an enqueue does that meets a holder.

use std::collections::BTreeMap;

use punctual::{
    Backoff, JobId, NewJob, OnConflict, Payload, Priority, State, Unique, When,
    job::Concurrency,
    store::{Acted, Action, CallId, Enqueued, Keep, QueueOp, Settled, UniqueKey, Verdict},
};

use crate::fixture::{
    CANCEL, Fixture, KIND, QUEUE, at, dead, duplicate, duplicate_of_cancelled, duplicate_of_gone,
    duplicate_of_kind, key, millis, retry, secs,
};

fn until_done() -> Unique {
    Unique::key("k").until_done()
}

fn until_start() -> Unique {
    Unique::key("k").until_start()
}

/// For a minute from the enqueue.
fn window() -> Unique {
    Unique::key("k").window(secs(60))
}

/// A job that wants the key by this rule, due in 5 s.
fn rival(t: &Fixture, rule: OnConflict) -> NewJob {
    t.job_with(|job| {
        job.unique = Some(Unique::key("k").on_conflict(rule));
        job.run_at = When::In(secs(5));
    })
}

/// Whether a job that wants the key is inserted; if so, it is gone again.
async fn is_free(t: &Fixture) -> bool {
    let asker = rival(t, OnConflict::Keep);
    let id = asker.id;
    let is_free = t.enqueue(asker).await.is_new();
    if is_free {
        t.apply(id, Action::Delete).await;
    }
    is_free
}

/// S4: by default a second job with the key of a live one is not inserted; the answer leads to the holder.
pub(crate) async fn keep_leaves_the_holder_as_it_is(t: Fixture) {
    let holder = t.add_with(|job| job.unique = Some(until_done())).await;
    let second = rival(&t, OnConflict::Keep);
    assert_eq!(t.enqueue(second.clone()).await, duplicate(holder, State::Waiting, 1));
    assert_eq!(t.find(second.id).await, None);
    assert_eq!((t.get(holder).await.run_at, t.holder("k").await), (at(0), Some(holder)));
}

/// S4: a key is compared within queue, group and concurrency key.
pub(crate) async fn a_key_is_compared_within_queue_group_and_concurrency_key(t: Fixture) {
    let concurrency = |key: &str| Some(Concurrency { key: key.to_owned(), limit: 1 });
    let plain = t.add_with(|job| job.unique = Some(until_done())).await;
    t.add_with(|job| (job.unique, job.queue) = (Some(until_done()), "bulk".to_owned())).await;
    t.add_with(|job| (job.unique, job.group) = (Some(until_done()), Some("g".to_owned()))).await;
    let one = t.add_with(|job| (job.unique, job.concurrency) = (Some(until_done()), concurrency("c"))).await;
    t.add_with(|job| (job.unique, job.concurrency) = (Some(until_done()), concurrency("d"))).await;
    t.add_with(|job| job.unique = Some(Unique::key("K"))).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(plain, State::Waiting, 1));
    let other_limit = t.job_with(|job| {
        job.unique = Some(until_done());
        job.concurrency = Some(Concurrency { key: "c".to_owned(), limit: 2 });
    });
    assert_eq!(t.enqueue(other_limit).await, duplicate(one, State::Waiting, 1));
}

/// S4: a key is compared within its kind, unless both jobs hold it across kinds.
pub(crate) async fn a_key_is_one_of_its_kind_unless_it_is_across_kinds(t: Fixture) {
    let ask = async |kind: &str, unique: Unique| {
        t.enqueue(t.job_with(|job| (job.kind, job.unique) = (kind.to_owned(), Some(unique)))).await
    };
    let first = ask(KIND, until_done()).await.id().unwrap();
    let other = ask("invoice", until_done()).await.id().unwrap();
    let across = ask("parcel", until_done().across_kinds()).await.id().unwrap();
    assert_eq!(t.counts().await.waiting, 3);
    for (kind, unique, holder, of) in [
        (KIND, until_done(), first, KIND),
        ("invoice", until_done(), other, "invoice"),
        (KIND, until_done().across_kinds(), across, "parcel"),
        ("parcel", until_done().across_kinds(), across, "parcel"),
    ] {
        assert_eq!(ask(kind, unique).await, duplicate_of_kind(of, holder, State::Waiting, 1));
    }
    let of_kind = |kind: Option<&str>| UniqueKey { kind: kind.map(str::to_owned), ..key("k") };
    for (kind, holder) in [(Some(KIND), Some(first)), (Some("invoice"), Some(other)), (None, Some(across))] {
        assert_eq!(t.store.holder(&of_kind(kind)).await.unwrap().map(|job| job.id), holder);
        let job = t.get(holder.unwrap()).await;
        assert_eq!(
            UniqueKey::of(&job),
            Some(of_kind(kind)),
            "a record tells whether its key is across kinds"
        );
    }
    assert_eq!(t.store.holder(&of_kind(Some("parcel"))).await.unwrap(), None);
    // An operator's cancel by key, and a retry, know the kind.
    assert_eq!(t.act(of_kind(Some("invoice")), CANCEL).await, Acted::Done(other, State::Cancelled));
    assert_eq!(t.act(other, Action::Retry).await, Acted::Done(other, State::Waiting));
    let expected = duplicate_of_kind("invoice", other, State::Waiting, 2);
    assert_eq!(ask("invoice", until_done()).await, expected);
}

/// S4: a duplicate names the kind of the job that it met, also one that the same call has just inserted or replaced.
pub(crate) async fn a_duplicate_names_the_kind_of_the_job_that_it_met(t: Fixture) {
    let unique = || Some(Unique::key("k").across_kinds());
    let job = |kind: &str| t.job_with(|job| (job.kind, job.unique) = (kind.to_owned(), unique()));
    let call = CallId { instance: 99, number: 1 };
    let mut replacing = job("letter");
    replacing.unique = Some(Unique::key("k").across_kinds().on_conflict(OnConflict::Replace));
    let first = job("parcel");
    let same_id = NewJob { unique: None, kind: "invoice".to_owned(), ..first.clone() };
    let jobs = [first.clone(), job("invoice"), same_id.clone(), replacing, same_id.clone(), job("invoice")];
    let met = |kind, version| duplicate_of_kind(kind, first.id, State::Waiting, version);
    let inserted = Enqueued::Inserted { id: first.id, run_at: at(0) };
    let replaced = Enqueued::Replaced { id: first.id, run_at: at(0) };
    let [parcel, letter] = [met("parcel", 1), met("letter", 2)];
    assert_eq!(
        t.store.enqueue(call, &jobs).await.unwrap(),
        [inserted.clone(), parcel.clone(), parcel, replaced, letter.clone(), letter.clone()]
    );
    // Repeated; and in a call of their own, by id and by key.
    let repeated = [vec![inserted], vec![letter.clone(); 5]].concat();
    assert_eq!(t.store.enqueue(call, &jobs).await.unwrap(), repeated);
    assert_eq!(t.enqueue(same_id).await, letter);
    assert_eq!(t.enqueue(job("invoice")).await, letter);
}

/// S4: a job that is replaced across kinds has another kind, and keeps its key.
pub(crate) async fn a_key_across_kinds_outlives_the_kind_of_its_job(t: Fixture) {
    let unique = || Unique::key("k").across_kinds().on_conflict(OnConflict::Replace);
    let job = |kind: &str| t.job_with(|job| (job.kind, job.unique) = (kind.to_owned(), Some(unique())));
    let id = t.enqueue(job("invoice")).await.id().unwrap();
    assert_eq!(t.enqueue(job("parcel")).await, Enqueued::Replaced { id, run_at: at(0) });
    assert_eq!(t.get(id).await.kind, "parcel");
    let held = UniqueKey { kind: None, ..key("k") };
    assert_eq!(t.store.holder(&held).await.unwrap().map(|job| job.id), Some(id));
    assert_eq!(t.act(held.clone(), CANCEL).await, Acted::Done(id, State::Cancelled));
    assert_eq!(t.store.holder(&held).await.unwrap(), None);
}

/// S4: the holder of a key is found by the key and all that it is compared within.
pub(crate) async fn the_holder_is_found_by_all_of_its_key(t: Fixture) {
    let id = t.add_with(|job| (job.unique, job.group) = (Some(until_done()), Some("g".to_owned()))).await;
    let whole = UniqueKey { group: Some("g".to_owned()), ..key("k") };
    assert_eq!(t.store.holder(&whole).await.unwrap().map(|job| job.id), Some(id));
    assert_eq!(t.holder("k").await, None);
}

// ── until done ──

/// S4, S12: a key until done is held while waiting, running and retrying, also while a cancel is requested.
pub(crate) async fn a_key_until_done_is_held_while_waiting_and_running(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(until_done())).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(run.job.id, State::Running, 1));
    t.end(&run, retry(secs(1))).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(run.job.id, State::Waiting, 1));
    t.pass(1).await;
    let run = t.reserve_one().await;
    t.apply(run.job.id, CANCEL).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate_of_cancelled(run.job.id));
}

/// S4: a key until done is freed by each end of its job.
pub(crate) async fn a_key_until_done_is_freed_by_any_end(t: Fixture) {
    for end in [Verdict::Ack, dead(), Verdict::Cancel { reason: None }] {
        let run = t.run_with(|job| job.unique = Some(until_done())).await;
        assert!(t.end(&run, end).await.state.is_ended());
        assert!(is_free(&t).await);
    }
    let id = t.add_with(|job| job.unique = Some(until_done())).await;
    t.apply(id, CANCEL).await;
    assert!(is_free(&t).await);
    t.add_with(|job| job.unique = Some(until_done())).await;
    assert_eq!(t.take(1).await.len(), 1);
    assert_eq!(t.holder("k").await, None);
    assert!(is_free(&t).await);
}

/// S4: delete, purge and expiry free a key as well; a key whose job is gone is void.
pub(crate) async fn a_key_whose_job_is_gone_is_void(t: Fixture) {
    let id = t.add_with(|job| job.unique = Some(until_done())).await;
    t.apply(id, Action::Delete).await;
    assert!(is_free(&t).await);
    t.add_with(|job| job.unique = Some(until_done())).await;
    t.queue(QueueOp::Purge(1)).await;
    assert!(is_free(&t).await);
    t.add_with(|job| (job.unique, job.expires_at) = (Some(until_done()), Some(When::In(secs(1))))).await;
    t.pass(1).await;
    assert!(!is_free(&t).await, "expired, but nobody ended it yet");
    t.sweep(1).await;
    assert!(is_free(&t).await);
}

/// S4, S9: being given up on at a taking back frees the key in the same step.
pub(crate) async fn a_key_is_freed_when_a_crash_ends_its_job(t: Fixture) {
    t.run_with(|job| (job.unique, job.options.max_attempts) = (Some(until_done()), Some(1))).await;
    t.pass(15).await;
    t.reserve(0).await;
    assert!(is_free(&t).await);
}

// ── until start ──

/// S4: a key until start is held until the first reservation, and never again, whatever the run comes to.
pub(crate) async fn a_key_until_start_is_freed_by_the_first_reservation_for_good(t: Fixture) {
    let id = t.add_with(|job| job.unique = Some(until_start())).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(id, State::Waiting, 1));
    let run = t.reserve_one().await;
    assert!(is_free(&t).await);
    t.end(&run, retry(secs(1))).await;
    assert!(is_free(&t).await);
    t.pass(1).await;
    let run = t.reserve_one().await;
    t.end(&run, Verdict::Ack).await;
    t.apply(id, Action::Retry).await;
    assert!(is_free(&t).await);
    assert_eq!(t.holder("k").await, None);
}

/// S4: the end of a job that lost its key to another one frees nothing.
pub(crate) async fn an_end_frees_no_key_of_another_job(t: Fixture) {
    let first = t.run_with(|job| job.unique = Some(until_start())).await;
    let second = t.add_with(|job| job.unique = Some(until_start())).await;
    t.end(&first, Verdict::Ack).await;
    assert_eq!(t.holder("k").await, Some(second));
    t.apply(first.job.id, Action::Delete).await;
    assert_eq!(t.holder("k").await, Some(second));
}

/// S4, S9: a key until start stays free when its lease is reclaimed.
pub(crate) async fn a_key_until_start_stays_free_after_a_taking_back(t: Fixture) {
    t.run_with(|job| job.unique = Some(until_start())).await;
    t.pass(15).await;
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
    assert!(is_free(&t).await);
}

/// S4: an end before the start frees a key until start.
pub(crate) async fn a_key_until_start_is_freed_by_an_end_before_it(t: Fixture) {
    let id = t.add_with(|job| job.unique = Some(until_start())).await;
    t.apply(id, CANCEL).await;
    assert!(is_free(&t).await);
    t.add_with(|job| (job.unique, job.expires_at) = (Some(until_start()), Some(When::In(secs(1))))).await;
    t.pass(1).await;
    assert_eq!(t.reserve(1).await.jobs.len(), 0);
    assert!(is_free(&t).await);
}

/// S4: a take is a start as well.
pub(crate) async fn a_key_until_start_is_freed_by_a_take(t: Fixture) {
    t.add_with(|job| job.unique = Some(until_start())).await;
    t.take(1).await;
    assert!(is_free(&t).await);
}

// ── window ──

/// S4: a window is held from the enqueue to its end, to the millisecond, whatever becomes of the job.
pub(crate) async fn a_window_is_held_to_its_end_to_the_millisecond(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(window())).await;
    t.end(&run, Verdict::Ack).await;
    t.clock.set(at(59_999));
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(run.job.id, State::Done, 1));
    t.clock.set(at(60_000));
    assert_eq!(t.holder("k").await, None);
    assert!(is_free(&t).await);
}

/// S4: a window outlives the record of its job; it is then told without a state.
pub(crate) async fn a_window_outlives_the_record_of_its_job(t: Fixture) {
    t.set(|queue| queue.done = Keep::NOTHING).await;
    let run = t.run_with(|job| job.unique = Some(window())).await;
    assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
    assert_eq!(t.enqueue(rival(&t, OnConflict::Replace)).await, duplicate_of_gone(run.job.id));
    assert_eq!(t.holder("k").await, None);
    assert_eq!(t.act(key("k"), CANCEL).await, Acted::NotFound);
}

/// S4: only a cancel, delete or purge of a job that was never reserved frees a window.
pub(crate) async fn a_window_is_freed_by_giving_up_the_job_before_its_start(t: Fixture) {
    for action in [CANCEL, Action::Delete] {
        let id = t.add_with(|job| job.unique = Some(window())).await;
        t.apply(id, action).await;
        assert!(is_free(&t).await);
    }
    t.add_with(|job| job.unique = Some(window())).await;
    t.queue(QueueOp::Purge(1)).await;
    assert!(is_free(&t).await);
}

/// S4: expiry does not free a window.
pub(crate) async fn a_window_outlives_the_expiry_of_its_job(t: Fixture) {
    let id = t.add_with(|job| (job.unique, job.expires_at) = (Some(window()), Some(When::In(secs(1))))).await;
    t.pass(1).await;
    t.sweep(1).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(id, State::Cancelled, 1));
}

/// S4: once its job was reserved, neither cancel nor delete nor purge frees a window.
pub(crate) async fn a_window_stays_when_a_job_that_ran_is_given_up(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(window())).await;
    t.end(&run, Verdict::Release).await;
    t.apply(run.job.id, CANCEL).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(run.job.id, State::Cancelled, 1));
    t.apply(run.job.id, Action::Delete).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate_of_gone(run.job.id));
}

/// S4: a window may end while its job runs; the next job then takes the key.
pub(crate) async fn a_window_may_end_before_its_job(t: Fixture) {
    let first = t.run_with(|job| (job.unique, job.options.lease) = (Some(window()), Some(secs(600)))).await;
    t.pass(60).await;
    let second = t.add_with(|job| job.unique = Some(window())).await;
    t.end(&first, Verdict::Ack).await;
    assert_eq!(t.holder("k").await, Some(second));
}

/// S4, S14: a window of a clock that was ahead ends at most its length after the first job that met it, with or without a record of its job.
pub(crate) async fn a_window_is_no_longer_for_a_step_back(t: Fixture) {
    for (round, keep) in
        [Keep::NOTHING, Keep { age_ms: 86_400_000, count: 10, bytes: 1 << 20 }].into_iter().enumerate()
    {
        let start = 200_000 * round as u64;
        t.set(|queue| queue.done = keep).await;
        t.clock.set(at(start + 3_600_000));
        let run = t.run_with(|job| job.unique = Some(window())).await;
        assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
        for ms in [1_000, 60_999] {
            t.clock.set(at(start + ms));
            assert!(!is_free(&t).await, "round {round}, {ms} ms");
        }
        t.clock.set(at(start + 61_000));
        assert!(is_free(&t).await, "round {round}");
    }
}

/// S14: calls that overlap may read the clock in another order. So a step back of a minute shortens no window.
pub(crate) async fn a_small_step_back_shortens_no_window(t: Fixture) {
    t.clock.set(at(60_000));
    t.add_with(|job| job.unique = Some(window())).await;
    for ms in [0, 119_999] {
        t.clock.set(at(ms));
        assert!(!is_free(&t).await, "{ms} ms");
    }
    t.clock.set(at(120_000));
    assert!(is_free(&t).await);
}

/// S11, S14: a retry meets such a window, too.
pub(crate) async fn a_retry_shortens_a_window_after_a_step_back(t: Fixture) {
    let id = cancelled(&t, window()).await;
    t.clock.set(at(3_600_000));
    let run = t.run_with(|job| job.unique = Some(window())).await;
    t.clock.set(at(1_000));
    assert_eq!(t.act(id, Action::Retry).await, Acted::UniqueConflict(run.job.id));
    t.clock.set(at(61_000));
    assert!(is_free(&t).await);
}

// ── conflict rules ──

/// S4: `replace` gives the holder all that the new job brings, and keeps what makes it the same job.
pub(crate) async fn replace_gives_the_waiting_holder_everything_new(t: Fixture) {
    let whatever = || until_done().across_kinds();
    let holder = t.add_with(|job| (job.unique, job.run_at) = (Some(whatever()), When::In(secs(60)))).await;
    t.pass(1).await;
    let new = t.job_with(|job| {
        job.kind = "email.digest".to_owned();
        job.payload = Payload { bytes: b"new".to_vec(), content_type: "text/plain".into() };
        job.run_at = When::In(secs(5));
        job.expires_at = Some(When::In(secs(9)));
        job.unique = Some(whatever().until_start().on_conflict(OnConflict::Replace));
        job.options.priority = Some(Priority::High);
        job.options.max_attempts = Some(3);
        job.options.backoff = Some(Backoff::fixed(secs(8)));
        job.options.timeout = Some(secs(44));
        job.options.lease = Some(secs(30));
        job.headers = BTreeMap::from([("traceparent".to_owned(), "00-2".to_owned())]);
        job.tags = vec!["vip".to_owned()];
    });
    let new_id = new.id;
    assert_eq!(t.enqueue(new).await, Enqueued::Replaced { id: holder, run_at: at(6_000) });
    let job = t.get(holder).await;
    assert_eq!((job.kind.as_str(), &job.payload.bytes[..]), ("email.digest", &b"new"[..]));
    assert_eq!((job.run_at, job.expires_at, job.created_at), (at(6_000), Some(at(10_000)), at(0)));
    assert_eq!((job.priority, job.max_attempts, job.lease), (Priority::High, 3, Some(secs(30))));
    assert_eq!((job.backoff, job.timeout), (Backoff::fixed(secs(8)), secs(44)));
    assert_eq!((job.tags, job.headers["traceparent"].as_str()), (vec!["vip".to_owned()], "00-2"));
    assert_eq!((job.version, job.unique), (2, Some(whatever())));
    assert_eq!((t.find(new_id).await, t.counts().await.waiting, t.counts().await.bytes), (None, 1, 3));
}

/// S4, S10: what a holder went through goes on after a `replace`: attempt, snoozes, reason, failures and fence.
pub(crate) async fn replace_keeps_what_the_holder_went_through(t: Fixture) {
    let first = t.run_with(|job| job.unique = Some(until_done())).await;
    t.end(&first, retry(secs(0))).await;
    let second = t.reserve_one().await;
    t.end(&second, Verdict::Snooze { after: secs(60), reason: Some("unknown_kind".to_owned()) }).await;
    assert!(matches!(t.enqueue(rival(&t, OnConflict::Replace)).await, Enqueued::Replaced { .. }));
    let job = t.get(first.job.id).await;
    assert_eq!((job.attempt, job.snoozes, job.reason.as_deref()), (2, 1, Some("unknown_kind")));
    assert_eq!((job.failures.len(), job.failures[0].error.as_str()), (1, "no route"));
    t.pass(5).await;
    assert!(second.lease.fence < t.reserve_one().await.lease.fence);
}

/// S4: with a version, `replace` acts on the holder that the caller read, or not at all.
pub(crate) async fn replace_may_name_the_version_it_read(t: Fixture) {
    let holder = t.add_with(|job| job.unique = Some(until_done())).await;
    let replace = |version| {
        t.job_with(|job| {
            let unique = Unique::key("k").on_conflict(OnConflict::Replace);
            job.unique = Some(unique.if_version(version));
        })
    };
    assert_eq!(t.enqueue(replace(2)).await, duplicate(holder, State::Waiting, 1));
    assert_eq!(t.enqueue(replace(1)).await, Enqueued::Replaced { id: holder, run_at: at(0) });
    assert_eq!(t.enqueue(replace(1)).await, duplicate(holder, State::Waiting, 2));
}

/// S4: `reschedule` gives the waiting holder the new time, and nothing else.
pub(crate) async fn reschedule_gives_the_waiting_holder_the_new_time_only(t: Fixture) {
    let holder = t.add_with(|job| job.unique = Some(until_done())).await;
    let mut new = rival(&t, OnConflict::Reschedule);
    new.payload = Payload::json("2");
    assert_eq!(t.enqueue(new).await, Enqueued::Rescheduled { id: holder, run_at: at(5_000) });
    let job = t.get(holder).await;
    assert_eq!((job.run_at, job.version, job.payload), (at(5_000), 2, Payload::json("1")));
    assert_eq!(t.reserve(1).await.next_due, Some(secs(5)));
}

/// S4: `replace` and `reschedule` leave a holder alone that runs or ended.
pub(crate) async fn replace_and_reschedule_act_on_a_waiting_holder_only(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(window())).await;
    for rule in [OnConflict::Replace, OnConflict::Reschedule] {
        assert_eq!(t.enqueue(rival(&t, rule)).await, duplicate(run.job.id, State::Running, 1));
    }
    t.end(&run, dead()).await;
    for rule in [OnConflict::Replace, OnConflict::Reschedule] {
        assert_eq!(t.enqueue(rival(&t, rule)).await, duplicate(run.job.id, State::Dead, 1));
    }
}

// ── an operator's retry ──

/// A job that was cancelled before its start.
async fn cancelled(t: &Fixture, unique: Unique) -> JobId {
    let id = t.add_with(|job| job.unique = Some(unique)).await;
    t.apply(id, CANCEL).await;
    id
}

/// S4, S11: a retry takes a key until done again.
pub(crate) async fn a_retry_takes_a_key_until_done_again(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(until_done())).await;
    t.end(&run, dead()).await;
    t.apply(run.job.id, Action::Retry).await;
    assert_eq!(t.enqueue(rival(&t, OnConflict::Keep)).await, duplicate(run.job.id, State::Waiting, 2));
}

/// S4, S11: a retry is refused while another job holds the key, and changes nothing.
pub(crate) async fn a_retry_meets_the_job_that_holds_its_key_by_now(t: Fixture) {
    for unique in [until_done(), until_start(), window()] {
        let id = cancelled(&t, unique.clone()).await;
        let other = t.add_with(|job| job.unique = Some(unique)).await;
        assert_eq!(t.act(id, Action::Retry).await, Acted::UniqueConflict(other));
        assert_eq!((t.state(id).await, t.get(id).await.version), (State::Cancelled, 1));
        t.apply(other, Action::Delete).await;
    }
}

/// S4, S11: the holder that a retry meets may be gone: its window is not.
pub(crate) async fn a_retry_meets_a_window_whose_job_is_gone(t: Fixture) {
    let id = cancelled(&t, window()).await;
    let other = t.run_with(|job| job.unique = Some(window())).await;
    t.end(&other, Verdict::Ack).await;
    t.apply(other.job.id, Action::Delete).await;
    assert_eq!(t.act(id, Action::Retry).await, Acted::UniqueConflict(other.job.id));
    t.pass(60).await;
    assert_eq!(t.act(id, Action::Retry).await, Acted::Done(id, State::Waiting));
}

/// S4, S11: a key until start is taken again by a job that never started.
pub(crate) async fn a_retry_takes_a_key_until_start_again_if_the_job_never_started(t: Fixture) {
    let id = cancelled(&t, until_start()).await;
    t.apply(id, Action::Retry).await;
    assert_eq!(t.holder("k").await, Some(id));
    assert_eq!(t.reserve_one().await.job.id, id);
    assert!(is_free(&t).await);
}

/// S4, S11: a window is taken again by a job that never started, and still ends when it would have.
pub(crate) async fn a_retry_takes_a_window_again_that_has_not_ended(t: Fixture) {
    let id = cancelled(&t, window()).await;
    t.clock.advance(millis(59_998));
    t.apply(id, Action::Retry).await;
    assert_eq!(t.holder("k").await, Some(id));
    t.clock.advance(millis(2));
    assert_eq!(t.holder("k").await, None);
    t.apply(id, CANCEL).await;
    let other = t.add_with(|job| job.unique = Some(window())).await;
    t.apply(id, Action::Retry).await;
    assert_eq!(t.holder("k").await, Some(other));
}

/// S4, S11: a window that its own job still holds is no conflict.
pub(crate) async fn a_retry_does_not_meet_itself(t: Fixture) {
    let expiring =
        |job: &mut NewJob| (job.unique, job.expires_at) = (Some(window()), Some(When::In(secs(1))));
    let id = t.add_with(expiring).await;
    t.pass(1).await;
    t.sweep(1).await;
    assert_eq!((t.state(id).await, t.holder("k").await), (State::Cancelled, Some(id)));
    t.apply(id, Action::Retry).await;
    assert_eq!((t.state(id).await, t.holder("k").await), (State::Waiting, Some(id)));
}

/// S4: a key leads an act to its holder only; after the end it leads nowhere.
pub(crate) async fn a_key_leads_to_its_holder_while_it_is_held(t: Fixture) {
    let id = t.add_with(|job| job.unique = Some(until_done())).await;
    assert_eq!(t.act(key("k"), CANCEL).await, Acted::Done(id, State::Cancelled));
    assert_eq!(t.act(key("k"), Action::Retry).await, Acted::NotFound);
    let elsewhere = UniqueKey { queue: "bulk".to_owned(), ..key("k") };
    assert_eq!(t.act(elsewhere, CANCEL).await, Acted::NotFound);
    assert_eq!(t.store.queues(None).await.unwrap(), [QUEUE]);
}
