//! Locks.

use std::time::Duration;

use crate::{
    core::{silence::Term, time::Timestamp},
    store::{Held, LOCK_NOTIFICATION, LockOp, LockReply, toolkit::TOOL_MEMORY},
};

use super::Model;

/// The holding of a lock. After `until` the lock is free. The entry stays: its owner may extend it as long as nobody else acquired the lock,
/// and the clock may go back.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    owner: u128,
    fence: u64,
    term: Term,
}

impl Model {
    pub(crate) fn lock(&mut self, now: Timestamp, op: &LockOp) -> LockReply {
        match op {
            LockOp::Acquire { name, owner, lease } => {
                let fence = match self.holding(name, now) {
                    Some(mut is) if is.owner != *owner => {
                        is.term.note(now);
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
                    Holding { owner: *owner, fence, term: Term::new(now.after(*lease), *lease) },
                )
            }
            LockOp::Extend { name, owner, lease } => match self.tools.locks.get(name).cloned() {
                Some(is) if is.owner == *owner && now < is.term.end(now).after(TOOL_MEMORY) => {
                    let term = Term::new(now.after(*lease), *lease);
                    self.hold(name, now, Holding { term, ..is })
                }
                Some(is) if now < is.term.end(now) => LockReply::Taken(is.tell(name, now)),
                _ => LockReply::Free,
            },
            LockOp::Release { name, owner } => {
                let Some(is) = self.tools.locks.get(name) else { return LockReply::Free };
                let is_held = now < is.term.end(now);
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
                let held = self.tools.locks.iter().filter(|(_, is)| now < is.term.until);
                let mut held: Vec<_> = held.collect();
                held.sort_by_key(|(name, is)| (is.term.until, *name));
                let more = *limit < held.len();
                held.truncate(*limit);
                held.retain(|(_, is)| now < is.term.end(now));
                let locks = held.into_iter().map(|(name, is)| is.tell(name, now)).collect();
                LockReply::Listed { locks, more }
            }
        }
    }

    fn holding(&self, name: &str, now: Timestamp) -> Option<Holding> {
        self.tools.locks.get(name).filter(|is| now < is.term.end(now)).cloned()
    }

    fn hold(&mut self, name: &str, now: Timestamp, is: Holding) -> LockReply {
        let held = is.tell(name, now);
        self.tools.locks.insert(name.to_owned(), is);
        LockReply::Yours(held)
    }

    /// Returns how long until a lock is free, if `queue` is the name of its notification.
    pub(crate) fn lock_free_in(&self, now: Timestamp, queue: &str) -> Option<Duration> {
        let name = queue.strip_prefix(LOCK_NOTIFICATION)?;
        Some(self.holding(name, now).map_or(Duration::ZERO, |is| is.term.end(now).since(now)))
    }
}

impl Holding {
    fn tell(&self, name: &str, now: Timestamp) -> Held {
        let until = self.term.end(now);
        Held { name: name.to_owned(), fence: self.fence, until, left: until.since(now) }
    }
}
