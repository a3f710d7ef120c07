//! What only the store on Redis has to show: a server that forgets, refuses, stalls or is full, a network that fails, notifications,
//! and what is not ours.

#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

#[path = "../support/console.rs"]
mod console;
#[path = "../support/damage.rs"]
mod damaged;
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/redis.rs"]
mod server;

mod bounds;
mod clock;
mod corrupt;
mod damage;
mod doctor;
mod drill;
mod due;
mod few;
mod flush;
mod foreign;
mod format;
mod groups;
mod herd;
mod idle;
mod many;
mod memory;
mod network;
mod notification;
mod opening;
mod payload;
mod refusal;
mod registration;
mod scratch;
mod shards;
mod size;
mod tls;
mod tools;
mod user;
mod watch;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use console::Console;
use punctual::{
    Client, ErrorKind, NewJob, Payload, When,
    store::{CallId, Durability, QueueRequest, Reserve, Store, clock::Clock, redis::RedisStore},
};
use server::Server;

/// By then every worker waits.
const BLOCKED_MAX: Duration = Duration::from_mins(1);
/// How often is looked whether they do.
const LOOK: Duration = Duration::from_millis(20);

async fn open(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::open(url, Clock::System).await.unwrap())
}

/// A key of a store's first shard.
fn key(url: &str, name: &str) -> String {
    format!("{}:{{0}}:{name}", url.split_once("prefix=").unwrap().1)
}

/// Waits until so many connections wait for a notification.
async fn until_blocked(server: &Server, n: usize) {
    let mut console = Console::open(&server.socket()).unwrap();
    let (begin, blocked) = (Instant::now(), format!("blocked_clients:{n}\r\n"));
    while !console.say(&["INFO", "clients"]).unwrap().contains(&blocked) {
        assert!(begin.elapsed() < BLOCKED_MAX, "not all {n} workers wait");
        tokio::time::sleep(LOOK).await;
    }
}

fn reserve(number: u64, n: usize) -> Reserve {
    let queues = vec![QueueRequest { queue: "mail".into(), share: n, at_most: n }];
    Reserve {
        call: CallId { instance: 1, number },
        worker: "w".into(),
        queues,
        n,
        lease: None,
        company: false,
    }
}

fn jobs(client: &Client, n: usize) -> Vec<NewJob> {
    let job = || NewJob::new(client.make_id(), "email.send", "mail", Payload::json(vec![b'1'; 10_000]));
    (0..n).map(|_| job()).collect()
}

/// S1: a level that the server can't give is refused instead of pretended.
#[tokio::test]
async fn full_durability_needs_a_server_that_syncs() {
    let url = |server: &Server| server.url() + "&durability=full";
    let error = RedisStore::open(&url(Server::shared()), Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let synced = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    assert_eq!(open(&url(&synced)).await.durability(), Durability::Full);
}

/// S1: a server that syncs once in a second can say when it did, from 7.2 on; one that does not sync confirms nothing.
#[tokio::test]
async fn full_durability_waits_for_a_server_that_syncs_later() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let opened = RedisStore::open(&(server.url() + "&durability=full"), Clock::System).await;
    if !server.knows("waitaof") {
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let store = Arc::new(opened.unwrap());
    assert_eq!(store.durability(), Durability::Full);
    let client = Client::new(store.clone());
    client.push(jobs(&client, 3)).await.unwrap();
    let stats = server.say(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_waitaof"), "{stats}");

    for (number, (name, value)) in (1..).zip([("appendfsync", "no"), ("appendonly", "no")]) {
        server.say(&["CONFIG", "SET", name, value]);
        let refused = store.enqueue(CallId { instance: 1, number }, &jobs(&client, 1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::UnknownOutcome, "{name}: {refused}");
        assert!(refused.to_string().contains("disk"), "{name}: {refused}");
    }
}

/// A job for now wakes who waits, also in another process; so does an earlier one than those that wait.
#[tokio::test]
async fn a_new_job_ends_a_wait() {
    let url = Server::shared().url();
    let (waiting, other) = (open(&url).await, open(&url).await);
    let client = Client::new(other.clone());
    let queues = ["mail".to_owned()];
    for run_at in [When::Now, When::In(Duration::from_millis(30))] {
        assert_eq!(waiting.reserve(&reserve(u64::MAX, 0)).await.unwrap().jobs, []);
        let wait = waiting.wait(&queues, Duration::from_mins(1));
        let enqueue = async {
            let job = NewJob { run_at, ..jobs(&client, 1).remove(0) };
            client.push(vec![job]).await.unwrap();
        };
        let (woken, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(30), wait), enqueue);
        woken.expect("it is notified").unwrap();
        client.queue("mail").purge(|_| ()).await.unwrap();
    }
}

/// What else is on the server is none of our business.
#[tokio::test]
async fn keys_of_others_are_left_alone() {
    let server = Server::start(&[]);
    let (ours, theirs) = (open(&server.url()).await, open(&server.url()).await);
    let client = Client::new(theirs.clone());
    client.push(jobs(&client, 3)).await.unwrap();
    assert_eq!(ours.count(None).await.unwrap().total(), 0);
    assert_eq!(ours.queues(None).await.unwrap(), Vec::<String>::new());
    assert!(ours.sweep(100).await.is_ok());
    assert_eq!(theirs.count(None).await.unwrap().waiting, 3);
}
