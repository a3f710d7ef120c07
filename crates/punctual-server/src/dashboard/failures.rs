//! The page of failures.

use askama::Template;
use axum::response::Response;
use punctual::Timestamp;

use super::{
    fault::Fault,
    frame::{Frame, Here, html},
    links::Links,
    text::{Moment, count, counted},
    view::View,
};
use crate::failures::{Failures, Group};

/// A group in the table.
struct Row {
    kind: String,
    text: String,
    error: String,
    dead: String,
    retrying: String,
    total: String,
    first: Moment,
    last: Moment,
    sample: String,
    short: String,
    jobs: String,
}

#[derive(Template)]
#[template(path = "failures.html")]
struct Page {
    frame: Frame,
    groups: Vec<Row>,
    n: String,
    more: Option<String>,
    failures: String,
    total: String,
    is_part: bool,
    done: Option<String>,
}

/// Shows groups of failures. Makes at most ten calls to the store: eight for the failures, and two for the counters.
pub(super) async fn page(board: View) -> Result<Response, Fault> {
    let failures = Failures::read(&board.client).await?;
    let counts = board.counts().await?;
    let more = failures.found.checked_sub(failures.groups.len()).filter(|more| 0 < *more);
    let rows = failures.groups.iter().map(|group| Row::new(group, failures.now, &board.links));
    html(&Page {
        frame: Frame::new(&board, Here::Failures, "Failures"),
        groups: rows.collect(),
        n: counted(failures.found as u64, "group"),
        more: more.map(|more| count(more as u64)),
        failures: counted(failures.jobs, "job"),
        total: count(failures.total),
        is_part: failures.is_part,
        done: counts.map(|counts| count(counts.done)),
    })
}

impl Row {
    fn new(group: &Group, now: Timestamp, links: &Links) -> Self {
        Self {
            kind: group.kind.clone(),
            text: group.fingerprint.text.clone(),
            error: group.error.clone(),
            dead: count(group.dead),
            retrying: count(group.retrying),
            total: count(group.dead + group.retrying),
            first: Moment::new(group.first, now),
            last: Moment::new(group.last, now),
            sample: links.job(group.sample),
            short: group.sample.short(),
            jobs: links.jobs(&group.filter()),
        }
    }
}
