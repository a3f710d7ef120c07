//! Watches the machine under a drill. A virtual machine or its disk may stand still for seconds: then leases of healthy workers end,
//! and jobs start late, by no fault of a queue. The watch notes such stalls in the history, and the judge takes them for harm.
//!
//! It has a thread of its own, asks the store for nothing, and takes no lock: what is watched can't make it late.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use punctual_check::{Recorder, event::What, monotonic_ns};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(100);
/// The longest that a look may come late, with its write: less than a third of the shortest lease of a drill, so that what costs a
/// lease is noticed.
const LATE_MAX: Duration = Duration::from_millis(300);

/// Watches until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches this process and, with a folder, the disk below it, to which a byte is synced with each look.
    ///
    /// # Errors
    /// When the file can't be made, or no thread.
    pub(crate) fn begin(recorder: Arc<Recorder>, dir: Option<&Path>) -> io::Result<Self> {
        let mut file = dir.map(|dir| File::create(dir.join("watch"))).transpose()?;
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            loop {
                let since = monotonic_ns();
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                // A disk that can't be written is told by the store.
                let _ = file.as_mut().map(|file| file.write_all(b".").and_then(|()| file.sync_data()));
                let took = Duration::from_nanos(monotonic_ns().saturating_sub(since));
                if EVERY + LATE_MAX < took {
                    recorder.note(What::Stalled { since });
                }
            }
        };
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(watch)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
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
