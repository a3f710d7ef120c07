//! Waits for the end of a job.

use std::time::Duration;

use tokio::time::Instant;

use super::Client;
use crate::{
    core::{error::Result, id::JobId, job::JobRecord},
    store::end_notification,
};

/// The longest time between two reads of the job. A notification can be lost.
const LOOK_EVERY: Duration = Duration::from_secs(15);

impl Client {
    /// Waits until a job has ended, at most `within`, and returns it.
    ///
    /// A done job has its result, if its handler returned one. Any other ended job has its reason and failures. If
    /// the time was too short, the job is returned as it is, with its progress. `None` means that the job is gone, or
    /// that its queue keeps no ended jobs.
    ///
    /// The process that ends the job notifies all waiting callers. In addition, the job is read every 15 s, in case a
    /// notification was lost.
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
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of the store. The call can be repeated.
    #[doc(alias = "wait")]
    #[doc(alias = "result")]
    #[doc(alias = "join")]
    pub async fn finished(&self, id: JobId, within: Duration) -> Result<Option<JobRecord>> {
        let (end, name) = (Instant::now().checked_add(within), [end_notification(id)]);
        loop {
            let job = self.get(id).await?;
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() || job.as_ref().is_none_or(|job| job.state.is_ended()) {
                return Ok(job);
            }
            self.store().wait(&name, left.min(LOOK_EVERY)).await?;
        }
    }
}
