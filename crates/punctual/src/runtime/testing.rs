//! For tests of code that uses punctual (feature `testing`): a store with a clock that the test sets, what was enqueued, and a
//! worker that runs in the test itself, without waiting. The store is in memory, or [any other](TestQueue::connect).
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
pub use crate::store::defaults::Defaults;
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
    store::{Durability, List, memory::MemoryStore, scratch},
};

/// When the clock of a [`TestQueue`] starts: 2026-01-01T00:00:00Z.
const START_MS: u64 = 1_767_225_600_000;

/// A store for one test, with a clock that stands still until the test advances it.
#[derive(Debug)]
#[non_exhaustive]
pub struct TestQueue {
    /// A client of it, for the code under test.
    pub client: Client,
    /// Its clock, which stands still until the test sets or advances it.
    pub clock: ManualClock,
}

/// A job that waits, as [`TestQueue::enqueued`] finds it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting<J> {
    /// The job.
    pub job: J,
    /// How long until it is due; zero if it is.
    pub delay: Duration,
    /// Everything else about it.
    pub record: JobRecord,
}

impl Default for TestQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl TestQueue {
    /// An empty store.
    pub fn new() -> Self {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(START_MS));
        let store = MemoryStore::new(Clock::Manual(clock.clone()));
        Self { client: Client::new(Arc::new(store)), clock }
    }

    /// A store at `url` that is made for this test; [`destroy`](Self::destroy) removes it. Its clock begins at
    /// 2026-01-01T00:00Z, each time that it is opened.
    ///
    /// Only a new store is taken, so that a slip in an address reaches no jobs of others: a file that is not there, or on Redis an
    /// empty prefix that begins with `test`, as `redis://localhost?prefix=test-7`. The store is marked as a test's then, and may
    /// be opened again.
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
    /// Dropped, it may have made an empty store.
    ///
    /// # Errors
    /// `Conflict` for a store that no test has made; otherwise as [`Client::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(START_MS));
        let store = scratch::open(url, Clock::Manual(clock.clone())).await?;
        Ok(Self { client: Client::new(store), clock })
    }

    /// Removes the store with all that it holds: the file, or on Redis all keys of its prefix (the user must be allowed `SCAN`).
    /// Whoever still uses it meets errors, or an empty store. One in memory ends with its last client anyway.
    ///
    /// Dropped, it may have been done in part; it may be made again.
    ///
    /// # Errors
    /// `Conflict` for a store that is not marked as a test's any more: nothing was removed.
    pub async fn destroy(self) -> Result<()> {
        let store = Arc::clone(self.client.store());
        drop(self);
        if store.durability() == Durability::Memory { Ok(()) } else { scratch::remove(store).await }
    }

    /// Turns the clock on.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// All waiting jobs of one type, the one that is due first in front.
    ///
    /// # Errors
    /// `Invalid` if one of them can't be decoded.
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

    /// A worker on it, for [`TestQueue::drain`].
    pub fn worker(&self) -> Worker {
        Worker::new(&self.client).name("test")
    }

    /// Runs due jobs side by side, as many as the worker has slots and the limits of the store allow, and hands out publications
    /// before them, until nothing is due. What fails is due again later: advance the clock, and drain again.
    ///
    /// Dropped, the runs end where they await, and their jobs come back when their leases end.
    ///
    /// # Errors
    /// If the worker can't be, as with two handlers for one kind.
    pub async fn drain<S: Send + Sync + 'static>(&self, worker: Worker<S>) -> Result<WorkReport> {
        let mut setup = worker.build()?;
        #[cfg(feature = "cron")]
        {
            crate::runtime::worker::tick::set(&setup.client, &setup.config.schedules).await?;
            setup.client.plant_schedules().await?;
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

/// A context to call a handler with, without a worker: of a first attempt at a job that exists nowhere.
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

/// Lets the process go on as a version of punctual with other defaults, for tests of stores that versions share.
#[doc(hidden)]
pub fn assume_defaults(defaults: Defaults) {
    crate::store::defaults::assume(defaults);
}
