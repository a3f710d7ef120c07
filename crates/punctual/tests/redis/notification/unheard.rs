//! A network that swallows notifications: a job starts within the time that a lost one may cost.

use std::time::{Duration, Instant};

use super::super::{
    network::{Route, STALL},
    proxy::{Weather, Whom},
};

/// A notification that is lost costs this at most; a minute, and a second for the rest.
const START_MAX: Duration = Duration::from_secs(61);
/// How much later a slow machine may be at it.
const SLOW: Duration = Duration::from_secs(20);
/// Jobs that are handed over one after another until one is met.
const JOBS_MAX: u32 = 100;
/// Nothing but a fault takes so long.
const FELT: Duration = Duration::from_secs(10);

/// A job that comes now starts in time. Answers how long it took until it was done.
async fn starts_in_time(route: &Route) -> Duration {
    let begin = Instant::now();
    route.drill.push(1).await;
    route.drill.drained().await;
    let took = begin.elapsed();
    assert!(took < START_MAX + SLOW, "{took:?}");
    took
}

/// Every job starts in time, until one was met by the fault: a worker may have been on its way to look by itself.
async fn all_start_in_time(route: &Route) {
    let mut slowest = Duration::ZERO;
    for _ in 0..JOBS_MAX {
        slowest = slowest.max(starts_in_time(route).await);
        if FELT < slowest {
            break;
        }
    }
    println!("slowest: done {} ms after it was handed over", slowest.as_millis());
}

/// The workers are idle, and only their notifications are out of reach: they arrive late.
async fn stalled() {
    let route = Route::idle("notifications stalled for 20 s").await;
    route.proxy.set(Weather::Stall, Whom::Notifications);
    let heal = async {
        tokio::time::sleep(STALL).await;
        route.proxy.set(Weather::Fair, Whom::All);
    };
    tokio::join!(all_start_in_time(&route), heal);
    starts_in_time(&route).await;
    route.drill.rest(1).await;
}

/// The same, and no notification ever arrives.
async fn void() {
    let route = Route::idle("notifications fell silent for ever").await;
    route.proxy.set(Weather::Void, Whom::Notifications);
    all_start_in_time(&route).await;
    route.proxy.set(Weather::Fair, Whom::All);
    starts_in_time(&route).await;
    route.drill.rest(1).await;
}

/// Both at once, since they do little but wait: the longest of the tests of Redis, so its name is among the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rings_that_a_network_swallows_cost_a_minute_at_most() {
    tokio::join!(stalled(), void());
}
