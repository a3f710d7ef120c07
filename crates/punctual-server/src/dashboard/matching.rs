//! Acting on all jobs that match a filter: a page that asks for confirmation, and the steps of the action.

use askama::Template;
use axum::{extract::Request, response::Response};
use punctual::{State, store::Action};

use super::{
    act,
    badge::Badge,
    fault::Fault,
    frame::{Frame, Here, html},
    order::Order,
    preview::Preview,
    step::{Course, STEP_JOBS},
    text::{Moment, clock, count, counted},
    view::View,
    words,
};

/// A job that the preview shows.
struct Sample {
    link: String,
    short: String,
    kind: String,
    queue: String,
    badge: Badge,
    created: Moment,
}

#[derive(Template)]
#[template(path = "matching.html")]
struct Ask {
    frame: Frame,
    verb: &'static str,
    note: &'static str,
    filter: String,
    clauses: Vec<String>,
    n: String,
    is_none: bool,
    is_least: bool,
    parts: Vec<(&'static str, String)>,
    samples: Vec<Sample>,
    skipped: Vec<String>,
    at: String,
    most: String,
    asks_reason: bool,
    back: String,
    fields: Vec<(&'static str, String)>,
}

#[derive(Template)]
#[template(path = "progress.html")]
struct Progress {
    frame: Frame,
    verb: &'static str,
    filter: String,
    is_end: bool,
    facts: Vec<(&'static str, String)>,
    other: Option<(String, String)>,
    back: String,
    fields: Vec<(&'static str, String)>,
}

/// Asks for confirmation: counts the jobs that match, up to a bound, and changes nothing.
pub(super) async fn preview(board: View, request: Request) -> Result<Response, Fault> {
    let (order, _) = Order::read(request).await?;
    let preview = Preview::of(&order, &board).await?;
    let (links, verb) = (&board.links, act::verb(&order.action));
    let samples = preview.first.iter().map(|job| Sample {
        link: links.job(job.id),
        short: job.id.short(),
        kind: job.kind.clone(),
        queue: job.queue.clone(),
        badge: job.status(preview.now).into(),
        created: Moment::new(job.created_at, preview.now),
    });
    let parts = preview.by_state.iter().filter(|(_, n)| 0 < *n);
    let course = Course::begin(preview.now, preview.n, preview.is_least);
    html(&Ask {
        frame: Frame::new(&board, Here::Jobs, format!("{verb} all jobs that match?")).still(),
        verb,
        note: act::note(&order.action),
        clauses: words::clauses(&order.text),
        n: at_least(preview.n, preview.is_least),
        is_none: preview.n == 0 && !preview.is_least,
        is_least: preview.is_least,
        parts: parts.map(|(state, n)| (state.name(), count(*n))).collect(),
        samples: samples.collect(),
        skipped: skipped(&order),
        at: clock(preview.now, "%H:%M:%S"),
        most: count(STEP_JOBS as u64),
        asks_reason: order.asks_reason(),
        back: links.jobs(&order.text),
        fields: course.pairs(&order),
        filter: order.text,
    })
}

/// Takes the next step of the action, and shows how far it has come.
pub(super) async fn act(board: View, request: Request) -> Result<Response, Fault> {
    let (order, fields) = Order::read(request).await?;
    if order.asks_reason() && order.reason().is_empty() {
        return Err(Fault::Form(
            "A reason is missing. Nothing was changed.".to_owned(),
            "Go back, and write why the jobs are cancelled. The reason is kept with them.".to_owned(),
        ));
    }
    let mut course = Course::of(&fields);
    let is_end = course.step(&order, &board).await?;
    let (links, verb) = (&board.links, act::verb(&order.action));
    let mut fields = course.pairs(&order);
    fields.push(("reason", order.reason().to_owned()));
    let title = if is_end { format!("{verb}: finished") } else { format!("{verb}: not finished") };
    html(&Progress {
        frame: Frame::new(&board, Here::Jobs, title).still(),
        verb,
        is_end,
        facts: facts(&course, is_end),
        other: course.outcomes.other.map(|id| (links.job(id), id.short())),
        back: links.jobs(&order.text),
        fields,
        filter: order.text,
    })
}

/// Returns a number that may be too small: `10,000+`.
fn at_least(n: u64, is_least: bool) -> String {
    if is_least { format!("{}+", count(n)) } else { count(n) }
}

/// Says what the order leaves alone.
fn skipped(order: &Order) -> Vec<String> {
    let mut lines = Vec::new();
    if !order.unfit.is_empty() {
        let names: Vec<&str> = order.unfit.iter().copied().map(State::name).collect();
        lines.push(format!("jobs that match and are {}", names.join(" or ")));
    }
    lines.push("jobs that no longer match, and jobs that change while a step runs".to_owned());
    if matches!(order.action, Action::Retry) {
        lines.push("jobs whose unique key another job holds".to_owned());
    }
    lines
}

/// Says how far an order has come.
fn facts(course: &Course, is_end: bool) -> Vec<(&'static str, String)> {
    let outcomes = &course.outcomes;
    let left = if is_end { count(0) } else { at_least(course.left(), course.is_least) };
    let mut facts = vec![("Done", counted(outcomes.done, "job"))];
    if 0 < outcomes.requested {
        facts.push(("Asked to stop", counted(outcomes.requested, "running job")));
    }
    facts.push(("Skipped", counted(outcomes.skipped(), "job")));
    let causes = [
        ("… changed or gone", outcomes.moved.saturating_add(outcomes.gone).saturating_add(outcomes.unfit)),
        ("… unique key taken", outcomes.taken),
        ("… group or key in another shard", outcomes.elsewhere),
    ];
    facts.extend(causes.into_iter().filter(|(_, n)| 0 < *n).map(|(name, n)| (name, count(n))));
    facts.push(("Left", left));
    facts
}
