//! Answers: what one caller can have the server make at once, and how much of it can wait for clients to take it.
//!
//! Requests that search, or that look something up, have a share per caller. A large answer then needs room until its client has
//! taken it. While there is no room, clients that take nothing are given up, longest first.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{Method, StatusCode, Uri},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use hyper::body::{Frame, SizeHint};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    accept::Seat,
    api::Problem,
    gate::asked_as,
    shares::{Share, Shares, Who},
};

/// Answers up to this size need no room.
const SMALL_BYTES: u64 = 16 << 10;
/// Most bytes of all answers that are not taken yet. Searches wait for room.
const ROOM_BYTES: u64 = 32 << 20;
/// Most bytes of those of one caller. One answer of it always has room.
const OWN_BYTES: u64 = ROOM_BYTES / 2;
/// From so many bytes on, the client that has taken nothing for the longest time is given up, however short that is. The answers of work,
/// such as reserved jobs, do not wait for room.
const TOO_MANY_BYTES: u64 = 8 * ROOM_BYTES;
/// How long a client can take nothing before it is given up for want of room.
const STUCK_MIN: Duration = Duration::from_secs(2);
/// How long a request waits for its share, and its answer for room.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether a client has become stuck meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What making an answer costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// It reads many jobs, or counts.
    Search,
    /// It checks the store for seconds.
    Check,
    /// It reads what a key leads to: a job.
    LookUp,
    /// The same for a queue, whose due jobs are counted.
    Queue,
    /// The same for documents.
    Document,
}

/// The shares of callers, and the room for their answers.
#[derive(Clone, Debug)]
pub(crate) struct Answers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    searches: Shares,
    checks: Shares,
    look_ups: Shares,
    queues: Shares,
    documents: Shares,
    room: Arc<Room>,
}

impl Answers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            // A page can have some ten MiB, twice while it is written.
            searches: Shares::new(4, 1),
            checks: Shares::new(2, 1),
            look_ups: Shares::new(32, 8),
            queues: Shares::new(16, 4),
            documents: Shares::new(32, 8),
            room: Arc::default(),
        }))
    }

    fn shares(&self, cost: Cost) -> &Shares {
        match cost {
            Cost::Search => &self.0.searches,
            Cost::Check => &self.0.checks,
            Cost::LookUp => &self.0.look_ups,
            Cost::Queue => &self.0.queues,
            Cost::Document => &self.0.documents,
        }
    }

    /// Waits until the caller may have one more answer made.
    async fn share(&self, cost: Cost, who: &Who) -> Result<Share, Problem> {
        timeout(WAIT_MAX, self.shares(cost).take(who)).await.map_err(|_| {
            let detail =
                "as many requests of this kind are in progress as one caller may have, or the server";
            overloaded(detail).with_hint("wait for their answers, and send fewer at once")
        })
    }
}

fn overloaded(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
}

/// Has an answer made within the share of its caller, and holds room for it until it is taken.
pub(crate) async fn bounded(State(answers): State<Answers>, request: Request, next: Next) -> Response {
    let cost = cost(asked_as(request.method()), request.uri());
    let (who, seat) = (Who::of(request.extensions()), request.extensions().get::<Arc<Seat>>().cloned());
    let share = match cost {
        Some(cost) => match answers.share(cost, &who).await {
            Ok(share) => Some(share),
            Err(problem) => return problem.into_response(),
        },
        None => None,
    };
    let response = next.run(request).await;
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    if bytes <= SMALL_BYTES {
        return response;
    }
    let room = &answers.0.room;
    let held = match share {
        Some(_) => timeout(WAIT_MAX, room.wait_for(&who, bytes, seat)).await.ok(),
        None => Some(room.take(&who, bytes, seat)),
    };
    let Some(held) = held else {
        return overloaded("too many answers wait for clients to read them")
            .with_hint("read the answers of earlier requests")
            .into_response();
    };
    let held = Arc::new(held);
    response.map(|body| Body::new(Untaken { body, held }))
}

/// Returns what a request costs; `None` for those that cost little, or wait for something.
fn cost(method: &Method, uri: &Uri) -> Option<Cost> {
    let (path, waits) = (uri.path(), uri.query().is_some_and(|query| query.contains("wait_ms")));
    let is_get = method == Method::GET;
    if let Some(path) = path.strip_prefix("/api/v1/") {
        let parts: Vec<&str> = path.splitn(3, '/').collect();
        return match (is_get, parts.as_slice()) {
            (true, ["jobs", _]) if waits => None,
            (true, ["jobs", ..]) | (false, ["get" | "holder"]) => Some(match parts.as_slice() {
                ["jobs"] => Cost::Search,
                _ => Cost::LookUp,
            }),
            (true, ["queues", ..]) | (false, ["queue" | "queues"]) => Some(Cost::Queue),
            (true, ["schedules" | "topics" | "failures" | "operations" | "activity" | "workers", ..])
            | (_, ["upcoming"])
            | (false, ["list" | "count" | "operations"]) => Some(Cost::Search),
            (false, ["audit" | "doctor"]) => Some(Cost::Check),
            (false, ["doc" | "tool"]) => Some(Cost::Document),
            _ => None,
        };
    }
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(3, '/').collect();
    match (is_get, parts.as_slice()) {
        (_, ["healthz" | "readyz" | "style.css" | "live.js" | "login" | "logout" | "events" | "api", ..]) => {
            None
        }
        (true, ["jobs", _, ..] | ["" | "metrics"]) => Some(Cost::LookUp),
        (true, ["queues", _, ..]) => Some(Cost::Queue),
        (true, _) | (false, ["mcp" | "operations"] | ["jobs", "matching" | "confirm"]) => Some(Cost::Search),
        _ => None,
    }
}

/// The room for answers that are not taken yet.
#[derive(Debug, Default)]
struct Room {
    held: Mutex<Vec<Entry>>,
    next: AtomicU64,
    /// Notified when an answer was taken.
    freed: Notify,
}

/// An answer in the room.
#[derive(Debug)]
struct Entry {
    number: u64,
    who: Who,
    bytes: u64,
    seat: Option<Arc<Seat>>,
    since: Instant,
}

impl Entry {
    /// How long its client has taken nothing.
    fn stuck_for(&self) -> Option<Duration> {
        let seat = self.seat.as_ref()?;
        Some(seat.took_nothing_for().min(self.since.elapsed()))
    }
}

/// A part of the room, until it is dropped.
#[derive(Debug)]
struct Held {
    room: Arc<Room>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.held().retain(|entry| entry.number != self.number);
        self.room.freed.notify_waiters();
    }
}

impl Room {
    fn held(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room.
    async fn wait_for(self: &Arc<Self>, who: &Who, bytes: u64, seat: Option<Arc<Seat>>) -> Held {
        loop {
            let freed = self.freed.notified();
            {
                let mut held = self.held();
                let all: u64 = held.iter().map(|entry| entry.bytes).sum();
                let own: u64 = held.iter().filter(|entry| entry.who == *who).map(|entry| entry.bytes).sum();
                let is_own_free = own == 0 || own + bytes <= OWN_BYTES;
                if is_own_free && (all == 0 || all + bytes <= ROOM_BYTES) {
                    return self.enter(&mut held, who, bytes, seat);
                }
                give_up(&held, STUCK_MIN, |entry| is_own_free || entry.who == *who);
            }
            _ = timeout(LOOK_EVERY, freed).await;
        }
    }

    /// Takes room, whether there is some or not.
    fn take(self: &Arc<Self>, who: &Who, bytes: u64, seat: Option<Arc<Seat>>) -> Held {
        let mut held = self.held();
        let all: u64 = held.iter().map(|entry| entry.bytes).sum::<u64>() + bytes;
        if ROOM_BYTES < all {
            give_up(&held, if TOO_MANY_BYTES < all { Duration::ZERO } else { STUCK_MIN }, |_| true);
        }
        self.enter(&mut held, who, bytes, seat)
    }

    fn enter(
        self: &Arc<Self>,
        held: &mut Vec<Entry>,
        who: &Who,
        bytes: u64,
        seat: Option<Arc<Seat>>,
    ) -> Held {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        held.push(Entry { number, who: who.clone(), bytes, seat, since: Instant::now() });
        Held { room: Arc::clone(self), number }
    }
}

/// Ends the connection whose client has taken nothing for the longest time, if that is long enough.
fn give_up(held: &[Entry], stuck_min: Duration, of: impl Fn(&Entry) -> bool) {
    let stuck = held.iter().filter(|entry| of(entry)).filter_map(|entry| Some((entry.stuck_for()?, entry)));
    let longest = stuck.max_by_key(|(stuck, _)| *stuck).filter(|(stuck, _)| stuck_min <= *stuck);
    if let Some(seat) = longest.and_then(|(_, entry)| entry.seat.as_ref()) {
        seat.end();
    }
}

/// The body of an answer, whose parts hold its room until they are sent.
struct Untaken {
    body: Body,
    held: Arc<Held>,
}

/// A part of an answer.
struct Part {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Untaken {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let held = Arc::clone(&self.held);
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map_ok(|frame| frame.map_data(|bytes| Bytes::from_owner(Part { bytes, _held: held })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::to_bytes, middleware, routing::get};
    use futures_util::FutureExt as _;
    use tower::ServiceExt as _;

    use super::*;
    use crate::accept::Seats;

    fn seat() -> Arc<Seat> {
        Seats::default().take("127.0.0.1".parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_when_its_room_is_needed() {
        let (room, a, b) = (Arc::<Room>::default(), Who::named("a"), Who::named("b"));
        let (stuck, reads, begin) = (seat(), seat(), Instant::now());
        let first = room.wait_for(&a, OWN_BYTES, Some(Arc::clone(&stuck))).await;
        // A caller's own answers wait for it, and others do not.
        let mut second = Box::pin(room.wait_for(&a, 1, Some(seat())));
        assert!(second.as_mut().now_or_never().is_none());
        let other = room.wait_for(&b, OWN_BYTES, Some(Arc::clone(&reads))).now_or_never().unwrap();
        while !stuck.is_over() {
            reads.took();
            assert!(second.as_mut().now_or_never().is_none());
            tokio::time::advance(LOOK_EVERY).await;
        }
        assert!(STUCK_MIN <= begin.elapsed());
        drop((first, other));
        assert!(!reads.is_over());
        second.await;
    }

    #[tokio::test(start_paused = true)]
    async fn work_does_not_wait_for_room_and_is_bounded_all_the_same() {
        let (room, who) = (Arc::<Room>::default(), Who::named("a"));
        let mut seats = Vec::new();
        for _ in 0..=TOO_MANY_BYTES / ROOM_BYTES {
            tokio::time::advance(Duration::from_millis(1)).await;
            let seat = seat();
            seats.push((room.take(&who, ROOM_BYTES, Some(Arc::clone(&seat))), seat));
        }
        let over = seats.iter().filter(|(_, seat)| seat.is_over()).count();
        assert_eq!(over, 1);
        assert!(seats[0].1.is_over(), "it has taken nothing for the longest time");
    }

    #[tokio::test]
    async fn an_answer_has_its_room_until_its_last_part_is_dropped() {
        let answers = Answers::new();
        let router = Router::new()
            .route("/large", get(async || vec![b'x'; 100_000]))
            .route("/small", get(async || "small"))
            .layer(middleware::from_fn_with_state(answers.clone(), bounded));
        let ask = |path: &str| router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
        let held = || answers.0.room.held().iter().map(|entry| entry.bytes).sum::<u64>();
        let small = ask("/small").await.unwrap();
        assert_eq!(held(), 0);
        let large = ask("/large").await.unwrap();
        assert_eq!((held(), large.body().size_hint().exact()), (100_000, Some(100_000)));
        let bytes = to_bytes(large.into_body(), usize::MAX).await.unwrap();
        assert_eq!((held(), bytes.len()), (100_000, 100_000));
        drop((bytes, small));
        assert_eq!(held(), 0);
    }

    #[test]
    fn what_is_dear_has_a_share_and_what_waits_or_works_has_none() {
        for (method, uri, expected) in [
            (Method::GET, "/api/v1/jobs?filter=a:b", Some(Cost::Search)),
            (Method::POST, "/api/v1/list", Some(Cost::Search)),
            (Method::POST, "/api/v1/count", Some(Cost::Search)),
            (Method::GET, "/api/v1/failures", Some(Cost::Search)),
            (Method::POST, "/api/v1/doctor", Some(Cost::Check)),
            (Method::GET, "/api/v1/jobs/1", Some(Cost::LookUp)),
            (Method::GET, "/api/v1/jobs/1?wait_ms=9", None),
            (Method::POST, "/api/v1/get", Some(Cost::LookUp)),
            (Method::GET, "/api/v1/queues/b", Some(Cost::Queue)),
            (Method::POST, "/api/v1/doc", Some(Cost::Document)),
            (Method::GET, "/jobs?filter=a:b", Some(Cost::Search)),
            (Method::GET, "/jobs/1", Some(Cost::LookUp)),
            (Method::POST, "/jobs/matching", Some(Cost::Search)),
            (Method::POST, "/mcp", Some(Cost::Search)),
            (Method::POST, "/api/v1/jobs", None),
            (Method::POST, "/api/v1/reserve", None),
            (Method::POST, "/api/v1/extend", None),
            (Method::POST, "/api/v1/settle", None),
            (Method::POST, "/api/v1/wait", None),
            (Method::GET, "/api/v1/events", None),
            (Method::GET, "/api/v1/openapi.json", None),
            (Method::GET, "/events", None),
            (Method::GET, "/healthz", None),
            (Method::GET, "/readyz", None),
        ] {
            assert_eq!(cost(&method, &uri.parse().unwrap()), expected, "{method} {uri}");
        }
    }
}
