//! Who waits in this process, and the rings that nobody has answered yet. Only values: nothing here waits or reads a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::SPARE;
use crate::{core::time::Timestamp, store::is_of_queue};

/// How long what rings for now is kept after the last wait for its queue has left: a worker that reserves comes back in no time,
/// and should find what rang meanwhile. After that it is for other processes.
pub(crate) const GRACE: Duration = Duration::from_millis(5);
/// How long a queue is still listened to after its last wait has left, and how long what rings for later is kept: a call may take
/// longer than the grace.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// Of more queues it is not remembered when somebody looked into them, or which time this process wakes for.
const ANSWERED_MAX: usize = 1_024;
/// How long a process that seems to be the only one that waits does not look for another one.
const ALONE_FOR: Duration = Duration::from_secs(10);
/// More times of a queue are not kept.
const TIMES_MAX: usize = 16;

/// Which times this process wakes for, of a queue, as a reserve reports them to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It goes by its own timer, whatever other processes do: it does not listen, or they may have been notified before it did.
    OwnTimer,
    /// These times; any other one it leaves to two other processes.
    Times(Vec<Timestamp>),
}

#[derive(Debug, Default)]
pub(crate) struct Hall {
    last_id: u64,
    waits: Vec<Wait>,
    rings: BTreeMap<String, Ring>,
    /// Queues that nobody listens to any more, since when.
    left: BTreeMap<String, Instant>,
    /// What the listener hears at the moment.
    heard: BTreeSet<String>,
    /// How often a ring may have been lost.
    doubts: u64,
    /// When somebody here looked into a queue last, by the server's clock, and how many doubts there had been.
    answered: BTreeMap<String, (Timestamp, u64)>,
    /// The times that this process wakes for without a ring: other processes have those.
    own_timers: BTreeMap<String, Timestamp>,
    /// The times that ended waits and no look has answered yet: by the server's clock they may not have come.
    taken: BTreeMap<String, Vec<Timestamp>>,
    /// How many rings came here so far.
    arrivals: u64,
    /// The last second ring for a time that went back, since this process is the first; and until when no other one seems to wait.
    given_back: Option<(String, Timestamp)>,
    alone_until: Option<Instant>,
    /// What the server's clock showed, and when.
    clock: Option<(Instant, Timestamp)>,
}

/// What had come to a hall when a reserve was sent: that much the reserve answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// How often a ring may have been lost by then.
    pub(crate) doubts: u64,
    arrivals: u64,
}

/// The rings of a queue that go back to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) queue: String,
    pub(crate) first: Option<Timestamp>,
    pub(crate) spare: Option<Timestamp>,
    pub(crate) times: BTreeSet<Timestamp>,
    pub(crate) time_spares: BTreeSet<Timestamp>,
}

/// What a ring is; on the server, a member of the bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There is work from then on. The earliest counts.
    First,
    /// For another process, which looks after the one that heard the first. The earliest counts.
    Spare,
    /// The process that hears it wakes for the queue then. It is the time in the queue's row.
    Time,
    /// For another process, which looks after that one.
    TimeSpare,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::First, Self::Spare, Self::Time, Self::TimeSpare];

    /// A time that came back has a member of its own behind this, [`Unheard::member`].
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
    /// What a ring is on the server. A time that comes back stands beside the one that a script may have left meanwhile: which of them
    /// is in the queue's row is not known here.
    pub(crate) fn member(kind: Kind, at: Timestamp) -> String {
        match kind {
            Kind::First | Kind::Spare => kind.member().to_owned(),
            Kind::Time | Kind::TimeSpare => format!("{}{}", kind.member(), at.as_ms()),
        }
    }

    /// Each ring, and when it rings.
    pub(crate) fn rings(&self) -> Vec<(Kind, Timestamp)> {
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
    /// As it was on entering.
    doubts: u64,
}

/// The rings of a queue, at least one of them.
#[derive(Clone, Debug, Default)]
struct Ring {
    first: Option<Timestamp>,
    spare: Option<Timestamp>,
    /// The last one counts, but which one was the last is not known here for sure: rings also come back from other processes.
    times: BTreeSet<Timestamp>,
    time_spares: BTreeSet<Timestamp>,
    /// A time that this process wakes for, since a look here was the first to know of it: only its spare was on the server.
    own: Option<Timestamp>,
    /// When the last one came here, and as which; the same of `own`.
    since: Option<Instant>,
    arrival: u64,
    own_arrival: u64,
}

impl Ring {
    fn all(&self) -> impl Iterator<Item = Timestamp> {
        let rings = [self.first, self.spare, self.own].into_iter().flatten();
        rings.chain(self.times.iter().chain(&self.time_spares).copied())
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

    /// Leaves out firsts and spares up to these times, and times up to `now`.
    fn remove(&mut self, first: Option<Timestamp>, spare: Timestamp, now: Timestamp) {
        self.first = self.first.filter(|at| first.is_none_or(|over| over < *at));
        self.spare = self.spare.filter(|at| spare < *at);
        self.own = self.own.filter(|at| now < *at);
        self.times.retain(|at| now < *at);
        self.time_spares.retain(|at| spare < *at);
    }

    /// The times that this process wakes for, with the firsts.
    fn held(&self) -> impl Iterator<Item = Timestamp> {
        [self.first, self.own].into_iter().flatten().chain(self.times.iter().copied())
    }

    /// As what it goes to the server.
    fn unheard(self, queue: String) -> Unheard {
        let Self { first, spare, mut times, time_spares, own, .. } = self;
        times.extend(own);
        Unheard { queue, first, spare, times, time_spares }
    }
}

/// Of more times than there may be, the latest goes: whoever wakes for an earlier one learns of it.
fn add_bounded(times: &mut BTreeSet<Timestamp>, at: Timestamp) {
    times.insert(at);
    if TIMES_MAX < times.len() {
        times.pop_last();
    }
}

/// What a wait is told on entering.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    pub(crate) id: u64,
    /// Whether the listener does not hear all of its queues yet.
    pub(crate) is_news: bool,
}

/// What a wait finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A ring, which is the wait's now.
    Due,
    /// A ring that the first to look at that time will have.
    Later(Timestamp),
    Nothing,
    /// A ring may have been lost since it entered.
    Doubt,
}

impl Hall {
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

    /// Answers whether it was the last wait of one of its queues.
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

    /// What the server's clock shows.
    pub(crate) const fn learn_clock(&mut self, here: Instant, now: Timestamp) {
        self.clock = Some((here, now));
    }

    /// What there is for a wait, by the server's clock.
    pub(crate) fn look(&mut self, id: u64, now: Timestamp) -> Look {
        let Some(wait) = self.waits.iter().find(|wait| wait.id == id) else { return Look::Doubt };
        if wait.doubts != self.doubts {
            return Look::Doubt;
        }
        let rings = wait.queues.iter().filter_map(|queue| Some((queue, self.rings.get(queue)?.at())));
        match rings.min_by_key(|(_, at)| *at) {
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
        if let Some(ring) = self.rings.get_mut(queue) {
            ring.remove(first, spare, now);
            self.forget_nothing(queue);
        }
    }

    /// Notes which times ended a wait, for the look that follows. Nobody looks into what is no queue.
    fn take(&mut self, queue: &str, now: Timestamp) {
        let held = self.rings.get(queue).into_iter().flat_map(Ring::held);
        let times: Vec<_> = held.filter(|at| Timestamp::default() < *at && *at <= now).collect();
        if is_of_queue(queue) && !times.is_empty() {
            if ANSWERED_MAX <= self.taken.len() {
                self.taken.clear();
            }
            self.taken.insert(queue.to_owned(), times);
        }
    }

    /// Whether a second ring for a time should go back to the server, since this process is the first: another one that waits hears of
    /// it then. A ring that comes back shows that there is none.
    pub(crate) fn gives_back(&mut self, queue: &str, spare: Timestamp, now: Instant) -> bool {
        let ring = self.rings.get(queue);
        let is_first = ring.is_some_and(|ring| ring.held().any(|at| at.after(SPARE) == spare));
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

    /// A queue without rings is not kept.
    fn forget_nothing(&mut self, queue: &str) {
        if self.rings.get(queue).is_some_and(|ring| ring.all().next().is_none()) {
            self.rings.remove(queue);
        }
    }

    fn notify(&self, queue: &str) {
        for wait in self.waits.iter().filter(|wait| wait.queues.iter().any(|wanted| wanted == queue)) {
            wait.notify.notify_one();
        }
    }

    /// Takes a ring in. A spare for what somebody here has looked after since goes no further.
    pub(crate) fn take_in(&mut self, queue: String, at: Timestamp, kind: Kind, now: Instant) {
        let is_spare = matches!(kind, Kind::Spare | Kind::TimeSpare);
        if is_spare && self.answered.get(&queue).is_some_and(|(answered, _)| at <= answered.after(SPARE)) {
            return;
        }
        self.notify(&queue);
        self.arrivals += 1;
        let ring = self.rings.entry(queue).or_default();
        ring.add(kind, at);
        (ring.since, ring.arrival) = (Some(now), self.arrivals);
    }

    /// Somebody here has looked into these queues at `now`, and had heard so much before; `is_all`: nothing is left there for now.
    pub(crate) fn answered<'a>(
        &mut self,
        queues: impl Iterator<Item = &'a str>,
        now: Timestamp,
        before: Heard,
        is_all: bool,
    ) {
        for queue in queues {
            // A ring for a time was there before that time; one for now may have come after the look was sent.
            let is_answered = self.rings.get(queue).is_some_and(|ring| {
                ring.arrival <= before.arrivals || ring.first.is_some_and(|at| at != Timestamp::default())
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

    /// Which times this process wakes for, of a queue.
    pub(crate) fn hold(&self, queue: &str, now: Instant) -> Hold {
        let is_near = |since: &Instant| now < *since + LINGER;
        let listens = self.is_listened_to(queue) || self.left.get(queue).is_some_and(is_near);
        // Whoever was notified before the first look here may be dead by now, and so may be what was lost with a connection.
        let has_looked = self.answered.get(queue).is_some_and(|(_, doubts)| *doubts == self.doubts);
        if !listens || !has_looked {
            return Hold::OwnTimer;
        }
        let times = self.rings.get(queue).into_iter().flat_map(Ring::held);
        let times = times.chain(self.own_timers.get(queue).copied());
        Hold::Times(times.chain(self.taken.get(queue).into_iter().flatten().copied()).collect())
    }

    /// This process is to wake for a queue at this time, as the store answered a call with this hold, which was sent when so much
    /// had been heard. Answers a ring that is for another process.
    #[must_use]
    pub(crate) fn wake_at(
        &mut self,
        queue: &str,
        at: Timestamp,
        hold: &Hold,
        before: Heard,
        now: Instant,
    ) -> Option<Unheard> {
        if *hold == Hold::OwnTimer {
            if ANSWERED_MAX <= self.own_timers.len() {
                self.own_timers.clear();
            }
            self.own_timers.insert(queue.to_owned(), at);
            return None;
        }
        self.own_timers.remove(queue);
        self.arrivals += 1;
        let ring = self.rings.entry(queue.to_owned()).or_default();
        // Of two calls whose answers came in another order than they were made, the earlier time counts.
        let is_newer = before.arrivals < ring.own_arrival;
        ring.own = Some(ring.own.filter(|_| is_newer).map_or(at, |own| own.min(at)));
        ring.own_arrival = self.arrivals;
        ring.since = ring.since.or(Some(now));
        self.notify(queue);
        // Its second ring may have come before the answer.
        let spare = at.after(SPARE);
        let has_both = self.rings.get(queue).is_some_and(|ring| ring.time_spares.contains(&spare));
        if !has_both || !self.gives_back(queue, spare, now) {
            return None;
        }
        self.rings.get_mut(queue)?.time_spares.remove(&spare);
        Some(Unheard { queue: queue.to_owned(), time_spares: BTreeSet::from([spare]), ..Unheard::default() })
    }

    /// Others wake for what comes next in a queue, as the store answered a call that was sent when so much had been heard: what was
    /// held here by then is theirs.
    pub(crate) fn leave_to_others(&mut self, queue: &str, before: Heard) {
        self.own_timers.remove(queue);
        let Some(ring) = self.rings.get_mut(queue) else { return };
        if ring.own_arrival <= before.arrivals {
            ring.own = None;
        }
        if ring.arrival <= before.arrivals {
            ring.times.clear();
        }
        self.forget_nothing(queue);
    }

    /// The earliest time that this process wakes for by itself, of these queues.
    pub(crate) fn held<'a>(&self, queues: impl Iterator<Item = &'a str>) -> Option<Timestamp> {
        let held = |queue| {
            let times = self.rings.get(queue).into_iter().flat_map(Ring::held);
            times.chain(self.own_timers.get(queue).copied()).min()
        };
        queues.filter_map(held).min()
    }

    /// What has come here so far.
    pub(crate) const fn heard(&self) -> Heard {
        Heard { doubts: self.doubts, arrivals: self.arrivals }
    }

    /// A ring may have been lost: all waits come back.
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

    /// The queues to listen to.
    pub(crate) fn waited_for(&self) -> BTreeSet<String> {
        self.waits.iter().flat_map(|wait| &wait.queues).cloned().collect()
    }

    /// Whether listening to these queues is still right: to all that are waited for, and to none that was left for good.
    pub(crate) fn suits(&self, queues: &BTreeSet<String>, now: Instant) -> bool {
        let waited_for = self.waited_for();
        let was_left_just_now = |queue| self.left.get(queue).is_some_and(|since| now < *since + LINGER);
        let is_wanted = |queue| waited_for.contains(queue) || was_left_just_now(queue);
        waited_for.is_subset(queues) && queues.iter().all(is_wanted)
    }

    /// Takes out the rings that nobody here will answer, and forgets who was left for good.
    pub(crate) fn unheard(&mut self, now: Instant) -> Vec<Unheard> {
        let unheard = self.given_up().filter(|(_, end)| *end <= now);
        let unheard: Vec<String> = unheard.map(|(queue, _)| queue.to_owned()).collect();
        let unheard = unheard.into_iter().filter_map(|queue| {
            let ring = self.rings.remove(&queue)?;
            Some(ring.unheard(queue))
        });
        let unheard = unheard.collect();
        self.left.retain(|_, since| now < *since + LINGER);
        unheard
    }

    /// Takes out all rings.
    pub(crate) fn all(&mut self) -> Vec<Unheard> {
        let all = std::mem::take(&mut self.rings).into_iter();
        all.map(|(queue, ring)| ring.unheard(queue)).collect()
    }

    /// When [`suits`](Self::suits) or [`unheard`](Self::unheard) will answer otherwise, if nobody comes or leaves.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let ends = self.given_up().map(|(_, end)| end);
        ends.chain(self.left.values().map(|since| *since + LINGER)).min()
    }

    /// The queues with rings that nobody listens to, and until when these are kept.
    fn given_up(&self) -> impl Iterator<Item = (&str, Instant)> {
        let unheard = self.rings.iter().filter(|(queue, _)| !self.is_listened_to(queue));
        unheard.filter_map(|(queue, ring)| {
            let since = self.left.get(queue).copied().or(ring.since)?;
            let for_later = self.clock.is_some_and(|(then, at)| {
                at.after(since.saturating_duration_since(then) + LINGER) < ring.at()
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

    fn enter(hall: &mut Hall, queues: &[&str]) -> u64 {
        hall.enter(&names(queues), &Arc::new(Notify::new())).id
    }

    #[test]
    fn one_ring_ends_one_wait_when_its_time_has_come() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let (first, second) = (enter(&mut hall, &["mail", "bulk"]), enter(&mut hall, &["mail"]));
        let other = enter(&mut hall, &["bulk"]);
        hall.take_in("mail".into(), at(100), Kind::First, start);
        for id in [first, second] {
            assert_eq!(hall.look(id, at(99)), Look::Later(at(100)));
        }
        assert_eq!(hall.look(other, at(100)), Look::Nothing);
        assert_eq!(hall.look(second, at(100)), Look::Due);
        assert_eq!(hall.look(first, at(100)), Look::Nothing);
    }

    #[test]
    fn the_earliest_ring_of_a_queue_counts() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail", "bulk"]);
        for (queue, ms) in [("mail", 300), ("mail", 200), ("mail", 400), ("bulk", 250)] {
            hall.take_in(queue.into(), at(ms), Kind::First, start);
        }
        assert_eq!(hall.look(id, at(0)), Look::Later(at(200)));
        assert_eq!(hall.look(id, at(200)), Look::Due);
        assert_eq!(hall.look(id, at(200)), Look::Later(at(250)));
    }

    #[test]
    fn a_spare_is_void_once_somebody_here_has_looked() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        let spare = |ms| at(ms + SPARE.as_millis() as u64);
        hall.take_in("mail".into(), at(100), Kind::First, start);
        hall.take_in("mail".into(), spare(100), Kind::Spare, start);
        assert_eq!(hall.look(id, at(100)), Look::Due);
        assert_eq!(hall.look(id, at(100)), Look::Later(spare(100)), "the first may be lost");
        hall.answered(["mail"].into_iter(), at(100), hall.heard(), true);
        assert_eq!(hall.look(id, spare(100)), Look::Nothing);
        hall.take_in("mail".into(), spare(100), Kind::Spare, start);
        assert_eq!(hall.look(id, spare(100)), Look::Nothing, "it comes too late");
        hall.take_in("mail".into(), spare(101), Kind::Spare, start);
        hall.answered(["bulk"].into_iter(), at(200), hall.heard(), true);
        assert_eq!(hall.look(id, spare(101)), Look::Due, "nobody looked for that");
    }

    #[test]
    fn a_ring_outlasts_the_wait_that_it_came_for() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        hall.take_in("mail".into(), at(0), Kind::First, start);
        assert!(hall.leave(id, start));
        let next = enter(&mut hall, &["mail"]);
        assert_eq!(hall.look(next, at(0)), Look::Due);
    }

    #[test]
    fn a_look_answers_the_rings_for_now_that_came_before_it() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        hall.take_in("mail".into(), at(0), Kind::First, start);
        let before = hall.heard();
        hall.answered(["mail"].into_iter(), at(100), before, false);
        assert_eq!(hall.look(id, at(100)), Look::Due, "there was more");
        hall.take_in("mail".into(), at(0), Kind::First, start);
        hall.answered(["mail"].into_iter(), at(100), before, true);
        assert_eq!(hall.look(id, at(100)), Look::Due, "it came after the look was sent");
        hall.take_in("mail".into(), at(0), Kind::First, start);
        hall.answered(["mail"].into_iter(), at(100), hall.heard(), true);
        assert_eq!(hall.look(id, at(100)), Look::Nothing);
        hall.take_in("mail".into(), at(101), Kind::First, start);
        hall.answered(["mail"].into_iter(), at(100), hall.heard(), true);
        assert_eq!(hall.look(id, at(101)), Look::Due, "that is for later");
    }

    #[test]
    fn a_time_of_its_own_stands_beside_rings_for_now_and_is_held_until_a_look_answers_it() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        assert_eq!(hall.hold("mail", start), Hold::OwnTimer, "it has not looked yet");
        hall.answered(["mail"].into_iter(), at(0), hall.heard(), true);
        let held = |hall: &Hall| match hall.hold("mail", start) {
            Hold::Times(times) => times,
            Hold::OwnTimer => panic!("it listens"),
        };
        assert_eq!(held(&hall), []);
        let _ = hall.wake_at("mail", at(100), &Hold::Times(vec![]), hall.heard(), start);
        let before = hall.heard();
        hall.take_in("mail".into(), at(0), Kind::First, start);
        assert_eq!(hall.look(id, at(50)), Look::Due, "there is work at once");
        hall.answered(["mail"].into_iter(), at(50), before, true);
        assert_eq!(held(&hall), [at(100)]);
        // By the server's clock it comes a little too early.
        assert_eq!(hall.look(id, at(100)), Look::Due);
        assert_eq!(held(&hall), [at(100)]);
        hall.answered(["mail"].into_iter(), at(99), hall.heard(), true);
        let _ = hall.wake_at("mail", at(100), &Hold::Times(vec![at(100)]), hall.heard(), start);
        assert_eq!(held(&hall), [at(100)]);
        hall.answered(["mail"].into_iter(), at(100), hall.heard(), true);
        assert_eq!(held(&hall), []);
        hall.doubt();
        assert_eq!(hall.hold("mail", start), Hold::OwnTimer, "a ring may have been lost");
    }

    #[test]
    fn a_time_that_is_left_to_others_goes_unless_a_ring_for_it_has_come_since() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        hall.answered(["mail"].into_iter(), at(0), hall.heard(), true);
        let _ = hall.wake_at("mail", at(100), &Hold::Times(vec![]), hall.heard(), start);
        let before = hall.heard();
        hall.take_in("mail".into(), at(90), Kind::Time, start);
        hall.leave_to_others("mail", before);
        assert_eq!(hall.look(id, at(80)), Look::Later(at(90)));
        hall.leave_to_others("mail", hall.heard());
        assert_eq!(hall.look(id, at(80)), Look::Nothing);
        // One that nobody here waits for any more is for other processes.
        let _ = hall.wake_at("mail", at(100), &Hold::Times(vec![]), hall.heard(), start);
        hall.leave(id, start);
        let back =
            Unheard { queue: "mail".to_owned(), times: BTreeSet::from([at(100)]), ..Unheard::default() };
        assert_eq!(hall.unheard(start + LINGER), [back]);
    }

    #[test]
    fn the_second_ring_of_a_time_goes_to_another_process_if_there_is_one() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        enter(&mut hall, &["mail"]);
        let spare = |ms| at(ms + SPARE.as_millis() as u64);
        let wake =
            |hall: &mut Hall, ms, now| hall.wake_at("mail", at(ms), &Hold::Times(vec![]), hall.heard(), now);
        // The ring comes after the answer, or before it.
        assert_eq!(wake(&mut hall, 100, start), None);
        assert!(!hall.gives_back("mail", spare(101), start), "that is another time's");
        assert!(hall.gives_back("mail", spare(100), start));
        hall.take_in("mail".into(), spare(200), Kind::TimeSpare, start);
        let back = wake(&mut hall, 200, start).expect("it goes back");
        assert_eq!((back.time_spares, back.times), (BTreeSet::from([spare(200)]), BTreeSet::new()));
        // It comes back: nobody else is there, for now.
        assert!(!hall.gives_back("mail", spare(200), start));
        hall.take_in("mail".into(), spare(300), Kind::TimeSpare, start);
        assert_eq!(wake(&mut hall, 300, start), None);
        assert!(hall.gives_back("mail", spare(300), start + ALONE_FOR));
    }

    #[test]
    fn no_time_takes_the_place_of_another_one() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        for ms in [200, 100, 300] {
            hall.take_in("mail".into(), at(ms), Kind::Time, start);
        }
        assert_eq!(hall.look(id, at(50)), Look::Later(at(100)));
        assert_eq!(hall.look(id, at(100)), Look::Due);
        hall.answered(["mail"].into_iter(), at(100), hall.heard(), true);
        assert_eq!(hall.look(id, at(100)), Look::Later(at(200)));
        for ms in 0..2 * TIMES_MAX as u64 {
            hall.take_in("mail".into(), at(1_000 + ms), Kind::Time, start);
        }
        assert_eq!(hall.rings["mail"].times.len(), TIMES_MAX);
        assert_eq!(hall.look(id, at(100)), Look::Later(at(200)));
    }

    #[test]
    fn what_is_no_queue_leaves_nothing_behind() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["$end/1", "mail"]);
        hall.take_in("$end/1".into(), at(7), Kind::First, start);
        assert_eq!(hall.look(id, at(7)), Look::Due);
        hall.take_in("mail".into(), at(0), Kind::First, start);
        assert_eq!(hall.look(id, at(7)), Look::Due);
        assert!(hall.taken.is_empty() && hall.rings.is_empty());
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
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        hall.take_in("mail".into(), at(7), Kind::First, start);
        let left = start + 3 * GRACE;
        hall.learn_clock(left, at(7));
        assert!(hall.unheard(left).is_empty());
        assert_eq!(hall.next_change(), None);
        hall.leave(id, left);
        assert_eq!(hall.next_change(), Some(left + GRACE));
        assert!(hall.unheard(left + GRACE / 2).is_empty());
        assert_eq!(hall.unheard(left + GRACE), unheard(Some(7), None));
        assert!(hall.unheard(left + GRACE).is_empty());
        // One that comes too late for anybody goes back at once.
        hall.take_in("mail".into(), at(8), Kind::Spare, left + GRACE);
        assert_eq!(hall.unheard(left + GRACE), unheard(None, Some(8)));
        assert!(hall.unheard(left + LINGER).is_empty());
        assert_eq!(hall.next_change(), None);
    }

    #[test]
    fn a_ring_for_later_is_kept_while_a_call_may_take_long() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let id = enter(&mut hall, &["mail"]);
        let later = 2 * LINGER.as_millis() as u64;
        hall.learn_clock(start, at(0));
        hall.take_in("mail".into(), at(later), Kind::First, start);
        hall.take_in("mail".into(), at(later + 1), Kind::Spare, start);
        hall.leave(id, start);
        assert!(hall.unheard(start + GRACE).is_empty());
        assert_eq!(hall.unheard(start + LINGER), unheard(Some(later), Some(later + 1)));
    }

    #[test]
    fn what_is_listened_to_suits_until_a_queue_is_new_or_was_left_for_long() {
        let set = |queues: &[&str]| -> BTreeSet<String> { names(queues).into_iter().collect() };
        let (mut hall, start) = (Hall::default(), Instant::now());
        let first = enter(&mut hall, &["mail", "bulk"]);
        let both = set(&["bulk", "mail"]);
        assert_eq!(hall.waited_for(), both);
        assert!(hall.suits(&both, start));
        assert!(!hall.suits(&set(&["mail"]), start));
        let second = enter(&mut hall, &["mail"]);
        assert!(hall.leave(first, start));
        assert_eq!(hall.waited_for(), set(&["mail"]));
        assert!(hall.suits(&both, start + LINGER / 2));
        assert!(!hall.suits(&both, start + LINGER));
        assert!(hall.suits(&set(&["mail"]), start + LINGER));
        assert!(hall.leave(second, start));
        assert!(!hall.leave(second, start));
    }

    #[test]
    fn it_is_news_when_the_listener_does_not_hear_a_queue() {
        let mut hall = Hall::default();
        let mut is_news = |heard: &[&str], wanted: &[&str]| {
            hall.hear(names(heard).into_iter().collect());
            hall.enter(&names(wanted), &Arc::new(Notify::new())).is_news
        };
        assert!(is_news(&[], &["mail"]));
        assert!(!is_news(&["bulk", "mail"], &["mail"]));
        assert!(is_news(&["bulk"], &["bulk", "mail"]));
    }

    #[test]
    fn a_doubt_is_for_those_who_were_there() {
        let (mut hall, start) = (Hall::default(), Instant::now());
        let before = enter(&mut hall, &["mail"]);
        hall.take_in("mail".into(), at(0), Kind::First, start);
        hall.doubt();
        let after = enter(&mut hall, &["mail"]);
        assert_eq!(hall.look(before, at(0)), Look::Doubt);
        assert_eq!(hall.look(after, at(0)), Look::Due);
    }
}
