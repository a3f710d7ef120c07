//! Queues: their settings, and operations on all of their jobs.

use std::collections::BTreeMap;

use crate::{
    core::{
        digest::group_digest,
        error::Result,
        job::cut_error,
        limits::{BATCH_MAX, BLOCKED_SEARCH_MAX},
        time::Timestamp,
    },
    store::{
        Pause, QueueInfo, QueueOp, QueueReply, QueueSettings, check_queue_op,
        model::{Model, state::keys},
    },
};

impl Model {
    /// [`Store::queue`](crate::store::Store::queue).
    pub fn queue(&mut self, now: Timestamp, name: &str, op: &QueueOp) -> Result<QueueReply> {
        check_queue_op(name, op)?;
        match op {
            QueueOp::Replace(replace) if !replace.fits(&self.settings(name)) => {
                return Ok(QueueReply::Conflict(Box::new(self.info(now, name))));
            }
            QueueOp::Pause { .. } | QueueOp::Set(_) | QueueOp::Replace(_) => {
                self.put_settings(name, self.settings(name));
            }
            QueueOp::Show | QueueOp::Resume | QueueOp::Open { .. } | QueueOp::Purge(_) => {}
        }
        if !self.queues.contains_key(name) {
            return Ok(QueueReply::Unknown);
        }
        let settings = self.settings(name);
        match op {
            QueueOp::Show => {}
            QueueOp::Pause { by, reason } => {
                let (by, reason) = (cut_error(by).to_owned(), cut_error(reason).to_owned());
                let paused = Some(Pause { since_ms: now.as_ms(), by, reason });
                self.put_settings(name, QueueSettings { paused, ..settings });
            }
            QueueOp::Resume => self.put_settings(name, QueueSettings { paused: None, ..settings }),
            QueueOp::Set(new) => {
                self.put_settings(name, QueueSettings { paused: settings.paused, ..(**new).clone() });
            }
            QueueOp::Replace(replace) => {
                self.put_settings(name, QueueSettings { paused: settings.paused, ..replace.new.clone() });
            }
            QueueOp::Open { group: None } => self.open(name),
            QueueOp::Open { group: Some(group) } => self.open_group(name, group),
            QueueOp::Purge(limit) => return Ok(self.purge(now, name, *limit)),
        }
        // The limits of groups may have changed.
        if matches!(op, QueueOp::Set(_) | QueueOp::Replace(_)) {
            self.check_groups_again(name);
        }
        self.thin_rings(now);
        Ok(QueueReply::Info(Box::new(self.info(now, name))))
    }

    fn purge(&mut self, now: Timestamp, name: &str, limit: usize) -> QueueReply {
        let rest = self.timeline(name).filter(|job| job.group.is_none()).collect();
        let mut waiting = self.in_order(name, rest);
        let mut blocked: Vec<_> = self.blocked(name).collect();
        blocked.sort_by_key(|job| (keys::digest_of(job), job.priority, job.run_at, job.id));
        let mut grouped: Vec<_> = self.timeline(name).filter(|job| job.group.is_some()).collect();
        grouped.sort_by_key(|job| (job.group.as_deref().map(group_digest), job.priority, job.run_at, job.id));
        waiting.extend(blocked.into_iter().chain(grouped).map(|job| job.id));
        for &id in waiting.iter().take(limit) {
            self.delete(id, now);
        }
        self.hand_over(now);
        QueueReply::Purged { deleted: waiting.len().min(limit) as u64, more: limit < waiting.len() }
    }

    fn info(&self, now: Timestamp, name: &str) -> QueueInfo {
        let due = self.timeline(name).map(|job| job.run_at).filter(|&at| at <= now);
        QueueInfo {
            name: name.to_owned(),
            settings: self.settings(name),
            counts: self.count(now, Some(name)),
            oldest_due: due.min(),
            oldest_blocked: self.oldest_blocked(name),
            opens_at: Some(self.opens_in_time(name, now)).filter(|at| now < *at),
        }
    }

    /// Returns when the oldest blocked job became due, of the first blocked jobs of some keys and priorities.
    fn oldest_blocked(&self, name: &str) -> Option<Timestamp> {
        let mut firsts = BTreeMap::new();
        for job in self.blocked(name) {
            let first = firsts.entry((keys::digest_of(job), job.priority)).or_insert(job.run_at);
            *first = job.run_at.min(*first);
        }
        firsts.into_values().take(BLOCKED_SEARCH_MAX).min()
    }

    /// [`Store::queues`](crate::store::Store::queues).
    pub fn queues(&self, after: Option<&str>) -> Vec<String> {
        let behind = |name: &&String| after.is_none_or(|after| after < name.as_str());
        self.queues.keys().filter(behind).take(BATCH_MAX).cloned().collect()
    }
}
