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
