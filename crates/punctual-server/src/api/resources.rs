//! Resources: jobs and queues by their address. Thin layers over what the calls use.

mod headers;
mod jobs;
mod query;
mod queues;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::Response,
    routing::get,
};
use punctual::store::Upcoming;

use super::{Api, Problem, Scope, call, calls, json, no_method};

/// Returns the routes of the resources.
pub(super) fn routes() -> Router<Arc<Api>> {
    let reads = async || no_method("read it with GET, and make calls for all else");
    let jobs = async || no_method("read jobs with GET, and enqueue one with POST");
    // The call of this name has the same address.
    let posted = |name: &'static str| {
        move |api: State<Arc<Api>>, scope: Scope, body: Body| call(api, Path(name.to_owned()), scope, body)
    };
    let both = async || no_method("read it with GET, or make the call with POST");
    Router::new()
        .route("/api/v1/jobs", get(jobs::list).post(jobs::enqueue).fallback(jobs))
        .route("/api/v1/jobs/{id}", get(jobs::show).fallback(reads))
        .route("/api/v1/queues", get(queues::list).post(posted("queues")).fallback(both))
        .route("/api/v1/queues/{name}", get(queues::show).fallback(reads))
        .route("/api/v1/upcoming", get(upcoming).post(posted("upcoming")).fallback(both))
}

/// Returns the number of waiting jobs by due time (default: the next 24 h by the quarter of an hour).
async fn upcoming(State(api): State<Arc<Api>>, uri: axum::http::Uri) -> Result<Response, Problem> {
    let upcoming: Upcoming = query::read(&uri, &[("bucket_ms", 900_000), ("buckets", 96)])?;
    Ok(json(calls::histogram(&api, &upcoming).await?))
}
