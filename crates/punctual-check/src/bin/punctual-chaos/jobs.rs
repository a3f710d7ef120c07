//! The jobs of a drill: what each does depends on its number alone, so that a producer that begins again makes the same.

use std::time::Duration;

use punctual::{
    Backoff, Client, Ctx, Filter, JobId, JobOptions, JobRecord, NewJob, Outcome, Payload, Unique, When,
    limits::BATCH_MAX, store::List,
};
use punctual_check::{TAG_CRASHES, TAG_DONE, TAG_DONE_OR_CRASHES};

use crate::races;

pub(crate) const QUEUE: &str = "chaos";

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
/// Kills its worker.
const POISON: &str = "poison";

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

/// Whether operators cancel or move the job.
pub(crate) const fn is_plaything(n: u32) -> bool {
    n.is_multiple_of(29)
}

/// Runs a job.
pub(crate) async fn handle(job: &JobRecord, ctx: &Ctx) -> Outcome {
    match job.kind.as_str() {
        POISON => std::process::abort(),
        RACE => return races::handle(job, ctx).await,
        FLAKY if ctx.attempt() == 1 => return Outcome::retry("not at the first attempt"),
        SLEEPY if job.snoozes == 0 => return Outcome::Snooze(Duration::from_millis(100)),
        SLOW => tokio::time::sleep(Duration::from_millis(400)).await,
        _ => tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await,
    }
    Outcome::Done
}
