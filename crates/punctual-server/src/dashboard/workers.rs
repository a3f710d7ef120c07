//! The running workers and forwarders, and orders to them.

use askama::Template;
use axum::{
    extract::{Path, Request},
    http::Uri,
    response::{IntoResponse, Redirect, Response},
};
use punctual::{
    Timestamp,
    job::Filter,
    store::List,
    worker::{WorkerInfo, WorkerOrder, WorkerState},
};

use super::{
    badge::Badge,
    fault::Fault,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Here, html},
    links::Links,
    terms::exact,
    text::{Moment, count, counted},
    view::View,
};
use crate::gate::Right;

/// The most queues and kinds of a worker that are shown.
const NAMES_SHOWN: usize = 10;
/// The waiting jobs whose kinds are shown if there is no worker.
const WAITING_READ: usize = 50;
/// The most such kinds.
const KINDS_SHOWN: usize = 5;

struct Row {
    id: String,
    name: String,
    /// The machine and process, if the name does not say them, and the version.
    process: String,
    state: Badge,
    /// An order that the worker has not found yet.
    order: Option<&'static str>,
    /// The first queues: name, address and weight.
    queues: Vec<(String, String, Option<u32>)>,
    more_queues: Option<String>,
    kinds: Vec<String>,
    more_kinds: Option<String>,
    busy: String,
    slots: String,
    jobs: String,
    seen: Moment,
    since: Moment,
    forwards: Option<Forwards>,
    link: String,
    is_missing: bool,
    is_quiet: bool,
    is_stopping: bool,
}

struct Forwards {
    to: String,
    sent: String,
    failed: String,
    error: Option<String>,
}

#[derive(Template)]
#[template(path = "workers.html")]
struct Page {
    frame: Frame,
    workers: Vec<Row>,
    forwarders: Vec<Row>,
    unreadable: Vec<String>,
    may_operate: bool,
    /// The kinds of waiting jobs, if there is no worker.
    waiting: Vec<(String, String)>,
    first: Option<String>,
    next: Option<String>,
}

/// Lists workers by id, up to 1,000 on a page. Makes two calls to the store, and a third one if there is no worker.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let after = fields.exact("after");
    let page = board.client.workers(after).await?;
    let waiting =
        if page.workers.is_empty() && after.is_none() { waiting(&board).await? } else { Vec::new() };
    let mut infos = page.workers;
    infos.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    let rows = infos.iter().map(|info| Row::new(info, page.now, &board.links));
    let (forwarders, workers) = rows.partition(|row| row.forwards.is_some());
    html(&Page {
        frame: Frame::new(&board, Here::Workers, "Workers").with(Flash::of(&fields, &board.links)),
        workers,
        forwarders,
        unreadable: page.unreadable,
        may_operate: board.may(Right::Operate, None),
        waiting,
        first: after.map(|_| board.links.to("workers")),
        next: page.next.map(|last| board.links.query("workers", &[("after", &last)])),
    })
}

/// Returns the kinds of the first waiting jobs, with their addresses.
async fn waiting(board: &View) -> Result<Vec<(String, String)>, Fault> {
    let list = List { filter: Filter::parse("state:waiting")?, after: None, limit: WAITING_READ };
    let mut kinds: Vec<String> =
        board.client.list(&list).await?.jobs.into_iter().map(|job| job.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let link = |kind: String| (board.links.jobs(&format!("state:waiting {}", exact("kind", &kind))), kind);
    Ok(kinds.into_iter().take(KINDS_SHOWN).map(link).map(|(link, kind)| (kind, link)).collect())
}

/// Lets a worker reserve no further jobs. Makes up to three calls to the store.
pub(super) async fn quiet(board: View, Path(id): Path<String>) -> Result<Redirect, Fault> {
    order(&board, &id, WorkerOrder::Quiet).await
}

/// Lets a quiet worker reserve jobs again. Makes up to three calls to the store.
pub(super) async fn resume(board: View, Path(id): Path<String>) -> Result<Redirect, Fault> {
    order(&board, &id, WorkerOrder::Resume).await
}

#[derive(Template)]
#[template(path = "stop.html")]
struct Confirm {
    frame: Frame,
    name: String,
    busy: String,
    link: String,
    back: String,
}

/// Shuts a worker down, if the form confirms it; else asks for that. Makes up to three calls to the store.
pub(super) async fn stop(board: View, Path(id): Path<String>, request: Request) -> Result<Response, Fault> {
    if Fields::of_form(request.into_body()).await?.get("confirmed") == "yes" {
        return Ok(order(&board, &id, WorkerOrder::Stop).await?.into_response());
    }
    let Some(info) = board.client.worker(&id).await? else { return Ok(back(&board, "gone").into_response()) };
    html(&Confirm {
        frame: Frame::new(&board, Here::Workers, format!("Stop {}?", info.name)).still(),
        name: info.name,
        busy: counted(info.busy as u64, "running job"),
        link: board.links.to(&format!("workers/{}/stop", info.id)),
        back: board.links.to("workers"),
    })
}

async fn order(board: &View, id: &str, order: WorkerOrder) -> Result<Redirect, Fault> {
    let made = board.client.order_worker(id, order).await;
    if !matches!(made, Ok(None)) {
        board.activity.note(board.entry(order.name()).document(&format!("worker/{id}")), &made);
    }
    Ok(back(board, if made?.is_some() { order.name() } else { "gone" }))
}

fn back(board: &View, did: &str) -> Redirect {
    Redirect::to(&board.links.query("workers", &[("did", &format!("worker-{did}"))]))
}

impl Row {
    fn new(info: &WorkerInfo, now: Timestamp, links: &Links) -> Self {
        let more = |n: usize| (0 < n).then(|| count(n as u64));
        let queue = |queue: &punctual::worker::ServedQueue| {
            (queue.name.clone(), links.jobs(&exact("queue", &queue.name)), queue.weight)
        };
        let process = format!("{}/{}", info.host, info.pid);
        let process = if info.name.starts_with(&process) { String::new() } else { format!("{process} · ") };
        let running = format!("state:running {}", exact("worker", &info.name));
        Self {
            process: format!("{process}version {}", info.version),
            name: info.name.clone(),
            state: info.state.into(),
            order: info.order.map(WorkerOrder::name),
            queues: info.queues.iter().take(NAMES_SHOWN).map(queue).collect(),
            more_queues: more(info.queues.len().saturating_sub(NAMES_SHOWN)),
            kinds: info.kinds.iter().take(NAMES_SHOWN).cloned().collect(),
            more_kinds: more(info.kinds.len().saturating_sub(NAMES_SHOWN).saturating_add(info.more_kinds)),
            busy: count(info.busy as u64),
            slots: count(info.slots as u64),
            jobs: links.jobs(&running),
            seen: Moment::new(info.seen, now),
            since: Moment::new(info.since, now),
            forwards: info.forwards.as_ref().map(|forwards| Forwards {
                to: forwards.to.clone(),
                sent: count(forwards.sent),
                failed: count(forwards.failed),
                error: forwards.error.clone(),
            }),
            link: links.to(&format!("workers/{}", info.id)),
            is_missing: info.state == WorkerState::Missing,
            is_quiet: info.state == WorkerState::Quiet || info.order == Some(WorkerOrder::Quiet),
            is_stopping: info.state == WorkerState::Stopping || info.order == Some(WorkerOrder::Stop),
            id: info.id.clone(),
        }
    }
}
