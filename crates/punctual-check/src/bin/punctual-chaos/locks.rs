//! Updates to locked resources: worker processes that are killed all the time, and a file per resource that tells who was at it.
//! Of each resource one update runs at a time, in order, and none is lost; updates that are merged are all in some run. A job whose
//! worker was killed three times in a row is dead and has its updates (S9): these are found there. First, without kills, how much of
//! a limit is used.
//!
//! A file has a line when an update starts and when it ends. Lines are written in one step each, by whoever runs the update and
//! nobody else: so a second start behind one that has not ended is right only if the process of the first was killed.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use fastrand::Rng;
use punctual::{
    Client, Ctx, ErrorKind, Job, Worker,
    job::Filter,
    store::{Store, url::connect},
};
use serde::{Deserialize, Serialize};

use crate::{
    drill::{Outcome, Stage},
    jobs,
    place::Place,
    process::{Process, victim},
    profile::Profile,
};

/// Where updates wait.
const QUEUE: &str = "updates";
const RESOURCES: u32 = 50;
/// Of the last part, where many producers meet at few resources.
const MERGED: u32 = 5;
const PRODUCERS: u32 = 8;
/// Longer than it takes to hand all updates over.
const HAND_OVER: Duration = Duration::from_secs(2);
/// How long an update takes.
const WORK: Duration = Duration::from_millis(5);
/// Of the first part: how many may run, how many there are for each of these, and how long each takes.
const POOL: u32 = 8;
const POOL_ROUNDS: u32 = 60;
const POOL_WORK: Duration = Duration::from_millis(20);
/// A dead worker's resource waits for so long; whoever lives says so several times meanwhile, on a busy machine too.
const LEASE: Duration = Duration::from_secs(2);
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(3);
const LOOK: Duration = Duration::from_millis(20);
/// The time between two kills, in milliseconds. A few of these are shorter than a part of the drill on a fast machine.
const BETWEEN_KILLS_MS: Range<u64> = 20..200;

/// One of many that use one thing.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "use", queue = "updates")]
struct Use {}

/// Updates of a resource: one, or several that were merged.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "update", queue = "updates")]
struct Update {
    resource: String,
    numbers: Vec<u32>,
}

// ── the child ──

/// Works until it is killed. Notes who is at which resource.
pub(crate) async fn work(url: &str, dir: &Path, proc: &str, slots: usize) -> Outcome<()> {
    let client = Client::new(connect(url).await?);
    let logs = Arc::new(Logs { dir: dir.to_owned(), proc: proc.to_owned() });
    let uses = Arc::clone(&logs);
    Worker::new(&client)
        .name(proc)
        .queue(QUEUE)
        .slots(slots)
        .lease(LEASE)
        .handle(move |_: Use, ctx: Ctx| {
            let logs = Arc::clone(&uses);
            async move {
                let number = [u32::from_be_bytes(ctx.id().as_bytes()[12..].try_into().unwrap_or_default())];
                logs.run("pool", ctx.attempt(), &number, POOL_WORK).await
            }
        })
        .handle(move |update: Update, ctx: Ctx| {
            let logs = Arc::clone(&logs);
            async move { logs.run(&update.resource, ctx.attempt(), &update.numbers, WORK).await }
        })
        .run()
        .await?;
    Ok(())
}

struct Logs {
    dir: PathBuf,
    proc: String,
}

impl Logs {
    async fn run(&self, resource: &str, attempt: u32, numbers: &[u32], work: Duration) -> io::Result<()> {
        self.note(resource, 'S', attempt, numbers)?;
        tokio::time::sleep(work).await;
        self.note(resource, 'E', attempt, numbers)
    }

    /// One write, so that no kill leaves half a line.
    fn note(&self, resource: &str, what: char, attempt: u32, numbers: &[u32]) -> io::Result<()> {
        let mut log = fs::File::options().append(true).create(true).open(path(&self.dir, resource))?;
        let at = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
        let numbers = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        log.write_all(format!("{what} {at} {} {attempt} {numbers}\n", self.proc).as_bytes())
    }
}

fn path(dir: &Path, resource: &str) -> PathBuf {
    dir.join(format!("{resource}.log"))
}

// ── the parent ──

/// Hands over updates that are merged into those that wait.
async fn produce(
    client: Client,
    mut rng: Rng,
    numbers: impl Iterator<Item = u32>,
) -> Result<(), punctual::Error> {
    for n in numbers {
        let resource = format!("merged-{}", rng.u32(..MERGED));
        let update = |n| Update { resource: resource.clone(), numbers: vec![n] };
        let merge =
            |waiting: Update, new: Update| Update { numbers: [waiting.numbers, new.numbers].concat(), ..new };
        loop {
            let merged = client.enqueue(update(n)).rerun(resource.clone()).merge(merge).await;
            // So many others met it there meanwhile that it gave up: each of them got on.
            if !merged.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict) {
                merged?;
                break;
            }
        }
    }
    Ok(())
}

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let dir = stage.dir.clone();
    let place = Place::make(&profile.place, &dir);
    stage.runtime.block_on(async {
        let store = connect(&place.url).await?;
        let mut drill = Drill {
            profile,
            url: &place.url,
            dir: &dir,
            client: Client::new(Arc::clone(&store)),
            store,
            crew: Vec::new(),
            killed: BTreeSet::new(),
            spawned: 0,
            rng: Rng::with_seed(profile.seed),
            is_kept: true,
            again: 0,
        };
        drill.fill_up()?;
        drill.pool().await?;
        drill.updates().await?;
        drill.merged().await?;
        if drill.again == 0 {
            return Err("no kill met a run: nothing is shown".into());
        }
        Ok(drill.is_kept)
    })
}

struct Drill<'a> {
    profile: &'a Profile,
    url: &'a str,
    dir: &'a Path,
    client: Client,
    store: Arc<dyn Store>,
    crew: Vec<Process>,
    killed: BTreeSet<String>,
    spawned: u32,
    rng: Rng,
    is_kept: bool,
    /// Runs that a kill cut short.
    again: usize,
}

/// A line of a log.
struct Line {
    is_start: bool,
    at_us: u64,
    proc: String,
    attempt: u32,
    numbers: Vec<u32>,
}

impl Drill<'_> {
    /// How much of a limit is used by a backlog, while nobody is killed.
    async fn pool(&mut self) -> Outcome<()> {
        let queue = self.client.queue(QUEUE);
        queue.pause("drill", "a backlog first").await?;
        self.client
            .enqueue_many((0..POOL * POOL_ROUNDS).map(|_| Use {}))
            .each(|_, spec| {
                spec.concurrency_key("pool").concurrency_limit(POOL);
            })
            .await?;
        queue.resume().await?;
        self.rest(0).await?;
        let lines = self.lines("pool")?;
        let (mut open, mut most, mut used, mut since) = (0_u32, 0, 0, 0);
        for line in &lines {
            // Two processes may write their lines in another order than they looked at the clock.
            used += u64::from(open) * line.at_us.saturating_sub(since);
            since = line.at_us.max(since);
            open = if line.is_start { open + 1 } else { open - 1 };
            most = most.max(open);
        }
        let took = since - lines.first().map_or(since, |line| line.at_us);
        let percent = used * 100 / (u64::from(POOL) * took).max(1);
        eprintln!(
            "a limit of {POOL}: {} uses, at most {most} at once, {percent} % of it used",
            lines.len() / 2
        );
        self.must(most <= POOL, "more ran at once than may");
        Ok(())
    }

    /// Each update is a job of its own.
    async fn updates(&mut self) -> Outcome<()> {
        let jobs = self.profile.jobs;
        // One time for all, when all are there: then the order is that of the ids, whichever of two calls the store sees first.
        let at = self.store.now().await?.after(HAND_OVER);
        let resource = |n| format!("row-{}", n % RESOURCES);
        self.client
            .enqueue_many((0..jobs).map(|n| Update { resource: resource(n), numbers: vec![n] }))
            .each(move |update, spec| {
                spec.concurrency_key(&update.resource).at(at);
            })
            .await?;
        while self.store.now().await? < at {
            tokio::time::sleep(LOOK).await;
        }
        let kills = self.rest(self.profile.kills / 2).await?;
        let mut seen = BTreeSet::new();
        let mut again = 0;
        for resource in 0..RESOURCES {
            let lines = self.lines(&format!("row-{resource}"))?;
            again += self.one_at_a_time(resource, &lines);
            self.in_order(resource, &lines);
            seen.extend(lines.iter().filter(|line| !line.is_start).flat_map(|line| line.numbers.clone()));
        }
        self.again += again;
        let died = self.died("row-").await?;
        self.must(seen.union(&died).count() == jobs as usize, "updates were lost");
        eprintln!(
            "{jobs} updates of {RESOURCES} resources: {} done, {} of workers killed three times, {kills} workers killed, {again} began again",
            seen.len(),
            died.len()
        );
        Ok(())
    }

    /// Those that come while one runs become one.
    async fn merged(&mut self) -> Outcome<()> {
        let jobs = self.profile.jobs;
        let mut producers = tokio::task::JoinSet::new();
        for first in 0..PRODUCERS {
            producers.spawn(produce(
                self.client.clone(),
                self.rng.fork(),
                (first..jobs).step_by(PRODUCERS as usize),
            ));
        }
        let mut kills = 0;
        loop {
            while let Some(produced) = producers.try_join_next() {
                produced??;
            }
            if producers.is_empty() {
                break;
            }
            if kills < self.profile.kills - self.profile.kills / 2 {
                self.kill_one().await?;
                kills += 1;
            } else {
                tokio::time::sleep(LOOK).await;
            }
        }
        self.rest(0).await?;
        let (mut seen, mut runs, mut again) = (BTreeSet::new(), 0, 0);
        for resource in 0..MERGED {
            let lines = self.lines(&format!("merged-{resource}"))?;
            again += self.one_at_a_time(resource, &lines);
            let ends = lines.iter().filter(|line| !line.is_start);
            runs += ends.clone().count();
            seen.extend(ends.flat_map(|line| line.numbers.clone()));
        }
        self.again += again;
        let died = self.died("merged-").await?;
        let lost: Vec<u32> = (0..jobs).filter(|n| !seen.contains(n) && !died.contains(n)).collect();
        self.must(lost.is_empty(), &format!("updates are in no run: {lost:?}"));
        eprintln!(
            "{jobs} updates merged: {} in {runs} runs, {} of workers killed three times, {kills} workers killed, {again} runs began again",
            seen.len(),
            died.len()
        );
        Ok(())
    }

    /// The updates of the jobs whose worker was killed three times in a row, of resources with such a name.
    async fn died(&mut self, prefix: &str) -> Outcome<BTreeSet<u32>> {
        let dead = jobs::all(&self.client, &Filter::parse(&format!("queue:{QUEUE} state:dead"))?).await?;
        let mut numbers = BTreeSet::new();
        for job in dead {
            self.must(
                job.reason.as_deref() == Some("crashes"),
                &format!("job {} is dead: {:?}", job.id, job.reason),
            );
            let update = Update::decode(&job.payload)?;
            numbers.extend(update.numbers.into_iter().filter(|_| update.resource.starts_with(prefix)));
        }
        Ok(numbers)
    }

    // ── what is judged ──

    fn must(&mut self, is_so: bool, problem: &str) {
        if !is_so {
            eprintln!("NOT KEPT: {problem}");
            self.is_kept = false;
        }
    }

    /// Who starts while somebody is at it is right only if that one is dead. Answers how many starts that cost.
    fn one_at_a_time(&mut self, resource: u32, lines: &[Line]) -> usize {
        let (mut open, mut again): (Option<&Line>, usize) = (None, 0);
        for line in lines {
            match (line.is_start, open) {
                (true, None) => open = Some(line),
                (true, Some(before)) => {
                    let is_dead = self.killed.contains(&before.proc);
                    self.must(is_dead, &format!("resource {resource}: two at once, {:?}", line.numbers));
                    open = Some(line);
                    again += 1;
                }
                (false, before) => {
                    let is_own =
                        before.is_some_and(|own| own.proc == line.proc && own.numbers == line.numbers);
                    self.must(is_own, &format!("resource {resource}: {:?} ended late", line.numbers));
                    open = None;
                }
            }
        }
        again
    }

    /// Updates begin in their order, but for those that crashed twice: they are due later.
    fn in_order(&mut self, resource: u32, lines: &[Line]) {
        let starts = lines.iter().filter(|line| line.is_start);
        // Not by its starts: who is killed before it writes one down has crashed, too.
        let is_late = |line: &&Line| 2 < line.attempt;
        let late: BTreeSet<u32> =
            starts.clone().filter(is_late).flat_map(|line| line.numbers.clone()).collect();
        let mut order: Vec<u32> = starts.flat_map(|line| line.numbers.clone()).collect();
        order.retain(|n| !late.contains(n));
        self.must(order.is_sorted(), &format!("resource {resource}: out of order"));
    }

    fn lines(&self, resource: &str) -> Outcome<Vec<Line>> {
        let text = fs::read_to_string(path(self.dir, resource)).unwrap_or_default();
        text.lines()
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let [what, at, proc, attempt, numbers] = words[..] else { return Err("half a line".into()) };
                let numbers = numbers.split(',').map(str::parse).collect::<Result<_, _>>()?;
                let (is_start, proc) = (what == "S", proc.to_owned());
                Ok(Line { is_start, at_us: at.parse()?, proc, attempt: attempt.parse()?, numbers })
            })
            .collect()
    }

    // ── processes ──

    fn fill_up(&mut self) -> Outcome<()> {
        while self.crew.len() < self.profile.workers {
            self.spawned += 1;
            let proc = format!("locker-{}", self.spawned);
            self.crew.push(Process::start(
                "locker",
                self.url,
                self.dir,
                proc,
                &[self.profile.slots.to_string()],
            )?);
        }
        Ok(())
    }

    async fn kill_one(&mut self) -> Outcome<()> {
        tokio::time::sleep(Duration::from_millis(self.rng.u64(BETWEEN_KILLS_MS))).await;
        let rng = self.rng.fork();
        let at = victim(rng, &self.crew, async |process| self.is_at_work(&process.proc)).await?;
        let mut victim = self.crew.swap_remove(at);
        victim.kill()?;
        self.killed.insert(victim.proc.clone());
        self.fill_up()
    }

    /// Whether the process has started an update and not ended it.
    fn is_at_work(&self, proc: &str) -> Outcome<bool> {
        for entry in fs::read_dir(self.dir)? {
            let name = entry?.file_name();
            let Some(resource) = name.to_str().and_then(|name| name.strip_suffix(".log")) else { continue };
            let is_open = |line: &Line| line.is_start && line.proc == proc;
            if resource != "pool" && self.lines(resource)?.last().is_some_and(is_open) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until nothing waits or runs, and kills meanwhile; answers how many.
    async fn rest(&mut self, kills: u32) -> Outcome<u32> {
        let (begin, mut killed) = (Instant::now(), 0);
        loop {
            let counts = self.store.count(Some(QUEUE)).await?;
            if counts.waiting + counts.running == 0 {
                return Ok(killed);
            }
            if PATIENCE < begin.elapsed() {
                return Err(format!("{} jobs wait and {} run on", counts.waiting, counts.running).into());
            }
            if killed < kills {
                self.kill_one().await?;
                killed += 1;
            } else {
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}
