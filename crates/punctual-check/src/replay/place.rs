//! The model of one job after some of its calls.

use std::time::Duration;

use punctual::{
    JobId, JobOptions, NewJob, Payload, State, Timestamp,
    limits::{ORPHANED_AFTER, SNOOZE_MIN},
    store::{
        Acted, Action, CallId, Enqueued, Heartbeat, Lease, LeaseStatus, QueueRequest, Reserve, Settled,
        Settlement, Target, Verdict,
        model::{Model, marks_before},
    },
};

use super::steps::What;
use crate::{
    event::{Deed, Due, Said},
    history::{Act, Back, End, Run, Sure, Told},
};

/// The queue of the one job in the model.
const QUEUE: &str = "q";

/// The model after some of the steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) model: Model,
    /// The steps that were done, a bit each.
    pub(super) done: u128,
    /// The order in which they were.
    pub(super) path: Vec<usize>,
    /// The time of the last one, in milliseconds.
    pub(super) now: u64,
    leases: Vec<Held>,
    /// Between which instants the job is due next, if the model cannot know it exactly.
    due: Option<(u64, u64)>,
    calls: u64,
}

/// A lease in the model.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The number of its reservation in the history.
    number: u64,
    lease: Lease,
    lasts_ms: u64,
}

/// The answer that differs.
fn differs<T>(what: &str, seen: impl std::fmt::Debug, ours: impl std::fmt::Debug) -> Result<T, String> {
    Err(format!("{what}: {seen:?}, in the model {ours:?}"))
}

impl Place {
    /// Makes one call. `within`: between which instants it took effect, as far as the clocks tell.
    pub(super) fn apply(
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

    /// Sets the clock, which never goes back. The store had other calls meanwhile, so it saw no silence (S9).
    fn set_clock(&mut self, ms: u64) -> Timestamp {
        let ms = ms.max(self.now);
        if !self.leases.is_empty() {
            for before in marks_before(Duration::from_millis(ms - self.now)) {
                let now = Timestamp::saturating_from_ms(ms - before.as_millis() as u64);
                self.model.extend(now, &[]).expect("invariant: it extends nothing");
            }
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
        let found = self.leases.iter().find(|held| held.number == fence);
        found.map(|held| held.lease).ok_or_else(|| format!("nobody has reserved {fence} yet"))
    }

    fn enqueue(
        &mut self,
        id: JobId,
        first: Option<&Run>,
        created_at: Option<u64>,
        run_at: Option<u64>,
        within: (u64, u64),
    ) -> Result<(), String> {
        let now = self.set_clock(created_at.unwrap_or(within.0));
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
        let now = self.set_clock(run.now);
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
        self.leases.push(Held { number: run.row.fence, lease: reserved.lease, lasts_ms: run.row.lasts });
        Ok(())
    }

    /// A reservation of which only the number is known, and when its lease was over.
    fn reserve_unseen(&mut self, id: JobId, back: &Back) -> Result<(), String> {
        let now = self.set_clock((back.fence / 1_000).min(back.now));
        let lasts = Duration::from_millis(back.now.saturating_sub(now.as_ms()).max(1_000));
        let from = match self.due {
            Some((from, _)) => Timestamp::saturating_from_ms(from).min(now),
            None => self.model.get(now, id).map_or(now, |job| job.run_at),
        };
        if self.due.is_some() {
            self.change(id, from, &Action::Reschedule(from.into()))?;
        }
        // How long it pauses after its lease expired would depend on how long that was to last.
        self.due = Some((from.as_ms(), u64::MAX));
        // A lease with company does not end its job (S9).
        let has_company = back.state != State::Dead;
        let request = self.request(QUEUE, 1, Some(lasts.min(Duration::from_hours(24))), has_company);
        let batch = self.model.reserve(now, &request).map_err(|e| e.to_string())?;
        let ([], [reserved]) = (&batch.reclaimed[..], &batch.jobs[..]) else {
            return differs("the job", "reserved", self.model.get(now, id));
        };
        let lasts_ms = reserved.lasts.as_millis() as u64;
        self.leases.push(Held { number: back.fence, lease: reserved.lease, lasts_ms });
        Ok(())
    }

    /// `back.now` is the time of the answer, which another shard may have given later.
    fn reclaim(&mut self, id: JobId, back: &Back, within: (u64, u64)) -> Result<(), String> {
        let lease = self.lease(back.fence)?;
        let run = self.model.get(Timestamp::saturating_from_ms(self.now), id).and_then(|job| job.running);
        let until = run.map_or(0, |run| run.until.as_ms());
        let now = self.set_clock(until.max(within.0.min(back.now)));
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
        let (lease, now) = (self.lease(end.fence)?, self.set_clock(within.0));
        let error = String::new;
        let (verdict, due) = match end.said {
            Said::Ack => (Verdict::Ack, None),
            Said::Retry(due) => (Verdict::Retry { at: when(due), error: error() }, Some(range(due, within))),
            Said::Snooze(ms) | Said::Hold(ms) => {
                let reason = matches!(end.said, Said::Hold(_)).then(|| "held".to_owned());
                let after = Duration::from_millis(ms).max(SNOOZE_MIN);
                let due = Due::In(after.as_millis() as u64);
                (Verdict::Snooze { after, reason }, Some(range(due, within)))
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
        let now = self.set_clock(within.0);
        let beat = [Heartbeat { company, ..lease.into() }];
        self.model.extend(now, &beat).expect("invariant: one heartbeat keeps all limits")[0]
    }

    /// Extends a lease that an act would reclaim, although its job ran: heartbeats, or a silence, kept it longer than is known here. It
    /// then ends when the act is made.
    fn keep_lease(&mut self, id: JobId, within: (u64, u64)) {
        let job = self.model.get(Timestamp::saturating_from_ms(self.now), id);
        let Some(run) = job.and_then(|job| job.running) else { return };
        if run.until.after(ORPHANED_AFTER).as_ms() <= within.0.max(self.now)
            && let Some(held) = self.leases.iter().find(|held| held.lease.fence == run.fence)
        {
            let (lease, from) = (held.lease, within.0.max(self.now).saturating_sub(held.lasts_ms));
            self.extend(lease, false, (from, from));
        }
    }

    fn change(&mut self, id: JobId, now: Timestamp, action: &Action) -> Result<Vec<Acted>, String> {
        self.model.act(now, &[Target::from(id)], action).map_err(|e| e.to_string())
    }

    fn act(&mut self, id: JobId, act: &Act, within: (u64, u64)) -> Result<(), String> {
        if act.sure == Sure::Requested {
            self.keep_lease(id, within);
        }
        let now = self.set_clock(within.0);
        let (action, due) = match act.deed {
            Deed::Cancel => (Action::Cancel { reason: None }, None),
            Deed::Reschedule(due) => (Action::Reschedule(when(due)), Some(range(due, within))),
            // When it is due from then on is not on record, nor what was edited.
            Deed::Move => (Action::RunNow, Some((0, u64::MAX))),
            Deed::Reprioritise | Deed::Edit(_) => (Action::EditPayload(Payload::json("0")), self.due),
            Deed::Retry => (Action::Retry, Some(within)),
            Deed::Delete => (Action::Delete, None),
        };
        let acted = self.change(id, now, &action)?;
        match (&acted[..], act.sure) {
            ([Acted::Done(..)], Sure::Done | Sure::Unknown) => self.due = due,
            ([Acted::Requested(..)], Sure::Requested | Sure::Unknown) => {}
            // An action without an answer that would do nothing here is no step.
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
        // A past time becomes now.
        Due::At(ms) => (ms, ms.max(to)),
    }
}
