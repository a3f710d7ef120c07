//! The HTTP API: calls of the store as JSON, below `/api/v1`.
//!
//! Each call is `POST /api/v1/CALL` (`api/calls.rs`), so a store of the scheme `http` can make every call of the library. Jobs, queues, schedules
//! and topics have addresses of their own, too (`api/resources.rs`). Errors are problems (`api/problem.rs`). The document of the API is at `/api/v1/openapi.json` (`api/openapi.rs`).

mod body;
mod calls;
mod lanes;
mod lines;
mod openapi;
mod problem;
mod registrations;
mod resources;
mod scope;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{
        StatusCode,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use percent_encoding::percent_decode_str;
use punctual::{CancellationToken, Client};

use self::scope::Scope;
pub(crate) use self::{
    body::{ARRIVAL_MAX, Room},
    lanes::Lanes,
    problem::Problem,
};
use crate::{
    activity::Activity,
    dashboard::{Shared, Watcher},
    operations::Operations,
    shares::Shares,
};

/// What the calls need.
#[derive(Debug)]
struct Api {
    client: Client,
    /// Ends waits, so that a server that stops need not wait for them.
    stop: CancellationToken,
    /// Numbers for reserves whose callers give none.
    lanes: Lanes,
    room: Room,
    watcher: Watcher,
    stats: Shared<Problem>,
    /// The streams of jobs that can begin.
    streams: Shares,
    activity: Activity,
    operations: Operations,
}

/// Returns a router for the HTTP API, `/api/v1`. `stop` ends requests that wait for jobs.
///
/// A [`Gate`](crate::gate::Gate) in front of it says who the callers are. Without one, all of them can do everything. The router alone
/// writes no activity log: [`Server`](crate::Server) does.
///
/// ```
/// # use punctual::{CancellationToken, Client};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let client = Client::connect("memory:").await?;
/// let router: axum::Router = punctual_server::api(&client, &CancellationToken::new());
/// # Ok(()) }
/// ```
pub fn api(client: &Client, stop: &CancellationToken) -> Router {
    let activity = Activity::without_callers(client);
    let operations = Operations::new(client, &activity);
    operations.start(stop);
    with(client, stop, &Watcher::new(client, stop), &activity, &operations)
}

/// As [`api`], with what it shares with the dashboard.
pub(crate) fn with(
    client: &Client,
    stop: &CancellationToken,
    watcher: &Watcher,
    activity: &Activity,
    operations: &Operations,
) -> Router {
    let api = Api {
        client: client.clone(),
        stop: stop.clone(),
        lanes: Lanes::new(|| fastrand::u64(..)),
        room: Room::new(),
        watcher: watcher.clone(),
        stats: Shared::default(),
        streams: Shares::new(resources::STREAMS_MAX, resources::OWN_STREAMS_MAX),
        activity: activity.clone(),
        operations: operations.clone(),
    };
    let nothing = async || Problem::not_found("there is no such route in the HTTP API");
    let wrong = async || no_method("calls are made with POST");
    let reads = async || no_method("the document is read with GET");
    Router::new()
        .route("/api/v1/openapi.json", get(document).fallback(reads))
        .merge(resources::routes())
        .route("/api/v1/{call}", post(call).fallback(wrong))
        .route("/api/{*rest}", any(nothing))
        .with_state(Arc::new(api))
        .layer(middleware::from_fn(readable))
}

/// Returns whether there is a call of this name.
#[cfg(feature = "otel")]
pub(crate) fn is_call(name: &str) -> bool {
    openapi::has(name)
}

/// Answers a method that a route does not have.
fn no_method(hint: &str) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", "the route does not have this method")
        .with_hint(hint)
}

/// Refuses a request whose address is no text, or whose body is encoded: no call could read them.
async fn readable(request: Request, next: Next) -> Response {
    if percent_decode_str(request.uri().path()).decode_utf8().is_err() {
        return Problem::not_found("the address is not UTF-8").into_response();
    }
    let encoding = request.headers().get(CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let detail = "the body has a Content-Encoding, which this server does not read";
        return Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid", detail)
            .with_hint("send the body as it is, without Content-Encoding")
            .into_response();
    }
    next.run(request).await
}

fn json(body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Returns the document of the API. It says nothing of the store, so everybody can read it.
async fn document() -> Response {
    json(openapi::text())
}

async fn call(State(api): State<Arc<Api>>, Path(call): Path<String>, scope: Scope, body: Body) -> Response {
    let body = match api.room.read(&call, body).await {
        Ok(body) => body,
        Err(problem) => return problem.into_response(),
    };
    match calls::answer(&api, &scope, &call, &body.bytes).await {
        Some(Ok(body)) => json(body),
        Some(Err(problem)) => problem.into_response(),
        None => Problem::not_found("there is no such call").into_response(),
    }
}
