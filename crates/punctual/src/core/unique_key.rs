//! How the holder of a unique key is named.

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, Result},
    job::{Concurrency, Job, JobRecord, NewJob, Unique},
};

/// A unique key with everything that it is compared within (S4).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UniqueKey {
    /// The kind; `None` if the key is compared across kinds.
    pub kind: Option<String>,
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: Option<String>,
    /// The concurrency key.
    pub concurrency_key: Option<String>,
    /// The key itself.
    pub key: String,
}

impl UniqueKey {
    /// Returns the key of a job.
    pub fn of(job: &JobRecord) -> Option<Self> {
        Some(Self::within(
            &job.kind,
            &job.queue,
            job.group.as_ref(),
            job.concurrency.as_ref(),
            job.unique.as_ref()?,
        ))
    }

    /// Returns the key of a new job.
    pub fn of_new(job: &NewJob) -> Option<Self> {
        Some(Self::within(
            &job.kind,
            &job.queue,
            job.group.as_ref(),
            job.concurrency.as_ref(),
            job.unique.as_ref()?,
        ))
    }

    /// Returns the key by which to cancel or find a job without its id.
    ///
    /// This is correct if the call leaves the queue, group and concurrency key as the type says.
    ///
    /// ```
    /// # use punctual::{Client, Job, client::Cancelled, store::UniqueKey};
    /// #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// #[job(kind = "order.close", queue = "orders", unique = "key")]
    /// struct CloseUnpaid { order: u64 }
    ///
    /// impl CloseUnpaid {
    ///     fn key(&self) -> String { self.order.to_string() }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// let client = Client::connect("memory:").await?;
    /// client.enqueue(CloseUnpaid { order: 7 }).delay(std::time::Duration::from_secs(1_800)).await?;
    /// let cancelled = client.cancel(UniqueKey::held_by(&CloseUnpaid { order: 7 })?).await?;
    /// assert_eq!(cancelled, Cancelled::Done);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the type of the job has no unique key.
    pub fn held_by<J: Job>(job: &J) -> Result<Self> {
        match job.unique() {
            Some(unique) => Ok(Self::within(J::KIND, J::QUEUE, None, None, &unique)),
            None => Err(Error::invalid(format!("jobs of kind {:?} have no unique key", J::KIND))
                .with_hint("add `unique = \"…\"` to the type, or build the key that the enqueue chose")),
        }
    }

    fn within(
        kind: &str,
        queue: &str,
        group: Option<&String>,
        concurrency: Option<&Concurrency>,
        unique: &Unique,
    ) -> Self {
        Self {
            kind: unique.kind_of(kind).map(str::to_owned),
            queue: queue.to_owned(),
            group: group.cloned(),
            concurrency_key: concurrency.map(|concurrency| concurrency.key.clone()),
            key: unique.key.clone(),
        }
    }
}
