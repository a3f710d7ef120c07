//! Jobs as lines: a body of any length, stored in batches as it arrives, with an answer for each line in order.
//!
//! ```text
//! body ─► lines ─► batch (≤ 1,000 lines, ≤ 1 MiB of payloads, never waiting for the body) ─► store ─► answers ─► body of the response
//! ```
//!
//! While a client does not read its answers, no further lines are read.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse as _, Response},
};
use futures_util::{FutureExt as _, stream};
use punctual::{
    Client, Error, ErrorKind, NewJob,
    limits::{BATCH_BYTES_MAX, BATCH_MAX},
    store::{
        Enqueued,
        wire::{self, LINE_BYTES_MAX},
    },
};
use serde::Serialize;
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    accept::Ending,
    api::{
        Api, Problem, Scope,
        lines::{Line, Lines},
    },
    gate::{Gate, Right},
    shares::Who,
    trace,
};

/// The type of the body and of the answer.
const NDJSON: &str = "application/x-ndjson";
/// The most streams at once. Each holds at most a line, a batch and its answers: about 8 MiB.
pub(in crate::api) const STREAMS_MAX: usize = 32;
/// The most of them of one caller.
pub(in crate::api) const OWN_STREAMS_MAX: usize = STREAMS_MAX / 2;
/// Longest time for a client to take the answers of a batch.
const TAKEN_MAX: Duration = Duration::from_mins(1);

/// Whether the body is one of lines.
pub(super) fn is_of_lines(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(NDJSON))
}

/// The answer for the job of a line.
#[derive(Serialize)]
struct Stored<'a> {
    line: u64,
    #[serde(flatten)]
    result: &'a Enqueued,
}

/// The answer for a line whose job was not stored.
#[derive(Serialize)]
struct Refused<'a> {
    line: u64,
    problem: &'a Problem,
}

/// The last answer of a stream that could not go on.
#[derive(Serialize)]
struct Broken<'a> {
    from_line: u64,
    problem: &'a Problem,
}

/// Lines that go to the store together.
#[derive(Debug, Default)]
struct Batch {
    /// The number of each line, and what was wrong with it if it is no job.
    lines: Vec<(u64, Option<Problem>)>,
    /// The jobs of the other lines, in the same order.
    jobs: Vec<NewJob>,
    payload_bytes: usize,
    text_bytes: usize,
}

/// A stream that is read.
struct Open {
    api: Arc<Api>,
    scope: Scope,
    /// The head of the request, by which the caller is checked again.
    parts: Parts,
    lines: Lines,
    answers: mpsc::Sender<Piece>,
    /// Fires when its connection has to end.
    ending: CancellationToken,
}

/// A part of the answers. An empty one is the last.
struct Piece {
    bytes: Bytes,
    is_last: bool,
}

/// Begins to store the jobs of a body, and returns the answers as they come.
pub(super) fn begin(api: Arc<Api>, scope: Scope, parts: Parts, body: Body) -> Result<Response, Problem> {
    let Some(seat) = api.streams.try_take(&Who::of(&parts.extensions)) else {
        let detail =
            "as many streams of jobs are in progress as the caller may have, or as the server has room for";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
            .with_hint("repeat the request later, or make the call enqueue"));
    };
    let (answers, pieces) = mpsc::channel(1);
    // A router that others serve knows no age of connections.
    let Ending(ending) = parts.extensions.get().cloned().unwrap_or_default();
    let open = Open { api, scope, parts, lines: Lines::new(body), answers, ending };
    tokio::spawn(trace::carried(async move {
        let _seat = seat;
        open.run().await;
    }));
    let body = Body::from_stream(stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        match pieces.recv().await {
            Some(Piece { bytes, .. }) if bytes.is_empty() => None,
            Some(Piece { bytes, is_last }) => Some((Ok(bytes), Some(pieces).filter(|_| !is_last))),
            // So that the client does not take the answers for complete.
            None => Some((Err(io::Error::other("the answers were not taken in time")), None)),
        }
    }));
    // nginx would collect the answers before it passes them on.
    let headers = [(CONTENT_TYPE.as_str(), NDJSON), ("x-accel-buffering", "no")]
        .map(|(name, value)| (name, HeaderValue::from_static(value)));
    Ok((headers, body).into_response())
}

impl Open {
    async fn run(mut self) {
        let mut batch = Batch::default();
        loop {
            // A batch does not wait for the body: its client may wait for the answers.
            let next = if self.api.stop.is_cancelled() {
                Err(stopping())
            } else if self.ending.is_cancelled() {
                Err(ending())
            } else if let Some(next) = self.lines.next().now_or_never() {
                next
            } else {
                if !batch.lines.is_empty() && !self.store(std::mem::take(&mut batch), false).await {
                    return;
                }
                tokio::select! {
                    next = self.lines.next() => next,
                    () = self.api.stop.cancelled() => Err(stopping()),
                    () = self.ending.cancelled() => Err(ending()),
                    () = self.answers.closed() => return,
                }
            };
            match next {
                Ok(Some(line)) => {
                    let text_bytes = line.text.as_ref().map_or(0, String::len);
                    let (number, job) = (line.number, self.job(line));
                    if !batch.has_room(job.as_ref().ok(), text_bytes)
                        && !self.store(std::mem::take(&mut batch), false).await
                    {
                        return;
                    }
                    batch.add(number, job, text_bytes);
                }
                Ok(None) => {
                    self.store(batch, true).await;
                    return;
                }
                Err(problem) => {
                    let from_line = self.lines.number + 1;
                    if self.store(batch, false).await {
                        self.end(Vec::new(), from_line, &problem).await;
                    }
                    return;
                }
            }
        }
    }

    /// Reads the job of a line.
    fn job(&self, line: Line) -> Result<NewJob, Problem> {
        let job = wire::job(&line.text?, || self.api.client.make_id())?;
        self.scope.new_job(&job)?;
        Ok(job)
    }

    /// Stores a batch and sends its answers. Returns whether the stream goes on.
    async fn store(&mut self, batch: Batch, is_last: bool) -> bool {
        let Some((first, _)) = batch.lines.first() else {
            return !is_last || self.send(Vec::new(), is_last).await;
        };
        if let Err(problem) = self.check().await {
            self.end(Vec::new(), *first, &problem).await;
            return false;
        }
        let (results, mut broken) = push(&self.api.client, batch.jobs).await;
        let (mut results, mut bytes) = (results.into_iter(), Vec::new());
        for (line, refused) in batch.lines {
            let result = match refused {
                Some(problem) => Err(problem),
                None => match results.next() {
                    Some(Ok(result)) => Ok(result),
                    Some(Err(error)) => Err(error.into()),
                    None => {
                        let error = broken.take().unwrap_or_else(|| {
                            Error::new(ErrorKind::Corrupt, "the store returned too few results")
                        });
                        self.end(bytes, line, &error.into()).await;
                        return false;
                    }
                },
            };
            match result {
                Ok(result) => write(&mut bytes, &Stored { line, result: &result }),
                Err(problem) => write(&mut bytes, &Refused { line, problem: &problem }),
            }
        }
        self.send(bytes, is_last).await
    }

    /// Checks that the caller is still one. Its token can have been revoked meanwhile.
    async fn check(&mut self) -> Result<(), Problem> {
        if let Some(gate) = self.parts.extensions.get::<Gate>() {
            let caller = gate.authenticate(&self.parts).await?;
            caller.has(Right::Operate)?;
            self.scope = Scope::from(caller);
        }
        Ok(())
    }

    /// Ends a stream that cannot go on.
    async fn end(&mut self, mut bytes: Vec<u8>, from_line: u64, problem: &Problem) {
        write(&mut bytes, &Broken { from_line, problem });
        self.send(bytes, true).await;
    }

    /// Sends answers when the client has taken those before. Returns whether it does.
    async fn send(&mut self, bytes: Vec<u8>, is_last: bool) -> bool {
        let piece = Piece { bytes: bytes.into(), is_last };
        matches!(timeout(TAKEN_MAX, self.answers.send(piece)).await, Ok(Ok(())))
    }
}

impl Batch {
    fn has_room(&self, job: Option<&NewJob>, text_bytes: usize) -> bool {
        let payload_bytes = job.map_or(0, |job| job.payload.bytes.len());
        self.lines.is_empty()
            || self.lines.len() < BATCH_MAX
                && self.payload_bytes + payload_bytes <= BATCH_BYTES_MAX
                && self.text_bytes + text_bytes <= LINE_BYTES_MAX
    }

    fn add(&mut self, number: u64, job: Result<NewJob, Problem>, text_bytes: usize) {
        self.text_bytes += text_bytes;
        match job {
            Ok(job) => {
                self.payload_bytes += job.payload.bytes.len();
                self.jobs.push(job);
                self.lines.push((number, None));
            }
            Err(problem) => self.lines.push((number, Some(problem))),
        }
    }
}

/// Stores jobs. Returns a result for each, or for the first ones and why there are no others.
async fn push(client: &Client, jobs: Vec<NewJob>) -> (Vec<Result<Enqueued, Error>>, Option<Error>) {
    if jobs.is_empty() {
        return (Vec::new(), None);
    }
    // A refused call stored nothing, and does not name the job at fault: so each job is sent by itself.
    match client.push(jobs.clone()).await {
        Ok(results) => (results.into_iter().map(Ok).collect(), None),
        Err(e) if is_about_a_job(&e) => {
            let mut results = Vec::with_capacity(jobs.len());
            for job in jobs {
                match client.push(vec![job]).await {
                    Ok(result) => results.extend(result.into_iter().map(Ok)),
                    Err(e) if is_about_a_job(&e) => results.push(Err(e)),
                    Err(e) => return (results, Some(e)),
                }
            }
            (results, None)
        }
        Err(e) => (Vec::new(), Some(e)),
    }
}

/// Whether the job is at fault, and another one may be accepted.
fn is_about_a_job(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict)
}

fn stopping() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "the server stops")
        .with_hint("send the other lines again, to this server or another one")
}

fn ending() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "store_unavailable",
        "the connection has been open for the longest time allowed",
    )
    .with_hint("send the other lines again, on a new connection")
}

/// Writes an answer as a line.
fn write(bytes: &mut Vec<u8>, answer: &impl Serialize) {
    let text = serde_json::to_vec(answer);
    bytes.extend(text.expect("invariant: results and problems are plain data, which JSON can hold"));
    bytes.push(b'\n');
}
