//! The activity log: who changed what, the newest first.

use askama::Template;
use axum::{http::Uri, response::Response};
use punctual::Timestamp;

use super::{
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    text::{Moment, count, counted},
    view::View,
};
use crate::activity::Entry;

/// The most entries of a page.
const ENTRIES_SHOWN: usize = 50;

struct Row {
    at: Moment,
    by: String,
    via: &'static str,
    what: String,
    /// What it was done to: address, if there is one, and text.
    about: Option<(Option<String>, String)>,
    filter: String,
    jobs: Vec<(String, String)>,
    outcome: String,
    reason: String,
}

#[derive(Template)]
#[template(path = "activity.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    first: Option<String>,
    next: Option<String>,
}

/// Lists entries, 50 on a page. Makes at most 66 calls to the store, and three as a rule.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let cursor = Some(fields.get("cursor")).filter(|cursor| !cursor.is_empty());
    let found = board.activity.read(cursor, ENTRIES_SHOWN).await?;
    let now = board.client.store().now().await?;
    let links = &board.links;
    html(&Page {
        frame: Frame::new(&board, Here::Activity, "Activity"),
        rows: found.entries.into_iter().map(|entry| Row::new(&board, entry, now)).collect(),
        first: cursor.map(|_| links.to("activity")),
        next: found.next.map(|next| links.query("activity", &[("cursor", &next)])),
    })
}

impl Row {
    fn new(view: &View, entry: Entry, now: Timestamp) -> Self {
        let links = &view.links;
        let outcome = outcome(&entry);
        let of_operation = |id: String| (Some(links.to(&format!("operations/{id}"))), "operation".to_owned());
        let of_queue = |name: String| (Some(links.queue(&name)), name);
        let about = entry.operation.map(of_operation).or(entry.queue.map(of_queue));
        Self {
            at: Moment::new(entry.at_ms, now),
            by: entry.actor.name,
            via: entry.via.name(),
            what: what(&entry.action, entry.act.as_deref()),
            about: about.or(entry.document.map(|key| (None, key))),
            filter: entry.filter.and_then(|text| view.shown(&text).map(str::to_owned)).unwrap_or_default(),
            jobs: entry.jobs.iter().map(|id| (links.job(*id), id.short())).collect(),
            outcome,
            reason: entry.reason.unwrap_or_default(),
        }
    }
}

/// Says what was done.
fn what(action: &str, act: Option<&str>) -> String {
    let act = act.unwrap_or_default().replace('_', " ");
    match (action, act.as_str()) {
        ("order", act) => format!("ordered: {act}"),
        ("stop", act) => format!("cancelled the operation: {act}"),
        (state, act) if !act.is_empty() => format!("operation {state}: {act}"),
        (action, _) => action.replace('_', " "),
    }
}

/// Says what became of it.
fn outcome(of: &Entry) -> String {
    let number = |n: u64, words: &str| (0 < n).then(|| format!("{} {words}", count(n)));
    let parts = [
        number(of.done, "done"),
        number(of.requested, "asked to stop"),
        number(of.skipped, "skipped"),
        of.planned.map(|n| format!("{} counted", counted(n, "job"))),
        (1 < of.times).then(|| format!("{} times", count(of.times))),
        of.error.clone(),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
