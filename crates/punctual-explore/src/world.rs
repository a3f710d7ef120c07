//! A world: one store, its workers, its client and its operator, and the steps that each of them can take.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use punctual::{
    State, Timestamp, When,
    store::{Acted, Action, Batch, CallId, Heartbeat, Lease, LeaseStatus, Reserve, Settlement, Verdict},
};

use crate::{
    broken::Broken,
    event::{Event, Events},
    referee::{Referee, list, next_call},
    rule::{Broke, Checked, Rule, check},
    scope::{BACKOFF, Budget, End, JUMP, STEP_BACK, Scope, begin},
    store::{Store, request},
};

/// From how many expired leases in a row on a job is a suspect (S9).
const SUSPECT: u32 = 2;

/// A step of a worker, the client, the operator or the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The client enqueues a job.
    Enqueue {
        /// The number of the job.
        job: usize,
        /// Whether the answer is lost.
        is_lost: bool,
    },
    /// The client repeats the enqueue whose answer was lost.
    EnqueueAgain,
    /// A worker reserves.
    Reserve {
        /// The number of the worker.
        worker: usize,
        /// How many jobs.
        n: usize,
        /// Whether the answer is lost.
        is_lost: bool,
    },
    /// A worker extends a lease.
    Extend {
        /// The number of the worker.
        worker: usize,
        /// Which of the leases that it holds.
        hold: usize,
    },
    /// A worker settles a lease.
    Settle {
        /// The number of the worker.
        worker: usize,
        /// Which of the leases that it holds.
        hold: usize,
        /// How.
        end: End,
        /// How many jobs it reserves in the same call, if it does.
        then: Option<usize>,
        /// Whether the answer is lost.
        is_lost: bool,
    },
    /// A worker repeats the call whose answer was lost.
    Again {
        /// The number of the worker.
        worker: usize,
    },
    /// A worker is killed, and a new one takes its place.
    Crash {
        /// The number of the worker.
        worker: usize,
    },
    /// The operator cancels a job.
    Cancel {
        /// The number of the job.
        job: usize,
    },
    /// The operator lets an ended job run again.
    Retry {
        /// The number of the job.
        job: usize,
    },
    /// The operator makes a waiting job due.
    RunNow {
        /// The number of the job.
        job: usize,
    },
    /// The clock moves to the next instant of interest.
    Tick,
    /// The clock moves to 1 ms before that instant.
    TickBefore,
    /// The clock jumps.
    Jump,
    /// The clock goes back.
    Back,
}

/// A lease that a worker holds, as far as it knows.
#[derive(Clone, Copy, Debug)]
struct Hold {
    lease: Lease,
    job: usize,
    is_suspect: bool,
}

/// A call whose answer was lost.
#[derive(Clone, Debug)]
enum Lost {
    Reserve { request: Reserve, given: Vec<Lease> },
    Settle { hold: Hold, end: End, then: Option<(Reserve, Vec<Lease>)> },
}

#[derive(Clone, Debug)]
struct Worker {
    instance: u64,
    calls: u64,
    holds: Vec<Hold>,
    lost: Option<Lost>,
}

impl Worker {
    fn new(instance: u64) -> Self {
        Self { instance, calls: 0, holds: Vec::new(), lost: None }
    }

    fn is_fresh(&self) -> bool {
        self.holds.is_empty() && self.lost.is_none()
    }

    fn drop_lease(&mut self, lease: Lease) {
        self.holds.retain(|hold| hold.lease != lease);
    }
}

/// How far an enqueue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    NotYet,
    Lost,
    Answered,
}

/// A state of the exploration.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) now: Timestamp,
    pub(crate) store: Store,
    pub(crate) referee: Referee,
    workers: Vec<Worker>,
    /// The enqueue of each job.
    asked: Vec<Asked>,
    client_calls: u64,
    left: Budget,
    /// The last instance of a worker.
    instances: u64,
    /// The rule that the last step broke.
    pub broke: Option<Broke>,
    /// The last step and its answer, in words. No part of the state.
    pub said: String,
    /// What the last step met. No part of the state.
    pub events: Events,
}

impl World {
    /// Makes the state in which an exploration begins.
    pub fn new(scope: &Scope, broken: Option<Broken>) -> Self {
        let now = begin();
        let ids = scope.jobs.iter().map(|job| job.id).collect();
        let mut world = Self {
            now,
            store: Store::new(now, &scope.settings, ids, broken),
            referee: Referee::new(scope.jobs.len()),
            workers: (1..=scope.workers).map(|instance| Worker::new(instance as u64)).collect(),
            asked: vec![Asked::NotYet; scope.jobs.len()],
            client_calls: 0,
            left: scope.budget,
            instances: scope.workers as u64,
            broke: None,
            said: String::new(),
            events: Events::default(),
        };
        for job in 0..if scope.enqueues { 0 } else { scope.jobs.len() } {
            world.step(scope, Step::Enqueue { job, is_lost: false });
        }
        world
    }

    /// Returns the steps that can be taken.
    pub fn steps(&self, scope: &Scope, steps: &mut Vec<Step>) {
        if self.broke.is_some() {
            return;
        }
        let answers: &[bool] = if scope.loses_answers { &[false, true] } else { &[false] };
        let is_lost = self.asked.contains(&Asked::Lost);
        if is_lost {
            steps.push(Step::EnqueueAgain);
        }
        for job in (0..self.asked.len()).filter(|&job| !is_lost && self.asked[job] == Asked::NotYet) {
            steps.extend(answers.iter().map(|&is_lost| Step::Enqueue { job, is_lost }));
        }
        for worker in 0..self.workers.len() {
            self.steps_of(scope, worker, answers, steps);
        }
        for job in 0..self.asked.len() {
            if 0 < self.left.cancels && self.referee.is_live(job) && !self.referee.is_cancel_requested(job) {
                steps.push(Step::Cancel { job });
            }
            if 0 < self.left.retries && self.referee.has_ended(job) {
                steps.push(Step::Retry { job });
            }
            if 0 < self.left.run_nows && self.referee.is_waiting(job) {
                steps.push(Step::RunNow { job });
            }
        }
        if self.next_tick(scope).is_some() {
            steps.push(Step::Tick);
        }
        if 0 < self.left.stops_before && self.before_tick(scope).is_some() {
            steps.push(Step::TickBefore);
        }
        if 0 < self.left.jumps && self.referee.has_leases() {
            steps.push(Step::Jump);
        }
        if 0 < self.left.backs {
            steps.push(Step::Back);
        }
    }

    fn steps_of(&self, scope: &Scope, worker: usize, answers: &[bool], steps: &mut Vec<Step>) {
        let Worker { holds, lost, .. } = &self.workers[worker];
        let free = scope.slots.saturating_sub(holds.len());
        let batches = |free: usize| scope.batches.iter().copied().filter(move |&n| n <= free);
        if lost.is_some() {
            steps.push(Step::Again { worker });
        } else {
            for n in batches(free) {
                steps.extend(answers.iter().map(|&is_lost| Step::Reserve { worker, n, is_lost }));
            }
            for hold in 0..holds.len() {
                for &end in scope.ends {
                    let more = batches(free + 1).map(Some).filter(|_| scope.settles_and_reserves);
                    for then in std::iter::once(None).chain(more) {
                        steps.extend(answers.iter().map(|&is_lost| Step::Settle {
                            worker,
                            hold,
                            end,
                            then,
                            is_lost,
                        }));
                    }
                }
            }
        }
        if scope.extends {
            steps.extend((0..holds.len()).map(|hold| Step::Extend { worker, hold }));
        }
        if scope.crashes && !self.workers[worker].is_fresh() {
            steps.push(Step::Crash { worker });
        }
    }

    /// Returns the next instant at which something changes by itself.
    fn next_tick(&self, scope: &Scope) -> Option<Timestamp> {
        self.referee.instants(scope).into_iter().filter(|at| self.now < *at).min()
    }

    /// Returns 1 ms before that instant, if that is later than now.
    fn before_tick(&self, scope: &Scope) -> Option<Timestamp> {
        let next = self.next_tick(scope)?.as_ms();
        Some(Timestamp::saturating_from_ms(next.saturating_sub(1))).filter(|at| self.now < *at)
    }

    /// Takes a step, and checks all rules but that a drain ends.
    pub fn step(&mut self, scope: &Scope, step: Step) {
        self.events = Events::default();
        let checked = self.take(scope, step).and_then(|()| self.agrees(scope));
        self.broke = checked.err();
    }

    pub(crate) fn agrees(&self, scope: &Scope) -> Checked {
        self.referee.agrees(scope, self.now, &self.store.model, &self.store.count(self.now))
    }

    fn take(&mut self, scope: &Scope, step: Step) -> Checked {
        match step {
            Step::Enqueue { job, is_lost } => self.enqueue(scope, job, is_lost, false),
            Step::EnqueueAgain => match self.asked.iter().position(|asked| *asked == Asked::Lost) {
                Some(job) => self.enqueue(scope, job, false, true),
                None => Ok(()),
            },
            Step::Reserve { worker, n, is_lost } => {
                let request = self.request(worker, n, None);
                let batch = self.store.reserve(self.now, &request, false);
                self.referee.called(self.now);
                self.said = format!("{} reserves {n}: {}", name(worker), batch_said(scope, &batch, is_lost));
                self.reserved(scope, worker, &request, &batch, is_lost)?;
                if is_lost {
                    self.workers[worker].lost = Some(Lost::Reserve { request, given: leases(&batch) });
                }
                Ok(())
            }
            Step::Extend { worker, hold } => self.extend(scope, worker, hold),
            Step::Settle { worker, hold, end, then, is_lost } => {
                let hold = self.workers[worker].holds[hold];
                let then = then.map(|n| self.request(worker, n, Some(hold)));
                self.settle(scope, worker, hold, end, then, None, is_lost)
            }
            Step::Again { worker } => self.repeat(scope, worker),
            Step::Crash { worker } => {
                self.said = format!("{} is killed, and starts again", name(worker));
                self.crash(worker);
                Ok(())
            }
            Step::Cancel { job } => self.cancel(scope, job),
            Step::Retry { job } => self.retry(scope, job),
            Step::RunNow { job } => {
                self.left.run_nows -= 1;
                self.referee.acted(scope, self.now, job);
                let acted = self.store.act(self.now, scope.jobs[job].id, &Action::RunNow);
                self.said = format!("the operator makes job {} due", job + 1);
                self.referee.made_due(self.now, job);
                let expected = Acted::Done(scope.jobs[job].id, State::Waiting);
                check(acted == expected, Rule::AnswersHold, || format!("run-now is answered {acted:?}"))
            }
            Step::Tick => {
                self.now = self.next_tick(scope).unwrap_or(self.now);
                self.said = format!("the clock moves to {}", shown(self.now));
                Ok(())
            }
            Step::TickBefore => {
                self.left.stops_before -= 1;
                self.now = self.before_tick(scope).unwrap_or(self.now);
                self.said = format!("the clock moves to {}", shown(self.now));
                Ok(())
            }
            Step::Jump => {
                self.left.jumps -= 1;
                self.now = self.now.after(JUMP);
                self.said = format!("the clock jumps to {}", shown(self.now));
                self.events.note(Event::Jump);
                Ok(())
            }
            Step::Back => {
                self.left.backs -= 1;
                let back = self.now.as_ms().saturating_sub(STEP_BACK.as_millis() as u64);
                self.now = Timestamp::saturating_from_ms(back);
                self.said = format!("the clock goes back to {}", shown(self.now));
                Ok(())
            }
        }
    }

    // ── the client ──

    fn enqueue(&mut self, scope: &Scope, job: usize, is_lost: bool, is_repeated: bool) -> Checked {
        if !is_repeated {
            self.client_calls += 1;
        }
        let call = CallId { instance: 0, number: self.client_calls };
        let answer = self.store.enqueue(self.now, call, &scope.jobs[job]);
        let what = if is_repeated { "repeats the enqueue of" } else { "enqueues" };
        let lost = if is_lost { ", and the answer is lost" } else { "" };
        self.said = format!("the client {what} job {}: {}{lost}", job + 1, answer.name());
        self.asked[job] = if is_lost { Asked::Lost } else { Asked::Answered };
        if !answer.is_new() && !is_repeated {
            self.events.note(Event::Duplicate);
        }
        self.referee.enqueued(scope, self.now, job, &answer, is_repeated)
    }

    // ── a worker ──

    /// Makes the next reserve of a worker, in the same call as the settle of `settled`.
    fn request(&mut self, worker: usize, n: usize, settled: Option<Hold>) -> Reserve {
        let Worker { instance, calls, holds, .. } = &mut self.workers[worker];
        let is_kept = |hold: &&Hold| settled.is_none_or(|settled| settled.lease != hold.lease);
        let company = holds.iter().filter(is_kept).any(|hold| hold.is_suspect);
        Reserve { worker: name(worker), ..request(next_call(*instance, calls), n, company) }
    }

    fn reserved(
        &mut self,
        scope: &Scope,
        worker: usize,
        request: &Reserve,
        batch: &Batch,
        is_lost: bool,
    ) -> Checked {
        self.note_batch(scope, batch);
        self.referee.reserved(scope, self.now, request.n, request.company, batch)?;
        if !is_lost {
            self.hold(scope, worker, batch);
        }
        Ok(())
    }

    /// Adds the jobs of an answer to those that a worker holds.
    fn hold(&mut self, scope: &Scope, worker: usize, batch: &Batch) {
        for reserved in &batch.jobs {
            if let Some(job) = scope.number_of(reserved.lease.job) {
                let is_suspect = SUSPECT <= reserved.job.expired_leases;
                self.workers[worker].holds.push(Hold { lease: reserved.lease, job, is_suspect });
            }
        }
    }

    fn note_batch(&mut self, scope: &Scope, batch: &Batch) {
        for reclaimed in &batch.reclaimed {
            self.events.note(Event::Reclaimed);
            if reclaimed.state == State::Dead {
                let job = self.store.model.get(self.now, reclaimed.lease.job);
                let is_poison = job.and_then(|job| job.reason).as_deref() == Some("crashes");
                self.events.note(if is_poison { Event::Poison } else { Event::LastAttempt });
            }
        }
        let is_blocked =
            |job: &punctual::NewJob| self.store.model.get(self.now, job.id).is_some_and(|job| job.blocked);
        if scope.jobs.iter().any(is_blocked) {
            self.events.note(Event::Blocked);
        }
    }

    fn extend(&mut self, scope: &Scope, worker: usize, hold: usize) -> Checked {
        let Hold { lease, job, is_suspect } = self.workers[worker].holds[hold];
        let others = self.workers[worker].holds.iter().filter(|other| other.lease != lease);
        let company = is_suspect && others.clone().any(|other| other.is_suspect);
        let answer = self.store.extend(self.now, &Heartbeat { company, ..Heartbeat::from(lease) });
        self.said = format!("{} extends its lease of job {}: {}", name(worker), job + 1, status(answer));
        self.referee.called(self.now);
        if answer == LeaseStatus::Lost {
            self.events.note(Event::LateHeartbeat);
            self.workers[worker].drop_lease(lease);
        }
        self.referee.extended(scope, self.now, lease, company, answer)
    }

    /// Settles a lease. `given`: what the first call returned, if this one repeats it.
    #[expect(clippy::too_many_arguments, reason = "a call and its fate")]
    fn settle(
        &mut self,
        scope: &Scope,
        worker: usize,
        hold: Hold,
        end: End,
        then: Option<Reserve>,
        given: Option<&[Lease]>,
        is_lost: bool,
    ) -> Checked {
        let is_repeated = given.is_some();
        let settlement = Settlement { lease: hold.lease, verdict: verdict(end) };
        let (settled, batch) = self.store.settle(self.now, &settlement, then.as_ref(), is_repeated);
        self.referee.called(self.now);
        let what = if is_repeated { "repeats its settle of" } else { "settles" };
        let answer = match settled {
            punctual::store::Settled::Settled(state, _) => state.name(),
            _ => "lease lost",
        };
        let lost = if is_lost { ", and the answer is lost" } else { "" };
        self.said = format!("{} {what} job {} with {end:?}: {answer}{lost}", name(worker), hold.job + 1);
        if let Some(batch) = &batch {
            self.said = format!("{}; reserves: {}", self.said, batch_said(scope, batch, false));
            self.events.note(Event::SettledAndReserved);
        }
        match settled {
            punctual::store::Settled::LeaseLost if !is_repeated => self.events.note(Event::LateSettle),
            punctual::store::Settled::Settled(_, Some(why)) => self.events.note(why.into()),
            _ => {}
        }
        if !is_lost {
            self.workers[worker].drop_lease(hold.lease);
        }
        self.referee.settled(scope, self.now, hold.lease, end, settled)?;
        let mut leases_given = Vec::new();
        if let (Some(request), Some(batch)) = (&then, &batch) {
            leases_given = leases(batch);
            match given {
                Some(given) => {
                    self.events.note(Event::RepeatedReserve);
                    self.referee.reserved_again(scope, self.now, given, batch)?;
                    self.hold(scope, worker, batch);
                }
                None => self.reserved(scope, worker, request, batch, is_lost)?,
            }
        }
        if is_lost {
            let then = then.map(|request| (request, leases_given));
            self.workers[worker].lost = Some(Lost::Settle { hold, end, then });
        }
        Ok(())
    }

    fn repeat(&mut self, scope: &Scope, worker: usize) -> Checked {
        match self.workers[worker].lost.take() {
            None => Ok(()),
            Some(Lost::Reserve { request, given }) => {
                let batch = self.store.reserve(self.now, &request, true);
                self.said =
                    format!("{} repeats its reserve: {}", name(worker), batch_said(scope, &batch, false));
                if !batch.jobs.is_empty() {
                    self.events.note(Event::RepeatedReserve);
                }
                self.referee.reserved_again(scope, self.now, &given, &batch)?;
                self.hold(scope, worker, &batch);
                Ok(())
            }
            Some(Lost::Settle { hold, end, then }) => {
                let (request, given) = then.unzip();
                let given = given.unwrap_or_default();
                self.settle(scope, worker, hold, end, request, Some(&given), false)
            }
        }
    }

    pub(crate) fn crash(&mut self, worker: usize) {
        self.instances += 1;
        let fresh = Worker::new(self.instances);
        let gone = std::mem::replace(&mut self.workers[worker], fresh);
        let unknown = match gone.lost {
            Some(Lost::Reserve { given, .. } | Lost::Settle { then: Some((_, given)), .. }) => given,
            _ => Vec::new(),
        };
        self.store.crash(gone.holds.iter().map(|hold| hold.lease).chain(unknown));
    }

    // ── the operator ──

    fn cancel(&mut self, scope: &Scope, job: usize) -> Checked {
        self.left.cancels -= 1;
        let id = scope.jobs[job].id;
        let reclaimed = self.referee.acted(scope, self.now, job);
        let acted = self.store.act(self.now, id, &Action::Cancel { reason: None });
        let expected = match self.referee.cancelled(job) {
            // The cancel had been requested, or the job is dead.
            None if reclaimed == Some(State::Cancelled) => Acted::Done(id, State::Cancelled),
            None if reclaimed.is_some() => Acted::WrongState(id, reclaimed.unwrap_or(State::Dead)),
            Some(State::Running) => Acted::Requested(id),
            Some(state) => Acted::Done(id, state),
            None => return Ok(()),
        };
        let answer = if acted == Acted::Requested(id) { "requested" } else { "cancelled" };
        self.said = format!("the operator cancels job {}: {answer}", job + 1);
        check(acted == expected, Rule::AnswersHold, || {
            format!("the cancel is answered {acted:?}, not {expected:?}")
        })
    }

    fn retry(&mut self, scope: &Scope, job: usize) -> Checked {
        self.left.retries -= 1;
        let id = scope.jobs[job].id;
        self.referee.acted(scope, self.now, job);
        let acted = self.store.act(self.now, id, &Action::Retry);
        self.said = format!("the operator retries job {}", job + 1);
        let expected = match self.referee.retried(scope, self.now, job) {
            Some(other) => {
                self.events.note(Event::UniqueConflict);
                Acted::UniqueConflict(scope.jobs[other].id)
            }
            None => Acted::Done(id, State::Waiting),
        };
        check(acted == expected, Rule::UniqueKey, || {
            format!("the retry is answered {acted:?}, not {expected:?}")
        })
    }

    // ── a drain ──

    /// Ends all faults: every worker is gone but a new one, which nothing disturbs.
    pub(crate) fn heal(&mut self) {
        for worker in 0..self.workers.len() {
            self.crash(worker);
        }
        self.workers.truncate(1);
    }

    /// Reserves with the only worker, and acks what it gets.
    pub(crate) fn work(&mut self, scope: &Scope, slots: usize) -> Result<Batch, Broke> {
        let request = self.request(0, slots, None);
        let batch = self.store.reserve(self.now, &request, false);
        self.referee.called(self.now);
        self.reserved(scope, 0, &request, &batch, false)?;
        self.agrees(scope)?;
        while let Some(hold) = self.workers[0].holds.first().copied() {
            self.settle(scope, 0, hold, End::Ack, None, None, false)?;
            self.agrees(scope)?;
        }
        Ok(batch)
    }

    pub(crate) fn sleep(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }
}

/// Two worlds that hash alike answer alike from now on. Workers have no names here: which of them holds what does not
/// matter, only who holds what together.
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let can_go_back = 0 < self.left.backs;
        self.store.model.hash_future(self.now, can_go_back, hasher);
        (self.left, &self.asked).hash(hasher);
        self.broke.as_ref().map(|broke| broke.rule).hash(hasher);
        let is_current = |hold: &Hold| self.referee.is_current(hold.job, hold.lease.fence);
        let held =
            |hold: &Hold| (hold.job, is_current(hold), hold.is_suspect, self.store.is_crashed(hold.lease));
        let mut workers: Vec<u64> = Vec::with_capacity(self.workers.len());
        for worker in &self.workers {
            let mut hasher = DefaultHasher::new();
            let mut holds: Vec<_> = worker.holds.iter().map(held).collect();
            holds.sort_unstable();
            holds.hash(&mut hasher);
            match &worker.lost {
                None => 0_u8.hash(&mut hasher),
                Some(Lost::Reserve { request, .. }) => {
                    let leases = self.store.model.current_of_last_reserve(worker.instance);
                    (1_u8, jobs_of(&leases), request.n, request.company).hash(&mut hasher);
                }
                Some(Lost::Settle { hold, end, then }) => {
                    let then = then.as_ref().map(|(request, _)| {
                        let leases = self.store.model.current_of_last_reserve(worker.instance);
                        (jobs_of(&leases), request.n, request.company)
                    });
                    (2_u8, held(hold), end, then).hash(&mut hasher);
                }
            }
            workers.push(hasher.finish());
        }
        workers.sort_unstable();
        workers.hash(hasher);
        let crashed = |lease: Lease| self.store.is_crashed(lease);
        self.store.current(self.now).into_iter().map(crashed).collect::<Vec<_>>().hash(hasher);
    }
}

/// As they hash: worlds that answer alike are one state.
impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let hash = |world: &Self| {
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        hash(self) == hash(other)
    }
}

/// Returns the answer to a reserve, in words.
fn batch_said(scope: &Scope, batch: &Batch, is_lost: bool) -> String {
    let numbers = |leases: &mut dyn Iterator<Item = Lease>| {
        list(&leases.filter_map(|lease| scope.number_of(lease.job)).collect::<Vec<_>>())
    };
    let mut said = numbers(&mut batch.jobs.iter().map(|job| job.lease));
    for reclaimed in &batch.reclaimed {
        let job = scope.number_of(reclaimed.lease.job).map_or(0, |job| job + 1);
        said = format!("{said}; job {job} is reclaimed and {}", reclaimed.state);
    }
    if is_lost { format!("{said}, and the answer is lost") } else { said }
}

/// Returns the ids of leases' jobs.
fn jobs_of(leases: &[Lease]) -> Vec<punctual::JobId> {
    leases.iter().map(|lease| lease.job).collect()
}

fn leases(batch: &Batch) -> Vec<Lease> {
    batch.jobs.iter().map(|job| job.lease).collect()
}

fn verdict(end: End) -> Verdict {
    let (at, error) = (When::In(BACKOFF), "no".to_owned());
    match end {
        End::Ack => Verdict::Ack,
        End::Retry => Verdict::Retry { at, error },
        End::RetryAfter => Verdict::RetryAfter { at, error },
        End::Release => Verdict::Release,
        End::Dead => Verdict::Dead { error },
    }
}

/// Returns `worker A` for the first worker.
fn name(worker: usize) -> String {
    format!("worker {}", char::from(b'A' + (worker % 26) as u8))
}

fn status(status: LeaseStatus) -> &'static str {
    match status {
        LeaseStatus::Held => "held",
        LeaseStatus::CancelRequested => "held, and its cancel is requested",
        LeaseStatus::Lost => "lost",
        LeaseStatus::Away => "away",
    }
}

/// Returns an instant as the time since the beginning: `+10.000 s`.
pub(crate) fn shown(at: Timestamp) -> impl fmt::Display {
    let ms = at.as_ms().cast_signed() - begin().as_ms().cast_signed();
    format!("{:+}.{:03} s", ms / 1_000, (ms % 1_000).abs())
}
