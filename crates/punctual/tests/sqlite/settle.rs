//! A handler that ends its run in a transaction of its own, under a worker that knows of it.

use punctual::{Client, Ctx, JobRecord, Outcome, Worker};
use tokio::{sync::mpsc::unbounded_channel, time::timeout};
use tokio_util::sync::CancellationToken;

use super::*;

/// Longer than a heartbeat of these jobs, a third of a second, takes on a busy machine.
const TWO_BEATS: Duration = Duration::from_secs(1);

/// Runs one job, whose handler writes a row and settles in the same transaction; answers the report, the job and whether the
/// run was asked to stop.
async fn run_in_a_transaction(
    commits: bool,
    outcome: Outcome,
) -> (punctual::worker::WorkReport, JobRecord, bool) {
    let folder = Folder::new();
    let client = Client::new(std::sync::Arc::new(folder.open()));
    let job = new_job(1);
    let id = job.id;
    client.push(vec![job]).await.unwrap();
    let (stop, path) = (CancellationToken::new(), folder.path());
    let (tell, mut told) = unbounded_channel();
    let handle = move |_: JobRecord, ctx: Ctx| {
        let (tell, path, outcome) = (tell.clone(), path.clone(), outcome.clone());
        async move {
            {
                let mut app = Connection::open(path).unwrap();
                app.busy_timeout(Duration::from_secs(30)).unwrap();
                let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                tx.execute("CREATE TABLE effects (n INTEGER)", []).unwrap();
                let notification = ctx.settle_in(&tx, outcome).unwrap();
                if commits {
                    tx.commit().unwrap();
                    notification.send();
                }
            }
            let is_stopped = timeout(TWO_BEATS, ctx.cancel_token().cancelled()).await.is_ok();
            let _ = tell.send(is_stopped);
        }
    };
    let worker = Worker::new(&client).queue("mail").lease(Duration::from_secs(1)).serve_topics(false);
    let working = tokio::spawn(worker.handle_raw(handle).run_until(stop.clone()));
    let is_stopped = told.recv().await.unwrap();
    stop.cancel();
    (working.await.unwrap().unwrap(), client.get(id).await.unwrap().unwrap(), is_stopped)
}

#[tokio::test]
async fn a_run_that_its_handler_settled_is_done_and_not_lost() {
    let (report, job, is_stopped) = run_in_a_transaction(true, Outcome::Done).await;
    assert_eq!((report.done, report.lost, is_stopped), (1, 0, false));
    assert_eq!((job.state, job.failures.len()), (State::Done, 0));
}

#[tokio::test]
async fn a_run_whose_handler_gave_its_job_up_is_dead() {
    let (report, job, _) = run_in_a_transaction(true, Outcome::Dead("never".into())).await;
    assert_eq!((report.dead, report.lost, job.state), (1, 0, State::Dead));
}

/// Nothing is kept of it that could say so later.
#[tokio::test]
async fn on_dead_hears_that_a_record_can_not_be_read() {
    let folder = Folder::new();
    let client = Client::new(std::sync::Arc::new(folder.open()));
    client.queue("mail").update(|settings| settings.dead = Keep::NOTHING).await.unwrap();
    let mut job = new_job(1);
    job.options.max_attempts = Some(1);
    client.push(vec![job]).await.unwrap();
    let (stop, path) = (CancellationToken::new(), folder.path());
    let (tell, mut told) = unbounded_channel();
    let handle = move |job: JobRecord, _: Ctx| {
        let app = Connection::open(&path).unwrap();
        app.busy_timeout(Duration::from_secs(30)).unwrap();
        app.execute("UPDATE punctual_job SET opts = '{' WHERE id = ?1", [job.id.as_bytes()]).unwrap();
        std::future::ready(Outcome::retry("no"))
    };
    let worker = Worker::new(&client).queue("mail").serve_topics(false).on_dead(move |job, reason| {
        let _ = tell.send((job.reason, reason));
        std::future::ready(())
    });
    let working = tokio::spawn(worker.handle_raw(handle).run_until(stop.clone()));
    let heard = told.recv().await.unwrap();
    assert_eq!(heard, (Some("corrupt".to_owned()), "corrupt".to_owned()));
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().dead, 1);
}

/// The handler forgot to commit: its rows are gone, so the job is not done.
#[tokio::test]
async fn a_run_settled_in_a_transaction_that_was_rolled_back_is_retried() {
    let (report, job, _) = run_in_a_transaction(false, Outcome::Done).await;
    assert_eq!((report.done, report.retried, job.state), (0, 1, State::Waiting));
    assert!(job.failures[0].error.contains("not committed"), "{:?}", job.failures);
}
