//! `extend`: the heartbeat.

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        Heartbeat, LeaseStatus, check_extend,
        redis::{
            scripts::{SCRIPTS, bytes::Put, reply},
            sharded::shard::Shard,
        },
    },
};

pub(crate) async fn extend(shard: &Shard, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
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
