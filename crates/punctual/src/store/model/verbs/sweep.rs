//! Sweep: bounded, idempotent upkeep (S17).

use crate::{
    core::{
        error::Result,
        id::JobId,
        job::{JobRecord, State},
        limits::{CALL_MEMORY, ID_MEMORY, ID_MEMORY_MAX, ORPHANED_AFTER},
        time::{Timestamp, ceil_ms},
    },
    store::{
        Swept, check_limit,
        model::{Model, is_past_age, keep},
    },
};

/// What a sweep is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Itself,
    OtherCall,
}

impl Model {
    /// [`Store::sweep`](crate::store::Store::sweep).
    pub fn sweep(&mut self, now: Timestamp, limit: usize) -> Result<Swept> {
        check_limit("sweep", limit)?;
        self.mark(now);
        let queues: Vec<String> = self.queues.keys().cloned().collect();
        let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
        let mut swept = self.sweep_queues(now, &queues, limit, By::Itself);
        swept.next_reclaim_ms = self.next_reclaim(now, &queues).map(ceil_ms);
        self.hand_over(now);
        Ok(swept)
    }

    /// Sweeps these queues in turn, then the whole store, as a part of another call.
    pub(crate) fn ride(&mut self, now: Timestamp, queues: &[&str], limit: usize) -> Swept {
        self.sweep_queues(now, queues, limit, By::OtherCall)
    }

    fn sweep_queues(&mut self, now: Timestamp, queues: &[&str], limit: usize, by: By) -> Swept {
        let mut swept = Swept::default();
        let steady = self.doubt.steady(now);
        let left = |swept: &Swept| {
            limit - (swept.reclaimed + swept.expired + swept.removed + swept.forgotten) as usize
        };
        for queue in queues {
            if by == By::Itself {
                swept.reclaimed +=
                    self.reclaim_at_most(now, &[queue], left(&swept), ORPHANED_AFTER).len() as u64;
            }
            swept.expired += self.expire(now, steady, queue, left(&swept));
            for state in [State::Done, State::Cancelled, State::Dead] {
                swept.removed += self.retire(now, steady, queue, state, left(&swept), by);
            }
            swept.forgotten += self.forget_ids(steady, queue, left(&swept));
        }
        swept.forgotten += self.forget_windows(steady, left(&swept));
        swept.forgotten += self.forget_calls(steady, left(&swept));
        swept.more = left(&swept) == 0;
        swept
    }

    /// Cancels waiting jobs past their expiry.
    fn expire(&mut self, now: Timestamp, steady: Timestamp, queue: &str, limit: usize) -> u64 {
        let mut expired: Vec<(Timestamp, JobId)> = self
            .jobs(queue, State::Waiting)
            .filter_map(|job| Some((job.expires_at?, job.id)))
            .filter(|&(expiry, _)| expiry <= steady)
            .collect();
        expired.sort_unstable();
        expired.truncate(limit);
        for &(_, id) in &expired {
            self.end(id, State::Cancelled, Some("expired".to_owned()), now);
        }
        expired.len() as u64
    }

    /// Removes ended jobs past a bound, oldest end first.
    fn retire(
        &mut self,
        now: Timestamp,
        steady: Timestamp,
        queue: &str,
        state: State,
        limit: usize,
        by: By,
    ) -> u64 {
        let settings = self.settings(queue);
        let keep = keep(&settings, state);
        let mut kept: Vec<(Option<Timestamp>, JobId)> =
            self.jobs(queue, state).map(|job| (job.finished_at, job.id)).collect();
        kept.sort_unstable();
        let mut count = kept.len() as u64;
        let mut bytes: u64 = self.jobs(queue, state).map(JobRecord::kept_bytes).sum();
        let waits_for = if by == By::OtherCall { keep.with_slack() } else { keep };
        let is_exceeded = waits_for.is_exceeded(count, bytes);
        let mut removed = 0;
        for (_, id) in kept.into_iter().take(limit) {
            let job = &self.rows[&id].job;
            let is_past_bound = keep.keeps_nothing()
                || is_past_age(&settings, job, steady)
                || is_exceeded && keep.is_exceeded(count, bytes);
            if !is_past_bound {
                break;
            }
            count -= 1;
            bytes -= job.kept_bytes();
            self.remove(id, now);
            removed += 1;
        }
        removed
    }

    /// Forgets ids past their time or number, oldest end first.
    fn forget_ids(&mut self, steady: Timestamp, queue: &str, limit: usize) -> u64 {
        let mut ids: Vec<(Timestamp, JobId)> = self
            .remembered
            .iter()
            .filter(|((q, _), _)| q == queue)
            .map(|((_, id), end)| (*end, *id))
            .collect();
        ids.sort_unstable();
        let over = (ids.len() as u64).saturating_sub(ID_MEMORY_MAX) as usize;
        let past = ids.iter().filter(|(end, _)| end.after(ID_MEMORY) <= steady).count();
        ids.truncate(over.max(past).min(limit));
        for &(_, id) in &ids {
            self.remembered.remove(&(queue.to_owned(), id));
        }
        ids.len() as u64
    }

    /// Forgets unique windows past their time.
    fn forget_windows(&mut self, steady: Timestamp, limit: usize) -> u64 {
        let mut windows: Vec<_> =
            self.keys.iter().filter_map(|(key, held)| Some((held.term?.until, key.clone()))).collect();
        windows.retain(|(until, _)| *until <= steady);
        windows.sort_unstable();
        windows.truncate(limit);
        for (_, key) in &windows {
            self.keys.remove(key);
        }
        windows.len() as u64
    }

    /// Forgets the calls of idle instances.
    fn forget_calls(&mut self, steady: Timestamp, limit: usize) -> u64 {
        let enqueues = self.enqueues.iter().map(|(&instance, last)| (last.at, instance, false));
        let reserves = self.reserves.iter().map(|(&instance, last)| (last.at, instance, true));
        let mut idle: Vec<(Timestamp, u64, bool)> =
            enqueues.chain(reserves).filter(|(at, ..)| at.after(CALL_MEMORY) <= steady).collect();
        idle.sort_unstable();
        idle.truncate(limit);
        for &(_, instance, is_reserve) in &idle {
            if is_reserve {
                self.reserves.remove(&instance);
            } else {
                self.enqueues.remove(&instance);
            }
        }
        idle.len() as u64
    }
}
