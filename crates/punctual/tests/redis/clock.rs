//! The store's clock is stepped by an hour, forth and back, while jobs run and others wait.
//!
//! libfaketime can't stand below a server of Debian's (its allocator asks for the time before the library is ready), so
//! the library sends the time, which the scripts follow as they do the server's own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual::{
    Timestamp, When,
    store::clock::{Clock, ManualClock},
};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{
    drill::{Drill, LONG},
    server::Server,
};

const HOUR: Duration = Duration::from_hours(1);
const HOUR_MS: i64 = 3_600_000;
/// How often the clock is turned on.
const TICK: Duration = Duration::from_millis(20);
/// The most that it is turned on at once. A process that did not run for seconds, within those for which nothing is
/// reclaimed, would lose its leases, as it should. So the clock catches up slowly, and the heartbeats that are due come first.
const TURN_MS_MAX: u64 = 30;
/// Long jobs, which run while the clock is stepped, and are held by several heartbeats.
const LONG_JOBS: u32 = 10;
/// Extended every 2 s, more than once in the 5 s for which nothing is reclaimed, also by a slow machine.
const LEASE: Duration = Duration::from_secs(6);
/// Jobs for half an hour later.
const LATER_JOBS: u32 = 20;
/// How long the store's clock stays stepped: longer than the 5 s for which nothing is reclaimed.
const STEPPED: Duration = Duration::from_secs(7);

/// A clock that runs as the system's, but never leaps; stepped by hand.
struct Stepped {
    clock: ManualClock,
    ahead: watch::Sender<i64>,
    /// The time without steps, in milliseconds.
    shown: watch::Receiver<u64>,
    _ticking: AbortOnDropHandle<()>,
}

impl Stepped {
    fn start() -> Self {
        let (show, shown) = watch::channel(system_ms());
        let (ahead, stepped) = watch::channel(0);
        let clock = ManualClock::new(Timestamp::saturating_from_ms(*shown.borrow()));
        let ticking = clock.clone();
        let ticking = tokio::spawn(async move {
            loop {
                let now = system_ms().min(*show.borrow() + TURN_MS_MAX);
                ticking.set(Timestamp::saturating_from_ms(now.saturating_add_signed(*stepped.borrow())));
                show.send_replace(now);
                tokio::time::sleep(TICK).await;
            }
        });
        Self { clock, ahead, shown, _ticking: AbortOnDropHandle::new(ticking) }
    }

    /// Steps the clock, within a [`TICK`].
    fn step(&self, ahead_ms: i64) {
        self.ahead.send_replace(ahead_ms);
    }

    /// Waits until the clock has gone on for [`STEPPED`].
    async fn stay(&mut self) {
        let until = *self.shown.borrow() + STEPPED.as_millis() as u64;
        self.shown.wait_for(|shown| until < *shown).await.unwrap();
    }
}

fn system_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Steps the clock so, and then far enough ahead that everything is due; stays for a while at each step.
async fn stepped(name: &'static str, url: &str, steps_ms: [i64; 2]) {
    let mut clock = Stepped::start();
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
        clock.stay().await;
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
