//! Leaderboards, a few keys for each, one for each bucket of a window.

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

/// Makes a step, and before it as many slices of what it needs as there are.
pub(crate) async fn board(shard: &Shard, op: &BoardOp) -> Result<BoardReply> {
    let (keys, args) = (keys(shard, op), args(op));
    loop {
        let mut reply = Reply::of(shard.call_tool(&SCRIPTS.board, &keys, args.clone()).await?)?;
        let word = reply.bytes()?;
        return match word.as_slice() {
            b"again" => continue,
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

/// A number with a sign.
fn int(reply: &mut Reply) -> Result<i64> {
    let text = reply.bytes()?;
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| reply::unexpected(&Value::BulkString(text)))
}

/// The board; of one with a window its slots' numbers and slots, too.
fn keys(shard: &Shard, op: &BoardOp) -> Vec<Vec<u8>> {
    let Some(window) = op.window else { return vec![shard.key(&format!("board:{}", op.name))] };
    // A name has no NUL, so that no two of them meet.
    let letter = match window.bucket {
        Bucket::Minute => 'm',
        Bucket::Hour => 'h',
        Bucket::Day => 'd',
    };
    let stem = format!("board:{}\0{letter}{}", op.name, window.buckets);
    let slots = (0..window.buckets).map(|slot| shard.key(&format!("{stem}\0{slot}")));
    [shard.key(&stem), shard.key(&format!("{stem}\0"))].into_iter().chain(slots).collect()
}

fn args(op: &BoardOp) -> Vec<Vec<u8>> {
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
    ];
    if let BoardAct::AddAll { members, .. } = &op.act {
        let pairs =
            members.iter().map(|(member, by)| [member.as_bytes().to_vec(), by.to_string().into_bytes()]);
        args.extend(pairs.flatten());
    }
    args
}
