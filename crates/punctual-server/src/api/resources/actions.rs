//! Actions on one job.

use axum::{
    http::{HeaderMap, StatusCode},
    response::Response,
};
use punctual::{
    Error, JobId, Priority, State, Timestamp,
    store::{
        Acted, Action, Guard, Selector, Target,
        wire::{ActedBody, ActionBody, Nothing},
    },
};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{ATTEMPTS, headers};
use crate::{
    api::{Api, Problem, Scope, calls, json},
    gate::Right,
};

/// Does an action on a job, if it is in a queue of the caller, and has the version of `If-Match`.
pub(super) async fn act(
    api: &Api,
    scope: &Scope,
    id: &str,
    headers: &HeaderMap,
    action: &Action,
) -> Result<Response, Problem> {
    let id: JobId = id.parse()?;
    let versions = headers::versions(headers)?;
    let not_found = || Problem::not_found(format!("there is no job {id}"));
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let job = scope.job(api.client.get(id).await?).ok_or_else(not_found)?;
        scope.in_queues(Right::Operate, [job.queue.as_str()])?;
        if let Some(versions) = &versions {
            headers::allowed("job", versions, Some(job.version))?;
        }
        // It is still as it was when the store refused the action, so it is not the guard that was refused.
        if refused == Some((job.state, job.version)) {
            return Err(wrong_state(job.state, action));
        }
        refused = Some((job.state, job.version));
        // So that a job that moves on after it was read is read again.
        let version = versions.is_some().then_some(job.version);
        let guard = Guard { queue: job.queue, state: job.state, version };
        let target = Target { selector: Selector::Id(id), guard: Some(guard) };
        let targets = [target];
        let acted = api.client.store().act(&targets, action).await;
        let is_done = matches!(acted.as_deref(), Ok([Acted::Done(..) | Acted::Requested(_)]));
        if is_done || acted.is_err() {
            calls::note_act(api, scope, &targets, action, &acted);
        }
        match acted?.into_iter().next() {
            Some(acted @ (Acted::Done(..) | Acted::Requested(_))) => {
                return Ok(json(calls::write(&ActedBody::from(acted))?));
            }
            Some(Acted::WrongState(..)) => {}
            Some(Acted::UniqueConflict(other)) => {
                let detail = format!("the job {other} holds the unique key of the job");
                return Err(conflict("unique_conflict", detail)
                    .with_hint("wait until that job has ended, or cancel it"));
            }
            Some(Acted::LimiterConflict(other)) => {
                let detail =
                    format!("jobs of its concurrency key or group are in another shard, such as {other}");
                return Err(
                    conflict("limiter_conflict", detail).with_hint("wait until these jobs have ended")
                );
            }
            Some(Acted::NotFound) | None => return Err(not_found()),
        }
    }
    Err(conflict("wrong_state", "the job changed at each attempt").with_hint("repeat the request"))
}

fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, detail)
}

fn wrong_state(state: State, action: &Action) -> Problem {
    let (of, hint) = match action {
        Action::Cancel { .. } => ("waiting or running", "it has ended already"),
        Action::Retry => ("dead, cancelled or done", "it has not ended yet"),
        Action::Delete => ("not running", "cancel it first"),
        _ if state == State::Running => ("waiting", "cancel it, and enqueue another one"),
        _ => ("waiting", "retry it, or enqueue another one"),
    };
    let detail = format!("the job is {state}, and the action is for jobs that are {of}");
    conflict("wrong_state", detail).with_hint(hint)
}

/// The body of a cancel.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Cancel {
    reason: Option<String>,
}

pub(super) fn cancel(body: &[u8]) -> Result<Action, Problem> {
    let Cancel { reason } = calls::read(body)?;
    Ok(Action::Cancel { reason })
}

pub(super) fn retry(body: &[u8]) -> Result<Action, Problem> {
    let Nothing {} = calls::read(body)?;
    Ok(Action::Retry)
}

pub(super) fn run_now(body: &[u8]) -> Result<Action, Problem> {
    let Nothing {} = calls::read(body)?;
    Ok(Action::RunNow)
}

pub(super) fn delete(body: &[u8]) -> Result<Action, Problem> {
    let Nothing {} = calls::read(body)?;
    Ok(Action::Delete)
}

/// The body of a change.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Change<'a> {
    run_at_ms: Option<Timestamp>,
    delay_ms: Option<u64>,
    priority: Option<Priority>,
    #[serde(borrow, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    content_type: Option<String>,
}

/// Reads a field that is there, so that `null` is a payload.
fn present<'de, D: Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(d).map(Some)
}

/// Reads the one change. An action changes one thing, so two changes could not be made in one step.
pub(super) fn change(body: &[u8]) -> Result<Action, Problem> {
    let Change { run_at_ms, delay_ms, priority, payload, payload_base64, content_type } = calls::read(body)?;
    let of_payload = payload.is_some() || payload_base64.is_some() || content_type.is_some();
    let given = [
        ("reschedule", run_at_ms.is_some()),
        ("reschedule", delay_ms.is_some()),
        ("reprioritise", priority.is_some()),
        ("edit", of_payload),
    ];
    let mut given = given.iter().filter(|(_, is_given)| *is_given);
    let (Some((action, _)), None) = (given.next(), given.next()) else {
        return Err(Error::invalid("a change is one of run_at_ms, delay_ms, priority and payload")
            .with_hint("make several changes one after the other")
            .into());
    };
    let action = (*action).to_owned();
    let body = ActionBody {
        action,
        run_at_ms,
        delay_ms,
        priority,
        payload,
        payload_base64,
        content_type,
        ..ActionBody::default()
    };
    Ok(body.action()?)
}
