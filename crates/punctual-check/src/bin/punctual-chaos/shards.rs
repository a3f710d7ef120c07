//! The drill in which the number of the store's shards changes from 1 to 8 and then to 3, and then both queues are pinned and spread
//! again, under workers and producers that go on.
//!
//! Some jobs have a concurrency key of which one may run at once, others a group of which two may: the judge says from the history
//! that there were never more. Some of these are enqueued up to 90 days ahead and brought forward later, before a change or after it.
//! New jobs must join them in the shard where they wait.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, JobId, NewJob, Timestamp, When,
    limits::BATCH_MAX,
    store::{
        Acted, Action, Enqueued, GroupLimits, Placement, QueueOp, QueueSettings, Store, Target, clock::Clock,
        redis::RedisStore,
    },
};
use punctual_check::{Recorder, RecordingStore, Verdict, Word, event::What, monotonic_ns};

use crate::{
    drill::{Drill, Outcome, settings},
    jobs::{self, GROUP_LIMIT, GROUPED, QUEUE},
};

/// One limited job for so many others.
const PER_LIMITED: u32 = 10;
/// Limited jobs of one call.
const LIMITED_BATCH: usize = 100;
/// How fast jobs come in.
const JOBS_PER_SECOND: u32 = 5_000;
/// The next change comes when so many more of a hundred jobs have come. Most are still to come after the last change.
const PERCENT_PER_CHANGE: u64 = 10;
/// Limited jobs come in parts: one before the first change, then one during each change and one after it, and one in the end.
const PARTS: u32 = 2 * CHANGES.len() as u32 + 2;
/// One of so many jobs that are far ahead is brought forward with each part.
const PER_FORWARD: usize = 4;
/// It is due within so many milliseconds then.
const FORWARD_WITHIN_MS: u64 = 100;
const LOOK: Duration = Duration::from_millis(2);

/// What changes, one after another.
const CHANGES: [Change; 4] = [
    Change::Shards(8),
    Change::Shards(3),
    Change::Placement(Placement::Pinned),
    Change::Placement(Placement::Spread),
];

#[derive(Clone, Copy)]
pub(crate) enum Change {
    /// The number of shards.
    Shards(u16),
    /// Where both queues are.
    Placement(Placement),
}

impl Change {
    fn text(self) -> String {
        match self {
            Self::Shards(number) => format!("{number} shards"),
            Self::Placement(Placement::Pinned) => "queues pinned".to_owned(),
            Self::Placement(Placement::Spread) => "queues spread".to_owned(),
        }
    }

    /// Makes it, and notes in the history when that was.
    pub(crate) async fn make(self, store: &RedisStore, recorder: &Recorder) -> Outcome<()> {
        let (since, begin) = (monotonic_ns(), Instant::now());
        match self {
            Self::Shards(number) => drop(store.reshard(number).await?),
            Self::Placement(placement) => place(store, placement).await?,
        }
        recorder.note(What::Changed { since, to: self.text() });
        eprintln!("{} after {} ms", self.text(), begin.elapsed().as_millis());
        Ok(())
    }
}

/// Pins both queues, or spreads them; one of them limits its groups.
pub(crate) async fn place(store: &dyn Store, placement: Placement) -> Outcome<()> {
    let group = GroupLimits { concurrency: Some(GROUP_LIMIT), ..GroupLimits::default() };
    for (queue, group) in [(QUEUE, GroupLimits::default()), (GROUPED, group)] {
        let settings = QueueSettings { placement, group, ..settings() };
        store.queue(queue, &QueueOp::Set(Box::new(settings))).await?;
    }
    Ok(())
}

impl Drill<'_> {
    /// Streams jobs in for as long as the shards change. Answers the verdict: one that shows nothing is an error.
    pub(crate) async fn shards(&mut self) -> Outcome<Verdict> {
        let over = Duration::from_secs(1) * self.profile.jobs / JOBS_PER_SECOND;
        let store = RedisStore::open(&self.place.url, Clock::System).await?;
        place(&store, Placement::Spread).await?;
        self.recorder.note(What::GroupLimit { queue: GROUPED.to_owned(), running: GROUP_LIMIT });
        self.spawn_workers()?;
        let begin = Instant::now();
        let number = self.profile.jobs / PER_LIMITED;
        let streamed = self.profile.jobs - number;
        for first in 1..=self.profile.producers {
            let over_ms = u64::try_from(over.as_millis())?;
            let numbers = [streamed, first, self.profile.producers].map(u64::from);
            let args: Vec<String> = numbers.iter().chain([&over_ms]).map(u64::to_string).collect();
            self.spawn("stream", &args)?;
        }
        let mut limited = Limited {
            client: self.client.clone(),
            store: self.store.clone(),
            dir: self.dir.clone(),
            rng: Rng::with_seed(self.profile.seed),
            next: streamed + 1,
            far: Vec::new(),
            far_in_all: 0,
        };
        let part = number / PARTS;
        limited.go_on(part).await?;
        for (come, change) in (1..).zip(CHANGES) {
            let enough = u64::from(self.profile.jobs) * come * PERCENT_PER_CHANGE / 100;
            while self.count().await? < enough && self.goes_on("stream")? {
                tokio::time::sleep(LOOK).await;
            }
            let changed = change.make(&store, &self.recorder);
            let (changed, went_on) = tokio::join!(changed, limited.go_on(part));
            changed.and(went_on)?;
            self.expect_alive()?;
            // On a slow machine the last changes may come after the stream. They have the limited jobs beside them.
            if matches!(change, Change::Shards(_)) && !self.goes_on("stream")? {
                return Err("no jobs came any more: nothing is shown".into());
            }
            limited.go_on(part).await?;
        }
        limited.end(number - (PARTS - 1) * part).await?;
        self.end_of("stream")?;
        let rate = f64::from(self.profile.jobs) / begin.elapsed().as_secs_f64();
        eprintln!("{rate:.0} jobs/s came in");
        for shard in store.shards().await?.shards {
            eprintln!("shard {}: {} jobs, takes jobs: {}", shard.number, shard.jobs, shard.is_open);
        }
        let verdict = self.rest().await?;
        if verdict.verdict == Word::Valid {
            shows_something(&verdict)?;
        }
        Ok(verdict)
    }
}

/// Each change must have met keys and groups with jobs on both sides of it, and each limit must have been tried.
fn shows_something(verdict: &Verdict) -> Outcome<()> {
    let is_met = verdict.moved.iter().all(|moved| 0 < moved.keys && 0 < moved.groups);
    if verdict.moved.len() != CHANGES.len() || !is_met {
        let met = &verdict.moved;
        return Err(
            format!("a change met no live jobs of a key, or of a group: nothing is shown: {met:?}").into()
        );
    }
    if verdict.keys.full == 0 || verdict.groups.full == 0 {
        return Err("no key or no group was at its limit: nothing is shown".into());
    }
    Ok(())
}

/// The jobs with a concurrency key or a group.
struct Limited {
    client: Client,
    store: RecordingStore,
    dir: PathBuf,
    rng: Rng,
    /// The number of the next one.
    next: u32,
    /// Those that are far ahead.
    far: Vec<JobId>,
    /// How many ever were.
    far_in_all: usize,
}

impl Limited {
    /// Enqueues so many, and meanwhile brings some of those forward that are far ahead.
    async fn go_on(&mut self, jobs: u32) -> Outcome<()> {
        self.rng.shuffle(&mut self.far);
        let forward = self.far.split_off(self.far.len() - self.far.len() / PER_FORWARD);
        let new = self.make(jobs);
        let (far, brought) = tokio::join!(enqueue(&self.client, new), self.bring_forward(&forward));
        brought?;
        let far = far?;
        self.far_in_all += far.len();
        self.far.extend(far);
        Ok(())
    }

    /// Enqueues the last ones, and brings all forward that are left.
    async fn end(&mut self, jobs: u32) -> Outcome<()> {
        let new = self.make(jobs);
        let (late, far) = (self.far.len(), enqueue(&self.client, new).await?);
        let all = self.far_in_all + far.len();
        eprintln!(
            "{all} jobs with limits were days ahead, up to 90; {late} of them still were after the last change"
        );
        self.far.extend(far);
        self.bring_forward(&self.far).await
    }

    /// Makes so many, each with whether it is far ahead.
    fn make(&mut self, jobs: u32) -> Vec<(NewJob, bool)> {
        let numbers = self.next..self.next + jobs;
        self.next = numbers.end;
        numbers.map(|n| jobs::limited(n, &self.dir)).collect()
    }

    /// Brings these forward, half of them by each of two actions.
    async fn bring_forward(&self, jobs: &[JobId]) -> Outcome<()> {
        let (now, soon) = jobs.split_at(jobs.len() / 2);
        for jobs in now.chunks(BATCH_MAX) {
            self.act(jobs, &Action::RunNow).await?;
        }
        for jobs in soon.chunks(LIMITED_BATCH) {
            let due = self.store.now().await?.as_ms() + fastrand::u64(..FORWARD_WITHIN_MS);
            self.act(jobs, &Action::Reschedule(When::At(Timestamp::from_ms(due)?))).await?;
        }
        Ok(())
    }

    async fn act(&self, jobs: &[JobId], action: &Action) -> Outcome<()> {
        let targets: Vec<Target> = jobs.iter().map(|id| Target::from(*id)).collect();
        let acted = self.store.act(&targets, action).await?;
        match acted.iter().find(|acted| !matches!(acted, Acted::Done(..))) {
            Some(other) => Err(format!("a job that is far ahead was not brought forward: {other:?}").into()),
            None => Ok(()),
        }
    }
}

/// Enqueues them; answers those that are far ahead.
async fn enqueue(client: &Client, jobs: Vec<(NewJob, bool)>) -> Outcome<Vec<JobId>> {
    let mut far = Vec::new();
    for batch in jobs.chunks(LIMITED_BATCH) {
        let new = batch.iter().map(|(job, _)| job.clone()).collect();
        for (answer, (_, is_far)) in client.push(new).await?.iter().zip(batch) {
            // Its id names the shard that it is in.
            let Enqueued::Inserted { id, .. } = answer else {
                return Err(format!("a limited job is not new: {answer:?}").into());
            };
            far.extend(is_far.then_some(*id));
        }
    }
    Ok(far)
}
