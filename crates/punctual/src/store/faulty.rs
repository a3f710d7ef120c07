//! A store that fails on purpose, for tests: before a call takes effect, or after it did.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::TryFutureExt as _;

use super::{
    Batch, BoxFuture, Call, Durability, Reply, Reserve, Settled, Settlement, Store, WORKER_NOTIFICATION,
    reply,
};
use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
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

async fn befall<'a>(
    fault: Fault,
    verb: &'static str,
    call: impl FnOnce() -> BoxFuture<'a, Result<Reply>> + Send,
) -> Result<Reply> {
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
            Err(Error::new(ErrorKind::UnknownOutcome, format!("the answer of {verb} was lost on purpose")))
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
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl super::sealed::Sealed for FaultyStore {}

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

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        let verb = match call {
            Call::Wait { queues, .. } if queues.iter().any(|name| name.starts_with(WORKER_NOTIFICATION)) => {
                "listen"
            }
            _ => call.name(),
        };
        let fault = (self.schedule.lock().unwrap_or_else(PoisonError::into_inner))(verb);
        let inner = &self.inner;
        match (fault, &call) {
            (Fault::InPart, Call::Settle { batch, then }) => reply(self.settle_in_part(batch, *then)),
            (Fault::Away, Call::Enqueue { jobs, partial: true, .. }) => {
                let none = vec![None; jobs.len()];
                reply(inner.call(call).map_ok(|_| none))
            }
            (Fault::RefusedOf(job, kind), Call::Settle { batch, .. })
                if batch.iter().any(|it| it.lease.job == job) =>
            {
                Box::pin(befall(Fault::Refused(kind), verb, move || inner.call(call)))
            }
            _ => Box::pin(befall(fault, verb, move || inner.call(call))),
        }
    }
}
