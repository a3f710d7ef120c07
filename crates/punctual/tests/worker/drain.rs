//! A worker that runs in a test: as many jobs at once as limits allow, on any store, which is removed in the end.

use std::sync::atomic::{AtomicUsize, Ordering};

use punctual::testing::TestQueue;

use super::*;

/// How many jobs run, and how many ran at most.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Lets all that were started together meet.
async fn meet(_: Work, ctx: Ctx<Arc<Crowd>>) {
    let crowd = ctx.state();
    let now = crowd.now.fetch_add(1, Ordering::SeqCst) + 1;
    crowd.most.fetch_max(now, Ordering::SeqCst);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    crowd.now.fetch_sub(1, Ordering::SeqCst);
}

/// Drains 20 jobs, and returns how many ran at once.
async fn most_at_once(t: &TestQueue, shape: impl FnOnce(Worker) -> Worker) -> usize {
    let crowd = Arc::new(Crowd::default());
    t.client.enqueue_many((0..20).map(|n| Work { n })).await.unwrap();
    let worker = shape(t.worker()).state(Arc::clone(&crowd)).handle(meet);
    let report = t.drain(worker).await.unwrap();
    assert_eq!(report.done, 20);
    crowd.most.load(Ordering::SeqCst)
}

#[tokio::test]
async fn drained_jobs_run_side_by_side_as_far_as_slots_and_limits_allow() {
    let t = TestQueue::new();
    assert_eq!(most_at_once(&t, |worker| worker.slots(4)).await, 4);
    assert_eq!(most_at_once(&t, |worker| worker.queue("default").queue_slots("default", 3)).await, 3);
    t.client.queue("default").update(|settings| settings.concurrency = Some(2)).await.unwrap();
    assert_eq!(most_at_once(&t, |worker| worker).await, 2);
}

#[tokio::test]
async fn a_job_that_one_more_crash_would_end_is_drained_alone() {
    let t = TestQueue::new();
    t.client.enqueue_many((0..20).map(|n| Work { n })).await.unwrap();
    for crash in 0..2 {
        // A worker that dies with all of them.
        let call = CallId { instance: 7, number: 2 * crash + 1 };
        let queues = vec![QueueRequest { queue: "default".to_owned(), share: 20, at_most: 20 }];
        let reserve = Reserve { call, worker: "dies".to_owned(), queues, n: 20, lease: None, company: false };
        assert_eq!(t.client.store().reserve(&reserve).await.unwrap().jobs.len(), 20);
        t.advance(Duration::from_secs(16));
        let none = Reserve { call: CallId { number: 2 * crash + 2, ..call }, n: 0, ..reserve };
        assert_eq!(t.client.store().reserve(&none).await.unwrap().reclaimed.len(), 20);
        t.advance(Duration::from_mins(1));
    }
    let crowd = Arc::new(Crowd::default());
    let report = t.drain(t.worker().state(Arc::clone(&crowd)).handle(meet)).await.unwrap();
    assert_eq!((report.done, crowd.most.load(Ordering::SeqCst)), (20, 1));
}

#[cfg(feature = "sqlite")]
mod file {
    use punctual::{
        Outcome,
        store::sqlite::rusqlite::{Connection, TransactionBehavior},
    };

    use super::*;

    fn url(folder: &tempfile::TempDir) -> String {
        format!("sqlite:{}", folder.path().join("jobs.db").display())
    }

    /// Writes a row and ends its run in one transaction.
    async fn write(work: Work, ctx: Ctx<String>) -> Result<()> {
        let cannot = |e| punctual::Error::invalid("no row").with_source(e);
        let mut db = Connection::open(ctx.state()).map_err(cannot)?;
        db.busy_timeout(Duration::from_secs(30)).map_err(cannot)?;
        db.pragma_update(None, "synchronous", "full").map_err(cannot)?;
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(cannot)?;
        tx.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER)", []).map_err(cannot)?;
        tx.execute("INSERT INTO rows VALUES (?1)", [work.n]).map_err(cannot)?;
        let notification = ctx.settle_in(&tx, Outcome::Done)?;
        tx.commit().map_err(cannot)?;
        notification.send();
        Ok(())
    }

    #[tokio::test]
    async fn a_test_has_its_own_clock_on_a_file_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let t = TestQueue::connect(&url(&folder)).await.unwrap();
        let hour = Duration::from_hours(1);
        t.client.enqueue(Work { n: 7 }).delay(hour).await.unwrap();
        let file = folder.path().join("jobs.db").display().to_string();
        let worker = || t.worker().state(file.clone()).handle(write);
        assert_eq!(t.drain(worker()).await.unwrap().done, 0);
        t.advance(hour);
        assert_eq!(t.drain(worker()).await.unwrap().done, 1);
        t.destroy().await.unwrap();
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[tokio::test]
    async fn a_store_that_no_test_made_is_neither_opened_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let production = Client::connect(&url(&folder)).await.unwrap();
        let refused = TestQueue::connect(&url(&folder)).await.unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::Conflict,
            "a file that is there may be anybody's, even if it is empty"
        );
        production.enqueue(Work { n: 1 }).await.unwrap();
        assert_eq!(TestQueue::connect(&url(&folder)).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(production.count(None).await.unwrap().waiting, 1);
    }

    #[tokio::test]
    async fn a_store_of_tests_is_opened_again_and_removed_once() {
        let folder = tempfile::tempdir().unwrap();
        let t = TestQueue::connect(&url(&folder)).await.unwrap();
        t.client.enqueue(Work { n: 1 }).await.unwrap();
        drop(t);
        let t = TestQueue::connect(&url(&folder)).await.unwrap();
        assert_eq!(t.client.count(None).await.unwrap().waiting, 1);
        t.destroy().await.unwrap();
        let t = TestQueue::connect(&url(&folder)).await.unwrap();
        assert_eq!(t.client.count(None).await.unwrap().total(), 0);
        t.destroy().await.unwrap();
    }
}
