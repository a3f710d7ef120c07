//! The referee: what the answers so far say of each job, and whether the next answer agrees with that.
//!
//! It is told of every call and its answer, also of an answer that its caller never gets. It knows nothing of the model
//! but its answers, and shares no code with it.

use std::{collections::BTreeMap, time::Duration};

use punctual::{
    JobRecord, OnConflict, Priority, State, Timestamp,
    job::Scope as Held,
    store::{
        Batch, CallId, Counts, EndReason, Enqueued, Lease, LeaseStatus, Reserved, Settled, model::Model,
    },
};

use crate::{
    rule::{Broke, Checked, Rule, check},
    scope::{BACKOFF, End, LEASE, Scope},
};

/// How long a silence holds a lease back that ended in it (S9).
const QUIET: Duration = Duration::from_secs(6);

/// How long after a lease could be reclaimed an action on its job does so (S9).
const ORPHANED: Duration = Duration::from_mins(1);

/// How long a gap between two calls is no silence yet: half of a lease (S9).
const GAP: Duration = Duration::from_millis(7_500);

/// From how many expired leases in a row on a job without company is dead (S9).
const POISON: u32 = 3;

/// What is known of a job.
#[derive(Clone, Debug)]
struct Known {
    state: State,
    due: Timestamp,
    attempt: u32,
    expired: u32,
    cancel: bool,
    /// Whether it ever started.
    started: bool,
    created: Timestamp,
    lease: Option<Current>,
    /// The highest fence so far.
    fence: u64,
    /// Whether it can hold its unique key.
    holds_key: bool,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    fence: u64,
    until: Timestamp,
    company: bool,
}

/// What is known of all jobs.
#[derive(Clone, Debug)]
pub(crate) struct Referee {
    jobs: Vec<Option<Known>>,
    /// Until when a run paused a group, or (`None`) the queue.
    paused: BTreeMap<Option<String>, Timestamp>,
    last_call: Option<Timestamp>,
    silences: Vec<Silence>,
}

/// A time without a call.
#[derive(Clone, Copy, Debug)]
struct Silence {
    from: Timestamp,
    to: Timestamp,
}

impl Referee {
    pub(crate) fn new(jobs: usize) -> Self {
        Self { jobs: vec![None; jobs], paused: BTreeMap::new(), last_call: None, silences: Vec::new() }
    }

    fn known(&self) -> impl Iterator<Item = (usize, &Known)> {
        self.jobs.iter().enumerate().filter_map(|(job, known)| Some((job, known.as_ref()?)))
    }

    pub(crate) fn is_waiting(&self, job: usize) -> bool {
        self.jobs[job].as_ref().is_some_and(|known| known.state == State::Waiting)
    }

    pub(crate) fn has_ended(&self, job: usize) -> bool {
        self.jobs[job].as_ref().is_some_and(|known| known.state.is_ended())
    }

    pub(crate) fn is_live(&self, job: usize) -> bool {
        self.jobs[job].as_ref().is_some_and(|known| !known.state.is_ended())
    }

    pub(crate) fn is_cancel_requested(&self, job: usize) -> bool {
        self.jobs[job].as_ref().is_some_and(|known| known.cancel)
    }

    /// Returns the jobs that have not ended.
    pub(crate) fn live(&self) -> Vec<usize> {
        self.known().filter(|(_, known)| !known.state.is_ended()).map(|(job, _)| job).collect()
    }

    /// Returns whether a lease is current.
    pub(crate) fn is_current(&self, job: usize, fence: u64) -> bool {
        self.lease(job).is_some_and(|lease| lease.fence == fence)
    }

    fn lease(&self, job: usize) -> Option<Current> {
        self.jobs[job].as_ref()?.lease
    }

    pub(crate) fn has_leases(&self) -> bool {
        self.known().any(|(_, known)| known.lease.is_some())
    }

    /// Returns the instants at which something changes by itself.
    pub(crate) fn instants(&self, scope: &Scope) -> Vec<Timestamp> {
        let mut all: Vec<Timestamp> = self.paused.values().copied().collect();
        for (job, known) in self.known() {
            match known.lease {
                Some(lease) => all.extend([lease.until, self.over_at(lease)]),
                None if known.state == State::Waiting => all.push(known.due),
                None => {}
            }
            if let Some(Held::Window { window_ms }) =
                scope.jobs[job].unique.as_ref().map(|unique| unique.scope)
            {
                all.push(known.created.after(Duration::from_millis(window_ms)));
            }
        }
        all
    }

    // ── enqueue ──

    /// Returns the job that holds the unique key of another one.
    fn holder(&self, scope: &Scope, job: usize, now: Timestamp) -> Option<usize> {
        let of = |job: usize| scope.jobs[job].unique.as_ref();
        let unique = of(job)?;
        self.known()
            .filter(|(other, _)| of(*other).is_some_and(|other| other.key == unique.key))
            .find(|(other, known)| match of(*other).map(|unique| unique.scope) {
                Some(Held::UntilDone) => !known.state.is_ended(),
                Some(Held::UntilStart) => known.holds_key && !known.state.is_ended(),
                Some(Held::Window { window_ms }) => {
                    known.holds_key && now < known.created.after(Duration::from_millis(window_ms))
                }
                None => false,
            })
            .map(|(other, _)| other)
    }

    pub(crate) fn enqueued(
        &mut self,
        scope: &Scope,
        now: Timestamp,
        job: usize,
        answer: &Enqueued,
        is_repeated: bool,
    ) -> Checked {
        let name = format!("job {}", job + 1);
        if is_repeated {
            // The same answer as that which was lost.
            let is_once = match (answer, &self.jobs[job]) {
                (Enqueued::Inserted { run_at, .. }, Some(known)) => {
                    *run_at == scope.jobs[job].run_at.resolve(known.created)
                }
                (Enqueued::Duplicate(_), known) => known.is_none(),
                _ => false,
            };
            return check(is_once, Rule::Once, || {
                format!("the repeated enqueue of {name} is answered {answer:?}")
            });
        }
        let holder = self.holder(scope, job, now);
        match (answer, holder) {
            (Enqueued::Inserted { run_at, .. }, None) => {
                let due = scope.jobs[job].run_at.resolve(now);
                check(*run_at == due, Rule::AnswersHold, || format!("{name} is due at {run_at}, not {due}"))?;
                self.jobs[job] = Some(Known {
                    state: State::Waiting,
                    due,
                    attempt: 1,
                    expired: 0,
                    cancel: false,
                    started: false,
                    created: now,
                    lease: None,
                    fence: 0,
                    holds_key: scope.jobs[job].unique.is_some(),
                });
                Ok(())
            }
            (Enqueued::Inserted { .. }, Some(holder)) => Err(Broke {
                rule: Rule::UniqueKey,
                how: format!("{name} was inserted, although job {} holds its key", holder + 1),
            }),
            (Enqueued::Duplicate(_), Some(_)) => Ok(()),
            (Enqueued::Rescheduled { id, run_at }, Some(holder)) => {
                let rule = scope.jobs[job].unique.as_ref().map(|unique| unique.on_conflict);
                let fits = scope.jobs[holder].id == *id
                    && self.is_waiting(holder)
                    && rule == Some(OnConflict::Reschedule);
                check(fits, Rule::UniqueKey, || format!("{name} rescheduled job {}", holder + 1))?;
                if let Some(known) = &mut self.jobs[holder] {
                    known.due = *run_at;
                }
                Ok(())
            }
            _ => Err(Broke {
                rule: Rule::UniqueKey,
                how: format!("the enqueue of {name} is answered {answer:?}"),
            }),
        }
    }

    // ── time ──

    /// Notes a call that leaves a mark (S9).
    pub(crate) fn called(&mut self, now: Timestamp) {
        for Silence { from, to } in &mut self.silences {
            // After a step of the clock back, it ended now, and lasted as long.
            let back = to.since(now);
            *from = before(*from, back);
            *to = before(*to, back);
        }
        self.silences.retain(|silence| now < silence.to.after(silence.to.since(silence.from) * 4 / 5));
        if let Some(from) = self.last_call
            && self.has_leases()
            && from.after(GAP) < now
        {
            self.silences.push(Silence { from, to: now });
        }
        self.last_call = Some(now);
    }

    /// Returns when a lease can be reclaimed.
    fn over_at(&self, lease: Current) -> Timestamp {
        let holds = |silence: &&Silence| silence.from < lease.until && lease.until < silence.to.after(LEASE);
        let pauses = self.silences.iter().filter(holds).map(|silence| silence.to.after(QUIET));
        pauses.chain([lease.until]).max().unwrap_or(lease.until)
    }

    /// Notes that an action on a job first reclaims its lease, if that is over; returns the state of the job if so.
    pub(crate) fn acted(&mut self, scope: &Scope, now: Timestamp, job: usize) -> Option<State> {
        self.called(now);
        let lease = self.lease(job).filter(|lease| self.over_at(*lease).after(ORPHANED) <= now)?;
        Some(self.end_expired(scope, now, job, lease))
    }

    // ── reserve ──

    /// Checks the answer to a reserve that was made for the first time.
    pub(crate) fn reserved(
        &mut self,
        scope: &Scope,
        now: Timestamp,
        n: usize,
        company: bool,
        batch: &Batch,
    ) -> Checked {
        for reclaimed in &batch.reclaimed {
            self.reclaimed(scope, now, reclaimed.lease, reclaimed.state)?;
        }
        let is_over = |known: &Known| known.lease.is_some_and(|lease| self.over_at(lease) <= now);
        let left: Vec<usize> = self.known().filter(|(_, known)| is_over(known)).map(|(job, _)| job).collect();
        check(left.is_empty(), Rule::Starts, || {
            format!("the expired lease of job {} is not reclaimed", left[0] + 1)
        })?;
        let before: Vec<usize> = self.in_order(scope, now);
        for reserved in &batch.jobs {
            let job = of(scope, reserved.lease)?;
            self.started(scope, now, job, reserved, company)?;
        }
        let numbers = batch.jobs.iter().filter_map(|reserved| scope.number_of(reserved.lease.job));
        let has_one_order = scope.jobs.iter().all(|job| job.group.is_none() && job.concurrency.is_none());
        if has_one_order {
            let given: Vec<usize> = numbers.collect();
            check(before.starts_with(&given), Rule::Order, || {
                format!("{} started, but the order is {}", list(&given), list(&before))
            })?;
        }
        let left = self.in_order(scope, now);
        check(n <= batch.jobs.len() || batch.more || left.is_empty(), Rule::Starts, || {
            format!("{} can start, a slot is free, and no more is announced", list(&left))
        })?;
        self.wakes(scope, now, batch)
    }

    /// Checks the answer to a repeated reserve.
    pub(crate) fn reserved_again(
        &mut self,
        scope: &Scope,
        now: Timestamp,
        given: &[Lease],
        batch: &Batch,
    ) -> Checked {
        let current =
            |lease: &&Lease| scope.number_of(lease.job).is_some_and(|job| self.is_current(job, lease.fence));
        let expected: Vec<Lease> = given.iter().filter(current).copied().collect();
        let answered: Vec<Lease> = batch.jobs.iter().map(|job| job.lease).collect();
        check(expected == answered && batch.reclaimed.is_empty(), Rule::Once, || {
            let name = |leases: &[Lease]| {
                list(&leases.iter().filter_map(|lease| scope.number_of(lease.job)).collect::<Vec<_>>())
            };
            let new = answered.iter().filter(|lease| !given.contains(lease)).count();
            format!(
                "the repeated reserve returns {}, {new} of them new leases, not {}",
                name(&answered),
                name(&expected)
            )
        })?;
        for reserved in &batch.jobs {
            let job = of(scope, reserved.lease)?;
            self.extend_to(now, job, reserved.until)?;
        }
        self.wakes(scope, now, batch)
    }

    fn started(
        &mut self,
        scope: &Scope,
        now: Timestamp,
        job: usize,
        reserved: &Reserved,
        company: bool,
    ) -> Checked {
        let Reserved { lease, until, job: ref record, .. } = *reserved;
        let name = format!("job {}", job + 1);
        let Some(known) = &self.jobs[job] else {
            return Err(Broke {
                rule: Rule::AnswersHold,
                how: format!("{name} starts, but was never stored"),
            });
        };
        let Known { state, due, attempt, expired, fence, .. } = *known;
        check(!state.is_ended(), Rule::EndedStays, || format!("{name} starts, but is {state}"))?;
        check(known.lease.is_none(), Rule::OneLease, || format!("{name} starts, but its lease is current"))?;
        check(due <= now, Rule::NeverEarly, || {
            format!("{name} starts {} ms early", due.since(now).as_millis())
        })?;
        check(fence < lease.fence, Rule::Fenced, || format!("the fence of {name} does not rise"))?;
        check(record.attempt == attempt, Rule::Attempts, || {
            format!("{name} starts attempt {}, not {attempt}", record.attempt)
        })?;
        check(until == now.after(LEASE), Rule::LeaseTime, || format!("the lease of {name} ends at {until}"))?;
        if let Some(limit) = self.full(scope, now, job) {
            return Err(Broke {
                rule: Rule::Limits,
                how: format!("{name} starts beside the jobs that run: {limit}"),
            });
        }
        let company = company && POISON <= expired + 1;
        if let Some(known) = &mut self.jobs[job] {
            (known.state, known.started, known.fence) = (State::Running, true, lease.fence);
            known.lease = Some(Current { fence: lease.fence, until, company });
            if scope.jobs[job].unique.as_ref().is_some_and(|unique| unique.scope == Held::UntilStart) {
                known.holds_key = false;
            }
        }
        Ok(())
    }

    /// Returns the limit that keeps a job from starting beside those that run.
    fn full(&self, scope: &Scope, now: Timestamp, job: usize) -> Option<String> {
        let new = &scope.jobs[job];
        let running = |matches: &dyn Fn(usize) -> bool| {
            self.known().filter(|(other, known)| known.lease.is_some() && matches(*other)).count()
        };
        if let Some(most) = scope.settings.concurrency
            && most as usize <= running(&|_| true)
        {
            return Some(format!("the queue allows {most}"));
        }
        if let (Some(group), Some(most)) = (&new.group, scope.settings.group.concurrency)
            && most as usize <= running(&|other| scope.jobs[other].group.as_ref() == Some(group))
        {
            return Some(format!("group {group} allows {most}"));
        }
        if let Some(key) = &new.concurrency {
            let same = |other: usize| {
                let other = &scope.jobs[other];
                other.group == new.group
                    && other.concurrency.as_ref().is_some_and(|other| other.key == key.key)
            };
            if key.limit as usize <= running(&same) {
                return Some(format!("its key allows {}", key.limit));
            }
        }
        let pause = self.pause(scope, job);
        (now < pause).then(|| format!("a run paused it until {pause}"))
    }

    /// Returns until when a job is held back by the pauses of runs.
    fn pause(&self, scope: &Scope, job: usize) -> Timestamp {
        let group = scope.jobs[job].group.as_ref().and_then(|group| self.paused.get(&Some(group.clone())));
        let queue = self.paused.get(&None);
        group.into_iter().chain(queue).copied().max().unwrap_or_default()
    }

    /// Returns the jobs that can start, in their order. Of a concurrency key only the first, because it holds back the
    /// others.
    fn in_order(&self, scope: &Scope, now: Timestamp) -> Vec<usize> {
        let mut due: Vec<usize> = self
            .known()
            .filter(|(_, known)| known.state == State::Waiting && known.due <= now)
            .map(|(job, _)| job)
            .collect();
        let priority = |job: usize| scope.jobs[job].options.priority.unwrap_or(Priority::Normal);
        due.sort_by_key(|&job| {
            (priority(job), self.jobs[job].as_ref().map(|known| known.due), scope.jobs[job].id)
        });
        let mut keys = Vec::new();
        due.retain(|&job| {
            let key = scope.jobs[job].concurrency.as_ref().map(|key| &key.key);
            let is_first = key.is_none_or(|key| !keys.contains(&key));
            keys.extend(key);
            is_first && self.full(scope, now, job).is_none()
        });
        due
    }

    /// Returns whether no waiting job of the same concurrency key comes before a job: the first blocked job of a key also
    /// blocks those after it, whatever their limits are (S15).
    fn is_first_of_key(&self, scope: &Scope, at: Timestamp, job: usize) -> bool {
        let Some(key) = scope.jobs[job].concurrency.as_ref().map(|key| &key.key) else { return true };
        let place = |job: usize, due: Timestamp| {
            (scope.jobs[job].options.priority.unwrap_or(Priority::Normal), due, scope.jobs[job].id)
        };
        let own = self.jobs[job].as_ref().map(|known| place(job, known.due));
        self.known()
            .filter(|(other, known)| known.state == State::Waiting && known.due <= at && *other != job)
            .filter(|(other, _)| {
                scope.jobs[*other].concurrency.as_ref().is_some_and(|other| other.key == *key)
            })
            .all(|(other, known)| own < Some(place(other, known.due)))
    }

    /// Checks that a worker that sleeps as long as it is told misses nothing.
    fn wakes(&self, scope: &Scope, now: Timestamp, batch: &Batch) -> Checked {
        let next = self.known().filter_map(|(job, known)| match known.lease {
            // A worker that lives can be needed for a mark, too.
            Some(lease) => Some(self.over_at(lease).min(now.after(GAP))),
            // What a limit holds back until a run ends needs no time of its own.
            None if known.state == State::Waiting => {
                let at = known.due.max(self.pause(scope, job)).max(now);
                (self.full(scope, at, job).is_none() && self.is_first_of_key(scope, at, job)).then_some(at)
            }
            None => None,
        });
        let Some(next) = next.min() else { return Ok(()) };
        let told = if batch.more { Some(Duration::ZERO) } else { batch.next_due };
        check(told.is_some_and(|told| told <= next.since(now)), Rule::Wakes, || {
            format!("it may sleep {told:?}, but there is work in {:?}", next.since(now))
        })
    }

    fn reclaimed(&mut self, scope: &Scope, now: Timestamp, lease: Lease, state: State) -> Checked {
        let job = of(scope, lease)?;
        let name = format!("job {}", job + 1);
        let Some(current) = self.lease(job).filter(|current| current.fence == lease.fence) else {
            return Err(Broke {
                rule: Rule::LeaseTime,
                how: format!("a lease of {name} is reclaimed that is not current"),
            });
        };
        check(current.until <= now, Rule::LeaseTime, || {
            format!("{name} is reclaimed {} ms early", current.until.since(now).as_millis())
        })?;
        let over_at = self.over_at(current);
        check(over_at <= now, Rule::LeaseTime, || {
            format!(
                "{name} is reclaimed {} ms before the pause after a silence ends",
                over_at.since(now).as_millis()
            )
        })?;
        let expected = self.end_expired(scope, now, job, current);
        check(expected == state, Rule::AnswersHold, || {
            format!("{name} is reclaimed and {state}, not {expected}")
        })
    }

    /// Notes that a lease was reclaimed; returns the state of its job.
    fn end_expired(&mut self, scope: &Scope, now: Timestamp, job: usize, current: Current) -> State {
        let (attempts, low16) = (scope.attempts(job), u64::from(scope.jobs[job].id.low16()));
        let Some(known) = &mut self.jobs[job] else { return State::Waiting };
        known.lease = None;
        known.expired += 1;
        known.state = if known.cancel {
            State::Cancelled
        } else if (POISON <= known.expired && !current.company) || attempts <= known.attempt {
            State::Dead
        } else {
            known.attempt += 1;
            State::Waiting
        };
        known.cancel = false;
        let k = known.expired;
        // S9: (k − 1) × lease × (1 + low 16 bits of the id / 65,536), if k ≥ 3, or k = 2 and the next attempt is the last.
        if known.state == State::Waiting && (3 <= k || k == 2 && known.attempt == attempts) {
            let step = u64::from(k - 1) * LEASE.as_millis() as u64;
            known.due = now.after(Duration::from_millis(step + step * low16 / 65_536));
        }
        known.state
    }

    // ── extend, settle, act ──

    fn extend_to(&mut self, now: Timestamp, job: usize, until: Timestamp) -> Checked {
        check(until == now.after(LEASE), Rule::LeaseTime, || {
            format!("the lease of job {} ends at {until}", job + 1)
        })?;
        if let Some(lease) = self.jobs[job].as_mut().and_then(|known| known.lease.as_mut()) {
            lease.until = until;
        }
        Ok(())
    }

    pub(crate) fn extended(
        &mut self,
        scope: &Scope,
        now: Timestamp,
        lease: Lease,
        company: bool,
        answer: LeaseStatus,
    ) -> Checked {
        let job = of(scope, lease)?;
        let expected = match (self.is_current(job, lease.fence), self.is_cancel_requested(job)) {
            (false, _) => LeaseStatus::Lost,
            (true, false) => LeaseStatus::Held,
            (true, true) => LeaseStatus::CancelRequested,
        };
        check(answer == expected, Rule::Fenced, || {
            format!("the heartbeat of job {} is answered {answer:?}, not {expected:?}", job + 1)
        })?;
        if expected != LeaseStatus::Lost {
            self.extend_to(now, job, now.after(LEASE))?;
            if let Some(lease) = self.jobs[job].as_mut().and_then(|known| known.lease.as_mut()) {
                lease.company |= company;
            }
        }
        Ok(())
    }

    pub(crate) fn settled(
        &mut self,
        scope: &Scope,
        now: Timestamp,
        lease: Lease,
        end: End,
        answer: Settled,
    ) -> Checked {
        let job = of(scope, lease)?;
        let name = format!("job {}", job + 1);
        if !self.is_current(job, lease.fence) {
            return check(answer == Settled::LeaseLost, Rule::Fenced, || {
                format!("a settle of {name} by an old lease is answered {answer:?}")
            });
        }
        check(answer != Settled::LeaseLost, Rule::LeaseTime, || {
            format!("{name} is settled by its lease, which is lost")
        })?;
        let attempts = scope.attempts(job);
        let Some(known) = &mut self.jobs[job] else { return Ok(()) };
        let retries = matches!(end, End::Retry | End::RetryAfter);
        let (state, why) = if end == End::Ack {
            (State::Done, None)
        } else if known.cancel {
            (State::Cancelled, Some(EndReason::CancelRequested))
        } else if end == End::Dead {
            (State::Dead, None)
        } else if retries && attempts <= known.attempt {
            (State::Dead, Some(EndReason::Attempts))
        } else {
            (State::Waiting, None)
        };
        check(answer == Settled::Settled(state, why), Rule::AnswersHold, || {
            format!("{end:?} of {name} is answered {answer:?}, not {state}")
        })?;
        (known.state, known.lease, known.expired, known.cancel) = (state, None, 0, false);
        if state == State::Waiting && retries {
            (known.attempt, known.due) = (known.attempt + 1, now.after(BACKOFF));
        }
        if end == End::RetryAfter {
            let pause = self.paused.entry(scope.jobs[job].group.clone()).or_default();
            *pause = now.after(BACKOFF).max(*pause);
        }
        Ok(())
    }

    /// Notes a cancel, and returns what its answer must be.
    pub(crate) fn cancelled(&mut self, job: usize) -> Option<State> {
        let known = self.jobs[job].as_mut()?;
        match known.state {
            State::Waiting => {
                (known.state, known.holds_key) = (State::Cancelled, known.holds_key && known.started);
                Some(State::Cancelled)
            }
            State::Running => {
                known.cancel = true;
                Some(State::Running)
            }
            _ => None,
        }
    }

    /// Notes an operator's retry of an ended job, and returns the job that holds its unique key, if another one does.
    pub(crate) fn retried(&mut self, scope: &Scope, now: Timestamp, job: usize) -> Option<usize> {
        let takes_key = match scope.jobs[job].unique.as_ref().map(|unique| unique.scope) {
            Some(Held::UntilDone) => true,
            Some(Held::UntilStart | Held::Window { .. }) => {
                self.jobs[job].as_ref().is_some_and(|known| !known.started)
            }
            None => false,
        };
        if takes_key && let Some(other) = self.holder(scope, job, now).filter(|other| *other != job) {
            return Some(other);
        }
        if let Some(known) = &mut self.jobs[job] {
            (known.state, known.attempt, known.expired, known.due) = (State::Waiting, 1, 0, now);
            known.holds_key |= takes_key;
        }
        None
    }

    pub(crate) fn made_due(&mut self, now: Timestamp, job: usize) {
        if let Some(known) = &mut self.jobs[job] {
            known.due = now;
        }
    }

    // ── the whole ──

    /// Checks each record, the counts and the audit.
    pub(crate) fn agrees(&self, scope: &Scope, now: Timestamp, model: &Model, counted: &Counts) -> Checked {
        let mut counts = Counts::default();
        for (job, known) in self.jobs.iter().enumerate() {
            let record = model.get(now, scope.jobs[job].id);
            let (known, record) = match (known, record) {
                (None, None) => continue,
                (Some(known), Some(record)) => (known, record),
                (known, _) => {
                    let what = if known.is_some() { "is gone" } else { "exists, but was never stored" };
                    return Err(Broke { rule: Rule::AnswersHold, how: format!("job {} {what}", job + 1) });
                }
            };
            record_agrees(scope, now, job, known, &record)?;
            let of_state = match known.state {
                State::Waiting => &mut counts.waiting,
                State::Running => &mut counts.running,
                State::Done => &mut counts.done,
                State::Dead => &mut counts.dead,
                State::Cancelled => &mut counts.cancelled,
            };
            *of_state += 1;
            if known.state == State::Waiting {
                counts.due += u64::from(known.due <= now);
                counts.retrying += u64::from(1 < known.attempt);
            }
            if !known.state.is_ended() {
                counts.bytes += scope.jobs[job].payload.bytes.len() as u64;
            }
        }
        check(*counted == counts, Rule::Counts, || format!("the store counts {counted:?}, not {counts:?}"))?;
        let audited = model.audit(&punctual::store::Audit::default());
        check(audited.findings.is_empty() && audited.checked == counts.total(), Rule::Counts, || {
            format!("the audit says {audited:?}")
        })
    }
}

fn record_agrees(scope: &Scope, now: Timestamp, job: usize, known: &Known, record: &JobRecord) -> Checked {
    let name = format!("job {}", job + 1);
    let state = record.state;
    check(!known.state.is_ended() || state == known.state, Rule::EndedStays, || {
        format!("{name} was {}, and is {state}", known.state)
    })?;
    check(state == known.state, Rule::AnswersHold, || format!("{name} is {state}, not {}", known.state))?;
    check(record.attempt == known.attempt && record.attempt <= scope.attempts(job), Rule::Attempts, || {
        format!("{name} is at attempt {}, not {}, of {}", record.attempt, known.attempt, scope.attempts(job))
    })?;
    check(state != State::Waiting || record.run_at == known.due, Rule::AnswersHold, || {
        format!("{name} is due in {:?}, not {:?}", record.run_at.since(now), known.due.since(now))
    })?;
    check(state != State::Running || record.cancel_requested == known.cancel, Rule::AnswersHold, || {
        format!("the cancel request of {name} is {}", record.cancel_requested)
    })?;
    let run = record.running.as_ref().map(|run| (run.fence, run.until));
    let lease = known.lease.map(|lease| (lease.fence, lease.until));
    check(run == lease, Rule::LeaseTime, || format!("{name} runs under {run:?}, not {lease:?}"))
}

/// Returns an instant that much earlier.
fn before(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp::saturating_from_ms(at.as_ms().saturating_sub(by.as_millis() as u64))
}

/// Returns the number of a lease's job.
fn of(scope: &Scope, lease: Lease) -> Result<usize, Broke> {
    scope
        .number_of(lease.job)
        .ok_or_else(|| Broke { rule: Rule::AnswersHold, how: format!("{} was never enqueued", lease.job) })
}

/// Returns `job 1 and job 2`.
pub(crate) fn list(jobs: &[usize]) -> String {
    if jobs.is_empty() {
        return "nothing".to_owned();
    }
    jobs.iter().map(|job| format!("job {}", job + 1)).collect::<Vec<_>>().join(" and ")
}

/// Returns the number of the next call.
pub(crate) fn next_call(instance: u64, calls: &mut u64) -> CallId {
    *calls += 1;
    CallId { instance, number: *calls }
}
