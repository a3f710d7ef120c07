//! Chooses from which queues a worker reserves, and how many jobs of each. Pure: no store, no clock.
//!
//! **strict** asks every queue for all free slots, in order: a later queue gets what the earlier ones left.
//! **weighted** is smooth weighted round robin (S6). Each reservation is a step of a fixed cycle. The steps belong to
//! queues by their weights. A step whose owner has no due job goes to another queue, and the owner does not get it
//! back. Credits, the position in the cycle, carry over from call to call. So a queue that always has a due job gets
//! at least its weight of any Σweights consecutive reservations.
//!
//! A queue can have **slots of its own**. While that many of its jobs run, it is at its cap: it is neither asked nor
//! waited for. Its steps go to the others, and it does not get them back.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
};

use crate::{
    core::{
        error::{Error, Result},
        limits::QUEUES_PER_RESERVE_MAX,
        registration::ServedQueue,
        topic::TOPICS_QUEUE,
    },
    store::{QueueRequest, Reserved},
};

/// The largest weight of a queue.
pub const WEIGHT_MAX: u32 = 1_000;
/// Most slots of one worker.
pub const SLOTS_MAX: usize = 10_000;

/// The queues of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    names: Vec<String>,
    /// Most jobs of each queue that run at once; `None` means the worker's slots.
    slots: Vec<Option<usize>>,
    /// `None`: strict.
    cycle: Option<Cycle>,
}

impl Queues {
    /// Makes strict queues: each is served before those after it.
    pub(crate) fn strict(names: Vec<String>) -> Result<Self> {
        check(&names)?;
        Ok(Self { slots: vec![None; names.len()], names, cycle: None })
    }

    /// Makes the queue of publications.
    pub(crate) fn of_publications() -> Self {
        Self { names: vec![TOPICS_QUEUE.to_owned()], slots: vec![None], cycle: None }
    }

    /// Makes weighted queues.
    pub(crate) fn weighted(weights: Vec<(String, u32)>) -> Result<Self> {
        let (names, weights): (Vec<String>, Vec<u32>) = weights.into_iter().unzip();
        check(&names)?;
        if let Some(at) = weights.iter().position(|weight| !(1..=WEIGHT_MAX).contains(weight)) {
            let (name, weight) = (&names[at], weights[at]);
            return Err(Error::invalid(format!(
                "weight {weight} of queue {name:?} is not within 1 to {WEIGHT_MAX}"
            )));
        }
        Ok(Self { slots: vec![None; names.len()], names, cycle: Some(Cycle::new(&weights)) })
    }

    /// Gives slots of their own to queues.
    pub(crate) fn with_slots(mut self, slots: &BTreeMap<String, usize>) -> Result<Self> {
        for (queue, &slots) in slots {
            check_slots(&format!("slots of queue {queue:?}:"), slots)?;
            let Some(at) = self.names.iter().position(|name| name == queue) else {
                return Err(Error::invalid(format!(
                    "slots for queue {queue:?}, which this worker does not serve"
                ))
                .with_hint(format!("name a queue that it serves: {}", self.names.join(", "))));
            };
            self.slots[at] = Some(slots);
        }
        Ok(self)
    }

    /// All of them.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns them with their weights, for the registration of the worker.
    pub(crate) fn served(&self) -> Vec<ServedQueue> {
        let weight = |at| self.cycle.as_ref().and_then(|cycle| u32::try_from(cycle.weights[at]).ok());
        self.names.iter().enumerate().map(|(at, name)| ServedQueue::new(name.clone(), weight(at))).collect()
    }

    /// Returns the queues with slots of their own, whose runs must be counted.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &str> {
        self.names.iter().zip(&self.slots).filter(|(_, slots)| slots.is_some()).map(|(name, _)| name.as_str())
    }

    /// Returns the queues that are below their caps, by the numbers of `running`.
    pub(crate) fn below_cap(&self, running: impl Fn(&str) -> usize) -> Cow<'_, [String]> {
        if self.slots.iter().all(Option::is_none) {
            return Cow::Borrowed(&self.names);
        }
        let room = self.room(usize::MAX, running);
        self.names.iter().zip(room).filter(|(_, room)| 0 < *room).map(|(name, _)| name.clone()).collect()
    }

    /// Returns how many more jobs of each queue may run, at most `n`.
    fn room(&self, n: usize, running: impl Fn(&str) -> usize) -> Vec<usize> {
        let room = |(name, slots): (&String, &Option<usize>)| {
            slots.map_or(n, |slots| slots.saturating_sub(running(name)).min(n))
        };
        self.names.iter().zip(&self.slots).map(room).collect()
    }

    /// Returns how many jobs to request of which queues, for `free` slots and the numbers of `running` jobs.
    ///
    /// The list is empty if all queues are at their caps.
    pub(crate) fn requests(
        &mut self,
        free: usize,
        running: impl Fn(&str) -> usize,
    ) -> (usize, Vec<QueueRequest>) {
        let room = self.room(free, running);
        let n = room.iter().fold(0, |sum: usize, room| sum.saturating_add(*room)).min(free);
        let mut shares = vec![0; room.len()];
        let mut order = Vec::with_capacity(room.len());
        match &mut self.cycle {
            None => shares.clone_from(&room),
            Some(cycle) => {
                cycle.plan(n, &room);
                // The owner of the next step comes first, so that an answer cut short by its bytes still serves it.
                for &owner in cycle.planned.iter().flatten() {
                    shares[owner] += 1;
                    if !order.contains(&owner) {
                        order.push(owner);
                    }
                }
            }
        }
        for (at, &room) in room.iter().enumerate() {
            if 0 < room && !order.contains(&at) {
                order.push(at);
            }
        }
        let request =
            |at: usize| QueueRequest { queue: self.names[at].clone(), share: shares[at], at_most: room[at] };
        (n, order.into_iter().map(request).collect())
    }

    /// Handles the answer to the last [`Queues::requests`], and sorts its jobs into the order of the cycle.
    pub(crate) fn reserved(&mut self, jobs: Vec<Reserved>) -> Vec<Reserved> {
        match &mut self.cycle {
            None => jobs,
            Some(cycle) => {
                let names = &self.names;
                cycle.serve(jobs, |reserved| names.iter().position(|name| *name == reserved.job.queue))
            }
        }
    }
}

/// Checks a number of slots.
pub(crate) fn check_slots(what: &str, slots: usize) -> Result<()> {
    if (1..=SLOTS_MAX).contains(&slots) {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what} {slots} is not within 1 to {SLOTS_MAX}")))
    }
}

fn check(names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Err(Error::invalid("a worker needs a queue"));
    }
    if QUEUES_PER_RESERVE_MAX < names.len() {
        let n = names.len();
        return Err(Error::invalid(format!("{n} queues are over the limit of {QUEUES_PER_RESERVE_MAX}")));
    }
    for (at, name) in names.iter().enumerate() {
        crate::core::job::check_queue(name)?;
        if names[..at].contains(name) {
            return Err(Error::invalid(format!("queue {name:?} is named twice")));
        }
    }
    Ok(())
}

/// Smooth weighted round robin.
#[derive(Clone, Debug)]
struct Cycle {
    weights: Vec<i64>,
    /// The position in the cycle. The credits add up to 0.
    credits: Vec<i64>,
    /// The owners of the next steps, as last requested. `None`: the owner is at its cap, and any queue can have the
    /// step.
    planned: Vec<Option<usize>>,
}

impl Cycle {
    fn new(weights: &[u32]) -> Self {
        let weights: Vec<i64> = weights.iter().map(|weight| i64::from(*weight)).collect();
        Self { credits: vec![0; weights.len()], planned: Vec::new(), weights }
    }

    /// Plans the next `n` steps, given how many more jobs of each queue may run.
    fn plan(&mut self, n: usize, room: &[usize]) {
        let (mut credits, mut room) = (self.credits.clone(), room.to_vec());
        self.planned = (0..n)
            .map(|_| {
                let owner = step(&mut credits, &self.weights);
                room[owner] = room[owner].checked_sub(1)?;
                Some(owner)
            })
            .collect();
    }

    /// Puts each job on a step of its owner, and the rest on steps of owners that had no job; then advances the
    /// cycle.
    ///
    /// If all owners were served, it advances over the whole plan. Otherwise it advances to the first step whose
    /// owner was not served, because the answer may have been cut short; that owner is then asked first. It advances
    /// by at least one step, so that an empty queue does not hold up the others.
    fn serve<T>(&mut self, jobs: Vec<T>, owner: impl Fn(&T) -> Option<usize>) -> Vec<T> {
        let (got, wanted) = (jobs.len(), self.planned.len());
        let mut own: Vec<VecDeque<T>> = self.weights.iter().map(|_| VecDeque::new()).collect();
        let mut rest = VecDeque::new();
        let mut left: Vec<usize> = vec![0; own.len()];
        self.planned.iter().flatten().for_each(|&at| left[at] += 1);
        for job in jobs {
            match owner(&job) {
                Some(at) if 0 < left[at] => {
                    left[at] -= 1;
                    own[at].push_back(job);
                }
                _ => rest.push_back(job),
            }
        }
        let mut served = Vec::with_capacity(got);
        let mut as_planned = None;
        for (place, owner) in self.planned.iter().enumerate() {
            let job = owner.and_then(|at| own[at].pop_front()).or_else(|| {
                as_planned = as_planned.or(owner.and(Some(place)));
                rest.pop_front()
            });
            served.extend(job);
        }
        let steps = match as_planned {
            Some(place) if got < wanted => place.max(got.min(1)),
            _ => wanted,
        };
        for _ in 0..steps {
            step(&mut self.credits, &self.weights);
        }
        served
    }
}

/// Advances the cycle by one step; returns its owner.
fn step(credits: &mut [i64], weights: &[i64]) -> usize {
    let mut best = 0;
    for at in 0..credits.len() {
        credits[at] += weights[at];
        if credits[best] < credits[at] {
            best = at;
        }
    }
    credits[best] -= weights.iter().sum::<i64>();
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(n: usize) -> Vec<String> {
        (0..n).map(|at| format!("q{at}")).collect()
    }

    fn shown(requests: &[QueueRequest]) -> Vec<(&str, usize, usize)> {
        requests.iter().map(|request| (request.queue.as_str(), request.share, request.at_most)).collect()
    }

    /// Keeps the queues that have slots of their own.
    fn slots_of(slots: &[Option<usize>]) -> BTreeMap<String, usize> {
        named(slots.len())
            .into_iter()
            .zip(slots)
            .filter_map(|(name, slots)| Some((name, (*slots)?)))
            .collect()
    }

    fn number(queue: &str) -> usize {
        queue[1..].parse().unwrap()
    }

    #[test]
    fn strict_asks_every_queue_for_all_slots() {
        let mut queues = Queues::strict(named(2)).unwrap();
        let (n, requests) = queues.requests(7, |_| 0);
        assert_eq!((n, shown(&requests)), (7, vec![("q0", 7, 7), ("q1", 7, 7)]));
    }

    #[test]
    fn a_queue_is_asked_for_no_more_than_its_own_slots_leave() {
        let slots = |queues: Queues| queues.with_slots(&[("q0".to_owned(), 5)].into()).unwrap();
        let mut strict = slots(Queues::strict(named(2)).unwrap());
        let (n, requests) = strict.requests(7, |_| 3);
        assert_eq!((n, shown(&requests)), (7, vec![("q0", 2, 2), ("q1", 7, 7)]));
        let (_, requests) = strict.requests(7, |_| 5);
        assert_eq!(shown(&requests), [("q1", 7, 7)]);
        assert_eq!(*strict.below_cap(|_| 5), ["q1"]);
        assert_eq!(*strict.below_cap(|_| 4), ["q0", "q1"]);
        let mut weighted = slots(Queues::weighted(named(2).into_iter().zip([3, 1]).collect()).unwrap());
        let (n, requests) = weighted.requests(8, |_| 3);
        assert_eq!((n, shown(&requests)), (8, vec![("q0", 2, 2), ("q1", 2, 8)]));
    }

    #[test]
    fn nothing_is_asked_for_where_all_are_at_their_caps() {
        let slots = [("q0".to_owned(), 2), ("q1".to_owned(), 1)].into();
        let mut queues = Queues::strict(named(2)).unwrap().with_slots(&slots).unwrap();
        assert_eq!(queues.requests(9, |_| 0).0, 3);
        assert_eq!(queues.requests(9, |_| 2), (0, vec![]));
        assert_eq!(*queues.below_cap(|_| 2), [""; 0]);
    }

    /// S6: a queue at its cap loses its steps to the others, and gets none of them back.
    #[test]
    fn a_step_whose_owner_is_at_its_cap_is_not_owed() {
        let mut queues = Queues::weighted(vec![("q0".to_owned(), 3), ("q1".to_owned(), 1)]).unwrap();
        queues = queues.with_slots(&[("q0".to_owned(), 1)].into()).unwrap();
        let firsts: String = [1, 1, 1, 1, 0, 0, 0, 0]
            .map(|running| {
                let (n, requests) = queues.requests(1, |_| running);
                assert_eq!(n, 1);
                let jobs = fill(&requests, 1, 1, &mut [9, 9]);
                let served = queues.cycle.as_mut().unwrap().serve(jobs, |at| Some(*at));
                ["a", "b"][served[0]]
            })
            .concat();
        assert_eq!(firsts, "bbbbaaba");
    }

    #[test]
    fn one_slot_at_a_time_the_credits_carry_over() {
        let mut queues = Queues::weighted(vec![("a".to_owned(), 3), ("b".to_owned(), 1)]).unwrap();
        let firsts: String = (0..8)
            .map(|_| {
                let first = queues.requests(1, |_| 0).1.remove(0);
                let at = usize::from(first.queue == "b");
                queues.cycle.as_mut().unwrap().serve(vec![at], |at| Some(*at));
                first.queue
            })
            .collect();
        assert_eq!(firsts, "aabaaaba");
    }

    #[test]
    fn wrong_lists_are_refused() {
        assert!(Queues::strict(vec![]).is_err());
        assert!(Queues::strict(vec!["a".to_owned(), "a".to_owned()]).is_err());
        assert!(Queues::strict(named(65)).is_err());
        assert!(Queues::weighted(vec![("a".to_owned(), 0)]).is_err());
        assert!(Queues::weighted(vec![("a".to_owned(), 1_001)]).is_err());
        let queues = Queues::strict(named(1)).unwrap();
        for (queue, slots) in [("q0", 0), ("q0", 10_001), ("q1", 1)] {
            assert!(queues.clone().with_slots(&[(queue.to_owned(), slots)].into()).is_err());
        }
    }

    /// Simulates a store's answer: first each queue up to its share, then each up to its bound, at most `cut` jobs in
    /// all.
    fn fill(requests: &[QueueRequest], n: usize, cut: usize, due: &mut [usize]) -> Vec<usize> {
        let mut jobs = Vec::new();
        let mut took = vec![0; due.len()];
        for round in 0..2 {
            for request in requests {
                let at = number(&request.queue);
                let most = if round == 0 { request.share.min(request.at_most) } else { request.at_most };
                while took[at] < most && 0 < due[at] && jobs.len() < n.min(cut) {
                    due[at] -= 1;
                    took[at] += 1;
                    jobs.push(at);
                }
            }
        }
        jobs
    }

    proptest! {
        /// S6: whatever the other queues do, however many slots are free, and whichever queue is at its cap.
        #[test]
        fn a_queue_that_always_has_a_due_job_gets_its_weight_of_any_round(
            weights in prop::collection::vec(1u32..6, 1..6),
            slots in prop::collection::vec(prop::option::of(1usize..6), 6),
            calls in prop::collection::vec(
                (1usize..20, prop::collection::vec(0usize..8, 6), prop::collection::vec(0usize..8, 6)),
                1..80,
            ),
        ) {
            let k = weights.len();
            let mut queues =
                Queues::weighted(named(k).into_iter().zip(weights.iter().copied()).collect()).unwrap();
            // The queue under test is never at a cap.
            let slots: Vec<_> = slots.into_iter().enumerate().map(|(at, slots)| slots.filter(|_| 0 < at)).collect();
            queues = queues.with_slots(&slots_of(&slots[..k])).unwrap();
            let mut due = vec![0; k];
            let mut sequence = Vec::new();
            for (free, arrivals, running) in calls {
                for at in 0..k {
                    due[at] += arrivals[at];
                }
                due[0] = usize::MAX / 2;
                let (n, requests) = queues.requests(free, |queue| running[number(queue)]);
                prop_assert_eq!(n, free);
                let jobs = fill(&requests, n, usize::MAX, &mut due);
                prop_assert_eq!(jobs.len(), n);
                for at in 1..k {
                    let got = jobs.iter().filter(|job| **job == at).count();
                    let is_within = slots[at].is_none_or(|slots| got == 0 || running[at] + got <= slots);
                    prop_assert!(is_within, "{got} of queue {at}");
                }
                sequence.extend(queues.cycle.as_mut().unwrap().serve(jobs, |at| Some(*at)));
            }
            let round: usize = weights.iter().map(|w| *w as usize).sum();
            for window in sequence.windows(round) {
                let got = window.iter().filter(|at| **at == 0).count();
                prop_assert!(weights[0] as usize <= got, "{window:?} of weights {weights:?}");
            }
        }

        /// An answer is bounded in bytes: it can hold fewer jobs than requested although more are due.
        #[test]
        fn answers_that_are_cut_short_starve_nobody(
            weights in prop::collection::vec(1u32..6, 2..6),
            idle in prop::collection::vec(any::<bool>(), 6),
            at_cap in prop::collection::vec(any::<bool>(), 6),
            n in 1usize..20,
        ) {
            let k = weights.len();
            let slots: Vec<_> = (0..k).map(|at| (at_cap[at] && 0 < at).then_some(1)).collect();
            let mut queues =
                Queues::weighted(named(k).into_iter().zip(weights.iter().copied()).collect()).unwrap();
            queues = queues.with_slots(&slots_of(&slots)).unwrap();
            let mut due: Vec<usize> =
                (0..k).map(|at| if idle[at] && 0 < at { 0 } else { usize::MAX / 2 }).collect();
            let round: usize = weights.iter().map(|w| *w as usize).sum();
            let mut got = vec![0; k];
            for _ in 0..2 * round {
                let (n, requests) = queues.requests(n, |_| 1);
                let jobs = fill(&requests, n, 1, &mut due);
                for at in queues.cycle.as_mut().unwrap().serve(jobs, |at| Some(*at)) {
                    got[at] += 1;
                }
            }
            for at in 0..k {
                let may = 0 < due[at] && slots[at].is_none();
                prop_assert_eq!(may, 0 < got[at], "queue {} of {:?}", at, &got);
            }
        }

        /// No job is lost or invented.
        #[test]
        fn the_answer_keeps_its_jobs(
            weights in prop::collection::vec(1u32..6, 1..6),
            room in prop::collection::vec(0usize..6, 6),
            jobs in prop::collection::vec(0usize..6, 0..20),
        ) {
            let k = weights.len();
            let jobs: Vec<usize> = jobs.into_iter().map(|at| at % k).collect();
            let mut cycle = Cycle::new(&weights);
            cycle.plan(jobs.len(), &room[..k]);
            let mut served = cycle.serve(jobs.clone(), |at| Some(*at));
            let mut expected = jobs;
            served.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(served, expected);
        }
    }
}
