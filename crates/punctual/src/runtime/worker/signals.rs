//! The signals of the process, for workers that end by them.
//!
//! One thread listens for the whole process, from the first such worker on. While such workers run, the first signal
//! drains them, and the second ends them at once. After the last one has ended, a signal ends the process again.
//! Handlers are not uninstalled, so this thread then does the system's default action. A signal that the
//! process caught or ignored before is left to its own handler. Only Linux shows whether it did; on other systems the
//! signals then do nothing.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tokio::sync::{OnceCell, oneshot};

use super::Shutdown;
use crate::core::error::{Error, ErrorKind, Result};

/// The workers that end by signals.
static WORKERS: Mutex<BTreeMap<u64, Shutdown>> = Mutex::new(BTreeMap::new());

fn workers() -> MutexGuard<'static, BTreeMap<u64, Shutdown>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets signals end a worker until this is dropped.
pub(super) struct Listening(u64);

impl Drop for Listening {
    fn drop(&mut self) {
        workers().remove(&self.0);
    }
}

/// Lets signals end a worker: the first one gracefully, the second one now.
pub(super) async fn listen(shutdown: &Shutdown) -> Result<Listening> {
    static STARTED: OnceCell<()> = OnceCell::const_new();
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Entered first: a signal that comes as soon as the thread listens is for this worker.
    let listening = Listening(LAST.fetch_add(1, Ordering::Relaxed));
    workers().insert(listening.0, shutdown.clone());
    STARTED.get_or_try_init(start).await?;
    Ok(listening)
}

/// Starts the thread, and waits until it listens.
async fn start() -> Result<()> {
    let could_not = |e| Error::new(ErrorKind::Unavailable, "could not listen for signals").with_source(e);
    let (begun, begins) = oneshot::channel();
    let spawned = thread::Builder::new().name("punctual-signals".to_owned()).spawn(move || follow(begun));
    spawned.map_err(could_not)?;
    let begun = begins.await.unwrap_or_else(|_| Err(std::io::Error::other("its thread ended")));
    begun.map_err(could_not)
}

/// Passes signals on to the workers, or does the system's default action if there are none.
fn follow(begun: oneshot::Sender<std::io::Result<()>>) {
    let mut signals = match os::Signals::new() {
        Ok(signals) => signals,
        Err(e) => return drop(begun.send(Err(e))),
    };
    if begun.send(Ok(())).is_err() {
        // Another worker starts another thread.
        return;
    }
    loop {
        let signal = signals.next();
        let workers = workers();
        for shutdown in workers.values() {
            if shutdown.graceful.is_cancelled() { shutdown.now.cancel() } else { shutdown.graceful.cancel() }
        }
        if workers.is_empty() && signal.ends_the_process {
            std::process::exit(128 + signal.number);
        }
    }
}

/// A received signal.
struct Signal {
    number: i32,
    /// Whether the system's default action applied before the first worker listened.
    ends_the_process: bool,
}

#[cfg(unix)]
mod os {
    use signal_hook::{
        consts::{SIGINT, SIGTERM},
        iterator,
    };

    use super::Signal;

    /// Of tokio's streams, a signal could be lost that arrives after the handler is there and before the stream: another runtime may pass it on
    /// to nobody.
    pub(super) struct Signals {
        all: iterator::Signals,
        status: String,
    }

    impl Signals {
        pub(super) fn new() -> std::io::Result<Self> {
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            Ok(Self { all: iterator::Signals::new([SIGINT, SIGTERM])?, status })
        }

        /// Waits for the next signal.
        pub(super) fn next(&mut self) -> Signal {
            // Nobody closes it.
            let number = self.all.forever().next().unwrap_or(SIGTERM);
            Signal { number, ends_the_process: is_default(&self.status, number) }
        }
    }

    /// Returns whether a process with this status neither catches nor ignores a signal.
    fn is_default(status: &str, signal: i32) -> bool {
        let set = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
            let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
            Some(mask >> (signal - 1) & 1 == 1)
        };
        set("SigCgt:") == Some(false) && set("SigIgn:") == Some(false)
    }

    #[cfg(test)]
    mod tests {
        use signal_hook::consts::SIGHUP;

        use super::*;

        #[test]
        fn a_signal_that_is_caught_or_ignored_is_somebody_elses() {
            let status = "Name:\tx\nSigIgn:\t0000000000000002\nSigCgt:\t0000000000004000\n";
            let of = |signal| is_default(status, signal);
            assert!(of(SIGHUP) && !of(SIGINT) && !of(SIGTERM));
            assert!(!is_default("", SIGHUP), "nobody knows");
        }
    }
}

#[cfg(windows)]
mod os {
    use tokio::{
        runtime::{Builder, Runtime},
        signal::windows::{CtrlC, ctrl_c},
    };

    use super::Signal;

    pub(super) struct Signals(Runtime, CtrlC);

    impl Signals {
        pub(super) fn new() -> std::io::Result<Self> {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let stream = runtime.block_on(async { ctrl_c() })?;
            Ok(Self(runtime, stream))
        }

        pub(super) fn next(&mut self) -> Signal {
            self.0.block_on(self.1.recv());
            Signal { number: 2, ends_the_process: false }
        }
    }
}
