//! Builders of an enqueue: what a call chooses for one job, and how it is sent. Nothing is sent before they are awaited.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use super::{Client, topic::Publish};
use crate::{
    core::{
        backoff::Backoff,
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::{Concurrency, Job, NewJob, Priority, Unique},
        limits::IDEMPOTENCY_KEY_BYTES_MAX,
        time::When,
        topic,
    },
    store::{Enqueued, Transaction},
};

/// What one call chooses for one job. Options it leaves open come from the job's type, then from the queue.
pub struct Spec {
    job: NewJob,
    idempotency_key: Option<String>,
    concurrency_limit: Option<u32>,
    across_kinds: bool,
}

impl Spec {
    pub(super) fn new<J: Job>(client: &Client, job: &J) -> Result<Self> {
        let mut new = NewJob::new(client.make_id(), J::KIND, J::QUEUE, job.encode()?);
        new.options = J::options();
        new.unique = job.unique();
        Ok(Self { job: new, idempotency_key: None, concurrency_limit: None, across_kinds: false })
    }

    /// The job as it goes to the store.
    pub(super) fn finish(mut self) -> Result<NewJob> {
        match (&mut self.job.concurrency, self.concurrency_limit) {
            (Some(concurrency), Some(limit)) => concurrency.limit = limit,
            (None, Some(_)) => return Err(Error::invalid("a concurrency limit needs a concurrency key")),
            (_, None) => {}
        }
        if let Some(unique) = self.job.unique.as_mut().filter(|_| self.across_kinds) {
            unique.across_kinds = true;
        }
        if let Some(key) = &self.idempotency_key {
            check_idempotency_key(key)?;
            // Last, since the id also depends on the queue and the placement key.
            self.job.id = JobId::derived_within(self.kind(), &self.job.queue, self.job.placement_key(), key);
        }
        Ok(self.job)
    }

    /// The kind that its keys are compared within.
    fn kind(&self) -> Option<&str> {
        if self.across_kinds { None } else { Some(&self.job.kind) }
    }

    /// The job as its publication to a topic.
    pub(super) fn publication(mut self, topic: &str) -> Result<NewJob> {
        let (key, across_kinds) = (self.idempotency_key.take(), self.across_kinds);
        let mut job = topic::publication(topic, self.finish()?)?;
        if let Some(key) = &key {
            check_idempotency_key(key)?;
            let kind = if across_kinds { None } else { Some(&*job.kind) };
            job.id = topic::derived_id(topic, kind, job.placement_key(), key);
        }
        Ok(job)
    }
}

/// Refuses an empty key, and one over 1 KiB.
pub(super) fn check_idempotency_key(key: &str) -> Result<()> {
    if (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) {
        Ok(())
    } else {
        let size = key.len();
        Err(Error::invalid(format!(
            "idempotency_key of {size} bytes is not within 1 to {IDEMPOTENCY_KEY_BYTES_MAX}"
        )))
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec").field("job", &self.job).finish_non_exhaustive()
    }
}

/// Writes every choice once: as a method of [`Spec`], by reference, and of builders, by value.
macro_rules! choices {
    ([$($builder:ident),+] $choices:tt) => {
        choices! { @spec $choices }
        $( choices! { @builder $builder $choices } )+
    };
    (@spec { $( $(#[$doc:meta])* fn $name:ident($spec:ident $(, $arg:ident: $ty:ty)*) $body:block )+ }) => {
        impl Spec {
            $( $(#[$doc])* pub fn $name(&mut self $(, $arg: $ty)*) -> &mut Self {
                let $spec = &mut *self;
                $body
                self
            } )+
        }
    };
    (@builder $builder:ident {
        $( $(#[$doc:meta])* fn $name:ident($spec:ident $(, $arg:ident: $ty:ty)*) $body:block )+
    }) => {
        impl $builder {
            $( $(#[$doc])* pub fn $name(mut self $(, $arg: $ty)*) -> Self {
                if let Ok(spec) = &mut self.spec {
                    spec.$name($($arg),*);
                }
                self
            } )+
        }
    };
}

choices! { [Enqueue, Publish] {
    /// Gives the job an id that [`Client::make_id`] made before, so that the call can be repeated safely.
    fn id(spec, id: JobId) {
        spec.job.id = id;
        spec.idempotency_key = None;
    }

    /// Derives the job's id from its kind, queue, placement key and this key. Enqueued again with the same four, the answer is
    /// [`Enqueued::Duplicate`], also for a day after the job ended. The placement key is the job's group, else its concurrency
    /// key, else its unique key, else none. At most 1 KiB. The id is the one that is answered.
    ///
    /// With [`across_kinds`](Self::across_kinds) the kind does not count.
    #[doc(alias = "dedupe")]
    #[doc(alias = "job_id")]
    fn idempotency_key(spec, key: impl Into<String>) {
        spec.idempotency_key = Some(key.into());
    }

    /// Due this much after now, by the store's clock.
    #[doc(alias = "run_in")]
    #[doc(alias = "perform_in")]
    #[doc(alias = "schedule_in")]
    #[doc(alias = "countdown")]
    fn delay(spec, delay: Duration) {
        spec.job.run_at = When::In(delay);
    }

    /// Due at this instant; earlier than now means now.
    #[doc(alias = "run_at")]
    #[doc(alias = "perform_at")]
    #[doc(alias = "eta")]
    fn at(spec, at: impl Into<When>) {
        spec.job.run_at = at.into();
    }

    /// One of three levels.
    fn priority(spec, priority: Priority) {
        spec.job.options.priority = Some(priority);
    }

    /// At most one job holds this key within its kind, queue, group and concurrency key; with
    /// [`across_kinds`](Self::across_kinds) the kind does not count. See [`Unique`].
    #[doc(alias = "dedupe")]
    #[doc(alias = "unique_by")]
    fn unique(spec, unique: Unique) {
        spec.job.unique = Some(unique);
    }

    /// Compares the unique key and the idempotency key of this job with those of jobs of all kinds that do so, too. Otherwise they
    /// are compared within its kind.
    fn across_kinds(spec) {
        spec.across_kinds = true;
    }

    /// At most one job of this key waits: short for a key unique until the start that is the concurrency key as well. For
    /// work that must be done again after the last change, and not once per change.
    #[doc(alias = "debounce")]
    fn rerun(spec, key: impl Into<String>) {
        let key = key.into();
        spec.job.unique = Some(Unique::key(key.clone()).until_start());
        spec.job.concurrency = Some(Concurrency { key, limit: 1 });
    }

    /// The tenant or the like: recorded, and unique keys are compared within it.
    fn group(spec, group: impl Into<String>) {
        spec.job.group = Some(group.into());
    }

    /// The resource that the job works on: at most [`concurrency_limit`](Self::concurrency_limit) jobs of this key run at once
    /// in their queue and group, 1 unless said otherwise. What can't run now waits for its turn, out of the way of others, and is
    /// started in order; not by any worker's memory, so that it holds over kills. Unique keys are compared within it.
    #[doc(alias = "mutex")]
    #[doc(alias = "partition_key")]
    fn concurrency_key(spec, key: impl Into<String>) {
        spec.job.concurrency = Some(Concurrency { key: key.into(), limit: 1 });
    }

    /// This job may start while fewer than so many of its concurrency key run, 1 to 10,000; 1 unless said otherwise.
    fn concurrency_limit(spec, limit: u32) {
        spec.concurrency_limit = Some(limit);
    }

    /// Dead after so many failures; 1 means: never again after a failure or crash.
    #[doc(alias = "retries")]
    #[doc(alias = "max_retries")]
    fn max_attempts(spec, max_attempts: u32) {
        spec.job.options.max_attempts = Some(max_attempts);
    }

    /// How long to wait between attempts.
    fn backoff(spec, backoff: Backoff) {
        spec.job.options.backoff = Some(backoff);
    }

    /// The hard limit of one run.
    fn timeout(spec, timeout: Duration) {
        spec.job.options.timeout = Some(timeout);
    }

    /// How long the job stays with a worker that is not heard of; 1 s to 24 h.
    fn lease(spec, lease: Duration) {
        spec.job.options.lease = Some(lease);
    }

    /// Ends cancelled if it has not started this much after now.
    #[doc(alias = "ttl")]
    fn expires_in(spec, after: Duration) {
        spec.job.expires_at = Some(When::In(after));
    }

    /// Ends cancelled if it has not started before this instant.
    fn expires_at(spec, at: impl Into<When>) {
        spec.job.expires_at = Some(at.into());
    }

    /// Adds a tag, for people and filters. At most 16.
    fn tag(spec, tag: impl Into<String>) {
        spec.job.tags.push(tag.into());
    }

    /// Sets a header; trace context travels here. At most 8 KiB in all.
    fn header(spec, name: impl Into<String>, value: impl Into<String>) {
        spec.job.headers.insert(name.into(), value.into());
    }
} }

// A publication has no queue of its own.
choices! { [Enqueue] {
    /// Waits under this queue.
    fn queue(spec, queue: impl Into<String>) {
        spec.job.queue = queue.into();
    }
} }

/// An enqueue of one job, by [`Client::enqueue`]; sent once it is awaited.
///
/// A call that fails in passing is repeated for up to 30 s. If its answer was lost, the repetition finds the job there:
/// [`Enqueued::Duplicate`] with the job's own id.
#[derive(Debug)]
#[must_use = "a job is enqueued only once this is awaited: add `.await`"]
pub struct Enqueue {
    pub(super) client: Client,
    pub(super) spec: Result<Spec>,
}

impl Enqueue {
    pub(super) fn new<J: Job>(client: Client, job: &J) -> Self {
        let spec = Spec::new(&client, job);
        Self { client, spec }
    }

    /// The job as it goes to a store, with all that its type and this call chose: for an outbox, or for
    /// [`Client::push`].
    ///
    /// # Errors
    /// `Invalid` for a payload that can't be encoded or an option out of its limits.
    pub fn into_new_job(self) -> Result<NewJob> {
        self.spec?.finish()
    }

    /// Enqueues inside a `rusqlite` transaction on the store's SQLite file, on a connection of your own: the job
    /// exists from the commit on, or not at all. Ring the bell after the commit; without it the job starts about a second
    /// late.
    ///
    /// ```
    /// # use punctual::{Client, Job};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Job, Serialize, Deserialize)]
    /// #[job(kind = "order.confirm", queue = "mail", max_attempts = 8)]
    /// struct Confirm {
    ///     order: i64,
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("app.db");
    /// let client = Client::connect(&format!("sqlite:{}", path.display())).await?;
    /// let mut db = rusqlite::Connection::open(&path)?;
    /// db.busy_timeout(std::time::Duration::from_secs(30))?;
    ///
    /// let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)", [])?;
    /// tx.execute("INSERT INTO orders (id) VALUES (7)", [])?;
    /// let (enqueued, bell) = client.enqueue(Confirm { order: 7 }).in_tx(&tx)?;
    /// tx.commit()?;
    /// bell.ring();
    ///
    /// let job = client.get(enqueued.id().expect("it was inserted")).await?.expect("it is there");
    /// assert_eq!((job.queue.as_str(), job.max_attempts), ("mail", 8));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Full` where the queue is at its cap: nothing was written, and the transaction may go on. `Unsupported` on a store
    /// that is no SQLite file, `Conflict` where the connection would weaken what the store promises; after these and any
    /// other error the transaction must be rolled back.
    pub fn in_tx<T: Transaction>(self, tx: &T) -> Result<(Enqueued, T::Bell)> {
        let client = self.client.clone();
        let job = self.into_new_job()?;
        let queue = job.queue.clone();
        let (answers, bell) = tx.enqueue(&**client.store(), &[job])?;
        Ok((only_answer(&queue, answers)?, bell))
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<Enqueued>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let job = self.spec?.finish()?;
            let queue = job.queue.clone();
            only_answer(&queue, self.client.push(vec![job]).await?)
        })
    }
}

/// What became of the one job that was handed over. A full queue is an error: a job that was not stored must not be
/// overlooked.
pub(super) fn only_answer(queue: &str, answers: Vec<Enqueued>) -> Result<Enqueued> {
    match answers.into_iter().next() {
        Some(Enqueued::Full) => Err(full(format!("queue {queue:?} is full: the job was not stored"))),
        Some(answer) => Ok(answer),
        None => Err(Error::new(ErrorKind::UnknownOutcome, "the store answered for no job")),
    }
}

fn full(message: String) -> Error {
    Error::new(ErrorKind::Full, message)
        .with_hint("try again once jobs have ended, or raise the queue's cap (max_jobs, max_bytes)")
}

/// What became of many jobs; an error if a full queue refused any.
fn all_answers(answers: Vec<Enqueued>) -> Result<Vec<Enqueued>> {
    let refused = answers.iter().filter(|answer| **answer == Enqueued::Full).count();
    if refused == 0 {
        return Ok(answers);
    }
    let (all, stored) = (answers.len(), answers.len() - refused);
    Err(full(format!("a full queue refused {refused} of {all} jobs; the other {stored} are stored")))
}

type Each<J> = Box<dyn FnMut(&J, &mut Spec) + Send>;

/// An enqueue of many jobs, by [`Client::enqueue_many`]; sent once it is awaited.
#[must_use = "jobs are enqueued only once this is awaited: add `.await`"]
pub struct EnqueueMany<I: Iterator> {
    client: Client,
    jobs: I,
    each: Option<Each<I::Item>>,
}

impl<I: Iterator<Item: Job>> EnqueueMany<I> {
    pub(super) fn new(client: Client, jobs: I) -> Self {
        Self { client, jobs, each: None }
    }

    /// Lets `each` choose for every job.
    pub fn each(mut self, each: impl FnMut(&I::Item, &mut Spec) + Send + 'static) -> Self {
        self.each = Some(Box::new(each));
        self
    }

    fn finish(mut self) -> Result<Vec<NewJob>> {
        let client = &self.client;
        self.jobs
            .map(|job| {
                let mut spec = Spec::new(client, &job)?;
                if let Some(each) = &mut self.each {
                    each(&job, &mut spec);
                }
                spec.finish()
            })
            .collect()
    }
}

impl<I: Iterator<Item: Job>> IntoFuture for EnqueueMany<I> {
    type Output = Result<Vec<Enqueued>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// The jobs are encoded here, before anything is sent: one that can't be leaves the others unsent too.
    fn into_future(self) -> Self::IntoFuture {
        let client = self.client.clone();
        let jobs = self.finish();
        Box::pin(async move { all_answers(client.push(jobs?).await?) })
    }
}

impl<I: Iterator> fmt::Debug for EnqueueMany<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnqueueMany").field("client", &self.client).finish_non_exhaustive()
    }
}
