//! Why a request is refused, and how this is answered.

use std::{borrow::Cow, fmt, time::Duration};

use axum::{
    http::{
        HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use punctual::ErrorKind;
use serde::Serialize;

/// Why a request is refused.
///
/// As a response it is a problem of RFC 9457 (`application/problem+json`).
///
/// ```
/// # use punctual_server::gate::{Caller, Refusal, Right};
/// # use punctual_server::token::Role;
/// let refusal: Refusal = Caller::new("ana", Role::Read).may(Right::Operate, Some("mail")).unwrap_err();
/// assert_eq!((refusal.status.as_u16(), refusal.code), (403, "forbidden"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The status of the response: 401, 403, 421 or 503.
    pub status: StatusCode,
    /// The code of the error: `unauthenticated`, `forbidden`, `cross_site`, `host_not_allowed`, or a
    /// code of an [`ErrorKind`](punctual::ErrorKind).
    pub code: &'static str,
    /// What happened, for people. It names no secret.
    pub message: Cow<'static, str>,
    /// What to try.
    pub hint: Cow<'static, str>,
    /// The time after which the request can be repeated, if it is the time that matters.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, code, message: message.into(), hint: hint.into(), retry_after: None }
    }

    pub(super) fn unauthenticated(
        message: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message, hint)
    }

    pub(super) fn wrong_token() -> Self {
        let hint = "check the token: punctual token ls    lists the ids of all tokens";
        Self::unauthenticated("the token is not valid: it is unknown, or it was revoked", hint)
    }

    pub(super) fn forbidden(
        message: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message, hint)
    }

    /// Of a caller for some queues that gives a derived id without its key.
    pub(crate) fn underived() -> Self {
        Self::forbidden(
            "the id is one that is derived from an idempotency key, and the token is for some queues only",
            "send the idempotency_key instead of the id, or use a token for the whole store",
        )
    }

    /// Of a caller for some queues. It does not say which queue is concerned, since the request does not name it. `what` is the thing that
    /// is in it.
    pub(crate) fn elsewhere(what: &str) -> Self {
        Self::forbidden(
            format!("{what} that the token is not for"),
            "use a token for this queue, or one for the whole store",
        )
    }

    /// Of a caller from which payloads are hidden.
    pub(crate) fn hidden(message: &'static str) -> Self {
        Self::forbidden(message, "use a token that shows payloads")
    }

    pub(super) fn cross_site() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            "the request comes from a page of another site",
            "send a token as Authorization: Bearer; behind a proxy, make it pass the Host header on",
        )
    }

    pub(super) fn host() -> Self {
        Self::new(
            StatusCode::MISDIRECTED_REQUEST,
            "host_not_allowed",
            "the Host header names another server",
            "use localhost or 127.0.0.1, or make a token: punctual token new NAME --role admin",
        )
    }

    pub(super) fn store(error: &punctual::Error) -> Self {
        let refusal = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            // The call itself was not begun.
            match error.kind() {
                ErrorKind::UnknownOutcome => ErrorKind::Unavailable.code(),
                kind => kind.code(),
            },
            "the token could not be checked, because the store did not answer as expected",
            "repeat the request later; the log of the server has the cause",
        );
        Self { retry_after: Some(Duration::from_secs(1)), ..refusal }
    }

    const fn title(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "Not authenticated",
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::MISDIRECTED_REQUEST => "Wrong host",
            _ => "Store unavailable",
        }
    }

    /// Returns a small page for people. It has no script, no style and nothing from the request.
    pub(crate) fn page(&self) -> Response {
        let text = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
        let (title, message, hint) = (self.title(), text(&self.message), text(&self.hint));
        let html = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n<h1>{title}</h1>\n<p>{message}.</p>\n<p>{hint}</p>\n"
        );
        self.with_headers("text/html; charset=utf-8", html)
    }

    fn with_headers(&self, content_type: &'static str, body: String) -> Response {
        let fixed = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")];
        let mut response = (self.status, fixed, body).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(after)));
        }
        response
    }
}

/// Whole seconds, rounded up.
const fn seconds(length: Duration) -> u64 {
    length.as_millis().div_ceil(1_000) as u64
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// A problem of RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    hint: &'a str,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let problem = Problem {
            r#type: format!("https://punctual.dev/problems/{}", self.code.replace('_', "-")),
            title: self.title(),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.message,
            hint: &self.hint,
        };
        let json = serde_json::to_string(&problem).expect("invariant: texts and numbers are JSON");
        self.with_headers("application/problem+json", json)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn a_page_has_no_element_of_a_request() {
        let page = Refusal::forbidden("no <script>alert(1)</script>", "a & b").page();
        let bytes = to_bytes(page.into_body(), 10_000).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains("no &lt;script>alert(1)&lt;/script>.") && text.contains("a &amp; b"), "{text}");
    }

    #[test]
    fn a_time_is_rounded_up_to_seconds() {
        let lengths = [0, 1, 1_000, 1_001].map(Duration::from_millis);
        assert_eq!(lengths.map(seconds), [0, 1, 1, 2]);
    }
}
