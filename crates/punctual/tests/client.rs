//! The client: what a call chooses, how calls are merged, and what an operator may do through it.

#![cfg(all(feature = "derive", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::{
    collections::HashSet,
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use punctual::{
    Backoff, Client, ErrorKind, Job, JobId, NewJob, OnConflict, Payload, Priority, Result, State, Timestamp,
    Unique, When,
    client::Cancelled,
    job::Filter,
    store::{Acted, Action, Enqueued, QueueSettings, Target, UniqueKey, memory::MemoryStore},
    testing::{Clock, Fault, FaultyStore, ManualClock, TestQueue},
};
use serde::{Deserialize, Serialize};

const HOUR: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, PartialEq, Job, Serialize, Deserialize)]
#[job(kind = "email.send", queue = "mail", max_attempts = 8, backoff = "exp 5s..6h", timeout = "30s")]
#[job(lease = "20s", priority = "high", unique = "key")]
struct Email {
    to: String,
}

impl Email {
    fn key(&self) -> String {
        format!("email:{}", self.to)
    }
}

fn email(to: &str) -> Email {
    Email { to: to.to_owned() }
}

#[derive(Clone, Debug, Job, Serialize, Deserialize)]
#[job(kind = "plain")]
#[serde(bound = "")]
struct Plain<T: Serialize + serde::de::DeserializeOwned + Send + 'static> {
    value: T,
}

fn plain(value: u32) -> Plain<u32> {
    Plain { value }
}

#[derive(Clone, Debug, Job, Serialize, Deserialize)]
#[job(kind = "invoice")]
struct Invoice;

fn untyped(client: &Client, bytes: usize) -> NewJob {
    NewJob::new(client.make_id(), "k", "q", Payload::json(vec![b'1'; bytes]))
}

/// A client of a store in memory, with what befalls its enqueues, and how many there were.
fn rig(mut schedule: impl FnMut(usize) -> Fault + Send + 'static) -> (Client, Client, Arc<AtomicUsize>) {
    let clock = ManualClock::new(Timestamp::from_ms(1_000_000).unwrap());
    let memory = Arc::new(MemoryStore::new(Clock::Manual(clock)));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::new(memory.clone(), move |verb| {
        if verb == "enqueue" { schedule(counted.fetch_add(1, Ordering::SeqCst)) } else { Fault::Pass }
    });
    (Client::new(Arc::new(store)), Client::new(memory), calls)
}

// ── one job ──

#[tokio::test]
async fn a_job_has_the_options_of_its_type() {
    let t = TestQueue::new();
    let id = t.client.enqueue(email("ana")).await.unwrap().id().unwrap();
    let job = t.client.get(id).await.unwrap().unwrap();
    assert_eq!((job.kind.as_str(), job.queue.as_str(), job.max_attempts), ("email.send", "mail", 8));
    assert_eq!((job.timeout, job.lease), (Duration::from_secs(30), Some(Duration::from_secs(20))));
    assert_eq!((job.priority, job.backoff), (Priority::High, Backoff::default()));
    assert_eq!(job.unique, Some(Unique::key("email:ana")));
    assert_eq!(job.payload.bytes, br#"{"to":"ana"}"#);
}

#[tokio::test]
async fn a_call_wins_over_its_type() {
    let t = TestQueue::new();
    let made = t.client.make_id();
    let answer = t
        .client
        .enqueue(email("ana"))
        .id(made)
        .queue("slow")
        .delay(HOUR)
        .priority(Priority::Low)
        .group("acme")
        .concurrency_key("mailbox:ana")
        .concurrency_limit(2)
        .unique(Unique::key("welcome:42").window(HOUR).on_conflict(OnConflict::Reschedule))
        .max_attempts(3)
        .backoff(Backoff::fixed(Duration::from_secs(1)))
        .timeout(Duration::from_secs(2))
        .lease(Duration::from_secs(3))
        .expires_in(2 * HOUR)
        .tag("onboarding")
        .header("traceparent", "00-1")
        .await
        .unwrap();
    assert_eq!(answer, Enqueued::Inserted { id: made, run_at: t.clock.now().after(HOUR) });
    let job = t.client.get(made).await.unwrap().unwrap();
    assert_eq!((job.queue.as_str(), job.priority, job.max_attempts), ("slow", Priority::Low, 3));
    assert_eq!((job.group.as_deref(), job.concurrency.unwrap().limit), (Some("acme"), 2));
    assert_eq!((job.timeout.as_secs(), job.lease.unwrap().as_secs()), (2, 3));
    assert_eq!(job.expires_at, Some(t.clock.now().after(2 * HOUR)));
    assert_eq!(job.backoff, Backoff::fixed(Duration::from_secs(1)));
    assert_eq!((job.tags, job.headers["traceparent"].as_str()), (vec!["onboarding".to_owned()], "00-1"));
    assert_eq!(job.unique.unwrap().key, "welcome:42");
}

#[tokio::test]
async fn an_instant_may_be_a_system_time() {
    let t = TestQueue::new();
    let at = t.clock.now().after(HOUR);
    let answer = t.client.enqueue(plain(1)).at(std::time::SystemTime::from(at)).await.unwrap();
    assert!(matches!(answer, Enqueued::Inserted { run_at, .. } if run_at == at), "{answer:?}");
}

/// S3: the same key is the same job, whatever else the call chose before or after it.
#[tokio::test]
async fn an_idempotency_key_is_the_same_job_every_time() {
    let t = TestQueue::new();
    let first = t.client.enqueue(plain(1)).idempotency_key("order:7").queue("q").await.unwrap();
    let second = t.client.enqueue(plain(2)).queue("q").idempotency_key("order:7").await.unwrap();
    assert_eq!(first.id(), Some(JobId::derived_of_kind("plain", "q", None, "order:7")));
    assert!(first.is_new() && !second.is_new() && first.id() == second.id());
    let in_another_queue = t.client.enqueue(plain(3)).idempotency_key("order:7").await.unwrap();
    assert!(in_another_queue.is_new());
}

/// S4: an order's mail and its invoice are two jobs, though both have the order's key.
#[tokio::test]
async fn keys_are_compared_within_their_kind() {
    let t = TestQueue::new();
    let mail = t.client.enqueue(Invoice).idempotency_key("order-7").queue("q").await.unwrap();
    let invoice = t.client.enqueue(plain(7)).idempotency_key("order-7").queue("q").await.unwrap();
    assert!(mail.is_new() && invoice.is_new(), "{mail:?} {invoice:?}");
    let mail = t.client.enqueue(email("bob")).unique(Unique::key("order-8")).queue("q").await.unwrap();
    let invoice = t.client.enqueue(plain(8)).unique(Unique::key("order-8")).queue("q").await.unwrap();
    assert!(mail.is_new() && invoice.is_new(), "{mail:?} {invoice:?}");
    // Unless both say so.
    let first = t.client.enqueue(Invoice).idempotency_key("order-9").across_kinds().queue("q").await.unwrap();
    let other =
        t.client.enqueue(plain(9)).across_kinds().queue("q").idempotency_key("order-9").await.unwrap();
    assert_eq!((first.is_new(), other.is_new(), first.id()), (true, false, other.id()));
    let Enqueued::Duplicate(met) = other else { panic!("{other:?}") };
    assert_eq!(met.kind.as_deref(), Some("invoice"));
    assert_eq!(first.id(), Some(JobId::derived("q", None, "order-9")));
}

/// One running and one waiting: the key is free from the start on.
#[tokio::test]
async fn rerun_keeps_one_waiting() {
    let t = TestQueue::new();
    let first = t.client.enqueue(plain(1)).rerun("index:42").await.unwrap();
    let second = t.client.enqueue(plain(2)).rerun("index:42").await.unwrap();
    assert_eq!((first.is_new(), second.id()), (true, first.id()));
    assert_eq!(t.client.take("default", 1).await.unwrap().len(), 1);
    assert!(t.client.enqueue(plain(3)).rerun("index:42").await.unwrap().is_new());
}

#[tokio::test]
async fn what_breaks_a_limit_is_an_error_that_names_it() {
    let t = TestQueue::new();
    let refused = async |enqueue: punctual::client::Enqueue| {
        let error = enqueue.await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge), "{error}");
        error.to_string()
    };
    let job = || t.client.enqueue(plain(1));
    assert!(refused(job().queue("")).await.contains("queue is empty"));
    assert!(refused(job().queue("$own")).await.contains("reserved"));
    assert!(refused(job().idempotency_key("")).await.contains("idempotency_key of 0 bytes"));
    assert!(refused(job().idempotency_key("k".repeat(1_025))).await.contains("1025 bytes"));
    assert!(refused(job().concurrency_limit(2)).await.contains("concurrency key"));
    assert!(refused(job().max_attempts(0)).await.contains("max_attempts 0"));
    assert!(refused(job().lease(Duration::ZERO)).await.contains("lease_ms 0"));
    assert!(refused(job().delay(Duration::MAX)).await.contains("delay"));
    assert!(refused(job().delay(HOUR).expires_in(HOUR)).await.contains("expires_at"));
    assert!(refused(job().tag("")).await.contains("tag is empty"));
    let large = t.client.enqueue(Plain { value: "x".repeat(1 << 20) });
    assert!(refused(large).await.contains("payload of"));
    assert_eq!(t.client.count(None).await.unwrap().total(), 0);
}

#[test]
fn outside_of_a_runtime_an_enqueue_is_an_error() {
    let client = TestQueue::new().client;
    let mut enqueue = std::pin::pin!(client.push(vec![untyped(&client, 1)]));
    let polled = enqueue.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    match polled {
        std::task::Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        other => panic!("{other:?}"),
    }
}

/// Payloads may hold secrets.
#[tokio::test]
async fn what_is_printed_for_debugging_shows_no_payload() {
    let t = TestQueue::new();
    let job = t.client.enqueue(email("secret@example.com")).unique(Unique::key("k"));
    let shown = format!("{:?} {job:?} {:?}", t.client, t.client.enqueue_many([email("secret@example.com")]));
    assert!(!shown.contains("secret"), "{shown}");
    assert!(shown.contains("memory:"), "{shown}");
}

// ── many jobs ──

#[tokio::test]
async fn many_jobs_are_answered_in_order() {
    let (client, _, calls) = rig(|_| Fault::Pass);
    let jobs = (0..2_500).map(plain);
    let answers = client
        .enqueue_many(jobs)
        .each(|job, spec| {
            spec.priority(Priority::Low).tag(format!("n{}", job.value));
        })
        .await
        .unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3, "1,000 at most per call");
    assert_eq!(answers.len(), 2_500);
    for n in [0, 999, 1_000, 2_499] {
        let job = client.get(answers[n].id().unwrap()).await.unwrap().unwrap();
        assert_eq!((job.tags, job.priority), (vec![format!("n{n}")], Priority::Low));
    }
}

#[tokio::test]
async fn no_call_carries_more_than_a_mebibyte_but_one_large_job() {
    let (client, _, calls) = rig(|_| Fault::Pass);
    let jobs = [300_000, 300_000, 300_000, 300_000, 1_048_576, 1].map(|n| untyped(&client, n));
    assert_eq!(client.push(jobs.into()).await.unwrap().len(), 6);
    assert_eq!(calls.load(Ordering::SeqCst), 4, "3 jobs, 1 job, the large one, 1 job");
}

/// The first call is on its way alone; all that come meanwhile go with the next ones.
#[tokio::test(start_paused = true)]
async fn concurrent_enqueues_become_few_calls() {
    let (client, quiet, calls) =
        rig(|call| if call == 0 { Fault::Delay(Duration::from_millis(100)) } else { Fault::Pass });
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.enqueue(plain(0)).await }
    });
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let tasks: Vec<_> = (1..=1_000)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.enqueue(plain(n)).await })
        })
        .collect();
    let mut ids = HashSet::from([first.await.unwrap().unwrap().id()]);
    for task in tasks {
        let answer = task.await.unwrap().unwrap();
        assert!(answer.is_new() && ids.insert(answer.id()), "every caller has its own answer");
    }
    let calls = calls.load(Ordering::SeqCst);
    assert!((2..=5).contains(&calls), "{calls} calls");
    assert_eq!(quiet.count(None).await.unwrap().waiting, 1_001);
}

/// A refused call is taken apart.
#[tokio::test(start_paused = true)]
async fn a_bad_job_costs_nobody_else() {
    let (client, quiet, _) =
        rig(|call| if call == 0 { Fault::Delay(Duration::from_millis(20)) } else { Fault::Pass });
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let job = client.enqueue(plain(n));
                if n % 40 == 7 { job.max_attempts(0).await } else { job.await }
            })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        let answer = task.await.unwrap();
        assert_eq!(answer.is_err(), n % 40 == 7, "{n}: {answer:?}");
        if let Err(error) = answer {
            assert!(error.to_string().contains("max_attempts"), "{error}");
        }
    }
    assert_eq!(quiet.count(None).await.unwrap().waiting, 97);
}

/// S3: repeated with the same number, a call has its effect once, whether its answer was lost or it never arrived.
#[tokio::test(start_paused = true)]
async fn calls_that_fail_in_passing_are_repeated_and_count_once() {
    for seed in 1..=10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (client, quiet, calls) = rig(move |_| match random.u32(0..3) {
            0 => Fault::Before,
            1 => Fault::After,
            _ => Fault::Pass,
        });
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move { client.enqueue(plain(n)).await })
            })
            .collect();
        let mut ids = HashSet::new();
        for task in tasks {
            let answer = task.await.unwrap().unwrap();
            assert!(answer.is_new(), "no other call stored it: {answer:?}");
            assert!(ids.insert(answer.id().unwrap()));
        }
        for n in 0..20 {
            let answer = client.enqueue(plain(n)).idempotency_key(format!("{n}")).await.unwrap();
            assert!(answer.is_new(), "no other call stored it: {answer:?}");
            ids.insert(answer.id().unwrap());
        }
        assert!(20 < calls.load(Ordering::SeqCst), "some were repeated");
        assert_eq!((ids.len(), quiet.count(None).await.unwrap().waiting), (70, 70), "seed {seed}");
    }
}

/// After a lost answer, nobody is told that nothing was stored, unless the store itself refuses the jobs: it answers a repetition
/// before it checks anything.
#[tokio::test(start_paused = true)]
async fn after_a_lost_answer_a_refusal_proves_nothing() {
    use ErrorKind::{Forbidden, Invalid, StoreFull, TooLarge, Unauthenticated, UnknownOutcome, Unsupported};
    for (fault, kind) in [
        (Fault::Refused(Unsupported), UnknownOutcome),
        (Fault::Refused(StoreFull), UnknownOutcome),
        (Fault::Refused(Forbidden), UnknownOutcome),
        (Fault::Refused(Unauthenticated), UnknownOutcome),
        (Fault::Foreign(TooLarge), UnknownOutcome),
        (Fault::Refused(Invalid), Invalid),
    ] {
        let (client, quiet, _) = rig(move |call| if call == 0 { Fault::After } else { fault });
        let error = client.enqueue(plain(1)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert_eq!(quiet.count(None).await.unwrap().waiting, 1, "it was stored");
        // Nothing was lost before: what the refusal says is true.
        let (client, _, _) = rig(move |_| fault);
        let (Fault::Refused(said) | Fault::Foreign(said)) = fault else { unreachable!() };
        assert_eq!(client.enqueue(plain(1)).await.unwrap_err().kind(), said);
        // The parts of a call that is taken apart remember it. The two are gathered while the one before them is on its way.
        let (client, _, _) = rig(move |call| match call {
            0 => Fault::Delay(Duration::from_millis(20)),
            1 => Fault::After,
            _ => fault,
        });
        let push = |n| client.enqueue(plain(n)).into_future();
        let (before, first, second) = tokio::join!(push(0), push(1), push(2));
        assert!(before.unwrap().is_new());
        for answer in [first, second] {
            assert_eq!(answer.unwrap_err().kind(), kind, "{fault:?}");
        }
    }
}

/// A store that stays away is given up on after 30 s, and the error says whether anything may have happened.
/// S13: as the limits say, so many calls wait for a part of the store that is away, and the caller of the next one is told at once.
#[tokio::test(start_paused = true)]
async fn sixty_four_calls_wait_for_a_part_that_is_away_and_further_ones_fail() {
    const WAITING_MAX: usize = 64;
    let away = Arc::new(AtomicBool::new(true));
    let is_away = Arc::clone(&away);
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::System)), move |verb| {
        if verb == "enqueue" && is_away.load(Ordering::Relaxed) { Fault::Away } else { Fault::Pass }
    });
    let client = Client::new(Arc::new(store));
    let push = || client.push(vec![untyped(&client, 10)]).boxed();
    // Time stands still: nothing is repeated, and each of them is a call of its own.
    let mut calls: Vec<_> = (0..=WAITING_MAX).map(|_| push()).collect();
    let waits: Vec<bool> =
        calls.iter_mut().map(|call| call.now_or_never().is_none_or(|told| told.is_ok())).collect();
    assert_eq!(waits.iter().filter(|waits| **waits).count(), WAITING_MAX);
    assert!(!waits[WAITING_MAX], "the last one was told");
    away.store(false, Ordering::Relaxed);
    calls.truncate(WAITING_MAX);
    for answer in join_all(calls).await {
        assert_eq!(answer.unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_is_an_error_in_the_end() {
    for (first, kind) in [(Fault::Before, ErrorKind::Unavailable), (Fault::After, ErrorKind::UnknownOutcome)]
    {
        let (client, _, _) = rig(move |call| if call == 0 { first } else { Fault::Before });
        let started = tokio::time::Instant::now();
        assert_eq!(client.enqueue(plain(1)).await.unwrap_err().kind(), kind);
        assert!((29..=30).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    }
}

/// A runtime of one thread runs only while somebody blocks on it.
#[test]
fn a_client_does_not_depend_on_the_runtime_it_was_used_on_first() {
    let client = TestQueue::new().client;
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(first.block_on(async { client.enqueue(plain(0)).await }).unwrap().is_new());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _ = tell.send(second.block_on(async { client.enqueue(plain(1)).await }).is_ok());
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true));
}

/// While a call is on its way, the next one is gathered by those who wait; one of them goes away.
#[tokio::test(start_paused = true)]
async fn an_enqueue_that_is_dropped_before_it_is_sent_is_not_sent() {
    let (client, quiet, calls) =
        rig(|call| if call == 0 { Fault::Delay(Duration::from_millis(100)) } else { Fault::Pass });
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.enqueue(plain(0)).await }
    });
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let stays = tokio::spawn({
        let client = client.clone();
        async move { client.enqueue(plain(1)).await }
    });
    let mut dropped = client.enqueue(plain(2)).into_future();
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(dropped.as_mut().poll(cx))).await.is_pending());
    drop(dropped);
    assert!(first.await.unwrap().unwrap().is_new() && stays.await.unwrap().unwrap().is_new());
    client.enqueue(plain(3)).await.unwrap();
    assert_eq!(quiet.count(None).await.unwrap().waiting, 3);
}

#[test]
fn a_client_outlives_the_runtime_it_was_used_on() {
    let client = TestQueue::new().client;
    for n in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(async { client.enqueue(plain(n)).await }).unwrap().is_new());
    }
}

// ── operators ──

#[tokio::test]
async fn one_job_may_be_moved_changed_and_called_off() {
    let t = TestQueue::new();
    let id = t.client.enqueue(email("ana")).delay(HOUR).await.unwrap().id().unwrap();
    let done = |state| Acted::Done(id, state);
    assert_eq!(t.client.reschedule(id, 2 * HOUR).await.unwrap(), done(State::Waiting));
    assert_eq!(t.enqueued::<Email>().await.unwrap()[0].delay, 2 * HOUR);
    assert_eq!(t.client.run_now(id).await.unwrap(), done(State::Waiting));
    assert_eq!(t.client.reprioritise(id, Priority::Low).await.unwrap(), done(State::Waiting));
    assert_eq!(t.client.edit(id, Payload::json("{\"to\":\"bob\"}")).await.unwrap(), done(State::Waiting));
    let now = &t.enqueued::<Email>().await.unwrap()[0];
    assert_eq!((now.delay, now.record.priority, &now.job), (Duration::ZERO, Priority::Low, &email("bob")));

    let key = UniqueKey {
        kind: Some("email.send".into()),
        queue: "mail".into(),
        group: None,
        concurrency_key: None,
        key: "email:ana".into(),
    };
    assert_eq!(t.client.holder(&key).await.unwrap().unwrap().id, id);
    assert_eq!(t.client.cancel(key).await.unwrap(), Cancelled::Done, "by the key it holds");
    assert_eq!(t.client.cancel(id).await.unwrap(), Cancelled::TooLate(State::Cancelled));
    assert_eq!(t.client.retry(id).await.unwrap(), done(State::Waiting));
    assert_eq!(t.client.delete(id).await.unwrap(), done(State::Waiting));
    assert_eq!(t.client.cancel(id).await.unwrap(), Cancelled::NotFound);
    assert_eq!(t.client.run_now(id).await.unwrap(), Acted::NotFound);
}

#[tokio::test]
async fn any_number_of_jobs_is_acted_on_in_slices() {
    let t = TestQueue::new();
    let answers = t.client.enqueue_many((0..2_300).map(plain)).await.unwrap();
    let mut targets: Vec<Target> = answers.iter().map(|answer| answer.id().unwrap().into()).collect();
    targets.push(t.client.make_id().into());
    let acted = t.client.act(&targets, &Action::Reschedule(When::In(HOUR))).await.unwrap();
    assert_eq!(acted.len(), 2_301);
    assert_eq!(acted[2_299], Acted::Done(answers[2_299].id().unwrap(), State::Waiting));
    assert_eq!(acted[2_300], Acted::NotFound);
    let payload = Payload::json(vec![b'1'; 600_000]);
    let acted = t.client.act(&targets[..3], &Action::EditPayload(payload)).await.unwrap();
    assert!(acted.iter().all(|acted| matches!(acted, Acted::Done(..))), "a mebibyte per slice: {acted:?}");
}

#[tokio::test]
async fn all_that_match_a_filter_are_counted_and_acted_on() {
    let t = TestQueue::new();
    t.client
        .enqueue_many((0..700).map(plain))
        .each(|_, spec| {
            spec.queue("a");
        })
        .await
        .unwrap();
    t.client.enqueue_many((0..30).map(plain)).await.unwrap();
    let filter = Filter::all().queue("a").state([State::Waiting]);

    let preview = t.client.count_where(&filter, |_| {}).await.unwrap();
    assert_eq!((preview.matched, preview.done, preview.total), (700, 0, 730));

    let mut steps = Vec::new();
    let sum = t
        .client
        .act_where(&filter, &Action::Cancel { reason: Some("wrong".into()) }, |progress| {
            steps.push(progress.done);
        })
        .await
        .unwrap();
    assert_eq!((sum.matched, sum.done, sum.skipped), (700, 700, 0));
    assert!(2 < steps.len() && steps.is_sorted() && steps.last() == Some(&700), "{steps:?}");
    let counts = t.client.count(Some("a")).await.unwrap();
    assert_eq!((counts.waiting, counts.cancelled), (0, 700));
    assert_eq!(t.client.count(None).await.unwrap().waiting, 30);
}

/// An action that can't be done is counted as skipped.
#[tokio::test]
async fn what_is_in_the_wrong_state_is_skipped() {
    let t = TestQueue::new();
    t.client.enqueue_many((0..3).map(plain)).await.unwrap();
    let sum = t.client.act_where(&Filter::all(), &Action::Retry, |_| {}).await.unwrap();
    assert_eq!((sum.matched, sum.done, sum.skipped), (3, 0, 3));
}

#[tokio::test]
async fn a_queue_may_be_paused_set_and_purged() -> Result<()> {
    let t = TestQueue::new();
    let queue = t.client.queue("default");
    assert_eq!(queue.show().await?, None);
    t.client.enqueue_many((0..1_500).map(plain)).await?;
    let paused = queue.pause("ana", "smtp migration").await?.unwrap();
    assert_eq!(paused.settings.paused.unwrap().reason, "smtp migration");
    assert!(t.client.take("default", 10).await?.is_empty());
    assert_eq!(queue.resume().await?.unwrap().settings.paused, None);
    queue.set(QueueSettings { max_jobs: Some(1_500), ..QueueSettings::default() }).await?;
    let refused = t.client.enqueue(plain(1)).await.expect_err("the queue is full");
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert!(refused.to_string().contains("\"default\""), "{refused}");
    assert_eq!(t.client.take("default", 10).await?.len(), 10);
    assert!(t.client.take_older("default", 10, HOUR).await?.is_empty());
    let mut steps = Vec::new();
    assert_eq!(queue.purge(|gone| steps.push(gone)).await?, 1_490);
    assert_eq!(steps, [1_000, 1_490]);
    Ok(())
}

#[tokio::test]
async fn an_audit_looks_at_everything() {
    let t = TestQueue::new();
    t.client.enqueue_many((0..2_500).map(plain)).await.unwrap();
    let mut last = 0;
    let report = t.client.audit(false, |checked| last = checked).await.unwrap();
    assert!(2_500 <= report.checked && last == report.checked && report.findings.is_empty(), "{report:?}");
}
