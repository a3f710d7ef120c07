//! One reading of the queues of a store, and which queues it reads.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use futures_util::future::try_join_all;
use punctual::{
    Client, ErrorKind, Result, Timestamp,
    store::{Counts, QueueInfo},
};
use tokio::time::Instant;

/// The most queues in a sample: those that are overdue, then those with the most waiting and running jobs.
const QUEUES_MAX: usize = 500;
/// The most queues that are in a sample because they are overdue. A small queue without a worker must not be missed.
const OVERDUE_MAX: usize = 100;
/// How long a job must have been due to make its queue overdue.
const OVERDUE_MIN: Duration = Duration::from_mins(1);
/// The most further queues that one sample reads, in search of larger ones. The next sample continues after them.
const SEARCHED_MAX: usize = 500;
/// The most calls to the store at once.
const CALLS_AT_ONCE_MAX: usize = 32;

/// The queues of a store at one time.
#[derive(Debug)]
pub(super) struct Sample {
    /// When it was begun.
    pub(super) at: Instant,
    /// The jobs of all queues together.
    pub(super) counts: Counts,
    /// By name.
    pub(super) queues: Vec<QueueSample>,
    /// How many queues are not in the sample; at least this many until the first search has ended.
    pub(super) left_out: usize,
}

/// A queue at one time.
#[derive(Debug)]
pub(super) struct QueueSample {
    pub(super) name: String,
    pub(super) counts: Counts,
    /// How long the oldest due job that no concurrency key holds back has been due; 0 if there is none.
    pub(super) oldest_due: Duration,
    /// How long the oldest job that is blocked by its concurrency key has been due; 0 if none is blocked.
    pub(super) oldest_blocked: Duration,
    pub(super) is_paused: bool,
}

impl QueueSample {
    fn new(info: QueueInfo, now: Timestamp) -> Self {
        let age = |due: Option<Timestamp>| due.map(|due| now.since(due)).unwrap_or_default();
        Self {
            oldest_due: age(info.oldest_due),
            oldest_blocked: age(info.oldest_blocked),
            is_paused: info.settings.paused.is_some(),
            name: info.name,
            counts: info.counts,
        }
    }

    fn size(&self) -> (u64, u64) {
        (self.counts.waiting + self.counts.running, self.counts.total())
    }

    /// Returns how long it has been overdue; 0 if it is not. A paused queue is late on purpose.
    fn overdue(&self) -> Duration {
        Some(self.oldest_due.max(self.oldest_blocked))
            .filter(|due| OVERDUE_MIN <= *due && !self.is_paused)
            .unwrap_or_default()
    }
}

/// Reads a queue. One that cannot be read is left out, so that it does not hide all others.
async fn show(client: &Client, name: &str) -> Result<Option<QueueInfo>> {
    let shown = client.queue(name).show().await;
    if shown.as_ref().is_err_and(|e| e.kind() == ErrorKind::Corrupt) { Ok(None) } else { shown }
}

/// Leaves the queues that a sample has, by name.
fn choose(queues: &mut Vec<QueueSample>) {
    queues.sort_by_key(|queue| Reverse(queue.overdue()));
    let overdue = queues.iter().take(OVERDUE_MAX).take_while(|queue| !queue.overdue().is_zero()).count();
    queues[overdue..].sort_by_key(|queue| Reverse(queue.size()));
    queues.truncate(QUEUES_MAX);
    queues.sort_by(|one, other| one.name.cmp(&other.name));
}

/// The queues that the next sample reads.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Those of the last sample.
    shown: Vec<String>,
    /// The name after which the search continues; `None` at its start.
    after: Option<String>,
    /// How many names the search has found since its start.
    found: usize,
    /// How many names the last complete search found.
    total: usize,
}

impl Search {
    /// Reads a sample. It makes two calls to the store, and one for each queue that it reads, at most 1,000.
    ///
    /// After an error, the next sample reads the same queues.
    pub(super) async fn read(&mut self, client: &Client, at: Instant, now: Timestamp) -> Result<Sample> {
        let store = client.store();
        let counts = store.count(None).await?;
        let names = store.queues(self.after.as_deref()).await?;
        let searched = &names[..names.len().min(SEARCHED_MAX)];
        // One call returns more names than are searched, so a short answer has the last ones.
        let is_end = searched.len() == names.len();
        let read: BTreeSet<&str> = self.shown.iter().chain(searched).map(String::as_str).collect();
        let mut queues = Vec::with_capacity(read.len());
        for names in Vec::from_iter(read).chunks(CALLS_AT_ONCE_MAX) {
            let shown = try_join_all(names.iter().map(|name| show(client, name))).await?;
            queues.extend(shown.into_iter().flatten().map(|info| QueueSample::new(info, now)));
        }
        choose(&mut queues);

        let found = self.found + searched.len();
        if is_end {
            self.total = found;
        }
        let total = self.total.max(self.found + names.len());
        self.found = if is_end { 0 } else { found };
        self.after = searched.last().filter(|_| !is_end).cloned();
        self.shown = queues.iter().map(|queue| queue.name.clone()).collect();
        Ok(Sample { at, counts, left_out: total.saturating_sub(queues.len()), queues })
    }
}
