//! The embedded store: one SQLite file, any number of processes on one machine, no server.
//!
//! One thread per process writes (`writer`), another one extends leases, so that heartbeats wait for nothing else. Others read
//! (`reader`): one looks up, one searches. Notifications wake waiting callers (`notify`). `calls` takes each call to one of them. Each verb is a function over a transaction
//! (`tx`) in its own file, with its SQL in `sql/`.
//! `sql/0001_init.sql` describes the tables and why they are narrow; `row_number` describes how a record is found by its
//! id.

mod audit;
mod calls;
mod compact;
mod doctor;
mod engine;
mod in_tx;
mod notify;
mod recover;
mod state;
mod toolkit;
mod verbs;

use std::{
    convert::Infallible,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::TryFutureExt as _;

use self::{
    engine::{
        fault::Step,
        file::Database,
        reader::Reader,
        schema,
        snapshot::Snapshots,
        tx::{Notifications, Tx},
        writer::{Cost, Writer},
    },
    notify::{Notifier, wait},
    verbs::{queue, read},
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        limits::{LEASE_MIN, PAYLOAD_BYTES_MAX},
    },
    store::{
        Batch, BoxFuture, Call, Durability, Heartbeat, Identity, QueueRequest, Reply, Store, all_answered,
        clock::Clock, reply,
    },
};

/// The version of `rusqlite` that this build uses.
///
/// A transaction that is shared with punctual must be of this version: cargo allows only one in a build, because each
/// links SQLite.
pub use rusqlite;

#[cfg(feature = "testing")]
pub(crate) use self::engine::file::with_suffix as beside;
pub use self::in_tx::Notification;
pub use compact::{Compacted, Space};
pub use recover::Recovered;

/// Options for opening a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// What an `Ok` survives: `Full` (the default) or `Fast`, which is several times as fast for single calls.
    pub durability: Durability,
    /// The clock (default: the system's).
    pub clock: Clock,
    /// The largest payload in bytes (default: 1 MiB).
    pub payload_bytes_max: usize,
    /// The page cache of each connection in MiB, 1 to 4,096 (default: 64). A process has two connections, another one
    /// from its first listing or count on, and one more for each audit and each check of `doctor` in progress. The one for
    /// heartbeats keeps at most 1 MiB.
    pub cache_mib: u32,
    /// Whether to create a file that does not exist. If not, opening it is `Unavailable`, so that a mistyped path
    /// creates no empty store.
    pub create: bool,
    /// Whether to open the file read-only (default: no), for users that cannot write it. Nothing is then written,
    /// created or upgraded, and each verb that would write is `Unsupported`. SQLite needs the `-shm` file beside it.
    /// That exists while a process has the store open for writing; otherwise this user must be able to create it.
    pub read_only: bool,
}

/// How often leases are extended whose answer waits for the disk: the heartbeat of the shortest lease.
const KEEP_EVERY: Duration = LEASE_MIN.checked_div(3).unwrap();
/// Enough for the pages that batches of jobs with random due times use.
const CACHE_MIB_DEFAULT: u32 = 64;
/// The largest page cache.
pub const CACHE_MIB_MAX: u32 = 4_096;

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Full,
            clock: Clock::System,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            cache_mib: CACHE_MIB_DEFAULT,
            create: true,
            read_only: false,
        }
    }
}

/// A store in an SQLite file.
///
/// Any number of handles and processes on one machine can share a file. The file can be the application's own: all
/// tables are named `punctual_…`.
///
/// ```
/// use punctual::store::{Store, sqlite::{SqliteOptions, SqliteStore}};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("jobs.db");
/// let store = SqliteStore::open(path, SqliteOptions::default())?;
/// assert_eq!(store.durability().name(), "full");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    url: String,
    options: SqliteOptions,
    // Dropped in this order, so that a thread that still works keeps what it uses.
    /// `None` if the file was opened read-only.
    writer: Option<Writer>,
    /// The same for heartbeats alone.
    heartbeats: Option<Writer>,
    reader: Reader,
    snapshots: Snapshots,
    notifier: Arc<Notifier>,
    strangers: wait::Strangers,
    database: Arc<Database>,
    operations: Arc<AtomicU64>,
    identity: OnceLock<Identity>,
    /// The queue after which the next sweep continues.
    sweep_from: Mutex<Option<String>>,
}

impl SqliteStore {
    /// Opens a file and migrates its tables.
    ///
    /// Creates it if needed, readable only by this user.
    ///
    /// # Errors
    /// `Unavailable` if the file or its folder cannot be written, if the file has several names (hard links), or if it
    /// does not exist and is not to be created. `Corrupt` if it is no SQLite database. `Outdated` if a newer punctual wrote it. `Unsupported` for SQLite before
    /// 3.51.3, for a file that is mounted alone, and for a durability other than full and fast.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self> {
        let path = path.as_ref();
        if !matches!(options.durability, Durability::Full | Durability::Fast) {
            return Err(Error::new(ErrorKind::Unsupported, "a file is durable: full or fast"));
        }
        if !(1..=CACHE_MIB_MAX).contains(&options.cache_mib) {
            return Err(Error::invalid(format!("a page cache of {} MiB", options.cache_mib))
                .with_hint("choose 1 to 4096"));
        }
        let (database, conn) = Database::open(path, &options)?;
        let database = Arc::new(database);
        let (notifier, operations) = (Notifier::new(database.path()), Arc::new(AtomicU64::new(0)));
        let reader = Reader::start(Arc::clone(&database), options.clock.clone(), Arc::clone(&operations))?;
        let shared = || (Arc::clone(&database), Arc::clone(&notifier), Arc::clone(&operations));
        let writer = conn.map(|conn| {
            let (database, notifier, operations) = shared();
            Writer::start(conn, database, options.durability, options.clock.clone(), notifier, operations)
        });
        let writer = writer.transpose()?;
        let heartbeats = writer.as_ref().map(|_| {
            let (database, notifier, operations) = shared();
            Writer::for_heartbeats(database, options.clock.clone(), notifier, operations)
        });
        let heartbeats = heartbeats.transpose()?;
        let url = format!("sqlite:{}", path.display());
        let (snapshots, strangers) = (Snapshots::default(), wait::Strangers::default());
        Ok(Self {
            url,
            options,
            writer,
            heartbeats,
            reader,
            snapshots,
            notifier,
            strangers,
            database,
            operations,
            identity: OnceLock::new(),
            sweep_from: Mutex::default(),
        })
    }

    /// Returns the path of its file.
    #[cfg(feature = "testing")]
    pub(crate) fn path(&self) -> &Path {
        self.database.path()
    }

    /// Returns the number of transactions, reads and checks for changes so far.
    ///
    /// An idle store must do none.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Lets other processes wake for the next due time if this caller got nothing and two others do. Its wait checks
    /// whether they did.
    fn leave_to_others(&self, batch: &mut Batch, queues: &[QueueRequest]) {
        if let Some(next_due) = batch.next_due
            && batch.jobs.is_empty()
            && !batch.more
            && self
                .notifier
                .others_mind(queues.iter().map(|request| &*request.queue), batch.now.after(next_due))
        {
            batch.next_due = None;
        }
    }

    async fn read_identity(&self) -> Result<Option<Identity>> {
        self.reader.read(|tx| Ok(schema::identity(tx.conn)?)).await
    }

    fn sweep_from(&self) -> MutexGuard<'_, Option<String>> {
        held(&self.sweep_from)
    }

    /// Extends leases whose answer waits for the disk: the caller does not know them yet. Never returns.
    async fn keep(&self, reserved: &Mutex<Vec<Heartbeat>>) -> Infallible {
        loop {
            tokio::time::sleep(KEEP_EVERY).await;
            let beats = held(reserved).clone();
            if !beats.is_empty()
                && let Err(error) = self.extend(&beats).await
            {
                tracing::debug!(target: "punctual", %error, "could not extend leases that wait for the disk");
            }
        }
    }

    /// Runs a function in the writer's next transaction.
    async fn write<T: Send + 'static>(
        &self,
        items: usize,
        bytes: usize,
        synced: bool,
        work: impl FnMut(&mut Tx<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        let Some(writer) = &self.writer else { return Err(self.database.only_looked_at()) };
        writer.write(Cost { items, bytes, synced, grows: false }, work).await
    }

    /// Returns the error that a new job would meet on a full disk.
    async fn check_room(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Err(self.database.only_looked_at()) };
        writer.write(Cost { items: 1, bytes: 0, synced: true, grows: true }, |_| Ok(())).await
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl super::sealed::Sealed for SqliteStore {}

impl Store for SqliteStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn durability(&self) -> Durability {
        self.options.durability
    }

    fn shard(&self) -> u16 {
        0
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        match call {
            Call::Identity => reply(calls::identity(self)),
            Call::Now => reply(async { calls::now(self) }),
            Call::Enqueue { call, jobs, .. } => reply(calls::enqueue(self, call, jobs).map_ok(all_answered)),
            Call::Reserve(request) => reply(calls::reserve(self, request)),
            Call::Extend(beats) => reply(calls::extend(self, beats)),
            Call::Settle { batch, then } => reply(calls::settle(self, batch, then)),
            Call::Take(take) => reply(calls::take(self, take)),
            Call::Wait { queues, at_most } => reply(wait::wait(self, queues, at_most)),
            Call::Get(id) => reply(self.reader.read(move |tx| read::get(tx, id))),
            Call::Holder(key) => {
                let key = key.clone();
                reply(self.reader.read(move |tx| read::holder(tx, &key)))
            }
            Call::List(list) => reply(calls::list(self, list)),
            Call::Count(queue) => {
                let queue = queue.map(str::to_owned);
                reply(self.reader.search(move |tx| read::count(tx, queue.as_deref())))
            }
            Call::Upcoming(upcoming) => reply(calls::upcoming(self, upcoming)),
            Call::Act { targets, action } => reply(calls::act(self, targets, action)),
            Call::Queue { name, op } => reply(calls::queue(self, name, op)),
            Call::Queues(after) => {
                let after = after.map(str::to_owned);
                reply(self.reader.read(move |tx| queue::names(tx, after.as_deref())))
            }
            Call::Doc(op) => reply(calls::doc(self, op)),
            Call::Tool(op) => reply(toolkit::tool(self, op)),
            Call::Sweep(limit) => reply(calls::sweep(self, limit)),
            Call::Audit(audit) => reply(audit::audit(self, audit)),
            Call::Doctor => reply(doctor::examine(self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{
            id::IdMaker,
            job::{NewJob, Payload},
            time::Timestamp,
        },
        store::{CallId, Lease, LeaseStatus, Reserve, Settled, Settlement, Verdict, clock::ManualClock},
    };

    struct Rig {
        store: SqliteStore,
        clock: ManualClock,
        folder: tempfile::TempDir,
    }

    impl Rig {
        /// A store with three jobs.
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_000_000_000));
            let rig = Self { store: Self::open(&folder, &clock), clock, folder };
            let job = |n| {
                let id = IdMaker::default().make(1_795_000_000_000, 0, n);
                NewJob::new(id, "k", "mail", Payload::json("{}"))
            };
            let jobs: Vec<NewJob> = (1..=3).map(job).collect();
            rig.store.enqueue(CallId { instance: 1, number: 1 }, &jobs).await.unwrap();
            rig
        }

        fn open(folder: &tempfile::TempDir, clock: &ManualClock) -> SqliteStore {
            let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
            SqliteStore::open(folder.path().join("jobs.db"), options).unwrap()
        }

        async fn reserve(&self, store: &SqliteStore, number: u64, n: usize) -> Batch {
            store.reserve(&want(number, n)).await.unwrap()
        }
    }

    fn want(number: u64, n: usize) -> Reserve {
        let queues = vec![QueueRequest { queue: "mail".to_owned(), share: 1, at_most: n }];
        let (call, lease) = (CallId { instance: 1, number }, Some(LEASE_MIN));
        Reserve { call, worker: "w".to_owned(), queues, n, lease, company: false }
    }

    fn ack(lease: Lease) -> [Settlement; 1] {
        [Settlement { lease, verdict: Verdict::Ack }]
    }

    /// S9: a disk that stands still costs no lease. Heartbeats do not wait for it, and leases that the caller does not know
    /// yet are extended for it.
    #[tokio::test]
    #[expect(clippy::await_holding_lock, reason = "it is the disk that stands still")]
    async fn a_disk_that_stands_still_costs_no_lease() {
        let rig = Rig::new().await;
        let [ends, goes_on] = rig.reserve(&rig.store, 1, 2).await.jobs.try_into().unwrap();
        let (batch, then) = (ack(ends.lease), want(2, 1));
        let disk = held(&rig.store.database.disk);
        let mut settled = Box::pin(rig.store.settle(&batch, Some(&then)));
        let beats = [Heartbeat::from(goes_on.lease)];
        // Longer than a lease, in steps that are shorter. Each time both leases are extended.
        for _ in 0..3 {
            rig.clock.advance(LEASE_MIN * 9 / 10);
            // The heartbeat below, and that of the store.
            let before = rig.store.operations();
            let beaten = async {
                assert_eq!(rig.store.extend(&beats).await.unwrap(), [LeaseStatus::Held]);
                while rig.store.operations() < before + 3 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                biased;
                answer = &mut settled => panic!("it was answered before the disk had it: {answer:?}"),
                () = beaten => {}
            }
        }
        let other = Rig::open(&rig.folder, &rig.clock);
        assert_eq!(rig.reserve(&other, 3, 3).await.reclaimed, []);
        drop(disk);
        let (states, batch) = settled.await.unwrap();
        assert!(!matches!(states[0], Settled::LeaseLost), "{states:?}");
        let lease = batch.unwrap().jobs[0].lease;
        let states = rig.store.settle(&ack(lease), None).await.unwrap().0;
        assert!(!matches!(states[0], Settled::LeaseLost), "{states:?}");
    }
}
