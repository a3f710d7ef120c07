//! Locks.

use std::time::Duration;

use crate::{
    core::{silence::shortened, time::Timestamp},
    store::{Held, LOCK_NOTIFICATION, LockOp, LockReply, toolkit::TOOL_MEMORY},
};

use super::Model;

/// The holding of a lock. After `until` the lock is free. The entry stays: its owner may extend it as long as nobody else acquired the lock,
/// and the clock may go back.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    owner: u128,
    fence: u64,
    until: Timestamp,
    lasts: Duration,
}

impl Model {
    pub(crate) fn lock(&mut self, now: Timestamp, op: &LockOp) -> LockReply {
        match op {
            LockOp::Acquire { name, owner, lease } => {
                let fence = match self.holding(name, now) {
                    Some(is) if is.owner != *owner => {
                        let taken = LockReply::Taken(is.tell(name, now));
                        self.tools.locks.insert(name.clone(), is);
                        return taken;
                    }
                    Some(is) => is.fence,
                    None => {
                        self.fence += 1;
                        self.fence
                    }
                };
                self.hold(
                    name,
                    now,
                    Holding { owner: *owner, fence, until: now.after(*lease), lasts: *lease },
                )
            }
            LockOp::Extend { name, owner, lease } => match self.last_holding(name, now) {
                Some(is) if is.owner == *owner && now < is.until.after(TOOL_MEMORY) => {
                    let until = now.after(*lease);
                    self.hold(name, now, Holding { until, lasts: *lease, ..is })
                }
                Some(is) if now < is.until => LockReply::Taken(is.tell(name, now)),
                _ => LockReply::Free,
            },
            LockOp::Release { name, owner } => {
                let Some(is) = self.last_holding(name, now) else { return LockReply::Free };
                let is_held = now < is.until;
                if owner.is_some_and(|owner| is.owner != owner) {
                    return if is_held { LockReply::Taken(is.tell(name, now)) } else { LockReply::Free };
                }
                // Also if it has ended: it must not be extended any more.
                self.tools.locks.remove(name);
                if is_held { LockReply::Released } else { LockReply::Free }
            }
            LockOp::Show { name } => match self.holding(name, now) {
                None => LockReply::Free,
                Some(is) => LockReply::Taken(is.tell(name, now)),
            },
            LockOp::List { limit } => {
                let held = self.tools.locks.iter().filter(|(_, is)| now < is.until);
                let mut held: Vec<_> = held.collect();
                held.sort_by_key(|(name, is)| (is.until, *name));
                let more = *limit < held.len();
                held.truncate(*limit);
                let locks = held.into_iter().map(|(name, is)| is.shortened(now).tell(name, now)).collect();
                LockReply::Listed { locks, more }
            }
        }
    }

    fn holding(&self, name: &str, now: Timestamp) -> Option<Holding> {
        self.last_holding(name, now).filter(|is| now < is.until)
    }

    /// Returns the holding of a lock, or the last one, which has ended.
    fn last_holding(&self, name: &str, now: Timestamp) -> Option<Holding> {
        Some(self.tools.locks.get(name)?.shortened(now))
    }

    fn hold(&mut self, name: &str, now: Timestamp, is: Holding) -> LockReply {
        let held = is.tell(name, now);
        self.tools.locks.insert(name.to_owned(), is);
        LockReply::Yours(held)
    }

    /// Returns how long until a lock is free, if `queue` is the name of its notification.
    pub(crate) fn lock_free_in(&self, now: Timestamp, queue: &str) -> Option<Duration> {
        let name = queue.strip_prefix(LOCK_NOTIFICATION)?;
        Some(self.holding(name, now).map_or(Duration::ZERO, |is| is.until.since(now)))
    }
}

impl Holding {
    /// Returns it with the end that it has if the clock went back (S14). An acquire by another owner stores that.
    fn shortened(&self, now: Timestamp) -> Self {
        Self { until: shortened(self.until, self.lasts, now), ..self.clone() }
    }

    fn tell(&self, name: &str, now: Timestamp) -> Held {
        Held { name: name.to_owned(), fence: self.fence, until: self.until, left: self.until.since(now) }
    }
}
