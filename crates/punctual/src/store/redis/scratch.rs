//! Removes a store with all its contents. `store/scratch.rs` says for which stores this is allowed.

use redis::{Value, cmd};

use super::RedisStore;
use crate::core::error::{Error, ErrorKind, Result};

/// Keys that a server reads in one step.
const KEYS_PER_SCAN: usize = 1_000;
/// The most steps through a server's keys: a thousand million keys.
const SCANS_MAX: usize = 1_000_000;

impl RedisStore {
    /// Returns the prefix of its keys.
    pub(crate) fn prefix(&self) -> &str {
        self.address.prefix()
    }

    /// Removes all of its keys, shard by shard. The mark of a test's store is removed last. Its user must be allowed
    /// `SCAN`.
    pub(crate) async fn remove_all(&self) -> Result<()> {
        for shard in self.live().shards.iter().rev() {
            // Its notifications are not returned any more.
            shard.notifier.forget();
            let (pattern, documents) = (shard.key("*"), shard.key("d"));
            let mut cursor = b"0".to_vec();
            for _ in 0..SCANS_MAX {
                let mut scan = cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_PER_SCAN);
                let (next, mut keys) =
                    redis::from_redis_value::<(Vec<u8>, Vec<Vec<u8>>)>(shard.link.command(scan).await?)
                        .map_err(|e| {
                            Error::new(ErrorKind::Corrupt, "could not read the keys of a server")
                                .with_source(e)
                        })?;
                keys.retain(|key| *key != documents);
                if !keys.is_empty() {
                    unlink(shard, keys).await?;
                }
                cursor = next;
                if cursor == b"0" {
                    break;
                }
            }
            unlink(shard, vec![documents]).await?;
        }
        Ok(())
    }
}

async fn unlink(shard: &super::Shard, keys: Vec<Vec<u8>>) -> Result<Value> {
    let mut unlink = cmd("UNLINK");
    unlink.arg(keys);
    shard.link.command(unlink).await
}
