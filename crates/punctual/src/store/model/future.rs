//! What of a model decides its later answers, as a hash. A program that explores the model exhaustively needs to visit
//! only one of all states that hash alike.
//!
//! Instants count by their distance from now, so that the same situation an hour later is the same one. Of instants that
//! have passed, only the order counts, unless the clock can go back. A fence counts only by whether it is current, since
//! a later one is always higher.
//!
//! Never hashed, because the explored calls do not depend on it: histories of jobs, retention (it begins after a day),
//! documents, tools, and the calls of instances ([`Model::current_of_last_reserve`] returns those of one).

use std::hash::{Hash, Hasher};

use super::{
    LastReserve, Model, Row,
    state::{groups::ActiveGroups, keys::window_end},
};
use crate::{
    core::{silence::Silences, time::Timestamp},
    store::Lease,
};

/// Instants of one kind, which are compared with each other and with now.
struct Instants {
    now: Timestamp,
    /// Those up to now, each once. Empty if the clock can go back.
    passed: Vec<Timestamp>,
    can_go_back: bool,
}

impl Instants {
    fn new(now: Timestamp, can_go_back: bool, all: impl Iterator<Item = Timestamp>) -> Self {
        let mut passed = Vec::new();
        if !can_go_back {
            // An instant of now is later than those before it, and equal to those that this step adds.
            passed = all.filter(|at| *at < now).chain([now]).collect();
            passed.sort_unstable();
            passed.dedup();
        }
        Self { now, passed, can_go_back }
    }

    /// Returns the distance from now in ms; of an instant that has passed, how many later ones have passed, as a negative
    /// number.
    fn code(&self, at: Timestamp) -> i64 {
        if self.now < at || self.can_go_back {
            return at.as_ms().cast_signed() - self.now.as_ms().cast_signed();
        }
        let later = self.passed.len() - self.passed.partition_point(|passed| *passed <= at);
        i64::try_from(later).map_or(i64::MIN, |later| -later)
    }

    /// Returns the same; `None` for an instant that has passed, if nothing asks when.
    fn code_if_ahead(&self, at: Timestamp) -> Option<i64> {
        (self.now < at || self.can_go_back).then(|| self.code(at))
    }
}

impl Model {
    /// Hashes what decides the answers of later calls.
    ///
    /// `can_go_back`: whether the clock can show less than `now` in a later call.
    pub fn hash_future(&self, now: Timestamp, can_go_back: bool, hasher: &mut impl Hasher) {
        let live = || self.rows.values().map(|row| &row.job).filter(|job| !job.state.is_ended());
        let groups = || self.active_groups.values().flat_map(ActiveGroups::pauses);
        let due = Instants::new(now, can_go_back, live().map(|job| job.run_at).chain(groups()));
        let untils = || live().filter_map(|job| Some(job.running.as_ref()?.until));
        let ends = Instants::new(now, can_go_back, untils());
        for (id, row) in &self.rows {
            let Row { job, lasts_ms, started, company, blocked, .. } = row;
            (id, job.state, job.version, started).hash(hasher);
            window_end(job).and_then(|end| due.code_if_ahead(end)).hash(hasher);
            if job.state.is_ended() {
                continue;
            }
            let expiry = job.expires_at.map(|at| due.code(at));
            (job.attempt, job.expired_leases, job.snoozes, row.max_attempts(), job.priority).hash(hasher);
            (job.cancel_requested, blocked, due.code(job.run_at), expiry, job.lease).hash(hasher);
            let end = job.running.as_ref().map(|run| ends.code(run.until));
            end.map(|end| (end, lasts_ms, company)).hash(hasher);
        }
        for (key, held) in &self.keys {
            if self.held(key, now).is_some() || can_go_back {
                (key, held.by, held.term.and_then(|term| due.code_if_ahead(term.end(now)))).hash(hasher);
            }
        }
        self.remembered.keys().for_each(|key| key.hash(hasher));
        for (queue, limiter) in &self.limiters {
            limiter.hash_future(queue, |at| due.code_if_ahead(at), hasher);
        }
        for (queue, active) in &self.active_groups {
            queue.hash(hasher);
            active.hash_future(|at| due.code(at), |at| due.code_if_ahead(at), hasher);
        }
        for queue in self.queues.keys() {
            self.is_paused(queue).hash(hasher);
        }
        self.touched.len().hash(hasher);
        // Silences matter only while leases exist: for when these are over, and for how long the next silence is.
        let lasts = self.rows.values().filter(|row| row.job.running.is_some()).map(|row| row.lasts_ms);
        if let Some(longest) = lasts.max() {
            let distance = |at: Timestamp| now.as_ms().cast_signed() - at.as_ms().cast_signed();
            let longest = longest.cast_signed() + 1;
            self.last_mark.map(|mark| distance(mark).min(longest)).hash(hasher);
            for row in self.rows.values() {
                let Some(until) = row.job.running.as_ref().map(|run| run.until) else { continue };
                let over_at = self.silences.over_at(until, row.lasts_ms);
                (ends.code_if_ahead(over_at), self.last_mark.is_some_and(|mark| mark < until)).hash(hasher);
            }
            if can_go_back {
                for silence in &self.silences.known {
                    (distance(silence.ended), silence.lasted_ms).hash(hasher);
                }
            }
            self.silences.can_end_late(now).then(|| distance(self.silences.ahead)).hash(hasher);
        }
    }

    /// Forgets when it was not called: what a store does that trusts the clock alone. Only broken twins do.
    pub fn forget_silences(&mut self) {
        (self.last_mark, self.silences) = (None, Silences::default());
    }

    /// Returns the leases of the last reserve of an instance that are still current: those that its repetition returns.
    pub fn current_of_last_reserve(&self, instance: u64) -> Vec<Lease> {
        let last = self.reserves.get(&instance);
        let leases = last.into_iter().flat_map(|LastReserve { leases, .. }| leases);
        leases.copied().filter(|lease| self.run_of(*lease).is_some()).collect()
    }
}
