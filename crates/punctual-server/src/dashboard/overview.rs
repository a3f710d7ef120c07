//! The overview: counters, queues, the next hour and the last one.

use askama::Template;
use axum::response::{Html, IntoResponse, Redirect, Response};
use futures_util::try_join;
use punctual::{
    Timestamp,
    store::{Counts, QueueInfo},
    toolkit::Ran,
};

use super::{
    chart::Chart,
    fault::Fault,
    frame::{Frame, Here, text},
    links::Links,
    queues::{self, Row},
    shared::Shared,
    terms::exact,
    text::{Moment, count, due, size},
    unserved::{Unserved, unserved},
    upcoming::HOUR,
    view::View,
};
use crate::figures::Figures;

/// The rows of each table of the last hour.
const RAN_SHOWN: usize = 5;

/// A counter: name, number, address, the class of its colour.
struct Counter {
    name: &'static str,
    n: String,
    link: String,
    class: &'static str,
}

/// A row of what ran in the last hour.
struct RanRow {
    name: String,
    queue: Option<String>,
    runs: String,
    link: String,
}

/// The due job that has waited longest.
struct Oldest {
    age: Moment,
    queue: String,
    link: String,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    frame: Frame,
    is_empty: bool,
    parts_away: u16,
    counters: Vec<Counter>,
    /// `None` while the jobs of very many queues are counted.
    bytes: Option<String>,
    oldest: Option<Oldest>,
    /// The same of jobs that are blocked by their concurrency keys.
    blocked: Option<Oldest>,
    has_more: bool,
    unserved: Vec<Unserved>,
    queues: Vec<Row>,
    total: String,
    chart: Option<Chart>,
    kinds: Vec<RanRow>,
    groups: Vec<RanRow>,
    errors: Vec<RanRow>,
}

/// Shows the overview. While pages listen for changes, one rendering serves all of them for up to a second.
///
/// A caller for some queues is sent to its jobs.
pub(super) async fn page(board: View) -> Result<Response, Fault> {
    if board.queues().is_some() {
        return Ok(Redirect::to(&board.links.to("jobs")).into_response());
    }
    match board.watcher.seen() {
        Some(versions) => match overview(&board).get(versions, rendered(&board.shared())).await {
            Ok(page) => Ok(Html(page).into_response()),
            Err(fault) => Ok(Fault::answer(&fault)),
        },
        // Without a watcher, nobody would notice that a rendering is out of date.
        None => rendered(&board.shared()).await.map(|text| Html(text).into_response()),
    }
}

/// Returns the rendering that a caller shares with others.
fn overview(board: &View) -> &Shared<Fault> {
    if board.has_token() { &board.overview_with_token } else { &board.overview }
}

/// Renders the overview. Makes at most 110 calls to the store: 106 for the figures, two for the workers, and one each for the counters and
/// the next hour; two more if these take long.
async fn rendered(board: &View) -> Result<String, Fault> {
    let read =
        async { Ok(try_join!(Figures::read(&board.client), board.counts(), board.client.workers(None))?) };
    let ((figures, counts, workers), chart) = try_join!(read, HOUR.chart(board))?;
    let Figures { now, queues: infos, names, hour } = figures;
    let oldest = |of: fn(&QueueInfo) -> Option<Timestamp>| {
        let (at, info) = infos.iter().filter_map(|info| Some((of(info)?, info))).min_by_key(|(at, _)| *at)?;
        Some(Oldest {
            age: Moment::age(at, now),
            queue: info.name.clone(),
            link: board.links.jobs(&format!("state:waiting due:<0s {}", exact("queue", &info.name))),
        })
    };
    let links = &board.links;
    text(&Page {
        frame: Frame::new(board, Here::Overview, "Overview"),
        is_empty: counts.is_some_and(|counts| counts.total() == 0) && names == 0,
        parts_away: counts.map_or(0, |counts| counts.parts_away),
        counters: counters(counts.as_ref(), links),
        bytes: counts.map(|counts| size(counts.bytes)),
        oldest: oldest(|info| info.oldest_due),
        blocked: oldest(|info| info.oldest_blocked),
        unserved: unserved(&infos, &workers, now, links),
        has_more: infos.len() < names,
        queues: queues::rows(&infos, now, links),
        total: queues::total(names, false),
        chart: chart.map(|(chart, ..)| chart),
        kinds: ran(&hour.kinds, |ran| links.jobs(&exact("kind", &ran.name))),
        groups: ran(&hour.groups, |ran| {
            let queue = ran.queue.as_deref().map(|queue| exact("queue", queue)).unwrap_or_default();
            links.jobs(format!("{} {queue}", exact("group", &ran.name)).trim())
        }),
        errors: ran(&hour.errors, |_| links.to("failures")),
    })
}

fn counters(counts: Option<&Counts>, links: &Links) -> Vec<Counter> {
    let counter = |name, n: fn(&Counts) -> String, filter: &str, class| {
        let n = counts.map_or_else(|| "…".to_owned(), n);
        Counter { name, n, link: links.jobs(filter), class }
    };
    vec![
        counter("Waiting", |counts| count(counts.waiting), "state:waiting", "scheduled"),
        counter("Due", |counts| due(counts.due), "state:waiting due:<0s", "ready"),
        counter("Retrying", |counts| count(counts.retrying), "state:retrying", "retrying"),
        counter("Running", |counts| count(counts.running), "state:running", "running"),
        counter("Done", |counts| count(counts.done), "state:done", "done"),
        counter("Dead", |counts| count(counts.dead), "state:dead", "dead"),
        counter("Cancelled", |counts| count(counts.cancelled), "state:cancelled", "cancelled"),
    ]
}

fn ran(all: &[Ran], link: impl Fn(&Ran) -> String) -> Vec<RanRow> {
    let row = |ran: &Ran| RanRow {
        name: ran.name.clone(),
        queue: ran.queue.clone(),
        runs: count(ran.runs),
        link: link(ran),
    };
    all.iter().take(RAN_SHOWN).map(row).collect()
}
