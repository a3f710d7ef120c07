//! A worker without a loop of its own: it runs what is due in the task of a test, and ends when nothing is due.
//!
//! Jobs run side by side, as in a worker: as many as it has slots, its queues have slots of their own, and the limits of the store
//! allow. Nothing is extended meanwhile, since the clock of a test stands still.

use std::{collections::HashMap, sync::Arc};

use tokio::task::JoinSet;

use crate::{
    core::{error::Result, id::JobId, job::State, lifecycle::is_last_chance, limits::BATCH_MAX},
    runtime::{
        handler::Call,
        worker::{WorkReport, config::Setup, dead_hook, run},
    },
    store::{Call as StoreCall, Heartbeat, Lease, Reserve, Reserved, Settled, Settlement, Verdict},
};

/// What runs, and what is counted of it.
pub(super) struct Drain<'a> {
    setup: &'a mut Setup,
    call: StoreCall,
    runs: JoinSet<Ended>,
    /// How many jobs of each queue run.
    running: HashMap<String, usize>,
    /// A job that one more crash would end came alone, and nothing is started beside it (S9).
    is_alone: bool,
    pub(super) report: WorkReport,
}

/// A run that ended.
struct Ended {
    lease: Lease,
    run_of: Call,
    verdict: Verdict,
}

impl<'a> Drain<'a> {
    pub(super) fn new(setup: &'a mut Setup) -> Self {
        Self {
            setup,
            call: StoreCall { instance: fastrand::u64(..), number: 0 },
            runs: JoinSet::new(),
            running: HashMap::new(),
            is_alone: false,
            report: WorkReport::default(),
        }
    }

    /// Starts what is due in the free slots, and waits for the end of a run if there is one; `false`: nothing is due, nothing runs.
    pub(super) async fn step(&mut self) -> Result<bool> {
        // A reserve may give fewer jobs than there are free slots, and say that there are more: they may wait for each other.
        let more = loop {
            let (given, more) = self.reserve().await?;
            if given == 0 || !more {
                break more;
            }
        };
        match self.runs.join_next().await {
            None => Ok(more),
            // Runs catch their panics, and nobody stops them: only the end of the runtime does.
            Some(Err(_)) => Ok(false),
            Some(Ok(ended)) => {
                self.is_alone = false;
                self.settle(ended).await?;
                Ok(true)
            }
        }
    }

    /// Reserves for the free slots; how many jobs there were, and whether there may be more.
    async fn reserve(&mut self) -> Result<(usize, bool)> {
        let free = (self.setup.config.slots - self.runs.len()).min(BATCH_MAX);
        let running = &self.running;
        let (n, wants) = self.setup.queues.wants(free, |queue| running.get(queue).copied().unwrap_or(0));
        if n == 0 || self.is_alone {
            return Ok((0, false));
        }
        self.call.number += 1;
        let reserve = Reserve {
            call: self.call,
            worker: self.setup.config.name.clone(),
            wants,
            n,
            lease: self.setup.config.lease,
            company: !self.runs.is_empty(),
        };
        let batch = self.setup.client.store().reserve(&reserve).await?;
        for taken in batch.taken_back {
            self.report.taken_back += 1;
            self.bury(taken.lease.job, taken.state).await;
        }
        let given = batch.jobs.len();
        self.is_alone =
            !reserve.company && batch.jobs.iter().any(|reserved| is_last_chance(reserved.job.crashes));
        for reserved in self.setup.queues.reserved(batch.jobs) {
            let handler = match self.setup.config.handlers.handler(&reserved.job.kind) {
                None => Err(self.setup.config.handlers.unknown(&reserved.job)),
                Some(handler) => {
                    self.report.lateness.started(&reserved.job, batch.now);
                    Ok(Arc::clone(handler))
                }
            };
            let Reserved { lease, job, .. } = reserved;
            *self.running.entry(job.queue.clone()).or_default() += 1;
            let client = self.setup.client.clone();
            let run_of =
                Call::new(job, lease.fence, client, Arc::default(), self.setup.config.retry_after_max);
            let graces = run::Graces {
                cancel: self.setup.config.cancel_grace,
                timeout: self.setup.config.timeout_grace,
            };
            self.runs.spawn(async move {
                let verdict = run::run(run_of.clone(), handler, graces).await;
                Ended { lease, run_of, verdict }
            });
        }
        Ok((given, batch.more))
    }

    async fn settle(&mut self, Ended { lease, run_of, verdict }: Ended) -> Result<()> {
        if let Some(running) = self.running.get_mut(run_of.queue()) {
            *running -= 1;
        }
        let store = Arc::clone(self.setup.client.store());
        let said = run_of.settled();
        if let Some(notes) = run_of.take_news().filter(|_| said.is_none()) {
            store.extend(&[Heartbeat { notes: Some(notes), ..lease.into() }]).await?;
        }
        let settlement = [Settlement { lease, verdict }];
        let (settled, _) = store.settle(&settlement, None).await?;
        match settled[..] {
            [Settled::Settled(state, _)] => {
                self.report.settled(&settlement[0].verdict, state);
                self.bury(lease.job, state).await;
            }
            _ => match said {
                // Its handler settled it in a transaction of its own.
                Some(said) => {
                    let job = store.get(lease.job).await?;
                    self.report.settled(&said, job.map_or(State::Done, |job| job.state));
                }
                None => self.report.lost += 1,
            },
        }
        Ok(())
    }

    /// Tells of a job that ended dead.
    async fn bury(&self, id: JobId, state: State) {
        if let (State::Dead, Some(on_dead)) = (state, &self.setup.config.on_dead) {
            dead_hook::tell(&self.setup.client, on_dead, id, None).await;
        }
    }
}
