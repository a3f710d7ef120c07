//! Waiting costs nothing but the block that is issued again once a minute. The registrations of workers are off here: each is a
//! look at the clock and a write every 15 s, which a test of the worker counts.

use std::{collections::BTreeMap, time::Duration};

use punctual::When;

use super::{
    console::{Console, calls},
    drill::Drill,
    server::Server,
    until_blocked,
};

/// How long is looked; the drill `punctual-chaos idle` looks longer.
const WHILE: Duration = Duration::from_secs(5);
/// Longer than the second notification comes after the first.
const QUIET: Duration = Duration::from_millis(1_500);
/// How often is looked whether they rest.
const LOOKS_MAX: u32 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_send_nothing() {
    for workers in [1, 20] {
        for job_in_an_hour in [false, true] {
            let server = Server::start(&[]);
            let url = server.url();
            let mut drill = Drill::begin("idle", &url).await;
            drill.registers = false;
            if job_in_an_hour {
                drill.push_with(1, |job| job.run_at = When::In(Duration::from_hours(1))).await;
            }
            drill.work(workers, &url).await;
            let mut console = Console::open(&server.socket()).unwrap();
            until_blocked(&server, workers).await;
            assert!(console.until_quiet(QUIET, LOOKS_MAX).unwrap(), "{workers} workers never rest");
            tokio::time::sleep(WHILE).await;
            let mut seen = calls(&console.say(&["INFO", "commandstats"]).unwrap());
            seen.remove("config|resetstat");
            println!("{workers} idle workers, a job in an hour: {job_in_an_hour}, {WHILE:?}: {seen:?}");
            // A block that a slow start put off may fall into the time.
            let blocks = seen.remove("bzpopmin").unwrap_or(0);
            assert!(blocks <= workers as u64, "{blocks} blocks");
            // Each block ends with a look whether somebody left a notification and died.
            let looks = seen.remove("hget").unwrap_or(0);
            assert!(looks <= workers as u64, "{looks} looks");
            assert_eq!(seen, BTreeMap::new());
        }
    }
}
