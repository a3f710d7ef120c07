//! Tools: what each keeps, and one step on it.

mod limit;

use std::collections::BTreeMap;

use crate::{
    error::Result,
    rate::Arrival,
    store::{ToolOp, ToolReply},
    time::Timestamp,
};

use super::Model;

/// What tools keep. What came to its end counts for nothing, and stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    /// By limiter and key.
    logs: BTreeMap<(String, String), limit::Calls>,
    arrivals: BTreeMap<(String, String), Arrival>,
}

impl Model {
    /// [`Store::tool`](crate::store::Store::tool).
    pub fn tool(&mut self, now: Timestamp, op: &ToolOp) -> Result<ToolReply> {
        op.check()?;
        match op {
            ToolOp::Limit(op) => Ok(ToolReply::Limit(self.tools.limit(now, op))),
        }
    }
}
