//! The runs of a worker, from their reservation until the store has taken their settlement.
//!
//! The loop starts and settles them; the heartbeat keeps their leases. Both live on one thread.
//!
//! ```text
//! executing ──ended──► unsettled ──answered──► forgotten
//! ```
//!
//! The heartbeat runs beside the loop, so a slow settle or reserve costs no lease. It learns of cancels and lost leases,
//! and never settles anything. Notes are sent beside both, so slow ones cost no lease either.
//!
//! Leases of unsettled runs are extended, too, so that a temporary outage of the store loses no finished work.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    convert::Infallible,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{registration::Quiet, suspects::Suspects};
use crate::{
    core::{
        error::{Result, chain},
        lifecycle::is_last_chance,
        limits::{BATCH_BYTES_MAX, BATCH_MAX, LEASE_DEFAULT, LEASE_MIN, NOTES_BYTES_MAX},
    },
    runtime::{
        SteadyMap,
        handler::{Call, Stop},
        repeat::Pauses,
    },
    store::{Heartbeat, Lease, LeaseStatus, Store},
};

/// How often notes of runs are sent.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The most runs whose notes are sent with one call.
const NOTES_MAX: usize = BATCH_BYTES_MAX / NOTES_BYTES_MAX;
/// The most heartbeats without an answer. At that many, the next one waits for an answer. It takes 32 s to come to that
/// many, and each call over a network was answered or has failed before that.
const UNANSWERED_MAX: usize = 96;
/// The pause between two heartbeats while one has no answer: those of the shortest lease. It bounds what cancels add.
const UNANSWERED_PAUSE: Duration = LEASE_MIN.checked_div(3).unwrap();
/// How long the settlement of a run waits until its last notes are sent.
const FLUSH_MAX: Duration = Duration::from_millis(300);
/// The longest wait for a notification of a cancel, because one can be lost.
const CANCEL_WAIT_MAX: Duration = Duration::from_mins(10);
/// The pause between two checks for cancels. It bounds the cost of repeated notifications, and is used if the store
/// cannot wait.
const CANCEL_PAUSE: Duration = Duration::from_millis(100);
const CANCEL_PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// A run that goes on this long after its timeout is taken to block its thread.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// One run.
pub(crate) struct Active {
    pub(crate) call: Call,
    /// How long one extension lasts.
    pub(crate) lasts: Duration,
    /// Its timeout and the grace period for it. A run that still executes then blocks its thread, and its lease is
    /// not extended.
    pub(crate) deadline: Instant,
    /// Stops its task; `None` if it has none or the task has ended.
    pub(crate) task: Option<AbortHandle>,
    /// Whether the store said that its lease is lost. What it does from then on changes nothing.
    is_lost: bool,
}

impl Active {
    /// Makes a run whose lease is current.
    pub(crate) const fn new(
        call: Call,
        lasts: Duration,
        deadline: Instant,
        task: Option<AbortHandle>,
    ) -> Self {
        Self { call, lasts, deadline, task, is_lost: false }
    }

    /// Returns whether its lease is kept. The lease of a run that cannot be stopped after its deadline is left to
    /// expire.
    fn is_held(&self, now: Instant) -> bool {
        !self.is_lost && (self.task.is_none() || now < self.deadline)
    }

    fn is_last_chance(&self) -> bool {
        is_last_chance(self.call.record().expired_leases)
    }
}

/// All runs of a loop.
#[derive(Default)]
pub(crate) struct Runs {
    active: RefCell<SteadyMap<Lease, Active>>,
    executing: Cell<usize>,
    /// How many of these are of each queue with slots of its own.
    executing_in: RefCell<HashMap<String, usize>>,
    /// The suspects of this loop and the other loops of the process.
    pub(crate) suspects: Rc<Suspects>,
    /// Whether these loops reserve no jobs, by an order.
    pub(crate) quiet: Rc<Quiet>,
    /// Whether the store has become another one, for these loops.
    pub(crate) has_moved: Rc<Cell<bool>>,
    /// When leases are extended next; `None` if there are none.
    beat_at: Cell<Option<Instant>>,
    /// Notified when the next heartbeat is brought forward.
    moved: Notify,
    /// Notified by runs that have something to report.
    pub(crate) news: Arc<Notify>,
    /// The runs whose notes are on their way. Newer ones wait, so that they are not overtaken.
    telling: RefCell<HashSet<Lease>>,
    /// Notified when notes have arrived, or their call has failed.
    told: Notify,
    /// How long a run can go on after its cancel was requested.
    cancel_grace: Duration,
}

impl Runs {
    /// Makes an empty set of runs. The runs of the given queues are counted separately.
    pub(crate) fn counting<'a>(queues: impl Iterator<Item = &'a str>, cancel_grace: Duration) -> Self {
        Self {
            cancel_grace,
            executing_in: RefCell::new(queues.map(|queue| (queue.to_owned(), 0)).collect()),
            ..Self::default()
        }
    }

    /// Makes a set for a second loop on the same thread.
    pub(crate) fn beside(&self) -> Self {
        let (suspects, quiet) = (Rc::clone(&self.suspects), Rc::clone(&self.quiet));
        let has_moved = Rc::clone(&self.has_moved);
        Self { suspects, quiet, has_moved, cancel_grace: self.cancel_grace, ..Self::default() }
    }

    /// Adds a run.
    pub(crate) fn add(&self, lease: Lease, run: Active, now: Instant) {
        let beat = now + run.lasts / 3;
        if self.beat_at.get().is_none_or(|at| beat < at) {
            self.beat_at.set(Some(beat));
            self.moved.notify_one();
        }
        if run.task.is_some() {
            self.count(&run, |n| n + 1);
            if run.is_last_chance() {
                self.suspects.begin(lease, run.call.record().expired_leases);
            }
        }
        self.active.borrow_mut().insert(lease, run);
    }

    /// Returns whether this run was added and is not settled yet.
    pub(crate) fn knows(&self, lease: Lease) -> bool {
        self.active.borrow().contains_key(&lease)
    }

    /// Notes that a run ended; returns `false` if it is not known any more.
    pub(crate) fn ended(&self, lease: Lease) -> bool {
        let mut active = self.active.borrow_mut();
        let Some(run) = active.get_mut(&lease) else { return false };
        let executed = run.task.take().is_some();
        if executed {
            self.count(run, |n| n - 1);
            self.suspects.end(lease);
        }
        executed
    }

    /// Counts a run that starts or stops executing.
    fn count(&self, run: &Active, change: impl Fn(usize) -> usize) {
        self.executing.update(&change);
        if let Some(n) = self.executing_in.borrow_mut().get_mut(run.call.queue()) {
            *n = change(*n);
        }
    }

    /// Returns the run of a lease.
    pub(crate) fn call(&self, lease: Lease) -> Option<Call> {
        self.active.borrow().get(&lease).map(|run| run.call.clone())
    }

    /// Forgets a run that was settled.
    pub(crate) fn remove(&self, lease: Lease) -> Option<Active> {
        self.active.borrow_mut().remove(&lease)
    }

    /// Returns how many runs occupy a slot.
    pub(crate) fn executing(&self) -> usize {
        self.executing.get()
    }

    /// Returns how many runs of a queue with slots of its own occupy one.
    pub(crate) fn executing_in(&self, queue: &str) -> usize {
        self.executing_in.borrow().get(queue).copied().unwrap_or(0)
    }

    /// Says that the jobs of before are in another store.
    pub(crate) fn moved(&self) -> Option<String> {
        let words = "the store is another one than before, and the jobs of before are not in it; start this process again to accept it";
        self.has_moved.get().then(|| words.to_owned())
    }

    /// Describes what holds up other jobs: a run that goes on after its timeout.
    pub(crate) fn held_up(&self, now: Instant) -> Option<String> {
        let active = self.active.borrow();
        let late = active.iter().filter(|(_, run)| run.task.is_some() && run.deadline + HUNG_AFTER < now);
        let (lease, run) = late.min_by_key(|(_, run)| run.deadline)?;
        let (kind, for_s) = (run.call.kind(), now.duration_since(run.deadline).as_secs());
        Some(format!(
            "kind {kind}: job {} runs {for_s} s past its timeout, its handler blocks a thread",
            lease.job
        ))
    }

    /// Returns the leases of the runs that occupy a slot.
    pub(crate) fn leases_executing(&self) -> Vec<Lease> {
        let active = self.active.borrow();
        active.iter().filter(|(_, run)| run.task.is_some()).map(|(lease, _)| *lease).collect()
    }

    /// Asks all to stop.
    pub(crate) fn stop_all(&self, why: Stop) {
        self.active.borrow().values().for_each(|run| run.call.stop(why));
    }

    /// Stops all tasks at their next await.
    pub(crate) fn abort_all(&self) {
        self.active.borrow().values().filter_map(|run| run.task.as_ref()).for_each(AbortHandle::abort);
    }

    /// Waits for the time of the next heartbeat.
    pub(crate) async fn beat(&self) {
        loop {
            match self.beat_at.get() {
                None => self.moved.notified().await,
                Some(at) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(at) => return,
                    () = self.moved.notified() => {}
                },
            }
        }
    }

    /// Sets the next heartbeat after a third of the shortest lease; returns which leases to extend in this one.
    ///
    /// These are all leases, except lost ones and those of runs that cannot be stopped after their deadline.
    pub(crate) fn to_extend(&self, now: Instant) -> Vec<Heartbeat> {
        let active = self.active.borrow();
        self.beat_at.set(active.values().map(|run| run.lasts).min().map(|shortest| now + shortest / 3));
        active.iter().filter(|(_, run)| run.is_held(now)).map(|(lease, _)| (*lease).into()).collect()
    }

    /// Returns how long the shortest lease lasts; a default lease if there is none.
    fn shortest(&self) -> Duration {
        self.active.borrow().values().map(|run| run.lasts).min().unwrap_or(LEASE_DEFAULT)
    }

    /// Returns whether the store does not have all notes of a run, as far as is known. It takes none of a lost lease.
    pub(crate) fn has_news(&self, lease: Lease) -> bool {
        let active = self.active.borrow();
        let has_news = |run: &Active| run.call.has_news() || self.telling.borrow().contains(&lease);
        active.get(&lease).is_some_and(|run| !run.is_lost && has_news(run))
    }

    /// Returns whether notes of a run are on their way.
    fn is_telling(&self, lease: Lease) -> bool {
        self.telling.borrow().contains(&lease)
            && !self.active.borrow().get(&lease).is_some_and(|run| run.is_lost)
    }

    /// Returns the leases of runs that have something to report.
    fn with_news(&self) -> Vec<Lease> {
        let active = self.active.borrow();
        active.iter().filter(|(_, run)| run.call.has_news()).map(|(lease, _)| *lease).collect()
    }

    /// Takes what these runs have to report, if their leases are kept and no notes of theirs are on their way; `None` if
    /// that is nothing.
    fn take_news(&self, of: &[Lease], now: Instant) -> Option<Told<'_>> {
        let (active, mut telling) = (self.active.borrow(), self.telling.borrow_mut());
        let mut beats = Vec::new();
        for lease in of {
            if let Some(run) = active.get(lease)
                && run.is_held(now)
                && !telling.contains(lease)
                && let Some(notes) = run.call.take_news()
            {
                telling.insert(*lease);
                beats.push(Heartbeat { notes: Some(notes), ..(*lease).into() });
            }
        }
        (!beats.is_empty()).then(|| Told { runs: self, beats, statuses: Vec::new() })
    }

    /// Brings the next heartbeat forward.
    pub(crate) fn beat_again_at(&self, at: Instant) {
        if self.beat_at.get().is_some_and(|beat| at < beat) {
            self.beat_at.set(Some(at));
            self.moved.notify_one();
        }
    }

    /// Passes on to a run what the store said about its lease.
    pub(crate) fn heard(&self, lease: Lease, status: LeaseStatus) {
        let stop = match status {
            LeaseStatus::Held | LeaseStatus::Away => return,
            LeaseStatus::Lost => Stop::LeaseLost,
            LeaseStatus::CancelRequested => Stop::Cancelled,
        };
        let mut active = self.active.borrow_mut();
        let mut run = active.get_mut(&lease);
        if let Some(run) = &mut run {
            run.is_lost |= stop == Stop::LeaseLost;
        }
        if let Some(run) = run
            && run.call.stop_reason().is_none()
            // It ended its own lease.
            && !(stop == Stop::LeaseLost && run.call.settled().is_some())
        {
            // A run that blocks its thread cannot be stopped before its lease ends.
            run.deadline = run.deadline.min(Instant::now() + self.cancel_grace);
            if run.task.is_some() {
                tracing::info!(target: "punctual", id = %lease.job, fence = lease.fence, ?stop, "run asked to stop");
            }
            run.call.stop(stop);
        }
        if stop == Stop::LeaseLost {
            self.suspects.end(lease);
        }
    }
}

// ── heartbeat ──

/// Extends all leases every third of the shortest one. Never returns. A failed call is repeated within a sixth of it: stores
/// count on that when they reclaim leases (S9).
///
/// A heartbeat does not wait for the answer of the one before, so a call that hangs costs no lease of the runs that began
/// meanwhile. Late answers count, too: a lost lease stays lost.
pub(super) async fn heartbeat(store: &dyn Store, runs: &Runs) -> Infallible {
    let (mut pauses, mut unanswered) = (Pauses::default(), FuturesUnordered::new());
    // The newest one, the newest one that succeeded, and the newest one that had begun when one failed.
    let (mut number, mut succeeded, mut failed) = (0_u64, 0_u64, 0_u64);
    let mut pause = Duration::ZERO;
    let mut begun = Instant::now();
    // After a panic, the heartbeats without an answer are gone.
    runs.beat_again_at(begun);
    loop {
        let is_open = !unanswered.is_empty();
        let beat = async {
            runs.beat().await;
            if is_open {
                sleep_until(begun + UNANSWERED_PAUSE).await;
            }
        };
        let (of, missed, error) = tokio::select! {
            biased;
            Some(missed) = unanswered.next() => missed,
            () = beat, if unanswered.len() < UNANSWERED_MAX => {
                (begun, number) = (Instant::now(), number + 1);
                let of = number;
                let beats = runs.to_extend(begun);
                unanswered.push(async move {
                    let (missed, error) = extend_all(store, runs, &beats).await;
                    (of, missed, error)
                });
                continue;
            }
        };
        if of <= succeeded {
            // A newer one told what matters now.
            continue;
        }
        if missed == 0 {
            succeeded = of;
            pauses.reset();
            continue;
        }
        if failed < of {
            // Those that fail together with it are one failure.
            failed = number;
            pause = pauses.next().min(runs.shortest() / 6);
            tracing::warn!(target: "punctual", %error, ?pause, leases = missed, "could not extend leases");
        }
        runs.beat_again_at(Instant::now() + pause);
    }
}

/// Sends one heartbeat; returns how many leases it could not ask for, and why.
async fn extend_all(store: &dyn Store, runs: &Runs, beats: &[Heartbeat]) -> (usize, String) {
    let slices = beats.chunks(BATCH_MAX);
    let answers = join_all(slices.clone().map(|beats| extend(store, runs, beats))).await;
    let (mut missed, mut why) = (0, String::new());
    for (beats, answer) in slices.zip(answers) {
        let away =
            |statuses: Vec<LeaseStatus>| statuses.iter().filter(|it| **it == LeaseStatus::Away).count();
        match answer.map(away) {
            Ok(0) => {}
            Ok(away) => (missed, why) = (missed + away, "a part of the store cannot be reached".to_owned()),
            Err(error) => (missed, why) = (missed + beats.len(), chain(&error)),
        }
    }
    (missed, why)
}

/// Sends the notes of runs that have some, once a second at most. Never returns.
pub(super) async fn notes(store: &dyn Store, runs: &Runs) -> Infallible {
    loop {
        runs.news.notified().await;
        for of in runs.with_news().chunks(NOTES_MAX) {
            tell(store, runs, of).await;
        }
        sleep(REPORT_EVERY).await;
    }
}

/// Sends the notes of runs that have ended, within a bound in time. Only notes depend on it.
///
/// What such a run tells later is not waited for: a thread that goes on telling would hold up all settlements.
pub(super) async fn flush_notes(store: &dyn Store, runs: &Runs, of: &[Lease]) {
    let flushing = async {
        let mut left = of.to_vec();
        while !left.is_empty() {
            // These may have told more since then, which is sent in the next round.
            let on_their_way: Vec<Lease> =
                left.iter().copied().filter(|lease| runs.is_telling(*lease)).collect();
            join_all(left.chunks(NOTES_MAX).map(|of| tell(store, runs, of))).await;
            left = on_their_way;
            while !left.is_empty() && left.iter().all(|lease| runs.is_telling(*lease)) {
                runs.told.notified().await;
            }
        }
    };
    if timeout(FLUSH_MAX, flushing).await.is_err() {
        tracing::debug!(target: "punctual", "could not write the last notes of runs in time");
    }
}

/// Sends one call with notes of these runs, if there are some.
async fn tell(store: &dyn Store, runs: &Runs, of: &[Lease]) {
    let Some(mut told) = runs.take_news(of, Instant::now()) else { return };
    match extend(store, runs, &told.beats).await {
        Ok(statuses) => told.statuses = statuses,
        Err(error) => tracing::debug!(target: "punctual", %error, "could not write the notes of runs"),
    }
}

/// Notes on their way. When this is dropped, those without an answer are unsent again.
struct Told<'a> {
    runs: &'a Runs,
    beats: Vec<Heartbeat>,
    statuses: Vec<LeaseStatus>,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let (active, mut telling) = (self.runs.active.borrow(), self.runs.telling.borrow_mut());
        for (at, beat) in self.beats.iter().enumerate() {
            telling.remove(&beat.lease);
            let is_away = self.statuses.get(at).is_none_or(|status| *status == LeaseStatus::Away);
            if let Some(run) = active.get(&beat.lease).filter(|_| is_away) {
                run.call.keep_news();
                // Those of a run that has ended are sent with its settlement.
                if run.task.is_some() {
                    self.runs.news.notify_one();
                }
            }
        }
        self.runs.told.notify_waiters();
    }
}

/// Sends one call, and passes on its answers to the runs.
async fn extend(store: &dyn Store, runs: &Runs, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
    let statuses = store.extend(beats).await?;
    for (beat, status) in beats.iter().zip(&statuses) {
        runs.heard(beat.lease, *status);
    }
    Ok(statuses)
}

/// Brings the heartbeat forward whenever a cancel is requested for a job of this worker. Never returns.
pub(super) async fn cancels(store: &dyn Store, name: String, runs: &[&Runs]) -> Infallible {
    let name = [name];
    loop {
        // The pause is usually over before a notification arrives, so a second one is not missed.
        let (woken, ()) = tokio::join!(store.wait(&name, CANCEL_WAIT_MAX), sleep(CANCEL_PAUSE));
        match woken {
            Ok(()) => runs.iter().for_each(|runs| runs.beat_again_at(Instant::now())),
            Err(error) => {
                tracing::debug!(target: "punctual", %error, "could not wait for cancels: heartbeats hear of them");
                sleep(CANCEL_PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        core::{
            job::{NewJob, Payload},
            time::Timestamp,
        },
        runtime::{
            client::Client,
            testing::{Fault, FaultyStore, ManualClock},
        },
        store::{CallId, QueueRequest, Reserve, Settlement, Verdict, clock::Clock, memory::MemoryStore},
    };

    /// A store in which no heartbeat is answered, one run in it, and the number of heartbeats.
    async fn unanswered() -> (Client, Runs, Arc<AtomicUsize>) {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_000_000));
        let beats = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&beats);
        let memory = Arc::new(MemoryStore::new(Clock::Manual(clock)));
        let client = Client::new(Arc::new(FaultyStore::new(memory, move |verb| match verb {
            "extend" => {
                counted.fetch_add(1, Ordering::Relaxed);
                Fault::Delay(Duration::from_hours(1))
            }
            _ => Fault::Pass,
        })));
        let mut job = NewJob::new(client.make_id(), "job", "work", Payload::json("1"));
        job.options.lease = Some(LEASE_MIN);
        client.store().enqueue(CallId { instance: 1, number: 1 }, &[job]).await.unwrap();
        let reserve = Reserve {
            call: CallId { instance: 1, number: 2 },
            worker: "w".into(),
            queues: vec![QueueRequest { queue: "work".into(), share: 1, at_most: 1 }],
            n: 1,
            lease: None,
            company: false,
        };
        let reserved = client.store().reserve(&reserve).await.unwrap().jobs.pop().unwrap();
        let (runs, lease, lasts) = (Runs::default(), reserved.lease, reserved.lasts);
        let call = Call::new(reserved.job, lease.fence, client.clone(), Arc::clone(&runs.news), lasts);
        runs.add(lease, Active::new(call, lasts, Instant::now(), None), Instant::now());
        (client, runs, beats)
    }

    /// The heartbeats of a minute.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_without_an_answer_are_bounded() {
        let (client, runs, beats) = unanswered().await;
        let minute = Duration::from_mins(1);
        assert!(timeout(minute, heartbeat(&**client.store(), &runs)).await.is_err());
        assert_eq!(beats.load(Ordering::Relaxed), UNANSWERED_MAX);
    }

    /// Three in the second that a heartbeat comes each third of, although a cancel each tenth asks for one.
    #[tokio::test(start_paused = true)]
    async fn cancels_add_no_heartbeats_while_one_has_no_answer() {
        let (client, runs, beats) = unanswered().await;
        let cancels = async {
            loop {
                sleep(CANCEL_PAUSE).await;
                runs.beat_again_at(Instant::now());
            }
        };
        let ten = Duration::from_secs(10);
        let both = async { tokio::join!(heartbeat(&**client.store(), &runs), cancels) };
        assert!(timeout(ten, both).await.is_err());
        assert!((29..=31).contains(&beats.load(Ordering::Relaxed)), "{beats:?}");
    }

    /// A lost lease that was told late stays lost.
    #[tokio::test(start_paused = true)]
    async fn late_answers_count() {
        let (client, runs, beats) = unanswered().await;
        let lease = *runs.active.borrow().iter().next().unwrap().0;
        client.store().settle(&[Settlement { lease, verdict: Verdict::Release }], None).await.unwrap();
        let late = Duration::from_hours(1) + LEASE_MIN;
        assert!(timeout(late, heartbeat(&**client.store(), &runs)).await.is_err());
        assert_eq!(runs.call(lease).unwrap().stop_reason(), Some(Stop::LeaseLost));
        assert_eq!(beats.load(Ordering::Relaxed), UNANSWERED_MAX);
    }
}
