//! Enqueueing and settling inside a transaction of the application's own, on its own connection to the same file. The
//! job and the application's rows are committed together, or not at all.

use std::{path::Path, sync::Arc};

use rusqlite::{Connection, Transaction};

use super::{Notifications, SqliteStore};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::NewJob,
    },
    store::{
        Acted, Action, Durability, Enqueued, Lease, Settled, Settlement, Store, Target,
        Transaction as Within, Verdict, check_act,
        sqlite::{
            engine::{
                fault::{Step, error},
                tx::Tx,
            },
            notify::Notifier,
            verbs::{act, enqueue, settle},
        },
        transaction::sealed::Sealed,
    },
};

/// Notifies callers that wait for what a transaction did.
///
/// Use it after the commit. Without it the jobs start about a second late; none is lost.
#[derive(Debug)]
#[must_use = "send it after the commit, or the jobs start about a second late"]
pub struct Notification {
    notifications: Notifications,
    notifier: Arc<Notifier>,
}

impl Notification {
    /// Sends the notifications.
    pub fn send(self) {
        self.notifier.notify(&self.notifications);
    }
}

impl SqliteStore {
    /// Enqueues inside a transaction of the caller's own.
    ///
    /// The jobs exist once it commits, or not at all.
    ///
    /// ```
    /// # use punctual::{NewJob, Payload, job::IdMaker, store::sqlite::{SqliteOptions, SqliteStore}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("app.db");
    /// let store = SqliteStore::open(&path, SqliteOptions::default())?;
    /// let mut app = rusqlite::Connection::open(&path)?;
    /// app.busy_timeout(std::time::Duration::from_secs(30))?;
    ///
    /// let tx = app.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// tx.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)", [])?;
    /// tx.execute("INSERT INTO orders DEFAULT VALUES", [])?;
    /// let id = IdMaker::default().make(1_795_000_000_000, 0, 7);
    /// let job = NewJob::new(id, "order.confirm", "mail", Payload::json("{}"));
    /// let (enqueued, notification) = store.enqueue_in(&tx, &[job])?;
    /// tx.commit()?;
    /// notification.send();
    /// assert!(enqueued[0].is_new());
    /// # Ok(()) }
    /// ```
    ///
    /// Make the transaction `IMMEDIATE`, as above: one that reads before it writes can fail to get the write lock.
    ///
    /// # Errors
    /// As [`Store::enqueue`]. `Conflict` if the connection is to another file, or would weaken the store's
    /// guarantees: it needs the write-ahead log, `synchronous` at least as the store's durability requires, and a
    /// busy timeout. After any other error, roll the transaction back.
    pub fn enqueue_in(&self, tx: &Transaction<'_>, jobs: &[NewJob]) -> Result<(Vec<Enqueued>, Notification)> {
        self.within(tx, |tx| enqueue::insert(tx, jobs, self.options.payload_bytes_max))
    }

    /// Settles inside a transaction of the caller's own.
    ///
    /// The handler's writes and the end of its run are committed together.
    ///
    /// # Errors
    /// As [`SqliteStore::enqueue_in`].
    pub fn settle_in(
        &self,
        tx: &Transaction<'_>,
        lease: Lease,
        verdict: Verdict,
    ) -> Result<(Settled, Notification)> {
        let batch = [Settlement { lease, verdict }];
        let (settled, notification) = self.within(tx, |tx| settle::settle(tx, &batch, None))?;
        let settled = settled.0.into_iter().next().expect("invariant: one settlement has one answer");
        Ok((settled, notification))
    }

    /// Acts on jobs inside a transaction of the caller's own.
    ///
    /// For example, a job is cancelled if and only if the application's rows change.
    ///
    /// # Errors
    /// As [`SqliteStore::enqueue_in`].
    pub fn act_in(
        &self,
        tx: &Transaction<'_>,
        targets: &[Target],
        action: &Action,
    ) -> Result<(Vec<Acted>, Notification)> {
        check_act(targets, action, self.options.payload_bytes_max)?;
        self.within(tx, |tx| act::act(tx, targets, action))
    }

    fn within<T>(
        &self,
        conn: &Connection,
        work: impl FnOnce(&mut Tx<'_>) -> Step<T>,
    ) -> Result<(T, Notification)> {
        let path = self.database.path();
        check(conn, path, self.options.durability)?;
        let failed = |stop: crate::store::sqlite::engine::fault::Stop| stop.into_error("write to", path);
        self.database.check_in_place()?;
        if self.database.hole.is_there() {
            return Err(self.database.not_synced());
        }
        let mut tx = Tx::begin(conn, &self.options.clock).map_err(failed)?;
        let answer = work(&mut tx).map_err(failed)?;
        let notifications = tx.finish().map_err(failed)?;
        Ok((answer, Notification { notifications, notifier: Arc::clone(&self.notifier) }))
    }
}

impl Sealed for Transaction<'_> {}

impl Within for Transaction<'_> {
    type Notification = Notification;

    fn enqueue(&self, store: &dyn Store, jobs: &[NewJob]) -> Result<(Vec<Enqueued>, Notification)> {
        of(store)?.enqueue_in(self, jobs)
    }

    fn act(
        &self,
        store: &dyn Store,
        targets: &[Target],
        action: &Action,
    ) -> Result<(Vec<Acted>, Notification)> {
        of(store)?.act_in(self, targets, action)
    }

    fn settle(&self, store: &dyn Store, lease: Lease, verdict: Verdict) -> Result<(Settled, Notification)> {
        of(store)?.settle_in(self, lease, verdict)
    }
}

/// Returns the SQLite store that a transaction can join.
fn of(store: &dyn Store) -> Result<&SqliteStore> {
    store.as_any().and_then(|store| store.downcast_ref()).ok_or_else(|| {
        let store = store.url();
        Error::new(ErrorKind::Unsupported, format!("an SQLite transaction cannot be used with the store {store}"))
            .with_hint("open the client on sqlite:FILE, where FILE is the application's database; elsewhere keep an outbox (docs/guide/4-transactions.md)")
    })
}

/// Refuses a connection on which the store's guarantees would not hold.
fn check(conn: &Connection, path: &Path, durability: Durability) -> Result<()> {
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::Conflict, message).with_hint(hint));
    let text = |pragma: &str| conn.query_row(pragma, [], |row| row.get::<_, String>(0));
    let number = |pragma: &str| conn.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let read =
        || Ok((text("PRAGMA journal_mode")?, number("PRAGMA synchronous")?, number("PRAGMA busy_timeout")?));
    let (mode, synchronous, busy_ms) = read().map_err(|e| error("look at a transaction of", path, e))?;

    let own = conn.path().map(Path::new).and_then(|own| own.canonicalize().ok());
    if own.as_deref() != Some(path) {
        return refuse(
            format!("the transaction is not one of {}", path.display()),
            "open the application's connection on the store's own file",
        );
    }
    if mode != "wal" {
        return refuse(
            format!("the connection's journal_mode is {mode}"),
            "leave journal_mode as the store set it: wal",
        );
    }
    let least = if durability == Durability::Full { 2 } else { 1 };
    if synchronous < least {
        return refuse(
            format!("the connection's synchronous is {synchronous}, the store promises {least}"),
            "set PRAGMA synchronous = FULL, or open the store with durability=fast (NORMAL)",
        );
    }
    if busy_ms <= 0 {
        return refuse(
            "the connection has no busy timeout".to_owned(),
            "set one: connection.busy_timeout(Duration::from_secs(30))",
        );
    }
    Ok(())
}
