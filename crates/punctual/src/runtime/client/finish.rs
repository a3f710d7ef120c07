//! Waiting for the end of a job.

use std::time::Duration;

use tokio::time::Instant;

use super::Client;
use crate::{
    core::{error::Result, id::JobId, job::JobRecord},
    store::end_bell,
};

/// Between two looks at the job, at most: no ring is trusted to come.
const LOOK_EVERY: Duration = Duration::from_secs(15);

impl Client {
    /// Waits until a job has ended, `within` at most, and answers it as it stands then: with its result if it is done and its
    /// handler gave one, else with its reason and failures, or, if the time was too short, with how far it is. `None`: it is gone,
    /// or its queue keeps no such jobs.
    ///
    /// Nothing is polled: whoever ends the job rings. It may be any process, and there may be many who wait. (A look every 15 s
    /// repairs what a ring that was lost would cost.)
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use punctual::{Ctx, Job, Outcome, Payload, State, testing::TestQueue};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Add(u64, u64);
    /// impl Job for Add {
    ///     const KIND: &'static str = "add";
    /// }
    ///
    /// let t = TestQueue::new();
    /// let id = t.client.enqueue(Add(2, 3)).await?.id().unwrap();
    /// t.drain(t.worker().handle(async |job: Add, _: Ctx| Outcome::done_with(job.0 + job.1))).await?;
    /// let job = t.client.finished(id, Duration::from_secs(30)).await?.expect("done jobs are kept for a day");
    /// assert_eq!((job.state, job.result), (State::Done, Some(Payload::json("5"))));
    /// # Ok::<(), punctual::Error>(()) }).unwrap();
    /// ```
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// As the store says; wait again.
    #[doc(alias = "wait")]
    #[doc(alias = "result")]
    #[doc(alias = "join")]
    pub async fn finished(&self, id: JobId, within: Duration) -> Result<Option<JobRecord>> {
        let (end, bell) = (Instant::now().checked_add(within), [end_bell(id)]);
        loop {
            let job = self.get(id).await?;
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() || job.as_ref().is_none_or(|job| job.state.is_ended()) {
                return Ok(job);
            }
            self.store().wait(&bell, left.min(LOOK_EVERY)).await?;
        }
    }
}
