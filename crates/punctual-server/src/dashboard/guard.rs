//! What every request passes: whether a change is allowed, and the headers of the answer.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use punctual::job::Filter;

use super::{Board, fault::Fault, fields::Fields, view::View};
use crate::gate::Caller;

/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 3] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
];

/// Refuses changes that are not allowed, renders faults, and sets the headers.
pub(super) async fn guard(State(board): State<Arc<Board>>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let is_blind = caller.as_ref().is_some_and(|caller| caller.payloads_hidden);
    let checked = match request.uri() {
        uri if is_blind && looks_into_payloads(uri) => Err(Fault::Hidden),
        uri => check(&board, request.method(), uri, request.headers()),
    };
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    };
    if let Some(fault) = Fault::of(&mut response) {
        response = fault.page(&View::new(&board, caller));
    }
    dress(response)
}

/// Sets the headers of an answer.
pub(super) fn dress(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// As [`dress`], for a layer.
pub(super) async fn dressed(response: Response) -> Response {
    dress(response)
}

/// Whether the filter of a page looks into payloads.
fn looks_into_payloads(uri: &Uri) -> bool {
    Filter::parse(Fields::of_query(uri).get("filter")).is_ok_and(|filter| filter.reads_payloads())
}

/// Every request that is not a read is a change.
fn check(board: &Board, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
    if matches!(*method, Method::GET | Method::HEAD) {
        Ok(())
    } else if board.options.read_only {
        Err(Fault::ReadOnly)
    } else if is_same_site(uri, headers) {
        Ok(())
    } else {
        Err(Fault::CrossSite)
    }
}

/// Returns what a browser says of where the request comes from, if it says so: whether that is this origin, or nowhere.
pub(super) fn says_same_site(headers: &HeaderMap) -> Option<bool> {
    headers.get("sec-fetch-site").map(|site| site == "same-origin" || site == "none")
}

/// Returns whether a browser says that the request comes from a page of this origin. A request that says nothing is
/// refused.
fn is_same_site(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(is_same) = says_same_site(headers) {
        return is_same;
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let host = text(header::HOST).or(uri.authority().map(Authority::as_str));
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.zip(host).is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
}
