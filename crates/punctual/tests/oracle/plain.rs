//! Histories of plain work: one job at a time comes, starts and ends, as most do everywhere. Now and then something else happens that
//! the fast path of a script must leave to the general one: a concurrency key, a window, a history, an expired lease, a limit, a clock that jumps.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use punctual::{
    JobId, NewJob, Payload, Priority, Unique, When,
    job::{Concurrency, IdMaker},
    store::{
        Action, CallId, Keep, Order, QueueOp, QueueRequest, QueueSettings, Rate, Reserve, Target, Verdict,
    },
};

use crate::{
    generate::BEGIN_MS,
    op::{Op, Pick, Step},
};

const QUEUE: &str = "plain";
const OTHER: &str = "other";

const DAY_MS: u64 = 86_400_000;

struct Plain {
    rng: Rng,
    maker: IdMaker,
    now_ms: u64,
    ids: Vec<JobId>,
    /// The numbers of the last calls of each instance.
    calls: [u64; 4],
    /// A reserve of a queue that has limits takes the general path. So most histories have none.
    has_limits: bool,
    /// How many groups most jobs are of; 0: only histories with limits have a job of a group now and then.
    groups: usize,
    /// Whether a quarter of the jobs have a concurrency key, and heartbeats are common.
    has_keys: bool,
}

/// The history of a seed, whose jobs are of groups or not.
pub(crate) fn history(seed: u64, steps: usize, has_groups: bool) -> Vec<Step> {
    let groups = if has_groups { 1 + usize::try_from(seed % 5).unwrap() } else { 0 };
    let mut plain = Plain {
        rng: Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        maker: IdMaker::default(),
        now_ms: BEGIN_MS,
        ids: Vec::new(),
        calls: [0; 4],
        has_limits: seed.is_multiple_of(if has_groups { 3 } else { 4 }),
        groups,
        has_keys: seed / 5 % 4 == 1,
    };
    // The general path stores the first call of an instance, and a sweep says when the next one is due.
    let begin = [plain.settings(), plain.enqueue(), plain.reserve(1), plain.settle()];
    let after = match seed % 4 {
        _ if has_groups => plain.step_back(),
        1 => plain.rest(),
        3 => plain.jump(),
        _ => Vec::new(),
    };
    let rest = (0..steps).map(|_| plain.op());
    let ops: Vec<Op> = begin.into_iter().chain(after).chain(rest).collect();
    ops.into_iter().map(|op| Step { handle: usize::from(plain.one_in(4)), op }).collect()
}

impl Plain {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    /// A queue that keeps nothing and holds nothing is at rest after a sweep. Then a job comes.
    fn rest(&mut self) -> Vec<Op> {
        let keeps_nothing = QueueSettings {
            done: Keep::NOTHING,
            cancelled: Keep::NOTHING,
            dead: Keep::NOTHING,
            ..QueueSettings::default()
        };
        self.now_ms += 2 * DAY_MS + 6_000;
        let emptied = vec![
            Op::Queue(QUEUE.to_owned(), QueueOp::Set(Box::new(keeps_nothing))),
            // A lease that expired is reclaimed after the pause of this jump.
            Op::Clock(DAY_MS.cast_signed()),
            self.reserve(1),
            Op::Clock(6_000),
            self.reserve(1),
            Op::Settle((0..2).map(|n| (Pick::Newest(n), Verdict::Ack)).collect(), None),
            Op::Queue(QUEUE.to_owned(), QueueOp::Purge(100)),
            // Ids of jobs that nothing keeps are remembered for a day.
            Op::Clock(DAY_MS.cast_signed()),
            // The store forgets a caller that is silent for a day. This one calls for another queue.
            self.enqueue_plain(OTHER),
            Op::Sweep(1_000),
        ];
        emptied.into_iter().chain([self.enqueue_plain(QUEUE), self.enqueue()]).collect()
    }

    /// The clock jumps while a lease goes on. In the pause that follows, it goes back by more than the pause.
    fn jump(&mut self) -> Vec<Op> {
        let long = |plain: &mut Self, instance: usize| {
            let queues = vec![QueueRequest { queue: QUEUE.to_owned(), share: 1, at_most: 1 }];
            let call = plain.next_call(instance);
            let lease = Some(Duration::from_mins(10));
            Op::Reserve(Reserve { call, worker: "w".to_owned(), queues, n: 1, lease, company: false })
        };
        let mut ops = Vec::new();
        for _ in 0..3 {
            ops.extend([self.enqueue(), self.enqueue(), long(self, 0), long(self, 1)]);
            ops.extend([Op::Clock(60_000), long(self, 0), Op::Clock(-8_000), long(self, 1)]);
            self.now_ms += 52_000;
        }
        ops
    }

    /// The clock goes back while groups have their places by it. `let` in the queue's row shows the step, or does not, because a group
    /// stayed active by a job that came later. Then a job comes, or a run of the group ends.
    fn step_back(&mut self) -> Vec<Op> {
        let later = |ms| When::In(Duration::from_millis(ms));
        let mut ops = self.meet();
        let steps = [
            (true, true, ["g0", "g1"]),
            (false, true, ["g0", "g1"]),
            (false, false, ["g0", "g1"]),
            (false, false, ["g1", "g0"]),
        ];
        for (shows, comes, [group, other]) in steps {
            // Who calls before the step, and not again until it is over.
            ops.extend([self.enqueue_of(QUEUE, Some(group), later(90_000), 1).1, self.reserve_one(QUEUE, 3)]);
            let due = later(if shows { 800 } else { 0 });
            let first: Vec<_> = (0..3).map(|_| self.enqueue_of(QUEUE, Some(group), due, 0)).collect();
            ops.extend(first.iter().map(|(_, op)| op.clone()));
            let begin = if shows { 1_000 } else { 10 };
            let (_, beside) = self.enqueue_of(QUEUE, Some(other), When::Now, 0);
            ops.extend([beside, Op::Clock(begin), self.reserve_one(QUEUE, 0), Op::Clock(1_000 - begin)]);
            if !shows {
                ops.push(self.enqueue_of(QUEUE, Some(group), When::Now, 0).1);
                let gone = first.iter().map(|(id, _)| Target::from(*id)).collect();
                // One of them runs, and is asked to stop.
                ops.push(Op::Act(gone, Action::Cancel { reason: None }));
                // Their ends are followed by upkeep, which is for the general path.
                ops.push(Op::Sweep(1_000));
            }
            ops.push(Op::Clock(-500));
            if comes {
                ops.push(self.enqueue_of(QUEUE, Some(group), later(if shows { 200 } else { 900 }), 1).1);
            }
            ops.push(Op::Settle(vec![(Pick::Newest(0), Verdict::Ack)], Some(self.want_one(QUEUE, 3))));
            ops.extend([self.reserve_one(QUEUE, 2), Op::Clock(2_000), self.reserve_one(QUEUE, 0)]);
            self.now_ms += 2_500;
        }
        ops
    }

    /// In an empty queue, a second job of a group comes for the time of the first, and nobody wakes for it any more. Then a paused group
    /// that lost its job is forgotten.
    fn meet(&mut self) -> Vec<Op> {
        let later = |ms| When::In(Duration::from_millis(ms));
        let cancel = |id| Op::Act(vec![Target::from(id)], Action::Cancel { reason: None });
        let (gone, earlier) = self.enqueue_of(OTHER, Some("g1"), later(100), 0);
        let (first, waits) = self.enqueue_of(OTHER, Some("g0"), later(5_000), 0);
        let (second, meets) = self.enqueue_of(OTHER, Some("g0"), later(4_800), 0);
        let mut ops =
            vec![earlier, waits, cancel(gone), Op::Clock(200), meets, cancel(first), cancel(second)];
        let (paused, runs) = self.enqueue_of(OTHER, Some("g0"), When::Now, 0);
        let pause = Verdict::RetryAfter { at: later(500), error: "e".to_owned() };
        ops.extend([
            runs,
            self.reserve_one(OTHER, 0),
            Op::Settle(vec![(Pick::Newest(0), pause)], None),
            cancel(paused),
        ]);
        let (_, beside) = self.enqueue_of(OTHER, None, When::Now, 0);
        ops.extend([Op::Sweep(1_000), beside, Op::Clock(600), self.reserve_one(OTHER, 0)]);
        self.now_ms += 800;
        ops
    }

    fn enqueue_of(&mut self, queue: &str, group: Option<&str>, run_at: When, instance: usize) -> (JobId, Op) {
        let id = self.new_id();
        let mut job = NewJob::new(id, "k", queue, Payload::json(b"1".to_vec()));
        (job.group, job.run_at) = (group.map(str::to_owned), run_at);
        (id, Op::Enqueue(self.next_call(instance), vec![job]))
    }

    fn want_one(&mut self, queue: &str, instance: usize) -> Reserve {
        let queues = vec![QueueRequest { queue: queue.to_owned(), share: 1, at_most: 1 }];
        Reserve {
            call: self.next_call(instance),
            worker: "w".to_owned(),
            queues,
            n: 1,
            lease: None,
            company: false,
        }
    }

    fn reserve_one(&mut self, queue: &str, instance: usize) -> Op {
        Op::Reserve(self.want_one(queue, instance))
    }

    fn op(&mut self) -> Op {
        // Groups keep what limits left, and are served on the fast path again after these are gone.
        if self.has_limits && 0 < self.groups && self.one_in(12) {
            return self.settings();
        }
        // The clock goes back while groups have their places by it, and the first jobs of groups leave before their turn.
        if 0 < self.groups {
            match self.rng.u32(..30) {
                0 => {
                    let by = self.rng.i64(1..1_000);
                    self.now_ms = self.now_ms.saturating_add_signed(-by);
                    return Op::Clock(-by);
                }
                1 | 2 => {
                    let id = self.old_id();
                    let cancel = Action::Cancel { reason: None };
                    let action = if self.one_in(3) { Action::RunNow } else { cancel };
                    return Op::Act(vec![Target::from(id)], action);
                }
                _ => {}
            }
        }
        if self.has_keys && self.one_in(12) {
            return self.extend();
        }
        match self.rng.u32(..100) {
            0..10 => {
                let n = self.n();
                self.reserve(n)
            }
            10..38 => self.settle(),
            38..48 => self.clock(),
            48 => self.settings(),
            49 => Op::Queue(QUEUE.to_owned(), QueueOp::Resume),
            50 => Op::Sweep(100),
            51 if self.has_keys => self.extend(),
            51 => Op::Extend(vec![(Pick::Newest(0), None)]),
            52 => {
                let id = self.old_id();
                let action = if self.rng.bool() { Action::Cancel { reason: None } } else { Action::RunNow };
                Op::Act(vec![Target::from(id)], action)
            }
            53 => Op::Reopen,
            54 => self.enqueue_many(),
            _ => self.enqueue(),
        }
    }

    fn extend(&mut self) -> Op {
        let which = if self.one_in(3) { self.rng.usize(..4) } else { 0 };
        Op::Extend(vec![(Pick::Newest(which), None)])
    }

    fn n(&mut self) -> usize {
        [1, 1, 1, 2, 3, 0][self.rng.usize(..6)]
    }

    fn old_id(&mut self) -> JobId {
        match self.ids.len() {
            0 => self.new_id(),
            n => self.ids[n - 1 - self.rng.usize(..n.min(4))],
        }
    }

    fn new_id(&mut self) -> JobId {
        let id = self.maker.make(self.now_ms, 0, self.rng.u64(..));
        self.ids.push(id);
        id
    }

    fn call(&mut self) -> CallId {
        // A call of an instance that was silent for longer than the clock went back is no repetition.
        let silent = if 0 < self.groups { self.rng.usize(..4) } else { 1 };
        let i = if self.one_in(5) { silent } else { 0 };
        if self.one_in(15) {
            return CallId { instance: 5 + i as u64, number: self.calls[i].max(1) };
        }
        self.next_call(i)
    }

    fn next_call(&mut self, i: usize) -> CallId {
        self.calls[i] += 1;
        CallId { instance: 5 + i as u64, number: self.calls[i] }
    }

    fn job(&mut self) -> NewJob {
        let id = match self.rng.u32(..20) {
            0 => self.old_id(),
            1..4 => JobId::derived(QUEUE, None, ["k0", "k1", "k2", "k3"][self.rng.usize(..4)]),
            _ => self.new_id(),
        };
        let bytes = [0, 1, 4, 30, 1_024, 1_025, 5_000][self.rng.usize(..7)];
        let mut job = NewJob::new(id, "k", QUEUE, Payload::json(vec![b'1'; bytes]));
        let later = Duration::from_millis(self.rng.u64(..6_000));
        match self.rng.u32(..30) {
            0..6 => job.run_at = When::In(later),
            6 => {
                let at = self.now_ms - 500 + self.rng.u64(..2_000);
                job.run_at = When::At(punctual::Timestamp::saturating_from_ms(at));
            }
            7 => job.options.priority = Some(Priority::ALL[self.rng.usize(..Priority::ALL.len())]),
            8 => job.options.lease = Some(Duration::from_secs(self.rng.u64(1..9))),
            9 => job.options.max_attempts = Some(self.rng.u32(1..4)),
            10 => job.expires_at = Some(When::In(later + Duration::from_millis(1))),
            11 if self.has_limits => job.group = Some("g0".to_owned()),
            12 => job.concurrency = Some(Concurrency { key: "c".to_owned(), limit: 1 }),
            13 | 17 => job.unique = Some(Unique::key(["u", "v", "w"][self.rng.usize(..3)])),
            18 | 19 => job.unique = Some(Unique::key(self.rng.u64(..).to_string())),
            20 => job.unique = Some(Unique::key(self.rng.u64(..).to_string()).until_start()),
            16 => job.unique = Some(Unique::key("w").window(later)),
            14 => OTHER.clone_into(&mut job.queue),
            15 => job.headers = BTreeMap::from([("trace".to_owned(), "1".to_owned())]),
            _ => {}
        }
        if 0 < self.groups && !self.one_in(4) {
            job.group = Some(format!("g{}", self.rng.usize(..self.groups)));
        }
        if self.has_keys && self.one_in(4) {
            let key = ["c", "d", "e"][self.rng.usize(..3)].to_owned();
            job.concurrency = Some(Concurrency { key, limit: self.rng.u32(1..4) });
        }
        job
    }

    fn enqueue(&mut self) -> Op {
        let job = self.job();
        Op::Enqueue(self.call(), vec![job])
    }

    fn enqueue_plain(&mut self, queue: &str) -> Op {
        self.enqueue_of(queue, None, When::Now, 0).1
    }

    fn enqueue_many(&mut self) -> Op {
        let jobs = (0..4).map(|_| self.job()).collect();
        Op::Enqueue(self.call(), jobs)
    }

    fn want(&mut self, n: usize) -> Reserve {
        let queue = if self.one_in(20) { OTHER } else { QUEUE };
        let (share, at_most) = match self.rng.u32(..30) {
            0 => (0, n),
            1 => (n, 0),
            2 => (n, 1),
            3 => (n, n + 1),
            _ => (n, n),
        };
        Reserve {
            call: self.call(),
            worker: "w".to_owned(),
            queues: vec![QueueRequest { queue: queue.to_owned(), share, at_most }],
            n,
            // A long lease goes on while the clock jumps.
            lease: match self.rng.u32(..8) {
                0 => Some(Duration::from_mins(10)),
                1 | 2 => Some(Duration::from_millis(self.rng.u64(1_000..9_000))),
                _ => None,
            },
            company: self.one_in(9),
        }
    }

    fn reserve(&mut self, n: usize) -> Op {
        Op::Reserve(self.want(n))
    }

    fn settle(&mut self) -> Op {
        let which = if self.one_in(6) { self.rng.usize(..4) } else { 0 };
        let verdict = match self.rng.u32(..12) {
            0 => Verdict::Retry {
                at: When::In(Duration::from_millis(self.rng.u64(..2_000))),
                error: "e".to_owned(),
            },
            1 => Verdict::Release,
            2 if self.has_limits => {
                Verdict::RetryAfter { at: When::In(Duration::from_millis(500)), error: "e".to_owned() }
            }
            _ => Verdict::Ack,
        };
        let n = self.n();
        let then = (!self.one_in(8)).then(|| self.want(n));
        let mut ends = vec![(Pick::Newest(which), verdict)];
        match self.rng.u32(..10) {
            0 => ends.push((Pick::Newest(which + 1), Verdict::Ack)),
            1 => ends.clear(),
            _ => {}
        }
        Op::Settle(ends, then)
    }

    fn clock(&mut self) -> Op {
        let by = match self.rng.u32(..150) {
            0 => 20_000,
            1 => 200_000,
            2 => 2 * DAY_MS.cast_signed(),
            3 => -1_500,
            4 => -40,
            _ => self.rng.i64(0..1_200),
        };
        self.now_ms = self.now_ms.saturating_add_signed(by);
        Op::Clock(by)
    }

    fn settings(&mut self) -> Op {
        let mut settings = QueueSettings {
            done: match self.rng.u32(..5) {
                0 => Keep::NOTHING,
                1 => Keep { count: 16, ..Keep::SHORT },
                2 => Keep { bytes: 20_000, ..Keep::SHORT },
                3 => Keep { age_ms: 3_000, ..Keep::SHORT },
                _ => Keep::SHORT,
            },
            ..QueueSettings::default()
        };
        match self.rng.u32(..if self.has_limits { 10 } else { 100 }) {
            0 => {
                return Op::Queue(
                    QUEUE.to_owned(),
                    QueueOp::Pause { by: "p".to_owned(), reason: "r".to_owned() },
                );
            }
            1 => settings.order = Order::Lifo,
            2 => settings.max_jobs = Some(2),
            3 => settings.concurrency = Some(2),
            6 => settings.defaults.priority = Some(Priority::High),
            5 => settings.defaults.lease = Some(Duration::from_secs(3)),
            4 => settings.rate = Some(Rate { max: 2, period_ms: 3_000, burst: 1 }),
            7 if 0 < self.groups => settings.group.concurrency = Some(1),
            8 if 0 < self.groups => {
                settings.group.rate = Some(Rate { max: 1, period_ms: 1_000, burst: 1 });
            }
            9 if 0 < self.groups => settings.group.weight = Some(3),
            _ => {}
        }
        Op::Queue(QUEUE.to_owned(), QueueOp::Set(Box::new(settings)))
    }
}
