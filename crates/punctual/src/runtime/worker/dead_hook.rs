//! Reports jobs that became dead under a worker: by its settle, or because its reserve reclaimed their lease.
//!
//! This is best effort. To miss no dead job, list them.

use std::{future::Future, sync::Arc};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::{
    core::{id::JobId, job::JobRecord},
    runtime::client::Client,
    store::BoxFuture,
};

/// The function that is called with the job and the reason.
pub(crate) type OnDead = Arc<dyn Fn(JobRecord, String) -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) fn on_dead<F, Fut>(tell: F) -> OnDead
where
    F: Fn(JobRecord, String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |job, reason| Box::pin(tell(job, reason)))
}

/// Reads the job again and calls the hook. If its queue keeps no dead jobs, the job is passed as it ran, if known.
pub(crate) async fn tell(client: &Client, on_dead: &OnDead, id: JobId, ran: Option<JobRecord>) {
    let job = match client.get(id).await {
        Ok(now) => now.or(ran),
        Err(error) => {
            tracing::warn!(target: "punctual", %id, error = %error.with_causes(), "could not read a dead job");
            ran
        }
    };
    if let Some(job) = job {
        let reason = job.reason.clone().unwrap_or_default();
        on_dead(job, reason).await;
    }
}

/// Calls the hook on the handlers' runtime, and waits for all calls at the end.
#[derive(Clone)]
pub(crate) struct DeadHook {
    pub(crate) on_dead: Option<OnDead>,
    pub(crate) client: Client,
    pub(crate) runtime: Handle,
    pub(crate) tracker: TaskTracker,
}

impl DeadHook {
    pub(crate) fn write(&self, id: JobId, ran: Option<JobRecord>) {
        let Some(on_dead) = self.on_dead.clone() else { return };
        let client = self.client.clone();
        self.tracker.spawn_on(async move { tell(&client, &on_dead, id, ran).await }, &self.runtime);
    }
}
