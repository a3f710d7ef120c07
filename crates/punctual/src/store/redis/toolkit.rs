//! `tool`: tools, which are in shard 0 under keys of their own (see `lua/toolkit/tool.lua`). So they have the same home with
//! any number of shards. An application that needs more than one server for them can use stores with several
//! prefixes.

mod board;
mod limit;
mod lock;

use crate::{
    core::error::Result,
    store::{ToolOp, ToolReply, redis::sharded::shard::Shard},
};

/// Does one step.
pub(crate) async fn tool(shard: &Shard, op: &ToolOp) -> Result<ToolReply> {
    op.check()?;
    match op {
        ToolOp::Limit(op) => Ok(ToolReply::Limit(limit::limit(shard, op).await?)),
        ToolOp::Board(op) => Ok(ToolReply::Board(board::board(shard, op).await?)),
        ToolOp::Lock(op) => Ok(ToolReply::Lock(lock::lock(shard, op).await?)),
    }
}
