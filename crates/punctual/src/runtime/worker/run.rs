//! One run of a job: timeout → decode → handler, a panic caught → outcome → verdict. Touches no store, but for ticks of
//! schedules, which plant the next one first (`tick.rs`).

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
        lifecycle,
        limits::DELAY_MAX_MS,
        outcome::Outcome,
        time::{Timestamp, When},
    },
    runtime::handler::{Call, Erased, Stop},
    store::{EndReason, Verdict, check_result},
};

/// How long the middleware of a run may go on behind the end of its handler by time.
const AFTER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a run may go on that was asked to stop.
#[derive(Clone, Copy)]
pub(crate) struct Graces {
    /// Behind the cancel of its job, or the loss of its lease.
    pub(crate) cancel: Duration,
    /// Behind its timeout.
    pub(crate) timeout: Duration,
}

/// Runs a job to its verdict. A run past its timeout, and the grace for it, is dropped where it awaits, and so is one that goes on for a grace
/// behind the cancel of its job or the loss of its lease; one that blocks its thread instead can't be stopped, and whatever it
/// says in the end is its outcome.
///
/// Of a kind without a handler the verdict is known; of a tick it is only asked for once the next one is planted.
pub(crate) async fn run(call: Call, handler: Result<Erased, Verdict>, graces: Graces) -> Verdict {
    let timeout = call.record().timeout;
    let run = async {
        #[cfg(feature = "cron")]
        super::tick::admit(&call).await?;
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
        // If it was committed, this changes nothing any more.
        Outcome::Done | Outcome::DoneWith(_) if call.settled().is_some() => {
            Outcome::retry("its handler settled it in a transaction that was not committed")
        }
        outcome => outcome,
    };
    verdict(outcome, &call, fastrand::f64())
}

/// Lets a handler end by its job's timeout, and the grace for it, or by a panic as by any other outcome, for the middleware around
/// it.
pub(super) fn guarded(handler: Erased, grace: Duration) -> Erased {
    Arc::new(move |call| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let (timeout, run) = (call.record().timeout, handler(call.clone()));
            guard(run, &call, timeout, grace).await.unwrap_or_else(|outcome| outcome)
        })
    })
}

/// Runs something to its end; else says what its end by time or panic means.
async fn guard<F: Future>(
    run: F,
    call: &Call,
    timeout: Duration,
    grace: Duration,
) -> Result<F::Output, Outcome> {
    match catch_panic(in_time(run, call, timeout, grace)).await {
        Ok(Ok(ended)) => Ok(ended),
        Ok(Err(_elapsed)) => Err(Outcome::retry(format_args!("timeout after {timeout:?}"))),
        Err(panic) => Err(Outcome::retry(format_args!("panic: {panic}"))),
    }
}

/// Drives a run until it ends or its time is over, and the grace in which it may stop.
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

/// Comes back when a run has had its time to stop. (A worker that shuts down has a grace of its own.)
async fn out_of_grace(call: &Call, grace: Duration) {
    call.cancel_token().cancelled().await;
    match call.stop_reason() {
        Some(Stop::Cancelled | Stop::LeaseLost) => tokio::time::sleep(grace).await,
        Some(Stop::Shutdown | Stop::TimedOut) | None => std::future::pending().await,
    }
}

/// What an outcome means for the job. Jitter is drawn by the caller, `random` in `[0, 1)`.
pub(crate) fn verdict(outcome: Outcome, call: &Call, random: f64) -> Verdict {
    let job = call.record();
    match outcome {
        Outcome::Done => Verdict::Ack,
        Outcome::DoneWith(result) => match check_result(&result) {
            Ok(()) => Verdict::AckWith { result },
            Err(error) => Verdict::Dead { error: error.to_string() },
        },
        // Whoever was asked to stop and stops with an error obeyed; that is no failure.
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
        Outcome::Dead(error) => Verdict::Dead { error },
        Outcome::Cancel => Verdict::Cancel { reason: None },
    }
}

/// Where a verdict takes its job, for a settlement whose answer was lost.
pub(crate) fn expected(verdict: &Verdict, call: &Call) -> (State, Option<EndReason>) {
    let job = call.record();
    let run = lifecycle::Run {
        id: job.id,
        attempt: job.attempt,
        crashes: job.crashes,
        snoozes: job.snoozes,
        max_attempts: job.max_attempts,
        cancel_requested: call.stop_reason() == Some(Stop::Cancelled),
        company: false,
        lasts_ms: 0,
    };
    let next = lifecycle::settled(&run, verdict, Timestamp::default());
    (next.state, next.overruled)
}

/// Why a job is dead that ended by this verdict, or for another reason.
pub(crate) fn dead_reason(verdict: &Verdict, overruled: Option<EndReason>) -> String {
    match (overruled, verdict) {
        (Some(reason), _) => reason.name().to_owned(),
        (None, Verdict::Dead { error }) => cut_error(error).to_owned(),
        (None, _) => String::new(),
    }
}

/// A pause that every store accepts.
fn bounded(pause: Duration) -> Duration {
    pause.min(Duration::from_millis(DELAY_MAX_MS))
}

/// Runs a future to its end, or to the words of its panic.
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
