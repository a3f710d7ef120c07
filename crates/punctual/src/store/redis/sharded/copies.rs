//! Copies of the layout and of the store's identity, one in each shard. Programs use them if they start while the server of shard 0 of
//! a cluster is unavailable, and an operator if the state of shard 0 is lost (`restore`).
//!
//! A copy is left in a shard only after all shards know of its epoch, and only in a shard that is in no later epoch.
//! So using a copy is as safe as not having heard of a change yet: a shard refuses jobs that a later layout would not
//! look for there. Of several copies, that of the highest epoch is the latest, because each epoch has one layout.

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

/// How many shards are asked at once for their copies: by a program that starts while shard 0 is unavailable, and by a repair.
pub(crate) const ASKED_MAX: u16 = 8;

/// Leaves a copy of the layout in a shard that is not known to have it. A shard that cannot be reached keeps its old
/// copy.
pub(crate) async fn leave(live: &Live, shard: &Shard) {
    let Live { layout, .. } = live;
    // Shard 0 has the identity.
    if shard.number == 0 || !layout.is_told || layout.epoch <= shard.copied() || is_away(&live.shards, 0) {
        return;
    }
    let left = async {
        let identity = identity::of_first_shard(&live.shards[0]).await?.to_string().into_bytes();
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

/// Returns the shards by the latest copy in one of the first shards after shard 0, if there is one. All are asked at
/// once, so that waits for unavailable servers do not add up.
///
/// # Errors
/// Any error of a shard with another format.
pub(crate) async fn find(
    thread: &Arc<Thread>,
    address: &Address,
    clock: &Clock,
    first: &Arc<Shard>,
) -> Result<Option<Live>> {
    let new = |n| Shard::new(thread, address, clock, n).map(Arc::new);
    let asked = (1..=ASKED_MAX).map(new).collect::<Result<Vec<_>>>()?;
    let copies = asked.iter().map(async |shard| {
        // The shard refuses another format.
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

/// Returns the identity of the store, by the latest copy in one of the first shards after shard 0, if there is one.
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
