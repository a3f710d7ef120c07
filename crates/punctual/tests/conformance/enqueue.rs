//! Handing jobs over: what is kept, what defaults fill in, and in which order an enqueue looks.

use std::collections::BTreeMap;

use punctual::{
    Backoff, JobId, OnConflict, Payload, Priority, State, Timestamp, Unique, When,
    job::Concurrency,
    store::{CallId, Enqueued},
};

use crate::fixture::{CANCEL, Fixture, QUEUE, at, duplicate, duplicate_of_cancelled, millis, secs};

/// S2: nothing of a job is lost or changed on its way through the store.
pub(crate) async fn a_job_comes_back_as_it_was_handed_over(t: Fixture) {
    let id = t
        .add_with(|job| {
            job.kind = "email.späť".to_owned();
            job.payload = Payload { bytes: vec![0, 255, b'"', 10], content_type: "x/y".into() };
            job.run_at = When::In(secs(60));
            job.options.priority = Some(Priority::High);
            job.options.max_attempts = Some(7);
            job.options.backoff = Some(Backoff::linear(secs(3)).max(secs(9)).jitter(false));
            job.options.timeout = Some(secs(44));
            job.options.lease = Some(secs(33));
            job.group = Some("tenant".to_owned());
            job.concurrency = Some(Concurrency { key: "account".to_owned(), limit: 2 });
            job.unique = Some(Unique::key("u").window(secs(5)).on_conflict(OnConflict::Replace));
            job.expires_at = Some(When::In(secs(90)));
            job.tags = vec!["b".to_owned(), "a".to_owned()];
            job.headers = BTreeMap::from([("traceparent".to_owned(), "00-1".to_owned())]);
        })
        .await;
    let job = t.get(id).await;
    assert_eq!((job.id, job.kind.as_str(), job.queue.as_str()), (id, "email.späť", QUEUE));
    assert_eq!((&job.payload.bytes[..], &*job.payload.content_type), (&[0, 255, b'"', 10][..], "x/y"));
    assert_eq!((job.run_at, job.created_at, job.expires_at), (at(60_000), at(0), Some(at(90_000))));
    assert_eq!((job.priority, job.max_attempts), (Priority::High, 7));
    assert_eq!(job.backoff, Backoff::linear(secs(3)).max(secs(9)).jitter(false));
    assert_eq!((job.timeout, job.lease), (secs(44), Some(secs(33))));
    assert_eq!(job.group.as_deref(), Some("tenant"));
    assert_eq!(job.concurrency, Some(Concurrency { key: "account".to_owned(), limit: 2 }));
    assert_eq!(job.unique, Some(Unique::key("u").window(secs(5)).on_conflict(OnConflict::Replace)));
    assert_eq!(job.tags, ["b", "a"]);
    assert_eq!(job.headers, BTreeMap::from([("traceparent".to_owned(), "00-1".to_owned())]));
}

/// S10, S14: a new job has counted nothing, and what nobody chose is what the contract says.
pub(crate) async fn a_new_job_has_the_defaults_of_the_contract(t: Fixture) {
    let id = t.add().await;
    let job = t.get(id).await;
    assert_eq!((job.priority, job.max_attempts, job.timeout), (Priority::Normal, 20, secs(300)));
    assert_eq!((job.backoff, job.lease), (Backoff::exponential(secs(5)).max(secs(6 * 3_600)), None));
    assert_eq!((job.state, job.attempt, job.expired_leases, job.snoozes), (State::Waiting, 1, 0, 0));
    assert_eq!((job.version, job.cancel_requested, &job.reason), (1, false, &None));
    assert_eq!((job.started_at, job.finished_at, job.expires_at), (None, None, None));
    assert_eq!((job.running, job.failures.len()), (None, 0));
}

/// S14: options are call > queue > default, and decided at the enqueue.
pub(crate) async fn a_queues_defaults_fill_in_what_the_call_left_open(t: Fixture) {
    t.set(|queue| {
        queue.defaults.priority = Some(Priority::Low);
        queue.defaults.max_attempts = Some(3);
        queue.defaults.timeout = Some(secs(7));
        queue.defaults.backoff = Some(Backoff::fixed(secs(1)));
    })
    .await;
    let id = t.add_with(|job| job.options.max_attempts = Some(9)).await;
    t.set(|_| ()).await;
    let job = t.get(id).await;
    assert_eq!((job.priority, job.max_attempts, job.timeout), (Priority::Low, 9, secs(7)));
    assert_eq!(job.backoff, Backoff::fixed(secs(1)));
}

/// S2: the jobs of one call are decided in order, each seeing what the earlier ones did.
pub(crate) async fn jobs_of_one_call_see_each_other(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(2)).await;
    let first = t.job_with(|job| job.unique = Some(Unique::key("k")));
    let rival = t.job_with(|job| job.unique = Some(Unique::key("k")));
    let jobs = [first.clone(), first.clone(), rival, t.job(), t.job()];
    let inserted = |id: JobId| Enqueued::Inserted { id, run_at: at(0) };
    let met = duplicate(first.id, State::Waiting, 1);
    let answers = t.enqueue_all(&jobs).await;
    assert_eq!(answers, [inserted(first.id), met.clone(), met, inserted(jobs[3].id), Enqueued::Full]);
}

/// S3: an id enqueued twice answers where the job stands, and changes nothing.
pub(crate) async fn an_id_enqueued_twice_is_a_duplicate(t: Fixture) {
    let run = t.run().await;
    t.apply(run.job.id, CANCEL).await;
    let again = t.job_with(|job| {
        job.id = run.job.id;
        job.payload = Payload::json("2");
    });
    assert_eq!(t.enqueue(again).await, duplicate_of_cancelled(run.job.id));
    assert_eq!(t.get(run.job.id).await.payload, Payload::json("1"));
}

/// S3, S4: an id is one job, whatever queue a second enqueue names. In another queue it is a conflict: no job is there, nor will be.
pub(crate) async fn an_id_of_another_queue_is_a_conflict(t: Fixture) {
    let id = t.add().await;
    let elsewhere = t.job_with(|job| (job.id, job.queue) = (id, "bulk".to_owned()));
    assert_eq!(t.enqueue(elsewhere.clone()).await, Enqueued::Conflict { id });
    assert_eq!(t.store.queues(None).await.unwrap(), [QUEUE], "nothing is written");
    // Also in a queue that has jobs, beside others of the call, and in its repetition.
    let (there, more) = (t.job_with(|job| job.queue = "bulk".to_owned()), t.job());
    let jobs = [there.clone(), elsewhere, more.clone()];
    let call = CallId { instance: 77, number: 1 };
    let answers = t.store.enqueue(call, &jobs).await.unwrap();
    assert_eq!(answers.iter().map(Enqueued::name).collect::<Vec<_>>(), ["inserted", "conflict", "inserted"]);
    assert_eq!(t.store.enqueue(call, &jobs).await.unwrap(), answers);
    // Of two jobs of one call with the same id, the second meets the first.
    let (one, two) = (t.job(), |id| t.job_with(|job| (job.id, job.queue) = (id, "bulk".to_owned())));
    let two = two(one.id);
    let answers = t.enqueue_all(&[one, two.clone()]).await;
    assert_eq!(answers.iter().map(Enqueued::name).collect::<Vec<_>>(), ["inserted", "conflict"]);
    assert_eq!((t.get(id).await.queue, t.get(two.id).await.queue), (QUEUE.to_owned(), QUEUE.to_owned()));
}

/// S3, S4: an id is looked at before the key, so a repeated job can't replace another one.
pub(crate) async fn the_id_is_looked_at_before_the_key(t: Fixture) {
    let holder = t.add_with(|job| job.unique = Some(Unique::key("k"))).await;
    let known = t.add().await;
    let again = t.job_with(|job| {
        job.id = known;
        job.unique = Some(Unique::key("k").on_conflict(OnConflict::Replace));
    });
    assert_eq!(t.enqueue(again).await, duplicate(known, State::Waiting, 1));
    assert_eq!(t.get(holder).await.version, 1);
}

/// S4: only inserts meet the cap; a full queue still merges into the holder of a key.
pub(crate) async fn the_key_is_looked_at_before_the_cap(t: Fixture) {
    t.set(|queue| queue.max_jobs = Some(1)).await;
    let holder = t.add_with(|job| job.unique = Some(Unique::key("k"))).await;
    let merged = t.job_with(|job| job.unique = Some(Unique::key("k").on_conflict(OnConflict::Replace)));
    assert_eq!(t.enqueue(merged).await, Enqueued::Replaced { id: holder, run_at: at(0) });
    assert_eq!(t.enqueue(t.job()).await, Enqueued::Full);
}

/// S5: an instant in the past means now; lateness counts from the enqueue.
pub(crate) async fn earlier_than_now_means_due_now(t: Fixture) {
    let long_ago = t.job_with(|job| job.run_at = When::At(Timestamp::saturating_from_ms(0)));
    let id = long_ago.id;
    assert_eq!(t.enqueue(long_ago).await, Enqueued::Inserted { id, run_at: at(0) });
    assert_eq!(t.get(id).await.run_at, at(0));
}

/// S5, S14: a delay counts from the store's clock, and parts of a millisecond are never cut off.
pub(crate) async fn a_delay_counts_from_the_stores_clock(t: Fixture) {
    t.clock.advance(millis(250));
    let later = t.job_with(|job| job.run_at = When::In(std::time::Duration::from_micros(999_001)));
    let id = later.id;
    assert_eq!(t.enqueue(later).await, Enqueued::Inserted { id, run_at: at(1_250) });
    assert_eq!(t.get(id).await.created_at, at(250));
}

/// S5: a job may be due at the last instant there is, and sorts behind everything.
pub(crate) async fn a_job_may_be_due_at_the_end_of_time(t: Fixture) {
    let id = t.add_with(|job| job.run_at = When::At(Timestamp::MAX)).await;
    assert_eq!(t.get(id).await.run_at.as_ms(), 253_402_300_799_999);
    let batch = t.reserve(1).await;
    assert_eq!(batch.next_due, Some(millis(253_402_300_799_999 - 1_800_000_000_000)));
    t.clock.set(Timestamp::MAX);
    assert_eq!(t.reserve_one().await.job.id, id);
}

/// S3: an empty call is answered, and asks for nothing.
pub(crate) async fn an_empty_enqueue_is_answered(t: Fixture) {
    assert_eq!(t.enqueue_all(&[]).await, []);
    assert_eq!(t.store.queues(None).await.unwrap(), [""; 0]);
}

/// S2, S4: a key is held from its job on, within the call, too.
pub(crate) async fn a_key_is_held_within_its_call(t: Fixture) {
    let jobs = [(); 2].map(|()| t.job_with(|job| job.unique = Some(Unique::key("k"))));
    let answers = t.enqueue_all(&jobs).await;
    assert_eq!(answers[1], duplicate(jobs[0].id, State::Waiting, 1));
}
