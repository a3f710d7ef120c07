//! A span for each request (feature `otel`), and its trace context in the jobs that the request enqueues.
//!
//! Without the feature, all of this does nothing.

use axum::Router;
use punctual::NewJob;

#[cfg(feature = "otel")]
mod span;

/// Records a span for each request of a router that is nested under `base`.
#[cfg(feature = "otel")]
pub(crate) fn spans(router: Router, base: &str) -> Router {
    router.layer(axum::middleware::from_fn_with_state(std::sync::Arc::from(base), span::record))
}

#[cfg(not(feature = "otel"))]
pub(crate) fn spans(router: Router, _: &str) -> Router {
    router
}

/// Takes the trace context of the request along into another task.
#[cfg(feature = "otel")]
pub(crate) fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    opentelemetry::trace::FutureExt::with_current_context(future)
}

#[cfg(not(feature = "otel"))]
pub(crate) fn carried<F: Future>(future: F) -> F {
    future
}

/// Adds the template of the route to each answer, for a router that is the fallback of another one.
#[cfg(feature = "otel")]
pub(crate) fn routes(router: Router) -> Router {
    router.layer(axum::middleware::from_fn(span::name_route))
}

#[cfg(not(feature = "otel"))]
pub(crate) fn routes(router: Router) -> Router {
    router
}

/// Adds the trace context of the request to jobs that have none and that go to the store as they are.
///
/// Jobs that go through a client get one there.
#[cfg(feature = "otel")]
pub(crate) fn pass_on(mut jobs: Vec<NewJob>) -> Vec<NewJob> {
    punctual::trace::inject(&mut jobs);
    jobs
}

#[cfg(not(feature = "otel"))]
pub(crate) fn pass_on(jobs: Vec<NewJob>) -> Vec<NewJob> {
    jobs
}
