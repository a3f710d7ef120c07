//! The list of jobs: a filter, tabs of states, and a page of matches.

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use punctual::{
    Error, JobRecord, Timestamp,
    job::Filter,
    store::{Counts, List, ListCursor, Page as Found},
};

use super::{
    Board, act,
    badge::Badge,
    fault::Fault,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Here, html},
    links::Links,
    terms,
    text::{Moment, count, counted, cut},
    view::View,
};
use crate::{
    gate::Right,
    operations::{self, Picked},
};

/// The most jobs of a page.
const JOBS_SHOWN: usize = 50;
/// The most calls that search for the jobs of a page. Each reads up to 1,000 jobs.
const SEARCH_CALLS_MAX: usize = 5;
/// Characters of an error in the table.
const ERROR_CHARS: usize = 140;
/// Filters that an empty result suggests.
const EXAMPLES: [(&str, &str); 5] = [
    ("state:dead failed:<1h", "gave up in the last hour"),
    ("state:retrying error:timeout", "wait after a timeout"),
    ("kind:email.* due:<10m", "emails due within ten minutes"),
    ("group:acme -tag:vip", "of one group, without a tag"),
    ("payload.user.id:42", "with a value in the payload"),
];

/// A job in the table.
struct Row {
    picked: String,
    link: String,
    short: String,
    id: String,
    kind: String,
    queue: String,
    badge: Badge,
    cancel_requested: bool,
    due: Option<Moment>,
    ended: Option<Moment>,
    attempt: String,
    progress: Option<Progress>,
    last_error: String,
}

/// The progress of a run.
pub(super) struct Progress {
    pub(super) percent: Option<String>,
    pub(super) text: String,
}

/// A tab: a state with the number of its jobs, where it is known.
struct Tab {
    name: &'static str,
    n: Option<String>,
    link: String,
    is_here: bool,
}

/// An error of the filter, for its field.
struct Wrong {
    text: String,
    hint: String,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    frame: Frame,
    filter: String,
    cursor: String,
    wrong: Option<Wrong>,
    tabs: Vec<Tab>,
    rows: Vec<Row>,
    /// Whether the caller may act on jobs here.
    may_operate: bool,
    searched: String,
    is_part: bool,
    /// The first page, if this is another one.
    first: Option<String>,
    next: Option<String>,
    is_store_empty: bool,
    /// Actions on all jobs that match: their names and words.
    all: Vec<(&'static str, &'static str)>,
    examples: Vec<(String, &'static str, &'static str)>,
}

/// Lists jobs. Makes at most seven calls to the store: two for the counters, and five that search.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let (filter, cursor) = (fields.get("filter").to_owned(), fields.get("cursor").to_owned());
    let (found, all, wrong) = match Filter::parse(&filter) {
        Ok(parsed) => {
            if let Some(narrowed) = narrowed(&board, &filter, &parsed) {
                let others = fields.pairs().filter(|(name, _)| !matches!(*name, "filter" | "cursor"));
                let pairs: Vec<(&str, &str)> =
                    [("filter", narrowed.as_str())].into_iter().chain(others).collect();
                return Ok(Redirect::to(&board.links.query("jobs", &pairs)).into_response());
            }
            board.check_search(&parsed)?;
            let all = operations::offered(&filter, &parsed);
            let all = all.iter().map(|action| (action.name(), act::verb(action))).collect();
            (search(&board, parsed, &cursor).await?, all, None)
        }
        Err(error) => (Found::default(), Vec::new(), Some(Wrong::of(&error))),
    };
    let status = if wrong.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let counts = counts(&board, &filter).await?;
    let links = &board.links;
    let rows: Vec<Row> = found.jobs.iter().map(|job| Row::new(job, found.now, links)).collect();
    let next = found.next.as_ref().map(ToString::to_string);
    let page = html(&Page {
        frame: Frame::new(&board, Here::Jobs, "Jobs").with(Flash::of(&fields, links)),
        tabs: tabs(&filter, counts.as_ref(), links),
        may_operate: board.may_operate(),
        searched: searched(&board, &found),
        is_part: found.next.is_some() && found.jobs.len() < JOBS_SHOWN,
        first: (!cursor.is_empty()).then(|| links.jobs(&filter)),
        next: next.map(|next| links.query("jobs", &[("filter", &filter), ("cursor", &next)])),
        is_store_empty: found.total == 0 && wrong.is_none(),
        examples: EXAMPLES.map(|(filter, words)| (links.jobs(filter), filter, words)).to_vec(),
        rows,
        all,
        filter,
        cursor,
        wrong,
    })?;
    Ok((status, page).into_response())
}

/// Searches until the page is full, all is searched, or the bound of calls is reached.
async fn search(board: &Board, filter: Filter, cursor: &str) -> Result<Found, Fault> {
    let after = (!cursor.is_empty()).then(|| ListCursor::from(cursor.to_owned()));
    let mut list = List { filter, after, limit: JOBS_SHOWN };
    let mut all = Found::default();
    for _ in 0..SEARCH_CALLS_MAX {
        list.limit = JOBS_SHOWN - all.jobs.len();
        let page = board.client.list(&list).await?;
        all.jobs.extend(page.jobs);
        all = Found {
            searched: all.searched + page.searched,
            jobs: all.jobs,
            ..Found { jobs: Vec::new(), ..page }
        };
        if all.next.is_none() || all.jobs.len() == JOBS_SHOWN {
            break;
        }
        list.after.clone_from(&all.next);
    }
    Ok(all)
}

/// Returns the counters that fit a filter: of the store, or of its one queue. Other filters have none, nor has a store whose very many
/// queues are being counted.
async fn counts(board: &View, filter: &str) -> Result<Option<Counts>, Fault> {
    let others = terms::without_state(filter);
    let parsed = Filter::parse(&others.join(" ")).ok();
    let queue = match (&others[..], parsed.and_then(|filter| filter.queues())) {
        ([], _) => None,
        ([_], Some(queues)) if queues.len() == 1 => queues.into_iter().next(),
        _ => return Ok(None),
    };
    // A filter that is wrong was not checked.
    if board.check(Right::Read, queue.as_deref()).is_err() {
        return Ok(None);
    }
    Ok(match queue {
        Some(queue) => Some(board.client.count(Some(&queue)).await?),
        None => board.counts().await?,
    })
}

/// Returns the filter with the queues of a caller for some queues, if it names none.
fn narrowed(view: &View, filter: &str, parsed: &Filter) -> Option<String> {
    let own = view.queues()?;
    let is_queue = |term: &&str| term.strip_prefix('-').unwrap_or(term).starts_with("queue:");
    let names_some = parsed.queues().is_some() || terms::split(filter).iter().any(is_queue);
    (!names_some).then(|| format!("{} {filter}", terms::any_of("queue", own)).trim_end().to_owned())
}

/// Says how much was searched: `12 of 1,204 jobs`. A caller for some queues sees no numbers, which can count jobs of others.
fn searched(view: &View, found: &Found) -> String {
    match view.queues() {
        None => format!("{} of {}", count(found.searched), counted(found.total, "job")),
        Some(_) => "the jobs of your queues".to_owned(),
    }
}

fn tabs(filter: &str, counts: Option<&Counts>, links: &Links) -> Vec<Tab> {
    let (others, here) = (terms::without_state(filter).join(" "), terms::state(filter));
    let any = terms::split(filter).len() == terms::split(&others).len();
    let n = |of: fn(&Counts) -> u64| counts.map(|counts| count(of(counts)));
    let tab = |name, state: &str, n| Tab {
        name,
        n,
        link: links.jobs(format!("state:{state} {others}").trim()),
        is_here: here == Some(state),
    };
    vec![
        Tab { name: "All", n: n(Counts::total), link: links.jobs(&others), is_here: any },
        tab("Waiting", "waiting", n(|of| of.waiting)),
        tab("Retrying", "retrying", n(|of| of.retrying)),
        tab("Running", "running", n(|of| of.running)),
        tab("Done", "done", n(|of| of.done)),
        tab("Dead", "dead", n(|of| of.dead)),
        tab("Cancelled", "cancelled", n(|of| of.cancelled)),
    ]
}

impl Page {
    fn has_progress(&self) -> bool {
        self.rows.iter().any(|row| row.progress.is_some())
    }
}

impl Wrong {
    fn of(error: &Error) -> Self {
        Self { text: error.to_string(), hint: error.hint().unwrap_or_default().to_owned() }
    }
}

impl Row {
    fn new(job: &JobRecord, now: Timestamp, links: &Links) -> Self {
        Self {
            picked: Picked::from(job).to_string(),
            link: links.job(job.id),
            short: job.id.short(),
            id: job.id.to_string(),
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            badge: job.status(now).into(),
            cancel_requested: job.cancel_requested,
            due: (!job.state.is_ended()).then(|| Moment::new(job.run_at, now)),
            ended: job.finished_at.map(|at| Moment::new(at, now)),
            attempt: format!("{}/{}", job.attempt, job.max_attempts),
            progress: progress(job),
            last_error: cut(last_words(job), ERROR_CHARS),
        }
    }
}

/// Returns the progress that a job's run reported.
pub(super) fn progress(job: &JobRecord) -> Option<Progress> {
    let progress = job.notes.progress.as_ref()?;
    let part = progress.fraction().map(|part| (part * 100.0).floor());
    let of = progress.total.map(|total| format!("/{}", count(total))).unwrap_or_default();
    let percent = part.map(|part| format!(" ({part} %)")).unwrap_or_default();
    let message = progress.message.as_deref().map(|text| format!(" {text}")).unwrap_or_default();
    Some(Progress {
        percent: part.map(|part| part.to_string()),
        text: format!("{}{of}{percent}{message}", count(progress.done)),
    })
}

/// Returns the last error of a job, or the reason of its state.
fn last_words(job: &JobRecord) -> &str {
    let error = job.failures.last().map(|failure| failure.error.as_str());
    error.or(job.reason.as_deref()).unwrap_or_default()
}
