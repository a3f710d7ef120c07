//! The list of schedules.

use askama::Template;
use axum::{http::Uri, response::Response};
use futures_util::try_join;
use punctual::{
    Timestamp,
    schedule::{Misfire, NamedSchedule},
};

use super::{
    fault::Fault,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Here, html},
    links::Links,
    terms::exact,
    text::{Moment, cut},
    view::View,
};

/// The most schedules of a page.
const SCHEDULES_SHOWN: usize = 100;
/// Characters of a description.
const WORDS_CHARS: usize = 120;

struct Row {
    name: String,
    link: String,
    ticks: String,
    words: String,
    next: Option<Moment>,
    kind: String,
    kind_link: String,
    queue: String,
    queue_link: String,
    misfire: String,
    paused_by: Option<String>,
    reason: String,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    unreadable: Vec<String>,
    first: Option<String>,
    next: Option<String>,
}

/// Lists schedules by name, 100 on a page. Makes two calls to the store: ticks are calculated, not read.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let after = fields.exact("after");
    let (page, now) = try_join!(board.client.schedules(after), board.client.store().now())?;
    let shown = &page.schedules[..page.schedules.len().min(SCHEDULES_SHOWN)];
    let last = shown.last().map(|named| named.name.clone()).filter(|_| shown.len() < page.schedules.len());
    html(&Page {
        frame: Frame::new(&board, Here::Schedules, "Schedules").with(Flash::of(&fields, &board.links)),
        rows: shown.iter().map(|named| Row::new(named, now, &board.links)).collect(),
        first: after.map(|_| board.links.to("schedules")),
        next: last.or(page.next).map(|last| board.links.query("schedules", &[("after", &last)])),
        unreadable: page.unreadable,
    })
}

impl Row {
    fn new(named: &NamedSchedule, now: Timestamp, links: &Links) -> Self {
        let (cron, job, paused) = (&named.schedule.cron, &named.schedule.job, named.schedule.paused.as_ref());
        Self {
            name: named.name.clone(),
            link: links.schedule(&named.name),
            ticks: cron.to_string(),
            words: cut(&cron.describe(), WORDS_CHARS),
            next: cron.next(now).filter(|_| paused.is_none()).map(|at| Moment::new(at, now)),
            kind: job.kind.clone(),
            kind_link: links.jobs(&exact("kind", &job.kind)),
            queue: job.queue.clone(),
            queue_link: links.jobs(&exact("queue", &job.queue)),
            misfire: misfire(cron.misfire()),
            paused_by: paused.map(|pause| pause.by.clone()),
            reason: paused.map(|pause| pause.reason.clone()).unwrap_or_default(),
        }
    }
}

/// Says what becomes of missed ticks.
pub(super) fn misfire(of: Misfire) -> String {
    match of {
        Misfire::Skip => "skip".to_owned(),
        Misfire::RunOnce => "run once".to_owned(),
        Misfire::RunAll { at_most } => format!("run the last {at_most}"),
    }
}
