//! What an operator may do through a client: to one job, to many, or to all that match a filter, in bounded slices.

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
    store::{Acted, Action, Audit, AuditCursor, Finding, Guard, List, Target, Transaction, Which},
};

/// Jobs listed at once for an action by filter. Records travel with their payloads: a page is kept small.
const PAGE: usize = 250;
/// Most jobs that one filter goes through: their ids are kept meanwhile, 16 bytes each.
const SEEN_MAX: usize = 16 << 20;

/// What became of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It never starts.
    Done,
    /// It runs: a notification goes to its worker, and its token fires, at the latest within one heartbeat. It ends cancelled, or
    /// done if it finished the work.
    Requested,
    /// It ended already.
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
            Acted::NotFound | Acted::UniqueConflict(_) | Acted::GateConflict(_) => Self::NotFound,
        }
    }
}

/// How far an action by filter has come.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActProgress {
    /// Jobs that matched when they were listed.
    pub matched: u64,
    /// Of these: acted on, or their worker was asked.
    pub done: u64,
    /// Of these: left alone, because they moved on after they were listed or are in a state in which it can't be done.
    pub skipped: u64,
    /// Jobs looked at.
    pub searched: u64,
    /// Jobs in the store.
    pub total: u64,
}

/// What an audit found.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Records and entries looked at.
    pub checked: u64,
    /// What is wrong, or was mended.
    pub findings: Vec<Finding>,
}

impl Client {
    /// Calls a job off: at once if it waits, by asking its worker if it runs.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    #[doc(alias = "revoke")]
    #[doc(alias = "abort")]
    pub async fn cancel(&self, target: impl Into<Target>) -> Result<Cancelled> {
        Ok(self.act_on(target, &Action::Cancel { reason: None }).await?.into())
    }

    /// Cancels as [`Client::cancel`] does, inside a `rusqlite` transaction on the store's SQLite file (see
    /// [`Enqueue::in_tx`](crate::Enqueue::in_tx)): the job is cancelled exactly if the transaction commits. Ring the bell after
    /// the commit.
    ///
    /// # Errors
    /// As [`Enqueue::in_tx`](crate::Enqueue::in_tx); after any error the transaction must be rolled back.
    pub fn cancel_in<T: Transaction>(
        &self,
        tx: &T,
        target: impl Into<Target>,
    ) -> Result<(Cancelled, T::Bell)> {
        let cancel = Action::Cancel { reason: None };
        let (acted, bell) = tx.act(&**self.store(), &[target.into()], &cancel)?;
        Ok((acted.into_iter().next().unwrap_or(Acted::NotFound).into(), bell))
    }

    /// Makes a waiting job due at another time.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn reschedule(&self, target: impl Into<Target>, when: impl Into<When>) -> Result<Acted> {
        self.act_on(target, &Action::Reschedule(when.into())).await
    }

    /// Makes a waiting job due now.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    #[doc(alias = "promote")]
    pub async fn run_now(&self, target: impl Into<Target>) -> Result<Acted> {
        self.act_on(target, &Action::RunNow).await
    }

    /// Lets a dead, cancelled or done job wait again, as if it had never run (S11).
    ///
    /// Dropped, it may have been done or not.
    pub async fn retry(&self, target: impl Into<Target>) -> Result<Acted> {
        self.act_on(target, &Action::Retry).await
    }

    /// Gives a waiting job another level.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn reprioritise(&self, target: impl Into<Target>, priority: Priority) -> Result<Acted> {
        self.act_on(target, &Action::Reprioritise(priority)).await
    }

    /// Gives a waiting job another payload.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn edit(&self, target: impl Into<Target>, payload: Payload) -> Result<Acted> {
        self.act_on(target, &Action::EditPayload(payload)).await
    }

    /// Removes the record of a job that is not running.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn delete(&self, target: impl Into<Target>) -> Result<Acted> {
        self.act_on(target, &Action::Delete).await
    }

    async fn act_on(&self, target: impl Into<Target>, action: &Action) -> Result<Acted> {
        let acted = self.store().act(&[target.into()], action).await?;
        Ok(acted.into_iter().next().unwrap_or(Acted::NotFound))
    }

    /// Acts on any number of jobs, in slices, one answer per job in order.
    ///
    /// Dropped, a part of it may have been done.
    ///
    /// # Errors
    /// The first that the store gave; earlier slices have taken effect.
    pub async fn act(&self, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
        // Every job of a slice is given the payload anew: the slice is bounded in bytes as well (S13).
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

    /// Acts once on every job that matches, in bounded slices, telling `progress` after each.
    ///
    /// A job's queue and state are checked again in the step that acts on it: one that moved on since it was listed is
    /// skipped.
    ///
    /// Dropped, a part of it may have been done; made again, it goes on with those that still match.
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
                    | Acted::GateConflict(_) => sum.skipped += 1,
                }
            }
            progress(sum);
        }
        Ok(sum)
    }

    /// Counts the jobs that match, as the preview of [`Client::act_where`].
    ///
    /// Dropped, it has changed nothing.
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

    /// Checks the whole store in slices, telling `progress` after each how many records and entries were looked at.
    ///
    /// Dropped, it ends where it is; what it repaired stays repaired.
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

/// A job as it was listed.
fn guarded(job: JobRecord) -> Target {
    let guard = Guard { queue: job.queue, state: job.state, version: None };
    Target { which: Which::Id(job.id), guard: Some(guard) }
}

/// All pages of a filter, one after the other.
struct Pages {
    /// `None`: the last page was seen.
    list: Option<List>,
    /// A job that was moved by what is done to the pages may be listed again at its new place.
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
