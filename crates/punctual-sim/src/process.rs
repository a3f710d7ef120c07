//! A process of the fleet: its way to the store, its history, and its end. A crash takes everything from it at once: its
//! calls never return, what it does is not seen any more, and its tasks are dropped.

use std::{sync::Arc, time::Duration};

use punctual::{
    CancellationToken, Client, Result, Worker,
    store::Store,
    worker::{Shutdown, WorkReport},
};
use punctual_check::{Recorder, RecordingStore};
use tokio::task::{JoinHandle, spawn_local};

use crate::{
    fleet::{QUEUE, SECOND_QUEUE, Scene},
    handler::{Hand, handle},
    network::Network,
    schedule,
};

/// Whether a process is alive. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life(CancellationToken);

impl Life {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_cancelled()
    }

    pub(crate) async fn over(&self) {
        self.0.cancelled().await;
    }

    fn end(&self) {
        self.0.cancel();
    }
}

/// A process.
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) life: Life,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) client: Client,
}

impl Process {
    /// Begins a process that runs up to `slots` jobs at once.
    pub(crate) fn begin(scene: &Arc<Scene>, name: String, slots: u64) -> Self {
        let life = Life::default();
        // A plan has no more of them than a worker hands out at once.
        let publications = if 0 < slots { scene.plan.publications.len() as u64 } else { 0 };
        let recorder = Arc::new(recorder(scene, name.clone(), slots, publications, life.clone()));
        let salt = name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(0x0100_0193) ^ u64::from(byte));
        let network: Arc<dyn Store> = Arc::new(Network::new(scene, &life, &name, salt));
        let client = Client::new(Arc::new(RecordingStore::new(network, Arc::clone(&recorder))));
        Self { name, life, recorder, client }
    }

    /// Takes everything from it.
    pub(crate) fn crash(self) {
        self.life.end();
    }
}

/// Makes a recorder whose events are in the log of the run, until its process is dead.
pub(crate) fn recorder(
    scene: &Arc<Scene>,
    name: String,
    slots: u64,
    publications: u64,
    life: Life,
) -> Recorder {
    let (number, scene) = (scene.log.process(), Arc::clone(scene));
    Recorder::simulated(name, slots, publications, move |n, what| {
        if !life.is_over() {
            scene.log.add(number, n, what);
        }
    })
}

/// A worker process that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    life: Life,
    shutdown: Shutdown,
    task: JoinHandle<Result<WorkReport>>,
}

impl Running {
    /// Starts a worker of the plan for the `time`-th time.
    pub(crate) fn start(scene: &Arc<Scene>, worker: usize, time: u32) -> Self {
        let plan = scene.plan.workers[worker];
        let has_topic = !scene.plan.publications.is_empty();
        let process = Process::begin(scene, format!("w{worker}.{time}"), plan.slots as u64);
        let Process { name, life, recorder, client } = process;
        let hand = Hand { scene: Arc::clone(scene), life: life.clone(), recorder, process: name.clone() };
        let shutdown = Shutdown::default();
        let worker = Worker::new(&client).state(hand).name(&name).queue(QUEUE);
        let worker = if has_topic { worker.queue(SECOND_QUEUE) } else { worker };
        let worker = worker
            .slots(plan.slots)
            .lease(Duration::from_millis(plan.lease_ms))
            .cancel_grace(Duration::from_millis(plan.cancel_grace_ms))
            .shutdown_grace(Duration::from_millis(plan.shutdown_grace_ms))
            .serve_topics(has_topic)
            .handle_raw(handle);
        let worker = schedule::set_by(worker, scene.plan.schedule);
        let task = spawn_local(worker.run_until(shutdown.clone()));
        Self { name, life, shutdown, task }
    }

    /// Takes everything from it.
    pub(crate) fn crash(self) {
        self.life.end();
        self.task.abort();
    }

    /// Asks it to end.
    pub(crate) fn stop(&self) {
        self.shutdown.graceful.cancel();
    }

    /// Waits for its end, within a bound in time. Says what is wrong if it does not come. An error of its worker is right if
    /// harm `was` done meanwhile.
    pub(crate) async fn ended(self, at_most: Duration, was_harmed: bool) -> std::result::Result<(), String> {
        match tokio::time::timeout(at_most, self.task).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(_))) if was_harmed => Ok(()),
            Ok(Ok(Err(error))) => Err(format!("{} ended with an error: {error}", self.name)),
            Ok(Err(error)) => Err(format!("{} ended without a report: {error}", self.name)),
            Err(_) => Err(format!("{} did not end within {at_most:?} of its shutdown", self.name)),
        }
    }
}
