//! `extend`: the heartbeat.

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        time::ceil_ms,
    },
    store::{
        Heartbeat, LeaseStatus, check_extend,
        redis::{
            scripts::{
                SCRIPTS,
                bytes::{Bytes, Put},
                reply::Reply,
            },
            sharded::shard::{Shard, digits},
        },
    },
};

pub(crate) async fn extend(shard: &Shard, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
    check_extend(beats)?;
    let leases = beats.iter().map(|Heartbeat { lease, notes, company, lasts }| {
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
    let leases: Vec<Vec<u8>> = leases.collect();
    let mut reply = ask(shard, &[], &leases).await?;
    let mut first = reply.bytes()?;
    // Leases end earlier: the script notifies itself those who wait, by keys that have to be named. Nothing was changed.
    if reply.is_over() {
        let (mut names, mut queues) = (Bytes(&first), Vec::new());
        while !names.is_empty() {
            queues.push(names.chunk()?.text()?);
        }
        reply = ask(shard, &queues, &leases).await?;
        first = reply.bytes()?;
    }
    shard.notify(&first)?;
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

/// Calls the script with these queues named.
async fn ask(shard: &Shard, queues: &[String], leases: &[Vec<u8>]) -> Result<Reply> {
    let notifications: Vec<_> = queues.iter().map(|queue| shard.notification_key(queue)).collect();
    let mut args = vec![digits(queues.len() as u64)];
    args.extend(queues.iter().map(|queue| queue.as_bytes().to_vec()));
    args.extend_from_slice(leases);
    Reply::of(shard.call_aside(&SCRIPTS.extend, &notifications, args).await?)
}
