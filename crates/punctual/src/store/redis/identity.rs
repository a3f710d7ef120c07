//! Which store it is: a field of the state of shard 0, which every layout has. The other shards have a copy (`copies`).

use super::scripts::{SCRIPTS, STATE};
use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        Identity,
        redis::{scripts::reply::Reply, sharded::shard::Shard},
    },
};

/// Its identity, made if there is none; two that ask at the same time get the same one.
pub(super) async fn identity(first: &Shard) -> Result<Identity> {
    let new = Identity::of(fastrand::u64(..)).to_string().into_bytes();
    decode(&first.ask(&SCRIPTS.identity, &[], vec![new]).await?.bytes()?)
}

/// Its identity, if the shard knows one; writes nothing.
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
