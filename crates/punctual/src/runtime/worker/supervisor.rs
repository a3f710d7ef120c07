//! The thread of a worker: its loops, their heartbeats and its background work. Each is started again after a panic. In a
//! simulation, it is a task of the caller's thread.

use std::{convert::Infallible, sync::Arc, thread, time::Duration};

use tokio::{runtime::Handle, sync::oneshot, task::spawn_local};
use tokio_util::task::AbortOnDropHandle;

#[cfg(feature = "cron")]
use super::tick;
use super::{
    config::Setup,
    dead_hook::DeadHook,
    health::Liveness,
    leases::{Runs, cancels, heartbeat, notes},
    precise_timer::PreciseTimer,
    registration::Registration,
    report::WorkReport,
    run::catch_panic,
    run_loop::RunLoop,
    shutdown::Shutdown,
    stats::Stats,
    upkeep,
};
use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{Store, WORKER_NOTIFICATION, simulation},
};

/// How long the supervisor waits after a panic.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// What a worker is started with.
pub(super) struct Work {
    pub(super) setup: Setup,
    pub(super) liveness: Arc<Liveness>,
    /// The handlers' runtime.
    pub(super) runtime: Handle,
    pub(super) dead_hook: DeadHook,
    pub(super) shutdown: Shutdown,
}

/// Runs a worker until its shutdown: on a thread with its own runtime, or as a task in a simulation.
pub(super) async fn supervise(work: Work) -> Result<WorkReport> {
    if simulation::is_on() {
        let task = AbortOnDropHandle::new(spawn_local(run_all(work)));
        return task.await.unwrap_or_else(|e| {
            Err(Error::new(ErrorKind::Closed, "the worker's task ended without a report").with_source(e))
        });
    }
    let (answer, answered) = oneshot::channel();
    let spawned = thread::Builder::new().name("punctual-worker".to_owned()).spawn(move || {
        // The receiver may be gone.
        let _ = answer.send(run_thread(work));
    });
    spawned.map_err(|e| {
        Error::new(ErrorKind::Unavailable, "could not start the worker's thread").with_source(e)
    })?;
    answered
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the worker's thread ended without a report")))
}

/// The thread of a worker.
fn run_thread(work: Work) -> Result<WorkReport> {
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| {
        Error::new(ErrorKind::Unavailable, "could not start the worker's runtime").with_source(e)
    })?;
    own.block_on(run_all(work))
}

/// Runs a worker until its shutdown: the loop of jobs, the loop of publications if there is one, and background work.
async fn run_all(Work { setup, liveness, runtime, dead_hook, shutdown }: Work) -> Result<WorkReport> {
    let (setup, liveness, shutdown) = (&setup, &*liveness, &shutdown);
    let runs = Runs::counting(setup.queues.counted(), setup.config.cancel_grace);
    // Only the first loop's health is reported: the question is whether jobs run.
    let publications =
        setup.of_publications().map(|setup| (setup, runs.beside(), Liveness::new(shutdown.graceful.clone())));
    let mut publishing = match &publications {
        None => None,
        Some((setup, runs, liveness)) => {
            let (runtime, dead_hook, shutdown) = (runtime.clone(), dead_hook.clone(), shutdown.clone());
            Some(RunLoop::new(setup, runs, liveness, precise_timer()?, runtime, dead_hook, shutdown))
        }
    };
    // The jobs of publications are counted where they run.
    let stats = Stats::default();
    let registration = Registration::new(setup, &runs, &shutdown.graceful);
    let mut jobs =
        RunLoop::new(setup, &runs, liveness, precise_timer()?, runtime, dead_hook, shutdown.clone())
            .counted_in(&stats);
    let beside = publications.as_ref().map(|(_, runs, _)| runs);
    let all_runs: Vec<&Runs> = [Some(&runs), beside].into_iter().flatten().collect();
    let store = &**setup.client.store();
    let working = async {
        // What takes little comes first, so that a loop that always has work holds up nothing else.
        let ended = tokio::select! {
            biased;
            never = beat(store, &runs) => match never {},
            never = beat_beside(store, beside) => match never {},
            never = hear_cancels(store, &setup.config.name, &all_runs) => match never {},
            never = keep_schedules(setup, &registration) => match never {},
            never = restarted("upkeep", || upkeep::keep_swept(store)) => match never {},
            () = shutdown.out_of_time(setup.config.grace) => {
                Err(Error::new(ErrorKind::Unavailable, "could not settle the last runs before the end")
                    .with_hint("their leases expire, and the jobs run again"))
            }
            ended = both_loops(&mut jobs, publishing.as_mut()) => ended,
        };
        // Runs that are left have no heartbeat any more.
        for runs in &all_runs {
            runs.abort_all();
        }
        stats.end();
        registration.end();
        ended
    };
    let (ended, (), ()) = tokio::join!(working, flush_stats(store, &stats), register(store, &registration));
    ended.map(|()| {
        let mut report = jobs.into_report();
        report.publications = publishing.map_or(0, |publishing| publishing.into_report().done);
        report
    })
}

fn precise_timer() -> Result<PreciseTimer> {
    PreciseTimer::new()
        .map_err(|e| Error::new(ErrorKind::Unavailable, "could not start the worker's timer").with_source(e))
}

/// Runs both loops, until both have ended or one has failed.
async fn both_loops(jobs: &mut RunLoop<'_>, publishing: Option<&mut RunLoop<'_>>) -> Result<()> {
    match publishing {
        None => run_loop(jobs, "loop").await,
        Some(publishing) => {
            tokio::try_join!(run_loop(jobs, "loop"), run_loop(publishing, "loop of publications")).map(drop)
        }
    }
}

/// Runs one loop until its end. After a panic it continues.
async fn run_loop(runs: &mut RunLoop<'_>, what: &str) -> Result<()> {
    loop {
        match catch_panic(runs.iteration()).await {
            Ok(ended) => return ended,
            Err(panic) => after_panic(what, &panic).await,
        }
    }
}

/// Runs the heartbeat of a loop's runs, and sends their notes.
async fn beat(store: &dyn Store, runs: &Runs) -> Infallible {
    tokio::select! {
        biased;
        never = restarted("heartbeat", || heartbeat(store, runs)) => never,
        never = restarted("notes", || notes(store, runs)) => never,
    }
}

/// Runs the heartbeat of the second loop's runs, if there is one.
async fn beat_beside(store: &dyn Store, runs: Option<&Runs>) -> Infallible {
    match runs {
        Some(runs) => beat(store, runs).await,
        None => std::future::pending().await,
    }
}

/// Waits for cancels of runs of this worker, which are notified by its name. Never returns.
async fn hear_cancels(store: &dyn Store, name: &str, runs: &[&Runs]) -> Infallible {
    restarted("cancels", || cancels(store, [WORKER_NOTIFICATION, name].concat(), runs)).await
}

/// Keeps the schedules of the worker. Never returns.
#[cfg(feature = "cron")]
async fn keep_schedules(Setup { client, config, .. }: &Setup, registration: &Registration<'_>) -> Infallible {
    let moved = async || registration.moved().await;
    restarted("schedules", || tick::keep_enqueued(client, &config.schedules, config.live.start(), moved))
        .await
}

#[cfg(not(feature = "cron"))]
async fn keep_schedules(setup: &Setup, _: &Registration<'_>) -> Infallible {
    setup.config.live.start().cancel();
    std::future::pending().await
}

/// Sends the statistics of recent activity until the worker ends.
async fn flush_stats(store: &dyn Store, stats: &Stats) {
    let flushing = async {
        while let Err(panic) = catch_panic(stats.keep_flushed(store)).await {
            after_panic("stats", &panic).await;
        }
    };
    tokio::select! {
        biased;
        () = flushing => {}
        () = stats.out_of_time() => {}
    }
}

/// Keeps the worker registered until it ends.
async fn register(store: &dyn Store, registration: &Registration<'_>) {
    let keeping = async {
        while let Err(panic) = catch_panic(registration.keep(store)).await {
            after_panic("registration", &panic).await;
        }
    };
    tokio::select! {
        biased;
        () = keeping => {}
        () = registration.out_of_time() => {}
    }
}

/// Runs a task for ever, and starts it again after a panic.
async fn restarted<F: Future<Output = Infallible>>(what: &str, begin: impl Fn() -> F) -> Infallible {
    loop {
        let Err(panic) = catch_panic(begin()).await;
        after_panic(what, &panic).await;
    }
}

async fn after_panic(what: &str, panic: &str) {
    tracing::error!(target: "punctual", what, panic, "panic in the worker, it goes on");
    tokio::time::sleep(AFTER_PANIC).await;
}
