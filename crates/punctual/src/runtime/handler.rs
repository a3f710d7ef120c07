//! Handlers: plain async functions from a job and its context to an outcome, and what they are told about their run.
//!
//! Types stop here. A handler is registered once, with its job type and the worker's state; from then on it is an
//! [`Erased`] function from a [`Call`] to an [`Outcome`], and neither the worker's loop nor middleware knows a type of job.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError,
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
        job::{Job, JobRecord},
        notes::{LogLine, Notes, Progress},
        outcome::{IntoOutcome, Outcome},
        time::Timestamp,
    },
    runtime::{client::Client, worker::run::verdict},
    store::{BoxFuture, Lease, Settled, Transaction, Verdict, clock::Clock},
};

/// Does the work of one type of job.
///
/// Any `async fn(job: J, ctx: Ctx<S>)` that returns `()`, an [`Outcome`] or a `Result` of either is one, and so is such a
/// closure. A type of your own may implement it too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle jobs of a worker with the state `{S}`",
    note = "a handler is an `async fn(job: J, ctx: Ctx<S>)` where `J` is a job and `S` is the worker's state: \
            `Worker::new(&client).state(…)`"
)]
pub trait Handler<J, S>: Send + Sync + 'static {
    /// Runs one job.
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

/// A handler whose types are forgotten: decodes, then does the work.
pub(crate) type Erased = Arc<dyn Fn(Call) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Forgets the types of a handler. What can't be decoded is dead, with the decoder's words: no repetition makes it
/// readable.
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

/// As [`erase`], for a function that takes the job as its record.
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
    /// Somebody asked to cancel the job.
    Cancelled,
    /// The lease was taken back: another run may be going on, and whatever this one says changes nothing.
    LeaseLost,
    /// The worker is shutting down. What has not ended when its grace is over is released.
    Shutdown,
    /// The job's timeout is over, and the worker gives runs a [grace](crate::Worker::timeout_grace) for it.
    TimedOut,
}

/// One run of a job, without its type: what middleware sees, and what a [`Ctx`] gives access to.
#[derive(Clone)]
pub struct Call {
    inner: Arc<Inner>,
}

struct Inner {
    record: JobRecord,
    fence: u64,
    client: Client,
    token: CancellationToken,
    /// A [`Stop`] plus one; 0: none.
    stop: AtomicU8,
    told: Mutex<Told>,
    /// What the handler said in a transaction of its own.
    settled: Mutex<Option<Verdict>>,
    /// Rung when there is more to tell.
    news: Arc<Notify>,
    /// The longest pause that it is granted if it asks for one.
    retry_after_max: Duration,
}

/// What a run tells of itself.
struct Told {
    /// All that is kept, beginning with what earlier runs told.
    notes: Notes,
    /// The store has not been told of it yet.
    is_news: bool,
}

impl Call {
    /// `news` is rung when it has something to tell; a pause that it asks for is cut to `retry_after_max`.
    pub(crate) fn new(
        record: JobRecord,
        fence: u64,
        client: Client,
        news: Arc<Notify>,
        retry_after_max: Duration,
    ) -> Self {
        let (token, stop) = (CancellationToken::new(), AtomicU8::new(0));
        let told = Mutex::new(Told { notes: record.notes.clone(), is_news: false });
        Self {
            inner: Arc::new(Inner {
                record,
                fence,
                client,
                token,
                stop,
                told,
                settled: Mutex::default(),
                news,
                retry_after_max,
            }),
        }
    }

    /// The longest pause that it is granted if it asks for one.
    pub(crate) fn retry_after_max(&self) -> Duration {
        self.inner.retry_after_max
    }

    /// Fires the token. The first reason stays.
    pub(crate) fn stop(&self, why: Stop) {
        let _ = self.inner.stop.compare_exchange(0, why as u8 + 1, Ordering::SeqCst, Ordering::SeqCst);
        self.inner.token.cancel();
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.inner.record.id
    }

    /// The number of this reservation. It strictly rises for a job: hand it along with every write to another system, as
    /// a fencing token, and let that system refuse lower ones.
    pub fn fence(&self) -> u64 {
        self.inner.fence
    }

    /// The number of this run, from 1; grows by failures and crashes only.
    pub fn attempt(&self) -> u32 {
        self.inner.record.attempt
    }

    /// How many attempts the job has.
    pub fn max_attempts(&self) -> u32 {
        self.inner.record.max_attempts
    }

    /// When the job was due.
    pub fn run_at(&self) -> Timestamp {
        self.inner.record.run_at
    }

    /// The time that its header `scheduled_for` tells: of a tick, that of its schedule, however late it comes or how often.
    #[cfg(feature = "cron")]
    pub fn scheduled_for(&self) -> Option<Timestamp> {
        crate::core::schedule::scheduled_for(self.headers())
    }

    /// Its queue.
    pub fn queue(&self) -> &str {
        &self.inner.record.queue
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        &self.inner.record.kind
    }

    /// Its headers.
    pub fn headers(&self) -> &std::collections::BTreeMap<String, String> {
        &self.inner.record.headers
    }

    /// Its tags.
    pub fn tags(&self) -> &[String] {
        &self.inner.record.tags
    }

    /// Everything about the job, as of this reservation.
    pub fn record(&self) -> &JobRecord {
        &self.inner.record
    }

    /// Tells how far the run is: so much of so much, in whatever unit; `None` where nobody knows of how much. The store hears of
    /// it within a second or so, and at the end of the run; people see it in `show`, `ls` and `top`, and
    /// [`Client::finished`](crate::Client::finished) tells it. What was told stays with the job, also for its next runs:
    /// [`Call::record`] has it as of the reservation.
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
        self.tell(|notes| {
            let message = notes.progress.take().and_then(|progress| progress.message);
            notes.tell(Progress { done, total, message });
        });
    }

    /// Tells what the run is at, for people; cut at 1 KiB. Beside [`Call::progress`].
    pub fn message(&self, text: impl Into<String>) {
        let message = Some(text.into());
        self.tell(|notes| {
            let progress = notes.progress.take().unwrap_or_default();
            notes.tell(Progress { message, ..progress });
        });
    }

    /// Writes a line that is kept with the job, cut at 1 KiB: of all its runs the last 64 lines, and 4 KiB.
    pub fn log(&self, text: impl Into<String>) {
        let at_ms = Clock::System.now().as_ms();
        let line = LogLine { attempt: self.attempt(), at_ms, text: text.into() };
        self.tell(|notes| notes.push(line));
    }

    fn tell(&self, tell: impl FnOnce(&mut Notes)) {
        let mut told = self.inner.told.lock().unwrap_or_else(PoisonError::into_inner);
        tell(&mut told.notes);
        if !std::mem::replace(&mut told.is_news, true) {
            self.inner.news.notify_one();
        }
    }

    /// Whether there is something that the store has not been told yet.
    pub(crate) fn has_news(&self) -> bool {
        self.inner.told.lock().unwrap_or_else(PoisonError::into_inner).is_news
    }

    /// What the store has not been told yet, if there is something.
    pub(crate) fn take_news(&self) -> Option<Notes> {
        let mut told = self.inner.told.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut told.is_news).then(|| told.notes.clone())
    }

    /// The store may not have heard of it.
    pub(crate) fn keep_news(&self) {
        self.inner.told.lock().unwrap_or_else(PoisonError::into_inner).is_news = true;
    }

    /// Ends this run inside a `rusqlite` transaction on the store's SQLite file: what the handler writes in it and the end of the
    /// job are committed together.
    /// Commit it, ring the bell, and return; whatever is returned then changes nothing. A job whose transaction is not committed is
    /// not done: it is retried.
    ///
    /// # Errors
    /// `Conflict` if the lease was lost: roll back, another run has the job. `Unsupported` on a store that can't join this
    /// transaction. After any error the transaction must be rolled back.
    pub fn settle_in<T: Transaction>(&self, tx: &T, outcome: Outcome) -> Result<T::Bell> {
        let said = verdict(outcome, self, fastrand::f64());
        let lease = Lease { job: self.id(), fence: self.fence() };
        let (settled, bell) = tx.settle(&**self.client().store(), lease, said.clone())?;
        if !matches!(settled, Settled::Settled(..)) {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the run lost its lease, and can no longer settle its job",
            )
            .with_hint("roll the transaction back and return: another run has the job"));
        }
        *self.inner.settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        Ok(bell)
    }

    /// What the handler said in a transaction of its own, if it did; committed or not.
    pub(crate) fn settled(&self) -> Option<Verdict> {
        self.inner.settled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client of the same store.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Fires when the run should stop: the job's cancel was asked for, its lease was lost, the worker shuts
    /// down, or the timeout is over and a [grace](crate::Worker::timeout_grace) began.
    pub fn cancel_token(&self) -> CancellationToken {
        self.inner.token.clone()
    }

    /// Why the token fired; `None`: it has not.
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

/// What a handler is told about its run, beside the job itself: the [`Call`], and the worker's state.
pub struct Ctx<S = ()> {
    call: Call,
    state: Arc<S>,
}

impl<S> Ctx<S> {
    #[cfg(feature = "testing")]
    pub(crate) fn new(call: Call, state: Arc<S>) -> Self {
        Self { call, state }
    }

    /// What the worker was given by [`Worker::state`](crate::Worker::state).
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
