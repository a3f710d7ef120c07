//! Steps of operators and of upkeep, put between the others of a history, and drawn apart from them: settings replaced by what
//! they were, limiters closed and opened by hand, runs asked to stop that end otherwise, sweeps right behind a move of the clock.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use punctual::{
    JobId, JobOptions, Priority, When,
    store::{
        Action, CallId, GroupLimits, Keep, Order, Pause, QueueOp, QueueRequest, QueueSettings, Rate, Replace,
        Reserve, Selector, Target, Verdict,
    },
};

use crate::op::{Op, Pick, Step};

const QUEUES: [&str; 5] = ["a", "a", "a", "b", "new"];
const GROUPS: [&str; 3] = ["g", "h", "i"];

pub(crate) fn mix(steps: Vec<Step>, seed: u64, handles: usize) -> Vec<Step> {
    let rng = Rng::with_seed(seed.rotate_left(48) ^ 0x0be7);
    let mut operators = Operators { rng, settings: BTreeMap::new(), ids: vec![], calls: 0 };
    let mut mixed = Vec::with_capacity(steps.len() * 2);
    for step in steps {
        operators.watch(&step.op);
        let more = operators.after(&step.op);
        mixed.push(step);
        for op in more {
            operators.watch(&op);
            mixed.push(Step { handle: operators.rng.usize(..handles), op });
        }
    }
    mixed
}

struct Operators {
    rng: Rng,
    /// What was set last, as far as the steps tell: some are refused.
    settings: BTreeMap<String, QueueSettings>,
    /// Of jobs that were enqueued.
    ids: Vec<JobId>,
    /// Reserves of its own.
    calls: u64,
}

impl Operators {
    fn watch(&mut self, op: &Op) {
        match op {
            Op::Enqueue(_, jobs) => {
                self.ids.extend(jobs.iter().take(8).map(|job| job.id));
                self.ids.drain(..self.ids.len().saturating_sub(12));
            }
            Op::Queue(name, QueueOp::Set(new)) => {
                self.settings.insert(name.clone(), (**new).clone());
            }
            Op::Queue(name, QueueOp::Replace(replace)) => {
                self.settings.insert(name.clone(), replace.new.clone());
            }
            _ => {}
        }
    }

    fn after(&mut self, op: &Op) -> Vec<Op> {
        match op {
            Op::Reserve(want) if 0 < want.n => match self.rng.u8(..10) {
                0 | 1 => self.stop_runs(),
                2 | 3 => self.close_and_open(),
                _ => vec![],
            },
            Op::Clock(by) if 0 < *by && self.rng.bool() => {
                vec![Op::Sweep(self.one_of(&[1, 3, 1_000]))]
            }
            Op::Doc(_) | Op::Tool(_) => vec![],
            _ => match self.rng.u8(..60) {
                0..5 => vec![self.replace()],
                5 => self.crash_to_the_end(),
                _ => vec![],
            },
        }
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.rng.usize(..all.len())].clone()
    }

    /// A worker dies of all that it runs, until what did it is dead.
    fn crash_to_the_end(&mut self) -> Vec<Op> {
        let mut ops = vec![Op::Queue("a".to_owned(), QueueOp::Resume)];
        for n in [8, 8, 8, 1, 0] {
            self.calls += 1;
            ops.push(Op::Reserve(Reserve {
                call: CallId { instance: 90, number: self.calls },
                worker: "w90".to_owned(),
                queues: vec![QueueRequest { queue: "a".to_owned(), share: n, at_most: n }],
                n,
                lease: Some(Duration::from_secs(1)),
                company: false,
            }));
            ops.push(Op::Clock(self.rng.i64(2..6) * 1_000));
        }
        ops
    }

    /// Runs are asked to stop, and some end by another word.
    fn stop_runs(&mut self) -> Vec<Op> {
        let targets =
            self.ids.iter().rev().map(|id| Target { selector: Selector::Id(*id), guard: None }).collect();
        let error = || "no".to_owned();
        let ends = (0..self.rng.usize(1..4)).map(|n| {
            let verdict = match self.rng.u8(..5) {
                0 => Verdict::Retry { at: When::Now, error: error() },
                1 => Verdict::Snooze { after: Duration::from_secs(1), reason: None },
                2 => Verdict::Dead { error: error() },
                3 => Verdict::Ack,
                _ => Verdict::Release,
            };
            (Pick::Newest(n), verdict)
        });
        let ends = ends.collect();
        vec![Op::Act(targets, Action::Cancel { reason: None }), Op::Settle(ends, None)]
    }

    /// A run closes its limiter; somebody opens it, or another one.
    fn close_and_open(&mut self) -> Vec<Op> {
        let later = When::In(Duration::from_secs(self.rng.u64(1..20)));
        let close = Verdict::RetryAfter { at: later, error: "429".to_owned() };
        let mut ops = vec![Op::Settle(vec![(Pick::Newest(0), close)], None)];
        let queue = self.one_of(&QUEUES).to_owned();
        if self.rng.bool() {
            let open =
                |group: &str| Op::Queue(queue.clone(), QueueOp::Open { group: Some(group.to_owned()) });
            ops.extend(GROUPS.map(open));
        }
        if self.rng.bool() {
            ops.push(Op::Queue(queue.clone(), QueueOp::Show));
            ops.push(Op::Queue(queue, QueueOp::Open { group: None }));
        }
        ops
    }

    /// Settings take the place of those that they were, of others, or of themselves.
    fn replace(&mut self) -> Op {
        let name = self.one_of(&QUEUES).to_owned();
        let stored = self.settings.get(&name).cloned().unwrap_or_default();
        let (seen, new) = match self.rng.u8(..8) {
            0 | 1 => (self.some_settings(), self.some_settings()),
            2 => (self.some_settings(), stored),
            _ => (stored, self.some_settings()),
        };
        Op::Queue(name, QueueOp::Replace(Box::new(Replace { seen, new })))
    }

    fn some_settings(&mut self) -> QueueSettings {
        let mut settings = QueueSettings::default();
        if self.rng.u8(..4) == 0 {
            return settings;
        }
        // Whatever it says of a pause, none comes or goes.
        settings.paused = (self.rng.u8(..6) == 0).then(|| Pause {
            since_ms: 1,
            by: "nobody".to_owned(),
            reason: "none".to_owned(),
        });
        settings.order = self.one_of(&[Order::Fifo, Order::Fifo, Order::Lifo]);
        settings.concurrency = (self.rng.u8(..5) == 0).then(|| self.rng.u32(0..4));
        settings.rate = (self.rng.u8(..4) == 0).then(|| self.rate());
        settings.max_jobs = (self.rng.u8(..8) == 0).then(|| self.rng.u64(..6));
        settings.max_bytes = (self.rng.u8(..8) == 0).then(|| self.rng.u64(..60));
        if self.rng.u8(..4) == 0 {
            settings.group = self.limits();
        }
        if self.rng.u8(..4) == 0 {
            settings.groups.insert(self.one_of(&GROUPS).to_owned(), self.limits());
        }
        let usual = [Keep::SHORT, Keep::SHORT, Keep::NOTHING, Keep { count: 1, ..Keep::LONG }];
        (settings.done, settings.dead, settings.cancelled) =
            (self.one_of(&usual), self.one_of(&usual), self.one_of(&usual));
        if self.rng.u8(..3) == 0 {
            settings.defaults = JobOptions {
                priority: self.rng.bool().then(|| self.one_of(&Priority::ALL)),
                max_attempts: self.rng.bool().then(|| self.rng.u32(1..5)),
                lease: self.rng.bool().then(|| Duration::from_millis(self.rng.u64(1_000..9_000))),
                ..JobOptions::default()
            };
        }
        settings
    }

    fn limits(&mut self) -> GroupLimits {
        GroupLimits {
            weight: self.rng.bool().then(|| self.rng.u32(1..5)),
            concurrency: self.rng.bool().then(|| self.rng.u32(1..4)),
            rate: (self.rng.u8(..4) == 0).then(|| self.rate()),
        }
    }

    fn rate(&mut self) -> Rate {
        Rate { max: self.rng.u32(1..4), period_ms: 500 * self.rng.u64(1..5), burst: self.rng.u32(1..4) }
    }
}
