//! A part away: one server of a cluster is killed, and with it two of the four shards of a store, while jobs without a key are
//! enqueued at a steady rate, and a worker and a producer start. Counted are the shares of enqueues that were accepted and of
//! jobs that started before the server came back, of those that the other shards hold; afterwards none may be lost.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, Worker,
    store::{clock::Clock, redis::RedisStore},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{drill::Outcome, jobs::QUEUE, profile::Profile, server::Cluster};

const SHARDS: u16 = 4;
/// The server that has the keys of these shards.
const AWAY: usize = 1;
const SHARDS_AWAY: [u16; 2] = [1, 2];
/// Enqueues in one go, and between two goes: 2,000 a second.
const AT_ONCE: usize = 10;
const BETWEEN: Duration = Duration::from_millis(5);
/// How long enqueues go on before the server is killed.
const BEFORE: Duration = Duration::from_secs(2);
/// The least share, in percent, that goes on while the server is away.
const SHARE_MIN: usize = 90;
/// How long before the server's return a job must be accepted to be one that has to start before it.
const TO_START: Duration = Duration::from_secs(1);
/// How long everything may take to end once the server is back.
const DRAIN_MAX: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);
const SLOTS: usize = 50;

/// When something happened, by the id of the job.
#[derive(Clone, Debug, Default)]
struct Times(Arc<Mutex<BTreeMap<JobId, Instant>>>);

impl Times {
    fn note(&self, ids: impl IntoIterator<Item = JobId>) {
        let (mut times, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        for id in ids {
            times.entry(id).or_insert(now);
        }
    }

    fn all(&self) -> BTreeMap<JobId, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs it; answers whether all went as it must.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(drill(profile))
}

async fn drill(profile: &Profile) -> Outcome<bool> {
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_with([0, 0, 0], &options);
    let url = cluster.url();
    let store = Arc::new(RedisStore::open(&url, Clock::System).await?);
    store.reshard(SHARDS).await?;
    let client = Client::new(store);
    let (started, accepted) = (Times::default(), Times::default());
    let enough = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    start_worker(&url, &started, &mut workers).await?;
    let producing = tokio::spawn(produce(client, accepted.clone(), Arc::clone(&enough)));
    sleep(BEFORE).await;

    cluster.servers[AWAY].kill();
    let killed = Instant::now();
    eprintln!("server {AWAY} is killed, and with it shards {SHARDS_AWAY:?} of {SHARDS}");
    // Who starts meanwhile works, too.
    start_worker(&url, &started, &mut workers).await?;
    let has_pushed = match &profile.program {
        Some(program) => {
            let mut push = Command::new(program);
            push.args(["push", "part", "1", "--queue", QUEUE, "--store", &url]);
            tokio::task::spawn_blocking(move || push.status()).await??.success()
        }
        None => true,
    };
    sleep(profile.watch.saturating_sub(killed.elapsed())).await;
    let back = Instant::now();
    cluster.servers[AWAY].restart();
    eprintln!("it is back after {:.1} s", (back - killed).as_secs_f64());
    sleep(BEFORE).await;
    enough.store(true, Ordering::Relaxed);
    let asked = producing.await?;

    let begin = Instant::now();
    let missing = || {
        let started = started.all();
        accepted.all().keys().filter(|id| !started.contains_key(id)).count()
    };
    while 0 < missing() && begin.elapsed() < DRAIN_MAX {
        sleep(LOOK).await;
    }
    let lost = missing();
    if let Some(ended) = workers.try_join_next() {
        ended??;
        return Err("a worker ended by itself".into());
    }
    workers.abort_all();

    let (accepted, started) = (accepted.all(), started.all());
    let asked = asked.iter().filter(|at| (killed..back).contains(*at)).count();
    let came = accepted.values().filter(|at| (killed..back).contains(*at)).count();
    let held = |(id, at): &(&JobId, &Instant)| {
        killed <= **at && **at + TO_START < back && !SHARDS_AWAY.contains(&id.shard())
    };
    let held: Vec<_> = accepted.iter().filter(held).collect();
    let ran = held.iter().filter(|(id, _)| started.get(id).is_some_and(|at| *at < back)).count();
    let share = |part: usize, whole: usize| 100 * part / whole.max(1);
    let (of_enqueues, of_jobs) = (share(came, asked), share(ran, held.len()));
    eprintln!(
        "{came} of {asked} enqueues accepted meanwhile ({of_enqueues} %); of {} jobs that other shards held, {ran} started \
         meanwhile ({of_jobs} %); a program that pushed meanwhile: {has_pushed}; {} jobs in all, {lost} lost",
        held.len(),
        accepted.len()
    );
    Ok(0 < asked && SHARE_MIN <= of_enqueues && SHARE_MIN <= of_jobs && has_pushed && lost == 0)
}

/// Starts a worker with a store of its own.
async fn start_worker(
    url: &str,
    started: &Times,
    workers: &mut JoinSet<punctual::Result<()>>,
) -> Outcome<()> {
    let client = Client::new(Arc::new(RedisStore::open(url, Clock::System).await?));
    let started = started.clone();
    let worker = Worker::new(&client).queue(QUEUE).slots(SLOTS).handle_raw(move |job: JobRecord, _: Ctx| {
        started.note([job.id]);
        async {}
    });
    workers.spawn(async move { worker.run().await.map(drop) });
    Ok(())
}

/// Enqueues jobs at a steady rate, whether those before were accepted or not; answers when each was asked for. A call that
/// failed is not repeated: the client itself has gone on for as long as it does.
async fn produce(client: Client, accepted: Times, enough: Arc<AtomicBool>) -> Vec<Instant> {
    let (mut asked, mut calls, mut pace) = (Vec::new(), JoinSet::new(), interval(BETWEEN));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !enough.load(Ordering::Relaxed) {
        pace.tick().await;
        for _ in 0..AT_ONCE {
            asked.push(Instant::now());
            let (client, accepted) = (client.clone(), accepted.clone());
            calls.spawn(async move {
                let job = NewJob::new(client.make_id(), "part", QUEUE, Payload::json("1"));
                if let Ok(answers) = client.push(vec![job]).await {
                    accepted.note(answers.iter().filter_map(punctual::store::Enqueued::id));
                }
            });
        }
        while calls.try_join_next().is_some() {}
    }
    calls.join_all().await;
    asked
}
