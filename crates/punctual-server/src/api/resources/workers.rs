//! Workers.

use std::sync::Arc;

use axum::{body::Body, extract::State, http::Uri, response::Response};
use punctual::{
    Timestamp,
    store::wire::Nothing,
    worker::{WorkerInfo, WorkerOrder},
};
use serde::{Deserialize, Serialize};

use super::query;
use crate::{
    api::{Api, Problem, Scope, calls, json},
    gate::Right,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    after: Option<String>,
}

/// A page of workers.
#[derive(Serialize)]
struct Page {
    now_ms: Timestamp,
    workers: Vec<WorkerInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Returns the workers that serve a queue of the caller.
pub(super) async fn list(State(api): State<Arc<Api>>, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let After { after } = query::read(&uri, &[])?;
    let mut page = api.client.workers(after.as_deref()).await?;
    page.workers.retain(|info| scope.sees(info));
    let workers = page.workers.into_iter().map(|info| scope.worker(info)).collect();
    Ok(json(calls::write(&Page { now_ms: page.now, workers, next: page.next })?))
}

/// Orders a worker, if the caller may operate all its queues. A worker that it cannot see is not there.
pub(super) async fn order(
    api: &Api,
    scope: &Scope,
    id: &str,
    body: Body,
    order: WorkerOrder,
) -> Result<Response, Problem> {
    let body = api.room.read("workers", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    let not_found = || Problem::not_found(format!("there is no worker {id}"));
    let info = api.client.worker(id).await?.filter(|info| scope.sees(info)).ok_or_else(not_found)?;
    scope.of_worker(Right::Operate, &info)?;
    let made = api.client.order_worker(id, order).await;
    if !matches!(made, Ok(None)) {
        api.activity.note(scope.entry(order.name()).document(&format!("worker/{id}")), &made);
    }
    let info = made?.ok_or_else(not_found)?;
    Ok(json(calls::write(&info)?))
}
