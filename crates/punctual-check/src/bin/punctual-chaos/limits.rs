//! Limits under kills: a concurrency key and a rate, both with more to do than they let through, while the workers are killed.
//! By the store's own times no more leases than the limit were ever current at once, and no more jobs started in any time than
//! the rate lets. How much of both was used is told, and not judged: that is the machine's as well.
//!
//! A lease counts from its reservation until it is settled or reclaimed, whoever holds it: that of a killed worker, too.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, Ctx, JobRecord, NewJob, Payload, State, Worker,
    job::{Concurrency, Filter},
    store::{QueueOp, QueueSettings, Rate, url::connect},
};

use crate::{
    crew::Crew,
    drill::{Outcome, Stage},
    jobs::all,
    place::Place,
    profile::Profile,
};

/// Where jobs have one concurrency key, and where a rate holds.
const KEYED: &str = "keyed";
const RATED: &str = "rated";
/// So many of the key at once.
const LIMIT: u32 = 8;
/// So many of these in one worker: the key is always handed over between processes.
const LIMIT_OF_WORKER: usize = 3;
/// How long each of these takes: long beside what a hand-over costs.
const WORK: Duration = Duration::from_millis(100);
const RATE: Rate = Rate { max: 400, period_ms: 1_000, burst: 20 };
/// Between two kills, on average.
const PER_KILL: Duration = Duration::from_millis(400);
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);

// ── the child ──

/// Works until it is killed. Notes when each run was reserved.
pub(crate) async fn work(url: &str, notes: &str, proc: &str, slots: usize, lease: Duration) -> Outcome<()> {
    let notes = Arc::new(fs::File::options().append(true).create(true).open(notes)?);
    let client = Client::new(connect(url).await?);
    Worker::new(&client)
        .name(proc)
        .weighted([(KEYED, 1), (RATED, 1)])
        .slots(slots)
        .queue_slots(KEYED, LIMIT_OF_WORKER)
        .lease(lease)
        .handle_raw(move |job: JobRecord, _: Ctx| {
            let notes = Arc::clone(&notes);
            async move {
                let started = job.started_at.unwrap_or_default();
                // One write, so that no kill leaves half a line.
                (&*notes).write_all(format!("{} {}\n", job.id, started.as_ms()).as_bytes())?;
                if job.queue == KEYED {
                    tokio::time::sleep(WORK).await;
                }
                Ok::<_, std::io::Error>(())
            }
        })
        .run()
        .await?;
    Ok(())
}

// ── the parent ──

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let dir = stage.dir.clone();
    let place = Place::make(&profile.place, &dir);
    stage.runtime.block_on(async {
        let client = Client::new(connect(&place.url).await?);
        let mut rng = Rng::with_seed(profile.seed);
        let settings = QueueSettings { rate: Some(RATE), ..QueueSettings::default() };
        client.store().queue(RATED, &QueueOp::Set(Box::new(settings))).await?;
        enqueue(&client, profile.kills).await?;
        let args = vec![profile.slots.to_string(), profile.lease.as_millis().to_string()];
        let mut crew = Crew::start("limited", &place.url, dir, args, profile.workers)?;
        let busy = Instant::now();
        while client.count(Some(RATED)).await?.done == 0 {
            if PATIENCE < busy.elapsed() {
                return Err("nothing starts".into());
            }
            tokio::time::sleep(LOOK).await;
        }
        // From here on both are at their limits.
        let begin = client.store().now().await?.as_ms();
        for _ in 0..profile.kills {
            tokio::time::sleep(PER_KILL.mul_f64(rng.f64() * 2.0)).await;
            crew.kill(rng.usize(..profile.workers))?;
        }
        let end = client.store().now().await?.as_ms();
        for queue in [KEYED, RATED] {
            if client.count(Some(queue)).await?.waiting == 0 {
                return Err(format!("{queue} ran out of jobs: nothing is shown").into());
            }
            client.queue(queue).pause("punctual-chaos", "it is over").await?;
        }
        crew.stop()?;
        let starts = starts(&crew.notes())?;
        let is_exact = [
            keyed(&all(&client, &Filter::all().queue(KEYED)).await?, &starts, (begin, end), profile.kills)?,
            rated(&all(&client, &Filter::all().queue(RATED)).await?, &starts, (begin, end)),
        ];
        let audit = client.audit(false, |_| ()).await?;
        if !audit.findings.is_empty() {
            eprintln!("BROKEN the audit finds {:?}", audit.findings);
        }
        Ok(is_exact == [true, true] && audit.findings.is_empty())
    })
}

/// More than both limits let through while all kills come.
async fn enqueue(client: &Client, kills: u32) -> Outcome<()> {
    let over = PER_KILL.as_secs_f64() * f64::from(kills) * 1.5 + 10.0;
    let per_second = [(KEYED, f64::from(LIMIT) / WORK.as_secs_f64()), (RATED, f64::from(RATE.max))];
    for (queue, rate) in per_second {
        let job = |_| {
            let job = NewJob::new(client.make_id(), "run", queue, Payload::json("1"));
            let key = || Concurrency { key: "pool".to_owned(), limit: LIMIT };
            NewJob { concurrency: (queue == KEYED).then(key), ..job }
        };
        client.push((0..(rate * over) as u32).map(job).collect()).await?;
    }
    Ok(())
}

/// When each job was reserved for the last time that its worker lived to tell.
fn starts(notes: &[String]) -> Outcome<BTreeMap<String, u64>> {
    let mut starts = BTreeMap::<String, u64>::new();
    for line in notes {
        let (id, at) = line.split_once(' ').ok_or("a note of another kind")?;
        let (last, at): (_, u64) = (starts.entry(id.to_owned()).or_default(), at.parse()?);
        *last = at.max(*last);
    }
    Ok(starts)
}

/// The runs of a job, from reservation to settlement or taking back, by the store's clock; of one that goes on the end is open.
fn runs(job: &JobRecord, starts: &BTreeMap<String, u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> =
        job.failures.iter().map(|failure| (failure.started_ms, failure.ended_ms)).collect();
    match (job.state, job.started_at, job.finished_at) {
        (State::Running, Some(started), _) => runs.push((started.as_ms(), u64::MAX)),
        (State::Done, _, Some(ended)) => {
            runs.extend(starts.get(&job.id.to_string()).map(|at| (*at, ended.as_ms())));
        }
        _ => {}
    }
    runs
}

/// No more leases of the key at once than its limit.
fn keyed(
    jobs: &[JobRecord],
    starts: &BTreeMap<String, u64>,
    (begin, end): (u64, u64),
    kills: u32,
) -> Outcome<bool> {
    let mut events = Vec::new();
    let (mut held_ms, mut reclaimed) = (0, 0);
    for job in jobs {
        reclaimed += job.failures.len();
        for (from, to) in runs(job, starts) {
            // A lease that ends in the millisecond in which another one begins was before it.
            events.extend([(from, 1), (to, -1)]);
            held_ms += to.min(end).saturating_sub(from.max(begin));
        }
    }
    events.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in events {
        now += change;
        most = now.max(most);
    }
    let used = held_ms as f64 / (f64::from(LIMIT) * (end - begin) as f64);
    eprintln!(
        "a concurrency key of {LIMIT}: at most {most} leases at once, {:.1} % of it used over {kills} kills; {reclaimed} reclaimed",
        used * 100.0
    );
    if reclaimed == 0 {
        return Err("no kill met a run: nothing is shown".into());
    }
    Ok(most <= i64::from(LIMIT))
}

/// No more starts in any time than the rate lets.
fn rated(jobs: &[JobRecord], starts: &BTreeMap<String, u64>, (begin, end): (u64, u64)) -> bool {
    let mut at: Vec<u64> = jobs.iter().flat_map(|job| runs(job, starts)).map(|(from, _)| from).collect();
    at.sort_unstable();
    let per_ms = f64::from(RATE.max) / RATE.period_ms as f64;
    // Of the k-th start at t: k − rate × t. What that grows by between any two starts is beyond the rate.
    let (mut lowest, mut burst) = (f64::MAX, 0.0_f64);
    for (k, t) in at.iter().enumerate() {
        let ahead = k as f64 - (t - at[0]) as f64 * per_ms;
        lowest = lowest.min(ahead);
        burst = burst.max(ahead - lowest + 1.0);
    }
    let meanwhile = at.iter().filter(|t| (begin..end).contains(t)).count();
    let used = meanwhile as f64 / ((end - begin) as f64 * per_ms);
    eprintln!(
        "a rate of {} in {} ms, {} at once: {} starts, at most {burst:.1} beyond it in any time, {:.1} % of it used",
        RATE.max,
        RATE.period_ms,
        RATE.burst,
        at.len(),
        used * 100.0
    );
    // Times are told in whole milliseconds: two may seem one nearer than they were.
    burst <= f64::from(RATE.burst) + per_ms
}
