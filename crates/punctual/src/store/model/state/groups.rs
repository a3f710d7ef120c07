//! How the groups of a queue share it (S16), and what holds each of them back (S15).
//!
//! A group with a job that is due and may start is let into the *ring*, and leaves it when it has none any more. In the ring the
//! least tag is served next, the group's digest between equal ones. The jobs without a group are one of weight 1, which comes first
//! between equal ones; while no other is in the ring nothing is counted against them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    core::{
        digest::group_digest,
        fair::{come, step},
        job::{JobRecord, State},
        time::Timestamp,
    },
    store::{
        Order,
        model::{Model, state::limits::Gate},
    },
};

/// What stands for the name of a group in its queue.
pub(crate) type GroupId = [u8; 16];

/// What a queue remembers for its groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    /// The tag of whom it served last.
    time: u64,
    /// The tag of the jobs without a group; `None`: none was due when it was looked last.
    own: Option<u64>,
    /// When it let groups in last.
    seen: Option<Timestamp>,
    groups: BTreeMap<GroupId, Group>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    name: String,
    /// In the ring.
    tag: Option<u64>,
    gate: Gate,
}

/// Whose job comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Group(String),
    /// The jobs without a group; whether it is counted against them.
    Rest {
        is_counted: bool,
    },
}

impl Class {
    pub(crate) fn has(&self, job: &JobRecord) -> bool {
        job.group.as_ref()
            == match self {
                Self::Group(name) => Some(name),
                Self::Rest { .. } => None,
            }
    }
}

impl Model {
    // ── limits ──

    /// When the next job of a group may start, as far as its own limits go; `None`: when one of those that run has ended.
    fn group_opens(&self, queue: &str, group: &str, now: Timestamp) -> Option<Timestamp> {
        let limits = self.settings(queue).of_group(group);
        let running = self.jobs(queue, State::Running).filter(|job| job.group.as_deref() == Some(group));
        let is_full = limits.concurrency.is_some_and(|most| most as usize <= running.count());
        let known = self.rings.get(queue).and_then(|ring| ring.groups.get(&group_digest(group)));
        let gate = known.map(|group| group.gate).unwrap_or_default();
        (!is_full).then(|| gate.opens_in_time(limits.rate, now))
    }

    /// Whether a job's group lets none of its jobs start now.
    pub(crate) fn is_group_closed(&self, job: &JobRecord, now: Timestamp) -> bool {
        job.group.as_ref().is_some_and(|group| self.group_opens(&job.queue, group, now) != Some(now))
    }

    /// A run closes the gate of its group.
    pub(crate) fn close_group(&mut self, queue: &str, group: &str, until: Timestamp, now: Timestamp) {
        self.group_mut(queue, group).gate.close(until, now);
    }

    /// An operator opens the gate of a group.
    pub(crate) fn open_group(&mut self, queue: &str, group: &str) {
        let ring = self.rings.get_mut(queue);
        if let Some(group) = ring.and_then(|ring| ring.groups.get_mut(&group_digest(group))) {
            group.gate.open();
        }
    }

    // ── the ring ──

    fn group_mut(&mut self, queue: &str, group: &str) -> &mut Group {
        let ring = self.rings.entry(queue.to_owned()).or_default();
        let new = || Group { name: group.to_owned(), ..Group::default() };
        ring.groups.entry(group_digest(group)).or_insert_with(new)
    }

    /// Groups with waiting jobs in the timeline, and when the next of them may start.
    pub(crate) fn coming_groups(&self, queue: &str, now: Timestamp) -> Vec<(Timestamp, String)> {
        let mut first: BTreeMap<&String, Timestamp> = BTreeMap::new();
        for job in self.timeline(queue) {
            if let Some(group) = &job.group {
                let at = first.entry(group).or_insert(job.run_at);
                *at = job.run_at.min(*at);
            }
        }
        let at = |group: &str, first: Timestamp| {
            let opens = self.group_opens(queue, group, now)?;
            Some(if opens <= now { first } else { first.max(opens) })
        };
        first.into_iter().filter_map(|(group, first)| Some((at(group, first)?, group.clone()))).collect()
    }

    /// Lets groups into the ring whose first job is due and may start, those first that have been so for longest.
    pub(crate) fn let_in(&mut self, queue: &str, now: Timestamp, at_most: usize) {
        self.rings.entry(queue.to_owned()).or_default().seen = Some(now);
        self.thin_ring(queue, now);
        let mut coming = self.coming_groups(queue, now);
        coming.retain(|(at, group)| {
            *at <= now && !self.rings.get(queue).is_some_and(|ring| ring.is_in(&group_digest(group)))
        });
        coming.sort_by_key(|(at, group)| (*at, group_digest(group)));
        for (_, group) in coming.into_iter().take(at_most) {
            let time = self.rings.get(queue).map_or(0, |ring| ring.time);
            let weight = self.settings(queue).of_group(&group).weight();
            self.group_mut(queue, &group).tag = Some(come(time, weight));
        }
        let has_rest = self.has_rest(queue, now);
        if let Some(ring) = self.rings.get_mut(queue)
            && has_rest
        {
            ring.own.get_or_insert(come(ring.time, 1));
        }
    }

    /// Whether a job without a group is due by an instant.
    fn has_rest(&self, queue: &str, due_by: Timestamp) -> bool {
        self.timeline(queue).any(|job| job.group.is_none() && job.run_at <= due_by)
    }

    /// Jobs without a group come anew when there are some again.
    pub(crate) fn mind_rest(&mut self, queue: &str, now: Timestamp) {
        if !self.has_rest(queue, now)
            && let Some(ring) = self.rings.get_mut(queue)
        {
            ring.own = None;
        }
    }

    /// Groups without a job that may start leave the rings; those without any job are forgotten, once their gates say nothing. A gate
    /// of others stays, though it is open: stores know it by the row that they find the group's jobs by.
    pub(crate) fn thin_rings(&mut self, now: Timestamp) {
        for queue in self.rings.keys().cloned().collect::<Vec<_>>() {
            self.thin_ring(&queue, now);
        }
    }

    /// The same of one ring. What was due when groups were let in last is so until they are again, should the clock go back.
    fn thin_ring(&mut self, queue: &str, now: Timestamp) {
        let coming = self.coming_groups(queue, now);
        let waiting: BTreeSet<String> = self.timeline(queue).filter_map(|job| job.group.clone()).collect();
        let Some(ring) = self.rings.get_mut(queue) else { return };
        let seen = ring.seen.map_or(now, |seen| seen.max(now));
        for group in ring.groups.values_mut() {
            group.tag =
                group.tag.filter(|_| coming.iter().any(|(at, name)| *at <= seen && *name == group.name));
        }
        ring.groups.retain(|_, group| waiting.contains(&group.name) || group.gate.remembers(now));
    }

    /// A group leaves the ring until it is let in again.
    pub(crate) fn leave_ring(&mut self, queue: &str, group: &str) {
        self.group_mut(queue, group).tag = None;
    }

    /// Whose turn it is, where some job is due by `due_by`, or some group in the ring.
    pub(crate) fn next_class(&mut self, queue: &str, now: Timestamp, due_by: Timestamp) -> Option<Class> {
        self.thin_ring(queue, now);
        self.mind_rest(queue, now);
        let has_rest = self.has_rest(queue, due_by);
        let Some((tag, first)) = self.rings.get(queue).and_then(Ring::first) else {
            return has_rest.then_some(Class::Rest { is_counted: false });
        };
        let own = self.rings.get(queue).and_then(|ring| ring.own);
        if has_rest && own.is_some_and(|own| own <= tag) {
            return Some(Class::Rest { is_counted: true });
        }
        Some(Class::Group(first.name.clone()))
    }

    /// Counts a job that starts against whose it is.
    pub(crate) fn charge(&mut self, queue: &str, class: &Class, now: Timestamp) {
        match class {
            Class::Group(name) => {
                let limits = self.settings(queue).of_group(name);
                let group = self.group_mut(queue, name);
                let tag = group.tag.expect("invariant: a group that is served is in the ring");
                group.tag = Some(tag + step(limits.weight()));
                group.gate.spend(limits.rate, now);
                self.rings.entry(queue.to_owned()).or_default().time = tag;
            }
            Class::Rest { is_counted: true } => {
                let ring = self.rings.entry(queue.to_owned()).or_default();
                ring.time = ring.own.expect("invariant: what counts has a tag");
                ring.own = Some(ring.time + step(1));
            }
            Class::Rest { is_counted: false } => {}
        }
    }

    /// The first job of a class that is due by an instant, in the order in which they run (S6).
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

impl Ring {
    fn is_in(&self, group: &GroupId) -> bool {
        self.groups.get(group).is_some_and(|group| group.tag.is_some())
    }

    fn first(&self) -> Option<(u64, &Group)> {
        let groups = self.groups.iter().filter_map(|(id, group)| Some((group.tag?, id, group)));
        groups.min_by_key(|(tag, id, _)| (*tag, **id)).map(|(tag, _, group)| (tag, group))
    }
}
