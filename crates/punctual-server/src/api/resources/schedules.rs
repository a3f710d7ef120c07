//! Schedules, by name.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use futures_util::try_join;
use punctual::{
    Error, JobId, NewJob, Payload, Timestamp,
    schedule::{Cron, NamedSchedule, Schedule, ScheduleHandle, ScheduledJob},
    store::{
        Pause,
        wire::{self, NewJobView, Nothing},
    },
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    headers,
    jobs::{Keys, stored},
    query::{self, After},
    queues::PauseBody,
};
use crate::{
    api::{Api, Problem, Scope, calls, json},
    gate::Refusal,
};

/// A schedule as it is shown. It can be sent again.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    generation: u64,
    ticks: &'a Cron,
    job: NewJobView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<&'a Pause>,
    /// The next tick after now, calculated. A paused schedule has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_at_ms: Option<Timestamp>,
}

/// A page of schedules.
#[derive(Serialize)]
struct Page<'a> {
    schedules: Vec<View<'a>>,
    unreadable: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
}

impl<'a> View<'a> {
    fn new(named: &'a NamedSchedule, job: &'a NewJob, now: Timestamp) -> Self {
        let Schedule { cron, paused, .. } = &named.schedule;
        Self {
            name: &named.name,
            generation: named.generation,
            ticks: cron,
            job: NewJobView::new(job).without_id(),
            paused: paused.as_ref(),
            next_at_ms: cron.next(now).filter(|_| paused.is_none()),
        }
    }
}

/// Returns the job of a schedule, as the caller may see it. The id is not shown.
fn job(of: &ScheduledJob, id: JobId, scope: &Scope) -> NewJob {
    let ScheduledJob { kind, queue, payload, content_type, options, group, concurrency, tags, headers } =
        of.clone();
    let (payload, headers) = if scope.hides_payloads() {
        (Payload::json("null"), BTreeMap::new())
    } else {
        (Payload { bytes: payload.into_bytes(), content_type: content_type.into() }, headers)
    };
    NewJob { options, group, concurrency, tags, headers, ..NewJob::new(id, kind, queue, payload) }
}

/// Returns a page of schedules, by name.
pub(super) async fn list(State(api): State<Arc<Api>>, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let After { after } = query::read(&uri, &[])?;
    let (page, now) = try_join!(api.client.schedules(after.as_deref()), api.client.store().now())?;
    let id = api.client.make_id();
    let jobs: Vec<NewJob> = page.schedules.iter().map(|named| job(&named.schedule.job, id, &scope)).collect();
    let views = page.schedules.iter().zip(&jobs).map(|(named, job)| View::new(named, job, now));
    let page = Page { schedules: views.collect(), unreadable: &page.unreadable, next: page.next.as_deref() };
    Ok(json(calls::write(&page)?))
}

/// Returns a schedule. Its generation is the `ETag`.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
) -> Result<Response, Problem> {
    let named = known(&api.client.schedule(name)).await?;
    answer(&api, &scope, &named, api.client.store().now().await?)
}

/// The body of a PUT. What else is shown is ignored, so that a schedule that was read can be sent again.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Put<'a> {
    #[serde(borrow)]
    ticks: &'a RawValue,
    #[serde(borrow)]
    job: &'a RawValue,
    #[serde(default, rename = "name")]
    _name: IgnoredAny,
    #[serde(default, rename = "generation")]
    _generation: IgnoredAny,
    #[serde(default, rename = "paused")]
    _paused: IgnoredAny,
    #[serde(default, rename = "next_at_ms")]
    _next_at: IgnoredAny,
}

/// Creates a schedule, or changes all of it but its pause.
pub(super) async fn put(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    // It would be sent again without its payload.
    if scope.hides_payloads() {
        return Err(Refusal::hidden("a schedule has a payload, which is hidden from this token").into());
    }
    let body = api.room.read("schedules", body).await?;
    let schedule = read(&body.bytes, api.client.make_id())?;
    let handle = handle(&api, name, &headers).await?;
    // One that cannot be read is there, and is replaced.
    let is_new = matches!(handle.get().await, Ok(None));
    let made = handle.put(schedule).await;
    note(&api, &scope, "put", &handle, "", &made);
    let named = made.map_err(|e| headers::refused(&headers, e))?;
    let answer = changed(&api, &scope, &named).await?;
    Ok(if is_new { (StatusCode::CREATED, answer).into_response() } else { answer })
}

/// Reads the body of a PUT.
fn read(body: &[u8], id: JobId) -> Result<Schedule, Problem> {
    let Put { ticks, job, .. } = calls::read(body)?;
    // serde would accept a list, too, and read it by position.
    if !ticks.get().starts_with('{') {
        return Err(Error::invalid("ticks is not an object")
            .with_hint(r#"write {"cron":"0 3 * * *"}"#)
            .into());
    }
    let ticks: Cron = serde_json::from_str(ticks.get())
        .map_err(|e| Error::invalid(format!("ticks: {}", wire::words(&e))))?;
    let named = |e: Error| {
        let error = Error::new(e.kind(), format!("job: {e}"));
        e.hint().map(str::to_owned).into_iter().fold(error, Error::with_hint)
    };
    let new = wire::unchecked(job.get(), || id).map_err(named)?;
    let keys: Keys = calls::read(job.get().as_bytes())?;
    if keys.has_an_id() {
        return Err(Error::invalid("the job of a schedule has no id and no idempotency_key of its own")
            .with_hint("each tick gets an id of its own")
            .into());
    }
    Ok(Schedule::new(ticks, new).map_err(named)?)
}

/// Removes a schedule.
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("schedules", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    let handle = handle(&api, name, &headers).await?;
    let made = handle.remove().await;
    if matches!(made, Ok(false)) {
        return Err(unknown(handle.name()));
    }
    note(&api, &scope, "remove", &handle, "", &made);
    made.map_err(|e| headers::refused(&headers, e))?;
    Ok(json(calls::write(&super::Removed::new(handle.name()))?))
}

/// Pauses a schedule (default: in the name of the caller).
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("schedules", body).await?;
    let pause: PauseBody = calls::read(&body.bytes)?;
    let handle = handle(&api, name, &headers).await?;
    known(&handle).await?;
    let (by, reason) =
        (pause.by.as_deref().unwrap_or_else(|| scope.name()), pause.reason.unwrap_or_default());
    let made = handle.pause(by, &reason).await;
    note(&api, &scope, "pause", &handle, &reason, &made);
    let named = made.map_err(|e| headers::refused(&headers, e))?;
    changed(&api, &scope, &named).await
}

/// Ends the pause of a schedule.
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("schedules", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    let handle = handle(&api, name, &headers).await?;
    known(&handle).await?;
    let made = handle.resume().await;
    note(&api, &scope, "resume", &handle, "", &made);
    let named = made.map_err(|e| headers::refused(&headers, e))?;
    changed(&api, &scope, &named).await
}

/// Enqueues the job of a schedule now, in addition to its ticks.
pub(super) async fn fire(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("schedules", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    let handle = api.client.schedule(name);
    known(&handle).await?;
    let made = handle.fire().await;
    note(&api, &scope, "fire", &handle, "", &made);
    stored(&made?, "../../")
}

/// Notes a change of a schedule in the activity log.
fn note<T>(
    api: &Api,
    scope: &Scope,
    action: &str,
    handle: &ScheduleHandle,
    reason: &str,
    made: &punctual::Result<T>,
) {
    let entry = scope.entry(action).document(&format!("schedule/{}", handle.name())).reason(reason);
    api.activity.note(entry, made);
}

/// Returns a handle that changes only a generation that `If-Match` allows.
async fn handle(api: &Api, name: String, headers: &HeaderMap) -> Result<ScheduleHandle, Problem> {
    let handle = api.client.schedule(name);
    let Some(allowed) = headers::versions(headers)? else { return Ok(handle) };
    let is = handle.get().await?.map(|named| named.generation);
    Ok(handle.if_generation(headers::allowed("schedule", &allowed, is)?))
}

async fn known(handle: &ScheduleHandle) -> Result<NamedSchedule, Problem> {
    handle.get().await?.ok_or_else(|| unknown(handle.name()))
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("there is no schedule {name:?}"))
}

/// Returns the schedule after a change.
async fn changed(api: &Api, scope: &Scope, named: &NamedSchedule) -> Result<Response, Problem> {
    answer(api, scope, named, api.client.store().now().await.map_err(Error::in_part)?)
}

fn answer(api: &Api, scope: &Scope, named: &NamedSchedule, now: Timestamp) -> Result<Response, Problem> {
    let job = job(&named.schedule.job, api.client.make_id(), scope);
    let body = calls::write(&View::new(named, &job, now))?;
    Ok((headers::etag(named.generation), json(body)).into_response())
}
