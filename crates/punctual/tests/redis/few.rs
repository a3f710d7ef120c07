//! How many scripts a job costs, counted by the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use punctual::{
    Client, Ctx, JobRecord, NewJob, Payload, Timestamp, Worker,
    store::{
        Store,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    console::{Console, calls},
    open,
    server::Server,
    until_blocked,
};

const JOBS: u64 = 40;
/// The enqueue, the reserve, and the settle that reserves again: 3, and one more where a job's last script is counted with the next
/// job. Where nothing is remembered of shards, 64 of them cost about 40.
const SCRIPTS_A_JOB: u64 = 4;
const RUN_MAX: Duration = Duration::from_mins(1);
/// Longer than the second notification comes after the first.
const QUIET: Duration = Duration::from_millis(1_500);
const LOOKS_MAX: u32 = 40;
/// Since when the number of shards is what it is.
const SINCE: Duration = Duration::from_hours(1);

/// The scripts that half of all jobs cost at most, one job after another, with one worker that waits for them: half, since now and
/// then a job meets a look into all shards, which a worker owes to time and not to jobs. Without the scripts of the views of the last
/// hour, of which a worker sends some once a second: each reads the score of at least one name, which nothing else does.
async fn scripts(shards: u16) -> u64 {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    if 1 < shards {
        // Long ago: what was enqueued just before a change is looked for where it was put.
        let now = store.now().await.unwrap().as_ms();
        let then = Timestamp::from_ms(now - SINCE.as_millis() as u64).unwrap();
        let clock = Clock::Manual(ManualClock::new(then));
        RedisStore::open(&url, clock).await.unwrap().reshard(shards).await.unwrap();
    }
    let store = open(&url).await;
    let (done, end) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
    let counted = Arc::clone(&done);
    let handle = move |_: JobRecord, _: Ctx| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    };
    let worker = Worker::new(&Client::new(open(&url).await)).queue("mail").register(false).handle_raw(handle);
    let working = tokio::spawn(worker.run_until(end.clone()));
    let client = Client::new(store);
    let push = async || {
        let before = done.load(Ordering::Relaxed);
        client
            .push(vec![NewJob::new(client.make_id(), "email.send", "mail", Payload::json("1"))])
            .await
            .unwrap();
        let begin = Instant::now();
        while done.load(Ordering::Relaxed) == before {
            assert!(begin.elapsed() < RUN_MAX, "a job does not run");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    until_blocked(&server, shards.into()).await;
    // Every shard knows the queue, the client its settings there, and the server all scripts.
    for _ in 0..2 * shards {
        push().await;
    }
    let mut console = Console::open(&server.socket()).unwrap();
    assert!(console.until_quiet(QUIET, LOOKS_MAX).unwrap(), "the worker never rests");
    let mut sent = || {
        let seen = calls(&console.say(&["INFO", "commandstats"]).unwrap());
        let of = |name| seen.get(name).copied().unwrap_or_default();
        of("evalsha").saturating_sub(of("zscore"))
    };
    let (mut each, mut before) = (Vec::new(), sent());
    for _ in 0..JOBS {
        push().await;
        let now = sent();
        each.push(now.saturating_sub(before));
        before = now;
    }
    end.cancel();
    working.await.unwrap().unwrap();
    println!("{shards} shards, {JOBS} jobs one after another, scripts of each: {each:?}");
    each.sort_unstable();
    each[JOBS as usize / 2]
}

/// A single job costs no more scripts with many shards than with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_job_costs_few_scripts_at_any_number_of_shards() {
    for shards in [1, 64] {
        let scripts = scripts(shards).await;
        assert!(scripts <= SCRIPTS_A_JOB, "{shards} shards: {scripts} scripts for half of all jobs");
    }
}
