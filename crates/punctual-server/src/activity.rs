//! The activity log: who changed what, when, how many jobs, and why. Orders of people and programs are in it, not the work of
//! jobs: no enqueue, reserve, settle or extend.
//!
//! Its entries are in documents of the store, `activity/…`: a ring of pages. Each process collects entries and appends them
//! together, so that a caller that makes many changes costs few writes. A process that is killed loses what it has collected.
//! Payloads and results are never in it.

mod entry;
mod ring;

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use punctual::{Client, Error, ErrorKind, Result, Timestamp};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

pub(crate) use self::{
    entry::{Actor, Entry, Via},
    ring::{PREFIX, Shown},
};

/// The most entries that wait to be written. Further ones are left out, and the log of the server says so.
const WAITING_MAX: usize = 1_000;
/// The least time between two writes of a process.
const PAUSE: Duration = Duration::from_millis(500);
/// The most attempts at a write, before what waits is left out.
const ATTEMPTS: u32 = 60;

/// The activity log of a store. Clones collect together.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    /// Whether entries are kept.
    is_on: bool,
    waiting: Mutex<Waiting>,
    /// One writer at a time, so that entries of a process stay in order.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: Vec<(Instant, Entry)>,
    /// Whether a task will write them.
    has_writer: bool,
}

impl Activity {
    pub(crate) fn new(client: &Client) -> Self {
        Self::with(client, true)
    }

    /// Makes a log that only shows what others have written, for a router that knows of no callers.
    pub(crate) fn without_callers(client: &Client) -> Self {
        Self::with(client, false)
    }

    fn with(client: &Client, is_on: bool) -> Self {
        Self(Arc::new(Shared {
            client: client.clone(),
            is_on,
            waiting: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        }))
    }

    /// Adds an entry, which is written soon. It is merged with one that waits, if both say the same of other jobs.
    pub(crate) fn add(&self, entry: Entry) {
        if !self.0.is_on {
            return;
        }
        let mut waiting = self.0.waiting();
        if let Some((_, same)) = waiting.entries.iter_mut().find(|(_, other)| other.is_like(&entry)) {
            same.merge(&entry);
        } else if waiting.entries.len() < WAITING_MAX {
            waiting.entries.push((Instant::now(), entry));
        } else {
            tracing::warn!(target: "punctual", "too much waits for the activity log, and an entry is left out");
        }
        if !waiting.has_writer
            && let Ok(runtime) = Handle::try_current()
        {
            waiting.has_writer = true;
            runtime.spawn(write(Arc::downgrade(&self.0)));
        }
    }

    /// Adds an entry of a change, unless the change failed and was certainly not made.
    pub(crate) fn note<T>(&self, entry: Entry, made: &Result<T>) {
        let entry = match made {
            Ok(_) => Some(entry),
            Err(error) => entry.failed(error.kind()),
        };
        if let Some(entry) = entry {
            self.add(entry);
        }
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// Any error of the store. What waits then still waits.
    pub(crate) async fn flush(&self) -> Result<()> {
        // A task of its own: a caller that leaves must not take along what is on its way.
        let shared = Arc::clone(&self.0);
        let flush = tokio::spawn(async move { shared.flush().await });
        flush.await.unwrap_or_else(|e| Err(Error::new(ErrorKind::Closed, "the writer ended").with_source(e)))
    }

    /// Returns entries, the newest first, from a place in the ring on (`None`: its end).
    ///
    /// # Errors
    /// `Invalid` for a place that this did not return; any error of the store.
    pub(crate) async fn read(&self, cursor: Option<&str>, limit: usize) -> Result<Shown> {
        // What this process has done is there, unless the store takes no writes.
        if let Err(error) = self.flush().await {
            tracing::debug!(target: "punctual", %error, "the activity log could not be written");
        }
        ring::read(&self.0.client, cursor, limit).await
    }
}

/// Writes what waits until nothing does. Further entries wait for the pause, and are written together.
async fn write(shared: Weak<Shared>) {
    let mut failures = 0;
    while let Some(shared) = shared.upgrade() {
        match shared.flush().await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!(target: "punctual", %error, "the activity log could not be written");
                }
            }
        }
        if shared.is_written(ATTEMPTS <= failures) {
            return;
        }
        drop(shared);
        sleep(PAUSE).await;
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nothing waits, so that the writer ends. Leaves out what waits if the writer gives up.
    fn is_written(&self, gives_up: bool) -> bool {
        let mut waiting = self.waiting();
        if gives_up {
            tracing::warn!(target: "punctual", n = waiting.entries.len(), "entries of the activity log are left out");
            waiting.entries.clear();
        }
        waiting.has_writer = !waiting.entries.is_empty();
        !waiting.has_writer
    }

    async fn flush(&self) -> Result<()> {
        let _writing = self.writing.lock().await;
        let batch = mem::take(&mut self.waiting().entries);
        if batch.is_empty() {
            return Ok(());
        }
        let mut left: Vec<Entry> = batch.iter().map(|(_, entry)| entry.clone()).collect();
        let written = async {
            let now = self.client.store().now().await?;
            for (entry, (at, _)) in left.iter_mut().zip(&batch) {
                let age = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
                entry.at_ms = Timestamp::saturating_from_ms(now.as_ms().saturating_sub(age));
            }
            ring::append(&self.client, &mut left).await
        };
        let written = written.await;
        if written.is_err() {
            let n = batch.len() - left.len();
            let mut waiting = self.waiting();
            let later = mem::take(&mut waiting.entries);
            waiting.entries = batch.into_iter().skip(n).chain(later).take(WAITING_MAX).collect();
        }
        written
    }
}
