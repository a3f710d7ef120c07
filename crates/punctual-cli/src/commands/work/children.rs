//! The children of a worker that stay: each is started again when it ends, and runs jobs until then.
//!
//! ```text
//! job ──► a free slot of a child ──► run ──verdict─────────────────────────────────► slot is free
//!                                     │──timeout, cancel asked, or lease lost──► asked to end the run
//!                                     └──the worker's grace is over────────────► asked to end the run
//! asked ──verdict──► slot is free
//!    └──no verdict within --kill-after──► SIGTERM, SIGKILL ──all gone──► verdict, or given back
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use punctual::{Backoff, Ctx, JobRecord, Outcome, worker::Stop};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    child::{Child, Gone, Manner, Opened},
    frame::Why,
    memory::Memory,
};
use crate::output::size;

/// Pauses before a child is started again that ended without having run a job.
const RESTART_FIRST: Duration = Duration::from_millis(200);
const RESTART_MAX: Duration = Duration::from_secs(30);
/// The pause of a job that no child could run.
const UNSTARTED_PAUSE: Duration = Duration::from_secs(1);

/// Runs each job in one of several children.
#[derive(Clone)]
pub(super) struct Children(Arc<Shared>);

/// When a child that works is replaced by another one.
#[derive(Clone)]
pub(super) struct Wear {
    /// After so many jobs.
    pub(super) jobs_max: Option<u64>,
    /// After the job that left it with more bytes of memory than this, and how to look at them.
    pub(super) bytes_max: Option<(u64, Memory)>,
}

impl Wear {
    /// Returns whether a child takes no more jobs.
    fn is_reached(&self, child: &Child) -> bool {
        self.jobs_max.is_some_and(|most| most <= child.begun()) || self.is_large(child)
    }

    fn is_large(&self, child: &Child) -> bool {
        self.bytes_max.as_ref().is_some_and(|(most, _)| *most < child.bytes())
    }
}

struct Shared {
    manner: Manner,
    wear: Wear,
    /// Children that take jobs.
    ready: Mutex<Vec<Place>>,
    /// Notified once for each slot that is free again.
    freed: Notify,
    /// How many children there are to be.
    n: usize,
    /// Why a child did not start, or ended without a job, by its number; until it has started.
    failing: watch::Sender<BTreeMap<usize, String>>,
    /// Fired when no more jobs start.
    stopping: CancellationToken,
    /// Fired when all runs have to end and their jobs are given back.
    giving_back: CancellationToken,
    /// Fired when the children have to end.
    ending: CancellationToken,
    /// Jobs that children may still run.
    running: TaskTracker,
    /// A task for each child, which starts it again.
    keepers: TaskTracker,
}

/// A child that takes jobs, and its slots.
struct Place {
    child: Arc<Child>,
    /// How many of its slots are used.
    used: usize,
    /// Fired when it has had its jobs and the last of them has ended.
    used_up: CancellationToken,
}

impl Children {
    /// Starts `n` children. `stopping` is fired when the worker reserves no more.
    pub(super) fn start(manner: Manner, n: usize, wear: Wear, stopping: CancellationToken) -> Self {
        let children = Self(Arc::new(Shared {
            manner,
            wear,
            ready: Mutex::default(),
            freed: Notify::new(),
            n,
            failing: watch::Sender::default(),
            stopping,
            giving_back: CancellationToken::new(),
            ending: CancellationToken::new(),
            running: TaskTracker::new(),
            keepers: TaskTracker::new(),
        }));
        for number in 1..=n {
            children.0.keepers.spawn(Arc::clone(&children.0).keep(number));
        }
        children
    }

    /// Ends all runs, and waits until nothing is left of those that did not end by themselves. Their jobs wait to be given back by the
    /// worker's end.
    pub(super) async fn give_back(&self) {
        self.0.giving_back.cancel();
        self.0.running.close();
        self.0.running.wait().await;
    }

    /// Ends all children, which have no runs any more.
    pub(super) async fn stop(&self) {
        self.0.ending.cancel();
        self.0.keepers.close();
        self.0.keepers.wait().await;
    }

    /// Runs one job.
    pub(super) async fn run(self, job: JobRecord, ctx: Ctx<()>) -> Outcome {
        match self.0.running.track_future(self.0.outcome(&job, &ctx)).await {
            Some(outcome) => outcome,
            // The worker drops this when it gives the job back.
            None => std::future::pending().await,
        }
    }
}

impl Shared {
    /// What becomes of a job; `None`: it is given back.
    async fn outcome(self: &Arc<Self>, job: &JobRecord, ctx: &Ctx<()>) -> Option<Outcome> {
        loop {
            let slot = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return Some(Outcome::Snooze(Duration::ZERO)),
                why = self.cut(job.timeout, ctx) => return unstarted(why, ctx),
                slot = self.slot() => slot,
                // Another worker may have what is missing here.
                why = self.none_starts() => return Some(Outcome::NotStarted(why)),
            };
            if let Some(opened) = slot.child.open(job, ctx)
                && let Some(ended) = self.ended(job, ctx, slot, opened).await
            {
                return ended;
            }
            // Its child ended before it got the job.
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the end of a run. `None`: its child ended before it got the job.
    async fn ended(
        &self,
        job: &JobRecord,
        ctx: &Ctx<()>,
        slot: Slot,
        mut opened: Opened,
    ) -> Option<Option<Outcome>> {
        let cut = self.cut(job.timeout, ctx);
        let (why, ended) = tokio::select! {
            biased;
            ended = &mut opened.end => (None, ended),
            why = cut => {
                if opened.withdraw() {
                    slot.child.close(opened.run);
                    return Some(unstarted(why, ctx));
                }
                slot.child.ask(Some((opened.run, why)));
                if let Ok(ended) = timeout(self.manner.kill_after, &mut opened.end).await {
                    (Some(why), ended)
                } else {
                    slot.child.kill();
                    (Some(why), (&mut opened.end).await)
                }
            }
        };
        self.free_after_look(slot);
        // A child that is gone answers for all of its runs.
        let ended = ended.unwrap_or_else(|_| Err("the child ended".to_owned()));
        if why.is_none() && ended.is_err() && opened.withdraw() {
            return None;
        }
        Some(match (why, ended) {
            (None, Ok(outcome)) | (_, Ok(outcome @ (Outcome::Done | Outcome::DoneWith(_)))) => Some(outcome),
            (None, Err(why)) => Some(Outcome::retry(why)),
            // Asked to end, it was not done. What else it says does not count.
            (Some(Why::Stop), _) => None,
            (Some(Why::Timeout), _) => Some(Outcome::retry(format_args!("timeout after {:?}", job.timeout))),
            (Some(Why::Cancelled), _) if ctx.stop_reason() == Some(Stop::Cancelled) => Some(Outcome::Cancel),
            (Some(Why::Cancelled), _) => Some(Outcome::retry("the lease was lost")),
        })
    }

    /// Waits until a run has to end.
    async fn cut(&self, after: Duration, ctx: &Ctx<()>) -> Why {
        tokio::select! {
            biased;
            () = self.giving_back.cancelled() => Why::Stop,
            () = sleep(after) => Why::Timeout,
            // The worker's own timer may be the first.
            () = super::process::stopped(ctx) => {
                if ctx.stop_reason() == Some(Stop::TimedOut) { Why::Timeout } else { Why::Cancelled }
            }
        }
    }

    /// Waits for a free slot.
    async fn slot(self: &Arc<Self>) -> Slot {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on it is notified, so no slot is missed that is freed after the look.
            freed.as_mut().enable();
            if let Some(slot) = self.free() {
                return slot;
            }
            freed.await;
        }
    }

    /// Waits until no child is there, and none starts; returns why one does not.
    async fn none_starts(&self) -> String {
        let mut failing = self.failing.subscribe();
        loop {
            let why = {
                let failing = failing.borrow_and_update();
                failing.values().next().filter(|_| failing.len() == self.n).cloned()
            };
            if let Some(why) = why {
                return format!("no child starts: {why}");
            }
            if failing.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns a free slot of the child that runs the fewest jobs.
    fn free(self: &Arc<Self>) -> Option<Slot> {
        let mut ready = self.ready();
        let is_free = |place: &&mut Place| {
            place.used < place.child.slots && place.child.takes_jobs() && !self.wear.is_reached(&place.child)
        };
        let place = ready.iter_mut().filter(is_free).min_by_key(|place| place.used)?;
        place.used += 1;
        Some(Slot { shared: Arc::clone(self), child: Arc::clone(&place.child) })
    }

    /// Frees a slot after a look at the memory of its child, so that no job begins in a child that is too large. The verdict of the run
    /// before does not wait for the look.
    fn free_after_look(&self, slot: Slot) {
        if let Some((_, memory)) = &self.wear.bytes_max {
            let memory = memory.clone();
            tokio::spawn(async move {
                slot.child.look(&memory).await;
                drop(slot);
            });
        }
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, Vec<Place>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one child: starts it, and again when it is gone.
    async fn keep(self: Arc<Self>, number: usize) {
        let pauses = Backoff::exponential(RESTART_FIRST).max(RESTART_MAX);
        let (mut failures, mut is_named) = (0, false);
        loop {
            let started = tokio::select! {
                biased;
                () = self.ending.cancelled() => return,
                started = self.manner.start() => started,
            };
            let why = match started {
                Err(why) => self.fails(number, why),
                Ok((child, task)) => match self.serve(number, &child, task).await {
                    _ if self.ending.is_cancelled() => return,
                    Ok(()) => {
                        failures = 0;
                        if self.wear.is_large(&child) {
                            log_large(number, &child, &mut is_named);
                        }
                        continue;
                    }
                    Err(gone) if 0 < gone.runs => {
                        failures = 0;
                        gone.why
                    }
                    Err(gone) => self.fails(number, gone.why),
                },
            };
            failures += 1;
            let pause = pauses.delay(failures, fastrand::f64());
            tracing::warn!(child = number, "the next one is started in {pause:?}: {why}");
            tokio::select! {
                () = self.ending.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Notes why a child is not there, for the jobs that wait for one.
    fn fails(&self, number: usize, why: String) -> String {
        self.failing.send_modify(|failing| drop(failing.insert(number, why.clone())));
        why
    }

    /// Lets a child run jobs until it is gone. An error is that it ended too soon: by itself, or since no job fits into its memory.
    async fn serve(&self, number: usize, child: &Arc<Child>, task: JoinHandle<Gone>) -> Result<(), Gone> {
        let used_up = CancellationToken::new();
        let too_large = match &self.wear.bytes_max {
            // It would be replaced after each job, or never run one.
            Some((most, memory)) => {
                Some(child.look(memory).await).filter(|bytes| most < bytes).map(|bytes| (bytes, *most))
            }
            None => None,
        };
        if let Some((bytes, most)) = too_large {
            used_up.cancel();
            self.gone(child, &used_up, task).await;
            let why = format!(
                "the child has {} of memory before its first job, and --memory-per-child is {}: raise the limit",
                size(bytes),
                size(most)
            );
            return Err(Gone { why, runs: 0 });
        }
        let place = Place { child: Arc::clone(child), used: 0, used_up: used_up.clone() };
        self.ready().push(place);
        self.failing.send_modify(|failing| drop(failing.remove(&number)));
        for _ in 0..child.slots {
            self.freed.notify_one();
        }
        let gone = self.gone(child, &used_up, task).await;
        self.ready().retain(|place| !Arc::ptr_eq(&place.child, child));
        gone.map_or(Ok(()), Err)
    }

    /// Waits until a child is gone. `None`: it was asked to end.
    async fn gone(
        &self,
        child: &Child,
        used_up: &CancellationToken,
        mut task: JoinHandle<Gone>,
    ) -> Option<Gone> {
        tokio::select! {
            biased;
            gone = &mut task => {
                return Some(gone.unwrap_or_else(|e| Gone { why: format!("its task failed: {e}"), runs: 0 }));
            }
            () = used_up.cancelled() => {}
            () = self.ending.cancelled() => {}
        }
        child.ask(None);
        if timeout(self.manner.kill_after, &mut task).await.is_err() {
            child.kill();
            let _ = task.await;
        }
        None
    }
}

/// A slot of a child that is used by a job. Dropped, it is free again.
struct Slot {
    shared: Arc<Shared>,
    child: Arc<Child>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut ready = self.shared.ready();
        let Some(place) = ready.iter_mut().find(|place| Arc::ptr_eq(&place.child, &self.child)) else {
            return;
        };
        place.used -= 1;
        if self.shared.wear.is_reached(&self.child) {
            if place.used == 0 {
                place.used_up.cancel();
            }
        } else if self.child.takes_jobs() {
            self.shared.freed.notify_one();
        }
    }
}

/// Logs that a child was replaced because of its memory. The first time that one job was enough, it is a warning: each job may cost the
/// start of a child.
fn log_large(number: usize, child: &Child, is_named: &mut bool) {
    let (jobs, bytes) = (child.begun(), size(child.bytes()));
    if jobs == 1 && !std::mem::replace(is_named, true) {
        tracing::warn!(
            child = number,
            "replaced after its first job, which left it with {bytes} of memory: --memory-per-child may be too small"
        );
    } else {
        tracing::debug!(child = number, "replaced after {jobs} jobs, with {bytes} of memory");
    }
}

/// What becomes of a job that no child has got.
fn unstarted(why: Why, ctx: &Ctx<()>) -> Option<Outcome> {
    match why {
        Why::Stop => None,
        Why::Cancelled if ctx.stop_reason() == Some(Stop::Cancelled) => Some(Outcome::Cancel),
        // It counts no attempt.
        Why::Timeout | Why::Cancelled => Some(Outcome::Snooze(UNSTARTED_PAUSE)),
    }
}
