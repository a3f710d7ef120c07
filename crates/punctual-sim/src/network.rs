//! The way from a process to the store: calls take time, fail, lose their answers, take effect after they were given up, and
//! end with their process.
//!
//! What befalls a call follows from the seed, the process, the verb and the number of the call, so that a plan with fewer
//! jobs meets the same faults elsewhere. After the death of its process, no call takes effect and none returns.

use std::{
    collections::BTreeMap,
    fmt,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use punctual::{
    Error, ErrorKind, JobId, JobRecord, NewJob, Result, Timestamp,
    store::{
        Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
        Enqueued, Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve,
        Settled, Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming,
    },
};
use tokio::{spawn, time::sleep};

use crate::{bug::Planted, fleet::Scene, process::Life};

/// How long a wait lasts at most whose notification is lost: stores whose notifications can fail without a sign bound their
/// waits.
const DEAF_MAX: Duration = Duration::from_secs(3);

/// The verbs whose calls can arrive after they were given up.
const CAN_BE_LATE: [&str; 5] = ["enqueue", "reserve", "extend", "settle", "act"];
/// How long after it was given up a call may still arrive, in milliseconds.
pub(crate) const LATE_MS_MAX: u64 = 8_000;

/// The store, as one process reaches it.
pub(crate) struct Network {
    scene: Arc<Scene>,
    life: Life,
    /// Differs between processes.
    salt: u64,
    /// The name of the process.
    process: String,
    /// What each verb met so far.
    calls: Mutex<BTreeMap<&'static str, Calls>>,
    planted: Arc<Planted>,
}

/// The calls of a verb so far.
#[derive(Default)]
struct Calls {
    made: u64,
    /// Whether the last one failed.
    failed: bool,
}

/// What befalls a call.
#[derive(Default)]
struct Fate {
    there_ms: u64,
    back_ms: u64,
    refused: bool,
    lost: bool,
    deaf: bool,
    /// The caller is told that the call was given up, and it arrives so much later.
    late_ms: Option<u64>,
}

impl Network {
    pub(crate) fn new(scene: &Arc<Scene>, life: &Life, process: &str, salt: u64) -> Self {
        Self {
            scene: Arc::clone(scene),
            life: life.clone(),
            salt,
            process: process.to_owned(),
            calls: Mutex::default(),
            planted: Arc::new(Planted::new(scene, salt)),
        }
    }

    fn inner(&self) -> &dyn Store {
        &self.scene.memory
    }

    fn fate(&self, verb: &'static str) -> Fate {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(verb).or_default();
        calls.made += 1;
        if !self.scene.is_chaos() {
            return Fate::default();
        }
        let faults = &self.scene.plan.faults;
        let salt = verb.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let mut random = Rng::with_seed(
            self.scene.plan.seed
                ^ self.salt.rotate_left(20)
                ^ salt.rotate_left(40)
                ^ calls.made.rotate_left(52),
        );
        let mut is = |per_mille: u32| 0 < per_mille && random.u32(0..1_000) < per_mille;
        if verb == "wait" {
            return Fate { deaf: is(faults.deaf), ..Fate::default() };
        }
        let (refused, lost, slow) = (is(faults.refused), is(faults.lost), is(faults.slow));
        let late = CAN_BE_LATE.contains(&verb) && is(faults.late);
        let (fails, failed) = (refused || lost || late, calls.failed);
        calls.failed = fails;
        // A worker repeats a reserve at once, and the same leases answer it. Other verbs hold no leases.
        let costs = match verb {
            "extend" => fails || slow,
            "reserve" | "settle" => fails && failed || slow,
            _ => false,
        };
        if costs {
            self.scene.harm(&self.process);
        }
        let most = if slow { faults.slow_ms } else { faults.latency_ms };
        let (there_ms, back_ms) = (random.u64(0..=most), random.u64(0..=most));
        let late_ms = late.then(|| random.u64(0..=LATE_MS_MAX));
        Fate { there_ms, back_ms, refused, lost, deaf: false, late_ms }
    }

    async fn travel(&self, ms: u64) {
        if 0 < ms {
            sleep(Duration::from_millis(ms)).await;
        }
        if self.life.is_over() {
            pending::<()>().await;
        }
    }

    /// Waits or fails while the store is away.
    async fn arrive(&self, verb: &str) -> Result<()> {
        if !self.scene.reaches_store().await {
            return Err(Error::new(ErrorKind::Unavailable, format!("{verb} met no store")));
        }
        self.travel(0).await;
        Ok(())
    }

    fn send<'a, T: Send + 'a>(
        &'a self,
        verb: &'static str,
        call: impl FnOnce() -> BoxFuture<'a, Result<T>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        let fate = self.fate(verb);
        self.send_to(verb, fate, call)
    }

    fn send_to<'a, T: Send + 'a>(
        &'a self,
        verb: &'static str,
        Fate { there_ms, back_ms, refused, lost, .. }: Fate,
        call: impl FnOnce() -> BoxFuture<'a, Result<T>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            self.travel(there_ms).await;
            self.arrive(verb).await?;
            if refused {
                return Err(Error::new(ErrorKind::Unavailable, format!("{verb} did not arrive")));
            }
            let answer = call().await;
            self.travel(back_ms).await;
            if lost && answer.is_ok() {
                return Err(Error::new(ErrorKind::UnknownOutcome, format!("the answer of {verb} was lost")));
            }
            answer
        })
    }

    /// As `send`, for a call that may arrive after it was given up: `arrive` owns what it passes on.
    fn send_or_give_up<'a, T: Send + 'a>(
        &'a self,
        verb: &'static str,
        call: impl FnOnce() -> BoxFuture<'a, Result<T>> + Send + 'a,
        arrive: impl FnOnce(Arc<Scene>, Arc<Planted>) -> BoxFuture<'static, ()>,
    ) -> BoxFuture<'a, Result<T>> {
        let fate = self.fate(verb);
        match fate.late_ms {
            None => self.send_to(verb, fate, call),
            Some(late_ms) => {
                let arrive = arrive(Arc::clone(&self.scene), Arc::clone(&self.planted));
                self.give_up(verb, fate.there_ms, late_ms, arrive)
            }
        }
    }

    /// Tells the caller that a call was given up. It arrives later, if its process lives until then.
    fn give_up<'a, T: Send + 'a>(
        &'a self,
        verb: &'static str,
        there_ms: u64,
        late_ms: u64,
        arrive: BoxFuture<'static, ()>,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            self.travel(there_ms).await;
            let (life, scene) = (self.life.clone(), Arc::clone(&self.scene));
            spawn(async move {
                sleep(Duration::from_millis(late_ms)).await;
                if scene.reaches_store().await && !life.is_over() {
                    arrive.await;
                }
            });
            Err(Error::new(
                ErrorKind::UnknownOutcome,
                format!("{verb} was given up; if its process lives, it arrives {late_ms} ms later"),
            ))
        })
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("salt", &self.salt).finish_non_exhaustive()
    }
}

impl punctual::store::sealed::Sealed for Network {}

#[deny(clippy::missing_trait_methods)]
impl Store for Network {
    fn url(&self) -> &'static str {
        "memory:"
    }

    fn durability(&self) -> Durability {
        self.inner().durability()
    }

    fn shard(&self) -> u16 {
        self.inner().shard()
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        self.send("identity", move || self.inner().identity())
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        self.send("now", || self.inner().now())
    }

    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        self.send_or_give_up(
            "enqueue",
            move || Box::pin(async move { self.planted.enqueue(self.inner(), call, jobs).await }),
            |scene, planted| {
                let jobs = jobs.to_vec();
                Box::pin(async move { drop(planted.enqueue(&scene.memory, call, &jobs).await) })
            },
        )
    }

    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move { Ok(self.enqueue(call, jobs).await?.into_iter().map(Some).collect()) })
    }

    fn reserve<'a>(&'a self, request: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        self.send_or_give_up(
            "reserve",
            move || Box::pin(async move { self.planted.reserve(self.inner(), request).await }),
            |scene, planted| {
                let request = request.clone();
                Box::pin(async move { drop(planted.reserve_late(&scene.memory, request).await) })
            },
        )
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        self.send_or_give_up(
            "extend",
            move || Box::pin(async move { self.planted.extend(self.inner(), beats).await }),
            |scene, planted| {
                let beats = beats.to_vec();
                Box::pin(async move { drop(planted.extend(&scene.memory, &beats).await) })
            },
        )
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        self.send_or_give_up(
            "settle",
            move || Box::pin(async move { self.planted.settle(self.inner(), batch, then).await }),
            |scene, planted| {
                let (batch, then) = (batch.to_vec(), then.cloned());
                Box::pin(async move { drop(planted.settle(&scene.memory, &batch, then.as_ref()).await) })
            },
        )
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        self.send("take", move || self.inner().take(take))
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        let Fate { deaf, .. } = self.fate("wait");
        Box::pin(async move {
            if self.planted.is_deaf() {
                sleep(at_most).await;
            } else if deaf {
                sleep(at_most.min(DEAF_MAX)).await;
            } else {
                self.inner().wait(queues, at_most).await?;
            }
            self.travel(0).await;
            Ok(())
        })
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        self.send("get", move || self.inner().get(id))
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        self.send("holder", move || self.inner().holder(key))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        self.send("list", move || self.inner().list(list))
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        self.send("count", move || self.inner().count(queue))
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        self.send("upcoming", move || self.inner().upcoming(upcoming))
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        self.send_or_give_up(
            "act",
            move || Box::pin(async move { self.planted.act(self.inner(), targets, action).await }),
            |scene, planted| {
                let (targets, action) = (targets.to_vec(), action.clone());
                Box::pin(async move { drop(planted.act(&scene.memory, &targets, &action).await) })
            },
        )
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        self.send("queue", move || self.inner().queue(name, op))
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        self.send("queues", move || self.inner().queues(after))
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        self.send("doc", move || self.inner().doc(op))
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        self.send("tool", move || self.inner().tool(op))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        self.send("sweep", move || self.inner().sweep(limit))
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        self.send("audit", move || self.inner().audit(audit))
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        self.send("doctor", move || self.inner().doctor())
    }
}
