//! Acting on all jobs that match a filter: the page that asks for confirmation.

use askama::Template;
use axum::{extract::Request, response::Response};
use punctual::State;

use super::{
    act,
    badge::Badge,
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    text::{Moment, clock, count},
    view::View,
    words,
};
use crate::operations::{ActionName, Order, Preview, STEP_JOBS};

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

/// Reads the order of a form, and checks that its caller may give it. Returns the order and all fields.
pub(super) async fn read(view: &View, request: Request) -> Result<(Order, Fields), Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    let Some(name) = ActionName::parse(fields.get("action")) else {
        let text = "The form names no action for all jobs that match.".to_owned();
        return Err(Fault::Form(text, "Load the page again.".to_owned()));
    };
    let order = Order::new(name, fields.get("filter"), fields.get("reason"))?;
    order.check(view.caller())?;
    Ok((order, fields))
}

/// Asks for confirmation: counts the jobs that match, up to a bound, and changes nothing.
pub(super) async fn preview(board: View, request: Request) -> Result<Response, Fault> {
    let (order, ..) = read(&board, request).await?;
    let preview = Preview::of(&order, &board.client).await?;
    let (links, action) = (&board.links, order.action());
    let verb = act::verb(&action);
    let samples = preview.first.iter().map(|job| Sample {
        link: links.job(job.id),
        short: job.id.short(),
        kind: job.kind.clone(),
        queue: job.queue.clone(),
        badge: job.status(preview.now).into(),
        created: Moment::new(job.created_at, preview.now),
    });
    let parts = preview.by_state.iter().filter(|(_, n)| 0 < *n);
    html(&Ask {
        frame: Frame::new(&board, Here::Jobs, format!("{verb} all jobs that match?")).still(),
        verb,
        note: act::note(&action),
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
        fields: vec![
            ("action", order.name.name().to_owned()),
            ("confirmed", preview.now.as_ms().to_string()),
            ("planned", preview.n.to_string()),
            ("least", u8::from(preview.is_least).to_string()),
            ("filter", order.text.clone()),
        ],
        filter: order.text,
    })
}

/// Returns a number that may be too small: `10,000+`.
pub(super) fn at_least(n: u64, is_least: bool) -> String {
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
    if order.name == ActionName::Retry {
        lines.push("jobs whose unique key another job holds".to_owned());
    }
    lines
}
