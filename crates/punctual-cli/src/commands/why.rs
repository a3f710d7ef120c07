//! `punctual why ID`: why is it not running yet?

use std::io::Write as _;

use punctual::{JobId, JobRecord, State, Status, Timestamp, store::QueueInfo};
use serde::Serialize;

use super::{Session, show::find};
use crate::{
    errors::Result,
    output::{clean, counted, grouped, json},
    times::{relative, wall},
};

/// Kept with a job that was put off because its worker has no handler for its kind.
const UNKNOWN_KIND: &str = "unknown_kind";

#[derive(Debug, clap::Args)]
pub(crate) struct Why {
    /// The job's id, or at least six digits of its beginning or end.
    id: String,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    id: JobId,
    status: Status,
    reasons: Vec<Reason>,
}

/// One reason; the first weighs most.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Reason {
    /// In a word, for programs.
    code: &'static str,
    text: String,
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

pub(crate) async fn run(session: &mut Session, args: &Why) -> Result {
    let job = find(session, &args.id).await?;
    let queue = session.client.queue(&job.queue).show().await?;
    let now = session.now().await?;
    let at = |t: Timestamp| format!("{} ({})", wall(t, now, &session.zone), relative(t, now));
    let answer =
        Answer { id: job.id, status: job.status(now), reasons: reasons(&job, queue.as_ref(), now, at) };
    if session.format.is_json() {
        return Ok(json(&mut session.out, &answer)?);
    }
    for (i, reason) in answer.reasons.iter().enumerate() {
        if i == 0 {
            let (style, status) = (session.paint.status(answer.status), answer.status);
            write!(session.out, "{style}{status}{style:#}:")?;
        } else {
            write!(session.out, "  also ")?;
        }
        writeln!(session.out, " {}", clean(&reason.text))?;
    }
    for hint in answer.reasons.iter().filter_map(|reason| reason.hint.as_ref()) {
        writeln!(session.out, "  try    {}", clean(hint))?;
    }
    Ok(())
}

/// All that keeps a job from running, or why it does not run any more.
fn reasons(
    job: &JobRecord,
    queue: Option<&QueueInfo>,
    now: Timestamp,
    at: impl Fn(Timestamp) -> String,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |code, text: String, hint: Option<String>| reasons.push(Reason { code, text, hint });
    let id = job.id;
    match job.state {
        State::Waiting => {
            if let Some(pause) = queue.and_then(|queue| queue.settings.paused.as_ref()) {
                let since = at(Timestamp::saturating_from_ms(pause.since_ms));
                let text =
                    format!("queue {} is paused (by {}, {since}, {:?})", job.queue, pause.by, pause.reason);
                add("paused", text, Some(format!("punctual queue resume {}", job.queue)));
            }
            if job.expires_at.is_some_and(|expires_at| expires_at <= now) {
                add("expired", "it expired before it started, and will end cancelled".into(), None);
            }
            if job.reason.as_deref() == Some(UNKNOWN_KIND) {
                let text = format!("the worker that met it has no handler for kind {}", job.kind);
                let hint = format!(
                    "start a worker for queue {} that handles it, then punctual run-now {id}",
                    job.queue
                );
                add(UNKNOWN_KIND, text, Some(hint));
            } else if 0 < job.snoozes {
                let why = job.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                add(
                    "snoozed",
                    format!(
                        "its handler put it off, {} in a row{why}",
                        counted(u64::from(job.snoozes), "time")
                    ),
                    None,
                );
            }
            if let (true, Some(failure)) = (1 < job.attempt, job.failures.last()) {
                add("failed", format!("attempt {} failed: {}", failure.attempt, failure.error), None);
            }
            if let (true, Some(of)) = (job.blocked, &job.concurrency) {
                let runs = if of.limit == 1 {
                    "another job of it runs".to_owned()
                } else {
                    format!("{} of it run, its limit", counted(of.limit.into(), "job"))
                };
                add(
                    "concurrency_key",
                    format!("it is due, but its concurrency key {:?} is taken: {runs}", of.key),
                    Some(format!(
                        "punctual ls 'queue:{} state:running concurrency:\"{}\"'    shows who has it",
                        job.queue, of.key
                    )),
                );
            }
            if let Some(queue) = queue
                && job.run_at <= now
            {
                let (name, running) = (&job.queue, queue.counts.running);
                if let Some(most) = queue.settings.concurrency.filter(|most| u64::from(*most) <= running) {
                    let text = format!("queue {name} runs {}, its limit of {most}", counted(running, "job"));
                    add("limit", text, Some(format!("punctual queue limit {name} --concurrency N|none")));
                }
                if let Some(opens_at) = queue.opens_at {
                    let why = match queue.settings.rate {
                        Some(_) => "by its rate, or since a run asked for a pause",
                        None => "since a run asked for a pause",
                    };
                    add("closed", format!("queue {name} starts nothing until {}, {why}", at(opens_at)), None);
                }
            }
            if now < job.run_at {
                add(
                    "not_due",
                    format!("it is due {}", at(job.run_at)),
                    Some(format!("punctual run-now {id}")),
                );
            } else if let (true, Some(queue)) = (reasons.is_empty(), queue) {
                let (due, running) = (queue.counts.due, queue.counts.running);
                let text = format!(
                    "it is due since {}; queue {} has {} due and {} running jobs",
                    at(job.run_at),
                    job.queue,
                    grouped(due),
                    grouped(running)
                );
                let hint = if running == 0 {
                    format!("is there a worker? punctual work --exec … -q {}", job.queue)
                } else {
                    format!("more slots or workers for queue {}", job.queue)
                };
                reasons.push(Reason { code: "ready", text, hint: Some(hint) });
            }
        }
        State::Running => {
            if let Some(running) = &job.running {
                let text = format!(
                    "worker {} runs it, attempt {}/{}, lease until {}",
                    running.worker,
                    job.attempt,
                    job.max_attempts,
                    at(running.until)
                );
                add("running", text, None);
                if running.until <= now {
                    add("lease_over", "its lease is over: the next reserve takes it back".into(), None);
                }
            }
            if job.cancel_requested {
                add(
                    "cancel_requested",
                    "its cancel was asked for; its worker hears of it at the next heartbeat".into(),
                    None,
                );
            }
        }
        State::Done => {
            add("done", ended("it is done", job, &at), Some(format!("punctual retry {id}    runs it again")));
        }
        State::Dead => {
            let why = match job.reason.as_deref() {
                Some("attempts") => format!("all {} attempts failed", job.max_attempts),
                Some("crashes") => "its workers died with it, time after time".to_owned(),
                Some("snoozes") => "it was put off too often".to_owned(),
                Some(reason) => reason.to_owned(),
                None => "it was given up on".to_owned(),
            };
            add("dead", ended(&why, job, &at), Some(format!("punctual retry {id}")));
            if let Some(failure) = job.failures.last() {
                add("failed", format!("attempt {} failed: {}", failure.attempt, failure.error), None);
            }
        }
        State::Cancelled => {
            let why = match job.reason.as_deref() {
                Some("expired") => "it expired before it started".to_owned(),
                Some("cancelled") | None => "it was called off".to_owned(),
                Some(reason) => format!("it was called off: {reason}"),
            };
            add("cancelled", ended(&why, job, &at), Some(format!("punctual retry {id}")));
        }
    }
    reasons
}

fn ended(why: &str, job: &JobRecord, at: impl Fn(Timestamp) -> String) -> String {
    match job.finished_at {
        Some(finished_at) => format!("{why}, {}", at(finished_at)),
        None => why.to_owned(),
    }
}
