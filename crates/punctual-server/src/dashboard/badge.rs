//! The state of a job or a worker as a word, a shape and a colour, so that no one of them is needed to read it.

use askama::{Template, filters::HtmlSafe};
use punctual::{job::Status, worker::WorkerState};

/// A status as an element.
#[derive(Clone, Copy, Debug, Template)]
#[template(path = "badge.html")]
pub(super) struct Badge {
    name: &'static str,
    /// The outline of its shape, in a square of 12.
    shape: &'static str,
}

impl HtmlSafe for Badge {}

impl From<Status> for Badge {
    fn from(status: Status) -> Self {
        let shape = match status {
            // A clock, a bar, a ring, a loop, a triangle, a tick, a cross, a square.
            Status::Scheduled => "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M6 3.5V6l1.8 1.2",
            Status::Blocked => "M3 1.5h6v3H3zM3 7.5h6v3H3z",
            Status::Ready => "M6 2a4 4 0 1 0 0 8 4 4 0 0 0 0-8",
            Status::Retrying => "M10 6a4 4 0 1 1-1.3-3M9 .8v2.4H6.6",
            Status::Running => "M3 1.8v8.4L10 6z",
            Status::Done => "M1.8 6.4 4.8 9.4 10.2 3",
            Status::Dead => "M2.5 2.5l7 7M9.5 2.5l-7 7",
            Status::Cancelled => "M2.2 2.2h7.6v7.6H2.2z",
        };
        Self { name: status.name(), shape }
    }
}

impl From<WorkerState> for Badge {
    fn from(state: WorkerState) -> Self {
        let shape = match state {
            // A triangle, two bars, a square, a cross.
            WorkerState::Working => "M3 1.8v8.4L10 6z",
            WorkerState::Quiet => "M4 2v8M8 2v8",
            WorkerState::Stopping => "M2.2 2.2h7.6v7.6H2.2z",
            _ => "M2.5 2.5l7 7M9.5 2.5l-7 7",
        };
        Self { name: state.name(), shape }
    }
}
