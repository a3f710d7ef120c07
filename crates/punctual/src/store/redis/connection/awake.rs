//! How the thread of a store stays awake for moments, because it expects an answer, or the next call.
//!
//! To wake a thread costs 10 to 100 µs if its CPU sleeps, as it does between two calls. A server on the same machine answers in
//! less. So while such an answer is on its way, and for a moment after it, the thread polls its sockets instead of sleeping. It
//! offers its CPU each time to other threads that wait for it. This is the adaptive spinning of locks, for sockets.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::store::redis::lock;

/// How long it stays awake for an answer.
const ANSWER_MAX: Duration = Duration::from_micros(150);
/// How long it stays awake after an answer: a caller that has one more call makes it within this time.
const NEXT_CALL_MAX: Duration = Duration::from_micros(50);

/// Whether the thread stays awake. Shared by all connections on it.
#[derive(Debug)]
pub(crate) struct Awake {
    /// There is another CPU for the server.
    is_possible: bool,
    vigil: Mutex<Vigil>,
}

/// Until when the thread stays awake.
#[derive(Debug, Default)]
struct Vigil {
    /// Calls in flight.
    calls: usize,
    /// `None`: no task keeps it awake.
    until: Option<Instant>,
}

impl Vigil {
    /// A call begins; returns whether a task must keep the thread awake from now on.
    fn begin(&mut self, now: Instant) -> bool {
        self.calls += 1;
        self.until.replace(now + ANSWER_MAX).is_none()
    }

    /// A call has its answer. If others are in flight, the time goes on as they set it.
    fn end(&mut self, now: Instant) {
        self.calls -= 1;
        if self.calls == 0 && self.until.is_some() {
            self.until = Some(now + NEXT_CALL_MAX);
        }
    }

    /// Returns whether the task goes on.
    fn lasts(&mut self, now: Instant) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_some()
    }
}

impl Awake {
    pub(crate) fn new() -> Arc<Self> {
        let is_possible = thread::available_parallelism().is_ok_and(|cpus| 1 < cpus.get());
        Arc::new(Self { is_possible, vigil: Mutex::default() })
    }

    /// Keeps the current thread awake for an answer to a call, until the guard is dropped or the time is over. Must be called in a
    /// task of this thread.
    pub(crate) fn for_call(self: &Arc<Self>) -> Option<InFlight> {
        if !self.is_possible {
            return None;
        }
        if lock(&self.vigil).begin(Instant::now()) {
            let awake = Arc::clone(self);
            tokio::spawn(async move {
                while lock(&awake.vigil).lasts(Instant::now()) {
                    thread::yield_now();
                    // The runtime polls its sockets before it goes on here, as tokio 1 does in a runtime of one thread.
                    tokio::task::yield_now().await;
                }
            });
        }
        Some(InFlight(Arc::clone(self)))
    }
}

/// A call without an answer yet.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Awake>);

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.0.vigil).end(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn it_stays_awake_for_an_answer_and_for_the_next_call() {
        let (begin, mut vigil) = (Instant::now(), Vigil::default());
        assert!(vigil.begin(begin), "a task keeps it awake");
        assert!(vigil.lasts(begin + 149 * US));
        vigil.end(begin + 100 * US);
        assert!(vigil.lasts(begin + 149 * US));
        assert!(!vigil.begin(begin + 149 * US), "the same task goes on");
        vigil.end(begin + 200 * US);
        assert!(vigil.lasts(begin + 249 * US));
        assert!(!vigil.lasts(begin + 250 * US));
    }

    #[test]
    fn it_sleeps_when_an_answer_takes_long() {
        let (begin, mut vigil) = (Instant::now(), Vigil::default());
        assert!(vigil.begin(begin));
        assert!(!vigil.lasts(begin + ANSWER_MAX));
        vigil.end(begin + 300 * US);
        assert!(!vigil.lasts(begin + 301 * US), "nothing keeps it awake after the answer");
        assert!(vigil.begin(begin + 400 * US), "a new task");
    }

    #[test]
    fn an_answer_beside_a_call_in_flight_ends_nothing() {
        let (begin, mut vigil) = (Instant::now(), Vigil::default());
        assert!(vigil.begin(begin));
        assert!(!vigil.begin(begin + 100 * US));
        vigil.end(begin + 101 * US);
        assert!(vigil.lasts(begin + 249 * US));
        vigil.end(begin + 249 * US);
        assert!(!vigil.lasts(begin + 299 * US));
    }

    /// The task ends by itself.
    #[tokio::test]
    async fn the_thread_sleeps_again() {
        let awake = Arc::new(Awake { is_possible: true, vigil: Mutex::default() });
        drop(awake.for_call());
        while 1 < Arc::strong_count(&awake) {
            tokio::task::yield_now().await;
        }
        assert!(!lock(&awake.vigil).lasts(Instant::now()));
    }
}
