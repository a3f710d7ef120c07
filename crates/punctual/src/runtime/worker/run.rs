//! One run of a job: timeout, decoding, handler with panics caught, outcome, verdict.
//!
//! It uses no store, except for ticks of schedules, which enqueue the next tick first (`tick.rs`).

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::time::error::Elapsed;

use crate::{
    core::{
        job::{State, cut_error},
        lifecycle::{self, PANICKED, TIMED_OUT},
        limits::DELAY_MAX_MS,
        outcome::Outcome,
        time::{Timestamp, When},
    },
    runtime::handler::{Call, Erased, Stop},
    store::{EndReason, Verdict, check_result},
};

/// The pause of a job that this worker could not begin.
const NOT_STARTED_PAUSE: Duration = Duration::from_secs(1);
/// How long middleware can go on after its handler timed out.
const AFTER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a run that was asked to stop can go on.
#[derive(Clone, Copy)]
pub(crate) struct Graces {
    /// After the cancel of its job, or the loss of its lease.
    pub(crate) cancel: Duration,
    /// After its timeout.
    pub(crate) timeout: Duration,
}

/// Runs a job to its verdict.
///
/// A run is dropped at its next await in two cases: its timeout and the grace period for it are over, or a grace
/// period has passed since a cancel or the loss of its lease. A run that blocks its thread cannot be stopped. Its
/// outcome is what it returns in the end.
///
/// For a kind without a handler, the verdict is known. For such a tick it is applied only after the next tick was
/// enqueued.
pub(crate) async fn run(call: Call, handler: Result<Erased, Verdict>, graces: Graces) -> Verdict {
    let timeout = call.record().timeout;
    let run = async {
        #[cfg(feature = "cron")]
        // A tick that continued the trace of the one before would make a trace without an end.
        crate::runtime::trace::detached(super::tick::admit(&call)).await?;
        Ok::<_, Verdict>(handler?(call.clone()).await)
    };
    let ended = tokio::select! {
        biased;
        ended = guard(Box::pin(run), &call, timeout + graces.timeout + AFTER_TIMEOUT, Duration::ZERO) => ended,
        () = out_of_grace(&call, graces.cancel) => return Verdict::Cancel { reason: None },
    };
    let outcome = match ended {
        Ok(Ok(outcome)) | Err(outcome) => outcome,
        Ok(Err(verdict)) => return verdict,
    };
    let outcome = match outcome {
        // If the transaction was committed, this changes nothing.
        Outcome::Done | Outcome::DoneWith(_) if call.settled().is_some() => {
            Outcome::retry("its handler settled it in a transaction that was not committed")
        }
        outcome => outcome,
    };
    verdict(outcome, &call, fastrand::f64())
}

/// Makes outcomes of a handler's timeout and panic, so that the middleware around it sees them.
pub(super) fn guarded(handler: Erased, grace: Duration) -> Erased {
    Arc::new(move |call| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let (timeout, run) = (call.record().timeout, handler(call.clone()));
            guard(run, &call, timeout, grace).await.unwrap_or_else(|outcome| outcome)
        })
    })
}

/// Runs a future to its end, or returns the outcome of its timeout or panic.
async fn guard<F: Future>(
    run: F,
    call: &Call,
    timeout: Duration,
    grace: Duration,
) -> Result<F::Output, Outcome> {
    match catch_panic(in_time(run, call, timeout, grace)).await {
        Ok(Ok(ended)) => Ok(ended),
        Ok(Err(_elapsed)) => Err(Outcome::retry(format_args!("{TIMED_OUT}{timeout:?}"))),
        Err(panic) => Err(Outcome::retry(format_args!("{PANICKED}{panic}"))),
    }
}

/// Drives a run until it ends, or until its time and its grace period are over.
async fn in_time<F: Future>(
    run: F,
    call: &Call,
    timeout: Duration,
    grace: Duration,
) -> Result<F::Output, Elapsed> {
    let mut run = pin!(run);
    match tokio::time::timeout(timeout, &mut run).await {
        Err(_) if !grace.is_zero() => {
            call.stop(Stop::TimedOut);
            tokio::time::timeout(grace, run).await
        }
        ended => ended,
    }
}

/// Returns when a stopped run has used up its grace period. (A worker's shutdown has its own.)
async fn out_of_grace(call: &Call, grace: Duration) {
    call.cancel_token().cancelled().await;
    match call.stop_reason() {
        Some(Stop::Cancelled | Stop::LeaseLost) => tokio::time::sleep(grace).await,
        Some(Stop::Shutdown | Stop::TimedOut) | None => std::future::pending().await,
    }
}

/// Turns an outcome into a verdict. The caller draws the jitter: `random` is in `[0, 1)`.
pub(crate) fn verdict(outcome: Outcome, call: &Call, random: f64) -> Verdict {
    let job = call.record();
    match outcome {
        Outcome::Done => Verdict::Ack,
        Outcome::DoneWith(result) => match check_result(&result) {
            Ok(()) => Verdict::AckWith { result },
            Err(error) => Verdict::Dead { error: error.to_string() },
        },
        // A run that was asked to stop and stops with an error has obeyed. That is no failure.
        Outcome::Retry { .. } if call.stop_reason() == Some(Stop::Cancelled) => {
            Verdict::Cancel { reason: None }
        }
        Outcome::Retry { after, error } => {
            let pause = after.unwrap_or_else(|| job.backoff.delay(job.attempt, random));
            Verdict::Retry { at: When::In(bounded(pause)), error }
        }
        Outcome::RetryAfter { after, error } => {
            let pause = bounded(after.min(call.retry_after_max()));
            Verdict::RetryAfter { at: When::In(pause), error }
        }
        Outcome::Snooze(pause) => Verdict::Snooze { after: bounded(pause), reason: None },
        Outcome::NotStarted(why) => {
            call.lacks(&why);
            // With a reason, it keeps what is known of its crashes. After the pause, other jobs of this worker have been tried.
            Verdict::Snooze { after: NOT_STARTED_PAUSE, reason: Some(cut_error(&why).to_owned()) }
        }
        Outcome::Dead(error) => Verdict::Dead { error },
        Outcome::Cancel => Verdict::Cancel { reason: None },
    }
}

/// Returns the expected result of a verdict, for a settlement whose answer was lost.
pub(crate) fn expected(verdict: &Verdict, call: &Call) -> (State, Option<EndReason>) {
    let job = call.record();
    let run = lifecycle::Run {
        id: job.id,
        attempt: job.attempt,
        expired_leases: job.expired_leases,
        snoozes: job.snoozes,
        max_attempts: job.max_attempts,
        cancel_requested: call.stop_reason() == Some(Stop::Cancelled),
        company: false,
        lasts_ms: 0,
    };
    let next = lifecycle::settled(&run, verdict, Timestamp::default());
    (next.state, next.overruled)
}

/// Returns why a job is dead: by this verdict, or for the reason that the store reported.
pub(crate) fn dead_reason(verdict: &Verdict, overruled: Option<EndReason>) -> String {
    match (overruled, verdict) {
        (Some(reason), _) => reason.name().to_owned(),
        (None, Verdict::Dead { error }) => cut_error(error).to_owned(),
        (None, _) => String::new(),
    }
}

/// Bounds a pause to what every store accepts.
fn bounded(pause: Duration) -> Duration {
    pause.min(Duration::from_millis(DELAY_MAX_MS))
}

/// Runs a future to its end, or returns the message of its panic.
pub(crate) async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(words(&*panic))),
    })
    .await
}

fn words(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "of another type than text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_dead_for_what_its_store_says_else_for_what_its_verdict_says() {
        let dead = Verdict::Dead { error: "never".to_owned() };
        assert_eq!(dead_reason(&dead, None), "never");
        assert_eq!(dead_reason(&dead, Some(EndReason::Corrupt)), "corrupt");
    }
}
