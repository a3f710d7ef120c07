//! The embedded store: one SQLite file, any number of processes on one machine, no server.
//!
//! One thread per process writes (`writer`), another one extends leases, so that heartbeats wait for nothing else. Others read
//! (`reader`): one looks up, one searches. Notifications wake waiting callers (`notify`). Each verb is a function over a transaction
//! (`tx`) in its own file, with its SQL in `sql/`.
//! `sql/0001_init.sql` describes the tables and why they are narrow; `row_number` describes how a record is found by its
//! id.

mod audit;
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
    verbs::{act, doc, enqueue, extend, queue, read, reserve, settle, sweep, take},
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::{JobRecord, NewJob},
        limits::{LEASE_MIN, PAYLOAD_BYTES_MAX},
        notes::Notes,
        time::Timestamp,
    },
    store::{
        Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
        Enqueued, Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, QueueRequest,
        Reserve, Settled, Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming,
        check_act, check_batch, check_extend, check_limit, check_queue_op, check_settle, check_upcoming,
        clock::Clock,
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

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        Box::pin(async {
            if let Some(identity) = self.identity.get() {
                return Ok(*identity);
            }
            let identity = match self.read_identity().await? {
                Some(identity) => identity,
                // The disk was full when the file was opened.
                None if self.writer.is_some() => {
                    self.write(1, 0, true, |tx| Ok(schema::make_identity(tx.conn)?)).await?
                }
                None => {
                    let path = self.database.path().display();
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        format!("{path} has no identity yet, and nothing was written"),
                    )
                    .with_hint("open it once without mode=ro, as a user who may write it"));
                }
            };
            Ok(*self.identity.get_or_init(|| identity))
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        // Who asks for the time may only want to know whether the store is there.
        Box::pin(async {
            self.database.check_in_place()?;
            Ok(self.options.clock.now())
        })
    }

    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        Box::pin(async move {
            check_batch("jobs", jobs.len())?;
            let bytes = jobs.iter().map(|job| job.payload.bytes.len()).sum();
            let (jobs, max) = (jobs.to_vec(), self.options.payload_bytes_max);
            let Some(writer) = &self.writer else { return Err(self.database.only_looked_at()) };
            let cost = Cost { items: jobs.len(), bytes, synced: true, grows: true };
            writer.write(cost, move |tx| enqueue::enqueue(tx, call, &jobs, max)).await
        })
    }

    fn reserve<'a>(&'a self, request: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(async move {
            request.check()?;
            let request = request.clone();
            let queues = request.queues.clone();
            let mut batch = self.write(request.n, 0, false, move |tx| reserve::reserve(tx, &request)).await?;
            self.leave_to_others(&mut batch, &queues);
            Ok(batch)
        })
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        Box::pin(async move {
            check_extend(beats)?;
            let beats = beats.to_vec();
            let bytes = beats.iter().filter_map(|beat| beat.notes.as_ref()).map(Notes::bytes).sum();
            let cost = Cost { items: beats.len(), bytes, synced: false, grows: false };
            let Some(writer) = &self.heartbeats else { return Err(self.database.only_looked_at()) };
            writer.write(cost, move |tx| extend::extend(tx, &beats)).await
        })
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(async move {
            check_settle(batch)?;
            then.map_or(Ok(()), Reserve::check)?;
            let (batch, then, items) = (batch.to_vec(), then.cloned(), batch.len());
            let bytes = batch.iter().filter_map(Settlement::result).map(|result| result.bytes.len()).sum();
            let queues = then.as_ref().map(|request| request.queues.clone()).unwrap_or_default();
            let (reserved, does_reserve) = (Arc::<Mutex<Vec<Heartbeat>>>::default(), then.is_some());
            let leases = Arc::clone(&reserved);
            let work = move |tx: &mut Tx<'_>| {
                let answer = settle::settle(tx, &batch, then.as_ref())?;
                let jobs = answer.1.iter().flat_map(|batch| &batch.jobs);
                *held(&leases) = jobs.map(|reserved| reserved.lease.into()).collect();
                Ok(answer)
            };
            let answer = self.write(items, bytes, true, work);
            let mut answer = if does_reserve && self.options.durability == Durability::Full {
                tokio::select! {
                    biased;
                    answer = answer => answer?,
                    never = self.keep(&reserved) => match never {},
                }
            } else {
                answer.await?
            };
            if let Some(batch) = &mut answer.1 {
                self.leave_to_others(batch, &queues);
            }
            Ok(answer)
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        Box::pin(async move {
            take.check()?;
            let take = take.clone();
            self.write(take.n, 0, true, move |tx| take::take(tx, &take)).await
        })
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(wait::wait(self, queues, at_most))
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        Box::pin(self.reader.read(move |tx| read::get(tx, id)))
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        let key = key.clone();
        Box::pin(self.reader.read(move |tx| read::holder(tx, &key)))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            check_limit("list", list.limit)?;
            let list = list.clone();
            self.reader.search(move |tx| read::list(tx, &list)).await
        })
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        let queue = queue.map(str::to_owned);
        Box::pin(self.reader.search(move |tx| read::count(tx, queue.as_deref())))
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        Box::pin(async move {
            check_upcoming(upcoming)?;
            let upcoming = upcoming.clone();
            self.reader.search(move |tx| read::upcoming(tx, &upcoming)).await
        })
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        Box::pin(async move {
            check_act(targets, action, self.options.payload_bytes_max)?;
            let bytes = match action {
                Action::EditPayload(payload) => payload.bytes.len() * targets.len(),
                _ => 0,
            };
            let (targets, action) = (targets.to_vec(), action.clone());
            self.write(targets.len(), bytes, true, move |tx| act::act(tx, &targets, &action)).await
        })
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        Box::pin(async move {
            check_queue_op(name, op)?;
            let (name, op) = (name.to_owned(), op.clone());
            let items = match op {
                QueueOp::Show => return self.reader.read(move |tx| queue::show(tx, &name)).await,
                QueueOp::Purge(limit) => limit,
                QueueOp::Pause { .. }
                | QueueOp::Resume
                | QueueOp::Set(_)
                | QueueOp::Replace(_)
                | QueueOp::Open { .. } => 1,
            };
            self.write(items, 0, true, move |tx| queue::change(tx, &name, &op)).await
        })
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        let after = after.map(str::to_owned);
        Box::pin(self.reader.read(move |tx| queue::names(tx, after.as_deref())))
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        Box::pin(async move {
            op.check()?;
            let op = op.clone();
            match &op {
                DocOp::Get { .. } | DocOp::List { .. } => self.reader.read(move |tx| doc::doc(tx, &op)).await,
                DocOp::Remove { .. } => self.write(1, 0, true, move |tx| doc::doc(tx, &op)).await,
                DocOp::Put { value, .. } => {
                    self.write(1, value.len(), true, move |tx| doc::doc(tx, &op)).await
                }
            }
        })
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        Box::pin(toolkit::tool(self, op))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        Box::pin(async move {
            check_limit("sweep", limit)?;
            let after = self.sweep_from().take();
            let work = move |tx: &mut Tx<'_>| sweep::sweep(tx, limit, after.as_deref());
            let (swept, next) = self.write(limit, 0, false, work).await?;
            *self.sweep_from() = next;
            Ok(swept)
        })
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        Box::pin(audit::audit(self, audit))
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        Box::pin(doctor::examine(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{id::IdMaker, job::Payload},
        store::{Lease, Verdict, clock::ManualClock},
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
