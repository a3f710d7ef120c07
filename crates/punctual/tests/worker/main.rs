//! The worker's loop, rule by rule, on the store in memory. The loop has a thread of its own: tests wait for what handlers
//! and the store tell, never for time to pass, and a rule about time turns the store's clock.

#![cfg(all(feature = "derive", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod crew;
mod dead;
mod drain;
mod fault;
mod isolation;
mod lease;
mod log;
mod notes;
mod outcome;
#[cfg(feature = "sqlite")]
mod registration;
mod shutdown;
mod topic;
mod upkeep;
mod views;

use std::{
    future::pending,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use punctual::{
    Backoff, Client, Ctx, ErrorKind, Job, JobId, JobRecord, Outcome, Result, State, Timestamp, Worker,
    client::Cancelled,
    store::{CallId, Enqueued, QueueRequest, Reserve, memory::MemoryStore},
    testing::{Clock, Fault, FaultyStore, ManualClock, pass_time},
    worker::{Call, Next, Shutdown, Stop, UnknownKinds, WorkReport},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{
        Barrier, Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

const START: u64 = 1_000_000;
const SECOND: Duration = Duration::from_secs(1);
/// A lease whose heartbeats don't matter.
const LONG: Duration = Duration::from_mins(2);
/// How long a machine may take for what comes within seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The job of these tests; retried after exactly 10 s, held for 1 s, so that heartbeats come every third of a second.
#[derive(Clone, Debug, PartialEq, Job, Serialize, Deserialize)]
#[job(kind = "test.work", backoff = "fixed 10s", lease = "1s", max_attempts = 3)]
struct Work {
    n: u32,
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "test.other", queue = "other")]
struct Other {}

/// A store in memory, its clock, and what was called on it.
struct Rig {
    client: Client,
    /// The store behind the one of the client, whose calls are counted.
    memory: MemoryStore,
    clock: ManualClock,
    calls: UnboundedReceiver<&'static str>,
}

impl Rig {
    fn new() -> Self {
        Self::faulty(|_| Fault::Pass)
    }

    fn faulty(mut schedule: impl FnMut(&'static str) -> Fault + Send + 'static) -> Self {
        let clock = ManualClock::new(Timestamp::from_ms(START).unwrap());
        let memory = MemoryStore::new(Clock::Manual(clock.clone()));
        let (heard, calls) = unbounded_channel();
        let store = FaultyStore::new(Arc::new(memory.clone()), move |verb| {
            let _ = heard.send(verb);
            schedule(verb)
        });
        Self { client: Client::new(Arc::new(store)), memory, clock, calls }
    }

    fn worker(&self) -> Worker {
        Worker::new(&self.client).name("test").serve_topics(false)
    }

    async fn enqueue(&self, n: u32) -> JobId {
        self.client.enqueue(Work { n }).await.unwrap().id().unwrap()
    }

    async fn get(&self, id: JobId) -> JobRecord {
        self.client.get(id).await.unwrap().unwrap()
    }

    /// Reserves a job of the queue as a worker does that is killed at once.
    async fn crash_with_one(&self, queue: &str) {
        let reserve = Reserve {
            call: CallId { instance: 7, number: 1 },
            worker: "crashed".into(),
            queues: vec![QueueRequest { queue: queue.into(), share: 1, at_most: 1 }],
            n: 1,
            lease: None,
            company: false,
        };
        assert_eq!(self.client.store().reserve(&reserve).await.unwrap().jobs.len(), 1);
    }

    /// Waits until a verb is called again.
    async fn called(&mut self, verb: &str) {
        let called = async { while self.calls.recv().await.unwrap() != verb {} };
        tokio::time::timeout(PATIENCE, called).await.unwrap_or_else(|_| panic!("{verb} is not called again"));
    }
}

/// Starts a worker; the token ends it gracefully.
fn start<S: Send + Sync + 'static>(worker: Worker<S>) -> (CancellationToken, JoinHandle<Result<WorkReport>>) {
    let stop = CancellationToken::new();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { worker.run_until(stop).await }
    });
    (stop, working)
}

/// A handler that tells of each run and answers `outcome`.
fn telling(
    outcome: impl Fn(u32) -> Outcome + Send + Sync + 'static,
) -> (impl Fn(Work, Ctx) -> std::future::Ready<Outcome> + Send + Sync + 'static, UnboundedReceiver<u32>) {
    let (tell, told) = unbounded_channel();
    let handler = move |job: Work, _: Ctx| {
        let _ = tell.send(job.n);
        std::future::ready(outcome(job.n))
    };
    (handler, told)
}

/// Runs one job through a worker to the end of its first run.
async fn run_one(outcome: Outcome) -> (WorkReport, JobRecord) {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (handler, mut told) = telling(move |_| outcome.clone());
    let (stop, working) = start(rig.worker().handle(handler));
    told.recv().await.unwrap();
    stop.cancel();
    (working.await.unwrap().unwrap(), rig.get(id).await)
}

/// Tells when it is dropped.
struct Told(UnboundedSender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A handler that tells that it runs, and never ends.
fn endless() -> (impl Fn(Work, Ctx) -> std::future::Pending<()> + Send + Sync, UnboundedReceiver<()>) {
    let (tell, told) = unbounded_channel();
    let handler = move |_: Work, _: Ctx| {
        let _ = tell.send(());
        pending()
    };
    (handler, told)
}
