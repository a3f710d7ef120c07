//! The jobs of a drill: what each does depends on its number alone, so that a producer that begins again makes the same.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use punctual::{
    Backoff, Client, Ctx, JobId, JobOptions, JobRecord, NewJob, Outcome, Payload, Unique, When,
    job::{Concurrency, Filter},
    limits::BATCH_MAX,
    store::List,
};
use punctual_check::{TAG_CRASHES, TAG_DONE, TAG_DONE_OR_CRASHES};

use crate::races;

pub(crate) const QUEUE: &str = "chaos";
/// Where jobs have groups.
pub(crate) const GROUPED: &str = "grouped";

/// What a job does when it runs, by its kind.
const PLAIN: &str = "plain";
/// Is raced for.
pub(crate) const RACE: &str = "race";
/// Fails at its first attempt.
const FLAKY: &str = "flaky";
/// Snoozes once.
const SLEEPY: &str = "sleepy";
/// Takes its time.
const SLOW: &str = "slow";
/// Holds one of the files of its key or group: there are as many as jobs may run at once.
const LIMITED: &str = "limited";
/// Is forwarded, to whomever its worker knows.
pub(crate) const FORWARDED: &str = "forwarded";
/// Kills its worker.
const POISON: &str = "poison";

/// Of jobs of all sorts, how much later some are due at most.
const LATER_MAX: Duration = Duration::from_secs(4);
/// Marks those of them that operators cancel or move.
pub(crate) const TAG_PLAYTHING: &str = "plaything";

/// The id of job number `n`.
pub(crate) fn id(n: u32) -> JobId {
    JobId::derived(QUEUE, None, &format!("job {n}"))
}

/// All jobs that match.
pub(crate) async fn all(client: &Client, filter: &Filter) -> punctual::Result<Vec<JobRecord>> {
    let mut list = List { filter: filter.clone(), after: None, limit: BATCH_MAX };
    let mut all = Vec::new();
    loop {
        let page = client.list(&list).await?;
        all.extend(page.jobs);
        match page.next {
            Some(next) => list.after = Some(next),
            None => return Ok(all),
        }
    }
}

/// Does nothing but run.
pub(crate) fn plain(n: u32) -> NewJob {
    let mut job = NewJob::new(id(n), PLAIN, QUEUE, Payload::json(format!("{{\"n\":{n}}}")));
    job.options = JobOptions {
        backoff: Some(Backoff::fixed(Duration::from_millis(50)).jitter(false)),
        ..JobOptions::default()
    };
    job.tags = vec![TAG_DONE.to_owned()];
    job
}

/// Kills every worker that runs it.
pub(crate) fn poison(n: u32) -> NewJob {
    NewJob { kind: POISON.to_owned(), tags: vec![TAG_CRASHES.to_owned()], ..plain(n) }
}

// None of the numbers of keys, groups and far jobs divides another: each key and group has jobs of each kind.
/// Concurrency keys of limited jobs, of each of which one may run at once.
const KEYS: u32 = 23;
/// Groups, and keys, of jobs of all sorts: few, so that some are at their limits.
const GROUPS_OF_ALL_SORTS: u32 = 5;
const KEYS_OF_ALL_SORTS: u32 = 7;
/// How many of each such key may run at once.
const KEY_LIMIT: u32 = 2;
/// Their groups, …
const GROUPS: u32 = 11;
/// … and how many of each may run at once.
pub(crate) const GROUP_LIMIT: u32 = 2;
/// One of so many is far ahead, …
const PER_FAR: u32 = 3;
/// … by so many days at most.
const DAYS_MAX: u32 = 90;
/// The others are due within so many tenths of a second.
const NEAR_WITHIN: u32 = 10;

/// One with a concurrency key, or with a group in the queue of these; and whether it is far ahead. It ends dead if more of them run
/// than may: each holds a file in `dir` meanwhile.
pub(crate) fn limited(n: u32, dir: &Path) -> (NewJob, bool) {
    let (at, has_group) = (n / 2, n.is_multiple_of(2));
    let name = if has_group { format!("group {}", at % GROUPS) } else { format!("key {}", at % KEYS) };
    let files: Vec<_> = (0..if has_group { GROUP_LIMIT } else { 1 })
        .map(|file| dir.join(format!("{name}, {file}")).to_string_lossy().into_owned())
        .collect();
    let payload = serde_json::to_vec(&files).expect("texts are JSON");
    let mut job = NewJob { kind: LIMITED.to_owned(), payload: Payload::json(payload), ..plain(n) };
    let is_far = at.is_multiple_of(PER_FAR);
    let delay = if is_far {
        Duration::from_hours(24) * (DAYS_MAX - at.wrapping_mul(7) % DAYS_MAX)
    } else {
        Duration::from_millis(100) * (at.wrapping_mul(7) % NEAR_WITHIN)
    };
    job.run_at = When::In(delay);
    if has_group {
        GROUPED.clone_into(&mut job.queue);
        job.group = Some(name);
    } else {
        job.concurrency = Some(Concurrency { key: name, limit: 1 });
    }
    job.id = JobId::derived(&job.queue, job.placement_key(), &format!("job {n}"));
    (job, is_far)
}

/// Holds one of the files of a limited job for a moment.
async fn hold(payload: &[u8]) -> Outcome {
    let Ok(files) = serde_json::from_slice::<Vec<PathBuf>>(payload) else {
        return Outcome::Dead("names no files".to_owned());
    };
    let Some(file) = files.iter().find(|file| fs::File::create_new(file).is_ok()) else {
        return Outcome::Dead("as many of its key or group run as may".to_owned());
    };
    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..15))).await;
    match fs::remove_file(file) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Dead(format!("could not give its file back: {error}")),
    }
}

/// One of a mix, due within `spread`. Every 29th is for operators to play with, every 31st contends for a unique key;
/// neither is bound to end done.
pub(crate) fn mixed(n: u32, spread: Duration) -> NewJob {
    let mut job = plain(n);
    job.tags = vec![TAG_DONE_OR_CRASHES.to_owned()];
    let kind = match n {
        n if n % 10 == 3 => FLAKY,
        n if n % 17 == 5 => SLEEPY,
        n if n % 23 == 7 => SLOW,
        _ => PLAIN,
    };
    kind.clone_into(&mut job.kind);
    job.run_at = When::In(spread.mul_f64(f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24)));
    if is_plaything(n) {
        job.tags.clear();
    } else if n.is_multiple_of(31) {
        job.unique = Some(Unique::key(format!("key {}", n % 5)));
        job.id = JobId::derived(QUEUE, job.placement_key(), &format!("job {n}"));
        job.tags.clear();
    }
    job
}

/// One of a larger mix, in two queues: those of [`mixed`], some of which are due later, have a concurrency key, or a group.
pub(crate) fn of_all_sorts(n: u32) -> NewJob {
    let spread = if is_plaything(n) || n.is_multiple_of(3) { LATER_MAX } else { Duration::ZERO };
    let mut job = mixed(n, spread);
    if is_plaything(n) {
        job.tags = vec![TAG_PLAYTHING.to_owned()];
    } else if job.unique.is_some() {
        return job;
    } else if n % 13 == 6 {
        FORWARDED.clone_into(&mut job.kind);
    } else if n % 7 == 2 {
        GROUPED.clone_into(&mut job.queue);
        job.group = Some(format!("group {}", n % GROUPS_OF_ALL_SORTS));
    } else if n % 5 == 4 {
        job.concurrency =
            Some(Concurrency { key: format!("key {}", n % KEYS_OF_ALL_SORTS), limit: KEY_LIMIT });
    }
    job.id = JobId::derived(&job.queue, job.placement_key(), &format!("job {n}"));
    job
}

/// Whether operators cancel or move the job.
pub(crate) const fn is_plaything(n: u32) -> bool {
    n.is_multiple_of(29)
}

/// Runs a job.
pub(crate) async fn handle(job: &JobRecord, ctx: &Ctx) -> Outcome {
    match job.kind.as_str() {
        POISON => std::process::abort(),
        LIMITED => return hold(&job.payload.bytes).await,
        RACE => return races::handle(job, ctx).await,
        FLAKY if ctx.attempt() == 1 => return Outcome::retry("not at the first attempt"),
        SLEEPY if job.snoozes == 0 => return Outcome::Snooze(Duration::from_millis(100)),
        SLOW => tokio::time::sleep(Duration::from_millis(400)).await,
        _ => tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await,
    }
    Outcome::Done
}
