//! Makes a failing plan smaller: as long as the same rule is broken, jobs, workers, harm and options are left out.

use crate::{Bug, Plan, plan::Behaviour, run};

/// Most runs of one shrinking.
const RUNS_MAX: u32 = 2_000;

/// Returns a smaller plan that breaks the same rule.
pub fn shrink(plan: &Plan, rule: &str, bug: Option<Bug>) -> Plan {
    let mut shrinking = Shrinking { plan: plan.clone(), rule, bug, runs: 0 };
    while shrinking.round() {}
    shrinking.plan
}

struct Shrinking<'a> {
    /// The smallest plan so far.
    plan: Plan,
    rule: &'a str,
    bug: Option<Bug>,
    runs: u32,
}

impl Shrinking<'_> {
    /// Tries everything once; returns whether anything could be left out.
    fn round(&mut self) -> bool {
        let mut smaller = self.fewer(|plan| &mut plan.jobs);
        smaller |= self.fewer(|plan| &mut plan.acts);
        smaller |= self.fewer(|plan| &mut plan.ends);
        smaller |= self.fewer(|plan| &mut plan.publications);
        smaller |= self.fewer(|plan| &mut plan.client_crashes);
        smaller |= self.fewer(|plan| &mut plan.outages);
        smaller |= self.fewer(|plan| &mut plan.steps);
        smaller |= self.fewer_workers();
        smaller |= self.simpler();
        for at in 0..self.plan.jobs.len() {
            smaller |= self.simpler_job(at);
        }
        smaller
    }

    /// Takes a plan over if it breaks the rule.
    fn attempt(&mut self, plan: Plan) -> bool {
        if RUNS_MAX <= self.runs {
            return false;
        }
        self.runs += 1;
        let breaks = run(&plan, self.bug).broken() == Some(self.rule);
        if breaks {
            self.plan = plan;
        }
        breaks
    }

    /// Tries a change; one that changes nothing is not tried.
    fn change(&mut self, change: impl FnOnce(&mut Plan) -> bool) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan) && self.attempt(plan)
    }

    /// Leaves out parts of a list, large ones first.
    fn fewer<T>(&mut self, list: impl Fn(&mut Plan) -> &mut Vec<T>) -> bool {
        let mut smaller = false;
        let mut part = list(&mut self.plan).len();
        while 0 < part {
            let mut from = 0;
            while from < list(&mut self.plan).len() {
                let mut plan = self.plan.clone();
                let to = list(&mut plan).len().min(from + part);
                list(&mut plan).drain(from..to);
                if self.attempt(plan) {
                    smaller = true;
                } else {
                    from += part;
                }
            }
            part /= 2;
        }
        smaller
    }

    fn fewer_workers(&mut self) -> bool {
        let mut smaller = false;
        for worker in (0..self.plan.workers.len()).rev() {
            smaller |= self.change(|plan| {
                plan.workers.remove(worker);
                plan.ends.retain(|end| end.worker != worker);
                plan.ends.iter_mut().filter(|end| worker < end.worker).for_each(|end| end.worker -= 1);
                !plan.workers.is_empty()
            });
        }
        smaller
    }

    fn simpler(&mut self) -> bool {
        let is_simple = self.plan.clients == [0];
        let mut smaller = self.change(|plan| {
            plan.jobs.iter_mut().for_each(|job| job.client = 0);
            plan.acts.iter_mut().for_each(|act| act.client = 0);
            plan.publications.iter_mut().for_each(|publication| publication.client = 0);
            plan.client_crashes.iter_mut().for_each(|crash| crash.client = 0);
            plan.clients = vec![0];
            !is_simple
        });
        smaller |= self.change(|plan| std::mem::take(&mut plan.faults.refused) != 0);
        smaller |= self.change(|plan| std::mem::take(&mut plan.faults.lost) != 0);
        smaller |= self.change(|plan| std::mem::take(&mut plan.faults.slow) != 0);
        smaller |= self.change(|plan| std::mem::take(&mut plan.faults.latency_ms) != 0);
        smaller |= self.change(|plan| std::mem::take(&mut plan.faults.deaf) != 0);
        smaller |= self.change(|plan| std::mem::take(&mut plan.faults.late) != 0);
        smaller |= self.change(|plan| plan.schedule.take().is_some());
        smaller |= self.change(|plan| plan.group_limit.take().is_some());
        smaller |= self.change(|plan| plan.room.take().is_some());
        for worker in 0..self.plan.workers.len() {
            smaller |= self.change(|plan| std::mem::replace(&mut plan.workers[worker].slots, 1) != 1);
        }
        let last = |plan: &Plan| {
            let ends = plan.ends.iter().map(|end| end.at_ms);
            let acts = plan.acts.iter().map(|act| act.at_ms);
            let publications = plan.publications.iter().map(|publication| publication.at_ms);
            let jobs = plan.jobs.iter().map(|job| job.at_ms);
            let crashes = plan.client_crashes.iter().map(|crash| crash.at_ms);
            let outages = plan.outages.iter().map(|outage| outage.at_ms);
            jobs.chain(ends).chain(acts).chain(publications).chain(crashes).chain(outages).max().unwrap_or(0)
                + 1
        };
        smaller |= self.change(|plan| {
            let least = last(plan);
            std::mem::replace(&mut plan.chaos_ms, least) != least
        });
        smaller
    }

    fn simpler_job(&mut self, at: usize) -> bool {
        let mut smaller = self.change(|plan| plan.jobs[at].group.take().is_some());
        smaller |= self.change(|plan| plan.jobs[at].concurrency.take().is_some());
        smaller |= self.change(|plan| plan.jobs[at].unique.take().is_some());
        smaller |= self.change(|plan| plan.jobs[at].expires_ms.take().is_some());
        smaller |= self.change(|plan| plan.jobs[at].leaves_ms.take().is_some());
        smaller |= self.change(|plan| std::mem::take(&mut plan.jobs[at].delay_ms) != 0);
        smaller |= self.change(|plan| std::mem::replace(&mut plan.jobs[at].priority, 1) != 1);
        smaller |= self.change(|plan| {
            std::mem::replace(&mut plan.jobs[at].handler, Behaviour::Quick) != Behaviour::Quick
        });
        smaller
    }
}
