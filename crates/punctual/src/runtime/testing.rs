//! Helpers for tests of code that uses punctual (feature `testing`).
//!
//! [`TestQueue`] has a store whose clock the test sets. It lists what was enqueued, and runs due jobs in the test
//! itself, without waiting. The store is in memory, or [any other](TestQueue::connect).
//!
//! ```
//! use std::time::Duration;
//! use punctual::{Client, Ctx, Job, testing::TestQueue};
//!
//! #[derive(Job, serde::Serialize, serde::Deserialize)]
//! #[job(kind = "email.send")]
//! struct SendEmail { to: String }
//!
//! async fn send_email(_job: SendEmail, _ctx: Ctx) {}
//!
//! async fn sign_up(client: &Client) -> punctual::Result<()> {
//!     client.enqueue(SendEmail { to: "ana@example.com".into() }).delay(Duration::from_secs(3600)).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
//! let t = TestQueue::new();
//! sign_up(&t.client).await?;
//! let emails = t.enqueued::<SendEmail>().await?;
//! assert_eq!((emails[0].job.to.as_str(), emails[0].delay.as_secs()), ("ana@example.com", 3600));
//!
//! t.advance(Duration::from_secs(3600));
//! let report = t.drain(t.worker().handle(send_email)).await?;
//! assert_eq!((report.done, report.dead), (1, 0));
//! # Ok(()) }
//! ```

mod drain;

use std::{sync::Arc, time::Duration};

use self::drain::Drain;
#[doc(hidden)]
pub use crate::store::version_defaults::Defaults;
pub use crate::store::{
    clock::{Clock, ManualClock},
    faulty::{Fault, FaultyStore},
};
use crate::{
    core::{
        error::Result,
        filter::Filter,
        job::{Job, JobRecord, Payload, State},
        limits::BATCH_MAX,
        time::Timestamp,
    },
    runtime::{
        client::Client,
        handler::{Call, Ctx},
        worker::{WorkReport, Worker},
    },
    store::{Durability, List, Store, memory::MemoryStore, model::marks_before, scratch},
};

/// The start of the clock of a [`TestQueue`]: 2026-01-01T00:00:00Z.
const START_MS: u64 = 1_767_225_600_000;

/// A store for one test. Its clock stands still until the test advances it.
#[derive(Debug)]
#[non_exhaustive]
pub struct TestQueue {
    /// A client of the store, for the code under test.
    pub client: Client,
    /// The clock of the store. It stands still until the test sets or advances it.
    pub clock: ManualClock,
}

/// Advances a clock, as in a store that other workers call meanwhile.
///
/// A store that is not called takes the time for an outage: it holds leases back that ended in it, and upkeep doubts a step of more than two
/// minutes. So expired leases can be reclaimed, and old jobs removed, right after this, but not right after [`ManualClock::advance`].
///
/// Errors of the store are ignored. If the future is dropped, the clock may stand in between.
pub async fn pass_time(store: &dyn Store, clock: &ManualClock, by: Duration) {
    let end = clock.now().after(by);
    for before in marks_before(by) {
        clock.set(Timestamp::saturating_from_ms(end.as_ms() - before.as_millis() as u64));
        let _ = store.extend(&[]).await;
    }
    clock.set(end);
}

/// A waiting job, as [`TestQueue::enqueued`] returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting<J> {
    /// The decoded job.
    pub job: J,
    /// The time until it is due; zero if it is due.
    pub delay: Duration,
    /// The record of the job.
    pub record: JobRecord,
}

impl Default for TestQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl TestQueue {
    /// Makes an empty store in memory.
    pub fn new() -> Self {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(START_MS));
        let store = MemoryStore::new(Clock::Manual(clock.clone()));
        Self { client: Client::new(Arc::new(store)), clock }
    }

    /// Creates a store at `url` for this test. [`destroy`](Self::destroy) removes it.
    ///
    /// Its clock starts at 2026-01-01T00:00Z each time it is opened.
    ///
    /// Only a new store is accepted, so that a mistyped address reaches no other jobs: a file that does not exist, or
    /// on Redis an empty prefix that begins with `test`, for example `redis://localhost?prefix=test-7`. The store is
    /// then marked as a test's, and can be opened again.
    ///
    /// ```
    /// # use punctual::testing::TestQueue;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("test.db");
    /// let t = TestQueue::connect(&format!("sqlite:{}", path.display())).await?;
    /// assert_eq!(t.client.count(None).await?.total(), 0);
    /// t.destroy().await?;
    /// assert!(!path.exists());
    /// # Ok(()) }
    /// ```
    ///
    /// If the future is dropped, an empty store may have been created.
    ///
    /// # Errors
    /// `Conflict` for a store that was not made by a test; otherwise as [`Client::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(START_MS));
        let store = scratch::open(url, Clock::Manual(clock.clone())).await?;
        Ok(Self { client: Client::new(store), clock })
    }

    /// Removes the store: the file, or on Redis all keys of its prefix.
    ///
    /// On Redis the user must be allowed to call `SCAN`. Other users of the store get errors, or an empty store. A
    /// store in memory ends with its last client anyway.
    ///
    /// If the future is dropped, parts may have been removed. It is safe to repeat the call.
    ///
    /// # Errors
    /// `Conflict` for a store that is not marked as a test's: nothing was removed.
    pub async fn destroy(self) -> Result<()> {
        let store = Arc::clone(self.client.store());
        drop(self);
        if store.durability() == Durability::Memory { Ok(()) } else { scratch::remove(store).await }
    }

    /// Advances the clock, as in a store that other workers call meanwhile: see [`pass_time`].
    ///
    /// # Panics
    /// If the system gives it no thread.
    pub fn advance(&self, by: Duration) {
        let passing = pass_time(&**self.client.store(), &self.clock, by);
        std::thread::scope(|scope| {
            // The test's own runtime is busy with this call.
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime beside that of the test").block_on(passing);
            });
        });
    }

    /// Returns all waiting jobs of one type, by due time.
    ///
    /// # Errors
    /// `Invalid` if one of them cannot be decoded.
    pub async fn enqueued<J: Job>(&self) -> Result<Vec<Waiting<J>>> {
        let mut found = Vec::new();
        let mut list = List { filter: Filter::all().state([State::Waiting]), after: None, limit: BATCH_MAX };
        loop {
            let page = self.client.list(&list).await?;
            for record in page.jobs.into_iter().filter(|record| record.kind == J::KIND) {
                let (job, delay) = (J::decode(&record.payload)?, record.run_at.since(page.now));
                found.push(Waiting { job, delay, record });
            }
            match page.next {
                Some(after) => list.after = Some(after),
                None => break,
            }
        }
        found.sort_by_key(|waiting| (waiting.record.run_at, waiting.record.id));
        Ok(found)
    }

    /// Makes a worker for this store, to pass to [`TestQueue::drain`].
    pub fn worker(&self) -> Worker {
        Worker::new(&self.client).name("test")
    }

    /// Runs due jobs until none is due, after distributing publications.
    ///
    /// They run concurrently, up to the worker's slots and the limits of the store. Jobs that fail are due again
    /// later: advance the clock and drain again.
    ///
    /// If the future is dropped, the runs end at their next await, and their jobs run again when their leases expire.
    ///
    /// # Errors
    /// An invalid configuration of the worker, for example two handlers for one kind.
    pub async fn drain<S: Send + Sync + 'static>(&self, worker: Worker<S>) -> Result<WorkReport> {
        let mut setup = worker.build()?;
        #[cfg(feature = "cron")]
        {
            crate::runtime::worker::tick::set(&setup.client, &setup.config.schedules).await?;
            setup.client.enqueue_ticks().await?;
        }
        let mut publications = setup.of_publications();
        let mut publications = publications.as_mut().map(Drain::new);
        let mut drain = Drain::new(&mut setup);
        loop {
            if let Some(beside) = &mut publications {
                while beside.step().await? {}
            }
            if !drain.step().await? {
                break;
            }
        }
        let mut report = drain.report;
        report.publications = publications.map_or(0, |publications| publications.report.done);
        Ok(report)
    }
}

/// Makes a context to call a handler without a worker.
///
/// It is the first attempt of a job that is in no store.
pub fn ctx<S: Send + Sync + 'static>(state: S) -> Ctx<S> {
    let client = TestQueue::new().client;
    let start = Timestamp::saturating_from_ms(START_MS);
    let record = JobRecord {
        kind: "test".to_owned(),
        queue: "default".to_owned(),
        payload: Payload::json("null"),
        run_at: start,
        created_at: start,
        state: State::Running,
        started_at: Some(start),
        ..JobRecord::blank(client.make_id())
    };
    Ctx::new(Call::new(record, 1, client, Arc::default(), Duration::MAX), Arc::new(state))
}

/// Makes this process use the defaults of another version of punctual.
///
/// Use it to test stores that several versions share.
#[doc(hidden)]
pub fn assume_defaults(defaults: Defaults) {
    crate::store::version_defaults::assume(defaults);
}
