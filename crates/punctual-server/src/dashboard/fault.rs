//! What can go wrong with a request, and its page. A handler returns the fault; `guard` renders it.

use std::sync::Arc;

use askama::Template;
use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use punctual::{Error, ErrorKind};

use super::{
    frame::{Frame, Here, html},
    view::View,
};
use crate::{gate::Refusal, trouble::Causes};

/// Why a page cannot be shown, or a change not be made.
#[derive(Debug)]
pub(super) enum Fault {
    NoPage,
    NoJob(String),
    NoQueue(String),
    NoSchedule(String),
    NoOperation(String),
    Method,
    ReadOnly,
    CrossSite,
    /// A filter that looks into payloads, of a caller that must not see them.
    Hidden,
    /// A change of a job whose payload the caller must not see.
    Unseen,
    /// What the caller may not do.
    Forbidden(Refusal),
    TooLarge,
    /// A form that did not arrive.
    Late,
    /// More pages listen than the server has room for.
    Listeners,
    /// A field that cannot be read: what is wrong, and what to write.
    Form(String, String),
    Store(Error),
    /// A page that could not be written.
    Template,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Forbidden(refusal)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        Self::answer(&Arc::new(self))
    }
}

/// The page of a fault.
#[derive(Template)]
#[template(path = "fault.html")]
struct Page {
    frame: Frame,
    status: u16,
    text: String,
    hint: String,
    detail: String,
}

impl Fault {
    /// Makes an answer that `guard` renders.
    pub(super) fn answer(fault: &Arc<Self>) -> Response {
        let mut response = fault.status().into_response();
        response.extensions_mut().insert(Arc::clone(fault));
        response
    }

    /// Takes the fault out of an answer. An answer of the router itself becomes one.
    pub(super) fn of(response: &mut Response) -> Option<Arc<Self>> {
        let fault = response.extensions_mut().remove::<Arc<Self>>();
        let is_page = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|of| of.as_bytes().starts_with(b"text/html"));
        let is_bare = response.status().is_client_error() && !is_page;
        fault.or_else(|| is_bare.then(|| Arc::new(Self::NoPage)))
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NoPage | Self::NoJob(_) | Self::NoQueue(_) | Self::NoSchedule(_) | Self::NoOperation(_) => {
                StatusCode::NOT_FOUND
            }
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::ReadOnly | Self::CrossSite | Self::Hidden | Self::Unseen | Self::Forbidden(_) => {
                StatusCode::FORBIDDEN
            }
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Form(..) => StatusCode::BAD_REQUEST,
            Self::Listeners => StatusCode::SERVICE_UNAVAILABLE,
            Self::Template => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::UnknownOutcome | ErrorKind::Closed => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                ErrorKind::Invalid | ErrorKind::TooLarge => StatusCode::BAD_REQUEST,
                ErrorKind::Conflict | ErrorKind::Full => StatusCode::CONFLICT,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }

    /// Renders the page.
    pub(super) fn page(&self, board: &View) -> Response {
        let (title, text, hint) = self.words();
        let detail = match self {
            Self::Store(error) => error.kind().code().to_owned(),
            _ => String::new(),
        };
        let frame = Frame::new(board, Here::Nowhere, title);
        let status = self.status();
        let page = Page { frame, status: status.as_u16(), text, hint, detail };
        let body = html(&page).unwrap_or_else(|_| title.into_response());
        let mut answer = (status, body).into_response();
        if let Self::Store(error) = self {
            Causes::put(Causes::of(error).as_ref(), &mut answer);
        }
        answer
    }

    /// Returns a title, what happened, and what to try.
    fn words(&self) -> (&'static str, String, String) {
        let (title, text, hint) = match self {
            Self::NoPage => ("Page not found", "There is no such page.".into(), "Check the address, or start at the overview.".into()),
            Self::NoJob(id) => (
                "Job not found",
                format!("There is no job {id}."),
                "It was deleted, or its retention has ended. Ended jobs are kept as long as their queue says.".into(),
            ),
            Self::NoQueue(name) => (
                "Queue not found",
                format!("There is no queue {name:?}."),
                "A queue exists from its first job, pause or settings on.".into(),
            ),
            Self::NoSchedule(name) => (
                "Schedule not found",
                format!("There is no schedule {name:?}."),
                "It was deleted, or never set.".into(),
            ),
            Self::NoOperation(id) => (
                "Operation not found",
                format!("There is no operation {id}."),
                "The last 100 operations are kept.".into(),
            ),
            Self::Method => (
                "Not possible",
                "This address does not answer such a request.".into(),
                "Go back to the page before, and use its buttons.".into(),
            ),
            Self::ReadOnly => (
                "Read-only",
                "This dashboard is read-only. Nothing was changed.".into(),
                "Use the command line, or a dashboard that allows changes.".into(),
            ),
            Self::CrossSite => (
                "Refused",
                "The request came from another site, or from a program that does not say where it comes from. Nothing was changed.".into(),
                "Use the buttons of this dashboard. A proxy must pass on the headers Host and Origin.".into(),
            ),
            Self::Hidden => (
                "Refused",
                "The filter looks into payloads, which are hidden from this token.".into(),
                "Remove the terms that begin with payload, or use a token that shows payloads.".into(),
            ),
            Self::Unseen => (
                "Refused",
                "Payloads are hidden, so this job cannot be edited or duplicated here. Nothing was changed.".into(),
                "Use the command line, or a dashboard or token that shows payloads.".into(),
            ),
            Self::Forbidden(refusal) => ("Refused", sentence(&refusal.message), sentence(&refusal.hint)),
            Self::Listeners => (
                "Too many live pages",
                "As many pages listen for changes as the server has room for.".into(),
                "The page works without updates. Load it again to see changes.".into(),
            ),
            Self::TooLarge => (
                "Too much at once",
                "The form is larger than this page accepts, or has over 1,000 jobs. Nothing was changed.".into(),
                "Select fewer jobs, or use the command line.".into(),
            ),
            Self::Late => (
                "Form not received",
                "The form did not arrive within 30 s. Nothing was changed.".into(),
                "Check the connection, and send the form again.".into(),
            ),
            Self::Form(text, hint) => ("Input not understood", text.clone(), hint.clone()),
            Self::Template => (
                "Page could not be written",
                "The server could not write this page.".into(),
                "Load the page again.".into(),
            ),
            Self::Store(error) => {
                let (title, fallback) = match error.kind() {
                    ErrorKind::Unavailable | ErrorKind::Closed => (
                        "Store unavailable",
                        "Check that the store runs and can be reached, then load this page again. Nothing was changed.",
                    ),
                    ErrorKind::UnknownOutcome => (
                        "Answer lost",
                        "The change may have been made. Look at the job or queue before you repeat it.",
                    ),
                    ErrorKind::Full => ("Queue is full", "Nothing was enqueued. Try again after some of its jobs have ended."),
                    ErrorKind::Invalid | ErrorKind::TooLarge => ("Input not understood", "Go back and change the input."),
                    ErrorKind::Conflict => ("Not possible now", "Load the page again."),
                    _ => ("The store refused", "Run punctual doctor to check the store."),
                };
                (title, sentence(&error.to_string()), error.hint().map_or(fallback.into(), sentence))
            }
        };
        (title, text, hint)
    }
}

/// Makes a sentence of an error, which begins in lower case and has no full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(chars).chain(['.']).collect()
}
