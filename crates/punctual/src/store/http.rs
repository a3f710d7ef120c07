//! The store behind a server of punctual: each call is `POST /api/v1/CALL` with a body of [`wire`](super::wire).
//!
//! The server's store decides everything. This file only says which body belongs to which call; `link.rs` sends it. What
//! makes a call safe to repeat, the number of its caller or the fence of a lease, goes through unchanged, so S1 to S17
//! hold as they do beside the store. A lost answer is `UnknownOutcome`, and the runtime repeats the call.
//!
//! A wait is one request that the server answers when there may be work. It reads the store before it sleeps, so nothing
//! that arrives between two requests is missed.

mod link;

use std::{
    any::Any,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use self::link::Link;
use super::{
    Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
    Enqueued, Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve, Settled,
    Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming,
    sealed::Sealed,
    wire::{
        ActBody, ActReply, ActionView, BatchBody, CountBody, DoctorReply, EnqueueBody, EnqueueReply,
        ExtendBody, ExtendReply, GetBody, HolderBody, IdentityReply, JobReply, JobsReply, ListBody,
        NewJobView, Nothing, NowReply, PageBody, QueueCallBody, QueuesBody, QueuesReply, ReserveBody,
        SettleBody, SettleReply, SettlementView, StoreReply, SweepBody, TakeBody, WAIT_MAX, WaitBody,
        WaitReply,
    },
};
use crate::core::{
    error::Result,
    id::JobId,
    job::{JobRecord, NewJob},
    time::Timestamp,
};

/// Longest time to wait for an answer.
const CALL_MAX: Duration = Duration::from_secs(30);

/// A store behind a server, by its address.
///
/// Each handle has connections of its own.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let client = punctual::Client::connect("https://jobs.example.com?token_file=/run/secrets/punctual").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct HttpStore {
    link: Link,
    durability: Durability,
    /// The shard for which to make the next ids, as the server last said.
    shard: AtomicU16,
}

impl HttpStore {
    /// Connects to the server at `url`: `http://HOST[:PORT][/BASE]` or `https://…`.
    ///
    /// Options follow after `?`, separated by `&`: `token_file=PATH`, a file with the token, and `ca=PATH`, certificates of
    /// authorities in PEM that are trusted in addition to those of the system. A token can also stand before the host:
    /// `https://:TOKEN@HOST`.
    ///
    /// # Errors
    /// `Invalid` for an address that cannot be parsed, `Unavailable` if nothing answers there, `Unauthenticated` if
    /// the server needs another token, `Unsupported` if it is no server of punctual.
    pub async fn open(url: &str) -> Result<Self> {
        let link = Link::open(url)?;
        let reply: StoreReply = link.call("store", &Nothing {}, CALL_MAX).await?;
        Ok(Self { link, durability: reply.durability, shard: AtomicU16::new(reply.shard) })
    }

    async fn call<R: DeserializeOwned>(&self, name: &str, body: &impl Serialize) -> Result<R> {
        self.link.call(name, body, CALL_MAX).await
    }

    async fn send(&self, call: CallId, jobs: &[NewJob], partial: bool) -> Result<Vec<Option<Enqueued>>> {
        let n = jobs.len();
        let jobs = jobs.iter().map(NewJobView::new).collect();
        let body =
            EnqueueBody { instance: Some(call.instance.into()), call: Some(call.number), partial, jobs };
        let reply: EnqueueReply = self.call("enqueue", &body).await?;
        self.shard.store(reply.shard, Ordering::Relaxed);
        self.whole("enqueue", reply.results, n)
    }

    /// Checks that an answer has a result for each item of its call.
    fn whole<T>(&self, name: &str, results: Vec<T>, n: usize) -> Result<Vec<T>> {
        if results.len() == n { Ok(results) } else { Err(self.link.odd(name)) }
    }
}

impl Sealed for HttpStore {}

impl Store for HttpStore {
    fn url(&self) -> &str {
        self.link.url()
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn shard(&self) -> u16 {
        self.shard.load(Ordering::Relaxed)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        Box::pin(async { Ok(self.call::<IdentityReply>("identity", &Nothing {}).await?.identity) })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        Box::pin(async { Ok(self.call::<NowReply>("now", &Nothing {}).await?.now_ms) })
    }

    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        Box::pin(async move {
            let answers = self.send(call, jobs, false).await?;
            answers.into_iter().map(|answer| answer.ok_or_else(|| self.link.odd("enqueue"))).collect()
        })
    }

    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(self.send(call, jobs, true))
    }

    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(async move {
            Ok(self.call::<BatchBody<JobRecord>>("reserve", &ReserveBody::from(want)).await?.into())
        })
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        Box::pin(async move {
            let body = ExtendBody { leases: beats.iter().collect::<Vec<_>>() };
            let reply: ExtendReply = self.call("extend", &body).await?;
            self.whole("extend", reply.results, beats.len())
        })
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(async move {
            let settle = batch.iter().map(SettlementView::from).collect();
            let body = SettleBody { settle, then: then.map(ReserveBody::from) };
            let reply: SettleReply<JobRecord> = self.call("settle", &body).await?;
            let settled = self.whole("settle", reply.results, batch.len())?;
            Ok((settled.into_iter().map(Settled::from).collect(), reply.batch.map(Batch::from)))
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        Box::pin(
            async move { Ok(self.call::<JobsReply<JobRecord>>("take", &TakeBody::from(take)).await?.jobs) },
        )
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let at_most = at_most.min(WAIT_MAX);
            let body = WaitBody { queues: queues.to_vec(), at_most };
            self.link.call::<WaitReply>("wait", &body, at_most + CALL_MAX).await?;
            Ok(())
        })
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        Box::pin(async move { Ok(self.call::<JobReply<JobRecord>>("get", &GetBody { id }).await?.job) })
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        Box::pin(async move {
            let body = HolderBody { key: key.clone() };
            Ok(self.call::<JobReply<JobRecord>>("holder", &body).await?.job)
        })
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            let page: PageBody<JobRecord> = self.call("list", &ListBody::from(list)).await?;
            let PageBody { now_ms, jobs, next, searched, total } = page;
            Ok(Page { now: now_ms, jobs, next, searched, total })
        })
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        Box::pin(async move { self.call("count", &CountBody { queue: queue.map(str::to_owned) }).await })
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        Box::pin(self.call("upcoming", upcoming))
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        Box::pin(async move {
            let body = ActBody { targets: targets.to_vec(), action: ActionView::from(action) };
            let reply: ActReply = self.call("act", &body).await?;
            let acted = self.whole("act", reply.results, targets.len())?;
            Ok(acted.into_iter().map(Acted::from).collect())
        })
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        Box::pin(
            async move { self.call("queue", &QueueCallBody { name: name.to_owned(), op: op.clone() }).await },
        )
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(async move {
            let body = QueuesBody { after: after.map(str::to_owned) };
            Ok(self.call::<QueuesReply>("queues", &body).await?.names)
        })
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        Box::pin(self.call("doc", op))
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        Box::pin(async move {
            // Here, since the wire rounds durations to whole milliseconds.
            op.check()?;
            self.call("tool", op).await
        })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        Box::pin(async move { self.call("sweep", &SweepBody { limit }).await })
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        Box::pin(async move { self.call("audit", &audit).await })
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        Box::pin(async { Ok(self.call::<DoctorReply>("doctor", &Nothing {}).await?.checks) })
    }
}
