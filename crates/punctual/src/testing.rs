//! For tests of code that uses punctual (feature `testing`): a store in memory with a clock that is turned by hand, what
//! was enqueued, and a worker that runs in the test itself: no thread, no waiting.
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

use std::{sync::Arc, time::Duration};

pub use crate::store::{
    clock::{Clock, ManualClock},
    faulty::{Fault, FaultyStore},
};
use crate::{
    client::Client,
    error::Result,
    filter::Filter,
    handler::{Call, Ctx},
    id::JobId,
    job::{Job, JobRecord, Payload, State},
    limits::BATCH_MAX,
    store::{Call as StoreCall, Heartbeat, List, Reserve, Settled, Settlement, memory::MemoryStore},
    time::Timestamp,
    worker::{Setup, WorkReport, Worker, dead, run},
};

/// When the clock of a [`TestQueue`] starts: 2026-01-01T00:00:00Z.
const START_MS: u64 = 1_767_225_600_000;

/// A store in memory for one test.
#[derive(Debug)]
pub struct TestQueue {
    /// A client of it, for the code under test.
    pub client: Client,
    /// Its clock, which stands still until it is turned.
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

    /// Runs due jobs, one after the other, and hands out publications before them, until nothing is due. What fails is due again
    /// later: turn the clock, and drain again.
    ///
    /// # Errors
    /// If the worker can't be, as with two handlers for one kind.
    pub async fn drain<S: Send + Sync + 'static>(&self, worker: Worker<S>) -> Result<WorkReport> {
        let mut setup = worker.build()?;
        #[cfg(feature = "cron")]
        {
            crate::worker::tick::set(&setup.client, &setup.schedules).await?;
            setup.client.plant_schedules().await?;
        }
        let mut publications = setup.of_publications();
        let mut report = WorkReport::default();
        let mut call = StoreCall { instance: fastrand::u64(..), number: 0 };
        loop {
            if let Some(beside) = &mut publications {
                let mut handed_out = WorkReport::default();
                while run_one(beside, &mut call, &mut handed_out).await? {}
                report.publications += handed_out.done;
            }
            if !run_one(&mut setup, &mut call, &mut report).await? {
                return Ok(report);
            }
        }
    }
}

/// Runs one due job; `false`: nothing is due.
async fn run_one(setup: &mut Setup, call: &mut StoreCall, report: &mut WorkReport) -> Result<bool> {
    let store = Arc::clone(setup.client.store());
    call.number += 1;
    let reserve = Reserve {
        call: *call,
        worker: setup.name.clone(),
        wants: setup.queues.wants(1, |_| 0).1,
        n: 1,
        lease: setup.lease,
        company: false,
    };
    let batch = store.reserve(&reserve).await?;
    for taken in batch.taken_back {
        report.taken_back += 1;
        bury(setup, taken.lease.job, taken.state).await;
    }
    let Some(reserved) = setup.queues.reserved(batch.jobs).pop() else { return Ok(batch.more) };
    let id = reserved.job.id;
    let handler = match setup.crew.handler(&reserved.job.kind) {
        None => Err(setup.crew.unknown(&reserved.job)),
        Some(handler) => {
            report.lateness.started(&reserved.job, batch.now);
            Ok(Arc::clone(handler))
        }
    };
    let run_of = Call::new(reserved.job, reserved.lease.fence, setup.client.clone(), Arc::default());
    let graces = run::Graces { cancel: setup.cancel_grace, timeout: setup.timeout_grace };
    let verdict = run::run(run_of.clone(), handler, graces).await;
    let said = run_of.settled();
    if let Some(notes) = run_of.take_news().filter(|_| said.is_none()) {
        store.extend(&[Heartbeat { notes: Some(notes), ..reserved.lease.into() }]).await?;
    }
    let settlement = [Settlement { lease: reserved.lease, verdict }];
    let (settled, _) = store.settle(&settlement, None).await?;
    match settled[..] {
        [Settled::Settled(state)] => {
            report.settled(&settlement[0].verdict, state);
            bury(setup, id, state).await;
        }
        _ => match said {
            // Its handler settled it in a transaction of its own.
            Some(said) => {
                let job = store.get(id).await?;
                report.settled(&said, job.map_or(State::Done, |job| job.state));
            }
            None => report.lost += 1,
        },
    }
    Ok(true)
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
    Ctx::new(Call::new(record, 1, client, Arc::default()), Arc::new(state))
}

/// Tells of a job that ended dead.
async fn bury(setup: &Setup, id: JobId, state: State) {
    if let (State::Dead, Some(on_dead)) = (state, &setup.on_dead) {
        dead::tell(&setup.client, on_dead, id, None).await;
    }
}
