//! Remembers which queues had nothing to reserve in a shard. The process does not ask there again before something is
//! due or a notification arrives.
//!
//! This holds for a caller that waits between its reserves, as workers do: a notification that was not received here
//! is still on the server, and the next wait receives it. A caller that only reserves is answered by all shards each
//! time.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    core::time::Timestamp,
    store::{Batch, Reserve},
};

/// The most queues that are remembered.
const QUEUES_MAX: usize = 1_024;
/// How long an empty answer is trusted. It is less than a worker's longest sleep, after which the worker checks
/// itself.
const QUIET_MAX: Duration = Duration::from_mins(5);
/// How much earlier than expected a job can be due by the server's clock, as far as that is known here.
const EARLY: Duration = Duration::from_millis(5);
/// A busy process that has not waited for this long checks one more shard with every other reserve.
const UNHEARD_MAX: Duration = Duration::from_secs(5);
/// A wait that lasted this long has received all earlier notifications.
const WAIT_MIN: Duration = Duration::from_millis(5);

/// The queues of one shard that had nothing to reserve when they were last asked.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queues: HashMap<String, Empty>,
    heard: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Empty {
    asked: Instant,
    /// When something will be due, at the earliest.
    until: Option<Timestamp>,
    /// How often a notification may have been lost by then.
    doubts: u64,
    /// Whether a wait has started since the last reserve.
    is_waited_for: bool,
}

impl Inner {
    fn wait_for(&mut self, queues: &[String]) {
        for queue in queues {
            if let Some(empty) = self.queues.get_mut(queue) {
                empty.is_waited_for = true;
            }
        }
    }
}

impl Quiet {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the answer to a reserve, or that there was none. `doubts`: their number before it was sent.
    pub(crate) fn learn(&self, request: &Reserve, batch: Option<&Batch>, doubts: u64) {
        let mut inner = self.inner();
        let nothing = batch.filter(|batch| 0 < request.n && batch.jobs.is_empty() && !batch.more);
        for each in &request.queues {
            match nothing {
                Some(batch) if 0 < each.share.min(each.at_most) => {
                    if QUEUES_MAX <= inner.queues.len() {
                        inner.queues.clear();
                    }
                    let until = batch.next_due.map(|next| batch.now.after(next));
                    let empty = Empty { asked: Instant::now(), until, doubts, is_waited_for: false };
                    inner.queues.insert(each.queue.clone(), empty);
                }
                _ => {
                    inner.queues.remove(&each.queue);
                }
            }
        }
    }

    /// Forgets these queues, because a notification arrived or may have been lost.
    pub(crate) fn forget(&self, queues: &[String]) {
        let mut inner = self.inner();
        for queue in queues {
            inner.queues.remove(queue);
        }
    }

    /// Notes that a wait for notifications of the shard starts. Its end is noted when the guard is dropped.
    pub(crate) fn wait<'a>(&'a self, queues: &'a [String]) -> Wait<'a> {
        self.inner().wait_for(queues);
        Wait { quiet: self, queues, begin: Instant::now() }
    }

    /// Notes that a reserve was made: the next one asks, unless a wait comes before.
    pub(crate) fn used(&self, request: &Reserve) {
        let mut inner = self.inner();
        for each in &request.queues {
            if let Some(empty) = inner.queues.get_mut(&each.queue) {
                empty.is_waited_for = false;
            }
        }
    }

    /// Returns how long a reserve would find nothing, by the server's time `now`.
    ///
    /// `None` means that it may find something now, and [`Duration::MAX`] that only a notification can change that. A
    /// reserve after a settle is a worker's, which waits when it has a free slot. Until then it need not have waited
    /// recently.
    pub(crate) fn lasts(
        &self,
        request: &Reserve,
        now: Timestamp,
        doubts: u64,
        follows_a_settle: bool,
    ) -> Option<Duration> {
        let inner = self.inner();
        let mut least = Duration::MAX;
        for each in request.queues.iter().filter(|each| 0 < each.at_most) {
            let empty = inner.queues.get(&each.queue)?;
            let is_heard = empty.is_waited_for || follows_a_settle;
            let is_quiet = is_heard && empty.doubts == doubts && empty.asked.elapsed() < QUIET_MAX;
            let left = empty.until.map(|until| until.since(now));
            if !is_quiet || left.is_some_and(|left| left <= EARLY) {
                return None;
            }
            least = left.map_or(least, |left| left.min(least));
        }
        Some(least)
    }

    /// Returns whether this process has not listened for a while.
    pub(crate) fn is_unheard(&self) -> bool {
        let inner = self.inner();
        let asked = inner.queues.values().map(|empty| empty.asked).max();
        asked.max(inner.heard).is_none_or(|last| UNHEARD_MAX < last.elapsed())
    }
}

/// A wait; its end is noted when it is dropped.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    quiet: &'a Quiet,
    queues: &'a [String],
    begin: Instant,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut inner = self.quiet.inner();
        inner.wait_for(self.queues);
        if WAIT_MIN <= self.begin.elapsed() {
            inner.heard = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{CallId, QueueRequest};

    fn request(n: usize) -> Reserve {
        let queues = vec![QueueRequest { queue: "mail".into(), share: n, at_most: n }];
        Reserve {
            call: CallId { instance: 1, number: 1 },
            worker: "w".into(),
            queues,
            n,
            lease: None,
            company: false,
        }
    }

    fn nothing(next_due: Option<Duration>) -> Batch {
        let now = Timestamp::saturating_from_ms(1_000_000);
        Batch { now, jobs: Vec::new(), more: false, next_due, reclaimed: Vec::new() }
    }

    #[test]
    fn a_queue_that_had_nothing_is_quiet_until_something_is_due_or_a_ring_may_be_lost() {
        let (quiet, now) = (Quiet::default(), nothing(None).now);
        let learn = |next_due| {
            quiet.learn(&request(1), Some(&nothing(next_due)), 0);
            drop(quiet.wait(&["mail".to_owned()]));
        };
        let lasts = |now, doubts| quiet.lasts(&request(1), now, doubts, false);
        assert_eq!(lasts(now, 0), None, "nobody asked");
        learn(None);
        assert_eq!(lasts(now, 0), Some(Duration::MAX));
        assert_eq!(lasts(now, 1), None, "a notification may be lost");
        let soon = Duration::from_millis(50);
        learn(Some(soon));
        assert_eq!(lasts(now, 0), Some(soon));
        assert_eq!(lasts(now.after(soon), 0), None, "it is due");
        quiet.forget(&["mail".to_owned()]);
        assert_eq!(lasts(now, 0), None, "somebody notified");
        learn(None);
        quiet.learn(&request(1), None, 0);
        assert_eq!(lasts(now, 0), None, "there was no answer");
    }

    #[test]
    fn who_does_not_wait_between_reserves_asks_each_time() {
        let (quiet, now) = (Quiet::default(), nothing(None).now);
        quiet.learn(&request(1), Some(&nothing(None)), 0);
        assert_eq!(quiet.lasts(&request(1), now, 0, false), None);
        assert_eq!(
            quiet.lasts(&request(1), now, 0, true),
            Some(Duration::MAX),
            "it settles beside, and waits later"
        );
        drop(quiet.wait(&["bulk".to_owned()]));
        assert_eq!(quiet.lasts(&request(1), now, 0, false), None, "that is another queue");
        drop(quiet.wait(&["mail".to_owned()]));
        assert_eq!(quiet.lasts(&request(1), now, 0, false), Some(Duration::MAX));
        quiet.used(&request(1));
        assert_eq!(quiet.lasts(&request(1), now, 0, false), None);
    }

    #[test]
    fn who_asks_for_nothing_learns_nothing() {
        let (quiet, now) = (Quiet::default(), nothing(None).now);
        quiet.learn(&request(0), Some(&nothing(None)), 0);
        drop(quiet.wait(&["mail".to_owned()]));
        assert_eq!(quiet.lasts(&request(1), now, 0, false), None);
    }
}
