//! A store with a clock that is turned by hand, and the short words that the cases are written in.
//!
//! Helpers panic where a case could not go on; what a case is about it asserts itself, against literals.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use punctual::{
    ErrorKind, JobId, JobRecord, NewJob, Payload, State, Timestamp,
    job::{Filter, IdMaker},
    limits::BATCH_MAX,
    store::{
        Acted, Action, Audit, Batch, CallId, Counts, Enqueued, Existing, Finding, Lease, LeaseStatus, List,
        QueueInfo, QueueOp, QueueReply, QueueRequest, QueueSettings, Reserve, Reserved, Settled, Settlement,
        Store, Swept, Take, Target, UniqueKey, Verdict,
        clock::{Clock, ManualClock},
        memory::MemoryStore,
    },
    testing::pass_time,
};

/// The queue of a job unless a case says otherwise.
pub(crate) const QUEUE: &str = "mail";
/// The kind of a job unless a case says otherwise.
pub(crate) const KIND: &str = "email.send";
/// The name of the worker that reserves.
pub(crate) const WORKER: &str = "w1";
/// What the clock shows at first: 2027-01-15T08:00:00Z.
pub(crate) const START_MS: u64 = 1_800_000_000_000;
/// After how long a lease of the default length needs the next call: two fifths of it (S9).
pub(crate) const WATCH: Duration = secs(6);

/// The instance of all calls that a case does not make itself.
const INSTANCE: u64 = 1;

/// The instant so many milliseconds after the start.
pub(crate) fn at(ms: u64) -> Timestamp {
    Timestamp::saturating_from_ms(START_MS + ms)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The answer to a job that met this one of [`KIND`], whose cancel nobody asked for.
pub(crate) fn duplicate(id: JobId, state: State, version: u64) -> Enqueued {
    duplicate_of_kind(KIND, id, state, version)
}

/// The same, of another kind.
pub(crate) fn duplicate_of_kind(kind: &str, id: JobId, state: State, version: u64) -> Enqueued {
    let kind = Some(kind.to_owned());
    Enqueued::Duplicate(Existing { id, kind, state: Some(state), version, cancel_requested: false })
}

/// The answer to a job that met this one of [`KIND`], which runs and whose cancel was asked for.
pub(crate) fn duplicate_of_cancelled(id: JobId) -> Enqueued {
    let (kind, state) = (Some(KIND.to_owned()), Some(State::Running));
    Enqueued::Duplicate(Existing { id, kind, state, version: 1, cancel_requested: true })
}

/// The answer to a job that met one whose record is gone.
pub(crate) fn duplicate_of_gone(id: JobId) -> Enqueued {
    Enqueued::Duplicate(Existing { id, kind: None, state: None, version: 0, cancel_requested: false })
}

/// A key of [`KIND`] in [`QUEUE`], of no group and no concurrency key.
pub(crate) fn key(key: &str) -> UniqueKey {
    UniqueKey {
        kind: Some(KIND.to_owned()),
        queue: QUEUE.to_owned(),
        group: None,
        concurrency_key: None,
        key: key.to_owned(),
    }
}

pub(crate) fn bytes(n: usize) -> Payload {
    Payload { bytes: vec![b'x'; n], content_type: "text/plain".into() }
}

pub(crate) fn retry(after: Duration) -> Verdict {
    Verdict::Retry { at: after.into(), error: "no route".to_owned() }
}

pub(crate) const fn snooze(after: Duration) -> Verdict {
    Verdict::Snooze { after, reason: None }
}

pub(crate) fn dead() -> Verdict {
    Verdict::Dead { error: "no such address".to_owned() }
}

pub(crate) const CANCEL: Action = Action::Cancel { reason: None };

/// The jobs of a batch, in its order.
pub(crate) fn ids(batch: &Batch) -> Vec<JobId> {
    batch.jobs.iter().map(|reserved| reserved.job.id).collect()
}

/// A store for one case.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: ManualClock,
    ids: RefCell<IdMaker>,
    last_call: Cell<u64>,
    /// By which another process opens it, if one can: a path, or an address.
    pub(crate) place: Option<String>,
    /// The store of the server, if `store` is a client of one. Cases fill it directly where a hundred thousand requests would
    /// show no more than one.
    pub(crate) behind: Option<Arc<dyn Store>>,
    /// Where the store lives; behind it, so that it goes last.
    _folder: Option<tempfile::TempDir>,
}

pub(crate) async fn memory() -> Fixture {
    let clock = ManualClock::new(at(0));
    Fixture::new(None, None, Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))), clock)
}

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite() -> Fixture {
    // In memory where there is such a place: what a disk survives is not the question here.
    let shm = std::path::Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let path = folder.path().join("jobs.db");
    let clock = ManualClock::new(at(0));
    let place = path.to_str().expect("a path of letters");
    Fixture::new(Some(folder), Some(place.to_owned()), on_sqlite(place, &clock), clock)
}

#[cfg(feature = "sqlite")]
fn on_sqlite(path: &str, clock: &ManualClock) -> Arc<dyn Store> {
    use punctual::store::sqlite::{SqliteOptions, SqliteStore};
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    Arc::new(SqliteStore::open(path, options).unwrap())
}

#[cfg(feature = "redis")]
pub(crate) async fn redis() -> Fixture {
    on_redis(&crate::server::Server::shared().url()).await
}

#[cfg(feature = "redis")]
pub(crate) async fn redis_cluster() -> Fixture {
    on_redis(&crate::server::Cluster::shared().url()).await
}

#[cfg(feature = "redis")]
async fn on_redis(url: &str) -> Fixture {
    use punctual::store::redis::RedisStore;

    let clock = ManualClock::new(at(0));
    let store = Arc::new(RedisStore::open(url, Clock::Manual(clock.clone())).await.unwrap());
    Fixture::new(None, Some(url.to_owned()), store, clock)
}

/// A server in front of a store in memory, and the store that is a client of it.
#[cfg(feature = "http")]
pub(crate) async fn http() -> Fixture {
    use punctual::{CancellationToken, Client, store::http::HttpStore};

    let clock = ManualClock::new(at(0));
    let behind = Client::new(Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let api = punctual_server::api(&behind, &CancellationToken::new());
    // It ends with the runtime of the case.
    tokio::spawn(async move { axum::serve(listener, api).await });
    let store = Arc::new(HttpStore::open(&url).await.unwrap());
    Fixture { behind: Some(Arc::clone(behind.store())), ..Fixture::new(None, None, store, clock) }
}

/// The store that another process made.
pub(crate) async fn reopen(place: &str) -> Fixture {
    #[cfg(feature = "sqlite")]
    if place.starts_with('/') {
        let clock = ManualClock::new(at(0));
        return Fixture::again(Fixture::new(None, None, on_sqlite(place, &clock), clock));
    }
    #[cfg(feature = "redis")]
    return Fixture::again(on_redis(place).await);
    #[cfg(not(feature = "redis"))]
    unreachable!("{place} is no place of a store of this build")
}

impl Fixture {
    fn new(
        folder: Option<tempfile::TempDir>,
        place: Option<String>,
        store: Arc<dyn Store>,
        clock: ManualClock,
    ) -> Self {
        Self {
            store,
            clock,
            ids: RefCell::default(),
            last_call: Cell::new(0),
            place,
            behind: None,
            _folder: folder,
        }
    }

    /// Whose calls are numbered behind those of the process that made the store.
    fn again(self) -> Self {
        self.last_call.set(1_000);
        self
    }

    /// Turns the clock on by whole seconds, in a store with other workers: their calls leave marks, so no lease takes this for a
    /// silence (S9), and upkeep believes the clock (S17).
    pub(crate) async fn pass(&self, seconds: u64) {
        pass_time(&*self.store, &self.clock, secs(seconds)).await;
    }

    /// The same, to a later instant.
    pub(crate) async fn until(&self, end: Timestamp) {
        pass_time(&*self.store, &self.clock, end.since(self.clock.now())).await;
    }

    /// Turns the clock on by whole seconds without a call.
    pub(crate) fn silence(&self, seconds: u64) {
        self.clock.advance(secs(seconds));
    }

    /// Leaves a mark (S14).
    pub(crate) async fn mark(&self) {
        self.store.extend(&[]).await.expect("it extends nothing");
    }

    /// The next call of the fixture's own instance.
    pub(crate) fn next_call(&self) -> CallId {
        self.last_call.set(self.last_call.get() + 1);
        CallId { instance: INSTANCE, number: self.last_call.get() }
    }

    // ── jobs ──

    /// An id above all earlier ones, with these low 16 bits.
    pub(crate) fn id(&self, low16: u16) -> JobId {
        self.ids.borrow_mut().make(START_MS, 0, u64::from(low16))
    }

    /// A job that is due now, its id above all earlier ones.
    pub(crate) fn job(&self) -> NewJob {
        NewJob::new(self.id(0), KIND, QUEUE, Payload::json("1"))
    }

    /// The same, changed.
    pub(crate) fn job_with(&self, change: impl FnOnce(&mut NewJob)) -> NewJob {
        let mut job = self.job();
        change(&mut job);
        job
    }

    // ── enqueue ──

    pub(crate) async fn enqueue(&self, job: NewJob) -> Enqueued {
        self.enqueue_all(&[job]).await.remove(0)
    }

    pub(crate) async fn enqueue_all(&self, jobs: &[NewJob]) -> Vec<Enqueued> {
        self.store.enqueue(self.next_call(), jobs).await.expect("these jobs can be enqueued")
    }

    /// Why a call with these jobs is refused.
    pub(crate) async fn refused(&self, jobs: &[NewJob]) -> ErrorKind {
        self.store.enqueue(self.next_call(), jobs).await.expect_err("these jobs break a limit").kind()
    }

    /// Inserts a job.
    pub(crate) async fn add(&self) -> JobId {
        self.add_with(|_| ()).await
    }

    /// Inserts a job, changed.
    pub(crate) async fn add_with(&self, change: impl FnOnce(&mut NewJob)) -> JobId {
        match self.enqueue(self.job_with(change)).await {
            Enqueued::Inserted { id, .. } => id,
            other => panic!("the job was not inserted: {other:?}"),
        }
    }

    /// Inserts jobs that are due now.
    pub(crate) async fn add_many(&self, n: usize) -> Vec<JobId> {
        let jobs: Vec<NewJob> = (0..n).map(|_| self.job()).collect();
        let answers = self.enqueue_all(&jobs).await;
        answers.iter().map(|answer| answer.id().expect("there is room")).collect()
    }

    // ── reserve, extend, settle, take ──

    /// A call for up to `n` jobs of [`QUEUE`].
    pub(crate) fn want(&self, n: usize) -> Reserve {
        self.want_from(&[(QUEUE, n)], n)
    }

    /// A call for up to `n` jobs of these queues, by shares.
    pub(crate) fn want_from(&self, queues: &[(&str, usize)], n: usize) -> Reserve {
        let want = |&(queue, share): &(&str, usize)| QueueRequest {
            queue: queue.to_owned(),
            share,
            at_most: BATCH_MAX,
        };
        let queues = queues.iter().map(want).collect();
        Reserve { call: self.next_call(), worker: WORKER.to_owned(), queues, n, lease: None, company: false }
    }

    /// A call for up to `n` jobs of these queues, none of which may bring more than its bound, nor has a share.
    pub(crate) fn want_at_most(&self, queues: &[(&str, usize)], n: usize) -> Reserve {
        let want =
            |&(queue, at_most): &(&str, usize)| QueueRequest { queue: queue.to_owned(), share: 0, at_most };
        Reserve { queues: queues.iter().map(want).collect(), ..self.want(n) }
    }

    pub(crate) async fn reserve(&self, n: usize) -> Batch {
        self.reserve_by(&self.want(n)).await
    }

    pub(crate) async fn reserve_by(&self, want: &Reserve) -> Batch {
        self.store.reserve(want).await.expect("a reserve within the limits")
    }

    /// Reserves the one job that is due.
    pub(crate) async fn reserve_one(&self) -> Reserved {
        let mut jobs = self.reserve(1_000).await.jobs;
        assert_eq!(jobs.len(), 1, "one job is due");
        jobs.remove(0)
    }

    /// Inserts a job and reserves it, and only it.
    pub(crate) async fn run(&self) -> Reserved {
        self.run_with(|_| ()).await
    }

    pub(crate) async fn run_with(&self, change: impl FnOnce(&mut NewJob)) -> Reserved {
        let id = self.add_with(change).await;
        let reserved = self.reserve_one().await;
        assert_eq!(reserved.job.id, id, "only this job is due");
        reserved
    }

    pub(crate) async fn extend(&self, lease: Lease) -> LeaseStatus {
        self.store.extend(&[lease.into()]).await.expect("leases can be extended")[0]
    }

    pub(crate) async fn settle_one(&self, lease: Lease, verdict: Verdict) -> Settled {
        let batch = [Settlement { lease, verdict }];
        self.store.settle(&batch, None).await.expect("leases can be settled").0[0]
    }

    /// Ends a run, and answers the job as it is then.
    pub(crate) async fn end(&self, run: &Reserved, verdict: Verdict) -> JobRecord {
        assert!(matches!(self.settle_one(run.lease, verdict).await, Settled::Settled(..)));
        self.get(run.job.id).await
    }

    /// Takes up to `n` jobs of [`QUEUE`], however young.
    pub(crate) async fn take(&self, n: usize) -> Vec<JobRecord> {
        self.take_older(n, Duration::ZERO).await
    }

    pub(crate) async fn take_older(&self, n: usize, older_than: Duration) -> Vec<JobRecord> {
        let take = Take { queue: QUEUE.to_owned(), n, older_than };
        self.store.take(&take).await.expect("a take within the limits")
    }

    // ── reads ──

    /// A job that is there.
    pub(crate) async fn get(&self, id: JobId) -> JobRecord {
        self.find(id).await.expect("there is such a job")
    }

    pub(crate) async fn find(&self, id: JobId) -> Option<JobRecord> {
        self.store.get(id).await.expect("jobs can be read")
    }

    pub(crate) async fn state(&self, id: JobId) -> State {
        self.get(id).await.state
    }

    pub(crate) async fn holder(&self, name: &str) -> Option<JobId> {
        let holder = self.store.holder(&key(name)).await.expect("keys can be read");
        holder.map(|job| job.id)
    }

    /// The counters of [`QUEUE`].
    pub(crate) async fn counts(&self) -> Counts {
        self.store.count(Some(QUEUE)).await.expect("jobs can be counted")
    }

    /// All jobs that match, page by page; the newest first.
    pub(crate) async fn list(&self, filter: &str, limit: usize) -> Vec<JobId> {
        let mut list = List { filter: Filter::parse(filter).expect("a filter"), after: None, limit };
        let mut found = Vec::new();
        loop {
            let page = self.store.list(&list).await.expect("a list within the limits");
            assert!(page.jobs.len() <= limit);
            assert!(page.searched <= 1_000 + page.jobs.len() as u64);
            found.extend(page.jobs.iter().map(|job| job.id));
            match page.next {
                Some(next) => list.after = Some(next),
                None => break,
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found
    }

    // ── acts, queues, upkeep ──

    pub(crate) async fn act(&self, target: impl Into<Target>, action: Action) -> Acted {
        self.store.act(&[target.into()], &action).await.expect("an act within the limits")[0]
    }

    /// An act that succeeds.
    pub(crate) async fn apply(&self, target: impl Into<Target>, action: Action) {
        let acted = self.act(target, action).await;
        assert!(matches!(acted, Acted::Done(..) | Acted::Requested(_)), "{acted:?}");
    }

    /// What became of a [`QueueOp`] on [`QUEUE`].
    pub(crate) async fn queue(&self, op: QueueOp) -> QueueReply {
        self.store.queue(QUEUE, &op).await.expect("an operation within the limits")
    }

    /// [`QUEUE`], which is there.
    pub(crate) async fn info(&self) -> QueueInfo {
        match self.queue(QueueOp::Show).await {
            QueueReply::Info(info) => *info,
            other => panic!("the queue can't be shown: {other:?}"),
        }
    }

    /// Gives [`QUEUE`] the default settings, changed.
    pub(crate) async fn set(&self, change: impl FnOnce(&mut QueueSettings)) {
        let mut settings = QueueSettings::default();
        change(&mut settings);
        let reply = self.queue(QueueOp::Set(Box::new(settings))).await;
        assert!(matches!(reply, QueueReply::Info(_)));
    }

    pub(crate) async fn pause(&self) {
        let pause = QueueOp::Pause { by: "ana".to_owned(), reason: "maintenance".to_owned() };
        assert!(matches!(self.queue(pause).await, QueueReply::Info(_)));
    }

    /// All findings of a whole audit.
    pub(crate) async fn audit(&self, repair: bool) -> Vec<Finding> {
        let mut audit = Audit { repair, ..Audit::default() };
        let mut findings = Vec::new();
        loop {
            let slice = self.store.audit(audit.clone()).await.unwrap();
            assert!(slice.checked <= 1_000);
            findings.extend(slice.findings);
            match slice.next {
                Some(next) => audit.from = next,
                None => return findings,
            }
        }
    }

    pub(crate) async fn sweep(&self, limit: usize) -> Swept {
        self.store.sweep(limit).await.expect("a sweep within the limits")
    }
}
