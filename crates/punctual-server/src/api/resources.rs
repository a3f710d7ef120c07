//! Resources: jobs, queues, schedules, topics, workers and operations by their address. Thin layers over what the calls use.

mod actions;
mod activity;
mod change;
mod events;
mod figures;
mod headers;
mod jobs;
mod operations;
mod query;
mod queues;
mod schedules;
mod stream;
mod topics;
mod workers;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, Uri},
    response::Response,
    routing::{get, post},
};
use punctual::{
    store::{Action, Upcoming},
    worker::WorkerOrder,
};

use serde::Serialize;

pub(super) use self::stream::{OWN_STREAMS_MAX, STREAMS_MAX};
use super::{Api, Problem, Scope, call, calls, json, no_method};

/// Most attempts at something that changes while it is acted on.
const ATTEMPTS: usize = 8;

/// Returns the routes of the resources.
pub(super) fn routes() -> Router<Arc<Api>> {
    let jobs = async || no_method("read jobs with GET, and enqueue one with POST");
    let job = async || no_method("read it with GET, change it with PATCH, and delete it with DELETE");
    let queue = async || no_method("read it with GET, and change its settings with PATCH");
    let names = async || no_method("read it with GET");
    let schedule = async || no_method("read it with GET, set it with PUT, and remove it with DELETE");
    let topic = async || no_method("read it with GET, and remove it with DELETE");
    let orders = async || no_method("list them with GET, and order one with POST");
    let reads = async || no_method("read it with GET, and cancel it with POST …/cancel");
    let acts = async || no_method("act with POST");
    // The call of this name has the same address.
    let posted = |name: &'static str| {
        move |api: State<Arc<Api>>, scope: Scope, body: Body| call(api, Path(name.to_owned()), scope, body)
    };
    let both = async || no_method("read it with GET, or make the call with POST");
    // The body says what the action is.
    let acting = |action: fn(&[u8]) -> Result<Action, Problem>| {
        async move |State(api): State<Arc<Api>>,
                    Path(id): Path<String>,
                    scope: Scope,
                    headers: HeaderMap,
                    body: Body| {
            let body = api.room.read("jobs", body).await?;
            actions::act(&api, &scope, &id, &headers, &action(&body.bytes)?).await
        }
    };
    let ordering = |order: WorkerOrder| {
        async move |State(api): State<Arc<Api>>, Path(id): Path<String>, scope: Scope, body: Body| {
            workers::order(&api, &scope, &id, body, order).await
        }
    };
    let workers = async || no_method("read workers with GET");
    Router::new()
        .route("/api/v1/jobs", get(jobs::list).post(jobs::enqueue).fallback(jobs))
        .route(
            "/api/v1/jobs/{id}",
            get(jobs::show).patch(acting(actions::change)).delete(acting(actions::delete)).fallback(job),
        )
        .route("/api/v1/jobs/{id}/why", get(jobs::why).fallback(names))
        .route("/api/v1/jobs/{id}/cancel", post(acting(actions::cancel)).fallback(acts))
        .route("/api/v1/jobs/{id}/retry", post(acting(actions::retry)).fallback(acts))
        .route("/api/v1/jobs/{id}/run-now", post(acting(actions::run_now)).fallback(acts))
        .route("/api/v1/queues", get(queues::list).post(posted("queues")).fallback(both))
        .route("/api/v1/queues/{name}", get(queues::show).patch(queues::change).fallback(queue))
        .route("/api/v1/queues/{name}/pause", post(queues::pause).fallback(acts))
        .route("/api/v1/queues/{name}/resume", post(queues::resume).fallback(acts))
        .route("/api/v1/queues/{name}/purge", post(queues::purge).fallback(acts))
        .route("/api/v1/schedules", get(schedules::list).fallback(names))
        .route(
            "/api/v1/schedules/{name}",
            get(schedules::show).put(schedules::put).delete(schedules::remove).fallback(schedule),
        )
        .route("/api/v1/schedules/{name}/pause", post(schedules::pause).fallback(acts))
        .route("/api/v1/schedules/{name}/resume", post(schedules::resume).fallback(acts))
        .route("/api/v1/schedules/{name}/fire", post(schedules::fire).fallback(acts))
        .route("/api/v1/stats", get(figures::stats).fallback(names))
        .route("/api/v1/events", get(events::events).fallback(names))
        .route("/api/v1/failures", get(figures::failures).fallback(names))
        .route("/api/v1/topics", get(topics::list).fallback(names))
        .route("/api/v1/topics/{name}", get(topics::show).delete(topics::remove).fallback(topic))
        .route("/api/v1/topics/{name}/publish", post(topics::publish).fallback(acts))
        .route("/api/v1/topics/{name}/subscribe", post(topics::subscribe).fallback(acts))
        .route("/api/v1/topics/{name}/unsubscribe", post(topics::unsubscribe).fallback(acts))
        .route("/api/v1/workers", get(workers::list).fallback(workers))
        .route("/api/v1/workers/{worker}/quiet", post(ordering(WorkerOrder::Quiet)).fallback(acts))
        .route("/api/v1/workers/{worker}/resume", post(ordering(WorkerOrder::Resume)).fallback(acts))
        .route("/api/v1/workers/{worker}/stop", post(ordering(WorkerOrder::Stop)).fallback(acts))
        .route("/api/v1/operations", get(operations::list).post(operations::order).fallback(orders))
        .route("/api/v1/operations/{id}", get(operations::show).fallback(reads))
        .route("/api/v1/operations/{id}/cancel", post(operations::cancel).fallback(acts))
        .route("/api/v1/activity", get(activity::list).fallback(names))
        .route("/api/v1/upcoming", get(upcoming).post(posted("upcoming")).fallback(both))
}

/// The answer to a removal.
#[derive(Serialize)]
struct Removed<'a> {
    status: &'static str,
    name: &'a str,
}

impl<'a> Removed<'a> {
    fn new(name: &'a str) -> Self {
        Self { status: "removed", name }
    }
}

/// Returns the number of waiting jobs by due time (default: the next 24 h by the quarter of an hour).
async fn upcoming(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let upcoming: Upcoming = query::read(&uri, &[("bucket_ms", 900_000), ("buckets", 96)])?;
    Ok(json(calls::histogram(&api, &upcoming).await?))
}
