//! Registers the worker in the store, and finds the orders of operators.
//!
//! Best effort: the loop never waits for it, and a failure is a line of the debug log. The document is written with its
//! last version as the condition. An order changes the version, so the next write conflicts and returns the order. No
//! read is needed for it.
//!
//! A document that is gone is also how a worker learns that its store is another one than before: a server without persistence was
//! started again, or emptied. It goes on in the new one, but says what that means.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{config::Setup, leases::Runs};
use crate::{
    core::{
        error::{ErrorKind, Result},
        registration::{
            KINDS_MAX, PREFIX, WRITE_EVERY, WorkerInfo, WorkerOrder, WorkerState, is_forgotten, key,
        },
        time::Timestamp,
    },
    store::{DocOp, DocReply, Identity, Precondition, Store},
};

/// How often a write is tried if the document has changed: once for an order, and once for an order after it.
const WRITES_MAX: usize = 3;
/// How long a shutdown lasts before it is written. Most end earlier, and then only remove the document.
const STOPPING_AFTER: Duration = Duration::from_secs(1);
/// How long the store can take to remove the document at the end.
const LAST_WRITE_MAX: Duration = Duration::from_secs(1);
/// How long a worker waits after a write that will probably be refused again.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// How often a worker looks for old registrations.
const FORGET_EVERY: Duration = Duration::from_hours(1);
/// Most registrations of one look. It begins at a random one, so that many workers see all of them.
const FORGET_MAX: usize = 100;

/// Whether the worker was ordered to reserve no jobs. Used on one thread.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    is: Cell<bool>,
    changed: Notify,
}

impl Quiet {
    pub(crate) const fn is_quiet(&self) -> bool {
        self.is.get()
    }

    fn set(&self, is: bool) {
        if self.is.replace(is) != is {
            self.changed.notify_waiters();
        }
    }

    /// Waits for the next change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The registration of a running worker. Used on one thread.
pub(crate) struct Registration<'a> {
    setup: &'a Setup,
    runs: &'a Runs,
    /// Fires when the worker shuts down. An order to stop fires it.
    graceful: &'a CancellationToken,
    /// Fires at the worker's end.
    over: CancellationToken,
    /// What does not change while it runs.
    info: RefCell<WorkerInfo>,
    /// The version of its document; `None` while none is known.
    version: Cell<Option<u64>>,
    /// Whether the answer to a write was lost, so that there can be a document all the same.
    is_unsure: Cell<bool>,
    /// Which store it is registered in, as far as that is known.
    store_is: Cell<Option<Identity>>,
    /// Notified when the store has become another one.
    moved: Notify,
    forget_at: Cell<Instant>,
}

impl<'a> Registration<'a> {
    pub(crate) fn new(setup: &'a Setup, runs: &'a Runs, graceful: &'a CancellationToken) -> Self {
        let config = &setup.config;
        let mut kinds = config.handlers.kinds();
        let more_kinds = kinds.len().saturating_sub(KINDS_MAX);
        kinds.truncate(KINDS_MAX);
        let info = WorkerInfo {
            id: format!("{:016x}", fastrand::u64(..)),
            name: config.name.clone(),
            host: super::host(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            queues: setup.queues.served(),
            kinds: kinds.into_iter().map(str::to_owned).collect(),
            more_kinds,
            slots: config.slots,
            ..WorkerInfo::default()
        };
        Self {
            setup,
            runs,
            graceful,
            over: CancellationToken::new(),
            info: RefCell::new(info),
            version: Cell::new(None),
            is_unsure: Cell::new(false),
            store_is: Cell::new(None),
            moved: Notify::new(),
            forget_at: Cell::new(Instant::now() + WRITE_EVERY),
        }
    }

    /// Keeps the document until [`Registration::end`], and then removes it.
    pub(crate) async fn keep(&self, store: &dyn Store) {
        let Some(every) = self.setup.config.registers else { return };
        self.keep_written(store, every).await;
        if let Err(error) = self.remove(store).await {
            tracing::debug!(target: "punctual", %error, "could not remove the registration of the worker");
        }
    }

    /// Makes [`Registration::keep`] end.
    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// Waits until the store has become another one.
    #[cfg(feature = "cron")]
    pub(crate) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Waits until [`Registration::keep`] has had its time to end, whatever the store does.
    pub(crate) async fn out_of_time(&self) {
        self.over.cancelled().await;
        sleep(LAST_WRITE_MAX).await;
    }

    /// A write in progress is not dropped at the end: the store could do it after the removal.
    async fn keep_written(&self, store: &dyn Store, every: Duration) {
        while !self.over.is_cancelled() {
            let mut pause = every;
            if let Err(error) = self.write(store).await {
                tracing::debug!(target: "punctual", %error, "could not register the worker");
                if will_be_refused_again(error.kind()) {
                    pause = every.max(REFUSED_PAUSE);
                }
            } else if self.forget_at.get() <= Instant::now() {
                self.forget_at.set(Instant::now() + FORGET_EVERY);
                tokio::select! {
                    biased;
                    () = self.over.cancelled() => return,
                    forgot = forget(store) => if let Err(error) = forgot {
                        tracing::debug!(target: "punctual", %error, "could not remove old registrations");
                    },
                }
            }
            let is_told = self.info.borrow().state == WorkerState::Stopping;
            tokio::select! {
                biased;
                () = self.over.cancelled() => {}
                () = sleep(pause.mul_f64(1.0 + fastrand::f64() / 10.0)) => {}
                () = async { self.graceful.cancelled().await; sleep(STOPPING_AFTER).await }, if !is_told => {}
            }
        }
    }

    /// Writes the document as it is now, and does what was ordered.
    async fn write(&self, store: &dyn Store) -> Result<()> {
        let key = key(&self.info.borrow().id);
        if self.store_is.get().is_none() {
            // Before the first write: asked afterwards, a store that was emptied meanwhile would be taken for the one of before.
            let Some(identity) = self.before_end(store.identity()).await else { return Ok(()) };
            self.store_is.set(identity.ok());
        }
        for _ in 0..WRITES_MAX {
            let Some(now) = self.before_end(store.now()).await else { return Ok(()) };
            let value = self.now(now?).write()?;
            let precondition = self.version.get().map_or(Precondition::IfAbsent, Precondition::IfVersion);
            // Also if this is dropped by a panic.
            let was_unsure = self.is_unsure.replace(true);
            let answer = store.doc(&DocOp::Put { key: key.clone(), precondition, value }).await;
            match &answer {
                Ok(_) => self.is_unsure.set(false),
                Err(error) if error.kind() == ErrorKind::UnknownOutcome => {}
                Err(_) => self.is_unsure.set(was_unsure),
            }
            match answer? {
                DocReply::Is(doc) => {
                    self.version.set(doc.map(|doc| doc.version));
                    return Ok(());
                }
                DocReply::Conflict(doc) => {
                    if doc.is_none() {
                        let Some(identity) = self.before_end(store.identity()).await else { return Ok(()) };
                        self.look_at(identity?);
                    }
                    self.version.set(doc.as_ref().map(|doc| doc.version));
                    let info = doc.and_then(|doc| WorkerInfo::read(&doc.key, &doc.value).ok());
                    if let Some(order) = info.and_then(|info| info.order) {
                        self.obey(order);
                    }
                }
                DocReply::Page { .. } => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns what a read finds, or `None` if the worker ends first.
    async fn before_end<T>(&self, read: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.over.cancelled() => None,
            read = read => Some(read),
        }
    }

    /// Looks which store it is, after the document has gone.
    fn look_at(&self, is: Identity) {
        let Some(was) = self.store_is.replace(Some(is)).filter(|was| *was != is) else { return };
        tracing::error!(target: "punctual", worker = self.setup.config.name, %was, %is,
            "the store is another one than before, and the jobs of before are not in it: a server without persistence was started \
            again, or emptied. This worker goes on in the new one and sets its schedules again; restore the old one from a backup, \
            or enqueue again what is missing");
        self.runs.has_moved.set(true);
        self.moved.notify_one();
    }

    /// Returns what it says of itself at `now`.
    fn now(&self, now: Timestamp) -> WorkerInfo {
        let mut info = self.info.borrow_mut();
        if info.since == Timestamp::default() {
            info.since = now;
        }
        info.seen = now;
        info.busy = self.runs.executing();
        info.state = if self.graceful.is_cancelled() {
            WorkerState::Stopping
        } else if self.runs.quiet.is_quiet() {
            WorkerState::Quiet
        } else {
            WorkerState::Working
        };
        info.forwards = self.setup.config.forwarding.as_ref().map(|report| report());
        info.clone()
    }

    fn obey(&self, order: WorkerOrder) {
        tracing::info!(target: "punctual", worker = self.setup.config.name, order = order.name(), "ordered");
        match order {
            WorkerOrder::Quiet => self.runs.quiet.set(true),
            WorkerOrder::Resume => self.runs.quiet.set(false),
            WorkerOrder::Stop => self.graceful.cancel(),
        }
    }

    async fn remove(&self, store: &dyn Store) -> Result<()> {
        if self.version.get().is_none() && !self.is_unsure.get() {
            return Ok(());
        }
        let key = key(&self.info.borrow().id);
        for _ in 0..WRITES_MAX {
            // If there is a document of which no version is known, the conflict says it.
            let precondition = self.version.get().map_or(Precondition::IfAbsent, Precondition::IfVersion);
            match store.doc(&DocOp::Remove { key: key.clone(), precondition }).await? {
                DocReply::Conflict(Some(doc)) => self.version.set(Some(doc.version)),
                DocReply::Conflict(None) | DocReply::Is(_) | DocReply::Page { .. } => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Returns whether a write is probably refused again: a token without the right, or a store of another version. Rights can
/// change, and an answer can be that of a gateway, so it is tried again even then.
const fn will_be_refused_again(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Forbidden | ErrorKind::Unauthenticated | ErrorKind::Outdated | ErrorKind::TooLarge
    )
}

/// Removes registrations of workers that were killed long ago, among up to [`FORGET_MAX`].
async fn forget(store: &dyn Store) -> Result<()> {
    let now = store.now().await?;
    let mut left = FORGET_MAX;
    for after in [Some(key(&format!("{:016x}", fastrand::u64(..)))), None] {
        let list = DocOp::List { prefix: PREFIX.to_owned(), after, limit: left };
        let DocReply::Page { docs, .. } = store.doc(&list).await? else { return Ok(()) };
        left -= docs.len().min(left);
        for doc in docs {
            if is_forgotten(&doc.value, now) {
                let precondition = Precondition::IfVersion(doc.version);
                store.doc(&DocOp::Remove { key: doc.key, precondition }).await?;
            }
        }
        if left == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        core::{job::JobRecord, registration::FORGOTTEN_AFTER},
        runtime::{
            client::Client,
            handler::Ctx,
            testing::{Fault, FaultyStore, ManualClock},
            worker::Worker,
        },
        store::{clock::Clock, memory::MemoryStore},
    };

    fn client(clock: &ManualClock, fault: impl FnMut(&'static str) -> Fault + Send + 'static) -> Client {
        let memory = MemoryStore::new(Clock::Manual(clock.clone()));
        Client::new(Arc::new(FaultyStore::new(Arc::new(memory), fault)))
    }

    fn clock() -> ManualClock {
        ManualClock::new(Timestamp::saturating_from_ms(1_000_000))
    }

    fn setup(client: &Client) -> Setup {
        Worker::new(client).handle_raw(|_: JobRecord, _: Ctx| std::future::ready(())).build().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_worker_writes_four_times_a_minute() {
        let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = Arc::clone(&calls);
        let client = client(&clock(), move |verb| {
            heard.lock().unwrap().push(verb);
            Fault::Pass
        });
        let (setup, runs, graceful) = (setup(&client), Runs::default(), CancellationToken::new());
        let registration = Registration::new(&setup, &runs, &graceful);
        let ending = async {
            sleep(Duration::from_hours(1) - Duration::from_secs(1)).await;
            registration.end();
        };
        tokio::join!(registration.keep(&**client.store()), ending);
        let calls = calls.lock().unwrap();
        let count = |verb| calls.iter().filter(|call| **call == verb).count();
        // 218 to 240 writes, each with a look at the clock; one look for old ones, of two lists; and the end.
        assert!((220..=245).contains(&count("doc")), "{}", count("doc"));
        assert_eq!(count("now") + 2, count("doc"));
        // Once, which store it is, and before it writes: after a write, the store could be another one already.
        assert_eq!((count("identity"), count("doc") + count("now") + 1), (1, calls.len()));
        assert_eq!(calls[0], "identity");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_write_of_a_worker_that_stops_says_so() {
        let clock = clock();
        let client = client(&clock, |_| Fault::Pass);
        let (setup, runs, graceful) = (setup(&client), Runs::default(), CancellationToken::new());
        let registration = Registration::new(&setup, &runs, &graceful);
        let looking = async {
            sleep(Duration::from_secs(1)).await;
            graceful.cancel();
            sleep(2 * STOPPING_AFTER).await;
            let workers = client.workers(None).await.unwrap().workers;
            assert_eq!(workers[0].state, WorkerState::Stopping);
            registration.end();
        };
        tokio::join!(registration.keep(&**client.store()), looking);
        assert!(client.workers(None).await.unwrap().workers.is_empty());
    }

    /// A worker that ends while it registers leaves no document, whether the answer comes late or never.
    #[tokio::test(start_paused = true)]
    async fn a_worker_that_ends_while_it_registers_leaves_nothing() {
        let second = Duration::from_secs(1);
        for fault in [Fault::Late(second / 2), Fault::Delay(second / 2), Fault::After] {
            let mut first = Some(fault);
            let client = client(&clock(), move |verb| {
                if verb == "doc" { first.take().unwrap_or(Fault::Pass) } else { Fault::Pass }
            });
            let (setup, runs, graceful) = (setup(&client), Runs::default(), CancellationToken::new());
            let registration = Registration::new(&setup, &runs, &graceful);
            let ending = async {
                sleep(second / 4).await;
                registration.end();
            };
            tokio::join!(registration.keep(&**client.store()), ending);
            assert!(client.workers(None).await.unwrap().workers.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_takes_no_document_is_asked_no_more_often() {
        let calls = Arc::new(std::sync::Mutex::new(0));
        let heard = Arc::clone(&calls);
        let client = client(&clock(), move |verb| {
            if verb != "doc" {
                return Fault::Pass;
            }
            *heard.lock().unwrap() += 1;
            Fault::Before
        });
        let (setup, runs, graceful) = (setup(&client), Runs::default(), CancellationToken::new());
        let registration = Registration::new(&setup, &runs, &graceful);
        let ending = async {
            sleep(4 * WRITE_EVERY).await;
            registration.end();
        };
        tokio::join!(registration.keep(&**client.store()), ending);
        assert_eq!(*calls.lock().unwrap(), 4);
    }

    /// A gateway, or a user whose rights are being changed, refuses for a while; a token without the right, for ever.
    #[tokio::test(start_paused = true)]
    async fn a_refused_registration_is_written_once_it_is_not_refused_any_more() {
        let last = Duration::from_mins(1);
        for (kind, writes, registered_after) in [
            (ErrorKind::Unavailable, 4..=4, 2 * WRITE_EVERY),
            (ErrorKind::Unsupported, 4..=4, 2 * WRITE_EVERY),
            (ErrorKind::Forbidden, 1..=1, 2 * REFUSED_PAUSE),
        ] {
            let begin = Instant::now();
            let calls = Arc::new(std::sync::Mutex::new(0));
            let heard = Arc::clone(&calls);
            let client = client(&clock(), move |verb| {
                if verb != "doc" || last < begin.elapsed() {
                    return Fault::Pass;
                }
                *heard.lock().unwrap() += 1;
                Fault::Refused(kind)
            });
            let (setup, runs, graceful) = (setup(&client), Runs::default(), CancellationToken::new());
            let registration = Registration::new(&setup, &runs, &graceful);
            let looking = async {
                sleep(last).await;
                assert!(writes.contains(&*calls.lock().unwrap()), "{kind:?}");
                sleep(registered_after).await;
                assert_eq!(client.workers(None).await.unwrap().workers.len(), 1, "{kind:?}");
                registration.end();
            };
            tokio::join!(registration.keep(&**client.store()), looking);
        }
    }

    #[tokio::test]
    async fn a_worker_that_does_not_register_makes_no_call() {
        let client = client(&clock(), |verb| unreachable!("{verb}"));
        let (mut setup, runs, graceful) = (setup(&client), Runs::default(), CancellationToken::new());
        setup.config.registers = None;
        Registration::new(&setup, &runs, &graceful).keep(&**client.store()).await;
    }

    #[tokio::test]
    async fn old_registrations_are_removed_a_bounded_number_at_a_time() {
        let clock = clock();
        let client = client(&clock, |_| Fault::Pass);
        let put = |n: usize, seen: Timestamp| {
            let id = format!("{n:016x}");
            let value = WorkerInfo { seen, ..WorkerInfo::default() }.write().unwrap();
            DocOp::Put { key: key(&id), precondition: Precondition::Always, value }
        };
        let store = client.store();
        let old = store.now().await.unwrap();
        for n in 0..FORGET_MAX + 30 {
            store.doc(&put(n, old)).await.unwrap();
        }
        clock.advance(FORGOTTEN_AFTER);
        store.doc(&put(5_000, store.now().await.unwrap())).await.unwrap();
        let left = async || {
            let list = DocOp::List { prefix: PREFIX.to_owned(), after: None, limit: 1_000 };
            let DocReply::Page { docs, .. } = store.doc(&list).await.unwrap() else { panic!() };
            docs.len()
        };
        forget(&**store).await.unwrap();
        assert_eq!(left().await, 31, "a hundred are removed");
        forget(&**store).await.unwrap();
        assert_eq!(left().await, 1, "one that was seen is kept");
    }
}
