//! `sweep` and `audit`: one shard after another.

use super::lease::is_away;
use crate::{
    core::{error::Result, id::JobId},
    store::{
        Audit, AuditCursor, Audited, Finding, Swept, check_limit,
        redis::{
            RedisStore, audit,
            connection::fault,
            sharded::{copies, layout::Layout, misplaced},
        },
    },
};

pub(crate) async fn sweep(store: &RedisStore, limit: usize) -> Result<Swept> {
    check_limit("sweep", limit)?;
    let (live, first) = (store.current().await?, store.next_turn());
    let (mut all_of_it, mut away) = (Swept::default(), 0);
    for i in 0..live.shards.len() {
        let at = (first + i) % live.shards.len();
        let shard = &live.shards[at];
        if is_away(&live.shards, at) {
            // Its upkeep is done when it is back.
            away += 1;
            continue;
        }
        let done =
            (all_of_it.reclaimed + all_of_it.expired + all_of_it.removed + all_of_it.forgotten) as usize;
        if limit <= done {
            all_of_it.more = true;
            break;
        }
        // A shard has no copy yet if it was unavailable when the layout changed, or learned of the layout from an
        // earlier version.
        copies::leave(&live, shard).await;
        let answer = shard.sweep(limit - done, false).await;
        let swept = answer.map_err(|error| if done == 0 { error } else { error.in_part() })?;
        all_of_it.reclaimed += swept.reclaimed;
        all_of_it.next_reclaim_ms = all_of_it.next_reclaim_ms.into_iter().chain(swept.next_reclaim_ms).min();
        all_of_it.expired += swept.expired;
        all_of_it.removed += swept.removed;
        all_of_it.forgotten += swept.forgotten;
        all_of_it.more |= swept.more;
    }
    if away == live.shards.len() {
        return Err(fault::away());
    }
    if away == 0 && !live.layout.earlier.is_empty() {
        misplaced::search(&live).await?;
        // A shard that accepts no jobs any more may be empty now, and an outgrown number may lead to nothing.
        store.shards().await?;
    }
    Ok(all_of_it)
}

pub(crate) async fn audit(store: &RedisStore, of: Audit) -> Result<Audited> {
    let live = store.refresh().await?;
    let (at, own) = of
        .from
        .0
        .split_at_checked(2)
        .map_or((0, Vec::new()), |(at, own)| (u16::from_be_bytes([at[0], at[1]]), own.to_vec()));
    let Some(shard) = live.shards.get(usize::from(at)) else { return Ok(Audited::default()) };
    let (mut audited, ids) =
        audit::audit(shard, &live.layout, Audit { from: AuditCursor(own), ..of }).await?;
    let mut strays: Vec<JobId> =
        ids.into_iter().filter(|id| !live.layout.homes_of(*id).contains(&at)).collect();
    if !strays.is_empty() {
        // Jobs that arrived meanwhile may be where the layout that is now in force leads.
        let layout = &store.refresh().await?.layout;
        strays.retain(|id| at < layout.live() && !layout.homes_of(*id).contains(&at));
        audited.findings.extend(strays.into_iter().map(|id| astray(id, at, layout)));
    }
    let cursor = |at: u16, own: Vec<u8>| AuditCursor([at.to_be_bytes().to_vec(), own].concat());
    audited.next = match audited.next {
        Some(next) => Some(cursor(at, next.0)),
        None if usize::from(at) + 1 < live.shards.len() => Some(cursor(at + 1, Vec::new())),
        None => None,
    };
    Ok(audited)
}

/// Makes the finding for a job that its id does not lead to. To reach it, the store needs a number of shards that it
/// has forgotten. An operator who remembers the number can set it again.
fn astray(id: JobId, shard: u16, layout: &Layout) -> Finding {
    let now = layout.shards;
    let detail = format!(
        "is in shard {shard}, where its id does not lead: the store has forgotten a number of shards that it had; `punctual shards` \
         with that number, then `punctual shards {now}`, has it found again"
    );
    Finding { id: Some(id), queue: None, what: "astray".into(), detail, repaired: false }
}
