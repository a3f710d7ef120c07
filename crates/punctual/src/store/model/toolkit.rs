//! Tools: what each keeps, and one step on it.

mod board;
mod limit;
mod lock;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    core::{error::Result, id::JobId, rate::Arrival, time::Timestamp},
    store::{BoardWindow, ToolOp, ToolReply, WORKER_BELL, end_of},
};

use super::{Model, Row};

/// What tools keep. What came to its end counts for nothing, and stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// By limiter and key.
    logs: BTreeMap<(String, String), limit::Calls>,
    arrivals: BTreeMap<(String, String), Arrival>,
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

    /// How long until there may be work in these queues, or a lock is free whose bell is among them.
    pub(crate) fn wakes_in(&self, now: Timestamp, queues: &[&str]) -> Option<Duration> {
        let locks = queues.iter().filter_map(|queue| self.lock_free_in(now, queue));
        let ends = queues.iter().filter_map(|bell| end_of(bell)).filter(|id| self.has_ended(*id));
        let cancels = queues.iter().filter(|bell| self.has_news_for(bell));
        let at_once = ends.map(|_| Duration::ZERO).chain(cancels.map(|_| Duration::ZERO));
        self.next_due(now, queues).into_iter().chain(locks).chain(at_once).min()
    }

    /// Whether a job has ended, or is gone.
    fn has_ended(&self, id: JobId) -> bool {
        self.rows.get(&id).is_none_or(|row| row.job.state.is_ended())
    }

    /// Whether a worker has not heard of a cancel yet.
    fn has_news_for(&self, bell: &str) -> bool {
        let Some(name) = bell.strip_prefix(WORKER_BELL) else { return false };
        let runs_here = |row: &&Row| row.job.running.as_ref().is_some_and(|run| run.worker == name);
        self.rows.values().filter(runs_here).any(|row| row.job.cancel_requested && !row.told)
    }
}
