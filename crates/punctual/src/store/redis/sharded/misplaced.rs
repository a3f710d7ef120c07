//! The search for misplaced jobs: those that only an outgrown number of shards leads to, one below the number now. While there is
//! one, or the shard remembers something of one, enqueues look under that number, too (S4, S15).
//!
//! The search rides on sweeps, some records at a time. Its state is in each shard, and any process continues it. It never moves a job
//! and never forgets a number: `reshard` does that, when the search is over in all shards.
//!
//! ```text
//! records of a shard ──► no job is misplaced ──► what the shard remembered then is over and gone ──► over
//!        ▲   │                       │ a job followed its group or key into the shard, or the epoch changed
//!        │   ▼ one is misplaced      ▼
//!   wait until it is gone        begin anew
//! ```

use crate::{
    core::{error::Result, id::JobId},
    store::redis::{
        Live,
        scripts::SCRIPTS,
        sharded::{
            layout::{Layout, Place},
            shard::{Shard, digits},
        },
        state::codec,
    },
};

/// Records that one script reads, and a few more.
const RECORDS_MAX: u64 = 256;
/// Scripts of one sweep that find something to do, in all shards together; the next sweep continues there.
const SCRIPTS_MAX: usize = 16;

/// Continues the search in each shard that may hold jobs that an outgrown number put there.
pub(crate) async fn search(live: &Live) -> Result<()> {
    let (layout, mut left) = (live.layout.without_outgrown(), SCRIPTS_MAX);
    for shard in &live.shards[..live.layout.outgrown().into()] {
        let (mut row, mut misplaced) = (Vec::new(), None);
        while 0 < left || !row.is_empty() {
            let limit = if 0 < left { RECORDS_MAX } else { 0 };
            (row, misplaced) = step(shard, &layout, limit, row, misplaced).await?;
            if row.is_empty() {
                break;
            }
            left = left.saturating_sub(1);
        }
    }
    Ok(())
}

/// Runs one script and judges the records that it read; `row` and `misplaced` are what the step before returned.
async fn step(
    shard: &Shard,
    layout: &Layout,
    limit: u64,
    row: Vec<u8>,
    misplaced: Option<Vec<u8>>,
) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    let token = fastrand::u128(..).to_be_bytes().to_vec();
    let args = vec![digits(layout.epoch), token, digits(limit), row, misplaced.unwrap_or_default()];
    let mut reply = shard.ask(&SCRIPTS.misplaced, &[], args).await?;
    let (row, mut misplaced) = (reply.bytes()?, None);
    while !reply.is_over() {
        let (id, within) = (reply.bytes()?, reply.bytes()?);
        if misplaced.is_none() && !is_placed(shard, layout, &id, &within) {
            misplaced = Some(id);
        }
    }
    Ok((row, misplaced))
}

/// Whether the layout leads to the job of a record; `false` if the record can't be read.
fn is_placed(shard: &Shard, layout: &Layout, id: &[u8], within: &[u8]) -> bool {
    let id = id.try_into().ok().and_then(|id| JobId::from_bytes(id).ok());
    let (Some(id), Ok(Some((queue, key)))) = (id, codec::placed_by(within)) else { return false };
    layout.leads_to(Place { home: shard.number, id }, &queue, key.as_deref())
}
