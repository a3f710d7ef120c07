//! A store that fails on purpose, for tests: before a call takes effect, or after it did.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
    Enqueued, Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve, Settled,
    Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming, WORKER_NOTIFICATION,
};
use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{JobRecord, NewJob},
    time::Timestamp,
};

/// The fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    Pass,
    /// The call fails before it takes effect: `Unavailable`.
    Before,
    /// The call takes effect, and its answer is lost: `UnknownOutcome`.
    After,
    /// A settle answers only the first, third and so on; the others are [`Settled::Away`], and half of these took
    /// effect. Any other call fails before it takes effect.
    InPart,
    /// An enqueue takes effect but answers for none of its jobs, as if their part of the store were unavailable. Any
    /// other call fails before it takes effect.
    Away,
    /// The call fails before it takes effect, with an error of this kind.
    Refused(ErrorKind),
    /// A settle that holds a verdict on this job fails the same way, with whatever else is in it. Any other call passes.
    RefusedOf(JobId, ErrorKind),
    /// As `Refused`, and the answer is not the store's: [`Error::is_foreign`].
    Foreign(ErrorKind),
    /// The call takes effect and answers this much later.
    Delay(Duration),
    /// The call takes effect this much later, and answers then.
    Late(Duration),
}

/// Chooses the fault of a call by the name of the verb.
type Schedule = Box<dyn FnMut(&'static str) -> Fault + Send>;

/// A store around another one, whose calls fail by a schedule.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    schedule: Mutex<Schedule>,
}

impl FaultyStore {
    /// Makes a store whose faults are chosen by `schedule`.
    ///
    /// It is called once for each call, in order, with the name of the verb. The name of a worker's wait for cancels
    /// is `listen`.
    pub fn new(inner: Arc<dyn Store>, schedule: impl FnMut(&'static str) -> Fault + Send + 'static) -> Self {
        Self { inner, schedule: Mutex::new(Box::new(schedule)) }
    }

    /// Makes a store in which one call in `one_in` fails.
    ///
    /// It fails before, in part, or after it took effect.
    /// The same seed and calls always give the same faults.
    pub fn seeded(inner: Arc<dyn Store>, seed: u64, one_in: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self::new(inner, move |_| {
            if random.u32(0..one_in.max(1)) != 0 {
                return Fault::Pass;
            }
            match random.u8(0..3) {
                0 => Fault::Before,
                1 => Fault::InPart,
                _ => Fault::After,
            }
        })
    }

    fn fault(&self, verb: &'static str) -> Fault {
        (self.schedule.lock().unwrap_or_else(PoisonError::into_inner))(verb)
    }

    fn befall<'a, T: Send + 'a>(
        &'a self,
        verb: &'static str,
        call: impl FnOnce() -> BoxFuture<'a, Result<T>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        befallen(self.fault(verb), verb, call)
    }

    async fn settle_in_part(
        &self,
        batch: &[Settlement],
        then: Option<&Reserve>,
    ) -> Result<(Vec<Settled>, Option<Batch>)> {
        let mut answers: Vec<_> = (0..batch.len()).map(|i| Settled::Away { sent: i % 4 != 3 }).collect();
        let takes_effect = batch.iter().cloned().enumerate().filter(|(i, _)| i % 4 != 3);
        let (places, batch): (Vec<usize>, Vec<Settlement>) = takes_effect.unzip();
        let (settled, reserved) = self.inner.settle(&batch, then).await?;
        for (i, settled) in places.into_iter().zip(settled).filter(|(i, _)| i % 2 == 0) {
            answers[i] = settled;
        }
        Ok((answers, reserved))
    }
}

fn befallen<'a, T: Send + 'a>(
    fault: Fault,
    verb: &'static str,
    call: impl FnOnce() -> BoxFuture<'a, Result<T>> + Send + 'a,
) -> BoxFuture<'a, Result<T>> {
    Box::pin(async move {
        match fault {
            Fault::Pass | Fault::RefusedOf(..) => call().await,
            Fault::Before | Fault::InPart | Fault::Away => {
                Err(Error::new(ErrorKind::Unavailable, format!("{verb} failed on purpose")))
            }
            Fault::Refused(kind) => Err(Error::new(kind, format!("{verb} was refused on purpose"))),
            Fault::Foreign(kind) => {
                Err(Error::new(kind, format!("{verb} was answered by something else on purpose")).foreign())
            }
            Fault::After => {
                call().await?;
                Err(Error::new(
                    ErrorKind::UnknownOutcome,
                    format!("the answer of {verb} was lost on purpose"),
                ))
            }
            Fault::Late(by) => {
                tokio::time::sleep(by).await;
                call().await
            }
            Fault::Delay(by) => {
                let answer = call().await;
                tokio::time::sleep(by).await;
                answer
            }
        }
    })
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl super::sealed::Sealed for FaultyStore {}

#[deny(clippy::missing_trait_methods)]
impl Store for FaultyStore {
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
        self.inner.as_any()
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        self.befall("identity", move || self.inner.identity())
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        self.befall("now", move || self.inner.now())
    }

    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        self.befall("enqueue", move || self.inner.enqueue(call, jobs))
    }

    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        let fault = self.fault("enqueue");
        if fault != Fault::Away {
            return befallen(fault, "enqueue", move || self.inner.enqueue_each(call, jobs));
        }
        Box::pin(async move {
            let answers = self.inner.enqueue_each(call, jobs).await?;
            Ok(vec![None; answers.len()])
        })
    }

    fn reserve<'a>(&'a self, request: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        self.befall("reserve", move || self.inner.reserve(request))
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        self.befall("extend", move || self.inner.extend(beats))
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        match self.fault("settle") {
            Fault::InPart => Box::pin(self.settle_in_part(batch, then)),
            Fault::RefusedOf(job, kind) if batch.iter().any(|it| it.lease.job == job) => {
                befallen(Fault::Refused(kind), "settle", move || self.inner.settle(batch, then))
            }
            fault => befallen(fault, "settle", move || self.inner.settle(batch, then)),
        }
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        self.befall("take", move || self.inner.take(take))
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        let is_for_cancels = queues.iter().any(|name| name.starts_with(WORKER_NOTIFICATION));
        let verb = if is_for_cancels { "listen" } else { "wait" };
        self.befall(verb, move || self.inner.wait(queues, at_most))
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        self.befall("get", move || self.inner.get(id))
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        self.befall("holder", move || self.inner.holder(key))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        self.befall("list", move || self.inner.list(list))
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        self.befall("count", move || self.inner.count(queue))
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        self.befall("upcoming", move || self.inner.upcoming(upcoming))
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        self.befall("act", move || self.inner.act(targets, action))
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        self.befall("queue", move || self.inner.queue(name, op))
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        self.befall("queues", move || self.inner.queues(after))
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        self.befall("doc", move || self.inner.doc(op))
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        self.befall("tool", move || self.inner.tool(op))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        self.befall("sweep", move || self.inner.sweep(limit))
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        self.befall("audit", move || self.inner.audit(audit))
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        self.befall("doctor", move || self.inner.doctor())
    }
}
