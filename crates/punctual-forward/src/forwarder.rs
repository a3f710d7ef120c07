//! A forwarder: the handler that hands jobs over.
//!
//! ```text
//! reserve ─► handler: Sink::send ──confirmed──────────────► Done: acked only now
//!                │          ├──refused──► Retry by the job's backoff; on its last attempt Dead, with the other side's words
//!                │          ├──busy─────► a short pause in place; for a long one RetryAfter: the queue (or the job's group) waits
//!                │          └──away─────► pause ≤ 1.5 s, again in place; counts nothing, unless others went through meanwhile, five times
//!                └──away for half of the job's timeout──► Snooze: back to the store, counts nothing
//! ```
//!
//! While the other side is away each slot keeps its job: no attempts are spent, nothing is reserved that could not be handed
//! over, and when it is back each comes within a pause.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use punctual::{Client, Ctx, JobRecord, Outcome, Result, Stop, limits::SNOOZE_MIN};
use tokio::time::timeout;

use crate::{
    counts::{Counts, Tally},
    sink::{BoxFuture, Refusal, Sink},
    target::Target,
};

/// The first pause before a job is tried again in place; each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest of these pauses: as much later than it could be a job goes out behind an outage.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a job waits in the store once it waited in place for long enough: twice as long each time in a row, so often.
const AWAY_SNOOZE: Duration = Duration::from_secs(5);
const SNOOZE_DOUBLINGS: u32 = 4;
/// How many tries of a job others may overtake before it is taken for refused.
const OVERTAKEN_MAX: u32 = 5;

/// Hands the jobs of a worker over to another system, and lets them be acked once that system confirmed.
///
/// A forwarder is a handler like any other: retries, dead letters, leases and limits are those of the worker and the store.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use punctual::{Client, Worker};
/// use punctual_forward::Forwarder;
///
/// let client = Client::connect("sqlite:app.db").await?;
/// let forwarder = Forwarder::to("amqp://guest:guest@localhost/%2f?exchange=jobs&routing_key={kind}")?;
/// forwarder.check().await?;
/// Worker::new(&client).queue("mail").slots(256).handle_raw(forwarder.handler()).run().await?;
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
    /// A forwarder to an address, as [`Target::parse`] reads it. Connects with the first job, or at [`check`](Self::check).
    ///
    /// # Errors
    /// As [`Target::parse`] and [`Target::forwarder`].
    pub fn to(address: &str) -> Result<Self> {
        Target::parse(address)?.forwarder()
    }

    pub(crate) fn new(sink: Box<dyn Sink>, shown: String) -> Self {
        Self { inner: Arc::new(Inner { sink, shown, tally: Tally::default() }) }
    }

    /// Connects, and looks whether the other side knows the exchange, queue, stream or host that jobs go to, as far as it is
    /// the same for all of them.
    ///
    /// # Errors
    /// `Unavailable`: it can't be reached now, which jobs would wait for. `Invalid`: a login that is refused, an exchange
    /// that isn't there and the like, which somebody has to mend.
    pub async fn check(&self) -> Result<()> {
        self.inner.sink.check().await
    }

    /// Hands one job of a client's store over, without a worker and without trying again.
    ///
    /// Dropped once it was polled, it may have handed the job over.
    ///
    /// # Errors
    /// In the other side's words, why it did not take it.
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

    /// The handler, for [`Worker::handle_raw`](punctual::Worker::handle_raw). As many jobs are on their way at once as the
    /// worker has slots.
    pub fn handler<S: Send + Sync + 'static>(
        &self,
    ) -> impl Fn(JobRecord, Ctx<S>) -> BoxFuture<'static, Outcome> + Send + Sync + 'static {
        let inner = Arc::clone(&self.inner);
        move |job, ctx| {
            let inner = Arc::clone(&inner);
            Box::pin(async move { inner.hand_over(&job, &ctx).await })
        }
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        self.inner.tally.counts()
    }

    /// Where jobs go to, for people: the address without what is secret in it.
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
    /// Hands a job over under the id that it has outside of its store.
    async fn send(&self, client: &Client, job: &JobRecord) -> std::result::Result<(), Refusal> {
        // Kept by the store's handle: it is asked once.
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
            // Others went through since the try before: it may be this job that the other side can't stand. Those that went
            // through before an outage say nothing of it, however long that lasts.
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
                // Others that go through meanwhile say nothing of this job.
                Refusal::Ours(error) => {
                    if self.tally.again(error) {
                        tracing::warn!(target: "punctual", to = self.shown, error, "jobs wait");
                    }
                    pause
                }
                // All of them are to wait: nobody is to blame.
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
            // Who has a group is waited for by that group alone; the pause holds behind a last attempt, too.
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

/// The end of a job that waited in place, and may wait no longer.
fn stopped(why: Option<Stop>) -> Outcome {
    match why {
        Some(Stop::Cancelled) => Outcome::Cancel,
        // Whoever takes over begins at once; where the lease is lost nobody listens.
        _ => Outcome::Snooze(SNOOZE_MIN),
    }
}

/// Up to half of it more, so that those who wait together don't come together; never less, since it may have been asked for.
fn jittered(pause: Duration) -> Duration {
    pause + (pause / 2).mul_f64(fastrand::f64())
}
