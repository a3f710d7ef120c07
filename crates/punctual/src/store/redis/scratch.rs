//! Removes a store with all that it holds; see `store/scratch.rs` for which ones that may befall.

use redis::{Value, cmd};

use super::RedisStore;
use crate::core::error::{Error, ErrorKind, Result};

/// Keys that a server looks at in one step.
const KEYS_PER_SCAN: usize = 1_000;
/// Steps in which a server's keys are looked through at most: a thousand million keys.
const SCANS_MAX: usize = 1_000_000;

impl RedisStore {
    /// How the names of its keys begin.
    pub(crate) fn prefix(&self) -> &str {
        self.address.prefix()
    }

    /// Removes all of its keys, shard by shard; what says that it is a test's goes last. Its user must be allowed `SCAN`.
    pub(crate) async fn remove_all(&self) -> Result<()> {
        for shard in self.live().shards.iter().rev() {
            // What rang for it goes nowhere any more.
            shard.bell.forget();
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
