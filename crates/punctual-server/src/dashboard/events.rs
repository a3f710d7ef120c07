//! The stream that says that something changed. It does not say what: a page is fetched again, by its own rights.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::request::Parts,
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
    watcher::{Listener, Versions},
};
use crate::gate::{Gate, Right};

/// So that proxies do not take the stream for dead, and a page that went away is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a browser waits until it connects again.
const RECONNECT: Duration = Duration::from_secs(2);
/// How often the caller is checked. Its token is looked up once a second at most, for all its streams together.
const CHECK: Duration = Duration::from_millis(250);

/// A stream for one page.
struct Open {
    listener: Listener,
    /// The gate that let the request in, and its head. `None` for a dashboard without a gate.
    caller: Option<(Gate, Parts)>,
    is_new: bool,
}

/// Streams changes until the server ends, or the caller's token no longer holds. Makes no call to the store itself.
pub(super) async fn page(State(board): State<Arc<Board>>, request: Request) -> Result<Response, Fault> {
    let listener = board.watcher.listen().ok_or(Fault::Listeners)?;
    let (parts, _) = request.into_parts();
    let gate = parts.extensions.get::<Gate>().cloned();
    let open = Open { listener, caller: gate.map(|gate| (gate, parts)), is_new: true };
    let events = stream::unfold(open, |mut open| async {
        let event = open.next().await?;
        Some((Ok::<_, Infallible>(event), open))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response();
    // nginx would collect the small events before it passes them on.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    Ok(response)
}

impl Open {
    async fn next(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.is_new) {
            return Some(Event::default().retry(RECONNECT).comment("listening"));
        }
        tokio::select! {
            versions = self.listener.next() => versions.map(event),
            () = refused(self.caller.as_ref()) => None,
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
