//! `extend`: the heartbeat.

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        time::ceil_ms,
    },
    store::{
        Heartbeat, LeaseStatus, check_extend,
        redis::{
            scripts::{SCRIPTS, bytes::Put, reply::Reply},
            sharded::shard::Shard,
        },
    },
};

pub(crate) async fn extend(shard: &Shard, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
    check_extend(beats)?;
    let args = beats.iter().map(|Heartbeat { lease, notes, company, lasts }| {
        let mut out = Vec::with_capacity(29);
        out.number(lease.fence, 8);
        out.extend_from_slice(lease.job.as_bytes());
        out.push(if *company { b'1' } else { b'0' });
        out.number(lasts.map_or(0, ceil_ms), 4);
        if let Some(notes) = notes {
            out.extend_from_slice(notes.text().as_bytes());
        }
        out
    });
    let mut reply = Reply::of(shard.call_aside(&SCRIPTS.extend, args.collect()).await?)?;
    shard.notify(&reply.bytes()?)?;
    let codes = reply.bytes()?;
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
