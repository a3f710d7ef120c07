//! The store's clock is stepped by an hour, forth and back, while jobs run and others wait.
//!
//! libfaketime can't stand below a server of Debian's (its allocator asks for the time before the library is ready), so
//! the library sends the time, which the scripts follow as they do the server's own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual::{
    Timestamp, When,
    store::clock::{Clock, ManualClock},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    drill::{Drill, LONG},
    server::Server,
};

const HOUR: Duration = Duration::from_hours(1);
const HOUR_MS: i64 = 3_600_000;
/// How often the clock is turned on.
const TICK: Duration = Duration::from_millis(20);
/// Long jobs, which run while the clock is stepped, and are held by several heartbeats.
const LONG_JOBS: u32 = 10;
/// Extended every 2 s, more than once in the 5 s for which nothing is reclaimed, also by a slow machine.
const LEASE: Duration = Duration::from_secs(6);
/// Jobs for half an hour later.
const LATER_JOBS: u32 = 20;
/// How long the store's clock stays stepped: longer than the 5 s for which nothing is reclaimed.
const STEPPED: Duration = Duration::from_secs(7);

/// A clock that runs as the system's, stepped by hand.
struct Stepped {
    clock: ManualClock,
    ahead: tokio::sync::watch::Sender<i64>,
    _ticking: AbortOnDropHandle<()>,
}

impl Stepped {
    fn start() -> Self {
        let clock = ManualClock::new(system(0));
        let (ahead, stepped) = tokio::sync::watch::channel(0);
        let ticking = clock.clone();
        let ticking = tokio::spawn(async move {
            loop {
                ticking.set(system(*stepped.borrow()));
                tokio::time::sleep(TICK).await;
            }
        });
        Self { clock, ahead, _ticking: AbortOnDropHandle::new(ticking) }
    }

    fn step(&self, ahead_ms: i64) {
        self.ahead.send_replace(ahead_ms);
        self.clock.set(system(ahead_ms));
    }
}

fn system(ahead_ms: i64) -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    Timestamp::saturating_from_ms(now.saturating_add_signed(ahead_ms))
}

/// Steps the clock so, and then far enough ahead that everything is due; stays for a while at each step.
async fn stepped(name: &'static str, url: &str, steps_ms: [i64; 2]) {
    let clock = Stepped::start();
    let mut drill = Drill::with_clock(name, url, Clock::Manual(clock.clock.clone())).await;
    drill.lease = LEASE;
    drill.work(2, url).await;
    drill.push_with(LONG_JOBS, |job| LONG.clone_into(&mut job.kind)).await;
    drill.push_with(LATER_JOBS, |job| job.run_at = When::In(HOUR / 2)).await;
    drill.produce(1, url).await;
    drill.until_done(50).await;
    drill.clock_steps();
    for step_ms in steps_ms {
        clock.step(step_ms);
        tokio::time::sleep(STEPPED).await;
    }
    clock.step(HOUR_MS);
    let figures = drill.rest(3).await;
    assert_eq!(figures.verdict.duplicated.explained, 0, "{name}: a running job was reclaimed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stepped_clock_takes_no_running_job_back_and_starts_none_early() {
    let server = Server::start(&[]);
    let (ahead, back) = (server.url(), server.url());
    tokio::join!(
        stepped("clock an hour ahead and back", &ahead, [HOUR_MS, 0]),
        stepped("clock an hour back and ahead", &back, [-HOUR_MS, 0]),
    );
}
