//! Tools: what each keeps, and one step on it.

mod board;
mod limit;
mod lock;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    error::Result,
    rate::Arrival,
    store::{BoardWindow, ToolOp, ToolReply},
    time::Timestamp,
};

use super::Model;

/// What tools keep. What came to its end counts for nothing, and stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
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
    pub(in super::super) fn wakes_in(&self, now: Timestamp, queues: &[&str]) -> Option<Duration> {
        let locks = queues.iter().filter_map(|queue| self.lock_free_in(now, queue));
        self.next_due(now, queues).into_iter().chain(locks).min()
    }
}
