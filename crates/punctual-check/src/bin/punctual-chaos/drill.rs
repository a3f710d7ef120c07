//! The parent: spawns, kills, heals, drains, dumps, and asks the judge.

use std::{
    error::Error,
    fs,
    ops::Range,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, Timestamp, When,
    store::{Action, Counts, Keep, QueueOp, QueueSettings, Store, Target},
};
use punctual_check::{
    History, Options, Recorder, RecordingStore, Verdict, Word,
    event::{Line, What},
    judge, monotonic_ns,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    child::reach,
    jobs::{self, GROUPED, QUEUE},
    place::{Fsync, Place, Wanted},
    process::Process,
    profile::{Name, Profile},
    watch::Watch,
};

/// How long everything may take to come to rest once the nemesis has stopped.
const DRAIN_MAX: Duration = Duration::from_mins(3);
/// How often the parent looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Answers of so long before a kill of the server may be lost where it syncs once a second: for that long a second's writes
/// may wait for those of the second before.
const UNDONE_MAX: Duration = Duration::from_secs(2);

/// What is due starts within a lease and this, where a slot is free and no harm is done (D8) …
const START_WITHIN: Duration = Duration::from_secs(2);
/// … so many times that: machines may be busy with other things.
const PATIENCE: u32 = 4;
/// Fresh jobs once all harm is over, with which each drill ends: whoever is left must do them as if nothing had been.
pub(crate) const HEAL_JOBS: u32 = 50;

/// On a busy machine a producer is often between its calls when it is killed. After the kills of the profile there are so many more at
/// most, until one has cut a call short.
const MORE_KILLS_MAX: u32 = 8;

/// For so many workers, one server in front of the store is killed.
const WORKERS_PER_GATEWAY: u32 = 4;
/// How long it is away, in milliseconds.
const GATEWAY_AWAY_MS: Range<u64> = 0..500;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Where a drill goes on: its folder, which goes with it unless the command line names one, and its runtime.
pub(crate) struct Stage {
    pub(crate) dir: PathBuf,
    pub(crate) runtime: Runtime,
    /// Behind the runtime, so that it goes last.
    _scratch: TempDir,
}

impl Stage {
    pub(crate) fn set(profile: &Profile) -> Outcome<Self> {
        let scratch = tempfile::tempdir()?;
        let dir = profile.dir.clone().unwrap_or_else(|| scratch.path().to_owned());
        std::fs::create_dir_all(&dir)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { dir, runtime, _scratch: scratch })
    }
}

/// Of a queue: everything is kept to the end, so that the dump shows where each job stands.
pub(crate) fn settings() -> QueueSettings {
    let keep = Keep { age_ms: 24 * 3_600_000, count: u64::MAX >> 1, bytes: u64::MAX >> 1 };
    QueueSettings { done: keep, dead: keep, cancelled: keep, ..QueueSettings::default() }
}

/// Runs a drill to its verdict.
pub(crate) fn run(profile: &Profile) -> Outcome<Verdict> {
    let stage = Stage::set(profile)?;
    stage.runtime.block_on(run_in(profile, stage.dir.clone()))
}

/// Runs a drill to its verdict in a folder that is there. Whoever drops it ends its processes.
pub(crate) async fn run_in(profile: &Profile, dir: PathBuf) -> Outcome<Verdict> {
    let mut drill = Drill::new(profile, dir).await?;
    match profile.name {
        Name::Workers => drill.workers().await?,
        Name::Producer => drill.producer().await?,
        Name::Poison => drill.poison().await?,
        Name::Server => drill.server().await?,
        Name::Failover => drill.failover().await?,
        Name::Shards => return drill.shards().await,
        Name::Slice => return drill.slice().await,
        Name::Races
        | Name::Children
        | Name::Fair
        | Name::Forward
        | Name::Part
        | Name::Limits
        | Name::Locks
        | Name::Schedules
        | Name::Stuck
        | Name::Away
        | Name::Topics
        | Name::Import
        | Name::Idle => {
            return Err("a drill of its own".into());
        }
    }
    shows_something(drill.rest().await?)
}

/// The verdict, unless it is valid and shows nothing: no kill hit, or no job fits the model. Harm of other sorts is looked for by the
/// drill that does it.
pub(crate) fn shows_something(verdict: Verdict) -> Outcome<Verdict> {
    if verdict.verdict != Word::Valid {
        return Ok(verdict);
    }
    if 0 < verdict.kills + verdict.server_kills + verdict.frozen && verdict.hits == 0 {
        return Err("no kill cut anything short: nothing is shown".into());
    }
    if verdict.replayed.fits == 0 {
        return Err("no job fits the model: nothing is shown".into());
    }
    Ok(verdict)
}

pub(crate) struct Drill<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) dir: PathBuf,
    pub(crate) rng: Rng,
    pub(crate) client: Client,
    pub(crate) store: RecordingStore,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) children: Vec<Process>,
    /// Where workers forward jobs to that are to be.
    pub(crate) forward_to: Option<String>,
    spawned: u32,
    _watch: Watch,
    // Dropped last: a server outlives those who use it.
    pub(crate) place: Place,
}

impl<'a> Drill<'a> {
    pub(crate) async fn new(profile: &'a Profile, dir: PathBuf) -> Outcome<Self> {
        let recorder = Arc::new(Recorder::create(&dir.join("driver.ndjson"), "driver", 0, 0)?);
        let place = Place::make(&profile.place, &dir);
        let watch = Watch::begin(Some(Arc::clone(&recorder)), Some(&dir))?;
        let store = RecordingStore::new(reach(&place.url).await?, Arc::clone(&recorder));
        store.queue(QUEUE, &QueueOp::Set(Box::new(settings()))).await?;
        Ok(Self {
            profile,
            dir,
            rng: Rng::with_seed(profile.seed),
            client: Client::new(Arc::new(store.clone())),
            store,
            recorder,
            children: Vec::new(),
            forward_to: None,
            spawned: 0,
            _watch: watch,
            place,
        })
    }

    // ── the three drills ──

    async fn workers(&mut self) -> Outcome<()> {
        let Profile { jobs, kills, .. } = *self.profile;
        // Work comes in for as long as the nemesis is at it.
        let spread = Duration::from_millis(500) * kills;
        self.client.push((1..=jobs).map(|n| jobs::mixed(n, spread)).collect()).await?;
        self.spawn_workers()?;
        for kill in 0..kills {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(300..700))).await;
            self.play().await?;
            if kill % WORKERS_PER_GATEWAY == 1 {
                self.replace_the_gateway().await?;
            }
            let victim = self.rng.usize(..self.children.len());
            self.kill(victim)?;
            self.spawn_worker()?;
        }
        Ok(())
    }

    /// Kills the server in front of the store, if there is one, and starts it again.
    pub(crate) async fn replace_the_gateway(&mut self) -> Outcome<()> {
        let Some(gateway) = &mut self.place.gateway else { return Ok(()) };
        let since = monotonic_ns();
        gateway.kill()?;
        self.recorder.note(What::ServerKilled { since });
        tokio::time::sleep(Duration::from_millis(self.rng.u64(GATEWAY_AWAY_MS))).await;
        gateway.restart()?;
        reach(&self.place.url).await?;
        self.expect_alive()
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
        let Profile { jobs, kills, .. } = *self.profile;
        // Killed when some of its work is done, and in the middle of more.
        let some = u64::from(jobs / (kills + MORE_KILLS_MAX + 1)).max(1);
        let mut was_at_a_call = false;
        for kill in 0..kills + MORE_KILLS_MAX {
            if kills <= kill && was_at_a_call {
                break;
            }
            let began = self.count().await?;
            self.spawn_producer()?;
            let target = began + self.rng.u64(1..=some);
            while self.count().await? < target {
                self.expect_alive()?;
                tokio::time::sleep(Duration::from_millis(self.rng.u64(..5))).await;
            }
            // Not for long: it makes its calls without a pause, and must be at one.
            tokio::time::sleep(Duration::from_micros(self.rng.u64(..2_000))).await;
            let producer = self.children.len() - 1;
            let proc = self.children[producer].proc.clone();
            self.kill(producer)?;
            was_at_a_call |= self.ends_in_a_call(&proc)?;
        }
        self.spawn_producer()?;
        let mut last = self.children.pop().expect("it was just spawned");
        last.wait()
    }

    /// Whether the last line that a killed process wrote is a call that was not answered. A line that it did not finish does not count.
    fn ends_in_a_call(&self, proc: &str) -> Outcome<bool> {
        let history = fs::read(self.dir.join(format!("{proc}.ndjson")))?;
        let whole = history.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in std::str::from_utf8(&history[..whole])?.lines().rev() {
            match serde_json::from_str::<Line>(line)?.what {
                What::Stalled { .. } => {}
                what => return Ok(matches!(what, What::Invoke(_))),
            }
        }
        Ok(false)
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

    pub(crate) fn spawn_workers(&mut self) -> Outcome<()> {
        (0..self.profile.workers).try_for_each(|_| self.spawn_worker())
    }

    pub(crate) fn spawn_worker(&mut self) -> Outcome<()> {
        let slots = self.profile.slots.to_string();
        let lease = self.profile.lease.as_millis().to_string();
        let has_groups = matches!(self.profile.name, Name::Shards | Name::Slice);
        let queues: &[&str] = if has_groups { &[QUEUE, GROUPED] } else { &[QUEUE] };
        let role = if self.forward_to.is_some() { "worker-forwarder" } else { "worker" };
        let queues = queues.iter().map(|queue| (*queue).to_owned());
        let args: Vec<String> =
            [slots, lease].into_iter().chain(self.forward_to.clone()).chain(queues).collect();
        self.spawn(role, &args)
    }

    fn spawn_producer(&mut self) -> Outcome<()> {
        self.spawn("producer", &[self.profile.jobs.to_string()])
    }

    /// One of this role that hands over every so-manieth job, from number `first` on; answers its name.
    pub(crate) fn spawn_stream(&mut self, role: &str, first: u32, over: Duration) -> Outcome<String> {
        let Profile { jobs, producers, .. } = *self.profile;
        let over = u64::try_from(over.as_millis())?;
        let args = [u64::from(jobs), first.into(), producers.into(), over].map(|n| n.to_string());
        self.spawn(role, &args)?;
        Ok(self.children.last().map(|child| child.proc.clone()).unwrap_or_default())
    }

    /// Whether one of a role is still at work.
    pub(crate) fn goes_on(&mut self, role: &str) -> Outcome<bool> {
        for child in self.children.iter_mut().filter(|child| child.proc.starts_with(role)) {
            if child.ended()?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until all of a role have ended well.
    pub(crate) fn end_of(&mut self, role: &str) -> Outcome<()> {
        let is_one = |child: &mut Process| child.proc.starts_with(role);
        self.children.extract_if(.., is_one).try_for_each(|mut child| child.wait())
    }

    pub(crate) fn spawn(&mut self, role: &str, args: &[String]) -> Outcome<()> {
        self.spawned += 1;
        let proc = format!("{role}-{}-{:08x}", self.spawned, self.rng.u32(..));
        self.children.push(Process::start(role, &self.place.url, &self.dir, proc, args)?);
        Ok(())
    }

    /// SIGKILL, and the certainty that it is gone.
    pub(crate) fn kill(&mut self, i: usize) -> Outcome<()> {
        let mut child = self.children.swap_remove(i);
        child.kill()?;
        self.recorder.note(What::Killed { proc: child.proc.clone() });
        Ok(())
    }

    /// Kills a worker, and starts another one.
    pub(crate) fn replace_a_worker(&mut self) -> Outcome<()> {
        let is_worker = |at: &usize| self.children[*at].proc.starts_with("worker");
        let workers: Vec<usize> = (0..self.children.len()).filter(is_worker).collect();
        let victim = workers[self.rng.usize(..workers.len())];
        self.kill(victim)?;
        self.spawn_worker()
    }

    /// Only the nemesis and poison end a worker.
    pub(crate) fn expect_alive(&mut self) -> Outcome<()> {
        for child in &mut self.children {
            if child.proc.starts_with("worker")
                && let Some(status) = child.ended()?
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
            if self.children[i].ended()?.is_some() {
                self.kill(i)?;
                self.spawn_worker()?;
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    // ── the end ──

    pub(crate) async fn count(&self) -> Outcome<u64> {
        Ok(self.store.count(None).await?.total())
    }

    /// As far as the store can be reached now.
    async fn counts(&self) -> Outcome<Option<Counts>> {
        match self.store.count(None).await {
            Ok(counts) => Ok(Some(counts)),
            Err(error) if error.is_repeatable() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Drains; then heals, which is judged like the rest; dumps, judges.
    pub(crate) async fn rest(&mut self) -> Outcome<Verdict> {
        self.drain().await?;
        self.recorder.note(What::Healed);
        let Profile { jobs, .. } = *self.profile;
        self.client.push((jobs + 1..=jobs + HEAL_JOBS).map(jobs::plain).collect()).await?;
        self.drain().await?;
        self.children.iter_mut().try_for_each(Process::stop)?;
        self.children.clear();
        self.store.dump().await?;
        let history = History::read(std::slice::from_ref(&self.dir))?;
        let undone_max = match self.profile.place {
            Wanted::Server(Fsync::EverySec) => UNDONE_MAX,
            _ => Duration::ZERO,
        };
        let start_within = Some(PATIENCE * (self.profile.lease + START_WITHIN));
        Ok(judge(&history, Options { undone_max, start_within, replays: true, ..Options::default() }))
    }

    /// Waits until nothing waits or runs; if that takes too long, what is left over is for the judge.
    async fn drain(&mut self) -> Outcome<()> {
        let begin = Instant::now();
        loop {
            if self.profile.name == Name::Poison {
                self.replace_the_poisoned()?;
            } else {
                self.expect_alive()?;
            }
            let counts = self.counts().await?;
            match counts {
                Some(counts) if counts.waiting + counts.running == 0 => return Ok(()),
                _ if begin.elapsed() < DRAIN_MAX => tokio::time::sleep(LOOK_EVERY).await,
                left => {
                    eprintln!("it does not come to rest within {DRAIN_MAX:?}: {left:?}");
                    return Ok(());
                }
            }
        }
    }
}
