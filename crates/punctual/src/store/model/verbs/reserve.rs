//! Reserve: reclaims expired leases, checks due jobs in order, and sweeps a little.
//!
//! The model never ends a reserve after some services of groups, as a store can (S16). The test histories request
//! fewer jobs than that.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    core::{
        error::Result,
        id::JobId,
        job::{JobRecord, Running, Scope, State},
        lifecycle::{Run, is_last_chance, lease_ms, reclaimed, settled},
        limits::{
            BATCH_BYTES_MAX, CANDIDATES_EXTRA, GROUPS_EXTRA, ORPHANED_AFTER, RECLAIM_MAX, SWEEP_RIDE_MAX,
            WATCHED_MAX,
        },
        silence::watch_at,
        time::Timestamp,
    },
    store::{
        Batch, Lease, Reclaimed, Reserve, Reserved, Verdict,
        model::{LastReserve, Model, Row, state::groups::Class},
    },
};

/// What a reserve or take has found so far, and what it may still check.
pub(crate) struct Found {
    pub(crate) wanted: usize,
    pub(crate) looked_at: usize,
    pub(crate) bytes: usize,
    pub(crate) jobs: Vec<Reserved>,
    /// The jobs that a take acked.
    pub(crate) done: Vec<JobRecord>,
    /// Whether the next job would exceed the bound in bytes, or is reserved alone.
    pub(crate) is_over: bool,
}

impl Found {
    pub(crate) fn at_most(wanted: usize) -> Self {
        Self { wanted, looked_at: 0, bytes: 0, jobs: Vec::new(), done: Vec::new(), is_over: false }
    }

    /// Returns how many jobs were reserved or taken.
    fn count(&self) -> usize {
        self.jobs.len() + self.done.len()
    }

    /// Returns whether nothing more may be checked (S9, S13).
    fn is_finished(&self) -> bool {
        self.is_over || self.count() == self.wanted || self.looked_at == self.wanted + CANDIDATES_EXTRA
    }
}

/// The caller of a reserve or take, and which jobs it wants.
pub(crate) struct Round<'a> {
    pub(crate) now: Timestamp,
    /// Only jobs with `run_at` up to this time.
    pub(crate) due_by: Timestamp,
    pub(crate) worker: &'a str,
    pub(crate) lease: Option<Duration>,
    /// Whether a job is acked as it is reserved.
    pub(crate) takes: bool,
    /// Whether a suspect has company; if not, it is reserved alone (S9).
    pub(crate) company: bool,
}

/// A lease, and when it ends.
struct LeaseEnd {
    until: Timestamp,
    /// When it can be reclaimed: later than its end if a silence holds it back.
    over_at: Timestamp,
    lasts_ms: u64,
    lease: Lease,
}

impl Model {
    /// [`Store::reserve`](crate::store::Store::reserve).
    pub fn reserve(&mut self, now: Timestamp, request: &Reserve) -> Result<Batch> {
        request.check()?;
        let queues: Vec<&str> = request.queues.iter().map(|request| request.queue.as_str()).collect();
        let last =
            self.reserves.get(&request.call.instance).filter(|last| request.call.number <= last.number);
        if let Some(LastReserve { number, leases, .. }) = last {
            let mut leases = if request.call.number == *number { leases.clone() } else { Vec::new() };
            leases.retain(|&lease| self.extend_lease(now, lease, None));
            let jobs = leases.into_iter().filter_map(|lease| self.reserved(lease)).collect();
            return Ok(self.batch(now, &queues, jobs, Vec::new()));
        }
        self.mark(now);
        let reclaimed = self.reclaim(now, &queues);
        self.hand_over(now);
        let mut found = Found::at_most(request.n);
        let round = Round {
            now,
            due_by: now,
            worker: &request.worker,
            lease: request.lease,
            takes: false,
            company: request.company,
        };
        let mut shared = Vec::new();
        for request in &request.queues {
            shared.push(self.reserve_from(
                &request.queue,
                request.share.min(request.at_most),
                &round,
                &mut found,
            ));
        }
        for (request, had) in request.queues.iter().zip(shared) {
            self.reserve_from(&request.queue, request.at_most - had, &round, &mut found);
        }
        let leases = found.jobs.iter().map(|job| job.lease).collect();
        self.reserves
            .insert(request.call.instance, LastReserve { number: request.call.number, at: now, leases });
        self.ride(now, &queues, SWEEP_RIDE_MAX);
        self.hand_over(now);
        Ok(self.batch(now, &queues, found.jobs, reclaimed))
    }

    /// Looks at the expired leases that ended first, and reclaims those that no silence holds back (S9).
    pub(crate) fn reclaim(&mut self, now: Timestamp, queues: &[&str]) -> Vec<Reclaimed> {
        self.reclaim_at_most(now, queues, RECLAIM_MAX, Duration::ZERO)
    }

    /// The same, but it looks at no more than `limit` of them, and reclaims those that have been over for `after`.
    pub(crate) fn reclaim_at_most(
        &mut self,
        now: Timestamp,
        queues: &[&str],
        limit: usize,
        after: Duration,
    ) -> Vec<Reclaimed> {
        self.shorten(now, queues);
        let mut expired = self.leases(queues);
        expired.retain(|run| run.until <= now);
        expired.truncate(limit.min(RECLAIM_MAX));
        expired.retain(|run| run.over_at.after(after) <= now);
        expired.into_iter().map(|run| self.reclaim_one(now, run.lease)).collect()
    }

    fn reclaim_one(&mut self, now: Timestamp, lease: Lease) -> Reclaimed {
        let job = self.leave_run(now, lease, |run| reclaimed(run, now));
        Reclaimed { lease, queue: job.queue, state: job.state }
    }

    /// Reclaims the lease of a running job if nobody else has for some time (S9).
    ///
    /// Returns the state of the job if so.
    pub(crate) fn reclaim_if_over(&mut self, now: Timestamp, id: JobId) -> Option<State> {
        if self.silences.can_end_late(now) {
            self.shorten_one(now, id);
        }
        let run = self.running(id).filter(|run| run.over_at.after(ORPHANED_AFTER) <= now)?;
        Some(self.reclaim_one(now, run.lease).state)
    }

    /// Shortens leases that end later than their length from now, because the clock went back: those that end last (S14).
    fn shorten(&mut self, now: Timestamp, queues: &[&str]) {
        if self.silences.can_end_late(now) {
            let last: Vec<JobId> =
                self.leases(queues).iter().rev().take(RECLAIM_MAX).map(|run| run.lease.job).collect();
            for id in last {
                self.shorten_one(now, id);
            }
        }
    }

    fn shorten_one(&mut self, now: Timestamp, id: JobId) {
        let row = self.row_mut(id);
        let longest = now.after(Duration::from_millis(row.lasts_ms));
        if let Some(running) = &mut row.job.running {
            running.until = running.until.min(longest);
        }
    }

    /// Reserves up to `at_most` due jobs of one queue, in order; returns how many.
    pub(crate) fn reserve_from(
        &mut self,
        queue: &str,
        at_most: usize,
        round: &Round<'_>,
        found: &mut Found,
    ) -> usize {
        if self.is_paused(queue) {
            return 0;
        }
        let is_open = |model: &Self| model.opens(queue, round.now) == Some(round.now);
        let is_shared = !found.is_finished() && 0 < at_most && is_open(self);
        if is_shared {
            self.let_in(queue, round.now, at_most.min(found.wanted - found.count()) + GROUPS_EXTRA);
        }
        let mut reserved = 0;
        while !found.is_finished() && reserved < at_most && is_open(self) {
            let Some(class) = self.next_class(queue, round.now, round.due_by) else { break };
            found.looked_at += 1;
            let Some(job) = self.first_of(queue, &class, round.due_by) else {
                if let Class::Group(group) = &class {
                    self.leave_active(queue, group);
                }
                continue;
            };
            let id = job.id;
            if job.expires_at.is_some_and(|expiry| expiry <= round.now) {
                self.end(id, State::Cancelled, Some("expired".to_owned()), round.now);
                continue;
            }
            if self.waits_for_slot(job) {
                self.block(id);
                continue;
            }
            let bytes = found.bytes + job.payload.bytes.len();
            let alone = !round.company && is_last_chance(job.expired_leases);
            if (alone || BATCH_BYTES_MAX < bytes) && 0 < found.count() {
                found.is_over = true;
                break;
            }
            (found.bytes, found.is_over) = (bytes, alone);
            let job = self.start(id, round);
            self.spend(queue, round.now);
            self.charge(queue, &class, round.now);
            if round.takes {
                // It runs only within this step.
                let ack = |run: &Run| settled(run, &Verdict::Ack, round.now);
                found.done.push(self.leave_run(round.now, job.lease, ack));
            } else {
                self.touch(id);
                found.jobs.push(job);
            }
            reserved += 1;
        }
        if is_shared {
            self.mind_ungrouped(queue, round.now);
        }
        reserved
    }

    /// Puts a waiting job under a lease.
    fn start(&mut self, id: JobId, round: &Round<'_>) -> Reserved {
        let fence = self.next_fence(round.now);
        let job = &self.rows[&id].job;
        let lasts_ms = lease_ms(job.lease, round.lease, self.settings(&job.queue).defaults.lease);
        if job.unique.as_ref().is_some_and(|unique| unique.scope == Scope::UntilStart) {
            self.free_key(id);
        }
        let row = self.row_mut(id);
        (row.lasts_ms, row.started) = (lasts_ms, true);
        row.company = round.company && is_last_chance(row.job.expired_leases);
        row.job.state = State::Running;
        row.job.started_at = Some(round.now);
        let until = round.now.after(Duration::from_millis(lasts_ms));
        row.job.running = Some(Running { fence, worker: round.worker.to_owned(), until });
        self.reserved(Lease { job: id, fence }).expect("invariant: this lease was just given")
    }

    /// Returns the job of a lease, if the lease is current.
    fn reserved(&self, lease: Lease) -> Option<Reserved> {
        let row = self.run_of(lease)?;
        let until = row.job.running.as_ref()?.until;
        Some(Reserved { lease, until, lasts: Duration::from_millis(row.lasts_ms), job: row.record() })
    }

    fn batch(
        &self,
        now: Timestamp,
        queues: &[&str],
        jobs: Vec<Reserved>,
        reclaimed: Vec<Reclaimed>,
    ) -> Batch {
        let next_due = self.next_due(now, now, queues);
        Batch { now, jobs, more: next_due == Some(Duration::ZERO), next_due, reclaimed }
    }

    /// Returns how long until a call may be needed in these queues; zero if one is, `None` if nothing waits or runs. `mark`: the last
    /// one, which runs are watched from.
    pub(crate) fn next_due(&self, now: Timestamp, mark: Timestamp, queues: &[&str]) -> Option<Duration> {
        let run_at = queues.iter().filter(|queue| !self.is_paused(queue)).filter_map(|queue| {
            let rest = self.timeline(queue).filter(|job| job.group.is_none()).map(|job| job.run_at);
            let groups = self.coming_groups(queue, now).into_iter().map(|(at, _)| at);
            Some(rest.chain(groups).min()?.max(self.opens(queue, now)?))
        });
        let watched = queues.iter().flat_map(|queue| self.leases(&[queue]).into_iter().take(WATCHED_MAX));
        let watch_at = watched.map(|run| watch_at(run.over_at, run.lasts_ms, mark));
        run_at.chain(watch_at).min().map(|at| at.since(now))
    }

    /// Returns when a sweep can reclaim the first of the expired leases, watched from `now`.
    pub(crate) fn next_reclaim(&self, now: Timestamp, queues: &[&str]) -> Option<Duration> {
        let watched = queues.iter().flat_map(|queue| self.leases(&[queue]).into_iter().take(WATCHED_MAX));
        let expired = watched.filter(|run| run.until <= now);
        let at = |run: LeaseEnd| watch_at(run.over_at.after(ORPHANED_AFTER), run.lasts_ms, now);
        expired.map(|run| at(run).since(now)).min()
    }

    /// Returns all leases in these queues: those that end first, then by id.
    fn leases(&self, queues: &[&str]) -> Vec<LeaseEnd> {
        let queues: BTreeSet<&str> = queues.iter().copied().collect();
        let jobs = queues.iter().flat_map(|queue| self.jobs(queue, State::Running));
        let mut all: Vec<LeaseEnd> = jobs.filter_map(|job| self.running(job.id)).collect();
        all.sort_by_key(|run| (run.until, run.lease.job));
        all
    }

    fn running(&self, id: JobId) -> Option<LeaseEnd> {
        let Row { job, lasts_ms, .. } = self.rows.get(&id)?;
        let Running { fence, until, .. } = *job.running.as_ref()?;
        let over_at = self.silences.over_at(until, *lasts_ms);
        Some(LeaseEnd { until, over_at, lasts_ms: *lasts_ms, lease: Lease { job: id, fence } })
    }
}
