//! Stores with one bug each, around a right one: whether the oracle would notice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use punctual::{
    Result, When,
    store::{
        Action, Batch, BoxFuture, Call, Durability, Heartbeat, Lease, QueueOp, Reply, Reserve, Settlement,
        Store, Take, Target, Verdict,
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

    async fn extend_as(&self, beats: &[Heartbeat]) -> Result<Reply> {
        let mut current = Vec::new();
        for beat in beats {
            current.push(Heartbeat {
                lease: self.lease(beat.lease, Bug::UnfencedExtend).await?,
                ..beat.clone()
            });
        }
        self.inner.call(Call::Extend(&current)).await
    }

    async fn settle_as(&self, batch: &[Settlement], then: Option<&Reserve>) -> Result<Reply> {
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
        Ok((answers, batch.map(|batch| self.batch_as(batch))).into())
    }

    async fn act_as(&self, targets: &[Target], action: &Action) -> Result<Reply> {
        let mut targets = targets.to_vec();
        targets.iter_mut().filter(|_| self.bug == Bug::GuardIgnored).for_each(|t| t.guard = None);
        let action = match action {
            Action::Cancel { .. } if self.bug == Bug::CancelWithoutReason => &Action::Cancel { reason: None },
            action => action,
        };
        self.inner.call(Call::Act { targets: &targets, action }).await
    }

    fn queue_as(&self, op: &QueueOp) -> QueueOp {
        match op {
            QueueOp::Purge(n) if self.bug == Bug::PurgeTakesOneMore && 0 < *n && *n < 1_000 => {
                QueueOp::Purge(n + 1)
            }
            QueueOp::Replace(replace) if self.bug == Bug::ReplaceSetsAnyway => {
                QueueOp::Set(Box::new(replace.new.clone()))
            }
            QueueOp::Open { group: None } if self.bug == Bug::OpenIgnored => QueueOp::Show,
            QueueOp::Open { group: Some(_) } if self.bug == Bug::OpenOfGroupIgnored => QueueOp::Show,
            op => op.clone(),
        }
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

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        match call {
            Call::Enqueue { mut call, jobs, partial } => Box::pin(async move {
                if self.bug == Bug::RepeatedEnqueueInsertsAgain {
                    call.number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
                }
                let mut jobs = jobs.to_vec();
                for job in jobs.iter_mut().filter(|_| self.bug == Bug::DelayGrows) {
                    if let When::In(delay) = &mut job.run_at {
                        *delay += Duration::from_millis(1);
                    }
                }
                self.inner.call(Call::Enqueue { call, jobs: &jobs, partial }).await
            }),
            Call::Reserve(want) => Box::pin(async move {
                Ok(self.batch_as(self.inner.reserve(&self.reserve_as(want)).await?).into())
            }),
            Call::Extend(beats) => Box::pin(self.extend_as(beats)),
            Call::Settle { batch, then } => Box::pin(self.settle_as(batch, then)),
            Call::Take(take) if self.bug == Bug::TakeTakesAll => Box::pin(async move {
                let take = Take { older_than: Duration::ZERO, ..take.clone() };
                self.inner.call(Call::Take(&take)).await
            }),
            Call::Act { targets, action } => Box::pin(self.act_as(targets, action)),
            Call::Queue { name, op } => Box::pin(async move {
                let op = self.queue_as(op);
                self.inner.call(Call::Queue { name, op: &op }).await
            }),
            Call::Sweep(limit) if self.bug == Bug::SweepDoesOneMore && 0 < limit && limit < 1_000 => {
                self.inner.call(Call::Sweep(limit + 1))
            }
            call => self.inner.call(call),
        }
    }
}
