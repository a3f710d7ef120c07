//! The stream of counts and names of queues, for programs.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::{Response, sse::Event},
};
use punctual::store::wire::{Nothing, QueuesReply};
use serde::Serialize;

use super::query;
use crate::{
    api::{Api, Problem},
    dashboard::{Seen, Versions, streamed},
};

/// Streams the counts and the names of queues: both at once, and each again when it changed.
pub(super) async fn events(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let Nothing {} = query::read(request.uri(), &[])?;
    let listener = api.watcher.listen().ok_or_else(|| {
        let detail = "as many pages and programs listen for changes as the server has room for";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
            .with_hint("repeat the request later, or read GET stats from time to time")
    })?;
    let (parts, _) = request.into_parts();
    let mut told = None::<Versions>;
    Ok(streamed(listener, parts, move |seen| {
        let before = told.replace(seen.versions);
        let Seen { versions, counts, queues, .. } = seen;
        let counts = counts.filter(|_| before.is_none_or(|before| before.counts != versions.counts));
        let queues =
            queues.as_deref().filter(|_| before.is_none_or(|before| before.queues != versions.queues));
        [
            counts.map(|counts| event("counts", &counts)),
            queues.map(|names| event("queues", &QueuesReply { names: names.to_vec() })),
        ]
    }))
}

fn event(name: &str, data: &impl Serialize) -> Event {
    let data =
        serde_json::to_string(data).expect("invariant: counts and names are plain data, which JSON can hold");
    Event::default().event(name).data(data)
}
