//! `tool`: tools, which live in shard 0 under keys of their own (see `lua/tool.lua`). One home for all of them is the same under any
//! number of shards; who needs more than one server gives has stores of several prefixes.

mod board;
mod limit;
mod lock;

use crate::{
    core::error::Result,
    store::{ToolOp, ToolReply, redis::sharded::shard::Shard},
};

/// Makes one step.
pub(crate) async fn tool(shard: &Shard, op: &ToolOp) -> Result<ToolReply> {
    op.check()?;
    match op {
        ToolOp::Limit(op) => Ok(ToolReply::Limit(limit::limit(shard, op).await?)),
        ToolOp::Board(op) => Ok(ToolReply::Board(board::board(shard, op).await?)),
        ToolOp::Lock(op) => Ok(ToolReply::Lock(lock::lock(shard, op).await?)),
    }
}
