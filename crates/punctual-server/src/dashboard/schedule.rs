//! One schedule: its next ticks, what it enqueues, its last runs, and pause, resume, fire and delete.

use askama::Template;
use axum::{
    extract::{Path, Request},
    http::Uri,
    response::{Redirect, Response},
};
use futures_util::try_join;
use punctual::{
    JobRecord, Payload, Timestamp,
    job::Filter,
    schedule::{NamedSchedule, ScheduleHandle, ScheduledJob, TickNote},
    store::{List, Page as Found},
};

use super::{
    badge::Badge,
    content::Content,
    fault::Fault,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Here, html},
    links::Links,
    queue::pause_note,
    schedules::misfire,
    terms::exact,
    text::{Moment, backoff, count, span, zoned},
    view::View,
};
use crate::gate::Right;

/// The ticks that are shown.
const TICKS_SHOWN: usize = 5;
/// The jobs that are searched for runs of the schedule. There is no index of them.
const RUNS_SEARCHED: usize = 200;
/// The runs that are shown.
const RUNS_SHOWN: usize = 5;
/// The headers of a job that name its schedule, and the time of its tick in Unix milliseconds.
const SCHEDULE: &str = "schedule";
const SCHEDULED_FOR: &str = "scheduled_for";

/// A pause of the schedule.
struct Pause {
    by: String,
    since: Moment,
    reason: String,
}

/// A tick: when it is by the clocks of the schedule, how far that is, and what the clocks do then.
struct Tick {
    at: String,
    distance: Moment,
    note: &'static str,
}

/// A job of the schedule that has started or ended.
struct Run {
    link: String,
    short: String,
    badge: Badge,
    tick: Option<Moment>,
    ended: Option<Moment>,
    words: String,
}

/// A fact: name, text, and an address if the text is a link.
struct Fact {
    name: &'static str,
    text: String,
    link: Option<String>,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct Page {
    frame: Frame,
    name: String,
    link: String,
    generation: u64,
    ticks: String,
    words: String,
    zone: String,
    misfire: String,
    paused: Option<Pause>,
    next: Vec<Tick>,
    /// The job that waits for the next tick: its address, its short id and its due time.
    waiting: Option<(String, String, Moment)>,
    facts: Vec<Fact>,
    headers: Vec<(String, String)>,
    hide: bool,
    payload: Content,
    /// The command that prints the schedule.
    print: String,
    runs: Vec<Run>,
    searched: String,
    by: String,
    may_operate: bool,
    may_admin: bool,
}

/// Shows one schedule. Makes four calls to the store: the schedule, its waiting tick, the time, and a search for its runs.
pub(super) async fn page(board: View, Path(name): Path<String>, uri: Uri) -> Result<Response, Fault> {
    let named = read(&board, name).await?;
    let store = board.client.store();
    let (waiting, now, found) =
        try_join!(board.client.waiting_tick(&named), store.now(), jobs(&board, &named.schedule.job))?;
    let (links, hidden) = (&board.links, board.hides());
    let (cron, job) = (&named.schedule.cron, &named.schedule.job);
    let paused = named.schedule.paused.as_ref();
    let payload =
        Payload { bytes: job.payload.clone().into_bytes(), content_type: job.content_type.clone().into() };
    html(&Page {
        frame: Frame::new(&board, Here::Schedules, &named.name)
            .with(Flash::of(&Fields::of_query(&uri), links)),
        link: links.schedule(&named.name),
        generation: named.generation,
        ticks: cron.to_string(),
        words: cron.describe(),
        zone: match (cron.expression(), cron.tz()) {
            (None, _) => "none: an interval".to_owned(),
            (_, zone) => zone.unwrap_or("UTC").to_owned(),
        },
        misfire: misfire(cron.misfire()),
        next: next(&named, now),
        paused: paused.map(|pause| Pause {
            by: pause.by.clone(),
            since: Moment::new(Timestamp::saturating_from_ms(pause.since_ms), now),
            reason: pause.reason.clone(),
        }),
        waiting: waiting.map(|tick| (links.job(tick.id), tick.id.short(), Moment::new(tick.run_at, now))),
        facts: facts(job, links),
        headers: job.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        hide: hidden.is_some(),
        payload: Content::new(&payload, hidden),
        print: format!("punctual cron show {} -o json", named.name),
        runs: runs(&found, &named.name, links),
        searched: count(found.searched),
        by: board.name().to_owned(),
        may_operate: board.may(Right::Operate, None),
        may_admin: board.may(Right::Admin, None),
        name: named.name,
    })
}

/// Pauses the schedule. Makes at least five calls to the store.
pub(super) async fn pause(
    board: View,
    Path(name): Path<String>,
    request: Request,
) -> Result<Redirect, Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    if is_stale(&board, &name, &fields).await? {
        return Ok(back(&board, &name, "stale-schedule", ""));
    }
    let (by, reason) = pause_note(&board, &fields);
    let made = shown(&board, &name, &fields).pause(&by, &reason).await;
    note(&board, "pause", &name, &reason, &made);
    made?;
    Ok(back(&board, &name, "pause-schedule", ""))
}

/// Ends the pause of the schedule. Makes at least four calls to the store.
pub(super) async fn resume(
    board: View,
    Path(name): Path<String>,
    request: Request,
) -> Result<Redirect, Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    if is_stale(&board, &name, &fields).await? {
        return Ok(back(&board, &name, "stale-schedule", ""));
    }
    let made = shown(&board, &name, &fields).resume().await;
    note(&board, "resume", &name, "", &made);
    made?;
    Ok(back(&board, &name, "resume-schedule", ""))
}

/// Enqueues the job of the schedule once, now. Makes four calls to the store.
pub(super) async fn fire(board: View, Path(name): Path<String>, request: Request) -> Result<Redirect, Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    if is_stale(&board, &name, &fields).await? {
        return Ok(back(&board, &name, "stale-schedule", ""));
    }
    let made = board.client.schedule(&name).fire().await;
    note(&board, "fire", &name, "", &made);
    let id = made?.id();
    Ok(back(&board, &name, "fire", &id.map(|id| id.to_string()).unwrap_or_default()))
}

/// Deletes the schedule, if the form has its name. Makes at least three calls to the store.
pub(super) async fn delete(
    board: View,
    Path(name): Path<String>,
    request: Request,
) -> Result<Redirect, Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    if fields.exact("name") != Some(&name) {
        return Ok(back(&board, &name, "misnamed-schedule", ""));
    }
    if is_stale(&board, &name, &fields).await? {
        return Ok(back(&board, &name, "stale-schedule", ""));
    }
    let made = shown(&board, &name, &fields).remove().await;
    note(&board, "remove", &name, "", &made);
    made?;
    Ok(Redirect::to(&board.links.query("schedules", &[("did", "delete-schedule")])))
}

async fn read(view: &View, name: String) -> Result<NamedSchedule, Fault> {
    view.client.schedule(&name).get().await?.ok_or(Fault::NoSchedule(name))
}

/// Returns a handle that changes the schedule only as the page of the form showed it.
fn shown(view: &View, name: &str, fields: &Fields) -> ScheduleHandle {
    view.client.schedule(name).if_generation(fields.number("generation"))
}

/// Whether the schedule has changed since the page of the form was made.
async fn is_stale(view: &View, name: &str, fields: &Fields) -> Result<bool, Fault> {
    Ok(read(view, name.to_owned()).await?.generation != fields.number("generation"))
}

fn back(view: &View, name: &str, did: &str, other: &str) -> Redirect {
    let query = view.links.query("", &[("did", did), ("other", other)]);
    let (_, query) = query.split_once('?').unwrap_or_default();
    Redirect::to(&format!("{}?{query}", view.links.schedule(name)))
}

/// Says a change of a schedule in the activity log.
fn note<T>(view: &View, action: &str, name: &str, reason: &str, made: &punctual::Result<T>) {
    let entry = view.entry(action).document(&format!("schedule/{name}")).reason(reason);
    view.activity.note(entry, made);
}

/// Reads jobs like those of the schedule.
async fn jobs(view: &View, job: &ScheduledJob) -> punctual::Result<Found> {
    let filter = Filter::parse(&format!("{} {}", exact("queue", &job.queue), exact("kind", &job.kind)))?;
    view.client.list(&List { filter, after: None, limit: RUNS_SEARCHED }).await
}

fn next(named: &NamedSchedule, now: Timestamp) -> Vec<Tick> {
    let cron = &named.schedule.cron;
    let ticks = std::iter::successors(cron.next(now), |tick| cron.next(*tick)).take(TICKS_SHOWN);
    let tick = |at| Tick {
        at: zoned(at, cron.tz()),
        distance: Moment::new(at, now),
        note: match cron.note(at) {
            None => "",
            Some(TickNote::BehindGap) => {
                "the clock leaves out the requested time; this is right after the gap"
            }
            Some(TickNote::FirstOfTwo) => "the clock shows this time twice; this is the first",
            Some(TickNote::SecondOfTwo) => "the clock shows this time twice; this is the second",
        },
    };
    ticks.map(tick).collect()
}

/// Returns the jobs of a schedule that have started, the last ones first.
fn runs(found: &Found, name: &str, links: &Links) -> Vec<Run> {
    let is_own = |job: &&JobRecord| job.headers.get(SCHEDULE).is_some_and(|of| of == name);
    let is_run = |job: &&JobRecord| job.state.is_ended() || job.running.is_some() || 1 < job.attempt;
    let mut own: Vec<(Option<Timestamp>, &JobRecord)> =
        found.jobs.iter().filter(is_own).filter(is_run).map(|job| (tick(job), job)).collect();
    own.sort_by_key(|(tick, job)| std::cmp::Reverse((*tick, job.created_at)));
    let run = |(tick, job): (Option<Timestamp>, &JobRecord)| Run {
        link: links.job(job.id),
        short: job.id.short(),
        badge: job.status(found.now).into(),
        tick: tick.map(|at| Moment::new(at, found.now)),
        ended: job.finished_at.map(|at| Moment::new(at, found.now)),
        words: job
            .failures
            .last()
            .map(|failure| failure.error.clone())
            .or(job.reason.clone())
            .unwrap_or_default(),
    };
    own.into_iter().take(RUNS_SHOWN).map(run).collect()
}

/// Returns the time of the tick that a job stands for.
fn tick(job: &JobRecord) -> Option<Timestamp> {
    Timestamp::from_ms(job.headers.get(SCHEDULED_FOR)?.parse().ok()?).ok()
}

fn facts(job: &ScheduledJob, links: &Links) -> Vec<Fact> {
    let fact = |name, text: String| Fact { name, text, link: None };
    let linked = |name, text: &str, link| Fact { name, text: text.to_owned(), link: Some(link) };
    let options = &job.options;
    let mut facts = vec![
        linked("Kind", &job.kind, links.jobs(&exact("kind", &job.kind))),
        linked("Queue", &job.queue, links.queue(&job.queue)),
    ];
    facts.extend(job.group.as_ref().map(|group| linked("Group", group, links.jobs(&exact("group", group)))));
    facts.extend(
        job.concurrency
            .as_ref()
            .map(|of| fact("Concurrency key", format!("{} (at most {} at once)", of.key, of.limit))),
    );
    facts.extend(options.priority.map(|level| fact("Priority", level.to_string())));
    facts.extend(options.max_attempts.map(|n| fact("Attempts", count(n.into()))));
    facts.extend(options.backoff.as_ref().map(|of| fact("Backoff", backoff(of))));
    facts.extend(options.timeout.map(|timeout| fact("Timeout", span(timeout))));
    facts.extend(options.lease.map(|lease| fact("Lease", span(lease))));
    if !job.tags.is_empty() {
        facts.push(fact("Tags", job.tags.join(", ")));
    }
    facts
}
