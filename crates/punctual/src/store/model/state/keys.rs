//! Concurrency keys (S15) and unique keys (S4).
//!
//! A due job that a reserve checks is *blocked* if its key is full, or if a blocked job of its key comes first. It
//! leaves the timeline, so that it is not checked again in vain. Each event of a key re-checks its first blocked job.
//! The events are: a run starts or ends; a waiting job leaves or is blocked. If the job can run, it returns to the
//! timeline with its own `run_at`. So while the first blocked job can run, some job of the key is in the timeline,
//! and its next event re-checks again. No job is forgotten. If the clock went back, that job may not be due any more; then the
//! next one is re-checked, too. After `RECHECK_MAX` of these, a due one waits for the next event of the key.

use std::time::Duration;

use crate::{
    core::{
        digest::digest,
        id::JobId,
        job::{JobRecord, Scope, State},
        limits::RECHECK_MAX,
        silence::Term,
        time::Timestamp,
    },
    store::{UniqueKey, model::Model},
};

/// A concurrency key with its scope: queue, group, key.
pub(crate) type Key = (String, Option<String>, String);

pub(crate) fn key(job: &JobRecord) -> Option<Key> {
    let concurrency = job.concurrency.as_ref()?;
    Some((job.queue.clone(), job.group.clone(), concurrency.key.clone()))
}

/// Returns the digest of a blocked job's key.
pub(crate) fn digest_of(job: &JobRecord) -> Option<[u8; 16]> {
    let concurrency = job.concurrency.as_ref()?;
    Some(digest(&[Some(&job.queue), job.group.as_deref(), Some(&concurrency.key)]))
}

/// A unique key that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) by: JobId,
    /// For a window: until when the key is held.
    pub(crate) term: Option<Term>,
}

impl Held {
    /// A job takes its key.
    pub(crate) fn of(job: &JobRecord) -> Self {
        let lasts = match job.unique.as_ref().map(|unique| unique.scope) {
            Some(Scope::Window { window_ms }) => Duration::from_millis(window_ms),
            _ => Duration::ZERO,
        };
        Self { by: job.id, term: window_end(job).map(|until| Term::new(until, lasts)) }
    }
}

impl Model {
    // ── unique keys ──

    /// Returns the holder of a key (S4).
    pub(crate) fn held(&self, key: &UniqueKey, now: Timestamp) -> Option<Held> {
        let held = *self.keys.get(key)?;
        let holds = match held.term {
            Some(term) => now < term.end(now),
            None => self.rows.contains_key(&held.by),
        };
        holds.then_some(held)
    }

    /// Does the same for who needs the key: from then on, a window of a clock that was ahead ends in its length (S14).
    pub(crate) fn meet_key(&mut self, key: &UniqueKey, now: Timestamp) -> Option<Held> {
        if let Some(Held { term: Some(term), .. }) = self.keys.get_mut(key) {
            term.note(now);
        }
        self.held(key, now)
    }

    /// Frees the key of a job, if the job holds it.
    pub(crate) fn free_key(&mut self, id: JobId) {
        if let Some(key) = UniqueKey::of(&self.row_mut(id).job)
            && self.keys.get(&key).is_some_and(|held| held.by == id)
        {
            self.keys.remove(&key);
        }
    }

    // ── concurrency keys ──

    /// Returns whether the concurrency key of a job is full.
    pub(crate) fn is_full(&self, job: &JobRecord) -> bool {
        let Some(concurrency) = &job.concurrency else { return false };
        let running = self.jobs(&job.queue, State::Running).filter(|other| key(other) == key(job));
        concurrency.limit as usize <= running.count()
    }

    /// Returns whether a due job is blocked: its key is full, or a blocked job of its key comes first.
    pub(crate) fn waits_for_slot(&self, job: &JobRecord) -> bool {
        let of = key(job);
        let mut ahead: Vec<_> =
            self.blocked(&job.queue).filter(|other| of.is_some() && key(other) == of).collect();
        ahead.push(job);
        self.is_full(job) || self.in_order(&job.queue, ahead).first() != Some(&job.id)
    }

    /// Notes an event of the key that a job has.
    pub(crate) fn touch(&mut self, id: JobId) {
        self.touched.extend(key(&self.rows[&id].job));
    }

    /// Removes a waiting job from its place, also if it then waits in another one.
    pub(crate) fn leave_waiting(&mut self, id: JobId) {
        if self.rows[&id].job.state == State::Waiting {
            self.row_mut(id).blocked = false;
            self.touch(id);
        }
    }

    /// Blocks a due job.
    pub(crate) fn block(&mut self, id: JobId) {
        self.row_mut(id).blocked = true;
        self.touch(id);
    }

    /// Re-checks the first blocked job of the key for each event, and returns it to the timeline if it can run; the next
    /// one, too, if it is not due any more. Then deactivates groups that have nothing to start.
    pub(crate) fn hand_over(&mut self, now: Timestamp) {
        for touched in std::mem::take(&mut self.touched) {
            for _ in 0..RECHECK_MAX {
                let Some(run_at) = self.recheck(&touched) else { break };
                if run_at <= now {
                    break;
                }
            }
        }
        self.thin_rings(now);
    }

    /// Returns the first blocked job of a key to the timeline if it can run, and says when it is due.
    fn recheck(&mut self, of: &Key) -> Option<Timestamp> {
        let blocked = self.blocked(&of.0).filter(|job| key(job).as_ref() == Some(of)).collect();
        let first = *self.in_order(&of.0, blocked).first()?;
        let job = &self.rows[&first].job;
        let run_at = (!self.is_full(job)).then_some(job.run_at)?;
        self.row_mut(first).blocked = false;
        Some(run_at)
    }

    /// Returns the blocked jobs of a queue.
    pub(crate) fn blocked<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a JobRecord> {
        self.jobs(queue, State::Waiting).filter(|job| self.rows[&job.id].blocked)
    }
}

pub(crate) fn is_window(job: &JobRecord) -> bool {
    job.unique.as_ref().is_some_and(|unique| matches!(unique.scope, Scope::Window { .. }))
}

/// Returns until when a job holds its key, if the enqueue decided that.
pub(crate) fn window_end(job: &JobRecord) -> Option<Timestamp> {
    match job.unique.as_ref()?.scope {
        Scope::Window { window_ms } => {
            Some(Timestamp::saturating_from_ms(job.created_at.as_ms().saturating_add(window_ms)))
        }
        Scope::UntilDone | Scope::UntilStart => None,
    }
}
