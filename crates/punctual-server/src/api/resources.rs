//! Resources: jobs and queues by their address. Thin layers over what the calls use.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Path, State},
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, ETAG},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use punctual::{
    JobId,
    store::{QueueOp, QueueReply, wire::JobView},
};

use super::{Api, Problem, Scope, calls::write};
use crate::gate::Caller;

/// Returns the routes of the resources.
pub(super) fn routes() -> Router<Arc<Api>> {
    let wrong = async || {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", "the route does not have this method")
            .with_hint("read it with GET, and make calls for all else")
    };
    Router::new()
        .route("/api/v1/jobs/{id}", get(job).fallback(wrong))
        .route("/api/v1/queues/{name}", get(queue).fallback(wrong))
}

/// Returns a job. Its version is the `ETag`.
async fn job(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
) -> Result<Response, Problem> {
    let scope = Scope::of(caller.map(|Extension(caller)| caller));
    let id: JobId = id.parse()?;
    let Some(job) = scope.job(api.client.get(id).await?) else {
        return Err(Problem::not_found(format!("there is no job {id}")));
    };
    let body = write(&JobView::exact(&job, api.client.store().now().await?))?;
    let mut response = ([(CONTENT_TYPE, "application/json")], body).into_response();
    let version = HeaderValue::try_from(format!("\"{}\"", job.version));
    response.headers_mut().extend(version.ok().map(|version| (ETAG, version)));
    Ok(response)
}

/// Returns a queue.
async fn queue(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    caller: Option<Extension<Caller>>,
) -> Result<Response, Problem> {
    let scope = Scope::of(caller.map(|Extension(caller)| caller));
    scope.queue(&name, &QueueOp::Show)?;
    let QueueReply::Info(info) = api.client.store().queue(&name, &QueueOp::Show).await? else {
        let detail = "there is no such queue";
        return Err(Problem::new(StatusCode::NOT_FOUND, "queue_unknown", detail));
    };
    Ok(([(CONTENT_TYPE, "application/json")], write(&info)?).into_response())
}
