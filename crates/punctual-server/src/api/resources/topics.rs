//! Topics, by name.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, Uri},
    response::{IntoResponse as _, Response},
};
use punctual::{
    Error,
    store::{
        Enqueued,
        wire::{self, Nothing},
    },
    topic::{Topic, TopicHandle},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    headers,
    jobs::{Keys, stored},
    query::{self, After},
};
use crate::api::{Api, Problem, Scope, calls, json};

/// A topic as it is shown.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    version: u64,
    queues: &'a [String],
}

impl<'a> From<&'a Topic> for View<'a> {
    fn from(topic: &'a Topic) -> Self {
        Self { name: &topic.name, version: topic.version, queues: &topic.queues }
    }
}

/// A page of topics.
#[derive(Serialize)]
struct Page<'a> {
    topics: Vec<View<'a>>,
    unreadable: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
}

/// Returns a page of topics, by name.
pub(super) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let After { after } = query::read(&uri, &[])?;
    let page = api.client.topics(after.as_deref()).await?;
    let topics = page.topics.iter().map(View::from).collect();
    let page = Page { topics, unreadable: &page.unreadable, next: page.next.as_deref() };
    Ok(json(calls::write(&page)?))
}

/// Returns a topic. Its version is the `ETag`.
pub(super) async fn show(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Response, Problem> {
    let handle = api.client.topic(name);
    answer(&handle, handle.get().await?)
}

/// The body of a subscription.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscription {
    queue: String,
}

/// Subscribes a queue, and returns the topic as it is then.
pub(super) async fn subscribe(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("topics", body).await?;
    let Subscription { queue } = calls::read(&body.bytes)?;
    let handle = handle(&api, name, &headers).await?;
    let made = handle.subscribe(&queue).await;
    note(&api, &scope, "subscribe", &handle, Some(&queue), &made);
    made.map_err(|e| headers::refused(&headers, e))?;
    changed(&handle).await
}

/// Ends the subscription of a queue, and returns the topic as it is then.
pub(super) async fn unsubscribe(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("topics", body).await?;
    let Subscription { queue } = calls::read(&body.bytes)?;
    let handle = handle(&api, name, &headers).await?;
    let made = handle.unsubscribe(&queue).await;
    note(&api, &scope, "unsubscribe", &handle, Some(&queue), &made);
    made.map_err(|e| headers::refused(&headers, e))?;
    changed(&handle).await
}

/// Removes a topic and all its subscriptions.
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    scope: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("topics", body).await?;
    let Nothing {} = calls::read(&body.bytes)?;
    let handle = handle(&api, name, &headers).await?;
    let made = handle.remove().await;
    if matches!(made, Ok(false)) {
        return Err(unknown(handle.name()));
    }
    note(&api, &scope, "remove", &handle, None, &made);
    made.map_err(|e| headers::refused(&headers, e))?;
    Ok(json(calls::write(&super::Removed::new(handle.name()))?))
}

/// Publishes a job.
pub(super) async fn publish(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = api.room.read("topics", body).await?;
    let text = calls::read::<&RawValue>(&body.bytes)?.get();
    let topic = api.client.topic(name);
    let id = api.client.make_id();
    let mut job = wire::unchecked(text, || id)?;
    let keys: Keys = calls::read(text.as_bytes())?;
    if keys.queue.is_some() {
        return Err(Error::invalid("a publication has no queue of its own")
            .with_hint("leave queue out: each subscribed queue gets a job")
            .into());
    }
    if let Some(key) = keys.key(headers::idempotency_key(&headers)?)? {
        if keys.across_kinds == Some(true) {
            return Err(Error::invalid("idempotency keys of a topic are compared within the kind")
                .with_hint("leave across_kinds out")
                .into());
        }
        job.id = topic.derived_id(&job, key)?;
    }
    // A call of one job has one result.
    let published = topic.push(vec![job]).await?.into_iter().next().unwrap_or(Enqueued::Full);
    stored(&published, "../../")
}

/// Notes a change of a topic in the activity log.
fn note<T>(
    api: &Api,
    scope: &Scope,
    action: &str,
    handle: &TopicHandle,
    queue: Option<&str>,
    made: &punctual::Result<T>,
) {
    let entry = scope.entry(action).document(&format!("topic/{}", handle.name()));
    api.activity.note(if let Some(queue) = queue { entry.queue(queue) } else { entry }, made);
}

/// Returns a handle that changes only a version that `If-Match` allows.
async fn handle(api: &Api, name: String, headers: &HeaderMap) -> Result<TopicHandle, Problem> {
    let handle = api.client.topic(name);
    let Some(allowed) = headers::versions(headers)? else { return Ok(handle) };
    let is = handle.get().await?.map(|topic| topic.version);
    Ok(handle.if_version(headers::allowed("topic", &allowed, is)?))
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("there is no topic {name:?}"))
}

/// Returns the topic after a change.
async fn changed(handle: &TopicHandle) -> Result<Response, Problem> {
    answer(handle, handle.get().await.map_err(Error::in_part)?)
}

fn answer(handle: &TopicHandle, topic: Option<Topic>) -> Result<Response, Problem> {
    let topic = topic.ok_or_else(|| unknown(handle.name()))?;
    Ok((headers::etag(topic.version), json(calls::write(&View::from(&topic))?)).into_response())
}
