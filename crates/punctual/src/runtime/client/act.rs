//! Operator's actions through a client: on one job, on many, or on all jobs that match a filter, in bounded slices.

use std::collections::HashSet;

use super::Client;
use crate::{
    core::{
        error::{Error, Result},
        filter::Filter,
        id::JobId,
        job::{JobRecord, Payload, Priority, State},
        limits::{BATCH_BYTES_MAX, BATCH_MAX},
        time::When,
    },
    store::{Acted, Action, Audit, AuditCursor, Finding, Guard, List, Selector, Target, Transaction},
};

/// Jobs listed at once for an action by filter. Small, because the records are read with their payloads.
const PAGE: usize = 250;
/// Most jobs that one filter can go through. Their ids are kept meanwhile, 16 bytes each.
const SEEN_MAX: usize = 16 << 20;

/// The effect of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The job was cancelled. It never starts.
    Done,
    /// The job is running, and the cancel was requested.
    ///
    /// A notification goes to its worker. The handler's token fires at the latest within one heartbeat. The job then
    /// ends cancelled, or done if its run ends with `ack`.
    Requested,
    /// The job had already ended, in this state.
    TooLate(State),
    /// There is no such job.
    NotFound,
}

impl From<Acted> for Cancelled {
    fn from(acted: Acted) -> Self {
        match acted {
            Acted::Done(..) => Self::Done,
            Acted::Requested(_) => Self::Requested,
            Acted::WrongState(_, state) => Self::TooLate(state),
            Acted::NotFound | Acted::UniqueConflict(_) | Acted::LimiterConflict(_) => Self::NotFound,
        }
    }
}

/// The progress of an action by filter.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActProgress {
    /// Jobs that matched when they were listed.
    pub matched: u64,
    /// Matching jobs that were acted on, or whose worker was asked.
    pub done: u64,
    /// Matching jobs that were skipped: they moved on after they were listed, or their state does not allow the
    /// action.
    pub skipped: u64,
    /// Jobs searched.
    pub searched: u64,
    /// Jobs in the store.
    pub total: u64,
}

/// The result of an audit.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Records and entries checked.
    pub checked: u64,
    /// What is wrong, or was repaired.
    pub findings: Vec<Finding>,
}

impl Client {
    /// Cancels a job: at once if it is waiting, through its worker if it is running.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    #[doc(alias = "revoke")]
    #[doc(alias = "abort")]
    pub async fn cancel(&self, target: impl Into<Target>) -> Result<Cancelled> {
        Ok(self.act_on(target, &Action::Cancel { reason: None }).await?.into())
    }

    /// Cancels a job as part of a `rusqlite` transaction on the store's SQLite file.
    ///
    /// The job is cancelled if and only if the transaction commits. See [`Enqueue::in_tx`](crate::client::Enqueue::in_tx).
    /// After the commit, notify the workers with the second value that is returned.
    ///
    /// # Errors
    /// As [`Enqueue::in_tx`](crate::client::Enqueue::in_tx). After any error, roll the transaction back.
    pub fn cancel_in<T: Transaction>(
        &self,
        tx: &T,
        target: impl Into<Target>,
    ) -> Result<(Cancelled, T::Notification)> {
        let cancel = Action::Cancel { reason: None };
        let (acted, notification) = tx.act(&**self.store(), &[target.into()], &cancel)?;
        Ok((acted.into_iter().next().unwrap_or(Acted::NotFound).into(), notification))
    }

    /// Sets the due time of a waiting job.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn reschedule(&self, target: impl Into<Target>, when: impl Into<When>) -> Result<Acted> {
        self.act_on(target, &Action::Reschedule(when.into())).await
    }

    /// Makes a waiting job due now.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    #[doc(alias = "promote")]
    pub async fn run_now(&self, target: impl Into<Target>) -> Result<Acted> {
        self.act_on(target, &Action::RunNow).await
    }

    /// Makes a dead, cancelled or done job wait again, as if it had never run (S11).
    ///
    /// If the future is dropped, the call may have taken effect.
    pub async fn retry(&self, target: impl Into<Target>) -> Result<Acted> {
        self.act_on(target, &Action::Retry).await
    }

    /// Sets the priority of a waiting job.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn reprioritise(&self, target: impl Into<Target>, priority: Priority) -> Result<Acted> {
        self.act_on(target, &Action::Reprioritise(priority)).await
    }

    /// Sets the payload of a waiting job.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn edit(&self, target: impl Into<Target>, payload: Payload) -> Result<Acted> {
        self.act_on(target, &Action::EditPayload(payload)).await
    }

    /// Deletes the record of a job that is not running.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn delete(&self, target: impl Into<Target>) -> Result<Acted> {
        self.act_on(target, &Action::Delete).await
    }

    async fn act_on(&self, target: impl Into<Target>, action: &Action) -> Result<Acted> {
        let acted = self.store().act(&[target.into()], action).await?;
        Ok(acted.into_iter().next().unwrap_or(Acted::NotFound))
    }

    /// Acts on any number of jobs, in slices. Returns one answer per job, in order.
    ///
    /// If the future is dropped, some slices may have taken effect.
    ///
    /// # Errors
    /// The first error of the store. Earlier slices have taken effect.
    pub async fn act(&self, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
        // An edit sends the payload with each job, so the slice is also bounded in bytes (S13).
        let slice = match action {
            Action::EditPayload(payload) => BATCH_BYTES_MAX / payload.bytes.len().max(1),
            _ => BATCH_MAX,
        };
        let mut acted = Vec::with_capacity(targets.len());
        for targets in targets.chunks(slice.clamp(1, BATCH_MAX)) {
            acted.extend(self.store().act(targets, action).await?);
        }
        Ok(acted)
    }

    /// Acts once on each job that matches a filter, in bounded slices.
    ///
    /// Calls `progress` after each slice. The step that acts on a job checks its queue and state again, and skips a
    /// job that has moved on.
    ///
    /// If the future is dropped, some slices may have taken effect. A repeated call continues with the jobs that
    /// still match.
    pub async fn act_where(
        &self,
        filter: &Filter,
        action: &Action,
        mut progress: impl FnMut(ActProgress),
    ) -> Result<ActProgress> {
        let mut sum = ActProgress::default();
        let mut pages = Pages::new(filter);
        while let Some(jobs) = pages.next(self, &mut sum).await? {
            let targets: Vec<Target> = jobs.into_iter().map(guarded).collect();
            for acted in self.act(&targets, action).await? {
                match acted {
                    Acted::Done(..) | Acted::Requested(_) => sum.done += 1,
                    Acted::NotFound
                    | Acted::WrongState(..)
                    | Acted::UniqueConflict(_)
                    | Acted::LimiterConflict(_) => sum.skipped += 1,
                }
            }
            progress(sum);
        }
        Ok(sum)
    }

    /// Counts the jobs that match a filter: a preview of [`Client::act_where`].
    ///
    /// Dropping the future changes nothing.
    pub async fn count_where(
        &self,
        filter: &Filter,
        mut progress: impl FnMut(ActProgress),
    ) -> Result<ActProgress> {
        let mut sum = ActProgress::default();
        let mut pages = Pages::new(filter);
        while pages.next(self, &mut sum).await?.is_some() {
            progress(sum);
        }
        Ok(sum)
    }

    /// Checks the whole store in slices, and repairs it if `repair` is set.
    ///
    /// Calls `progress` after each slice with the number of records and entries checked.
    ///
    /// If the future is dropped, the audit ends. Repairs that were made stay.
    pub async fn audit(&self, repair: bool, mut progress: impl FnMut(u64)) -> Result<AuditReport> {
        let mut report = AuditReport::default();
        let mut from = Some(AuditCursor::default());
        while let Some(start) = from {
            let slice = self.store().audit(Audit { repair, from: start }).await?;
            report.checked += slice.checked;
            report.findings.extend(slice.findings);
            from = slice.next;
            progress(report.checked);
        }
        Ok(report)
    }
}

/// Makes a target that requires the queue and state in which the job was listed.
fn guarded(job: JobRecord) -> Target {
    let guard = Guard { queue: job.queue, state: job.state, version: None };
    Target { selector: Selector::Id(job.id), guard: Some(guard) }
}

/// All pages of a filter, in order.
struct Pages {
    /// `None` after the last page.
    list: Option<List>,
    /// An action can move a job to a later page, so it may be listed again.
    seen: HashSet<JobId>,
}

impl Pages {
    fn new(filter: &Filter) -> Self {
        Self { list: Some(List { filter: filter.clone(), after: None, limit: PAGE }), seen: HashSet::new() }
    }

    async fn next(&mut self, client: &Client, sum: &mut ActProgress) -> Result<Option<Vec<JobRecord>>> {
        let Some(list) = &mut self.list else { return Ok(None) };
        let mut page = client.store().list(list).await?;
        page.jobs.retain(|job| self.seen.insert(job.id));
        if SEEN_MAX < self.seen.len() {
            return Err(Error::invalid(format!("more than {SEEN_MAX} jobs match"))
                .with_hint("write a narrower filter, by queue or tag; jobs changed so far stay changed"));
        }
        sum.matched += page.jobs.len() as u64;
        sum.searched += page.searched;
        sum.total = page.total;
        match page.next {
            Some(after) => list.after = Some(after),
            None => self.list = None,
        }
        Ok(Some(page.jobs))
    }
}
