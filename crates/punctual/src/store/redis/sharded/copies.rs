//! Copies of the layout and of the store's identity, one in each shard of a cluster, for programs that start while the server of shard 0
//! is away.
//!
//! A copy is left in a shard only when all shards know of its epoch, and only in one that is in no later epoch itself. So it is
//! as safe to go by a copy as it is for a process that has not heard of a change yet: whatever it would put where a later
//! layout does not look for it, the shard refuses. Of several copies that of the highest epoch is the latest, since each
//! epoch has one layout.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::{
    core::error::{ErrorKind, Result},
    store::{
        Identity,
        clock::Clock,
        redis::{
            Live,
            connection::{address::Address, io_thread::Thread},
            identity,
            sharded::{
                layout::Layout,
                lease::is_away,
                reshard::{read_layout, tell, tell_with},
                shard::Shard,
            },
        },
    },
};

/// How many shards a program asks at once that starts while shard 0 is away.
const ASKED_MAX: u16 = 8;

/// Leaves a copy of the layout in a shard that is not known to have it. One that can't be reached keeps the copy that it has.
pub(crate) async fn leave(live: &Live, shard: &Shard) {
    let Live { layout, .. } = live;
    let is_wanted = shard.number != 0 && shard.address.is_cluster();
    // Shard 0 knows which store it is.
    if !is_wanted || !layout.is_told || layout.epoch <= shard.copied() || is_away(&live.shards, 0) {
        return;
    }
    let left = async {
        let identity = identity::identity(&live.shards[0]).await?.to_string().into_bytes();
        tell_with(shard, layout.epoch, vec![layout.encode(), layout.pins.encode(), identity]).await
    };
    match left.await {
        Ok(_) => shard.note_copied(layout.epoch),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(target: "punctual", shard = shard.number, error, "could not leave the layout in a shard");
        }
    }
}

/// The shards by the latest copy in one of the first of them after shard 0, if one is found. All are asked at once: of servers that
/// are away none is waited for after another.
///
/// # Errors
/// Where a shard has another format.
pub(crate) async fn find(
    thread: &Arc<Thread>,
    address: &Address,
    clock: &Clock,
    first: &Arc<Shard>,
) -> Result<Option<Live>> {
    let new = |n| Shard::new(thread, address, clock, n).map(Arc::new);
    let asked = (1..=ASKED_MAX).map(new).collect::<Result<Vec<_>>>()?;
    let copies = asked.iter().map(async |shard| {
        // It refuses another format.
        tell(shard, 0).await?;
        read_layout(shard).await
    });
    let mut layout = Layout::default();
    for copy in join_all(copies).await {
        match copy {
            Ok(copy) if layout.epoch < copy.epoch => layout = copy,
            Err(error) if matches!(error.kind(), ErrorKind::Outdated | ErrorKind::Unsupported) => {
                return Err(error);
            }
            _ => {}
        }
    }
    if layout.epoch == 0 {
        return Ok(None);
    }
    tracing::warn!(target: "punctual", "shard 0 cannot be reached: using the layout of another shard");
    let mut shards: Vec<_> = [Arc::clone(first)].into_iter().chain(asked).collect();
    for n in shards.len() as u16..layout.live() {
        shards.push(new(n)?);
    }
    shards.truncate(layout.live().into());
    Ok(Some(Live { layout, shards }))
}

/// Which store it is, by the latest copy in one of the first of its shards after shard 0, if one is found.
pub(crate) async fn identity(shards: &[Arc<Shard>]) -> Option<Identity> {
    let asked = shards.iter().filter(|shard| shard.number != 0).take(ASKED_MAX.into());
    let copies = asked.map(async |shard| {
        let (layout, identity) = (read_layout(shard).await?, identity::look(shard).await?);
        Ok((layout.epoch, identity))
    });
    let copies: Vec<Result<_>> = join_all(copies).await;
    let known = copies.into_iter().flatten().filter_map(|(epoch, identity)| Some((epoch, identity?)));
    known.max_by_key(|(epoch, _)| *epoch).map(|(_, identity)| identity)
}
