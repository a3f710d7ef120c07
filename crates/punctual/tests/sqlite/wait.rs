//! Notifications between handles of one file, which are for whoever listens at that instant, and for nobody later.

use std::sync::Arc;

use futures_util::future::join_all;
use punctual::{
    Client, Ctx, JobRecord, Worker,
    store::{Heartbeat, LeaseStatus},
};
use tokio::{sync::mpsc::unbounded_channel, time::timeout};
use tokio_util::sync::CancellationToken;

use super::*;

/// Less than a heartbeat of [`LEASE`].
const PATIENCE: Duration = Duration::from_secs(12);
const LEASE: Duration = Duration::from_mins(2);

/// S12: each of several cancels in a row reaches its run at once, from another handle of the file, too.
#[tokio::test]
async fn cancels_in_a_row_are_pushed() {
    let folder = Folder::new();
    let client = Client::new(Arc::new(folder.open()));
    let jobs: Vec<NewJob> = (0..4).map(new_job).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    client.push(jobs).await.unwrap();
    let (tell, mut told) = unbounded_channel();
    let worker =
        Worker::new(&client).queue("mail").lease(LEASE).handle_raw(move |job: JobRecord, ctx: Ctx| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(job.id);
                ctx.cancel_token().cancelled().await;
                let _ = tell.send(job.id);
            }
        });
    let stop = CancellationToken::new();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { worker.run_until(stop).await }
    });
    for _ in &ids {
        told.recv().await.unwrap();
    }
    let other = Client::new(Arc::new(folder.open()));
    for id in ids {
        let _ = other.cancel(id).await.unwrap();
        assert_eq!(timeout(PATIENCE, told.recv()).await.expect("the worker is told"), Some(id));
    }
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 4);
}

/// S12: whose wait for an end is over passes on nothing, or those who wait would keep each other awake.
#[tokio::test]
async fn who_waits_for_an_end_wakes_no_other_one() {
    let folder = Folder::new();
    let stores: Vec<SqliteStore> = (0..6).map(|_| folder.open()).collect();
    let job = new_job(1);
    let name = [format!("$end/{:032x}", u128::from_be_bytes(*job.id.as_bytes()))];
    enqueue(&stores[0], &job).await;
    let (begin, name) = (Instant::now(), &name);
    let waits = stores.iter().zip(0..).map(|(store, n)| async move {
        let mut returns = 0;
        while begin.elapsed() < Duration::from_secs(2) {
            store.wait(name, Duration::from_millis(150 + 40 * n)).await.unwrap();
            returns += 1;
        }
        returns
    });
    let returns: u32 = join_all(waits).await.into_iter().sum();
    assert!(returns <= 100, "{returns} returns of waits that last 150 ms and more, six at a time");
}

/// S9: who waits for the end of a lease finds out that another handle of the file made it shorter.
#[tokio::test]
async fn a_lease_that_was_made_shorter_ends_a_wait() {
    let folder = Folder::new();
    let (store, other) = (folder.open(), folder.open());
    enqueue(&store, &new_job(1)).await;
    let run = store
        .reserve(&Reserve { lease: Some(Duration::from_hours(1)), ..want(1) })
        .await
        .unwrap()
        .jobs
        .remove(0);
    let none = Reserve { call: call(2), ..want(0) };
    assert_eq!(
        store.reserve(&none).await.unwrap().next_due.unwrap().as_secs().div_ceil(60),
        24,
        "two fifths of the lease"
    );
    let queues = ["mail".to_owned()];
    let mut wait = std::pin::pin!(store.wait(&queues, Duration::from_mins(10)));
    assert!(timeout(Duration::from_millis(200), &mut wait).await.is_err(), "nothing is due");
    let short = Heartbeat { lasts: Some(Duration::from_secs(1)), ..run.lease.into() };
    assert_eq!(other.extend(&[short]).await.unwrap(), [LeaseStatus::Held]);
    timeout(PATIENCE, wait).await.expect("the lease needs calls, or has ended").unwrap();
    let mut number = 3;
    while store.reserve(&Reserve { call: call(number), ..want(0) }).await.unwrap().reclaimed.is_empty() {
        number += 1;
        assert!(number < 100, "a second has at most some waits");
        timeout(PATIENCE, store.wait(&queues, Duration::from_mins(10)))
            .await
            .expect("it needs calls, or has ended")
            .unwrap();
    }
}
