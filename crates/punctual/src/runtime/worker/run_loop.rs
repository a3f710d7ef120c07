//! The loop of a worker.
//!
//! In each iteration it collects the runs that ended, settles them and reserves jobs for the free slots in one round
//! trip, and starts these jobs. If there is nothing to do, it waits for a run to end, a notification of the store,
//! the next due time, or shutdown.
//!
//! Runs that end during a round trip are settled in the next one. So batches grow with the load, and no run waits to
//! fill a batch. State that must not be lost is never kept in a local variable: if an iteration panics, this is
//! logged, and the next one continues.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::Instant,
};
use tracing::{Instrument, field::debug};

#[cfg(feature = "cron")]
use super::tick::is_tick;
use super::{
    config::{GRACE_MAX, Setup},
    health::Liveness,
    leases::flush_notes,
    queues::Queues,
    report::{Lateness, WorkReport},
    run::{Graces, dead_reason, expected, run, verdict},
    shutdown::{Phase, Shutdown},
    starved::Starved,
    suspects::{Held, Waiting},
    trouble::Trouble,
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result, chain},
        job::{JobRecord, State},
        lifecycle::{PANICKED, is_last_chance},
        limits::{BATCH_BYTES_MAX, BATCH_MAX},
        outcome::Outcome,
    },
    runtime::{
        handler::{Call, Erased, Stop},
        metrics::Metrics,
        repeat::Pauses,
        trace::{Calling, Running},
        worker::{
            dead_hook::DeadHook,
            leases::{Active, Runs},
            precise_timer::PreciseTimer,
            stats::Stats,
        },
    },
    store::{
        Batch, CallId, EndReason, Heartbeat, Lease, LeaseStatus, QueueRequest, Reclaimed, Reserve, Reserved,
        Settled, Settlement, Store, Verdict,
    },
};

/// Without schedules, no job is a tick.
#[cfg(not(feature = "cron"))]
const fn is_tick(_: &JobRecord) -> bool {
    false
}

/// A run that goes on for this long has begun.
const PROBE: Duration = Duration::from_secs(2);
/// The longest sleep, whatever the store says, because a notification can be lost. A store's own wait ends earlier
/// where notifications can fail without a sign. This bound covers failures that a store takes to be impossible.
const IDLE_MAX: Duration = Duration::from_mins(10);
/// How long to wait before jobs of an unavailable part of the store are settled again.
const AWAY_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait before a verdict is sent again that something between the worker and the store does not let through.
const HELD_BACK_PAUSE: Duration = Duration::from_secs(1);
/// How often a worker reclaims expired leases in queues that it does not reserve from, because its slots are taken or the
/// queue is at its cap (S9: at most 1 s after their ends). No notification reaches it meanwhile.
const RECLAIM_EVERY: Duration = Duration::from_millis(500);

/// The state of the loop.
pub(crate) struct RunLoop<'a> {
    setup: &'a Setup,
    store: Arc<dyn Store>,
    runs: &'a Runs,
    liveness: &'a Liveness,
    /// Counts runs for recent activity; `None` counts nothing.
    stats: Option<&'a Stats>,
    /// Counts runs for a monitoring system, if the client has metrics; publications are not runs.
    metrics: Option<&'a Metrics>,
    /// The handlers' runtime. A handler that blocks it cannot hold up the loop or the heartbeat.
    runtime: Handle,
    dead_hook: DeadHook,
    queues: Queues,
    shutdown: Shutdown,
    phase: Phase,
    /// Reports runs that ended. Bounded by the slots.
    ended: (UnboundedSender<Ended>, UnboundedReceiver<Ended>),
    /// Runs that ended, in the order of their ends.
    collected: Vec<Ended>,
    /// Verdicts that the store has not answered, in the order in which the runs ended.
    settlements: Vec<Settlement>,
    /// How many of them, from the front, were part of a call whose answer was lost.
    tried: usize,
    /// Settlements for an unavailable part of the store, and those that are not let through to it, each with whether it was
    /// sent, and when to send them again.
    away: (Vec<(Settlement, bool)>, Instant),
    /// Most settlements of the next call. It is 1 after a call was refused.
    settle_max: usize,
    /// Whether the store has answered a settle or reserve. From then on, no refusal of it proves that the worker is wrong.
    has_worked: bool,
    /// What keeps it from the store now.
    trouble: Trouble,
    /// What keeps runs from beginning.
    starved: Starved,
    /// The run that shows whether they can, and when it was started.
    probe: Option<(Lease, Instant)>,
    /// The next reserve, or the last one whose answer was lost: it is repeated unchanged (S3).
    reserve: Option<Reserve>,
    /// Whether it may have reserved jobs: a call with it was made, and the store did not say that nothing was changed.
    may_have_reserved: bool,
    /// The number of the last reserve.
    call: CallId,
    look: Look,
    /// When to reclaim in queues that no reserve has named for a while.
    reclaim_at: Instant,
    /// Reserved suspects that wait for each other.
    waiting: Waiting,
    /// Whether it was quiet in the previous iteration: see `is_quiet`.
    was_quiet: bool,
    /// When to report again that a suspect has company.
    ask_again_at: Option<Instant>,
    precise_timer: PreciseTimer,
    pauses: Pauses,
    report: WorkReport,
}

/// When to reserve next, if no run ends before.
#[derive(Clone, Copy, Debug)]
enum Look {
    Now,
    At(Instant),
}

/// A run that ended.
struct Ended {
    lease: Lease,
    verdict: Verdict,
    begun: Instant,
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
            metrics: None,
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
            has_worked: false,
            trouble: Trouble::default(),
            starved: Starved::default(),
            probe: None,
            reserve: None,
            may_have_reserved: false,
            call: CallId { instance: fastrand::u64(..), number: 0 },
            look: Look::Now,
            reclaim_at: Instant::now() + RECLAIM_EVERY,
            waiting: Waiting::default(),
            was_quiet: false,
            ask_again_at: None,
            precise_timer,
            pauses: Pauses::default(),
            report: WorkReport::default(),
        }
    }

    /// Also counts its runs in `stats` and in the metrics of the client.
    pub(crate) fn counted_in(self, stats: &'a Stats) -> Self {
        Self { stats: Some(stats), metrics: self.setup.client.metrics(), ..self }
    }

    /// Runs iterations until shutdown.
    ///
    /// # Errors
    /// Errors that a repetition cannot solve: a closed or newer store, a refused token, a refusal before the first answer. All
    /// others are repeated.
    pub(crate) async fn iteration(&mut self) -> Result<()> {
        loop {
            self.follow_shutdown();
            self.forget_refused();
            self.collect();
            self.mind_probe();
            if self.is_over() {
                return Ok(());
            }
            self.admit().await;
            self.give_back();
            self.reclaim().await;
            self.tell_last_notes().await;
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

    /// Moves to the next phase of shutdown when it is time.
    fn follow_shutdown(&mut self) {
        let now = Instant::now();
        while let Some(next) = self.shutdown.step(self.phase, self.setup.config.grace, now) {
            let (phase, executing) = (next.name(), self.runs.executing());
            // The longest one is that of a caller that keeps the time itself.
            let grace = Some(self.setup.config.grace).filter(|grace| *grace < GRACE_MAX).map(debug);
            tracing::info!(target: "punctual", phase, grace, executing, "shutting down");
            self.phase = next;
            match next {
                Phase::Working => {}
                Phase::Draining { .. } => {
                    self.setup.config.live.stop().cancel();
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
            // These block their threads. Their leases are given up; the fence makes their later writes ineffective.
            for lease in self.runs.leases_executing() {
                self.collected.push(Ended { lease, verdict: Verdict::Release, begun: now });
            }
        }
    }

    /// Turns ended runs into settlements.
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
        let now = Instant::now();
        let mut collected = std::mem::take(&mut self.collected);
        for Ended { lease, verdict, begun } in collected.drain(..) {
            let call = self.runs.call(lease);
            match call.as_ref().map(Call::lacking) {
                Some(Some(why)) => {
                    if let Some(pause) = self.starved.note(why, now) {
                        tracing::warn!(target: "punctual", why, ?pause,
                            "a job could not be started here: it goes back, and nothing is reserved for a while");
                    }
                }
                Some(None) if verdict != Verdict::Release => self.starved_no_more(begun, now),
                Some(None) | None => {}
            }
            if self.runs.ended(lease) {
                self.settlements.push(Settlement { lease, verdict });
            }
        }
        self.collected = collected;
    }

    /// Notes that a run began, and whether that ends a time in which none could.
    fn starved_no_more(&mut self, begun: Instant, now: Instant) {
        if let Some(after) = self.starved.began(begun, now) {
            tracing::info!(target: "punctual", ?after, "jobs can be started here again");
        }
    }

    /// Takes the one job that was reserved to see whether jobs can be started for begun, if it still runs after a while.
    fn mind_probe(&mut self) {
        let now = Instant::now();
        if let Some((lease, begun)) = self.probe
            && begun + PROBE <= now
        {
            self.probe = None;
            if self.runs.call(lease).is_some_and(|call| call.lacking().is_none()) {
                self.starved_no_more(begun, now);
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
        if self.shutdown.is_asked() || self.is_quiet() {
            return 0;
        }
        self.setup.config.slots.saturating_sub(self.runs.executing() + self.waiting.len())
    }

    /// Returns how many of the slots that a queue has of its own are taken: by its runs, and by suspects of it that are held.
    fn taken_in(runs: &Runs, waiting: &Waiting, queue: &str) -> usize {
        runs.executing_in(queue) + waiting.of(queue)
    }

    /// Returns whether nothing is reserved: by an order, for the sake of a suspect, or because jobs cannot be started here.
    fn is_quiet(&self) -> bool {
        let now = Instant::now();
        self.runs.quiet.is_quiet()
            || self.runs.suspects.quiet_until(now).is_some()
            || self.starved.quiet_until(now).is_some()
    }

    /// Starts the suspects that can run now (S9).
    async fn admit(&mut self) {
        let runs = self.runs;
        loop {
            let (now, is_full) =
                (Instant::now(), self.runs.executing() + self.waiting.len() == self.setup.config.slots);
            if !self.waiting.has_ready(&runs.suspects, is_full, now) || !self.end_isolation(now).await {
                return;
            }
            if self.shutdown.is_asked() {
                // The next look at the signal gives them back.
                return;
            }
            let Some(held) = self.waiting.pop(&runs.suspects) else { return };
            match held.call.stop_reason() {
                None => self.start(held, now),
                Some(Stop::LeaseLost) => {
                    runs.remove(held.lease);
                    self.lost(&held.call, &Verdict::Release);
                    self.look = Look::Now;
                }
                Some(_) => {
                    let verdict = Verdict::Cancel { reason: None };
                    self.settlements.push(Settlement { lease: held.lease, verdict });
                }
            }
        }
    }

    /// Gives back suspects that cannot start soon: another worker may be able to start them (S9).
    fn give_back(&mut self) {
        let (now, suspects) = (Instant::now(), &self.runs.suspects);
        while self.waiting.back_at().is_some_and(|at| at <= now)
            && !self.waiting.has_ready(suspects, false, now)
            && let Some(held) = self.waiting.pop(suspects)
        {
            let (lease, verdict) = (held.lease, held.back());
            suspects.given_back(now);
            tracing::debug!(target: "punctual", id = %lease.job, kind = held.call.kind(), queue = held.call.queue(),
                fence = lease.fence, "given back: it is on its last chance, and other such jobs run here");
            self.settlements.push(Settlement { lease, verdict });
        }
    }

    /// Reports that the suspect that was reserved alone has company from now on; returns `false` if not reported yet.
    async fn end_isolation(&mut self, now: Instant) -> bool {
        let suspects = &self.runs.suspects;
        let Some(lease) = suspects.alone() else { return true };
        if self.ask_again_at.is_some_and(|again| now < again) {
            return false;
        }
        let beat = [Heartbeat { company: true, ..lease.into() }];
        match self.trouble.asking(self.liveness, self.store.extend(&beat)).await.as_deref() {
            Ok([LeaseStatus::Held | LeaseStatus::CancelRequested]) => suspects.isolation_ended(),
            Ok([LeaseStatus::Lost]) => {
                self.runs.heard(lease, LeaseStatus::Lost);
                suspects.end(lease);
            }
            _ => {
                self.ask_again_at = Some(now + AWAY_PAUSE);
                return false;
            }
        }
        self.ask_again_at = None;
        true
    }

    /// Returns the queues of which it reserves nothing and hears nothing, because its slots are taken, they are at their caps, or it is
    /// quiet.
    fn unheard(&self) -> Vec<&str> {
        let names = self.queues.names().iter().map(String::as_str);
        if self.shutdown.is_asked() {
            return Vec::new();
        }
        if self.free_slots() == 0 {
            return names.collect();
        }
        let heard = self.queues.below_cap(|queue| Self::taken_in(self.runs, &self.waiting, queue));
        names.filter(|name| !heard.iter().any(|heard| heard == name)).collect()
    }

    /// Reclaims expired leases of the queues of which it hears nothing (S9): a reserve that requests no job.
    ///
    /// A call that fails is not repeated; the next one is due soon. What a lost answer told is lost: the run and its
    /// history are in the store.
    async fn reclaim(&mut self) {
        if Instant::now() < self.reclaim_at || self.reserve.is_some() {
            return;
        }
        let request = |name: &str| QueueRequest { queue: name.to_owned(), share: 1, at_most: 0 };
        let queues: Vec<_> = self.unheard().into_iter().map(request).collect();
        if queues.is_empty() {
            return;
        }
        self.reclaim_at = Instant::now() + RECLAIM_EVERY;
        self.call.number += 1;
        let worker = self.setup.config.name.clone();
        let reserve = Reserve { call: self.call, worker, queues, n: 1, lease: None, company: true };
        match self.trouble.asking(self.liveness, self.store.reserve(&reserve)).await {
            Ok(batch) => {
                self.answered(self.settlements.is_empty());
                self.reclaimed(&batch.reclaimed);
            }
            Err(error) => {
                if self.is_trouble(&error) {
                    tracing::warn!(target: "punctual", error = chain(&error), hint = error.hint(), "could not reclaim, will try again");
                }
            }
        }
    }

    /// Notes a failed call for health; returns whether the log does not have it yet.
    fn is_trouble(&mut self, error: &Error) -> bool {
        let now = Instant::now();
        let is_news = self.trouble.failed(error, now);
        self.liveness.note(self.trouble.held_up(Duration::ZERO, now));
        self.liveness.beat();
        is_news
    }

    /// Notes that the store answers. `has_settled`: no verdict waits because its call failed, except those in `away`.
    fn answered(&mut self, has_settled: bool) {
        self.liveness.beat();
        if has_settled
            && self.away.0.is_empty()
            && let Some(after) = self.trouble.answered(Instant::now())
        {
            tracing::info!(target: "punctual", ?after, "the store answers again");
            self.liveness.note(self.runs.held_up(Instant::now()));
        }
    }

    /// Decides whether to reserve: if a slot is free and a job may be due, or with a settle that is sent anyway.
    fn plan_reserve(&mut self) {
        let is_quiet = self.is_quiet();
        if std::mem::replace(&mut self.was_quiet, is_quiet) && !is_quiet {
            // Notifications of that time were missed.
            self.look = Look::Now;
        }
        let most = if self.starved.is_probing() { 1 } else { BATCH_MAX };
        let n = self.free_slots().min(most);
        let may_find = !self.settlements.is_empty()
            || match self.look {
                Look::Now => true,
                Look::At(at) => at <= Instant::now(),
            };
        if self.reserve.is_some() || n == 0 || !may_find {
            return;
        }
        let (n, queues) = self.queues.requests(n, |queue| Self::taken_in(self.runs, &self.waiting, queue));
        // All queues may be at their caps. The end of a run leads to a settle, which reserves again.
        if 0 < n {
            self.call.number += 1;
            let (worker, lease) = (self.setup.config.name.clone(), self.setup.config.lease);
            let company = self.runs.suspects.have_company();
            if !company {
                self.runs.suspects.ask(true);
            }
            self.reserve = Some(Reserve { call: self.call, worker, queues, n, lease, company });
        }
    }

    /// Forgets a reserve that the store refused, if nothing may be reserved any more. Otherwise it is repeated.
    fn forget_refused(&mut self) {
        if !self.may_have_reserved && (self.shutdown.is_asked() || self.is_quiet()) {
            self.drop_reserve();
        }
    }

    /// Forgets the reserve, which was answered or refused.
    fn drop_reserve(&mut self) {
        self.may_have_reserved = false;
        if self.reserve.take().is_some_and(|reserve| !reserve.company) {
            self.runs.suspects.ask(false);
        }
    }

    /// Returns how many settlements go into the next call: their results are bounded in bytes.
    fn settleable(&self) -> usize {
        let mut bytes = 0;
        let fits = |settlement: &&Settlement| {
            bytes += settlement.result().map_or(0, |result| result.bytes.len());
            bytes <= BATCH_BYTES_MAX
        };
        self.settlements.iter().take(self.settle_max).take_while(fits).count()
    }

    /// Sends the unsent notes of runs that the next call settles: the store would refuse them after it.
    async fn tell_last_notes(&self) {
        let ended = self.settlements[..self.settleable()].iter().map(|settlement| settlement.lease);
        let flushing: Vec<Lease> = ended.filter(|lease| self.runs.has_news(*lease)).collect();
        if !flushing.is_empty() {
            flush_notes(&*self.store, self.runs, &flushing).await;
        }
    }

    /// Settles and reserves in one round trip.
    async fn settle_and_reserve(&mut self) -> Result<()> {
        let n = self.settleable();
        let reserve = self.reserve.as_ref().filter(|_| self.settle_max == BATCH_MAX || n == 0);
        // From here on these count as tried, unless the store says that nothing was changed.
        let tried = self.tried;
        self.tried = tried.max(n);
        let may_have_reserved = self.may_have_reserved;
        self.may_have_reserved |= reserve.is_some();
        let (calling, asked) = (Calling::begin(), Instant::now());
        let call = async {
            match reserve {
                Some(reserve) if n == 0 => {
                    self.store.reserve(reserve).await.map(|batch| (vec![], Some(batch)))
                }
                _ => self.store.settle(&self.settlements[..n], reserve).await,
            }
        };
        let answer = self.trouble.asking(self.liveness, call).await;
        calling.end(&self.settlements[..n], |lease| self.runs.call(lease), &answer);
        match answer {
            Ok((settled, batch)) => {
                self.pauses.reset();
                self.settle_max = BATCH_MAX;
                self.has_worked = true;
                self.settled(n, settled, tried);
                self.answered(true);
                if let Some(batch) = batch {
                    let is_alone = self.reserve.as_ref().is_some_and(|reserve| !reserve.company);
                    if self
                        .reserve
                        .as_ref()
                        .is_some_and(|reserve| reserve.queues.len() == self.queues.names().len())
                    {
                        self.reclaim_at = Instant::now() + RECLAIM_EVERY;
                    }
                    // The leases began during the call. If its answer was late, they are extended at once.
                    let shortest = batch.jobs.iter().map(|reserved| reserved.lasts).min();
                    self.reserved(batch, is_alone);
                    self.drop_reserve();
                    if let Some(shortest) = shortest {
                        self.runs.beat_again_at(asked + shortest / 3);
                        if asked + shortest / 3 <= Instant::now() {
                            // The heartbeat goes before the next reserve, which could reclaim them.
                            tokio::task::yield_now().await;
                        }
                    }
                }
                self.setup.config.live.put(&self.report);
                Ok(())
            }
            Err(error) => {
                // Those of a server of several that refuses are refused with the whole call; others may have been settled.
                let may_be_done = matches!(
                    error.kind(),
                    ErrorKind::UnknownOutcome | ErrorKind::Unsupported | ErrorKind::Corrupt
                );
                if !may_be_done {
                    self.tried = tried;
                }
                if error.kind() == ErrorKind::Unavailable {
                    self.may_have_reserved = may_have_reserved;
                }
                self.failed(n, error).await
            }
        }
    }

    /// Handles the answers to the first `n` settlements. The first `tried` of them had been sent before.
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
                // An earlier call settled it and its answer was lost (S3), or its handler settled it in a
                // transaction.
                Settled::LeaseLost if is_settled_already => expected(&verdict, &call),
                _ => {
                    self.lost(&call, &verdict);
                    tracing::warn!(target: "punctual", id = %lease.job, kind = call.kind(), queue = call.queue(),
                        attempt = call.attempt(), fence = lease.fence, "lease lost, the run changed nothing");
                    continue;
                }
            };
            self.report.settled(&verdict, state);
            self.count_settled(&call, &verdict, Some(state));
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

    /// Counts a run whose lease was lost: it changed nothing.
    fn lost(&mut self, call: &Call, verdict: &Verdict) {
        self.report.lost += 1;
        self.count_settled(call, verdict, None);
    }

    fn count_settled(&self, call: &Call, verdict: &Verdict, state: Option<State>) {
        if let Some(metrics) = self.metrics {
            metrics.settled(call.queue(), call.kind(), verdict_name(verdict), state);
        }
    }

    /// Starts the reserved jobs and notes when to reserve again. `is_alone`: a suspect was reserved alone.
    fn reserved(&mut self, batch: Batch, is_alone: bool) {
        let now = Instant::now();
        self.look = if batch.more {
            Look::Now
        } else {
            Look::At(now + batch.next_due.unwrap_or(IDLE_MAX).min(IDLE_MAX))
        };
        self.reclaimed(&batch.reclaimed);
        for reserved in self.queues.reserved(batch.jobs) {
            if self.runs.knows(reserved.lease) {
                // The previous answer was cut short by a panic, and the reserve was repeated.
            } else if self.shutdown.is_asked() {
                self.refuse(reserved, Verdict::Release, now);
            } else if let Some(handler) = self.setup.config.handlers.handler(&reserved.job.kind).cloned() {
                self.report.lateness.add(Lateness::of(&reserved.job, batch.now));
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

    /// Reports reclaimed leases; its own runs among them end.
    fn reclaimed(&mut self, reclaimed: &[Reclaimed]) {
        for Reclaimed { lease, queue, state, .. } in reclaimed {
            self.report.reclaimed += 1;
            tracing::warn!(target: "punctual", id = %lease.job, queue, fence = lease.fence, state = state.name(),
                "lease expired");
            self.runs.heard(*lease, LeaseStatus::Lost);
            if *state == State::Dead {
                self.dead_hook.write(lease.job, None);
            }
        }
    }

    /// Starts a job. Holds a suspect that has company (S9). If there is no handler, it runs what precedes the
    /// verdict.
    fn begin(&mut self, reserved: Reserved, handler: Result<Erased, Verdict>, is_alone: bool, now: Instant) {
        let Reserved { lease, lasts, job, .. } = reserved;
        let is_last_chance = is_last_chance(job.expired_leases);
        let call = self.call_of(job, lease.fence);
        let held = Held { since: now, lease, lasts, call, handler };
        if is_last_chance && !is_alone {
            let run = Active::new(held.call.clone(), lasts, now, None);
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
        let Held { lease, lasts, call, handler, .. } = held;
        tracing::debug!(target: "punctual", id = %call.id(), kind = call.kind(), queue = call.queue(),
            attempt = call.attempt(), fence = lease.fence, state = "running", "started");
        let deadline = now + call.record().timeout + self.setup.config.timeout_grace;
        // A tick without a handler does not run.
        let counted = self.metrics.filter(|_| handler.is_ok()).map(|metrics| {
            let late = Lateness::of(call.record(), call.record().run_at);
            metrics.started(call.queue(), call.kind(), late);
            (metrics.clone(), Instant::now())
        });
        let running = match &handler {
            Ok(_) => Running::begin(&call, self.setup.config.continues_traces),
            Err(_) => Running::default(),
        };
        let (ended, traced) = (self.ended.0.clone(), running.clone());
        let mut slot = Slot { lease, call: call.clone(), verdict: None, ended, begun: now, counted, traced };
        if self.starved.is_probing() {
            self.probe = Some((lease, now));
        }
        let graces =
            Graces { cancel: self.setup.config.cancel_grace, timeout: self.setup.config.timeout_grace };
        let run_of = call.clone();
        // In the context of the run, so that a layer that turns it into a span of a trace makes that a child.
        let span = running.enter(|| {
            tracing::info_span!(target: "punctual", "process", id = %call.id(), kind = call.kind(),
                queue = call.queue(), attempt = call.attempt(), fence = lease.fence)
        });
        let task = async move { slot.fill(run(run_of, handler, graces).await) };
        let task = self.runtime.spawn(running.around(task.instrument(span)));
        let task = Some(task.abort_handle());
        self.runs.add(lease, Active::new(call, lasts, deadline, task), now);
    }

    /// Settles a job without starting it.
    fn refuse(&mut self, reserved: Reserved, verdict: Verdict, now: Instant) {
        let Reserved { lease, lasts, job, .. } = reserved;
        let call = self.call_of(job, lease.fence);
        self.runs.add(lease, Active::new(call, lasts, now, None), now);
        self.settlements.push(Settlement { lease, verdict });
    }

    /// Handles a failed call: waits before it is repeated, or gives up what can never succeed.
    ///
    /// Once the store has answered, only its own refusal of a settlement gives up a verdict. All other refusals can pass: of a
    /// gateway whose server starts again, of a user whose rights are being changed.
    async fn failed(&mut self, n: usize, error: Error) -> Result<()> {
        match error.kind() {
            // A token that is refused is refused again. A process that starts anew reads the one that is valid by then.
            ErrorKind::Closed | ErrorKind::Outdated | ErrorKind::Unauthenticated | ErrorKind::Forbidden => {
                return Err(error);
            }
            ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict | ErrorKind::Unsupported
                if !self.has_worked =>
            {
                return Err(error);
            }
            ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict
                if !error.is_foreign() && 0 < n =>
            {
                match n {
                    1 => self.give_up_first(&error),
                    _ => self.settle_max = 1,
                }
            }
            _ => {
                if error.is_foreign() {
                    self.let_others_pass(n);
                }
                let pause = self.pauses.next();
                if self.is_trouble(&error) {
                    tracing::warn!(target: "punctual", error = chain(&error), hint = error.hint(), ?pause, settlements = n,
                        "settle and reserve will be repeated");
                } else {
                    tracing::debug!(target: "punctual", %error, ?pause, settlements = n,
                        "settle and reserve will be repeated");
                }
                tokio::time::sleep(pause).await;
            }
        }
        Ok(())
    }

    /// Gives up the first verdict, which the store refused.
    fn give_up_first(&mut self, error: &Error) {
        let Settlement { lease, verdict } = self.settlements.remove(0);
        self.tried = self.tried.saturating_sub(1);
        self.settle_max = BATCH_MAX;
        match self.runs.remove(lease) {
            Some(run) => self.lost(&run.call, &verdict),
            None => self.report.lost += 1,
        }
        tracing::error!(target: "punctual", id = %lease.job, error = chain(error),
            "the store refused a verdict; the lease will expire");
    }

    /// Prepares the repetition of a call of `n` settlements that something else than the store refused. It can have refused what
    /// is in one of them, so they are sent one by one, and one that is refused alone waits beside the others.
    fn let_others_pass(&mut self, n: usize) {
        if 0 < n {
            self.settle_max = 1;
        }
        if n == 1 {
            let was_sent = 0 < self.tried;
            self.tried = self.tried.saturating_sub(1);
            self.away.0.push((self.settlements.remove(0), was_sent));
            self.away.1 = Instant::now() + HELD_BACK_PAUSE;
        }
    }

    /// Waits for something to do.
    async fn idle(&mut self) {
        let names = self.queues.below_cap(|queue| Self::taken_in(self.runs, &self.waiting, queue));
        let has_free_slots = 0 < self.free_slots() && !names.is_empty();
        let at_most = match self.look {
            Look::Now => Duration::ZERO,
            Look::At(at) => at.saturating_duration_since(Instant::now()),
        };
        let (runs, cannot_wait) = (self.runs, self.trouble.cannot_wait);
        let quiet_until = runs.suspects.quiet_until(Instant::now());
        let (is_waiting, ask_again_at) = (0 < self.waiting.len() || quiet_until.is_some(), self.ask_again_at);
        let wake_at = quiet_until
            .into_iter()
            .chain(self.starved.quiet_until(Instant::now()))
            .chain(self.probe.map(|(_, begun)| begun + PROBE))
            .chain(ask_again_at.filter(|again| is_waiting && Instant::now() < *again))
            .chain(self.waiting.back_at())
            .min();
        let (has_away, again) = (!self.away.0.is_empty(), self.away.1);
        let (has_unheard, reclaim_at) = (!self.unheard().is_empty(), self.reclaim_at);
        let (trouble, starved) = (&self.trouble, &self.starved);
        let held_up = || {
            let now = Instant::now();
            trouble
                .held_up(Duration::ZERO, now)
                .or_else(|| runs.held_up(now))
                .or_else(|| starved.held_up(now))
                .or_else(|| runs.moved())
        };
        // Waiting longer in this phase achieves nothing.
        let is_late = matches!(self.phase, Phase::Ending { until } if until <= Instant::now());
        tokio::select! {
            biased;
            _ = self.ended.1.recv_many(&mut self.collected, BATCH_MAX) => {}
            () = self.shutdown.stirred(self.phase), if !is_late => {}
            cannot_wait = notified(&*self.store, &names, &self.precise_timer, at_most, cannot_wait),
                if has_free_slots =>
            {
                self.trouble.cannot_wait = cannot_wait;
                self.look = Look::Now;
            }
            () = runs.suspects.ended(), if is_waiting => {}
            () = runs.quiet.changed() => {}
            () = tokio::time::sleep_until(wake_at.unwrap_or(again)), if wake_at.is_some() => {}
            () = tokio::time::sleep_until(again), if has_away => {}
            () = tokio::time::sleep_until(reclaim_at), if has_unheard => {}
            never = self.liveness.keep_beating(held_up) => match never {},
        }
    }
}

/// Waits until there may be work, at most until the next job is due; returns whether the wait failed. `cannot_wait`: the one
/// before failed, too.
///
/// The timer is the worker's own. The store's wait only delivers notifications.
async fn notified(
    store: &dyn Store,
    queues: &[String],
    precise_timer: &PreciseTimer,
    at_most: Duration,
    cannot_wait: bool,
) -> bool {
    let notify = async {
        let Err(error) = store.wait(queues, at_most).await else { return false };
        if cannot_wait {
            tracing::debug!(target: "punctual", %error, "still could not wait for notifications of the store");
        } else {
            tracing::warn!(target: "punctual", error = %error.with_causes(), "could not wait for notifications of the store, asks once a second");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        true
    };
    tokio::select! {
        biased;
        failed = notify => failed,
        () = precise_timer.after(at_most) => cannot_wait,
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

/// The slot of a run, freed when its task is gone for whatever reason.
struct Slot {
    lease: Lease,
    call: Call,
    /// `None` until the run has ended by itself.
    verdict: Option<Verdict>,
    ended: UnboundedSender<Ended>,
    begun: Instant,
    /// What counts how long the run took, and when it began; `None` without metrics.
    counted: Option<(Metrics, Instant)>,
    traced: Running,
}

impl Slot {
    fn fill(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((metrics, begin)) = &self.counted {
            metrics.ran(self.call.queue(), self.call.kind(), begin.elapsed());
        }
        let verdict = self.verdict.take().unwrap_or_else(|| {
            if std::thread::panicking() {
                verdict(
                    Outcome::retry(format_args!("{PANICKED}in a destructor of the run")),
                    &self.call,
                    fastrand::f64(),
                )
            } else {
                // Aborted by shutdown, or its runtime is shutting down.
                Verdict::Release
            }
        });
        self.traced.end(&self.call, &verdict, verdict_name(&verdict));
        // Fails only if the loop has ended, which then does not need it.
        let _ = self.ended.send(Ended { lease: self.lease, verdict, begun: self.begun });
    }
}
