//! The loop of a worker. In every turn it collects the runs that ended, settles them and reserves jobs for the free slots
//! in one round trip, and starts what it got; with nothing to do it waits for a run to end, for the store's bell, for the
//! time when the next job is due, or for shutdown.
//!
//! While a round trip is on its way further runs end, and go with the next one: batches grow with the load, and nobody
//! waits for company. Nothing that the loop must not lose is kept in a local variable: a turn that panics is logged, and
//! the next one goes on from here.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::Instant,
};
use tracing::Instrument;

#[cfg(feature = "cron")]
use super::tick::is_tick;
use super::{
    config::Setup,
    health::Liveness,
    leases::flush_notes,
    queues::Queues,
    report::WorkReport,
    run::{Graces, dead_reason, expected, run, verdict},
    shutdown::{Phase, Shutdown},
    suspects::{Held, Waiting},
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::{JobRecord, State},
        lifecycle::is_last_chance,
        limits::{BATCH_BYTES_MAX, BATCH_MAX},
        outcome::Outcome,
    },
    runtime::{
        handler::{Call, Erased, Stop},
        repeat::Pauses,
        worker::{
            dead_hook::DeadHook,
            leases::{Active, Runs},
            precise_timer::PreciseTimer,
            stats::Stats,
        },
    },
    store::{
        Batch, Call as StoreCall, EndReason, Heartbeat, Lease, LeaseStatus, Reserve, Reserved, Settled,
        Settlement, Store, Verdict,
    },
};

/// Without schedules no job is a tick.
#[cfg(not(feature = "cron"))]
const fn is_tick(_: &JobRecord) -> bool {
    false
}

/// Longest sleep, whatever the store says: a bell can be lost, so it is never trusted. A store's wait comes back earlier where
/// its bells may fail in ways that it can't notice otherwise; this repairs what even it takes to be impossible.
const IDLE_MAX: Duration = Duration::from_mins(10);
/// Before jobs of a part of the store that is away are settled again.
const AWAY_PAUSE: Duration = Duration::from_millis(200);

/// The state of the loop.
pub(crate) struct RunLoop<'a> {
    setup: &'a Setup,
    store: Arc<dyn Store>,
    runs: &'a Runs,
    liveness: &'a Liveness,
    /// Where runs are counted for the views of the last hour; `None`: nowhere.
    stats: Option<&'a Stats>,
    /// Handlers run there, so that one that blocks can't hold up the loop or the heartbeat.
    runtime: Handle,
    dead_hook: DeadHook,
    queues: Queues,
    shutdown: Shutdown,
    phase: Phase,
    /// Tells of runs that ended. Bounded by the slots.
    ended: (UnboundedSender<Ended>, UnboundedReceiver<Ended>),
    /// Runs that ended, as they came in.
    collected: Vec<Ended>,
    /// Verdicts that the store has not answered yet, in the order in which the runs ended.
    settlements: Vec<Settlement>,
    /// How many of these, from the front, were part of a call whose answer was lost.
    tried: usize,
    /// Those of a part of the store that is away, with whether each was sent; and when to settle them again.
    away: (Vec<(Settlement, bool)>, Instant),
    /// Most settlements of the next call: one, after the store refused a call.
    settle_max: usize,
    /// The last reserve, for as long as it is not answered: it is repeated as it was (S3).
    reserve: Option<Reserve>,
    /// The number of the last reserve.
    call: StoreCall,
    look: Look,
    /// Reserved jobs on their last chance that wait for each other.
    waiting: Waiting,
    /// Nothing was started a moment ago, for the sake of one of them.
    was_quiet: bool,
    /// Before the store is told again that one of them has company.
    tell_again: Option<Instant>,
    precise_timer: PreciseTimer,
    pauses: Pauses,
    report: WorkReport,
}

/// When to look for jobs next, if no run ends before.
#[derive(Clone, Copy, Debug)]
enum Look {
    Now,
    At(Instant),
}

/// A run that ended.
struct Ended {
    lease: Lease,
    verdict: Verdict,
}

impl<'a> RunLoop<'a> {
    pub(crate) fn new(
        setup: &'a Setup,
        runs: &'a Runs,
        liveness: &'a Liveness,
        precise_timer: PreciseTimer,
        runtime: Handle,
        dead_hook: DeadHook,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            store: Arc::clone(setup.client.store()),
            queues: setup.queues.clone(),
            setup,
            runs,
            liveness,
            stats: None,
            runtime,
            dead_hook,
            shutdown,
            phase: Phase::Working,
            ended: mpsc::unbounded_channel(),
            collected: Vec::new(),
            settlements: Vec::new(),
            tried: 0,
            away: (Vec::new(), Instant::now()),
            settle_max: BATCH_MAX,
            reserve: None,
            call: StoreCall { instance: fastrand::u64(..), number: 0 },
            look: Look::Now,
            waiting: Waiting::default(),
            was_quiet: false,
            tell_again: None,
            precise_timer,
            pauses: Pauses::default(),
            report: WorkReport::default(),
        }
    }

    /// Counts what it settles there, too.
    pub(crate) fn counted_in(self, stats: &'a Stats) -> Self {
        Self { stats: Some(stats), ..self }
    }

    /// Turns until shutdown.
    ///
    /// # Errors
    /// What the store can never take: a closed store, a refused reserve. Everything else is repeated.
    pub(crate) async fn iteration(&mut self) -> Result<()> {
        loop {
            self.follow_shutdown();
            self.collect();
            if self.is_over() {
                return Ok(());
            }
            self.admit().await;
            self.plan_reserve();
            if self.reserve.is_some() || !self.settlements.is_empty() {
                self.settle_and_reserve().await?;
            } else {
                self.idle().await;
            }
        }
    }

    pub(crate) fn into_report(self) -> WorkReport {
        self.report
    }

    /// Moves on from phase to phase.
    fn follow_shutdown(&mut self) {
        let now = Instant::now();
        while let Some(next) = self.shutdown.step(self.phase, self.setup.config.grace, now) {
            let (phase, grace, executing) = (next.name(), self.setup.config.grace, self.runs.executing());
            tracing::info!(target: "punctual", phase, ?grace, executing, "shutting down");
            self.phase = next;
            match next {
                Phase::Working => {}
                Phase::Draining { .. } => {
                    self.runs.stop_all(Stop::Shutdown);
                    while let Some(Held { lease, .. }) = self.waiting.pop(&self.runs.suspects) {
                        self.settlements.push(Settlement { lease, verdict: Verdict::Release });
                    }
                }
                Phase::Ending { .. } => self.runs.abort_all(),
            }
        }
        if let Phase::Ending { until } = self.phase
            && until <= now
        {
            // These block their threads. Their leases are given up: the fence keeps what they still write apart.
            for lease in self.runs.leases_executing() {
                self.collected.push(Ended { lease, verdict: Verdict::Release });
            }
        }
    }

    /// Turns runs that ended into settlements.
    fn collect(&mut self) {
        if !self.away.0.is_empty() && self.away.1 <= Instant::now() {
            let (sent, unsent): (Vec<_>, Vec<_>) = self.away.0.drain(..).partition(|(_, sent)| *sent);
            self.tried += sent.len();
            self.settlements.splice(..0, sent.into_iter().map(|(settlement, _)| settlement));
            self.settlements.extend(unsent.into_iter().map(|(settlement, _)| settlement));
        }
        while let Ok(ended) = self.ended.1.try_recv() {
            self.collected.push(ended);
        }
        for Ended { lease, verdict } in self.collected.drain(..) {
            if self.runs.ended(lease) {
                self.settlements.push(Settlement { lease, verdict });
            }
        }
    }

    fn is_over(&self) -> bool {
        self.phase != Phase::Working
            && self.runs.executing() == 0
            && self.settlements.is_empty()
            && self.away.0.is_empty()
            && self.reserve.is_none()
    }

    fn free_slots(&self) -> usize {
        if self.phase != Phase::Working || self.runs.suspects.quiet_until(Instant::now()).is_some() {
            return 0;
        }
        self.setup.config.slots.saturating_sub(self.runs.executing() + self.waiting.len())
    }

    /// Starts those jobs on their last chance that may run by now (S9).
    async fn admit(&mut self) {
        let runs = self.runs;
        loop {
            let (now, is_full) =
                (Instant::now(), self.runs.executing() + self.waiting.len() == self.setup.config.slots);
            if !self.waiting.has_ready(&runs.suspects, is_full, now) || !self.end_isolation(now).await {
                return;
            }
            let Some(held) = self.waiting.pop(&runs.suspects) else { return };
            match held.call.stop_reason() {
                None => self.start(held, now),
                Some(Stop::LeaseLost) => {
                    runs.remove(held.lease);
                    self.report.lost += 1;
                    self.look = Look::Now;
                }
                Some(_) => {
                    let verdict = Verdict::Cancel { reason: None };
                    self.settlements.push(Settlement { lease: held.lease, verdict });
                }
            }
        }
    }

    /// Tells the store that the job on its last chance that came alone has company from now on; `false`: not yet.
    async fn end_isolation(&mut self, now: Instant) -> bool {
        let suspects = &self.runs.suspects;
        let Some(lease) = suspects.alone() else { return true };
        if self.tell_again.is_some_and(|again| now < again) {
            return false;
        }
        let beat = [Heartbeat { company: true, ..lease.into() }];
        match self.store.extend(&beat).await.as_deref() {
            Ok([LeaseStatus::Held | LeaseStatus::CancelRequested]) => suspects.isolation_ended(),
            Ok([LeaseStatus::Lost]) => {
                self.runs.heard(lease, LeaseStatus::Lost);
                suspects.end(lease);
            }
            _ => {
                self.tell_again = Some(now + AWAY_PAUSE);
                return false;
            }
        }
        self.tell_again = None;
        true
    }

    /// Decides whether to reserve: whenever a slot is free and there may be something to reserve, or a settle is due
    /// anyway.
    fn plan_reserve(&mut self) {
        let is_quiet = self.runs.suspects.quiet_until(Instant::now()).is_some();
        if std::mem::replace(&mut self.was_quiet, is_quiet) && !is_quiet {
            // Nobody listened meanwhile.
            self.look = Look::Now;
        }
        let n = self.free_slots().min(BATCH_MAX);
        let may_find = !self.settlements.is_empty()
            || match self.look {
                Look::Now => true,
                Look::At(at) => at <= Instant::now(),
            };
        if self.reserve.is_some() || n == 0 || !may_find {
            return;
        }
        let (n, wants) = self.queues.wants(n, |queue| self.runs.executing_in(queue));
        // All may be at their caps: the end of a run comes with a settle, and looks again.
        if 0 < n {
            self.call.number += 1;
            let (worker, lease) = (self.setup.config.name.clone(), self.setup.config.lease);
            let company = self.runs.suspects.have_company();
            if !company {
                self.runs.suspects.ask(true);
            }
            self.reserve = Some(Reserve { call: self.call, worker, wants, n, lease, company });
        }
    }

    /// How many settlements one call takes: their results are bounded in bytes.
    fn settleable(&self) -> usize {
        let mut bytes = 0;
        let fits = |settlement: &&Settlement| {
            bytes += settlement.result().map_or(0, |result| result.bytes.len());
            bytes <= BATCH_BYTES_MAX
        };
        self.settlements.iter().take(BATCH_MAX).take_while(fits).count()
    }

    /// What runs told and the store has not heard of would be refused behind their ends.
    async fn flush_notes_of(&self, n: usize) {
        let ended = self.settlements[..n].iter().map(|settlement| settlement.lease);
        let telling: Vec<Lease> = ended.filter(|lease| self.runs.has_news(*lease)).collect();
        if !telling.is_empty() {
            flush_notes(&*self.store, self.runs, &telling).await;
        }
    }

    /// One round trip: settles, and reserves.
    async fn settle_and_reserve(&mut self) -> Result<()> {
        let n = self.settleable().min(self.settle_max);
        self.flush_notes_of(n).await;
        let reserve = self.reserve.as_ref().filter(|_| self.settle_max == BATCH_MAX || n == 0);
        // From here on these count as tried, unless the store says that nothing was changed.
        let tried = self.tried;
        self.tried = tried.max(n);
        let answer = match reserve {
            Some(reserve) if n == 0 => self.store.reserve(reserve).await.map(|batch| (vec![], Some(batch))),
            _ => self.store.settle(&self.settlements[..n], reserve).await,
        };
        match answer {
            Ok((settled, batch)) => {
                self.pauses.reset();
                self.settle_max = BATCH_MAX;
                self.settled(n, settled, tried);
                if let Some(batch) = batch {
                    let is_alone = self.reserve.as_ref().is_some_and(|reserve| !reserve.company);
                    self.reserved(batch, is_alone);
                    self.reserve = None;
                    if is_alone {
                        self.runs.suspects.ask(false);
                    }
                }
                self.setup.config.live.put(&self.report);
                self.liveness.beat();
                Ok(())
            }
            Err(error) => {
                if error.kind() != ErrorKind::UnknownOutcome {
                    self.tried = tried;
                }
                self.failed(n, error).await
            }
        }
    }

    /// Takes note of the answers to the first `n` settlements, `tried` of which had been sent before.
    fn settled(&mut self, n: usize, answers: Vec<Settled>, tried: usize) {
        self.tried -= n;
        let mut answered = Vec::with_capacity(n);
        for (at, (settlement, answer)) in self.settlements.drain(..n).zip(answers).enumerate() {
            match answer {
                Settled::Away { sent } => self.away.0.push((settlement, sent || at < tried)),
                answer => answered.push((at, settlement, answer)),
            }
        }
        if answered.len() < n {
            tracing::warn!(target: "punctual", "a part of the store cannot be reached: its jobs will be settled again");
            self.away.1 = Instant::now() + AWAY_PAUSE;
        }
        for (at, Settlement { lease, mut verdict }, answer) in answered {
            let Some(Active { call, .. }) = self.runs.remove(lease) else { continue };
            let said = call.settled().filter(|_| answer == Settled::LeaseLost);
            let is_settled_already = said.is_some() || at < tried;
            verdict = said.unwrap_or(verdict);
            let (state, overruled) = match answer {
                Settled::Settled(state, overruled) => (state, overruled),
                // An earlier call of ours settled it, and only its answer was lost (S3); or its handler did, in a transaction of its
                // own.
                Settled::LeaseLost if is_settled_already => expected(&verdict, &call),
                _ => {
                    self.report.lost += 1;
                    tracing::warn!(target: "punctual", id = %lease.job, kind = call.kind(), queue = call.queue(),
                        attempt = call.attempt(), fence = lease.fence, "lease lost, the run changed nothing");
                    continue;
                }
            };
            self.report.settled(&verdict, state);
            if let Some(stats) = self.stats {
                stats.count(call.record(), &verdict, state);
            }
            if let Verdict::Retry { error, .. }
            | Verdict::RetryAfter { error, .. }
            | Verdict::Dead { error } = &verdict
            {
                let what = if state == State::Dead { "job is dead" } else { "run failed" };
                tracing::warn!(target: "punctual", id = %lease.job, kind = call.kind(), queue = call.queue(),
                    attempt = call.attempt(), state = state.name(), error, "{what}");
            }
            tracing::debug!(target: "punctual", id = %lease.job, kind = call.kind(), queue = call.queue(),
                attempt = call.attempt(), state = state.name(), reason = overruled.map(EndReason::name),
                verdict = verdict_name(&verdict), "settled");
            if state == State::Dead {
                let mut dead = call.record().clone();
                dead.state = State::Dead;
                dead.reason = Some(dead_reason(&verdict, overruled));
                self.dead_hook.write(lease.job, Some(dead));
            }
        }
    }

    /// Starts what was reserved, and notes when to look again. `is_alone`: a job on its last chance has come alone.
    fn reserved(&mut self, batch: Batch, is_alone: bool) {
        let now = Instant::now();
        self.look = if batch.more {
            Look::Now
        } else {
            Look::At(now + batch.next_due.unwrap_or(IDLE_MAX).min(IDLE_MAX))
        };
        for taken in &batch.taken_back {
            self.report.taken_back += 1;
            tracing::warn!(target: "punctual", id = %taken.lease.job, queue = taken.queue,
                fence = taken.lease.fence, state = taken.state.name(), "lease expired");
            self.runs.heard(taken.lease, LeaseStatus::Lost);
            if taken.state == State::Dead {
                self.dead_hook.write(taken.lease.job, None);
            }
        }
        for reserved in self.queues.reserved(batch.jobs) {
            if self.runs.knows(reserved.lease) {
                // A panic cut this answer short the last time, and it was asked for again.
            } else if self.phase != Phase::Working {
                self.refuse(reserved, Verdict::Release, now);
            } else if let Some(handler) = self.setup.config.handlers.handler(&reserved.job.kind).cloned() {
                self.report.lateness.started(&reserved.job, batch.now);
                self.begin(reserved, Ok(handler), is_alone, now);
            } else {
                tracing::warn!(target: "punctual", id = %reserved.job.id, kind = reserved.job.kind,
                    queue = reserved.job.queue, "no handler for this kind");
                let verdict = self.setup.config.handlers.unknown(&reserved.job);
                if is_tick(&reserved.job) {
                    self.begin(reserved, Err(verdict), is_alone, now);
                } else {
                    self.refuse(reserved, verdict, now);
                }
            }
        }
    }

    /// Starts a job, or what comes before its verdict where it has no handler; or holds it for now: one on its last chance that has
    /// company (S9).
    fn begin(&mut self, reserved: Reserved, handler: Result<Erased, Verdict>, is_alone: bool, now: Instant) {
        let Reserved { lease, lasts, job, .. } = reserved;
        let is_last_chance = is_last_chance(job.crashes);
        let call = self.call_of(job, lease.fence);
        let held = Held { lease, lasts, call, handler };
        if is_last_chance && !is_alone {
            let run = Active { call: held.call.clone(), lasts, deadline: now, task: None };
            self.runs.add(lease, run, now);
            self.waiting.push(held, &self.runs.suspects);
        } else {
            self.start(held, now);
            if is_last_chance {
                self.runs.suspects.isolate(lease, now);
            }
        }
    }

    fn call_of(&self, job: JobRecord, fence: u64) -> Call {
        let (client, news) = (self.setup.client.clone(), Arc::clone(&self.runs.news));
        Call::new(job, fence, client, news, self.setup.config.retry_after_max)
    }

    /// Runs a job on the handlers' runtime.
    fn start(&mut self, held: Held, now: Instant) {
        let Held { lease, lasts, call, handler } = held;
        tracing::debug!(target: "punctual", id = %call.id(), kind = call.kind(), queue = call.queue(),
            attempt = call.attempt(), fence = lease.fence, state = "running", "started");
        let deadline = now + call.record().timeout + self.setup.config.timeout_grace;
        let mut slot = Slot { lease, call: call.clone(), verdict: None, ended: self.ended.0.clone() };
        let graces =
            Graces { cancel: self.setup.config.cancel_grace, timeout: self.setup.config.timeout_grace };
        let run_of = call.clone();
        let span = tracing::info_span!(target: "punctual", "run", id = %call.id(), kind = call.kind(),
            queue = call.queue(), attempt = call.attempt(), fence = lease.fence);
        let task = async move { slot.fill(run(run_of, handler, graces).await) };
        let task = self.runtime.spawn(task.instrument(span));
        self.runs.add(lease, Active { call, lasts, deadline, task: Some(task.abort_handle()) }, now);
    }

    /// Settles a job that is not started.
    fn refuse(&mut self, reserved: Reserved, verdict: Verdict, now: Instant) {
        let Reserved { lease, lasts, job, .. } = reserved;
        let call = self.call_of(job, lease.fence);
        self.runs.add(lease, Active { call, lasts, deadline: now, task: None }, now);
        self.settlements.push(Settlement { lease, verdict });
    }

    /// After a call that failed: waits before it is repeated, or gives up what can never pass.
    async fn failed(&mut self, n: usize, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Closed | ErrorKind::Outdated => return Err(error),
            ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict | ErrorKind::Unsupported => {
                match n {
                    0 => return Err(error),
                    1 => {
                        let Settlement { lease, .. } = self.settlements.remove(0);
                        self.tried = self.tried.saturating_sub(1);
                        self.settle_max = BATCH_MAX;
                        self.runs.remove(lease);
                        self.report.lost += 1;
                        tracing::error!(target: "punctual", id = %lease.job, %error,
                        "the store refused a verdict; the lease will expire");
                    }
                    _ => self.settle_max = 1,
                }
            }
            _ => {
                let pause = self.pauses.next();
                tracing::warn!(target: "punctual", %error, ?pause, settlements = n, "settle and reserve will be repeated");
                tokio::time::sleep(pause).await;
            }
        }
        Ok(())
    }

    /// Waits for something to do.
    async fn idle(&mut self) {
        let names = self.queues.below_cap(|queue| self.runs.executing_in(queue));
        let has_free_slots = 0 < self.free_slots() && !names.is_empty();
        let at_most = match self.look {
            Look::Now => Duration::ZERO,
            Look::At(at) => at.saturating_duration_since(Instant::now()),
        };
        let runs = self.runs;
        let quiet_until = runs.suspects.quiet_until(Instant::now());
        let (is_waiting, tell_again) = (0 < self.waiting.len() || quiet_until.is_some(), self.tell_again);
        let wake_at = quiet_until
            .into_iter()
            .chain(tell_again.filter(|again| is_waiting && Instant::now() < *again))
            .min();
        let (has_away, again) = (!self.away.0.is_empty(), self.away.1);
        // Nothing more comes of the phase.
        let is_late = matches!(self.phase, Phase::Ending { until } if until <= Instant::now());
        tokio::select! {
            biased;
            _ = self.ended.1.recv_many(&mut self.collected, BATCH_MAX) => {}
            () = self.shutdown.stirred(self.phase), if !is_late => {}
            () = bell(&*self.store, &names, &self.precise_timer, at_most), if has_free_slots => self.look = Look::Now,
            () = runs.suspects.ended(), if is_waiting => {}
            () = tokio::time::sleep_until(wake_at.unwrap_or(again)), if wake_at.is_some() => {}
            () = tokio::time::sleep_until(again), if has_away => {}
            () = self.liveness.keep_beating(|| runs.held_up(Instant::now())) => {}
        }
    }
}

/// Waits until there may be work, but not beyond the time when the next job is due: that timer is ours, the store's wait
/// is a doorbell only.
async fn bell(store: &dyn Store, queues: &[String], precise_timer: &PreciseTimer, at_most: Duration) {
    let rung = async {
        if let Err(error) = store.wait(queues, at_most).await {
            tracing::warn!(target: "punctual", %error, "could not wait for notifications of the store");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = rung => {}
        () = precise_timer.after(at_most) => {}
    }
}

fn verdict_name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Ack | Verdict::AckWith { .. } => "ack",
        Verdict::Retry { .. } | Verdict::RetryAfter { .. } => "retry",
        Verdict::Snooze { .. } => "snooze",
        Verdict::Release => "release",
        Verdict::Cancel { .. } => "cancel",
        Verdict::Dead { .. } => "dead",
    }
}

/// The slot of a run, given back when its task is gone, however it went.
struct Slot {
    lease: Lease,
    call: Call,
    /// `None` until the run ended by itself.
    verdict: Option<Verdict>,
    ended: UnboundedSender<Ended>,
}

impl Slot {
    fn fill(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let verdict = self.verdict.take().unwrap_or_else(|| {
            if std::thread::panicking() {
                verdict(Outcome::retry("panic: in a destructor of the run"), &self.call, fastrand::f64())
            } else {
                // Aborted by shutdown, or its runtime is going away.
                Verdict::Release
            }
        });
        // A loop that is gone has no use for it.
        let _ = self.ended.send(Ended { lease: self.lease, verdict });
    }
}
