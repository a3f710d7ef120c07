//! Whoever waits notices what one that died has left behind, although waiting costs nothing.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use punctual::{
    When,
    store::{CallId, QueueRequest, Reserve, Store},
};

use super::{
    console::Console,
    drill::{Drill, QUEUE},
    open,
    server::Server,
    until_blocked,
};

const LEASE: Duration = Duration::from_millis(1500);
/// From then on until the job is done by somebody else.
const NOTICE_MAX: Duration = Duration::from_secs(5);
/// How much later a slow machine may be at it.
const SLOW: Duration = Duration::from_secs(10);
/// More than two, of which some are told nothing.
const WORKERS: [usize; 2] = [1, 4];
/// Far longer than it takes to listen to another queue, too.
const QUIET: Duration = Duration::from_millis(500);
const LOOKS_MAX: u32 = 60;
const LONG: Duration = Duration::from_mins(5);

fn want(number: u64) -> Reserve {
    let queues = vec![QueueRequest { queue: QUEUE.into(), share: 1, at_most: 1 }];
    Reserve {
        call: CallId { instance: 1, number },
        worker: "dead".into(),
        queues,
        n: 1,
        lease: Some(LEASE),
        company: false,
    }
}

/// What the one that dies does with the job before.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Reserves it, and never settles.
    Reserve,
    /// Hears of it.
    Hear,
    /// Hears that it is due in this time.
    HearEarly(Duration),
}

/// The one that dies waits for longest, so that it hears of the job first; the workers wait, too, and were told that there
/// is nothing.
async fn left_behind(deed: Deed, workers: usize) {
    let server = Server::start(&[]);
    let url = server.url();
    let mut drill = Drill::begin("left behind", &url).await;
    let dead = open(&url).await;
    let queues = [QUEUE.to_owned()];
    let mut wait = pin!(dead.wait(&queues, LONG));
    tokio::select! {
        _ = &mut wait => panic!("nobody notified"),
        () = until_blocked(&server, 1) => {}
    }
    drill.work(workers, &url).await;
    until_blocked(&server, 1 + workers).await;
    // A worker may have begun to wait for something else: what is notified before it listens to the queue, too, is not for it.
    let mut console = Console::open(&server.socket()).unwrap();
    assert!(console.until_quiet(QUIET, LOOKS_MAX).unwrap(), "the workers do not come to rest");
    let begin = Instant::now();
    let ends = match deed {
        Deed::Reserve => {
            drill.push(1).await;
            wait.await.unwrap();
            assert_eq!(dead.reserve(&want(1)).await.unwrap().jobs.len(), 1);
            LEASE
        }
        Deed::Hear => {
            drill.push(1).await;
            wait.await.unwrap();
            Duration::ZERO
        }
        Deed::HearEarly(due) => {
            drill.push_with(1, |job| job.run_at = When::In(due)).await;
            due
        }
    };
    drill.drained().await;
    let late = begin.elapsed().saturating_sub(ends);
    println!("{deed:?}, {workers} others: done {} ms after the end", late.as_millis());
    assert!(late < NOTICE_MAX + SLOW, "{deed:?}, {workers} others: {late:?}");
    drill.rest(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_reclaim_the_lease_of_one_that_died() {
    for workers in WORKERS {
        left_behind(Deed::Reserve, workers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_do_what_one_that_died_was_told_of() {
    for workers in WORKERS {
        left_behind(Deed::Hear, workers).await;
        left_behind(Deed::HearEarly(LEASE), workers).await;
    }
}
