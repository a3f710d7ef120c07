//! Removing the messages of queues that were purged or deleted.
//!
//! The document of a queue says until when its messages are gone, and a receive drops those that it meets. So a purge holds from its
//! answer on, also if the server is killed. What is done here only makes room. A deleted queue keeps its document as a mark until all of
//! its messages are removed. If the server is killed before, the next `DeleteQueue` or `CreateQueue` of the name goes on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{
    Error, JobRecord, State, Timestamp,
    job::Filter,
    limits::BATCH_MAX,
    store::{Action, Guard, List, QueueOp, QueueReply, Selector, Target},
};
use tokio::{sync::Semaphore, time::sleep};

use super::{
    Door,
    fault::{Code, Fault},
    queue::BELIEVED_FOR,
};

/// Queues that are cleaned at once. Further ones wait.
const AT_ONCE: usize = 2;
/// Queues that are cleaned or wait for it. The messages of further ones are dropped as they are met.
const QUEUES_MAX: usize = 1_000;
/// How long other processes can still send to a queue that was deleted: they believe its document, and take a moment.
const STILL_SENT: Duration = BELIEVED_FOR.saturating_mul(2);
/// Most looks through a deleted queue. One with messages after that keeps its mark.
const LOOKS_MAX: usize = 5;
/// Attempts to see the clock of the store go on by a millisecond.
const TICKS_MAX: usize = 1_000;
/// The time between them.
const TICK: Duration = Duration::from_millis(1);

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

    /// Returns whether a task must begin. One that is at work goes on with what was asked now.
    fn begin(&self, name: &str) -> bool {
        let mut queues = self.queues();
        if let Some(again) = queues.get_mut(name) {
            *again = true;
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

/// Begins to remove what is gone from a queue.
pub(super) fn start(door: &Arc<Door>, name: &str) {
    if !door.cleaning.begin(name) {
        return;
    }
    let (door, name) = (Arc::clone(door), name.to_owned());
    tokio::spawn(async move {
        loop {
            let _room = door.cleaning.room.acquire().await.expect("invariant: it is never closed");
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

/// Waits until the clock of the store is past an instant, so that what is sent from now on is later.
pub(super) async fn passed(door: &Door, at: Timestamp) -> Result<(), Fault> {
    for _ in 0..TICKS_MAX {
        if at < door.client.store().now().await? {
            return Ok(());
        }
        sleep(TICK).await;
    }
    Err(Fault::new(Code::ServiceUnavailable, "The clock of the store went back. Try again."))
}

async fn clean(door: &Door, name: &str) -> Result<(), Error> {
    let mut is_clean = false;
    for look in 0..LOOKS_MAX {
        let Some((queue, version)) = door.queues.look(name).await? else { return Ok(()) };
        let until = match queue.deleted_ms {
            None => Timestamp::saturating_from_ms(queue.gone_until_ms),
            Some(_) if is_clean => return door.queues.remove(name, version).await,
            Some(_) => {
                if look == 0 {
                    sleep(STILL_SENT).await;
                }
                // Nobody sends any more, so this ends. It needs no search.
                let purge = QueueOp::Purge(BATCH_MAX);
                while let QueueReply::Purged { more: true, .. } =
                    door.client.store().queue(name, &purge).await?
                {}
                Timestamp::MAX
            }
        };
        let found = remove(door, name, until).await?;
        if queue.deleted_ms.is_none() {
            return Ok(());
        }
        is_clean = found == 0;
    }
    Ok(())
}

/// Looks once through a queue, and removes messages that were sent up to a time. One that is received is cancelled, so that it does not
/// come back. Returns how many there were.
async fn remove(door: &Door, name: &str, until: Timestamp) -> Result<u64, Error> {
    let filter = Filter::all().queue(name).state([State::Waiting, State::Running]);
    let (mut after, mut found) = (None, 0);
    loop {
        let page = door.client.list(&List { filter: filter.clone(), after, limit: BATCH_MAX }).await?;
        let is_gone =
            |job: &&JobRecord| job.queue == name && job.created_at <= until && !job.cancel_requested;
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
            return Ok(found);
        }
    }
}
