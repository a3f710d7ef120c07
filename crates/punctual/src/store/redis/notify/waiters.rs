//! The waits of this process, and the unanswered notifications. Values only: nothing here waits or reads a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::SPARE;
use crate::{core::time::Timestamp, store::is_of_queue};

/// How long a notification for now is kept after the last wait for its queue ended. A worker that reserves returns
/// soon, and should find it. After that, it is returned for other processes.
pub(crate) const GRACE: Duration = Duration::from_millis(5);
/// How long a queue is still listened to after its last wait ended, and how long notifications for later are kept. A
/// call can take longer than the grace period.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// The most queues for which the last check and this process's times are remembered.
const ANSWERED_MAX: usize = 1_024;
/// How long a process that seems to be the only waiting one does not look for another.
const ALONE_FOR: Duration = Duration::from_secs(10);
/// The most times of a queue that are kept.
const TIMES_MAX: usize = 16;

/// The times for which this process wakes, for a queue, as a reserve reports them to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It uses its own timer, whatever other processes do, because it does not listen.
    OwnTimer,
    /// So it does, and it trusts no time of others: it looks for the first time, or a notification may have been lost. The
    /// processes that wake for the queue's time may be dead. So that time is notified anew.
    FirstLook,
    /// These times. It leaves any other time to two other processes.
    Times(Vec<Timestamp>),
}

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    last_id: u64,
    waits: Vec<Wait>,
    notifications: BTreeMap<String, Notifications>,
    /// Queues whose last wait has ended, and when.
    left: BTreeMap<String, Instant>,
    /// The queues that the listener hears at the moment.
    heard: BTreeSet<String>,
    /// How often a notification may have been lost.
    doubts: u64,
    /// When this process last checked a queue, by the server's clock, and how many doubts there had been.
    answered: BTreeMap<String, (Timestamp, u64)>,
    /// How many doubts there had been when this process had the time of a queue notified anew.
    looked: BTreeMap<String, u64>,
    /// The times for which this process wakes without a notification, because other processes have those.
    own_timers: BTreeMap<String, Timestamp>,
    /// The times that ended waits and are not yet answered by a check. By the server's clock they may not have come.
    taken: BTreeMap<String, Vec<Timestamp>>,
    /// How many notifications were received so far.
    arrivals: u64,
    /// The last spare for a time that was returned because this process is the first, and until when no other process
    /// seems to wait.
    given_back: Option<(String, Timestamp)>,
    alone_until: Option<Instant>,
    /// The time of the server's clock, and when it was read.
    clock: Option<(Instant, Timestamp)>,
}

/// What had been received when a reserve was sent, and is answered by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// How often a notification may have been lost by then.
    pub(crate) doubts: u64,
    arrivals: u64,
}

/// The notifications of a queue that are returned to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) queue: String,
    pub(crate) first: Option<Timestamp>,
    pub(crate) spare: Option<Timestamp>,
    pub(crate) times: BTreeSet<Timestamp>,
    pub(crate) time_spares: BTreeSet<Timestamp>,
}

/// The kind of a notification. On the server it is a member of the queue's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There is work from this time on. The earliest counts.
    First,
    /// For another process, which checks after the one that received the first. The earliest counts.
    Spare,
    /// The receiving process wakes for the queue at this time. It is the time in the queue's row.
    Time,
    /// For another process, which checks after that one.
    TimeSpare,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::First, Self::Spare, Self::Time, Self::TimeSpare];

    /// Returns its member. A returned time has its own member with this prefix; see [`Unheard::member`].
    pub(crate) const fn member(self) -> &'static str {
        match self {
            Self::First => "r",
            Self::Spare => "s",
            Self::Time => "t",
            Self::TimeSpare => "u",
        }
    }
}

impl Unheard {
    /// Returns the member for a notification on the server. A returned time is kept beside one that a script may have
    /// left meanwhile: it is not known here which of them is in the queue's row.
    pub(crate) fn member(kind: Kind, at: Timestamp) -> String {
        match kind {
            Kind::First | Kind::Spare => kind.member().to_owned(),
            Kind::Time | Kind::TimeSpare => format!("{}{}", kind.member(), at.as_ms()),
        }
    }

    /// Returns each notification and its time.
    pub(crate) fn notifications(&self) -> Vec<(Kind, Timestamp)> {
        let one = |kind, at: Option<Timestamp>| at.map(|at| (kind, at));
        let kept = one(Kind::First, self.first).into_iter().chain(one(Kind::Spare, self.spare));
        let times = self.times.iter().map(|at| (Kind::Time, *at));
        kept.chain(times).chain(self.time_spares.iter().map(|at| (Kind::TimeSpare, *at))).collect()
    }
}

#[derive(Debug)]
struct Wait {
    id: u64,
    queues: Vec<String>,
    notify: Arc<Notify>,
    /// The number of doubts on entering.
    doubts: u64,
}

/// The notifications of a queue, at least one.
#[derive(Clone, Debug, Default)]
struct Notifications {
    first: Option<Timestamp>,
    spare: Option<Timestamp>,
    /// The last time counts, but the last one is not known for sure here, because times are also returned by other
    /// processes.
    times: BTreeSet<Timestamp>,
    time_spares: BTreeSet<Timestamp>,
    /// A time for which this process wakes because its call was the first to learn of it. Only its spare was on the
    /// server.
    own: Option<Timestamp>,
    /// When the last one was received, and its kind; the same for `own`.
    since: Option<Instant>,
    arrival: u64,
    own_arrival: u64,
}

impl Notifications {
    fn all(&self) -> impl Iterator<Item = Timestamp> {
        let notifications = [self.first, self.spare, self.own].into_iter().flatten();
        notifications.chain(self.times.iter().chain(&self.time_spares).copied())
    }

    fn at(&self) -> Timestamp {
        self.all().min().unwrap_or_default()
    }

    fn add(&mut self, kind: Kind, at: Timestamp) {
        let earlier = |of: Option<Timestamp>| Some(of.map_or(at, |other| other.min(at)));
        match kind {
            Kind::First => self.first = earlier(self.first),
            Kind::Spare => self.spare = earlier(self.spare),
            Kind::Time => add_bounded(&mut self.times, at),
            Kind::TimeSpare => add_bounded(&mut self.time_spares, at),
        }
    }

    /// Removes firsts and spares up to these times, and times up to `now`.
    fn remove(&mut self, first: Option<Timestamp>, spare: Timestamp, now: Timestamp) {
        self.first = self.first.filter(|at| first.is_none_or(|over| over < *at));
        self.spare = self.spare.filter(|at| spare < *at);
        self.own = self.own.filter(|at| now < *at);
        self.times.retain(|at| now < *at);
        self.time_spares.retain(|at| spare < *at);
    }

    /// Returns the times for which this process wakes, with the firsts.
    fn held(&self) -> impl Iterator<Item = Timestamp> {
        [self.first, self.own].into_iter().flatten().chain(self.times.iter().copied())
    }

    /// Returns the form in which it goes back to the server.
    fn unheard(self, queue: String) -> Unheard {
        let Self { first, spare, mut times, time_spares, own, .. } = self;
        times.extend(own);
        Unheard { queue, first, spare, times, time_spares }
    }
}

/// Adds a time. Beyond the bound the latest is dropped: a process that wakes for an earlier one learns of it.
fn add_bounded(times: &mut BTreeSet<Timestamp>, at: Timestamp) {
    times.insert(at);
    if TIMES_MAX < times.len() {
        times.pop_last();
    }
}

/// What a wait learns on entering.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    pub(crate) id: u64,
    /// Whether the listener does not hear all of its queues yet.
    pub(crate) is_news: bool,
}

/// What a wait finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A notification, which this wait takes.
    Due,
    /// A notification for the first wait that checks at that time.
    Later(Timestamp),
    Nothing,
    /// A notification may have been lost since it entered.
    Doubt,
}

impl Waiters {
    pub(crate) fn enter(&mut self, queues: &[String], notify: &Arc<Notify>) -> Entered {
        self.last_id += 1;
        let (id, doubts) = (self.last_id, self.doubts);
        let is_news = queues.iter().any(|queue| !self.heard.contains(queue));
        for queue in queues {
            self.left.remove(queue);
        }
        self.waits.push(Wait { id, queues: queues.to_vec(), notify: Arc::clone(notify), doubts });
        Entered { id, is_news }
    }

    /// Returns whether it was the last wait for one of its queues.
    pub(crate) fn leave(&mut self, id: u64, now: Instant) -> bool {
        let Some(at) = self.waits.iter().position(|wait| wait.id == id) else { return false };
        let gone = self.waits.remove(at);
        let mut was_last = false;
        for queue in gone.queues {
            if !self.is_listened_to(&queue) {
                self.left.insert(queue, now);
                was_last = true;
            }
        }
        was_last
    }

    fn is_listened_to(&self, queue: &str) -> bool {
        self.waits.iter().any(|wait| wait.queues.iter().any(|wanted| wanted == queue))
    }

    /// Notes the time of the server's clock.
    pub(crate) const fn learn_clock(&mut self, here: Instant, now: Timestamp) {
        self.clock = Some((here, now));
    }

    /// Returns what there is for a wait, by the server's clock.
    pub(crate) fn look(&mut self, id: u64, now: Timestamp) -> Look {
        let Some(wait) = self.waits.iter().find(|wait| wait.id == id) else { return Look::Doubt };
        if wait.doubts != self.doubts {
            return Look::Doubt;
        }
        let notifications =
            wait.queues.iter().filter_map(|queue| Some((queue, self.notifications.get(queue)?.at())));
        match notifications.min_by_key(|(_, at)| *at) {
            Some((queue, at)) if at <= now => {
                let queue = queue.clone();
                self.take(&queue, now);
                self.remove(&queue, Some(now), now, now);
                Look::Due
            }
            Some((_, at)) => Look::Later(at),
            None => Look::Nothing,
        }
    }

    fn remove(&mut self, queue: &str, first: Option<Timestamp>, spare: Timestamp, now: Timestamp) {
        if let Some(held) = self.notifications.get_mut(queue) {
            held.remove(first, spare, now);
            self.forget_nothing(queue);
        }
    }

    /// Notes which times ended a wait, for the check that follows. Keys other than queues' are never checked.
    fn take(&mut self, queue: &str, now: Timestamp) {
        let held = self.notifications.get(queue).into_iter().flat_map(Notifications::held);
        let times: Vec<_> = held.filter(|at| Timestamp::default() < *at && *at <= now).collect();
        if is_of_queue(queue) && !times.is_empty() {
            if ANSWERED_MAX <= self.taken.len() {
                self.taken.clear();
            }
            self.taken.insert(queue.to_owned(), times);
        }
    }

    /// Returns whether to return a spare for a time to the server because this process is the first. Another waiting
    /// process then learns of it. If the spare comes back, there is none.
    pub(crate) fn gives_back(&mut self, queue: &str, spare: Timestamp, now: Instant) -> bool {
        let held = self.notifications.get(queue);
        let is_first = held.is_some_and(|held| held.held().any(|at| at.after(SPARE) == spare));
        if !is_first || self.alone_until.is_some_and(|until| now < until) {
            return false;
        }
        let given = Some((queue.to_owned(), spare));
        if self.given_back == given {
            (self.given_back, self.alone_until) = (None, Some(now + ALONE_FOR));
            return false;
        }
        self.given_back = given;
        true
    }

    /// Forgets a queue without notifications.
    fn forget_nothing(&mut self, queue: &str) {
        if self.notifications.get(queue).is_some_and(|held| held.all().next().is_none()) {
            self.notifications.remove(queue);
        }
    }

    fn notify(&self, queue: &str) {
        for wait in self.waits.iter().filter(|wait| wait.queues.iter().any(|wanted| wanted == queue)) {
            wait.notify.notify_one();
        }
    }

    /// Receives a notification. A spare for what was checked here since is dropped.
    pub(crate) fn take_in(&mut self, queue: String, at: Timestamp, kind: Kind, now: Instant) {
        let is_spare = matches!(kind, Kind::Spare | Kind::TimeSpare);
        if is_spare && self.answered.get(&queue).is_some_and(|(answered, _)| at <= answered.after(SPARE)) {
            return;
        }
        self.notify(&queue);
        self.arrivals += 1;
        let held = self.notifications.entry(queue).or_default();
        held.add(kind, at);
        (held.since, held.arrival) = (Some(now), self.arrivals);
    }

    /// Notes that this process checked these queues at `now`, by a call sent when `heard` had been received.
    /// `is_all`: nothing is left there now.
    pub(crate) fn answered<'a>(
        &mut self,
        queues: impl Iterator<Item = &'a str>,
        now: Timestamp,
        before: Heard,
        is_all: bool,
    ) {
        for queue in queues {
            // A notification for a time was there before that time. One for now may have come after the call was
            // sent.
            let is_answered = self.notifications.get(queue).is_some_and(|held| {
                held.arrival <= before.arrivals || held.first.is_some_and(|at| at != Timestamp::default())
            });
            self.remove(queue, (is_all && is_answered).then_some(now), now.after(SPARE), now);
            self.taken.remove(queue);
            if self.own_timers.get(queue).is_some_and(|at| *at <= now) {
                self.own_timers.remove(queue);
            }
            if ANSWERED_MAX <= self.answered.len() && !self.answered.contains_key(queue) {
                self.answered.clear();
            }
            self.answered.insert(queue.to_owned(), (now, before.doubts));
        }
    }

    /// Notes that the time of a queue is that of a living process: this one had it notified anew, by a call sent when `before` had been
    /// received.
    pub(crate) fn looked(&mut self, queue: &str, before: Heard) {
        if ANSWERED_MAX <= self.looked.len() {
            self.looked.clear();
        }
        self.looked.insert(queue.to_owned(), before.doubts);
    }

    /// Returns the times for which this process wakes, for a queue.
    pub(crate) fn hold(&self, queue: &str, now: Instant) -> Hold {
        let is_near = |since: &Instant| now < *since + LINGER;
        let listens = self.is_listened_to(queue) || self.left.get(queue).is_some_and(is_near);
        if !listens {
            return Hold::OwnTimer;
        }
        // A process that was notified before the first check here may be dead, and so may notifications be that were
        // lost with a connection.
        if self.looked.get(queue).is_none_or(|doubts| *doubts != self.doubts) {
            return Hold::FirstLook;
        }
        let times = self.notifications.get(queue).into_iter().flat_map(Notifications::held);
        let times = times.chain(self.own_timers.get(queue).copied());
        Hold::Times(times.chain(self.taken.get(queue).into_iter().flatten().copied()).collect())
    }

    /// Notes that this process must wake for a queue at this time, by the answer to a call with this hold, sent when
    /// `before` had been received. Also answers a notification for another process.
    #[must_use]
    pub(crate) fn wake_at(
        &mut self,
        queue: &str,
        at: Timestamp,
        hold: &Hold,
        before: Heard,
        now: Instant,
    ) -> Option<Unheard> {
        if !matches!(hold, Hold::Times(_)) {
            if ANSWERED_MAX <= self.own_timers.len() {
                self.own_timers.clear();
            }
            self.own_timers.insert(queue.to_owned(), at);
            return None;
        }
        self.own_timers.remove(queue);
        self.arrivals += 1;
        let held = self.notifications.entry(queue.to_owned()).or_default();
        // If two answers arrive in another order than their calls were made, the earlier time counts.
        let is_newer = before.arrivals < held.own_arrival;
        held.own = Some(held.own.filter(|_| is_newer).map_or(at, |own| own.min(at)));
        held.own_arrival = self.arrivals;
        held.since = held.since.or(Some(now));
        self.notify(queue);
        // Its spare may have come before the answer.
        let spare = at.after(SPARE);
        let has_both = self.notifications.get(queue).is_some_and(|held| held.time_spares.contains(&spare));
        if !has_both || !self.gives_back(queue, spare, now) {
            return None;
        }
        self.notifications.get_mut(queue)?.time_spares.remove(&spare);
        Some(Unheard { queue: queue.to_owned(), time_spares: BTreeSet::from([spare]), ..Unheard::default() })
    }

    /// Notes that others wake for the next time of a queue, by the answer to a call sent when `before` had been
    /// received. The times that were held here by then are theirs.
    pub(crate) fn leave_to_others(&mut self, queue: &str, before: Heard) {
        self.own_timers.remove(queue);
        let Some(held) = self.notifications.get_mut(queue) else { return };
        if held.own_arrival <= before.arrivals {
            held.own = None;
        }
        if held.arrival <= before.arrivals {
            held.times.clear();
        }
        self.forget_nothing(queue);
    }

    /// Returns the earliest time for which this process wakes by itself, for these queues.
    pub(crate) fn held<'a>(&self, queues: impl Iterator<Item = &'a str>) -> Option<Timestamp> {
        let held = |queue| {
            let times = self.notifications.get(queue).into_iter().flat_map(Notifications::held);
            times.chain(self.own_timers.get(queue).copied()).min()
        };
        queues.filter_map(held).min()
    }

    /// Returns what has been received so far.
    pub(crate) const fn heard(&self) -> Heard {
        Heard { doubts: self.doubts, arrivals: self.arrivals }
    }

    /// Notes that a notification may have been lost: all waits return.
    pub(crate) fn doubt(&mut self) {
        self.doubts += 1;
        for wait in &self.waits {
            wait.notify.notify_one();
        }
    }

    /// Notes what the listener hears from now on.
    pub(crate) fn hear(&mut self, queues: BTreeSet<String>) {
        self.heard = queues;
    }

    /// Returns the queues to listen to.
    pub(crate) fn waited_for(&self) -> BTreeSet<String> {
        self.waits.iter().flat_map(|wait| &wait.queues).cloned().collect()
    }

    /// Returns whether listening to these queues is still right: all with waits, and none whose wait ended for good.
    pub(crate) fn suits(&self, queues: &BTreeSet<String>, now: Instant) -> bool {
        let waited_for = self.waited_for();
        let was_left_just_now = |queue| self.left.get(queue).is_some_and(|since| now < *since + LINGER);
        let is_wanted = |queue| waited_for.contains(queue) || was_left_just_now(queue);
        waited_for.is_subset(queues) && queues.iter().all(is_wanted)
    }

    /// Removes and returns the notifications that are not answered here, and forgets queues whose waits ended for
    /// good.
    pub(crate) fn unheard(&mut self, now: Instant) -> Vec<Unheard> {
        let unheard = self.given_up().filter(|(_, end)| *end <= now);
        let unheard: Vec<String> = unheard.map(|(queue, _)| queue.to_owned()).collect();
        let unheard = unheard.into_iter().filter_map(|queue| {
            let held = self.notifications.remove(&queue)?;
            Some(held.unheard(queue))
        });
        let unheard = unheard.collect();
        self.left.retain(|_, since| now < *since + LINGER);
        unheard
    }

    /// Removes and returns all notifications.
    pub(crate) fn all(&mut self) -> Vec<Unheard> {
        let all = std::mem::take(&mut self.notifications).into_iter();
        all.map(|(queue, held)| held.unheard(queue)).collect()
    }

    /// Returns when the result of [`suits`](Self::suits) or [`unheard`](Self::unheard) will change if no wait starts
    /// or ends.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let ends = self.given_up().map(|(_, end)| end);
        ends.chain(self.left.values().map(|since| *since + LINGER)).min()
    }

    /// Returns the queues with notifications but without a listener, and until when these are kept.
    fn given_up(&self) -> impl Iterator<Item = (&str, Instant)> {
        let unheard = self.notifications.iter().filter(|(queue, _)| !self.is_listened_to(queue));
        unheard.filter_map(|(queue, held)| {
            let since = self.left.get(queue).copied().or(held.since)?;
            let for_later = self.clock.is_some_and(|(then, at)| {
                at.after(since.saturating_duration_since(then) + LINGER) < held.at()
            });
            Some((queue.as_str(), since + if for_later { LINGER } else { GRACE }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::saturating_from_ms(ms)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn enter(waiters: &mut Waiters, queues: &[&str]) -> u64 {
        waiters.enter(&names(queues), &Arc::new(Notify::new())).id
    }

    #[test]
    fn one_ring_ends_one_wait_when_its_time_has_come() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let (first, second) = (enter(&mut waiters, &["mail", "bulk"]), enter(&mut waiters, &["mail"]));
        let other = enter(&mut waiters, &["bulk"]);
        waiters.take_in("mail".into(), at(100), Kind::First, start);
        for id in [first, second] {
            assert_eq!(waiters.look(id, at(99)), Look::Later(at(100)));
        }
        assert_eq!(waiters.look(other, at(100)), Look::Nothing);
        assert_eq!(waiters.look(second, at(100)), Look::Due);
        assert_eq!(waiters.look(first, at(100)), Look::Nothing);
    }

    #[test]
    fn the_earliest_ring_of_a_queue_counts() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail", "bulk"]);
        for (queue, ms) in [("mail", 300), ("mail", 200), ("mail", 400), ("bulk", 250)] {
            waiters.take_in(queue.into(), at(ms), Kind::First, start);
        }
        assert_eq!(waiters.look(id, at(0)), Look::Later(at(200)));
        assert_eq!(waiters.look(id, at(200)), Look::Due);
        assert_eq!(waiters.look(id, at(200)), Look::Later(at(250)));
    }

    #[test]
    fn a_spare_is_void_once_somebody_here_has_looked() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        let spare = |ms| at(ms + SPARE.as_millis() as u64);
        waiters.take_in("mail".into(), at(100), Kind::First, start);
        waiters.take_in("mail".into(), spare(100), Kind::Spare, start);
        assert_eq!(waiters.look(id, at(100)), Look::Due);
        assert_eq!(waiters.look(id, at(100)), Look::Later(spare(100)), "the first may be lost");
        waiters.answered(["mail"].into_iter(), at(100), waiters.heard(), true);
        assert_eq!(waiters.look(id, spare(100)), Look::Nothing);
        waiters.take_in("mail".into(), spare(100), Kind::Spare, start);
        assert_eq!(waiters.look(id, spare(100)), Look::Nothing, "it comes too late");
        waiters.take_in("mail".into(), spare(101), Kind::Spare, start);
        waiters.answered(["bulk"].into_iter(), at(200), waiters.heard(), true);
        assert_eq!(waiters.look(id, spare(101)), Look::Due, "nobody looked for that");
    }

    #[test]
    fn a_ring_outlasts_the_wait_that_it_came_for() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        assert!(waiters.leave(id, start));
        let next = enter(&mut waiters, &["mail"]);
        assert_eq!(waiters.look(next, at(0)), Look::Due);
    }

    #[test]
    fn a_look_answers_the_rings_for_now_that_came_before_it() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        let before = waiters.heard();
        waiters.answered(["mail"].into_iter(), at(100), before, false);
        assert_eq!(waiters.look(id, at(100)), Look::Due, "there was more");
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        waiters.answered(["mail"].into_iter(), at(100), before, true);
        assert_eq!(waiters.look(id, at(100)), Look::Due, "it came after the look was sent");
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        waiters.answered(["mail"].into_iter(), at(100), waiters.heard(), true);
        assert_eq!(waiters.look(id, at(100)), Look::Nothing);
        waiters.take_in("mail".into(), at(101), Kind::First, start);
        waiters.answered(["mail"].into_iter(), at(100), waiters.heard(), true);
        assert_eq!(waiters.look(id, at(101)), Look::Due, "that is for later");
    }

    #[test]
    fn a_time_of_its_own_stands_beside_rings_for_now_and_is_held_until_a_look_answers_it() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        assert_eq!(waiters.hold("mail", start), Hold::FirstLook, "it has not looked yet");
        waiters.answered(["mail"].into_iter(), at(0), waiters.heard(), true);
        waiters.looked("mail", waiters.heard());
        let held = |waiters: &Waiters| match waiters.hold("mail", start) {
            Hold::Times(times) => times,
            Hold::OwnTimer | Hold::FirstLook => panic!("it listens, and has looked"),
        };
        assert_eq!(held(&waiters), []);
        let _ = waiters.wake_at("mail", at(100), &Hold::Times(vec![]), waiters.heard(), start);
        let before = waiters.heard();
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        assert_eq!(waiters.look(id, at(50)), Look::Due, "there is work at once");
        waiters.answered(["mail"].into_iter(), at(50), before, true);
        assert_eq!(held(&waiters), [at(100)]);
        // By the server's clock it comes a little too early.
        assert_eq!(waiters.look(id, at(100)), Look::Due);
        assert_eq!(held(&waiters), [at(100)]);
        waiters.answered(["mail"].into_iter(), at(99), waiters.heard(), true);
        let _ = waiters.wake_at("mail", at(100), &Hold::Times(vec![at(100)]), waiters.heard(), start);
        assert_eq!(held(&waiters), [at(100)]);
        waiters.answered(["mail"].into_iter(), at(100), waiters.heard(), true);
        assert_eq!(held(&waiters), []);
        waiters.doubt();
        assert_eq!(waiters.hold("mail", start), Hold::FirstLook, "a notification may have been lost");
    }

    #[test]
    fn a_time_that_is_left_to_others_goes_unless_a_ring_for_it_has_come_since() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        waiters.answered(["mail"].into_iter(), at(0), waiters.heard(), true);
        let _ = waiters.wake_at("mail", at(100), &Hold::Times(vec![]), waiters.heard(), start);
        let before = waiters.heard();
        waiters.take_in("mail".into(), at(90), Kind::Time, start);
        waiters.leave_to_others("mail", before);
        assert_eq!(waiters.look(id, at(80)), Look::Later(at(90)));
        waiters.leave_to_others("mail", waiters.heard());
        assert_eq!(waiters.look(id, at(80)), Look::Nothing);
        // A notification without a wait here is for other processes.
        let _ = waiters.wake_at("mail", at(100), &Hold::Times(vec![]), waiters.heard(), start);
        waiters.leave(id, start);
        let back =
            Unheard { queue: "mail".to_owned(), times: BTreeSet::from([at(100)]), ..Unheard::default() };
        assert_eq!(waiters.unheard(start + LINGER), [back]);
    }

    #[test]
    fn the_second_ring_of_a_time_goes_to_another_process_if_there_is_one() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        enter(&mut waiters, &["mail"]);
        let spare = |ms| at(ms + SPARE.as_millis() as u64);
        let wake = |waiters: &mut Waiters, ms, now| {
            waiters.wake_at("mail", at(ms), &Hold::Times(vec![]), waiters.heard(), now)
        };
        // The notification arrives after the answer, or before it.
        assert_eq!(wake(&mut waiters, 100, start), None);
        assert!(!waiters.gives_back("mail", spare(101), start), "that is another time's");
        assert!(waiters.gives_back("mail", spare(100), start));
        waiters.take_in("mail".into(), spare(200), Kind::TimeSpare, start);
        let back = wake(&mut waiters, 200, start).expect("it goes back");
        assert_eq!((back.time_spares, back.times), (BTreeSet::from([spare(200)]), BTreeSet::new()));
        // It comes back: no other process waits now.
        assert!(!waiters.gives_back("mail", spare(200), start));
        waiters.take_in("mail".into(), spare(300), Kind::TimeSpare, start);
        assert_eq!(wake(&mut waiters, 300, start), None);
        assert!(waiters.gives_back("mail", spare(300), start + ALONE_FOR));
    }

    #[test]
    fn no_time_takes_the_place_of_another_one() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        for ms in [200, 100, 300] {
            waiters.take_in("mail".into(), at(ms), Kind::Time, start);
        }
        assert_eq!(waiters.look(id, at(50)), Look::Later(at(100)));
        assert_eq!(waiters.look(id, at(100)), Look::Due);
        waiters.answered(["mail"].into_iter(), at(100), waiters.heard(), true);
        assert_eq!(waiters.look(id, at(100)), Look::Later(at(200)));
        for ms in 0..2 * TIMES_MAX as u64 {
            waiters.take_in("mail".into(), at(1_000 + ms), Kind::Time, start);
        }
        assert_eq!(waiters.notifications["mail"].times.len(), TIMES_MAX);
        assert_eq!(waiters.look(id, at(100)), Look::Later(at(200)));
    }

    #[test]
    fn what_is_no_queue_leaves_nothing_behind() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["$end/1", "mail"]);
        waiters.take_in("$end/1".into(), at(7), Kind::First, start);
        assert_eq!(waiters.look(id, at(7)), Look::Due);
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        assert_eq!(waiters.look(id, at(7)), Look::Due);
        assert!(waiters.taken.is_empty() && waiters.notifications.is_empty());
    }

    fn unheard(first: Option<u64>, spare: Option<u64>) -> Vec<Unheard> {
        vec![Unheard {
            queue: "mail".to_owned(),
            first: first.map(at),
            spare: spare.map(at),
            ..Unheard::default()
        }]
    }

    #[test]
    fn a_ring_that_nobody_listens_to_is_given_up_after_the_grace_as_what_it_was() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        waiters.take_in("mail".into(), at(7), Kind::First, start);
        let left = start + 3 * GRACE;
        waiters.learn_clock(left, at(7));
        assert!(waiters.unheard(left).is_empty());
        assert_eq!(waiters.next_change(), None);
        waiters.leave(id, left);
        assert_eq!(waiters.next_change(), Some(left + GRACE));
        assert!(waiters.unheard(left + GRACE / 2).is_empty());
        assert_eq!(waiters.unheard(left + GRACE), unheard(Some(7), None));
        assert!(waiters.unheard(left + GRACE).is_empty());
        // One that comes too late for any wait is returned at once.
        waiters.take_in("mail".into(), at(8), Kind::Spare, left + GRACE);
        assert_eq!(waiters.unheard(left + GRACE), unheard(None, Some(8)));
        assert!(waiters.unheard(left + LINGER).is_empty());
        assert_eq!(waiters.next_change(), None);
    }

    #[test]
    fn a_ring_for_later_is_kept_while_a_call_may_take_long() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let id = enter(&mut waiters, &["mail"]);
        let later = 2 * LINGER.as_millis() as u64;
        waiters.learn_clock(start, at(0));
        waiters.take_in("mail".into(), at(later), Kind::First, start);
        waiters.take_in("mail".into(), at(later + 1), Kind::Spare, start);
        waiters.leave(id, start);
        assert!(waiters.unheard(start + GRACE).is_empty());
        assert_eq!(waiters.unheard(start + LINGER), unheard(Some(later), Some(later + 1)));
    }

    #[test]
    fn what_is_listened_to_suits_until_a_queue_is_new_or_was_left_for_long() {
        let set = |queues: &[&str]| -> BTreeSet<String> { names(queues).into_iter().collect() };
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let first = enter(&mut waiters, &["mail", "bulk"]);
        let both = set(&["bulk", "mail"]);
        assert_eq!(waiters.waited_for(), both);
        assert!(waiters.suits(&both, start));
        assert!(!waiters.suits(&set(&["mail"]), start));
        let second = enter(&mut waiters, &["mail"]);
        assert!(waiters.leave(first, start));
        assert_eq!(waiters.waited_for(), set(&["mail"]));
        assert!(waiters.suits(&both, start + LINGER / 2));
        assert!(!waiters.suits(&both, start + LINGER));
        assert!(waiters.suits(&set(&["mail"]), start + LINGER));
        assert!(waiters.leave(second, start));
        assert!(!waiters.leave(second, start));
    }

    #[test]
    fn it_is_news_when_the_listener_does_not_hear_a_queue() {
        let mut waiters = Waiters::default();
        let mut is_news = |heard: &[&str], wanted: &[&str]| {
            waiters.hear(names(heard).into_iter().collect());
            waiters.enter(&names(wanted), &Arc::new(Notify::new())).is_news
        };
        assert!(is_news(&[], &["mail"]));
        assert!(!is_news(&["bulk", "mail"], &["mail"]));
        assert!(is_news(&["bulk"], &["bulk", "mail"]));
    }

    #[test]
    fn a_doubt_is_for_those_who_were_there() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let before = enter(&mut waiters, &["mail"]);
        waiters.take_in("mail".into(), at(0), Kind::First, start);
        waiters.doubt();
        let after = enter(&mut waiters, &["mail"]);
        assert_eq!(waiters.look(before, at(0)), Look::Doubt);
        assert_eq!(waiters.look(after, at(0)), Look::Due);
    }
}
