//! Handlers: async functions from a job and its context to an outcome.
//!
//! A handler is registered with its job type and the worker's state. From then on it is an [`Erased`] function from a
//! [`Call`] to an [`Outcome`]. Neither the worker's loop nor middleware knows types of jobs.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::{Job, JobRecord, cut_error},
        notes::{LogLine, Notes, Progress},
        outcome::{IntoOutcome, Outcome},
        time::Timestamp,
    },
    runtime::{client::Client, worker::run::verdict},
    store::{BoxFuture, Lease, Settled, Transaction, Verdict, clock::Clock},
};

/// Handles the jobs of one type.
///
/// Each `async fn(job: J, ctx: Ctx<S>)` that returns `()`, an [`Outcome`] or a `Result` of either is a handler, and
/// so is such a closure. A type of your own can implement this trait, too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle jobs of a worker with the state `{S}`",
    note = "a handler is an `async fn(job: J, ctx: Ctx<S>)` where `J` is a job and `S` is the worker's state: \
            `Worker::new(&client).state(…)`"
)]
pub trait Handler<J, S>: Send + Sync + 'static {
    /// Runs one job and returns its outcome.
    fn handle(&self, job: J, ctx: Ctx<S>) -> impl Future<Output = Outcome> + Send;
}

impl<F, Fut, J, S> Handler<J, S> for F
where
    F: Fn(J, Ctx<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send,
    J: Job,
    S: Send + Sync + 'static,
{
    async fn handle(&self, job: J, ctx: Ctx<S>) -> Outcome {
        self(job, ctx).await.into_outcome()
    }
}

/// A handler without its types: decodes the payload, then runs the job.
pub(crate) type Erased = Arc<dyn Fn(Call) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Erases the types of a handler. A payload that cannot be decoded makes its job dead, with the decoder's message.
pub(crate) fn erase<J: Job, S: Send + Sync + 'static>(handler: impl Handler<J, S>, state: Arc<S>) -> Erased {
    let handler = Arc::new(handler);
    Arc::new(move |call| {
        let (handler, state) = (Arc::clone(&handler), Arc::clone(&state));
        Box::pin(async move {
            match J::decode(&call.record().payload) {
                Ok(job) => handler.handle(job, Ctx { call, state }).await,
                Err(error) => Outcome::Dead(error.to_string()),
            }
        })
    })
}

/// Erases the types as [`erase`] does, for a handler that takes the job as its record.
pub(crate) fn erase_raw<F, Fut, S>(handle: F, state: Arc<S>) -> Erased
where
    F: Fn(JobRecord, Ctx<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
    S: Send + Sync + 'static,
{
    let handle = Arc::new(handle);
    Arc::new(move |call| {
        let (handle, state) = (Arc::clone(&handle), Arc::clone(&state));
        Box::pin(async move {
            let record = call.record().clone();
            handle(record, Ctx { call, state }).await.into_outcome()
        })
    })
}

/// Why a run is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The cancel of the job was requested.
    Cancelled,
    /// The lease was reclaimed. Another run may be in progress, and this one can change nothing any more.
    LeaseLost,
    /// The worker is shutting down. Runs that have not ended after its grace period are released.
    Shutdown,
    /// The job's timeout is over, and the worker gives runs a [grace period](crate::Worker::timeout_grace) for it.
    TimedOut,
}

/// One run of a job, without its type.
///
/// Middleware gets it, and a [`Ctx`] gives access to it.
#[derive(Clone)]
pub struct Call {
    inner: Arc<Inner>,
}

struct Inner {
    record: JobRecord,
    fence: u64,
    client: Client,
    token: CancellationToken,
    /// A [`Stop`] plus one; 0 means none.
    stop: AtomicU8,
    reported: Mutex<Reported>,
    /// The verdict that the handler gave in its own transaction.
    settled: Mutex<Option<Verdict>>,
    /// What this worker lacked, so that the run did not begin.
    lacking: OnceLock<String>,
    /// Notified when there is something to report.
    news: Arc<Notify>,
    /// The longest pause that the run can request.
    retry_after_max: Duration,
}

/// The notes of a run.
struct Reported {
    /// All notes that are kept, including those of earlier runs.
    notes: Notes,
    /// Whether the store does not have them yet.
    is_news: bool,
}

impl Call {
    /// Makes the run of a job. Notifies `news` when it has something to report, and cuts a requested pause to
    /// `retry_after_max`.
    pub(crate) fn new(
        record: JobRecord,
        fence: u64,
        client: Client,
        news: Arc<Notify>,
        retry_after_max: Duration,
    ) -> Self {
        let (token, stop) = (CancellationToken::new(), AtomicU8::new(0));
        let reported = Mutex::new(Reported { notes: record.notes.clone(), is_news: false });
        Self {
            inner: Arc::new(Inner {
                record,
                fence,
                client,
                token,
                stop,
                reported,
                settled: Mutex::default(),
                lacking: OnceLock::new(),
                news,
                retry_after_max,
            }),
        }
    }

    /// Returns the longest pause that the run can request.
    pub(crate) fn retry_after_max(&self) -> Duration {
        self.inner.retry_after_max
    }

    /// Fires the token with a reason. The first reason stays.
    pub(crate) fn stop(&self, why: Stop) {
        let _ = self.inner.stop.compare_exchange(0, why as u8 + 1, Ordering::SeqCst, Ordering::SeqCst);
        self.inner.token.cancel();
    }

    /// Returns the id of the job.
    pub fn id(&self) -> JobId {
        self.inner.record.id
    }

    /// Returns the fence: the number of this reservation.
    ///
    /// It strictly rises for a job. Send it as a fencing token with each write to another system, and let that system refuse lower numbers.
    pub fn fence(&self) -> u64 {
        self.inner.fence
    }

    /// Returns the number of this run, from 1.
    ///
    /// Only failures and expired leases raise it.
    pub fn attempt(&self) -> u32 {
        self.inner.record.attempt
    }

    /// Returns how often the job can run.
    pub fn max_attempts(&self) -> u32 {
        self.inner.record.max_attempts
    }

    /// Returns when the job was due.
    pub fn run_at(&self) -> Timestamp {
        self.inner.record.run_at
    }

    /// Returns the time in the header `scheduled_for`.
    ///
    /// For a tick, it is its time in the schedule, however late or often it runs.
    #[cfg(feature = "cron")]
    pub fn scheduled_for(&self) -> Option<Timestamp> {
        crate::core::schedule::scheduled_for(self.headers())
    }

    /// Returns the queue of the job.
    pub fn queue(&self) -> &str {
        &self.inner.record.queue
    }

    /// Returns the kind of the job.
    pub fn kind(&self) -> &str {
        &self.inner.record.kind
    }

    /// Returns the headers of the job.
    pub fn headers(&self) -> &std::collections::BTreeMap<String, String> {
        &self.inner.record.headers
    }

    /// Returns the tags of the job.
    pub fn tags(&self) -> &[String] {
        &self.inner.record.tags
    }

    /// Returns the job as it was reserved.
    pub fn record(&self) -> &JobRecord {
        &self.inner.record
    }

    /// Reports progress: `done` of `total`, in any unit.
    ///
    /// `total` is `None` if it is unknown.
    ///
    /// The store has it about a second later, and at the end of the run. It is shown by `show`, `ls` and `top`, and
    /// returned by [`Client::finished`](crate::Client::finished). Progress stays with the job, also for its next
    /// runs. [`Call::record`] has it as of the reservation.
    ///
    /// ```
    /// # async fn import(rows: Vec<u8>, ctx: punctual::Ctx) {
    /// for (i, row) in rows.iter().enumerate() {
    ///     // … the work …
    ///     ctx.progress(i as u64 + 1, rows.len() as u64);
    /// }
    /// # }
    /// ```
    #[doc(alias = "set_progress")]
    #[doc(alias = "percent")]
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>) {
        let total = total.into();
        self.report(|notes| {
            let message = notes.progress.take().and_then(|progress| progress.message);
            notes.report(Progress { done, total, message });
        });
    }

    /// Reports what the run is doing, for people (cut at 1 KiB).
    ///
    /// It is shown beside the progress.
    pub fn message(&self, text: impl Into<String>) {
        let message = Some(text.into());
        self.report(|notes| {
            let progress = notes.progress.take().unwrap_or_default();
            notes.report(Progress { message, ..progress });
        });
    }

    /// Adds a line to the log of the job (cut at 1 KiB).
    ///
    /// The last 64 lines of all its runs are kept, 4 KiB at most.
    pub fn log(&self, text: impl Into<String>) {
        let at_ms = Clock::System.now().as_ms();
        let line = LogLine { attempt: self.attempt(), at_ms, text: text.into() };
        self.report(|notes| notes.push(line));
    }

    fn report(&self, report: impl FnOnce(&mut Notes)) {
        let mut reported = self.inner.reported.lock().unwrap_or_else(PoisonError::into_inner);
        report(&mut reported.notes);
        if !std::mem::replace(&mut reported.is_news, true) {
            self.inner.news.notify_one();
        }
    }

    /// Returns whether there are notes that the store does not have yet.
    pub(crate) fn has_news(&self) -> bool {
        self.inner.reported.lock().unwrap_or_else(PoisonError::into_inner).is_news
    }

    /// Takes the notes that the store does not have yet.
    pub(crate) fn take_news(&self) -> Option<Notes> {
        let mut reported = self.inner.reported.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut reported.is_news).then(|| reported.notes.clone())
    }

    /// Marks the notes as unsent, because the store may not have them.
    pub(crate) fn keep_news(&self) {
        self.inner.reported.lock().unwrap_or_else(PoisonError::into_inner).is_news = true;
    }

    /// Ends this run as part of a `rusqlite` transaction on the store's SQLite file.
    ///
    /// The writes of the handler and the end of the job are committed together. Commit the transaction, notify with
    /// the returned value, and return. The outcome that the handler then returns changes nothing. If the transaction
    /// is not committed, the job is retried.
    ///
    /// # Errors
    /// `Conflict` if the lease was lost: another run has the job. `Unsupported` if the store cannot join this
    /// transaction. After any error, roll the transaction back.
    pub fn settle_in<T: Transaction>(&self, tx: &T, outcome: Outcome) -> Result<T::Notification> {
        let said = verdict(outcome, self, fastrand::f64());
        let lease = Lease { job: self.id(), fence: self.fence() };
        let (settled, notification) = tx.settle(&**self.client().store(), lease, said.clone())?;
        if !matches!(settled, Settled::Settled(..)) {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the run lost its lease, and can no longer settle its job",
            )
            .with_hint("roll the transaction back and return: another run has the job"));
        }
        *self.inner.settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        Ok(notification)
    }

    /// Notes that the run did not begin, because this worker lacks something.
    pub(crate) fn lacks(&self, what: &str) {
        let _ = self.inner.lacking.set(cut_error(what).to_owned());
    }

    /// Returns what this worker lacked, if the run did not begin for that.
    pub(crate) fn lacking(&self) -> Option<&str> {
        self.inner.lacking.get().map(String::as_str)
    }

    /// Returns the verdict that the handler gave in its own transaction, committed or not.
    pub(crate) fn settled(&self) -> Option<Verdict> {
        self.inner.settled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a client of the same store.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Returns a token that fires when the run should stop.
    ///
    /// It fires when the job's cancel was requested, its lease was lost, the worker shuts down, or the timeout is
    /// over and a [grace period](crate::Worker::timeout_grace) started.
    pub fn cancel_token(&self) -> CancellationToken {
        self.inner.token.clone()
    }

    /// Returns why the token fired; `None` if it has not.
    pub fn stop_reason(&self) -> Option<Stop> {
        match self.inner.stop.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Stop::Cancelled),
            2 => Some(Stop::LeaseLost),
            3 => Some(Stop::Shutdown),
            _ => Some(Stop::TimedOut),
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", &self.id())
            .field("fence", &self.fence())
            .field("kind", &self.kind())
            .field("attempt", &self.attempt())
            .field("stop", &self.stop_reason())
            .finish_non_exhaustive()
    }
}

/// The context of a run: the [`Call`] and the worker's state.
pub struct Ctx<S = ()> {
    call: Call,
    state: Arc<S>,
}

impl<S> Ctx<S> {
    #[cfg(feature = "testing")]
    pub(crate) fn new(call: Call, state: Arc<S>) -> Self {
        Self { call, state }
    }

    /// Returns the state that was given to [`Worker::state`](crate::Worker::state).
    pub fn state(&self) -> &S {
        &self.state
    }
}

impl<S> Deref for Ctx<S> {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

impl<S> Clone for Ctx<S> {
    fn clone(&self) -> Self {
        Self { call: self.call.clone(), state: Arc::clone(&self.state) }
    }
}

impl<S> fmt::Debug for Ctx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("call", &self.call).finish_non_exhaustive()
    }
}
