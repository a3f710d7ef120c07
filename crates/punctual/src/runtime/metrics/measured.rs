//! A store that times each call, and counts failed calls and reclaimed leases.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::Metrics;
use crate::{
    core::{
        error::{ErrorKind, Result},
        id::JobId,
        job::{JobRecord, NewJob},
        time::Timestamp,
    },
    store::{
        Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
        Enqueued, Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve,
        Settled, Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming,
        sealed::Sealed,
    },
};

/// A store whose calls are counted.
pub(crate) struct Measured {
    inner: Arc<dyn Store>,
    metrics: Metrics,
    /// Which store it was when it last said so.
    was: Mutex<Option<Identity>>,
}

impl Measured {
    pub(crate) fn new(inner: Arc<dyn Store>, metrics: &Metrics) -> Self {
        Self { inner, metrics: metrics.clone(), was: Mutex::default() }
    }

    /// Times a call, and counts its error.
    fn timed<'a, T: Send + 'a>(
        &'a self,
        verb: &'static str,
        call: BoxFuture<'a, Result<T>>,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let begin = Instant::now();
            let answer = call.await;
            self.metrics.called(verb, begin.elapsed());
            if let Err(error) = &answer {
                self.metrics.failed(verb, error.kind());
            }
            answer
        })
    }
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Sealed for Measured {}

#[deny(clippy::missing_trait_methods)]
impl Store for Measured {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn shard(&self) -> u16 {
        self.inner.shard()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.inner.as_any()
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        Box::pin(async move {
            let is = self.timed("identity", self.inner.identity()).await?;
            let was = self.was.lock().unwrap_or_else(PoisonError::into_inner).replace(is);
            if was.is_some_and(|was| was != is) {
                self.metrics.store_changed();
            }
            Ok(is)
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        self.timed("now", self.inner.now())
    }

    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        self.timed("enqueue", self.inner.enqueue(call, jobs))
    }

    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move {
            let answers = self.timed("enqueue", self.inner.enqueue_each(call, jobs)).await?;
            if answers.iter().any(Option::is_none) {
                self.metrics.failed("enqueue", ErrorKind::Unavailable);
            }
            Ok(answers)
        })
    }

    fn reserve<'a>(&'a self, request: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(async move {
            let batch = self.timed("reserve", self.inner.reserve(request)).await?;
            self.metrics.reclaimed(&batch);
            Ok(batch)
        })
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        self.timed("extend", self.inner.extend(beats))
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(async move {
            let (settled, batch) = self.timed("settle", self.inner.settle(batch, then)).await?;
            if settled.iter().any(|settled| matches!(settled, Settled::Away { .. })) {
                self.metrics.failed("settle", ErrorKind::Unavailable);
            }
            if let Some(batch) = &batch {
                self.metrics.reclaimed(batch);
            }
            Ok((settled, batch))
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        self.timed("take", self.inner.take(take))
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let ended = self.inner.wait(queues, at_most).await;
            if let Err(error) = &ended {
                self.metrics.failed("wait", error.kind());
            }
            ended
        })
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        self.timed("get", self.inner.get(id))
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        self.timed("holder", self.inner.holder(key))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        self.timed("list", self.inner.list(list))
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        self.timed("count", self.inner.count(queue))
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        self.timed("upcoming", self.inner.upcoming(upcoming))
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        self.timed("act", self.inner.act(targets, action))
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        self.timed("queue", self.inner.queue(name, op))
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        self.timed("queues", self.inner.queues(after))
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        self.timed("doc", self.inner.doc(op))
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        self.timed("tool", self.inner.tool(op))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        self.timed("sweep", self.inner.sweep(limit))
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        self.timed("audit", self.inner.audit(audit))
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        self.timed("doctor", self.inner.doctor())
    }
}
