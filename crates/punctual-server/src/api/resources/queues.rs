//! Queues.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use punctual::{
    limits::BATCH_MAX,
    store::{QueueInfo, QueueOp, QueueReply, Replace, wire::Nothing},
};
use serde::{Deserialize, Serialize};

use super::{
    ATTEMPTS,
    change::{self, Change},
    headers, query,
};
use crate::api::{Api, Problem, Scope, calls, json};

/// Returns names of queues.
pub(super) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    Ok(json(calls::names(&api, &query::read(&uri, &[])?).await?))
}

/// Returns a queue. The version of its settings is the `ETag`.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
) -> Result<Response, Problem> {
    step(&api, &scope, &name, &QueueOp::Show).await
}

/// The body of a pause, of a queue or a schedule.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PauseBody {
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
}

/// Pauses a queue (default: in the name of the caller).
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("queues", body).await?;
    let pause: PauseBody = calls::read(&body.bytes)?;
    let by = pause.by.unwrap_or_else(|| scope.name().to_owned());
    let op = QueueOp::Pause { by, reason: pause.reason.unwrap_or_default() };
    step(&api, &scope, &name, &op).await
}

/// Ends the pause of a queue.
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("queues", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    step(&api, &scope, &name, &QueueOp::Resume).await
}

/// Changes the given settings of a queue. A queue that does not exist is created, as by any change of settings.
pub(super) async fn change(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("queues", body).await?;
    let change: Change = calls::read(&body.bytes)?;
    let allowed = headers::versions(&headers)?;
    scope.queue(&name, &QueueOp::Set(Box::default()))?;
    let store = api.client.store();
    let mut seen = match store.queue(&name, &QueueOp::Show).await? {
        QueueReply::Info(info) => Some(info.settings),
        _ => None,
    };
    for _ in 0..ATTEMPTS {
        if let Some(allowed) = &allowed {
            headers::allowed("queue", allowed, seen.as_ref().map(change::version))?;
        }
        let of = seen.take().unwrap_or_default();
        let replace = Replace { new: change.of(&of)?, seen: of };
        match calls::step(&api, &scope, &name, &QueueOp::Replace(Box::new(replace))).await? {
            QueueReply::Info(info) => return shown(&info),
            QueueReply::Conflict(info) => seen = Some(info.settings),
            QueueReply::Unknown | QueueReply::Purged { .. } => return Err(unknown()),
        }
    }
    Err(Problem::new(StatusCode::CONFLICT, "conflict", "the settings changed at each attempt")
        .with_hint("repeat the request"))
}

/// The body of a purge.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Purge {
    limit: Option<usize>,
}

/// What a purge did.
#[derive(Serialize)]
struct Purged {
    deleted: u64,
    more: bool,
}

/// Deletes waiting jobs of a queue (default: up to 1,000).
pub(super) async fn purge(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("queues", body).await?;
    let Purge { limit } = calls::read(&body.bytes)?;
    let op = QueueOp::Purge(limit.unwrap_or(BATCH_MAX));
    match calls::step(&api, &scope, &name, &op).await? {
        QueueReply::Purged { deleted, more } => Ok(json(calls::write(&Purged { deleted, more })?)),
        _ => Err(unknown()),
    }
}

/// Takes a step on a queue, and returns the queue as it is then.
async fn step(api: &Api, scope: &Scope, name: &str, op: &QueueOp) -> Result<Response, Problem> {
    let QueueReply::Info(info) = calls::step(api, scope, name, op).await? else { return Err(unknown()) };
    shown(&info)
}

fn shown(info: &QueueInfo) -> Result<Response, Problem> {
    Ok((headers::etag(change::version(&info.settings)), json(calls::write(info)?)).into_response())
}

fn unknown() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "queue_unknown", "there is no such queue")
}
