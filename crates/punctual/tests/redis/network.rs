//! A network that fails between a store and its server. No call has its effect twice (S3), and a job that comes after the
//! fault starts within the time that a lost bell may cost (contract §7).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use punctual::{
    Client,
    store::{Call, Store},
};

use super::{
    drill::Drill,
    jobs, open,
    proxy::{Proxy, Weather, Whom},
    reserve,
    server::Server,
    until_blocked,
};

const WORKERS: usize = 2;
/// How long a half-open connection stays so: longer than an answer may take (5 s), and than a lease of the drill (2 s).
const STALL: Duration = Duration::from_secs(20);
/// A bell that is lost costs this at most; a minute, and a second for the rest.
const START_MAX: Duration = Duration::from_secs(61);
/// How much later a slow machine may be at it.
const SLOW: Duration = Duration::from_secs(20);
/// Jobs that are handed over one after another until one is met.
const JOBS_MAX: u32 = 100;
/// Nothing but a fault takes so long.
const FELT: Duration = Duration::from_secs(10);
/// How long crumbs fall, or answers are lost.
const WHILE: Duration = Duration::from_secs(5);
/// Between two resets.
const BETWEEN_CUTS: Duration = Duration::from_millis(100);
const CUTS: u64 = 30;

/// A server, the network before it, and whoever works over that.
struct Route {
    proxy: Proxy,
    drill: Drill,
    // Dropped last.
    server: Server,
}

impl Route {
    async fn new(name: &'static str) -> Self {
        let server = Server::start(&[]);
        let url = server.url();
        let prefix = url.rsplit('=').next().unwrap();
        let proxy = Proxy::to(&server.socket()).await.unwrap();
        let mut drill = Drill::begin(name, &url).await;
        drill.work(WORKERS, &proxy.url(prefix)).await;
        Self { proxy, drill, server }
    }

    /// With somebody who hands jobs over, too.
    async fn busy(name: &'static str) -> Self {
        let mut route = Self::new(name).await;
        let prefix = route.drill.store().url().rsplit('=').next().unwrap().to_owned();
        route.drill.produce(2, &route.proxy.url(&prefix)).await;
        route.drill.until_done(50).await;
        route
    }

    /// With workers that have worked, and wait.
    async fn idle(name: &'static str) -> Self {
        let route = Self::new(name).await;
        route.drill.push(50).await;
        route.drill.drained().await;
        until_blocked(&route.server, WORKERS).await;
        route
    }

    /// A job that comes now starts in time. Answers how long it took until it was done.
    async fn starts_in_time(&self) -> Duration {
        let begin = Instant::now();
        self.drill.push(1).await;
        self.drill.drained().await;
        let took = begin.elapsed();
        assert!(took < START_MAX + SLOW, "{took:?}");
        took
    }

    /// Every job starts in time, until one was met by the fault: a worker may have been on its way to look by itself.
    async fn all_start_in_time(&self) {
        let mut slowest = Duration::ZERO;
        for _ in 0..JOBS_MAX {
            slowest = slowest.max(self.starts_in_time().await);
            if FELT < slowest {
                break;
            }
        }
        println!("slowest: done {} ms after it was handed over", slowest.as_millis());
    }
}

/// Everything is out of reach for a while.
async fn stalled() {
    let route = Route::busy("both connections stalled for 20 s").await;
    route.proxy.set(Weather::Stall, Whom::All);
    tokio::time::sleep(STALL).await;
    route.proxy.set(Weather::Fair, Whom::All);
    route.drill.rest(1).await;
}

/// The workers are idle, and only their bells are out of reach: what rings is heard late.
async fn bells_stalled() {
    let route = Route::idle("bells stalled for 20 s").await;
    route.proxy.set(Weather::Stall, Whom::Bells);
    let heal = async {
        tokio::time::sleep(STALL).await;
        route.proxy.set(Weather::Fair, Whom::All);
    };
    tokio::join!(route.all_start_in_time(), heal);
    route.starts_in_time().await;
    route.drill.rest(1).await;
}

/// The same, and what rings is never heard.
async fn bells_void() {
    let route = Route::idle("bells fell silent for ever").await;
    route.proxy.set(Weather::Void, Whom::Bells);
    route.all_start_in_time().await;
    route.proxy.set(Weather::Fair, Whom::All);
    route.starts_in_time().await;
    route.drill.rest(1).await;
}

/// All at once, since they do little but wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_given_up_and_jobs_start_within_a_minute() {
    tokio::join!(stalled(), bells_stalled(), bells_void());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_all_the_time_lose_nothing() {
    let route = Route::busy("all connections cut").await;
    for _ in 0..CUTS {
        tokio::time::sleep(BETWEEN_CUTS).await;
        route.proxy.cut();
    }
    route.drill.rest(CUTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_arrive_byte_by_byte_are_put_together() {
    let route = Route::busy("answers in crumbs").await;
    route.proxy.set(Weather::Crumble, Whom::All);
    tokio::time::sleep(WHILE).await;
    route.drill.until_done(50).await;
    route.proxy.set(Weather::Fair, Whom::All);
    route.drill.rest(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_have_their_effect_once() {
    let route = Route::busy("one answer in 20 lost").await;
    route.proxy.set(Weather::Lose(20), Whom::All);
    tokio::time::sleep(WHILE).await;
    route.proxy.set(Weather::Fair, Whom::All);
    let lost = route.proxy.lost();
    assert_ne!(lost, 0);
    route.drill.rest(lost).await;
}

/// S3: the same call again after its answer was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_repeated_after_its_answer_was_lost_has_one_effect() {
    const CALLS: u64 = 30;
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.socket()).await.unwrap();
    let store = open(&proxy.url("t")).await;
    let client = Client::new(Arc::clone(&store) as Arc<dyn Store>);
    let mut fences = std::collections::BTreeSet::new();
    for number in 1..=CALLS {
        let jobs = jobs(&client, 1);
        let call = Call { instance: 7, number };
        proxy.set(Weather::Lose(1), Whom::All);
        let error = store.enqueue(call, &jobs).await.unwrap_err();
        assert!(error.is_repeatable(), "{error:?}");
        let error = store.reserve(&reserve(number, 1)).await.unwrap_err();
        assert!(error.is_repeatable(), "{error:?}");
        proxy.set(Weather::Fair, Whom::All);
        let answer = store.enqueue(call, &jobs).await.unwrap()[0];
        assert_eq!(answer.id(), Some(jobs[0].id));
        let batch = store.reserve(&reserve(number, 1)).await.unwrap();
        assert_eq!(batch.jobs.len(), 1);
        assert!(fences.insert(batch.jobs[0].lease.fence));
        let counts = store.count(None).await.unwrap();
        assert_eq!((counts.running, counts.total()), (number, number));
    }
    println!("answers lost: {CALLS} jobs, {} answers lost, each there once and reserved once", proxy.lost());
}
