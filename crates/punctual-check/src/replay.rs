//! M: replays the history of each job with the model, which is the contract as a program.
//!
//! Calls overlap, so their order is not known. For each job, this searches an order that agrees with the spans of the calls, and
//! in which the model gives the answers that were recorded. It is the search of Wing and Gong for a linearization, for one job
//! at a time: what other jobs change of it (limits, unique keys) is left to other rules. A call that was not answered may have
//! happened or not.
//!
//! The model is given the time of an answer where the answer says it, and else the earliest that its span allows. What depends
//! on such a time, the next instant after a retry, must lie within the span.

use std::time::Duration;

use punctual::{
    JobId, JobOptions, NewJob, Payload, State, Timestamp,
    limits::{JUMP_PAUSE, SNOOZE_MIN},
    store::{
        Acted, Action, CallId, Enqueued, Heartbeat, Lease, LeaseStatus, QueueRequest, Reserve, Settled,
        Settlement, Target, Verdict, model::Model,
    },
};

use crate::{
    event::{Deed, Due, Said},
    history::{Act, Back, End, Fate, History, NEVER, Run, Span, Story, Sure, Told},
};

/// The most steps of one job that are followed.
const STEPS_MAX: usize = 128;
/// How many states the search for one job visits at most.
const VISITS_MAX: u32 = 5_000;
/// How much two readings of one clock can differ, in milliseconds: each was rounded.
const ROUNDING_MS: u64 = 2;
/// How long before a call another one was made at the latest: as long as a store waits after a jump of its clock.
const TICK_MS: u64 = JUMP_PAUSE.as_millis() as u64;

/// The queue of the one job in the model.
const QUEUE: &str = "q";
/// A queue without jobs.
const OTHER: &str = "other";

/// What the model says about one job.
#[derive(Debug)]
pub(crate) enum Replay {
    /// There is an order in which it gives the same answers.
    Fits,
    /// A call that told nobody what it did may explain it, or something that is not replayed: answers that may be undone, takes,
    /// an expiry, options that changed. Or there were too many orders.
    Unclear,
    /// There is none. The text says how far it came.
    Differs(String),
}

/// Replays one job. `is_shaken`: some of its answers may be undone.
pub(crate) fn replay(story: &Story<'_>, history: &History, is_shaken: bool) -> Replay {
    let Some(steps) = steps(story, history) else { return Replay::Unclear };
    let mut search = Search { story, history, steps, visits: 0, deepest: None, is_unclear: false };
    if search.visit(&Place::default()) {
        return Replay::Fits;
    }
    // A job whose place another one took has other options from then on.
    let has_other_options =
        story.runs.windows(2).any(|two| two[0].row.max_attempts != two[1].row.max_attempts);
    let is_known = search.visits < VISITS_MAX && !is_shaken && story.taken.is_empty();
    let is_known = is_known && !has_other_options && !search.may_expire();
    match search.deepest.take() {
        Some(deepest) if is_known && !search.is_unclear => Replay::Differs(search.tell(&deepest)),
        _ => Replay::Unclear,
    }
}

/// One call, as far as it met the job.
#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    span: Span,
    what: What<'a>,
    /// It was answered, so it happened.
    is_sure: bool,
}

#[derive(Clone, Copy, Debug)]
enum What<'a> {
    Enqueue {
        created_at: Option<u64>,
        run_at: Option<u64>,
    },
    Reserve(&'a Run),
    /// A reservation whose answer was lost: known by the number that was reclaimed later.
    Unseen(&'a Back),
    Reclaim(&'a Back),
    Settle(&'a End),
    Held(&'a Told),
    Lost(&'a Told),
    /// A heartbeat that reported company.
    Company(u64),
    Act(&'a Act),
}

/// Lists the steps of a job; `None` if they are too many, or the job was never there.
fn steps<'a>(story: &Story<'a>, history: &History) -> Option<Vec<Step<'a>>> {
    let mut steps = vec![enqueue(story)?];
    let mut add = |span, is_sure, what| steps.push(Step { span, what, is_sure });
    for run in story.runs {
        add(run.span, true, What::Reserve(run));
        if history.company.contains(&(story.job, run.row.fence)) {
            add(Span { to: NEVER, ..run.span }, false, What::Company(run.row.fence));
        }
    }
    for back in story.backs {
        if story.runs.iter().all(|run| run.row.fence != back.fence) {
            let span = Span { from: 0, to: back.span.to };
            add(span, true, What::Unseen(back));
        }
        add(back.span, true, What::Reclaim(back));
    }
    story.ends.iter().for_each(|end| add(end.span, end.state.is_some(), What::Settle(end)));
    story.held.iter().for_each(|told| add(told.span, true, What::Held(told)));
    story.lost.iter().for_each(|told| add(told.span, true, What::Lost(told)));
    story.acts.iter().for_each(|act| add(act.span, act.sure != Sure::Unknown, What::Act(act)));
    steps[1..].sort_by_key(|step| step.span.from);
    (steps.len() <= STEPS_MAX).then_some(steps)
}

/// The step that made the job: of several tries, only one did.
fn enqueue<'a>(story: &Story<'a>) -> Option<Step<'a>> {
    let tries = || story.tries.iter().filter(|t| t.fate != Fate::Refused);
    let from = tries().map(|t| t.span.from).min()?;
    let inserted = tries().find_map(|t| match t.fate {
        Fate::Inserted { run_at } => Some((t, run_at)),
        _ => None,
    });
    let seen = story.runs.first().map(|run| &run.row);
    let answered = tries().filter(|t| t.fate != Fate::Unknown).map(|t| t.span.to).min();
    let to = answered.into_iter().chain(story.runs.first().map(|run| run.span.to)).min()?;
    let run_at = inserted.map(|(_, run_at)| run_at);
    let created_at = seen.map(|row| row.created_at).or_else(|| {
        let (t, run_at) = inserted?;
        match t.due {
            Due::Now => Some(run_at),
            Due::In(ms) => run_at.checked_sub(ms),
            Due::At(_) => None,
        }
    });
    Some(Step { span: Span { from, to }, what: What::Enqueue { created_at, run_at }, is_sure: true })
}

/// The model after some of the steps.
#[derive(Clone, Debug, Default)]
struct Place {
    model: Model,
    /// The steps that were done, a bit each.
    done: u128,
    /// The order in which they were.
    path: Vec<usize>,
    /// The time of the last one, in milliseconds.
    now: u64,
    /// The lease in the model, for each number of a reservation.
    leases: Vec<(u64, Lease)>,
    /// Between which instants the job is due next, if the model cannot know it exactly.
    due: Option<(u64, u64)>,
    calls: u64,
}

/// How far the search came at most.
#[derive(Debug)]
struct Deepest {
    /// How many sure steps it made.
    sure: usize,
    path: Vec<usize>,
    /// The sure step that must be next, by its span.
    next: Option<usize>,
    why: String,
}

struct Search<'a> {
    story: &'a Story<'a>,
    history: &'a History,
    steps: Vec<Step<'a>>,
    visits: u32,
    deepest: Option<Deepest>,
    /// Whether a place that it did not get beyond is unclear.
    is_unclear: bool,
}

impl Search<'_> {
    /// Returns whether the remaining steps can follow in some order.
    fn visit(&mut self, place: &Place) -> bool {
        self.visits += 1;
        if VISITS_MAX <= self.visits {
            return false;
        }
        let open = |at: &usize| place.done & (1 << *at) == 0;
        let sure = (0..self.steps.len()).filter(open).filter(|at| self.steps[*at].is_sure);
        let Some(next) = sure.min_by_key(|at| self.steps[*at].span.to) else {
            match self.at_rest(place) {
                Ok(()) => return true,
                Err(why) => self.note(place, None, why),
            }
            return self.try_each(place, NEVER);
        };
        let horizon = self.steps[next].span.to;
        self.try_each(place, horizon) || {
            let why = self.step(place, next).err().unwrap_or_default();
            self.note(place, Some(next), why);
            false
        }
    }

    /// Tries each step that may be the next one.
    fn try_each(&mut self, place: &Place, horizon: u64) -> bool {
        for at in 0..self.steps.len() {
            if place.done & (1 << at) != 0 || horizon < self.steps[at].span.from {
                continue;
            }
            if let Ok(after) = self.step(place, at)
                && self.visit(&after)
            {
                return true;
            }
        }
        false
    }

    /// Remembers the farthest place that the search came to, and whether any of them is unclear.
    fn note(&mut self, place: &Place, next: Option<usize>, why: String) {
        self.is_unclear |= self.is_blind(&place.path, next);
        let sure = place.path.iter().filter(|at| self.steps[**at].is_sure).count();
        if self.deepest.as_ref().is_none_or(|deepest| deepest.sure < sure) {
            self.deepest = Some(Deepest { sure, path: place.path.clone(), next, why });
        }
    }

    /// Whether a call that told nobody what it did may explain why it goes no further: one since the last reservation that was told.
    fn is_blind(&self, path: &[usize], next: Option<usize>) -> bool {
        let is_told = |at: &&usize| matches!(self.steps[**at].what, What::Enqueue { .. } | What::Reserve(_));
        let from = path.iter().rev().find(is_told).map_or(0, |at| self.steps[*at].span.from);
        let to = next.map_or(NEVER, |next| self.steps[next].span.to);
        let touches = |span: &Span| from < span.to && span.from < to;
        self.history.blind.touch(from, to)
            || self.history.wild.iter().any(|(span, _)| touches(span))
            || self.history.purges.values().flatten().any(touches)
    }

    /// Makes a step in a copy of the model, and compares the answer.
    fn step(&self, place: &Place, at: usize) -> Result<Place, String> {
        let Step { span, what, .. } = self.steps[at];
        let mut after = place.clone();
        after.done |= 1 << at;
        after.path.push(at);
        let from = self.history.wall_ms(span.from).saturating_sub(ROUNDING_MS);
        let to = if span.to == NEVER {
            u64::MAX
        } else {
            self.history.wall_ms(span.to).saturating_add(ROUNDING_MS)
        };
        after.take(self.story.id, self.story.runs.first(), what, (from, to))?;
        Ok(after)
    }

    /// Compares the job at rest.
    fn at_rest(&self, place: &Place) -> Result<(), String> {
        let now = place.now.max(self.history.dump_now);
        let job = place.model.get(Timestamp::saturating_from_ms(now), self.story.id);
        let Some(rest) = self.story.rest.first().map(|rest| &rest.what) else {
            let is_gone = job.is_none_or(|job| job.state.is_ended());
            let is_known = self.history.dump_complete && !self.may_expire();
            return if is_gone || !is_known { Ok(()) } else { Err("it is gone at rest".to_owned()) };
        };
        if rest.state == State::Cancelled && self.may_expire() {
            return Ok(());
        }
        let Some(job) = job else { return Err(format!("it is {} at rest", rest.state)) };
        let (seen, ours) =
            ((rest.state, rest.attempt, rest.expired_leases), (job.state, job.attempt, job.expired_leases));
        if seen == ours { Ok(()) } else { Err(format!("at rest it is {seen:?}, in the model {ours:?}")) }
    }

    fn may_expire(&self) -> bool {
        self.story.tries.iter().any(|t| self.history.may_expire(t))
    }

    fn tell(&self, deepest: &Deepest) -> String {
        let told: Vec<String> = deepest.path.iter().map(|at| self.steps[*at].what.name()).collect();
        let next = deepest.next.map(|next| self.steps[next].what.name()).unwrap_or_default();
        format!("the model follows {} and then not {next}: {}", told.join(", "), deepest.why)
    }
}

impl What<'_> {
    fn name(&self) -> String {
        match self {
            Self::Enqueue { .. } => "enqueue".to_owned(),
            Self::Reserve(run) => format!("reserve {} (attempt {})", run.row.fence, run.row.attempt),
            Self::Unseen(back) => format!("a reserve {} without an answer", back.fence),
            Self::Reclaim(back) => format!("reclaim {} ({})", back.fence, back.state),
            Self::Settle(end) => format!("settle {} ({:?}, {:?})", end.fence, end.said, end.state),
            Self::Held(told) => format!("extend {} (held)", told.fence),
            Self::Lost(told) => format!("lease {} is lost", told.fence),
            Self::Company(fence) => format!("company of {fence}"),
            Self::Act(act) => format!("{:?} ({:?})", act.deed, act.sure),
        }
    }
}

/// The answer that differs.
fn differs<T>(what: &str, seen: impl std::fmt::Debug, ours: impl std::fmt::Debug) -> Result<T, String> {
    Err(format!("{what}: {seen:?}, in the model {ours:?}"))
}

impl Place {
    /// Makes one call. `within`: between which instants it took effect, as far as the clocks tell.
    fn take(
        &mut self,
        id: JobId,
        first: Option<&Run>,
        what: What<'_>,
        within: (u64, u64),
    ) -> Result<(), String> {
        match what {
            What::Enqueue { created_at, run_at } => self.enqueue(id, first, created_at, run_at, within),
            What::Reserve(run) => self.reserve(id, run),
            What::Unseen(back) => self.reserve_unseen(id, back),
            What::Reclaim(back) => self.reclaim(id, back, within),
            What::Settle(end) => self.settle(end, within),
            What::Held(Told { fence, .. }) => {
                let lease = self.lease(*fence)?;
                // In a copy: most heartbeats are not known here, so none of them makes the lease longer.
                match self.clone().extend(lease, false, within) {
                    LeaseStatus::Lost => differs("the lease", "held", "lost"),
                    _ => Ok(()),
                }
            }
            What::Lost(Told { fence, .. }) => {
                let lease = self.lease(*fence)?;
                match self.extend(lease, false, within) {
                    LeaseStatus::Lost => Ok(()),
                    status => differs("the lease", "lost", status),
                }
            }
            What::Company(fence) => {
                let lease = self.lease(fence)?;
                self.extend(lease, true, within);
                Ok(())
            }
            What::Act(act) => self.act(id, act, within),
        }
    }

    /// Sets the clock, which never goes back. The store had other calls meanwhile, so it saw no jump (S14).
    fn at(&mut self, ms: u64) -> Timestamp {
        let ms = ms.max(self.now);
        if !self.leases.is_empty() && TICK_MS < ms - self.now {
            let now = Timestamp::saturating_from_ms(ms - TICK_MS);
            let request = self.request(OTHER, 0, None, true);
            self.model.reserve(now, &request).expect("invariant: the request keeps all limits");
        }
        self.now = ms;
        Timestamp::saturating_from_ms(ms)
    }

    const fn call(&mut self) -> CallId {
        self.calls += 1;
        CallId { instance: 1, number: self.calls }
    }

    fn request(&mut self, queue: &str, at_most: usize, lease: Option<Duration>, company: bool) -> Reserve {
        let queues = vec![QueueRequest { queue: queue.to_owned(), share: 1, at_most }];
        Reserve { call: self.call(), worker: "w".to_owned(), queues, n: 1, lease, company }
    }

    fn lease(&self, fence: u64) -> Result<Lease, String> {
        let found = self.leases.iter().find(|(number, _)| *number == fence);
        found.map(|(_, lease)| *lease).ok_or_else(|| format!("nobody has reserved {fence} yet"))
    }

    fn enqueue(
        &mut self,
        id: JobId,
        first: Option<&Run>,
        created_at: Option<u64>,
        run_at: Option<u64>,
        within: (u64, u64),
    ) -> Result<(), String> {
        let now = self.at(created_at.unwrap_or(within.0));
        let mut job = NewJob::new(id, "k", QUEUE, Payload::json("0"));
        job.options =
            JobOptions { max_attempts: first.map(|run| run.row.max_attempts), ..JobOptions::default() };
        match run_at {
            Some(run_at) => job.run_at = Timestamp::saturating_from_ms(run_at).into(),
            None => self.due = Some((0, u64::MAX)),
        }
        let call = self.call();
        match self.model.enqueue(now, call, &[job]).map_err(|e| e.to_string())?.first() {
            Some(Enqueued::Inserted { .. }) => Ok(()),
            other => differs("the enqueue", "inserted", other),
        }
    }

    fn reserve(&mut self, id: JobId, run: &Run) -> Result<(), String> {
        let now = self.at(run.now);
        if now.as_ms() != run.now {
            return differs("its time", run.now, now);
        }
        if let Some((from, to)) = self.due.take() {
            if run.row.run_at < from || to < run.row.run_at {
                return differs("its due time", run.row.run_at, (from, to));
            }
            let at = Timestamp::saturating_from_ms(run.row.run_at);
            // At that instant, since a past one would become now.
            self.change(id, at.min(now), &Action::Reschedule(at.into()))?;
        }
        let lasts = Duration::from_millis(run.row.lasts);
        let request = self.request(QUEUE, 1, Some(lasts), run.row.company);
        let batch = self.model.reserve(now, &request).map_err(|e| e.to_string())?;
        if let [back, ..] = &batch.reclaimed[..] {
            return differs("an expired lease", "nothing", back.lease.fence);
        }
        let [reserved] = &batch.jobs[..] else {
            return differs("the job", "reserved", self.model.get(now, id));
        };
        let seen = (run.row.attempt, run.row.expired_leases, run.row.run_at, run.row.lasts);
        let job = &reserved.job;
        let ours = (job.attempt, job.expired_leases, job.run_at.as_ms(), reserved.lasts.as_millis() as u64);
        if seen != ours {
            return differs("attempt, expired leases, due time, lease", seen, ours);
        }
        // An answer that was repeated prolongs it.
        if run.row.until < reserved.until.as_ms() {
            return differs("the end of the lease", run.row.until, reserved.until);
        }
        self.leases.push((run.row.fence, reserved.lease));
        Ok(())
    }

    /// A reservation of which only the number is known, and when its lease was over.
    fn reserve_unseen(&mut self, id: JobId, back: &Back) -> Result<(), String> {
        let now = self.at((back.fence / 1_000).min(back.now));
        let lasts = Duration::from_millis(back.now.saturating_sub(now.as_ms()).max(1_000));
        let from = match self.due {
            Some((from, _)) => Timestamp::saturating_from_ms(from).min(now),
            None => self.model.get(now, id).map_or(now, |job| job.run_at),
        };
        if self.due.is_some() {
            self.change(id, from, &Action::Reschedule(from.into()))?;
        }
        // A pause behind its lease would depend on how long that was to last.
        self.due = Some((from.as_ms(), u64::MAX));
        // A lease with company does not end its job (S9).
        let has_company = back.state != State::Dead;
        let request = self.request(QUEUE, 1, Some(lasts.min(Duration::from_hours(24))), has_company);
        let batch = self.model.reserve(now, &request).map_err(|e| e.to_string())?;
        let ([], [reserved]) = (&batch.reclaimed[..], &batch.jobs[..]) else {
            return differs("the job", "reserved", self.model.get(now, id));
        };
        self.leases.push((back.fence, reserved.lease));
        Ok(())
    }

    /// `back.now` is the time of the answer, which another shard may have given later.
    fn reclaim(&mut self, id: JobId, back: &Back, within: (u64, u64)) -> Result<(), String> {
        let lease = self.lease(back.fence)?;
        let run = self.model.get(Timestamp::saturating_from_ms(self.now), id).and_then(|job| job.running);
        let until = run.map_or(0, |run| run.until.as_ms());
        let now = self.at(until.max(within.0.min(back.now)));
        if back.now < now.as_ms() {
            return differs("the end of the lease", back.now, now);
        }
        let request = self.request(QUEUE, 0, None, true);
        let batch = self.model.reserve(now, &request).map_err(|e| e.to_string())?;
        match &batch.reclaimed[..] {
            [ours] if ours.lease == lease && ours.state == back.state => {
                let due = self.model.get(now, id).map_or(0, |job| job.run_at.as_ms());
                self.due = self.due.or(Some((due, due + (back.now - now.as_ms()))));
                Ok(())
            }
            [ours] if ours.lease == lease => differs("after the expired lease", back.state, ours.state),
            _ => differs("an expired lease", back.fence, self.model.get(now, id).and_then(|job| job.running)),
        }
    }

    fn settle(&mut self, end: &End, within: (u64, u64)) -> Result<(), String> {
        let (lease, now) = (self.lease(end.fence)?, self.at(within.0));
        let error = String::new;
        let (verdict, due) = match end.said {
            Said::Ack => (Verdict::Ack, None),
            Said::Retry(due) => (Verdict::Retry { at: when(due), error: error() }, Some(range(due, within))),
            Said::Snooze(ms) => {
                let after = Duration::from_millis(ms).max(SNOOZE_MIN);
                let due = Due::In(after.as_millis() as u64);
                (Verdict::Snooze { after, reason: None }, Some(range(due, within)))
            }
            Said::Release => (Verdict::Release, None),
            Said::Cancel => (Verdict::Cancel { reason: None }, None),
            Said::Dead => (Verdict::Dead { error: error() }, None),
        };
        let settlement = Settlement { lease, verdict };
        let (settled, _) = self.model.settle(now, &[settlement], None).map_err(|e| e.to_string())?;
        match (settled.first(), end.state) {
            (Some(Settled::Settled(ours, _)), seen) if seen.is_none_or(|seen| seen == *ours) => {
                self.due = due.filter(|_| *ours == State::Waiting);
                Ok(())
            }
            (ours, seen) => differs("the settled job", seen, ours),
        }
    }

    fn extend(&mut self, lease: Lease, company: bool, within: (u64, u64)) -> LeaseStatus {
        let now = self.at(within.0);
        let beat = [Heartbeat { company, ..lease.into() }];
        self.model.extend(now, &beat).expect("invariant: one heartbeat keeps all limits")[0]
    }

    fn change(&mut self, id: JobId, now: Timestamp, action: &Action) -> Result<Vec<Acted>, String> {
        self.model.act(now, &[Target::from(id)], action).map_err(|e| e.to_string())
    }

    fn act(&mut self, id: JobId, act: &Act, within: (u64, u64)) -> Result<(), String> {
        let now = self.at(within.0);
        let (action, due) = match act.deed {
            Deed::Cancel => (Action::Cancel { reason: None }, None),
            Deed::Reschedule(due) => (Action::Reschedule(when(due)), Some(range(due, within))),
            Deed::Move => (Action::RunNow, Some((0, u64::MAX))),
            Deed::Reprioritise | Deed::Edit(_) => (Action::EditPayload(Payload::json("0")), self.due),
            Deed::Retry => (Action::Retry, Some(within)),
            Deed::Delete => (Action::Delete, None),
        };
        let acted = self.change(id, now, &action)?;
        match (&acted[..], act.sure) {
            ([Acted::Done(..)], Sure::Done | Sure::Unknown) => self.due = due,
            ([Acted::Requested(..)], Sure::Requested | Sure::Unknown) => {}
            // Not done at this point, which is as if it had never been made.
            (ours, seen) => return differs("the action", seen, ours),
        }
        Ok(())
    }
}

fn when(due: Due) -> punctual::When {
    match due {
        Due::Now => punctual::When::Now,
        Due::In(ms) => punctual::When::In(Duration::from_millis(ms)),
        Due::At(ms) => punctual::When::At(Timestamp::saturating_from_ms(ms)),
    }
}

/// Between which instants a job is due that somebody moved then.
fn range(due: Due, (from, to): (u64, u64)) -> (u64, u64) {
    match due {
        Due::Now => (from, to),
        Due::In(ms) => (from.saturating_add(ms), to.saturating_add(ms)),
        Due::At(ms) => (ms, ms.max(to)),
    }
}
