//! `settle` and `extend`.

use std::collections::HashSet;

use crate::{
    error::{Error, ErrorKind, Result},
    job::cut_error,
    store::{
        Batch, Heartbeat, Lease, LeaseStatus, Reserve, Settled, Settlement, Verdict, check_extend,
        check_settle,
    },
    time::ceil_ms,
};

use super::{
    bytes::Put,
    record, reply,
    reserve::{self, Now},
    scripts::SCRIPTS,
    shard::{Shard, digits},
};

/// Longer than time.
const PAUSE_MAX_MS: u64 = 1 << 52;

pub(super) async fn settle(
    shard: &Shard,
    batch: &[Settlement],
    then: Option<&Reserve>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    check_settle(batch)?;
    then.map_or(Ok(()), Reserve::check)?;
    let mut args = arguments(batch);
    args.extend(then.map(reserve::arguments).into_iter().flatten());
    let bells = then.map(|want| reserve::bells(shard, want)).unwrap_or_default();
    let asked = shard.clock.now();
    let mut reply = shard.ask(&SCRIPTS.settle, &bells, args).await?;
    let clock = Now::read(shard, asked, &mut reply)?;
    shard.ring(&reply.bytes()?)?;
    let settled = reply
        .bytes()?
        .iter()
        .map(|&code| match code {
            b'-' => Ok(Settled::LeaseLost),
            code => Ok(Settled::Settled(record::state(code)?)),
        })
        .collect::<Result<Vec<_>>>()?;
    let reserved = match then {
        Some(_) => Some(reserve::batch(shard, &clock, &mut reply).await?),
        None => None,
    };
    Ok((settled, reserved))
}

/// Ends leases, as far as they are still held.
pub(super) async fn end(shard: &Shard, batch: &[Settlement]) -> Result<()> {
    end_by(shard, arguments(batch)).await
}

/// Ends leases of jobs that only a newer version may run: these wait for a while, and nothing is counted.
pub(super) async fn hold(shard: &Shard, leases: &[Lease]) -> Result<()> {
    let mut args = vec![digits(leases.len() as u64)];
    args.extend(leases.iter().map(|lease| lease.job.as_bytes().to_vec()));
    args.extend(leases.iter().map(|lease| [&lease.fence.to_be_bytes()[..], b"h"].concat()));
    end_by(shard, args).await
}

async fn end_by(shard: &Shard, args: Vec<Vec<u8>>) -> Result<()> {
    let asked = shard.clock.now();
    let mut reply = shard.ask(&SCRIPTS.settle, &[], args).await?;
    Now::read(shard, asked, &mut reply)?;
    shard.ring(&reply.bytes()?)
}

/// Settlements as `lua/settle.lua` takes them.
fn arguments(batch: &[Settlement]) -> Vec<Vec<u8>> {
    let mut args = vec![digits(batch.len() as u64)];
    args.extend(batch.iter().map(|settlement| settlement.lease.job.as_bytes().to_vec()));
    // Of a lease that is named twice the second is lost; no fence is 0.
    let mut named = HashSet::with_capacity(batch.len());
    args.extend(
        batch.iter().map(
            |settlement| {
                if named.insert(settlement.lease) { encode(settlement) } else { vec![0; 8] }
            },
        ),
    );
    args
}

fn encode(settlement: &Settlement) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    out.number(settlement.lease.fence, 8);
    match &settlement.verdict {
        Verdict::Ack => {}
        Verdict::AckWith { result } => {
            out.push(b'a');
            out.chunk(record::content_type(result));
            out.extend_from_slice(&result.bytes);
        }
        Verdict::Retry { at, error } => {
            out.push(b'r');
            record::put_when(&mut out, *at);
            out.extend_from_slice(cut_error(error).as_bytes());
        }
        Verdict::RetryAfter { at, error } => {
            out.push(b'g');
            record::put_when(&mut out, *at);
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

pub(super) async fn extend(shard: &Shard, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
    check_extend(beats)?;
    let args = beats.iter().map(|Heartbeat { lease, notes, company }| {
        let mut out = Vec::with_capacity(25);
        out.number(lease.fence, 8);
        out.extend_from_slice(lease.job.as_bytes());
        out.push(if *company { b'1' } else { b'0' });
        if let Some(notes) = notes {
            out.extend_from_slice(notes.text().as_bytes());
        }
        out
    });
    let codes = reply::bytes(shard.call_aside(&SCRIPTS.extend, args.collect()).await?)?;
    codes
        .iter()
        .map(|code| match code {
            b'h' => Ok(LeaseStatus::Held),
            b'l' => Ok(LeaseStatus::Lost),
            b'c' => Ok(LeaseStatus::CancelRequested),
            _ => Err(Error::new(ErrorKind::Corrupt, "the script extend answered what it never should")),
        })
        .collect()
}
