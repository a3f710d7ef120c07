//! Somebody deletes the bells on the server while workers wait for them: a ring is a hint, and no job depends on it. Whoever
//! looks next finds what is due: at the next ring, or at the latest ten minutes later, when a worker looks by itself. (Only
//! hands, and nothing that fails, take all rings away at once: waiting for that is not tested here.)

mod unheard;

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::{console::Console, drill::Drill, server::Server};

const JOBS_MAX: u32 = 300;
/// Nothing but a lost bell takes so long, for which a spare may be a second late.
const FELT: Duration = Duration::from_secs(5);
/// By then the next ring has helped.
const START_MAX: Duration = Duration::from_secs(7);
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
        // Often while the workers are on their way from a reserve to a wait, when the ring lies on the server.
        let begin = Instant::now();
        drill.push(1).await;
        for _ in 0..fastrand::u32(..4) {
            deleted += console.say(&["DEL", &bell]).unwrap().parse::<u64>().unwrap();
        }
        let is_lost = timeout(FELT, drill.drained()).await.is_err();
        if is_lost {
            drill.push(1).await;
            drill.drained().await;
        }
        slowest = slowest.max(begin.elapsed());
        // One that nobody hears of is enough.
        if is_lost {
            break;
        }
    }
    println!("slowest of {}: {} ms", drill.made(), slowest.as_millis());
    assert!(slowest < START_MAX + SLOW, "{slowest:?}");
    drill.rest(deleted).await;
}
