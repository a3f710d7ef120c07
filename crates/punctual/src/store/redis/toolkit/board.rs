//! Leaderboards, with a few keys each, and one key for each bucket of a window.

use redis::Value;

use crate::{
    core::error::{Error, Result},
    store::{
        BoardAct, BoardOp, BoardReply, Bucket, Standing,
        redis::{
            scripts::{
                SCRIPTS,
                reply::{self, Reply},
            },
            sharded::shard::{Shard, digits},
        },
    },
};

/// Does a step, after as many slices of clean-up as needed.
pub(crate) async fn board(shard: &Shard, op: &BoardOp) -> Result<BoardReply> {
    // An add needs one slot, nearly always. The server looks up each key that is named.
    let mut slot = match (&op.act, op.window) {
        (BoardAct::Add { .. } | BoardAct::AddAll { .. }, Some(window)) if 1 < window.buckets => {
            Some(window.number(shard.server_now()) % u64::from(window.buckets))
        }
        _ => None,
    };
    loop {
        let (keys, args) = (keys(shard, op, slot), args(op, slot));
        let mut reply = Reply::of(shard.call_tool(&SCRIPTS.board, &keys, args).await?)?;
        let word = reply.bytes()?;
        return match word.as_slice() {
            b"again" => continue,
            b"wide" if slot.take().is_some() => continue,
            b"range" => {
                let (score, max) = (int(&mut reply)?, op.bucket_max());
                Err(Error::invalid(format!("a score of {score} is not within ±{max}")))
            }
            b"score" if reply.is_over() => Ok(BoardReply::Score(None)),
            b"score" => Ok(BoardReply::Score(Some(int(&mut reply)?))),
            b"size" => Ok(BoardReply::Size(reply.number()?)),
            b"standings" => {
                let (first, mut standings) = (reply.number()?, Vec::new());
                while !reply.is_over() {
                    let rank = first + standings.len() as u64;
                    let member = String::from_utf8_lossy(&reply.bytes()?).into_owned();
                    standings.push(Standing { rank, member, score: int(&mut reply)? });
                }
                Ok(BoardReply::Standings(standings))
            }
            _ => Err(reply::unexpected(&Value::BulkString(word))),
        };
    }
}

/// Reads a number with a sign.
fn int(reply: &mut Reply) -> Result<i64> {
    let text = reply.bytes()?;
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| reply::unexpected(&Value::BulkString(text)))
}

/// Returns the keys of a board; for a window also the key of its buckets' numbers and the keys of the buckets, or of only one.
fn keys(shard: &Shard, op: &BoardOp, slot: Option<u64>) -> Vec<Vec<u8>> {
    let Some(window) = op.window else { return vec![shard.key(&format!("board:{}", op.name))] };
    // Names have no NUL, so no two boards share a key.
    let letter = match window.bucket {
        Bucket::Minute => 'm',
        Bucket::Hour => 'h',
        Bucket::Day => 'd',
    };
    let stem = format!("board:{}\0{letter}{}", op.name, window.buckets);
    let slots = slot.map_or(0..u64::from(window.buckets), |slot| slot..slot + 1);
    let slots = slots.map(|slot| shard.key(&format!("{stem}\0{slot}")));
    [shard.key(&stem), shard.key(&format!("{stem}\0"))].into_iter().chain(slots).collect()
}

fn args(op: &BoardOp, slot: Option<u64>) -> Vec<Vec<u8>> {
    let (what, member, n, members_max) = match &op.act {
        BoardAct::Add { member, by, members_max } => ("add", &**member, by.to_string(), *members_max),
        BoardAct::AddAll { members, members_max } => ("all", "", members.len().to_string(), *members_max),
        BoardAct::Set { member, score, members_max } => ("set", &**member, score.to_string(), *members_max),
        BoardAct::Remove { member } => ("remove", &**member, String::new(), 0),
        BoardAct::Rank { member } => ("rank", &**member, String::new(), 0),
        BoardAct::Top { n } => ("top", "", n.to_string(), 0),
        BoardAct::Around { member, n } => ("around", &**member, n.to_string(), 0),
        BoardAct::Size => ("size", "", String::new(), 0),
    };
    let changed = if let BoardAct::AddAll { members, .. } = &op.act { members.len() } else { 1 };
    let (buckets, length) =
        op.window.map_or((0, 0), |window| (window.buckets, window.bucket.length().as_millis() as u64));
    let mut args = vec![
        what.as_bytes().to_vec(),
        member.as_bytes().to_vec(),
        n.into_bytes(),
        digits(members_max),
        digits(op.leave_max(changed) as u64),
        digits(buckets),
        digits(length),
        digits(op.bucket_max().cast_unsigned()),
        slot.map_or_else(Vec::new, digits),
    ];
    if let BoardAct::AddAll { members, .. } = &op.act {
        let pairs =
            members.iter().map(|(member, by)| [member.as_bytes().to_vec(), by.to_string().into_bytes()]);
        args.extend(pairs.flatten());
    }
    args
}
