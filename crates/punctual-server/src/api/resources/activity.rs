//! The activity log.

use std::sync::Arc;

use axum::{extract::State, http::Uri, response::Response};
use punctual::{Error, JobId, Timestamp, limits::BATCH_MAX};
use serde::{Deserialize, Serialize};

use super::query;
use crate::{
    activity::{Entry, Via},
    api::{Api, Problem, Scope, calls, json},
    operations::shown,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    limit: usize,
    cursor: Option<String>,
}

/// An entry as a caller may see it.
#[derive(Serialize)]
struct View<'a> {
    at_ms: Timestamp,
    by: &'a str,
    token: Option<&'a str>,
    via: Via,
    action: &'a str,
    times: u64,
    done: u64,
    requested: u64,
    skipped: u64,
    jobs: &'a [JobId],
    queue: Option<&'a str>,
    document: Option<&'a str>,
    operation: Option<&'a str>,
    operation_action: Option<&'a str>,
    planned: Option<u64>,
    filter: Option<&'a str>,
    reason: Option<&'a str>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Views<'a> {
    entries: Vec<View<'a>>,
    next: Option<String>,
}

impl<'a> View<'a> {
    fn new(of: &'a Entry, hides_payloads: bool) -> Self {
        Self {
            at_ms: of.at_ms,
            by: &of.actor.name,
            token: of.actor.token.as_deref(),
            via: of.via,
            action: &of.action,
            times: of.times,
            done: of.done,
            requested: of.requested,
            skipped: of.skipped,
            jobs: &of.jobs,
            queue: of.queue.as_deref(),
            document: of.document.as_deref(),
            operation: of.operation.as_deref(),
            operation_action: of.act.as_deref(),
            planned: of.planned,
            filter: of.filter.as_deref().and_then(|filter| shown(filter, hides_payloads)),
            reason: of.reason.as_deref(),
            error: of.error.as_deref(),
        }
    }
}

/// Returns entries, the newest first (default: 50).
pub(super) async fn list(State(api): State<Arc<Api>>, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let Wanted { limit, cursor } = query::read(&uri, &[("limit", 50)])?;
    if limit == 0 || BATCH_MAX < limit {
        return Err(Error::invalid(format!("limit is not within 1 and {BATCH_MAX}")).into());
    }
    let found = api.activity.read(cursor.as_deref(), limit).await?;
    let entries = found.entries.iter().map(|entry| View::new(entry, scope.hides_payloads())).collect();
    Ok(json(calls::write(&Views { entries, next: found.next })?))
}
