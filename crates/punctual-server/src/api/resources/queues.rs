//! Queues.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{StatusCode, Uri},
    response::Response,
};
use punctual::store::{QueueOp, QueueReply, wire::Nothing};
use serde::Deserialize;

use super::query;
use crate::api::{Api, Problem, Scope, calls, json};

/// Returns names of queues.
pub(super) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    Ok(json(calls::names(&api, &query::read(&uri, &[])?).await?))
}

/// Returns a queue.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
) -> Result<Response, Problem> {
    step(&api, &scope, &name, &QueueOp::Show).await
}

/// The body of a pause.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Pause {
    by: Option<String>,
    reason: Option<String>,
}

/// Pauses a queue (default: in the name of the caller).
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("queues", body).await?;
    let pause: Pause = calls::read(&body.bytes)?;
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

/// Takes a step on a queue, and returns the queue as it is then.
async fn step(api: &Api, scope: &Scope, name: &str, op: &QueueOp) -> Result<Response, Problem> {
    scope.queue(name, op)?;
    let QueueReply::Info(info) = api.client.store().queue(name, op).await? else {
        let detail = "there is no such queue";
        return Err(Problem::new(StatusCode::NOT_FOUND, "queue_unknown", detail));
    };
    Ok(json(calls::write(&info)?))
}
