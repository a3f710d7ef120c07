//! A handle to a store for those who hand jobs over and look after them: typed jobs in, batches out.
//!
//! Concurrent enqueues of one client are merged into few calls (`coalesce.rs`); nothing is buffered beyond the
//! call that is on its way, and no answer is given before the store gave it. A client never runs a job: that is the
//! [`Worker`](crate::Worker)'s.

mod act;
mod coalesce;
mod enqueue;
mod finish;
mod merge;
mod queue;
#[cfg(feature = "cron")]
pub(crate) mod schedule;
mod topic;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

pub use act::{ActProgress, AuditReport, Cancelled};
pub use enqueue::{Enqueue, EnqueueMany, Spec};
pub use merge::Merge;
pub use queue::QueueHandle;
#[cfg(feature = "cron")]
pub use schedule::{NamedSchedule, ScheduleHandle, SchedulePage};
pub use topic::{Publish, Topic, TopicHandle, TopicPage};

use crate::{
    core::{
        error::Result,
        id::{IdMaker, JobId},
        job::{Job, JobRecord, NewJob},
    },
    store::{
        Counts, Enqueued, Histogram, Identity, List, Page, Store, Take, UniqueKey, Upcoming, clock::Clock,
    },
};

/// Hands jobs to a store, and reads and changes those that are there. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    ids: Mutex<IdMaker>,
    coalescer: coalesce::Coalescer,
}

impl Client {
    /// Opens the store at `url` (see [`connect`](crate::store::url::connect)) and makes a client of it.
    ///
    /// Dropped, it has left nothing open.
    ///
    /// # Errors
    /// As the store says; `Unsupported` for a scheme that this build doesn't know.
    pub async fn connect(url: &str) -> Result<Self> {
        Ok(Self::new(crate::store::url::connect(url).await?))
    }

    /// A client of a store that is open already.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let coalescer = coalesce::Coalescer::new(Arc::clone(&store));
        Self { inner: Arc::new(Inner { store, ids: Mutex::default(), coalescer }) }
    }

    /// The store, for everything that has no shorter way here.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Which store it is: a number that was made once, and that is part of every id that leaves the store. See [`Identity`].
    ///
    /// Dropped, it may have made the store's identity, which every later call answers.
    ///
    /// # Errors
    /// `Unsupported` for a file without one that was opened to be looked at; else where the store can't be reached.
    pub async fn identity(&self) -> Result<Identity> {
        self.store().identity().await
    }

    /// Makes an id for a job. Ids of one client rise in the order of making. A store of several shards may move the job to
    /// another one, and with it its id: what counts is the id that [`Client::push`] answers.
    pub fn make_id(&self) -> JobId {
        let shard = self.inner.store.shard();
        let now_ms = Clock::System.now().as_ms();
        let mut ids = self.inner.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.make(now_ms, shard, fastrand::u64(..))
    }

    /// Hands a job over, for now unless said otherwise, once the builder is awaited.
    #[expect(clippy::needless_pass_by_value, reason = "a job is handed over; calls read better without `&`")]
    #[doc(alias = "add_job")]
    #[doc(alias = "insert")]
    #[doc(alias = "perform_async")]
    #[doc(alias = "spawn")]
    pub fn enqueue<J: Job>(&self, job: J) -> Enqueue {
        Enqueue::new(self.clone(), &job)
    }

    /// Hands many jobs over in few round trips, once the builder is awaited.
    #[doc(alias = "bulk")]
    #[doc(alias = "insert_all")]
    #[doc(alias = "push_bulk")]
    pub fn enqueue_many<I>(&self, jobs: I) -> EnqueueMany<I::IntoIter>
    where
        I: IntoIterator,
        I::Item: Job,
    {
        EnqueueMany::new(self.clone(), jobs.into_iter())
    }

    /// Hands untyped jobs over: any number, one answer per job, in order.
    ///
    /// Dropped before its jobs are sent, it has stored none. After that nobody knows which are stored: hand them in again with
    /// the same ids, and those that are answer [`Enqueued::Duplicate`]. The same holds for the builders of an enqueue.
    ///
    /// # Errors
    /// The first that the store gave. Jobs of the same call may have been accepted: repeat it with the same ids, and
    /// those that are there already answer [`Enqueued::Duplicate`].
    pub async fn push(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        self.inner.coalescer.push(jobs).await
    }

    /// One job; `None` also for one that is past its retention.
    ///
    /// Dropped, it has changed nothing.
    pub async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.store().get(id).await
    }

    /// The job that holds a unique key.
    ///
    /// Dropped, it has changed nothing.
    pub async fn holder(&self, key: &UniqueKey) -> Result<Option<JobRecord>> {
        self.store().holder(key).await
    }

    /// A page of jobs.
    ///
    /// Dropped, it has changed nothing.
    pub async fn list(&self, list: &List) -> Result<Page> {
        self.store().list(list).await
    }

    /// How many jobs a queue has, or the store when none is named.
    ///
    /// Dropped, it has changed nothing.
    pub async fn count(&self, queue: Option<&str>) -> Result<Counts> {
        self.store().count(queue).await
    }

    /// When waiting jobs are due, as a histogram.
    ///
    /// Dropped, it has changed nothing.
    pub async fn upcoming(&self, upcoming: &Upcoming) -> Result<Histogram> {
        self.store().upcoming(upcoming).await
    }

    /// Takes up to `n` due jobs out of `queue` for good: at most once. From the answer on they exist with the caller
    /// only.
    ///
    /// Dropped once it was polled, it may have taken jobs that nobody has then: where that must not be, await it to its end, or
    /// run the jobs with a [`Worker`](crate::Worker).
    pub async fn take(&self, queue: &str, n: usize) -> Result<Vec<JobRecord>> {
        self.take_older(queue, n, Duration::ZERO).await
    }

    /// Takes as [`Client::take`] does, jobs that have been due for at least `older_than`.
    ///
    /// Dropped, as [`Client::take`].
    pub async fn take_older(&self, queue: &str, n: usize, older_than: Duration) -> Result<Vec<JobRecord>> {
        self.store().take(&Take { queue: queue.to_owned(), n, older_than }).await
    }

    /// One queue, to look at and to set.
    pub fn queue(&self, name: impl Into<String>) -> QueueHandle {
        QueueHandle::new(self.clone(), name.into())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.store().url()).finish_non_exhaustive()
    }
}
