//! What jobs do when they run.

use std::{future::pending, sync::Arc, time::Duration};

use punctual::{Ctx, JobRecord, Outcome, worker::Stop};
use punctual_check::{
    Recorder,
    event::{Hex, What},
};
use tokio::time::sleep;

use crate::{
    fleet::Scene,
    plan::{Behaviour, JobPlan, TICK},
    process::Life,
};

/// The shortest pause that a run can ask for.
const SNOOZE: Duration = Duration::from_millis(100);
/// A pause that is longer, so that one who forgets it is seen.
const NAP: Duration = Duration::from_millis(700);

/// The state of a worker's handlers.
pub(crate) struct Hand {
    pub(crate) scene: Arc<Scene>,
    pub(crate) life: Life,
    pub(crate) recorder: Arc<Recorder>,
    /// The name of the process.
    pub(crate) process: String,
}

/// Runs a job, until its end or that of its process.
pub(crate) async fn handle(record: JobRecord, ctx: Ctx<Hand>) -> Outcome {
    let hand = ctx.state();
    let (id, fence) = (ctx.id(), ctx.fence());
    hand.recorder.note(What::Start { id, fence, sum: Hex::fingerprint(&record.payload.bytes) });
    let n = serde_json::from_slice(&record.payload.bytes).unwrap_or(u32::MAX);
    if n == TICK || hand.scene.plan.publication(n).is_some() {
        hand.recorder.note(What::End { id, fence });
        return Outcome::Done;
    }
    let Some(job) = hand.scene.plan.job(n) else {
        return Outcome::Dead("the plan has no such job".to_owned());
    };
    let outcome = tokio::select! {
        biased;
        () = hand.life.over() => return Outcome::Done,
        outcome = behave(job, &ctx) => outcome,
    };
    hand.recorder.note(What::End { id, fence });
    match outcome {
        Ended::With(outcome) => outcome,
        // Nothing is printed for a panic that is resumed.
        Ended::InPanic => std::panic::resume_unwind(Box::new("a planned panic")),
    }
}

enum Ended {
    With(Outcome),
    InPanic,
}

async fn behave(job: &JobPlan, ctx: &Ctx<Hand>) -> Ended {
    let outcome = match job.handler {
        Behaviour::Slow(ms) => {
            tokio::select! {
                biased;
                () = sleep(Duration::from_millis(ms)) => Outcome::Done,
                outcome = stopped(ctx) => outcome,
            }
        }
        Behaviour::Deaf(ms) => {
            sleep(Duration::from_millis(ms)).await;
            Outcome::Done
        }
        Behaviour::Hang => pending().await,
        Behaviour::Fail(times) if ctx.attempt() <= times => Outcome::retry("a planned failure"),
        Behaviour::Panic(times) if ctx.attempt() <= times => return Ended::InPanic,
        Behaviour::Snooze(times) if ctx.record().snoozes < times => Outcome::Snooze(NAP),
        Behaviour::Dead => Outcome::Dead("given up as planned".to_owned()),
        Behaviour::Poison if ctx.state().scene.poison(&ctx.state().process) => pending().await,
        Behaviour::Quick
        | Behaviour::Fail(_)
        | Behaviour::Panic(_)
        | Behaviour::Snooze(_)
        | Behaviour::Poison => Outcome::Done,
    };
    Ended::With(outcome)
}

/// Waits until the run is asked to stop; returns what it then says.
async fn stopped(ctx: &Ctx<Hand>) -> Outcome {
    ctx.cancel_token().cancelled().await;
    match ctx.stop_reason() {
        Some(Stop::Cancelled) => Outcome::Cancel,
        Some(Stop::Shutdown) => Outcome::Snooze(SNOOZE),
        _ => Outcome::retry("asked to stop"),
    }
}
