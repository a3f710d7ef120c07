//! A writer: a thread that runs queued operations in transactions.
//!
//! ```text
//!  verbs ──► bounded queue ──► group ──► sidecar lock, BEGIN IMMEDIATE ──► each operation ──► COMMIT, unlock
//!            ──► answer what needs no sync ──► sync the log ──► notify, answer the rest
//! ```
//!
//! The disk is waited for after the lock was released: a slow one holds up no other process. Heartbeats have a writer of
//! their own, so they wait neither for the disk nor for other operations of this process.
//!
//! After a sync that failed, the log is written again (`log`). If that works, its callers are answered as if nothing had
//! happened. Otherwise what must be durable is refused until it works, and everything else goes on.
//!
//! Group commit happens by itself: while one group is synced, the next operations queue up. No operation waits to fill a
//! group. Operations decide before they write, so a refusal leaves nothing behind. If SQLite fails, the whole group
//! is rolled back. Each operation then runs again in a transaction of its own, so one failure does not affect the
//! others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::{
    core::{
        error::{Error, ErrorKind, Result, chain},
        limits::{BATCH_BYTES_MAX, BATCH_MAX},
    },
    store::{
        Durability,
        clock::Clock,
        sqlite::{
            engine::{
                ballast::{Ballast, is_full},
                connection::Conn,
                fault::{Step, Stop, leaves_outcome_unknown},
                file::{BUSY_TIMEOUT, Database, log_pages, set_synchronous},
                file_lock::Lock,
                log::Log,
                names::Names,
                thread::Thread,
                tx::{Notifications, Tx},
            },
            notify::Notifier,
        },
    },
};

/// The most operations of one transaction.
const GROUP_MAX: usize = 512;
/// Operations that can wait for the writer; further callers wait for room.
const QUEUE_MAX: usize = 1_024;
/// The pages of the log from which on it is copied into the database, after answering: about 16 MiB.
const CHECKPOINT_PAGES: i64 = 4_096;
/// The pages of the log from which on to wait for readers, so that the log can restart: about 64 MiB.
const RESTART_PAGES: i64 = 16_384;
/// How long to wait for these readers.
const RESTART_WAIT: Duration = Duration::from_millis(100);
/// How long closing waits for a log to be saved whose name has gone.
const SAVE_WAIT: Duration = Duration::from_mins(5);
/// How long after a failed attempt to write the log again the next one is made.
const MEND_PAUSE: Duration = Duration::from_secs(1);
/// The same for the database, which grows the log by its own size.
const MEND_PAGES_PAUSE: Duration = Duration::from_mins(5);

/// The cost of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
    /// Whether its answer must survive a power cut. A lost reserve or extend only makes a job run again.
    pub(crate) synced: bool,
    /// Whether it adds jobs. On a full disk these are refused, so that others can end.
    pub(crate) grows: bool,
}

/// An operation in progress.
trait Op: Send {
    fn cost(&self) -> Cost;
    /// Runs inside a transaction. Can run again after a rollback.
    fn run(&mut self, tx: &mut Tx<'_>) -> std::result::Result<(), rusqlite::Error>;
    /// Returns the result of the last run, or why it was not committed.
    fn answer(self: Box<Self>, committed: Result<()>);
}

type BoxOp = Box<dyn Op>;

/// An operation with its answer.
struct Call<T, F> {
    cost: Cost,
    work: F,
    said: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Tx<'_>) -> Step<T> + Send> Op for Call<T, F> {
    fn cost(&self) -> Cost {
        self.cost
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> std::result::Result<(), rusqlite::Error> {
        self.said = Some(match (self.work)(tx) {
            Ok(said) => Ok(said),
            Err(Stop::Refused(e)) => Err(e),
            Err(Stop::Failed(e)) => return Err(e),
        });
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let Self { said, reply, .. } = *self;
        let said = committed.and_then(|()| said.expect("invariant: what was committed has run"));
        // The caller may have given up waiting. The effect stands.
        let _ = reply.send(said);
    }
}

/// A handle to the writer thread.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: Option<mpsc::Sender<BoxOp>>,
    thread: Thread,
    names: Arc<Names>,
}

impl Writer {
    pub(crate) fn start(
        conn: Conn,
        database: Arc<Database>,
        durability: Durability,
        clock: Clock,
        notifier: Arc<Notifier>,
        operations: Arc<AtomicU64>,
    ) -> Result<Self> {
        // Commits do not wait for the disk; answers do.
        set_synchronous(&conn, Durability::Fast).map_err(|e| database.error("open", e))?;
        let way = Way { conn, lock: None };
        Self::start_thread(
            "punctual-sqlite-writer",
            Some(way),
            database,
            durability,
            clock,
            notifier,
            operations,
        )
    }

    /// Starts a writer for heartbeats alone. Its connection is opened for the first one.
    pub(crate) fn for_heartbeats(
        database: Arc<Database>,
        clock: Clock,
        notifier: Arc<Notifier>,
        operations: Arc<AtomicU64>,
    ) -> Result<Self> {
        let durability = Durability::Fast;
        Self::start_thread("punctual-sqlite-beat", None, database, durability, clock, notifier, operations)
    }

    fn start_thread(
        name: &str,
        way: Option<Way>,
        database: Arc<Database>,
        durability: Durability,
        clock: Clock,
        notifier: Arc<Notifier>,
        operations: Arc<AtomicU64>,
    ) -> Result<Self> {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let (log, ballast, names) = (database.log(), database.ballast(), Arc::clone(&database.names));
        let mut work = Work {
            way,
            database,
            durability,
            clock,
            notifier,
            operations,
            log,
            ballast,
            checkpoint_at: CHECKPOINT_PAGES,
            mend_at: None,
            mend_pages_at: None,
            is_saved: false,
        };
        let thread = Thread::start(name, move || work.run(waiting))?;
        Ok(Self { queue: Some(queue), thread, names })
    }

    /// Runs `work` in a transaction, and returns its result after the commit.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        cost: Cost,
        work: impl FnMut(&mut Tx<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let op = Box::new(Call { cost, work, said: None, reply });
        let queue = self.queue.as_ref().expect("invariant: the queue lives as long as its handle");
        queue.send(op).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

impl Drop for Writer {
    /// Operations that are queued still run.
    fn drop(&mut self) {
        self.queue = None;
        if self.names.can_save_log() {
            // A log that is saved by half is worse than none.
            return self.thread.end_within(SAVE_WAIT);
        }
        self.thread.end();
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed")
}

/// How a thread writes.
struct Way {
    conn: Conn,
    /// `None` if it uses the lock of the database.
    lock: Option<Lock>,
}

impl Way {
    /// Refuses new jobs while the ballast is not whole, unless the file has as much free space inside.
    fn check_room(&self, database: &Database, ballast: &Ballast) -> Result<()> {
        let (_, log_bytes) = database.sizes();
        let Some(e) = ballast.keep(log_bytes).err().filter(is_full) else { return Ok(()) };
        let number = |pragma: &str| self.conn.query_row(pragma, [], |row| row.get::<_, i64>(0));
        let free = || Ok(number("PRAGMA freelist_count")? * number("PRAGMA page_size")?);
        let free = free().map_err(|e| database.error("write to", e))?;
        if Ballast::wanted(log_bytes) <= free.unsigned_abs() {
            return Ok(());
        }
        let path = database.path().display();
        Err(Error::new(ErrorKind::StoreFull, format!("could not write to {path}: its disk is full"))
            .with_hint("free some space on its disk, or let jobs end: those that are stored still run; nothing was written")
            .with_source(e))
    }

    /// Copies the log into the database, so that it is written again from its beginning and needs no more space.
    fn restart_log(&self) -> rusqlite::Result<bool> {
        let all_copied = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?);
        self.conn.busy_timeout(RESTART_WAIT)?;
        let done = self.conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], all_copied);
        self.conn.busy_timeout(BUSY_TIMEOUT)?;
        done
    }
}

/// The state of a writer thread.
struct Work {
    /// `None` before the first operation of a writer for heartbeats.
    way: Option<Way>,
    database: Arc<Database>,
    durability: Durability,
    clock: Clock,
    notifier: Arc<Notifier>,
    operations: Arc<AtomicU64>,
    log: Log,
    ballast: Ballast,
    /// The pages of the log at which it is copied next.
    checkpoint_at: i64,
    /// When to try again to write a log with a hole, after the last attempt failed.
    mend_at: Option<Instant>,
    /// The same for the database.
    mend_pages_at: Option<Instant>,
    /// Whether a log whose name has gone was saved.
    is_saved: bool,
}

impl Work {
    fn run(&mut self, mut waiting: mpsc::Receiver<BoxOp>) {
        // Opened before anything is written, so that it tells of each sync that fails from now on.
        let _ = self.log.file();
        let mut next = None;
        while let Some(first) = next.take().or_else(|| waiting.blocking_recv()) {
            let (group, left) = gather(first, &mut waiting);
            next = left;
            self.commit(group);
            if let Err(error) = self.checkpoint() {
                tracing::warn!(target: "punctual", error = &error as &dyn std::error::Error,
                    "could not checkpoint the write-ahead log; it grows until that works");
            }
        }
        self.save_log();
    }

    /// Runs a group in one transaction; if that fails, each operation in its own. What must be durable is refused while the log
    /// has a hole.
    fn commit(&mut self, mut group: Vec<BoxOp>) {
        if let Err(error) = self.mend() {
            let (refused, others) = self.parted(group);
            for op in refused {
                op.answer(Err(same(&error)));
            }
            if others.is_empty() {
                return;
            }
            group = others;
        }
        match self.transaction(&mut group) {
            Ok(notifications) => self.committed(group, &notifications),
            Err(undone) if undone.is_full() && group.iter().any(|op| !op.cost().grows) => {
                self.make_way(group);
            }
            Err(Undone::Failed(_)) if 1 < group.len() => {
                for op in group {
                    self.commit(vec![op]);
                }
            }
            // None of it was started, and each alone would wait as long again.
            Err(Undone::NotBegun(error) | Undone::Failed(error)) => {
                let mut group = group.into_iter();
                let first = group.next();
                group.for_each(|op| op.answer(Err(same(&error))));
                if let Some(first) = first {
                    first.answer(Err(error));
                }
            }
        }
    }

    /// Runs a group for which the disk had no room. For operations that add no jobs, the ballast is given up, and the log is
    /// written again from its beginning. Those that add jobs come last, and are refused.
    fn make_way(&mut self, group: Vec<BoxOp>) {
        let (growing, others): (Vec<_>, Vec<_>) = group.into_iter().partition(|op| op.cost().grows);
        for op in others {
            let mut alone = vec![op];
            let mut done = self.transaction(&mut alone);
            if done.as_ref().is_err_and(Undone::is_full) {
                self.make_room();
                done = self.transaction(&mut alone);
            }
            match done {
                Ok(notifications) => self.committed(alone, &notifications),
                Err(Undone::NotBegun(error) | Undone::Failed(error)) => {
                    for op in alone {
                        op.answer(Err(same(&error)));
                    }
                }
            }
        }
        for op in growing {
            self.commit(vec![op]);
        }
    }

    /// Makes room on a full disk.
    fn make_room(&self) {
        if self.ballast.give_up() {
            tracing::warn!(target: "punctual", path = %self.database.path().display(),
                "the disk is full: no jobs are enqueued, and the space kept for this lets others end");
        }
        let way = self.way.as_ref().filter(|_| self.database.check_log().is_ok());
        let restarted = way.map(|way| self.database.copy_log(&way.conn, None, || way.restart_log()));
        if let Some(Err(error)) = restarted {
            tracing::debug!(target: "punctual", %error, "could not restart the write-ahead log on a full disk");
        }
    }

    /// Answers a committed group. Answers that must survive a power cut wait until the log is on the disk, also those of
    /// operations that wrote nothing: what they found may be another process's, and not on the disk yet.
    fn committed(&mut self, group: Vec<BoxOp>, notifications: &Notifications) {
        let (synced, others) = self.parted(group);
        let answer = |others: Vec<BoxOp>| others.into_iter().for_each(|op| op.answer(Ok(())));
        if synced.is_empty() {
            self.notifier.notify(notifications);
            return answer(others);
        }
        answer(others);
        let on_disk = self.sync();
        self.notifier.notify(notifications);
        for op in synced {
            op.answer(on_disk.as_ref().map_or_else(|error| Err(same(error)), |()| Ok(())));
        }
    }

    /// Parts operations whose answers must survive a power cut from the others.
    fn parted(&self, group: Vec<BoxOp>) -> (Vec<BoxOp>, Vec<BoxOp>) {
        let is_full = self.durability == Durability::Full;
        group.into_iter().partition(|op| is_full && op.cost().synced)
    }

    /// Returns when what was committed is on the disk.
    fn sync(&mut self) -> Result<()> {
        let failed = self.log.sync();
        if let Err(error) = &failed {
            {
                // With the lock, so that nobody who mends an older hole takes this one for mended.
                let _lock = self.database.lock();
                self.database.hole.note();
            }
            self.mend_at = None;
            tracing::error!(target: "punctual", path = %self.database.path().display(),
                error = error as &dyn std::error::Error, "the disk failed to sync the write-ahead log, so it is written again");
        }
        // The sync of another process may have failed before this one worked.
        self.mend().map_err(|error| {
            Error::new(ErrorKind::UnknownOutcome, error.to_string())
                .with_hint("look at the disk; the same call may be repeated")
                .with_source(error)
        })
    }

    /// Writes the log again if a sync of it failed, at most once in [`MEND_PAUSE`] while that does not help.
    fn mend(&mut self) -> Result<()> {
        // The writer for heartbeats answers nothing that must be durable.
        let Some(Way { conn, lock: None }) = &self.way else { return Ok(()) };
        let database = &*self.database;
        if !database.hole.is_there() {
            self.mend_at = None;
            return Ok(());
        }
        if self.mend_at.is_some_and(|at| Instant::now() < at) {
            return Err(database.not_synced());
        }
        let mended = database.lock().and_then(|_guard| {
            database.check_in_place()?;
            database.mend_log(conn, &mut self.log)
        });
        self.mend_at = mended.is_err().then(|| Instant::now() + MEND_PAUSE);
        if mended? {
            tracing::warn!(target: "punctual", path = %database.path().display(),
                "the write-ahead log was written again and is on the disk: nothing was lost");
        }
        Ok(())
    }

    /// Writes the database again if a sync of it failed, at most once in [`MEND_PAGES_PAUSE`] while that does not help; returns whether
    /// it is whole.
    fn mend_pages(&mut self) -> Result<bool> {
        let Some(Way { conn, lock: None }) = &self.way else { return Ok(true) };
        if !self.database.hole.is_in_database() {
            return Ok(true);
        }
        if self.mend_pages_at.is_some_and(|at| Instant::now() < at) {
            return Ok(false);
        }
        let mended = self.database.lock().and_then(|_guard| {
            self.database.check_in_place()?;
            self.database.mend_pages(conn)
        });
        self.mend_pages_at = mended.is_err().then(|| Instant::now() + MEND_PAGES_PAUSE);
        mended.map(|()| true)
    }

    /// Copies the log into the database if somebody removed its name: nobody else would find what is in it, whether it is whole on the disk
    /// or not.
    fn save_log(&mut self) {
        let Some(Way { conn, lock: None }) = &self.way else { return };
        if self.is_saved || !self.database.names.can_save_log() {
            return;
        }
        let path = self.database.path().display();
        let saved = self.database.lock().and_then(|guard| {
            let copy = || {
                conn.busy_timeout(RESTART_WAIT)?;
                let copied = conn.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get::<_, i64>(0));
                conn.busy_timeout(BUSY_TIMEOUT)?;
                copied
            };
            if !self.database.names.can_save_log() {
                return Ok(1);
            }
            // The first one can tell of a sync that failed before.
            let copied = self.database.copy_log(conn, Some(&guard), copy);
            copied.or_else(|_| self.database.copy_log(conn, Some(&guard), copy))
        });
        self.is_saved = matches!(saved, Ok(0));
        match saved {
            Ok(0) => {
                tracing::warn!(target: "punctual", %path, "the write-ahead log was removed; what was in it is saved");
            }
            Ok(_) => {
                tracing::error!(target: "punctual", %path, "the write-ahead log was removed, and could not be saved: others use it");
            }
            Err(error) => {
                tracing::error!(target: "punctual", %path, error = &error as &dyn std::error::Error, "the write-ahead log was removed, and could not be saved");
            }
        }
    }

    fn transaction(&mut self, group: &mut [BoxOp]) -> std::result::Result<Notifications, Undone> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let way = match &mut self.way {
            Some(way) => way,
            none => {
                let (conn, lock) = self.database.second_writer().map_err(Undone::NotBegun)?;
                none.insert(Way { conn, lock: Some(lock) })
            }
        };
        let database = &*self.database;
        let guard =
            way.lock.as_ref().map_or_else(|| database.lock(), Lock::take).map_err(Undone::NotBegun)?;
        if let Err(error) = database.check_in_place() {
            drop(guard);
            self.save_log();
            return Err(Undone::NotBegun(error));
        }
        if group.iter().any(|op| op.cost().grows) {
            way.check_room(database, &self.ballast).map_err(Undone::NotBegun)?;
        }
        attempt(&way.conn, database, &self.clock, group)
    }

    /// Copies the log into the database when it has grown. Callers already have their answers.
    fn checkpoint(&mut self) -> Result<()> {
        // That of heartbeats never waits for the disk.
        let Some(Way { conn, lock: None }) = &self.way else { return Ok(()) };
        let pages = log_pages(conn).map_err(|e| self.database.error("checkpoint", e))?;
        if pages < self.checkpoint_at && !self.database.hole.is_in_database() {
            return Ok(());
        }
        // Callers, or the log, were told why.
        if self.mend().is_err() || !self.mend_pages()? {
            return Ok(());
        }
        let Some(way @ Way { conn, lock: None }) = &self.way else { return Ok(()) };
        let all_copied = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?);
        let done = self.database.copy_log(conn, None, || {
            if pages < RESTART_PAGES {
                conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], all_copied)
            } else {
                way.restart_log()
            }
        })?;
        // A reader of an old snapshot stopped it; try again after as many pages.
        self.checkpoint_at = if done { CHECKPOINT_PAGES } else { pages + CHECKPOINT_PAGES };
        Ok(())
    }
}

/// Runs a group in a transaction.
fn attempt(
    conn: &Connection,
    database: &Database,
    clock: &Clock,
    group: &mut [BoxOp],
) -> std::result::Result<Notifications, Undone> {
    let not_begun = |e| Undone::NotBegun(database.error("write to", e));
    let failed = |e| Undone::Failed(database.error("write to", e));
    let inner = rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)
        .map_err(not_begun)?;
    let mut tx = Tx::begin(conn, clock)
        .map_err(|stop| Undone::NotBegun(stop.into_error("write to", database.path())))?;
    for op in group {
        op.run(&mut tx).map_err(failed)?;
    }
    let notifications =
        tx.finish().map_err(|stop| Undone::Failed(stop.into_error("write to", database.path())))?;
    inner.commit().map_err(|e| {
        let unknown = leaves_outcome_unknown(&e);
        let error = database.error("write to", e);
        Undone::Failed(if unknown {
            Error::new(ErrorKind::UnknownOutcome, error.to_string()).with_source(error)
        } else {
            error
        })
    })?;
    Ok(notifications)
}

/// Why a group was not committed.
enum Undone {
    /// The lock was not acquired: no operation ran.
    NotBegun(Error),
    /// It was rolled back, or its commit failed.
    Failed(Error),
}

impl Undone {
    /// Returns whether the disk had no room for it.
    fn is_full(&self) -> bool {
        let (Self::NotBegun(error) | Self::Failed(error)) = self;
        error.kind() == ErrorKind::StoreFull
    }
}

/// Copies the error for another operation, with the words of its causes.
fn same(error: &Error) -> Error {
    let mut same = Error::new(error.kind(), error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        same = same.with_source(chain(cause));
    }
    match error.hint() {
        Some(hint) => same.with_hint(hint),
        None => same,
    }
}

/// Gathers as many operations as one transaction takes. The first that does not fit starts the next one.
fn gather(first: BoxOp, waiting: &mut mpsc::Receiver<BoxOp>) -> (Vec<BoxOp>, Option<BoxOp>) {
    let Cost { mut items, mut bytes, .. } = first.cost();
    let mut group = vec![first];
    while group.len() < GROUP_MAX
        && let Ok(op) = waiting.try_recv()
    {
        let cost = op.cost();
        items += cost.items;
        bytes += cost.bytes;
        if BATCH_MAX < items || BATCH_BYTES_MAX < bytes {
            return (group, Some(op));
        }
        group.push(op);
    }
    (group, None)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::store::sqlite::SqliteOptions;

    /// S13: a stopped process that holds the lock does not stall others for ever.
    #[tokio::test]
    async fn a_lock_that_another_process_keeps_is_told_to_all_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let (mut database, conn) = Database::open(&path, &SqliteOptions::default()).unwrap();
        database.lock.as_mut().unwrap().set_timeout(Duration::from_millis(5));
        let (database, operations) = (Arc::new(database), Arc::new(AtomicU64::new(0)));
        let notifier = Notifier::new(database.path());
        let (clock, counted) = (Clock::System, Arc::clone(&operations));
        let writer =
            Writer::start(conn.unwrap(), database, Durability::Fast, clock, notifier, counted).unwrap();
        let make = |name: &'static str| {
            let cost = Cost { items: 1, bytes: 0, synced: false, grows: false };
            writer.write(cost, move |tx| tx.queue_or_new(name).map(|q| tx.at(q).qid))
        };

        let other = File::open(folder.path().join("jobs.db-lock")).unwrap();
        other.lock().unwrap();
        let (a, b, c) = tokio::join!(make("a"), make("b"), make("c"));
        for refused in [a, b, c] {
            let error = refused.unwrap_err();
            assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unavailable, true), "{error}");
        }
        // However they were grouped, no operation waited twice.
        assert!(operations.load(Ordering::Relaxed) <= 3);
        other.unlock().unwrap();
        // The first queue of the file: none was created before.
        assert_eq!(make("d").await.unwrap(), 1);
    }
}
