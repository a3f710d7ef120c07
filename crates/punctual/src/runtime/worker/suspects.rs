//! Jobs that one more crash would end (S9): which of them run in this process, and whether one more may start beside them.
//!
//! Whoever ran when a process died is under suspicion, and only of a job that ran without another suspect beside it can it be
//! said whose fault its next crash is. So:
//!
//! * One that comes **alone** runs without another suspect, and for its first moments nothing else is started: who crashes as
//!   it begins takes nobody along.
//! * Others that come meanwhile have **company** by the store's own record: no crash ends them. They are held until the first
//!   has shown itself, for which the store is told that it has company too; then they run beside each other.
//! * The more often they have crashed, the fewer run beside each other: a crash parts the guilty from the innocent by and by,
//!   and those who end are suspects no more.
//!
//! Jobs that are no suspects run on in the other slots, whatever these do.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    runtime::handler::{Call, Erased},
    store::{Lease, Verdict},
};

/// For so long nothing is started beside a suspect that came alone.
const QUIET: Duration = Duration::from_millis(250);

/// How many suspects run beside each other where one of them has crashed so often in a row: 64, 16, 4 behind the second, third,
/// fourth crash, then one.
const fn together(crashes: u32) -> usize {
    1_024_usize >> if crashes < 5 { 2 * crashes } else { 10 }
}

/// The suspects of a process, of all its loops.
#[derive(Default)]
pub(super) struct Suspects {
    /// Those that execute, and how often each has crashed.
    executing: RefCell<HashMap<Lease, u32>>,
    /// The one of them that came alone, for as long as the store takes a crash for its own fault.
    alone: Cell<Option<Lease>>,
    /// Until when nothing is started beside that one.
    quiet_until: Cell<Option<Instant>>,
    /// How many are held by loops.
    held: Cell<usize>,
    /// A reserve is on its way, by which one may come alone.
    is_asked_for: Cell<bool>,
    /// Rung when one of them has ended.
    ended: Notify,
}

impl Suspects {
    /// Whether one that is reserved now has company.
    pub(super) fn have_company(&self) -> bool {
        0 < self.held.get() || self.is_asked_for.get() || !self.executing.borrow().is_empty()
    }

    /// A reserve by which one may come alone is on its way, or was answered.
    pub(super) fn ask(&self, is_on_its_way: bool) {
        self.is_asked_for.set(is_on_its_way);
    }

    /// One begins to execute.
    pub(super) fn begin(&self, lease: Lease, crashes: u32) {
        self.executing.borrow_mut().insert(lease, crashes);
    }

    /// This one came alone.
    pub(super) fn isolate(&self, lease: Lease, now: Instant) {
        self.alone.set(Some(lease));
        self.quiet_until.set(Some(now + QUIET));
    }

    /// One has ended, if it is one, or the store has heard of its end: whatever it does still, it is not blamed for again.
    pub(super) fn end(&self, lease: Lease) {
        if self.executing.borrow_mut().remove(&lease).is_some() {
            if self.alone.get() == Some(lease) {
                self.isolation_ended();
            }
            self.ended.notify_waiters();
        }
    }

    /// The one that came alone, if its crash would still be its own fault.
    pub(super) fn alone(&self) -> Option<Lease> {
        self.alone.get()
    }

    /// It has company from now on.
    pub(super) fn isolation_ended(&self) {
        self.alone.set(None);
        self.quiet_until.set(None);
    }

    /// Until when nothing may be started, if that is so.
    pub(super) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_until.get().filter(|until| now < *until)
    }

    /// Whether one more may start that has crashed so often. Where all slots are taken they don't wait for each other.
    fn admit(&self, crashes: u32, is_full: bool, now: Instant) -> bool {
        let executing = self.executing.borrow();
        let most = executing.values().copied().fold(crashes, u32::max);
        self.quiet_until(now).is_none() && (is_full || executing.len() < together(most))
    }

    /// Waits until one has ended.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// A suspect that was reserved and waits for its start.
pub(super) struct Held {
    pub(super) lease: Lease,
    pub(super) lasts: Duration,
    pub(super) call: Call,
    /// Or its verdict, where nobody handles it.
    pub(super) handler: Result<Erased, Verdict>,
}

/// Those of one loop that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Waiting(VecDeque<Held>);

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, held: Held, suspects: &Suspects) {
        suspects.held.update(|n| n + 1);
        self.0.push_back(held);
    }

    /// Whether the first of them may start, or needs not any more.
    pub(super) fn has_ready(&self, suspects: &Suspects, is_full: bool, now: Instant) -> bool {
        self.0.front().is_some_and(|first| {
            let crashes = first.call.record().crashes;
            first.call.stop_reason().is_some() || suspects.admit(crashes, is_full, now)
        })
    }

    pub(super) fn pop(&mut self, suspects: &Suspects) -> Option<Held> {
        let first = self.0.pop_front()?;
        suspects.held.update(|n| n - 1);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_run_beside_each_other_with_each_crash() {
        assert_eq!([2, 3, 4, 5, 6, 255].map(together), [64, 16, 4, 1, 1, 1]);
    }
}
