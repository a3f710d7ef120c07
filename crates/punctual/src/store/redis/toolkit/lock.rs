//! Locks, all in one hash.

use std::time::Duration;

use redis::Value;

use crate::{
    core::{
        error::Result,
        time::{Timestamp, ceil_ms},
    },
    store::{
        Held, LOCK_NOTIFICATION, LockOp, LockReply,
        redis::{
            scripts::{
                LOCK_KEYS, SCRIPTS,
                bytes::Bytes,
                reply::{self, Reply},
            },
            sharded::shard::{Shard, digits},
        },
    },
};

pub(crate) async fn lock(shard: &Shard, op: &LockOp) -> Result<LockReply> {
    let ms = |lease: &Duration| digits(ceil_ms(*lease));
    let (name, mut args) = match op {
        LockOp::Acquire { name, owner, lease } => {
            (&**name, vec![b"acquire".to_vec(), name_of(name), owner.to_be_bytes().to_vec(), ms(lease)])
        }
        LockOp::Extend { name, owner, lease } => {
            (&**name, vec![b"extend".to_vec(), name_of(name), owner.to_be_bytes().to_vec(), ms(lease)])
        }
        LockOp::Release { name, owner } => {
            let owner = owner.map_or(Vec::new(), |owner| owner.to_be_bytes().to_vec());
            (&**name, vec![b"release".to_vec(), name_of(name), owner])
        }
        LockOp::Show { name } => (&**name, vec![b"show".to_vec(), name_of(name)]),
        LockOp::List { limit } => ("", vec![b"list".to_vec(), digits(*limit as u64)]),
    };
    args.resize(4, Vec::new());
    let [hash, ends] = LOCK_KEYS.map(|key| shard.key(key));
    let notification = shard.notification_key(&[LOCK_NOTIFICATION, name].concat());
    let mut reply = Reply::of(shard.call_tool(&SCRIPTS.lock, &[hash, ends, notification], args).await?)?;
    let word = reply.bytes()?;
    match word.as_slice() {
        b"yours" | b"taken" => {
            let now = reply.time()?;
            let held = held(&mut reply, name.to_owned(), now)?;
            Ok(if word == b"yours" { LockReply::Yours(held) } else { LockReply::Taken(held) })
        }
        b"released" => Ok(LockReply::Released),
        b"free" => Ok(LockReply::Free),
        b"listed" | b"more" => {
            let (now, mut locks) = (reply.time()?, Vec::new());
            while !reply.is_over() {
                let name = Bytes(&reply.bytes()?).text()?;
                locks.push(held(&mut reply, name, now)?);
            }
            Ok(LockReply::Listed { locks, more: word == b"more" })
        }
        _ => Err(reply::unexpected(&Value::BulkString(word))),
    }
}

fn name_of(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn held(reply: &mut Reply, name: String, now: Timestamp) -> Result<Held> {
    let fence = Bytes(&reply.bytes()?).number(8)?;
    let until = Bytes(&reply.bytes()?).time()?;
    Ok(Held { name, fence, until, left: until.since(now) })
}
