//! M: replays the history of each job in the model, which is the contract as a program.
//!
//! Calls overlap, so their order is not known. For each job, this searches an order that agrees with the spans of the calls, and
//! in which the model gives the answers that were recorded. It is the search of Wing and Gong for a linearization, for one job
//! at a time: what other jobs change of it (limits, unique keys) is left to other rules. A call that was not answered may have
//! happened or not.
//!
//! The model is given the time of an answer where the answer says it, and else the earliest that its span allows. What depends
//! on such a time, as the due time after a retry does, must lie within the span.

mod place;
mod steps;

use punctual::{State, Timestamp};

use self::{
    place::Place,
    steps::{Step, What, steps},
};
use crate::history::{History, NEVER, Span, Story};

/// How many states the search for one job visits at most.
const VISITS_MAX: u32 = 5_000;
/// How much two readings of one clock can differ, in milliseconds: each was rounded.
const ROUNDING_MS: u64 = 2;

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
    let is_searched = search.visits < VISITS_MAX && !search.is_unclear;
    let is_told = !is_shaken && story.taken.is_empty() && !has_other_options && !search.may_expire();
    match search.deepest.take() {
        Some(deepest) if is_searched && is_told => Replay::Differs(search.tell(&deepest)),
        _ => Replay::Unclear,
    }
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
    /// Whether a call without an answer may explain one of its dead ends.
    is_unclear: bool,
}

impl Search<'_> {
    /// Returns whether the model gives the answers of the remaining steps in some order.
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

    /// Whether a call that told nobody what it did may explain why the search goes no further: one since the last reservation
    /// that was told, or since the enqueue.
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
        after.apply(self.story.id, self.story.runs.first(), what, (from, to))?;
        Ok(after)
    }

    /// Compares the job at rest.
    fn at_rest(&self, place: &Place) -> Result<(), String> {
        let now = place.now.max(self.history.dump_now);
        let job = place.model.get(Timestamp::saturating_from_ms(now), self.story.id);
        let Some(rest) = self.story.rest.first().map(|rest| &rest.what) else {
            // One that has ended may be gone: no more are kept than was asked for.
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
        let next = deepest.next.map_or("its state at rest".to_owned(), |next| self.steps[next].what.name());
        format!("the model agrees with {} and then not with {next}: {}", told.join(", "), deepest.why)
    }
}
