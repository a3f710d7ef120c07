//! Operator's actions on single jobs.

use crate::{
    core::{
        error::Result,
        id::JobId,
        job::{Scope, State, cut_error},
        limits::PAYLOAD_BYTES_MAX,
        notes::Notes,
        time::{Timestamp, When},
    },
    store::{
        Acted, Action, Selector, Target, UniqueKey, check_act,
        model::{
            Model, Row,
            state::keys::{Held, window_end},
        },
    },
};

impl Model {
    /// [`Store::act`](crate::store::Store::act).
    pub fn act(&mut self, now: Timestamp, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
        check_act(targets, action, PAYLOAD_BYTES_MAX)?;
        self.mark(now);
        let answers = targets.iter().map(|target| self.act_one(now, target, action)).collect();
        self.hand_over(now);
        Ok(answers)
    }

    fn act_one(&mut self, now: Timestamp, target: &Target, action: &Action) -> Acted {
        let id = match &target.selector {
            Selector::Id(id) => Some(*id),
            Selector::Key(key) => self.held(key, now).map(|held| held.by),
        };
        let Some(job) = id.and_then(|id| self.rows.get(&id)).map(|row| &row.job) else {
            return Acted::NotFound;
        };
        let (id, state) = (job.id, job.state);
        if let Some(guard) = &target.guard {
            if guard.queue != job.queue {
                return Acted::NotFound;
            }
            if guard.state != state || guard.version.is_some_and(|version| version != job.version) {
                return Acted::WrongState(id, state);
            }
        }
        let state = match self.reclaim_if_over(now, id) {
            None => state,
            // The cancel had been requested.
            Some(State::Cancelled) if matches!(action, Action::Cancel { .. }) => {
                return Acted::Done(id, State::Cancelled);
            }
            Some(_) if !self.rows.contains_key(&id) => return Acted::NotFound,
            Some(state) => state,
        };
        match (action, state) {
            (Action::Cancel { reason }, State::Waiting) => self.cancel_waiting(now, id, reason.as_deref()),
            (Action::Cancel { .. }, State::Running) => {
                self.row_mut(id).job.cancel_requested = true;
                Acted::Requested(id)
            }
            (Action::Retry, _) if state.is_ended() => self.retry(now, id),
            (Action::Delete, _) if state != State::Running => {
                self.delete(id, now);
                Acted::Done(id, state)
            }
            (Action::Cancel { .. } | Action::Retry | Action::Delete, _) => Acted::WrongState(id, state),
            (_, State::Waiting) => self.change(now, id, action),
            _ => Acted::WrongState(id, state),
        }
    }

    fn cancel_waiting(&mut self, now: Timestamp, id: JobId, reason: Option<&str>) -> Acted {
        if !self.row_mut(id).started {
            // Also frees a window, because this is a cancel before the start (S4).
            self.free_key(id);
        }
        self.end(id, State::Cancelled, Some(cut_error(reason.unwrap_or("cancelled")).to_owned()), now);
        Acted::Done(id, State::Cancelled)
    }

    /// Changes a waiting job.
    fn change(&mut self, now: Timestamp, id: JobId, action: &Action) -> Acted {
        self.leave_waiting(id);
        let job = &mut self.row_mut(id).job;
        match action {
            Action::Reschedule(when) => job.run_at = when.resolve(now),
            Action::RescheduleBy(ms) => {
                let at = Timestamp::saturating_from_ms(job.run_at.as_ms().saturating_add_signed(*ms));
                job.run_at = When::At(at).resolve(now);
            }
            Action::RunNow => job.run_at = now,
            Action::Reprioritise(priority) => job.priority = *priority,
            Action::EditPayload(payload) => job.payload = payload.clone(),
            Action::Cancel { .. } | Action::Retry | Action::Delete => {
                unreachable!("invariant: these were handled by their callers")
            }
        }
        job.version += 1;
        Acted::Done(id, State::Waiting)
    }

    /// An operator's retry (S11).
    fn retry(&mut self, now: Timestamp, id: JobId) -> Acted {
        let row = &self.rows[&id];
        if let Some(key) = UniqueKey::of(&row.job).filter(|_| takes_key_again(row, now)) {
            let held = Held::of(&row.job);
            if let Some(other) = self.meet_key(&key, now).filter(|held| held.by != id) {
                return Acted::UniqueConflict(other.by);
            }
            self.keys.insert(key, held);
        }
        let job = &mut self.row_mut(id).job;
        job.state = State::Waiting;
        (job.attempt, job.expired_leases, job.snoozes) = (1, 0, 0);
        job.run_at = now;
        (job.expires_at, job.finished_at, job.reason) = (None, None, None);
        (job.notes, job.result) = (Notes::default(), None);
        job.version += 1;
        Acted::Done(id, State::Waiting)
    }
}

/// Returns whether an operator's retry takes the unique key again.
fn takes_key_again(row: &Row, now: Timestamp) -> bool {
    match row.job.unique.as_ref().map(|unique| unique.scope) {
        Some(Scope::UntilDone) => true,
        Some(Scope::UntilStart) => !row.started,
        Some(Scope::Window { .. }) => !row.started && window_end(&row.job).is_some_and(|end| now < end),
        None => false,
    }
}
