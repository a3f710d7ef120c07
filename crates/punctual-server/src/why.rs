//! Why a job is not running: facts of the job and its queue.

use punctual::{JobRecord, State, Timestamp, limits::POISON_LIMIT, store::QueueInfo};

use crate::dashboard::text::{count, counted, due, relative, whole};

/// The reason of a job that was snoozed because its worker has no handler for its kind.
const UNKNOWN_KIND: &str = "unknown_kind";
/// The reason of a job that its worker gave back, because other jobs on their last chance ran there.
const LAST_CHANCE: &str = "last_chance";

/// Returns what keeps a job from running, or how it ended; the first reason is the most important one.
pub(crate) fn reasons(job: &JobRecord, queue: Option<&QueueInfo>, now: Timestamp) -> Vec<String> {
    match job.state {
        State::Waiting => waiting(job, queue, now),
        State::Running => running(job, now),
        State::Done | State::Dead | State::Cancelled => vec![ended(job, now)],
    }
}

fn at(instant: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", whole(instant), relative(instant, now))
}

fn waiting(job: &JobRecord, queue: Option<&QueueInfo>, now: Timestamp) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(pause) = queue.and_then(|queue| queue.settings.paused.as_ref()) {
        let since = at(Timestamp::saturating_from_ms(pause.since_ms), now);
        reasons.push(format!("Queue {} was paused by {}, {since}: {}", job.queue, pause.by, pause.reason));
    }
    if job.expires_at.is_some_and(|expires_at| expires_at <= now) {
        reasons.push("The job expired before it started, and will be cancelled.".to_owned());
    }
    if job.reason.as_deref() == Some(UNKNOWN_KIND) {
        reasons.push(format!("The worker that reserved the job has no handler for kind {}.", job.kind));
    } else if job.reason.as_deref() == Some(LAST_CHANCE) {
        if now < job.run_at {
            reasons.push(format!(
                "Held: after {} in a row, the job runs apart from others like it, and its worker gave it back.",
                counted(job.expired_leases.into(), "expired lease")
            ));
        }
    } else if 0 < job.snoozes {
        let why = job.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        reasons.push(format!(
            "Its handler snoozed the job {} in a row{why}.",
            counted(job.snoozes.into(), "time")
        ));
    }
    if let (true, Some(failure)) = (1 < job.attempt, job.failures.last()) {
        reasons.push(format!("Attempt {} failed: {}", failure.attempt, failure.error));
    }
    if now < job.run_at {
        reasons.push(format!("The job is due {}.", at(job.run_at, now)));
        return reasons;
    }
    let (held, is_paused) =
        (held_back(job, queue, now), queue.is_some_and(|of| of.settings.paused.is_some()));
    if let (true, false, Some(queue)) = (held.is_empty(), is_paused, queue) {
        reasons.push(format!(
            "The job has been due since {}. Nothing holds it back: it waits for a free slot of a worker of queue {}, which has {} due and {} running jobs.",
            at(job.run_at, now),
            job.queue,
            due(queue.counts.due),
            count(queue.counts.running)
        ));
    }
    reasons.extend(held);
    reasons
}

/// Returns the limits that hold back a due job.
fn held_back(job: &JobRecord, queue: Option<&QueueInfo>, now: Timestamp) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(queue) = queue {
        let running = queue.counts.running;
        if let Some(most) = queue.settings.concurrency.filter(|most| u64::from(*most) <= running) {
            reasons.push(format!(
                "Queue {} runs {}, its limit of {most}.",
                job.queue,
                counted(running, "job")
            ));
        }
        if let Some(opens_at) = queue.opens_at {
            reasons.push(format!(
                "Queue {} starts nothing until {}, because of its rate, or because a run asked for a pause.",
                job.queue,
                at(opens_at, now)
            ));
        }
    }
    if job.blocked && reasons.is_empty() {
        let key = job
            .concurrency
            .as_ref()
            .map(|of| format!("its concurrency key {:?} (at most {} at once)", of.key, of.limit));
        let group = job.group.as_ref().map(|group| format!("a limit of its group {group:?}"));
        let by = key.into_iter().chain(group).collect::<Vec<_>>().join(", or ");
        reasons.push(format!("The job is due, but blocked by {by}."));
    }
    reasons
}

fn running(job: &JobRecord, now: Timestamp) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(running) = &job.running {
        reasons.push(format!(
            "Worker {} runs attempt {} of {}. Its lease lasts until {}.",
            running.worker,
            job.attempt,
            job.max_attempts,
            at(running.until, now)
        ));
        if POISON_LIMIT <= job.expired_leases + 1 {
            reasons.push(format!(
                "After {} in a row, the job runs apart from others like it. If some run in its worker, it is held there for some seconds, and \
                 then given back.",
                counted(job.expired_leases.into(), "expired lease")
            ));
        }
        if running.until <= now {
            reasons.push("Its lease has expired. The next reserve reclaims the job.".to_owned());
        }
    }
    if job.cancel_requested {
        reasons.push("A cancel was requested. The worker gets the request at its next heartbeat.".to_owned());
    }
    reasons
}

fn ended(job: &JobRecord, now: Timestamp) -> String {
    let when = job.finished_at.map(|finished_at| format!(", {}", at(finished_at, now))).unwrap_or_default();
    let why = match (job.state, job.reason.as_deref()) {
        (State::Dead, Some("attempts")) => {
            let failed = if job.max_attempts == 1 {
                "Its only attempt failed".to_owned()
            } else {
                format!("All {} attempts failed", job.max_attempts)
            };
            return format!("{failed}{when}.");
        }
        (State::Dead, Some("crashes")) => {
            "The job is dead: its lease expired too often in a row, because its workers died".to_owned()
        }
        (State::Dead, Some("snoozes")) => "The job is dead: it was snoozed too often".to_owned(),
        (State::Dead, Some(reason)) => format!("The job is dead: {reason}"),
        (State::Dead, None) => "The job is dead".to_owned(),
        (State::Cancelled, Some("expired")) => "The job expired before it started".to_owned(),
        (State::Cancelled, Some("cancelled") | None) => "The job was cancelled".to_owned(),
        (State::Cancelled, Some(reason)) => format!("The job was cancelled: {reason}"),
        _ => "The job is done".to_owned(),
    };
    format!("{why}{when}.")
}
