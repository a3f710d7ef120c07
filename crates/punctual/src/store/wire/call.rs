//! The body of each call, and what its answer says.

use serde::{Deserialize, de::Error as _};
use serde_json::{from_slice, to_vec};

use super::{
    ActBody, ActReply, ActionView, BatchBody, CountBody, DoctorReply, EnqueueBody, EnqueueReply, ExtendBody,
    ExtendReply, GetBody, HolderBody, IdentityReply, JobReply, JobsReply, ListBody, NewJobView, Nothing,
    NowReply, PageBody, QueueCallBody, QueuesBody, QueuesReply, ReserveBody, SettleBody, SettleReply,
    SettlementView, SweepBody, TakeBody, WAIT_MAX, WaitBody, WaitReply,
};
use crate::{
    core::job::JobRecord,
    store::{Acted, Batch, Call, Page, Reply, Settled},
};

type Result<T> = serde_json::Result<T>;

/// Writes the body of a call.
pub(crate) fn body(call: &Call<'_>) -> Result<Vec<u8>> {
    match call {
        Call::Identity | Call::Now | Call::Doctor => to_vec(&Nothing {}),
        Call::Enqueue { call, jobs, partial } => to_vec(&EnqueueBody {
            instance: Some(call.instance.into()),
            call: Some(call.number),
            partial: *partial,
            jobs: jobs.iter().map(NewJobView::new).collect(),
        }),
        Call::Reserve(want) => to_vec(&ReserveBody::from(*want)),
        Call::Extend(beats) => to_vec(&ExtendBody { leases: beats.iter().collect::<Vec<_>>() }),
        Call::Settle { batch, then } => to_vec(&SettleBody {
            settle: batch.iter().map(SettlementView::from).collect(),
            then: then.map(ReserveBody::from),
        }),
        Call::Take(take) => to_vec(&TakeBody::from(*take)),
        Call::Wait { queues, at_most } => {
            to_vec(&WaitBody { queues: queues.to_vec(), at_most: (*at_most).min(WAIT_MAX) })
        }
        Call::Get(id) => to_vec(&GetBody { id: *id }),
        Call::Holder(key) => to_vec(&HolderBody { key: (*key).clone() }),
        Call::List(list) => to_vec(&ListBody::from(*list)),
        Call::Count(queue) => to_vec(&CountBody { queue: queue.map(str::to_owned) }),
        Call::Upcoming(upcoming) => to_vec(upcoming),
        Call::Act { targets, action } => {
            to_vec(&ActBody { targets: targets.to_vec(), action: ActionView::from(*action) })
        }
        Call::Queue { name, op } => to_vec(&QueueCallBody { name: (*name).to_owned(), op: (*op).clone() }),
        Call::Queues(after) => to_vec(&QueuesBody { after: after.map(str::to_owned) }),
        Call::Doc(op) => to_vec(op),
        Call::Tool(op) => to_vec(op),
        Call::Sweep(limit) => to_vec(&SweepBody { limit: *limit }),
        Call::Audit(audit) => to_vec(audit),
    }
}

/// Reads the answer to a call, and for an enqueue the shard for which to make the next ids.
pub(crate) fn reply(call: &Call<'_>, bytes: &[u8]) -> Result<(Reply, Option<u16>)> {
    let reply = match call {
        Call::Identity => from_slice::<IdentityReply>(bytes)?.identity.into(),
        Call::Now => from_slice::<NowReply>(bytes)?.now_ms.into(),
        Call::Enqueue { jobs, partial, .. } => {
            let EnqueueReply { results, shard } = from_slice(bytes)?;
            if !partial && results.iter().any(Option::is_none) {
                return Err(incomplete());
            }
            return Ok((whole(results, jobs.len())?.into(), Some(shard)));
        }
        Call::Reserve(_) => Batch::from(from_slice::<BatchBody<JobRecord>>(bytes)?).into(),
        Call::Extend(beats) => whole(from_slice::<ExtendReply>(bytes)?.results, beats.len())?.into(),
        Call::Settle { batch: settlements, .. } => {
            let SettleReply { results, batch } = from_slice::<SettleReply<JobRecord>>(bytes)?;
            let settled = whole(results, settlements.len())?.into_iter().map(Settled::from).collect();
            Reply::Settled((settled, batch.map(Batch::from)))
        }
        Call::Take(_) => from_slice::<JobsReply<JobRecord>>(bytes)?.jobs.into(),
        Call::Wait { .. } => {
            let WaitReply {} = from_slice(bytes)?;
            Reply::Woken(())
        }
        Call::Get(_) | Call::Holder(_) => from_slice::<JobReply<JobRecord>>(bytes)?.job.into(),
        Call::List(_) => {
            let PageBody { now_ms, jobs, next, searched, total } = from_slice::<PageBody<JobRecord>>(bytes)?;
            Page { now: now_ms, jobs, next, searched, total }.into()
        }
        Call::Count(_) => as_is(bytes, Reply::Counts)?,
        Call::Upcoming(_) => as_is(bytes, Reply::Histogram)?,
        Call::Act { targets, .. } => {
            let results = whole(from_slice::<ActReply>(bytes)?.results, targets.len())?;
            Reply::Acted(results.into_iter().map(Acted::from).collect())
        }
        Call::Queue { .. } => as_is(bytes, Reply::Queue)?,
        Call::Queues(_) => from_slice::<QueuesReply>(bytes)?.names.into(),
        Call::Doc(_) => as_is(bytes, Reply::Doc)?,
        Call::Tool(_) => as_is(bytes, Reply::Tool)?,
        Call::Sweep(_) => as_is(bytes, Reply::Swept)?,
        Call::Audit(_) => as_is(bytes, Reply::Audited)?,
        Call::Doctor => from_slice::<DoctorReply>(bytes)?.checks.into(),
    };
    Ok((reply, None))
}

fn as_is<'a, T: Deserialize<'a>>(bytes: &'a [u8], of: impl FnOnce(T) -> Reply) -> Result<Reply> {
    from_slice(bytes).map(of)
}

/// Checks that an answer has a result for each item of its call.
fn whole<T>(results: Vec<T>, n: usize) -> Result<Vec<T>> {
    if results.len() == n { Ok(results) } else { Err(incomplete()) }
}

fn incomplete() -> serde_json::Error {
    serde_json::Error::custom("it does not have a result for each item")
}
