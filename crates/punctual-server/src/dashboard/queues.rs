//! The list of queues, and its rows.

use askama::Template;
use axum::{http::Uri, response::Response};
use punctual::{Timestamp, limits::BATCH_MAX, store::QueueInfo};

use super::{
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    links::Links,
    terms::exact,
    text::{Moment, count, due},
    view::View,
};
use crate::figures::{self, QUEUES_SHOWN};

/// A row of a table of queues.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) link: String,
    pub(super) waiting: String,
    pub(super) waiting_link: String,
    pub(super) due: String,
    pub(super) retrying: String,
    pub(super) running: String,
    pub(super) running_link: String,
    pub(super) dead: String,
    pub(super) dead_link: String,
    pub(super) has_dead: bool,
    pub(super) oldest: Option<Moment>,
    pub(super) blocked: Option<Moment>,
    pub(super) paused_by: Option<String>,
    pub(super) reason: String,
}

impl Row {
    fn new(info: &QueueInfo, now: Timestamp, links: &Links) -> Self {
        let jobs = |state: &str| links.jobs(&format!("state:{state} {}", exact("queue", &info.name)));
        let paused = info.settings.paused.as_ref();
        Self {
            link: links.queue(&info.name),
            name: info.name.clone(),
            waiting: count(info.counts.waiting),
            waiting_link: jobs("waiting"),
            due: due(info.counts.due),
            retrying: count(info.counts.retrying),
            running: count(info.counts.running),
            running_link: jobs("running"),
            dead: count(info.counts.dead),
            dead_link: jobs("dead"),
            has_dead: 0 < info.counts.dead,
            oldest: info.oldest_due.map(|at| Moment::age(at, now)),
            blocked: info.oldest_blocked.map(|at| Moment::age(at, now)),
            paused_by: paused.map(|pause| pause.by.clone()),
            reason: paused.map(|pause| pause.reason.clone()).unwrap_or_default(),
        }
    }
}

/// Makes the rows of queues.
pub(super) fn rows(infos: &[QueueInfo], now: Timestamp, links: &Links) -> Vec<Row> {
    infos.iter().map(|info| Row::new(info, now, links)).collect()
}

#[derive(Template)]
#[template(path = "queues.html")]
struct Page {
    frame: Frame,
    queues: Vec<Row>,
    /// The first page, if this is another one.
    first: Option<String>,
    next: Option<String>,
    total: String,
}

/// Lists queues by name, 100 on a page. Makes at most 102 calls to the store.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let after = fields.exact("after");
    let (now, names) = (board.client.store().now().await?, board.client.store().queues(after).await?);
    let shown: Vec<&str> = names.iter().take(QUEUES_SHOWN).map(String::as_str).collect();
    let infos = figures::queues(&board.client, &shown).await?;
    let has_more = shown.len() < names.len();
    html(&Page {
        frame: Frame::new(&board, Here::Queues, "Queues"),
        queues: rows(&infos, now, &board.links),
        first: after.map(|_| board.links.to("queues")),
        next: shown.last().filter(|_| has_more).map(|last| board.links.queues_after(last)),
        total: total(names.len(), after.is_some()),
    })
}

/// Says how many queues there are. One call returns up to 1,000 names.
pub(super) fn total(names: usize, are_rest: bool) -> String {
    let n = count(names as u64);
    let n = if names < BATCH_MAX { n } else { format!("{n}+") };
    let s = if names == 1 { "" } else { "s" };
    if are_rest { format!("{n} queue{s} from here on") } else { format!("{n} queue{s}") }
}
