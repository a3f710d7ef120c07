//! A thread of a store. It ends when its queue is closed; closing waits for that for a limited time.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::core::error::{Error, ErrorKind, Result};

/// How long dropping the last handle of a store waits for calls in progress. A thread that is held up longer, by a
/// lock of another process or by a disk, ends in the background.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// A handle to such a thread.
#[derive(Debug)]
pub(crate) struct Thread {
    handle: Option<JoinHandle<()>>,
    ended: Arc<Ended>,
}

/// Whether the thread has ended.
#[derive(Debug, Default)]
struct Ended(Mutex<bool>, Condvar);

/// Notes the end, also after a panic.
struct Ends(Arc<Ended>);

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

impl Thread {
    pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self> {
        let ended = Arc::<Ended>::default();
        let ends = Ends(Arc::clone(&ended));
        let handle = thread::Builder::new().name(name.to_owned()).spawn(move || {
            run();
            drop(ends);
        });
        let handle = handle.map_err(|e| {
            Error::new(ErrorKind::Unavailable, format!("could not start the thread {name}")).with_source(e)
        })?;
        Ok(Self { handle: Some(handle), ended })
    }

    /// Waits for the end of the thread. Its queue must be closed.
    pub(crate) fn end(&mut self) {
        self.end_within(CLOSE_WAIT);
    }

    /// The same, for this long.
    pub(crate) fn end_within(&mut self, at_most: Duration) {
        let Ended(ended, changed) = &*self.ended;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(ended, at_most, |ended| !*ended);
        if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
            tracing::debug!(target: "punctual", "the store is closed in the background: its file is held up");
        } else if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_closes_waits_for_the_end_but_not_for_ever() {
        let (tell, told) = channel();
        let mut thread = Thread::start("ends", move || tell.send(7).unwrap()).unwrap();
        thread.end();
        assert_eq!(told.try_recv(), Ok(7));
        let (open, held) = channel::<()>();
        let mut thread = Thread::start("is held up", move || assert!(held.recv().is_err())).unwrap();
        thread.end();
        drop(open);
    }
}
