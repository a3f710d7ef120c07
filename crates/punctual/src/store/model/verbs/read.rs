//! Reads: they change nothing, and hide ended jobs past their age.

use crate::{
    core::{
        error::Result,
        filter::Search,
        id::JobId,
        job::{JobRecord, State},
        limits::{BATCH_MAX, DUE_COUNT_MAX, LIST_BYTES_MAX, UPCOMING_SEARCH_MAX},
        time::{Timestamp, ceil_ms},
    },
    store::{
        Audit, AuditCursor, Audited, Counts, Histogram, List, ListCursor, Page, UniqueKey, Upcoming,
        check_limit, check_upcoming,
        model::{Model, is_past_age},
    },
};

impl Model {
    /// [`Store::get`](crate::store::Store::get).
    pub fn get(&self, now: Timestamp, id: JobId) -> Option<JobRecord> {
        let job = &self.rows.get(&id)?.job;
        (!is_past_age(&self.settings(&job.queue), job, now)).then(|| self.shown(job, now))
    }

    /// [`Store::holder`](crate::store::Store::holder).
    pub fn holder(&self, now: Timestamp, key: &UniqueKey) -> Option<JobRecord> {
        self.get(now, self.held(key, now)?.by)
    }

    /// [`Store::list`](crate::store::Store::list).
    pub fn list(&self, now: Timestamp, list: &List) -> Result<Page> {
        check_limit("list", list.limit)?;
        let mut page = Page { now, total: self.rows.len() as u64, ..Page::default() };
        let after = list.after.as_ref().map(ListCursor::id).transpose()?;
        let (mut last, mut bytes, mut search) = (None, 0, Search::new(&list.filter));
        for (&id, row) in self.rows.iter().rev().filter(|(id, _)| after.is_none_or(|after| **id < after)) {
            if page.jobs.len() == list.limit
                || page.searched == (page.jobs.len() + BATCH_MAX) as u64
                || LIST_BYTES_MAX <= bytes
                || search.is_spent()
            {
                page.next = last.map(ListCursor::behind);
                break;
            }
            page.searched += 1;
            last = Some(id);
            bytes += row.job.kept_bytes();
            if search.matches(&self.shown(&row.job, now), now) {
                page.jobs.extend(self.get(now, id));
            }
        }
        Ok(page)
    }

    /// [`Store::count`](crate::store::Store::count).
    pub fn count(&self, now: Timestamp, queue: Option<&str>) -> Counts {
        let mut counts = Counts::default();
        for row in self.rows.values().filter(|row| queue.is_none_or(|q| q == row.job.queue)) {
            let job = &row.job;
            match job.state {
                State::Waiting => {
                    counts.waiting += 1;
                    counts.retrying += u64::from(1 < job.attempt);
                    counts.due += u64::from(row.blocked || job.run_at <= now);
                }
                State::Running => counts.running += 1,
                State::Done => counts.done += 1,
                State::Dead => counts.dead += 1,
                State::Cancelled => counts.cancelled += 1,
            }
            if !job.state.is_ended() {
                counts.bytes += job.payload.bytes.len() as u64;
            }
        }
        counts.due = counts.due.min(DUE_COUNT_MAX);
        counts
    }

    /// [`Store::upcoming`](crate::store::Store::upcoming).
    pub fn upcoming(&self, now: Timestamp, upcoming: &Upcoming) -> Result<Histogram> {
        check_upcoming(upcoming)?;
        let width_ms = ceil_ms(upcoming.bucket);
        let mut histogram = Histogram { now, buckets: vec![0; upcoming.buckets], ..Histogram::default() };
        let mut run_at: Vec<Timestamp> = self
            .rows
            .values()
            .filter(|row| row.job.state == State::Waiting)
            .filter(|row| upcoming.queue.as_ref().is_none_or(|queue| *queue == row.job.queue))
            // A blocked job is due.
            .map(|row| if row.blocked { now } else { row.job.run_at })
            .collect();
        run_at.sort_unstable();
        histogram.complete = run_at.len() as u64 <= UPCOMING_SEARCH_MAX;
        run_at.truncate(UPCOMING_SEARCH_MAX as usize);
        for at in run_at {
            if at <= now {
                histogram.overdue += 1;
            } else if let Some(jobs) =
                histogram.buckets.get_mut(((at.as_ms() - now.as_ms()) / width_ms) as usize)
            {
                *jobs += 1;
            }
        }
        Ok(histogram)
    }

    /// [`Store::audit`](crate::store::Store::audit).
    ///
    /// Here each job is in one map, and everything else is computed, so nothing can be inconsistent.
    pub fn audit(&self, audit: &Audit) -> Audited {
        let from = <[u8; 8]>::try_from(audit.from.0.as_slice()).map_or(0, u64::from_le_bytes);
        let checked = (self.rows.len() as u64).saturating_sub(from).min(BATCH_MAX as u64);
        let next = from + checked;
        let next = (next < self.rows.len() as u64).then(|| AuditCursor(next.to_le_bytes().to_vec()));
        Audited { checked, findings: Vec::new(), next }
    }
}
