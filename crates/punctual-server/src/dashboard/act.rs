//! Actions on selected jobs: a page that asks for confirmation, and the action itself.

use askama::Template;
use axum::{
    extract::Request,
    response::{IntoResponse, Redirect, Response},
};
use punctual::{
    Priority, State, When,
    job::parse_duration,
    limits::BATCH_MAX,
    store::{Action, Target},
};

use super::{
    fault::Fault,
    fields::Fields,
    flash,
    frame::{Frame, Here, html},
    links::Links,
    text::{count, counted, read_instant},
    view::View,
};
use crate::{
    gate::Right,
    operations::{Outcomes, Picked, is_fit, reason_of},
};

/// The most jobs that the page lists by id.
const IDS_SHOWN: usize = 20;

/// What a form asks for: an action on jobs, and the page to return to.
struct Wanted {
    jobs: Vec<Picked>,
    action: Action,
    back: Back,
}

/// The page that the form is on.
enum Back {
    Jobs { filter: String, cursor: String },
    Job,
}

/// Jobs of one state, and whether the action is possible in it.
struct Part {
    state: State,
    n: String,
    is_fit: bool,
}

#[derive(Template)]
#[template(path = "confirm.html")]
struct Page {
    frame: Frame,
    verb: &'static str,
    name: &'static str,
    jobs: Vec<Picked>,
    n: String,
    shown: Vec<(String, String)>,
    more: Option<String>,
    parts: Vec<Part>,
    asks_reason: bool,
    back: String,
    from: &'static str,
    filter: String,
    cursor: String,
    note: &'static str,
}

/// Asks for confirmation. Makes no call to the store.
pub(super) async fn confirm(board: View, request: Request) -> Result<Response, Fault> {
    let Wanted { jobs, action, back } = Wanted::read(&board, request).await?;
    let links = &board.links;
    if jobs.is_empty() {
        return Ok(Redirect::to(&back.link(links, &[], &[("did", "none".to_owned())])).into_response());
    }
    let more = jobs.len().checked_sub(IDS_SHOWN).filter(|more| 0 < *more);
    let (filter, cursor) = back.search();
    let verb = verb(&action);
    html(&Page {
        frame: Frame::new(&board, Here::Jobs, format!("{verb} {}?", counted(jobs.len() as u64, "job")))
            .still(),
        verb,
        name: action.name(),
        n: counted(jobs.len() as u64, "job"),
        shown: jobs.iter().take(IDS_SHOWN).map(|job| (links.job(job.id), job.id.short())).collect(),
        more: more.map(|more| count(more as u64)),
        parts: parts(&jobs, &action),
        asks_reason: matches!(action, Action::Cancel { .. }),
        back: back.link(links, &jobs, &[]),
        from: if matches!(back, Back::Job) { "job" } else { "jobs" },
        filter: filter.to_owned(),
        cursor: cursor.to_owned(),
        note: note(&action),
        jobs,
    })
}

/// Acts on jobs, and returns to the page that the form is on. Makes one call to the store.
///
/// A job that has changed since the page was made is left alone.
pub(super) async fn act(board: View, request: Request) -> Result<Redirect, Fault> {
    let Wanted { jobs, action, back } = Wanted::read(&board, request).await?;
    if jobs.is_empty() {
        return Ok(Redirect::to(&back.link(&board.links, &[], &[("did", "none".to_owned())])));
    }
    let targets: Vec<Target> = jobs.iter().map(Picked::target).collect();
    let acted = board.client.act(&targets, &action).await;
    let outcomes = acted.as_ref().map(|acted| Outcomes::of(&jobs, acted, &action)).unwrap_or_default();
    let entry = board.entry(&action.name().replace('-', "_")).reason(reason_of(&action));
    board.activity.note(entry.jobs(jobs.iter().map(|job| job.id), &outcomes), &acted);
    acted?;
    let is_gone = matches!(action, Action::Delete) && 0 < outcomes.done;
    // A deleted job has no page to return to.
    let back = if is_gone && matches!(back, Back::Job) { Back::jobs() } else { back };
    Ok(Redirect::to(&back.link(&board.links, &jobs, &flash::pairs(&outcomes, action.name()))))
}

impl Wanted {
    /// Reads a form, and checks that its caller may act on these jobs. A job that is in another queue is left alone.
    async fn read(view: &View, request: Request) -> Result<Self, Fault> {
        let wanted = Self::of(&Fields::of_form(request.into_body()).await?)?;
        wanted.jobs.iter().try_for_each(|job| view.check(Right::Operate, Some(&job.queue)))?;
        Ok(wanted)
    }

    fn of(fields: &Fields) -> Result<Self, Fault> {
        let jobs = fields.all("job").map(|text| {
            text.parse().map_err(|()| form("a job of the form cannot be read", "Load the page again."))
        });
        let jobs = jobs.collect::<Result<Vec<Picked>, Fault>>()?;
        if BATCH_MAX < jobs.len() {
            return Err(Fault::TooLarge);
        }
        let back = match fields.get("from") {
            "job" => Back::Job,
            _ => Back::Jobs {
                filter: fields.get("filter").to_owned(),
                cursor: fields.get("cursor").to_owned(),
            },
        };
        Ok(Self { jobs, action: action(fields)?, back })
    }
}

fn form(text: &str, hint: &str) -> Fault {
    Fault::Form(text.to_owned(), hint.to_owned())
}

fn action(fields: &Fields) -> Result<Action, Fault> {
    Ok(match fields.get("action") {
        "cancel" => {
            Action::Cancel { reason: Some(fields.get("reason").to_owned()).filter(|text| !text.is_empty()) }
        }
        "retry" => Action::Retry,
        "run-now" => Action::RunNow,
        "delete" => Action::Delete,
        "reprioritise" => Action::Reprioritise(fields.get("priority").parse::<Priority>()?),
        "reschedule" => Action::Reschedule(when(fields.get("delay"), fields.get("at"))?),
        _ => {
            return Err(form(
                "The form names no action.",
                "Load the page again, and use one of its buttons.",
            ));
        }
    })
}

/// Reads the new due time: a delay, or a date and time in UTC.
fn when(delay: &str, at: &str) -> Result<When, Fault> {
    match (delay, at) {
        ("", "") => {
            Err(form("A new due time is missing.", "Write a delay such as 15m, or choose a date and time."))
        }
        (delay, "") => Ok(When::In(parse_duration(delay)?)),
        ("", at) => match read_instant(at) {
            Some(instant) => Ok(When::At(instant)),
            None => Err(form("The date and time cannot be read.", "Write it as 2026-12-24T18:00, in UTC.")),
        },
        _ => Err(form("A delay and a time were given.", "Give only one of them.")),
    }
}

impl Back {
    const fn jobs() -> Self {
        Self::Jobs { filter: String::new(), cursor: String::new() }
    }

    fn search(&self) -> (&str, &str) {
        match self {
            Self::Jobs { filter, cursor } => (filter, cursor),
            Self::Job => ("", ""),
        }
    }

    /// Returns the address of the page, with further fields.
    fn link(&self, links: &Links, jobs: &[Picked], more: &[(&'static str, String)]) -> String {
        let (filter, cursor) = self.search();
        let mut pairs = vec![("filter", filter), ("cursor", cursor)];
        pairs.extend(more.iter().map(|(name, value)| (*name, value.as_str())));
        let page = match (self, jobs) {
            (Self::Job, [job, ..]) => format!("jobs/{}", job.id),
            _ => "jobs".to_owned(),
        };
        links.query(&page, &pairs)
    }
}

fn parts(jobs: &[Picked], action: &Action) -> Vec<Part> {
    let part = |state: State| {
        let n = jobs.iter().filter(|job| job.state == state).count() as u64;
        (0 < n).then(|| Part { state, n: count(n), is_fit: is_fit(action, state) })
    };
    State::ALL.into_iter().filter_map(part).collect()
}

pub(super) const fn verb(action: &Action) -> &'static str {
    match action {
        Action::Cancel { .. } => "Cancel",
        Action::Reschedule(_) | Action::RescheduleBy(_) => "Reschedule",
        Action::RunNow => "Run now",
        Action::Reprioritise(_) => "Change priority of",
        Action::EditPayload(_) => "Edit",
        Action::Retry => "Retry",
        Action::Delete => "Delete",
    }
}

/// Says what the action does.
pub(super) const fn note(action: &Action) -> &'static str {
    match action {
        Action::Cancel { .. } => {
            "A waiting job is cancelled at once. The worker of a running job asks its handler to stop."
        }
        Action::Retry => {
            "A retried job is due now, and begins again with attempt 1. A done job runs a second time."
        }
        Action::Delete => "The record is removed with its history. This cannot be undone.",
        Action::RunNow => "The jobs are due now. Limits and pauses still apply.",
        _ => "",
    }
}
