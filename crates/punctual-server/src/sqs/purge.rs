//! Removing the messages of queues that were purged or deleted.
//!
//! The document of a queue says which generations of its messages are gone, and a receive drops those that it meets. So a purge holds
//! from its answer on, also if the server is killed. What is done here only makes room: a receive that meets a gone message begins it
//! again. A deleted queue keeps its document as a mark until all of its messages are removed. If the server is killed before, the next
//! `DeleteQueue` or `CreateQueue` of the name goes on.
//!
//! Nothing here can touch a message of a later generation. So it does not matter what is sent, or made again, meanwhile.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{
    Error, JobRecord, State,
    job::Filter,
    limits::BATCH_MAX,
    store::{Action, Guard, List, Selector, Target},
};
use tokio::{sync::Semaphore, time::sleep};

use super::{
    Door,
    queue::{BELIEVED_FOR, Queue},
};

/// Queues that are cleaned at once. Further ones wait.
const AT_ONCE: usize = 2;
/// Queues that are cleaned or wait for it. The messages of further ones are dropped as they are met.
const QUEUES_MAX: usize = 1_000;
/// How long other processes can still send to a queue that was deleted: they believe its document, and take a moment.
const STILL_SENT: Duration = BELIEVED_FOR.saturating_mul(2);
/// Most looks at a deleted queue, of which the first only sees that it was deleted. One with messages after that keeps its mark.
const LOOKS_MAX: usize = 6;
/// Jobs that a look searches at least, if so many are there, and how often it searches as many as the store had at its beginning: some
/// stores search all of their jobs for those of a queue. So it ends also if jobs are added as fast as they are listed.
const SEARCHED_MIN: u64 = 10_000;
const TIMES: u64 = 2;

/// The queues that are being cleaned by this process.
#[derive(Debug)]
pub(super) struct Cleaning {
    /// Whether each is to be cleaned again, because something was asked meanwhile.
    queues: Mutex<HashMap<String, bool>>,
    room: Semaphore,
}

impl Cleaning {
    pub(super) fn new() -> Self {
        Self { queues: Mutex::default(), room: Semaphore::new(AT_ONCE) }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a task must begin. One that is at work goes on with what was asked now, if it `must`.
    fn begin(&self, name: &str, must: bool) -> bool {
        let mut queues = self.queues();
        if let Some(again) = queues.get_mut(name) {
            *again |= must;
            return false;
        }
        if QUEUES_MAX <= queues.len() {
            return false;
        }
        queues.insert(name.to_owned(), false);
        true
    }

    /// Returns whether the task has ended.
    fn end(&self, name: &str) -> bool {
        let mut queues = self.queues();
        match queues.get_mut(name) {
            Some(again) if *again => {
                *again = false;
                false
            }
            _ => {
                queues.remove(name);
                true
            }
        }
    }
}

/// Begins to remove what is gone from a queue, because something was asked.
pub(super) fn start(door: &Arc<Door>, name: &str) {
    if door.cleaning.begin(name, true) {
        spawn(door, name);
    }
}

/// Begins to remove what is gone from a queue, because it was met, unless this process is at it.
pub(super) fn start_if_idle(door: &Arc<Door>, name: &str) {
    if door.cleaning.begin(name, false) {
        spawn(door, name);
    }
}

fn spawn(door: &Arc<Door>, name: &str) {
    let (door, name) = (Arc::clone(door), name.to_owned());
    tokio::spawn(async move {
        loop {
            let cleaned = tokio::select! {
                biased;
                () = door.stop.cancelled() => Ok(()),
                cleaned = clean(&door, &name) => cleaned,
            };
            if let Err(error) = cleaned {
                tracing::warn!(target: "punctual", %error, queue = name, "messages of a purged or deleted queue could not be removed");
            }
            if door.cleaning.end(&name) {
                return;
            }
        }
    });
}

/// Waits until each process has seen a change of a document. What is sent afterwards is of the new generation.
pub(super) async fn seen_by_all() {
    sleep(BELIEVED_FOR).await;
}

async fn clean(door: &Door, name: &str) -> Result<(), Error> {
    let mut known_by_all = None;
    for _ in 0..LOOKS_MAX {
        let Some((queue, version)) = door.queues.look(name).await? else { return Ok(()) };
        if queue.deleted_ms.is_some() && known_by_all != Some(version) {
            // Each deletion has a wait of its own, without the room that others need.
            sleep(STILL_SENT).await;
            known_by_all = Some(version);
            continue;
        }
        let _room = door.cleaning.room.acquire().await.expect("invariant: it is never closed");
        let found = remove(door, name, &queue).await?;
        if queue.deleted_ms.is_none() {
            return Ok(());
        }
        if found == Some(0) {
            return door.queues.remove(name, version).await;
        }
    }
    tracing::warn!(target: "punctual", queue = name, "messages of a deleted queue may be left: DeleteQueue once more removes them");
    Ok(())
}

/// Looks once through a queue, and removes messages that are gone. One that is received is cancelled, so that it does not come back.
/// Returns how many there were, or `None` if the look did not come to the end.
async fn remove(door: &Door, name: &str, queue: &Queue) -> Result<Option<u64>, Error> {
    let is_deleted = queue.deleted_ms.is_some();
    let counts = door.client.count(Some(name)).await?;
    if counts.waiting + counts.running == 0 && counts.parts_away == 0 {
        return Ok(Some(0));
    }
    let filter = Filter::all().queue(name).state([State::Waiting, State::Running]);
    let (mut after, mut found, mut searched, mut bound) = (None, 0, 0, None);
    loop {
        let page = door.client.list(&List { filter: filter.clone(), after, limit: BATCH_MAX }).await?;
        // A page that searched nothing counts, too.
        searched += page.searched.max(1);
        let most = *bound.get_or_insert(page.total.saturating_mul(TIMES).max(SEARCHED_MIN));
        let is_gone = |job: &&JobRecord| {
            let is_lost = if is_deleted { queue.takes_along(job) } else { queue.has_lost(job) };
            is_lost && job.queue == name && !job.cancel_requested
        };
        let gone: Vec<&JobRecord> = page.jobs.iter().filter(is_gone).collect();
        found += gone.len() as u64;
        for (state, action) in [
            (State::Waiting, Action::Delete),
            (State::Running, Action::Cancel { reason: Some("purged".to_owned()) }),
        ] {
            let of_state = gone.iter().filter(|job| job.state == state);
            let targets: Vec<Target> = of_state
                .map(|job| Target {
                    selector: Selector::Id(job.id),
                    guard: Some(Guard { queue: name.to_owned(), state, version: None }),
                })
                .collect();
            if !targets.is_empty() {
                door.client.store().act(&targets, &action).await?;
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(Some(found));
        }
        if most < searched {
            return Ok(None);
        }
    }
}
