//! The one reader of this process: a thread with a connection that only reads, so that a long list never holds up a write.
//! Each read sees one state of the file, and everything that was answered before it was asked for.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

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

/// Reads that may wait for the thread; the next caller waits for room.
const QUEUE_MAX: usize = 256;

type Work = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reader thread.
#[derive(Debug)]
pub(crate) struct Reader {
    queue: Option<mpsc::Sender<Work>>,
    thread: Thread,
    database: Arc<Database>,
    clock: Clock,
    operations: Arc<AtomicU64>,
}

impl Reader {
    pub(crate) fn start(database: Arc<Database>, clock: Clock, operations: Arc<AtomicU64>) -> Result<Self> {
        let conn = database.reader()?;
        let (queue, mut waiting) = mpsc::channel::<Work>(QUEUE_MAX);
        let run = move || {
            while let Some(work) = waiting.blocking_recv() {
                work(&conn);
            }
        };
        let thread = Thread::start("punctual-sqlite-reader", run)?;
        Ok(Self { queue: Some(queue), thread, database, clock, operations })
    }

    /// Reads one state of the file. The time is read together with it.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        let clock = self.clock.clone();
        self.run(move |conn| {
            let _snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
            work(&mut Tx::begin(conn, &clock)?)
        })
        .await
    }

    /// A number that changes whenever somebody commits to the file.
    pub(crate) async fn data_version(&self) -> Result<i64> {
        self.run(|conn| Ok(conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?))
            .await
    }

    /// Runs something on the reader's connection.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |conn| {
            // Nobody listens where the caller gave up waiting.
            let _ = reply.send(work(conn));
        });
        let closed = || Error::new(ErrorKind::Closed, "the store was closed");
        let queue = self.queue.as_ref().expect("invariant: the queue lives as long as its handle");
        queue.send(work).await.map_err(|_| closed())?;
        let read = answer.await.map_err(|_| closed())?;
        read.map_err(|stop: Stop| stop.into_error("read from", &self.database.path))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.queue = None;
        self.thread.end();
    }
}
