//! The worker: reserves jobs, runs their handlers, and settles them.
//!
//! A builder collects what is wanted; [`Worker::run`] starts the loop (`turn.rs`) and the heartbeat on a thread with
//! a runtime of their own, while handlers run on the caller's runtime: a handler that blocks its thread, leaks or panics
//! can stop neither. Both are supervised: a panic in them is logged and they go on. Beside them a second loop with its
//! heartbeat hands out publications (`publication.rs`), and what ran is added to the views of the last hour (`views.rs`). A worker knows its store as `dyn Store` only.

pub(crate) mod alarm;
mod crew;
pub(crate) mod dead;
mod health;
mod heartbeat;
mod publication;
pub(crate) mod queues;
pub(crate) mod report;
pub(crate) mod run;
mod runs;
mod shutdown;
mod signals;
mod suspects;
#[cfg(feature = "cron")]
pub(crate) mod tick;
mod turn;
mod upkeep;
mod views;

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::task::TaskTracker;

pub use crew::UnknownKinds;
pub use health::{Health, Reporting};
pub use report::{Lateness, LiveReport, WorkReport};
pub use shutdown::Shutdown;

use self::{
    alarm::Alarm,
    crew::Crew,
    dead::{Obituaries, OnDead, on_dead},
    health::Pulse,
    heartbeat::{cancels, heartbeat},
    queues::{Queues, check_slots},
    run::{catch_panic, guarded},
    runs::Runs,
    turn::Turns,
    views::Views,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Result},
    handler::{Ctx, Handler, erase, erase_raw},
    job::{Job, JobRecord, check_lease, check_name},
    middleware::{Layer, Middleware, layer},
    outcome::IntoOutcome,
    store::{Store, WORKER_BELL},
};
#[cfg(feature = "cron")]
use crate::{
    cron::Cron,
    schedule::{Schedule, check_schedule},
};

/// Slots where nobody chose a number.
const SLOTS_DEFAULT: usize = 50;
/// How long handlers may take to end at shutdown where nobody chose a time.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// Longest grace; longer ones are cut to it.
const GRACE_MAX: Duration = Duration::from_hours(365 * 24);
/// How long the supervisor waits before it goes on after a panic.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// A worker in the making. Give it its state first, then handlers, then [`run`](Worker::run) it.
#[must_use = "a worker does nothing until `run` or `run_until` is awaited"]
pub struct Worker<S = ()> {
    client: Client,
    name: String,
    state: Arc<S>,
    queues: Vec<(String, Option<u32>)>,
    /// The kinds and queues of the types that it handles.
    of_types: Vec<(&'static str, &'static str)>,
    slots: usize,
    queue_slots: BTreeMap<String, usize>,
    lease: Option<Duration>,
    crew: Crew,
    layers: Vec<Layer>,
    on_dead: Option<OnDead>,
    grace: Duration,
    cancel_grace: Duration,
    timeout_grace: Duration,
    retry_after_max: Duration,
    health: Health,
    /// Whether somebody else reports it.
    shares_health: bool,
    serves_topics: bool,
    live: LiveReport,
    #[cfg(feature = "cron")]
    schedules: Vec<(String, Schedule)>,
    /// The first thing that can't be, told when the worker is started.
    problem: Option<Error>,
}

/// A worker that is complete and checked.
pub(crate) struct Setup {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) queues: Queues,
    pub(crate) slots: usize,
    pub(crate) lease: Option<Duration>,
    pub(crate) crew: Crew,
    pub(crate) on_dead: Option<OnDead>,
    #[cfg(feature = "cron")]
    pub(crate) schedules: Vec<(String, Schedule)>,
    serves_topics: bool,
    pub(crate) live: LiveReport,
    grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) timeout_grace: Duration,
    /// The longest pause that a run is granted that asks for one.
    pub(crate) retry_after_max: Duration,
    health: Health,
    /// Whether somebody else reports it.
    shares_health: bool,
}

impl Setup {
    /// The worker beside this one, that hands out publications; `None`: others do.
    pub(crate) fn of_publications(&self) -> Option<Self> {
        self.serves_topics.then(|| Self {
            client: self.client.clone(),
            name: self.name.clone(),
            queues: Queues::of_publications(),
            slots: publication::SLOTS,
            lease: self.lease,
            crew: Crew::of_one(guarded(publication::handler(), self.timeout_grace)),
            on_dead: self.on_dead.clone(),
            #[cfg(feature = "cron")]
            schedules: Vec::new(),
            serves_topics: false,
            live: LiveReport::default(),
            grace: self.grace,
            cancel_grace: self.cancel_grace,
            timeout_grace: self.timeout_grace,
            retry_after_max: self.retry_after_max,
            health: Health::default(),
            shares_health: false,
        })
    }
}

impl Worker {
    /// A worker on the store of `client`.
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            name: default_name(),
            state: Arc::new(()),
            queues: Vec::new(),
            of_types: Vec::new(),
            slots: SLOTS_DEFAULT,
            queue_slots: BTreeMap::new(),
            lease: None,
            crew: Crew::default(),
            layers: Vec::new(),
            on_dead: None,
            grace: GRACE_DEFAULT,
            cancel_grace: GRACE_DEFAULT,
            timeout_grace: Duration::ZERO,
            retry_after_max: Duration::MAX,
            health: Health::default(),
            shares_health: false,
            serves_topics: true,
            live: LiveReport::default(),
            #[cfg(feature = "cron")]
            schedules: Vec::new(),
            problem: None,
        }
    }
}

impl<S: Send + Sync + 'static> Worker<S> {
    /// Gives the handlers registered from here on a state, as [`Ctx::state`].
    pub fn state<T: Send + Sync + 'static>(self, state: T) -> Worker<T> {
        Worker {
            client: self.client,
            name: self.name,
            state: Arc::new(state),
            queues: self.queues,
            of_types: self.of_types,
            slots: self.slots,
            queue_slots: self.queue_slots,
            lease: self.lease,
            crew: self.crew,
            layers: self.layers,
            on_dead: self.on_dead,
            grace: self.grace,
            cancel_grace: self.cancel_grace,
            timeout_grace: self.timeout_grace,
            retry_after_max: self.retry_after_max,
            health: self.health,
            shares_health: self.shares_health,
            serves_topics: self.serves_topics,
            live: self.live,
            #[cfg(feature = "cron")]
            schedules: self.schedules,
            problem: self.problem,
        }
    }

    /// Names the worker, for people; `host/pid` unless said otherwise, and `host/pid/2` for the second worker of a process. A cancel
    /// rings for the name: of two workers with the same one, the other may hear of it with its next heartbeat only.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Reserves from this queue, after those named before: strictly, a later queue gets what the earlier ones left.
    /// Without any queue named: from those that the types of its [`handle`](Worker::handle) name, all alike; and from `default`
    /// with [`handle_raw`](Worker::handle_raw).
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push((queue.into(), None));
        self
    }

    /// Reserves from these queues by their weights: a queue that always has a due job gets at least its weight of any
    /// Σweights reservations in a row.
    pub fn weighted<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = (Q, u32)>) -> Self {
        self.queues.extend(queues.into_iter().map(|(queue, weight)| (queue.into(), Some(weight))));
        self
    }

    /// How many jobs run at once; 50 unless said otherwise, at most 10,000.
    #[doc(alias = "concurrency")]
    #[doc(alias = "threads")]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// How many jobs of one queue run at once in this worker, whatever slots are free; as many as it has
    /// [`slots`](Worker::slots) unless said otherwise. Other workers count for themselves.
    pub fn queue_slots(mut self, queue: impl Into<String>, slots: usize) -> Self {
        self.queue_slots.insert(queue.into(), slots);
        self
    }

    /// The lease of jobs that have none of their own, 1 s to 24 h; the queue's, else 15 s, unless said otherwise. It is
    /// extended every third of it for as long as the handler runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long a run may go on behind the cancel of its job, or the loss of its lease, before it is dropped where it awaits;
    /// 30 s unless said otherwise. Its token fires at once; this is for handlers that don't listen.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// How long a run may go on after its timeout before it is dropped where it awaits; none unless said otherwise. With a grace
    /// the timeout fires the run's token with [`Stop::TimedOut`](crate::Stop::TimedOut), the lease is extended until the run ends,
    /// and what the run returns is its outcome. This is for handlers that must end something elsewhere before the next attempt
    /// begins.
    pub fn timeout_grace(mut self, grace: Duration) -> Self {
        self.timeout_grace = grace;
        self
    }

    /// The longest pause that [`Outcome::RetryAfter`](crate::Outcome::RetryAfter) gets; a longer one is cut to it (default: none; the
    /// store keeps a queue or group closed for 24 h at most). For handlers that pass on what somebody else asks for.
    pub fn retry_after_max(mut self, pause: Duration) -> Self {
        self.retry_after_max = pause;
        self
    }

    /// What becomes of jobs without a handler.
    #[doc(alias = "unhandled")]
    pub fn unknown_kinds(mut self, unknown: UnknownKinds) -> Self {
        self.crew.set_unknown(unknown);
        self
    }

    /// Runs `middleware` around every handler; the first one named is the outermost.
    #[doc(alias = "middleware")]
    #[doc(alias = "layer")]
    pub fn with(mut self, middleware: impl Middleware) -> Self {
        self.layers.push(layer(middleware));
        self
    }

    /// Calls `tell` with every job that ends dead under this worker, and the reason. Best effort: a worker that is killed
    /// tells nobody; whoever must not miss one lists dead jobs.
    #[doc(alias = "dead_letter")]
    pub fn on_dead<F, Fut>(mut self, tell: F) -> Self
    where
        F: Fn(JobRecord, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.on_dead = Some(on_dead(tell));
        self
    }

    /// Handles the jobs of one type. A second handler of the same kind is refused when the worker starts.
    pub fn handle<J: Job, H: Handler<J, S>>(mut self, handler: H) -> Self {
        self.of_types.push((J::KIND, J::QUEUE));
        let added = self.crew.add(J::KIND, erase(handler, Arc::clone(&self.state)));
        self.problem = self.problem.or(added.err());
        self
    }

    /// Handles the jobs of every kind that has no handler of its own, as their records.
    pub fn handle_raw<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(JobRecord, Ctx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        let added = self.crew.add_raw(erase_raw(handle, Arc::clone(&self.state)));
        self.problem = self.problem.or(added.err());
        self
    }

    /// Whether it also hands out what is published to [topics](crate::TopicHandle); it does unless said otherwise, whatever
    /// queues it serves, beside its jobs and their slots. One worker of a store that does is enough.
    pub fn serve_topics(mut self, serve: bool) -> Self {
        self.serves_topics = serve;
        self
    }

    /// Sets a schedule when the worker starts, as [`ScheduleHandle::set`](crate::ScheduleHandle::set) does: it is kept in the
    /// store, and goes on after this worker, which may be one of many that set it. The worker sets its schedules beside its first
    /// jobs: await [`LiveReport::started`] before another task reads or fires one.
    #[doc(alias = "periodic")]
    #[doc(alias = "recurring")]
    #[cfg(feature = "cron")]
    #[expect(clippy::needless_pass_by_value, reason = "a job is handed over; calls read better without `&`")]
    pub fn cron<J: Job>(mut self, name: impl Into<String>, cron: Cron, job: J) -> Self {
        let name = name.into();
        let schedule = check_schedule(&name).and_then(|()| Schedule::of(&self.client, cron, &job));
        match schedule {
            Ok(schedule) => self.schedules.push((name, schedule)),
            Err(error) => self.problem = self.problem.or(Some(error)),
        }
        self
    }

    /// What it does, to be read while it runs: take it before the worker is started.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use punctual::{Client, Worker, store::{clock::Clock, memory::MemoryStore}};
    /// let client = Client::new(Arc::new(MemoryStore::new(Clock::System)));
    /// let worker = Worker::new(&client);
    /// let live = worker.live();
    /// // … run the worker elsewhere …
    /// assert_eq!(live.now().done, 0);
    /// ```
    pub fn live(&self) -> LiveReport {
        self.live.clone()
    }

    /// How long handlers may take to end once shutdown began; 30 s unless said otherwise. What has not ended by then is
    /// stopped and released, which counts no attempt.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Rewrites this file every few seconds for as long as the loop is alive.
    pub fn health_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.health = self.own_health().file(file);
        self.shares_health = false;
        self
    }

    /// Answers HTTP requests on this address: 200 for as long as the loop is alive, else 503.
    pub fn health_addr(mut self, addr: SocketAddr) -> Self {
        self.health = self.own_health().addr(addr);
        self.shares_health = false;
        self
    }

    /// Lets a [`Health`] that several workers share, and that somebody started, report this worker, too; instead of a file or a port
    /// of its own.
    pub fn health(mut self, shared: &Health) -> Self {
        self.health = shared.clone();
        self.shares_health = true;
        self
    }

    /// What it reports by itself.
    fn own_health(&mut self) -> Health {
        let health = std::mem::take(&mut self.health);
        if self.shares_health { Health::default() } else { health }
    }

    /// Works until SIGINT or SIGTERM (elsewhere Ctrl-C), then lets handlers end within the grace; a second signal ends
    /// them now.
    ///
    /// The second signal aborts the handlers that still run and gives their jobs back, which counts no attempt. A handler that blocks
    /// its thread can't be aborted; its job is given back after 1 s. If the store can't be reached, the worker ends after 6 s, and
    /// the jobs run again when their leases end.
    ///
    /// When no worker runs so any more, these signals end the process again, with exit code 130 or 143, unless it caught or ignored
    /// them before the first worker ran. (On Linux; other systems don't show whether it did, and the signals do nothing there.) A
    /// program that handles signals itself calls [`Worker::run_until`], which installs nothing.
    ///
    /// When this future is dropped, the worker ends as if told "now".
    ///
    /// # Errors
    /// A worker that can't be (two handlers for one kind, a wrong queue name); a store that is closed, or that can't be
    /// reached in the end. A store that is out of reach for a while is waited for.
    #[doc(alias = "start")]
    #[doc(alias = "serve")]
    pub async fn run(self) -> Result<WorkReport> {
        let shutdown = Shutdown::default();
        let _listening = signals::listen(&shutdown).await?;
        self.run_until(shutdown).await
    }

    /// Works until told to shut down: by a [`CancellationToken`](crate::CancellationToken), or by a [`Shutdown`] that can also say "now".
    ///
    /// When this future is dropped, the worker ends as if told "now", in the background.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn run_until(self, shutdown: impl Into<Shutdown>) -> Result<WorkReport> {
        // Whoever waits for its start does not wait for one that has ended.
        let _ended = self.live.start().clone().drop_guard();
        let mut setup = self.build()?;
        let Shutdown { graceful, now } = shutdown.into();
        let shutdown = Shutdown { graceful, now: now.child_token() };
        // Dropped with this future, and after the loop's end: either way health and loop must not outlive it.
        let ends = shutdown.now.clone().drop_guard();
        let health = std::mem::take(&mut setup.health);
        let member = health.join(shutdown.graceful.clone());
        let pulse = Arc::clone(member.pulse());
        if !setup.shares_health {
            health.report_until(shutdown.now.clone()).await?;
        }

        let (queues, kinds) = (setup.queues.names().join(", "), setup.crew.kinds());
        tracing::info!(target: "punctual", worker = setup.name, queues, kinds, slots = setup.slots,
            store = %setup.client.store().url(), "started");

        let obituaries = Obituaries {
            on_dead: setup.on_dead.clone(),
            client: setup.client.clone(),
            runtime: Handle::current(),
            tracker: TaskTracker::new(),
        };
        let (tracker, grace) = (obituaries.tracker.clone(), setup.grace);
        let (answer, answered) = oneshot::channel();
        let spawned = thread::Builder::new().name("punctual-worker".to_owned()).spawn({
            let runtime = Handle::current();
            let shutdown = shutdown.clone();
            move || {
                // Whoever waited may be gone.
                let _ = answer.send(work(&setup, &pulse, runtime, obituaries, &shutdown));
            }
        });
        spawned.map_err(|e| {
            Error::new(ErrorKind::Unavailable, "could not start the worker's thread").with_source(e)
        })?;
        let report = answered.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Closed, "the worker's thread ended without a report"))
        });
        tracker.close();
        tokio::select! {
            () = tracker.wait() => {}
            () = shutdown.now.cancelled() => {}
            () = tokio::time::sleep(grace) => {}
        }
        drop(ends);
        report
    }

    /// The queues of its handlers' types, with equal shares.
    fn queues_of_types(&self) -> Vec<(String, Option<u32>)> {
        let mut names: Vec<&str> = Vec::new();
        let raw = self.crew.handles_all().then_some("default");
        for name in self.of_types.iter().map(|(_, queue)| *queue).chain(raw) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let weight = (1 < names.len()).then_some(1);
        names.into_iter().map(|name| (name.to_owned(), weight)).collect()
    }

    /// Checks what was put together.
    pub(crate) fn build(mut self) -> Result<Setup> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        check_name("worker name", &self.name)?;
        check_slots("slots", self.slots)?;
        self.lease.map_or(Ok(()), check_lease)?;
        if self.crew.is_empty() {
            return Err(Error::invalid("a worker needs a handler").with_hint("add `.handle(…)`"));
        }
        self.crew.wrap(&self.layers, self.timeout_grace.min(GRACE_MAX));
        let queues = if self.queues.is_empty() { self.queues_of_types() } else { self.queues };
        for (kind, queue) in self.of_types {
            if !queues.iter().any(|(name, _)| name == queue) {
                tracing::warn!(target: "punctual", worker = self.name, kind, queue,
                    "this worker handles a kind, and does not serve the queue that its type names");
            }
        }
        Ok(Setup {
            client: self.client,
            name: self.name,
            queues: queues_of(queues)?.with_slots(&self.queue_slots)?,
            slots: self.slots,
            lease: self.lease,
            crew: self.crew,
            on_dead: self.on_dead,
            #[cfg(feature = "cron")]
            schedules: self.schedules,
            serves_topics: self.serves_topics,
            live: self.live,
            grace: self.grace.min(GRACE_MAX),
            cancel_grace: self.cancel_grace.min(GRACE_MAX),
            timeout_grace: self.timeout_grace.min(GRACE_MAX),
            retry_after_max: self.retry_after_max,
            health: self.health,
            shares_health: self.shares_health,
        })
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .field("slots", &self.slots)
            .field("crew", &self.crew)
            .finish_non_exhaustive()
    }
}

/// All strict, or all weighted.
fn queues_of(queues: Vec<(String, Option<u32>)>) -> Result<Queues> {
    let weighted: Vec<(String, u32)> =
        queues.iter().filter_map(|(queue, weight)| Some((queue.clone(), (*weight)?))).collect();
    match weighted.len() {
        0 => Queues::strict(queues.into_iter().map(|(queue, _)| queue).collect()),
        n if n == queues.len() => Queues::weighted(weighted),
        _ => Err(Error::new(ErrorKind::Conflict, "a worker's queues are either strict or weighted")
            .with_hint("name all of them by `.queue(…)`, or all by `.weighted([…])`")),
    }
}

/// `host/pid`, with a number from the second worker of the process on.
fn default_name() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::env::var("COMPUTERNAME"))
        .unwrap_or_default();
    let host = match host.trim() {
        "" => "worker",
        host => host,
    };
    let name = format!("{}/{}", host.chars().take(64).collect::<String>(), std::process::id());
    match MADE.fetch_add(1, Ordering::Relaxed) {
        0 => name,
        before => format!("{name}/{}", before + 1),
    }
}

/// The worker's thread: loop and heartbeat, until shutdown.
fn work(
    setup: &Setup,
    pulse: &Pulse,
    runtime: Handle,
    obituaries: Obituaries,
    shutdown: &Shutdown,
) -> Result<WorkReport> {
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| {
        Error::new(ErrorKind::Unavailable, "could not start the worker's runtime").with_source(e)
    })?;
    let runs = Runs::counting(setup.queues.counted(), setup.cancel_grace);
    let publications =
        setup.of_publications().map(|setup| (setup, runs.beside(), Pulse::new(shutdown.graceful.clone())));
    // Its health is that of the first loop: whoever asks wants to know whether jobs run.
    let mut publishing = match &publications {
        None => None,
        Some((setup, runs, pulse)) => {
            let (runtime, obituaries, shutdown) = (runtime.clone(), obituaries.clone(), shutdown.clone());
            Some(Turns::new(setup, runs, pulse, alarm()?, runtime, obituaries, shutdown))
        }
    };
    let views = Views::default();
    // Not what the other one hands out: that is counted where it runs.
    let mut turns =
        Turns::new(setup, &runs, pulse, alarm()?, runtime, obituaries, shutdown.clone()).counted_in(&views);
    let ended = own.block_on(async {
        let both = async {
            match &mut publishing {
                None => turn(&mut turns, "loop").await,
                Some(publishing) => {
                    let publishing = turn(publishing, "loop of publications");
                    tokio::try_join!(turn(&mut turns, "loop"), publishing).map(drop)
                }
            }
        };
        let store = &**setup.client.store();
        let beating_beside = async {
            match &publications {
                None => std::future::pending().await,
                Some((_, runs, _)) => beat(store, runs).await,
            }
        };
        let all_runs: Vec<&Runs> =
            [Some(&runs), publications.as_ref().map(|(_, runs, _)| runs)].into_iter().flatten().collect();
        let listening = async {
            loop {
                let bell = [WORKER_BELL, &setup.name].concat();
                let Err(panic) = catch_panic(cancels(store, bell, &all_runs)).await;
                after_panic("cancels", &panic).await;
            }
        };
        #[cfg(feature = "cron")]
        let planting = async {
            loop {
                let Err(panic) =
                    catch_panic(tick::keep_planted(&setup.client, &setup.schedules, setup.live.start()))
                        .await;
                after_panic("schedules", &panic).await;
            }
        };
        #[cfg(not(feature = "cron"))]
        let planting = async {
            setup.live.start().cancel();
            std::future::pending::<()>().await;
        };
        let sweeping = async {
            loop {
                let Err(panic) = catch_panic(upkeep::keep_swept(store)).await;
                after_panic("upkeep", &panic).await;
            }
        };
        let working = async {
            let ended = tokio::select! {
                ended = both => ended,
                () = beat(store, &runs) => Ok(()),
                () = beating_beside => Ok(()),
                () = listening => Ok(()),
                () = planting => Ok(()),
                () = sweeping => Ok(()),
                () = shutdown.out_of_time(setup.grace) => {
                    Err(Error::new(ErrorKind::Unavailable, "could not settle the last runs before the end")
                        .with_hint("their leases expire, and the jobs run again"))
                }
            };
            // What still runs has no heartbeat any more.
            for runs in &all_runs {
                runs.abort_all();
            }
            views.end();
            ended
        };
        tokio::join!(working, flush(store, &views)).0
    });
    ended.map(|()| {
        let mut report = turns.into_report();
        report.publications = publishing.map_or(0, |publishing| publishing.into_report().done);
        report
    })
}

fn alarm() -> Result<Alarm> {
    Alarm::new()
        .map_err(|e| Error::new(ErrorKind::Unavailable, "could not start the worker's timer").with_source(e))
}

/// A loop until its end, whatever panics in it.
async fn turn(turns: &mut Turns<'_>, what: &str) -> Result<()> {
    loop {
        match catch_panic(turns.turn()).await {
            Ok(ended) => return ended,
            Err(panic) => after_panic(what, &panic).await,
        }
    }
}

/// The heartbeat of a loop's runs.
async fn beat(store: &dyn Store, runs: &Runs) {
    loop {
        let Err(panic) = catch_panic(heartbeat(store, runs)).await;
        after_panic("heartbeat", &panic).await;
    }
}

/// The views of the last hour, until they are told that it is over.
async fn flush(store: &dyn Store, views: &Views) {
    let flushing = async {
        while let Err(panic) = catch_panic(views.keep_flushed(store)).await {
            after_panic("views", &panic).await;
        }
    };
    tokio::select! {
        () = flushing => {}
        () = views.out_of_time() => {}
    }
}

async fn after_panic(what: &str, panic: &str) {
    tracing::error!(target: "punctual", what, panic, "panic in the worker, it goes on");
    tokio::time::sleep(AFTER_PANIC).await;
}
