//! Pipe workers under kills: real `punctual work --keep` processes, whose children are Python. Workers and children are killed in the
//! midst of runs, half of the kills each. In the end each job must be done by a run that came to its end, each other attempt must be
//! explained by a kill or by its handler, and no run may go on once the next one of its job has begun.

mod judge;
mod notes;
mod target;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Backoff, Client, JobOptions, JobRecord, NewJob, Payload, State, When,
    job::Filter,
    store::{QueueOp, QueueSettings, url::connect},
};

use self::{
    judge::{AtRest, Failed, Kills},
    target::Target,
};
use crate::{
    drill::{self, HEAL_JOBS, Outcome, Stage},
    jobs::{self, QUEUE},
    place::Place,
    process::{Process, victim},
    profile::Profile,
};

/// Fails at its first attempt, with this error.
const FLAKY: &str = "flaky";
const FLAKY_ERROR: &str = "not at the first attempt";
/// Snoozes once.
const SLEEPY: &str = "sleepy";
/// Takes 400 ms, with ticks.
const SLOW: &str = "slow";
/// Enqueues a job.
const PARENT: &str = "parent";
/// Does nothing but run.
const PLAIN: &str = "plain";

const HANDLER: &str = include_str!("children/handler.py");
/// A child is replaced after so many jobs: that happens under kills as well.
const JOBS_PER_CHILD: &str = "100";
/// So long is it from one kill to the next. The jobs of a kill are due over twice that, so there are some when it comes.
const PER_KILL: Duration = Duration::from_millis(500);
/// If so many looks found no child at work, [`MORE_JOBS`] more jobs are enqueued.
const LOOKS_A_PUSH: u32 = 50;
/// So many in a row include a slow one.
const MORE_JOBS: u32 = 23;
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(3);
const LOOK: Duration = Duration::from_millis(20);
/// The most lines of what is broken that are printed.
const SHOWN_MAX: usize = 20;

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let dir = fs::canonicalize(&stage.dir)?;
    let place = Place::make(&profile.place, &dir);
    stage.runtime.block_on(async {
        let mut drill = Drill::new(profile, dir, place).await?;
        drill.run().await
    })
}

/// A job, due within `spread`. What it does depends on its number.
fn job(n: u32, spread: Duration) -> NewJob {
    let kind = match n {
        n if n % 10 == 3 => FLAKY,
        n if n % 17 == 5 => SLEEPY,
        n if n % 23 == 7 => SLOW,
        n if n % 13 == 4 => PARENT,
        _ => PLAIN,
    };
    let job = NewJob::new(jobs::id(n), kind, QUEUE, Payload::json(format!("{{\"n\":{n}}}")));
    let share = f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
    NewJob { run_at: When::In(spread.mul_f64(share)), ..job }
}

struct Drill<'a> {
    profile: &'a Profile,
    program: &'a Path,
    dir: PathBuf,
    client: Client,
    rng: Rng,
    workers: Vec<Process>,
    started: u32,
    /// Jobs are numbered from 1.
    pushed: u32,
    kills: Kills,
    // Dropped last: a server outlives those who use it.
    place: Place,
}

impl<'a> Drill<'a> {
    async fn new(profile: &'a Profile, dir: PathBuf, place: Place) -> Outcome<Self> {
        let program = profile.program.as_deref().ok_or("--program says which punctual runs the workers")?;
        fs::write(dir.join("handler.py"), HANDLER)?;
        fs::write(dir.join("notes"), "")?;
        let client = Client::new(connect(&place.url).await?);
        let defaults = JobOptions {
            backoff: Some(Backoff::fixed(Duration::from_millis(50)).jitter(false)),
            ..JobOptions::default()
        };
        let settings = QueueSettings { defaults, ..drill::settings() };
        client.store().queue(QUEUE, &QueueOp::Set(Box::new(settings))).await?;
        let kills = Kills { slots: profile.slots, ..Kills::default() };
        let rng = Rng::with_seed(profile.seed);
        let workers = Vec::new();
        Ok(Self { profile, program, dir, client, rng, workers, started: 0, pushed: 0, kills, place })
    }

    async fn run(&mut self) -> Outcome<bool> {
        let Profile { jobs, kills, workers, .. } = *self.profile;
        for _ in 0..workers {
            self.start_worker()?;
        }
        for kill in 0..kills {
            self.push(jobs.saturating_sub(self.pushed) / (kills - kill), 2 * PER_KILL).await?;
            tokio::time::sleep(PER_KILL.mul_f64(0.6 + 0.8 * self.rng.f64())).await;
            if kill % 2 == 0 { self.kill_a_worker().await? } else { self.kill_a_child().await? }
        }
        self.rest().await?;
        // Who is left does these as if nothing had been.
        self.push(HEAL_JOBS, Duration::ZERO).await?;
        self.rest().await?;
        self.workers.iter_mut().try_for_each(Process::stop)?;
        self.judge().await
    }

    /// Enqueues the next `count` jobs, due within `spread`.
    async fn push(&mut self, count: u32, spread: Duration) -> Outcome<()> {
        let first = self.pushed + 1;
        self.pushed += count;
        self.client.push((first..first + count).map(|n| job(n, spread)).collect()).await?;
        Ok(())
    }

    fn notes_file(&self) -> PathBuf {
        self.dir.join("notes")
    }

    fn start_worker(&mut self) -> Outcome<()> {
        self.started += 1;
        let (name, Self { dir, profile, .. }) = (format!("worker-{}", self.started), &*self);
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python").canonicalize()?;
        let mut command = Command::new(self.program);
        let (slots, lease) = (profile.slots.to_string(), format!("{}ms", profile.lease.as_millis()));
        command
            .args(["work", "--store", &self.place.url, "--exec", "exec python3 \"$DRILL_HANDLER\""])
            .args(["--keep", &slots, "--jobs-per-child", JOBS_PER_CHILD])
            .args(["-q", QUEUE, "--lease", &lease, "--name", &name])
            .env("PYTHONPATH", library)
            .env("DRILL_HANDLER", dir.join("handler.py"))
            .env("DRILL_NOTES", self.notes_file())
            .env("DRILL_WORKER", &name)
            .stdout(fs::File::create(dir.join(format!("{name}.out")))?)
            .stderr(fs::File::create(dir.join(format!("{name}.err")))?);
        self.workers.push(Process::of(name, &mut command)?);
        Ok(())
    }

    /// SIGKILL for a worker that is in the midst of a run, if there is one; then another one is started.
    async fn kill_a_worker(&mut self) -> Outcome<()> {
        let (rng, file) = (self.rng.fork(), self.notes_file());
        let is_at_work = async |worker: &Process| {
            Ok(notes::open(&notes::read(&file)?).iter().any(|run| run.worker == worker.proc))
        };
        let at = victim(rng, &self.workers, is_at_work).await?;
        let mut worker = self.workers.swap_remove(at);
        worker.kill()?;
        self.kills.workers.insert(worker.proc.clone());
        self.start_worker()
    }

    /// SIGKILL for a child in the midst of a run. It stands still before the look, so the run is cut short for sure.
    async fn kill_a_child(&mut self) -> Outcome<()> {
        let (file, begin, mut looks) = (self.notes_file(), Instant::now(), 0);
        while begin.elapsed() <= PATIENCE {
            looks += 1;
            if looks % LOOKS_A_PUSH == 0 {
                self.push(MORE_JOBS, Duration::ZERO).await?;
            }
            let runs = notes::open(&notes::read(&file)?);
            let at_work = runs.iter().filter_map(|run| Some((run, Target::of(run.pid, &file)?)));
            let at_work: Vec<_> = at_work.collect();
            if let Some((run, child)) = self.rng.choice(&at_work)
                && child.freeze()?
            {
                let is_open = |now: &notes::Note| (now.pid, now.fence) == (run.pid, run.fence);
                if notes::open(&notes::read(&file)?).iter().any(is_open) {
                    child.kill()?;
                    self.kills.runs.push((*run).clone());
                    return Ok(());
                }
                child.thaw()?;
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(format!("no child is in the midst of a run within {PATIENCE:?}").into())
    }

    /// Waits until nothing waits or runs. Only the nemesis ends a worker.
    async fn rest(&mut self) -> Outcome<()> {
        let begin = Instant::now();
        loop {
            for worker in &mut self.workers {
                if let Some(status) = worker.ended()? {
                    let said = fs::read_to_string(self.dir.join(format!("{}.err", worker.proc)))?;
                    return Err(format!("{} ended by itself: {status}\n{said}", worker.proc).into());
                }
            }
            let counts = self.client.count(Some(QUEUE)).await?;
            if counts.waiting == 0 && counts.running == 0 {
                return Ok(());
            }
            if PATIENCE < begin.elapsed() {
                return Err(format!("it does not come to rest within {PATIENCE:?}: {counts:?}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn judge(&self) -> Outcome<bool> {
        let (file, records) = (self.notes_file(), jobs::all(&self.client, &Filter::all()).await?);
        let notes = notes::read(&file)?;
        let at_rest: Vec<AtRest> = records.iter().map(at_rest).collect();
        let mut found = judge::judge(&at_rest, &notes, &self.kills);
        let broken = &mut found.broken;

        let pushed = self.pushed;
        let ids: BTreeSet<_> = records.iter().map(|job| job.id).collect();
        let mut children = BTreeMap::<&str, u32>::new();
        let lost = (1..=pushed).filter(|n| !ids.contains(&jobs::id(*n))).count();
        for parent in records.iter().filter_map(|job| job.headers.get("parent")) {
            *children.entry(parent).or_default() += 1;
        }
        for parent in at_rest.iter().filter(|job| job.kind == PARENT && job.is_done) {
            let n = children.remove(&*parent.id).unwrap_or(0);
            if n != 1 {
                broken.push(format!("{} has {n} jobs that it enqueued", parent.id));
            }
        }
        let enqueued = records.len() + lost - pushed as usize;
        for pid in notes::pids(&notes).into_iter().filter(|pid| Target::of(*pid, &file).is_some()) {
            broken.push(format!("child {pid} outlived its worker"));
        }
        let audit = self.client.audit(false, |_| ()).await?;
        if !audit.findings.is_empty() {
            broken.push(format!("the audit finds {:?}", audit.findings));
        }
        for line in broken.iter().take(SHOWN_MAX) {
            eprintln!("BROKEN {line}");
        }
        eprintln!(
            "{pushed} jobs and {enqueued} that they enqueued: {} done, {} dead of three kills in a row, {lost} lost; {} workers and {} \
             children killed in the midst of runs; attempts that failed: {} by kills of children, {} by kills of workers, {} by \
             handlers; {} unexplained or broken",
            found.done,
            found.crashed,
            self.kills.workers.len(),
            self.kills.runs.len(),
            found.by_child,
            found.by_worker,
            found.by_handler,
            found.broken.len(),
        );
        if 0 < lost || !found.broken.is_empty() {
            return Ok(false);
        }
        if found.by_child == 0 || found.by_worker == 0 {
            return Err("no kill cut anything short: nothing is shown".into());
        }
        Ok(true)
    }
}

fn at_rest(job: &JobRecord) -> AtRest {
    let failed = |failure: &punctual::job::Failure| Failed {
        attempt: failure.attempt,
        worker: failure.worker.clone(),
        error: failure.error.clone(),
    };
    let read = |payload: &Payload| serde_json::from_slice::<serde_json::Value>(&payload.bytes).ok();
    AtRest {
        id: job.id.to_string(),
        kind: job.kind.clone(),
        is_done: job.state == State::Done,
        is_crashed: job.state == State::Dead && job.reason.as_deref() == Some("crashes"),
        attempt: job.attempt,
        failures: job.failures.iter().map(failed).collect(),
        has_its_result: job.result.as_ref().and_then(read) == read(&job.payload),
    }
}
