//! A store in a file of its own, and a worker that forwards its jobs.
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::time::Duration;

use punctual::{Backoff, Client, Job, JobId, JobRecord, Worker, client::Enqueue, worker::Shutdown};
use punctual_forward::Forwarder;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// How long the end of a job is waited for.
pub(crate) const END_MAX: Duration = Duration::from_mins(1);

#[derive(Debug, Job, Serialize, Deserialize)]
#[job(kind = "email.send", queue = "mail")]
pub(crate) struct Mail {
    pub(crate) to: String,
}

/// A store in a temporary file.
pub(crate) struct Jobs {
    pub(crate) client: Client,
    _folder: TempDir,
}

impl Jobs {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
        Self { client: Client::connect(&url).await.unwrap(), _folder: folder }
    }

    /// A job that comes back soon when it fails.
    pub(crate) fn mail(&self) -> Enqueue {
        let job = self.client.enqueue(Mail { to: "ana@example.com".to_owned() });
        job.backoff(Backoff::fixed(Duration::from_millis(10)))
    }

    /// Enqueues a job, and answers it as it would be handed over.
    pub(crate) async fn put(&self, job: Enqueue) -> JobRecord {
        let id = job.await.unwrap().id().unwrap();
        self.client.get(id).await.unwrap().unwrap()
    }

    /// The id of a job outside of its store.
    pub(crate) async fn outside(&self, id: JobId) -> String {
        self.client.identity().await.unwrap().message_id(id)
    }

    /// Forwards until the answer is dropped.
    pub(crate) fn forward(&self, forwarder: &Forwarder) -> Working {
        let worker = Worker::new(&self.client).queue("mail").slots(8).handle_raw(forwarder.handler());
        let working = tokio::spawn(async move { drop(worker.run_until(Shutdown::default()).await) });
        Working(working)
    }

    /// The job when it ended.
    pub(crate) async fn ended(&self, id: JobId) -> JobRecord {
        let job = self.client.finished(id, END_MAX).await.unwrap().expect("it is kept");
        assert!(job.state.is_ended(), "{job:?}");
        job
    }
}

/// A worker at work.
pub(crate) struct Working(JoinHandle<()>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The words with which a job failed last.
pub(crate) fn last_error(job: &JobRecord) -> &str {
    &job.failures.last().expect("it failed").error
}
