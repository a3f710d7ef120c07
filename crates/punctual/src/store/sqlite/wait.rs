//! `wait`: sleeps until there may be work, without polling.
//!
//! ```text
//! enter the doorbell ─► look what is due next ─► sleep: until that time, until rung, until the end of a slice
//!                               ▲                                                          │ somebody committed
//!                               └──────────────────────────────────────────────────────────┘
//! ```
//!
//! A ring is never trusted to come: after each slice, of 1 s after activity and doubling to 60 s while there is none, one
//! number is read that tells whether anybody committed.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{
    SqliteStore,
    doorbell::Waiting,
    fault::Step,
    place::{LeaseRow, Place},
    reserve,
    tool::lock,
    tx::Tx,
};
use crate::{
    error::Result,
    id::JobId,
    store::{clock::Clock, end_of},
    time::Timestamp,
};

const SLICE_MIN: Duration = Duration::from_secs(1);
const SLICE_MAX: Duration = Duration::from_mins(1);
/// Then somebody should look for upkeep, too.
const WAIT_MAX: Duration = Duration::from_mins(1);
/// Where other processes can't ring.
const SLICE_WITHOUT_BELL: Duration = Duration::from_millis(20);

/// How long a wait trusts that it will be rung; shared by all waits of a store.
#[derive(Debug, Default)]
pub(super) struct Trust(AtomicU64);

impl Trust {
    fn slice(&self, bell_reaches: bool) -> Duration {
        let learnt = Duration::from_millis(self.0.load(Ordering::Relaxed));
        if bell_reaches { learnt.clamp(SLICE_MIN, SLICE_MAX) } else { SLICE_WITHOUT_BELL }
    }

    fn nothing_happened(&self) {
        self.0.store(2 * self.slice(true).as_millis() as u64, Ordering::Relaxed);
    }

    fn something_happened(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Why a sleep ended.
enum Woke {
    /// There may be work.
    Work,
    /// Look again.
    Changed,
}

pub(super) async fn wait(store: &SqliteStore, queues: &[String], at_most: Duration) -> Result<()> {
    if any_ended(store, queues).await? {
        return Ok(());
    }
    let at_most = at_most.min(WAIT_MAX);
    let end = Instant::now().checked_add(at_most);
    let waiting = store.bell.enter(queues, store.options.clock.now().after(at_most));
    let mut turns = match &store.options.clock {
        Clock::Manual(clock) => Some(clock.turns()),
        Clock::System => None,
    };
    loop {
        // Marked as seen before the look, so that a turn behind it is not missed.
        if let Some(turns) = &mut turns {
            turns.mark_unchanged();
        }
        let version = store.reader.data_version().await?;
        let names = queues.to_vec();
        let next = store.reader.read(move |tx| {
            let mut queues = Vec::with_capacity(names.len());
            let mut free_at = look_for_ends(tx, &names)?.0.then_some(tx.now);
            for name in &names {
                queues.extend(tx.queue(name)?);
                free_at = lock::free_at(tx, name)?.into_iter().chain(free_at).min();
            }
            Ok(reserve::next(tx, &queues)?.into_iter().chain(free_at).min())
        });
        let next = next.await?;
        if matches!(sleep(store, &waiting, &mut turns, version, next, end).await?, Woke::Work) {
            // An end is for all who wait for it: a wait that does not answer its ring passes it on.
            let names = queues.to_vec();
            let is_for_all = queues.iter().any(|bell| end_of(bell).is_some())
                && store.reader.read(move |tx| look_for_ends(tx, &names)).await?.0;
            if !is_for_all {
                waiting.leave();
            }
            return Ok(());
        }
    }
}

/// Whether one of the jobs whose ends these bells tell has ended, or is gone. Those that live are noted as watched, so that
/// whoever ends them rings.
async fn any_ended(store: &SqliteStore, bells: &[String]) -> Result<bool> {
    if !bells.iter().any(|bell| end_of(bell).is_some()) {
        return Ok(false);
    }
    let names = bells.to_vec();
    let (mut has_ended, unwatched) = store.reader.read(move |tx| look_for_ends(tx, &names)).await?;
    for id in unwatched {
        has_ended |= store.write(1, 0, false, move |tx| watch(tx, id)).await?;
    }
    Ok(has_ended)
}

/// Whether one of these jobs has ended, or is gone; and those that live and are not noted as watched.
fn look_for_ends(tx: &mut Tx<'_>, bells: &[String]) -> Step<(bool, Vec<JobId>)> {
    let (mut any_ended, mut unwatched) = (false, Vec::new());
    for id in bells.iter().filter_map(|bell| end_of(bell)) {
        let job = tx.job(id)?;
        let place = job.as_ref().map(|job| Place::of(tx, job)).transpose()?;
        match (job, place) {
            (Some(job), Some(Place::Waiting | Place::Running(_))) => {
                unwatched.extend((!job.past.watched).then_some(id));
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
        _ if job.past.watched => {}
        place => {
            job.past.watched = true;
            job.put_past(tx.conn)?;
            if let Place::Running(lease) = place {
                tx.put_lease_flags(id, lease.flags | LeaseRow::PAST)?;
            }
        }
    }
    Ok(false)
}

/// Sleeps until something is due at `next`, until `end`, until rung about something earlier, or until others committed.
async fn sleep(
    store: &SqliteStore,
    waiting: &Waiting,
    turns: &mut Option<watch::Receiver<Timestamp>>,
    version: i64,
    next: Option<Timestamp>,
    end: Option<Instant>,
) -> Result<Woke> {
    let clock = &store.options.clock;
    let until_end = |now: Timestamp| end.map_or(Timestamp::MAX, |end| now.after(end - Instant::now()));
    let mut armed = waiting.arm(next.unwrap_or(Timestamp::MAX).min(until_end(clock.now())));
    loop {
        let now = clock.now();
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if armed <= now || left.is_zero() {
            return Ok(Woke::Work);
        }
        let slice = store.trust.slice(store.bell.reaches_others());
        // A clock that is turned by hand does not move by itself.
        let due = if matches!(clock, Clock::System) { armed.since(now) } else { Duration::MAX };
        let pause = slice.min(due).min(left);
        tokio::select! {
            at = waiting.rung() => armed = at.min(armed),
            () = turned(turns) => return Ok(Woke::Changed),
            () = tokio::time::sleep(pause) => if pause == slice {
                if store.reader.data_version().await? == version {
                    store.trust.nothing_happened();
                } else {
                    store.trust.something_happened();
                    return Ok(Woke::Changed);
                }
            }
        }
    }
}

/// Comes back when a clock for tests is turned; never for the system's.
async fn turned(turns: &mut Option<watch::Receiver<Timestamp>>) {
    match turns {
        // The clock that it comes from lives as long as the store.
        Some(turns) => drop(turns.changed().await),
        None => std::future::pending().await,
    }
}
