//! Waiting callers, and how a commit wakes one of them, in this process or another, without polling.
//!
//! ```text
//! waiter: enter (armed: sleeps until then) ── read the database ── sleep ── notified, time, or slice over ── leave
//! commit: a job of queue q is due at t ── notify ONE waiter that wants q and sleeps beyond t: here, else by socket
//! ```
//!
//! A notification carries a time and is no order. A waiter that gets a later time sleeps on until then, so that
//! exactly one is armed for each job. Nothing depends on a notification: a wait without one checks by itself
//! (wait.rs). A waiter that is dropped passes on what it was armed for.

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

pub(crate) use self::socket::Peers;
use crate::{
    core::time::Timestamp,
    store::notification::{NAMESAKES_MAX, WORKER_NOTIFICATION},
};

/// The waiters of this process, and the way to those of others.
#[derive(Debug)]
pub(crate) struct Notifier {
    waiters: Mutex<Waiters>,
    peers: Peers,
}

#[derive(Debug, Default)]
struct Waiters {
    last_id: u64,
    /// In the order of their arrival.
    inside: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    /// The hashes of the queues that it waits for.
    queues: Vec<u64>,
    /// When it wakes by itself, as far as it knows.
    armed: Timestamp,
    /// Whether it got that time from a notification and has not noticed it yet.
    woken: bool,
    notify: Arc<Notify>,
}

impl Waiter {
    fn sleeps_past(&self, queue: u64, at: Timestamp) -> bool {
        at < self.armed && self.queues.contains(&queue)
    }
}

/// A notification for one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) queue: u64,
    pub(crate) at: Timestamp,
    /// How often it was passed on between processes.
    pub(crate) hops: u8,
}

/// After this many processes, a notification that no waiter takes is dropped. The regular check of some wait then
/// finds the job.
const HOPS_MAX: u8 = 8;

impl Notifier {
    /// Returns the notifier of a database, by its real path.
    pub(crate) fn new(database: &Path) -> Arc<Self> {
        Arc::new(Self { waiters: Mutex::default(), peers: Peers::new(database) })
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waiter per queue, if one sleeps beyond the time, and each waiter for a worker.
    pub(crate) fn notify(&self, notifications: &[(String, Timestamp)]) {
        for (queue, at) in notifications {
            let notification = Notification { queue: hash(queue.as_bytes()), at: *at, hops: 0 };
            let most = if queue.starts_with(WORKER_NOTIFICATION) { NAMESAKES_MAX } else { 1 };
            // The next one goes to another waiter, as the one before sleeps no longer.
            let _ = (0..most).all(|_| self.pass(notification));
        }
    }

    /// Returns whether there was a waiter.
    fn pass(&self, notification: Notification) -> bool {
        self.notify_here(notification) || notification.hops <= HOPS_MAX && self.peers.notify(notification)
    }

    /// Wakes one waiter of this process.
    fn notify_here(&self, notification: Notification) -> bool {
        let mut waiters = self.waiters();
        let Some(waiter) =
            waiters.inside.iter_mut().find(|waiter| waiter.sleeps_past(notification.queue, notification.at))
        else {
            return false;
        };
        self.peers.hide(waiter.id, waiter.armed, &waiter.queues);
        (waiter.armed, waiter.woken) = (notification.at, true);
        waiter.notify.notify_one();
        true
    }

    /// Receives a notification that another process sent to a waiter of this one.
    pub(crate) fn notified_from_outside(&self, id: u64, notification: Notification) {
        // The sender removed the waiter's sign. Another waiter may be woken, so the sign is put up again first.
        if let Some(waiter) = self.waiters().inside.iter().find(|waiter| waiter.id == id) {
            self.peers.show(waiter.id, waiter.armed, &waiter.queues);
        }
        self.pass(Notification { hops: notification.hops + 1, ..notification });
    }

    /// Adds a waiter for these queues, armed for `armed`.
    pub(crate) fn enter(self: &Arc<Self>, queues: &[String], armed: Timestamp) -> Waiting {
        self.peers.listen(self);
        let mut waiters = self.waiters();
        waiters.last_id += 1;
        let id = waiters.last_id;
        let queues: Vec<u64> = queues.iter().map(|queue| hash(queue.as_bytes())).collect();
        let notify = Arc::new(Notify::new());
        self.peers.show(id, armed, &queues);
        waiters.inside.push(Waiter { id, queues, armed, woken: false, notify: Arc::clone(&notify) });
        drop(waiters);
        Waiting { notifier: Arc::clone(self), id, notify, served: false }
    }

    /// Puts up all signs again; existing ones stay as they are.
    #[cfg(unix)]
    fn show_all(&self) {
        for waiter in self.waiters().inside.iter().filter(|waiter| !waiter.woken) {
            self.peers.show(waiter.id, waiter.armed, &waiter.queues);
        }
    }

    /// Tests the way between processes; returns how many others listen, and how many of them answered.
    pub(crate) fn test(self: &Arc<Self>) -> Result<(usize, usize), String> {
        self.peers.listen(self);
        self.peers.test()
    }

    /// Returns whether two other processes that wait for all of these queues wake by themselves until then.
    pub(crate) fn others_mind<'a>(&self, queues: impl Iterator<Item = &'a str>, at: Timestamp) -> bool {
        let queues: Vec<u64> = queues.map(|queue| hash(queue.as_bytes())).collect();
        self.peers.others_mind(None, &queues, at)
    }

    /// Returns whether waiters of other processes can be notified.
    pub(crate) fn reaches_others(&self) -> bool {
        self.peers.is_open()
    }
}

/// A waiter, for as long as it waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    notifier: Arc<Notifier>,
    id: u64,
    notify: Arc<Notify>,
    /// Whether it ended and will look for work. Otherwise, when dropped, it passes on what it was armed for.
    served: bool,
}

impl Waiting {
    /// Arms it for `armed` at the latest; an earlier time from a notification stays.
    pub(crate) fn arm(&self, armed: Timestamp) -> Timestamp {
        let mut waiters = self.notifier.waiters();
        let Some(waiter) = waiters.inside.iter_mut().find(|waiter| waiter.id == self.id) else {
            return armed;
        };
        if waiter.woken || armed != waiter.armed {
            self.notifier.peers.hide(waiter.id, waiter.armed, &waiter.queues);
            waiter.armed = if waiter.woken { armed.min(waiter.armed) } else { armed };
            waiter.woken = false;
            self.notifier.peers.show(waiter.id, waiter.armed, &waiter.queues);
        }
        waiter.armed
    }

    /// Returns whether two others wake by themselves until then, so that this one need not.
    pub(crate) fn is_left_to_others(&self, at: Timestamp) -> bool {
        let own = {
            let waiters = self.notifier.waiters();
            let own = waiters.inside.iter().find(|waiter| waiter.id == self.id);
            own.map(|waiter| (waiter.queues.clone(), waiter.armed <= at))
        };
        let Some((queues, is_armed)) = own else { return false };
        self.notifier.peers.others_mind(is_armed.then_some(self.id), &queues, at)
    }

    /// Returns the time of the next notification, when it arrives.
    pub(crate) async fn woken(&self) -> Timestamp {
        loop {
            self.notify.notified().await;
            let mut waiters = self.notifier.waiters();
            if let Some(waiter) =
                waiters.inside.iter_mut().find(|waiter| waiter.id == self.id && waiter.woken)
            {
                waiter.woken = false;
                self.notifier.peers.show(waiter.id, waiter.armed, &waiter.queues);
                return waiter.armed;
            }
        }
    }

    /// Ends the wait, because the waiter goes to look for work.
    pub(crate) fn leave(mut self) {
        self.served = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let gone = {
            let mut waiters = self.notifier.waiters();
            let at = waiters.inside.iter().position(|waiter| waiter.id == self.id);
            at.map(|at| waiters.inside.remove(at))
        };
        let Some(waiter) = gone else { return };
        self.notifier.peers.hide(waiter.id, waiter.armed, &waiter.queues);
        if !self.served {
            for queue in waiter.queues {
                self.notifier.pass(Notification { queue, at: waiter.armed, hops: 0 });
            }
        }
    }
}

/// Returns the FNV-1a hash. It is the same in every build, because processes of different builds share a file.
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

    /// With a folder for its database, which is removed with it.
    struct Rig {
        notifier: Arc<Notifier>,
        _folder: tempfile::TempDir,
    }

    impl std::ops::Deref for Rig {
        type Target = Arc<Notifier>;

        fn deref(&self) -> &Arc<Notifier> {
            &self.notifier
        }
    }

    fn notifier() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("jobs.db");
        std::fs::write(&database, "").unwrap();
        Rig { notifier: Notifier::new(&database), _folder: folder }
    }

    fn armed(notifier: &Notifier) -> Vec<(u64, u64)> {
        notifier.waiters().inside.iter().map(|waiter| (waiter.id, waiter.armed.as_ms())).collect()
    }

    #[test]
    fn one_waiter_is_armed_for_each_job() {
        let notifier = notifier();
        let queues = ["mail".to_owned()];
        let (_first, _second) = (notifier.enter(&queues, at(100)), notifier.enter(&queues, at(100)));
        let _other = notifier.enter(&["bulk".to_owned()], at(100));
        notifier.notify(&[("mail".to_owned(), at(50))]);
        assert_eq!(armed(&notifier), [(1, 50), (2, 100), (3, 100)]);
        notifier.notify(&[("mail".to_owned(), at(70))]);
        assert_eq!(armed(&notifier), [(1, 50), (2, 70), (3, 100)]);
        notifier.notify(&[("mail".to_owned(), at(70))]);
        assert_eq!(armed(&notifier), [(1, 50), (2, 70), (3, 100)]);
    }

    #[test]
    fn each_waiter_for_a_worker_is_told() {
        let notifier = notifier();
        let (name, other) = (["$worker/w".to_owned()], ["$worker/v".to_owned()]);
        let _waiting = [&name, &other, &name, &name].map(|name| notifier.enter(name, at(100)));
        notifier.notify(&[("$worker/w".to_owned(), at(50))]);
        assert_eq!(armed(&notifier), [(1, 50), (2, 100), (3, 50), (4, 50)]);
    }

    #[test]
    fn a_dropped_waiter_passes_on_what_it_was_armed_for() {
        let notifier = notifier();
        let queues = ["mail".to_owned()];
        let (first, _second) = (notifier.enter(&queues, at(100)), notifier.enter(&queues, at(100)));
        notifier.notify(&[("mail".to_owned(), at(50))]);
        drop(first);
        assert_eq!(armed(&notifier), [(2, 50)]);
    }

    #[test]
    fn a_waiter_that_looks_for_work_passes_nothing_on() {
        let notifier = notifier();
        let queues = ["mail".to_owned()];
        let (first, _second) = (notifier.enter(&queues, at(100)), notifier.enter(&queues, at(100)));
        notifier.notify(&[("mail".to_owned(), at(50))]);
        first.leave();
        assert_eq!(armed(&notifier), [(2, 100)]);
    }

    #[test]
    fn a_ring_that_came_before_the_arming_stands() {
        let notifier = notifier();
        let waiting = notifier.enter(&["mail".to_owned()], at(100));
        notifier.notify(&[("mail".to_owned(), at(50))]);
        assert_eq!(waiting.arm(at(80)), at(50));
        assert_eq!(waiting.arm(at(80)), at(80));
    }
}
