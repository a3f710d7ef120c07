//! Tools: the state of each, and one step on it.

mod board;
mod limit;
mod lock;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    core::{error::Result, id::JobId, rate::Tat, time::Timestamp},
    store::{BoardWindow, ToolOp, ToolReply, WORKER_NOTIFICATION, end_of},
};

use super::{Model, Row};

/// The state of tools. Expired entries count for nothing, and stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// By limiter and key.
    logs: BTreeMap<(String, String), limit::Calls>,
    tats: BTreeMap<(String, String), Tat>,
    locks: BTreeMap<String, lock::Holding>,
    /// By name and window.
    boards: BTreeMap<(String, Option<BoardWindow>), board::Board>,
}

impl Model {
    /// [`Store::tool`](crate::store::Store::tool).
    pub fn tool(&mut self, now: Timestamp, op: &ToolOp) -> Result<ToolReply> {
        op.check()?;
        match op {
            ToolOp::Limit(op) => Ok(ToolReply::Limit(self.tools.limit(now, op))),
            ToolOp::Lock(op) => Ok(ToolReply::Lock(self.lock(now, op))),
            ToolOp::Board(op) => self.tools.board(now, op).map(ToolReply::Board),
        }
    }

    /// Returns how long until there may be work in these queues, or a named lock is free.
    pub(crate) fn wakes_in(&self, now: Timestamp, queues: &[&str]) -> Option<Duration> {
        let locks = queues.iter().filter_map(|queue| self.lock_free_in(now, queue));
        let ends = queues.iter().filter_map(|name| end_of(name)).filter(|id| self.has_ended(*id));
        let cancels = queues.iter().filter(|name| self.has_news_for(name));
        let at_once = ends.map(|_| Duration::ZERO).chain(cancels.map(|_| Duration::ZERO));
        let mark = self.last_mark.unwrap_or(now);
        self.next_due(now, mark, queues).into_iter().chain(locks).chain(at_once).min()
    }

    /// Returns whether a job has ended or is gone.
    fn has_ended(&self, id: JobId) -> bool {
        self.rows.get(&id).is_none_or(|row| row.job.state.is_ended())
    }

    /// Returns whether a worker has not learned of a cancel yet.
    fn has_news_for(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(WORKER_NOTIFICATION) else { return false };
        let runs_here = |row: &&Row| row.job.running.as_ref().is_some_and(|run| run.worker == name);
        self.rows.values().filter(runs_here).any(|row| row.job.cancel_requested && !row.cancel_reported)
    }
}
