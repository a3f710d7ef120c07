//! Who waits for work, and how a commit wakes one of them, in this process or another, without anybody polling.
//!
//! ```text
//! waiter: enter (armed: sleeps until then) ── look at the database ── sleep ── rung, time, or slice over ── leave
//! commit: a job of queue q is due at t ── ring ONE waiter that wants q and sleeps past t: here, else over the street
//! ```
//!
//! A ring tells a time, not an order: a waiter that is told of a later time sleeps on until then, so that exactly one is
//! armed for each job. Nothing depends on a ring: a wait that heard nothing looks for itself (wait.rs). One that is dropped
//! passes on what it was armed for.

pub(crate) mod wait;

#[cfg(unix)]
pub(crate) mod socket;
#[cfg(not(unix))]
#[path = "notify/no_socket.rs"]
pub(crate) mod socket;

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

pub(crate) use self::socket::Street;
use crate::core::time::Timestamp;

/// Who waits in this process, and the way to the others.
#[derive(Debug)]
pub(crate) struct Doorbell {
    waiters: Mutex<Waiters>,
    street: Street,
}

#[derive(Debug, Default)]
struct Waiters {
    last_id: u64,
    /// In the order of their coming.
    inside: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    /// Hashes of the queues it wants.
    queues: Vec<u64>,
    /// When it wakes by itself, as far as it knows.
    armed: Timestamp,
    /// Whether it was told of that time and has not noticed yet.
    rung: bool,
    notify: Arc<Notify>,
}

impl Waiter {
    fn sleeps_past(&self, queue: u64, at: Timestamp) -> bool {
        at < self.armed && self.queues.contains(&queue)
    }
}

/// A message for one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) queue: u64,
    pub(crate) at: Timestamp,
    /// How often it was passed on between processes.
    pub(crate) hops: u8,
}

/// A ring that nobody took after this many processes is dropped; a slice of somebody's wait finds the job.
const HOPS_MAX: u8 = 8;

impl Doorbell {
    /// The bell of a database, by its real path.
    pub(crate) fn new(database: &Path) -> Arc<Self> {
        Arc::new(Self { waiters: Mutex::default(), street: Street::new(database) })
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waiter per queue, if one sleeps past the time.
    pub(crate) fn ring(&self, rings: &[(String, Timestamp)]) {
        for (queue, at) in rings {
            self.pass(Ring { queue: hash(queue.as_bytes()), at: *at, hops: 0 });
        }
    }

    fn pass(&self, ring: Ring) {
        if !self.ring_here(ring) && ring.hops <= HOPS_MAX {
            self.street.ring(ring);
        }
    }

    /// Wakes one waiter of this process.
    fn ring_here(&self, ring: Ring) -> bool {
        let mut waiters = self.waiters();
        let Some(waiter) = waiters.inside.iter_mut().find(|waiter| waiter.sleeps_past(ring.queue, ring.at))
        else {
            return false;
        };
        self.street.hide(waiter.id, waiter.armed, &waiter.queues);
        (waiter.armed, waiter.rung) = (ring.at, true);
        waiter.notify.notify_one();
        true
    }

    /// Takes a ring that another process sent to a waiter of this one.
    pub(crate) fn rung_from_outside(&self, id: u64, ring: Ring) {
        // Its sender took the sign down. It may be another waiter that is woken, so the sign goes up again first.
        if let Some(waiter) = self.waiters().inside.iter().find(|waiter| waiter.id == id) {
            self.street.show(waiter.id, waiter.armed, &waiter.queues);
        }
        self.pass(Ring { hops: ring.hops + 1, ..ring });
    }

    /// Comes to wait for these queues until `armed`.
    pub(crate) fn enter(self: &Arc<Self>, queues: &[String], armed: Timestamp) -> Waiting {
        self.street.listen(self);
        let mut waiters = self.waiters();
        waiters.last_id += 1;
        let id = waiters.last_id;
        let queues: Vec<u64> = queues.iter().map(|queue| hash(queue.as_bytes())).collect();
        let notify = Arc::new(Notify::new());
        self.street.show(id, armed, &queues);
        waiters.inside.push(Waiter { id, queues, armed, rung: false, notify: Arc::clone(&notify) });
        drop(waiters);
        Waiting { bell: Arc::clone(self), id, notify, served: false }
    }

    /// Puts up all signs again; those that stand there stay as they are.
    #[cfg(unix)]
    fn show_all(&self) {
        for waiter in self.waiters().inside.iter().filter(|waiter| !waiter.rung) {
            self.street.show(waiter.id, waiter.armed, &waiter.queues);
        }
    }

    /// Tests the way between processes: how many others listen, and how many of them answered.
    pub(crate) fn test(self: &Arc<Self>) -> Result<(usize, usize), String> {
        self.street.listen(self);
        self.street.test()
    }

    /// Whether two other processes that wait for all of these queues wake by themselves until then.
    pub(crate) fn others_mind<'a>(&self, queues: impl Iterator<Item = &'a str>, at: Timestamp) -> bool {
        let queues: Vec<u64> = queues.map(|queue| hash(queue.as_bytes())).collect();
        self.street.others_mind(None, &queues, at)
    }

    /// Whether waiters of other processes can be told.
    pub(crate) fn reaches_others(&self) -> bool {
        self.street.is_open()
    }
}

/// A waiter's stay.
#[derive(Debug)]
pub(crate) struct Waiting {
    bell: Arc<Doorbell>,
    id: u64,
    notify: Arc<Notify>,
    /// It came to its end and will look for work; otherwise whoever drops it passes on what it was armed for.
    served: bool,
}

impl Waiting {
    /// Sleeps until `armed` at the latest; a ring that told of an earlier time stands.
    pub(crate) fn arm(&self, armed: Timestamp) -> Timestamp {
        let mut waiters = self.bell.waiters();
        let Some(waiter) = waiters.inside.iter_mut().find(|waiter| waiter.id == self.id) else {
            return armed;
        };
        if waiter.rung || armed != waiter.armed {
            self.bell.street.hide(waiter.id, waiter.armed, &waiter.queues);
            waiter.armed = if waiter.rung { armed.min(waiter.armed) } else { armed };
            waiter.rung = false;
            self.bell.street.show(waiter.id, waiter.armed, &waiter.queues);
        }
        waiter.armed
    }

    /// Whether two others wake by themselves until then, so that this one need not.
    pub(crate) fn is_left_to_others(&self, at: Timestamp) -> bool {
        let own = {
            let waiters = self.bell.waiters();
            let own = waiters.inside.iter().find(|waiter| waiter.id == self.id);
            own.map(|waiter| (waiter.queues.clone(), waiter.armed <= at))
        };
        let Some((queues, is_armed)) = own else { return false };
        self.bell.street.others_mind(is_armed.then_some(self.id), &queues, at)
    }

    /// Comes back when somebody rings, with the time that it told.
    pub(crate) async fn rung(&self) -> Timestamp {
        loop {
            self.notify.notified().await;
            let mut waiters = self.bell.waiters();
            if let Some(waiter) = waiters.inside.iter_mut().find(|waiter| waiter.id == self.id && waiter.rung)
            {
                waiter.rung = false;
                self.bell.street.show(waiter.id, waiter.armed, &waiter.queues);
                return waiter.armed;
            }
        }
    }

    /// The waiter goes to look for work.
    pub(crate) fn leave(mut self) {
        self.served = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let gone = {
            let mut waiters = self.bell.waiters();
            let at = waiters.inside.iter().position(|waiter| waiter.id == self.id);
            at.map(|at| waiters.inside.remove(at))
        };
        let Some(waiter) = gone else { return };
        self.bell.street.hide(waiter.id, waiter.armed, &waiter.queues);
        if !self.served {
            for queue in waiter.queues {
                self.bell.pass(Ring { queue, at: waiter.armed, hops: 0 });
            }
        }
    }
}

/// FNV-1a: the same in every build, since processes of different builds share a file.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::saturating_from_ms(ms)
    }

    /// With a folder for its database, which goes with it.
    struct Rig {
        bell: Arc<Doorbell>,
        _folder: tempfile::TempDir,
    }

    impl std::ops::Deref for Rig {
        type Target = Arc<Doorbell>;

        fn deref(&self) -> &Arc<Doorbell> {
            &self.bell
        }
    }

    fn bell() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("jobs.db");
        std::fs::write(&database, "").unwrap();
        Rig { bell: Doorbell::new(&database), _folder: folder }
    }

    fn armed(bell: &Doorbell) -> Vec<(u64, u64)> {
        bell.waiters().inside.iter().map(|waiter| (waiter.id, waiter.armed.as_ms())).collect()
    }

    #[test]
    fn one_waiter_is_armed_for_each_job() {
        let bell = bell();
        let queues = ["mail".to_owned()];
        let (_first, _second) = (bell.enter(&queues, at(100)), bell.enter(&queues, at(100)));
        let _other = bell.enter(&["bulk".to_owned()], at(100));
        bell.ring(&[("mail".to_owned(), at(50))]);
        assert_eq!(armed(&bell), [(1, 50), (2, 100), (3, 100)]);
        bell.ring(&[("mail".to_owned(), at(70))]);
        assert_eq!(armed(&bell), [(1, 50), (2, 70), (3, 100)]);
        bell.ring(&[("mail".to_owned(), at(70))]);
        assert_eq!(armed(&bell), [(1, 50), (2, 70), (3, 100)]);
    }

    #[test]
    fn a_dropped_waiter_passes_on_what_it_was_armed_for() {
        let bell = bell();
        let queues = ["mail".to_owned()];
        let (first, _second) = (bell.enter(&queues, at(100)), bell.enter(&queues, at(100)));
        bell.ring(&[("mail".to_owned(), at(50))]);
        drop(first);
        assert_eq!(armed(&bell), [(2, 50)]);
    }

    #[test]
    fn a_waiter_that_looks_for_work_passes_nothing_on() {
        let bell = bell();
        let queues = ["mail".to_owned()];
        let (first, _second) = (bell.enter(&queues, at(100)), bell.enter(&queues, at(100)));
        bell.ring(&[("mail".to_owned(), at(50))]);
        first.leave();
        assert_eq!(armed(&bell), [(2, 100)]);
    }

    #[test]
    fn a_ring_that_came_before_the_arming_stands() {
        let bell = bell();
        let waiting = bell.enter(&["mail".to_owned()], at(100));
        bell.ring(&[("mail".to_owned(), at(50))]);
        assert_eq!(waiting.arm(at(80)), at(50));
        assert_eq!(waiting.arm(at(80)), at(80));
    }
}
