//! One server of a cluster is gone, and with it some shards of a store: what needs none of these goes on.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, Timestamp, Worker,
    store::{
        Enqueued, Store,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Cluster, TAKE_OVER_MAX, open};

const QUEUE: &str = "mail";
pub(super) const SHARDS: u16 = 4;
/// The server that has the keys of shards 1 and 2.
pub(super) const AWAY: usize = 1;
const PRODUCERS: usize = 16;
/// Jobs that must be accepted, and run, while a part is away.
const ENOUGH: usize = 200;
/// Less than a client repeats a call for: nobody waits for a part that is away.
const SOON: Duration = Duration::from_secs(25);

/// Three servers that lose nothing, none of which has a replica.
pub(super) fn cluster() -> Cluster {
    Cluster::start_with(
        [0, 0, 0],
        &["--appendonly", "yes", "--appendfsync", "always", "--cluster-require-full-coverage", "no"],
    )
}

pub(super) fn job(id: JobId) -> NewJob {
    NewJob::new(id, "email.send", QUEUE, Payload::json("1"))
}

/// What ran, by its id.
#[derive(Clone, Debug, Default)]
struct Ran(Arc<Mutex<BTreeSet<JobId>>>);

impl Ran {
    fn all(&self) -> BTreeSet<JobId> {
        self.0.lock().unwrap().clone()
    }

    /// Starts a worker on a store of its own.
    async fn start_worker(&self, url: &str, end: &CancellationToken, tasks: &mut JoinSet<()>) {
        let client = Client::new(open(url).await);
        let (ran, end) = (self.clone(), end.clone());
        let worker = Worker::new(&client).queue(QUEUE).slots(10).handle_raw(move |job: JobRecord, _: Ctx| {
            let ran = ran.clone();
            async move {
                ran.0.lock().unwrap().insert(job.id);
            }
        });
        tasks.spawn(async move {
            worker.run_until(end).await.unwrap();
        });
    }
}

/// Jobs without a key go on being accepted, one call after another, and a worker that starts meanwhile runs those of the shards
/// that are there; when the server is back nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_stops_no_producer_and_no_worker_that_starts() {
    let mut cluster = cluster();
    let url = cluster.url();
    let store = open(&url).await;
    store.reshard(SHARDS).await.unwrap();
    let client = Client::new(store.clone());
    let (accepted, made) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)));
    let enough = CancellationToken::new();
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let (client, accepted, made, enough) =
            (client.clone(), Arc::clone(&accepted), Arc::clone(&made), enough.clone());
        producers.spawn(async move {
            while !enough.is_cancelled() {
                let answers = client.push(vec![job(client.make_id())]).await.unwrap();
                accepted.lock().unwrap().insert(answers[0].id().unwrap());
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let until_made = async |n: usize| {
        while made.load(Ordering::Relaxed) < n {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until_made(ENOUGH).await;
    cluster.servers[AWAY].kill();

    let before = made.load(Ordering::Relaxed);
    let went_on = timeout(SOON, until_made(before + ENOUGH)).await.is_ok();
    let accepted_meanwhile = made.load(Ordering::Relaxed) - before;
    assert!(went_on, "{accepted_meanwhile} of {ENOUGH} jobs were accepted while a server was away");
    let (ran, end, mut workers) = (Ran::default(), CancellationToken::new(), JoinSet::new());
    ran.start_worker(&url, &end, &mut workers).await;
    let until_ran = async || {
        while ran.all().len() < ENOUGH {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let has_run = timeout(SOON, until_ran()).await.is_ok();
    assert!(has_run, "{} of {ENOUGH} jobs ran while a server was away", ran.all().len());

    cluster.servers[AWAY].restart();
    enough.cancel();
    while let Some(ended) = producers.join_next().await {
        ended.unwrap();
    }
    let accepted = accepted.lock().unwrap().clone();
    let all_ran = async {
        while !accepted.is_subset(&ran.all()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let is_whole = timeout(TAKE_OVER_MAX, all_ran).await.is_ok();
    let lost = accepted.difference(&ran.all()).count();
    assert!(is_whole, "{lost} of {} jobs did not run", accepted.len());
    let counts = async {
        loop {
            let counts = store.count(None).await.unwrap();
            if counts.parts_away == 0 {
                return counts;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let counts = timeout(TAKE_OVER_MAX, counts).await.expect("all parts are there again");
    assert_eq!(counts.total(), accepted.len() as u64, "each is there once");
    end.cancel();
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}

/// Who starts during an outage enqueues, looks at a job, and counts; what can't be counted is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_starts_while_a_part_is_away() {
    let mut cluster = cluster();
    let url = cluster.url();
    let store = open(&url).await;
    store.reshard(SHARDS).await.unwrap();
    let client = Client::new(store.clone());
    let jobs = (0..40).map(|_| job(client.make_id())).collect();
    let before = client.push(jobs).await.unwrap();
    // Some name a shard that will be away.
    let made: Vec<_> = (0..8).map(|_| job(client.make_id())).collect();
    cluster.servers[AWAY].kill();

    let late = RedisStore::open(&url, Clock::System).await;
    assert!(late.is_ok(), "a program can't start while a part is away: {late:?}");
    let late = Arc::new(late.unwrap());
    let client = Client::new(late.clone());
    let jobs = (0..40).map(|_| job(client.make_id())).collect();
    let answers = timeout(SOON, client.push(jobs)).await.expect("nobody waits for what is away").unwrap();
    for answer in &answers {
        let id = answer.id().unwrap();
        assert!([0, 3].contains(&id.shard()), "{id} is in shard {}", id.shard());
        assert!(late.get(id).await.unwrap().is_some(), "{id}");
    }
    let there = before.iter().filter(|answer| [0, 3].contains(&answer.id().unwrap().shard())).count() as u64;
    assert_eq!(late.count(None).await.unwrap().waiting, 40 + there);
    // A job with a key must be with the others of its key, and one that has an id where that is looked for; the others do not wait.
    let mut some: Vec<_> = (0..20).map(|_| job(client.make_id())).collect();
    for (n, job) in some.iter_mut().enumerate() {
        job.group = Some(format!("customer {n}"));
    }
    some.extend(made);
    let (held_up, more) = (client.push(some.clone()), client.push(vec![job(client.make_id())]));
    let mut held_up = std::pin::pin!(held_up);
    tokio::select! {
        answers = &mut held_up => panic!("{answers:?}"),
        more = timeout(SOON, more) => assert!(more.expect("it waits for nobody").unwrap()[0].is_new()),
    }
    cluster.servers[AWAY].restart();
    let answers = held_up.await.unwrap();
    assert!(answers.iter().all(Enqueued::is_new), "{answers:?}");
    let again = client.push(some).await.unwrap();
    assert!(
        again.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))),
        "repeated by their ids: {again:?}"
    );
}

/// The server that has the keys of shard 0, and with them the layout of the store.
pub(super) const FIRST: usize = 2;
/// The server that has those of shard 3.
pub(super) const LAST: usize = 0;
/// Longer ago than clocks may be apart: an id that is made now is not looked for where the number of shards before would put it.
pub(super) const EARLIER: Duration = Duration::from_mins(11);

/// A program that starts without shard 0 goes by the latest layout that another shard knows: it enqueues, runs jobs, and goes by the
/// store's own layout when that is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_starts_while_the_server_of_the_first_shard_is_away() {
    let mut cluster = cluster();
    let url = cluster.url();
    let now_ms = Clock::System.now().as_ms();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(now_ms - EARLIER.as_millis() as u64));
    let changer = RedisStore::open(&url, Clock::Manual(clock)).await.unwrap();
    changer.reshard(SHARDS + 1).await.unwrap();
    let state = format!("{}:{{3}}:s", url.rsplit_once("prefix=").unwrap().1);
    let last = |lua: &str| cluster.servers[LAST].say(&["EVAL", lua, "1", &state]);
    last("return redis.call('HSET', KEYS[1], 'older', redis.call('HGET', KEYS[1], 'layout') or '')");
    changer.reshard(SHARDS).await.unwrap();
    // Upkeep leaves a copy where an older version left none.
    last("return redis.call('HDEL', KEYS[1], 'layout', 'pins')");
    open(&url).await.sweep(1).await.unwrap();
    let identity = changer.identity().await.unwrap();
    assert_eq!(last("return redis.call('HEXISTS', KEYS[1], 'layout')"), "1", "shard 3 has a copy again");
    // As if it could not be told of the latest: the others know better.
    last("return redis.call('HSET', KEYS[1], 'layout', redis.call('HGET', KEYS[1], 'older'))");
    cluster.servers[FIRST].kill();

    let opened = timeout(SOON, RedisStore::open(&url, Clock::System)).await.expect("it opens soon");
    assert!(opened.is_ok(), "a program can't start while shard 0 is away: {opened:?}");
    let store = Arc::new(opened.unwrap());
    let client = Client::new(store.clone());
    // Jobs that are forwarded have ids outside of the store which name it.
    let told = timeout(SOON, client.identity()).await.expect("nobody waits for shard 0");
    assert!(told.is_ok(), "nobody knows which store it is: {told:?}");
    assert_eq!(told.unwrap(), identity);
    let mut accepted = BTreeSet::new();
    for _ in 0..ENOUGH / 10 {
        let answers =
            timeout(SOON, client.push(vec![job(client.make_id())])).await.expect("nobody waits for shard 0");
        accepted.insert(answers.unwrap()[0].id().unwrap());
    }
    assert_eq!(accepted.iter().map(|id| id.shard()).collect::<BTreeSet<_>>(), (1..SHARDS).collect());
    let (ran, end, mut workers) = (Ran::default(), CancellationToken::new(), JoinSet::new());
    ran.start_worker(&url, &end, &mut workers).await;
    let all_ran = async {
        while !accepted.is_subset(&ran.all()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let have_run = timeout(SOON, all_ran).await.is_ok();
    assert!(have_run, "{} of {} jobs ran", ran.all().len(), accepted.len());

    cluster.servers[FIRST].restart();
    let back = async {
        while store.shards().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TAKE_OVER_MAX, back).await.expect("it goes by the store's own layout again");
    store.reshard(SHARDS + 1).await.unwrap();
    assert_eq!(client.push(vec![job(client.make_id())]).await.unwrap().len(), 1);
    end.cancel();
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}
