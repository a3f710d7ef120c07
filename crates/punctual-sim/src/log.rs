//! The events of all processes in one order, stamped with the time of the simulation.

use std::{
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError},
};

use punctual_check::event::{Line, What};
use tokio::time::Instant;

/// What the store's clock shows at the beginning of each run, in Unix milliseconds.
pub(crate) const START_MS: u64 = 1_795_000_000_000;

/// An event of a process.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The number of the process.
    pub process: usize,
    /// What happened.
    pub line: Line,
}

/// The events so far.
#[derive(Debug)]
pub(crate) struct Log {
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    /// The last stamp.
    last: u64,
    processes: usize,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a new process.
    pub(crate) fn process(&self) -> usize {
        let mut state = self.state();
        state.processes += 1;
        state.processes - 1
    }

    /// Adds an event. Events of one moment are a nanosecond apart, so that their order is known.
    pub(crate) fn add(&self, process: usize, n: u64, what: What) {
        let elapsed = self.begun.elapsed();
        let mut state = self.state();
        let m = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(state.last + 1);
        state.last = m;
        let w = START_MS + u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        state.entries.push(Entry { process, line: Line { m, w, n, what } });
    }

    /// Takes all events out.
    pub(crate) fn take(&self) -> (Vec<Entry>, usize) {
        let mut state = self.state();
        (std::mem::take(&mut state.entries), state.processes)
    }
}

/// Returns the fingerprint of events: two runs with the same one did the same in the same order.
pub(crate) fn hash(entries: &[Entry]) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for Entry { process, line } in entries {
        hash.add(&process.to_le_bytes());
        serde_json::to_writer(&mut hash, line).expect("a line is plain data, and the hash takes all of it");
    }
    hash.0
}

/// FNV-1a.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
