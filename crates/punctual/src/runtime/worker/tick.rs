//! What comes before the run of a tick: its schedule is asked whether it still is one, the next tick is planted, and missed
//! ones are dealt with. A worker that dies between any two of these steps loses nothing as long as the tick has attempts left:
//! it comes back, and does them again; a tick that was planted is not planted twice, since its id follows from its time.

use std::{convert::Infallible, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    core::{
        cron::Misfire,
        error::{ErrorKind, Result},
        job::JobRecord,
        limits::ID_MEMORY,
        schedule::{Schedule, Tick},
    },
    runtime::{
        client::{
            Client,
            schedule::{CHANGED, REMOVED, before, is_passing},
        },
        handler::Call,
        repeat::Pauses,
        worker::handlers::{NO_HANDLER, UNKNOWN_KIND},
    },
    store::{LockOp, LockReply, ToolOp, ToolReply, Verdict},
};

/// How often one of all workers looks whether a schedule has no tick that waits, and up to a tenth more, so that many of them don't ask
/// for the lock at once; up to twice as long where that worker died. It comes of what somebody does by hand, of a tick that died in its last attempt before it planted another, and of
/// a queue that had no room.
const LOOK_EVERY: Duration = Duration::from_mins(10);
/// The lock of the worker that looks, which it keeps until the next look is due.
const LOOK_LOCK: &str = "$schedules";
/// Before a tick is tried again whose schedule could not be read, or whose successor could not be planted; doubled each time up
/// to the second.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_mins(10);
/// How the reason of such a pause begins.
const COULD_NOT: &str = "could not plant the next tick";

/// Sets the schedules of a worker. One that can't be is left alone, with a warning: the others must go on.
pub(crate) async fn set(client: &Client, schedules: &[(String, Schedule)]) -> Result<()> {
    for (name, schedule) in schedules {
        match client.schedule(name).put(schedule.clone()).await {
            Ok(_) => {}
            Err(error) if is_passing(&error) => return Err(error),
            Err(error) => {
                tracing::error!(target: "punctual", schedule = name, %error, "could not set the schedule");
            }
        }
    }
    Ok(())
}

/// Sets the schedules of a worker that starts, once; and lets the next tick of each one in the store wait: when it starts, and from
/// time to time if no other worker has just done so.
pub(crate) async fn keep_planted(
    client: &Client,
    schedules: &[(String, Schedule)],
    started: &CancellationToken,
) -> Infallible {
    let (mut pauses, mut is_set) = (Pauses::default(), false);
    loop {
        let kept = async {
            if !is_set {
                set(client, schedules).await?;
                started.cancel();
                let planted = client.plant_schedules().await?;
                is_set = true;
                return Ok(planted);
            }
            if is_ones_turn(client, fastrand::u128(..)).await? {
                client.plant_schedules().await
            } else {
                Ok(0)
            }
        };
        let pause = match kept.await {
            Ok(planted) => {
                if 0 < planted {
                    tracing::info!(target: "punctual", planted, "enqueued the ticks of schedules that had none waiting");
                }
                pauses.reset();
                LOOK_EVERY.mul_f64(1.0 + fastrand::f64() / 10.0)
            }
            Err(error) => {
                tracing::warn!(target: "punctual", %error, "could not set the schedules or enqueue their ticks, will try again");
                pauses.next()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Whether this worker is the one that looks now; then no other one does before the next look is due.
async fn is_ones_turn(client: &Client, owner: u128) -> Result<bool> {
    let acquire = LockOp::Acquire { name: LOOK_LOCK.to_owned(), owner, lease: LOOK_EVERY };
    let reply = client.store().tool(&ToolOp::Lock(acquire)).await?;
    Ok(matches!(reply, ToolReply::Lock(LockReply::Yours(_))))
}

/// Whether a job is a tick, before whose verdict its schedule is asked.
pub(crate) fn is_tick(job: &JobRecord) -> bool {
    Tick::of(job).is_some()
}

/// Whether a job may run; otherwise how its run ends. What is no tick may.
pub(crate) async fn admit(call: &Call) -> Result<(), Verdict> {
    let Some(tick) = Tick::of(call.record()) else { return Ok(()) };
    match plant_next(call, tick).await {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(Verdict::Cancel { reason: Some(reason.to_owned()) }),
        Err(error) => {
            let pause = AGAIN_MIN.saturating_mul(1 << call.record().snoozes.min(16)).min(AGAIN_MAX);
            tracing::warn!(target: "punctual", id = %call.id(), schedule = tick.name, %error, ?pause,
                "could not enqueue the next tick, will try again");
            let reason = Some(format!("{COULD_NOT}: {error}"));
            Err(Verdict::Snooze { after: pause, reason })
        }
    }
}

/// Plants the tick behind this one; answers why this one is not to run, if so.
async fn plant_next(call: &Call, tick: Tick<'_>) -> Result<Option<&'static str>> {
    let schedule = call.client().schedule(tick.name);
    let Some(is) = schedule.get().await? else { return Ok(Some(REMOVED)) };
    let (now, job, cron) = (call.client().store().now().await?, call.record(), &is.schedule.cron);
    // Failures and an operator's retry move the time of a job; so do crashes in a row, and a snooze of ours. One that was
    // planted late was due at once.
    let why = job.reason.as_deref().filter(|_| 0 < job.snoozes).unwrap_or_default();
    let unhandled = job.failures.iter().filter(|failure| failure.error.starts_with(NO_HANDLER)).count();
    // By a worker that did not know its kind: its successor was planted then.
    let is_held = why == UNKNOWN_KIND || 0 < unhandled;
    let is_put_off = is_held || why.starts_with(COULD_NOT);
    let is_in_time = job.run_at <= tick.at.max(job.created_at);
    let is_first_try =
        job.attempt == job.crashes + 1 + unhandled as u32 && (2 <= job.crashes || is_put_off || is_in_time);
    // Whether its handler has not begun, nor its successors.
    let is_new = is_first_try && job.crashes == 0;
    let plant = async |after| match schedule.plant(after).await {
        // It may be the one that takes the room: its successor has to wait until a worker looks again.
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::StoreFull) => {
            tracing::warn!(target: "punctual", id = %call.id(), schedule = tick.name, %error, "no next tick for now");
            Ok(())
        }
        planted => planted.map(drop),
    };
    if is.generation != tick.generation {
        plant(is_new.then(|| before(tick.at))).await?;
        return Ok(Some(CHANGED));
    }
    if !is_first_try && tick.at.after(ID_MEMORY) <= now {
        // Those behind it may be forgotten by now, and are not to run again.
        plant(None).await?;
        return Ok(None);
    }
    if cron.next(tick.at).is_none_or(|next| now < next) {
        plant(Some(tick.at)).await?;
        return Ok(None);
    }
    // Missed are those that never began; one that was given back at a shutdown counts as such.
    let (next_from, is_missed) = match cron.misfire() {
        // Its successors were held, too: the last that is due stands for all of them.
        Misfire::RunOnce if is_new && is_held => (before(cron.first_to_run(tick.at, now, 1)), true),
        Misfire::RunOnce => (now, false),
        Misfire::Skip => (now, is_new),
        Misfire::RunAll { at_most } => {
            let first = cron.first_to_run(tick.at, now, at_most);
            let is_left_out = tick.at < first;
            (if is_left_out { before(first) } else { tick.at }, is_left_out && is_new)
        }
    };
    plant(Some(next_from)).await?;
    Ok(is_missed.then_some("missed"))
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::runtime::testing::TestQueue;

    #[tokio::test]
    async fn one_worker_looks_for_all_of_them() {
        let t = TestQueue::new();
        for turn in 0..3 {
            let mut looks = 0;
            for worker in 0..5 {
                looks += u32::from(is_ones_turn(&t.client, turn * 5 + worker).await.unwrap());
            }
            assert_eq!(looks, 1);
            t.advance(LOOK_EVERY);
        }
    }
}
