//! The parent: spawns, kills, heals, drains, dumps, and asks the judge.

use std::{
    error::Error,
    io,
    path::PathBuf,
    process::{Child, Command},
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, Timestamp, When,
    store::{
        Action, Keep, QueueOp, QueueSettings, Store, Target,
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use punctual_check::{History, Options, Recorder, RecordingStore, Verdict, event::What, judge};

use crate::{
    Name, Profile,
    jobs::{self, QUEUE},
};

/// How long everything may take to come to rest once the nemesis has stopped.
const DRAIN_MAX: Duration = Duration::from_mins(3);
/// How often the parent looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(50);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs a drill to its verdict.
pub(crate) fn run(profile: &Profile) -> Outcome<Verdict> {
    let scratch = tempfile::tempdir()?;
    let dir = profile.dir.clone().unwrap_or_else(|| scratch.path().to_owned());
    std::fs::create_dir_all(&dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut drill = Drill::new(profile, dir).await?;
        match profile.name {
            Name::Workers => drill.workers().await?,
            Name::Producer => drill.producer().await?,
            Name::Poison => drill.poison().await?,
        }
        drill.rest().await
    })
}

struct Drill<'a> {
    profile: &'a Profile,
    dir: PathBuf,
    rng: Rng,
    client: Client,
    store: RecordingStore,
    recorder: Arc<Recorder>,
    children: Vec<Running>,
    spawned: u32,
}

/// A child that has not been waited for.
struct Running {
    proc: String,
    process: Child,
}

impl Drop for Running {
    /// No child outlives a drill that failed.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl<'a> Drill<'a> {
    async fn new(profile: &'a Profile, dir: PathBuf) -> Outcome<Self> {
        let recorder = Arc::new(Recorder::create(&dir.join("driver.ndjson"), "driver", 0)?);
        let sqlite = Arc::new(SqliteStore::open(dir.join("jobs.db"), SqliteOptions::default())?);
        let store = RecordingStore::new(sqlite, Arc::clone(&recorder));
        // Everything is kept to the end, so that the dump shows where each job stands.
        let keep = Keep { age_ms: 24 * 3_600_000, count: u64::MAX >> 1, bytes: u64::MAX >> 1 };
        let settings = QueueSettings { done: keep, dead: keep, cancelled: keep, ..QueueSettings::default() };
        store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await?;
        Ok(Self {
            profile,
            dir,
            rng: Rng::with_seed(profile.seed),
            client: Client::new(Arc::new(store.clone())),
            store,
            recorder,
            children: Vec::new(),
            spawned: 0,
        })
    }

    // ── the three drills ──

    async fn workers(&mut self) -> Outcome<()> {
        let Profile { jobs, kills, .. } = *self.profile;
        // Work comes in for as long as the nemesis is at it.
        let spread = Duration::from_millis(500) * kills;
        self.client.push((1..=jobs).map(|n| jobs::mixed(n, spread)).collect()).await?;
        self.spawn_workers()?;
        for _ in 0..kills {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(300..700))).await;
            self.play().await?;
            let victim = self.rng.usize(..self.children.len());
            self.kill(victim)?;
            self.spawn_worker()?;
        }
        Ok(())
    }

    /// An operator cancels a job and moves another.
    async fn play(&mut self) -> Outcome<()> {
        for _ in 0..4 {
            let n = 29 * self.rng.u32(1..=(self.profile.jobs / 29).max(1));
            debug_assert!(jobs::is_plaything(n));
            let action = if self.rng.bool() {
                Action::Cancel { reason: None }
            } else {
                let now = self.store.now().await?.as_ms();
                Action::Reschedule(When::At(Timestamp::from_ms(now + self.rng.u64(..3_000))?))
            };
            let _ = self.store.act(&[Target::from(jobs::id(n))], &action).await?;
        }
        Ok(())
    }

    async fn producer(&mut self) -> Outcome<()> {
        self.spawn_workers()?;
        for _ in 0..self.profile.kills {
            let began = self.count().await?;
            self.spawn_producer()?;
            // Killed when some of its work is done, and in the middle of more.
            let some = u64::from(self.profile.jobs / (self.profile.kills + 1));
            while self.count().await? < began + self.rng.u64(..some.max(1)) {
                self.expect_alive()?;
                tokio::time::sleep(Duration::from_millis(self.rng.u64(..5))).await;
            }
            tokio::time::sleep(Duration::from_micros(self.rng.u64(..20_000))).await;
            let producer = self.children.len() - 1;
            self.kill(producer)?;
        }
        self.spawn_producer()?;
        let mut last = self.children.pop().expect("it was just spawned");
        let status = last.process.wait()?;
        if !status.success() {
            return Err(format!("the last producer ended with {status}").into());
        }
        Ok(())
    }

    async fn poison(&mut self) -> Outcome<()> {
        let Profile { jobs, poison, .. } = *self.profile;
        let mut numbers: Vec<u32> = (1..=jobs).collect();
        self.rng.shuffle(&mut numbers);
        let job = |(i, n): (usize, u32)| if i < poison as usize { jobs::poison(n) } else { jobs::plain(n) };
        let mut batch: Vec<_> = numbers.into_iter().enumerate().map(job).collect();
        batch.sort_by_key(|job| job.id);
        self.client.push(batch).await?;
        self.spawn_workers()
    }

    // ── processes ──

    fn spawn_workers(&mut self) -> Outcome<()> {
        (0..self.profile.workers).try_for_each(|_| self.spawn_worker())
    }

    fn spawn_worker(&mut self) -> Outcome<()> {
        let slots = self.profile.slots.to_string();
        let lease = self.profile.lease.as_millis().to_string();
        self.spawn("worker", &[slots, lease])
    }

    fn spawn_producer(&mut self) -> Outcome<()> {
        self.spawn("producer", &[self.profile.jobs.to_string()])
    }

    fn spawn(&mut self, role: &str, args: &[String]) -> Outcome<()> {
        self.spawned += 1;
        let proc = format!("{role}-{}-{:08x}", self.spawned, self.rng.u32(..));
        let process = Command::new(std::env::current_exe()?)
            .args(["child", role])
            .arg(self.dir.join("jobs.db"))
            .arg(self.dir.join(format!("{proc}.ndjson")))
            .arg(&proc)
            .args(args)
            .spawn()?;
        self.children.push(Running { proc, process });
        Ok(())
    }

    /// SIGKILL, and the certainty that it is gone.
    fn kill(&mut self, i: usize) -> io::Result<()> {
        let mut child = self.children.swap_remove(i);
        child.process.kill()?;
        child.process.wait()?;
        self.recorder.note(What::Killed { proc: child.proc.clone() });
        Ok(())
    }

    /// Only the nemesis and poison end a worker.
    fn expect_alive(&mut self) -> Outcome<()> {
        for child in &mut self.children {
            if child.proc.starts_with("worker")
                && let Some(status) = child.process.try_wait()?
            {
                return Err(format!("{} ended by itself: {status}", child.proc).into());
            }
        }
        Ok(())
    }

    /// Puts a fresh worker in the place of each one that poison killed.
    fn replace_the_poisoned(&mut self) -> Outcome<()> {
        let mut i = 0;
        while i < self.children.len() {
            if self.children[i].process.try_wait()?.is_some() {
                self.kill(i)?;
                self.spawn_worker()?;
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    // ── the end ──

    async fn count(&self) -> Outcome<u64> {
        Ok(self.store.count(Some(QUEUE)).await?.total())
    }

    /// Heals, drains, dumps, judges.
    async fn rest(mut self) -> Outcome<Verdict> {
        let begin = Instant::now();
        while begin.elapsed() < DRAIN_MAX {
            if self.profile.name == Name::Poison {
                self.replace_the_poisoned()?;
            } else {
                self.expect_alive()?;
            }
            let counts = self.store.count(Some(QUEUE)).await?;
            if counts.waiting + counts.running == 0 {
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        for child in &mut self.children {
            end(&mut child.process)?;
        }
        self.children.clear();
        self.store.dump().await?;
        let history = History::read(std::slice::from_ref(&self.dir))?;
        Ok(judge(&history, Options::default()))
    }
}

/// SIGTERM, and a clean end.
fn end(process: &mut Child) -> Outcome<()> {
    let pid = i32::try_from(process.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.ok_or("no such process")?, rustix::process::Signal::TERM)?;
    let status = process.wait()?;
    if status.success() { Ok(()) } else { Err(format!("a worker ended with {status} on SIGTERM").into()) }
}
