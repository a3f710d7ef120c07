//! Concurrency keys (S15) and unique keys (S4).
//!
//! A due job that a reserve looks at while as many of its key run as may, or while one that comes first is parked, is *parked*: it
//! leaves the timeline, so that nobody looks at it again in vain. Each event of a key (a run that starts or ends, a waiting
//! job that leaves or is parked) gives the first of its parked jobs a look: if it may run, it is back in the timeline, with
//! its own `run_at`. So while the first may run, some job of the key is in the timeline, whose own next event looks again:
//! none is left behind.

use crate::{
    core::{
        digest::digest,
        id::JobId,
        job::{JobRecord, Scope, State},
        time::Timestamp,
    },
    store::{UniqueKey, model::Model},
};

/// A concurrency key with what it is compared within: queue, group, key.
pub(crate) type Key = (String, Option<String>, String);

pub(crate) fn key(job: &JobRecord) -> Option<Key> {
    let concurrency = job.concurrency.as_ref()?;
    Some((job.queue.clone(), job.group.clone(), concurrency.key.clone()))
}

/// What stands for the key of a parked job.
pub(crate) fn digest_of(job: &JobRecord) -> Option<[u8; 16]> {
    let concurrency = job.concurrency.as_ref()?;
    Some(digest(&[Some(&job.queue), job.group.as_deref(), Some(&concurrency.key)]))
}

/// A unique key that is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) by: JobId,
    /// Of a window: void from then on.
    pub(crate) until: Option<Timestamp>,
}

impl Model {
    // ── unique keys ──

    /// Who holds a key (S4).
    pub(crate) fn held(&self, key: &UniqueKey, now: Timestamp) -> Option<Held> {
        let held = *self.keys.get(key)?;
        let holds = match held.until {
            Some(until) => now < until,
            None => self.rows.contains_key(&held.by),
        };
        holds.then_some(held)
    }

    /// Frees the key of a job, if the job has it.
    pub(crate) fn free_key(&mut self, id: JobId) {
        if let Some(key) = UniqueKey::of(&self.row_mut(id).job)
            && self.keys.get(&key).is_some_and(|held| held.by == id)
        {
            self.keys.remove(&key);
        }
    }

    // ── concurrency keys ──

    /// Whether as many jobs of a job's key run as may beside it.
    pub(crate) fn is_full(&self, job: &JobRecord) -> bool {
        let Some(concurrency) = &job.concurrency else { return false };
        let running = self.jobs(&job.queue, State::Running).filter(|other| key(other) == key(job));
        concurrency.limit as usize <= running.count()
    }

    /// Whether a due job waits for its turn: its key is full, or one of those that are parked comes first.
    pub(crate) fn waits_for_turn(&self, job: &JobRecord) -> bool {
        let of = key(job);
        let mut ahead: Vec<_> =
            self.parked(&job.queue).filter(|other| of.is_some() && key(other) == of).collect();
        ahead.push(job);
        self.is_full(job) || self.in_order(&job.queue, ahead).first() != Some(&job.id)
    }

    /// Notes an event of the key that a job has.
    pub(crate) fn touch(&mut self, id: JobId) {
        self.touched.extend(key(&self.rows[&id].job));
    }

    /// A waiting job leaves its place, be it for another among those that wait.
    pub(crate) fn leave_waiting(&mut self, id: JobId) {
        if self.rows[&id].job.state == State::Waiting {
            self.row_mut(id).parked = false;
            self.touch(id);
        }
    }

    /// Parks a due job.
    pub(crate) fn park(&mut self, id: JobId) {
        self.row_mut(id).parked = true;
        self.touch(id);
    }

    /// For each event, the first of the parked jobs of its key returns to the timeline if it may run; groups that have nothing to
    /// start any more leave the rings.
    pub(crate) fn hand_over(&mut self, now: Timestamp) {
        for touched in std::mem::take(&mut self.touched) {
            let parked = self.parked(&touched.0).filter(|job| key(job).as_ref() == Some(&touched)).collect();
            if let Some(&first) = self.in_order(&touched.0, parked).first()
                && !self.is_full(&self.rows[&first].job)
            {
                self.row_mut(first).parked = false;
            }
        }
        self.thin_rings(now);
    }

    /// Parked jobs of a queue.
    pub(crate) fn parked<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a JobRecord> {
        self.jobs(queue, State::Waiting).filter(|job| self.rows[&job.id].parked)
    }
}

pub(crate) fn is_window(job: &JobRecord) -> bool {
    job.unique.as_ref().is_some_and(|unique| matches!(unique.scope, Scope::Window { .. }))
}

/// Until when a job holds its key, if that is settled by its enqueue.
pub(crate) fn window_end(job: &JobRecord) -> Option<Timestamp> {
    match job.unique.as_ref()?.scope {
        Scope::Window { window_ms } => {
            Some(Timestamp::saturating_from_ms(job.created_at.as_ms().saturating_add(window_ms)))
        }
        Scope::UntilDone | Scope::UntilStart => None,
    }
}
