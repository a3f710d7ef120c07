//! Snapshots of the file that stay unchanged while others write, for a count that takes several calls.
//!
//! Each is a read transaction with its own connection and thread. It does not disturb writers, but the log cannot
//! restart while it lasts. So there are few at once, and an unused one ends by itself.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::sqlite::{
        SqliteStore,
        audit::Count,
        engine::{fault::Step, tx::Tx},
    },
};

/// How long a snapshot can be unused before it ends.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// The most snapshots of one store at once.
const SNAPSHOTS_MAX: usize = 4;

type Work = Box<dyn FnOnce(&Connection, &mut Count) + Send>;

/// The snapshots of a store.
#[derive(Debug)]
pub(crate) struct Snapshots {
    open: Mutex<Vec<Snapshot>>,
    unused_max: Duration,
}

/// A snapshot and its thread.
#[derive(Debug)]
struct Snapshot {
    /// A random number, so that no other process uses the same for another snapshot.
    number: u64,
    queue: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { open: Mutex::default(), unused_max: UNUSED_MAX }
    }
}

impl Snapshots {
    /// Runs `work` in the snapshot with this number, or in a new one if it does not exist; returns its number.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        store: &SqliteStore,
        mut number: Option<u64>,
        work: impl FnOnce(&mut Tx<'_>, &mut Count) -> Step<T> + Clone + Send + 'static,
    ) -> Result<(u64, T)> {
        loop {
            store.operations.fetch_add(1, Ordering::Relaxed);
            let (reply, answer) = oneshot::channel();
            let (clock, work) = (store.options.clock.clone(), work.clone());
            let work: Work = Box::new(move |conn, count| {
                // The caller may have given up waiting.
                let _ = reply.send(Tx::begin(conn, &clock).and_then(|mut tx| work(&mut tx, count)));
            });
            let at = self.send(store, number, work)?;
            match answer.await {
                Ok(Ok(answer)) => return Ok((at, answer)),
                Ok(Err(stop)) => return Err(stop.into_error("read from", store.database.path())),
                // It ended just before.
                Err(_) => number = None,
            }
        }
    }

    /// Ends a snapshot that is not needed any more.
    pub(crate) fn end(&self, number: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|snapshot| snapshot.number != number);
    }

    fn send(&self, store: &SqliteStore, number: Option<u64>, work: Work) -> Result<u64> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|snapshot| !snapshot.is_over());
        let known = open.iter().position(|snapshot| Some(snapshot.number) == number);
        let at = match known {
            Some(at) => at,
            None if open.len() < SNAPSHOTS_MAX => {
                open.push(Snapshot::begin(store, self.unused_max)?);
                open.len() - 1
            }
            None => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "could not count the jobs: {SNAPSHOTS_MAX} audits of this store are at it already"
                    ),
                )
                .with_hint(
                    "repeat the call when one of them has ended; one that was given up ends in seconds",
                ));
            }
        };
        // If its thread has just ended, the work is dropped, and the caller notices.
        let _ = open[at].queue.as_ref().map(|queue| queue.send(work));
        Ok(open[at].number)
    }
}

impl Snapshot {
    fn begin(store: &SqliteStore, unused_max: Duration) -> Result<Self> {
        let conn = store.database.reader()?;
        conn.execute_batch("BEGIN").map_err(|e| store.database.error("read from", e))?;
        let (queue, calls) = channel();
        let thread = thread::Builder::new()
            .name("punctual-sqlite-snapshot".to_owned())
            .spawn(move || serve(&conn, &calls, unused_max))
            .map_err(|e| Error::new(ErrorKind::Unavailable, "could not start a reader").with_source(e))?;
        Ok(Self { number: fastrand::u64(..), queue: Some(queue), thread: Some(thread) })
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Runs on the snapshot's thread. The transaction ends with its connection.
fn serve(conn: &Connection, calls: &Receiver<Work>, unused_max: Duration) {
    let mut count = Count::default();
    loop {
        match calls.recv_timeout(unused_max) {
            Ok(work) => work(conn, &mut count),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::SqliteOptions;

    #[tokio::test]
    async fn a_snapshot_that_nobody_uses_ends_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(folder.path().join("jobs.db"), SqliteOptions::default()).unwrap();
        store.snapshots.unused_max = Duration::from_millis(1);
        let (first, ()) = store.snapshots.run(&store, None, |_, _| Ok(())).await.unwrap();
        // Nothing asks it to end.
        let thread = store.snapshots.open.lock().unwrap()[0].thread.take().unwrap();
        thread.join().unwrap();
        let (second, ()) = store.snapshots.run(&store, Some(first), |_, _| Ok(())).await.unwrap();
        assert_ne!(first, second);
    }
}
