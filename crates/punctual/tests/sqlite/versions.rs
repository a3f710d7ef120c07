//! Processes of different versions beside each other, while the newer ones are rolled out.

use super::*;

/// What a newer version does to a file as it opens it.
fn upgrade(folder: &Folder) {
    folder.connect().execute("UPDATE punctual_meta SET v = v + 1 WHERE k = 'schema'", []).unwrap();
}

fn count(folder: &Folder, table: &str) -> i64 {
    let conn = folder.connect();
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_process_that_runs_while_the_file_gets_a_newer_schema_changes_nothing() {
    let folder = Folder::new();
    let store = folder.open();
    for n in 0..2 {
        enqueue(&store, &new_job(n)).await;
    }
    let lease = reserve_one(&store).await;
    upgrade(&folder);
    let ack = [Settlement { lease, verdict: Verdict::Ack }];
    let take = Take { queue: "mail".to_owned(), n: 1, older_than: Duration::ZERO };
    let errors = [
        ("enqueue", store.enqueue(call(7), &[new_job(7)]).await.err()),
        ("reserve", store.reserve(&want(1)).await.err()),
        ("settle", store.settle(&ack, None).await.err()),
        ("take", store.take(&take).await.err()),
        ("sweep", store.sweep(10).await.err()),
        ("get", store.get(lease.job).await.err()),
        ("count", store.count(None).await.err()),
    ];
    for (what, error) in errors {
        let error = error.unwrap_or_else(|| panic!("{what} went on in a file of a newer schema"));
        assert_eq!(error.kind(), ErrorKind::Outdated, "{what}: {error}");
        assert!(error.to_string().contains("schema version 8") && error.hint().is_some(), "{what}: {error}");
    }
    let mut app = folder.connect();
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(store.enqueue_in(&tx, &[new_job(8)]).unwrap_err().kind(), ErrorKind::Outdated);
    drop(tx);
    let places = ["punctual_job", "punctual_due", "punctual_lease", "punctual_ended"];
    assert_eq!(places.map(|table| count(&folder, table)), [2, 1, 1, 0]);
}

/// The worker stops with the error, so that whoever started it can start the newer one, and the job that it ran is still there.
#[tokio::test]
async fn a_worker_stops_when_its_file_gets_a_newer_schema() {
    use punctual::{Client, Ctx, JobRecord, Worker};
    let folder = Folder::new();
    let client = Client::new(std::sync::Arc::new(folder.open()));
    let job = new_job(1);
    client.push(vec![job.clone()]).await.unwrap();
    let path = folder.path();
    let worker = Worker::new(&client).queue("mail").handle_raw(move |_: JobRecord, _: Ctx| {
        let conn = Connection::open(&path).unwrap();
        conn.busy_timeout(Duration::from_secs(30)).unwrap();
        conn.execute("UPDATE punctual_meta SET v = v + 1 WHERE k = 'schema'", []).unwrap();
        async {}
    });
    let stopped = tokio::time::timeout(
        Duration::from_mins(1),
        worker.run_until(tokio_util::sync::CancellationToken::new()),
    );
    let error = stopped.await.expect("it stops").expect_err("it stops with an error");
    assert_eq!(error.kind(), ErrorKind::Outdated, "{error}");
    assert_eq!(["punctual_lease", "punctual_ended"].map(|table| count(&folder, table)), [1, 0]);
}

/// Defaults would let a paused queue run, and a queue without a limit run everything.
#[tokio::test]
async fn a_queue_whose_settings_can_not_be_read_is_paused() {
    for settings in ["{\"paused\":null,\"brand_new\":1}", "{", "{\"order\":7}"] {
        let folder = Folder::new();
        let store = folder.open();
        enqueue(&store, &new_job(1)).await;
        folder.connect().execute("UPDATE punctual_queue SET settings = ?1", [settings]).unwrap();
        assert_eq!(store.reserve(&want(1)).await.unwrap().jobs.len(), 0, "{settings}");
        let QueueReply::Info(shown) = store.queue("mail", &QueueOp::Show).await.unwrap() else {
            panic!("it is there")
        };
        assert!(shown.settings.paused.is_some(), "{settings}");
        // Nothing of it is thrown away, by anybody who passes.
        let kept = folder
            .connect()
            .query_row("SELECT settings FROM punctual_queue", [], |row| row.get::<_, String>(0));
        assert_eq!(kept.unwrap(), settings);
    }
}

/// Such a job was written by a newer version, which will run it.
#[tokio::test]
async fn a_job_with_an_unknown_field_is_held_and_blocks_nobody() {
    for group in [None, Some("g".to_owned())] {
        let folder = Folder::new();
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_000_100_000));
        let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path(), options).unwrap();
        let (newer, good) =
            (NewJob { group: group.clone(), ..new_job(1) }, NewJob { group: group.clone(), ..new_job(2) });
        enqueue(&store, &newer).await;
        enqueue(&store, &good).await;
        let app = folder.connect();
        let set =
            "UPDATE punctual_job SET opts = json_set(coalesce(opts, '{}'), '$.brand_new', 1) WHERE id = ?1";
        app.execute(set, [newer.id.as_bytes()]).unwrap();
        let batch = store.reserve(&want(10)).await.unwrap();
        assert_eq!(batch.jobs.iter().map(|job| job.job.id).collect::<Vec<_>>(), [good.id]);
        let kept = store.get(newer.id).await.unwrap().unwrap();
        assert_eq!((kept.state, kept.reason), (State::Waiting, None));
        assert_eq!(findings(&store, false).await, []);
        // What can read it runs it, a minute later at most.
        app.execute("UPDATE punctual_job SET opts = json_remove(opts, '$.brand_new')", []).unwrap();
        clock.advance(Duration::from_mins(1));
        let again = Reserve { call: call(2), ..want(10) };
        let batch = store.reserve(&again).await.unwrap();
        assert_eq!(batch.jobs.iter().map(|job| job.job.id).collect::<Vec<_>>(), [newer.id]);
        assert_eq!(findings(&store, false).await, []);
    }
}
