//! The store away for longer than leases last, with jobs under way and workers that wait for it: no job may begin a second time.
//!
//! A file is locked by a foreign transaction; a server is killed and started again, or stopped; where there are replicas, one takes
//! over at the default timeouts of Redis. Told otherwise, the store stays and who holds the jobs is killed: then each must begin again
//! within a second after its lease.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, State, Timestamp, Worker, job::Filter,
    limits::LEASE_DEFAULT,
};
use rusqlite::{Connection, TransactionBehavior};
use tokio::time::sleep;

use crate::{
    child::{reach, until_reached},
    drill::{Outcome, Stage},
    jobs::{QUEUE, all},
    place::{Place, Wanted},
    process::Process,
    profile::{Absent, Profile},
    servers::Servers,
};

/// Jobs that run when the store goes away, all on one worker.
const JOBS: usize = 4;
/// Workers that wait for jobs meanwhile.
const IDLE: usize = 3;
/// How long the store is away, in seconds: beside each other, each with a store of its own. A lease lasts 15 s.
const AWAY_S: [u64; 7] = [8, 11, 13, 16, 19, 22, 30];
const AWAY_SMALL_S: [u64; 1] = [16];
/// The leases of who is killed, in seconds, likewise.
const LEASES_S: [u64; 4] = [2, 15, 30, 120];
const LEASES_SMALL_S: [u64; 1] = [2];
/// How long after its lease a job may wait for its second run (S9).
const AFTER_LEASE: Duration = Duration::from_secs(1);
/// The longest that anything else may take.
const PATIENCE: Duration = Duration::from_mins(4);
const LOOK: Duration = Duration::from_millis(50);
/// The file whose existence ends all runs, beside the notes of who runs them.
const OVER: &str = "over";

// ── the child ──

/// Works until it is killed. Notes each run that begins; it ends when the drill says so.
pub(crate) async fn work(url: &str, notes: &str, proc: &str, lease: Duration) -> Outcome<()> {
    let over = Path::new(notes).with_file_name(OVER);
    let notes = Arc::new(File::options().append(true).create(true).open(notes)?);
    let client = Client::new(reach(url).await?);
    let handle = move |job: JobRecord, _: Ctx| {
        let (notes, over) = (Arc::clone(&notes), over.clone());
        async move {
            // One write, so that no kill leaves half a line.
            (&*notes).write_all(format!("{}\n", job.id).as_bytes())?;
            while !over.exists() {
                sleep(LOOK).await;
            }
            Ok::<_, std::io::Error>(())
        }
    };
    Worker::new(&client).name(proc).queue(QUEUE).slots(JOBS).lease(lease).handle_raw(handle).run().await?;
    Ok(())
}

// ── the parent ──

/// A store of its own, who has its jobs, and who waits for more.
struct Scene {
    dir: PathBuf,
    client: Client,
    /// The first one has the jobs.
    workers: Vec<Process>,
    // Dropped behind those who use it.
    place: Place,
}

impl Scene {
    /// Comes back when all jobs run on one worker, and the others are there.
    async fn set(profile: &Profile, dir: PathBuf, lease: Duration) -> Outcome<Self> {
        fs::create_dir_all(&dir)?;
        let place = match profile.place {
            Wanted::Sentinel => Place::on(Servers::patient_service()),
            Wanted::Cluster => Place::on(Servers::patient_cluster()),
            _ => Place::make(&profile.place, &dir),
        };
        let client = Client::new(reach(&place.url).await?);
        let job = |_| NewJob::new(client.make_id(), "long", QUEUE, Payload::json("1"));
        client.push((0..JOBS).map(job).collect()).await?;
        let mut scene = Self { dir, client, workers: Vec::new(), place };
        scene.start_worker(lease)?;
        scene.until(|jobs| jobs.iter().all(|job| job.state == State::Running)).await?;
        for _ in 0..IDLE {
            scene.start_worker(lease)?;
        }
        let begin = Instant::now();
        while scene.client.workers(None).await?.workers.len() < scene.workers.len() {
            if PATIENCE < begin.elapsed() {
                return Err("not all workers are there".into());
            }
            sleep(LOOK).await;
        }
        Ok(scene)
    }

    fn start_worker(&mut self, lease: Duration) -> Outcome<()> {
        let name = format!("worker-{}", self.workers.len());
        let args = [lease.as_millis().to_string()];
        self.workers.push(Process::start("away", &self.place.url, &self.dir, name, &args)?);
        Ok(())
    }

    /// The jobs, once they are as they must be.
    async fn until(&self, is_so: impl Fn(&[JobRecord]) -> bool) -> Outcome<Vec<JobRecord>> {
        let filter = Filter::parse(&format!("queue:{QUEUE}"))?;
        let begin = Instant::now();
        loop {
            let jobs = until_reached(async || all(&self.client, &filter).await).await?;
            if is_so(&jobs) {
                return Ok(jobs);
            }
            if PATIENCE < begin.elapsed() {
                return Err(format!("the jobs don't get on: {jobs:?}").into());
            }
            sleep(LOOK).await;
        }
    }

    /// Ends all runs; answers how often each job began.
    async fn end(&mut self) -> Outcome<BTreeMap<JobId, usize>> {
        // Who is not there takes nothing.
        for worker in &mut self.workers {
            if let Some(status) = worker.ended()? {
                return Err(format!("{} ended by itself: {status}", worker.proc).into());
            }
        }
        File::create(self.dir.join(OVER))?;
        self.until(|jobs| jobs.iter().all(|job| job.state == State::Done)).await?;
        let mut begun = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "ndjson") {
                for id in fs::read_to_string(path)?.lines().filter_map(|line| line.parse().ok()) {
                    *begun.entry(id).or_default() += 1;
                }
            }
        }
        Ok(begun)
    }

    /// Takes the store away, and comes back when it is there again; answers for how long.
    async fn take_away(&mut self, lasts: Duration, absent: Absent) -> Outcome<Duration> {
        let begin = Instant::now();
        let Place { servers, gateway, server, .. } = &mut self.place;
        match (servers, gateway, server) {
            (Some(servers), ..) => {
                // Longer than it is asked for: by how long it takes until a replica has taken over.
                servers.fail_over()?;
            }
            (_, Some(gateway), _) => {
                gateway.kill()?;
                sleep(lasts).await;
                gateway.restart()?;
            }
            (_, _, Some(server)) if absent == Absent::Stopped => {
                server.freeze();
                sleep(lasts).await;
                server.thaw();
            }
            (_, _, Some(server)) => {
                server.kill();
                sleep(lasts).await;
                server.restart();
            }
            _ => {
                let file = self.place.url.strip_prefix("sqlite:").ok_or("no file")?.to_owned();
                lock(&file, lasts)?;
            }
        }
        Ok(begin.elapsed())
    }
}

/// Holds the lock for writes of a store's file, as another program may that shares it.
fn lock(file: &str, lasts: Duration) -> rusqlite::Result<()> {
    let mut foreign = Connection::open(file)?;
    foreign.busy_timeout(PATIENCE)?;
    let transaction = foreign.transaction_with_behavior(TransactionBehavior::Immediate)?;
    thread::sleep(lasts);
    transaction.rollback()
}

/// Runs it; answers whether all went as it must.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let has_replicas = matches!(profile.place, Wanted::Sentinel | Wanted::Cluster);
    let seconds: &[u64] = match (profile.absent == Absent::Holder, profile.is_small) {
        (true, false) => &LEASES_S,
        (true, true) => &LEASES_SMALL_S,
        // A failover takes as long as it takes.
        (false, _) if has_replicas => &[0],
        (false, false) => &AWAY_S,
        (false, true) => &AWAY_SMALL_S,
    };
    let one = &|seconds: u64| {
        let (dir, rng) = (stage.dir.join(seconds.to_string()), Rng::with_seed(profile.seed ^ seconds));
        let lasts = Duration::from_secs(seconds);
        let told = if profile.absent == Absent::Holder {
            stage.runtime.block_on(kill_holder(profile, dir, rng, lasts))
        } else {
            stage.runtime.block_on(outlast(profile, dir, rng, lasts))
        };
        told.map_err(|e| e.to_string())
    };
    thread::scope(|scope| {
        let runs: Vec<_> = seconds.iter().map(|&seconds| scope.spawn(move || one(seconds))).collect();
        let mut is_well = true;
        for run in runs {
            is_well &= run.join().map_err(|_| "a run panicked")??;
        }
        Ok(is_well)
    })
}

/// The store goes away, and comes back.
async fn outlast(profile: &Profile, dir: PathBuf, mut rng: Rng, lasts: Duration) -> Outcome<bool> {
    let lease = LEASE_DEFAULT;
    let mut scene = Scene::set(profile, dir, lease).await?;
    // Anywhere between two heartbeats.
    sleep(lease.mul_f64(rng.f64() / 3.0)).await;
    let away = scene.take_away(lasts, profile.absent).await?;
    until_reached(async || scene.client.store().now().await).await?;
    // Who takes the jobs too early has taken them by then.
    sleep(lease).await;
    let begun = scene.end().await?;
    let twice = begun.values().filter(|times| 1 < **times).count();
    eprintln!("away for {:.1} s: {} jobs ran, {twice} of them twice", away.as_secs_f64(), begun.len());
    Ok(begun.len() == JOBS && twice == 0)
}

/// The store stays, and who has the jobs is killed.
async fn kill_holder(profile: &Profile, dir: PathBuf, mut rng: Rng, lease: Duration) -> Outcome<bool> {
    let mut scene = Scene::set(profile, dir, lease).await?;
    sleep(lease.min(LEASE_DEFAULT).mul_f64(rng.f64() / 3.0)).await;
    scene.workers.remove(0).kill()?;
    let killed = scene.client.store().now().await?;
    let jobs =
        scene.until(|jobs| jobs.iter().all(|job| job.state == State::Running && job.attempt == 2)).await?;
    let last: Timestamp = jobs.iter().filter_map(|job| job.started_at).max().ok_or("no job")?;
    let took = last.since(killed);
    let begun = scene.end().await?;
    eprintln!("a holder killed, leases of {lease:?}: all {} jobs began again within {took:?}", begun.len());
    Ok(begun.len() == JOBS && took <= lease + AFTER_LEASE)
}
