//! Lines of a body, as they arrive. A body can have any length, and so can a line: what is too long is skipped, not kept.

use std::time::Duration;

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::StatusCode,
};
use futures_util::StreamExt as _;
use punctual::{Error, ErrorKind, store::wire::LINE_BYTES_MAX};
use tokio::time::{Instant, timeout_at};

use super::Problem;

/// Longest time without a byte of the body.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest time for a line, so that nobody holds a stream with a byte at a time.
const LINE_TIME_MAX: Duration = Duration::from_mins(2);

/// A line that is not blank.
#[derive(Debug)]
pub(super) struct Line {
    /// Its number, from 1. Blank lines are counted.
    pub(super) number: u64,
    pub(super) text: Result<String, Error>,
}

/// The lines of a body.
#[derive(Debug)]
pub(super) struct Lines {
    body: BodyDataStream,
    /// What has arrived, and is not read yet.
    chunk: Bytes,
    /// The beginning of the next line, at most as long as a line can be.
    begun: Vec<u8>,
    is_too_long: bool,
    /// The number of the last line.
    pub(super) number: u64,
}

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        let body = body.into_data_stream();
        Self { body, chunk: Bytes::new(), begun: Vec::new(), is_too_long: false, number: 0 }
    }

    /// Returns the next line; `None` at the end of the body. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Line>, Problem> {
        let ends = Instant::now() + LINE_TIME_MAX;
        loop {
            while let Some(at) = self.chunk.iter().position(|byte| *byte == b'\n') {
                let end = self.chunk.split_to(at + 1);
                self.add(&end[..at]);
                if let Some(line) = self.end() {
                    return Ok(Some(line));
                }
            }
            let rest = std::mem::take(&mut self.chunk);
            self.add(&rest);
            match timeout_at(ends.min(Instant::now() + SILENCE_MAX), self.body.next()).await {
                Ok(Some(Ok(chunk))) => self.chunk = chunk,
                // The last line needs no line break.
                Ok(None) => return Ok(self.end()),
                Ok(Some(Err(_))) => return Err(Error::invalid("the body ended within a line").into()),
                Err(_) => {
                    let (silence, line) = (SILENCE_MAX.as_secs(), LINE_TIME_MAX.as_secs());
                    let detail =
                        format!("nothing of the body arrived for {silence} s, or no whole line for {line} s");
                    return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail)
                        .with_hint("send the other lines in another request"));
                }
            }
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if LINE_BYTES_MAX < self.begun.len() + bytes.len() {
            self.is_too_long = true;
            self.begun = Vec::new();
        } else if !self.is_too_long {
            self.begun.extend_from_slice(bytes);
        }
    }

    /// Ends the line that was begun. A blank one is none.
    fn end(&mut self) -> Option<Line> {
        let (bytes, is_too_long) = (std::mem::take(&mut self.begun), std::mem::take(&mut self.is_too_long));
        self.number += 1;
        if is_too_long {
            let what = format!("the line is over the limit of {LINE_BYTES_MAX} bytes");
            return Some(Line { number: self.number, text: Err(Error::new(ErrorKind::TooLarge, what)) });
        }
        if bytes.trim_ascii().is_empty() {
            return None;
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to() + 1;
            Error::invalid(format!("the line is not UTF-8 (byte {at})"))
                .with_hint("put bytes that are not text into payload_base64")
        });
        Some(Line { number: self.number, text })
    }
}
