//! One job: everything that the store keeps of it, and its actions.

use std::time::Duration;

use askama::Template;
use axum::{extract::Path, http::Uri, response::Response};
use futures_util::try_join;
use punctual::{
    JobRecord, Priority, Timestamp,
    job::{Failure, LogLine},
};

use super::{
    badge::Badge,
    content::Content,
    copy, edit,
    fault::Fault,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Here, html},
    jobs::{Progress, progress},
    links::Links,
    terms::exact,
    text::{Moment, backoff, span},
    view::View,
};
use crate::{gate::Right, operations::Picked, why::sentences};

/// A failed attempt.
struct Attempt {
    number: u32,
    started: Moment,
    ran: String,
    worker: String,
    error: String,
}

/// A line of the log.
struct Line {
    attempt: u32,
    at: Moment,
    text: String,
}

/// A fact: name, text, and an address if the text is a link.
struct Fact {
    name: &'static str,
    text: String,
    link: Option<String>,
}

/// A time of the job.
struct Time {
    name: &'static str,
    at: Moment,
    distance: Moment,
    note: String,
}

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    frame: Frame,
    kind: String,
    id: String,
    badge: Badge,
    attempt: String,
    cancel_requested: bool,
    picked: String,
    reasons: Vec<String>,
    times: Vec<Time>,
    facts: Vec<Fact>,
    tags: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    hide: bool,
    progress: Option<Progress>,
    log: Vec<Line>,
    attempts: Vec<Attempt>,
    payload: Content,
    result: Option<Content>,
    /// `waiting`, `running` or `ended`.
    phase: &'static str,
    priorities: Vec<(&'static str, bool)>,
    may_operate: bool,
    /// The page on which the payload can be edited, if it can.
    edit: Option<String>,
    copy: Option<copy::Offer>,
    /// The command that prints the job.
    print: String,
}

/// Shows one job. Makes three calls to the store: the job, its queue and the time; and one more for a job that is blocked.
pub(super) async fn page(board: View, Path(id): Path<String>, uri: Uri) -> Result<Response, Fault> {
    let job = read(&board, id).await?;
    let handle = board.client.queue(&job.queue);
    let (queue, now) = try_join!(handle.show(), board.client.store().now())?;
    let reasons = sentences(&board.client, &job, queue.as_ref(), now).await;
    let (links, hidden) = (&board.links, board.hides());
    let may_operate = board.may(Right::Operate, Some(&job.queue));
    let flash = Flash::of(&Fields::of_query(&uri), links);
    html(&Page {
        frame: Frame::new(&board, Here::Jobs, format!("{} {}", job.kind, job.id.short())).with(flash),
        id: job.id.to_string(),
        badge: job.status(now).into(),
        attempt: format!("attempt {} of {}", job.attempt, job.max_attempts),
        cancel_requested: job.cancel_requested,
        picked: Picked::from(&job).to_string(),
        reasons,
        times: times(&job, now),
        facts: facts(&job, links),
        tags: job.tags.iter().map(|tag| (tag.clone(), links.jobs(&exact("tag", tag)))).collect(),
        headers: job.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        hide: hidden.is_some(),
        progress: progress(&job),
        log: job.notes.log.iter().map(|line| Line::new(line, now)).collect(),
        attempts: job.failures.iter().rev().map(|failure| Attempt::new(failure, now)).collect(),
        payload: Content::new(&job.payload, hidden),
        result: job.result.as_ref().map(|result| Content::new(result, hidden)),
        phase: if job.state.is_ended() { "ended" } else { job.state.name() },
        priorities: Priority::ALL.map(|level| (level.name(), level == job.priority)).to_vec(),
        may_operate,
        edit: Some(&job)
            .filter(|job| may_operate && edit::can(&board, job))
            .map(|job| links.job(job.id) + "/edit"),
        copy: Some(&job).filter(|_| may_operate && hidden.is_none()).map(|job| copy::Offer::new(&board, job)),
        print: format!("punctual show {} -o json", job.id),
        kind: job.kind,
    })
}

/// Reads a job by the text of its id. A caller for some queues finds no job of another one.
pub(super) async fn read(view: &View, id: String) -> Result<JobRecord, Fault> {
    let Ok(whole) = id.parse() else { return Err(Fault::NoJob(id)) };
    let job = view.client.get(whole).await?;
    job.filter(|job| view.check(Right::Read, Some(&job.queue)).is_ok()).ok_or(Fault::NoJob(id))
}

impl Line {
    fn new(line: &LogLine, now: Timestamp) -> Self {
        let at = Moment::new(Timestamp::saturating_from_ms(line.at_ms), now);
        Self { attempt: line.attempt, at, text: line.text.clone() }
    }
}

impl Attempt {
    fn new(failure: &Failure, now: Timestamp) -> Self {
        Self {
            number: failure.attempt,
            started: Moment::new(Timestamp::saturating_from_ms(failure.started_ms), now),
            ran: span(Duration::from_millis(failure.ended_ms.saturating_sub(failure.started_ms))),
            worker: failure.worker.clone(),
            error: failure.error.clone(),
        }
    }
}

fn times(job: &JobRecord, now: Timestamp) -> Vec<Time> {
    let time = |name, at, note| Time { name, at: Moment::absolute(at), distance: Moment::new(at, now), note };
    let mut times = vec![time("Created", job.created_at, String::new())];
    // A job that has ended is not due any more.
    if !job.state.is_ended() {
        times.push(time("Due", job.run_at, String::new()));
    }
    times.extend(
        job.expires_at.filter(|_| !job.state.is_ended()).map(|at| time("Expires", at, String::new())),
    );
    times.extend(job.started_at.map(|at| {
        // A job that was due before it was enqueued is late from its enqueue on.
        time("Started", at, format!("lateness {}", span(at.since(job.run_at.max(job.created_at)))))
    }));
    times.extend(job.running.as_ref().map(|running| time("Lease until", running.until, String::new())));
    times.extend(job.finished_at.map(|at| {
        let ran = job.started_at.map(|started_at| format!("ran {}", span(at.since(started_at))));
        time("Finished", at, ran.unwrap_or_default())
    }));
    times
}

fn facts(job: &JobRecord, links: &Links) -> Vec<Fact> {
    let fact = |name, text: String| Fact { name, text, link: None };
    let linked = |name, text: &str, link| Fact { name, text: text.to_owned(), link: Some(link) };
    let mut facts = vec![
        linked("Queue", &job.queue, links.queue(&job.queue)),
        linked("Kind", &job.kind, links.jobs(&exact("kind", &job.kind))),
        fact("Priority", job.priority.to_string()),
    ];
    facts.extend(job.group.as_ref().map(|group| linked("Group", group, links.jobs(&exact("group", group)))));
    facts.extend(
        job.unique.as_ref().map(|of| linked("Unique key", &of.key, links.jobs(&exact("unique", &of.key)))),
    );
    facts.extend(job.concurrency.as_ref().map(|of| {
        let text = format!("{} (at most {} at once)", of.key, of.limit);
        Fact { name: "Concurrency key", text, link: Some(links.jobs(&exact("concurrency", &of.key))) }
    }));
    facts.extend(
        job.running
            .as_ref()
            .map(|running| linked("Worker", &running.worker, links.jobs(&exact("worker", &running.worker)))),
    );
    facts.extend(job.running.as_ref().map(|running| fact("Fence", running.fence.to_string())));
    facts.push(fact("Timeout", span(job.timeout)));
    facts.extend(job.lease.map(|lease| fact("Lease", span(lease))));
    facts.push(fact("Backoff", backoff(&job.backoff)));
    if 0 < job.expired_leases {
        facts.push(fact("Expired leases in a row", job.expired_leases.to_string()));
    }
    if 0 < job.snoozes {
        facts.push(fact("Snoozes in a row", job.snoozes.to_string()));
    }
    facts.extend(job.reason.as_ref().map(|reason| fact("Reason", reason.clone())));
    facts.push(fact("Version", job.version.to_string()));
    facts
}
