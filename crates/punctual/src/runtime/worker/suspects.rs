//! Suspects: jobs that one more expired lease would end as poison (S9). Decides whether one more can start in this
//! process.
//!
//! Each job that ran when a process died can be the cause of it. Only if a job runs without another suspect beside it
//! does its next expired lease prove that it is. Therefore:
//!
//! * A suspect that is reserved **alone** runs without another suspect. For a short time nothing else is started, so
//!   that a job that kills its worker at its start harms no other job.
//! * Suspects that are reserved meanwhile have **company** in the store's record, so no expired lease ends them. They
//!   are held until the first one has run for that time. Then the worker reports that the first has company, too, and
//!   they run beside each other.
//! * The more expired leases in a row they have, the fewer run beside each other. So repeated deaths separate the
//!   guilty job from the others, and jobs that end are suspects no more.
//! * A suspect that cannot start within some seconds goes back, because another worker may be able to start it. It stays a suspect,
//!   and no attempt is counted.
//!
//! Jobs that are no suspects run on in the other slots.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    core::limits::{SNOOZE_MIN, SNOOZES_MAX},
    runtime::handler::{Call, Erased},
    store::{Lease, Verdict, why::LAST_CHANCE},
};

/// How long nothing is started beside a suspect that was reserved alone, or reserved after some went back.
const QUIET: Duration = Duration::from_millis(250);

/// How long a suspect is held at most before it goes back.
const HELD_MAX: Duration = Duration::from_secs(3);

/// How often in a row the pause of a job that goes back is doubled at most: to 51 s.
const DOUBLED_MAX: u32 = 9;

/// How many suspects run beside each other, by the largest number of expired leases in a row among them: 64, 16 and 4
/// after two, three and four, then one.
const fn together(expired_leases: u32) -> usize {
    1_024_usize >> if expired_leases < 5 { 2 * expired_leases } else { 10 }
}

/// The suspects of a process, of all its loops.
#[derive(Default)]
pub(super) struct Suspects {
    /// Those that execute, each with its number of expired leases in a row.
    executing: RefCell<HashMap<Lease, u32>>,
    /// The suspect that was reserved alone, while the store would blame it for an expired lease.
    alone: Cell<Option<Lease>>,
    /// Until when nothing is started beside it.
    quiet_until: Cell<Option<Instant>>,
    /// How many suspects the loops hold.
    held: Cell<usize>,
    /// Whether a reserve is in flight that may return one alone.
    is_asked_for: Cell<bool>,
    /// Notified when a suspect has ended.
    ended: Notify,
}

impl Suspects {
    /// Returns whether a suspect that is reserved now has company.
    pub(super) fn have_company(&self) -> bool {
        0 < self.held.get() || self.is_asked_for.get() || !self.executing.borrow().is_empty()
    }

    /// Notes whether a reserve is in flight that may return one alone.
    pub(super) fn ask(&self, is_on_its_way: bool) {
        self.is_asked_for.set(is_on_its_way);
    }

    /// Notes that a suspect starts to execute.
    pub(super) fn begin(&self, lease: Lease, expired_leases: u32) {
        self.executing.borrow_mut().insert(lease, expired_leases);
    }

    /// Notes that a suspect was reserved alone.
    pub(super) fn isolate(&self, lease: Lease, now: Instant) {
        self.alone.set(Some(lease));
        self.quiet_until.set(Some(now + QUIET));
    }

    /// Notes that a run has ended, or that the store knows of its end. It is not blamed for what it still does.
    pub(super) fn end(&self, lease: Lease) {
        if self.executing.borrow_mut().remove(&lease).is_some() {
            if self.alone.get() == Some(lease) {
                self.isolation_ended();
            }
            self.ended.notify_waiters();
        }
    }

    /// Notes that suspects go back: nothing is reserved until they are due again, so that another worker wakes for them.
    pub(super) fn given_back(&self, now: Instant) {
        self.quiet_until.set(Some(now + QUIET));
    }

    /// Returns the suspect that was reserved alone, if the store would still blame it.
    pub(super) fn alone(&self) -> Option<Lease> {
        self.alone.get()
    }

    /// Notes that it has company from now on.
    pub(super) fn isolation_ended(&self) {
        self.alone.set(None);
        self.quiet_until.set(None);
    }

    /// Returns until when nothing may be started, if so.
    pub(super) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_until.get().filter(|until| now < *until)
    }

    /// Returns whether one more suspect can start, given its expired leases in a row. If all slots are taken,
    /// suspects do not wait for each other.
    fn admit(&self, expired_leases: u32, is_full: bool, now: Instant) -> bool {
        let executing = self.executing.borrow();
        let most = executing.values().copied().fold(expired_leases, u32::max);
        self.quiet_until(now).is_none() && (is_full || executing.len() < together(most))
    }

    /// Waits until a suspect has ended.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// A reserved suspect that waits for its start.
pub(super) struct Held {
    /// When it was reserved.
    pub(super) since: Instant,
    pub(super) lease: Lease,
    pub(super) lasts: Duration,
    pub(super) call: Call,
    /// The handler, or the verdict if there is none.
    pub(super) handler: Result<Erased, Verdict>,
}

impl Held {
    /// Returns the verdict with which it goes back: for longer each time, so that a worker that is alone is not kept busy by it. A row of
    /// snoozes that became long by that is cut, since it would end the job.
    pub(super) fn back(&self) -> Verdict {
        if SNOOZES_MAX / 2 <= self.call.record().snoozes {
            return Verdict::Release;
        }
        let doubled = self.call.record().snoozes.min(DOUBLED_MAX);
        Verdict::Snooze { after: SNOOZE_MIN * (1 << doubled), reason: Some(LAST_CHANCE.to_owned()) }
    }
}

/// The waiting suspects of one loop, in the order of their reservation.
#[derive(Default)]
pub(super) struct Waiting(VecDeque<Held>);

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns how many are of a queue.
    pub(super) fn of(&self, queue: &str) -> usize {
        self.0.iter().filter(|held| held.call.queue() == queue).count()
    }

    pub(super) fn push(&mut self, held: Held, suspects: &Suspects) {
        suspects.held.update(|n| n + 1);
        self.0.push_back(held);
    }

    /// Returns whether the first of them can start, or need not wait any more.
    pub(super) fn has_ready(&self, suspects: &Suspects, is_full: bool, now: Instant) -> bool {
        self.0.front().is_some_and(|first| {
            let expired_leases = first.call.record().expired_leases;
            first.call.stop_reason().is_some() || suspects.admit(expired_leases, is_full, now)
        })
    }

    /// Returns when the first of them goes back.
    pub(super) fn back_at(&self) -> Option<Instant> {
        self.0.front().map(|first| first.since + HELD_MAX)
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
