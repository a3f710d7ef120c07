//! Histories crowded with groups: few of them meet in one queue, and now and then more than one call lets in.
//!
//! What is drawn here comes from a generator of its own, so that the histories of other seeds stay what they were.

use std::time::Duration;

use fastrand::Rng;
use punctual::{
    JobId, NewJob, Payload, Priority, When,
    job::Concurrency,
    store::{Action, GroupLimits, Keep, QueueOp, QueueRequest, QueueSettings, Rate, Reserve, Take, Verdict},
};

use super::{GRID_MS, Generator};
use crate::op::{Op, Pick};

/// Names of groups; a history knows the first few.
const GROUPS: [&str; 5] = ["g", "h", "i", "j", "k"];

/// Draws what has to do with groups.
pub(super) struct Groups {
    rng: Rng,
    /// So many names are known.
    known: usize,
    /// So many crowds have come.
    crowds: u32,
}

impl Groups {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed.rotate_left(16));
        Self { known: rng.usize(3..=GROUPS.len()), crowds: 0, rng }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    fn name(&mut self) -> Option<String> {
        (!self.one_in(6)).then(|| GROUPS[self.rng.usize(..self.known)].to_owned())
    }

    /// Puts a job into a group, most of them where others meet.
    pub(super) fn put(&mut self, job: &mut NewJob, keeps_its_key: bool) {
        job.group = self.name();
        if !keeps_its_key {
            job.concurrency = self
                .one_in(4)
                .then(|| Concurrency { key: "c".to_owned(), limit: 1 + u32::from(self.rng.u8(..4) == 0) });
        }
        if self.rng.bool() {
            (job.unique, job.run_at) = (None, When::Now);
        }
        if !self.one_in(4) {
            "a".clone_into(&mut job.queue);
        }
    }

    /// Gives settings limits of groups, and verdicts limiters of groups to close.
    pub(super) fn limit(&mut self, op: &mut Op) {
        match op {
            Op::Queue(_, QueueOp::Set(settings)) => self.set(settings),
            Op::Settle(ends, _) => {
                for (_, verdict) in ends {
                    if let Verdict::Retry { at, error } = verdict
                        && self.one_in(3)
                    {
                        *verdict = Verdict::RetryAfter { at: *at, error: std::mem::take(error) };
                    }
                }
            }
            _ => {}
        }
    }

    fn set(&mut self, settings: &mut QueueSettings) {
        settings.group = if self.one_in(3) { self.limits() } else { GroupLimits::default() };
        for name in &GROUPS[..self.known] {
            if self.rng.bool() {
                settings.groups.insert((*name).to_owned(), self.limits());
            }
        }
        if self.one_in(6) {
            settings.concurrency = Some(self.rng.u32(1..6));
        }
        if self.one_in(8) {
            settings.rate = Some(self.rate());
        }
    }

    fn limits(&mut self) -> GroupLimits {
        // Weights over both limits now and then.
        let weights = if self.one_in(40) { [0, 101, 0, 101] } else { [1, 2, 3, 100] };
        GroupLimits {
            weight: self.rng.bool().then(|| weights[self.rng.usize(..4)]),
            concurrency: self.one_in(3).then(|| self.rng.u32(1..4)),
            rate: self.one_in(3).then(|| self.rate()),
        }
    }

    fn rate(&mut self) -> Rate {
        Rate {
            max: [1, 2, 3, 7][self.rng.usize(..4)],
            period_ms: GRID_MS * self.rng.u64(1..4),
            burst: self.rng.u32(1..4),
        }
    }

    /// So many jobs of groups; more groups than one call lets in, or few with much to do.
    fn jobs(&mut self) -> Vec<NewJob> {
        self.crowds += 1;
        let (crowd, has_many) = (self.crowds, self.one_in(3));
        let n = if has_many { 70 } else { self.rng.usize(10..40) };
        (0..n)
            .map(|n| {
                let id = JobId::derived("a", None, &format!("crowd {crowd} {n}"));
                let mut job = NewJob::new(id, "k", "a", Payload::json("0"));
                job.group = if has_many { Some(format!("one of many {n}")) } else { self.name() };
                if self.one_in(8) {
                    job.concurrency = Some(Concurrency { key: "c".to_owned(), limit: 1 });
                }
                match self.rng.u8(..12) {
                    0 => job.options.priority = Some(Priority::High),
                    1 => job.options.priority = Some(Priority::Low),
                    2 => job.run_at = When::In(Duration::from_millis(GRID_MS * self.rng.u64(1..5))),
                    3 => job.expires_at = Some(When::In(Duration::from_millis(GRID_MS))),
                    _ => {}
                }
                job
            })
            .collect()
    }
}

impl Generator {
    /// Now and then groups meet, with much to do, and share a queue step by step.
    pub(super) fn crowd_of_groups(&mut self) -> Option<Op> {
        // Not before one has played to its end.
        let mut groups = self.groups.take_if(|_| self.coming.is_empty())?;
        let op = groups.one_in(20).then(|| self.play(&mut groups));
        self.groups = Some(groups);
        op
    }

    fn play(&mut self, groups: &mut Groups) -> Op {
        let queue = || "a".to_owned();
        let jobs = groups.jobs();
        self.ids.extend(jobs.iter().take(4).map(|job| job.id));
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let keep = if groups.rng.bool() { Keep::SHORT } else { Keep::NOTHING };
        let settings = QueueSettings { done: keep, ..QueueSettings::default() };
        let set = Op::Queue(queue(), QueueOp::Set(Box::new(settings)));
        let enqueue = self.next_enqueue(jobs);
        self.coming.extend([set, Op::Queue(queue(), QueueOp::Resume), enqueue]);
        for _ in 0..groups.rng.usize(6..14) {
            let op = match groups.rng.u8(..10) {
                0..5 => Op::Reserve(self.want_of(groups)),
                5 | 6 => {
                    let ends = (0..groups.rng.usize(1..6)).map(|n| (Pick::Newest(n), self.verdict()));
                    let ends = ends.collect();
                    Op::Settle(ends, Some(self.want_of(groups)))
                }
                7 => {
                    let older_than = Duration::from_millis(GRID_MS * groups.rng.u64(..3));
                    Op::Take(Take { queue: queue(), n: groups.rng.usize(..5), older_than })
                }
                8 => {
                    let target = ids[groups.rng.usize(..ids.len())].into();
                    let later = When::In(Duration::from_millis(GRID_MS));
                    let action = match groups.rng.u8(..6) {
                        0 => Action::Cancel { reason: None },
                        1 => Action::Reschedule(later),
                        2 => Action::Reprioritise(Priority::High),
                        3 => Action::Delete,
                        4 => Action::RunNow,
                        _ => Action::Retry,
                    };
                    Op::Act(vec![target], action)
                }
                _ => Op::Queue(queue(), QueueOp::Set(Box::default())),
            };
            self.coming.push_back(op);
            if groups.one_in(3) {
                let ms = (GRID_MS * groups.rng.u64(1..4)).cast_signed();
                let clock = self.turn(ms);
                self.coming.push_back(clock);
            }
        }
        self.look()
    }

    fn want_of(&mut self, groups: &mut Groups) -> Reserve {
        let n = [1, 1, 2, 3, 8, 20][groups.rng.usize(..6)];
        let lease = Duration::from_secs(groups.rng.u64(1..9));
        let queues = vec![QueueRequest { queue: "a".to_owned(), share: n, at_most: n }];
        Reserve { queues, ..self.next_reserve(n, Some(lease)) }
    }
}
