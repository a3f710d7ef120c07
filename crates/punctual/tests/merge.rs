//! Updates of one resource that become one job, on every store: none is lost, and none is counted twice.

#![cfg(all(feature = "derive", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

#[cfg(feature = "redis")]
#[path = "support/redis.rs"]
mod server;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use punctual::{
    Client, Ctx, ErrorKind, Job, Timestamp, Unique, Worker,
    client::Merge,
    store::{Enqueued, Store, memory::MemoryStore, url::connect},
    testing::{Clock, Fault, FaultyStore, ManualClock, TestQueue},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Job, Serialize, Deserialize)]
#[job(kind = "update")]
struct Update {
    rows: Vec<u32>,
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "other")]
struct Other {}

fn both(waiting: Update, new: Update) -> Update {
    Update { rows: [waiting.rows, new.rows].concat() }
}

async fn update(client: &Client, row: u32) -> punctual::Result<Enqueued> {
    client.enqueue(Update { rows: vec![row] }).rerun("index").merge(both).await
}

#[tokio::test]
async fn what_comes_while_one_waits_is_in_it_and_what_comes_while_one_runs_is_in_the_next() {
    let t = TestQueue::new();
    let first = update(&t.client, 1).await.unwrap();
    assert!(first.is_new());
    let second = update(&t.client, 2).await.unwrap();
    assert!(matches!(second, Enqueued::Replaced { .. }) && second.id() == first.id());
    let ran = Arc::new(Mutex::new(Vec::new()));
    let work = {
        let ran = Arc::clone(&ran);
        move |job: Update, ctx: Ctx| {
            let ran = Arc::clone(&ran);
            async move {
                if ran.lock().unwrap().is_empty() {
                    assert!(update(ctx.client(), 3).await.unwrap().is_new());
                    update(ctx.client(), 4).await.unwrap();
                }
                ran.lock().unwrap().push(job.rows);
            }
        }
    };
    t.drain(t.worker().handle(work)).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), [[1, 2], [3, 4]]);
}

fn held(client: &Client) -> Merge {
    client.enqueue(Update { rows: vec![1] }).unique(Unique::key("k")).merge(both)
}

#[tokio::test]
async fn a_merge_needs_a_key_and_jobs_of_one_kind() {
    let t = TestQueue::new();
    let keyed =
        t.client.enqueue(Update { rows: vec![] }).rerun("index").idempotency_key("k").merge(both).await;
    assert_eq!(keyed.unwrap_err().kind(), ErrorKind::Invalid);
    let without = t.client.enqueue(Update { rows: vec![] }).merge(both).await;
    assert_eq!(without.unwrap_err().kind(), ErrorKind::Invalid);
    t.client.enqueue(Other {}).rerun("index").across_kinds().await.unwrap();
    let across = t.client.enqueue(Update { rows: vec![1] }).rerun("index").across_kinds().merge(both).await;
    assert_eq!(across.unwrap_err().kind(), ErrorKind::Conflict);
    // One that runs is not changed.
    assert!(held(&t.client).await.unwrap().is_new());
    let work = async |_: Update, ctx: Ctx| {
        assert!(matches!(held(ctx.client()).await.unwrap(), Enqueued::Duplicate(_)));
    };
    let report = t.drain(t.worker().handle(work).handle(async |_: Other, _: Ctx| ())).await.unwrap();
    assert_eq!((report.done, report.dead), (2, 0));
}

/// Whether the change was made before the answer was lost, or never.
#[tokio::test]
async fn a_merge_whose_answer_was_lost_is_made_once() {
    for fault in [Fault::After, Fault::Before] {
        let clock = ManualClock::new(Timestamp::from_ms(1_000).unwrap());
        let memory = Arc::new(MemoryStore::new(Clock::Manual(clock)));
        let mut acts = 0;
        let faulty = FaultyStore::new(memory, move |verb| {
            acts += u32::from(verb == "act");
            if verb == "act" && acts == 1 { fault } else { Fault::Pass }
        });
        let client = Client::new(Arc::new(faulty));
        let id = update(&client, 1).await.unwrap().id().unwrap();
        let answer = update(&client, 2).await;
        if fault == Fault::After {
            assert_eq!(answer.unwrap().id(), Some(id));
        } else {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
            update(&client, 2).await.unwrap();
        }
        let job = client.get(id).await.unwrap().unwrap();
        assert_eq!(job.payload.bytes, br#"{"rows":[1,2]}"#);
    }
}

/// The call is repeated behind the start of the job that it met, when nobody holds the key any more.
#[tokio::test(start_paused = true)]
async fn an_update_whose_answer_was_lost_as_the_other_started_is_not_lost() {
    let clock = ManualClock::new(Timestamp::from_ms(1_000).unwrap());
    let memory = MemoryStore::new(Clock::Manual(clock));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let faulty = FaultyStore::new(Arc::new(memory.clone()), move |verb| {
        if verb == "enqueue" && counted.fetch_add(1, Ordering::SeqCst) == 1 {
            Fault::After
        } else {
            Fault::Pass
        }
    });
    let client = Client::new(Arc::new(faulty));
    update(&client, 1).await.unwrap();
    let start = async {
        while calls.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Client::new(Arc::new(memory.clone())).take("default", 1).await.unwrap().len(), 1);
    };
    let (answer, ()) = tokio::join!(update(&client, 2), start);
    let id = answer.unwrap().id().unwrap();
    assert_eq!(client.get(id).await.unwrap().unwrap().payload.bytes, br#"{"rows":[2]}"#);
    assert_eq!(client.count(None).await.unwrap().waiting, 1);
}

/// Eight callers hand in updates while two workers run what there is: each update is in one run.
async fn none_is_lost(open: impl AsyncFn() -> Arc<dyn Store>) {
    const CALLERS: u32 = 8;
    const EACH: u32 = 50;
    let ran = Arc::new(Mutex::new(Vec::new()));
    let stop = tokio_util::sync::CancellationToken::new();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (client, ran, stop) = (Client::new(open().await), Arc::clone(&ran), stop.clone());
        let work = move |job: Update, _: Ctx| {
            let ran = Arc::clone(&ran);
            async move { ran.lock().unwrap().extend(job.rows) }
        };
        workers.push(tokio::spawn(Worker::new(&client).handle(work).run_until(stop)));
    }
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let client = Client::new(open().await);
        callers.push(tokio::spawn(async move {
            for n in 0..EACH {
                // Where others were faster sixteen times, the caller tries again.
                while let Err(error) = update(&client, caller * EACH + n).await {
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                }
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let client = Client::new(open().await);
    let begin = tokio::time::Instant::now();
    while client.count(None).await.unwrap().total() != client.count(None).await.unwrap().done {
        assert!(begin.elapsed() < Duration::from_mins(1), "the updates are not done");
        tokio::task::yield_now().await;
    }
    stop.cancel();
    for worker in workers {
        worker.await.unwrap().unwrap();
    }
    let mut rows = std::mem::take(&mut *ran.lock().unwrap());
    rows.sort_unstable();
    assert_eq!(rows, (0..CALLERS * EACH).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_lost_in_memory() {
    let store = MemoryStore::new(Clock::System);
    none_is_lost(async || Arc::new(store.clone()) as Arc<dyn Store>).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_lost_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}?durability=fast", folder.path().join("jobs.db").display());
    none_is_lost(async || connect(&url).await.unwrap()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_lost_on_redis() {
    let url = server::Server::shared().url();
    none_is_lost(async || connect(&url).await.unwrap()).await;
}
