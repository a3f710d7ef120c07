//! Compaction: the file gives the space of removed jobs back, beside others that use it.

use super::*;

/// Pages of the file, and those of them that hold nothing.
fn pages(folder: &Folder) -> (i64, i64) {
    let conn = folder.connect();
    let number = |pragma| conn.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap();
    (number("PRAGMA page_count"), number("PRAGMA freelist_count"))
}

/// Jobs of a kilobyte each.
async fn fill(store: &SqliteStore, queue: &str, n: u64) -> Vec<NewJob> {
    let payload = Payload::json(format!("\"{}\"", "x".repeat(1_000)));
    let jobs: Vec<NewJob> = (0..n).map(|n| NewJob::new(new_job(n).id, "k", queue, payload.clone())).collect();
    for batch in jobs.chunks(500) {
        store.enqueue(call(1), batch).await.unwrap();
    }
    jobs
}

#[tokio::test]
async fn a_file_whose_jobs_were_purged_gives_their_pages_back_and_keeps_the_others() {
    let folder = Folder::new();
    let (store, other) = (folder.open(), folder.open());
    let kept = fill(&store, "mail", 100).await;
    let (least, _) = pages(&folder);
    fill(&store, "gone", 2_000).await;
    let (most, _) = pages(&folder);
    while let QueueReply::Purged { more: true, .. } =
        store.queue("gone", &QueueOp::Purge(1_000)).await.unwrap()
    {}
    let (before, free) = pages(&folder);
    assert!(before == most && most / 2 < free, "{before} pages, {free} free, {most} at most");

    let compacted = store.compact().await.unwrap();
    let (after, free) = pages(&folder);
    assert!(after <= least + 8 && free == 0, "{after} pages, {free} free; {least} were enough");
    let (was, is) = (compacted.before, compacted.after);
    assert!(was.free_bytes > was.used_bytes && is.free_bytes == 0, "{compacted:?}");
    assert_eq!(is.log_bytes, 0, "{compacted:?}");
    assert_eq!(is.file_bytes, is.used_bytes, "{compacted:?}");

    // A handle that was open all the time goes on.
    for job in &kept {
        assert_eq!(other.get(job.id).await.unwrap().map(|job| job.payload), Some(job.payload.clone()));
    }
    let new = new_job(7_000);
    assert!(enqueue(&other, &new).await.is_new());
    assert_eq!(state(&store, new.id).await, Some(State::Waiting));
    assert_eq!(findings(&store, false).await, []);
}

/// S14: nobody could extend a lease while the file was locked.
#[tokio::test]
async fn no_lease_is_reclaimed_since_a_compaction_held_up_its_heartbeat() {
    holds_a_lease_over_a_compaction(async |other, _| {
        other.compact().await.unwrap();
    })
    .await;
}

/// S14: a compaction that fails held up the heartbeats just as long.
#[tokio::test]
async fn no_lease_is_reclaimed_since_a_compaction_that_failed_held_up_its_heartbeat() {
    holds_a_lease_over_a_compaction(async |other, folder| {
        // The index of an application that has functions of its own: nobody else can write it anew.
        let index = "CREATE TABLE orders (n INTEGER); CREATE INDEX by_app ON orders (abs(n));
            PRAGMA writable_schema = ON;
            UPDATE sqlite_schema SET sql = replace(sql, 'abs(', 'of_the_app(') WHERE name = 'by_app';";
        folder.connect().execute_batch(index).unwrap();
        assert_eq!(other.compact().await.unwrap_err().kind(), ErrorKind::Unavailable);
    })
    .await;
}

/// A lease whose time passes meanwhile is its holder's, though somebody else comes first.
async fn holds_a_lease_over_a_compaction(compact: impl AsyncFn(&SqliteStore, &Folder)) {
    let folder = Folder::new();
    let clock = ManualClock::new(Timestamp::from_ms(1_795_000_100_000).unwrap());
    let open = || {
        let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
        SqliteStore::open(folder.path(), options).unwrap()
    };
    let (holder, other) = (open(), open());
    let job = new_job(1);
    enqueue(&holder, &job).await;
    let lease = reserve_one(&holder).await;
    // Not long enough to look like a jump of the clock.
    clock.advance(Duration::from_secs(16));
    compact(&other, &folder).await;
    let batch = other.reserve(&Reserve { call: call(2), ..want(1) }).await.unwrap();
    assert_eq!(batch.jobs.len(), 0, "it was reclaimed");
    let settled = holder.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.unwrap().0;
    assert!(!matches!(settled[0], Settled::LeaseLost), "{settled:?}");
}

#[tokio::test]
async fn a_store_that_is_only_looked_at_is_not_compacted() {
    let folder = Folder::new();
    let store = folder.open();
    let options = SqliteOptions { read_only: true, create: false, ..SqliteOptions::default() };
    let looks = SqliteStore::open(folder.path(), options).unwrap();
    assert_eq!(looks.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
    drop(store);
}
