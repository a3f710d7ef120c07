//! The identity of the store: a field in the state of shard 0, which every layout has. The other shards have a copy
//! (`copies`).

use super::scripts::{SCRIPTS, STATE};
use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        Identity,
        redis::{
            RedisStore,
            connection::fault,
            scripts::reply::Reply,
            sharded::{copies, lease::is_away, shard::Shard},
        },
    },
};

/// Returns the identity of the store.
///
/// It is asked for each time: the server can be emptied, or started again without its data.
pub(super) async fn of_store(store: &RedisStore) -> Result<Identity> {
    let shards = &store.live().shards;
    let asked = if is_away(shards, 0) { Err(fault::away()) } else { of_first_shard(&shards[0]).await };
    match asked {
        // The identity is made before the other shards get their copies, so a copy proves it.
        Err(error) if 1 < shards.len() && fault::is_away(&error) => {
            copies::identity(shards).await.ok_or(error)
        }
        asked => asked,
    }
}

/// Asks shard 0 for it, which makes it if there is none. Concurrent callers get the same one.
pub(super) async fn of_first_shard(first: &Shard) -> Result<Identity> {
    let new = Identity::of(fastrand::u64(..)).to_string().into_bytes();
    decode(&first.ask(&SCRIPTS.identity, &[], vec![new]).await?.bytes()?)
}

/// Returns the identity, if the shard has one. Writes nothing.
pub(super) async fn look(shard: &Shard) -> Result<Option<Identity>> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&shard.keys[STATE]).arg("identity");
    let found = Reply::of(shard.link.command(cmd).await?)?.bytes_or_none()?;
    if found.is_empty() { Ok(None) } else { decode(&found).map(Some) }
}

fn decode(text: &[u8]) -> Result<Identity> {
    let number = std::str::from_utf8(text).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    number.map(Identity::of).ok_or_else(|| Error::new(ErrorKind::Corrupt, "read which store it is"))
}
