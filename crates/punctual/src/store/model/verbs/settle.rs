//! Settle: ends a current lease. Any other lease changes nothing (S8).

use crate::{
    core::{
        error::Result,
        job::{Failure, JobRecord, State},
        lifecycle::{Next, Run, settled},
        limits::{FAILURES_MAX, SWEEP_RIDE_MAX},
        time::Timestamp,
    },
    store::{
        Batch, Lease, Reserve, Settled, Settlement, Verdict, check_settle,
        model::{Model, Row},
    },
};

impl Model {
    /// [`Store::settle`](crate::store::Store::settle).
    pub fn settle(
        &mut self,
        now: Timestamp,
        batch: &[Settlement],
        then: Option<&Reserve>,
    ) -> Result<(Vec<Settled>, Option<Batch>)> {
        check_settle(batch)?;
        then.map_or(Ok(()), Reserve::check)?;
        self.mark(now);
        let mut queues: Vec<String> = Vec::new();
        let mut answers = Vec::new();
        for Settlement { lease, verdict } in batch {
            if self.run_of(*lease).is_none() {
                answers.push(Settled::LeaseLost);
                continue;
            }
            let mut overruled = None;
            let job = self.leave_run(now, *lease, |run| {
                let next = settled(run, verdict, now);
                overruled = next.overruled;
                next
            });
            answers.push(Settled::Settled(job.state, overruled));
            if let Verdict::RetryAfter { at, .. } = verdict {
                match &job.group {
                    Some(group) => self.close_group(&job.queue, group, at.resolve(now), now),
                    None => self.close(&job.queue, at.resolve(now), now),
                }
            }
            queues.push(job.queue);
        }
        let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
        self.ride(now, &queues, batch.len() + SWEEP_RIDE_MAX);
        self.hand_over(now);
        let reserved = then.map(|request| self.reserve(now, request)).transpose()?;
        Ok((answers, reserved))
    }

    /// Ends the run of a current lease; returns the job's record as of then, which may already be removed.
    pub(crate) fn leave_run(
        &mut self,
        now: Timestamp,
        lease: Lease,
        decide: impl FnOnce(&Run) -> Next,
    ) -> JobRecord {
        self.touch(lease.job);
        let max_attempts = self.row_mut(lease.job).max_attempts();
        let Row { job, lasts_ms, cancel_reported, company, .. } = self.row_mut(lease.job);
        *cancel_reported = false;
        let running = job.running.take().expect("invariant: the caller found this lease current");
        let started_at = job.started_at.take().expect("invariant: a running job has started");
        let next = decide(&Run {
            id: job.id,
            attempt: job.attempt,
            expired_leases: job.expired_leases,
            snoozes: job.snoozes,
            max_attempts,
            cancel_requested: job.cancel_requested,
            company: *company,
            lasts_ms: *lasts_ms,
        });
        if let Some(error) = next.failed {
            job.failures.push(Failure {
                attempt: job.attempt,
                started_ms: started_at.as_ms(),
                ended_ms: now.as_ms(),
                worker: running.worker,
                error,
            });
            job.failures.drain(..job.failures.len().saturating_sub(FAILURES_MAX));
        }
        (job.attempt, job.expired_leases, job.snoozes) = (next.attempt, next.expired_leases, next.snoozes);
        job.cancel_requested = false;
        job.result = next.result;
        if next.state.is_ended() {
            return self.end(lease.job, next.state, next.reason, now);
        }
        job.state = State::Waiting;
        job.reason = next.reason;
        job.run_at = next.run_at.unwrap_or(job.run_at);
        self.rows[&lease.job].record()
    }
}
