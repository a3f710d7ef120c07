//! The client: enqueues jobs, and reads and changes jobs in a store. It never runs a job; a [`Worker`](crate::Worker)
//! does.
//!
//! Concurrent enqueues of one client are merged into few calls (`coalesce.rs`). No call returns before the store has
//! answered.

mod act;
mod coalesce;
mod enqueue;
mod finish;
mod merge;
mod queue;
#[cfg(feature = "cron")]
pub(crate) mod schedule;
mod topic;
mod why;
mod workers;

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

pub use act::{ActProgress, AuditReport, Cancelled};
pub use enqueue::{Enqueue, EnqueueMany, Spec};
pub use merge::Merge;
pub use queue::QueueHandle;
#[cfg(feature = "cron")]
pub use schedule::{NamedSchedule, ScheduleHandle, SchedulePage};
pub use topic::{Publish, Topic, TopicHandle, TopicPage};
pub use why::beside;
pub use workers::WorkerPage;

use crate::{
    core::{
        error::Result,
        id::{IdMaker, JobId},
        job::{Job, JobRecord, NewJob},
    },
    runtime::{
        metrics::{Measured, Metrics},
        trace::Sending,
    },
    store::{
        Counts, Enqueued, Histogram, Identity, List, Page, Store, Take, UniqueKey, Upcoming, clock::Clock,
    },
};

/// A handle to a store: enqueues jobs, and reads and changes them.
///
/// It is cheap to clone. Clones share everything.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    identity: OnceLock<Identity>,
    ids: Mutex<IdMaker>,
    coalescer: coalesce::Coalescer,
    /// What counts, and the store that its wrapper is around.
    metrics: Option<(Metrics, Arc<dyn Store>)>,
}

impl Client {
    /// Opens the store at `url` and returns a client for it.
    ///
    /// See [`connect`](crate::store::url::connect).
    ///
    /// Dropping the future leaves nothing open.
    ///
    /// # Errors
    /// Any error of the store; `Unsupported` for a scheme that this build does not know.
    pub async fn connect(url: &str) -> Result<Self> {
        Ok(Self::new(crate::store::url::connect(url).await?))
    }

    /// Makes a client for a store that is already open.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::of(store, None)
    }

    /// Returns a client of the same store that counts its calls and those of its workers.
    ///
    /// Metrics that this client has are replaced in the new one. See [`Metrics`] for what is not counted.
    #[must_use]
    pub fn with_metrics(&self, metrics: &Metrics) -> Self {
        let bare = self.inner.metrics.as_ref().map_or_else(|| self.store(), |(_, bare)| bare);
        let store = Measured::new(Arc::clone(bare), metrics);
        Self::of(Arc::new(store), Some((metrics.clone(), Arc::clone(bare))))
    }

    fn of(store: Arc<dyn Store>, metrics: Option<(Metrics, Arc<dyn Store>)>) -> Self {
        let coalescer = coalesce::Coalescer::new(Arc::clone(&store));
        Self {
            inner: Arc::new(Inner {
                store,
                identity: OnceLock::new(),
                ids: Mutex::default(),
                coalescer,
                metrics,
            }),
        }
    }

    /// Returns what counts the calls of this client, if anything does.
    pub(crate) fn metrics(&self) -> Option<&Metrics> {
        self.inner.metrics.as_ref().map(|(metrics, _)| metrics)
    }

    /// Returns the store, for calls that the client does not offer.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Returns the identity of the store, a number that is made once.
    ///
    /// It is part of every id that leaves the store. See [`Identity`]. A client asks its store once, and keeps the answer, also if the
    /// server is emptied later. A store on Redis asks its server each time ([`Store::identity`]).
    ///
    /// If the future is dropped, the identity may have been made. All later calls then return it.
    ///
    /// # Errors
    /// `Unsupported` for a file without an identity that was opened read-only; otherwise any error of the store.
    pub async fn identity(&self) -> Result<Identity> {
        if let Some(identity) = self.inner.identity.get() {
            return Ok(*identity);
        }
        let identity = self.store().identity().await?;
        Ok(*self.inner.identity.get_or_init(|| identity))
    }

    /// Makes an id for a job.
    ///
    /// The ids of one client rise in the order in which they are made.
    ///
    /// A store with several shards can place the job in another shard, which changes its id. Use the id that
    /// [`Client::push`] returns.
    pub fn make_id(&self) -> JobId {
        let shard = self.inner.store.shard();
        let now_ms = Clock::System.now().as_ms();
        let mut ids = self.inner.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.make(now_ms, shard, fastrand::u64(..))
    }

    /// Enqueues a job (default: due now). Await the builder to send it.
    #[expect(clippy::needless_pass_by_value, reason = "a job is handed over; calls read better without `&`")]
    #[doc(alias = "add_job")]
    #[doc(alias = "insert")]
    #[doc(alias = "perform_async")]
    #[doc(alias = "spawn")]
    pub fn enqueue<J: Job>(&self, job: J) -> Enqueue {
        Enqueue::new(self.clone(), &job)
    }

    /// Enqueues many jobs in few round trips. Await the builder to send them.
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

    /// Enqueues any number of untyped jobs. Returns one answer per job, in order.
    ///
    /// If the future is dropped before its jobs were sent, none is stored. If it is dropped later, some may be
    /// stored. Enqueue them again with the same ids: for each job that is stored, the answer is
    /// [`Enqueued::Duplicate`]. The same holds for the builders of an enqueue.
    ///
    /// # Errors
    /// The first error of the store. Some jobs of the call may be stored. Repeat the call with the same ids: for each
    /// job that is stored, the answer is [`Enqueued::Duplicate`].
    pub async fn push(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let sending = Sending::begin(&mut jobs);
        let answers = self.push_counted(jobs).await;
        sending.end(answers.as_deref());
        answers
    }

    async fn push_counted(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let Some(metrics) = self.metrics() else { return self.inner.coalescer.push(jobs).await };
        let named = |job: &NewJob| (job.id, job.queue.clone(), job.kind.clone());
        let names: Vec<_> = jobs.iter().map(named).collect();
        let answers = self.inner.coalescer.push(jobs).await?;
        metrics.enqueued(names.iter().zip(&answers));
        Ok(answers)
    }

    /// Returns one job, or `None` if it does not exist or is past its retention.
    ///
    /// Dropping the future changes nothing.
    pub async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.store().get(id).await
    }

    /// Returns the job that holds a unique key.
    ///
    /// Dropping the future changes nothing.
    pub async fn holder(&self, key: &UniqueKey) -> Result<Option<JobRecord>> {
        self.store().holder(key).await
    }

    /// Returns a page of jobs.
    ///
    /// Dropping the future changes nothing.
    pub async fn list(&self, list: &List) -> Result<Page> {
        self.store().list(list).await
    }

    /// Counts the jobs of a queue, or of the whole store if `queue` is `None`.
    ///
    /// Dropping the future changes nothing.
    pub async fn count(&self, queue: Option<&str>) -> Result<Counts> {
        self.store().count(queue).await
    }

    /// Returns a histogram of the due times of waiting jobs.
    ///
    /// Dropping the future changes nothing.
    pub async fn upcoming(&self, upcoming: &Upcoming) -> Result<Histogram> {
        self.store().upcoming(upcoming).await
    }

    /// Takes up to `n` due jobs out of `queue`: at most once.
    ///
    /// After the answer, the jobs exist only with the caller.
    ///
    /// If the future is dropped after its first poll, it may have taken jobs that are then lost. If you cannot lose
    /// jobs, await it to its end, or run the jobs with a [`Worker`](crate::Worker).
    pub async fn take(&self, queue: &str, n: usize) -> Result<Vec<JobRecord>> {
        self.take_older(queue, n, Duration::ZERO).await
    }

    /// Takes jobs that have been due for at least `older_than`.
    ///
    /// Otherwise it works as [`Client::take`].
    ///
    /// If the future is dropped, jobs can be lost as with [`Client::take`].
    pub async fn take_older(&self, queue: &str, n: usize, older_than: Duration) -> Result<Vec<JobRecord>> {
        self.store().take(&Take { queue: queue.to_owned(), n, older_than }).await
    }

    /// Returns a handle to one queue, to read it and to change its settings.
    pub fn queue(&self, name: impl Into<String>) -> QueueHandle {
        QueueHandle::new(self.clone(), name.into())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.store().url()).finish_non_exhaustive()
    }
}
