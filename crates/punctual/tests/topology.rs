//! The store on Redis where there is more than one server: they die and take over from each other, and keys move between
//! them, while jobs run.

#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

#[path = "topology/lost.rs"]
mod lost;
#[path = "topology/outage.rs"]
mod outage;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/redis.rs"]
mod server;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use proxy::{Proxy, Weather, Whom};
use punctual::{
    Client, Error, ErrorKind, JobId, NewJob, Payload, State,
    job::IdMaker,
    store::{
        CallId, CheckLevel, Durability, Heartbeat, LeaseStatus, QueueRequest, Reserve, Settled, Settlement,
        Store, Take, Verdict, clock::Clock, redis::RedisStore,
    },
    toolkit::Bucket,
};
use server::{Cluster, Sentinels, Server};
use tokio::time::{sleep, timeout};

/// How long servers may take to sort themselves out.
const TAKE_OVER_MAX: Duration = Duration::from_secs(30);
/// Between two calls of a client that is told to come back later.
const LATER: Duration = Duration::from_millis(20);
/// The slot of the keys of shard 0.
const SLOT: u16 = 13_907;
/// When ids were made.
const NOW_MS: u64 = 1_800_000_000_000;

async fn open(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::open(url, Clock::System).await.unwrap())
}

/// Somebody who makes jobs and runs them, call by call.
struct Hand {
    store: Arc<RedisStore>,
    ids: IdMaker,
    instance: u64,
    calls: u64,
}

impl Hand {
    fn new(store: &Arc<RedisStore>, instance: u64) -> Self {
        Self { store: Arc::clone(store), ids: IdMaker::default(), instance, calls: 0 }
    }

    fn next_call(&mut self) -> CallId {
        self.calls += 1;
        CallId { instance: self.instance, number: self.calls }
    }

    fn jobs(&mut self, n: usize) -> Vec<NewJob> {
        let mut make = || self.ids.make(NOW_MS, 0, fastrand::u64(..));
        (0..n).map(|_| NewJob::new(make(), "email.send", "mail", Payload::json("1"))).collect()
    }

    /// Enqueues jobs; answers their ids.
    async fn enqueue(&mut self, n: usize) -> Result<Vec<JobId>, Error> {
        let (call, jobs) = (self.next_call(), self.jobs(n));
        let answers = self.store.enqueue(call, &jobs).await?;
        Ok(answers.iter().map(|answer| answer.id().unwrap()).collect())
    }

    /// The same, repeated while the error says that this is right.
    async fn enqueue_at_last(&mut self, n: usize) -> Vec<JobId> {
        let (call, jobs) = (self.next_call(), self.jobs(n));
        let store = Arc::clone(&self.store);
        at_last(async || store.enqueue(call, &jobs).await).await;
        jobs.iter().map(|job| job.id).collect()
    }

    fn want(&mut self, n: usize) -> Reserve {
        let queues = vec![QueueRequest { queue: "mail".into(), share: n, at_most: n }];
        Reserve { call: self.next_call(), worker: "w".into(), queues, n, lease: None, company: false }
    }

    /// Reserves up to so many jobs and settles them; answers their ids.
    async fn run(&mut self, n: usize) -> Result<Vec<JobId>, Error> {
        let want = self.want(n);
        let batch = self.store.reserve(&want).await?;
        let ack = |reserved: &punctual::store::Reserved| Settlement {
            lease: reserved.lease,
            verdict: Verdict::Ack,
        };
        let acks: Vec<_> = batch.jobs.iter().map(ack).collect();
        let (settled, _) = self.store.settle(&acks, None).await?;
        assert!(settled.iter().all(|settled| matches!(settled, Settled::Settled(..))));
        Ok(batch.jobs.iter().map(|reserved| reserved.job.id).collect())
    }
}

/// Repeats a call while its error says that this is right.
async fn at_last<T>(call: impl AsyncFn() -> Result<T, Error>) -> T {
    let begin = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.is_repeatable(), "{error:?}");
                assert!(begin.elapsed() < TAKE_OVER_MAX, "{error:?}");
                sleep(LATER).await;
            }
        }
    }
}

/// A wait that hears a job of somebody else.
async fn a_job_ends_a_wait(waiting: &Arc<RedisStore>, other: &mut Hand) {
    let queues = ["mail".to_owned()];
    let (wait, enqueue) = (waiting.wait(&queues, Duration::from_mins(1)), other.enqueue(1));
    let (woken, enqueued) = tokio::join!(timeout(TAKE_OVER_MAX, wait), enqueue);
    woken.unwrap().unwrap();
    assert_eq!(enqueued.unwrap().len(), 1);
}

// ── sentinels ──

/// S1, S2: another server takes over when the primary of a service is killed, and the store goes on there, with its notifications.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_follows_a_service_to_its_new_primary() {
    let mut service = Sentinels::start(2, &[]);
    let url = service.url();
    let store = open(&url).await;
    let mut hand = Hand::new(&store, 1);
    let before: BTreeSet<_> = hand.enqueue(20).await.unwrap().into_iter().collect();
    for replica in &service.servers[1..] {
        replica.until_says(&["DBSIZE"], |size| size == service.servers[0].say(&["DBSIZE"]));
    }
    let other = open(&url).await;
    // One that waits while it happens comes back to look.
    let waiting = tokio::spawn(async move { other.wait(&["bulk".to_owned()], Duration::from_mins(1)).await });
    service.servers[0].until_says(&["INFO", "clients"], |info| info.contains("blocked_clients:1\r\n"));

    service.servers[0].kill();
    let after = hand.enqueue_at_last(1).await;
    assert_ne!(service.primary(), Some(0));
    timeout(TAKE_OVER_MAX, waiting).await.unwrap().unwrap().unwrap();

    let ran: BTreeSet<_> = hand.run(100).await.unwrap().into_iter().collect();
    assert!(before.is_subset(&ran) && ran.contains(&after[0]));
    a_job_ends_a_wait(&open(&url).await, &mut hand).await;
}

/// A sentinel that is gone, or knows nothing, is no obstacle as long as another one knows.
#[tokio::test]
async fn one_sentinel_of_several_is_enough() {
    let mut service = Sentinels::start(0, &[]);
    let stranger = Server::listening(&[]);
    service.sentinels[0].kill();
    let url = service.url().replace('@', &format!("@127.0.0.1:{},", stranger.port()));
    let store = open(&url).await;
    assert_eq!(Hand::new(&store, 1).enqueue(1).await.unwrap().len(), 1);

    let error = RedisStore::open(&url.replace("/jobs", "/other"), Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    for sentinel in &mut service.sentinels[1..] {
        sentinel.kill();
    }
    // Who is connected needs no sentinel.
    assert_eq!(Hand::new(&store, 2).enqueue(1).await.unwrap().len(), 1);
    let error = RedisStore::open(&service.url(), Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

/// S1: what was acknowledged as replicated survives the loss of the primary, and the store goes on with what is left.
#[tokio::test]
async fn what_was_acknowledged_survives_a_failover() {
    let mut service = Sentinels::start(2, &[]);
    let url = service.url();
    let store = open(&(url.clone() + "&durability=replicated(2)")).await;
    assert_eq!(store.durability(), Durability::Replicated);
    let mut hand = Hand::new(&store, 1);
    let (kill, killing) = tokio::sync::oneshot::channel();
    let kill_it = tokio::task::spawn_blocking(move || {
        killing.blocking_recv().unwrap();
        service.servers[0].kill();
        service
    });
    let (mut kill, mut acknowledged) = (Some(kill), Vec::new());
    while let Ok(some) = hand.enqueue(10).await {
        acknowledged.extend(some);
        if 200 <= acknowledged.len()
            && let Some(kill) = kill.take()
        {
            kill.send(()).unwrap();
        }
    }
    let _service = kill_it.await.unwrap();
    let url = url + "&durability=replicated(1)";
    let store = at_last(async || RedisStore::open(&url, Clock::System).await).await;
    for id in &acknowledged {
        assert!(store.get(*id).await.unwrap().is_some(), "{id}");
    }
    let mut hand = Hand::new(&Arc::new(store), 2);
    let after = hand.enqueue_at_last(1).await;
    // How many were acknowledged before the kill came depends on the machine.
    let mut ran = BTreeSet::new();
    loop {
        let some = hand.run(1_000).await.unwrap();
        if some.is_empty() {
            break;
        }
        ran.extend(some);
    }
    assert!(acknowledged.iter().chain(&after).all(|id| ran.contains(id)));
}

/// S1: a primary that has lost its replicas to another one, and has not heard of it, keeps nobody: what it can't confirm is
/// confirmed by the other one.
#[tokio::test]
async fn a_primary_without_its_replicas_is_left_for_the_one_that_the_sentinels_name() {
    let service = Sentinels::start(2, &[]);
    let store = open(&(service.url() + "&durability=replicated(1)")).await;
    let mut hand = Hand::new(&store, 1);
    hand.enqueue(3).await.unwrap();
    let lease = store.reserve(&hand.want(1)).await.unwrap().jobs[0].lease;
    assert_eq!(store.extend(&[lease.into()]).await.unwrap(), [LeaseStatus::Held]);
    service.servers[0].until_replicated();

    service.replace_unheard(1);
    let (call, jobs) = (hand.next_call(), hand.jobs(1));
    let error = store.enqueue(call, &jobs).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error:?}");
    let answers = store.enqueue(call, &jobs).await.unwrap();
    assert_eq!(answers[0].id(), Some(jobs[0].id));
    // Heartbeats go there, too: the one that was left would still say that the lease is held.
    let ack = [Settlement { lease, verdict: Verdict::Ack }];
    assert_eq!(store.settle(&ack, None).await.unwrap().0, [Settled::Settled(State::Done, None)]);
    assert_eq!(store.extend(&[lease.into()]).await.unwrap(), [LeaseStatus::Lost]);
    assert!(service.servers[0].is_primary(), "nobody told it");
    assert_eq!(hand.run(10).await.unwrap().len(), 3);
}

// ── replicas ──

/// S1: a write that too few replicas have has no `Ok`; as soon as they are back, the same call answers what it did.
#[tokio::test]
async fn a_write_that_is_not_replicated_is_not_acknowledged() {
    let primary = Server::listening(&[]);
    let url = primary.url();
    let (one, two) = (url.clone() + "&durability=replicated(1)", url + "&durability=replicated(2)");
    // They may come later.
    let error = RedisStore::open(&one, Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let replica = Server::listening(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    primary.until_says(&["INFO", "replication"], |info| info.contains("state=online"));
    let error = RedisStore::open(&two, Clock::System).await.unwrap_err();
    assert!(error.to_string().contains("has 1 replicas"), "{error}");

    let store = open(&one).await;
    let mut hand = Hand::new(&store, 1);
    hand.enqueue(3).await.unwrap();
    assert_eq!(replica.say(&["DBSIZE"]), primary.say(&["DBSIZE"]));

    let reserved = store.reserve(&hand.want(1)).await.unwrap().jobs.remove(0);
    replica.freeze();
    let (call, jobs) = (hand.next_call(), hand.jobs(1));
    let error = store.enqueue(call, &jobs).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error:?}");
    assert!(error.hint().is_some());
    // Nobody runs a job of which a replica that takes over would not know; who runs one keeps it meanwhile.
    let want = hand.want(1);
    let held =
        async { while store.extend(&[reserved.lease.into()]).await.unwrap() != [LeaseStatus::Held] {} };
    tokio::select! {
        biased;
        answer = store.reserve(&want) => panic!("a heartbeat waited for replicas, behind {answer:?}"),
        () = held => {}
    }
    assert_eq!(store.reserve(&want).await.unwrap_err().kind(), ErrorKind::UnknownOutcome);
    let ack = [Settlement { lease: reserved.lease, verdict: Verdict::Ack }];
    assert_eq!(store.settle(&ack, None).await.unwrap_err().kind(), ErrorKind::UnknownOutcome);

    replica.thaw();
    // Also over a connection that wrote nothing yet.
    let other = open(&one).await;
    let answers = at_last(async || other.enqueue(call, &jobs).await).await;
    assert_eq!(answers[0].id(), Some(jobs[0].id));
    assert_eq!(at_last(async || store.settle(&ack, None).await).await.0, [Settled::LeaseLost]);
    assert_eq!(at_last(async || store.reserve(&want).await).await.jobs.len(), 1);
    assert_eq!(store.count(None).await.unwrap().total(), 4);
    assert_eq!(replica.say(&["DBSIZE"]), primary.say(&["DBSIZE"]));
}

/// What was taken is with the caller alone: it reaches the caller also where too few replicas have it.
#[tokio::test]
async fn jobs_taken_while_a_replica_is_away_reach_the_caller() {
    let primary = Server::listening(&[]);
    let replica = Server::listening(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    primary.until_says(&["INFO", "replication"], |info| info.contains("state=online"));
    let store = open(&(primary.url() + "&durability=replicated(1)")).await;
    let mut hand = Hand::new(&store, 1);
    let enqueued = hand.enqueue(3).await.unwrap();
    replica.freeze();
    let mut taken = Vec::new();
    for _ in 0..enqueued.len() {
        let take = Take { queue: "mail".into(), n: 1, older_than: Duration::ZERO };
        taken.extend(store.take(&take).await.into_iter().flatten().map(|job| job.id));
    }
    replica.thaw();
    let done = at_last(async || store.count(None).await).await.done;
    assert_eq!((taken.len(), done), (3, 3), "taken jobs that reached their caller, and all that were");
    assert_eq!(BTreeSet::from_iter(taken), BTreeSet::from_iter(enqueued));
}

// ── clusters ──

/// A shard whose server is gone holds nobody up: what ran in the others is settled, and their jobs go on; its own runs are
/// settled when it is back.
#[tokio::test]
async fn a_shard_that_is_away_holds_up_no_other() {
    let lossless =
        ["--appendonly", "yes", "--appendfsync", "always", "--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_with([0, 0, 0], &lossless);
    let store = open(&cluster.url()).await;
    store.reshard(4).await.unwrap();
    let mut hand = Hand::new(&store, 1);
    let jobs_in = |hand: &mut Hand, shard: u16| -> Vec<NewJob> {
        let jobs = hand.jobs(5);
        jobs.into_iter()
            .map(|job| NewJob { id: hand.ids.make(NOW_MS, shard, fastrand::u64(..)), ..job })
            .collect()
    };
    let mut running = Vec::new();
    for shard in 0..4 {
        let (call, jobs) = (hand.next_call(), jobs_in(&mut hand, shard));
        store.enqueue(call, &jobs).await.unwrap();
    }
    while running.len() < 20 {
        let want = hand.want(20);
        running.extend(store.reserve(&want).await.unwrap().jobs.into_iter().map(|reserved| reserved.lease));
    }
    // Shards 1 and 2 have their keys there.
    cluster.servers[1].kill();
    for shard in [0, 3] {
        let (call, jobs) = (hand.next_call(), jobs_in(&mut hand, shard));
        at_last(async || store.enqueue(call, &jobs).await).await;
    }
    let mut acks: Vec<_> =
        running.into_iter().map(|lease| Settlement { lease, verdict: Verdict::Ack }).collect();
    let mut others = Vec::new();
    while others.len() < 10 {
        let want = hand.want(20);
        let (settled, batch) = at_last(async || store.settle(&acks, Some(&want)).await).await;
        let is_there = |ack: &Settlement| [0, 3].contains(&ack.lease.job.shard());
        for (ack, settled) in acks.iter().zip(settled) {
            if is_there(ack) {
                assert_eq!(settled, Settled::Settled(State::Done, None), "{ack:?}");
            } else {
                assert!(matches!(settled, Settled::Away { .. }), "{ack:?}: {settled:?}");
            }
        }
        acks.retain(|ack| !is_there(ack));
        assert_eq!(acks.len(), 10);
        others.extend(batch.into_iter().flat_map(|batch| batch.jobs));
    }
    let held = store.extend(&[acks[0].lease.into(), others[0].lease.into()]).await.unwrap();
    assert_eq!(held, [LeaseStatus::Away, LeaseStatus::Held]);
    // By now it is known to be away: nothing is sent.
    let (settled, _) = store.settle(&acks, None).await.unwrap();
    assert_eq!(settled, [Settled::Away { sent: false }; 10]);

    cluster.servers[1].restart();
    while !acks.is_empty() {
        let (settled, _) = at_last(async || store.settle(&acks, None).await).await;
        let mut settled = settled.into_iter();
        acks.retain(|_| matches!(settled.next(), Some(Settled::Away { .. })));
    }
    let counts = at_last(async || store.count(None).await).await;
    assert_eq!((counts.done, counts.running), (20, 10));
}

/// A job is in the shard that it was put into, while the present number of shards leads to another one. If that one is away, the
/// lease is still found: at once by the store that reserved it, and by another one in the second shard that it asks.
#[tokio::test]
async fn a_shard_that_is_away_hides_no_lease_of_another() {
    let lossless =
        ["--appendonly", "yes", "--appendfsync", "always", "--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_with([0, 0, 0], &lossless);
    let url = cluster.url();
    let (store, other) = (open(&url).await, open(&url).await);
    let mut hand = Hand::new(&store, 1);
    // All of them are in shard 0. Of four shards, the ids name 1, which is empty.
    let jobs: Vec<NewJob> = hand.jobs(5);
    let jobs: Vec<NewJob> = jobs
        .into_iter()
        .map(|job| NewJob { id: hand.ids.make(NOW_MS, 1, fastrand::u64(..)), ..job })
        .collect();
    let call = hand.next_call();
    store.enqueue(call, &jobs).await.unwrap();
    store.reshard(4).await.unwrap();
    let mut leases = Vec::new();
    while leases.len() < 5 {
        let want = hand.want(5);
        leases.extend(store.reserve(&want).await.unwrap().jobs.into_iter().map(|reserved| reserved.lease));
    }
    cluster.servers[1].kill();
    let beats: Vec<Heartbeat> = leases.iter().map(|lease| (*lease).into()).collect();
    let acks: Vec<_> = leases.iter().map(|&lease| Settlement { lease, verdict: Verdict::Ack }).collect();
    for store in [&store, &other] {
        assert_eq!(at_last(async || store.extend(&beats).await).await, [LeaseStatus::Held; 5]);
    }
    let (settled, _) = at_last(async || other.settle(&acks, None).await).await;
    assert_eq!(settled, [Settled::Settled(State::Done, None); 5]);
    // To a store that has not reserved it, the shard that is away may have a lease that no other shard has.
    let (settled, _) = other.settle(&acks, None).await.unwrap();
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Away { .. })), "{settled:?}");
    assert_eq!(other.extend(&beats).await.unwrap(), [LeaseStatus::Away; 5]);
    // The one that has reserved it knows better, until the lease is over.
    assert_eq!(store.settle(&acks[..2], None).await.unwrap().0, [Settled::LeaseLost; 2]);
    assert_eq!(store.extend(&beats[2..]).await.unwrap(), [LeaseStatus::Lost; 3]);
    let (settled, _) = store.settle(&acks, None).await.unwrap();
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Away { .. })), "{settled:?}");
}

/// Keys that moved away since the last call are found where they are now.
#[tokio::test]
async fn the_store_follows_its_keys() {
    let cluster = Cluster::start(0);
    let store = open(&cluster.url()).await;
    let mut hand = Hand::new(&store, 1);
    let mut enqueued: BTreeSet<_> = hand.enqueue(5).await.unwrap().into_iter().collect();
    // Its keys have bytes in their names that no line of text could tell.
    let board = Client::new(store.clone()).leaderboard("hot").last(2, Bucket::Hour);
    for (from, to) in [(2, 0), (0, 1), (1, 2)] {
        board.add("post", 1).await.unwrap();
        cluster.begin_move(SLOT, from, to);
        while 0 < cluster.move_keys(SLOT, from, to, 100) {}
        cluster.end_move(SLOT, to);
        enqueued.extend(hand.enqueue(5).await.unwrap());
    }
    let ran: BTreeSet<_> = hand.run(100).await.unwrap().into_iter().collect();
    assert_eq!(ran, enqueued);
    assert_eq!(board.add("post", 1).await.unwrap(), Some(4));
}

/// A node accepts no key that is too long for it. The doctor says so before the move, and what it says helps.
#[tokio::test]
async fn a_shard_that_is_too_large_to_move_is_told_before() {
    let cluster = Cluster::start_with([0; 3], &["--proto-max-bulk-len", "1mb"]);
    let url = cluster.url();
    let store = open(&url).await;
    let size = async || {
        let checks = store.doctor().await.unwrap();
        checks.into_iter().find(|check| check.name == "size").unwrap()
    };
    let before = size().await;
    assert_eq!((before.level, before.text.contains("can move")), (CheckLevel::Ok, true), "{before:?}");
    let mut hand = Hand::new(&store, 1);
    let mut jobs = hand.jobs(12);
    for job in &mut jobs {
        // Servers compress what they send.
        let text: String = std::iter::repeat_with(fastrand::alphanumeric).take(100 << 10).collect();
        job.payload = Payload::json(format!("\"{text}\""));
    }
    // Fewer bytes than a call may have.
    for jobs in jobs.chunks(6) {
        store.enqueue(hand.next_call(), jobs).await.unwrap();
    }
    let now = size().await;
    assert_eq!((now.level, now.text.contains("stops half-way")), (CheckLevel::Warn, true), "{now:?}");

    cluster.begin_move(SLOT, 2, 0);
    let key = format!("{}:{{0}}:b", url.rsplit_once("prefix=").unwrap().1);
    let port = cluster.servers[0].port().to_string();
    let said = cluster.servers[2].say(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
    assert!(!["OK", "NOKEY"].contains(&&*said), "{said}");
    for server in &cluster.servers[..3] {
        server.say(&["CONFIG", "SET", "proto-max-bulk-len", "8gb"]);
    }
    while 0 < cluster.move_keys(SLOT, 2, 0, 100) {}
    cluster.end_move(SLOT, 0);
    let after = size().await;
    assert_eq!(after.level, CheckLevel::Ok, "{after:?}");
    // One call returns no more than a mebibyte.
    let ran = hand.run(20).await.unwrap().len() + hand.run(20).await.unwrap().len();
    assert_eq!(ran, 12);
}

/// While keys are on their way calls wait, and nobody hears of it.
#[tokio::test]
async fn keys_move_while_jobs_run() {
    let cluster = Cluster::start(0);
    let url = cluster.url();
    // First who enqueues stops, then who runs jobs.
    let (stop, mut stopped) = tokio::sync::watch::channel(0);
    let store = open(&url).await;
    let producer = {
        let (mut hand, stop) = (Hand::new(&store, 1), stop.subscribe());
        tokio::spawn(async move {
            let mut enqueued = Vec::new();
            while *stop.borrow() == 0 {
                enqueued.extend(hand.enqueue(3).await.unwrap());
            }
            enqueued
        })
    };
    let worker = {
        let store = open(&url).await;
        let (mut hand, waiting) = (Hand::new(&store, 2), Arc::clone(&store));
        tokio::spawn(async move {
            let mut ran = Vec::new();
            loop {
                let is_over = *stopped.borrow_and_update() == 2;
                let some = hand.run(50).await.unwrap();
                if some.is_empty() {
                    if is_over {
                        return ran;
                    }
                    waiting.wait(&["mail".to_owned()], LATER).await.unwrap();
                }
                ran.extend(some);
            }
        })
    };
    let moves = tokio::task::spawn_blocking(move || {
        for (from, to) in [(2, 0), (0, 1), (1, 2), (2, 1)] {
            let (old, new) = (&cluster.servers[from], &cluster.servers[to]);
            let refuses = |server: &Server, code: &str| {
                let errors = format!("errorstat_{code}:");
                server.until_says(&["INFO", "errorstats"], |info| info.contains(&errors));
            };
            old.say(&["CONFIG", "RESETSTAT"]);
            new.say(&["CONFIG", "RESETSTAT"]);
            cluster.begin_move(SLOT, from, to);
            refuses(old, "TRYAGAIN");
            while 0 < cluster.move_keys(SLOT, from, to, 3) {}
            // Only who has none of the keys left names the other one.
            refuses(old, "ASK");
            refuses(new, "TRYAGAIN");
            cluster.end_move(SLOT, to);
            refuses(old, "MOVED");
        }
        cluster
    });
    let _cluster = timeout(TAKE_OVER_MAX, moves).await.unwrap().unwrap();
    stop.send(1).unwrap();
    let enqueued = producer.await.unwrap();
    stop.send(2).unwrap();
    let ran = worker.await.unwrap();
    assert!(!enqueued.is_empty());
    assert_eq!(ran.len(), enqueued.len(), "each ran once");
    assert_eq!(BTreeSet::from_iter(ran), BTreeSet::from_iter(enqueued));
}

/// A key that is alone in its command is asked for where it will be.
#[tokio::test]
async fn a_single_key_on_its_way_is_asked_for() {
    let cluster = Cluster::start(0);
    let store = open(&cluster.url()).await;
    let mut hand = Hand::new(&store, 1);
    hand.enqueue(1).await.unwrap();
    cluster.begin_move(SLOT, 2, 0);
    while 0 < cluster.move_keys(SLOT, 2, 0, 100) {}
    assert_eq!(store.queues(None).await.unwrap(), ["mail"]);
    cluster.end_move(SLOT, 0);
    assert_eq!(hand.run(10).await.unwrap().len(), 1);
}

/// S1: keys that stay on their way, or that nobody has, are no more than a store that can't be reached now.
#[tokio::test]
async fn what_lasts_too_long_is_a_typed_error() {
    let cluster = Cluster::start(0);
    let store = open(&cluster.url()).await;
    let mut hand = Hand::new(&store, 1);
    hand.enqueue(1).await.unwrap();
    cluster.begin_move(SLOT, 2, 0);
    let error = hand.enqueue(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    for code in ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"] {
        assert!(!format!("{error:?}{error}").contains(code), "{error:?}");
    }
    assert!(error.hint().is_some());
    while 0 < cluster.move_keys(SLOT, 2, 0, 100) {}
    cluster.end_move(SLOT, 0);
    assert_eq!(hand.run(10).await.unwrap().len(), 1);
}

/// S1, S2: a replica takes over the keys of a primary that is killed.
#[tokio::test]
async fn the_store_follows_its_keys_to_a_replica() {
    let mut cluster = Cluster::start(1);
    let url = cluster.url();
    let store = open(&url).await;
    let mut hand = Hand::new(&store, 1);
    let before = hand.enqueue(10).await.unwrap();
    cluster.servers[3].until_says(&["DBSIZE"], |size| size == cluster.servers[2].say(&["DBSIZE"]));
    cluster.servers[2].kill();
    let after = hand.enqueue_at_last(1).await;
    let ran: BTreeSet<_> = hand.run(100).await.unwrap().into_iter().collect();
    assert_eq!(ran, before.into_iter().chain(after).collect());
    a_job_ends_a_wait(&open(&url).await, &mut hand).await;
}

/// The doctor has nothing against a cluster that is named as one.
#[tokio::test]
async fn the_doctor_knows_a_cluster() {
    let checks = open(&Cluster::shared().url()).await.doctor().await.unwrap();
    assert!(checks.iter().all(|check| check.level != CheckLevel::Fail), "{checks:#?}");
    let role = checks.iter().find(|check| check.name == "role").unwrap();
    assert!(role.text.contains("primary"), "{role:?}");
}

/// The doctor looks at the servers of all shards, at each once, and tells which of them are not well, be they away.
#[tokio::test]
async fn the_doctor_looks_at_every_server() {
    let mut cluster =
        Cluster::start_with([0, 0, 0], &["--appendonly", "yes", "--cluster-require-full-coverage", "no"]);
    let store = open(&cluster.url()).await;
    store.reshard(4).await.unwrap();
    let complaints = async |store: &RedisStore| -> Vec<(String, String)> {
        let checks = store.doctor().await.unwrap();
        checks
            .into_iter()
            .filter(|check| check.level == CheckLevel::Fail)
            .map(|check| (check.name.into_owned(), check.text))
            .collect()
    };
    assert_eq!(complaints(&store).await, []);
    let checks = store.doctor().await.unwrap();
    let shards = checks.iter().find(|check| check.name == "shards").unwrap();
    assert_eq!(shards.text, "4 shards may hold jobs, on 3 servers");
    // Shards 1 and 2 have their keys there.
    cluster.servers[1].say(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let told = complaints(&store).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "eviction");
    assert!(told[0].1.starts_with("shard 1: maxmemory-policy is allkeys-lru"), "{told:?}");
    cluster.servers[1].kill();
    let told = complaints(&store).await;
    assert_eq!(told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["server"], "{told:?}");
    assert!(told[0].1.starts_with("shards 1, 2: cannot be checked: "), "{told:?}");
}

/// Who takes a server of a cluster for one that stands alone is told, and the other way round.
#[tokio::test]
async fn the_wrong_kind_of_address_is_told() {
    let cluster = Cluster::shared();
    let (member, alone) = (cluster.servers[0].port(), Server::listening(&[]));
    let url = format!("redis://127.0.0.1:{member}");
    let error = RedisStore::open(&url, Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("redis+cluster://"), "{error:?}");
    let url = format!("redis+cluster://127.0.0.1:{}", alone.port());
    let error = RedisStore::open(&url, Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("redis://"), "{error:?}");
}

/// S1: a server that was found without its replica, and has become one, is not asked for ever.
#[tokio::test]
async fn a_shard_follows_its_keys_from_a_server_without_replicas() {
    let cluster = Cluster::start_with([0, 1, 1], &[]);
    // It has the keys of shard 1.
    let (primary, replica) = (&cluster.servers[1], &cluster.servers[3]);
    let url = cluster.url() + "&durability=replicated(1)";
    open(&url).await.reshard(2).await.unwrap();
    // The replica can't come back before it takes over.
    primary.say(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
    primary.say(&["CLIENT", "KILL", "TYPE", "replica"]);
    primary.until_says(&["INFO", "replication"], |info| info.contains("connected_slaves:0"));
    let store = open(&url).await;
    replica.until_says(&["CLUSTER", "FAILOVER", "TAKEOVER"], |said| said == "OK");
    primary.until_says(&["ROLE"], |role| role.starts_with("slave"));
    replica.until_has_replicas(1);
    assert_eq!(at_last(async || store.shards().await).await.count, 2);
}

/// S1: a change of shards goes on while replicas take over from their primaries: what a server refuses as a replica goes to the
/// one that has the keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_shards_follows_a_failover() {
    let cluster = Cluster::start_with([1, 1, 1], &[]);
    let url = cluster.url() + "&durability=replicated(1)";
    open(&url).await.reshard(4).await.unwrap();
    let (over, mut is_over) = tokio::sync::watch::channel(false);
    let taking_over = tokio::task::spawn_blocking(move || {
        for _ in 0..2 {
            for at in [2, 0, 1] {
                // A primary and its replica stand three apart.
                let (primary, replica) =
                    if cluster.servers[at].is_primary() { (at, at + 3) } else { (at + 3, at) };
                cluster.servers[replica]
                    .until_says(&["CLUSTER", "FAILOVER", "TAKEOVER"], |said| said == "OK");
                cluster.servers[primary].until_says(&["ROLE"], |role| role.starts_with("slave"));
                cluster.servers[replica].until_has_replicas(1);
            }
        }
        over.send(true).unwrap();
        cluster
    });
    let mut changes = 0;
    while !*is_over.borrow_and_update() || changes == 0 {
        for shards in [3, 4] {
            // Each asks anew where the servers are.
            let store = at_last(async || RedisStore::open(&url, Clock::System).await).await;
            store.reshard(shards).await.unwrap();
            changes += 1;
        }
    }
    let _cluster = taking_over.await.unwrap();
    let store = at_last(async || RedisStore::open(&url, Clock::System).await).await;
    assert_eq!(at_last(async || store.shards().await).await.count, 4);
    println!("{changes} changes of shards");
}
