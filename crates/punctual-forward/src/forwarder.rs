//! The forwarder: a handler that sends jobs to another system.
//!
//! ```text
//! reserve ─► handler: Sink::send ──confirmed──────────────► Done: acked only now
//!                │          ├──refused──► Retry by the job's backoff; after its last attempt Dead, with the target's message
//!                │          ├──busy─────► a short pause in place; for a long one RetryAfter: the queue (or the job's group) waits
//!                │          └──away─────► pause ≤ 1.5 s, then again in place; counts nothing, unless others succeeded meanwhile, five times
//!                └──away for half of the job's timeout──► Snooze: back to the store; counts nothing
//! ```
//!
//! While the target is unavailable, each slot keeps its job. No attempts are spent, and no jobs are reserved that
//! could not be sent. When the target is back, each job is sent within one pause.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use punctual::{
    Client, Ctx, JobRecord, Outcome, Result,
    limits::SNOOZE_MIN,
    worker::{Forwarding, Stop},
};
use tokio::time::timeout;

use crate::{
    counts::{Counts, Tally},
    sink::{BoxFuture, Refusal, Sink},
    target::Target,
};

/// How often it is checked, while a job waits for its answer, whether the target holds all jobs back.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The first pause before a job is tried again in place. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest of these pauses: after an outage, a job is sent at most this much late.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a job is snoozed after it has waited in place for long enough. It doubles each time in a row, up to this
/// often.
const AWAY_SNOOZE: Duration = Duration::from_secs(5);
const SNOOZE_DOUBLINGS: u32 = 4;
/// How often other jobs can succeed between the tries of a job before it counts as refused.
const OVERTAKEN_MAX: u32 = 5;
/// Characters of the last error in a report.
const ERROR_CHARS: usize = 200;

/// Forwards the jobs of a worker to another system.
///
/// A job is acked after that system has confirmed it.
///
/// A forwarder is a handler: retries, dead jobs, leases and limits are those of the worker and the store.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use punctual::{Client, Worker};
/// use punctual_forward::Forwarder;
///
/// let client = Client::connect("sqlite:app.db").await?;
/// let forwarder = Forwarder::to("amqp://guest:guest@localhost/%2f?exchange=jobs&routing_key={kind}")?;
/// forwarder.check().await?;
/// Worker::new(&client).queue("mail").slots(256).forwarding(forwarder.report()).handle_raw(forwarder.handler()).run().await?;
/// # Ok(())
/// # }
/// ```
///
/// Clones share the connection.
#[derive(Clone)]
pub struct Forwarder {
    inner: Arc<Inner>,
}

struct Inner {
    sink: Box<dyn Sink>,
    shown: String,
    tally: Tally,
}

impl Forwarder {
    /// Makes a forwarder to an address, in the form of [`Target::parse`].
    ///
    /// It connects with the first job, or at [`check`](Self::check).
    ///
    /// # Errors
    /// As [`Target::parse`] and [`Target::forwarder`].
    pub fn to(address: &str) -> Result<Self> {
        Target::parse(address)?.forwarder()
    }

    pub(crate) fn new(sink: Box<dyn Sink>, shown: String) -> Self {
        Self { inner: Arc::new(Inner { sink, shown, tally: Tally::default() }) }
    }

    /// Connects and checks the target.
    ///
    /// It checks whether the exchange, queue, stream or host exists, if it is the same for all jobs.
    ///
    /// # Errors
    /// `Unavailable` if the target cannot be reached now; jobs would wait for it. `Invalid` for a problem to be
    /// corrected, for example a refused login or a missing exchange.
    pub async fn check(&self) -> Result<()> {
        self.inner.sink.check().await
    }

    /// Forwards one job of a client's store, without a worker and without retries.
    ///
    /// If the future is dropped after its first poll, the job may have been forwarded.
    ///
    /// # Errors
    /// The target's message why it did not take the job.
    pub async fn send(&self, client: &Client, job: &JobRecord) -> std::result::Result<(), String> {
        let sent = self.inner.send(client, job).await;
        sent.map_err(|refusal| match refusal {
            Refusal::Away(error)
            | Refusal::Ours(error)
            | Refusal::Busy { error, .. }
            | Refusal::Refused(error)
            | Refusal::Never(error) => error,
        })
    }

    /// Returns the handler, for [`Worker::handle_raw`](punctual::Worker::handle_raw).
    ///
    /// As many jobs are in flight at once as the worker has slots.
    pub fn handler<S: Send + Sync + 'static>(
        &self,
    ) -> impl Fn(JobRecord, Ctx<S>) -> BoxFuture<'static, Outcome> + Send + Sync + 'static {
        let inner = Arc::clone(&self.inner);
        move |job, ctx| {
            let inner = Arc::clone(&inner);
            Box::pin(async move { inner.hand_over(&job, &ctx).await })
        }
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.inner.tally.counts()
    }

    /// Returns what lists of workers show of this forwarder, for
    /// [`Worker::forwarding`](punctual::Worker::forwarding).
    pub fn report(&self) -> impl Fn() -> Forwarding + Send + Sync + 'static {
        let inner = Arc::clone(&self.inner);
        move || {
            let Counts { forwarded, refused, again, trouble, .. } = inner.tally.counts();
            let mut report = Forwarding::default();
            report.to.clone_from(&inner.shown);
            (report.sent, report.failed) = (forwarded, refused + again);
            report.error = trouble.map(|error| error.chars().take(ERROR_CHARS).collect());
            report
        }
    }

    /// Returns the address without its secrets, for people.
    pub fn shown(&self) -> &str {
        &self.inner.shown
    }
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder").field("to", &self.inner.shown).finish_non_exhaustive()
    }
}

impl Inner {
    /// Forwards a job, and says meanwhile what holds it up.
    async fn send(&self, client: &Client, job: &JobRecord) -> std::result::Result<(), Refusal> {
        let mut sent = std::pin::pin!(self.send_once(client, job));
        loop {
            tokio::select! {
                biased;
                answer = &mut sent => return answer,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if let Some(why) = self.sink.held_up()
                && self.tally.trouble(&why)
            {
                tracing::warn!(target: "punctual", to = self.shown, error = why, "jobs wait for the receiver");
            }
        }
    }

    /// Forwards a job under its id for other systems.
    async fn send_once(&self, client: &Client, job: &JobRecord) -> std::result::Result<(), Refusal> {
        // The client keeps it, so the store is asked once.
        let store = client.identity().await.map_err(|error| Refusal::Ours(error.to_string()))?;
        self.sink.send(job, &store.message_id(job.id)).await
    }

    async fn hand_over<S>(&self, job: &JobRecord, ctx: &Ctx<S>) -> Outcome {
        let _departed = self.tally.depart();
        let (begin, mut others) = (Instant::now(), self.tally.so_far());
        let (mut pause, mut overtaken) = (PAUSE_MIN, 0);
        loop {
            // The job's own timeout would count as a failure.
            let at_most = (job.timeout * 2 / 3).saturating_sub(begin.elapsed());
            let refusal = match timeout(at_most, self.send(ctx.client(), job)).await {
                Ok(Ok(())) => {
                    self.tally.forwarded();
                    return Outcome::Done;
                }
                Ok(Err(refusal)) => refusal,
                Err(_) => Refusal::Away("no answer in time".to_owned()),
            };
            // Other jobs succeeded since the last try, so the target may be refusing this one. Successes before an
            // outage say nothing about it, however long the outage lasts.
            let so_far = self.tally.so_far();
            overtaken += u32::from(matches!(refusal, Refusal::Away(_)) && so_far != others);
            others = so_far;
            let rest = match &refusal {
                Refusal::Away(error) if overtaken < OVERTAKEN_MAX => {
                    if self.tally.again(error) {
                        tracing::warn!(target: "punctual", to = self.shown, error, "jobs wait for the receiver");
                    }
                    pause
                }
                // Successes of others say nothing about this job.
                Refusal::Ours(error) => {
                    if self.tally.again(error) {
                        tracing::warn!(target: "punctual", to = self.shown, error, "jobs wait");
                    }
                    pause
                }
                // All jobs wait, and none is at fault.
                Refusal::Busy { after: Some(after), all: true, error }
                    if job.group.is_none() && begin.elapsed() + *after < job.timeout / 2 =>
                {
                    self.tally.again(error);
                    *after
                }
                _ => return self.refused(job, refusal),
            };
            if job.timeout / 2 < begin.elapsed() + rest {
                return Outcome::Snooze(AWAY_SNOOZE * (1 << job.snoozes.min(SNOOZE_DOUBLINGS)));
            }
            let stop = ctx.cancel_token();
            tokio::select! {
                () = tokio::time::sleep(jittered(rest)) => {}
                () = stop.cancelled() => return stopped(ctx.stop_reason()),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn refused(&self, job: &JobRecord, refusal: Refusal) -> Outcome {
        let (error, after) = match refusal {
            Refusal::Never(error) => {
                self.tally.refused(&error);
                return Outcome::Dead(error);
            }
            // A job with a group pauses that group only. The pause holds after the last attempt, too.
            Refusal::Busy { after: Some(after), all, error } if all || job.group.is_some() => {
                self.tally.refused(&error);
                return Outcome::RetryAfter { after, error };
            }
            Refusal::Busy { after, error, .. } => (error, after),
            Refusal::Away(error) | Refusal::Ours(error) | Refusal::Refused(error) => (error, None),
        };
        self.tally.refused(&error);
        if job.max_attempts <= job.attempt {
            return Outcome::Dead(error);
        }
        Outcome::Retry { after, error }
    }
}

/// Returns the outcome of a job that waited in place and must stop.
fn stopped(why: Option<Stop>) -> Outcome {
    match why {
        Some(Stop::Cancelled) => Outcome::Cancel,
        // The next worker can start at once; after a lost lease the outcome does not matter.
        _ => Outcome::Snooze(SNOOZE_MIN),
    }
}

/// Adds up to half, so that jobs that wait together are not retried together. Never less, because the target may have
/// requested the pause.
fn jittered(pause: Duration) -> Duration {
    pause + (pause / 2).mul_f64(fastrand::f64())
}
