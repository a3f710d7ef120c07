//! Watches the machine under a drill. A virtual machine or its disk may stand still for seconds: then leases of healthy workers end,
//! and jobs start late, by no fault of a queue.
//!
//! It has a thread of its own, asks the store for nothing, and takes no lock of it. But it shares the disk with the store, and a store that
//! keeps the disk busy makes it wait. So the judge takes a stall for harm only if it is long enough to cost a lease.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use punctual_check::{Recorder, event::What, monotonic_ns};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(100);
/// The longest that a look may come late, with its write: less than half of the shortest lease of a drill, from which on it is harm.
const LATE_MAX: Duration = Duration::from_millis(300);

/// Watches until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Watch {
    longest_ns: Arc<AtomicU64>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches this process and, with a folder, the disk below it, to which a byte is synced with each look. Notes each stall in a
    /// history, if there is one.
    ///
    /// # Errors
    /// When the file can't be made, or no thread.
    pub(crate) fn begin(recorder: Option<Arc<Recorder>>, dir: Option<&Path>) -> io::Result<Self> {
        let mut file = dir.map(|dir| File::create(dir.join("watch"))).transpose()?;
        let (stop, stopped) = mpsc::channel();
        let longest_ns = Arc::<AtomicU64>::default();
        let longest = Arc::clone(&longest_ns);
        let watch = move || {
            loop {
                let (since, wall) = (monotonic_ns(), SystemTime::now());
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                // A disk that can't be written is told by the store.
                let _ = file.as_mut().map(|file| file.write_all(b".").and_then(|()| file.sync_data()));
                // The clock of a machine that was put to sleep stands still, and that on the wall does not.
                let slept = wall.elapsed().unwrap_or_default();
                let now = monotonic_ns();
                let took = Duration::from_nanos(now.saturating_sub(since)).max(slept);
                if EVERY + LATE_MAX < took {
                    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                    longest.fetch_max(ns, Ordering::Relaxed);
                    if let Some(recorder) = &recorder {
                        recorder.note(What::Stalled { since: now.saturating_sub(ns) });
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(watch)?;
        Ok(Self { longest_ns, stop: Some(stop), thread: Some(thread) })
    }

    /// The longest stall so far.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
