//! `doc`: documents, which live in shard 0.

use redis::Value;

use crate::{
    core::error::Result,
    store::{
        Doc, DocOp, DocReply, Only,
        redis::{
            scripts::{
                DOC_KEYS, SCRIPTS,
                bytes::Bytes,
                reply::{self, Reply},
            },
            sharded::shard::{Shard, digits},
        },
        too_many,
    },
};

pub(crate) async fn doc(shard: &Shard, op: &DocOp) -> Result<DocReply> {
    op.check()?;
    let args = match op {
        DocOp::Get { key } => vec![b"get".to_vec(), key.as_bytes().to_vec()],
        DocOp::Put { key, only, value } => {
            vec![b"put".to_vec(), key.as_bytes().to_vec(), version(*only), value.clone()]
        }
        DocOp::Remove { key, only } => vec![b"remove".to_vec(), key.as_bytes().to_vec(), version(*only)],
        DocOp::List { prefix, after, limit } => {
            let from = match after {
                Some(after) if prefix <= after => [b"(", after.as_bytes()].concat(),
                _ => [b"[", prefix.as_bytes()].concat(),
            };
            vec![b"list".to_vec(), prefix.as_bytes().to_vec(), from, digits(*limit as u64)]
        }
    };
    let mut reply = shard.ask(&SCRIPTS.doc, &DOC_KEYS.map(|key| shard.key(key)), args).await?;
    let word = reply.bytes()?;
    match word.as_slice() {
        b"is" => Ok(DocReply::Is(one(&mut reply)?)),
        b"conflict" => Ok(DocReply::Conflict(one(&mut reply)?)),
        b"full" => Err(too_many()),
        b"page" | b"more" => {
            let mut docs = Vec::new();
            while !reply.is_over() {
                docs.extend(one(&mut reply)?);
            }
            Ok(DocReply::Page { docs, more: word == b"more" })
        }
        _ => Err(reply::unexpected(&Value::BulkString(word))),
    }
}

/// A document, where the answer goes on behind its key.
fn one(reply: &mut Reply) -> Result<Option<Doc>> {
    let key = reply.bytes()?;
    if reply.is_over() {
        return Ok(None);
    }
    let row = reply.bytes()?;
    let mut row = Bytes(&row);
    let version = row.number(7)?;
    Ok(Some(Doc { key: Bytes(&key).text()?, version, value: row.0.to_vec() }))
}

/// The version that a document must have, as `lua/doc.lua` takes it.
fn version(only: Only) -> Vec<u8> {
    match only {
        Only::Always => Vec::new(),
        Only::IfAbsent => digits(0_u64),
        // No document has it; 0 stands for none there.
        Only::IfVersion(0) => b"-1".to_vec(),
        Only::IfVersion(version) => digits(version),
    }
}
