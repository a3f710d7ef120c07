//! Somebody deletes the bells on the server while workers wait for them: a ring is a hint, and no job depends on it.

use std::time::{Duration, Instant};

use super::{console::Console, drill::Drill, server::Server};

const JOBS_MAX: u32 = 300;
/// A bell that is lost costs this at most; a minute, and a second for the rest.
const START_MAX: Duration = Duration::from_secs(61);
/// Nothing but a lost bell takes so long.
const FELT: Duration = Duration::from_secs(30);
/// How much later a slow machine may be at it.
const SLOW: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_start_whose_bells_are_deleted() {
    let server = Server::start(&[]);
    let url = server.url();
    let prefix = url.rsplit('=').next().unwrap();
    let mut drill = Drill::begin("bells deleted", &url).await;
    drill.work(2, &url).await;
    let bell = format!("{prefix}:{{0}}:w:{}", super::drill::QUEUE);
    let mut console = Console::open(&server.socket()).unwrap();
    let (mut deleted, mut slowest) = (0, Duration::ZERO);
    for _ in 0..JOBS_MAX {
        // One that nobody hears of is enough: it costs a minute.
        if FELT < slowest {
            break;
        }
        // Often while the workers are on their way from a reserve to a wait, when the ring lies on the server.
        let begin = Instant::now();
        drill.push(1).await;
        for _ in 0..fastrand::u32(..4) {
            deleted += console.say(&["DEL", &bell]).unwrap().parse::<u64>().unwrap();
        }
        drill.drained().await;
        slowest = slowest.max(begin.elapsed());
    }
    println!("slowest of {}: {} ms", drill.made(), slowest.as_millis());
    assert!(slowest < START_MAX + SLOW, "{slowest:?}");
    drill.rest(deleted).await;
}
