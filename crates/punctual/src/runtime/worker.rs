//! The worker: reserves jobs, runs their handlers and settles them.
//!
//! A builder collects the settings. [`Worker::run`] starts the loop (`run_loop.rs`) and the heartbeat on a thread with
//! its own runtime. Handlers run on the caller's runtime, so a handler that blocks its thread or panics cannot stop
//! the loop or the heartbeat. Both are supervised: a panic in them is logged, and they go on. A second loop with its
//! own heartbeat distributes publications (`publication.rs`). Settled runs are counted for recent activity
//! (`stats.rs`). A worker knows its store only as `dyn Store`.

pub(crate) mod config;
pub(crate) mod dead_hook;
mod handlers;
mod health;
mod leases;
pub(crate) mod precise_timer;
mod publication;
pub(crate) mod queues;
mod registration;
pub(crate) mod report;
pub(crate) mod run;
mod run_loop;
mod shutdown;
mod signals;
mod starved;
mod stats;
mod supervisor;
mod suspects;
#[cfg(feature = "cron")]
pub(crate) mod tick;
mod trouble;
mod upkeep;

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
    time::Duration,
};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

pub use crate::runtime::worker::handlers::UnknownKinds;
pub use health::{Health, HealthReport, Reporting};
pub use report::{Lateness, LiveReport, WorkReport};
pub use shutdown::Shutdown;

use self::{
    config::{Config, GRACE_MAX, Setup},
    dead_hook::{DeadHook, on_dead},
    queues::{Queues, check_slots},
    supervisor::{Work, supervise},
};
#[cfg(feature = "cron")]
use crate::core::{
    cron::Cron,
    schedule::{Schedule, check_schedule},
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::{Job, JobRecord, check_lease, check_name},
        outcome::IntoOutcome,
        registration::{Forwarding, WRITE_EVERY},
    },
    runtime::{
        client::Client,
        handler::{Ctx, Handler, erase, erase_raw},
        middleware::{Layer, Middleware, layer},
    },
};

/// A builder for a worker.
///
/// Set its state first, then the handlers, then [`run`](Worker::run) it.
#[must_use = "a worker does nothing until `run` or `run_until` is awaited"]
pub struct Worker<S = ()> {
    client: Client,
    state: Arc<S>,
    queues: Vec<(String, Option<u32>)>,
    /// The kinds and queues of the job types that it handles.
    of_types: Vec<(&'static str, &'static str)>,
    queue_slots: BTreeMap<String, usize>,
    layers: Vec<Layer>,
    config: Config,
    /// The first error of the builder, reported when the worker is started.
    problem: Option<Error>,
}

impl Worker {
    /// Makes a worker for the store of `client`.
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            state: Arc::new(()),
            queues: Vec::new(),
            of_types: Vec::new(),
            queue_slots: BTreeMap::new(),
            layers: Vec::new(),
            config: Config::new(default_name()),
            problem: None,
        }
    }
}

impl<S: Send + Sync + 'static> Worker<S> {
    /// Sets the state of the handlers registered after this call.
    ///
    /// Handlers read it with [`Ctx::state`].
    pub fn state<T: Send + Sync + 'static>(self, state: T) -> Worker<T> {
        Worker {
            client: self.client,
            state: Arc::new(state),
            queues: self.queues,
            of_types: self.of_types,
            queue_slots: self.queue_slots,
            layers: self.layers,
            config: self.config,
            problem: self.problem,
        }
    }

    /// Sets the name of the worker, shown to people.
    ///
    /// Default: `host/pid`, then `host/pid/2` for the second worker of a process.
    /// A cancel notifies up to 16 workers of this name. Further ones learn of it with their next heartbeat.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Adds a queue to reserve from, after the queues named before.
    ///
    /// A later queue gets only the slots that earlier queues left free. Default: the queues of the types that
    /// [`handle`](Worker::handle) names, with equal shares; `default` with [`handle_raw`](Worker::handle_raw).
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push((queue.into(), None));
        self
    }

    /// Adds queues to reserve from by weight.
    ///
    /// A queue that always has a due job gets at least its weight of any Σweights consecutive reservations.
    pub fn weighted<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = (Q, u32)>) -> Self {
        self.queues.extend(queues.into_iter().map(|(queue, weight)| (queue.into(), Some(weight))));
        self
    }

    /// Sets how many jobs run at once, at most 10,000 (default: 50).
    #[doc(alias = "concurrency")]
    #[doc(alias = "threads")]
    pub fn slots(mut self, slots: usize) -> Self {
        self.config.slots = slots;
        self
    }

    /// Sets how many jobs of one queue run at once in this worker.
    ///
    /// By default as many as it has [`slots`](Worker::slots).
    /// Other workers count for themselves.
    pub fn queue_slots(mut self, queue: impl Into<String>, slots: usize) -> Self {
        self.queue_slots.insert(queue.into(), slots);
        self
    }

    /// Sets the lease of jobs that have none of their own, 1 s to 24 h.
    ///
    /// Default: the queue's lease, else 15 s.
    /// It is extended after each third of its length while the handler runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = Some(lease);
        self
    }

    /// Sets how long a run can go on after a cancel or a lost lease (default: 30 s).
    ///
    /// The run's token fires at once. After this time a run that ignores it is dropped at its next await.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.config.cancel_grace = grace;
        self
    }

    /// Sets how long a run can go on after its timeout (default: 0 s).
    ///
    /// With a grace period, the timeout fires the run's token with [`Stop::TimedOut`](crate::worker::Stop::TimedOut), and the
    /// lease is extended until the run ends. What the run returns is its outcome. After the grace period, the run is
    /// dropped at its next await. Use it for handlers that must end something elsewhere before the next attempt
    /// starts.
    pub fn timeout_grace(mut self, grace: Duration) -> Self {
        self.config.timeout_grace = grace;
        self
    }

    /// Sets the longest pause that a run can request; longer ones are cut.
    ///
    /// Runs request it with [`Outcome::RetryAfter`](crate::Outcome::RetryAfter).
    /// By default there is no such bound. The store pauses a queue or group for 24 h at most. Use it for handlers
    /// that pass on a pause requested by another system.
    pub fn retry_after_max(mut self, pause: Duration) -> Self {
        self.config.retry_after_max = pause;
        self
    }

    /// Sets what happens to jobs without a handler (default: [`UnknownKinds::Hold`]).
    #[doc(alias = "unhandled")]
    pub fn unknown_kinds(mut self, unknown: UnknownKinds) -> Self {
        self.config.handlers.set_unknown(unknown);
        self
    }

    /// Runs `middleware` around every handler. The first one added is the outermost.
    #[doc(alias = "middleware")]
    #[doc(alias = "layer")]
    pub fn with(mut self, middleware: impl Middleware) -> Self {
        self.layers.push(layer(middleware));
        self
    }

    /// Calls `tell` for each job that becomes dead under this worker, with the reason.
    ///
    /// This is best effort: a worker that is killed makes no call. To miss no dead job, list them.
    #[doc(alias = "dead_letter")]
    pub fn on_dead<F, Fut>(mut self, tell: F) -> Self
    where
        F: Fn(JobRecord, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.config.on_dead = Some(on_dead(tell));
        self
    }

    /// Handles the jobs of one type.
    ///
    /// The start of the worker fails if a kind has two handlers.
    pub fn handle<J: Job, H: Handler<J, S>>(mut self, handler: H) -> Self {
        self.of_types.push((J::KIND, J::QUEUE));
        let added = self.config.handlers.add(J::KIND, erase(handler, Arc::clone(&self.state)));
        self.problem = self.problem.or(added.err());
        self
    }

    /// Handles the jobs of every kind without a handler of its own.
    ///
    /// They are passed as records.
    pub fn handle_raw<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(JobRecord, Ctx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        let added = self.config.handlers.add_raw(erase_raw(handle, Arc::clone(&self.state)));
        self.problem = self.problem.or(added.err());
        self
    }

    /// Sets whether the worker also distributes publications (default: yes).
    ///
    /// See [topics](crate::topic::TopicHandle).
    /// It does so whatever queues it serves, in addition to its jobs and without using their slots. One such worker
    /// per store is enough.
    pub fn serve_topics(mut self, serve: bool) -> Self {
        self.config.serves_topics = serve;
        self
    }

    /// Sets whether the worker registers itself in the store (default: yes).
    ///
    /// A registered worker is listed by [`Client::workers`], and can be ordered to stop. It writes a small document at
    /// its start and every 15 s. Turn it off where an idle worker must send or write nothing at all.
    pub fn register(mut self, register: bool) -> Self {
        self.config.registers = register.then_some(WRITE_EVERY);
        self
    }

    /// Sets how often it registers itself, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn register_every(mut self, every: Duration) -> Self {
        self.config.registers = Some(every);
        self
    }

    /// Registers the worker as a forwarder. `report` returns what it did so far, and is called every 15 s.
    pub fn forwarding(mut self, report: impl Fn() -> Forwarding + Send + Sync + 'static) -> Self {
        self.config.forwarding = Some(Arc::new(report));
        self
    }

    /// Sets whether the first run of a job continues the trace of its producer (default: no).
    ///
    /// By default each run is the root of a new trace, with a link to the span that enqueued its job, because a job can
    /// wait for days. With `true`, the span of the first run is a child of that span. Runs after a failure or a snooze
    /// are roots with a link in both cases.
    #[cfg(feature = "otel")]
    #[doc(alias = "traceparent")]
    #[doc(alias = "opentelemetry")]
    pub fn continue_trace(mut self, continues: bool) -> Self {
        self.config.continues_traces = continues;
        self
    }

    /// Sets a schedule when the worker starts, as [`ScheduleHandle::set`](crate::schedule::ScheduleHandle::set) does.
    ///
    /// The schedule is stored and outlives this worker. Any number of workers can set it. It is set while the first
    /// jobs already run: await [`LiveReport::started`] before another task reads or fires it.
    #[doc(alias = "periodic")]
    #[doc(alias = "recurring")]
    #[cfg(feature = "cron")]
    #[expect(clippy::needless_pass_by_value, reason = "a job is handed over; calls read better without `&`")]
    pub fn cron<J: Job>(mut self, name: impl Into<String>, cron: Cron, job: J) -> Self {
        let name = name.into();
        let schedule = check_schedule(&name).and_then(|()| Schedule::of(&self.client, cron, &job));
        match schedule {
            Ok(schedule) => self.config.schedules.push((name, schedule)),
            Err(error) => self.problem = self.problem.or(Some(error)),
        }
        self
    }

    /// Returns live counts of the worker's activity.
    ///
    /// Call it before the worker is started.
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
        self.config.live.clone()
    }

    /// Sets how long handlers can take to end after shutdown began (default: 30 s).
    ///
    /// Runs that have not ended by then are stopped and released, which counts no attempt.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// Rewrites this file every 5 s while the loop is alive.
    pub fn health_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.health = self.own_health().file(file);
        self.config.shares_health = false;
        self
    }

    /// Answers HTTP requests on this address: 200 while the loop is alive, else 503.
    pub fn health_addr(mut self, addr: SocketAddr) -> Self {
        self.config.health = self.own_health().addr(addr);
        self.config.shares_health = false;
        self
    }

    /// Reports this worker through a shared [`Health`].
    ///
    /// It must have been started. The worker then needs no file or port of its own.
    pub fn health(mut self, shared: &Health) -> Self {
        self.config.health = shared.clone();
        self.config.shares_health = true;
        self
    }

    /// Returns the health that the worker reports by itself.
    fn own_health(&mut self) -> Health {
        let health = std::mem::take(&mut self.config.health);
        if self.config.shares_health { Health::default() } else { health }
    }

    /// Works until SIGINT or SIGTERM (elsewhere Ctrl-C), then shuts down gracefully.
    ///
    /// Handlers can end within the grace period. A second signal ends them at once.
    ///
    /// The second signal aborts the handlers that still run and releases their jobs, which counts no attempt. A
    /// handler that blocks its thread cannot be aborted; its job is released after 1 s. If the store is unavailable,
    /// the worker ends after 6 s, and the jobs run again when their leases expire.
    ///
    /// After the last such worker has ended, these signals end the process again, with exit code 130 or 143. The
    /// exception is a signal that the process caught or ignored before the first worker ran. Only Linux shows whether
    /// it did; on other systems the signals then do nothing. A program that handles signals itself calls
    /// [`Worker::run_until`], which installs no handler.
    ///
    /// If the future is dropped, the worker ends as after a second signal.
    ///
    /// # Errors
    /// An invalid configuration, for example two handlers for one kind or a wrong queue name; a store that is closed;
    /// a store that is finally unavailable. A store that is unavailable for a while is waited for.
    #[doc(alias = "start")]
    #[doc(alias = "serve")]
    pub async fn run(self) -> Result<WorkReport> {
        let shutdown = Shutdown::default();
        let _listening = signals::listen(&shutdown).await?;
        self.run_until(shutdown).await
    }

    /// Works until shutdown is requested, by a [`CancellationToken`](crate::CancellationToken) or a [`Shutdown`].
    ///
    /// A [`Shutdown`] can also skip the grace period.
    ///
    /// If the future is dropped, the worker ends at once, in the background.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn run_until(self, shutdown: impl Into<Shutdown>) -> Result<WorkReport> {
        // Wakes callers that wait for the start, also if the worker has already ended.
        let _ended =
            [self.config.live.start(), self.config.live.stop()].map(|wakes| wakes.clone().drop_guard());
        let mut setup = self.build()?;
        let Shutdown { graceful, now } = shutdown.into();
        // An order stops this worker only, and the caller's token can be that of several.
        let shutdown = Shutdown { graceful: graceful.child_token(), now: now.child_token() };
        // Dropped with this future, and after the end of the loop. Neither health nor loop may outlive it.
        let ends = shutdown.now.clone().drop_guard();
        let health = std::mem::take(&mut setup.config.health);
        let member = health.join(shutdown.graceful.clone());
        let liveness = Arc::clone(member.liveness());
        if !setup.config.shares_health {
            health.report_until(shutdown.now.clone()).await?;
        }

        let (queues, kinds) = (setup.queues.names().join(", "), setup.config.handlers.kinds().join(", "));
        tracing::info!(target: "punctual", worker = setup.config.name, queues, kinds, slots = setup.config.slots,
            store = %setup.client.store().url(), "started");

        let dead_hook = DeadHook {
            on_dead: setup.config.on_dead.clone(),
            client: setup.client.clone(),
            runtime: Handle::current(),
            tracker: TaskTracker::new(),
        };
        let (tracker, grace) = (dead_hook.tracker.clone(), setup.config.grace);
        let (runtime, shutdown_of_all) = (Handle::current(), shutdown.clone());
        let report = supervise(Work { setup, liveness, runtime, dead_hook, shutdown: shutdown_of_all }).await;
        tracker.close();
        tokio::select! {
            biased;
            () = tracker.wait() => {}
            () = shutdown.now.cancelled() => {}
            () = tokio::time::sleep(grace) => {}
        }
        drop(ends);
        report
    }

    /// Returns the queues of the handlers' job types, with equal shares.
    fn queues_of_types(&self) -> Vec<(String, Option<u32>)> {
        let mut names: Vec<&str> = Vec::new();
        let raw = self.config.handlers.handles_all().then_some("default");
        for name in self.of_types.iter().map(|(_, queue)| *queue).chain(raw) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let weight = (1 < names.len()).then_some(1);
        names.into_iter().map(|name| (name.to_owned(), weight)).collect()
    }

    /// Checks the configuration.
    pub(crate) fn build(mut self) -> Result<Setup> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        check_name("worker name", &self.config.name)?;
        check_slots("slots", self.config.slots)?;
        self.config.lease.map_or(Ok(()), |lease| check_lease("lease_ms", lease))?;
        if self.config.handlers.is_empty() {
            return Err(Error::invalid("a worker needs a handler").with_hint("add `.handle(…)`"));
        }
        self.config.handlers.wrap(&self.layers, self.config.timeout_grace.min(GRACE_MAX));
        let queues = if self.queues.is_empty() { self.queues_of_types() } else { self.queues };
        for (kind, queue) in self.of_types {
            if !queues.iter().any(|(name, _)| name == queue) {
                tracing::warn!(target: "punctual", worker = self.config.name, kind, queue,
                    "this worker handles a kind, and does not serve the queue that its type names");
            }
        }
        self.config.cut_graces();
        let queues = queues_of(queues)?.with_slots(&self.queue_slots)?;
        Ok(Setup { client: self.client, queues, config: self.config })
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.config.name)
            .field("queues", &self.queues)
            .field("slots", &self.config.slots)
            .field("crew", &self.config.handlers)
            .finish_non_exhaustive()
    }
}

/// Makes queues that are all strict or all weighted.
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

/// Returns `host/pid`, with a number from the second worker of the process on.
fn default_name() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}/{}", host(), std::process::id());
    match MADE.fetch_add(1, Ordering::Relaxed) {
        0 => name,
        before => format!("{name}/{}", before + 1),
    }
}

/// Returns the name of the machine, at most 64 characters.
fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::env::var("COMPUTERNAME"))
        .unwrap_or_default();
    let host = match host.trim() {
        "" => "worker",
        host => host,
    };
    host.chars().take(64).collect()
}
