//! `tool`: rate limiters, locks and leaderboards, each with its own tables.

mod board;
mod limit;
pub(crate) mod lock;

use super::SqliteStore;
use crate::{
    core::error::Result,
    store::{
        BoardAct, BoardOp, BoardReply, LockOp, ToolOp, ToolReply,
        sqlite::engine::{fault::Step, tx::Tx},
        toolkit::{TOOL_FORGET_MAX, TOOL_MEMORY},
    },
};

/// Does one step. Limiters and locks are as durable as leases: a power cut also ends their callers, which are all on
/// this machine. So these calls are not synced on their own.
pub(crate) async fn tool(store: &SqliteStore, op: &ToolOp) -> Result<ToolReply> {
    op.check()?;
    let op = op.clone();
    match op {
        ToolOp::Limit(op) => {
            let said = store.write(1, 0, false, move |tx| limit::limit(tx, &op)).await?;
            Ok(ToolReply::Limit(said))
        }
        ToolOp::Lock(op @ (LockOp::Show { .. } | LockOp::List { .. })) => {
            Ok(ToolReply::Lock(store.reader.read(move |tx| lock::lock(tx, &op)).await?))
        }
        ToolOp::Lock(op) => {
            Ok(ToolReply::Lock(store.write(1, 0, false, move |tx| lock::lock(tx, &op)).await?))
        }
        ToolOp::Board(op) => Ok(ToolReply::Board(board(store, op).await?)),
    }
}

/// Does a step on a board, after as many slices of clean-up as needed.
async fn board(store: &SqliteStore, op: BoardOp) -> Result<BoardReply> {
    loop {
        if !is_change(&op) {
            let op = op.clone();
            if let Some(said) = store.reader.search(move |tx| board::read(tx, &op)).await? {
                return Ok(said);
            }
        }
        let op = op.clone();
        let members = if let BoardAct::AddAll { members, .. } = &op.act { members.len() } else { 1 };
        if let Some(said) = store.write(members, 0, true, move |tx| board::change(tx, &op)).await? {
            return Ok(said);
        }
    }
}

const fn is_change(op: &BoardOp) -> bool {
    matches!(
        op.act,
        BoardAct::Add { .. } | BoardAct::AddAll { .. } | BoardAct::Set { .. } | BoardAct::Remove { .. }
    )
}

/// Returns the time before which expired entries are removed now.
fn forgotten_at(tx: &Tx<'_>) -> i64 {
    tx.now_ms() - TOOL_MEMORY.as_millis() as i64
}

/// Removes some expired rows.
fn forget(tx: &Tx<'_>, sql: &str) -> Step<()> {
    tx.conn
        .prepare_cached(sql)?
        .execute([forgotten_at(tx), crate::store::sqlite::engine::tx::int(TOOL_FORGET_MAX)])?;
    Ok(())
}
