//! Duplicating a job: a new job like it.

use std::time::Duration;

use axum::{
    extract::{Path, Request},
    response::Redirect,
};
use punctual::{
    JobId, JobOptions, JobRecord, NewJob, OnConflict, Unique, When,
    store::{Enqueued, wire},
};

use super::{fault::Fault, fields::Fields, job::read, text::span, view::View};
use crate::{gate::Right, operations::Picked};

/// The header that makes a job of a schedule one of its ticks.
const GENERATION: &str = "schedule_generation";

/// What the page of a job offers.
pub(super) struct Offer {
    /// The id of the copy, so that a form that is sent twice makes one.
    pub(super) id: JobId,
    pub(super) is_unique: bool,
    pub(super) is_tick: bool,
    /// How long after its enqueue the job was due, if that is known and not at once.
    pub(super) delay: Option<String>,
}

impl Offer {
    pub(super) fn new(view: &View, job: &JobRecord) -> Self {
        let is_tick = is_tick(job);
        Self {
            id: view.client.make_id(),
            is_unique: job.unique.is_some() && !is_tick,
            is_tick,
            delay: delay(job).map(span),
        }
    }
}

/// Enqueues a copy. Makes at most three calls to the store.
pub(super) async fn duplicate(
    board: View,
    Path(id): Path<String>,
    request: Request,
) -> Result<Redirect, Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    let job = read(&board, id).await?;
    board.check(Right::Operate, Some(&job.queue))?;
    if board.hides().is_some() {
        return Err(Fault::Unseen);
    }
    let delay = match fields.get("due") {
        "now" => Some(Duration::ZERO),
        "later" => delay(&job),
        _ => None,
    };
    let (Ok(picked), Ok(id), Some(delay)) =
        (fields.get("job").parse::<Picked>(), fields.get("copy").parse(), delay)
    else {
        return Err(Fault::Form("The form is not complete.".to_owned(), "Load the page again.".to_owned()));
    };
    let back = |id: JobId, did: &str, other: Option<JobId>| -> Result<Redirect, Fault> {
        let other = other.map(|id| id.to_string()).unwrap_or_default();
        Ok(Redirect::to(&board.links.query(&format!("jobs/{id}"), &[("did", did), ("other", &other)])))
    };
    if !picked.is_version_of(&job) {
        return back(job.id, "stale", None);
    }
    let mut copy = copy(&job, id, delay);
    // With or without its unique key, it is in the same shard, so the same form makes one copy.
    wire::derive_id(&mut copy, &id.to_string(), false)?;
    let id = copy.id;
    match push(&board, copy.clone()).await? {
        Enqueued::Full => back(job.id, "full", None),
        // Another job holds the key. The store says so in the step that would have enqueued the copy.
        Enqueued::Duplicate(holder) if holder.id != id => {
            match push(&board, NewJob { unique: None, ..copy }).await? {
                Enqueued::Full => back(job.id, "full", None),
                done => back(done.id().unwrap_or(id), "copy-without-key", Some(holder.id)),
            }
        }
        // Its id is one of this form alone.
        Enqueued::Conflict { .. } => back(job.id, "stale", None),
        done => back(done.id().unwrap_or(id), "copy", None),
    }
}

async fn push(view: &View, job: NewJob) -> Result<Enqueued, Fault> {
    Ok(view.client.push(vec![job]).await?.pop().unwrap_or(Enqueued::Full))
}

/// Returns a new job like this one. A copy of a tick is none: it must not take the place of the next one.
fn copy(job: &JobRecord, id: JobId, delay: Duration) -> NewJob {
    let unique = job.unique.clone().filter(|_| !is_tick(job));
    let mut headers = job.headers.clone();
    headers.remove(GENERATION);
    let options = JobOptions {
        priority: Some(job.priority),
        max_attempts: Some(job.max_attempts),
        backoff: Some(job.backoff),
        timeout: Some(job.timeout),
        lease: job.lease,
    };
    // As long after the due time as for the job itself.
    let expires = job.expires_at.map(|at| at.since(job.run_at)).filter(|rest| !rest.is_zero());
    let mut copy = NewJob::new(id, job.kind.clone(), job.queue.clone(), job.payload.clone());
    copy.run_at = if delay.is_zero() { When::Now } else { When::In(delay) };
    copy.expires_at = expires.map(|rest| When::In(delay.saturating_add(rest)));
    copy.unique = unique.map(|unique| Unique { on_conflict: OnConflict::Keep, version: None, ..unique });
    (copy.options, copy.group, copy.concurrency) = (options, job.group.clone(), job.concurrency.clone());
    (copy.tags, copy.headers) = (job.tags.clone(), headers);
    copy
}

fn is_tick(job: &JobRecord) -> bool {
    job.headers.contains_key(GENERATION)
}

/// Returns how long after its enqueue a job was due. A later attempt is due at a time of its own.
fn delay(job: &JobRecord) -> Option<Duration> {
    Some(job.run_at.since(job.created_at)).filter(|delay| job.attempt == 1 && !delay.is_zero())
}
