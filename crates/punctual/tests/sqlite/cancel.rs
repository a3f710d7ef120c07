//! Cancels of running jobs, which ring for whoever listens at that instant and for nobody later.

use std::sync::Arc;

use punctual::{Client, Ctx, JobRecord, Worker};
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
