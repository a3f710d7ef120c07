//! What nobody may wait for: a handler that never returns, a worker that died twice with many jobs, and a worker that died while
//! others had nothing to do. Everything is told by the store's own times, and judged by how long others waited.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use punctual::{
    Backoff, Client, Ctx, JobId, JobOptions, JobRecord, NewJob, Payload, State, When, Worker, job::Filter,
    store::url::connect,
};
use tokio::task::JoinSet;

use crate::{
    drill::{Outcome, Stage},
    jobs::{QUEUE, all},
    place::Place,
    process::Process,
    profile::Profile,
};

/// Blocks its thread for ever.
const HANGS: &str = "hangs";
/// Takes [`WORK`].
const SLOW: &str = "slow";
/// Does nothing.
const QUICK: &str = "quick";
/// Runs until its worker is killed.
const LONG: &str = "long";

const SLOTS: usize = 50;
/// The default of workers.
const LEASE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(20);

/// Crosses its timeout so often.
const HANGS_ATTEMPTS: u32 = 3;
const HANGS_TIMEOUT: Duration = Duration::from_secs(1);
const QUICK_JOBS: u32 = 450;
/// Between the due times of two quick jobs: they are due for as long as the other hangs, and some seconds more.
const QUICK_EVERY: Duration = Duration::from_millis(40);
/// How long after its due time a quick job is done.
const QUICK_WITHIN: Duration = Duration::from_secs(5);

const CRASHED_JOBS: u32 = 40;
const WORK: Duration = Duration::from_secs(3);
/// How long all of them take once their worker was started after its second crash: a lease, a second, and [`WORK`].
const DONE_WITHIN: Duration = Duration::from_secs(20);

/// Workers of one store, of which the one that has the job is killed.
const IDLE: usize = 3;
/// How long until another one starts it.
const TAKEN_WITHIN: Duration = Duration::from_secs(17);

// ── the child ──

/// Works until it is killed, and tells its health in `health`.
pub(crate) async fn work(url: &str, health: &str, proc: &str) -> Outcome<()> {
    let client = Client::new(connect(url).await?);
    let handle = async |job: JobRecord, _: Ctx| match job.kind.as_str() {
        HANGS => tokio::task::block_in_place(|| {
            loop {
                std::thread::park();
            }
        }),
        SLOW => tokio::time::sleep(WORK).await,
        LONG => std::future::pending().await,
        _ => {}
    };
    let worker = Worker::new(&client).name(proc).queue(QUEUE).slots(SLOTS).health_file(health);
    worker.handle_raw(handle).run().await?;
    Ok(())
}

// ── the parent ──

/// A store of its own, and the workers on it.
struct Scene {
    client: Client,
    workers: Vec<Process>,
    started: u32,
    health: String,
    // Dropped behind those who use it.
    place: Place,
}

impl Scene {
    async fn set(profile: &Profile, dir: &Path) -> Outcome<Self> {
        fs::create_dir_all(dir)?;
        let place = Place::make(&profile.place, dir);
        let client = Client::new(connect(&place.url).await?);
        let health = dir.join("health").display().to_string();
        Ok(Self { client, workers: Vec::new(), started: 0, health, place })
    }

    fn start_worker(&mut self) -> Outcome<()> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let dir = Path::new(&self.health).parent().ok_or("health in no folder")?;
        self.workers.push(Process::start(
            "stuck",
            &self.place.url,
            dir,
            name,
            std::slice::from_ref(&self.health),
        )?);
        Ok(())
    }

    async fn jobs(&self, kind: &str) -> Outcome<Vec<JobRecord>> {
        Ok(all(&self.client, &Filter::parse(&format!("queue:{QUEUE} kind:{kind}"))?).await?)
    }

    /// The jobs of a kind, once all of them are as they must be.
    async fn until(&self, kind: &str, is_so: impl Fn(&JobRecord) -> bool) -> Outcome<Vec<JobRecord>> {
        let begin = Instant::now();
        loop {
            let jobs = self.jobs(kind).await?;
            if jobs.iter().all(&is_so) {
                return Ok(jobs);
            }
            if PATIENCE < begin.elapsed() {
                let left: Vec<_> = jobs.iter().filter(|job| !is_so(job)).collect();
                return Err(format!(
                    "{} of {} {kind} jobs don't get on: {:?}",
                    left.len(),
                    jobs.len(),
                    left[0]
                )
                .into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn job(id: JobId, kind: &str) -> NewJob {
    NewJob::new(id, kind, QUEUE, Payload::json("1"))
}

/// Runs all; answers whether each went as it must.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let dir = stage.dir.clone();
    stage.runtime.block_on(async {
        let hung = hung(profile, &dir.join("hung")).await?;
        let crashed = crashed(profile, &dir.join("crashed")).await?;
        Ok(hung & crashed & taken_over(profile, &dir).await?)
    })
}

/// A handler hangs and crosses its timeout at each attempt, beside quick jobs of the same worker.
async fn hung(profile: &Profile, dir: &Path) -> Outcome<bool> {
    let mut scene = Scene::set(profile, dir).await?;
    let options = JobOptions {
        timeout: Some(HANGS_TIMEOUT),
        max_attempts: Some(HANGS_ATTEMPTS),
        backoff: Some(Backoff::fixed(Duration::from_secs(1))),
        ..JobOptions::default()
    };
    let hangs = job(scene.client.make_id(), HANGS);
    let mut jobs = vec![NewJob { options, ..hangs }];
    for n in 0..QUICK_JOBS {
        let quick = job(scene.client.make_id(), QUICK);
        jobs.push(NewJob { run_at: When::In(QUICK_EVERY * n), ..quick });
    }
    scene.client.push(jobs).await?;
    scene.start_worker()?;
    let done = scene.until(QUICK, |job| job.state == State::Done).await?;
    let hung = scene.until(HANGS, |job| job.state == State::Dead).await?;
    let late =
        done.iter().filter_map(|job| Some(job.finished_at?.since(job.run_at))).max().ok_or("no job ended")?;
    let begin = Instant::now();
    let health = loop {
        let said = fs::read_to_string(&scene.health)?;
        if said.starts_with("held up: kind hangs") || PATIENCE < begin.elapsed() {
            break said;
        }
        tokio::time::sleep(LOOK).await;
    };
    eprintln!(
        "a handler hung at each of {} attempts: {} quick jobs beside it were done {late:?} after their due times \
         at most; health says {health:?}",
        hung[0].attempt,
        done.len()
    );
    Ok(late <= QUICK_WITHIN && health.starts_with("held up: kind hangs"))
}

/// A worker is killed twice with all jobs at work.
async fn crashed(profile: &Profile, dir: &Path) -> Outcome<bool> {
    let mut scene = Scene::set(profile, dir).await?;
    let jobs = (0..CRASHED_JOBS).map(|_| job(scene.client.make_id(), SLOW)).collect();
    scene.client.push(jobs).await?;
    for attempt in 1..=2 {
        scene.start_worker()?;
        scene.until(SLOW, |job| job.state == State::Running && job.attempt == attempt).await?;
        scene.workers.pop().ok_or("there is no worker to kill")?.kill()?;
    }
    let begin = scene.client.store().now().await?;
    scene.start_worker()?;
    let ended = scene.until(SLOW, |job| job.finished_at.is_some()).await?;
    let dead = ended.iter().filter(|job| job.state == State::Dead).count();
    let last = ended.iter().filter_map(|job| job.finished_at).max().ok_or("no job ended")?;
    let took = last.since(begin);
    eprintln!(
        "a worker killed twice with {CRASHED_JOBS} jobs of {WORK:?}: all ended {took:?} after its second restart, {dead} dead"
    );
    Ok(took <= DONE_WITHIN && dead == 0)
}

/// Who runs a job is killed, and all others have nothing to do; so many times beside each other.
async fn taken_over(profile: &Profile, dir: &Path) -> Outcome<bool> {
    let mut runs = JoinSet::new();
    for n in 0..profile.kills {
        let (profile, dir) = (profile.clone(), dir.join(format!("taken-{n}")));
        runs.spawn(async move { take_over(&profile, &dir).await.map_err(|e| e.to_string()) });
    }
    let mut took = Vec::new();
    while let Some(run) = runs.join_next().await {
        took.push(run??);
    }
    took.sort_unstable();
    let (least, most) = (took.first().ok_or("no run")?, took.last().ok_or("no run")?);
    eprintln!(
        "{} times a worker was killed with a job while {} others idled: another started it after {least:?} to {most:?}; its lease \
         was {LEASE:?}",
        took.len(),
        IDLE - 1
    );
    Ok(*most <= TAKEN_WITHIN)
}

/// How long after the kill another worker starts the job.
async fn take_over(profile: &Profile, dir: &Path) -> Outcome<Duration> {
    let mut scene = Scene::set(profile, dir).await?;
    for _ in 0..IDLE {
        scene.start_worker()?;
    }
    scene.client.push(vec![job(scene.client.make_id(), LONG)]).await?;
    let running = scene.until(LONG, |job| job.state == State::Running).await?;
    let holder = &running[0].running.as_ref().ok_or("it runs")?.worker;
    let at = scene.workers.iter().position(|worker| worker.proc == *holder).ok_or("nobody's worker")?;
    scene.workers.swap_remove(at).kill()?;
    let killed = scene.client.store().now().await?;
    let taken = scene.until(LONG, |job| job.state == State::Running && job.attempt == 2).await?;
    Ok(taken[0].started_at.ok_or("it runs")?.since(killed))
}
