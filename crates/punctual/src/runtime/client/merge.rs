//! Enqueues that merge: a waiting job with the same unique key gets both payloads.
//!
//! An edit names the id and the version that it read. So no update is lost or applied twice, even if others merge or
//! start the job meanwhile.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
};

use super::{Client, Enqueue};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::{Job, JobRecord, OnConflict, Payload, State},
    },
    store::{Acted, Action, Enqueued, Guard, Selector, Target},
};

impl Enqueue {
    /// Merges the new payload into a waiting job with the same unique key.
    ///
    /// The waiting job gets the payload that `merge` makes of its own and the new one, so any number of updates
    /// become one job. Only the payload changes; the answer is [`Enqueued::Replaced`]. With
    /// [`rerun`](Enqueue::rerun), one job runs and one waits: updates that arrive during a run are in the next one.
    ///
    /// `merge` can be called again if another caller changed the waiting job meanwhile.
    ///
    /// ```
    /// # use punctual::{Client, Job, testing::TestQueue};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// #[job(kind = "reindex")]
    /// struct Reindex { rows: Vec<u32> }
    ///
    /// # let t = TestQueue::new();
    /// for row in [7, 8, 9] {
    ///     t.client
    ///         .enqueue(Reindex { rows: vec![row] })
    ///         .rerun("index:42")
    ///         .merge(|waiting: Reindex, new| Reindex { rows: [waiting.rows, new.rows].concat() })
    ///         .await?;
    /// }
    /// let waiting = t.enqueued::<Reindex>().await?;
    /// assert_eq!((waiting.len(), &waiting[0].job.rows), (1, &vec![7, 8, 9]));
    /// # Ok(()) }
    /// ```
    pub fn merge<J: Job>(self, merge: impl Fn(J, J) -> J + Send + 'static) -> Merge {
        let merge = move |waiting: &JobRecord, new: &Payload| {
            if waiting.kind != J::KIND {
                let error = format!("job {} of kind {:?} holds the unique key", waiting.id, waiting.kind);
                return Err(Error::new(ErrorKind::Conflict, error)
                    .with_hint("leave out across_kinds, or give the two kinds different keys"));
            }
            merge(J::decode(&waiting.payload)?, J::decode(new)?).encode()
        };
        Merge { enqueue: self, merge: Box::new(merge) }
    }
}

/// How often others may change the waiting job while it is merged.
const MERGES_MAX: usize = 16;
/// How often an edit is sent if its answer is lost.
const EDITS_MAX: usize = 3;

type MergePayloads = Box<dyn Fn(&JobRecord, &Payload) -> Result<Payload> + Send>;

/// An enqueue that merges, made by [`Enqueue::merge`] and sent when it is awaited.
#[must_use = "a job is enqueued only once this is awaited: add `.await`"]
pub struct Merge {
    enqueue: Enqueue,
    merge: MergePayloads,
}

impl Merge {
    async fn run(self) -> Result<Enqueued> {
        let (client, mut job) = (self.enqueue.client, self.enqueue.spec?.finish()?);
        let Some(unique) = &mut job.unique else {
            return Err(
                Error::invalid("a merge needs a unique key").with_hint("add `.rerun(…)` or `.unique(…)`")
            );
        };
        (unique.on_conflict, unique.version) = (OnConflict::Keep, None);
        if job.id.is_derived() {
            return Err(Error::invalid("a merge has no idempotency key")
                .with_hint("a merged update has no id of its own"));
        }
        for _ in 0..MERGES_MAX {
            let answers = client.push(vec![job.clone()]).await?;
            let met = match answers.into_iter().next() {
                Some(Enqueued::Duplicate(met)) if met.id != job.id && met.state == Some(State::Waiting) => {
                    met.id
                }
                // The answer to a repeated call: the job that it met has started since, or this one has already
                // ended.
                Some(Enqueued::Duplicate(met)) if met.id == job.id && met.state.is_none() => {
                    let info = client.queue(&job.queue).show().await?;
                    if info.is_some_and(|info| info.settings.done.keeps_nothing()) {
                        return Err(Error::new(
                            ErrorKind::UnknownOutcome,
                            "an answer was lost, and the queue keeps no done jobs",
                        ));
                    }
                    continue;
                }
                Some(answer) => return Ok(answer),
                None => return Err(Error::new(ErrorKind::UnknownOutcome, "the store answered for no job")),
            };
            let Some(waiting) = client.get(met).await? else { continue };
            let merged = (self.merge)(&waiting, &job.payload)?;
            if edit(&client, &waiting, &merged).await? {
                return Ok(Enqueued::Replaced { id: met, run_at: waiting.run_at });
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            "the waiting job was changed by another process at the same time",
        )
        .with_hint("try again"))
    }
}

/// Sets the payload of a waiting job if it is unchanged since it was read; returns whether it was.
///
/// If the answer is lost, the same call is sent again. Only one of the calls can find the job unchanged.
async fn edit(client: &Client, was: &JobRecord, payload: &Payload) -> Result<bool> {
    let guard = Guard { queue: was.queue.clone(), state: State::Waiting, version: Some(was.version) };
    let target = [Target { selector: Selector::Id(was.id), guard: Some(guard) }];
    let action = Action::EditPayload(payload.clone());
    let mut lost = None;
    for _ in 0..EDITS_MAX {
        match client.store().act(&target, &action).await {
            Ok(acted) if matches!(acted.first(), Some(Acted::Done(..))) => return Ok(true),
            Ok(_) => {
                let Some(error) = lost else { return Ok(false) };
                return match client.get(was.id).await {
                    Ok(Some(is)) if is.version == was.version + 1 && is.payload == *payload => Ok(true),
                    // The outcome is unknown. A second merge would be wrong if the first was stored.
                    _ => Err(error),
                };
            }
            Err(error) if error.kind() == ErrorKind::UnknownOutcome => lost = Some(error),
            Err(error) => return Err(lost.unwrap_or(error)),
        }
    }
    Err(lost.unwrap_or_else(|| Error::new(ErrorKind::UnknownOutcome, "the store did not answer")))
}

impl IntoFuture for Merge {
    type Output = Result<Enqueued>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merge").field("enqueue", &self.enqueue).finish_non_exhaustive()
    }
}
