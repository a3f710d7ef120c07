//! `take` in one shard.

use crate::{
    core::{error::Result, job::JobRecord, time::ceil_ms},
    store::{
        Take,
        redis::{
            scripts::{SCRIPTS, bytes::Bytes},
            sharded::shard::{Shard, digits},
            state::codec::{self, Record},
        },
    },
};

/// Takes with one script. `so_far`: the bytes that the call has from others, if any. Also returns whether groups had
/// as many services as one script gives, so that there may be more.
pub(crate) async fn take(shard: &Shard, take: &Take, so_far: Option<u64>) -> Result<(Vec<JobRecord>, bool)> {
    take.check()?;
    let args = vec![
        take.queue.clone().into_bytes(),
        digits(take.n as u64),
        // Longer than all of time.
        digits(ceil_ms(take.older_than).min(1 << 52)),
        so_far.map_or_else(Vec::new, digits),
    ];
    let mut reply = shard.ask(&SCRIPTS.take, &[shard.notification_key(&take.queue)], args).await?;
    shard.learn_epoch(reply.number()? as u32);
    shard.notify(&reply.bytes()?)?;
    let has_more = !reply.bytes()?.is_empty();
    let mut jobs = Vec::new();
    while !reply.is_over() {
        let (id, rec, history) = (reply.bytes()?, Record::read(&mut reply)?, reply.bytes()?);
        let id = Bytes(&id).id()?;
        jobs.push(codec::decode(id, &rec, &history, &[]).unwrap_or_else(|_| codec::husk(id, &rec, &history)));
    }
    Ok((jobs, has_more))
}
