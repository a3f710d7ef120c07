//! Many jobs that are due in one and the same millisecond, and several workers after them: all are done, once each.

use std::time::Duration;

use punctual::{When, store::Store};

use super::{drill::Drill, server::Server};

const JOBS: u32 = 20_000;
/// By then all jobs have been handed over, also on a slow machine; if not, the rest is due at once.
const AHEAD: Duration = Duration::from_secs(10);
const WORKERS: usize = 4;
const LEASE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_due_in_the_same_millisecond_are_done_once_each() {
    let server = Server::start(&[]);
    let url = server.url();
    let mut drill = Drill::begin("20,000 jobs due at once", &url).await;
    let due = When::At(drill.store().now().await.unwrap().after(AHEAD));
    // No lease is lost, however slow the machine is.
    drill.lease = LEASE;
    drill.work(WORKERS, &url).await;
    drill.push_with(JOBS, |job| job.run_at = due).await;
    let figures = drill.rest(0).await;
    assert_eq!(figures.verdict.duplicated.explained, 0, "{}", figures.verdict);
}
