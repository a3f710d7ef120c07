//! The figures of the overview, and failures.

use std::sync::Arc;

use axum::{
    extract::State,
    http::Uri,
    response::{IntoResponse as _, Response},
};
use futures_util::try_join;
use punctual::{
    JobId, Timestamp,
    store::{Counts, Pause, wire::Nothing},
    toolkit::LastHour,
};
use serde::Serialize;

use super::query;
use crate::{
    api::{Api, Problem, calls, json},
    failures::{Failures, Group},
    figures::Figures,
};

/// The figures as they are shown.
#[derive(Serialize)]
struct Stats<'a> {
    now_ms: Timestamp,
    counts: Counts,
    queues: Vec<QueueView<'a>>,
    /// Whether there are more queues than these.
    more: bool,
    last_hour: &'a LastHour,
}

/// A queue without its settings.
#[derive(Serialize)]
struct QueueView<'a> {
    name: &'a str,
    counts: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<&'a Pause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_due_at_ms: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_blocked_at_ms: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opens_at_ms: Option<Timestamp>,
}

/// Returns the figures of the overview. One reading serves all callers for a second.
pub(super) async fn stats(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let Nothing {} = query::read(&uri, &[])?;
    let seen = api.watcher.seen().unwrap_or_default();
    match api.stats.get(seen, read(&api)).await {
        Ok(stats) => Ok(json(stats)),
        Err(problem) => Ok(problem.as_ref().into_response()),
    }
}

async fn read(api: &Api) -> Result<Vec<u8>, Problem> {
    let (figures, counts) = try_join!(Figures::read(&api.client), api.client.count(None))?;
    let queues = figures.queues.iter().map(|info| QueueView {
        name: &info.name,
        counts: info.counts,
        paused: info.settings.paused.as_ref(),
        oldest_due_at_ms: info.oldest_due,
        oldest_blocked_at_ms: info.oldest_blocked,
        opens_at_ms: info.opens_at,
    });
    calls::write(&Stats {
        now_ms: figures.now,
        counts,
        queues: queues.collect(),
        more: figures.queues.len() < figures.names,
        last_hour: &figures.hour,
    })
}

/// Failures as they are shown.
#[derive(Serialize)]
struct Page<'a> {
    now_ms: Timestamp,
    groups: Vec<GroupView<'a>>,
    /// The number of all groups.
    found: usize,
    jobs: u64,
    searched: u64,
    total: u64,
    complete: bool,
}

#[derive(Serialize)]
struct GroupView<'a> {
    kind: &'a str,
    fingerprint: &'a str,
    dead: u64,
    retrying: u64,
    first_at_ms: Timestamp,
    last_at_ms: Timestamp,
    last_job: JobId,
    last_error: &'a str,
    filter: String,
}

impl<'a> From<&'a Group> for GroupView<'a> {
    fn from(group: &'a Group) -> Self {
        Self {
            kind: &group.kind,
            fingerprint: &group.fingerprint.text,
            dead: group.dead,
            retrying: group.retrying,
            first_at_ms: group.first,
            last_at_ms: group.last,
            last_job: group.sample,
            last_error: &group.error,
            filter: group.filter(),
        }
    }
}

/// Returns dead and retrying jobs, grouped by what their errors have in common.
pub(super) async fn failures(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let Nothing {} = query::read(&uri, &[])?;
    let failures = Failures::read(&api.client).await?;
    Ok(json(calls::write(&Page {
        now_ms: failures.now,
        groups: failures.groups.iter().map(GroupView::from).collect(),
        found: failures.found,
        jobs: failures.jobs,
        searched: failures.searched,
        total: failures.total,
        complete: !failures.is_part,
    })?))
}
