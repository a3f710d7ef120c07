//! Schedules kept by four worker processes of which some are always being killed, by a clock that the drill turns: through the
//! hours in which the clocks of New York and of Lord Howe jump, forth and back. Each tick must have run, once for whoever counts
//! jobs; then nobody is there for two hours, and each rule for missed ticks must hold.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, Ctx, Job, JobRecord, NewJob, Payload, Timestamp, Worker,
    job::Filter,
    schedule::{Cron, Misfire, Schedule},
    store::{
        List, Store,
        clock::{Clock, ManualClock},
        redis::RedisStore,
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    drill::{Outcome, Stage},
    place::Place,
    profile::Profile,
};

const QUEUE: &str = "ticks";
const MINUTE: Duration = Duration::from_mins(1);
/// How long the clock of each zone is watched.
const WATCH: Duration = Duration::from_hours(4);
/// How long nobody is there in the end.
const OUTAGE: Duration = Duration::from_hours(2);
/// How far the clock is turned for a lease to pass its time. It is a silence for each lease (S9), so the next turn reclaims those that ended.
const PASS: Duration = Duration::from_secs(6);
/// In real time: the longest that ticks take which somebody runs. Then the clock is turned, and all leases pass their time. A machine that is
/// slower is given twice as long before the next turn: a tick that loses three leases in a row dies of them.
const REST: Duration = Duration::from_millis(400);
/// In real time: the longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(1);

/// Where a clock jumps, when to begin to watch it, and what must tick once at which instants, in Unix seconds.
struct Jump {
    name: &'static str,
    zone: &'static str,
    from_s: u64,
    fixed: &'static str,
    fixed_at_s: u64,
}

/// In the order in which they come.
const JUMPS: [Jump; 4] = [
    // From 2026-03-08T05:00Z; 02:30 is left out, and 03:00 EDT is 07:00Z.
    Jump {
        name: "New York, forth",
        zone: "America/New_York",
        from_s: 1_772_946_000,
        fixed: "30 2 * * *",
        fixed_at_s: 1_772_953_200,
    },
    // From 2026-04-04T13:00Z; 01:45 comes twice, at 14:45Z first.
    Jump {
        name: "Lord Howe, back",
        zone: "Australia/Lord_Howe",
        from_s: 1_775_307_600,
        fixed: "45 1 * * *",
        fixed_at_s: 1_775_313_900,
    },
    // From 2026-10-03T13:00Z; 02:15 is left out, and 02:30 +11 is 15:30Z.
    Jump {
        name: "Lord Howe, forth",
        zone: "Australia/Lord_Howe",
        from_s: 1_791_032_400,
        fixed: "15 2 * * *",
        fixed_at_s: 1_791_041_400,
    },
    // From 2026-11-01T03:30Z; 01:30 comes twice, at 05:30Z first.
    Jump {
        name: "New York, back",
        zone: "America/New_York",
        from_s: 1_793_503_800,
        fixed: "30 1 * * *",
        fixed_at_s: 1_793_511_000,
    },
];

/// What a tick enqueues.
#[derive(Job, Serialize, Deserialize)]
// The shortest lease there is: a dead worker's tick must not wait for the next one.
#[job(kind = "tick", queue = "ticks", lease = "1s")]
struct Tick {}

// ── the child ──

/// Works by the clock that its input tells, a line for each turn, until it is killed or its input ends. Notes each start in a
/// file of its own.
pub(crate) async fn work(url: &str, notes: &str, proc: &str) -> Outcome<()> {
    let mut begin = String::new();
    io::stdin().read_line(&mut begin)?;
    let begin = begin.trim().parse()?;
    let clock = ManualClock::new(Timestamp::from_ms(begin)?);
    let turned = clock.clone();
    let notes = Arc::new(fs::File::options().append(true).create(true).open(notes)?);
    let client = Client::new(open(url, clock).await?);
    thread::spawn(move || {
        for line in io::stdin().lines() {
            let told =
                line.ok().and_then(|line| line.parse().ok()).and_then(|ms| Timestamp::from_ms(ms).ok());
            let Some(now) = told else { break };
            turned.set(now);
        }
        // The drill is over, or died.
        std::process::exit(0);
    });
    Worker::new(&client)
        .name(proc)
        .queue(QUEUE)
        .slots(4)
        .handle_raw(move |job: JobRecord, _: Ctx| {
            let notes = Arc::clone(&notes);
            async move {
                // One write, so that no kill leaves half a line.
                (&*notes).write_all(format!("{}\n", job.id).as_bytes())?;
                tokio::time::sleep(LOOK * 2).await;
                io::Result::Ok(())
            }
        })
        .run()
        .await?;
    Ok(())
}

async fn open(url: &str, clock: ManualClock) -> Outcome<Arc<dyn Store>> {
    let clock = Clock::Manual(clock);
    Ok(match url.strip_prefix("sqlite:") {
        Some(path) => Arc::new(SqliteStore::open(path, SqliteOptions { clock, ..SqliteOptions::default() })?),
        None => Arc::new(RedisStore::open(url, clock).await?),
    })
}

/// A worker, and how to tell it the time.
struct Crew {
    child: Child,
    input: ChildStdin,
}

impl Crew {
    fn start(url: &str, dir: &Path, proc: &str, now: Timestamp) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", "ticker", url])
            .arg(dir.join(format!("{proc}.starts")))
            .arg(proc)
            .stdin(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("a child without an input")?;
        let mut crew = Self { child, input };
        crew.tell(now)?;
        Ok(crew)
    }

    fn tell(&mut self, now: Timestamp) -> io::Result<()> {
        self.input.write_all(format!("{}\n", now.as_ms()).as_bytes())
    }

    fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

// ── the parent ──

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let dir = stage.dir.clone();
    let place = Place::make(&profile.place, &dir);
    stage.runtime.block_on(async {
        let clock = ManualClock::new(Timestamp::from_ms(JUMPS[0].from_s * 1_000)?);
        let client = Client::new(open(&place.url, clock.clone()).await?);
        let mut drill = Drill {
            profile,
            url: &place.url,
            dir: &dir,
            clock,
            client,
            crew: Vec::new(),
            rng: Rng::with_seed(profile.seed),
            kills: 0,
            is_kept: true,
        };
        for jump in &JUMPS {
            drill.watch(jump).await?;
        }
        drill.outage().await?;
        Ok(drill.is_kept)
    })
}

struct Drill<'a> {
    profile: &'a Profile,
    url: &'a str,
    dir: &'a Path,
    clock: ManualClock,
    client: Client,
    crew: Vec<Crew>,
    rng: Rng,
    kills: u32,
    is_kept: bool,
}

impl Drill<'_> {
    /// Sets schedules, walks through the hours around a jump, and compares.
    async fn watch(&mut self, jump: &Jump) -> Outcome<()> {
        let from = Timestamp::from_ms(jump.from_s * 1_000)?;
        self.turn(from)?;
        let all = Misfire::RunAll { at_most: 1_000 };
        let in_zone = |text: &str| Cron::new(text)?.in_tz(jump.zone)?.on_misfire(all);
        let schedules = [
            ("fixed", in_zone(jump.fixed)?),
            ("steps", in_zone("*/5 * * * *")?),
            ("hourly", in_zone("0 * * * *")?),
            ("every", Cron::every(MINUTE * 7)?.on_misfire(all)?),
        ];
        for (name, cron) in &schedules {
            self.client.schedule(*name).set(cron.clone(), Tick {}).await?;
        }
        self.fill_up()?;
        let (kills, end) = (self.kills, from.after(WATCH));
        let steps = (WATCH.as_secs() / MINUTE.as_secs()) as u32;
        for step in 1..=steps {
            self.turn(from.after(MINUTE * step).max(self.clock.now()))?;
            if self.rng.u32(..steps) < self.profile.kills {
                self.kill_some();
            }
            self.rest().await?;
        }
        for (name, cron) in &schedules {
            let expected: Vec<_> = std::iter::successors(cron.next(from), |tick| cron.next(*tick))
                .take_while(|tick| *tick <= end)
                .collect();
            let ran = self.ticks(name, "state:done").await?;
            if *name == "fixed" && expected != [Timestamp::from_ms(jump.fixed_at_s * 1_000)?] {
                return Err(format!(
                    "{}: {} should tick once, and not at {expected:?}",
                    jump.name, jump.fixed
                )
                .into());
            }
            self.compare(&format!("{}: {name}", jump.name), &expected, &ran);
            let left = self.jobs(name, "state:running,dead,cancelled").await?;
            self.compare(&format!("{}: {name}, not done", jump.name), &[], &times(&left)?);
            for job in &left {
                let (id, state, crashes) = (job.id, job.state, job.expired_leases);
                eprintln!("  {id} is {state}, {crashes} leases expired, {:?}", job.reason);
            }
            self.client.schedule(*name).remove().await?;
        }
        let (starts, kills) = (self.starts()?, self.kills - kills);
        let again = starts.values().map(|n| n - 1).sum::<u32>();
        eprintln!("{}: {} ticks, {kills} workers killed, {again} runs began again", jump.name, starts.len());
        if kills * 4 < again {
            eprintln!("BROKEN {}: {again} runs began again", jump.name);
            self.is_kept = false;
        }
        self.clear().await
    }

    /// Nobody is there for a while.
    async fn outage(&mut self) -> Outcome<()> {
        let from = self.clock.now();
        let every = Cron::every(MINUTE * 10)?;
        let rules = [
            ("skip", Misfire::Skip),
            ("run once", Misfire::RunOnce),
            ("run all 3", Misfire::RunAll { at_most: 3 }),
            ("run all 1000", Misfire::RunAll { at_most: 1_000 }),
        ];
        for (name, misfire) in rules {
            let cron = every.clone().on_misfire(misfire)?;
            let job = NewJob::new(self.client.make_id(), Tick::KIND, QUEUE, Payload::json("{}"));
            self.client.schedule(name).put(Schedule::new(cron, job)?).await?;
        }
        std::mem::take(&mut self.crew).into_iter().try_for_each(Crew::kill)?;
        let back = from.after(OUTAGE);
        self.turn(back)?;
        self.fill_up()?;
        self.rest().await?;
        let missed: Vec<_> = std::iter::successors(every.next(from), |tick| every.next(*tick))
            .take_while(|tick| *tick <= back)
            .collect();
        for (name, expected) in [
            ("skip", &missed[..0]),
            ("run once", &missed[..1]),
            ("run all 3", &missed[missed.len() - 3..]),
            ("run all 1000", &missed[..]),
        ] {
            let ran = self.ticks(name, "state:done").await?;
            self.compare(&format!("two hours without workers: {name}"), expected, &ran);
            let waits = self.ticks(name, "state:waiting").await?;
            let next: Vec<_> = every.next(back).into_iter().collect();
            self.compare(&format!("two hours without workers: {name}, waiting"), &next, &waits);
        }
        eprintln!("two hours without workers: {} ticks missed by each rule", missed.len());
        std::mem::take(&mut self.crew).into_iter().try_for_each(Crew::kill)?;
        Ok(())
    }

    /// Tells everybody the time.
    fn turn(&mut self, now: Timestamp) -> Outcome<()> {
        self.clock.set(now);
        Ok(self.crew.iter_mut().try_for_each(|crew| crew.tell(now))?)
    }

    /// Starts workers where some are gone.
    fn fill_up(&mut self) -> Outcome<()> {
        while self.crew.len() < self.profile.workers {
            let proc = format!("worker-{}", self.crew.len());
            self.crew.push(Crew::start(self.url, self.dir, &proc, self.clock.now())?);
        }
        Ok(())
    }

    /// Kills two of them while they are at it.
    fn kill_some(&mut self) {
        thread::sleep(Duration::from_micros(self.rng.u64(..8_000)));
        for _ in 0..2 {
            let at = self.rng.usize(..self.crew.len());
            if self.crew.swap_remove(at).kill().is_ok() {
                self.kills += 1;
            }
        }
    }

    /// Until nothing is due or runs: dead workers come back, and their leases pass their time.
    async fn rest(&mut self) -> Outcome<()> {
        let (begin, mut rest) = (Instant::now(), REST);
        loop {
            self.fill_up()?;
            let since = Instant::now();
            while since.elapsed() < rest {
                let counts = self.client.count(Some(QUEUE)).await?;
                if counts.due + counts.retrying + counts.running == 0 {
                    return Ok(());
                }
                thread::sleep(LOOK);
            }
            if PATIENCE < begin.elapsed() {
                return Err("the ticks that are due are never done".into());
            }
            self.turn(self.clock.now().after(PASS))?;
            rest *= 2;
        }
    }

    /// The times for which the ticks of a schedule stand that match a filter, in order.
    async fn ticks(&self, name: &str, filter: &str) -> Outcome<Vec<Timestamp>> {
        times(&self.jobs(name, filter).await?)
    }

    /// The ticks of a schedule that match a filter.
    async fn jobs(&self, name: &str, filter: &str) -> Outcome<Vec<JobRecord>> {
        let mut list = List { filter: Filter::parse(filter)?, after: None, limit: 1_000 };
        let mut jobs = Vec::new();
        loop {
            let page = self.client.list(&list).await?;
            let is_its = |job: &JobRecord| job.headers.get("schedule").is_some_and(|of| of == name);
            jobs.extend(page.jobs.into_iter().filter(is_its));
            match page.next {
                Some(next) => list.after = Some(next),
                None => return Ok(jobs),
            }
        }
    }

    fn compare(&mut self, what: &str, expected: &[Timestamp], seen: &[Timestamp]) {
        if expected == seen {
            return;
        }
        self.is_kept = false;
        let missing: Vec<_> = expected.iter().filter(|tick| !seen.contains(tick)).collect();
        let strange: Vec<_> = seen.iter().filter(|tick| !expected.contains(tick)).collect();
        let twice = seen.windows(2).filter(|pair| pair[0] == pair[1]).count();
        eprintln!("BROKEN {what}: missing {missing:?}, strange {strange:?}, twice {twice}");
    }

    /// How often each job was started.
    fn starts(&self) -> Outcome<BTreeMap<String, u32>> {
        let mut starts = BTreeMap::new();
        for file in fs::read_dir(self.dir)? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "starts") {
                for id in fs::read_to_string(&path)?.lines() {
                    *starts.entry(id.to_owned()).or_default() += 1;
                }
            }
        }
        Ok(starts)
    }

    /// Forgets what ended.
    async fn clear(&self) -> Outcome<()> {
        for file in fs::read_dir(self.dir)? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "starts") {
                fs::File::options().write(true).open(&path)?.set_len(0)?;
            }
        }
        let ended = Filter::parse("state:done,dead,cancelled")?;
        self.client.act_where(&ended, &punctual::store::Action::Delete, |_| ()).await?;
        Ok(())
    }
}

/// The times for which these ticks stand, in order.
fn times(ticks: &[JobRecord]) -> Outcome<Vec<Timestamp>> {
    let time = |job: &JobRecord| -> Outcome<Timestamp> {
        let at = job.headers.get("scheduled_for").ok_or("a tick without its time")?;
        Ok(Timestamp::from_ms(at.parse()?)?)
    };
    let mut times = ticks.iter().map(time).collect::<Outcome<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times)
}
