//! Reads what a command prints, until the command has ended and all of its output was read.

use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use punctual::{
    Ctx,
    limits::{ERROR_BYTES_MAX, RESULT_BYTES_MAX},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{ChildStderr, ChildStdout},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::talk;

/// How long what still holds a pipe open is read after the command ended. What the command itself printed is read by then.
const PIPE_GRACE: Duration = Duration::from_secs(1);
/// What is read at once.
const CHUNK: usize = 8 * 1024;
/// The most chunks that are read after the end without waiting: above what any pipe holds (1 MiB).
const CHUNKS_LEFT_MAX: usize = 256;

/// A pipe that a command writes to, until it is closed, or until the command has ended and what it wrote was read.
struct Pipe<P> {
    end: P,
    /// Fired when the command has ended.
    ended: CancellationToken,
    stage: Stage,
}

enum Stage {
    /// The command runs.
    Running,
    /// It has ended; this many chunks are read without waiting.
    Draining(usize),
    /// Reads all output of the command; processes that it left can write until then.
    Left(Instant),
    /// Nothing can come any more.
    Closed,
}

impl Stage {
    fn left() -> Self {
        Self::Left(Instant::now() + PIPE_GRACE)
    }
}

impl<P: AsyncRead + AsFd + Unpin> Pipe<P> {
    fn new(pipe: P, ended: CancellationToken) -> Self {
        Self { end: pipe, ended, stage: Stage::Running }
    }

    /// The number of bytes that were read next; 0: that was all.
    async fn read(&mut self, buffer: &mut [u8]) -> usize {
        loop {
            let read = match self.stage {
                Stage::Running => tokio::select! {
                    biased;
                    () = self.ended.cancelled() => {
                        self.stage = Stage::Draining(CHUNKS_LEFT_MAX);
                        continue;
                    }
                    read = self.end.read(buffer) => read.unwrap_or(0),
                },
                // However busy the machine is: what the command wrote is in the pipe by now, and no time is waited for it.
                Stage::Draining(left) => match rustix::io::read(&self.end, &mut *buffer) {
                    Ok(n) => {
                        self.stage = left.checked_sub(1).map_or_else(Stage::left, Stage::Draining);
                        n
                    }
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(rustix::io::Errno::AGAIN) => {
                        self.stage = Stage::left();
                        continue;
                    }
                    Err(_) => 0,
                },
                Stage::Left(until) => match timeout_at(until, self.end.read(buffer)).await {
                    Ok(read) => read.unwrap_or(0),
                    Err(_) => return 0,
                },
                Stage::Closed => return 0,
            };
            if read == 0 {
                self.stage = Stage::Closed;
            }
            return read;
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed)
    }
}

/// What a command prints, as far as it may be a result and one byte more; the rest is read and dropped. Answers as well whether
/// the pipe was closed.
pub(super) async fn printed(pipe: ChildStdout, ended: CancellationToken) -> (Vec<u8>, bool) {
    let (mut pipe, mut buffer, mut bytes) = (Pipe::new(pipe, ended), vec![0; CHUNK], Vec::new());
    loop {
        let n = pipe.read(&mut buffer).await;
        if n == 0 {
            return (bytes, pipe.is_closed());
        }
        let room = (RESULT_BYTES_MAX + 1).saturating_sub(bytes.len());
        bytes.extend_from_slice(&buffer[..n.min(room)]);
    }
}

/// The last of what a command wrote to stderr; all of it goes on to ours.
#[derive(Clone, Default)]
pub(super) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    pub(super) async fn follow(self, pipe: ChildStderr, ended: CancellationToken, log: Option<Ctx<()>>) {
        let (mut pipe, mut buffer) = (Pipe::new(pipe, ended), vec![0; CHUNK]);
        let mut lines = Lines::default();
        loop {
            let n = pipe.read(&mut buffer).await;
            if n == 0 {
                break;
            }
            self.keep(&buffer[..n]);
            if let Some(log) = &log {
                lines.add(&buffer[..n], |line| log.log(line));
            }
            talk::pass_on(&buffer[..n]);
        }
        if let Some(log) = &log {
            lines.end(|line| log.log(line));
        }
    }

    /// Forgets what was written until now.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn keep(&self, more: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(more);
        let over = kept.len().saturating_sub(ERROR_BYTES_MAX);
        kept.drain(..over);
    }

    /// What was cut within a character, or is no text, is shown as such.
    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = kept.iter().take(4).position(|b| b & 0xc0 != 0x80).unwrap_or(0);
        String::from_utf8_lossy(&kept[start..]).into_owned()
    }
}

/// Bytes as lines of text; a line that is longer than any that is kept goes on in the next one.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn add(&mut self, bytes: &[u8], mut tell: impl FnMut(String)) {
        for byte in bytes {
            if *byte == b'\n' || self.0.len() == ERROR_BYTES_MAX {
                self.end(&mut tell);
            }
            if *byte != b'\n' {
                self.0.push(*byte);
            }
        }
    }

    fn end(&mut self, mut tell: impl FnMut(String)) {
        let line = std::mem::take(&mut self.0);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            tell(text.trim_end().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_whole() {
        let (mut lines, mut told) = (Lines::default(), Vec::new());
        for part in ["one\ntw", "o\r\n\n", "thr"] {
            lines.add(part.as_bytes(), |line| told.push(line));
        }
        lines.end(|line| told.push(line));
        assert_eq!(told, ["one", "two", "thr"]);
        lines.add(&[b'x'; ERROR_BYTES_MAX + 1], |line| told.push(line));
        assert_eq!((told.len(), told[3].len()), (4, ERROR_BYTES_MAX));
    }

    #[test]
    fn the_tail_keeps_the_end() {
        let tail = Tail::default();
        tail.keep("ä".repeat(600).as_bytes());
        tail.keep(b"!");
        let text = tail.text();
        assert!(text.len() <= ERROR_BYTES_MAX && text.ends_with("ä!") && text.starts_with('ä'), "{text}");
    }
}
