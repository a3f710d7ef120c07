//! A file that is moved, replaced or deleted under those who have it open.

use super::*;

async fn assert_refused(store: &SqliteStore, how: &str) {
    let queues = ["mail".to_owned()];
    let errors = [
        ("now", store.now().await.err()),
        ("enqueue", store.enqueue(call(7), &[new_job(7)]).await.err()),
        ("reserve", store.reserve(&want(1)).await.err()),
        ("wait", store.wait(&queues, Duration::from_secs(5)).await.err()),
    ];
    for (what, error) in errors {
        let error = error.unwrap_or_else(|| panic!("{how}: {what} went on in a file that is not there"));
        assert_eq!(error.kind(), ErrorKind::Closed, "{how}: {what}: {error}");
        assert!(error.to_string().contains("jobs.db") && error.hint().is_some(), "{how}: {what}: {error}");
    }
}

/// S1: no receipt for a job that nobody will find.
#[tokio::test]
async fn nothing_is_written_to_a_file_that_is_gone() {
    for how in ["deleted", "moved", "replaced"] {
        let folder = Folder::new();
        let store = folder.open();
        enqueue(&store, &new_job(1)).await;
        let other = folder.0.path().join("other.db");
        match how {
            "deleted" => std::fs::remove_file(folder.path()).unwrap(),
            "moved" => std::fs::rename(folder.path(), other).unwrap(),
            _ => {
                drop(SqliteStore::open(&other, SqliteOptions::default()).unwrap());
                std::fs::rename(other, folder.path()).unwrap();
            }
        }
        assert_refused(&store, how).await;
    }
}

/// S1: a clean-up script removes the log, its index or both under a program. What was accepted is there for whoever opens the file next, and
/// nobody accepts more beside it.
#[tokio::test]
async fn what_was_accepted_outlives_the_names_of_the_log() {
    for removed in [&["-shm"][..], &["-wal"], &["-wal", "-shm"]] {
        for uses_it in [true, false] {
            let what = format!("{removed:?}, {uses_it}");
            let folder = Folder::new();
            let store = folder.open();
            for n in 0..20 {
                enqueue(&store, &new_job(n)).await;
            }
            for name in removed {
                std::fs::remove_file(format!("{}{name}", folder.path().display())).unwrap();
            }
            let came = SqliteStore::open(folder.path(), SqliteOptions::default()).unwrap_err();
            assert_eq!(came.kind(), ErrorKind::Unavailable, "{what}: {came}");
            assert!(
                came.to_string().contains("was removed while other programs have it open"),
                "{what}: {came}"
            );
            if uses_it {
                // Nor does who only looks make another log.
                let looked = SqliteOptions { read_only: true, ..SqliteOptions::default() };
                assert!(SqliteStore::open(folder.path(), looked).is_err(), "{what}");
                assert_refused(&store, &what).await;
            }
            drop(store);
            let store = folder.open();
            assert_eq!(store.count(None).await.unwrap().waiting, 20, "{what}");
            assert_eq!(findings(&store, false).await, [], "{what}");
            enqueue(&store, &new_job(20)).await;
        }
    }
}

/// Does nothing, unless it was started by the test below with a file: then it writes to it as another program does.
#[test]
fn child_that_writes_orders() {
    let Ok(file) = std::env::var("PUNCTUAL_TEST_ORDERS") else { return };
    let conn = Connection::open(file).unwrap();
    conn.busy_timeout(Duration::from_secs(30)).unwrap();
    conn.execute_batch("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (7)").unwrap();
}

/// Another program does not ask who has the store open: what it wrote to an index of its own is not removed with the old one.
#[tokio::test]
async fn what_others_wrote_beside_a_removed_index_is_left_to_them() {
    let folder = Folder::new();
    let store = folder.open();
    enqueue(&store, &new_job(1)).await;
    std::fs::remove_file(format!("{}-shm", folder.path().display())).unwrap();
    let mut other = std::process::Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "replaced::child_that_writes_orders"]).env("PUNCTUAL_TEST_ORDERS", folder.path());
    assert!(other.output().unwrap().status.success());
    drop(store);
    let store = folder.open();
    let orders: i64 = folder.connect().query_row("SELECT id FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!((orders, store.count(None).await.unwrap().waiting), (7, 1));
}

/// The procedure of a restore, with a program that was not stopped.
#[tokio::test]
async fn a_restored_file_can_be_opened_beside_who_has_the_old_one() {
    let folder = Folder::new();
    let store = folder.open();
    enqueue(&store, &new_job(1)).await;
    let old = folder.0.path().join("old");
    std::fs::create_dir(&old).unwrap();
    for name in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
        std::fs::rename(folder.0.path().join(name), old.join(name)).unwrap();
    }
    drop(SqliteStore::open(old.join("other.db"), SqliteOptions::default()).unwrap());
    std::fs::copy(old.join("other.db"), folder.path()).unwrap();
    let restored = folder.open();
    enqueue(&restored, &new_job(2)).await;
    assert_refused(&store, "restored").await;
    drop(store);
    enqueue(&restored, &new_job(3)).await;
    assert_eq!(restored.count(None).await.unwrap().waiting, 2);
}
