//! The HTTP API: calls of the store as JSON, below `/api/v1`.
//!
//! Each call is `POST /api/v1/CALL` (`api/calls.rs`), so a store of the scheme `http` can make every call of the library. Errors are problems
//! (`api/problem.rs`).

mod calls;
mod lanes;
mod problem;
mod scope;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{Path, State},
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::{any, post},
};
use punctual::{CancellationToken, Client};
use tokio::{sync::Semaphore, time::timeout};

use crate::gate::Caller;

pub(crate) use self::problem::Problem;
use self::{lanes::Lanes, scope::Scope};

/// Largest body of a request: a thousand jobs with everything that they can carry beside 1 MiB of payloads.
const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A body that says that it is no larger than this needs no permit.
const LARGE_BODY_BYTES: usize = 64 * 1024;
/// Most large bodies in memory at once. Further ones wait.
const LARGE_BODIES_MAX: usize = 32;
/// Longest time for the body of a request to arrive.
const BODY_MAX: Duration = Duration::from_secs(30);

/// What the calls need.
#[derive(Debug)]
struct Api {
    client: Client,
    /// Ends waits, so that a server that stops need not wait for them.
    stop: CancellationToken,
    /// Numbers for reserves whose callers give none.
    lanes: Lanes,
    /// Permits for large bodies.
    large: Semaphore,
}

/// Returns a router for the HTTP API, `/api/v1`. `stop` ends requests that wait for jobs.
///
/// A [`Gate`](crate::gate::Gate) in front of it says who the callers are. Without one, all of them can do everything.
///
/// ```
/// # use punctual::{CancellationToken, Client};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let client = Client::connect("memory:").await?;
/// let router: axum::Router = punctual_server::api(&client, &CancellationToken::new());
/// # Ok(()) }
/// ```
pub fn api(client: &Client, stop: &CancellationToken) -> Router {
    let api = Api {
        client: client.clone(),
        stop: stop.clone(),
        lanes: Lanes::new(|| fastrand::u64(..)),
        large: Semaphore::new(LARGE_BODIES_MAX),
    };
    let nothing = async || Problem::not_found("there is no such route in the HTTP API");
    let wrong = async || {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", "the route does not have this method")
            .with_hint("calls are made with POST")
    };
    Router::new()
        .route("/api/v1/{call}", post(call).fallback(wrong))
        .route("/api/{*rest}", any(nothing))
        .with_state(Arc::new(api))
}

async fn call(
    State(api): State<Arc<Api>>,
    Path(call): Path<String>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let scope = Scope::of(caller.map(|Extension(caller)| caller));
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let is_small = length.is_some_and(|length| length <= LARGE_BODY_BYTES);
    let permit = if is_small { None } else { api.large.acquire().await.ok() };
    let bytes_max = if permit.is_some() { BODY_BYTES_MAX } else { LARGE_BODY_BYTES };
    let body = match timeout(BODY_MAX, to_bytes(body, bytes_max)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let detail = format!("the body did not arrive, or is over the limit of {BODY_BYTES_MAX} bytes");
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail).into_response();
        }
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", BODY_MAX.as_secs());
            return Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail).into_response();
        }
    };
    // A large body keeps its permit until its call has ended.
    let _permit = permit.filter(|_| LARGE_BODY_BYTES < body.len());
    match calls::answer(&api, &scope, &call, &body).await {
        Some(Ok(body)) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Some(Err(problem)) => problem.into_response(),
        None => Problem::not_found("there is no such call").into_response(),
    }
}
