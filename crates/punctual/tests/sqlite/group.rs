//! Groups in the file: old files, what is forgotten, and damage.

use punctual::store::GroupLimits;

use super::*;

fn grouped(n: u64, group: &str) -> NewJob {
    let mut job = new_job(n);
    job.group = Some(group.to_owned());
    job
}

async fn limit(store: &SqliteStore, group: GroupLimits) {
    let settings = QueueSettings { group, ..QueueSettings::default() };
    let _ = store.queue("mail", &QueueOp::Set(Box::new(settings))).await.unwrap();
}

/// What a file of version 4 was like.
const AS_BEFORE: &str = "
    INSERT INTO punctual_due SELECT q, pri, run_at, id FROM punctual_grouped;
    DROP TABLE punctual_grouped;
    DROP TABLE punctual_group;
    DELETE FROM punctual_keyed;
    UPDATE punctual_lease SET flags = 0;
    ALTER TABLE punctual_parked DROP COLUMN gid;
    ALTER TABLE punctual_state DROP COLUMN grouped;
    ALTER TABLE punctual_queue DROP COLUMN ring;
    ALTER TABLE punctual_queue DROP COLUMN own;
    ALTER TABLE punctual_queue DROP COLUMN seen;
    ALTER TABLE punctual_queue DROP COLUMN version;
    ALTER TABLE punctual_past DROP COLUMN notes;
    ALTER TABLE punctual_past DROP COLUMN result;
    ALTER TABLE punctual_past DROP COLUMN result_type;
    ALTER TABLE punctual_past DROP COLUMN watched;
    ALTER TABLE punctual_unique DROP COLUMN lasts;
    ALTER TABLE punctual_unique DROP COLUMN short;
    ALTER TABLE punctual_lock DROP COLUMN lasts;
    ALTER TABLE punctual_lock DROP COLUMN short;
    UPDATE punctual_meta SET v = 4 WHERE k = 'schema';
";

#[tokio::test]
async fn jobs_of_an_older_file_find_their_groups() {
    let folder = Folder::new();
    let jobs = [grouped(1, "g"), grouped(2, "g"), grouped(3, "h"), new_job(4)];
    let running = {
        let store = folder.open();
        enqueue(&store, &jobs[0]).await;
        let running = reserve_one(&store).await;
        let _ = store.enqueue(call(1), &jobs[1..]).await.unwrap();
        running
    };
    folder.connect().execute_batch(AS_BEFORE).unwrap();
    let store = folder.open();
    assert_eq!(findings(&store, false).await, []);
    // What ran before counts.
    limit(&store, GroupLimits { concurrency: Some(1), ..GroupLimits::default() }).await;
    let first = store.reserve(&want(9)).await.unwrap().jobs;
    assert_eq!(first.iter().filter(|run| run.job.group.as_deref() == Some("g")).count(), 0);
    let _ = store.settle(&[Settlement { lease: running, verdict: Verdict::Ack }], None).await.unwrap();
    let second = store.reserve(&want(9)).await.unwrap().jobs;
    let mut ids: Vec<JobId> = first.iter().chain(&second).map(|run| run.job.id).collect();
    ids.push(running.job);
    ids.sort_unstable();
    assert_eq!(ids, jobs.map(|job| job.id));
}

/// S16: what is remembered of groups follows those that had jobs lately, not those that ever had some.
#[tokio::test]
async fn groups_that_have_nothing_to_do_are_forgotten() {
    let folder = Folder::new();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_000_000_000));
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path(), options).unwrap();
    let kept = || -> i64 {
        folder.connect().query_row("SELECT count(*) FROM punctual_group", [], |row| row.get(0)).unwrap()
    };
    let rate = Some(Rate { max: 1, period_ms: 1_000, burst: 3 });
    limit(&store, GroupLimits { rate, ..GroupLimits::default() }).await;
    for round in 0..5 {
        let jobs: Vec<NewJob> = (0..400).map(|n| grouped(n, &format!("{round} {}", n / 2))).collect();
        let _ = store.enqueue(call(1), &jobs).await.unwrap();
        for _ in 0..40 {
            let batch = store.reserve(&want(10)).await.unwrap();
            let acks: Vec<_> =
                batch.jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
            assert_eq!(acks.len(), 10);
            let _ = store.settle(&acks, None).await.unwrap();
        }
        assert!(kept() <= 400, "{}", kept());
        clock.advance(Duration::from_secs(5));
    }
    let _ = store.sweep(1_000).await.unwrap();
    assert_eq!(kept(), 0);
}

#[tokio::test]
async fn an_audit_mends_how_groups_are_filed() {
    for (what, damage) in [
        ("orphan", "DELETE FROM punctual_group"),
        ("orphan", "UPDATE punctual_queue SET version = 0"),
        ("stale_key", "UPDATE punctual_group SET place = 3"),
        ("stale_key", "UPDATE punctual_group SET place = 2, at = 1"),
        ("stale_key", "UPDATE punctual_group SET gid = x'00'"),
        ("stale_key", "UPDATE punctual_group SET name = 'another'"),
        ("stale_key", "DELETE FROM punctual_keyed"),
        (
            "stale_key",
            "INSERT INTO punctual_keyed SELECT q, key, x'00112233445577778899aabbccddeeff' FROM punctual_keyed",
        ),
        (
            "no_record",
            "INSERT INTO punctual_grouped VALUES (1, x'00', 1, 5, x'00112233445577778899aabbccddeeff')",
        ),
        ("no_record", "INSERT INTO punctual_due SELECT q, pri, run_at, id FROM punctual_grouped"),
    ] {
        let folder = Folder::new();
        let store = folder.open();
        let jobs = [grouped(1, "g"), grouped(2, "g"), grouped(3, "g")];
        let _ = store.enqueue(call(1), &jobs).await.unwrap();
        reserve_one(&store).await;
        assert_eq!(findings(&store, false).await, []);
        folder.connect().execute_batch(damage).unwrap();
        let found = findings(&store, false).await;
        assert!(found.iter().any(|finding| finding.what == what), "{damage}: {found:#?}");
        let mended = findings(&store, true).await;
        assert!(mended.iter().all(|finding| finding.repaired), "{damage}: {mended:#?}");
        assert_eq!(findings(&store, false).await, [], "{damage}");
        assert_eq!(store.reserve(&want(9)).await.unwrap().jobs.len(), 2, "{damage}");
    }
}
