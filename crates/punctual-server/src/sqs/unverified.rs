//! Bodies of requests whose signature is not checked yet: it covers the body, so that must arrive first.
//!
//! Anybody who knows the id of a key can send such bodies, and the id is no secret. So they have a small room of their own. When it is
//! full, the body that has been arriving for the longest time gives way: a body of a caller with the key arrives at once, is checked, and leaves.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody as _},
    http::StatusCode,
};
use futures_util::StreamExt as _;
use punctual::CancellationToken;
use tokio::time::timeout;

use crate::api::Problem;

/// Bodies up to this size need no room, as in the other rooms.
const SMALL_BYTES: usize = 16 * 1024;
/// Most bytes of all larger bodies together.
const ROOM_BYTES: usize = 32 * 1024 * 1024;
/// Longest time for a body to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(30);

/// The room for such bodies.
#[derive(Debug, Default)]
pub(super) struct Unverified(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Those that hold room, in the order in which they began.
    held: BTreeMap<u64, Entry>,
    bytes: usize,
    /// The number of the last one.
    last: u64,
}

#[derive(Debug)]
struct Entry {
    bytes: usize,
    /// Fires if the body has to give way. `None`: it has arrived, and is about to be checked.
    gives_way: Option<CancellationToken>,
}

/// A body that has arrived, and its part of the room.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) bytes: Vec<u8>,
    _part: Part<'a>,
}

/// The part of the room that a body holds.
#[derive(Debug)]
struct Part<'a> {
    room: &'a Unverified,
    number: u64,
    gives_way: CancellationToken,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut table = self.room.table();
        if let Some(entry) = table.held.remove(&self.number) {
            table.bytes -= entry.bytes;
        }
    }
}

impl Unverified {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a body of at most so many bytes. Hold the result until its signature is checked.
    pub(super) async fn read(&self, max: usize, body: Body) -> Result<Held<'_>, Problem> {
        let too_large = || {
            let detail = format!("the body did not arrive, or is over the limit of {max} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
        };
        if max as u64 <= body.size_hint().lower().saturating_sub(1) {
            return Err(too_large());
        }
        let part = self.begin();
        let arrive = async {
            let (mut chunks, mut bytes) = (body.into_data_stream(), Vec::new());
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|_| too_large())?;
                if max < bytes.len() + chunk.len() {
                    return Err(too_large());
                }
                bytes.extend_from_slice(&chunk);
                if SMALL_BYTES < bytes.len() {
                    self.hold(part.number, bytes.len(), &part.gives_way)?;
                }
            }
            Ok(bytes)
        };
        let arrived = tokio::select! {
            arrived = timeout(ARRIVAL_MAX, arrive) => arrived,
            () = part.gives_way.cancelled() => Ok(Err(full())),
        };
        let bytes = arrived.unwrap_or_else(|_| {
            let detail = format!("the body did not arrive within {} s", ARRIVAL_MAX.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail))
        })?;
        if let Some(entry) = self.table().held.get_mut(&part.number) {
            entry.gives_way = None;
        }
        Ok(Held { bytes, _part: part })
    }

    fn begin(&self) -> Part<'_> {
        let mut table = self.table();
        table.last += 1;
        Part { room: self, number: table.last, gives_way: CancellationToken::new() }
    }

    /// Gives a body as much room as it needs by now. Those that began before it give way, the first one first.
    fn hold(&self, number: u64, bytes: usize, gives_way: &CancellationToken) -> Result<(), Problem> {
        let mut table = self.table();
        let before = table.held.get(&number).map_or(0, |entry| entry.bytes);
        while ROOM_BYTES < table.bytes - before + bytes {
            let first =
                table.held.iter().find(|(_, entry)| entry.gives_way.is_some()).map(|(first, _)| *first);
            let Some(first) = first.filter(|first| *first != number) else { return Err(full()) };
            if let Some(entry) = table.held.remove(&first) {
                table.bytes -= entry.bytes;
                entry.gives_way.iter().for_each(CancellationToken::cancel);
            }
        }
        table.bytes = table.bytes - before + bytes;
        table.held.insert(number, Entry { bytes, gives_way: Some(gives_way.clone()) });
        Ok(())
    }
}

fn full() -> Problem {
    let detail = "too many large requests whose signature could not be checked yet are in progress";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail).with_hint("repeat the request later")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 8 * 1024 * 1024;

    /// A body that never ends after so many bytes.
    fn endless(bytes: usize) -> Body {
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; bytes])]);
        Body::from_stream(first.chain(futures_util::stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_do_not_end_give_way_to_one_that_arrives() {
        let room = Unverified::default();
        let mut slow: Vec<_> = (0..40).map(|_| Box::pin(room.read(MAX, endless(MAX - 1)))).collect();
        let mut gone = 0;
        for body in &mut slow {
            // Each has sent what it sends, and waits.
            assert!(futures_util::poll!(body.as_mut()).is_pending());
        }
        assert!(room.table().bytes <= ROOM_BYTES);
        let held = room.read(MAX, Body::from(vec![b'y'; MAX])).await.unwrap();
        assert_eq!(held.bytes.len(), MAX);
        for body in &mut slow {
            gone += usize::from(futures_util::poll!(body.as_mut()).is_ready());
        }
        // Four of 8 MiB fit: the last three, and the one that has arrived.
        assert_eq!(gone, 37);
        drop((held, slow));
        // One lock at a time.
        let bytes = room.table().bytes;
        assert_eq!((bytes, room.table().held.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_have_arrived_do_not_give_way() {
        let room = Unverified::default();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(room.read(MAX, Body::from(vec![b'y'; MAX])).await.unwrap());
        }
        assert!(room.read(MAX, Body::from(vec![b'y'; MAX])).await.is_err());
        assert!(
            room.read(MAX, Body::from(vec![b'y'; SMALL_BYTES])).await.is_ok(),
            "a small one needs no room"
        );
        held.pop();
        assert!(room.read(MAX, Body::from(vec![b'y'; MAX])).await.is_ok());
    }
}
