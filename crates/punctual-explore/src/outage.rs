//! Outages of the store, exhaustively: a worker that holds a job, another one that waits, and a store that is away once, for any time.
//!
//! The states of [`World`](crate::world::World) leave open when a worker extends its lease, so they cannot show that a living one keeps
//! it. Here all processes live by the rules of S9, on their steady clocks: the holder extends every third of its lease, and repeats a
//! failed extension within a sixth; the other one reserves when the store tells it to. All is enumerated, in parts of a lease: when the
//! outage begins, how long it lasts, when the holder is killed (or never), which of both reaches the store first after it, and whether
//! calls fail, calls hang, or the store's clock is set forward.

use std::time::Duration;

use punctual::{
    NewJob, Payload, State, Timestamp,
    job::IdMaker,
    store::{Heartbeat, Lease, LeaseStatus, model::Model},
};

use crate::{
    referee::next_call,
    rule::{Broke, Checked, Rule, check},
    scope::{BEGIN_MS, QUEUE},
    store::request,
};

/// A step of time is this part of a lease.
const STEPS: u64 = 24;
/// The longest pause after a failed call of a worker that has no lease to keep.
const PAUSE_MS: u64 = 1_000;
/// How late a dead worker's job may come back if the store can be reached.
const LATE_MS: u64 = 1_000;

/// What happens to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Calls fail.
    Away,
    /// Calls hang, and are answered at its end.
    Hangs,
    /// The store's clock is set forward by this time, at the end.
    ClockForward,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Away, Self::Hangs, Self::ClockForward];
}

/// One story.
#[derive(Clone, Copy, Debug)]
pub struct Story {
    /// The length of the lease, in ms.
    pub lease_ms: u64,
    /// What happens.
    pub fault: Fault,
    /// When it begins, in ms.
    pub from_ms: u64,
    /// How long it lasts, in ms.
    pub lasts_ms: u64,
    /// When the holder is killed, in ms; `None` if it lives.
    pub killed_ms: Option<u64>,
    /// Whether the other worker reaches the store before the holder does in each step.
    pub other_first: bool,
    /// Whether the store forgets its silences: a broken twin.
    pub forgets: bool,
}

/// Tells a story; returns whether its rules hold: a living holder keeps its job, and a dead one's comes back in time.
///
/// # Errors
/// The rule that was broken.
pub fn tell(story: &Story) -> Checked {
    let mut world = World::new(story);
    let end = story.from_ms + story.lasts_ms + 3 * story.lease_ms + 4 * LATE_MS;
    for ms in (0..=end).step_by((story.lease_ms / STEPS) as usize) {
        world.step(ms)?;
        if world.is_back {
            return Ok(());
        }
    }
    check(story.killed_ms.is_none(), Rule::Ends, || format!("its job never came back: {story:?}"))
}

/// Tells all stories of a lease, in this many parts of it; returns how many.
///
/// # Errors
/// The first one that broke a rule, and which.
pub fn tell_all(lease_ms: u64, parts: u64, forgets: bool) -> Result<u64, (Story, Broke)> {
    let mut told = 0;
    let step = lease_ms / STEPS * (STEPS / parts.clamp(1, STEPS));
    for fault in Fault::ALL {
        for from_ms in (0..=lease_ms).step_by(step as usize) {
            for lasts_ms in (0..=3 * lease_ms).step_by(step as usize) {
                let kills = (0..=2 * lease_ms).step_by(step as usize).map(Some);
                for killed_ms in std::iter::once(None).chain(kills) {
                    for other_first in [false, true] {
                        let story =
                            Story { lease_ms, fault, from_ms, lasts_ms, killed_ms, other_first, forgets };
                        tell(&story).map_err(|broke| (story, broke))?;
                        told += 1;
                    }
                }
            }
        }
    }
    Ok(told)
}

struct World<'a> {
    story: &'a Story,
    model: Model,
    lease: Lease,
    /// When the holder extends, and the other one reserves, by their steady clocks.
    beat_ms: u64,
    look_ms: u64,
    /// Whether the call of each hangs.
    beat_hangs: bool,
    look_hangs: bool,
    pause_ms: u64,
    calls: u64,
    /// When the last extension was made, by a steady clock.
    extended_ms: u64,
    is_back: bool,
}

impl<'a> World<'a> {
    fn new(story: &'a Story) -> Self {
        let (mut model, now) = (Model::new(), at(0));
        let mut job = NewJob::new(IdMaker::default().make(BEGIN_MS, 0, 0), "k", QUEUE, Payload::json("1"));
        job.options.lease = Some(Duration::from_millis(story.lease_ms));
        let mut calls = 0;
        let call = next_call(1, &mut calls);
        model.enqueue(now, call, &[job]).expect("a job within the limits");
        let batch =
            model.reserve(now, &request(next_call(1, &mut calls), 1, false)).expect("within the limits");
        let lease = batch.jobs[0].lease;
        Self {
            story,
            model,
            lease,
            beat_ms: story.lease_ms / 3,
            look_ms: 0,
            beat_hangs: false,
            look_hangs: false,
            pause_ms: 0,
            calls: 0,
            extended_ms: 0,
            is_back: false,
        }
    }

    /// The store's clock.
    fn now(&self, ms: u64) -> Timestamp {
        let Story { fault, from_ms, lasts_ms, .. } = *self.story;
        let ahead = if fault == Fault::ClockForward && from_ms <= ms { lasts_ms } else { 0 };
        at(ms + ahead)
    }

    fn is_away(&self, ms: u64) -> bool {
        let Story { fault, from_ms, lasts_ms, .. } = *self.story;
        fault != Fault::ClockForward && (from_ms..from_ms + lasts_ms).contains(&ms)
    }

    fn step(&mut self, ms: u64) -> Checked {
        if self.story.other_first {
            self.look(ms)?;
            self.beat(ms)
        } else {
            self.beat(ms)?;
            self.look(ms)
        }
    }

    fn beat(&mut self, ms: u64) -> Checked {
        if self.story.killed_ms.is_some_and(|killed| killed <= ms) || ms < self.beat_ms && !self.beat_hangs {
            return Ok(());
        }
        if self.is_away(ms) {
            self.beat_hangs = self.story.fault == Fault::Hangs;
            let step_ms = self.story.lease_ms / STEPS;
            self.pause_ms = (2 * self.pause_ms).clamp(step_ms, self.story.lease_ms / 6);
            self.beat_ms = ms + self.pause_ms;
            return Ok(());
        }
        let now = self.now(ms);
        let statuses = self.model.extend(now, &[Heartbeat::from(self.lease)]).expect("within the limits");
        self.extended_ms = ms;
        (self.beat_hangs, self.pause_ms, self.beat_ms) = (false, 0, ms + self.story.lease_ms / 3);
        check(statuses == [LeaseStatus::Held], Rule::LeaseTime, || {
            format!("a living holder lost its lease: {:?}", self.story)
        })
    }

    fn look(&mut self, ms: u64) -> Checked {
        if ms < self.look_ms && !self.look_hangs {
            return Ok(());
        }
        if self.is_away(ms) {
            self.look_hangs = self.story.fault == Fault::Hangs;
            self.look_ms = ms + PAUSE_MS;
            return Ok(());
        }
        let now = self.now(ms);
        if self.story.forgets {
            self.model.forget_silences();
        }
        let call = next_call(2, &mut self.calls);
        let batch = self.model.reserve(now, &request(call, 0, false)).expect("within the limits");
        self.look_hangs = false;
        self.look_ms = ms + batch.next_due.map_or(60_000, |next| next.as_millis() as u64).max(1);
        if batch.reclaimed.is_empty() {
            return Ok(());
        }
        self.is_back = true;
        let state = self.model.get(now, self.lease.job).map(|job| job.state);
        check(state == Some(State::Waiting), Rule::AnswersHold, || format!("the job is {state:?}"))?;
        let is_dead = self.story.killed_ms.is_some_and(|killed| killed <= ms);
        check(is_dead, Rule::LeaseTime, || {
            format!("the job of a living holder is reclaimed after {ms} ms: {:?}", self.story)
        })?;
        // In time, unless the fault was in it: then two fifths of the lease after it, and the pauses of both.
        let over = self.extended_ms + self.story.lease_ms;
        let Story { from_ms, lasts_ms, lease_ms, .. } = *self.story;
        // A step of the clock is met by the next call.
        let met_ms = if self.story.fault == Fault::ClockForward { 2 * lease_ms / 5 } else { lasts_ms };
        let heard = from_ms + met_ms + PAUSE_MS;
        let back = heard + (2 * lease_ms / 5).max(2_000);
        let is_faulty = 0 < lasts_ms && self.extended_ms <= heard && from_ms <= over;
        let latest = if is_faulty { over.max(back) } else { over } + LATE_MS + lease_ms / STEPS;
        check(ms <= latest, Rule::Ends, || {
            format!("it came back after {ms} ms, not {latest}: {:?}", self.story)
        })
    }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::saturating_from_ms(BEGIN_MS + ms)
}
