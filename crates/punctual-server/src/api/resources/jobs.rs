//! Jobs.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, Uri, header::LOCATION},
    response::{IntoResponse as _, Response},
};
use punctual::{
    Error, ErrorKind, JobId, Timestamp,
    store::{
        Enqueued,
        wire::{self, JobView, ListBody, Nothing, WAIT_MAX},
    },
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{headers, query, stream};
use crate::{
    api::{Api, Problem, Scope, calls, json},
    why::sentences,
};

/// Returns a page of jobs (default: 50).
pub(super) async fn list(State(api): State<Arc<Api>>, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let list: ListBody = query::read(&uri, &[("limit", 50)])?;
    Ok(json(calls::page(&api, &scope, &list.into()).await?))
}

/// How long to wait for the end of a job.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    wait_ms: u64,
}

/// Returns a job, after a wait for its end if the caller wants one. Its version is the `ETag`.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    scope: Scope,
    uri: Uri,
) -> Result<Response, Problem> {
    let id: JobId = id.parse()?;
    let Wait { wait_ms } = query::read(&uri, &[("wait_ms", 0)])?;
    let not_found = || Problem::not_found(format!("there is no job {id}"));
    let mut job = scope.job(api.client.get(id).await?).ok_or_else(not_found)?;
    if 0 < wait_ms && !job.state.is_ended() {
        let within = Duration::from_millis(wait_ms).min(WAIT_MAX);
        let ended = tokio::select! {
            ended = api.client.finished(id, within) => ended?,
            () = api.stop.cancelled() => api.client.get(id).await?,
        };
        job = scope
            .job(ended)
            .ok_or_else(|| not_found().with_hint("it has ended, and its queue keeps no such jobs"))?;
    }
    let body = calls::write(&JobView::exact(&job, api.client.store().now().await?))?;
    Ok((headers::etag(job.version), json(body)).into_response())
}

/// Why a job is not running, as it is shown.
#[derive(Serialize)]
struct WhyView {
    now_ms: Timestamp,
    id: JobId,
    queue: String,
    state: punctual::State,
    reasons: Vec<String>,
}

/// Returns why a job is not running, or how it ended.
pub(super) async fn why(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    scope: Scope,
    uri: Uri,
) -> Result<Response, Problem> {
    let Nothing {} = query::read(&uri, &[])?;
    let id: JobId = id.parse()?;
    let not_found = || Problem::not_found(format!("there is no job {id}"));
    let job = scope.job(api.client.get(id).await?).ok_or_else(not_found)?;
    let (queue, now_ms) = (api.client.queue(&job.queue).show().await?, api.client.store().now().await?);
    let reasons = sentences(&api.client, &job, queue.as_ref(), now_ms).await;
    Ok(json(calls::write(&WhyView { now_ms, id, queue: job.queue, state: job.state, reasons })?))
}

/// Stores a job, and returns what became of it. A body of lines has many jobs.
pub(super) async fn enqueue(
    State(api): State<Arc<Api>>,
    scope: Scope,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    if stream::is_of_lines(headers) {
        if headers::idempotency_key(headers)?.is_some() {
            return Err(Error::invalid("Idempotency-Key is for one job, and the body can have many")
                .with_hint("give each line an idempotency_key")
                .into());
        }
        return stream::begin(api, scope, parts, body);
    }
    let body = api.room.read("jobs", body).await?;
    let text = calls::read::<&RawValue>(&body.bytes)?.get();
    let id = api.client.make_id();
    let mut job = wire::unchecked(text, || id)?;
    if let Some(header) = headers::idempotency_key(headers)? {
        let keys: Keys = calls::read(text.as_bytes())?;
        let key = keys.key(Some(header))?.unwrap_or(header);
        wire::derive_id(&mut job, key, keys.across_kinds.unwrap_or_default())?;
    }
    scope.new_job(&job)?;
    // A call of one job has one result.
    let enqueued = api.client.push(vec![job]).await?.into_iter().next().unwrap_or(Enqueued::Full);
    stored(&enqueued, "")
}

/// Answers what became of a job. `up` leads from the address of the request to that of the API.
pub(super) fn stored(enqueued: &Enqueued, up: &str) -> Result<Response, Problem> {
    if *enqueued == Enqueued::Full {
        let detail = "the queue is at its cap, and the job was not stored";
        return Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", detail)
            .with_hint("repeat the request later, or raise the cap of the queue"));
    }
    if let Enqueued::Conflict { id } = enqueued {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("a job of another queue has the id {id}, and the job was not stored"),
        )
        .with_hint("enqueue it with another id or idempotency key")
        .into());
    }
    let answer = json(calls::write(enqueued)?);
    let Enqueued::Inserted { id, .. } = enqueued else { return Ok(answer) };
    let mut headers = headers::etag(1);
    // Relative to the address of the request, so that it holds under any base path.
    headers.extend(HeaderValue::try_from(format!("{up}jobs/{id}")).ok().map(|place| (LOCATION, place)));
    Ok((StatusCode::CREATED, headers, answer).into_response())
}

/// The fields of a new job that its id depends on.
#[derive(Deserialize)]
pub(super) struct Keys {
    id: Option<IgnoredAny>,
    idempotency_key: Option<String>,
    pub(super) across_kinds: Option<bool>,
    pub(super) queue: Option<IgnoredAny>,
}

impl Keys {
    /// Whether the job says what its id is.
    pub(super) fn has_an_id(&self) -> bool {
        self.id.is_some() || self.idempotency_key.is_some()
    }

    /// Returns the key of the job: its own, or that of the header.
    pub(super) fn key<'a>(&'a self, header: Option<&'a str>) -> Result<Option<&'a str>, Problem> {
        let own = self.idempotency_key.as_deref();
        let Some(key) = header else { return Ok(own) };
        if self.id.is_some() {
            return Err(Error::invalid("id and Idempotency-Key are both given").into());
        }
        if own.is_some_and(|own| own != key) {
            return Err(Error::invalid("idempotency_key and Idempotency-Key are different keys")
                .with_hint("give the key once")
                .into());
        }
        Ok(Some(key))
    }
}
