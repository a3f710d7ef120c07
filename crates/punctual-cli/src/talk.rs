//! What a process writes to stderr for people: log lines, messages, and what the commands of jobs print.
//!
//! A process that holds leases, or that decides about signals, must not wait until its stderr is read. A full pipe, a stopped terminal
//! or a log collector that hangs would hold up timeouts and verdicts. Such a process calls [`detach`]. Then a thread of its own writes,
//! from a bounded buffer. What does not fit is dropped, and one line says how much. Other processes write directly.
//!
//! ```text
//! log lines, messages ──┐
//!                       ├──► buffer ──► thread ──► stderr
//! output of commands ───┘      └──full──► dropped ──the buffer is empty──► a line with the number of bytes
//! ```

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Write},
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The most bytes that wait while commands print.
const PASSED_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes that wait at all: a command that prints much leaves room for this process's own lines.
const BYTES_MAX: usize = PASSED_BYTES_MAX + 256 * 1024;
/// The pause before another try, if stderr does not block.
const AGAIN: Duration = Duration::from_millis(20);
/// A process that ends waits as long as a reader takes something within this time.
const STALLED: Duration = Duration::from_secs(1);
/// It waits so long at most.
const FLUSH_MAX: Duration = Duration::from_secs(10);

static BUFFER: OnceLock<&'static Buffer> = OnceLock::new();

/// What waits to be written.
#[derive(Default)]
struct Buffer {
    waiting: Mutex<Waiting>,
    /// Notified of more to write.
    more: Condvar,
    /// Notified when all is written.
    written: Condvar,
}

#[derive(Default)]
struct Waiting {
    chunks: VecDeque<Vec<u8>>,
    /// Their bytes, and those that are being written.
    bytes: usize,
    /// Bytes that did not fit since the last line about such bytes.
    dropped: u64,
    is_writing: bool,
}

/// Lets a thread of its own write to stderr, from now on. Without such a thread, writing stays direct.
pub(crate) fn detach() {
    let buffer: &'static Buffer = Box::leak(Box::default());
    let started = thread::Builder::new().name("stderr".to_owned()).spawn(move || buffer.write_all());
    if started.is_ok() && BUFFER.set(buffer).is_ok() {
        // The default hook would wait for the reader while a handler panics.
        std::panic::set_hook(Box::new(|panic| {
            say(&panic.to_string());
            if thread::current().name() == Some("main") {
                flush();
            }
        }));
    }
}

/// Prints a line.
pub(crate) fn say(line: &str) {
    print(&format!("{line}\n"));
}

/// Prints a text.
pub(crate) fn print(text: &str) {
    // A closed stderr is not an error.
    let _ = Stderr.write_all(text.as_bytes());
}

/// Passes on what a command printed.
#[cfg(unix)]
pub(crate) fn pass_on(bytes: &[u8]) {
    match BUFFER.get() {
        Some(buffer) => buffer.pass_on(bytes),
        None => drop(io::stderr().write_all(bytes)),
    }
}

/// Waits at the end of the process until all is written, or until the reader takes nothing for a second.
pub(crate) fn flush() {
    if let Some(buffer) = BUFFER.get() {
        buffer.flush();
    }
}

/// Returns stderr, as a log writes to it: whole lines.
pub(crate) const fn stderr() -> Stderr {
    Stderr
}

/// Where log lines go.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match BUFFER.get() {
            Some(buffer) => buffer.own(bytes),
            None => return io::stderr().write(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn own(&self, bytes: &[u8]) {
        self.add(bytes, |waiting| waiting.bytes + bytes.len() <= BYTES_MAX);
    }

    /// After a gap, commands get room when all before the gap is written: a line about it stands where it is.
    #[cfg(unix)]
    fn pass_on(&self, bytes: &[u8]) {
        self.add(bytes, |waiting| waiting.dropped == 0 && waiting.bytes + bytes.len() <= PASSED_BYTES_MAX);
    }

    fn add(&self, bytes: &[u8], fits: impl FnOnce(&Waiting) -> bool) {
        let mut waiting = self.waiting();
        if fits(&waiting) {
            waiting.bytes += bytes.len();
            waiting.chunks.push_back(bytes.to_vec());
        } else {
            waiting.dropped += bytes.len() as u64;
        }
        drop(waiting);
        self.more.notify_one();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the process ends.
    fn write_all(&self) {
        let mut last = b'\n';
        loop {
            match self.next() {
                Next::Chunk(chunk) => {
                    write(&chunk);
                    last = chunk.last().copied().unwrap_or(last);
                    self.waiting().bytes -= chunk.len();
                }
                Next::Gap(bytes) => {
                    if last != b'\n' {
                        write(b"\n");
                        last = b'\n';
                    }
                    tracing::warn!(bytes, "this much output was dropped: stderr was not read in time");
                }
            }
        }
    }

    /// Waits for the next thing to write.
    fn next(&self) -> Next {
        let mut waiting = self.waiting();
        loop {
            waiting.is_writing = true;
            if let Some(chunk) = waiting.chunks.pop_front() {
                return Next::Chunk(chunk);
            }
            if 0 < waiting.dropped {
                return Next::Gap(std::mem::take(&mut waiting.dropped));
            }
            waiting.is_writing = false;
            self.written.notify_all();
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn flush(&self) {
        let (begin, mut waiting) = (Instant::now(), self.waiting());
        while begin.elapsed() < FLUSH_MAX {
            let before = waiting.bytes;
            let is_left =
                |waiting: &mut Waiting| waiting.is_writing || 0 < waiting.bytes || 0 < waiting.dropped;
            let waited = self.written.wait_timeout_while(waiting, STALLED, is_left);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if !timeout.timed_out() || now.bytes == before {
                return;
            }
            waiting = now;
        }
    }
}

enum Next {
    Chunk(Vec<u8>),
    /// Here, so many bytes were dropped.
    Gap(u64),
}

/// Writes to stderr, however long that takes.
fn write(mut bytes: &[u8]) {
    let mut stderr = io::stderr();
    while !bytes.is_empty() {
        match stderr.write(bytes) {
            Ok(n @ 1..) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => thread::sleep(AGAIN),
            // Nobody can read it any more.
            Ok(_) | Err(_) => return,
        }
    }
}
