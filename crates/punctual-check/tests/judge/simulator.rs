//! A small queue with processes that overlap, stall and are killed, which writes its own history: clean, or with one bug
//! planted. It shares nothing with the library but ids and states.

use std::collections::BTreeMap;

use fastrand::Rng;
use punctual::{
    JobId, State,
    job::{IdMaker, Scope},
};
use punctual_check::event::{
    Accepted, Answer, CallId, Deed, Due, Dumped, Effect, Ended, Expect, Hex, Key, LeaseId, Line, Op,
    Reservation, Reservations, Said, Wanted, What,
};

/// Where the store's clock stands when the referee's shows 0.
const EPOCH_MS: u64 = 1_795_000_000_000;
const MS: u64 = 1_000_000;
/// How long leases last, in milliseconds.
const LASTS: u64 = 40;
/// Of marked jobs: long enough never to be reclaimed three times.
const LASTS_MARKED: u64 = 10_000;
/// So many that stalls, which lose leases without a kill, pass no budget.
const SLOTS: u64 = 1_000;

macro_rules! bugs {
    ($($bug:ident => $rule:literal,)+) => {
        /// What can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Bug { $($bug),+ }

        impl Bug {
            /// Each with the rule that must catch it.
            pub(crate) const ALL: &[(Self, &'static str)] = &[$((Self::$bug, $rule)),+];
        }
    };
}

bugs! {
    AckedThenGone => "D1",
    WaitingNotAtRest => "D1",
    ReservedButNeverEnqueued => "D2",
    PayloadMixedUp => "D2",
    HandlerMetOtherPayload => "D2",
    HandlerWithoutReservation => "D2",
    RefusedButStored => "D3",
    InsertedTwice => "D3",
    DoneRunsAgain => "D4",
    DeadRunsAgain => "D4",
    DoneButWaitsAtRest => "D4",
    SettlementForgotten => "D4",
    HandlerBeganTwice => "D5",
    MoreDuplicatesThanSlots => "D5",
    ReservedWhileHeld => "D6",
    StaleLeaseSettles => "D6",
    SettledTwice => "D6",
    StaleLeaseHeld => "D6",
    HeldAfterItsEnd => "D6",
    PoisonNeverDies => "D7",
    DiesOfOneCrash => "D7",
    ReleaseCounts => "D7b",
    CrashCountsNoAttempt => "D7b",
    CrashesNotCounted => "D7b",
    CrashesSurviveSettle => "D7b",
    CrashMovesRunAt => "D7b",
    PoisonNotParted => "D7b",
    TwoPlacesAtRest => "D9",
    AuditFindsSomething => "D9",
    AckLeadsToWaiting => "V",
    LostForNoReason => "S8",
    TakenBackEarly => "S9",
    FenceFell => "F1",
    FenceReused => "F1",
    EarlyByOneMs => "T1",
    DelayIgnored => "T1",
    PromiseNotKept => "T1",
    RetryTooSoon => "T1",
    CancelledRuns => "C1",
    CancelRequestForgotten => "C1",
    RescheduleIgnored => "C2",
    TwoHoldersOfAKey => "U1",
    MarkedJobEndsDead => "E",
}

#[expect(clippy::struct_excessive_bools, reason = "a row of a test double, not an interface")]
struct Job {
    id: JobId,
    sum: Hex,
    state: State,
    run_at: u64,
    created: u64,
    attempt: u32,
    expired_leases: u32,
    max_attempts: u32,
    cancel: bool,
    lease: Option<Lease>,
    fences: Vec<u64>,
    key: Option<u32>,
    marked: bool,
    lasts: u64,
    reason: Option<&'static str>,
    /// What operators did to it.
    deeds: Vec<Deed>,
    /// When the last call about it was answered.
    answered: u64,
    /// Operators leave it alone: a bug is planted that only its next run shows.
    victim: bool,
    /// When it should be due, where a bug makes it due earlier.
    should: Option<u64>,
    /// The fence under which a handler began last.
    started: u64,
    /// That lease was reclaimed, so the next start is a duplicate.
    again: bool,
}

impl Job {
    /// When something may happen to it.
    fn wakes_at(&self) -> u64 {
        self.lease.map_or(self.run_at, |lease| lease.until)
    }
}

#[derive(Clone, Copy)]
struct Lease {
    fence: u64,
    until: u64,
    /// Before any extension.
    first_until: u64,
}

struct Proc {
    name: String,
    lines: Vec<Line>,
    busy_until: u64,
    calls: u64,
    leases: Vec<(JobId, u64)>,
    /// Leases that it settled.
    past: Vec<(JobId, u64)>,
    /// A call whose answer was lost, which it makes once more next time.
    lost: Option<(Op, Option<Answer>)>,
}

/// One history in the making.
struct Simulator {
    rng: Rng,
    t: u64,
    maker: IdMaker,
    jobs: BTreeMap<JobId, Job>,
    procs: Vec<Proc>,
    gone: Vec<Vec<Line>>,
    driver: Vec<Line>,
    fence: u64,
    bug: Option<Bug>,
    /// Whether calls lose their answers. A bug beside such a call may rightly be excused, so none is planted then.
    lossy: bool,
    /// Whether each call loses its answer just now.
    loses: bool,
    /// Whether processes are killed at times.
    kills: bool,
    planted: Option<String>,
}

/// The files of one history, and what was planted in it.
pub(crate) struct Written {
    pub(crate) files: Vec<Vec<Line>>,
    pub(crate) planted: Option<String>,
}

/// Writes a history. With a bug, it is planted at the first opportunity, if one comes.
pub(crate) fn write(seed: u64, bug: Option<Bug>, steps: usize) -> Written {
    let mut rng = Rng::with_seed(seed);
    let lossy = bug.is_none() && rng.bool();
    made(rng, bug, steps, lossy, Some(steps / 10).filter(|_| lossy), true)
}

/// A history in which the server is killed early on, and nothing else is lost, and nobody killed.
pub(crate) fn write_outage(seed: u64, steps: usize) -> Vec<Vec<Line>> {
    made(Rng::with_seed(seed), None, steps, false, Some(steps / 10), false).files
}

fn made(
    rng: Rng,
    bug: Option<Bug>,
    steps: usize,
    lossy: bool,
    outage: Option<usize>,
    kills: bool,
) -> Written {
    let mut sim = Simulator {
        rng,
        t: 1_000 * MS,
        maker: IdMaker::default(),
        jobs: BTreeMap::new(),
        procs: Vec::new(),
        gone: Vec::new(),
        driver: Vec::new(),
        fence: 1,
        bug,
        lossy,
        loses: false,
        kills,
        planted: None,
    };
    (0..3).for_each(|_| sim.spawn());
    // Stalls and slow steps cost leases, too.
    sim.driver.push(Simulator::line(sim.t, 0, What::Harmed { since: sim.t, times: 1, proc: None }));
    for step in 0..steps {
        if Some(step) == outage {
            sim.outage();
        }
        sim.step();
    }
    sim.lossy = false;
    sim.drain();
    sim.dump();
    let mut files = sim.gone;
    files.extend(sim.procs.into_iter().map(|proc| proc.lines));
    files.push(sim.driver);
    if bug == Some(Bug::MoreDuplicatesThanSlots) {
        for line in files.iter_mut().flatten() {
            if let What::Open { slots, .. } = &mut line.what {
                *slots = 0;
            }
        }
    }
    Written { files, planted: sim.planted }
}

impl Simulator {
    fn wants(&self, bug: Bug) -> bool {
        self.bug == Some(bug) && self.planted.is_none()
    }

    /// Whether to misbehave here and now.
    fn plants(&mut self, bug: Bug, where_: impl std::fmt::Debug) -> bool {
        let wants = self.wants(bug);
        if wants {
            self.planted = Some(format!("{bug:?} at {where_:?}, t = {}", self.t));
        }
        wants
    }

    /// The same for a bug that shows in the next run of a job: only where no operator's deed may excuse it.
    fn spoils(&mut self, bug: Bug, id: JobId) -> bool {
        let clean = self.jobs.get(&id).is_some_and(|job| job.deeds.is_empty());
        let spoils = clean && self.plants(bug, id);
        if spoils {
            self.job(id).victim = true;
        }
        spoils
    }

    fn job(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("the job is there")
    }

    /// Whether all that was ever said about the job was answered before any call that takes effect now began.
    fn settled_down(&self, id: JobId) -> bool {
        self.jobs[&id].answered < self.t.saturating_sub(MS)
    }

    const fn now(&self) -> u64 {
        EPOCH_MS + self.t / MS
    }

    fn line(m: u64, n: u64, what: What) -> Line {
        Line { m, w: EPOCH_MS + m / MS, n, what }
    }

    fn spawn(&mut self) {
        let name = format!("p{}", self.gone.len() + self.procs.len());
        let open = What::Open { proc: name.clone(), pid: 1, slots: SLOTS, publications: 0 };
        let lines = vec![Self::line(self.t, 0, open)];
        self.procs.push(Proc {
            name,
            lines,
            busy_until: self.t,
            calls: 0,
            leases: vec![],
            past: vec![],
            lost: None,
        });
    }

    fn kill(&mut self, p: usize) {
        let proc = self.procs.remove(p);
        self.t = self.t.max(proc.busy_until) + 1;
        self.driver.push(Self::line(self.t, 0, What::Killed { proc: proc.name }));
        self.gone.push(proc.lines);
        self.spawn();
    }

    /// Writes a call of `p` that takes effect now; without an answer it was refused. `false`: its process was killed
    /// before it heard the answer.
    fn call(&mut self, p: usize, op: Op, answer: Option<Answer>, about: &[JobId]) -> bool {
        let from = self.t - self.rng.u64(0..=(self.t - self.procs[p].busy_until).min(MS));
        let to = self.t + self.rng.u64(1..MS);
        for id in about {
            if let Some(job) = self.jobs.get_mut(id) {
                job.answered = job.answered.max(to);
            }
        }
        let proc = &mut self.procs[p];
        proc.calls += 1;
        let n = proc.calls;
        proc.lines.push(Self::line(from, n, What::Invoke(op.clone())));
        proc.busy_until = to + 1;
        if self.loses || self.lossy && self.rng.u8(..) < 6 {
            let is_repeated = matches!(op, Op::Enqueue { .. } | Op::Reserve { .. } | Op::Settle { .. });
            if is_repeated && (self.loses || self.rng.bool()) {
                self.procs[p].lines.push(Self::line(to, n, What::Info("lost".to_owned())));
                self.procs[p].lost = Some((op, answer));
            } else {
                self.kill(p);
            }
            return false;
        }
        let what = answer.map_or_else(|| What::Fail("refused".to_owned()), What::Ok);
        self.procs[p].lines.push(Self::line(to, n, what));
        true
    }

    fn step(&mut self) {
        self.t += self.rng.u64(1..2 * MS);
        let p = self.rng.usize(..self.procs.len());
        if self.t <= self.procs[p].busy_until {
            return;
        }
        if let Some((op, answer)) = self.procs[p].lost.take() {
            self.repeat(p, op, answer);
            return;
        }
        match self.rng.u8(..100) {
            0..20 => self.enqueue(p),
            20..50 => self.reserve(p, 3),
            50..58 => self.extend(p),
            58..86 => self.settle(p, None),
            86..95 => self.act(p),
            95 if self.lossy => self.take(p),
            96..98 if self.kills => self.kill(p),
            _ => self.t += self.rng.u64(1..60) * MS,
        }
    }

    /// The store's server is killed, and each process has just reserved.
    fn outage(&mut self) {
        self.loses = true;
        for p in 0..self.procs.len() {
            self.t = self.t.max(self.procs[p].busy_until) + 2;
            if self.procs[p].lost.is_none() {
                self.reserve(p, 3);
            }
        }
        self.loses = false;
        let since = self.t;
        self.t += 1;
        self.driver.push(Self::line(self.t, 0, What::ServerKilled { since }));
    }

    /// A call whose answer was lost once more: it takes no effect twice.
    fn repeat(&mut self, p: usize, op: Op, answer: Option<Answer>) {
        let now = self.now();
        match answer {
            Some(Answer::Reserve(mut batch)) => {
                (batch.now, batch.reclaimed) = (now, vec![]);
                batch.jobs.retain_mut(|row| {
                    let job = self.jobs.get_mut(&row.id).expect("the job is there");
                    let lease = job.lease.as_mut().filter(|lease| lease.fence == row.fence);
                    lease.is_some_and(|lease| {
                        (lease.until, row.until) = (now + row.lasts, now + row.lasts);
                        true
                    })
                });
                self.reserved(p, op, batch);
            }
            Some(Answer::Settle { states, .. }) => {
                let states = vec![None; states.len()];
                self.call(p, op, Some(Answer::Settle { states, away: vec![], then: None }), &[]);
            }
            Some(Answer::Enqueue(mut answers)) => {
                let Op::Enqueue { jobs, .. } = &op else { unreachable!("it is an answer to an enqueue") };
                for (job, answer) in jobs.iter().zip(&mut answers) {
                    if matches!(answer, Accepted::Inserted { .. }) {
                        *answer = Accepted::Duplicate(job.id);
                    }
                }
                self.call(p, op, Some(Answer::Enqueue(answers)), &[]);
            }
            answer => {
                self.call(p, op, answer, &[]);
            }
        }
    }

    fn new_job(&mut self) -> (Job, Due) {
        let (now, random) = (self.now(), self.rng.u64(..));
        let id = self.maker.make(now, 0, random);
        let due = match self.rng.u8(..4) {
            0 => Due::In(self.rng.u64(20..90)),
            1 => Due::At(now + self.rng.u64(1..90)),
            _ => Due::Now,
        };
        let run_at = match due {
            Due::Now => now,
            Due::In(ms) => now + ms,
            Due::At(at) => at,
        };
        let marked = self.rng.u8(..8) == 0;
        let job = Job {
            id,
            sum: Hex::fingerprint(id.as_bytes()),
            state: State::Waiting,
            run_at,
            created: now,
            attempt: 1,
            expired_leases: 0,
            max_attempts: if marked { 100 } else { self.rng.u32(2..6) },
            cancel: false,
            lease: None,
            fences: vec![],
            key: (self.rng.u8(..4) == 0).then(|| self.rng.u32(..3)),
            marked,
            lasts: if marked { LASTS_MARKED } else { LASTS },
            reason: None,
            deeds: vec![],
            answered: 0,
            victim: false,
            should: None,
            started: 0,
            again: false,
        };
        (job, due)
    }

    fn enqueue(&mut self, p: usize) {
        let (mut job, due) = self.new_job();
        let id = job.id;
        let mut wanted = Wanted {
            id,
            queue: "q".to_owned(),
            sum: job.sum,
            due,
            unique: job.key.map(|k| Key { name: format!("k{k}"), scope: Scope::UntilDone, replaces: false }),
            group: None,
            concurrency: None,
            expires: None,
            expect: job.marked.then_some(Expect::Done),
            is_tick: false,
        };
        let call = CallId(Hex(p as u64), self.t);
        let op = |wanted| Op::Enqueue { call, jobs: vec![wanted] };
        let inserted = |run_at| Some(Answer::Enqueue(vec![Accepted::Inserted { run_at, id: None }]));
        let duplicate = |id| Some(Answer::Enqueue(vec![Accepted::Duplicate(id)]));

        let known = self.jobs.keys().nth(self.rng.usize(..60)).copied();
        if let Some(known) = known {
            let run_at = job.run_at;
            let answer =
                if self.plants(Bug::InsertedTwice, known) { inserted(run_at) } else { duplicate(known) };
            (wanted.id, wanted.sum, wanted.expect) = (known, Hex::fingerprint(known.as_bytes()), None);
            self.call(p, op(wanted), answer, &[]);
            return;
        }
        let same_key = |j: &&Job| j.key.is_some() && j.key == job.key && !j.state.is_ended();
        if let Some(holder) = self.jobs.values().find(same_key).map(|j| j.id) {
            // Shows only if the first one holds the key before and after this call.
            let waits =
                self.jobs[&holder].state == State::Waiting && self.now() + 10 < self.jobs[&holder].run_at;
            if !(waits && self.settled_down(holder) && self.spoils(Bug::TwoHoldersOfAKey, holder)) {
                self.call(p, op(wanted), duplicate(holder), &[]);
                return;
            }
            job.victim = true;
        } else if self.rng.u8(..12) == 0 {
            if self.plants(Bug::RefusedButStored, id) {
                self.jobs.insert(id, job);
            }
            self.call(p, op(wanted), None, &[id]);
            return;
        }
        let mut promised = job.run_at;
        if matches!(due, Due::In(_)) && self.wants(Bug::DelayIgnored) {
            job.should = Some(job.run_at);
            (job.run_at, promised) = (self.now(), self.now());
        }
        if matches!(due, Due::In(_)) && self.plants(Bug::PromiseNotKept, id) {
            (job.run_at, job.victim) = (job.run_at - 1, true);
        }
        if self.plants(Bug::PayloadMixedUp, id) {
            (job.sum, job.victim) = (Hex(1), true);
        }
        if !self.plants(Bug::AckedThenGone, id) {
            self.jobs.insert(id, job);
        }
        self.call(p, op(wanted), inserted(promised), &[id]);
    }

    fn reserve(&mut self, p: usize, n: usize) {
        let answer = self.reservations(n);
        let op = Op::Reserve { call: CallId(Hex(p as u64), self.t) };
        self.reserved(p, op, answer);
    }

    fn reserved(&mut self, p: usize, op: Op, answer: Reservations) {
        let rows = answer.jobs.clone();
        let about: Vec<_> =
            rows.iter().map(|row| row.id).chain(answer.reclaimed.iter().map(|b| b.0.0)).collect();
        if !self.call(p, op, Some(Answer::Reserve(answer)), &about) {
            return;
        }
        let m = self.procs[p].busy_until - 1;
        for Reservation { id, fence, sum, .. } in rows {
            self.procs[p].leases.push((id, fence));
            if self.rng.u8(..20) == 0 {
                continue; // it has no slot to run it yet
            }
            let sum = if self.plants(Bug::HandlerMetOtherPayload, id) { Hex(2) } else { sum };
            let fence = if self.plants(Bug::HandlerWithoutReservation, id) { fence + 1 } else { fence };
            let start = Self::line(m, 0, What::Start { id, fence, sum });
            if self.plants(Bug::HandlerBeganTwice, id) {
                self.procs[p].lines.push(start.clone());
            }
            self.procs[p].lines.push(start);
            if let Some(job) = self.jobs.get_mut(&id) {
                job.started = fence;
                if job.again {
                    self.plants(Bug::MoreDuplicatesThanSlots, id);
                }
            }
        }
    }

    fn reservations(&mut self, n: usize) -> Reservations {
        let now = self.now();
        let reclaimed = self.reclaim();
        let mut jobs = Vec::new();
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            if jobs.len() < n && (self.is_due(id) || self.is_wrongly_due(id)) {
                jobs.push(self.lend(id));
            }
        }
        if jobs.len() < n && self.plants(Bug::ReservedButNeverEnqueued, "a ghost") {
            let id = self.maker.make(now, 1, 7);
            self.fence += 2;
            let fence = self.fence;
            let (attempt, expired_leases, max_attempts, until) = (1, 0, 3, now + LASTS);
            let (run_at, created_at, lasts, sum) = (now, now, LASTS, Hex(3));
            jobs.push(Reservation {
                id,
                fence,
                attempt,
                expired_leases,
                company: false,
                max_attempts,
                run_at,
                created_at,
                until,
                lasts,
                sum,
            });
        }
        Reservations { now, jobs, reclaimed }
    }

    fn is_due(&self, id: JobId) -> bool {
        self.jobs[&id].state == State::Waiting && self.jobs[&id].run_at <= self.now()
    }

    /// The bugs that hand out a job which must not run.
    fn is_wrongly_due(&mut self, id: JobId) -> bool {
        let now = self.now();
        let Job { state, run_at, lease, .. } = self.jobs[&id];
        let deeds = self.jobs[&id].deeds.clone();
        if state == State::Waiting && run_at == now + 1 {
            return self.plants(Bug::EarlyByOneMs, id);
        }
        if !self.settled_down(id) {
            return false;
        }
        match state {
            State::Waiting => match deeds[..] {
                [Deed::Reschedule(Due::At(at))] if run_at == at && now < at => {
                    let ignored = self.plants(Bug::RescheduleIgnored, id);
                    if ignored {
                        self.job(id).run_at = now;
                    }
                    ignored
                }
                _ => false,
            },
            State::Running => {
                lease.is_some_and(|lease| now + 5 < lease.until) && self.spoils(Bug::ReservedWhileHeld, id)
            }
            State::Done => self.spoils(Bug::DoneRunsAgain, id),
            State::Dead => self.spoils(Bug::DeadRunsAgain, id),
            State::Cancelled => deeds == [Deed::Cancel] && self.plants(Bug::CancelledRuns, id),
        }
    }

    fn lend(&mut self, id: JobId) -> Reservation {
        let now = self.now();
        self.fence += self.rng.u64(2..9);
        let mut fence = self.fence;
        if let Some(&last) = self.jobs[&id].fences.last()
            && self.settled_down(id)
        {
            if self.spoils(Bug::FenceReused, id) {
                fence = last;
            } else if self.spoils(Bug::FenceFell, id) {
                fence = last - 1;
            }
        }
        if let Some(should) = self.job(id).should.take()
            && now + 5 < should
        {
            let bug = self.bug.expect("only a bug makes a job due too early");
            self.plants(bug, id);
        }
        let job = self.job(id);
        let until = now + job.lasts;
        job.state = State::Running;
        job.lease = Some(Lease { fence, until, first_until: until });
        job.fences.push(fence);
        Reservation {
            id,
            fence,
            attempt: job.attempt,
            expired_leases: job.expired_leases,
            company: false,
            max_attempts: job.max_attempts,
            run_at: job.run_at,
            created_at: job.created,
            until,
            lasts: job.lasts,
            sum: job.sum,
        }
    }

    fn reclaim(&mut self) -> Vec<(LeaseId, State)> {
        let now = self.now();
        let mut reclaimed = Vec::new();
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(lease) = self.jobs[&id].lease else { continue };
            if lease.until <= now || now + 5 < lease.first_until && self.plants(Bug::TakenBackEarly, id) {
                let state = self.crash(id);
                let job = self.job(id);
                job.again = job.started == lease.fence && state == State::Waiting;
                job.lease = None;
                reclaimed.push((LeaseId(id, lease.fence), state));
            }
        }
        reclaimed
    }

    /// S9.
    fn crash(&mut self, id: JobId) -> State {
        let now = self.now();
        let job = self.job(id);
        job.expired_leases += 1;
        let expired_leases = job.expired_leases;
        if job.cancel {
            job.state = State::Cancelled;
        } else if 3 <= expired_leases || job.max_attempts <= job.attempt {
            (job.state, job.reason) =
                (State::Dead, Some(if 3 <= expired_leases { "crashes" } else { "attempts" }));
            if 3 <= expired_leases && self.spoils(Bug::PoisonNeverDies, id) {
                self.job(id).state = State::Waiting;
            }
        } else {
            let step = u64::from(expired_leases - 1) * job.lasts;
            (job.state, job.attempt) = (State::Waiting, job.attempt + 1);
            let is_parted = expired_leases == 2 && job.max_attempts <= job.attempt;
            if is_parted {
                job.run_at = now + step + step * u64::from(id.low16()) / 65_536;
            }
            if self.spoils(Bug::DiesOfOneCrash, id) {
                (self.job(id).state, self.job(id).attempt) = (State::Dead, 1);
            }
            if self.spoils(Bug::CrashCountsNoAttempt, id) {
                self.job(id).attempt -= 1;
            }
            if self.spoils(Bug::CrashesNotCounted, id) {
                self.job(id).expired_leases -= 1;
            }
            if expired_leases == 1 && self.spoils(Bug::CrashMovesRunAt, id)
                || is_parted && self.spoils(Bug::PoisonNotParted, id)
            {
                self.job(id).run_at = now;
            }
        }
        self.jobs[&id].state
    }

    fn take(&mut self, p: usize) {
        self.reclaim();
        let due = self.jobs.keys().copied().find(|id| self.is_due(*id) && !self.jobs[id].marked);
        let taken = Vec::from_iter(due);
        for id in &taken {
            self.fence += 2;
            let fence = self.fence;
            let job = self.job(*id);
            job.fences.push(fence);
            (job.state, job.expired_leases) = (State::Done, 0);
        }
        self.call(p, Op::Take, Some(Answer::Take(taken.clone())), &taken);
    }

    /// Whether the job surely has a reservation above `fence`.
    fn is_superseded(&self, id: JobId, fence: u64) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.fences.last().is_some_and(|last| fence < *last))
            && self.settled_down(id)
    }

    fn extend(&mut self, p: usize) {
        let now = self.now();
        let mut leases = self.procs[p].leases.clone();
        let mut answers = Vec::new();
        for &(id, fence) in &leases {
            let mut held = false;
            if let Some(job) = self.jobs.get_mut(&id)
                && let Some(lease) = job.lease.as_mut().filter(|lease| lease.fence == fence)
            {
                (held, lease.until) = (true, now + job.lasts);
            }
            answers.push(held || self.is_superseded(id, fence) && self.plants(Bug::StaleLeaseHeld, id));
        }
        if let Some(&(id, fence)) = self.procs[p].past.last()
            && self.plants(Bug::HeldAfterItsEnd, id)
        {
            leases.push((id, fence));
            answers.push(true);
        }
        if !leases.is_empty() {
            let about: Vec<_> = leases.iter().map(|lease| lease.0).collect();
            let leases = leases.into_iter().map(|(id, fence)| LeaseId(id, fence)).collect();
            self.call(
                p,
                Op::Extend { leases, company: vec![] },
                Some(Answer::Extend(answers.into_iter().map(Some).collect())),
                &about,
            );
        }
    }

    fn settle(&mut self, p: usize, only: Option<Said>) {
        if self.procs[p].leases.is_empty() {
            return;
        }
        let k = self.rng.usize(..self.procs[p].leases.len());
        let (id, fence) = self.procs[p].leases.swap_remove(k);
        let marked = self.jobs.get(&id).is_some_and(|job| job.marked);
        let said = only.unwrap_or_else(|| match self.rng.u8(..12) {
            0 | 1 => Said::Retry(Due::In(self.rng.u64(0..60))),
            2 => Said::Retry(Due::At(self.now() + self.rng.u64(0..60))),
            3 => Said::Snooze(self.rng.u64(5..60)),
            4 => Said::Hold(self.rng.u64(5..60)),
            5 => Said::Release,
            6 if !marked => Said::Cancel,
            7 if !marked => Said::Dead,
            _ => Said::Ack,
        });
        let state = self.settled(id, fence, said);
        let op = |verdict| Op::Settle { runs: vec![Ended { id, fence, verdict }], then: None };
        let answer = |state| Some(Answer::Settle { states: vec![state], away: vec![], then: None });
        if !self.call(p, op(said), answer(state), &[id]) || state.is_none() {
            return;
        }
        self.procs[p].past.push((id, fence));
        if self.rng.u8(..6) == 0 {
            // It repeats the call, as if it had not heard the answer.
            self.t = self.t.max(self.procs[p].busy_until) + 1;
            let again = self.plants(Bug::SettledTwice, id).then_some(State::Done);
            let verdict = if again.is_some() { Said::Ack } else { said };
            self.call(p, op(verdict), answer(again), &[id]);
        }
    }

    fn settled(&mut self, id: JobId, fence: u64, said: Said) -> Option<State> {
        let now = self.now();
        let lease = self.jobs.get(&id).and_then(|job| job.lease).filter(|lease| lease.fence == fence);
        let Some(lease) = lease else {
            let accepts =
                said == Said::Ack && self.is_superseded(id, fence) && self.plants(Bug::StaleLeaseSettles, id);
            return accepts.then_some(State::Done);
        };
        if now + 5 < lease.until && self.plants(Bug::LostForNoReason, id) {
            return None;
        }
        let forgets_request = matches!(said, Said::Release | Said::Snooze(_))
            && self.jobs[&id].cancel
            && self.settled_down(id)
            && self.plants(Bug::CancelRequestForgotten, id);
        let forgets_crashes = matches!(said, Said::Release | Said::Snooze(_))
            && 0 < self.jobs[&id].expired_leases
            && self.spoils(Bug::CrashesSurviveSettle, id);
        let job = self.job(id);
        job.lease = None;
        if !forgets_crashes && !matches!(said, Said::Hold(_)) {
            job.expired_leases = 0;
        }
        let waits = |run_at| (State::Waiting, run_at);
        let (state, run_at) = match said {
            Said::Ack => (State::Done, job.run_at),
            _ if job.cancel && !forgets_request => (State::Cancelled, job.run_at),
            Said::Retry(_) if job.max_attempts <= job.attempt => (State::Dead, job.run_at),
            Said::Retry(Due::In(ms)) | Said::Snooze(ms) | Said::Hold(ms) => waits(now + ms),
            Said::Retry(Due::At(at)) => waits(at.max(now)),
            Said::Retry(Due::Now) => waits(now),
            Said::Release => waits(job.run_at),
            Said::Cancel => (State::Cancelled, job.run_at),
            Said::Dead => (State::Dead, job.run_at),
        };
        if matches!(said, Said::Retry(_)) && state == State::Waiting {
            job.attempt += 1;
        }
        (job.state, job.run_at) = (state, run_at);
        if state == State::Waiting
            && matches!(said, Said::Retry(Due::In(20..)))
            && self.wants(Bug::RetryTooSoon)
        {
            let job = self.job(id);
            if job.deeds.is_empty() {
                (job.should, job.run_at) = (Some(job.run_at), now);
            }
        }
        if state == State::Waiting && said == Said::Release && self.spoils(Bug::ReleaseCounts, id) {
            self.job(id).attempt += 1;
        }
        if said == Said::Ack && self.spoils(Bug::SettlementForgotten, id) {
            self.job(id).state = State::Waiting;
        }
        if said == Said::Ack && self.plants(Bug::AckLeadsToWaiting, id) {
            self.job(id).state = State::Waiting;
            return Some(State::Waiting);
        }
        if self.jobs[&id].marked && self.plants(Bug::MarkedJobEndsDead, id) {
            self.job(id).state = State::Dead;
            return Some(State::Dead);
        }
        Some(state)
    }

    fn act(&mut self, p: usize) {
        let now = self.now();
        let k = self.rng.usize(..self.jobs.len().max(1));
        let Some(id) = self.jobs.keys().nth(k).copied() else { return };
        let Job { marked, victim, should, key, .. } = self.jobs[&id];
        if marked || victim || should.is_some() {
            return;
        }
        let taken = |j: &Job| j.id != id && key.is_some() && j.key == key && !j.state.is_ended();
        let key_is_free = !self.jobs.values().any(taken);
        let deed = match self.rng.u8(..3) {
            0 => Deed::Cancel,
            1 => Deed::Reschedule(Due::At(now + self.rng.u64(0..90))),
            _ => Deed::Retry,
        };
        let job = self.job(id);
        let effect = match (deed, job.state) {
            (Deed::Cancel, State::Waiting) => {
                job.state = State::Cancelled;
                Effect::Done(id)
            }
            (Deed::Cancel, State::Running) => {
                job.cancel = true;
                Effect::Requested(id)
            }
            (Deed::Reschedule(Due::At(at)), State::Waiting) => {
                job.run_at = at;
                Effect::Done(id)
            }
            (Deed::Retry, state) if state.is_ended() && key_is_free => {
                (job.state, job.run_at, job.attempt, job.expired_leases) = (State::Waiting, now, 1, 0);
                (job.cancel, job.again) = (false, false);
                Effect::Done(id)
            }
            _ => Effect::Missed,
        };
        if effect != Effect::Missed {
            job.deeds.push(deed);
        }
        self.call(p, Op::Act { deed, targets: vec![Some(id)] }, Some(Answer::Act(vec![effect])), &[id]);
    }

    /// Heals, and lets everything come to its end.
    fn drain(&mut self) {
        for p in 0..self.procs.len() {
            self.t = self.t.max(self.procs[p].busy_until) + 2;
            if let Some((op, answer)) = self.procs[p].lost.take() {
                self.repeat(p, op, answer);
            }
        }
        let open = |job: &&Job| !job.state.is_ended();
        while let Some(next) = self.jobs.values().filter(open).map(Job::wakes_at).min() {
            self.t += 20 * MS + next.saturating_sub(self.now() + 20) * MS;
            for p in 0..self.procs.len() {
                self.t = self.t.max(self.procs[p].busy_until) + 2;
                self.reserve(p, 50);
                while !self.procs[p].leases.is_empty() {
                    self.t = self.t.max(self.procs[p].busy_until) + 2;
                    self.settle(p, Some(Said::Ack));
                }
            }
        }
    }

    fn dump(&mut self) {
        let mut rows: Vec<Dumped> = self
            .jobs
            .values()
            .map(|job| Dumped {
                id: job.id,
                state: job.state,
                reason: job.reason.filter(|_| job.state == State::Dead).map(str::to_owned),
                attempt: job.attempt,
                expired_leases: job.expired_leases,
                run_at: 0,
            })
            .collect();
        let clean = |row: &Dumped| row.state == State::Done && self.jobs[&row.id].deeds.is_empty();
        if let Some(i) = rows.iter().position(clean) {
            if self.plants(Bug::DoneButWaitsAtRest, rows[i].id) {
                rows[i].state = State::Waiting;
            }
            if self.plants(Bug::TwoPlacesAtRest, rows[i].id) {
                rows.push(rows[i].clone());
            }
        }
        if self.wants(Bug::WaitingNotAtRest) {
            let n = self.jobs.len();
            while self.jobs.len() == n {
                self.t = self.t.max(self.procs[0].busy_until) + 2;
                self.enqueue(0);
            }
            self.plants(Bug::WaitingNotAtRest, "the last one");
        }
        self.t += 10 * MS;
        let now = self.now();
        let rest = rows.split_off(rows.len() / 2);
        let findings =
            Vec::from_iter(self.plants(Bug::AuditFindsSomething, "rest").then(|| "orphan".to_owned()));
        for what in [
            What::Dump { now, jobs: rows, last: false },
            What::Dump { now, jobs: rest, last: true },
            What::Audit { findings },
        ] {
            self.driver.push(Self::line(self.t, 0, what));
        }
    }
}
