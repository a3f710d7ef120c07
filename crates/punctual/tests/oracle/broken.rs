//! Stores with one bug each, around a right one: whether the oracle would notice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use punctual::{
    JobId, JobRecord, NewJob, Result, Timestamp, When,
    store::{
        Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
        Enqueued, Heartbeat, Histogram, Identity, Lease, LeaseStatus, List, Page, QueueOp, QueueReply,
        Reserve, Settled, Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming,
        Verdict,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Settles whatever lease the job has now.
    UnfencedSettle,
    /// Extends it, too.
    UnfencedExtend,
    /// Numbers go down.
    FencesFall,
    /// A repeated reserve is taken for a new one.
    RepeatedReserveHandsOutMore,
    /// A repeated enqueue is taken for a new one.
    RepeatedEnqueueInsertsAgain,
    /// A release counts as a failure.
    ReleaseCounts,
    /// A cancel forgets its words.
    CancelWithoutReason,
    /// A job that is taken may be younger.
    TakeTakesAll,
    /// One more is purged.
    PurgeTakesOneMore,
    /// A sweep does one more.
    SweepDoesOneMore,
    /// A reserve that reclaims leases does not report them.
    TakenBackInSilence,
    /// A guard is not looked at.
    GuardIgnored,
    /// The queues' shares are not looked at.
    SharesIgnored,
    /// Jobs are due a millisecond later than asked for.
    DelayGrows,
    /// Settings take the place of whatever stands there.
    ReplaceSetsAnyway,
    /// A limiter stays closed.
    OpenIgnored,
    /// That of a group stays closed.
    OpenOfGroupIgnored,
}

impl Bug {
    pub(crate) const ALL: [Self; 17] = [
        Self::UnfencedSettle,
        Self::UnfencedExtend,
        Self::FencesFall,
        Self::RepeatedReserveHandsOutMore,
        Self::RepeatedEnqueueInsertsAgain,
        Self::ReleaseCounts,
        Self::CancelWithoutReason,
        Self::TakeTakesAll,
        Self::PurgeTakesOneMore,
        Self::SweepDoesOneMore,
        Self::TakenBackInSilence,
        Self::GuardIgnored,
        Self::SharesIgnored,
        Self::DelayGrows,
        Self::ReplaceSetsAnyway,
        Self::OpenIgnored,
        Self::OpenOfGroupIgnored,
    ];
}

#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) bug: Bug,
    pub(crate) calls: AtomicU64,
}

impl Broken {
    /// The lease that this one is taken for.
    async fn lease(&self, lease: Lease, bug: Bug) -> Result<Lease> {
        let mut lease = self.numbered(lease);
        if self.bug == bug
            && let Some(running) = self.inner.get(lease.job).await?.and_then(|job| job.running)
        {
            lease.fence = running.fence;
        }
        Ok(lease)
    }

    fn numbered(&self, lease: Lease) -> Lease {
        if self.bug == Bug::FencesFall { Lease { fence: u64::MAX - lease.fence, ..lease } } else { lease }
    }

    fn reserve_as(&self, want: &Reserve) -> Reserve {
        let mut want = want.clone();
        if self.bug == Bug::RepeatedReserveHandsOutMore {
            want.call.number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        }
        if self.bug == Bug::SharesIgnored {
            want.queues.iter_mut().for_each(|w| w.share = want.n);
        }
        want
    }

    fn batch_as(&self, mut batch: Batch) -> Batch {
        if self.bug == Bug::TakenBackInSilence {
            batch.reclaimed.clear();
        }
        batch.jobs.iter_mut().for_each(|job| job.lease = self.numbered(job.lease));
        batch.reclaimed.iter_mut().for_each(|back| back.lease = self.numbered(back.lease));
        batch
    }
}

impl punctual::store::sealed::Sealed for Broken {}

#[deny(clippy::missing_trait_methods)]
impl Store for Broken {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn shard(&self) -> u16 {
        self.inner.shard()
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        self.inner.identity()
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        self.inner.now()
    }

    fn enqueue<'a>(&'a self, mut call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        Box::pin(async move {
            if self.bug == Bug::RepeatedEnqueueInsertsAgain {
                call.number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            }
            let mut jobs = jobs.to_vec();
            for job in jobs.iter_mut().filter(|_| self.bug == Bug::DelayGrows) {
                if let When::In(delay) = &mut job.run_at {
                    *delay += Duration::from_millis(1);
                }
            }
            self.inner.enqueue(call, &jobs).await
        })
    }

    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move { Ok(self.enqueue(call, jobs).await?.into_iter().map(Some).collect()) })
    }

    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(async move { Ok(self.batch_as(self.inner.reserve(&self.reserve_as(want)).await?)) })
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        Box::pin(async move {
            let mut current = Vec::new();
            for Heartbeat { lease, notes, company, lasts } in beats {
                let lease = self.lease(*lease, Bug::UnfencedExtend).await?;
                current.push(Heartbeat { lease, notes: notes.clone(), company: *company, lasts: *lasts });
            }
            self.inner.extend(&current).await
        })
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(async move {
            let mut settlements = Vec::new();
            for Settlement { lease, verdict } in batch {
                let lease = self.lease(*lease, Bug::UnfencedSettle).await?;
                let verdict = match verdict {
                    Verdict::Release if self.bug == Bug::ReleaseCounts => {
                        Verdict::Retry { at: When::Now, error: "released".to_owned() }
                    }
                    other => other.clone(),
                };
                settlements.push(Settlement { lease, verdict });
            }
            let then = then.map(|want| self.reserve_as(want));
            let (answers, batch) = self.inner.settle(&settlements, then.as_ref()).await?;
            Ok((answers, batch.map(|batch| self.batch_as(batch))))
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        Box::pin(async move {
            let mut take = take.clone();
            if self.bug == Bug::TakeTakesAll {
                take.older_than = Duration::ZERO;
            }
            self.inner.take(&take).await
        })
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        self.inner.wait(queues, at_most)
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        self.inner.get(id)
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        self.inner.holder(key)
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        self.inner.list(list)
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        self.inner.count(queue)
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        self.inner.upcoming(upcoming)
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        Box::pin(async move {
            let mut targets = targets.to_vec();
            targets.iter_mut().filter(|_| self.bug == Bug::GuardIgnored).for_each(|t| t.guard = None);
            match action {
                Action::Cancel { .. } if self.bug == Bug::CancelWithoutReason => {
                    self.inner.act(&targets, &Action::Cancel { reason: None }).await
                }
                action => self.inner.act(&targets, action).await,
            }
        })
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        Box::pin(async move {
            match op {
                QueueOp::Purge(n) if self.bug == Bug::PurgeTakesOneMore && 0 < *n && *n < 1_000 => {
                    self.inner.queue(name, &QueueOp::Purge(n + 1)).await
                }
                QueueOp::Replace(replace) if self.bug == Bug::ReplaceSetsAnyway => {
                    self.inner.queue(name, &QueueOp::Set(Box::new(replace.new.clone()))).await
                }
                QueueOp::Open { group: None } if self.bug == Bug::OpenIgnored => {
                    self.inner.queue(name, &QueueOp::Show).await
                }
                QueueOp::Open { group: Some(_) } if self.bug == Bug::OpenOfGroupIgnored => {
                    self.inner.queue(name, &QueueOp::Show).await
                }
                op => self.inner.queue(name, op).await,
            }
        })
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        self.inner.queues(after)
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        self.inner.doc(op)
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        self.inner.tool(op)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        let more = self.bug == Bug::SweepDoesOneMore && 0 < limit && limit < 1_000;
        self.inner.sweep(limit + usize::from(more))
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        self.inner.audit(audit)
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        self.inner.doctor()
    }
}
