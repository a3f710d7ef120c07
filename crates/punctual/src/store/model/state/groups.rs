//! How the groups of a queue share it (S16), and the limits of each group (S15).
//!
//! A group with a job that is due and can start is activated; it is deactivated when it has none any more. Among the
//! active groups, the one with the least tag is served next; between equal tags, the one with the lower digest.
//! Ungrouped jobs are one group of weight 1, which comes first between equal tags. While no other group is active,
//! their tag does not grow.
//!
//! An active group is deactivated by what happens to it, to the limits, or to the clock: not by time alone. Time alone closes
//! a limiter only if it ignored some of its state before ([`Limiter::is_void`]). Such a group stays active until its turn comes.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(feature = "testing")]
use std::hash::{Hash, Hasher};

use crate::{
    core::{
        digest::group_digest,
        fair::{come, step},
        id::JobId,
        job::{JobRecord, Priority, State},
        rate::Rate,
        time::Timestamp,
    },
    store::{
        Order,
        model::{Model, state::limits::Limiter},
    },
};

/// The digest of a group's name.
pub(crate) type GroupId = [u8; 16];

/// What a queue keeps for its groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveGroups {
    /// The tag of the group that was served last.
    time: u64,
    /// The tag of the ungrouped jobs; `None` if none was due at the last check.
    ungrouped: Option<u64>,
    /// When groups were last activated, or the later instant since when a job keeps a group active.
    seen: Option<Timestamp>,
    groups: BTreeMap<GroupId, Group>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    name: String,
    /// Its tag, if it is active.
    tag: Option<u64>,
    limiter: Limiter,
    /// What it had when state of its limiter was ignored, if it is active since.
    void: Option<Has>,
}

/// What a group has. An event changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Has {
    waiting: Vec<(JobId, Timestamp, Priority)>,
    running: usize,
    limiter: Limiter,
}

/// The group whose job is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Group(String),
    /// The ungrouped jobs, and whether their tag grows.
    Ungrouped {
        is_counted: bool,
    },
}

impl Class {
    pub(crate) fn has(&self, job: &JobRecord) -> bool {
        job.group.as_ref()
            == match self {
                Self::Group(name) => Some(name),
                Self::Ungrouped { .. } => None,
            }
    }
}

impl Model {
    // ── limits ──

    /// Returns the instant from which a job of a group can start by the group's own limits. If it can now, it is a past
    /// one. `None` if a running job must end first.
    fn group_opens(&self, queue: &str, group: &str, now: Timestamp) -> Option<Timestamp> {
        self.group_opens_beside(self.running_by_group(queue).get(group).copied(), queue, group, now)
    }

    /// Returns the same, given how many of its jobs are running.
    fn group_opens_beside(
        &self,
        running: Option<usize>,
        queue: &str,
        group: &str,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let limits = self.settings(queue).of_group(group);
        let is_full = limits.concurrency.is_some_and(|most| most as usize <= running.unwrap_or(0));
        let known = self.active_groups.get(queue).and_then(|active| active.groups.get(&group_digest(group)));
        let limiter = known.map(|group| group.limiter).unwrap_or_default();
        (!is_full).then(|| limiter.opening(limits.rate, now))
    }

    /// Returns how many jobs of each group are running.
    fn running_by_group<'a>(&'a self, queue: &'a str) -> BTreeMap<&'a str, usize> {
        let mut running = BTreeMap::new();
        for job in self.jobs(queue, State::Running) {
            if let Some(group) = &job.group {
                *running.entry(&**group).or_insert(0) += 1;
            }
        }
        running
    }

    /// Returns whether a job's group holds its jobs back now.
    pub(crate) fn is_group_closed(&self, job: &JobRecord, now: Timestamp) -> bool {
        job.group
            .as_ref()
            .is_some_and(|group| self.group_opens(&job.queue, group, now).is_none_or(|opens| now < opens))
    }

    /// Pauses a group at the request of a run.
    pub(crate) fn close_group(&mut self, queue: &str, group: &str, until: Timestamp, now: Timestamp) {
        self.group_mut(queue, group).limiter.close(until, now);
    }

    /// Ends the pause of a group at the request of an operator.
    pub(crate) fn open_group(&mut self, queue: &str, group: &str) {
        let active = self.active_groups.get_mut(queue);
        if let Some(group) = active.and_then(|active| active.groups.get_mut(&group_digest(group))) {
            group.limiter.open();
        }
    }

    // ── active groups ──

    fn group_mut(&mut self, queue: &str, group: &str) -> &mut Group {
        let active = self.active_groups.entry(queue.to_owned()).or_default();
        let new = || Group { name: group.to_owned(), ..Group::default() };
        active.groups.entry(group_digest(group)).or_insert_with(new)
    }

    /// Returns the groups with waiting jobs in the timeline, and when the next of these can start.
    pub(crate) fn coming_groups(&self, queue: &str, now: Timestamp) -> Vec<(Timestamp, String)> {
        let mut first: BTreeMap<&String, Timestamp> = BTreeMap::new();
        for job in self.timeline(queue) {
            if let Some(group) = &job.group {
                let at = first.entry(group).or_insert(job.run_at);
                *at = job.run_at.min(*at);
            }
        }
        let running = self.running_by_group(queue);
        let (settings, active) = (self.settings(queue), self.active_groups.get(queue));
        let at = |group: &str, first: Timestamp| {
            if active.is_some_and(|active| active.is_kept(group, settings.of_group(group).rate, now)) {
                return Some(first);
            }
            let running = running.get(group).copied();
            Some(first.max(self.group_opens_beside(running, queue, group, now)?))
        };
        first.into_iter().filter_map(|(group, first)| Some((at(group, first)?, group.clone()))).collect()
    }

    /// Activates groups whose first job is due and can start, the longest-waiting first.
    pub(crate) fn let_in(&mut self, queue: &str, now: Timestamp, at_most: usize) {
        let active = self.active_groups.entry(queue.to_owned()).or_default();
        if active.seen.replace(now).is_some_and(|before| now < before) {
            self.check_groups_again(queue);
        }
        self.thin_active(queue, now);
        let mut coming = self.coming_groups(queue, now);
        coming.retain(|(at, group)| {
            *at <= now
                && !self.active_groups.get(queue).is_some_and(|active| active.is_in(&group_digest(group)))
        });
        coming.sort_by_key(|(at, group)| (*at, group_digest(group)));
        for (_, group) in coming.into_iter().take(at_most) {
            let time = self.active_groups.get(queue).map_or(0, |active| active.time);
            let weight = self.settings(queue).of_group(&group).weight();
            self.group_mut(queue, &group).tag = Some(come(time, weight));
        }
        let has_ungrouped = self.has_ungrouped(queue, now);
        if let Some(active) = self.active_groups.get_mut(queue)
            && has_ungrouped
        {
            active.ungrouped.get_or_insert(come(active.time, 1));
        }
    }

    /// Returns whether an ungrouped job is due by an instant.
    fn has_ungrouped(&self, queue: &str, due_by: Timestamp) -> bool {
        self.timeline(queue).any(|job| job.group.is_none() && job.run_at <= due_by)
    }

    /// Activates the ungrouped jobs if there are some again.
    pub(crate) fn mind_ungrouped(&mut self, queue: &str, now: Timestamp) {
        if !self.has_ungrouped(queue, now)
            && let Some(active) = self.active_groups.get_mut(queue)
        {
            active.ungrouped = None;
        }
    }

    /// Deactivates groups without a job that can start. Forgets groups without any job, once their limiters hold no
    /// state. The state of other groups is kept even if they are open, because stores find a group's jobs by its row.
    pub(crate) fn thin_rings(&mut self, now: Timestamp) {
        for queue in self.active_groups.keys().cloned().collect::<Vec<_>>() {
            self.thin_active(&queue, now);
        }
    }

    /// Checks also groups to which nothing happened: the clock went back, or limits changed.
    pub(crate) fn check_groups_again(&mut self, queue: &str) {
        for group in
            self.active_groups.get_mut(queue).into_iter().flat_map(|active| active.groups.values_mut())
        {
            group.void = None;
        }
    }

    /// Notes which active groups have a limiter whose state is ignored, since when nothing happened to them.
    fn mind_void(&mut self, queue: &str, now: Timestamp) {
        let Some(active) = self.active_groups.get(queue) else { return };
        let settings = self.settings(queue);
        let mut noted = Vec::new();
        for (id, group) in &active.groups {
            let is_void =
                group.tag.is_some() && group.limiter.is_void(settings.of_group(&group.name).rate, now);
            let has =
                (is_void || group.void.is_some() && group.tag.is_some()).then(|| self.has(queue, group));
            noted.push((*id, has.filter(|has| is_void || group.void.as_ref() == Some(has))));
        }
        for (id, void) in noted {
            if let Some(group) =
                self.active_groups.get_mut(queue).and_then(|active| active.groups.get_mut(&id))
            {
                group.void = void;
            }
        }
    }

    fn has(&self, queue: &str, group: &Group) -> Has {
        let jobs = self.timeline(queue).filter(|job| job.group.as_ref() == Some(&group.name));
        Has {
            waiting: jobs.map(|job| (job.id, job.run_at, job.priority)).collect(),
            running: self.running_by_group(queue).get(&*group.name).copied().unwrap_or(0),
            limiter: group.limiter,
        }
    }

    /// Does so for one queue. A job that was due at the last activation counts as due until the next one, even if the
    /// clock goes back. So does one that came later and keeps its group active.
    fn thin_active(&mut self, queue: &str, now: Timestamp) {
        self.mind_void(queue, now);
        let coming = self.coming_groups(queue, now);
        let waiting: BTreeSet<String> = self.timeline(queue).filter_map(|job| job.group.clone()).collect();
        let Some(active) = self.active_groups.get_mut(queue) else { return };
        let seen = active.seen.map_or(now, |seen| seen.max(now));
        for group in active.groups.values_mut().filter(|group| group.tag.is_some()) {
            match coming.iter().find(|(at, name)| *at <= seen && *name == group.name) {
                Some((at, _)) => active.seen = active.seen.max(Some(*at)),
                None => group.tag = None,
            }
        }
        active.groups.retain(|_, group| waiting.contains(&group.name) || group.limiter.remembers(now));
    }

    /// Deactivates a group until it is activated again.
    pub(crate) fn leave_active(&mut self, queue: &str, group: &str) {
        self.group_mut(queue, group).tag = None;
    }

    /// Returns the group to serve next, if a job is due by `due_by` or a group is active.
    pub(crate) fn next_class(&mut self, queue: &str, now: Timestamp, due_by: Timestamp) -> Option<Class> {
        self.thin_active(queue, now);
        while let Some(name) = self.closed_by_time(queue, now) {
            self.leave_active(queue, &name);
        }
        self.mind_ungrouped(queue, now);
        let has_ungrouped = self.has_ungrouped(queue, due_by);
        let Some((tag, first)) = self.active_groups.get(queue).and_then(ActiveGroups::first) else {
            return has_ungrouped.then_some(Class::Ungrouped { is_counted: false });
        };
        let ungrouped = self.active_groups.get(queue).and_then(|active| active.ungrouped);
        if has_ungrouped && ungrouped.is_some_and(|ungrouped| ungrouped <= tag) {
            return Some(Class::Ungrouped { is_counted: true });
        }
        Some(Class::Group(first.name.clone()))
    }

    /// Returns the group to serve next, if time alone has closed its limiter.
    fn closed_by_time(&self, queue: &str, now: Timestamp) -> Option<String> {
        let (_, first) = self.active_groups.get(queue)?.first()?;
        let is_closed = first.void.is_some() && self.group_opens(queue, &first.name, now) > Some(now);
        is_closed.then(|| first.name.clone())
    }

    /// Charges the start of a job to its group.
    pub(crate) fn charge(&mut self, queue: &str, class: &Class, now: Timestamp) {
        match class {
            Class::Group(name) => {
                let limits = self.settings(queue).of_group(name);
                let group = self.group_mut(queue, name);
                let tag = group.tag.expect("invariant: a group that is served is active");
                group.tag = Some(tag + step(limits.weight()));
                group.limiter.spend(limits.rate, now);
                self.active_groups.entry(queue.to_owned()).or_default().time = tag;
            }
            Class::Ungrouped { is_counted: true } => {
                let active = self.active_groups.entry(queue.to_owned()).or_default();
                active.time = active.ungrouped.expect("invariant: what counts has a tag");
                active.ungrouped = Some(active.time + step(1));
            }
            Class::Ungrouped { is_counted: false } => {}
        }
    }

    /// Returns the first job of a group that is due by an instant, in the order of S6.
    pub(crate) fn first_of<'a>(
        &'a self,
        queue: &'a str,
        class: &Class,
        due_by: Timestamp,
    ) -> Option<&'a JobRecord> {
        let due = self.timeline(queue).filter(|job| class.has(job) && job.run_at <= due_by);
        let order = self.settings(queue).order;
        due.min_by(move |a, b| {
            let behind = (a.run_at, a.id).cmp(&(b.run_at, b.id));
            let behind = if order == Order::Lifo { behind.reverse() } else { behind };
            a.priority.cmp(&b.priority).then(behind)
        })
    }
}

#[cfg(feature = "testing")]
impl ActiveGroups {
    /// Returns the pauses of groups: each says since when a job of its group can start, also after its end.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = Timestamp> {
        self.groups.values().filter_map(|group| group.limiter.pause())
    }

    /// Hashes what decides later services. Tags count by their distance from the queue's time.
    pub(crate) fn hash_future(
        &self,
        code: impl Fn(Timestamp) -> i64,
        code_if_ahead: impl Fn(Timestamp) -> Option<i64>,
        hasher: &mut impl Hasher,
    ) {
        let tag = |tag: Option<u64>| tag.map(|tag| tag.wrapping_sub(self.time));
        (tag(self.ungrouped), self.seen.and_then(&code_if_ahead)).hash(hasher);
        for (id, group) in &self.groups {
            (id, tag(group.tag), group.limiter.pause().map(&code), group.void.is_some()).hash(hasher);
            group.limiter.hash_future("", &code_if_ahead, hasher);
        }
    }
}

impl ActiveGroups {
    fn is_in(&self, group: &GroupId) -> bool {
        self.groups.get(group).is_some_and(|group| group.tag.is_some())
    }

    /// Returns whether a group is active although time alone has closed its limiter.
    fn is_kept(&self, group: &str, rate: Option<Rate>, now: Timestamp) -> bool {
        let is_kept =
            |group: &Group| group.tag.is_some() && group.void.is_some() && !group.limiter.is_void(rate, now);
        self.seen <= Some(now) && self.groups.get(&group_digest(group)).is_some_and(is_kept)
    }

    fn first(&self) -> Option<(u64, &Group)> {
        let groups = self.groups.iter().filter_map(|(id, group)| Some((group.tag?, id, group)));
        groups.min_by_key(|(tag, id, _)| (*tag, **id)).map(|(tag, _, group)| (tag, group))
    }
}
