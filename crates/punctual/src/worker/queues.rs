//! From which queues a worker reserves, and how many jobs of each. Pure: no store, no clock.
//!
//! **strict** asks every queue for all free slots, in order: a later queue gets what the earlier ones left.
//! **weighted** is smooth weighted round robin (S6). Every reservation is a step of a fixed cycle whose steps belong to
//! queues by their weights; a step whose owner has no due job goes to another queue and is not owed to anyone. Credits,
//! the place in the cycle, carry over from call to call. So of any Σweights consecutive reservations, a queue that always
//! has a due job gets at least its weight, whatever the others do.

use std::collections::VecDeque;

use crate::{
    error::{Error, Result},
    limits::QUEUES_PER_RESERVE_MAX,
    store::{Reserved, Want},
};

/// Largest weight of a queue.
const WEIGHT_MAX: u32 = 1_000;

/// The queues of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    names: Vec<String>,
    /// `None`: strict.
    cycle: Option<Cycle>,
}

impl Queues {
    /// Queues in order, each served before those behind it.
    pub(crate) fn strict(names: Vec<String>) -> Result<Self> {
        check(&names)?;
        Ok(Self { names, cycle: None })
    }

    /// Queues with their shares.
    pub(crate) fn weighted(weights: Vec<(String, u32)>) -> Result<Self> {
        let (names, weights): (Vec<String>, Vec<u32>) = weights.into_iter().unzip();
        check(&names)?;
        if let Some(at) = weights.iter().position(|weight| !(1..=WEIGHT_MAX).contains(weight)) {
            let (name, weight) = (&names[at], weights[at]);
            return Err(Error::invalid(format!(
                "weight {weight} of queue {name:?} is not within 1 to {WEIGHT_MAX}"
            )));
        }
        Ok(Self { names, cycle: Some(Cycle::new(&weights)) })
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// What to ask for when `n` slots are free.
    pub(crate) fn wants(&mut self, n: usize) -> Vec<Want> {
        let want = |(queue, share): (&String, usize)| Want { queue: queue.clone(), share, at_most: n };
        let Some(cycle) = &mut self.cycle else {
            return self.names.iter().map(|queue| want((queue, n))).collect();
        };
        cycle.plan(n);
        let mut shares = vec![0; self.names.len()];
        let mut order = Vec::with_capacity(self.names.len());
        // Whoever owns the next step comes first: an answer that is cut short by its bytes still serves it.
        for owner in cycle.planned.iter().copied().chain(0..self.names.len()) {
            if !order.contains(&owner) {
                order.push(owner);
            }
        }
        for &owner in &cycle.planned {
            shares[owner] += 1;
        }
        order.into_iter().map(|at| want((&self.names[at], shares[at]))).collect()
    }

    /// Takes note of the answer to the last [`Queues::wants`], and puts its jobs into the order of the cycle.
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

fn check(names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Err(Error::invalid("a worker needs a queue"));
    }
    if QUEUES_PER_RESERVE_MAX < names.len() {
        let n = names.len();
        return Err(Error::invalid(format!("{n} queues are over the limit of {QUEUES_PER_RESERVE_MAX}")));
    }
    for (at, name) in names.iter().enumerate() {
        crate::job::check_queue(name)?;
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
    /// The place in the cycle; they add up to 0.
    credits: Vec<i64>,
    /// The owners of the next steps, as last asked for.
    planned: Vec<usize>,
}

impl Cycle {
    fn new(weights: &[u32]) -> Self {
        let weights: Vec<i64> = weights.iter().map(|weight| i64::from(*weight)).collect();
        Self { credits: vec![0; weights.len()], planned: Vec::new(), weights }
    }

    /// Looks `n` steps ahead.
    fn plan(&mut self, n: usize) {
        let mut credits = self.credits.clone();
        self.planned = (0..n).map(|_| step(&mut credits, &self.weights)).collect();
    }

    /// Puts each job on a step of its owner, the rest on the steps of those that had none; then moves on: past the whole
    /// plan when it was filled, else to the first step whose owner was not served (it may have been cut off, and is asked
    /// first next time), but by one at least, so that an empty queue doesn't hold up the others.
    fn serve<T>(&mut self, jobs: Vec<T>, owner: impl Fn(&T) -> Option<usize>) -> Vec<T> {
        let (got, wanted) = (jobs.len(), self.planned.len());
        let mut own: Vec<VecDeque<T>> = self.weights.iter().map(|_| VecDeque::new()).collect();
        let mut rest = VecDeque::new();
        let mut left: Vec<usize> = vec![0; own.len()];
        self.planned.iter().for_each(|&at| left[at] += 1);
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
        for (place, &at) in self.planned.iter().enumerate() {
            let job = own[at].pop_front().or_else(|| {
                as_planned = as_planned.or(Some(place));
                rest.pop_front()
            });
            served.extend(job);
        }
        let steps = match as_planned {
            Some(place) if got < wanted => place.max(1).min(got),
            _ => wanted,
        };
        for _ in 0..steps {
            step(&mut self.credits, &self.weights);
        }
        served
    }
}

/// One step of the cycle: whose it is.
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

    #[test]
    fn strict_asks_every_queue_for_all_slots() {
        let mut queues = Queues::strict(named(2)).unwrap();
        let wants: Vec<(String, usize)> = queues.wants(7).into_iter().map(|w| (w.queue, w.share)).collect();
        assert_eq!(wants, [("q0".to_owned(), 7), ("q1".to_owned(), 7)]);
    }

    #[test]
    fn one_slot_at_a_time_the_credits_carry_over() {
        let mut queues = Queues::weighted(vec![("a".to_owned(), 3), ("b".to_owned(), 1)]).unwrap();
        let firsts: String = (0..8)
            .map(|_| {
                let first = queues.wants(1).remove(0);
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
    }

    /// A store's answer: first each queue in turn up to its share, then each in turn what is left, at most `cut` jobs.
    fn fill(wants: &[Want], n: usize, cut: usize, due: &mut [usize]) -> Vec<usize> {
        let mut jobs = Vec::new();
        let mut took = vec![0; due.len()];
        for round in 0..2 {
            for want in wants {
                let at: usize = want.queue[1..].parse().unwrap();
                let most = if round == 0 { want.share } else { n };
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
        /// S6: whatever the other queues do, and however many slots are free.
        #[test]
        fn a_queue_that_always_has_a_due_job_gets_its_weight_of_any_round(
            weights in prop::collection::vec(1u32..6, 1..6),
            calls in prop::collection::vec((1usize..20, prop::collection::vec(0usize..8, 6)), 1..80),
        ) {
            let k = weights.len();
            let mut queues =
                Queues::weighted(named(k).into_iter().zip(weights.iter().copied()).collect()).unwrap();
            let mut due = vec![0; k];
            let mut sequence = Vec::new();
            for (n, arrivals) in calls {
                for at in 0..k {
                    due[at] += arrivals[at];
                }
                due[0] = usize::MAX / 2;
                let wants = queues.wants(n);
                let jobs = fill(&wants, n, usize::MAX, &mut due);
                prop_assert_eq!(jobs.len(), n);
                sequence.extend(queues.cycle.as_mut().unwrap().serve(jobs, |at| Some(*at)));
            }
            let round: usize = weights.iter().map(|w| *w as usize).sum();
            for window in sequence.windows(round) {
                let got = window.iter().filter(|at| **at == 0).count();
                prop_assert!(weights[0] as usize <= got, "{window:?} of weights {weights:?}");
            }
        }

        /// An answer is bounded in bytes: it may hold less than was asked for although more is due.
        #[test]
        fn answers_that_are_cut_short_starve_nobody(
            weights in prop::collection::vec(1u32..6, 2..6),
            idle in prop::collection::vec(any::<bool>(), 6),
            n in 1usize..20,
        ) {
            let k = weights.len();
            let mut queues =
                Queues::weighted(named(k).into_iter().zip(weights.iter().copied()).collect()).unwrap();
            let mut due: Vec<usize> =
                (0..k).map(|at| if idle[at] && 0 < at { 0 } else { usize::MAX / 2 }).collect();
            let round: usize = weights.iter().map(|w| *w as usize).sum();
            let mut got = vec![0; k];
            for _ in 0..2 * round {
                let wants = queues.wants(n);
                let jobs = fill(&wants, n, 1, &mut due);
                for at in queues.cycle.as_mut().unwrap().serve(jobs, |at| Some(*at)) {
                    got[at] += 1;
                }
            }
            for at in 0..k {
                prop_assert_eq!(0 < due[at], 0 < got[at], "queue {} of {:?}", at, &got);
            }
        }

        /// Nothing is lost or made up on the way.
        #[test]
        fn the_answer_keeps_its_jobs(
            weights in prop::collection::vec(1u32..6, 1..6),
            jobs in prop::collection::vec(0usize..6, 0..20),
        ) {
            let k = weights.len();
            let jobs: Vec<usize> = jobs.into_iter().map(|at| at % k).collect();
            let mut cycle = Cycle::new(&weights);
            cycle.plan(jobs.len());
            let mut served = cycle.serve(jobs.clone(), |at| Some(*at));
            let mut expected = jobs;
            served.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(served, expected);
        }
    }
}
