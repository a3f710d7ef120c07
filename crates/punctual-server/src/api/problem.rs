//! Errors as `application/problem+json` (RFC 9457). The codes are those of the command line.

use axum::{
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
};
use punctual::{Error, ErrorKind};
use serde::Serialize;

use crate::{gate::Refusal, trouble::Causes};

/// An error as the API answers it.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    r#type: String,
    title: &'static str,
    status: u16,
    /// From a closed list: the codes of errors that the command line prints.
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Why the store failed, for the log.
    #[serde(skip)]
    causes: Option<Causes>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let r#type = format!("https://punctual.dev/problems/{}", code.replace('_', "-"));
        Self { r#type, title, status: status.as_u16(), code, detail: detail.into(), hint: None, causes: None }
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    #[cfg(feature = "sqs")]
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).expect("invariant: it was made of a status")
    }

    #[cfg(feature = "sqs")]
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Closed => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::UnknownOutcome => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::StoreFull | ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Unsupported | ErrorKind::Outdated => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let causes = Causes::of(&error);
        let problem = Self { causes, ..Self::new(status, error.kind().code(), error.to_string()) };
        error.hint().into_iter().fold(problem, Self::with_hint)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let problem = Self::new(refusal.status, refusal.code, refusal.message);
        problem.with_hint(refusal.hint)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (&self).into_response()
    }
}

impl IntoResponse for &Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(self).expect("invariant: a problem is plain data, which JSON can hold");
        let status = StatusCode::from_u16(self.status).expect("invariant: it was made of a status");
        let mut response = (status, [(CONTENT_TYPE, "application/problem+json")], body).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        Causes::put(self.causes.as_ref(), &mut response);
        response
    }
}
