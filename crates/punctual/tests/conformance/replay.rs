//! Calls repeated after a lost answer: the effect happens once.

use punctual::{
    ErrorKind, JobId, NewJob, OnConflict, State, Timestamp, Unique, When,
    store::{Action, CallId, Enqueued, Reserve, Reserved, Settled, Settlement, Verdict},
};

use crate::fixture::{
    CANCEL, Fixture, QUEUE, at, bytes, duplicate, duplicate_of_cancelled, duplicate_of_gone, ids, secs,
};

/// Another producer, or another worker.
const OTHER: u64 = 99;

async fn enqueue(t: &Fixture, number: u64, jobs: &[NewJob]) -> Vec<Enqueued> {
    t.store.enqueue(CallId { instance: OTHER, number }, jobs).await.unwrap()
}

/// A call for two jobs, with this number.
fn want(t: &Fixture, number: u64) -> Reserve {
    Reserve { call: CallId { instance: OTHER, number }, ..t.want(2) }
}

/// What a reserve answered at 0 s, as it is answered again by then.
fn extended(jobs: Vec<Reserved>, by_s: u64) -> Vec<Reserved> {
    let extended = |mut reserved: Reserved| {
        reserved.until = at(1_000 * by_s).after(reserved.lasts);
        reserved.job.running.as_mut().unwrap().until = reserved.until;
        reserved
    };
    jobs.into_iter().map(extended).collect()
}

// ── enqueue ──

const fn inserted(id: JobId, run_at: Timestamp) -> Enqueued {
    Enqueued::Inserted { id, run_at }
}

/// S3: an enqueue repeated with its number inserts nothing again, also under another time, and says the same again.
pub(crate) async fn a_repeated_enqueue_has_its_effect_once(t: Fixture) {
    let jobs = [t.job(), t.job_with(|job| job.run_at = When::In(secs(60)))];
    let first = [inserted(jobs[0].id, at(0)), inserted(jobs[1].id, at(60_000))];
    assert_eq!(enqueue(&t, 1, &jobs).await, first);
    t.pass(1).await;
    assert_eq!(enqueue(&t, 1, &jobs).await, first);
    assert_eq!((t.counts().await.waiting, t.get(jobs[1].id).await.run_at), (2, at(60_000)));
}

/// S3: of several jobs with one id, a repetition says `Inserted` of the first one.
pub(crate) async fn a_repetition_says_inserted_once_of_an_id(t: Fixture) {
    let job = t.job();
    assert_eq!(enqueue(&t, 1, std::slice::from_ref(&job)).await, [inserted(job.id, at(0))]);
    let elsewhere = NewJob { queue: "elsewhere".to_owned(), ..job.clone() };
    assert_eq!(
        enqueue(&t, 1, &[job.clone(), job.clone(), elsewhere]).await,
        [inserted(job.id, at(0)), duplicate(job.id, State::Waiting, 1), Enqueued::Conflict { id: job.id }]
    );
}

/// S3: a repeated `replace` replaces nothing again: what happened to the holder since then stays.
pub(crate) async fn a_repeated_replace_changes_nothing(t: Fixture) {
    let holder = t.add_with(|job| job.unique = Some(Unique::key("k"))).await;
    let replace = t.job_with(|job| {
        job.unique = Some(Unique::key("k").on_conflict(OnConflict::Replace));
        job.run_at = When::In(secs(5));
    });
    let replace = [replace];
    assert_eq!(enqueue(&t, 1, &replace).await, [Enqueued::Replaced { id: holder, run_at: at(5_000) }]);
    t.apply(holder, Action::RunNow).await;
    assert_eq!(enqueue(&t, 1, &replace).await, [duplicate(holder, State::Waiting, 3)]);
    assert_eq!(t.get(holder).await.run_at, at(0));
}

/// S3: a number below the last one is a repetition, too.
pub(crate) async fn a_lower_number_is_a_repetition(t: Fixture) {
    let (first, second) = ([t.job()], [t.job()]);
    enqueue(&t, 1, &first).await;
    enqueue(&t, 2, &second).await;
    assert_eq!(enqueue(&t, 1, &first).await, [duplicate(first[0].id, State::Waiting, 1)]);
    assert_eq!(enqueue(&t, 1, &[t.job()]).await.len(), 1);
    assert_eq!(t.counts().await.waiting, 2);
}

/// S3: what a call inserted is new for its caller, whatever has become of it since; of a job without a record, nobody knows more.
pub(crate) async fn a_repetition_says_inserted_of_what_has_moved_on(t: Fixture) {
    let keyed = t.job_with(|job| job.unique = Some(Unique::key("k")));
    let jobs = [keyed, t.job(), t.job_with(|job| job.run_at = When::In(secs(9)))];
    enqueue(&t, 1, &jobs).await;
    t.apply(jobs[0].id, Action::Delete).await;
    t.reserve_one().await;
    t.apply(jobs[1].id, CANCEL).await;
    t.apply(jobs[2].id, Action::RunNow).await;
    // Who holds its key since then is another job.
    t.add_with(|job| job.unique = jobs[0].unique.clone()).await;
    let expected =
        [duplicate_of_gone(jobs[0].id), inserted(jobs[1].id, at(0)), inserted(jobs[2].id, at(9_000))];
    assert_eq!(enqueue(&t, 1, &jobs).await, expected);
    assert_eq!(t.find(jobs[0].id).await, None);
    // Another call has inserted none of them.
    let others = enqueue(&t, 2, &jobs[1..]).await;
    assert_eq!(others, [duplicate_of_cancelled(jobs[1].id), duplicate(jobs[2].id, State::Waiting, 2)]);
    assert_eq!(enqueue(&t, 2, &jobs[1..]).await, others);
}

/// S3: a repetition says of each job whether this call inserted it: not of one whose id or key was known, also by a job of the same
/// call.
pub(crate) async fn a_repetition_says_inserted_only_of_what_it_inserted(t: Fixture) {
    let derived = JobId::derived(QUEUE, None, "order 7");
    let of_key = |key: &str| t.job_with(|job| job.unique = Some(Unique::key(key)));
    let before = t.job_with(|job| job.id = derived);
    enqueue(&t, 1, std::slice::from_ref(&before)).await;
    let (first, second) = (of_key("k"), of_key("k"));
    let jobs = [before.clone(), first.clone(), second, t.job(), first.clone()];
    let expected = [
        duplicate(derived, State::Waiting, 1),
        inserted(first.id, at(0)),
        duplicate(first.id, State::Waiting, 1),
        inserted(jobs[3].id, at(0)),
        duplicate(first.id, State::Waiting, 1),
    ];
    assert_eq!(enqueue(&t, 2, &jobs).await, expected);
    assert_eq!(enqueue(&t, 2, &jobs).await, expected);
    assert_eq!(t.counts().await.waiting, 3);
}

/// S3, S4: a job of a repeated call that has no record leads to the holder of its key.
pub(crate) async fn a_repetition_leads_to_the_holder_of_the_key(t: Fixture) {
    let holder = t.add_with(|job| job.unique = Some(Unique::key("k"))).await;
    let jobs = [t.job_with(|job| job.unique = Some(Unique::key("k"))), t.job()];
    enqueue(&t, 1, &jobs).await;
    let expected = [duplicate(holder, State::Waiting, 1), inserted(jobs[1].id, at(0))];
    assert_eq!(enqueue(&t, 1, &jobs).await, expected);
}

/// S3: what was `Full` is `Full` again at the same place, though there is room by now.
pub(crate) async fn full_is_repeated_at_its_place(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(1)).await;
    let jobs = [t.job(), t.job()];
    assert_eq!(enqueue(&t, 1, &jobs).await[1], Enqueued::Full);
    t.set(|_| ()).await;
    assert_eq!(enqueue(&t, 1, &jobs).await, [inserted(jobs[0].id, at(0)), Enqueued::Full]);
    let third = [t.job()];
    assert!(enqueue(&t, 2, &third).await[0].is_new());
    let earlier = [duplicate(jobs[0].id, State::Waiting, 1), duplicate_of_gone(jobs[1].id)];
    assert_eq!(enqueue(&t, 1, &jobs).await, earlier, "only the last call is remembered");
}

/// S3: what was `Full` in the last call says nothing of an earlier one.
pub(crate) async fn full_of_the_last_call_is_not_that_of_an_earlier_one(t: Fixture) {
    t.set(|queue| queue.max_bytes = Some(10)).await;
    let (earlier, large, small) = (t.job(), t.job_with(|job| job.payload = bytes(11)), t.job());
    enqueue(&t, 1, std::slice::from_ref(&earlier)).await;
    assert_eq!(enqueue(&t, 2, &[large, small]).await[0], Enqueued::Full);
    let met = duplicate(earlier.id, State::Waiting, 1);
    assert_eq!(enqueue(&t, 1, &[earlier]).await, [met]);
}

/// S3: a call in which every job was `Full` wrote nothing, so its number is free.
pub(crate) async fn a_call_that_was_all_full_may_be_made_again(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(0)).await;
    let jobs = [t.job()];
    assert_eq!(enqueue(&t, 1, &jobs).await, [Enqueued::Full]);
    t.set(|_| ()).await;
    assert!(enqueue(&t, 1, &jobs).await[0].is_new());
}

/// S3: a refused call does not advance the number; neither does an empty one.
pub(crate) async fn a_refused_call_does_not_advance_the_number(t: Fixture) {
    let call = CallId { instance: OTHER, number: 1 };
    let bad = [t.job_with(|job| job.kind = String::new())];
    assert_eq!(t.store.enqueue(call, &bad).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(enqueue(&t, 1, &[]).await, []);
    assert!(enqueue(&t, 1, &[t.job()]).await[0].is_new());
}

/// S3: a repetition is not checked again: what was fine at its time is answered.
pub(crate) async fn a_repetition_is_not_checked_again(t: Fixture) {
    let jobs = [t.job_with(|job| job.expires_at = Some(When::At(at(1_000))))];
    enqueue(&t, 1, &jobs).await;
    t.pass(2).await;
    assert_eq!(enqueue(&t, 1, &jobs).await, [inserted(jobs[0].id, at(0))]);
    let many: Vec<NewJob> = (0..1_001).map(|_| t.job()).collect();
    let refused = t.store.enqueue(CallId { instance: OTHER, number: 1 }, &many).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "but its length is");
}

/// S3: each instance counts for itself, and enqueues and reserves apart.
pub(crate) async fn instances_and_verbs_are_numbered_apart(t: Fixture) {
    for instance in [OTHER, OTHER + 1] {
        let call = CallId { instance, number: 7 };
        assert!(t.store.enqueue(call, &[t.job()]).await.unwrap()[0].is_new());
    }
    for instance in [OTHER, OTHER + 1] {
        let want = Reserve { call: CallId { instance, number: 7 }, ..t.want(1) };
        assert_eq!(t.reserve_by(&want).await.jobs.len(), 1);
    }
}

// ── reserve ──

/// S3: a repeated reserve answers the same jobs in the same order, and reserves nothing new.
pub(crate) async fn a_repeated_reserve_answers_the_same_jobs(t: Fixture) {
    t.add_many(5).await;
    let first = t.reserve_by(&want(&t, 1)).await;
    t.pass(1).await;
    let again = t.reserve_by(&want(&t, 1)).await;
    assert_eq!((again.jobs, again.now, again.more), (extended(first.jobs, 1), at(1_000), true));
    assert_eq!((t.counts().await.running, t.counts().await.waiting), (2, 3));
}

/// S3: it answers only jobs whose leases are current, as they are by now.
pub(crate) async fn a_repeated_reserve_answers_current_leases_as_they_are(t: Fixture) {
    t.add_many(2).await;
    let first = t.reserve_by(&want(&t, 1)).await;
    t.end(&first.jobs[0], Verdict::Release).await;
    t.pass(5).await;
    t.extend(first.jobs[1].lease).await;
    t.apply(first.jobs[1].job.id, CANCEL).await;
    let again = t.reserve_by(&want(&t, 1)).await;
    assert_eq!((again.jobs.len(), again.jobs[0].lease), (1, first.jobs[1].lease));
    assert_eq!((again.jobs[0].until, again.jobs[0].job.cancel_requested), (at(20_000), true));
}

/// S3: a job reserved by another worker since then is not answered: its lease is another one.
pub(crate) async fn a_repeated_reserve_answers_no_job_of_another_lease(t: Fixture) {
    t.add().await;
    let first = t.reserve_by(&want(&t, 1)).await;
    t.end(&first.jobs[0], Verdict::Release).await;
    t.reserve_one().await;
    assert_eq!(t.reserve_by(&want(&t, 1)).await.jobs, []);
}

/// S3, S9: a repeated reserve takes nothing back, and sweeps nothing.
pub(crate) async fn a_repeated_reserve_takes_nothing_back(t: Fixture) {
    t.add_many(2).await;
    t.add_with(|job| (job.run_at, job.expires_at) = (When::In(secs(5)), Some(When::In(secs(6))))).await;
    let first = t.reserve_by(&want(&t, 1)).await;
    t.pass(16).await;
    let again = t.reserve_by(&want(&t, 1)).await;
    assert_eq!((again.jobs.len(), again.reclaimed.len()), (2, 0));
    assert_eq!((again.more, again.next_due), (true, Some(secs(0))));
    assert_eq!((t.counts().await.running, t.counts().await.cancelled), (2, 0));
    assert_eq!(again.jobs, extended(first.jobs, 16));
}

/// S3, S9: a repeated reserve extends what it answers: an answer that was away for longer than its leases last starts no run
/// that is reclaimed at once.
pub(crate) async fn a_repeated_reserve_extends_its_leases(t: Fixture) {
    t.add_many(3).await;
    let queues = t.want_from(&[(QUEUE, 2)], 2).queues;
    let first = t.reserve_by(&Reserve { queues, lease: Some(secs(3)), ..want(&t, 1) }).await;
    t.end(&first.jobs[0], Verdict::Release).await;
    t.pass(14).await;
    let again = t.reserve_by(&want(&t, 1)).await;
    assert_eq!(
        (again.jobs.len(), again.jobs[0].lease, again.jobs[0].until),
        (1, first.jobs[1].lease, at(17_000))
    );
    t.pass(2).await;
    assert_eq!(t.reserve(0).await.reclaimed, []);
    assert_eq!(t.settle_one(again.jobs[0].lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
    // What ended meanwhile has no lease to extend.
    assert_eq!(t.reserve_by(&want(&t, 1)).await.jobs, []);
}

/// S3, S14: a repeated reserve is no turn: it leaves no time.
pub(crate) async fn a_repeated_reserve_leaves_no_time(t: Fixture) {
    t.add().await;
    t.reserve_by(&want(&t, 1)).await;
    t.pass(15).await;
    t.reserve_by(&want(&t, 1)).await;
    t.pass(6).await;
    assert_eq!(t.reserve(0).await.reclaimed, [], "21 s after the last turn");
}

/// S3: a number below the last one answers no jobs, and reserves none.
pub(crate) async fn a_reserve_with_a_lower_number_answers_no_jobs(t: Fixture) {
    t.add_many(3).await;
    t.reserve_by(&want(&t, 4)).await;
    let late = t.reserve_by(&want(&t, 3)).await;
    assert_eq!((late.jobs.len(), late.more, t.counts().await.waiting), (0, true, 1));
}

/// S3: an empty reserve is a call like another: repeated, it stays empty.
pub(crate) async fn a_repeated_empty_reserve_stays_empty(t: Fixture) {
    assert_eq!(t.reserve_by(&want(&t, 1)).await.jobs, []);
    let id = t.add().await;
    let again = t.reserve_by(&want(&t, 1)).await;
    assert_eq!((again.jobs.len(), again.more), (0, true));
    assert_eq!(ids(&t.reserve_by(&want(&t, 2)).await), [id]);
}

/// S3: a refused reserve does not advance the number.
pub(crate) async fn a_refused_reserve_does_not_advance_the_number(t: Fixture) {
    let id = t.add().await;
    let bad = Reserve { n: 1_001, ..want(&t, 1) };
    assert!(t.store.reserve(&bad).await.is_err());
    assert_eq!(ids(&t.reserve_by(&want(&t, 1)).await), [id]);
}

/// S3: a reserve that came with a settle is repeated with it.
pub(crate) async fn a_settle_with_a_reserve_is_repeated_as_a_whole(t: Fixture) {
    let run = t.run().await;
    let id = t.add().await;
    let batch = [Settlement { lease: run.lease, verdict: Verdict::Ack }];
    let then = Reserve { queues: t.want_from(&[(QUEUE, 1)], 1).queues, n: 1, ..want(&t, 1) };
    let (settled, first) = t.store.settle(&batch, Some(&then)).await.unwrap();
    assert_eq!(
        (settled, ids(first.as_ref().unwrap())),
        (vec![Settled::Settled(State::Done, None)], vec![id])
    );
    let (settled, again) = t.store.settle(&batch, Some(&then)).await.unwrap();
    assert_eq!((settled, again), (vec![Settled::LeaseLost], first));
}

/// S3: an instance that was idle for an hour is forgotten by a sweep; its numbers start anew.
pub(crate) async fn an_idle_instance_is_forgotten(t: Fixture) {
    enqueue(&t, 5, &[t.job()]).await;
    t.pass(3_600).await;
    assert!(!enqueue(&t, 4, &[t.job()]).await[0].is_new());
    t.sweep(100).await;
    assert!(enqueue(&t, 1, &[t.job()]).await[0].is_new());
}

/// S3: the hour counts from the last call of an instance.
pub(crate) async fn an_instance_that_calls_again_is_remembered(t: Fixture) {
    enqueue(&t, 5, &[t.job()]).await;
    t.pass(1_800).await;
    let last = t.job();
    assert!(enqueue(&t, 6, std::slice::from_ref(&last)).await[0].is_new());
    t.pass(1_800).await;
    t.sweep(100).await;
    assert!(!enqueue(&t, 5, &[last]).await[0].is_new());
    assert!(!enqueue(&t, 1, &[t.job()]).await[0].is_new());
    t.pass(1_800).await;
    t.sweep(100).await;
    assert!(enqueue(&t, 1, &[t.job()]).await[0].is_new());
}
