//! Builders of an enqueue: the choices for a job, and how it is sent. Nothing is sent before a builder is awaited.

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
    runtime::trace::Sending,
    store::{Enqueued, Transaction},
};

/// The choices of one call for one job.
///
/// Options that are left open come from the type of job, then from the queue.
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

    /// Returns the job as it is sent to the store.
    pub(super) fn finish(mut self) -> Result<NewJob> {
        match (&mut self.job.concurrency, self.concurrency_limit) {
            (Some(concurrency), Some(limit)) => concurrency.limit = limit,
            (None, Some(_)) => return Err(Error::invalid("a concurrency limit needs a concurrency key")),
            (_, None) => {}
        }
        if let Some(unique) = self.job.unique.as_mut().filter(|_| self.across_kinds) {
            unique.across_kinds = true;
        }
        if let Some(key) = self.idempotency_key {
            check_idempotency_key(&key)?;
            // Last, because the id also depends on the queue and the placement key.
            self.job.derive_id(key, self.across_kinds);
        }
        Ok(self.job)
    }

    /// Returns the job as its publication to a topic.
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

/// Checks that a key has 1 byte to 1 KiB.
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

/// Defines each choice once: on [`Spec`] by reference, and on builders by value.
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
    /// Sets an id made by [`Client::make_id`], so that the call can be repeated safely.
    fn id(spec, id: JobId) {
        spec.job.id = id;
        spec.idempotency_key = None;
    }

    /// Derives the job's id from its kind, queue, placement key and `key` (at most 1 KiB).
    ///
    /// A second enqueue with the same four returns [`Enqueued::Duplicate`], also for a day after the job ended. The
    /// placement key is the job's group, else its concurrency key, else its unique key. Use the id in the answer.
    ///
    /// With [`across_kinds`](Self::across_kinds), the kind does not count.
    #[doc(alias = "dedupe")]
    #[doc(alias = "job_id")]
    fn idempotency_key(spec, key: impl Into<String>) {
        spec.idempotency_key = Some(key.into());
    }

    /// Sets the due time to `delay` after now, by the store's clock.
    #[doc(alias = "run_in")]
    #[doc(alias = "perform_in")]
    #[doc(alias = "schedule_in")]
    #[doc(alias = "countdown")]
    fn delay(spec, delay: Duration) {
        spec.job.run_at = When::In(delay);
    }

    /// Sets the due time. A time in the past means now.
    #[doc(alias = "run_at")]
    #[doc(alias = "perform_at")]
    #[doc(alias = "eta")]
    fn at(spec, at: impl Into<When>) {
        spec.job.run_at = at.into();
    }

    /// Sets the priority (default: normal).
    fn priority(spec, priority: Priority) {
        spec.job.options.priority = Some(priority);
    }

    /// Sets the unique key: at most one job holds it in its kind, queue, group and concurrency key.
    ///
    /// With [`across_kinds`](Self::across_kinds), the kind does not count. See [`Unique`].
    #[doc(alias = "dedupe")]
    #[doc(alias = "unique_by")]
    fn unique(spec, unique: Unique) {
        spec.job.unique = Some(unique);
    }

    /// Compares the unique key and the idempotency key across kinds.
    ///
    /// They are compared with the keys of all jobs that also hold theirs across kinds. By default they are compared
    /// within the kind.
    fn across_kinds(spec) {
        spec.across_kinds = true;
    }

    /// Keeps at most one waiting job of this key, and runs one at a time.
    ///
    /// Use it for work that must be done again after the last change, but not once per change. It sets a unique key
    /// that is held until the start, and the same concurrency key.
    #[doc(alias = "debounce")]
    fn rerun(spec, key: impl Into<String>) {
        let key = key.into();
        spec.job.unique = Some(Unique::key(key.clone()).until_start());
        spec.job.concurrency = Some(Concurrency { key, limit: 1 });
    }

    /// Sets the group, for example the tenant. Unique keys are compared within it.
    fn group(spec, group: impl Into<String>) {
        spec.job.group = Some(group.into());
    }

    /// Sets the concurrency key, for example the resource that the job works on.
    ///
    /// At most [`concurrency_limit`](Self::concurrency_limit) jobs of this key run at once in their queue and group
    /// (default: 1). Jobs that cannot start are blocked in the store, do not hold up others, and start in order. The
    /// limit holds across processes, also when workers are killed. Unique keys are compared within the concurrency
    /// key.
    #[doc(alias = "mutex")]
    #[doc(alias = "partition_key")]
    fn concurrency_key(spec, key: impl Into<String>) {
        spec.job.concurrency = Some(Concurrency { key: key.into(), limit: 1 });
    }

    /// Lets the job start while fewer than `limit` jobs of its concurrency key run, 1 to 10,000 (default: 1).
    fn concurrency_limit(spec, limit: u32) {
        spec.concurrency_limit = Some(limit);
    }

    /// Sets how many failures make the job dead. With 1, it is never retried after a failure or an expired lease.
    #[doc(alias = "retries")]
    #[doc(alias = "max_retries")]
    fn max_attempts(spec, max_attempts: u32) {
        spec.job.options.max_attempts = Some(max_attempts);
    }

    /// Sets the wait between attempts.
    fn backoff(spec, backoff: Backoff) {
        spec.job.options.backoff = Some(backoff);
    }

    /// Sets the longest time of one run.
    fn timeout(spec, timeout: Duration) {
        spec.job.options.timeout = Some(timeout);
    }

    /// Sets the lease, 1 s to 24 h: how long a silent worker keeps the job.
    fn lease(spec, lease: Duration) {
        spec.job.options.lease = Some(lease);
    }

    /// Cancels the job if it has not started within `after` from now.
    #[doc(alias = "ttl")]
    fn expires_in(spec, after: Duration) {
        spec.job.expires_at = Some(When::In(after));
    }

    /// Cancels the job if it has not started before this instant.
    fn expires_at(spec, at: impl Into<When>) {
        spec.job.expires_at = Some(at.into());
    }

    /// Adds a tag, for people and filters (at most 16).
    fn tag(spec, tag: impl Into<String>) {
        spec.job.tags.push(tag.into());
    }

    /// Sets a header, for example a trace context (at most 8 KiB in all).
    fn header(spec, name: impl Into<String>, value: impl Into<String>) {
        spec.job.headers.insert(name.into(), value.into());
    }
} }

// Not for publications, which have no queue of their own.
choices! { [Enqueue] {
    /// Sets the queue.
    fn queue(spec, queue: impl Into<String>) {
        spec.job.queue = queue.into();
    }
} }

/// An enqueue of one job, made by [`Client::enqueue`] and sent when it is awaited.
///
/// A call with a transient failure is repeated for up to 30 s. If an answer was lost, the repeated call returns it again, so
/// [`Enqueued::Duplicate`] always means that another call enqueued the job.
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

    /// Returns the job with all choices of its type and this call.
    ///
    /// Use it for an outbox, or for [`Client::push`].
    ///
    /// # Errors
    /// `Invalid` for a payload that cannot be encoded, or for an option outside its limits.
    pub fn into_new_job(self) -> Result<NewJob> {
        self.spec?.finish()
    }

    /// Enqueues as part of a `rusqlite` transaction on the store's SQLite file.
    ///
    /// The transaction runs on a connection of your own. The job exists once the transaction commits, and not at all
    /// if it does not. After the commit, notify the workers with the second value that is returned. Otherwise the job
    /// starts about a second late.
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
    /// let (enqueued, notification) = client.enqueue(Confirm { order: 7 }).in_tx(&tx)?;
    /// tx.commit()?;
    /// notification.send();
    ///
    /// let job = client.get(enqueued.id().expect("it was inserted")).await?.expect("it is there");
    /// assert_eq!((job.queue.as_str(), job.max_attempts), ("mail", 8));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Full` if the queue is at its cap: nothing was written, and the transaction can go on. After any other error,
    /// roll the transaction back. `Unsupported` if the store is not an SQLite file. `Conflict` if the connection
    /// would weaken the store's guarantees.
    pub fn in_tx<T: Transaction>(self, tx: &T) -> Result<(Enqueued, T::Notification)> {
        let client = self.client.clone();
        let mut job = [self.into_new_job()?];
        let queue = job[0].queue.clone();
        let sending = Sending::begin(&mut job);
        let enqueued = tx.enqueue(&**client.store(), &job);
        sending.end(enqueued.as_ref().map(|(answers, _)| &answers[..]));
        let (answers, notification) = enqueued?;
        Ok((only_answer(&queue, answers)?, notification))
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

/// Returns the answer for a single job. A full queue is an error, and so is a taken id, so that a refused job is not overlooked.
pub(super) fn only_answer(queue: &str, answers: Vec<Enqueued>) -> Result<Enqueued> {
    match answers.into_iter().next() {
        Some(Enqueued::Full) => Err(full(format!("queue {queue:?} is full: the job was not stored"))),
        Some(Enqueued::Conflict { id }) => Err(taken(format!(
            "a job of another queue than {queue:?} has the id {id}: the job was not stored"
        ))),
        Some(answer) => Ok(answer),
        None => Err(Error::new(ErrorKind::UnknownOutcome, "the store answered for no job")),
    }
}

fn full(message: String) -> Error {
    Error::new(ErrorKind::Full, message)
        .with_hint("try again once jobs have ended, or raise the queue's cap (max_jobs, max_bytes)")
}

fn taken(message: String) -> Error {
    Error::new(ErrorKind::Conflict, message).with_hint("enqueue it with another id or idempotency key")
}

/// Returns the answers for many jobs; an error if any was not stored, because its queue is full or its id is taken.
fn all_answers(answers: Vec<Enqueued>) -> Result<Vec<Enqueued>> {
    let (all, count) =
        (answers.len(), |is: fn(&Enqueued) -> bool| answers.iter().filter(|answer| is(answer)).count());
    let refused = count(|answer| *answer == Enqueued::Full);
    let met = count(|answer| matches!(answer, Enqueued::Conflict { .. }));
    let stored = all - refused - met;
    match (refused, met) {
        (0, 0) => Ok(answers),
        (_, 0) => {
            Err(full(format!("a full queue refused {refused} of {all} jobs; the other {stored} are stored")))
        }
        _ => Err(taken(format!(
            "{met} of {all} jobs have the id of a job in another queue, and a full queue refused {refused}; the other {stored} are stored"
        ))),
    }
}

type Each<J> = Box<dyn FnMut(&J, &mut Spec) + Send>;

/// An enqueue of many jobs, made by [`Client::enqueue_many`].
///
/// It is sent when it is awaited.
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

    /// Calls `each` for every job, to make choices for it.
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

    /// Encodes all jobs before any is sent. If one cannot be encoded, none is sent.
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
