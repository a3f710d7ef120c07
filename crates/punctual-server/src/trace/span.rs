//! The span of a request, by the semantic conventions of OpenTelemetry for HTTP servers.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use opentelemetry::{
    Context, InstrumentationScope, KeyValue, global,
    trace::{FutureExt as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _},
};

use crate::api::is_call;

const METHOD: &str = "http.request.method";
const ROUTE: &str = "http.route";
const STATUS: &str = "http.response.status_code";
const PATH: &str = "url.path";
const ERROR_TYPE: &str = "error.type";
/// The value of [`METHOD`] for methods that no route has, which callers can make up.
const OTHER: &str = "_OTHER";

/// The longest path of a span, in bytes.
const PATH_BYTES_MAX: usize = 1_024;

/// Runs a request in a span. Its parent is the span that the header `traceparent` names.
///
/// Probes of health and metrics come every few seconds, and have none.
pub(super) async fn record(State(base): State<Arc<str>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/readyz" | "/metrics") {
        return next.run(request).await;
    }
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => OTHER,
    };
    // The calls are one route, and too different for one name.
    let call = path.strip_prefix("/api/v1/").filter(|call| is_call(call)).map(|_| format!("{base}{path}"));
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let parent = punctual::trace::parent(|name| request.headers().get(name)?.to_str().ok());
    let attributes = [KeyValue::new(METHOD, method), KeyValue::new(PATH, format!("{base}{}", cut(path)))];
    // The route of a page is known with the answer.
    let span = SpanBuilder::from_name(method).with_kind(SpanKind::Server).with_attributes(attributes);
    let scope = InstrumentationScope::builder("punctual-server").with_version(env!("CARGO_PKG_VERSION"));
    let span = global::tracer_with_scope(scope.build()).build_with_context(span, &parent);
    let context = Context::new().with_span(span);
    let response = next.run(request).with_context(context.clone()).await;
    let span = context.span();
    let page = response.extensions().get::<MatchedPath>().map(|path| format!("{base}{}", path.as_str()));
    if let Some(route) = call.or(page).or(route) {
        span.update_name(format!("{method} {route}"));
        span.set_attribute(KeyValue::new(ROUTE, route));
    }
    let status = response.status();
    span.set_attribute(KeyValue::new(STATUS, i64::from(status.as_u16())));
    // A request that is refused is an error of its caller only.
    if status.is_server_error() {
        span.set_attribute(KeyValue::new(ERROR_TYPE, status.as_str().to_owned()));
        span.set_status(Status::error(""));
    }
    span.end();
    response
}

/// Cuts a path. Anybody can send one, also who is refused, and spans wait in memory.
fn cut(path: &str) -> &str {
    path.get(..PATH_BYTES_MAX).unwrap_or(path)
}

/// Adds the template of the route to the answer.
pub(super) async fn name_route(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}
