//! Enqueue: checks for a known id, then a held key, then a full queue, then inserts.

use std::collections::BTreeSet;

use crate::{
    core::{
        error::Result,
        id::JobId,
        job::{JobRecord, NewJob, OnConflict, Priority, State},
        limits::{ID_MEMORY, PAYLOAD_BYTES_MAX, TIMEOUT_DEFAULT},
        notes::Notes,
        time::Timestamp,
    },
    store::{
        CallId, Enqueued, Existing, QueueSettings, UniqueKey, check_batch, check_enqueue,
        model::{LastEnqueue, Model, Row, state::keys::Held},
        resolve_expiry,
        version_defaults::defaults,
    },
};

impl Model {
    /// [`Store::enqueue`](crate::store::Store::enqueue).
    pub fn enqueue(&mut self, now: Timestamp, call: CallId, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check_batch("jobs", jobs.len())?;
        if let Some(last) = self.enqueues.get(&call.instance).filter(|last| call.number <= last.number) {
            let is_last = call.number == last.number;
            // Of two jobs with one id, only the first was inserted.
            let mut told = BTreeSet::new();
            let answer = |(i, job): (usize, &NewJob)| {
                if is_last && last.full.contains(&i) {
                    Enqueued::Full
                } else if is_last && !last.others.contains(&i) && told.insert(job.id) {
                    self.inserted_before(job)
                } else {
                    self.met_before(now, job)
                }
            };
            return Ok(jobs.iter().enumerate().map(answer).collect());
        }
        check_enqueue(jobs, now, PAYLOAD_BYTES_MAX)?;
        let answers: Vec<Enqueued> = jobs.iter().map(|job| self.enqueue_one(now, job)).collect();
        self.hand_over(now);
        let full: Vec<usize> = (0..jobs.len()).filter(|&i| answers[i] == Enqueued::Full).collect();
        if full.len() < jobs.len() {
            let is_other = |i: &usize| !matches!(answers[*i], Enqueued::Inserted { .. } | Enqueued::Full);
            let others = (0..jobs.len()).filter(is_other).collect();
            let last = LastEnqueue { number: call.number, at: now, full, others };
            self.enqueues.insert(call.instance, last);
        }
        Ok(answers)
    }

    /// Returns the answer for a job that this call inserted when it was made first: the same as then, as long as it has a record.
    fn inserted_before(&self, new: &NewJob) -> Enqueued {
        let Some(row) = self.rows.get(&new.id) else { return Enqueued::Duplicate(self.existing(new.id)) };
        Enqueued::Inserted { id: new.id, run_at: new.run_at.resolve(row.job.created_at) }
    }

    /// Returns the answer for another job of a repeated call.
    fn met_before(&self, now: Timestamp, new: &NewJob) -> Enqueued {
        let holder = || self.held(&UniqueKey::of_new(new)?, now);
        if self.rows.contains_key(&new.id) {
            self.met_by_id(new)
        } else {
            Enqueued::Duplicate(self.existing(holder().map_or(new.id, |held| held.by)))
        }
    }

    fn enqueue_one(&mut self, now: Timestamp, new: &NewJob) -> Enqueued {
        if self.is_known(now, new) {
            return self.met_by_id(new);
        }
        let key = UniqueKey::of_new(new);
        if let Some(held) = key.as_ref().and_then(|key| self.meet_key(key, now)) {
            return self.meet_holder(now, held.by, new);
        }
        if self.is_at_cap(new) {
            return Enqueued::Full;
        }
        let job = self.resolve(now, new);
        if let Some(key) = key {
            self.keys.insert(key, Held::of(&job));
        }
        let answer = Enqueued::Inserted { id: job.id, run_at: job.run_at };
        if !self.queues.contains_key(&job.queue) {
            self.put_settings(&job.queue, QueueSettings::default());
        }
        let is_open = self.is_open(new);
        self.rows.insert(
            job.id,
            Row {
                job,
                is_open,
                lasts_ms: 0,
                started: false,
                cancel_reported: false,
                company: false,
                blocked: false,
            },
        );
        answer
    }

    fn is_known(&self, now: Timestamp, new: &NewJob) -> bool {
        let remembered = self.remembered.get(&(new.queue.clone(), new.id));
        self.rows.contains_key(&new.id) || remembered.is_some_and(|end| now < end.after(ID_MEMORY))
    }

    /// Returns the answer for a job whose id is known.
    fn met_by_id(&self, new: &NewJob) -> Enqueued {
        match self.rows.get(&new.id) {
            Some(Row { job, .. }) if job.queue != new.queue => Enqueued::Conflict { id: new.id },
            _ => Enqueued::Duplicate(self.existing(new.id)),
        }
    }

    /// Returns what an enqueue reports about an existing job.
    fn existing(&self, id: JobId) -> Existing {
        let gone = Existing { id, kind: None, state: None, version: 0, cancel_requested: false };
        self.rows.get(&id).map_or(gone, |Row { job, .. }| Existing {
            id,
            kind: Some(job.kind.clone()),
            state: Some(job.state),
            version: job.version,
            cancel_requested: job.cancel_requested,
        })
    }

    /// Applies the conflict rule (S4). Only a waiting holder is changed.
    fn meet_holder(&mut self, now: Timestamp, id: JobId, new: &NewJob) -> Enqueued {
        let existing = self.existing(id);
        let unique = new.unique.as_ref().expect("invariant: only a job with a key meets a holder");
        let version_fits = unique.version.is_none_or(|version| version == existing.version);
        let asked = self.resolve(now, new);
        let is_waiting = existing.state == Some(State::Waiting);
        match unique.on_conflict {
            OnConflict::Replace if is_waiting && version_fits => {
                self.leave_waiting(id);
                self.row_mut(id).is_open = self.is_open(new);
                let holder = &mut self.row_mut(id).job;
                holder.kind = asked.kind;
                holder.payload = asked.payload;
                holder.priority = asked.priority;
                holder.max_attempts = asked.max_attempts;
                holder.backoff = asked.backoff;
                holder.timeout = asked.timeout;
                holder.lease = asked.lease;
                holder.tags = asked.tags;
                holder.headers = asked.headers;
                holder.run_at = asked.run_at;
                holder.expires_at = asked.expires_at;
                holder.version += 1;
                Enqueued::Replaced { id, run_at: asked.run_at }
            }
            OnConflict::Reschedule if is_waiting => {
                self.leave_waiting(id);
                let holder = &mut self.row_mut(id).job;
                holder.run_at = asked.run_at;
                holder.version += 1;
                Enqueued::Rescheduled { id, run_at: asked.run_at }
            }
            _ => Enqueued::Duplicate(existing),
        }
    }

    /// Returns whether the queue is at its cap, in jobs or in bytes.
    fn is_at_cap(&self, new: &NewJob) -> bool {
        let settings = self.settings(&new.queue);
        let live = || self.jobs(&new.queue, State::Waiting).chain(self.jobs(&new.queue, State::Running));
        let bytes = || live().map(|job| job.payload.bytes.len() as u64).sum::<u64>();
        settings.max_jobs.is_some_and(|max| max <= live().count() as u64)
            || settings.max_bytes.is_some_and(|max| max < bytes() + new.payload.bytes.len() as u64)
    }

    /// Returns whether the number of attempts of a new job was left open.
    fn is_open(&self, new: &NewJob) -> bool {
        new.options.clone().or(&self.settings(&new.queue).defaults).max_attempts.is_none()
    }

    /// Makes the record of a new job. Options come from the call or the type of job, then the queue, then the
    /// defaults.
    fn resolve(&self, now: Timestamp, new: &NewJob) -> JobRecord {
        let own_lease = new.options.lease;
        let options = new.options.clone().or(&self.settings(&new.queue).defaults);
        JobRecord {
            id: new.id,
            kind: new.kind.clone(),
            queue: new.queue.clone(),
            payload: new.payload.clone(),
            priority: options.priority.unwrap_or(Priority::Normal),
            run_at: new.run_at.resolve(now),
            created_at: now,
            max_attempts: options.max_attempts.unwrap_or_else(|| defaults().max_attempts),
            backoff: options.backoff.unwrap_or_default(),
            timeout: options.timeout.unwrap_or(TIMEOUT_DEFAULT),
            // The queue's lease comes after the worker's, so it is looked up at the reservation.
            lease: own_lease,
            group: new.group.clone(),
            concurrency: new.concurrency.clone(),
            unique: new.unique.clone(),
            expires_at: new.expires_at.map(|when| resolve_expiry(when, now)),
            tags: new.tags.clone(),
            headers: new.headers.clone(),
            state: State::Waiting,
            attempt: 1,
            expired_leases: 0,
            snoozes: 0,
            version: 1,
            cancel_requested: false,
            started_at: None,
            finished_at: None,
            reason: None,
            failures: Vec::new(),
            notes: Notes::default(),
            result: None,
            running: None,
            blocked: false,
        }
    }
}
