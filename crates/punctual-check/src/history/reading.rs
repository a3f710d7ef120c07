//! Makes tables of lines.
//!
//! What was not answered ends at the answer of its repetition, since a store gives a repeated call nothing twice; else at the
//! death of its process, or of the server that it was sent to. Only what has none of these may still happen for ever.
//! On one store without shards, a reserve also ends at the answer of a later one of its instance.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use punctual::{JobId, State, job::Concurrency};

use super::{
    Act, AtRest, Back, Change, End, Fate, History, Job, NEVER, Proc, Run, Span, Spans, Start, Sure, Told, Try,
};
use crate::event::{
    Accepted, Answer, CallId, Deed, Effect, Ended, LeaseId, Line, Op, Reservations, Wanted, What,
};

/// How long a process may go on with a lease that it was told is gone, since what it does meanwhile was on its way: in
/// nanoseconds, beside a whole lease.
const ON_ITS_WAY: u64 = 1_000_000_000;

/// A call without an answer.
struct Open {
    proc: u32,
    from: u64,
    /// When its process was told that the answer is lost; `None`: never, since it died.
    told: Option<u64>,
    op: Op,
}

/// The calls that are repeated by their number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Repeated {
    Enqueue(CallId),
    Reserve(CallId),
}

/// Builds a [`History`].
#[derive(Default)]
pub(super) struct Reading {
    history: History,
    jobs: HashMap<JobId, Job>,
    names: HashMap<String, u32>,
    blind: Vec<Span>,
    /// Upkeep that took leases back without saying which, or may have.
    sweeps: Vec<Span>,
    /// Of the file at hand.
    pending: HashMap<u64, (u64, Op)>,
    /// The newest proof that a lease was held.
    held: HashMap<(Job, u64), Span>,
    open: Vec<Open>,
    /// When each call that was ever unanswered was made first.
    lost_since: HashMap<Repeated, u64>,
    /// When it was answered.
    answered_at: HashMap<Repeated, u64>,
    /// Whether all calls went to one store, without shards: once a reserve of an instance was answered, an earlier one gives
    /// nothing (S3).
    is_one_store: bool,
    /// When a slot was free again.
    freed: HashMap<(Job, u64), u64>,
    /// When the process that had it was told that it has not, or ended it: of the file at hand.
    gone: HashMap<(Job, u64), u64>,
    /// Heartbeats for such leases: how long after.
    clung: Vec<(Job, u64, u64)>,
    killed_at: HashMap<String, u64>,
    asked_at: HashMap<String, u64>,
    clock_steps: Vec<u64>,
    harmed: Vec<(Span, u64, Option<String>)>,
    /// When which process stood still, and whether all others waited for it.
    frozen: Vec<(Span, String, bool)>,
    /// When the machine stood still, each with the process that noticed.
    stalls: Vec<(Span, u32)>,
    /// Calls that failed, or were not answered.
    trouble: Vec<Span>,
    /// See [`History::wall_ns`]; the earliest of all lines, since a clock can be read late.
    wall_ns: Option<i128>,
}

impl Reading {
    /// All calls went to one store, without shards.
    pub(super) fn of_one_store() -> Self {
        Self { is_one_store: true, ..Self::default() }
    }

    pub(super) fn files(mut self, files: impl IntoIterator<Item = Vec<Line>>) -> History {
        for file in files {
            self.begin();
            for line in file {
                self.line(line);
            }
        }
        self.finish()
    }

    pub(super) fn file(&mut self, path: &Path) -> io::Result<()> {
        self.begin();
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut text = Vec::new();
        for number in 1_u64.. {
            text.clear();
            if file.read_until(b'\n', &mut text)? == 0 {
                break;
            }
            if text.last() != Some(&b'\n') {
                self.history.torn += 1;
                break;
            }
            let line = serde_json::from_slice(&text).map_err(|e| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}:{number}: {e}", path.display()))
            })?;
            self.line(line);
        }
        Ok(())
    }

    pub(super) fn begin(&mut self) {
        self.close_file();
        self.history.files += 1;
        self.history.procs.push(Proc { span: Span { from: NEVER, to: 0 }, ..Proc::default() });
    }

    /// The process of the file at hand.
    fn proc(&self) -> u32 {
        u32::try_from(self.history.procs.len().saturating_sub(1)).expect("fewer files than 2^32")
    }

    fn close_file(&mut self) {
        let proc = self.proc();
        let open = self.pending.drain().map(|(_, (from, op))| Open { proc, from, told: None, op });
        self.open.extend(open);
        self.gone.clear();
    }

    pub(super) fn line(&mut self, line: Line) {
        self.history.events += 1;
        let Line { m, w, n, what } = line;
        let wall_ns = i128::from(w) * 1_000_000 - i128::from(m);
        self.wall_ns = Some(self.wall_ns.map_or(wall_ns, |least| least.min(wall_ns)));
        if let Some(Proc { span, .. }) = self.history.procs.last_mut() {
            *span = Span { from: m.min(span.from), to: m.max(span.to) };
        }
        match what {
            What::Open { proc, slots, publications, .. } => {
                if let Some(of) = self.history.procs.last_mut() {
                    (of.name, of.slots, of.publications) = (proc, slots, publications);
                }
            }
            What::Invoke(op) => {
                self.pending.insert(n, (m, op));
            }
            What::Ok(answer) => {
                if let Some((from, op)) = self.pending.remove(&n) {
                    self.answered(Span { from, to: m }, op, answer);
                }
            }
            What::Fail(_) => {
                let Some((from, op)) = self.pending.remove(&n) else { return };
                let span = Span { from, to: m };
                if op != Op::Sweep {
                    self.trouble.push(span);
                }
                if let Op::Enqueue { jobs, .. } = op {
                    for wanted in jobs {
                        self.tried(span, wanted, Fate::Refused);
                    }
                }
            }
            // Stays pending: whoever was not told can't tell when, or whether, it happened.
            What::Info(_) => {
                if let Some((from, op)) = self.pending.remove(&n) {
                    self.lost(from, m, op);
                }
            }
            What::Start { id, fence, sum } => {
                let job = self.job(id);
                self.history.starts.push(Start { job, m, w, fence, sum });
            }
            What::End { id, fence } => {
                let job = self.job(id);
                self.free(job, fence, m);
            }
            What::Killed { proc } => {
                self.history.kills += 1;
                self.killed_at.insert(proc, m);
            }
            What::Draining { proc } => {
                self.asked_at.insert(proc, m);
            }
            What::ServerKilled { since } => self.history.server_kills.push(Span { from: since, to: m }),
            What::Frozen { proc, since, with_lock } => {
                self.frozen.push((Span { from: since, to: m }, proc, with_lock));
            }
            What::Harmed { since, times, proc } => {
                self.harmed.push((Span { from: since, to: m }, times, proc));
            }
            What::Stalled { since } => self.stalls.push((Span { from: since, to: m }, self.proc())),
            What::Healed => self.history.healed_at = Some(m),
            What::GroupLimit { queue, running } => {
                let queue = self.name(queue);
                // Where several were noted, the judge knows only that the highest one held.
                let most = self.history.group_limits.entry(queue).or_default();
                *most = running.max(*most);
            }
            What::Changed { since, to } => {
                self.history.changes.push(Change { span: Span { from: since, to: m }, to });
            }
            What::ClockStepped => self.clock_steps.push(m),
            What::Dump { now, jobs, last } => {
                self.history.dumped_at.get_or_insert(m);
                self.history.dump_complete |= last;
                self.history.dump_now = now;
                for what in jobs {
                    let job = self.job(what.id);
                    self.history.rest.push(AtRest { job, what });
                }
            }
            What::Audit { findings } => self.history.findings.extend(findings),
        }
    }

    fn job(&mut self, id: JobId) -> Job {
        *self.jobs.entry(id).or_insert_with(|| {
            self.history.ids.push(id);
            Job::try_from(self.history.ids.len() - 1).expect("fewer jobs than 2^32 in one history")
        })
    }

    fn name(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.names.len()).expect("fewer names than 2^32 in one history");
        *self.names.entry(name).or_insert(next)
    }

    fn tried(&mut self, span: Span, wanted: Wanted, fate: Fate) {
        let Wanted { id, queue, sum, due, unique, group, concurrency, expires, expect, is_tick } = wanted;
        let concurrency = concurrency.map(|Concurrency { key, limit }| {
            (self.name(format!("{:?}", ("concurrency", &queue, &group, key))), limit)
        });
        let group = group.map(|group| self.name(format!("{:?}", ("group", &queue, group))));
        let (job, queue) = (self.job(id), self.name(queue));
        if fate == Fate::Unknown && unique.is_some() {
            // It may have replaced, or moved, the holder of its key.
            self.history.wild.extend([(span, Deed::Edit(sum)), (span, Deed::Move)]);
        }
        let key = unique.map(|key| {
            let name = self.name(key.name);
            if key.replaces {
                *self.history.replaced_keys.entry(name).or_default() |= expires.is_some();
            }
            (name, key.scope)
        });
        self.history.tries.push(Try {
            job,
            span,
            fate,
            queue,
            sum,
            due,
            key,
            concurrency,
            group,
            expires,
            expect,
            is_tick,
        });
    }

    fn acted(&mut self, span: Span, id: JobId, deed: Deed, sure: Sure) {
        let job = self.job(id);
        self.history.acts.push(Act { job, span, deed, sure });
    }

    /// The slot of a run is free, at the latest.
    fn free(&mut self, job: Job, fence: u64, m: u64) {
        let at = self.freed.entry((job, fence)).or_insert(m);
        *at = m.max(*at);
    }

    /// Its process was told that it has a lease no more.
    fn tell_gone(&mut self, job: Job, fence: u64, m: u64) {
        self.gone.entry((job, fence)).or_insert(m);
    }

    fn ended(&mut self, span: Span, run: Ended, state: Option<State>) {
        let job = self.job(run.id);
        self.history.ends.push(End { job, span, fence: run.fence, said: run.verdict, state });
    }

    fn holds(&mut self, span: Span, LeaseId(id, fence): LeaseId) {
        let job = self.job(id);
        let newest = self.held.entry((job, fence)).or_insert(span);
        if newest.from < span.from {
            *newest = span;
        }
    }

    fn has_company(&mut self, leases: Vec<LeaseId>) {
        for LeaseId(id, fence) in leases {
            let job = self.job(id);
            self.history.company.insert((job, fence));
        }
    }

    fn reserved(&mut self, mut span: Span, call: CallId, answer: Reservations) {
        let to = self.answered_call(Repeated::Reserve(call), span.to);
        // Its effect may be that of a try that was not answered.
        span.from =
            self.lost_since.get(&Repeated::Reserve(call)).map_or(span.from, |from| span.from.min(*from));
        debug_assert!(to <= span.to);
        let proc = self.proc();
        for row in answer.jobs {
            let job = self.job(row.id);
            self.history.runs.push(Run { job, span, proc, call, now: answer.now, row });
        }
        for (LeaseId(id, fence), state) in answer.reclaimed {
            let job = self.job(id);
            self.history.backs.push(Back { job, span, fence, state, now: answer.now });
        }
    }

    /// Notes when a call was answered for the first time, and says so.
    fn answered_call(&mut self, call: Repeated, m: u64) -> u64 {
        *self.answered_at.entry(call).or_insert(m)
    }

    fn answered(&mut self, span: Span, op: Op, answer: Answer) {
        match (op, answer) {
            (Op::Enqueue { call, jobs }, Answer::Enqueue(answers)) => {
                let call = Repeated::Enqueue(call);
                let was_answered = self.answered_at.contains_key(&call);
                self.answered_call(call, span.to);
                // Its effect may be that of a try that was not answered.
                let since = self.lost_since.get(&call).map_or(span.from, |from| span.from.min(*from));
                let inserted = Span { from: since, ..span };
                for (mut wanted, answer) in jobs.into_iter().zip(answers) {
                    let mut span = span;
                    let fate = match answer {
                        Accepted::Inserted { run_at, id } => {
                            wanted.id = id.unwrap_or(wanted.id);
                            span = inserted;
                            // A repetition returns again what the first answer said.
                            if was_answered { Fate::Twin } else { Fate::Inserted { run_at } }
                        }
                        Accepted::Duplicate(id) if id == wanted.id => Fate::Twin,
                        Accepted::Gone(id) if id == wanted.id => Fate::Gone,
                        Accepted::Duplicate(_) | Accepted::Gone(_) | Accepted::Full => Fate::Refused,
                        Accepted::Replaced(id) => {
                            self.acted(span, id, Deed::Edit(wanted.sum), Sure::Done);
                            self.acted(span, id, Deed::Move, Sure::Done);
                            Fate::Refused
                        }
                        Accepted::Rescheduled(id) => {
                            self.acted(span, id, Deed::Move, Sure::Done);
                            Fate::Refused
                        }
                    };
                    self.tried(span, wanted, fate);
                }
            }
            (Op::Reserve { call }, Answer::Reserve(answer)) => self.reserved(span, call, answer),
            (Op::Extend { leases, company }, Answer::Extend(answers)) => {
                self.has_company(company);
                self.hold_on(span.from, &leases);
                for (lease, held) in leases.into_iter().zip(answers) {
                    match held {
                        Some(true) => self.holds(span, lease),
                        Some(false) => {
                            let job = self.job(lease.0);
                            self.history.lost.push(Told { job, span, fence: lease.1 });
                            self.tell_gone(job, lease.1, span.to);
                        }
                        None => {}
                    }
                }
            }
            (Op::Settle { runs, then }, Answer::Settle { states, away, then: batch }) => {
                for (at, (run, state)) in runs.into_iter().zip(states).enumerate() {
                    let job = self.job(run.id);
                    if !away.contains(&at) {
                        self.free(job, run.fence, span.to);
                        self.tell_gone(job, run.fence, span.to);
                    }
                    if state.is_some() || away.contains(&at) {
                        self.ended(span, run, state);
                    } else {
                        self.history.lost.push(Told { job, span, fence: run.fence });
                    }
                }
                match (then, batch) {
                    (Some(call), Some(batch)) => self.reserved(span, call, batch),
                    // The part of the store that was asked is away.
                    (Some(call), None) => self.lost(span.from, span.to, Op::Reserve { call }),
                    (None, _) => {}
                }
            }
            (Op::Take, Answer::Take(ids)) => {
                // It takes leases back first, and doesn't say which.
                self.blind.push(span);
                for id in ids {
                    let job = self.job(id);
                    self.history.taken.push(Told { job, span, fence: 0 });
                }
            }
            (Op::Sweep, Answer::Sweep(reclaimed)) => self.sweeps.extend((0 < reclaimed).then_some(span)),
            (Op::Act { deed, .. }, Answer::Act(effects)) => {
                for effect in effects {
                    match effect {
                        Effect::Done(id) => self.acted(span, id, deed, Sure::Done),
                        Effect::Requested(id) => self.acted(span, id, deed, Sure::Requested),
                        Effect::Refused(..) | Effect::Missed => {}
                    }
                }
            }
            (Op::Purge { queue }, Answer::Purge) => self.purged(span, queue),
            // An answer to another question: as good as none.
            (op, _) => self.lost(span.from, span.to, op),
        }
    }

    /// A call whose process was told that its answer is lost.
    fn lost(&mut self, from: u64, told: u64, op: Op) {
        if op == Op::Sweep {
            self.sweeps.push(Span { from, to: told });
            return;
        }
        self.trouble.push(Span { from, to: told });
        let call = match &op {
            Op::Enqueue { call, .. } => Some(Repeated::Enqueue(*call)),
            Op::Reserve { call } | Op::Settle { then: Some(call), .. } => Some(Repeated::Reserve(*call)),
            _ => None,
        };
        if let Some(call) = call {
            self.lost_since.entry(call).or_insert(from);
        }
        self.open.push(Open { proc: self.proc(), from, told: Some(told), op });
    }

    /// Heartbeats that leave at this instant.
    fn hold_on(&mut self, m: u64, leases: &[LeaseId]) {
        for LeaseId(id, fence) in leases {
            let job = self.job(*id);
            if let Some(after) = self.gone.get(&(job, *fence)).and_then(|gone| m.checked_sub(*gone))
                && ON_ITS_WAY < after
            {
                self.clung.push((job, *fence, after));
            }
        }
    }

    fn purged(&mut self, span: Span, queue: String) {
        let queue = self.name(queue);
        self.history.purges.entry(queue).or_default().push(span);
    }

    /// What a call without an answer may have done. `call_to`: the same for what is repeated by the call's number.
    fn unanswered(&mut self, span: Span, op: Op, answered: impl Fn(Repeated) -> u64) {
        let within = |call| Span { to: span.to.min(answered(call)), ..span };
        match op {
            Op::Enqueue { call, jobs } => {
                for wanted in jobs {
                    self.tried(within(Repeated::Enqueue(call)), wanted, Fate::Unknown);
                }
            }
            Op::Reserve { call } => self.blind.push(within(Repeated::Reserve(call))),
            Op::Take => self.blind.push(span),
            Op::Sweep => self.sweeps.push(span),
            Op::Extend { company, .. } => self.has_company(company),
            Op::Settle { runs, then } => {
                for run in runs {
                    self.ended(span, run, None);
                }
                self.blind.extend(then.map(|call| within(Repeated::Reserve(call))));
            }
            Op::Act { deed, targets } => {
                for target in targets {
                    match target {
                        Some(id) => self.acted(span, id, deed, Sure::Unknown),
                        None => self.history.wild.push((span, deed)),
                    }
                }
            }
            Op::Purge { queue } => self.purged(span, queue),
        }
    }

    /// Until when each call without an answer may have taken effect.
    fn close(&mut self) {
        let answered_at = std::mem::take(&mut self.answered_at);
        let mut reserves = BTreeMap::new();
        if self.is_one_store {
            for (call, m) in &answered_at {
                if let Repeated::Reserve(CallId(instance, number)) = call {
                    reserves.insert((*instance, *number), *m);
                }
            }
        }
        let answered = |call| {
            let later = match call {
                Repeated::Reserve(CallId(instance, number)) => {
                    reserves.range((instance, number)..=(instance, u64::MAX)).map(|(_, m)| *m).min()
                }
                Repeated::Enqueue(_) => None,
            };
            answered_at.get(&call).copied().into_iter().chain(later).min().unwrap_or(NEVER)
        };
        for Open { proc, from, told, op } in std::mem::take(&mut self.open) {
            let killed = self.killed_at.get(&self.history.procs[proc as usize].name).copied();
            // What its process had been told by then was sent to no later server.
            let server =
                self.history.server_kills.iter().find(|kill| told.is_some_and(|told| told <= kill.from));
            let to = killed.unwrap_or(NEVER).min(server.map_or(NEVER, |kill| kill.to));
            self.unanswered(Span { from, to }, op, answered);
        }
        // A repetition of what had been answered gives nothing.
        self.blind.retain(|span| span.from < span.to);
    }

    pub(super) fn finish(mut self) -> History {
        self.close_file();
        self.history.server_kills.sort_by_key(|kill| kill.from);
        self.history.changes.sort_by_key(|change| change.span.from);
        let busy: Vec<u32> = self
            .open
            .iter()
            .filter(|open| open.told.is_none() && open.op != Op::Sweep)
            .map(|open| open.proc)
            .collect();
        self.close();
        let mut history = self.history;
        self.clock_steps.sort_unstable();
        history.clock_steps = self.clock_steps;
        history.wall_ns = self.wall_ns.unwrap_or_default();
        // It takes back what has been over for a minute: as long as the clock goes on steadily, somebody else was first.
        if history.clock_stepped() {
            self.blind.append(&mut self.sweeps);
        }
        history.blind = Spans::new(self.blind);
        history.tries.sort_by_key(|row| (row.job, row.span.from));
        history.backs.sort_by_key(|row| (row.job, row.fence, row.span.from));
        history.ends.sort_by_key(|row| (row.job, row.fence, row.span.from));
        history.lost.sort_by_key(|row| (row.job, row.fence, row.span.from));
        history.taken.sort_by_key(|row| (row.job, row.span.from));
        history.acts.sort_by_key(|row| (row.job, row.span.from));
        history.starts.sort_by_key(|row| (row.job, row.m));
        history.rest.sort_by_key(|row| row.job);
        history.runs.sort_by_key(|row| (row.job, row.row.fence, row.span.from));
        let mut reused = Vec::new();
        let held = &mut self.held;
        history.runs.dedup_by(|again, first| {
            let same = (again.job, again.row.fence) == (first.job, first.row.fence);
            if same && again.call == first.call {
                // A repeated answer proves that the lease was still current.
                let newest = held.entry((again.job, again.row.fence)).or_insert(again.span);
                if newest.from < again.span.from {
                    *newest = again.span;
                }
            } else if same {
                reused.push((again.job, again.row.fence));
            }
            same
        });
        history.reused = reused;
        history.held = self.held.iter().map(|(&(job, fence), &span)| Told { job, span, fence }).collect();
        history.held.sort_by_key(|row| (row.job, row.fence));
        let lasts = |job, fence| history.run(job, fence).map_or(0, |run| run.row.lasts * 1_000_000);
        history.clung = self
            .clung
            .iter()
            .filter(|(job, fence, after)| lasts(*job, *fence) < *after)
            .map(|(job, fence, _)| (*job, *fence))
            .collect();
        history.clung.sort_unstable();
        history.clung.dedup();
        for proc in &mut history.procs {
            if let Some(at) = self.killed_at.get(&proc.name) {
                (proc.killed, proc.span.to) = (true, *at);
            }
            proc.asked_at = self.asked_at.get(&proc.name).copied();
        }
        for proc in busy {
            history.procs[proc as usize].was_busy = true;
        }
        for run in &history.runs {
            let proc = &mut history.procs[run.proc as usize];
            let to = self.freed.get(&(run.job, run.row.fence)).copied();
            proc.was_busy |= to.is_none();
            let to = to.unwrap_or(proc.span.to);
            history.taken_slots.push((run.proc, Span { from: run.span.from, to }));
        }
        history.weigh(&self.harmed, &self.frozen, &self.stalls, &self.trouble);
        history
    }
}
