//! `/metrics` while the store is away.

use std::time::Duration;

use axum::{
    extract::{Request, State},
    http::{Method, StatusCode, header::CONTENT_TYPE},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use punctual::Client;
use tokio::time::timeout;

use super::{Known, of_store, sampler::ANSWER_MAX};

/// How long the gate and the metrics may take together. With [`ANSWER_MAX`], this is less than the 10 s that Prometheus waits.
const WHOLE_MAX: Duration = Duration::from_secs(5);

/// Answers if the gate cannot, because it looks up tokens in the store.
///
/// The caller may have no right to more. So the answer says only that the store is away, which `/readyz` reports to everybody.
pub(crate) async fn away(State(client): State<Client>, request: Request, next: Next) -> Response {
    if request.method() != Method::GET || request.uri().path() != "/metrics" {
        return next.run(request).await;
    }
    let answer = timeout(WHOLE_MAX, next.run(request)).await;
    let answer = answer.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response());
    // The last sample may be from before.
    let is_up = async || matches!(timeout(ANSWER_MAX, client.store().now()).await, Ok(Ok(_)));
    if answer.status() != StatusCode::SERVICE_UNAVAILABLE || is_up().await {
        return answer;
    }
    ([(CONTENT_TYPE, super::CONTENT_TYPE)], of_store(Known::default())).into_response()
}
