//! What the clients of a run do: they enqueue, publish and act, at the times of the plan. One that crashes is started again, and
//! goes on with what its time has not come for.

use std::{sync::Arc, time::Duration};

use punctual::{
    Backoff, JobId, JobOptions, NewJob, OnConflict, Payload, Priority, Unique, When,
    job::{Concurrency, IdMaker},
    store::{Action, Target},
};
use punctual_check::{Recorder, TAG_DONE_OR_CRASHES, event::What};
use tokio::{
    task::{JoinHandle, JoinSet, spawn_local},
    time::{Instant, sleep_until, timeout, timeout_at},
};

use crate::{
    fleet::{KIND, QUEUE, Scene, TOPIC},
    log::START_MS,
    plan::{ActPlan, Behaviour, ConflictPlan, DeedPlan, JobPlan, Plan, PublicationPlan, ScopePlan},
    process::Process,
};

/// Starts the clients. `nemesis` records their crashes.
pub(crate) fn start(scene: &Arc<Scene>, nemesis: &Arc<Recorder>) -> Vec<JoinHandle<()>> {
    let clients = 0..scene.plan.clients.len();
    clients.map(|client| spawn_local(go_on(Arc::clone(scene), Arc::clone(nemesis), client))).collect()
}

/// What a client does next.
#[derive(Clone, Copy)]
enum Deed<'a> {
    Enqueue(&'a JobPlan),
    Publish(&'a PublicationPlan),
    Act(&'a ActPlan),
}

/// Runs a client, one process after another.
async fn go_on(scene: Arc<Scene>, nemesis: Arc<Recorder>, number: usize) {
    let begin = Instant::now();
    let at = |ms: u64| begin + Duration::from_millis(ms);
    let jobs =
        scene.plan.jobs.iter().filter(|job| job.client == number).map(|job| (job.at_ms, Deed::Enqueue(job)));
    let acts =
        scene.plan.acts.iter().filter(|act| act.client == number).map(|act| (act.at_ms, Deed::Act(act)));
    let publications = scene.plan.publications.iter().filter(|publication| publication.client == number);
    let publications = publications.map(|publication| (publication.at_ms, Deed::Publish(publication)));
    let mut deeds: Vec<(u64, Deed<'_>)> = jobs.chain(acts).chain(publications).collect();
    deeds.sort_by_key(|(at_ms, _)| *at_ms);
    let mut deeds = deeds.into_iter().peekable();
    let mut ids = IdMaker::default();
    let crashes = scene.plan.client_crashes.iter().filter(|crash| crash.client == number);
    for (time, crash) in crashes.map(Some).chain([None]).enumerate() {
        let name = if time == 0 { format!("c{number}") } else { format!("c{number}.{time}") };
        let process = Process::begin(&scene, name, 0);
        let mut calls = JoinSet::new();
        let working = async {
            while let Some((at_ms, _)) = deeds.peek() {
                sleep_until(at(*at_ms)).await;
                if let Some((at_ms, deed)) = deeds.next() {
                    begin_deed(&scene, &process, number, at_ms, deed, &mut ids, &mut calls);
                }
            }
            // A call that panicked is seen by the judge: its jobs are not where they should be.
            while calls.join_next().await.is_some() {}
        };
        match crash {
            None => working.await,
            // If it has done everything, it waits for its end.
            Some(crash) => {
                let _ = timeout_at(at(crash.at_ms), working).await;
                sleep_until(at(crash.at_ms)).await;
                let proc = process.name.clone();
                process.crash();
                drop(calls);
                nemesis.note(What::Killed { proc });
            }
        }
    }
}

/// Begins a call. What it answers is in the history.
fn begin_deed(
    scene: &Arc<Scene>,
    process: &Process,
    number: usize,
    at_ms: u64,
    deed: Deed<'_>,
    ids: &mut IdMaker,
    calls: &mut JoinSet<()>,
) {
    let client = process.client.clone();
    let mut make_id = |n| {
        let now_ms = (START_MS + at_ms).saturating_add_signed(scene.plan.clients[number]);
        let id = ids.make(now_ms, 0, fastrand::u64(..));
        scene.put_id(n, id);
        id
    };
    match deed {
        Deed::Enqueue(job) => {
            let id = make_id(job.n);
            let (new, leaves) = (new_job(&scene.plan, job, id), job.leaves_ms);
            calls.spawn_local(left_after(leaves, async move { drop(client.push(vec![new]).await) }));
        }
        Deed::Publish(publication) => {
            let id = make_id(publication.n);
            let (new, leaves) = (copy(publication, id), publication.leaves_ms);
            calls.spawn_local(left_after(leaves, async move {
                drop(client.topic(TOPIC).push(vec![new]).await);
            }));
        }
        Deed::Act(act) => {
            let Some(id) = scene.id(act.job) else { return };
            let action = action(act.deed);
            calls.spawn_local(async move {
                drop(client.store().act(&[Target::from(id)], &action).await);
            });
        }
    }
}

/// Waits for a call, and drops it after `leaves_ms`.
async fn left_after(leaves_ms: Option<u64>, call: impl Future<Output = ()>) {
    match leaves_ms {
        Some(ms) => drop(timeout(Duration::from_millis(ms), call).await),
        None => call.await,
    }
}

fn action(deed: DeedPlan) -> Action {
    match deed {
        DeedPlan::Cancel => Action::Cancel { reason: None },
        DeedPlan::RescheduleMs(ms) => Action::Reschedule(When::In(Duration::from_millis(ms))),
        DeedPlan::RunNow => Action::RunNow,
        DeedPlan::Retry => Action::Retry,
        DeedPlan::Delete => Action::Delete,
    }
}

fn new_job(plan: &Plan, job: &JobPlan, id: JobId) -> NewJob {
    let mut new = NewJob::new(id, KIND, QUEUE, Payload::json(job.n.to_string()));
    if 0 < job.delay_ms {
        new.run_at = When::In(Duration::from_millis(job.delay_ms));
    }
    new.options = JobOptions {
        max_attempts: Some(job.max_attempts),
        timeout: Some(Duration::from_millis(job.timeout_ms)),
        backoff: Some(
            Backoff::exponential(Duration::from_millis(job.backoff_ms)).max(Duration::from_secs(5)),
        ),
        priority: Some(Priority::ALL[usize::from(job.priority % 3)]),
        ..JobOptions::default()
    };
    new.group = job.group.map(|group| format!("g{group}"));
    new.concurrency = job.concurrency.map(|(key, limit)| Concurrency { key: format!("k{key}"), limit });
    new.unique = job.unique.map(|unique| {
        let key = Unique::key(format!("u{}", unique.key));
        let key = match unique.scope {
            ScopePlan::UntilDone => key.until_done(),
            ScopePlan::UntilStart => key.until_start(),
            ScopePlan::WindowMs(ms) => key.window(Duration::from_millis(ms)),
        };
        key.on_conflict(match unique.conflict {
            ConflictPlan::Keep => OnConflict::Keep,
            ConflictPlan::Replace => OnConflict::Replace,
            ConflictPlan::Reschedule => OnConflict::Reschedule,
        })
    });
    new.expires_at = job.expires_ms.map(|ms| When::In(Duration::from_millis(job.delay_ms + ms)));
    if must_be_done(plan, job) {
        new.tags.push(TAG_DONE_OR_CRASHES.to_owned());
    }
    new
}

/// What is published.
fn copy(publication: &PublicationPlan, id: JobId) -> NewJob {
    let mut new = NewJob::new(id, KIND, QUEUE, Payload::json(publication.n.to_string()));
    if 0 < publication.delay_ms {
        new.run_at = When::In(Duration::from_millis(publication.delay_ms));
    }
    new.options.max_attempts = Some(publication.max_attempts);
    new
}

/// Whether nothing but crashes in a row can keep a job from being done.
fn must_be_done(plan: &Plan, job: &JobPlan) -> bool {
    matches!(job.handler, Behaviour::Quick | Behaviour::Slow(_))
        && job.max_attempts == 20
        && job.timeout_ms == 300_000
        && job.unique.is_none()
        && job.expires_ms.is_none()
        && plan.acts.iter().all(|act| act.job != job.n)
}
