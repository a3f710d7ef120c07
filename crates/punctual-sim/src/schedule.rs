//! A schedule beside the jobs of a run. The worker that reserves a tick enqueues the next one, so that crashes and failed calls
//! can leave a tick out, or make it twice, if that is done wrong.

use std::{sync::Arc, time::Duration};

use punctual::{
    Client, Job, JobRecord, State, Timestamp, Worker,
    schedule::{Cron, Misfire},
};
use punctual_check::{Recorder, RecordingStore, TickAtRest, judge_ticks};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::{
    fleet::{LOOK_EVERY, Scene},
    handler::Hand,
    plan::{SchedulePlan, TICK},
};

const NAME: &str = "ticks";
/// Ticks that were missed and are made up for, at most.
const MISSED_MAX: u32 = 1_000;
/// How long the schedule may take after the harm until no tick is overdue: it is checked every ten minutes, a tenth may be
/// added, and this is doubled if the worker that checks has died. A tick that could not enqueue its successor may wait as long.
const MADE_UP_MAX: Duration = Duration::from_mins(40);

/// What ticks enqueue.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "job", queue = "work")]
#[serde(transparent)]
struct Tick(u32);

fn cron(plan: SchedulePlan) -> Cron {
    Cron::every(Duration::from_millis(plan.every_ms))
        .and_then(|cron| cron.on_misfire(Misfire::RunAll { at_most: MISSED_MAX }))
        .expect("the plan's interval is valid")
}

/// Has a worker set the schedule when it starts, if it is one that workers set.
pub(crate) fn set_by(worker: Worker<Hand>, plan: Option<SchedulePlan>) -> Worker<Hand> {
    match plan {
        Some(plan) if plan.by_workers => worker.cron(NAME, cron(plan), Tick(TICK)),
        _ => worker,
    }
}

/// A schedule as an operator sees it. The operator's calls go to the store directly, so that no fault meets them.
pub(crate) struct Schedule {
    plan: SchedulePlan,
    client: Client,
    /// When it was there, unless workers set it.
    begun: Option<Timestamp>,
    /// Up to this instant, each tick had ended.
    ended: Timestamp,
}

impl Schedule {
    /// Sets the schedule of the plan, if it has one.
    pub(crate) async fn begin(scene: &Scene, operator: &Arc<Recorder>) -> Option<Self> {
        let plan = scene.plan.schedule?;
        let store = RecordingStore::new(Arc::new(scene.memory.clone()), Arc::clone(operator));
        let client = Client::new(Arc::new(store));
        if !plan.by_workers {
            let set = client.schedule(NAME).set(cron(plan), Tick(TICK)).await;
            set.expect("nobody else changes the schedule");
        }
        let now = client.store().now().await.expect("the store in memory knows the time");
        Some(Self { plan, client, begun: (!plan.by_workers).then_some(now), ended: now })
    }

    /// Removes it when it has ticked and no tick is overdue, so that nothing is left to come.
    pub(crate) async fn end(&mut self, scene: &Scene) -> Result<(), String> {
        let schedule = self.client.schedule(NAME);
        let until = Instant::now() + MADE_UP_MAX;
        loop {
            self.ended = self.client.store().now().await.expect("the store in memory knows the time");
            let jobs = scene.all_jobs().await;
            let left = jobs.iter().filter(|job| !job.state.is_ended()).filter_map(TickAtRest::of);
            // Not by when they are due: one that is made up for is due when it was enqueued, and one that could not enqueue its
            // successor was put off.
            // One that workers set is late by an outage at their start.
            let has_ticked = jobs.iter().any(|job| job.state.is_ended() && TickAtRest::of(job).is_some());
            if has_ticked && left.min().is_some_and(|next| self.ended < next.at) {
                break;
            }
            if until <= Instant::now() {
                return Err(format!("the schedule has not made up for its ticks after {MADE_UP_MAX:?}"));
            }
            sleep(LOOK_EVERY).await;
        }
        schedule.remove().await.map(drop).map_err(|error| error.to_string())
    }

    /// Judges its ticks, of all jobs that the store holds.
    pub(crate) fn judge(&self, jobs: &[JobRecord]) -> Result<(), String> {
        let ticks = jobs.iter().filter(|job| job.state != State::Cancelled).filter_map(TickAtRest::of);
        judge_ticks(&cron(self.plan), self.begun, self.ended, ticks.collect())
    }
}
