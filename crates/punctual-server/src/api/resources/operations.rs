//! Operations: actions on all jobs that match a filter.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header::LOCATION},
    response::{IntoResponse as _, Response},
};
use punctual::{Timestamp, store::wire::Nothing};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    activity::Via,
    api::{Api, Problem, Scope, calls, json},
    gate::Right,
    operations::{ActionName, Counted, Operation, OperationState, Order, Outcomes, Preview, shown},
};

/// The body of an order.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody {
    action: ActionName,
    filter: String,
    reason: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

/// What an order would act on.
#[derive(Serialize)]
struct PreviewView<'a> {
    action: ActionName,
    filter: &'a str,
    now_ms: Timestamp,
    count: u64,
    at_least: bool,
    by_state: Map<String, Value>,
}

/// An operation as a caller may see it.
#[derive(Serialize)]
struct View<'a> {
    id: &'a str,
    action: ActionName,
    /// `None` if it looks into payloads that are hidden from the caller.
    filter: Option<&'a str>,
    reason: Option<&'a str>,
    by: &'a str,
    token: Option<&'a str>,
    state: OperationState,
    error: Option<&'a str>,
    cancelled_by: Option<&'a str>,
    planned: u64,
    at_least: bool,
    outcomes: &'a Outcomes,
    confirmed_ms: Timestamp,
    ordered_ms: Timestamp,
    updated_ms: Timestamp,
    ended_ms: Option<Timestamp>,
}

#[derive(Serialize)]
struct Views<'a> {
    operations: Vec<View<'a>>,
}

impl<'a> View<'a> {
    fn new(of: &'a Operation, scope: &Scope) -> Self {
        Self {
            id: &of.id,
            action: of.action,
            filter: shown(&of.filter, scope.hides_payloads()),
            reason: Some(of.reason.as_str()).filter(|reason| !reason.is_empty()),
            by: &of.by,
            token: of.token.as_deref(),
            state: of.state,
            error: of.error.as_deref(),
            cancelled_by: of.cancelled_by.as_deref(),
            planned: of.planned,
            at_least: of.at_least,
            outcomes: &of.outcomes,
            confirmed_ms: of.confirmed_ms,
            ordered_ms: of.ordered_ms,
            updated_ms: of.updated_ms,
            ended_ms: of.ended_ms,
        }
    }
}

/// Counts the jobs that an order is for, and stores it as an operation, unless it is a dry run.
pub(super) async fn order(
    State(api): State<Arc<Api>>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("operations", body).await?;
    let OrderBody { action, filter, reason, dry_run } = calls::read(&body.bytes)?;
    let order = Order::new(action, &filter, &reason.unwrap_or_default())?;
    order.check(scope.caller())?;
    if !dry_run {
        order.check_reason()?;
    }
    let preview = Preview::of(&order, &api.client).await?;
    if dry_run {
        let by_state = preview.by_state.iter().map(|(state, n)| (state.name().to_owned(), (*n).into()));
        return Ok(json(calls::write(&PreviewView {
            action,
            filter: &order.text,
            now_ms: preview.now,
            count: preview.n,
            at_least: preview.is_least,
            by_state: by_state.collect(),
        })?));
    }
    let counted = Counted { at: preview.now, n: preview.n, is_least: preview.is_least };
    let operation = api.operations.order(&order, counted, &scope.actor(), Via::Api).await?;
    // Relative to the address of the request, so that it holds under any base path.
    let place = HeaderValue::try_from(format!("operations/{}", operation.id)).ok();
    let headers: HeaderMap = place.map(|place| (LOCATION, place)).into_iter().collect();
    let answer = json(calls::write(&View::new(&operation, &scope))?);
    Ok((StatusCode::CREATED, headers, answer).into_response())
}

/// Returns all operations, the newest first.
pub(super) async fn list(State(api): State<Arc<Api>>, scope: Scope) -> Result<Response, Problem> {
    let all = api.operations.all().await?;
    let operations = all.iter().map(|of| View::new(of, &scope)).collect();
    Ok(json(calls::write(&Views { operations })?))
}

/// Returns an operation.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    scope: Scope,
) -> Result<Response, Problem> {
    let operation = find(&api, &scope, &id).await?;
    Ok(json(calls::write(&View::new(&operation, &scope))?))
}

/// Cancels an operation.
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("operations", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    let operation = find(&api, &scope, &id).await?;
    scope.in_all(Right::Operate, operation.queues().as_deref())?;
    if operation.is_ended() {
        return Err(ended(operation.state));
    }
    let Some(operation) = api.operations.cancel(&id, &scope.actor(), Via::Api).await? else {
        return Err(missing(&id));
    };
    if operation.cancelled_by.is_none() {
        return Err(ended(operation.state));
    }
    Ok(json(calls::write(&View::new(&operation, &scope))?))
}

/// Returns an operation, if all queues that its filter names are those of the caller.
async fn find(api: &Api, scope: &Scope, id: &str) -> Result<Operation, Problem> {
    let found = api.operations.get(id).await?;
    let found = found.filter(|of| scope.in_all(Right::Read, of.queues().as_deref()).is_ok());
    found.ok_or_else(|| missing(id))
}

fn missing(id: &str) -> Problem {
    Problem::not_found(format!("there is no operation {id}")).with_hint("the last 100 operations are kept")
}

fn ended(state: OperationState) -> Problem {
    let detail = format!("the operation has ended: it is {}", state.name());
    Problem::new(StatusCode::CONFLICT, "wrong_state", detail)
}
