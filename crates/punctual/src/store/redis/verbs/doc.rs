//! `doc`: documents, which are in shard 0.

use redis::Value;

use crate::{
    core::error::Result,
    store::{
        Doc, DocOp, DocReply, Precondition,
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
        DocOp::Put { key, precondition, value } => {
            vec![b"put".to_vec(), key.as_bytes().to_vec(), version(*precondition), value.clone()]
        }
        DocOp::Remove { key, precondition } => {
            vec![b"remove".to_vec(), key.as_bytes().to_vec(), version(*precondition)]
        }
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

/// Reads a document whose key has been read.
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

/// Returns the version that a document must have, in the form that `lua/verbs/doc.lua` takes.
fn version(precondition: Precondition) -> Vec<u8> {
    match precondition {
        Precondition::Always => Vec::new(),
        Precondition::IfAbsent => digits(0_u64),
        // No document has this version. In the script, 0 stands for no document.
        Precondition::IfVersion(0) => b"-1".to_vec(),
        Precondition::IfVersion(version) => digits(version),
    }
}
