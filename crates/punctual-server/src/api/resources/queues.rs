//! Queues.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    http::{StatusCode, Uri},
    response::Response,
};
use punctual::store::{QueueOp, QueueReply};

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

/// Takes a step on a queue, and returns the queue as it is then.
async fn step(api: &Api, scope: &Scope, name: &str, op: &QueueOp) -> Result<Response, Problem> {
    scope.queue(name, op)?;
    let QueueReply::Info(info) = api.client.store().queue(name, op).await? else {
        let detail = "there is no such queue";
        return Err(Problem::new(StatusCode::NOT_FOUND, "queue_unknown", detail));
    };
    Ok(json(calls::write(&info)?))
}
