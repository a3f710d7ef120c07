//! `reserve` in one shard.

use std::time::Duration;

use crate::{
    core::{
        error::{Error, Result},
        time::{Timestamp, ceil_ms},
    },
    store::{
        Batch, Lease, Reclaimed, Reserve, Reserved, Settlement, Verdict,
        redis::{
            notify::Hold,
            scripts::{SCRIPTS, bytes::Bytes, reply::Reply},
            sharded::shard::{Shard, digits},
            state::codec::{self, Record, Run},
            verbs::settle,
        },
    },
};

/// The answer to a reserve in one shard.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) batch: Batch,
    /// For each requested queue, the times for which this process woke when it asked, and the next one.
    pub(crate) wakes: Vec<(Hold, Wake)>,
}

/// When there may be work in a queue next, if ever, and whether this process must wake then. If not, two others do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wake {
    pub(crate) at: Option<Timestamp>,
    pub(crate) is_ours: bool,
}

pub(crate) async fn reserve(shard: &Shard, request: &Reserve) -> Result<Looked> {
    request.check()?;
    let (asked, holds) = (shard.asks(), holds(shard, request));
    let mut reply =
        shard.ask(&SCRIPTS.reserve, &notification_keys(shard, request), arguments(request, &holds)).await?;
    let clock = Now::read(shard, asked, &mut reply)?;
    shard.notify(&reply.bytes()?)?;
    looked(shard, &clock, &holds, &mut reply).await
}

/// Returns the times for which this process wakes, for the queues of a reserve.
pub(crate) fn holds(shard: &Shard, request: &Reserve) -> Vec<Hold> {
    #[cfg(feature = "testing")]
    if let Some(times) = crate::store::redis::lock(&shard.held).clone() {
        return request.queues.iter().map(|_| Hold::Times(times.clone())).collect();
    }
    request.queues.iter().map(|request| shard.notifier.hold(&request.queue)).collect()
}

/// What scripts return for "never", in ms; the same as in `lua/key_names.lua`.
pub(crate) const NEVER: u64 = 1 << 52;
/// How much later two clocks can seem that are read in milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// The time of an answer.
pub(crate) struct Now {
    pub(crate) now: Timestamp,
    /// What has passed since then, as far as known: of that millisecond, and on the way.
    passed: Duration,
}

impl Now {
    /// `asked`: when the question was sent, by [`Shard::asks`].
    pub(crate) fn read(shard: &Shard, asked: Timestamp, reply: &mut Reply) -> Result<Self> {
        let (now, into) = (reply.time()?, Duration::from_micros(reply.number()?));
        shard.learn_epoch(reply.number()? as u32);
        shard.learn_clock(asked, now);
        Ok(Self { now, passed: shard.server_now().since(now).saturating_sub(ROUNDING).max(into) })
    }
}

pub(crate) fn notification_keys(shard: &Shard, request: &Reserve) -> Vec<Vec<u8>> {
    request.queues.iter().map(|request| shard.notification_key(&request.queue)).collect()
}

/// Returns a reserve in the form that `lua/verbs/reserve/numbered.lua` takes.
pub(crate) fn arguments(request: &Reserve, holds: &[Hold]) -> Vec<Vec<u8>> {
    let mut args = vec![
        request.call.instance.to_be_bytes().to_vec(),
        digits(request.call.number),
        digits(request.n as u64),
        digits(request.lease.map_or(0, ceil_ms)),
        codec::worker(&request.worker),
        digits(request.company),
    ];
    for (each, hold) in request.queues.iter().zip(holds) {
        let hold = match hold {
            Hold::OwnTimer => b"-".to_vec(),
            Hold::FirstLook => b"?".to_vec(),
            Hold::Times(times) => {
                times.iter().flat_map(|at| at.as_ms().to_be_bytes()[1..].to_vec()).collect()
            }
        };
        // A share above the limit of a call means that limit.
        let share = each.share.min(request.n) as u64;
        args.extend([each.queue.clone().into_bytes(), digits(share), digits(each.at_most as u64), hold]);
    }
    args
}

/// Reads the answer of `lua/verbs/reserve/numbered.lua`. A job that cannot be read becomes dead, because no worker can run it. A
/// job with options that this version does not know waits for a worker of a newer version.
pub(crate) async fn looked(shard: &Shard, clock: &Now, holds: &[Hold], reply: &mut Reply) -> Result<Looked> {
    let mut reclaimed = Vec::new();
    let taken = reply.bytes()?;
    let mut taken = Bytes(&taken);
    while !taken.is_empty() {
        let fence = taken.number(8)?;
        let lease = Lease { job: taken.id()?, fence };
        let state = codec::state(taken.byte()?)?;
        reclaimed.push(Reclaimed { lease, queue: taken.chunk()?.text()?, state });
    }
    let next = reply.bytes()?;
    let next_due = if next.is_empty() {
        None
    } else {
        let next: u64 = String::from_utf8_lossy(&next).parse().unwrap_or_default();
        Some(Timestamp::saturating_from_ms(next).since(clock.now).saturating_sub(clock.passed))
    };
    let wakes = reply.bytes()?;
    let (mut times, mut wakes) = (Bytes(&wakes), Vec::with_capacity(holds.len()));
    for hold in holds {
        let (at, is_ours) = (times.number(7)?, times.byte()? != 0);
        let at = (at < NEVER).then(|| Timestamp::saturating_from_ms(at));
        wakes.push((hold.clone(), Wake { at, is_ours }));
    }
    let (mut jobs, mut corrupt, mut newer) = (Vec::new(), Vec::new(), Vec::new());
    while !reply.is_over() {
        let (id, run, rec) = (reply.bytes()?, reply.bytes()?, Record::read(reply)?);
        let (id, run) = (Bytes(&id).id()?, Run::decode(Bytes(&run))?);
        let history = if run.has_history { reply.bytes()? } else { Vec::new() };
        let Run { fence, until, lasts, .. } = run;
        let lease = Lease { job: id, fence };
        match codec::decode_with(id, &rec, &history, Some(run)) {
            Ok((job, true)) => jobs.push(Reserved { lease, until, lasts, job }),
            Ok((job, false)) => {
                tracing::warn!(target: "punctual", %id, kind = job.kind,
                    "a newer version wrote this job: it waits for a worker of that version");
                newer.push(lease);
            }
            Err(_) => corrupt.push(Settlement { lease, verdict: Verdict::Dead { error: "corrupt".into() } }),
        }
    }
    if !corrupt.is_empty() {
        settle::end(shard, &corrupt).await.map_err(Error::in_part)?;
    }
    if !newer.is_empty() {
        settle::hold(shard, &newer).await.map_err(Error::in_part)?;
    }
    let more = next_due.is_some_and(|next| next.is_zero());
    let batch = Batch { now: clock.now, jobs, more, next_due, reclaimed };
    Ok(Looked { batch, wakes })
}
