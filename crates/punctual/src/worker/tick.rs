//! What comes before the run of a tick: its schedule is asked whether it still is one, the next tick is planted, and missed
//! ones are dealt with. A crash between any two of these steps loses nothing: the job comes back, and does them again; a tick
//! that was planted is not planted twice, since its id follows from its time.

use std::{convert::Infallible, time::Duration};

use crate::{
    client::{
        Client,
        schedule::{CHANGED, REMOVED},
    },
    cron::{Cron, Misfire},
    error::Result,
    handler::Call,
    repeat::Pauses,
    schedule::{Schedule, Tick},
    store::Verdict,
    time::Timestamp,
};

/// How often a worker looks whether a schedule has no tick that waits, which only comes of what somebody does by hand.
const LOOK_EVERY: Duration = Duration::from_mins(10);
/// Before a tick is tried again whose schedule could not be read, or whose successor could not be planted.
const AGAIN: Duration = Duration::from_secs(1);

/// Sets the schedules of a worker, and lets the next tick of each one in the store wait.
pub(crate) async fn set_and_plant(client: &Client, schedules: &[(String, Schedule)]) -> Result<()> {
    for (name, schedule) in schedules {
        client.schedule(name).put(schedule.clone()).await?;
    }
    let planted = client.plant_schedules().await?;
    if 0 < planted {
        tracing::info!(target: "punctual", planted, "ticks planted of schedules that had none waiting");
    }
    Ok(())
}

/// Does so when the worker starts, and from time to time.
pub(crate) async fn keep_planted(client: &Client, schedules: &[(String, Schedule)]) -> Infallible {
    let mut pauses = Pauses::default();
    loop {
        let pause = match set_and_plant(client, schedules).await {
            Ok(()) => {
                pauses.reset();
                LOOK_EVERY
            }
            Err(error) => {
                tracing::warn!(target: "punctual", %error, "could not set or plant the schedules, will try again");
                pauses.next()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Whether a job may run; otherwise how its run ends. What is no tick may.
pub(crate) async fn admit(call: &Call) -> Result<(), Verdict> {
    let Some(tick) = Tick::of(call.headers()) else { return Ok(()) };
    match plant_next(call, tick).await {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(Verdict::Cancel { reason: Some(reason.to_owned()) }),
        Err(error) => {
            tracing::warn!(target: "punctual", id = %call.id(), schedule = tick.name, %error,
                "could not plant the next tick, will try again");
            Err(Verdict::Snooze {
                after: AGAIN,
                reason: Some(format!("could not plant the next tick: {error}")),
            })
        }
    }
}

/// Plants the tick behind this one; answers why this one is not to run, if so.
async fn plant_next(call: &Call, tick: Tick<'_>) -> Result<Option<&'static str>> {
    let schedule = call.client().schedule(tick.name);
    let Some(is) = schedule.get().await? else { return Ok(Some(REMOVED)) };
    if is.generation != tick.generation {
        schedule.plant(None).await?;
        return Ok(Some(CHANGED));
    }
    let (now, cron) = (call.client().store().now().await?, &is.schedule.cron);
    let (next_from, missed) = next_from(tick.at, now, call, cron);
    schedule.plant(Some(next_from)).await?;
    Ok(missed.then_some("missed"))
}

/// The instant behind which the next tick is looked for, and whether this one is left out.
fn next_from(tick: Timestamp, now: Timestamp, call: &Call, cron: &Cron) -> (Timestamp, bool) {
    if cron.next(tick).is_none_or(|next| now < next) {
        return (tick, false);
    }
    // A tick that was tried before is not missed by coming again. One that was planted late was due at once.
    let is_first_try = call.attempt() == 1 && call.run_at() <= tick.max(call.record().created_at);
    match cron.misfire() {
        Misfire::RunOnce => (now, false),
        Misfire::Skip => (now, is_first_try),
        Misfire::RunAll { at_most } => {
            let first = cron.first_to_run(tick, now, at_most);
            let is_left_out = tick < first && is_first_try;
            let before = |t: Timestamp| Timestamp::saturating_from_ms(t.as_ms().saturating_sub(1));
            (if tick < first { before(first) } else { tick }, is_left_out)
        }
    }
}
