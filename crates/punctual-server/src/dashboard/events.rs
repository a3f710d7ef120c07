//! Streams of changes (server-sent events). For pages, one says that something changed, and not what: a page is fetched again, by its
//! own rights.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderValue, request::Parts},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::stream;
use tokio::time::interval;

use super::{
    Board,
    fault::Fault,
    watcher::{Listener, Seen, Versions},
};
use crate::gate::{Gate, Right};

/// So that proxies do not take the stream for dead, and a page that went away is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a browser waits until it connects again.
const RECONNECT: Duration = Duration::from_secs(2);
/// How often the caller is checked. Its token is looked up once a second at most, for all its streams together.
const CHECK: Duration = Duration::from_millis(250);

/// A stream for one page or program.
struct Open<T> {
    listener: Listener,
    /// The gate that let the request in, and its head. `None` without a gate.
    caller: Option<(Gate, Parts)>,
    /// Makes the events of a change: at most one for each part of what was seen.
    tell: T,
    next: VecDeque<Event>,
}

/// Streams changes to a page.
pub(super) async fn page(State(board): State<Arc<Board>>, request: Request) -> Result<Response, Fault> {
    let listener = board.watcher.listen().ok_or(Fault::Listeners)?;
    let (parts, _) = request.into_parts();
    Ok(streamed(listener, parts, |seen| [Some(event(seen.versions)), None]))
}

/// Streams changes until the server ends, or the caller's token no longer holds. Makes no call to the store itself.
///
/// `tell` makes the events of a change.
pub(crate) fn streamed(
    listener: Listener,
    parts: Parts,
    tell: impl FnMut(&Seen) -> [Option<Event>; 2] + Send + 'static,
) -> Response {
    let gate = parts.extensions.get::<Gate>().cloned();
    let first = Event::default().retry(RECONNECT).comment("listening");
    let open = Open { listener, caller: gate.map(|gate| (gate, parts)), tell, next: [first].into() };
    let events = stream::unfold(open, |mut open| async {
        let event = open.next().await?;
        Some((Ok::<_, Infallible>(event), open))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response();
    // nginx would collect the small events before it passes them on.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<T: FnMut(&Seen) -> [Option<Event>; 2]> Open<T> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return Some(event);
            }
            let seen = tokio::select! {
                seen = self.listener.next() => seen?,
                () = refused(self.caller.as_ref()) => return None,
            };
            self.next.extend((self.tell)(&seen).into_iter().flatten());
        }
    }
}

/// Ends when the caller may no longer look.
async fn refused(caller: Option<&(Gate, Parts)>) {
    let Some((gate, parts)) = caller else { return std::future::pending().await };
    let mut checks = interval(CHECK);
    loop {
        checks.tick().await;
        // A store that does not answer ends the stream, too: nobody knows whether the token still holds.
        match gate.authenticate(parts).await {
            Ok(caller) if caller.may(Right::Read, None).is_ok() => {}
            _ => return,
        }
    }
}

fn event(versions: Versions) -> Event {
    let Versions { counts, queues } = versions;
    Event::default().event("change").data(format!("{{\"counts\":{counts},\"queues\":{queues}}}"))
}
