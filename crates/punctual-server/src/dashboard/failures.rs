//! Failures: dead and retrying jobs, grouped by what their errors have in common.

use std::{cmp::Reverse, collections::BTreeMap};

use askama::Template;
use axum::response::Response;
use punctual::{JobId, JobRecord, State, Timestamp, job::Filter, store::List};

use super::{
    Board,
    fault::Fault,
    fingerprint::Fingerprint,
    frame::{Frame, Here, html},
    links::Links,
    terms::exact,
    text::{Moment, count, counted},
    view::View,
};

/// The jobs that one call reads.
const JOBS_READ: usize = 500;
/// The most calls for the jobs of one state.
const CALLS_MAX: usize = 4;
/// The most groups that are shown, those with most jobs first.
const GROUPS_SHOWN: usize = 100;

/// Jobs of one kind whose errors have the same fingerprint.
struct Group {
    dead: u64,
    retrying: u64,
    first: Timestamp,
    last: Timestamp,
    /// The job that failed last, and its error.
    sample: JobId,
    error: String,
}

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
    searched: String,
    total: String,
    is_part: bool,
    done: String,
}

/// What a search found.
#[derive(Default)]
struct Search {
    now: Timestamp,
    jobs: Vec<JobRecord>,
    searched: u64,
    total: u64,
    is_part: bool,
}

/// Shows groups of failures. Makes at most nine calls to the store: four each for dead and retrying jobs, which read up
/// to 2,000 matches each, and one for the counters.
pub(super) async fn page(board: View) -> Result<Response, Fault> {
    let mut search = Search::default();
    search.read(&board, "state:dead").await?;
    search.read(&board, "state:retrying").await?;
    let done = board.client.count(None).await?.done;
    let groups = groups(&search.jobs);
    let mut rows: Vec<(&Key, &Group)> = groups.iter().collect();
    rows.sort_by_key(|(_, group)| Reverse((group.dead + group.retrying, group.last)));
    let more = rows.len().checked_sub(GROUPS_SHOWN).filter(|more| 0 < *more);
    rows.truncate(GROUPS_SHOWN);
    html(&Page {
        frame: Frame::new(&board, Here::Failures, "Failures"),
        n: counted(groups.len() as u64, "group"),
        groups: rows.into_iter().map(|(key, group)| Row::new(key, group, search.now, &board.links)).collect(),
        more: more.map(|more| count(more as u64)),
        failures: counted(search.jobs.len() as u64, "job"),
        searched: count(search.searched),
        total: count(search.total),
        is_part: search.is_part,
        done: count(done),
    })
}

impl Search {
    async fn read(&mut self, board: &Board, filter: &str) -> Result<(), Fault> {
        let mut list = List { filter: Filter::parse(filter)?, after: None, limit: JOBS_READ };
        for _ in 0..CALLS_MAX {
            let page = board.client.list(&list).await?;
            self.searched += page.searched;
            (self.now, self.total) = (page.now, page.total);
            self.jobs
                .extend(page.jobs.into_iter().filter(|job| !job.failures.is_empty() || job.reason.is_some()));
            list.after = page.next;
            if list.after.is_none() {
                return Ok(());
            }
        }
        self.is_part = true;
        Ok(())
    }
}

/// What the jobs of a group have in common.
type Key = (String, Fingerprint);

fn groups(jobs: &[JobRecord]) -> BTreeMap<Key, Group> {
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    for job in jobs {
        let failure = job.failures.last();
        let error =
            failure.map(|failure| failure.error.as_str()).or(job.reason.as_deref()).unwrap_or_default();
        let ended = failure.map(|failure| Timestamp::saturating_from_ms(failure.ended_ms));
        let at = ended.or(job.finished_at).unwrap_or(job.run_at);
        let group = groups.entry((job.kind.clone(), Fingerprint::of(error))).or_insert_with(|| Group {
            dead: 0,
            retrying: 0,
            first: at,
            last: Timestamp::default(),
            sample: job.id,
            error: String::new(),
        });
        group.first = group.first.min(at);
        if group.last <= at {
            (group.last, group.sample) = (at, job.id);
            error.clone_into(&mut group.error);
        }
        if job.state == State::Dead { group.dead += 1 } else { group.retrying += 1 }
    }
    groups
}

impl Row {
    fn new((kind, fingerprint): &Key, group: &Group, now: Timestamp, links: &Links) -> Self {
        // Each error of the group contains the literal part.
        let error = if fingerprint.literal.is_empty() { String::new() } else { quoted(&fingerprint.literal) };
        let filter = format!("state:dead,retrying {} {error}", exact("kind", kind));
        Self {
            kind: kind.clone(),
            text: fingerprint.text.clone(),
            error: group.error.clone(),
            dead: count(group.dead),
            retrying: count(group.retrying),
            total: count(group.dead + group.retrying),
            first: Moment::new(group.first, now),
            last: Moment::new(group.last, now),
            sample: links.job(group.sample),
            short: group.sample.short(),
            jobs: links.jobs(filter.trim()),
        }
    }
}

fn quoted(text: &str) -> String {
    exact("error", text)
}
