//! Futures of the client that are dropped at each place where they wait: what they leave behind is whole, and what was handed
//! in is there once, or not at all. The table has all public ones: the sources are searched for others.

#![cfg(all(feature = "cron", feature = "derive", feature = "sqlite", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    path::Path,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use punctual::{
    Client, ErrorKind, Job, JobId, NewJob, Payload, Priority,
    job::Filter,
    schedule::Cron,
    store::{
        Action, DocOp, List, Precondition, QueueSettings, Store, UniqueKey, Upcoming,
        clock::Clock,
        memory::MemoryStore,
        sqlite::{SqliteOptions, SqliteStore},
    },
    worker::WorkerOrder,
};

/// More places to wait at than any future here has.
const POLLS_MAX: usize = 256;

type Dropped<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

type Make = for<'a> fn(&'a Client, JobId) -> Dropped<'a>;

/// Drops a future that is not ready after so many polls; whether it was.
async fn at_most(polls: usize, future: impl Future<Output = ()>) -> bool {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        future.as_mut().poll(cx).map(|()| true)
    })
    .await
}

/// A client of each kind of store.
fn clients(folder: &tempfile::TempDir) -> [Client; 2] {
    let sqlite = SqliteStore::open(folder.path().join("jobs.db"), SqliteOptions::default()).unwrap();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new(Clock::System)), Arc::new(sqlite)];
    stores.map(Client::new)
}

fn job(client: &Client) -> NewJob {
    NewJob::new(client.make_id(), "k", "q", Payload::json("{}"))
}

/// Drops what `make` makes at each place where it waits; before each, a fresh job is there to act on.
async fn drop_everywhere(client: &Client, names: &str, make: Make) {
    for polls in 0..POLLS_MAX {
        if names == "audit" {
            let _ = audit(client).await;
        }
        let target = job(client);
        let id = target.id;
        client.push(vec![target]).await.unwrap();
        if at_most(polls, make(client, id)).await {
            return;
        }
    }
    panic!("it is not ready after {POLLS_MAX} polls");
}

/// Audits. Those that were dropped before keep their places in a file for seconds, and others are refused meanwhile.
async fn audit(client: &Client) -> punctual::client::AuditReport {
    loop {
        match client.audit(false, |_| ()).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}

/// Whether counters, indices and records agree.
async fn is_whole(client: &Client) -> bool {
    audit(client).await.findings.is_empty()
}

#[tokio::test]
async fn a_dropped_enqueue_may_be_made_again_with_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    for client in clients(&folder) {
        let mut handed_in = 0;
        for polls in 0..POLLS_MAX {
            let jobs = vec![job(&client), job(&client), job(&client)];
            handed_in += jobs.len() as u64;
            let is_ready = at_most(polls, async {
                client.push(jobs.clone()).await.unwrap();
            })
            .await;
            client.push(jobs).await.unwrap();
            assert_eq!(client.count(None).await.unwrap().total(), handed_in, "dropped after {polls} polls");
            if is_ready {
                break;
            }
        }
        assert!(is_whole(&client).await);
    }
}

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "typed", queue = "q")]
struct Typed {}

/// The functions that a future of the table calls, and the future.
macro_rules! makes {
    ($names:literal, |$client:ident, $id:ident| $body:block) => {
        ($names, |$client, $id| {
            Box::pin(async move {
                let _ = $id;
                $body
            })
        })
    };
}

/// All public asynchronous functions of clients and their handles.
const ALL: &[(&str, Make)] = &[
    makes!("identity", |c, id| {
        c.identity().await.unwrap();
    }),
    makes!("workers worker order_worker", |c, id| {
        let key = "worker/00000000c0ffee00".to_owned();
        let value = br#"{"name":"w","seen_ms":1,"queues":[]}"#.to_vec();
        let put = DocOp::Put { key, precondition: Precondition::Always, value };
        c.store().doc(&put).await.unwrap();
        c.workers(None).await.unwrap();
        assert!(c.worker("00000000c0ffee00").await.unwrap().is_some());
        assert!(c.order_worker("00000000c0ffee00", WorkerOrder::Quiet).await.unwrap().is_some());
    }),
    makes!("cancel", |c, id| {
        let _ = c.cancel(id).await.unwrap();
    }),
    makes!("reschedule", |c, id| {
        let _ = c.reschedule(id, Duration::from_secs(9)).await.unwrap();
    }),
    makes!("run_now", |c, id| {
        let _ = c.run_now(id).await.unwrap();
    }),
    makes!("reprioritise", |c, id| {
        let _ = c.reprioritise(id, Priority::High).await.unwrap();
    }),
    makes!("retry", |c, id| {
        let _ = c.retry(id).await.unwrap();
    }),
    makes!("edit", |c, id| {
        let _ = c.edit(id, Payload::json("1")).await.unwrap();
    }),
    makes!("delete", |c, id| {
        let _ = c.delete(id).await.unwrap();
    }),
    makes!("act", |c, id| {
        let _ = c.act(&[id.into()], &Action::RunNow).await.unwrap();
    }),
    makes!("act_where", |c, id| {
        let _ = c.act_where(&Filter::all(), &Action::Cancel { reason: None }, |_| {}).await.unwrap();
    }),
    makes!("count_where", |c, id| {
        let _ = c.count_where(&Filter::all(), |_| {}).await.unwrap();
    }),
    makes!("audit", |c, id| {
        let _ = c.audit(true, |_| ()).await.unwrap();
    }),
    makes!("push", |c, id| {
        let _ = c.push(vec![job(c)]).await.unwrap();
    }),
    makes!("enqueue", |c, id| {
        let _ = c.enqueue(Typed {}).await.unwrap();
    }),
    makes!("enqueue_many", |c, id| {
        let _ = c.enqueue_many([Typed {}, Typed {}]).await.unwrap();
    }),
    makes!("merge", |c, id| {
        let _ = c.enqueue(Typed {}).rerun("k").merge(|_: Typed, new| new).await.unwrap();
    }),
    makes!("take take_older", |c, id| {
        let _ = c.take("q", 2).await.unwrap();
        let _ = c.take_older("q", 2, Duration::ZERO).await.unwrap();
    }),
    makes!("get holder list count upcoming last_hour", |c, id| {
        let _ = c.get(id).await.unwrap();
        let key =
            UniqueKey { kind: None, queue: "q".into(), group: None, concurrency_key: None, key: "k".into() };
        let _ = c.holder(&key).await.unwrap();
        let _ = c.list(&List { filter: Filter::all(), after: None, limit: 9 }).await.unwrap();
        let _ = c.count(None).await.unwrap();
        let upcoming = Upcoming { queue: None, bucket: Duration::from_secs(1), buckets: 3 };
        let _ = c.upcoming(&upcoming).await.unwrap();
        let _ = c.last_hour(3).await.unwrap();
    }),
    makes!("finished", |c, id| {
        let _ = c.delete(id).await.unwrap();
        let _ = c.finished(id, Duration::from_secs(9)).await.unwrap();
    }),
    makes!("show pause resume", |c, id| {
        let queue = c.queue("q");
        let _ = queue.show().await.unwrap();
        let _ = queue.pause("ana", "why").await.unwrap();
        let _ = queue.resume().await.unwrap();
    }),
    makes!("set update open", |c, id| {
        let queue = c.queue("q");
        let _ = queue.set(QueueSettings::default()).await.unwrap();
        let _ = queue.update(|settings| settings.concurrency = Some(7)).await.unwrap();
        let _ = queue.open(None).await.unwrap();
    }),
    makes!("purge", |c, id| {
        let _ = c.queue("q").purge(|_| ()).await.unwrap();
    }),
    makes!("acquire release", |c, id| {
        let lock = c.lock("l").lease(Duration::from_millis(100));
        let guard = lock.acquire(Duration::from_secs(10)).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }),
    makes!("try_acquire extend holder force_release locks", |c, id| {
        let lock = c.lock("m").lease(Duration::from_millis(100));
        if let Some(guard) = lock.try_acquire().await.unwrap() {
            guard.extend().await.unwrap();
        }
        let _ = lock.holder().await.unwrap();
        let _ = lock.force_release().await.unwrap();
        let _ = c.locks(9).await.unwrap();
    }),
    makes!("check is_allowed", |c, id| {
        let limiter = c.rate_limiter("r", 3, Duration::from_secs(1));
        let _ = limiter.check("ana", 1).await.unwrap();
        let _ = limiter.is_allowed("ana").await.unwrap();
    }),
    makes!("add add_all set remove standing top around size", |c, id| {
        let board = c.leaderboard("b");
        let _ = board.add("ana", 1).await.unwrap();
        let _ = board.add_all([("bo", 2), ("cy", 3)]).await.unwrap();
        let _ = board.set("ana", 9).await.unwrap();
        let _ = board.standing("ana").await.unwrap();
        let _ = board.top(3).await.unwrap();
        let _ = board.around("ana", 3).await.unwrap();
        let _ = board.size().await.unwrap();
        let _ = board.remove("ana").await.unwrap();
    }),
    makes!("subscribe unsubscribe subscriptions", |c, id| {
        c.topic("t").subscribe("q").await.unwrap();
        let _ = c.topic("t").subscriptions().await.unwrap();
        c.topic("t").unsubscribe("q").await.unwrap();
    }),
    makes!("publish push topics get remove", |c, id| {
        let topic = c.topic("t");
        let _ = topic.publish(Typed {}).await.unwrap();
        let _ = topic.push(vec![job(c)]).await.unwrap();
        let _ = topic.get().await.unwrap();
        let _ = c.topics(None).await.unwrap();
        let _ = topic.remove().await.unwrap();
    }),
    makes!("set set_with put get schedules waiting waiting_tick", |c, id| {
        let (schedule, hourly) = (c.schedule("s"), Cron::new("0 * * * *").unwrap());
        let _ = schedule.set(hourly.clone(), Typed {}).await.unwrap();
        let set = schedule.set_with(hourly.clone(), &Typed {}, |_| ()).await.unwrap();
        let _ = schedule.put(set.schedule.clone()).await.unwrap();
        let _ = schedule.get().await.unwrap();
        let _ = c.schedules(None).await.unwrap();
        let _ = schedule.waiting().await.unwrap();
        let _ = c.waiting_tick(&set).await.unwrap();
    }),
    makes!("pause resume fire remove enqueue_ticks", |c, id| {
        let (schedule, hourly) = (c.schedule("s"), Cron::new("0 * * * *").unwrap());
        let _ = schedule.set(hourly, Typed {}).await.unwrap();
        let _ = schedule.pause("ana", "why").await.unwrap();
        let _ = schedule.resume().await.unwrap();
        let _ = schedule.fire().await.unwrap();
        let _ = c.enqueue_ticks().await.unwrap();
        let _ = schedule.remove().await.unwrap();
    }),
];

/// Dropped elsewhere, or without a store of its own: why the table has none of it.
const OTHERS: [(&str, &str); 2] = [
    ("beside", "it only reads, for the server and the command line"),
    ("connect", "it opens a store, and has changed none"),
];

#[tokio::test]
async fn what_is_dropped_leaves_the_store_whole() {
    let folder = tempfile::tempdir().unwrap();
    for client in clients(&folder) {
        for (names, make) in ALL {
            drop_everywhere(&client, names, *make).await;
            assert!(is_whole(&client).await, "{names} on {}", client.store().url());
        }
        // A lock that was left behind is free when its lease has ended.
        assert!(client.lock("l").acquire(Duration::from_secs(10)).await.unwrap().is_some());
    }
}

/// The public asynchronous functions of a folder of the library, and of the file of its name.
fn found(module: &str) -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![source.join(format!("{module}.rs"))];
    let mut folders = vec![source.join(module)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
    let names = |text: String| -> Vec<String> {
        let functions = text.lines().filter_map(|line| line.trim_start().strip_prefix("pub async fn "));
        functions.map(|rest| rest.split(['(', '<']).next().unwrap().to_owned()).collect()
    };
    texts.flat_map(names).collect()
}

#[test]
fn the_table_has_every_public_asynchronous_function_of_a_client() {
    let found: BTreeSet<String> = found("runtime/client").union(&found("runtime/toolkit")).cloned().collect();
    let named = ALL.iter().flat_map(|(names, _)| names.split(' '));
    let covered: BTreeSet<String> =
        named.chain(OTHERS.iter().map(|(name, _)| *name)).map(str::to_owned).collect();
    let missing: Vec<_> = found.difference(&covered).collect();
    assert!(missing.is_empty(), "nobody drops {missing:?}");
    // These return futures without being asynchronous functions.
    let builders = ["enqueue", "enqueue_many", "merge", "publish"].map(str::to_owned);
    let gone: Vec<_> = covered.difference(&found).filter(|name| !builders.contains(name)).collect();
    assert!(gone.is_empty(), "there are no {gone:?} any more");
}
