//! Bodies of requests: how large one can be, how long it can take to arrive, and how much all of them hold together.

use std::time::Duration;

use axum::{
    body::{Body, HttpBody as _},
    http::StatusCode,
};
use futures_util::StreamExt as _;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::Problem;

/// Largest body of a batch: a thousand jobs with everything that they can carry beside 1 MiB of payloads.
const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Largest body of any other call: the old and the new settings of a queue with a thousand groups.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest body of a wait: a thousand names of queues, however they are written.
const WAIT_BYTES_MAX: usize = 1024 * 1024;
/// Bodies up to this size need no room, so that large ones hold up no small ones.
const SMALL_BYTES: usize = 16 * 1024;
/// Most bytes of all larger bodies together.
const ROOM_BYTES: usize = 256 * 1024 * 1024;
/// The unit of the room.
const UNIT_BYTES: usize = 1024;
/// Longest time for a body to arrive.
pub(crate) const ARRIVAL_MAX: Duration = Duration::from_secs(30);

/// The room for bodies.
#[derive(Debug)]
pub(crate) struct Room(Semaphore);

/// A body, and its part of the room.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) bytes: Vec<u8>,
    _room: Option<SemaphorePermit<'a>>,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(ROOM_BYTES / UNIT_BYTES))
    }

    /// Reads the body of a call. Hold the result until the call has ended, since what is read of it takes room, too.
    pub(super) async fn read(&self, call: &str, body: Body) -> Result<Held<'_>, Problem> {
        let max = match call {
            "enqueue" | "extend" | "settle" | "act" => BATCH_BYTES_MAX,
            // It can be held for the whole wait.
            "wait" => WAIT_BYTES_MAX,
            _ => BYTES_MAX,
        };
        self.read_at_most(max, body).await
    }

    /// Reads a body of at most so many bytes.
    ///
    /// Room is taken as bytes arrive, so that a client that only says how much it will send takes none.
    pub(crate) async fn read_at_most(&self, max: usize, body: Body) -> Result<Held<'_>, Problem> {
        let too_large = || {
            let detail = format!("the body is over the limit of {max} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
        };
        if max as u64 <= body.size_hint().lower().saturating_sub(1) {
            return Err(too_large());
        }
        let arrive = async {
            let (mut chunks, mut bytes, mut room) = (body.into_data_stream(), Vec::new(), None);
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|_| {
                    let detail = "the body ended before all of it had arrived";
                    Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
                        .with_hint("send as many bytes as Content-Length says")
                })?;
                if max < bytes.len() + chunk.len() {
                    return Err(too_large());
                }
                bytes.extend_from_slice(&chunk);
                if SMALL_BYTES < bytes.len() {
                    self.extend(&mut room, bytes.len())?;
                }
            }
            Ok(Held { bytes, _room: room })
        };
        timeout(ARRIVAL_MAX, arrive).await.unwrap_or_else(|_| {
            let detail = format!("the body did not arrive within {} s", ARRIVAL_MAX.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail))
        })
    }

    /// Takes the room of a body that has arrived elsewhere.
    #[cfg(feature = "sqs")]
    pub(crate) fn hold(&self, bytes: usize) -> Result<Option<Held<'_>>, Problem> {
        if bytes <= SMALL_BYTES {
            return Ok(None);
        }
        let mut room = None;
        self.extend(&mut room, bytes)?;
        Ok(Some(Held { bytes: Vec::new(), _room: room }))
    }

    /// Takes as much more room as a body of this size needs.
    fn extend<'a>(&'a self, room: &mut Option<SemaphorePermit<'a>>, bytes: usize) -> Result<(), Problem> {
        let held = room.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = bytes.div_ceil(UNIT_BYTES).saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        let more = self.0.try_acquire_many(u32::try_from(more).unwrap_or(u32::MAX)).map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "too many large requests are in progress",
            )
            .with_hint("repeat the request later")
        })?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
        Ok(())
    }
}
