//! Operations: the order that a form gives, the list, and the progress of one.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::{Redirect, Response},
};
use futures_util::try_join;
use punctual::Timestamp;

use super::{
    act,
    fault::Fault,
    frame::{Frame, Here, html},
    links::Links,
    matching::{self, at_least},
    text::{Moment, count, counted, cut},
    view::View,
    words,
};
use crate::{
    activity::Via,
    gate::{Refusal, Right},
    operations::{Counted, Operation, OperationState, may},
};

/// Characters of a filter in the list.
const FILTER_CHARS: usize = 200;
/// What stands for a filter that the caller must not see.
const HIDDEN: &str = "hidden: it looks into payloads";

/// The state of an operation, as a word and a shape.
struct Mark {
    name: &'static str,
    class: &'static str,
    shape: &'static str,
}

impl Mark {
    fn of(operation: &Operation) -> Self {
        let (class, shape) = match operation.state {
            OperationState::Running => ("running", "M3 2l7 4-7 4z"),
            OperationState::Done => ("done", "M2 6.5 5 9.5 10 3"),
            OperationState::Cancelled => ("cancelled", "M2.5 2.5l7 7M9.5 2.5l-7 7"),
            OperationState::Failed => ("dead", "M6 2v5M6 9.5v.5"),
        };
        let name = if operation.is_stopping() { "stopping" } else { operation.state.name() };
        Self { name, class, shape }
    }
}

struct Row {
    link: String,
    verb: &'static str,
    filter: String,
    mark: Mark,
    done: String,
    planned: String,
    by: String,
    ordered: Moment,
}

#[derive(Template)]
#[template(path = "operations.html")]
struct List {
    frame: Frame,
    rows: Vec<Row>,
}

#[derive(Template)]
#[template(path = "operation.html")]
struct Page {
    frame: Frame,
    verb: &'static str,
    mark: Mark,
    filter: String,
    clauses: Vec<String>,
    /// The part that is handled, in percent.
    percent: Option<u64>,
    facts: Vec<(&'static str, String)>,
    other: Option<(String, String)>,
    error: Option<String>,
    is_ended: bool,
    is_stopping: bool,
    cancel: Option<String>,
    back: Option<String>,
    here: String,
}

/// Lists operations, the newest first. Makes two calls to the store.
pub(super) async fn list(board: View) -> Result<Response, Fault> {
    let (all, now) = try_join!(board.operations.all(), board.client.store().now())?;
    let row = |of: &Operation| Row {
        link: link(&board.links, &of.id),
        verb: act::verb(&of.action.action("")),
        filter: board.shown(&of.filter).map_or_else(|| HIDDEN.to_owned(), |text| cut(text, FILTER_CHARS)),
        mark: Mark::of(of),
        done: count(of.outcomes.done.saturating_add(of.outcomes.requested)),
        planned: at_least(of.planned, of.at_least),
        by: of.by.clone(),
        ordered: Moment::new(of.ordered_ms, now),
    };
    let frame = Frame::new(&board, Here::Operations, "Operations");
    let is_moving = all.iter().any(|operation| !operation.is_ended());
    html(&List { frame: if is_moving { frame.moving() } else { frame }, rows: all.iter().map(row).collect() })
}

/// Gives the order of a form, and leads to its page.
pub(super) async fn order(board: View, request: Request) -> Result<Redirect, Fault> {
    let (order, fields) = matching::read(&board, request).await?;
    let counted = Counted {
        at: Timestamp::saturating_from_ms(fields.number("confirmed")),
        n: fields.number("planned"),
        is_least: fields.number("least") == 1,
    };
    let operation = board.operations.order(&order, counted, &board.actor(), Via::Dashboard).await?;
    Ok(Redirect::to(&link(&board.links, &operation.id)))
}

/// Shows how far an operation has come. Makes two calls to the store.
pub(super) async fn page(board: View, Path(id): Path<String>) -> Result<Response, Fault> {
    let (of, now) = try_join!(board.operations.get(&id), board.client.store().now())?;
    let Some(of) = of.filter(|of| reads(&board, of)) else { return Err(Fault::NoOperation(id)) };
    let links = &board.links;
    let verb = act::verb(&of.action.action(""));
    let filter = board.shown(&of.filter);
    let handled = of.outcomes.total();
    let percent = handled.saturating_mul(100).checked_div(of.planned).map(|percent| percent.min(100));
    let mark = Mark::of(&of);
    let frame = Frame::new(&board, Here::Operations, format!("{verb} all that match: {}", mark.name));
    html(&Page {
        frame: if of.is_ended() { frame } else { frame.moving() },
        verb,
        mark,
        clauses: filter.map(words::clauses).unwrap_or_default(),
        percent: percent.filter(|_| !of.is_ended()),
        facts: facts(&of, now),
        other: of.outcomes.other.map(|id| (links.job(id), id.short())),
        error: of.error.clone(),
        is_ended: of.is_ended(),
        is_stopping: of.is_stopping(),
        cancel: (!of.is_ended()
            && !of.is_stopping()
            && !board.options.read_only
            && check(&board, Right::Operate, &of).is_ok())
        .then(|| format!("{}/cancel", link(links, &of.id))),
        back: filter.map(|filter| links.jobs(filter)),
        here: link(links, &of.id),
        filter: filter.unwrap_or(HIDDEN).to_owned(),
    })
}

/// Cancels an operation, and returns to its page.
pub(super) async fn cancel(board: View, Path(id): Path<String>) -> Result<Redirect, Fault> {
    let of = board.operations.get(&id).await?.filter(|of| reads(&board, of));
    let Some(of) = of else { return Err(Fault::NoOperation(id)) };
    check(&board, Right::Operate, &of)?;
    board.operations.cancel(&id, &board.actor(), Via::Dashboard).await?;
    Ok(Redirect::to(&link(&board.links, &id)))
}

fn link(links: &Links, id: &str) -> String {
    links.to(&format!("operations/{id}"))
}

/// Checks that the caller has a right in all queues that the filter of an operation names.
fn check(view: &View, right: Right, of: &Operation) -> Result<(), Refusal> {
    view.caller().map_or(Ok(()), |caller| may(caller, right, of.queues().as_deref()))
}

/// Whether the caller may know of an operation.
fn reads(view: &View, of: &Operation) -> bool {
    check(view, Right::Read, of).is_ok()
}

/// Says how far an operation has come.
fn facts(of: &Operation, now: Timestamp) -> Vec<(&'static str, String)> {
    let outcomes = &of.outcomes;
    let mut facts =
        vec![("Counted", at_least(of.planned, of.at_least)), ("Done", counted(outcomes.done, "job"))];
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
    let is_least = of.at_least && of.state != OperationState::Done;
    facts.push(("Left", at_least(of.left(), is_least)));
    if !of.reason.is_empty() {
        facts.push(("Reason", of.reason.clone()));
    }
    facts.push(("Ordered", format!("{} by {}", super::text::relative(of.ordered_ms, now), of.by)));
    facts.extend(of.cancelled_by.as_ref().map(|by| ("Cancelled", format!("by {by}"))));
    let took = of.ended_ms.map(|at| super::text::span(at.since(of.ordered_ms)));
    facts.extend(took.map(|took| ("Took", took)));
    facts
}
