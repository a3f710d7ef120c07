//! `settle` in one shard.

use std::collections::HashSet;

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::cut_error,
        time::ceil_ms,
    },
    store::{
        EndReason, Lease, Reserve, Settled, Settlement, Verdict, check_settle,
        redis::{
            notify::Hold,
            scripts::{SCRIPTS, bytes::Put, reply::Reply},
            sharded::shard::{Shard, digits},
            state::codec,
            verbs::reserve::{self, Looked, Now},
        },
    },
};

/// Longer than all of time.
const PAUSE_MAX_MS: u64 = 1 << 52;

pub(crate) async fn settle(
    shard: &Shard,
    batch: &[Settlement],
    then: Option<&Reserve>,
) -> Result<(Vec<Settled>, Option<Looked>)> {
    check_settle(batch)?;
    then.map_or(Ok(()), Reserve::check)?;
    let holds = then.map(|request| reserve::holds(shard, request)).unwrap_or_default();
    let (settled, clock, mut reply) =
        ask(shard, &ends(batch), then.map(|request| (request, &holds[..]))).await?;
    let reserved = match then {
        Some(_) => Some(reserve::looked(shard, &clock, &holds, &mut reply).await?),
        None => None,
    };
    Ok((settled, reserved))
}

/// Ends leases, if they are still held.
pub(crate) async fn end(shard: &Shard, batch: &[Settlement]) -> Result<()> {
    ask(shard, &ends(batch), None).await.map(drop)
}

/// Ends leases of jobs that only a newer version can run: these wait for a while, and nothing is counted.
pub(crate) async fn hold(shard: &Shard, leases: &[Lease]) -> Result<()> {
    let held = |lease: &Lease| (lease.job, [&lease.fence.to_be_bytes()[..], b"h"].concat());
    let ends: Vec<End> = leases.iter().map(held).collect();
    ask(shard, &ends, None).await.map(drop)
}

/// The end of a lease in the form that `lua/verbs/settle.lua` takes.
type End = (JobId, Vec<u8>);

/// Returns why a script ended a job; 0 means by what the verdict says.
fn end_reason(code: u8) -> Result<Option<EndReason>> {
    Ok(Some(match code {
        0 => return Ok(None),
        1 => EndReason::Attempts,
        2 => EndReason::Snoozes,
        3 => EndReason::CancelRequested,
        4 => EndReason::Corrupt,
        _ => return Err(Error::new(ErrorKind::Corrupt, "the script settle answered what it never should")),
    }))
}

/// Sends the ends of leases, and a reserve after them. A script does a bounded amount of work, so that other callers
/// run in between; the last one reserves.
async fn ask(
    shard: &Shard,
    ends: &[End],
    then: Option<(&Reserve, &[Hold])>,
) -> Result<(Vec<Settled>, Now, Reply)> {
    let notifications =
        then.map(|(request, _)| reserve::notification_keys(shard, request)).unwrap_or_default();
    let mut settled = Vec::with_capacity(ends.len());
    loop {
        let left = &ends[settled.len()..];
        let mut args = vec![digits(left.len() as u64)];
        args.extend(left.iter().map(|(id, _)| id.as_bytes().to_vec()));
        args.extend(left.iter().map(|(_, end)| end.clone()));
        args.extend(then.map(|(request, holds)| reserve::arguments(request, holds)).into_iter().flatten());
        let asked = shard.asks();
        let answer = shard.ask(&SCRIPTS.settle, &notifications, args).await;
        let mut reply = answer.map_err(|error| if settled.is_empty() { error } else { error.in_part() })?;
        let clock = Now::read(shard, asked, &mut reply)?;
        shard.notify(&reply.bytes()?)?;
        let codes = reply.bytes()?;
        for &code in &codes {
            settled.push(match code {
                b'-' => Settled::LeaseLost,
                code => Settled::Settled(codec::state(code % 16)?, end_reason(code / 16)?),
            });
        }
        if codes.len() == left.len() {
            return Ok((settled, clock, reply));
        }
        if codes.is_empty() || left.len() < codes.len() {
            return Err(Error::new(ErrorKind::Corrupt, "the script settle answered what it never should"));
        }
    }
}

fn ends(batch: &[Settlement]) -> Vec<End> {
    // If a lease is named twice, the second is lost. No fence is 0.
    let mut named = HashSet::with_capacity(batch.len());
    let mut end = |settlement: &Settlement| {
        if named.insert(settlement.lease) { encode(settlement) } else { vec![0; 8] }
    };
    batch.iter().map(|settlement| (settlement.lease.job, end(settlement))).collect()
}

fn encode(settlement: &Settlement) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    out.number(settlement.lease.fence, 8);
    match &settlement.verdict {
        Verdict::Ack => {}
        Verdict::AckWith { result } => {
            out.push(b'a');
            out.chunk(codec::content_type(result));
            out.extend_from_slice(&result.bytes);
        }
        Verdict::Retry { at, error } => {
            out.push(b'r');
            codec::put_when(&mut out, *at);
            out.extend_from_slice(cut_error(error).as_bytes());
        }
        Verdict::RetryAfter { at, error } => {
            out.push(b'g');
            codec::put_when(&mut out, *at);
            out.extend_from_slice(cut_error(error).as_bytes());
        }
        Verdict::Snooze { after, reason } => {
            out.push(b's');
            out.number(ceil_ms(*after).min(PAUSE_MAX_MS), 7);
            if let Some(reason) = reason {
                out.push(b'1');
                out.extend_from_slice(cut_error(reason).as_bytes());
            }
        }
        Verdict::Release => out.push(b'l'),
        Verdict::Cancel { reason } => {
            out.push(b'c');
            out.extend_from_slice(cut_error(reason.as_deref().unwrap_or("cancelled")).as_bytes());
        }
        Verdict::Dead { error } => {
            out.push(b'd');
            out.extend_from_slice(cut_error(error).as_bytes());
        }
    }
    out
}
