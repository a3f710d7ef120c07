//! Notices changes of the store for all open pages, and for programs: one loop for each process, which reads only while one listens.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{CancellationToken, Client, Result, Timestamp, store::Counts, worker::WorkerInfo};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep_until},
};

/// The most pages that listen at once. Each holds a connection.
pub(crate) const LISTENERS_MAX: usize = 5_000;
/// How often the counters are read at most.
const EVERY: Duration = Duration::from_secs(1);
/// After a read of a second, the loop rests this many seconds: very many queues cost a tenth of the time at most.
const REST_FACTOR: u32 = 9;
/// The longest rest. A failed read is followed by none.
const REST_MAX: Duration = Duration::from_mins(1);
/// The names of queues are read with every so many reads of the counters, and the workers with another one of them. They are
/// many, and seldom change.
const QUEUES_EVERY: u32 = 5;
/// The read of these that the workers are read with.
const WORKERS_AT: u32 = 2;

/// How often each part of the store has changed since the process began, as far as a sample shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) counts: u64,
    /// Of queues and workers.
    pub(crate) queues: u64,
}

impl Versions {
    /// Returns whether a reading that began with `other` has seen all of these changes.
    pub(crate) const fn is_within(self, other: Self) -> bool {
        self.counts <= other.counts && self.queues <= other.queues
    }
}

/// The watcher of a store. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Watcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    stop: CancellationToken,
    seen: watch::Sender<Seen>,
    seats: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// When the next read is due, also if the loop ended and began again.
    next: Option<Instant>,
}

/// What was read last. Clones share the names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) versions: Versions,
    /// `None` before the first read.
    pub(crate) counts: Option<Counts>,
    /// The first 1,000 names of queues; `None` before the first read.
    pub(crate) queues: Option<Arc<[String]>>,
    workers: Arc<[WorkerInfo]>,
}

/// An open page or program. It gets what was seen last only, however slow it is.
#[derive(Debug)]
pub(crate) struct Listener {
    seen: watch::Receiver<Seen>,
    stop: CancellationToken,
    _seat: OwnedSemaphorePermit,
}

impl Watcher {
    /// Makes a watcher, which does nothing yet. `stop` ends it and all that listen.
    pub(crate) fn new(client: &Client, stop: &CancellationToken) -> Self {
        Self(Arc::new(Shared {
            client: client.clone(),
            stop: stop.clone(),
            seen: watch::Sender::default(),
            seats: Arc::new(Semaphore::new(LISTENERS_MAX)),
            state: Mutex::default(),
        }))
    }

    /// Listens, and starts the loop if nobody else listens. `None` if too many listen.
    pub(crate) fn listen(&self) -> Option<Listener> {
        let seat = Arc::clone(&self.0.seats).try_acquire_owned().ok()?;
        let mut state = self.0.state();
        if !state.is_running {
            // What an earlier loop read is out of date. Nobody listens, so nobody is told.
            self.0.seen.send_modify(|seen| (seen.counts, seen.queues) = (None, None));
            // It waits for no rest of that loop.
            state.next = state.next.min(Some(Instant::now() + EVERY));
        }
        let mut seen = self.0.seen.subscribe();
        if state.is_running {
            seen.mark_changed();
        } else {
            // Its first read is a change for all, since nobody knows what happened before.
            state.is_running = true;
            tokio::spawn(Arc::clone(&self.0).run());
        }
        Some(Listener { seen, stop: self.0.stop.clone(), _seat: seat })
    }

    /// Returns what was noticed so far, while a page listens. `None` if nobody watches.
    pub(crate) fn seen(&self) -> Option<Versions> {
        self.0.state().is_running.then(|| self.0.seen.borrow().versions)
    }
}

impl Listener {
    /// Waits for a change. `None` at the end of the server.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        tokio::select! {
            () = self.stop.cancelled() => None,
            changed = self.seen.changed() => changed.ok().map(|()| self.seen.borrow_and_update().clone()),
        }
    }
}

/// Marks the loop as ended if it panics: the next page then starts another one.
struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().is_running = false;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until nobody listens.
    async fn run(self: Arc<Self>) {
        let _running = Running(&self);
        let mut reads = 0;
        while let Some(next) = self.next_read() {
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = sleep_until(next) => self.sample(&mut reads).await,
            }
        }
    }

    /// Returns when to read next, or ends the loop. A page that begins to listen meanwhile waits for the lock, and starts
    /// another one.
    fn next_read(&self) -> Option<Instant> {
        let mut state = self.state();
        if self.stop.is_cancelled() || self.seen.receiver_count() == 0 {
            state.is_running = false;
            return None;
        }
        let now = Instant::now();
        let next = state.next.map_or(now, |next| next.max(now));
        state.next = Some(next + EVERY);
        Some(next)
    }

    async fn sample(&self, reads: &mut u32) {
        let begin = Instant::now();
        let old = self.seen.borrow().clone();
        match self.read(reads, &old).await {
            Ok(new) => {
                let rest = (begin.elapsed() * REST_FACTOR).min(REST_MAX);
                if new.versions != old.versions {
                    self.seen.send_replace(new);
                }
                let mut state = self.state();
                state.next = state.next.max(Some(Instant::now() + rest));
            }
            // Pages find that out themselves when they are loaded.
            Err(error) => tracing::debug!(target: "punctual", %error, "the counters could not be read"),
        }
    }

    /// Reads the counters, and at times the names of the queues or the workers. Makes at most three calls to the store.
    async fn read(&self, reads: &mut u32, old: &Seen) -> Result<Seen> {
        let store = self.client.store();
        let mut new = old.clone();
        // The first read of a loop is a change for all, since nobody knows what happened before.
        let is_first = *reads == 0;
        new.counts = Some(store.count(None).await?);
        if is_first || new.counts != old.counts {
            new.versions.counts += 1;
        }
        if reads.is_multiple_of(QUEUES_EVERY) {
            let queues = store.queues(None).await?;
            if is_first || old.queues.as_deref() != Some(&*queues) {
                new.versions.queues += 1;
                new.queues = Some(queues.into());
            }
        }
        if *reads % QUEUES_EVERY == WORKERS_AT {
            let workers = workers(&self.client).await?;
            if *old.workers != *workers {
                new.versions.queues += 1;
                new.workers = workers.into();
            }
        }
        *reads = reads.wrapping_add(1);
        Ok(new)
    }
}

/// Returns the first workers, without the times at which they were seen: these change all the time.
async fn workers(client: &Client) -> Result<Vec<WorkerInfo>> {
    let mut workers = client.workers(None).await?.workers;
    for info in &mut workers {
        info.seen = Timestamp::default();
    }
    Ok(workers)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use punctual::testing::{Fault, FaultyStore, TestQueue};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_reads_take_a_tenth_of_the_time() {
        let reads = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&reads);
        let store = FaultyStore::new(Arc::clone(TestQueue::new().client.store()), move |called| {
            if called != "count" {
                return Fault::Pass;
            }
            counted.fetch_add(1, Relaxed);
            Fault::Late(Duration::from_secs(2))
        });
        let watcher = Watcher::new(&Client::new(Arc::new(store)), &CancellationToken::new());
        let listener = watcher.listen().expect("there is room");
        sleep(Duration::from_secs(61)).await;
        assert_eq!(reads.load(Relaxed), 4, "one each 20 s");
        drop(listener);
    }
}
