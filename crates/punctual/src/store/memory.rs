//! The store in memory, which ends with its process: the [`Model`] behind a mutex, with notifications.
//!
//! It gives the same answers as every other store and keeps nothing. Use it for tests, with a clock that the test
//! sets, and for experiments. A change, a setting of such a clock or the next due time wakes all waiting
//! callers, and each of them checks again. The system's clock does not tell when it is set, so who waits for a time looks at it each second.

use std::{
    any::Any,
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{sync::Notify, time::Instant};

use crate::{
    core::{error::Result, time::Timestamp},
    store::{
        BoxFuture, Call, Check, CheckLevel, Durability, Identity, Reply, Store, all_answered,
        clock::{Clock, ManualClock},
        model::Model,
        reply,
    },
};

/// The greatest delay after a step of the system's clock: a wait for a time checks so often.
const SLICE: Duration = Duration::from_secs(1);

/// A store in memory; clones share it.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use punctual::{Timestamp, store::{Store, clock::{Clock, ManualClock}, memory::MemoryStore}};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let clock = ManualClock::new(Timestamp::from_ms(1_795_000_000_000)?);
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Clock::Manual(clock.clone())));
/// clock.advance(Duration::from_secs(3_600));
/// assert_eq!(store.now().await?, clock.now());
/// # Ok::<(), punctual::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    identity: Identity,
    model: Mutex<Model>,
    clock: Clock,
    /// Notified after every change.
    notifier: Notify,
}

impl MemoryStore {
    /// Makes an empty store with this clock.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Inner {
            identity: Identity::of(fastrand::u64(..)),
            model: Mutex::default(),
            clock,
            notifier: Notify::new(),
        }))
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.model.lock().expect("invariant: the model does not panic")
    }

    fn read<T>(&self, read: impl FnOnce(&Model, Timestamp) -> T) -> T {
        let model = self.model();
        read(&model, self.0.clock.now())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Model, Timestamp) -> T) -> T {
        let changed = {
            let mut model = self.model();
            change(&mut model, self.0.clock.now())
        };
        self.0.notifier.notify_waiters();
        changed
    }

    fn examine(&self) -> Vec<Check> {
        let durability = Check {
            level: CheckLevel::Warn,
            name: "durability".into(),
            text: "memory: every job ends with this process".to_owned(),
            fix: Some("use sqlite:PATH for jobs that matter".to_owned()),
        };
        let clock = Check {
            level: CheckLevel::Ok,
            name: "clock".into(),
            text: format!("{:?} shows {}", self.0.clock, self.0.clock.now()),
            fix: None,
        };
        vec![durability, clock]
    }

    async fn wait_for_work(&self, queues: &[String], at_most: Duration) {
        let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
        let deadline = Instant::now().checked_add(at_most);
        let mut changed = pin!(self.0.notifier.notified());
        let mut changes = match &self.0.clock {
            Clock::Manual(clock) => Some(ManualClock::changes(clock)),
            Clock::System => None,
        };
        loop {
            // Both are listened to before the check, so that no later change is missed.
            changed.set(self.0.notifier.notified());
            changed.as_mut().enable();
            if let Some(changes) = &mut changes {
                changes.mark_unchanged();
            }
            let next_due = self.read(|model, now| model.wakes_in(now, &queues));
            if next_due == Some(Duration::ZERO) {
                return;
            }
            // A clock for tests reports each change itself, so no timer is needed.
            let due = next_due.filter(|_| changes.is_none()).map(|due| Instant::now() + due.min(SLICE));
            let woken = async {
                match &mut changes {
                    Some(changes) => {
                        tokio::select! { biased; () = changed.as_mut() => (), _ = changes.changed() => () }
                    }
                    None => changed.as_mut().await,
                }
            };
            let Some(until) = due.into_iter().chain(deadline).min() else {
                woken.await;
                continue;
            };
            if tokio::time::timeout_at(until, woken).await.is_err()
                && deadline.is_some_and(|end| end <= until)
            {
                return;
            }
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}

impl super::sealed::Sealed for MemoryStore {}

impl Store for MemoryStore {
    fn url(&self) -> &'static str {
        "memory:"
    }

    fn durability(&self) -> Durability {
        Durability::Memory
    }

    fn shard(&self) -> u16 {
        0
    }

    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        match call {
            Call::Identity => reply(async { Ok(self.0.identity) }),
            Call::Now => reply(async { Ok(self.0.clock.now()) }),
            Call::Enqueue { call, jobs, .. } => {
                reply(
                    async move { self.change(|model, now| model.enqueue(now, call, jobs)).map(all_answered) },
                )
            }
            Call::Reserve(request) => reply(async { self.change(|model, now| model.reserve(now, request)) }),
            Call::Extend(beats) => reply(async { self.change(|model, now| model.extend(now, beats)) }),
            Call::Settle { batch, then } => {
                reply(async move { self.change(|model, now| model.settle(now, batch, then)) })
            }
            Call::Take(take) => reply(async { self.change(|model, now| model.take(now, take)) }),
            Call::Wait { queues, at_most } => reply(self.wait_for_work(queues, at_most).map(Ok)),
            Call::Get(id) => reply(async move { Ok(self.read(|model, now| model.get(now, id))) }),
            Call::Holder(key) => reply(async { Ok(self.read(|model, now| model.holder(now, key))) }),
            Call::List(list) => reply(async { self.read(|model, now| model.list(now, list)) }),
            Call::Count(queue) => reply(async move { Ok(self.read(|model, now| model.count(now, queue))) }),
            Call::Upcoming(upcoming) => {
                reply(async { self.read(|model, now| model.upcoming(now, upcoming)) })
            }
            Call::Act { targets, action } => {
                reply(async move { self.change(|model, now| model.act(now, targets, action)) })
            }
            Call::Queue { name, op } => {
                reply(async move { self.change(|model, now| model.queue(now, name, op)) })
            }
            Call::Queues(after) => reply(async move { Ok(self.read(|model, _| model.queues(after))) }),
            Call::Doc(op) => reply(async { self.change(|model, _| model.doc(op)) }),
            Call::Tool(op) => reply(async { self.change(|model, now| model.tool(now, op)) }),
            Call::Sweep(limit) => reply(async move { self.change(|model, now| model.sweep(now, limit)) }),
            Call::Audit(audit) => reply(async move { Ok(self.read(|model, _| model.audit(&audit))) }),
            Call::Doctor => reply(async { Ok(self.examine()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Poll};

    use super::*;
    use crate::{
        NewJob, Payload, When,
        job::IdMaker,
        store::{Answer, CallId},
    };

    const QUEUE: &str = "mail";

    async fn enqueue(store: &MemoryStore, number: u64, run_at: When) {
        let id = IdMaker::default().make(1, 0, number);
        let job = NewJob { run_at, ..NewJob::new(id, "k", QUEUE, Payload::json("1")) };
        store.enqueue(CallId { instance: 1, number }, &[job]).await.unwrap();
    }

    async fn has_ended(wait: &mut std::pin::Pin<&mut Answer<'_, ()>>) -> bool {
        std::future::poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_wakes_for_a_new_job_and_not_for_a_later_one() {
        let store = MemoryStore::new(Clock::Manual(ManualClock::new(Timestamp::saturating_from_ms(1_000))));
        let queues = [QUEUE.to_owned()];
        let mut wait = pin!(store.wait(&queues, Duration::MAX));
        assert!(!has_ended(&mut wait).await);
        enqueue(&store, 1, When::In(Duration::from_mins(1))).await;
        assert!(!has_ended(&mut wait).await);
        enqueue(&store, 2, When::Now).await;
        wait.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_wakes_when_a_clock_turned_by_hand_reaches_the_next_job() {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_000));
        let store = MemoryStore::new(Clock::Manual(clock.clone()));
        enqueue(&store, 1, When::In(Duration::from_mins(1))).await;
        let queues = [QUEUE.to_owned()];
        let mut wait = pin!(store.wait(&queues, Duration::MAX));
        clock.advance(Duration::from_millis(59_999));
        assert!(!has_ended(&mut wait).await);
        clock.advance(Duration::from_millis(1));
        wait.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_its_bound() {
        let store = MemoryStore::new(Clock::System);
        let before = Instant::now();
        store.wait(&[QUEUE.to_owned()], Duration::from_secs(3)).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(3));
    }
}
