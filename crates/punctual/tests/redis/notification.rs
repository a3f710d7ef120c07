//! Somebody deletes the notification keys on the server while workers wait for them: a notification is a hint, and no job depends on it. Whoever
//! looks next finds what is due: at the next notification, or at the latest ten minutes later, when a worker looks by itself. (Only
//! hands, and nothing that fails, take all notifications away at once: waiting for that is not tested here.)

mod unheard;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use punctual::{
    Client,
    store::{Heartbeat, Lease, LeaseStatus, QueueRequest, Reserve, Settlement, Store, Verdict},
};
use tokio::time::timeout;

use super::{console::Console, drill::Drill, jobs, open, reserve, server::Server};

const JOBS_MAX: u32 = 300;
/// Nothing but a lost notification takes so long, for which a spare may be a second late.
const FELT: Duration = Duration::from_secs(5);
/// By then the next notification has helped.
const START_MAX: Duration = Duration::from_secs(7);
/// How many notifications an enqueue may leave for a queue without a worker, with some for a slow machine.
const NOTIFICATIONS_LEFT_MAX: usize = 10;
/// How much later a slow machine may be at it.
const SLOW: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_start_whose_notifications_are_deleted() {
    let server = Server::start(&[]);
    let url = server.url();
    let prefix = url.rsplit('=').next().unwrap();
    let mut drill = Drill::begin("notifications deleted", &url).await;
    drill.work(2, &url).await;
    let key = format!("{prefix}:{{0}}:w:{}", super::drill::QUEUE);
    let mut console = Console::open(&server.socket()).unwrap();
    let (mut deleted, mut slowest) = (0, Duration::ZERO);
    for _ in 0..JOBS_MAX {
        // Often while the workers are on their way from a reserve to a wait, when the notification lies on the server.
        let begin = Instant::now();
        drill.push(1).await;
        for _ in 0..fastrand::u32(..4) {
            deleted += console.say(&["DEL", &key]).unwrap().parse::<u64>().unwrap();
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

/// A script that leaves a notification to its caller leaves word of it on the server, where those look whom nobody rang for a minute: the
/// caller may die in between.
#[tokio::test]
async fn a_ring_that_is_left_to_its_caller_leaves_a_trace() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let client = punctual::Client::new(store.clone());
    client.push(jobs(&client, 1)).await.unwrap();
    let lease: Lease = store.reserve(&reserve(1, 1)).await.unwrap().jobs[0].lease;
    let state = super::key(&url, "s");
    assert_eq!(server.say(&["HGET", &state, "left"]), "", "the reserve named the key itself");
    let before = store.now().await.unwrap();
    let release = [Settlement { lease, verdict: Verdict::Release }];
    drop(store.settle(&release, None).await.unwrap());
    let left: u64 = server.say(&["HGET", &state, "left"]).parse().unwrap_or_default();
    assert!(before.as_ms() <= left, "a settle names no keys, and left {left}");
}

/// Replicas have the same name, if it is given by hand. Any of them may run the job.
#[tokio::test]
async fn a_cancel_is_told_to_all_workers_of_the_name() {
    const WORKERS: usize = 8;
    let server = Server::start(&[]);
    let url = server.url();
    let drill = open(&url).await;
    let client = Client::new(Arc::clone(&drill) as Arc<dyn Store>);
    client.push(jobs(&client, 1)).await.unwrap();
    let job = drill.reserve(&reserve(1, 1)).await.unwrap().jobs[0].job.id;
    let mut stores = Vec::new();
    for _ in 0..WORKERS {
        stores.push(open(&url).await);
    }
    let name = ["$worker/w".to_owned()];
    let waits = stores.iter().map(|store| timeout(SLOW, store.wait(&name, 4 * SLOW)));
    let cancel = async {
        super::until_blocked(&server, WORKERS).await;
        client.cancel(job).await.unwrap();
    };
    let (told, ()) = tokio::join!(join_all(waits), cancel);
    assert_eq!(told.iter().filter(|told| told.is_ok()).count(), WORKERS);
}

/// S9: who waits for the end of a lease is told that it ends earlier.
#[tokio::test]
async fn a_lease_that_was_made_shorter_ends_a_wait() {
    let server = Server::start(&[]);
    let url = server.url();
    let (store, other) = (open(&url).await, open(&url).await);
    let client = punctual::Client::new(store.clone());
    client.push(jobs(&client, 1)).await.unwrap();
    let long = Reserve { lease: Some(Duration::from_hours(1)), ..reserve(1, 1) };
    let lease = store.reserve(&long).await.unwrap().jobs[0].lease;
    let next_due = store.reserve(&reserve(2, 1)).await.unwrap().next_due.unwrap();
    assert!(
        (Duration::from_mins(23)..=Duration::from_mins(24)).contains(&next_due),
        "two fifths of the lease: {next_due:?}"
    );
    let queues = ["mail".to_owned()];
    // Notifications of the enqueue may be left: the first one and its spare.
    for _ in 0..NOTIFICATIONS_LEFT_MAX {
        if timeout(Duration::from_millis(500), store.wait(&queues, Duration::from_mins(10))).await.is_err() {
            break;
        }
    }
    let wait = timeout(SLOW, store.wait(&queues, Duration::from_mins(10)));
    let beats = [Heartbeat { lasts: Some(Duration::from_secs(1)), ..lease.into() }];
    let (woken, extended) = tokio::join!(wait, other.extend(&beats));
    assert_eq!(extended.unwrap(), [LeaseStatus::Held]);
    woken.expect("the lease needs calls, or has ended").unwrap();
    let mut number = 3;
    while store.reserve(&reserve(number, 1)).await.unwrap().reclaimed.is_empty() {
        number += 1;
        assert!(number < 100, "a second has at most some waits");
        timeout(SLOW, store.wait(&queues, Duration::from_mins(10)))
            .await
            .expect("it needs calls, or has ended")
            .unwrap();
    }
}

/// S9: a process that makes leases shorter may be killed right afterwards: the script itself notifies those who wait, in all queues.
#[tokio::test]
async fn leases_that_were_made_shorter_leave_no_notification_to_their_caller() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let client = punctual::Client::new(store.clone());
    let queues = ["mail", "push"];
    let job = |queue: &&str| punctual::NewJob { queue: (*queue).to_owned(), ..jobs(&client, 1).remove(0) };
    client.push(queues.iter().map(job).collect()).await.unwrap();
    let long = Reserve { lease: Some(Duration::from_hours(1)), ..reserve(1, 1) };
    let mut beats = Vec::new();
    for (n, queue) in (1..).zip(queues) {
        let request = QueueRequest { queue: queue.to_owned(), ..long.queues[0].clone() };
        let want = Reserve { queues: vec![request], call: reserve(n, 1).call, ..long.clone() };
        let lease = store.reserve(&want).await.unwrap().jobs[0].lease;
        beats.push(Heartbeat { lasts: Some(Duration::from_secs(1)), ..lease.into() });
    }
    // Left by the enqueues, and by the reserves for the ends of their leases.
    let notified = |queue: &str| format!("{}:{{0}}:w:{queue}", url.rsplit('=').next().unwrap());
    for queue in queues {
        server.say(&["DEL", &notified(queue)]);
    }
    assert_eq!(store.extend(&beats).await.unwrap(), [LeaseStatus::Held; 2]);
    assert_eq!(
        server.say(&["HGET", &super::key(&url, "s"), "left"]),
        "",
        "a notification is left to the caller"
    );
    let until = client.get(beats[0].lease.job).await.unwrap().unwrap().running.unwrap().until.as_ms();
    for queue in queues {
        let at = server.say(&["ZSCORE", &notified(queue), "t"]).parse::<u64>().unwrap_or_default();
        assert!(
            (1..=until + 1_000).contains(&at),
            "{queue} is notified at {at}, and its lease ends at {until}"
        );
    }
}
