//! Futures of the client that are dropped at each place where they wait: what they leave behind is whole, and what was handed
//! in is there once, or not at all.

#![cfg(all(feature = "sqlite", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use punctual::{
    Client, Filter, JobId, NewJob, Payload,
    store::{
        Action, Store,
        clock::Clock,
        memory::MemoryStore,
        sqlite::{SqliteOptions, SqliteStore},
    },
};

/// More places to wait at than any future here has.
const POLLS_MAX: usize = 64;

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
async fn drop_everywhere(client: &Client, make: Make) {
    for polls in 0..POLLS_MAX {
        let target = job(client);
        let id = target.id;
        client.push(vec![target]).await.unwrap();
        if at_most(polls, make(client, id)).await {
            return;
        }
    }
    panic!("it is not ready after {POLLS_MAX} polls");
}

/// Whether counters, indices and records agree.
async fn is_whole(client: &Client) -> bool {
    client.audit(false, |_| ()).await.unwrap().findings.is_empty()
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

#[tokio::test]
async fn what_is_dropped_leaves_the_store_whole() {
    let all: [(&str, Make); 12] = [
        ("cancel", |c, id| {
            Box::pin(async move {
                let _ = c.cancel(id).await.unwrap();
            })
        }),
        ("reschedule", |c, id| {
            Box::pin(async move {
                let _ = c.reschedule(id, Duration::from_secs(9)).await.unwrap();
            })
        }),
        ("run_now", |c, id| {
            Box::pin(async move {
                let _ = c.run_now(id).await.unwrap();
            })
        }),
        ("edit", |c, id| {
            Box::pin(async move {
                let _ = c.edit(id, Payload::json("1")).await.unwrap();
            })
        }),
        ("delete", |c, id| {
            Box::pin(async move {
                let _ = c.delete(id).await.unwrap();
            })
        }),
        ("act_where", |c, _| {
            Box::pin(async move {
                let cancel = Action::Cancel { reason: None };
                let _ = c.act_where(&Filter::all(), &cancel, |_| {}).await.unwrap();
            })
        }),
        ("take", |c, _| {
            Box::pin(async move {
                let _ = c.take("q", 2).await.unwrap();
            })
        }),
        ("queue", |c, _| {
            Box::pin(async move {
                let queue = c.queue("q");
                let _ = queue.pause("ana", "why").await.unwrap();
                let _ = queue.resume().await.unwrap();
            })
        }),
        ("purge", |c, _| {
            Box::pin(async move {
                let _ = c.queue("q").purge(|_| ()).await.unwrap();
            })
        }),
        ("lock", |c, _| {
            Box::pin(async move {
                let lock = c.lock("l").lease(Duration::from_millis(100));
                let guard = lock.acquire(Duration::from_secs(10)).await.unwrap().unwrap();
                guard.release().await.unwrap();
            })
        }),
        ("topic", |c, _| {
            Box::pin(async move {
                c.topic("t").subscribe("q").await.unwrap();
                c.topic("t").unsubscribe("q").await.unwrap();
            })
        }),
        ("audit", |c, _| {
            Box::pin(async move {
                let _ = c.audit(true, |_| ()).await.unwrap();
            })
        }),
    ];
    let folder = tempfile::tempdir().unwrap();
    for client in clients(&folder) {
        for (name, make) in all {
            drop_everywhere(&client, make).await;
            assert!(is_whole(&client).await, "{name} on {}", client.store().url());
        }
        // A lock that was left behind is free when its lease has ended.
        assert!(client.lock("l").acquire(Duration::from_secs(10)).await.unwrap().is_some());
    }
}
