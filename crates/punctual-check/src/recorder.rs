//! Writes a history: one line per `write(2)` on a file opened for appending, so that what was written before a `kill -9`
//! is there after it. Never buffers, never judges. A simulation takes the events instead, and stamps them with its own time.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::event::{Answer, Line, Op, What};

/// The history of one process; threads share it.
#[derive(Debug)]
pub struct Recorder {
    to: To,
    proc: String,
    /// The last call that was given a number.
    calls: AtomicU64,
}

/// Where events go.
enum To {
    File(File),
    Taker(Box<dyn Fn(u64, What) + Send + Sync>),
}

impl fmt::Debug for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Taker(_) => "Taker",
        })
    }
}

impl Recorder {
    /// Begins a new file at `path` for a process (or thread) that calls itself `proc` and runs up to `slots` jobs at once. It may hand out
    /// so many `publications` beside them.
    ///
    /// # Errors
    /// When the file exists, or can't be written: two processes never share one.
    pub fn create(path: &Path, proc: impl Into<String>, slots: u64, publications: u64) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self::begin(To::File(file), proc.into(), std::process::id(), slots, publications))
    }

    /// As [`create`](Self::create), but hands each event to `take` instead of writing it, with the number that ties an answer to its call.
    pub fn simulated(
        proc: impl Into<String>,
        slots: u64,
        publications: u64,
        take: impl Fn(u64, What) + Send + Sync + 'static,
    ) -> Self {
        Self::begin(To::Taker(Box::new(take)), proc.into(), 0, slots, publications)
    }

    fn begin(to: To, proc: String, pid: u32, slots: u64, publications: u64) -> Self {
        let recorder = Self { to, proc, calls: AtomicU64::new(0) };
        recorder.note(What::Open { proc: recorder.proc.clone(), pid, slots, publications });
        recorder
    }

    /// The name in its `open` line.
    pub fn proc(&self) -> &str {
        &self.proc
    }

    /// Writes that a call is about to be made; hand the number to [`Recorder::answered`].
    pub fn invoke(&self, op: Op) -> u64 {
        let n = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.write(n, What::Invoke(op));
        n
    }

    /// Writes what the call answered.
    pub fn answered(&self, n: u64, answer: Result<Answer, &punctual::Error>) {
        use punctual::ErrorKind::{Closed, UnknownOutcome};
        self.write(
            n,
            match answer {
                Ok(answer) => What::Ok(answer),
                // A store that was closed in the middle of a call promises nothing about it.
                Err(e) if matches!(e.kind(), UnknownOutcome | Closed) => What::Info(e.to_string()),
                Err(e) => What::Fail(e.to_string()),
            },
        );
    }

    /// Writes something that is no call.
    pub fn note(&self, what: What) {
        self.write(0, what);
    }

    /// # Panics
    /// When the line can't be written: a history with holes proves nothing, and must not look like one without.
    fn write(&self, n: u64, what: What) {
        let mut file = match &self.to {
            To::File(file) => file,
            To::Taker(take) => return take(n, what),
        };
        let line = Line { m: monotonic_ns(), w: wall_ms(), n, what };
        let mut bytes = serde_json::to_vec(&line).expect("a line is plain data");
        bytes.push(b'\n');
        file.write_all(&bytes).expect("the history must be writable");
    }
}

/// `CLOCK_MONOTONIC`, which all processes of a machine share.
#[cfg(unix)]
pub fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(Duration::new(t.tv_sec as u64, t.tv_nsec as u32).as_nanos()).unwrap_or(u64::MAX)
}

/// Elapsed time since the first call, on the wall clock of that moment: no axis that processes share exactly, so drills with
/// real processes are for Unix.
#[cfg(not(unix))]
pub fn monotonic_ns() -> u64 {
    static ORIGIN: std::sync::LazyLock<(std::time::Instant, Duration)> = std::sync::LazyLock::new(|| {
        (std::time::Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    });
    u64::try_from((ORIGIN.1 + ORIGIN.0.elapsed()).as_nanos()).unwrap_or(u64::MAX)
}

fn wall_ms() -> u64 {
    let since: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
