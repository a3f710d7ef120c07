//! Cancels and reschedules, by processes of their own, aimed at the instant at which a job is due or at which its run ends, while
//! workers reserve and settle and some of them are killed. Of each race one side wins, and the other is told (S12).
//!
//! A racer steers: whose action came first aims a little later the next time, who came too late a little earlier, and by more and
//! more if that does not help. So each side wins some of the races, whatever the machine and the store: a busy one runs jobs late.

mod tally;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use punctual::{
    Backoff, Client, Ctx, JobRecord, NewJob, Outcome as Ran, Timestamp, When,
    job::Filter,
    limits::BATCH_MAX,
    store::{Acted, Action, List, Store as _, Target},
};
use punctual_check::Verdict;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    drill::{Drill, Outcome, Stage},
    jobs,
    profile::Profile,
};

use tally::Tally;

/// Processes that race.
const RACERS: u32 = 4;
/// Between two jobs that are due.
const EVERY: Duration = Duration::from_millis(5);
/// Before the first is due: all are enqueued by then, and all processes are there.
const AHEAD: Duration = Duration::from_secs(6);
/// How much later a job is due that was moved: when nobody races for it any more.
const AWAY: Duration = Duration::from_millis(1_500);
/// How long a run takes whose end is raced for; others take up to so long.
const WORK: Duration = Duration::from_millis(20);
/// The longest that a run waits for word that it is to end: more than two heartbeats.
const OBEYS_WITHIN: Duration = Duration::from_millis(800);
/// How much later or earlier the next one is aimed, at first.
const STEP_US: i64 = 200;
/// After so many races in a row with the same winner, each step is twice the one before.
const SAME_MAX: u32 = 4;
/// How often a step doubles: up to 51.2 ms.
const DOUBLINGS_MAX: u32 = 8;
/// The earliest and the latest that is aimed at, from the instant that is raced for.
const AIM_US: (i64, i64) = (-20_000, 500_000);
/// Before it, a racer begins to aim.
const LEAD: Duration = Duration::from_millis(40);

/// What a job meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    /// A cancel, when it is due.
    Cancel,
    /// A reschedule, when it is due.
    Move,
    /// Both of them, by two processes, when it is due.
    Both,
    /// A cancel, when its run ends.
    End,
}

/// How the first run of a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Done, whatever was asked for.
    Done,
    /// As it is told, if it is.
    Obeys,
    /// By an error.
    Fails,
}

/// A job and those who race for it: the number says all.
#[derive(Clone, Copy, Debug)]
struct Race {
    n: u32,
    sort: Sort,
    ending: Ending,
}

impl Race {
    const fn of(n: u32) -> Self {
        let sort = match n % 4 {
            0 => Sort::Cancel,
            1 => Sort::Move,
            2 => Sort::Both,
            _ => Sort::End,
        };
        let ending = match (n / 4 % 3, sort) {
            (0, _) | (1, Sort::End) => Ending::Done,
            (1, _) => Ending::Obeys,
            _ => Ending::Fails,
        };
        Self { n, sort, ending }
    }

    /// When it is due, in milliseconds of the store's clock.
    fn due_ms(self, begin_ms: u64) -> u64 {
        begin_ms + u64::from(self.n) * EVERY.as_millis() as u64
    }

    /// When it is due where it is moved.
    fn away_ms(self, begin_ms: u64) -> u64 {
        self.due_ms(begin_ms) + AWAY.as_millis() as u64
    }

    fn job(self, begin_ms: u64) -> Outcome<NewJob> {
        let mut job = jobs::plain(self.n);
        jobs::RACE.clone_into(&mut job.kind);
        job.run_at = When::At(Timestamp::from_ms(self.due_ms(begin_ms))?);
        job.options.backoff = Some(Backoff::fixed(Duration::from_millis(100)).jitter(false));
        job.tags.clear();
        Ok(job)
    }

    /// What this racer does to it, if anything.
    fn action(self, begin_ms: u64, me: u32) -> Outcome<Option<Action>> {
        let cancels = self.n / 4 % RACERS == me;
        // Another process than the one that cancels.
        let moves = (self.n / 4 + 1) % RACERS == me;
        Ok(match self.sort {
            Sort::Cancel | Sort::End | Sort::Both if cancels => Some(Action::Cancel { reason: None }),
            Sort::Move | Sort::Both if moves => {
                Some(Action::Reschedule(When::At(Timestamp::from_ms(self.away_ms(begin_ms))?)))
            }
            _ => None,
        })
    }
}

// ── the children ──

/// A worker runs the job.
pub(crate) async fn handle(job: &JobRecord, ctx: &Ctx) -> Ran {
    let number = serde_json::from_slice::<serde_json::Value>(&job.payload.bytes).ok();
    let Some(n) = number.and_then(|payload| payload["n"].as_u64()) else {
        return Ran::Dead("a race without a number".to_owned());
    };
    let race = Race::of(n as u32);
    let work = if race.sort == Sort::End { WORK } else { WORK.mul_f64(fastrand::f64()) };
    let token = ctx.cancel_token();
    match race.ending {
        Ending::Obeys if ctx.attempt() == 1 => tokio::select! {
            () = token.cancelled() => return Ran::Cancel,
            () = tokio::time::sleep(OBEYS_WITHIN.mul_f64(fastrand::f64())) => {}
        },
        _ => tokio::time::sleep(work).await,
    }
    if race.ending == Ending::Fails && ctx.attempt() == 1 {
        return Ran::retry("not at the first attempt");
    }
    Ran::Done
}

/// Where a racer aims.
#[derive(Debug, Default)]
struct Aim(Mutex<Aimed>);

#[derive(Debug, Default)]
struct Aimed {
    /// How far from the instant that is raced for, in microseconds.
    us: i64,
    /// Whether its action came first in the last race.
    was_first: bool,
    /// How many races in a row ended like that.
    same: u32,
}

impl Aim {
    fn lock(&self) -> MutexGuard<'_, Aimed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, instant: Instant) -> Instant {
        let us = self.lock().us;
        let by = Duration::from_micros(us.unsigned_abs());
        if us < 0 { instant - by } else { instant + by }
    }

    fn learn(&self, was_first: bool) {
        let mut aimed = self.lock();
        aimed.same = if aimed.was_first == was_first { aimed.same.saturating_add(1) } else { 1 };
        aimed.was_first = was_first;
        let step = STEP_US << aimed.same.saturating_sub(SAME_MAX).min(DOUBLINGS_MAX);
        aimed.us = (aimed.us + if was_first { step } else { -step }).clamp(AIM_US.0, AIM_US.1);
    }
}

/// Races number `me` of all racers; ends when it has met all of its jobs.
pub(crate) async fn race(client: &Client, jobs: u32, begin_ms: u64, me: u32) -> Outcome<()> {
    let (here, now_ms) = (Instant::now(), client.store().now().await?.as_ms());
    let behind = now_ms.saturating_sub(begin_ms);
    if 0 < behind {
        return Err(
            format!("racer {me} came {behind} ms late: the machine is too slow for this drill").into()
        );
    }
    let (starts, ends) = (Arc::new(Aim::default()), Arc::new(Aim::default()));
    let mut acts: JoinSet<punctual::Result<()>> = JoinSet::new();
    let mut all: Vec<(Instant, Race, Action)> = Vec::new();
    for race in (1..=jobs).map(Race::of) {
        let due = here + Duration::from_millis(race.due_ms(begin_ms) - now_ms);
        let instant = if race.sort == Sort::End { due + WORK } else { due };
        all.extend(race.action(begin_ms, me)?.map(|action| (instant, race, action)));
    }
    all.sort_by_key(|(instant, ..)| *instant);
    for (instant, race, action) in all {
        tokio::time::sleep_until(instant - LEAD).await;
        let client = client.clone();
        let aim = Arc::clone(if race.sort == Sort::End { &ends } else { &starts });
        acts.spawn(async move {
            tokio::time::sleep_until(aim.at(instant)).await;
            let target = [Target::from(jobs::id(race.n))];
            let acted = client.store().act(&target, &action).await?;
            // Before the end of a run is also before its start, which is late on a busy machine.
            let was_first = match acted.first() {
                Some(Acted::Done(..)) => true,
                Some(Acted::Requested(_)) => race.sort == Sort::End,
                _ => false,
            };
            aim.learn(was_first);
            Ok(())
        });
    }
    while let Some(acted) = acts.join_next().await {
        acted??;
    }
    let aimed = |aim: &Aim| aim.lock().us as f64 / 1e3;
    eprintln!(
        "racer {me} aims {:.1} ms behind the instant due, {:.1} behind the end",
        aimed(&starts),
        aimed(&ends)
    );
    Ok(())
}

// ── the parent ──

/// Runs it to its verdict, which is told of every race.
pub(crate) fn run(profile: &Profile) -> Outcome<(Verdict, serde_json::Value)> {
    let stage = Stage::set(profile)?;
    let dir = stage.dir.clone();
    stage.runtime.block_on(async {
        let mut drill = Drill::new(profile, dir).await?;
        let begin_ms = drill.races().await?;
        let mut verdict = drill.rest().await?;
        let records = drill.records().await?;
        let tally = Tally::of(&drill.dir, profile.jobs, begin_ms, &records)?;
        eprint!("{tally}");
        tally.tell(&mut verdict);
        Ok((verdict, serde_json::to_value(&tally)?))
    })
}

impl Drill<'_> {
    /// Answers when the first would be due.
    async fn races(&mut self) -> Outcome<u64> {
        let Profile { jobs, kills, .. } = *self.profile;
        let begin_ms = self.store.now().await?.after(AHEAD).as_ms();
        let made: Outcome<Vec<NewJob>> = (1..=jobs).map(|n| Race::of(n).job(begin_ms)).collect();
        self.client.push(made?).await?;
        self.spawn_workers()?;
        for me in 0..RACERS {
            self.spawn("racer", &[jobs.to_string(), begin_ms.to_string(), me.to_string()])?;
        }
        tokio::time::sleep(AHEAD).await;
        let between = EVERY * jobs / (kills + 1);
        for _ in 0..kills {
            tokio::time::sleep(between.mul_f64(0.5 + Rng::f64(&mut self.rng))).await;
            self.replace_a_worker()?;
        }
        self.end_of("racer")?;
        Ok(begin_ms)
    }

    /// All jobs as they are.
    async fn records(&self) -> Outcome<Vec<JobRecord>> {
        let mut list = List { filter: Filter::all(), after: None, limit: BATCH_MAX };
        let mut all = Vec::new();
        loop {
            let page = self.client.list(&list).await?;
            all.extend(page.jobs);
            match page.next {
                Some(next) => list.after = Some(next),
                None => return Ok(all),
            }
        }
    }
}
