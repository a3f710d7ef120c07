//! Jobs.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header::LOCATION},
    response::{IntoResponse as _, Response},
};
use punctual::{
    Error, JobId, NewJob,
    store::{
        Enqueued,
        wire::{self, JobView, ListBody},
    },
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{headers, query};
use crate::{
    api::{Api, Problem, Scope, calls, json},
    gate::Right,
};

/// Returns a page of jobs (default: 50).
pub(super) async fn list(State(api): State<Arc<Api>>, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let list: ListBody = query::read(&uri, &[("limit", 50)])?;
    Ok(json(calls::page(&api, &scope, &list.into()).await?))
}

/// Returns a job. Its version is the `ETag`.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    scope: Scope,
) -> Result<Response, Problem> {
    let id: JobId = id.parse()?;
    let Some(job) = scope.job(api.client.get(id).await?) else {
        return Err(Problem::not_found(format!("there is no job {id}")));
    };
    let body = calls::write(&JobView::exact(&job, api.client.store().now().await?))?;
    Ok((headers::etag(job.version), json(body)).into_response())
}

/// Stores a job, and returns what became of it.
pub(super) async fn enqueue(
    State(api): State<Arc<Api>>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("jobs", body).await?;
    let text = calls::read::<&RawValue>(&body.bytes)?.get();
    let id = api.client.make_id();
    let mut job = wire::unchecked(text, || id)?;
    if let Some(key) = headers::idempotency_key(&headers)? {
        job.id = keyed(text, &job, key)?;
    }
    scope.in_queues(Right::Operate, [job.queue.as_str()])?;
    let results = api.client.push(vec![job]).await?;
    // A call of one job has one result.
    let Some(enqueued) = results.into_iter().next().filter(|enqueued| *enqueued != Enqueued::Full) else {
        let detail = "the queue is at its cap, and the job was not stored";
        return Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", detail)
            .with_hint("repeat the request later, or raise the cap of the queue"));
    };
    let enqueued = scope.enqueued(&api, enqueued).await?;
    let answer = json(calls::write(&enqueued)?);
    let Enqueued::Inserted { id, .. } = enqueued else { return Ok(answer) };
    let mut headers = headers::etag(1);
    // Relative to the address of the request, so that it holds under any base path.
    headers.extend(HeaderValue::try_from(format!("jobs/{id}")).ok().map(|place| (LOCATION, place)));
    Ok((StatusCode::CREATED, headers, answer).into_response())
}

/// The fields of a new job that its id depends on.
#[derive(Deserialize)]
struct Keys {
    id: Option<IgnoredAny>,
    idempotency_key: Option<String>,
    across_kinds: Option<bool>,
}

/// Returns the id of a job whose key is in a header.
fn keyed(text: &str, job: &NewJob, key: &str) -> Result<JobId, Problem> {
    let own: Keys = calls::read(text.as_bytes())?;
    if own.id.is_some() {
        return Err(Error::invalid("id and Idempotency-Key are both given").into());
    }
    if own.idempotency_key.is_some_and(|own| own != key) {
        return Err(Error::invalid("idempotency_key and Idempotency-Key are different keys")
            .with_hint("give the key once")
            .into());
    }
    Ok(wire::derived_id(job, key, own.across_kinds.unwrap_or_default())?)
}
