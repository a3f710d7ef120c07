//! What happens before a tick runs: its schedule is read, the next tick is enqueued, and missed ticks are handled.
//!
//! A worker that dies between two of these steps loses nothing while the tick has attempts left: the tick runs again
//! and repeats them. A tick is not enqueued twice, because its id is derived from its time.

use std::{convert::Infallible, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    core::{
        cron::Misfire,
        error::{ErrorKind, Result},
        job::JobRecord,
        lifecycle::{LEASE_EXPIRED, TIMED_OUT},
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
        worker::handlers::NO_HANDLER,
    },
    store::{LockOp, LockReply, ToolOp, ToolReply, Verdict, why::UNKNOWN_KIND},
};

/// How often one of all workers checks whether a schedule has no waiting tick. Up to a tenth is added, so that
/// workers do not request the lock all at once. If that worker died, the interval can double. A tick is missing if a
/// person removed it, if it died in its last attempt before it enqueued the next, or if its queue was full.
const LOOK_EVERY: Duration = Duration::from_mins(10);
/// The lock of the worker that checks. It is kept until the next check is due.
const LOOK_LOCK: &str = "$schedules";
/// The pause before a tick is tried again if its schedule could not be read or its successor could not be enqueued.
/// It doubles each time, up to the second value.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_mins(10);
/// The start of the reason of such a pause.
const COULD_NOT: &str = "could not enqueue the next tick";

/// Sets the schedules of a worker. One that fails is skipped with a warning.
pub(crate) async fn set(client: &Client, schedules: &[(String, Schedule)]) -> Result<()> {
    for (name, schedule) in schedules {
        match client.schedule(name).put(schedule.clone()).await {
            Ok(_) => {}
            Err(error) if is_passing(&error) => return Err(error),
            Err(error) => {
                tracing::error!(target: "punctual", schedule = name, error = %error.with_causes(), "could not set the schedule");
            }
        }
    }
    Ok(())
}

/// Sets the schedules of a worker once, then keeps the next tick of every schedule in the store enqueued.
///
/// It checks at the start, and from time to time unless another worker has just done so. `moved` returns when the store has become another
/// one; then it begins again.
pub(crate) async fn keep_enqueued(
    client: &Client,
    schedules: &[(String, Schedule)],
    started: &CancellationToken,
    moved: impl AsyncFn(),
) -> Infallible {
    let (mut pauses, mut is_set) = (Pauses::default(), false);
    // One for all checks, so that one that failed has the lock when it is repeated.
    let owner = fastrand::u128(..);
    loop {
        let kept = async {
            if !is_set {
                set(client, schedules).await?;
                started.cancel();
                let enqueued = client.enqueue_ticks().await?;
                is_set = true;
                return Ok(enqueued);
            }
            if is_ones_turn(client, owner).await? { client.enqueue_ticks().await } else { Ok(0) }
        };
        let pause = match kept.await {
            Ok(enqueued) => {
                if 0 < enqueued {
                    tracing::info!(target: "punctual", enqueued, "enqueued the ticks of schedules that had none waiting");
                }
                pauses.reset();
                LOOK_EVERY.mul_f64(1.0 + fastrand::f64() / 10.0)
            }
            Err(error) if error.kind() == ErrorKind::Forbidden && (is_set || schedules.is_empty()) => {
                tracing::debug!(target: "punctual", %error, "the token is for some queues only: other workers keep the schedules");
                LOOK_EVERY
            }
            Err(error) => {
                tracing::warn!(target: "punctual", error = %error.with_causes(), "could not set the schedules or enqueue their ticks, will try again");
                pauses.next()
            }
        };
        tokio::select! {
            biased;
            () = moved() => is_set = false,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Returns whether this worker is the one that checks now. No other worker does before the next check is due.
async fn is_ones_turn(client: &Client, owner: u128) -> Result<bool> {
    let acquire = LockOp::Acquire { name: LOOK_LOCK.to_owned(), owner, lease: LOOK_EVERY };
    let reply = client.store().tool(&ToolOp::Lock(acquire)).await?;
    Ok(matches!(reply, ToolReply::Lock(LockReply::Yours(_))))
}

/// Returns whether a job is a tick.
pub(crate) fn is_tick(job: &JobRecord) -> bool {
    Tick::of(job).is_some()
}

/// Returns whether a job may run, or else the verdict on it. A job that is no tick may run.
pub(crate) async fn admit(call: &Call) -> Result<(), Verdict> {
    let Some(tick) = Tick::of(call.record()) else { return Ok(()) };
    match enqueue_next(call, tick).await {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(Verdict::Cancel { reason: Some(reason.to_owned()) }),
        Err(error) => {
            let pause = AGAIN_MIN.saturating_mul(1 << call.record().snoozes.min(16)).min(AGAIN_MAX);
            tracing::warn!(target: "punctual", id = %call.id(), schedule = tick.name, error = %error.with_causes(), ?pause,
                "could not enqueue the next tick, will try again");
            let reason = Some(format!("{COULD_NOT}: {error}"));
            Err(Verdict::Snooze { after: pause, reason })
        }
    }
}

/// Enqueues the tick after this one; returns the reason if this one must not run.
async fn enqueue_next(call: &Call, tick: Tick<'_>) -> Result<Option<&'static str>> {
    let schedule = call.client().schedule(tick.name);
    let Some(is) = schedule.get().await? else { return Ok(Some(REMOVED)) };
    let (now, job, cron) = (call.client().store().now().await?, call.record(), &is.schedule.cron);
    // The `run_at` of a tick can have moved: by failures, an operator's retry, expired leases in a row, or a snooze
    // of this function. A tick that was enqueued late was due at once.
    let why = job.reason.as_deref().filter(|_| 0 < job.snoozes).unwrap_or_default();
    let unhandled = job.failures.iter().filter(|failure| failure.error.starts_with(NO_HANDLER)).count();
    // Held by a worker that did not know its kind. Its successor was enqueued then.
    let is_held = why == UNKNOWN_KIND || 0 < unhandled;
    let is_put_off = is_held || why.starts_with(COULD_NOT);
    let is_in_time = job.run_at <= tick.at.max(job.created_at);
    let is_first_try = job.attempt == job.expired_leases + 1 + unhandled as u32
        && (2 <= job.expired_leases || is_put_off || is_in_time);
    // Whether neither its handler nor its successors have started.
    let is_new = is_first_try && job.expired_leases == 0;
    let enqueue_next = async |after| match schedule.enqueue_next(after).await {
        // This tick itself may take up the room. Its successor is enqueued by a later check.
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::StoreFull) => {
            tracing::warn!(target: "punctual", id = %call.id(), schedule = tick.name, error = %error.with_causes(), "no next tick for now");
            Ok(())
        }
        enqueued => enqueued.map(drop),
    };
    if is.generation != tick.generation {
        enqueue_next(is_new.then(|| before(tick.at))).await?;
        return Ok(Some(CHANGED));
    }
    if !is_first_try && tick.at.after(ID_MEMORY) <= now {
        // The ids of the ticks after it may be forgotten by now, and those ticks must not run again.
        enqueue_next(None).await?;
        return Ok(None);
    }
    if cron.next(tick.at).is_none_or(|next| now < next) {
        enqueue_next(Some(tick.at)).await?;
        return Ok(None);
    }
    // Missed ticks are those that never started, also one that was released at a shutdown.
    let (next_from, is_missed) = match cron.misfire() {
        // Its successors were held, too. The last one that is due stands for all of them.
        Misfire::RunOnce if is_new && is_held => (before(cron.first_to_run(tick.at, now, 1)), true),
        Misfire::RunOnce => (now, false),
        Misfire::Skip => (now, is_new),
        Misfire::RunAll { at_most } => {
            let first = cron.first_to_run(tick.at, now, at_most);
            let is_left_out = tick.at < first;
            // It enqueued its successor when it was held, or before its handler failed, so it need not pass over all that have run
            // since if one waits. A lease that expired and a timeout prove nothing: they can have come before that.
            let is_of_handler = |error: &str| error != LEASE_EXPIRED && !error.starts_with(TIMED_OUT);
            let was_admitted = is_held || job.failures.iter().any(|failure| is_of_handler(&failure.error));
            if was_admitted && schedule.waits_for(&is).await?.is_some() {
                return Ok((is_left_out && is_new).then_some("missed"));
            }
            (if is_left_out { before(first) } else { tick.at }, is_left_out && is_new)
        }
    };
    enqueue_next(Some(next_from)).await?;
    Ok(is_missed.then_some("missed"))
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    };

    use super::*;
    use crate::{
        runtime::testing::TestQueue,
        store::faulty::{Fault, FaultyStore},
    };

    /// It is repeated soon, and not locked out by its own lock.
    #[tokio::test(start_paused = true)]
    async fn a_check_that_failed_is_repeated() {
        let (t, looks) = (TestQueue::new(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&looks);
        // The check at the start is made without a lock.
        let faulty = FaultyStore::new(Arc::clone(t.client.store()), move |verb| match verb {
            "doc" if counted.fetch_add(1, SeqCst) == 1 => Fault::Before,
            _ => Fault::Pass,
        });
        let (client, started) = (Client::new(Arc::new(faulty)), CancellationToken::new());
        let check = keep_enqueued(&client, &[], &started, std::future::pending::<()>);
        tokio::time::timeout(LOOK_EVERY.mul_f64(1.2), check).await.unwrap_err();
        assert_eq!(looks.load(SeqCst), 3);
    }

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
