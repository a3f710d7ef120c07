//! `wait`: sleeps until there may be work, without polling.
//!
//! ```text
//! enter the waiters ─► read what is due next ─► sleep: until that time, a notification, or the end of a slice
//!                               ▲                                                          │ the file was written
//!                               └──────────────────────────────────────────────────────────┘
//! ```
//!
//! A notification can be lost. So after each slice, the wait compares the time of the last write to the log. That is
//! one system call and no statement. Only if the log was written is the file read. A job that was found this way,
//! without a notification, was written by a stranger: a program that cannot notify here. While there are strangers,
//! slices are short.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::Instant};

use crate::{
    core::{error::Result, id::JobId, time::Timestamp},
    store::{
        clock::Clock,
        end_of,
        sqlite::{
            SqliteStore,
            engine::{fault::Step, tx::Tx},
            notify::Waiting,
            state::places::{LeaseRow, Place},
            toolkit::lock,
            verbs::reserve,
        },
    },
};

/// The greatest delay after a lost notification, after a lease without a notification, and after a step of the clock.
const SLICE: Duration = Duration::from_secs(1);
/// The longest wait, after which the caller should also look for upkeep.
const WAIT_MAX: Duration = Duration::from_mins(1);
/// The slice if other processes cannot notify.
const SLICE_WITHOUT_NOTIFICATION: Duration = Duration::from_millis(20);
/// A job that has been due for this long during a wait was written by a stranger: a notified waiter is faster.
const UNHEARD: Duration = Duration::from_millis(100);
/// How long the waiters that wake for a time have until the others check, too.
const UNTAKEN: Duration = Duration::from_millis(500);
/// How long strangers are expected after one was met.
const STRANGERS_FOR: Duration = Duration::from_mins(10);

/// Whether other programs write to the file without notifications. Shared by all waits of a store.
#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<Option<Instant>>);

impl Strangers {
    fn are_about(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    fn met(&self) {
        if !self.are_about() {
            tracing::info!(target: "punctual",
                "a job was written by a program that does not notify this one; it checks for jobs every 20 ms for 10 minutes");
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(STRANGERS_FOR);
    }

    fn until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A state of the file that a wait has read.
struct Seen {
    /// When the log was last written, read before the version.
    written: Option<SystemTime>,
    version: i64,
    /// Whether the version was compared once more since. Before that, a write in the same tick of the file system's
    /// clock would be missed.
    is_settled: bool,
}

/// Why a sleep ended.
enum Woke {
    /// There may be work.
    Work,
    /// Check again: the clock was set.
    Turned,
    /// Check again: the file was written.
    Written,
    /// Check again: what was left to others may still be there.
    Untaken,
}

pub(crate) async fn wait(store: &SqliteStore, queues: &[String], at_most: Duration) -> Result<()> {
    if any_ended(store, queues).await? {
        return Ok(());
    }
    let at_most = at_most.min(WAIT_MAX);
    let end = Instant::now().checked_add(at_most);
    let waiting = store.notifier.enter(queues, store.options.clock.now().after(at_most));
    let mut changes = match &store.options.clock {
        Clock::Manual(clock) => Some(clock.changes()),
        Clock::System => None,
    };
    let mut was_written = false;
    loop {
        // Marked as seen before the check, so that no later change of the clock is missed.
        if let Some(changes) = &mut changes {
            changes.mark_unchanged();
        }
        store.database.check_in_place()?;
        let written = store.database.names.written();
        let seen = Seen { written, version: store.reader.data_version().await?, is_settled: false };
        let names = queues.to_vec();
        let next = store.reader.read(move |tx| {
            let mut queues = Vec::with_capacity(names.len());
            let mut free_at = look_for_ends(tx, &names)?.0.then_some(tx.now);
            for name in &names {
                queues.extend(tx.queue(name)?);
                free_at = lock::free_at(tx, name)?.into_iter().chain(free_at).min();
            }
            let mark = tx.seen()?;
            Ok(reserve::next(tx, &queues, mark)?.into_iter().chain(free_at).min())
        });
        let next = next.await?;
        if was_written && next.is_some_and(|next| next.after(UNHEARD) <= store.options.clock.now()) {
            store.strangers.met();
        }
        let woke = sleep(store, &waiting, &mut changes, seen, next, end).await?;
        was_written = matches!(woke, Woke::Written);
        if matches!(woke, Woke::Work) {
            // An end concerns all callers that wait for it, so a wait that does not return it passes it on.
            let names = queues.to_vec();
            let is_for_all = queues.iter().any(|name| end_of(name).is_some())
                && store.reader.read(move |tx| look_for_ends(tx, &names)).await?.0;
            if !is_for_all {
                waiting.leave();
            }
            return Ok(());
        }
    }
}

/// Returns whether one of the named jobs has ended or is gone. Marks the live ones as watched, so that their ends are
/// notified.
async fn any_ended(store: &SqliteStore, names: &[String]) -> Result<bool> {
    if !names.iter().any(|name| end_of(name).is_some()) {
        return Ok(false);
    }
    let names = names.to_vec();
    let (mut has_ended, unwatched) = store.reader.read(move |tx| look_for_ends(tx, &names)).await?;
    for id in unwatched {
        has_ended |= store.write(1, 0, false, move |tx| watch(tx, id)).await?;
    }
    Ok(has_ended)
}

/// Returns whether one of these jobs has ended or is gone, and the live ones that are not marked as watched.
fn look_for_ends(tx: &mut Tx<'_>, names: &[String]) -> Step<(bool, Vec<JobId>)> {
    let (mut any_ended, mut unwatched) = (false, Vec::new());
    for id in names.iter().filter_map(|name| end_of(name)) {
        let job = tx.job(id)?;
        let place = job.as_ref().map(|job| Place::of(tx, job)).transpose()?;
        match (job, place) {
            (Some(job), Some(Place::Waiting | Place::Running(_))) => {
                unwatched.extend((!job.history.watched).then_some(id));
            }
            _ => any_ended = true,
        }
    }
    Ok((any_ended, unwatched))
}

fn watch(tx: &mut Tx<'_>, id: JobId) -> Step<bool> {
    let Some(mut job) = tx.job(id)? else { return Ok(true) };
    match Place::of(tx, &job)? {
        Place::Ended(_) | Place::Nowhere => return Ok(true),
        _ if job.history.watched => {}
        place => {
            job.history.watched = true;
            job.put_history(tx.conn)?;
            if let Place::Running(lease) = place {
                tx.put_lease_flags(id, lease.flags | LeaseRow::HISTORY)?;
            }
        }
    }
    Ok(false)
}

/// Sleeps until `next`, until `end`, until a notification of something earlier, or until others committed.
async fn sleep(
    store: &SqliteStore,
    waiting: &Waiting,
    changes: &mut Option<watch::Receiver<Timestamp>>,
    mut seen: Seen,
    next: Option<Timestamp>,
    end: Option<Instant>,
) -> Result<Woke> {
    let clock = &store.options.clock;
    let until_end = |now: Timestamp| end.map_or(Timestamp::MAX, |end| now.after(end - Instant::now()));
    if next.is_some_and(|next| next <= clock.now()) {
        return Ok(Woke::Work);
    }
    // One of the waiting processes, and a spare, wake for a time. The others check later whether it was taken.
    let mut untaken = next.filter(|next| waiting.is_left_to_others(*next)).map(|next| next.after(UNTAKEN));
    let own = next.filter(|_| untaken.is_none()).unwrap_or(Timestamp::MAX);
    let mut armed = waiting.arm(own.min(until_end(clock.now())));
    let mut was_woken = false;
    loop {
        let now = clock.now();
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(Woke::Work);
        }
        if armed <= now {
            if was_woken || untaken.is_some() || !waiting.is_left_to_others(armed) {
                return Ok(Woke::Work);
            }
            untaken = Some(now.after(UNTAKEN));
            armed = waiting.arm(until_end(now));
            continue;
        }
        let again = untaken.map_or(Duration::MAX, |untaken| untaken.since(now));
        if again.is_zero() {
            return Ok(Woke::Untaken);
        }
        let is_heard = store.notifier.reaches_others() && !store.strangers.are_about();
        let slice = if is_heard { SLICE } else { SLICE_WITHOUT_NOTIFICATION };
        // A clock that a test sets does not move by itself.
        let due = if matches!(clock, Clock::System) { armed.since(now).min(again) } else { Duration::MAX };
        let pause = slice.min(due).min(left);
        tokio::select! {
            at = waiting.woken() => (armed, was_woken) = (at.min(armed), true),
            () = clock_changed(changes) => return Ok(Woke::Turned),
            () = tokio::time::sleep(pause) => if pause == slice && was_written_since(store, &mut seen).await? {
                return Ok(Woke::Written);
            }
        }
    }
}

/// Returns whether the file was written since then.
async fn was_written_since(store: &SqliteStore, seen: &mut Seen) -> Result<bool> {
    store.database.check_in_place()?;
    let written = store.database.names.written();
    if seen.is_settled && written == seen.written {
        return Ok(false);
    }
    (seen.written, seen.is_settled) = (written, true);
    Ok(store.reader.data_version().await? != seen.version)
}

/// Returns when a test sets its clock; never for the system's clock.
async fn clock_changed(changes: &mut Option<watch::Receiver<Timestamp>>) {
    match changes {
        // The clock lives as long as the store.
        Some(changes) => drop(changes.changed().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{clock::ManualClock, sqlite::SqliteOptions};

    /// A step of the system's clock sends no notification. A job that is due by the new time is no earlier than the
    /// time for which the wait is armed. So there is no notification for it, either. The wait must notice by itself
    /// that its time is over.
    #[tokio::test(start_paused = true)]
    async fn a_step_of_the_clock_ends_a_sleep_within_a_slice() {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_000_000_000));
        let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path().join("jobs.db"), options).unwrap();
        for next in [None, Some(clock.now().after(Duration::from_secs(30)))] {
            let waiting = store.notifier.enter(&["mail".to_owned()], clock.now().after(WAIT_MAX));
            let version = store.reader.data_version().await.unwrap();
            let seen = Seen { written: store.database.names.written(), version, is_settled: false };
            let start = Instant::now();
            let end = start.checked_add(WAIT_MAX);
            let step = async {
                tokio::time::sleep(SLICE / 2).await;
                clock.advance(Duration::from_hours(1));
            };
            // Without notifications of the clock, as with the system's.
            let mut changes = None;
            let slept = sleep(&store, &waiting, &mut changes, seen, next, end);
            let (woke, ()) = tokio::join!(slept, step);
            assert!(matches!(woke, Ok(Woke::Work)));
            let took = start.elapsed();
            assert!((SLICE / 2..=SLICE).contains(&took), "{next:?}: it slept {took:?} of {WAIT_MAX:?}");
        }
    }
}
