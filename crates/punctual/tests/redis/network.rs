//! A network that fails between a store and its server: no call has its effect twice (S3). What it does to notifications is shown with
//! them.

use std::{sync::Arc, time::Duration};

use punctual::{
    Client,
    store::{CallId, Store},
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
pub(super) const STALL: Duration = Duration::from_secs(20);
/// How long crumbs fall, or answers are lost.
const WHILE: Duration = Duration::from_secs(5);
/// Between two resets.
const BETWEEN_CUTS: Duration = Duration::from_millis(100);
const CUTS: u64 = 30;

/// A server, the network before it, and whoever works over that.
pub(super) struct Route {
    pub(super) proxy: Proxy,
    pub(super) drill: Drill,
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
    pub(super) async fn idle(name: &'static str) -> Self {
        let route = Self::new(name).await;
        route.drill.push(50).await;
        route.drill.drained().await;
        until_blocked(&route.server, WORKERS).await;
        route
    }
}

/// Everything is out of reach for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_given_up() {
    let route = Route::busy("both connections stalled for 20 s").await;
    route.proxy.set(Weather::Stall, Whom::All);
    tokio::time::sleep(STALL).await;
    route.proxy.set(Weather::Fair, Whom::All);
    route.drill.rest(1).await;
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

/// S3: the same call again after its answer was lost. With two shards, the one that answers does not hide the jobs of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_repeated_after_its_answer_was_lost_has_one_effect() {
    const CALLS: u64 = 30;
    for shards in [1, 2] {
        let server = Server::start(&[]);
        let proxy = Proxy::to(&server.socket()).await.unwrap();
        let store = open(&proxy.url("t")).await;
        store.reshard(shards).await.unwrap();
        let client = Client::new(Arc::clone(&store) as Arc<dyn Store>);
        let mut fences = std::collections::BTreeSet::new();
        for number in 1..=CALLS {
            let jobs = jobs(&client, 1);
            let call = CallId { instance: 7, number };
            proxy.set(Weather::Lose(1), Whom::All);
            let error = store.enqueue(call, &jobs).await.unwrap_err();
            assert!(error.is_repeatable(), "{error:?}");
            proxy.set(Weather::Fair, Whom::All);
            let answer = loop {
                match store.enqueue(call, &jobs).await {
                    // Its shard is not connected again yet.
                    Err(error) if error.is_repeatable() => tokio::task::yield_now().await,
                    answer => break answer.unwrap().remove(0),
                }
            };
            assert_eq!(answer.id(), Some(jobs[0].id));
            proxy.set(Weather::Lose(1), Whom::All);
            let error = store.reserve(&reserve(number, 1)).await.unwrap_err();
            assert!(error.is_repeatable(), "{error:?}");
            proxy.set(Weather::Fair, Whom::All);
            let batch = store.reserve(&reserve(number, 1)).await.unwrap();
            assert_eq!(batch.jobs.len(), 1, "reserve {number} with {shards} shards");
            assert!(fences.insert(batch.jobs[0].lease));
            let counts = store.count(None).await.unwrap();
            assert_eq!((counts.running, counts.total()), (number, number));
        }
        println!(
            "answers lost: {CALLS} jobs in {shards} shards, {} answers lost, each there once and reserved once",
            proxy.lost()
        );
    }
}
