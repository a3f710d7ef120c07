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
    Error, ErrorKind, Result,
    store::{BoxFuture, Call, Durability, Reply, Store},
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

    async fn send(
        &self,
        verb: &'static str,
        Fate { there_ms, back_ms, refused, lost, .. }: Fate,
        call: Call<'_>,
    ) -> Result<Reply> {
        self.travel(there_ms).await;
        self.arrive(verb).await?;
        if refused {
            return Err(Error::new(ErrorKind::Unavailable, format!("{verb} did not arrive")));
        }
        let answer = self.planted.call(self.inner(), call).await;
        self.travel(back_ms).await;
        if lost && answer.is_ok() {
            return Err(Error::new(ErrorKind::UnknownOutcome, format!("the answer of {verb} was lost")));
        }
        answer
    }

    /// Returns the future that makes a copy of a call which arrives after it was given up.
    fn arrival(&self, call: &Call<'_>) -> BoxFuture<'static, ()> {
        let (scene, planted) = (Arc::clone(&self.scene), Arc::clone(&self.planted));
        match *call {
            Call::Enqueue { call, jobs, partial } => {
                let jobs = jobs.to_vec();
                Box::pin(async move {
                    let call = Call::Enqueue { call, jobs: &jobs, partial };
                    drop(planted.call(&scene.memory, call).await);
                })
            }
            Call::Reserve(request) => {
                let request = self.planted.late(request);
                Box::pin(async move { drop(planted.call(&scene.memory, Call::Reserve(&request)).await) })
            }
            Call::Extend(beats) => {
                let beats = beats.to_vec();
                Box::pin(async move { drop(planted.call(&scene.memory, Call::Extend(&beats)).await) })
            }
            Call::Settle { batch, then } => {
                let (batch, then) = (batch.to_vec(), then.cloned());
                Box::pin(async move {
                    let call = Call::Settle { batch: &batch, then: then.as_ref() };
                    drop(planted.call(&scene.memory, call).await);
                })
            }
            Call::Act { targets, action } => {
                let (targets, action) = (targets.to_vec(), action.clone());
                Box::pin(async move {
                    let call = Call::Act { targets: &targets, action: &action };
                    drop(planted.call(&scene.memory, call).await);
                })
            }
            _ => unreachable!("invariant: {} is not in CAN_BE_LATE", call.name()),
        }
    }

    /// Tells the caller that a call was given up. It arrives later, if its process lives until then.
    async fn give_up(
        &self,
        verb: &'static str,
        there_ms: u64,
        late_ms: u64,
        arrival: BoxFuture<'static, ()>,
    ) -> Result<Reply> {
        self.travel(there_ms).await;
        let (life, scene) = (self.life.clone(), Arc::clone(&self.scene));
        spawn(async move {
            sleep(Duration::from_millis(late_ms)).await;
            if scene.reaches_store().await && !life.is_over() {
                arrival.await;
            }
        });
        Err(Error::new(
            ErrorKind::UnknownOutcome,
            format!("{verb} was given up; if its process lives, it arrives {late_ms} ms later"),
        ))
    }

    async fn wait_for_work(&self, queues: &[String], at_most: Duration) -> Result<Reply> {
        let Fate { deaf, .. } = self.fate("wait");
        if self.planted.is_deaf() {
            sleep(at_most).await;
        } else if deaf {
            sleep(at_most.min(DEAF_MAX)).await;
        } else {
            self.inner().wait(queues, at_most).await?;
        }
        self.travel(0).await;
        Ok(Reply::Woken(()))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("salt", &self.salt).finish_non_exhaustive()
    }
}

impl punctual::store::sealed::Sealed for Network {}

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

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        if let Call::Wait { queues, at_most } = call {
            return Box::pin(self.wait_for_work(queues, at_most));
        }
        let verb = call.name();
        let fate = self.fate(verb);
        match fate.late_ms {
            Some(late_ms) => Box::pin(self.give_up(verb, fate.there_ms, late_ms, self.arrival(&call))),
            None => Box::pin(self.send(verb, fate, call)),
        }
    }
}
