//! `sweep`: upkeep of one shard.

use std::sync::PoisonError;

use crate::{
    core::error::Result,
    store::{
        Swept,
        redis::{
            scripts::SCRIPTS,
            sharded::shard::{Shard, digits},
            verbs::reserve::NEVER,
        },
    },
};

/// Scripts of one sweep, each of up to 256 queues. The next sweep continues there.
const SWEEP_SCRIPTS_MAX: usize = 16;
/// The same before a full server refuses an enqueue, which waits for it.
const GIVE_UP_SCRIPTS_MAX: usize = 4;

impl Shard {
    /// Sweeps, some queues per script. `ageless`: also gives up done and cancelled jobs that are not old.
    pub(crate) async fn sweep(&self, limit: usize, ageless: bool) -> Result<Swept> {
        let most = if ageless { GIVE_UP_SCRIPTS_MAX } else { SWEEP_SCRIPTS_MAX };
        let stand = || self.sweeps_from[usize::from(ageless)].lock().unwrap_or_else(PoisonError::into_inner);
        let (mut swept, mut left, mut from) = (Swept::default(), limit as u64, std::mem::take(&mut *stand()));
        for _ in 0..most {
            let args = vec![digits(left), digits(u64::from(ageless)), from];
            let answer = self.ask(&SCRIPTS.sweep, &[], args).await;
            let mut reply =
                answer.map_err(|error| if left == limit as u64 { error } else { error.in_part() })?;
            from = reply.bytes()?;
            let (reclaimed, expired) = (reply.number()?, reply.number()?);
            let (removed, forgotten) = (reply.number()?, reply.number()?);
            let next_reclaim = Some(reply.number()?).filter(|ms| *ms < NEVER);
            swept.next_reclaim_ms = swept.next_reclaim_ms.into_iter().chain(next_reclaim).min();
            self.notify(&reply.bytes()?)?;
            swept.reclaimed += reclaimed;
            swept.expired += expired;
            swept.removed += removed;
            swept.forgotten += forgotten;
            left = left.saturating_sub(reclaimed + expired + removed + forgotten);
            swept.more = left == 0;
            if swept.more || from.is_empty() {
                return Ok(swept);
            }
        }
        swept.more = true;
        *stand() = from;
        Ok(swept)
    }
}
