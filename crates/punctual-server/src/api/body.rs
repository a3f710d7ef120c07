//! Bodies of requests: how large one can be, how long it can take to arrive, and how much all of them hold together.

use std::time::Duration;

use axum::{
    body::{Body, Bytes, HttpBody as _, to_bytes},
    http::StatusCode,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::Problem;

/// Largest body of a batch: a thousand jobs with everything that they can carry beside 1 MiB of payloads.
const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Largest body of any other call: the old and the new settings of a queue with a thousand groups.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bodies up to this size need no room, so that large ones hold up no small ones.
const SMALL_BYTES: usize = 16 * 1024;
/// Most bytes of all larger bodies together.
const ROOM_BYTES: usize = 256 * 1024 * 1024;
/// The unit of the room.
const UNIT_BYTES: usize = 1024;
/// Longest time for a body to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(30);

/// The room for bodies.
#[derive(Debug)]
pub(super) struct Room(Semaphore);

/// A body, and its part of the room.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) bytes: Bytes,
    _room: Option<SemaphorePermit<'a>>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(ROOM_BYTES / UNIT_BYTES))
    }

    /// Reads the body of a call. Hold the result until the call has ended, since what is read of it takes room, too.
    pub(super) async fn read(&self, call: &str, body: Body) -> Result<Held<'_>, Problem> {
        let max = match call {
            "enqueue" | "extend" | "settle" | "act" => BATCH_BYTES_MAX,
            _ => BYTES_MAX,
        };
        let size = body.size_hint();
        let too_large = || {
            let detail = format!("the body did not arrive, or is over the limit of {max} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
        };
        if max as u64 <= size.lower().saturating_sub(1) {
            return Err(too_large());
        }
        let most = size.upper().and_then(|most| usize::try_from(most).ok()).map_or(max, |most| most.min(max));
        let room = if SMALL_BYTES < most { Some(self.reserve(most)?) } else { None };
        match timeout(ARRIVAL_MAX, to_bytes(body, max)).await {
            Ok(Ok(bytes)) => Ok(Held { bytes, _room: room }),
            Ok(Err(_)) => Err(too_large()),
            Err(_) => {
                let detail = format!("the body did not arrive within {} s", ARRIVAL_MAX.as_secs());
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail))
            }
        }
    }

    fn reserve(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Problem> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        self.0.try_acquire_many(units).map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "too many large requests are in progress",
            )
            .with_hint("repeat the request later")
        })
    }
}
