//! A worker without a loop: runs what is due in the task of a test, and ends when nothing is due.
//!
//! Jobs run concurrently as in a worker: up to its slots, the slots of its queues, and the limits of the store.
//! Leases are not extended, because the clock of a test stands still.

use std::{collections::HashMap, sync::Arc};

use tokio::task::JoinSet;

use crate::{
    core::{error::Result, id::JobId, job::State, lifecycle::is_last_chance, limits::BATCH_MAX},
    runtime::{
        handler::Call,
        worker::{Lateness, WorkReport, config::Setup, dead_hook, run},
    },
    store::{CallId, Heartbeat, Lease, Reserve, Reserved, Settled, Settlement, Verdict},
};

/// The runs in progress, and the counts.
pub(super) struct Drain<'a> {
    setup: &'a mut Setup,
    call: CallId,
    runs: JoinSet<Ended>,
    /// How many jobs of each queue run.
    running: HashMap<String, usize>,
    /// Whether a suspect was reserved alone, so that nothing is started beside it (S9).
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
            call: CallId { instance: fastrand::u64(..), number: 0 },
            runs: JoinSet::new(),
            running: HashMap::new(),
            is_alone: false,
            report: WorkReport::default(),
        }
    }

    /// Starts what is due in the free slots, then waits for a run to end; returns `false` if nothing is due and
    /// nothing runs.
    pub(super) async fn step(&mut self) -> Result<bool> {
        // A reserve can return fewer jobs than there are free slots, with `more`, because jobs may wait for each
        // other.
        let more = loop {
            let (given, more) = self.reserve().await?;
            if given == 0 || !more {
                break more;
            }
        };
        match self.runs.join_next().await {
            None => Ok(more),
            // Runs catch their panics and are never aborted. Only the end of the runtime ends them.
            Some(Err(_)) => Ok(false),
            Some(Ok(ended)) => {
                self.is_alone = false;
                self.settle(ended).await?;
                Ok(true)
            }
        }
    }

    /// Reserves for the free slots; returns how many jobs were reserved, and whether there may be more.
    async fn reserve(&mut self) -> Result<(usize, bool)> {
        let free = (self.setup.config.slots - self.runs.len()).min(BATCH_MAX);
        let running = &self.running;
        let (n, queues) = self.setup.queues.requests(free, |queue| running.get(queue).copied().unwrap_or(0));
        if n == 0 || self.is_alone {
            return Ok((0, false));
        }
        self.call.number += 1;
        let reserve = Reserve {
            call: self.call,
            worker: self.setup.config.name.clone(),
            queues,
            n,
            lease: self.setup.config.lease,
            company: !self.runs.is_empty(),
        };
        let batch = self.setup.client.store().reserve(&reserve).await?;
        for taken in batch.reclaimed {
            self.report.reclaimed += 1;
            self.bury(taken.lease.job, taken.state).await;
        }
        let given = batch.jobs.len();
        self.is_alone =
            !reserve.company && batch.jobs.iter().any(|reserved| is_last_chance(reserved.job.expired_leases));
        for reserved in self.setup.queues.reserved(batch.jobs) {
            let handler = match self.setup.config.handlers.handler(&reserved.job.kind) {
                None => Err(self.setup.config.handlers.unknown(&reserved.job)),
                Some(handler) => {
                    self.report.lateness.add(Lateness::of(&reserved.job, batch.now));
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
                // Its handler settled it in its own transaction.
                Some(said) => {
                    let job = store.get(lease.job).await?;
                    self.report.settled(&said, job.map_or(State::Done, |job| job.state));
                }
                None => self.report.lost += 1,
            },
        }
        Ok(())
    }

    /// Calls the hook for a job that became dead.
    async fn bury(&self, id: JobId, state: State) {
        if let (State::Dead, Some(on_dead)) = (state, &self.setup.config.on_dead) {
            dead_hook::tell(&self.setup.client, on_dead, id, None).await;
        }
    }
}
