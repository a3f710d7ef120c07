//! The readers of this process: threads with a read-only connection each, so that a long list never holds up a write.
//! Each read sees one state of the file, with everything that was answered before the read was requested.
//!
//! Look-ups by key have a thread of their own, and searches another one: a caller that lists holds up no caller that
//! needs one job, one document or one queue. What takes seconds has a thread and a connection for itself.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        clock::Clock,
        sqlite::engine::{
            fault::{Step, Stop},
            file::Database,
            thread::Thread,
            tx::Tx,
        },
    },
};

/// Reads that can wait for a thread; further callers wait for room.
const QUEUE_MAX: usize = 256;
/// The most reads at once that have a thread and a connection for themselves. Further ones wait.
const ASIDE_MAX: usize = 1;

type Work = Box<dyn FnOnce(&Connection) + Send>;

/// A handle to the reader threads.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Reads what a key leads to.
    lookups: Lane,
    /// Reads as many jobs as a page can have, and counts. It starts with the first search: a worker needs none.
    searches: Mutex<Option<Arc<Lane>>>,
    aside: Arc<Semaphore>,
    database: Arc<Database>,
    clock: Clock,
    operations: Arc<AtomicU64>,
}

/// A thread with a connection, and its queue.
#[derive(Debug)]
struct Lane {
    queue: Option<mpsc::Sender<Work>>,
    thread: Thread,
}

impl Reader {
    pub(crate) fn start(database: Arc<Database>, clock: Clock, operations: Arc<AtomicU64>) -> Result<Self> {
        let lookups = Lane::start("punctual-sqlite-reader", &database)?;
        let (searches, aside) = (Mutex::default(), Arc::new(Semaphore::new(ASIDE_MAX)));
        Ok(Self { lookups, searches, aside, database, clock, operations })
    }

    /// Looks something up by its key, in one state of the file, together with the time.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        self.run(self.in_snapshot(work)).await
    }

    /// Searches or counts in one state of the file, together with the time.
    pub(crate) async fn search<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        let lane = self.searches()?;
        self.run_in(&lane, self.in_snapshot(work)).await
    }

    /// Runs what can take seconds, on a thread and a connection for itself. If the future is dropped, it goes on.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let permit = Arc::clone(&self.aside).acquire_owned().await;
        let conn = self.database.reader()?;
        let (reply, answer) = oneshot::channel();
        let run = move || {
            // The caller may have given up waiting.
            let _ = reply.send(work(&conn));
            drop(permit);
        };
        let started = thread::Builder::new().name("punctual-sqlite-aside".to_owned()).spawn(run);
        started.map_err(|e| Error::new(ErrorKind::Unavailable, "could not start a reader").with_source(e))?;
        self.answer(answer).await
    }

    /// Returns a number that changes with each commit to the file.
    pub(crate) async fn data_version(&self) -> Result<i64> {
        // It is compared with what the same connection said before.
        self.run(|conn| Ok(conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?))
            .await
    }

    /// Runs a function on the connection of look-ups.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        self.run_in(&self.lookups, work).await
    }

    async fn run_in<T: Send + 'static>(
        &self,
        lane: &Lane,
        work: impl FnOnce(&Connection) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |conn| {
            // Nobody waits for it any more.
            if reply.is_closed() {
                return;
            }
            let _ = reply.send(work(conn));
        });
        let queue = lane.queue.as_ref().expect("invariant: the queue lives as long as its handle");
        queue.send(work).await.map_err(|_| closed())?;
        self.answer(answer).await
    }

    async fn answer<T>(&self, answer: oneshot::Receiver<Step<T>>) -> Result<T> {
        let read = answer.await.map_err(|_| closed())?;
        read.map_err(|stop: Stop| stop.into_error("read from", self.database.path()))
    }

    fn in_snapshot<T>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Step<T> + Send + 'static,
    ) -> impl FnOnce(&Connection) -> Step<T> + Send + 'static {
        let clock = self.clock.clone();
        move |conn| {
            let _snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
            work(&mut Tx::begin(conn, &clock)?)
        }
    }

    fn searches(&self) -> Result<Arc<Lane>> {
        let mut searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = &*searches {
            return Ok(Arc::clone(lane));
        }
        let lane = Arc::new(Lane::start("punctual-sqlite-search", &self.database)?);
        *searches = Some(Arc::clone(&lane));
        Ok(lane)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed")
}

impl Lane {
    fn start(name: &str, database: &Database) -> Result<Self> {
        let conn = database.reader()?;
        let (queue, mut waiting) = mpsc::channel::<Work>(QUEUE_MAX);
        let run = move || {
            while let Some(work) = waiting.blocking_recv() {
                work(&conn);
            }
        };
        let thread = Thread::start(name, run)?;
        Ok(Self { queue: Some(queue), thread })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.queue = None;
        self.thread.end();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use tokio::{task::yield_now, time::timeout};

    use super::*;
    use crate::{
        core::id::JobId,
        store::{
            DocOp, Store,
            sqlite::{SqliteOptions, SqliteStore},
        },
    };

    /// How long a look-up may take on a busy machine.
    const PATIENCE: Duration = Duration::from_mins(1);

    fn store(folder: &tempfile::TempDir) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(folder.path().join("jobs.db"), SqliteOptions::default()).unwrap())
    }

    #[tokio::test]
    async fn a_search_holds_up_no_look_up() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        let (release, held) = channel::<()>();
        let searching = Arc::clone(&store);
        let search = tokio::spawn(async move {
            let dear = move |_: &mut Tx<'_>| {
                held.recv().unwrap();
                Ok(7)
            };
            searching.reader.search(dear).await
        });
        yield_now().await;
        let id: JobId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        let get = timeout(PATIENCE, store.get(id)).await.expect("it is not held up");
        assert_eq!(get.unwrap(), None);
        store.doc(&DocOp::Get { key: "token/x".to_owned() }).await.unwrap();
        // Neither does what takes seconds.
        let (let_go, kept) = channel::<()>();
        let long = store.reader.aside(move |_| {
            kept.recv().unwrap();
            Ok(())
        });
        let look_up = async {
            assert_eq!(store.get(id).await.unwrap(), None);
            let_go.send(()).unwrap();
        };
        tokio::join!(long, look_up).0.unwrap();
        release.send(()).unwrap();
        assert_eq!(search.await.unwrap().unwrap(), 7);
    }

    #[tokio::test]
    async fn nothing_is_read_for_callers_that_have_gone() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        let (release, held) = channel::<()>();
        let (note, read) = channel();
        let search = |name: &'static str, wait: Option<std::sync::mpsc::Receiver<()>>| {
            let (store, note) = (Arc::clone(&store), note.clone());
            tokio::spawn(async move {
                let work = move |_: &mut Tx<'_>| {
                    wait.map(|wait| wait.recv());
                    note.send(name).unwrap();
                    Ok(())
                };
                store.reader.search(work).await
            })
        };
        let first = search("first", Some(held));
        yield_now().await;
        let gone = search("gone", None);
        yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let last = search("last", None);
        yield_now().await;
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        last.await.unwrap().unwrap();
        assert_eq!(read.try_iter().collect::<Vec<_>>(), ["first", "last"]);
    }
}
