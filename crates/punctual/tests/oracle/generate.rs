//! Histories, rude on purpose: few ids and keys, so that they meet; stale leases and repeated calls; ids that come back
//! after pruning; tiny retention and caps; a clock that jumps both ways; input over every limit now and then.

mod groups;
mod words;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use fastrand::Rng;
use punctual::{
    Backoff, JobId, JobOptions, NewJob, OnConflict, Payload, Priority, State, Timestamp, Unique, When,
    job::{Concurrency, IdMaker, Scope},
    limits::GROUP_SERVICES_MAX,
    store::{
        Action, CallId, Guard, Keep, Order, Placement, QueueOp, QueueRequest, QueueSettings, Rate, Reserve,
        Selector, Take, Target, UniqueKey, Verdict, model::marks_before,
    },
};

use self::{groups::Groups, words::Words};
use crate::{
    op::{Look, Op, Pick, Step},
    shape::Shape,
};

/// All pauses are whole numbers of these milliseconds, so that the clock often stands exactly at an edge: when something is
/// due, expires, is past its time or its age; or one millisecond before.
const GRID_MS: u64 = 500;

/// The longest time before the end of a pause at which others call. Few leases last longer, and each call is a step.
const MARK_BEFORE_MAX: Duration = Duration::from_secs(16);

/// Where the clock begins.
pub(crate) const BEGIN_MS: u64 = 1_795_000_000_000;

/// What is asked of listings; each term, and some of them together.
pub(crate) const FILTERS: [&str; 20] = [
    "state:done,dead,cancelled",
    "state:running",
    "state:retrying,scheduled",
    "-state:waiting queue:a",
    "kind:oth*",
    "-kind:k",
    "queue:b,c",
    "tag:vip",
    "group:g,h",
    "-group:* concurrency:c",
    "concurrency:c",
    "unique:u0",
    "worker:w1",
    "id:00000000-0000-7000-8000-000000000000",
    "priority:high,low",
    "attempt:>1",
    "due:<3s",
    "created:>10s -finished:<5s",
    "failed:<1m error:why",
    "payload.a:1",
];

/// Names by how often they are drawn: most jobs meet in one queue.
const QUEUES: [&str; 5] = ["a", "a", "a", "b", "c"];
const NAMES: [&str; 5] = ["a", "b", "c", "new", "unknown"];

struct Generator {
    rng: Rng,
    /// Draws concurrency keys, apart from all else: so the histories of old seeds stay what they were. `None`: few jobs have one.
    keyed: Option<Rng>,
    /// Draws groups, apart from all else, too. `None`: few jobs have one.
    groups: Option<Groups>,
    /// Draws unique keys, apart from all else, too. `None`: fewer jobs have one.
    unique: Option<Rng>,
    /// Draws names of workers, apart from all else, too. `None`: they are those of instances.
    apart: Option<Rng>,
    /// Draws filters.
    filters: Rng,
    /// Draws what runs tell and give, apart from all else.
    words: Words,
    /// Draws when others call while time passes, apart from all else, too.
    marks: Rng,
    /// How many steps were added for that.
    added: usize,
    made: Vec<JobId>,
    /// Numbers of enqueues and reserves, per instance.
    enqueues: [u64; 3],
    reserves: [u64; 3],
    /// Calls that were made, to be repeated.
    past: Vec<Op>,
    /// Steps of a scene that was begun.
    coming: VecDeque<Op>,
    /// What the clock shows.
    now_ms: u64,
    shape: Shape,
    /// Ids and keys that were used.
    ids: Vec<JobId>,
    keys: Vec<UniqueKey>,
}

/// The history of a seed.
pub(crate) fn history(seed: u64, steps: usize, shape: Shape) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    // Made ids, of which three differ in their last bits alone: a store that finds them by a part must look closely.
    let mut maker = IdMaker::default();
    let (shard, random) = (rng.u16(..1024), rng.u64(..));
    let mut made: Vec<JobId> = (0..3).map(|_| maker.make(BEGIN_MS, shard, random)).collect();
    made.extend((1..3).map(|twin| IdMaker::default().make(BEGIN_MS, shard, random ^ twin)));
    let mut generator = Generator {
        rng,
        keyed: shape.keyed.then(|| Rng::with_seed(seed.rotate_left(32))),
        groups: shape.groups.then(|| Groups::of(seed)),
        unique: shape.unique.then(|| Rng::with_seed(seed.rotate_left(8))),
        apart: shape.apart.then(|| Rng::with_seed(seed.rotate_left(24))),
        filters: Rng::with_seed(seed.rotate_left(40)),
        words: Words::of(seed),
        marks: Rng::with_seed(seed.rotate_left(48)),
        added: 0,
        made,
        enqueues: [0; 3],
        reserves: [0; 3],
        past: vec![],
        coming: VecDeque::new(),
        now_ms: BEGIN_MS,
        shape,
        ids: vec![],
        keys: vec![],
    };
    let mut all = Vec::new();
    while all.len() + 1 < steps + generator.added {
        all.push(generator.step());
    }
    let mut steps = all;
    steps.push(Step { handle: 0, op: generator.look() });
    steps
}

impl Generator {
    fn step(&mut self) -> Step {
        let scene = self.crowd_of_groups();
        let mut op = scene.or_else(|| self.coming.pop_front()).unwrap_or_else(|| self.op());
        self.mark(&mut op);
        self.limit(&mut op);
        if let Some(groups) = &mut self.groups {
            groups.limit(&mut op);
        }
        self.words.speak(&mut op);
        Step { handle: self.rng.usize(..self.shape.handles), op }
    }

    fn op(&mut self) -> Op {
        match self.rng.u8(..100) {
            0..22 => self.enqueue(),
            22..40 => Op::Reserve(self.reserve()),
            40..44 => Op::Extend((0..self.rng.usize(..4)).map(|_| (self.pick(), None)).collect()),
            44..59 => self.settle(),
            59..62 => self.take(),
            62..72 => self.act(),
            72..78 => self.queue(),
            78..81 => Op::Sweep(*self.pick_of(&[1, 2, 3, 10, 1_000, 0])),
            81..89 => self.clock(),
            89 => Op::Reopen,
            90 => self.crash_again_and_again(),
            91 => self.come_back_to_a_taken_key(),
            92 if self.chance(3) => self.crowd(),
            93 => self.cancel_runs(),
            _ => self.look(),
        }
    }

    /// In histories with many concurrency keys queues have limits, too, and runs close their limiters.
    fn limit(&mut self, op: &mut Op) {
        let Some(rng) = &mut self.keyed else { return };
        match op {
            Op::Queue(_, QueueOp::Set(settings)) => {
                settings.concurrency = (rng.u8(..3) == 0).then(|| rng.u32(1..4));
                settings.rate = (rng.u8(..3) == 0).then(|| Rate {
                    max: *[1, 2, 3, 7].get(rng.usize(..4)).unwrap_or(&1),
                    period_ms: GRID_MS * rng.u64(1..4),
                    burst: rng.u32(1..4),
                });
            }
            Op::Settle(ends, _) => {
                for (_, verdict) in ends {
                    if let Verdict::Retry { at, error } = verdict
                        && rng.u8(..4) == 0
                    {
                        *verdict = Verdict::RetryAfter { at: *at, error: std::mem::take(error) };
                    }
                }
            }
            _ => {}
        }
    }

    /// Lets others call while time passes, most often: leases that end in a silence are held back (S9).
    fn mark(&mut self, op: &mut Op) {
        let Op::Clock(by) = *op else { return };
        let marks = marks_before(Duration::from_millis(u64::try_from(by).unwrap_or(0)));
        let marks: Vec<_> = marks.filter(|before| *before <= MARK_BEFORE_MAX).collect();
        if marks.is_empty() || self.marks.u8(..8) == 0 {
            return;
        }
        let (mut at, mut rest) = (0, Vec::new());
        for to in marks.into_iter().map(|before| by - before.as_millis() as i64).chain([by]) {
            rest.extend([Op::Clock(to - at), Op::Extend(Vec::new())]);
            at = to;
        }
        rest.pop();
        *op = rest.remove(0);
        self.added += rest.len();
        rest.into_iter().rev().for_each(|op| self.coming.push_front(op));
    }

    // ── scenes that chance alone seldom plays ──

    /// Leases pass their time, again and again, until the jobs are dead of it.
    fn crash_again_and_again(&mut self) -> Op {
        for _ in 0..self.rng.usize(2..5) {
            let want = self.next_reserve(8, Some(Duration::from_secs(1)));
            let ms = self.grid(1_000, 6_000).cast_signed();
            let clock = self.turn(ms);
            self.coming.extend([Op::Reserve(want), clock]);
        }
        let want = self.next_reserve(0, None);
        self.coming.push_back(Op::Reserve(want));
        self.look()
    }

    /// Runs are asked to stop, and stop.
    fn cancel_runs(&mut self) -> Op {
        let want = self.next_reserve(8, None);
        let targets = (0..4).map(|_| self.target()).collect();
        let ends = (0..8).map(|n| (Pick::Newest(n), Verdict::Release)).collect();
        self.coming.push_back(Op::Act(targets, Action::Cancel { reason: None }));
        self.coming.push_back(Op::Settle(ends, None));
        Op::Reserve(want)
    }

    /// More jobs than one call looks at, and more leases than one reclaims.
    fn crowd(&mut self) -> Op {
        let job = |n: u32| {
            let id = JobId::derived("a", None, &format!("crowd {n}"));
            let mut job = NewJob::new(id, "k", "a", Payload::json("0"));
            if n < 400 {
                job.expires_at = Some(When::In(Duration::from_millis(500)));
            } else {
                job.run_at = When::In(Duration::from_millis(100));
            }
            job
        };
        let free = Op::Queue("a".to_owned(), QueueOp::Set(Box::default()));
        let enqueue = self.next_enqueue((0..440).map(job).collect());
        self.coming.extend([Op::Queue("a".to_owned(), QueueOp::Resume), enqueue]);
        // Past the expiry of most: the first call looks at n + 256 of them and gives none.
        // Never more than the turns that groups have in one call: there a store may stop earlier than the model (S16).
        let many = GROUP_SERVICES_MAX;
        for (n, ms) in [(3, 600), (many, 0), (many, 0), (1, 1_500), (1, 0), (1, 0)] {
            let clock = self.turn(ms);
            let want = Reserve {
                queues: vec![QueueRequest { queue: "a".to_owned(), share: n, at_most: n }],
                ..self.next_reserve(n, Some(Duration::from_secs(1)))
            };
            let look = self.look();
            self.coming.extend([clock, Op::Reserve(want), look]);
        }
        free
    }

    /// A job ends, another takes its key, and the first is to run again.
    fn come_back_to_a_taken_key(&mut self) -> Op {
        let (mut first, mut second) = (self.job(), self.job());
        (first.id, second.id) = (self.made[0], self.made[1]);
        for job in [&mut first, &mut second] {
            "a".clone_into(&mut job.queue);
            (job.group, job.concurrency) = (None, None);
            job.unique = Some(Unique::key("u0"));
        }
        if self.rng.bool() {
            first.unique = first.unique.map(Unique::until_start);
        }
        let first = self.next_enqueue(vec![first]);
        let second = self.next_enqueue(vec![second]);
        let target: Target = self.made[0].into();
        self.coming.push_back(Op::Act(vec![target.clone()], Action::Cancel { reason: None }));
        self.coming.push_back(second);
        self.coming.push_back(Op::Act(vec![target], Action::Retry));
        first
    }

    fn pick_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(..of.len())]
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.u32(..one_in) == 0
    }

    fn grid(&mut self, from_ms: u64, to_ms: u64) -> u64 {
        GRID_MS * self.rng.u64(from_ms / GRID_MS..=to_ms / GRID_MS)
    }

    fn pause(&mut self, to_ms: u64) -> Duration {
        Duration::from_millis(self.grid(0, to_ms))
    }

    fn when(&mut self) -> When {
        match self.rng.u8(..8) {
            0..4 => When::Now,
            4 | 5 => When::In(self.pause(5_000)),
            6 => When::In(self.pause(60_000)),
            _ => {
                let at = (self.now_ms + self.grid(0, 10_000)).saturating_sub(5_000);
                When::At(Timestamp::saturating_from_ms(at))
            }
        }
    }

    // ── enqueue ──

    fn enqueue(&mut self) -> Op {
        if self.chance(6)
            && let Some(again) = self.again(|op| matches!(op, Op::Enqueue(..)))
        {
            return again;
        }
        let jobs = (0..self.rng.usize(..4)).map(|_| self.job()).collect();
        self.next_enqueue(jobs)
    }

    fn next_enqueue(&mut self, jobs: Vec<NewJob>) -> Op {
        let i = self.rng.usize(..3);
        // Now and then a number that was used, for other jobs.
        if !self.chance(12) {
            self.enqueues[i] += 1;
        }
        let call = CallId { instance: 70 + i as u64, number: self.enqueues[i].max(1) };
        let op = Op::Enqueue(call, jobs);
        self.past.push(op.clone());
        op
    }

    /// A call that was made before, as it was.
    fn again(&mut self, sort: impl Fn(&Op) -> bool) -> Option<Op> {
        let of: Vec<_> = self.past.iter().filter(|op| sort(op)).collect();
        let newest = of.len().min(3);
        (0 < newest).then(|| of[of.len() - 1 - self.rng.usize(..newest)].clone())
    }

    fn job(&mut self) -> NewJob {
        let queue = (*self.pick_of(&QUEUES)).to_owned();
        let payload = self.payload();
        let mut job = NewJob::new(self.made[0], "k", queue, payload);
        job.run_at = self.when();
        if self.chance(12) {
            job.group = Some("g".to_owned());
        }
        if self.chance(12) {
            job.concurrency = Some(Concurrency { key: "c".to_owned(), limit: self.rng.u32(1..3) });
        }
        if self.rng.u8(..5) < 2 {
            job.unique = Some(self.unique());
        }
        if let Some(rng) = &mut self.keyed
            && rng.u8(..4) != 0
        {
            job.group = (rng.u8(..8) == 0).then(|| "g".to_owned());
            job.concurrency =
                Some(Concurrency { key: "c".to_owned(), limit: 1 + u32::from(rng.u8(..5) / 3) });
            if rng.bool() {
                (job.unique, job.run_at) = (None, When::Now);
            }
            if rng.u8(..4) != 0 {
                "a".clone_into(&mut job.queue);
            }
        }
        if let Some(groups) = &mut self.groups {
            groups.put(&mut job, self.shape.keyed);
        }
        if let Some(rng) = &mut self.unique
            && rng.u8(..5) != 0
        {
            job.unique = Some(self.unique());
        }
        if self.chance(6) {
            let after = self.pause(20_000);
            job.expires_at = Some(if self.rng.bool() {
                When::In(after)
            } else {
                When::At(Timestamp::saturating_from_ms(self.now_ms + after.as_millis() as u64))
            });
        }
        if self.chance(3) {
            job.options = self.options();
        }
        if self.chance(8) {
            job.tags = vec!["vip".to_owned(); self.rng.usize(1..3)];
            job.headers = BTreeMap::from([("trace".to_owned(), "1".to_owned())]);
        }
        if self.chance(10) {
            "other".clone_into(&mut job.kind);
        }
        if self.chance(80) {
            (*self.pick_of(&["$reserved", "", "x\ny"])).clone_into(&mut job.queue);
        }
        job.id = if self.rng.bool() {
            let key = ["k0", "k1", "k2"][self.rng.usize(..3)];
            JobId::derived(&job.queue, job.placement_key(), key)
        } else {
            self.made[self.rng.usize(..self.made.len())]
        };
        // Who is to meet the holder of its key must not be known by its id.
        if let Some(rng) = &mut self.unique
            && rng.bool()
        {
            let key = format!("k{}", rng.u8(3..40));
            job.id = JobId::derived(&job.queue, job.placement_key(), &key);
        }
        if !self.ids.contains(&job.id) {
            self.ids.push(job.id);
        }
        if let Some(key) = UniqueKey::of_new(&job).filter(|key| !self.keys.contains(key)) {
            self.keys.push(key);
        }
        job
    }

    fn payload(&mut self) -> Payload {
        let n = match self.rng.u16(..250) {
            0 | 1 => 600 * 1024,
            2 => 1024 * 1024 + 1,
            3..30 => 0,
            // On Redis, longer payloads than 1 KiB are stored apart.
            30..50 => self.rng.usize(1_000..1_050),
            _ => self.rng.usize(1..24),
        };
        let byte = self.rng.u8(..);
        let mut payload = Payload::json(vec![byte; n]);
        if self.chance(10) {
            payload.content_type = "text/plain".into();
        }
        payload
    }

    fn unique(&mut self) -> Unique {
        let mut unique = Unique::key(*self.pick_of(&["u0", "u0", "u0", "u1"]));
        unique.across_kinds = unique.key == "u1";
        unique.scope = match self.rng.u8(..4) {
            0 | 1 => Scope::UntilDone,
            2 => Scope::UntilStart,
            _ => Scope::Window { window_ms: self.grid(GRID_MS, 30_000) },
        };
        unique.on_conflict = *self.pick_of(&[OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule]);
        if unique.on_conflict == OnConflict::Replace && self.rng.bool() || self.chance(60) {
            unique.version = Some(self.rng.u64(1..3));
        }
        unique
    }

    fn options(&mut self) -> JobOptions {
        let mut options = JobOptions::default();
        if self.rng.bool() {
            options.priority = Some(*self.pick_of(&Priority::ALL));
        }
        if self.rng.bool() {
            options.max_attempts = Some(*self.pick_of(&[1, 2, 3, 5]));
        }
        if self.chance(3) {
            options.lease = Some(Duration::from_secs(self.rng.u64(1..30)));
        }
        if self.chance(4) {
            options.backoff = Some(Backoff::fixed(Duration::from_secs(1)));
            options.timeout = Some(Duration::from_secs(9));
        }
        if self.chance(100) {
            options.max_attempts = Some(0);
        }
        options
    }

    // ── work ──

    fn reserve(&mut self) -> Reserve {
        if self.chance(6)
            && let Some(Op::Reserve(again)) = self.again(|op| matches!(op, Op::Reserve(_)))
        {
            return again;
        }
        let n = *self.pick_of(&[0, 1, 2, 3, 8]);
        let lease = match self.rng.u8(..10) {
            0..6 => Some(Duration::from_millis(self.grid(1_000, 4_000))),
            6 => Some(Duration::from_millis(self.rng.u64(900..20_000))),
            _ => None,
        };
        self.next_reserve(n, lease)
    }

    fn next_reserve(&mut self, n: usize, lease: Option<Duration>) -> Reserve {
        let i = self.rng.usize(..3);
        if !self.chance(12) {
            self.reserves[i] += 1;
        }
        let queues = (0..self.rng.usize(1..4))
            .map(|_| QueueRequest {
                queue: (*self.pick_of(&["a", "a", "a", "b", "c", "unknown"])).to_owned(),
                share: if self.rng.bool() { n } else { self.rng.usize(..3) },
                at_most: match self.rng.u8(..30) {
                    0 => 1_000 + self.rng.usize(..2),
                    1..20 => n,
                    _ => self.rng.usize(..3),
                },
            })
            .collect();
        let want = Reserve {
            call: CallId { instance: 80 + i as u64, number: self.reserves[i].max(1) },
            worker: format!("w{}", self.apart.as_mut().map_or(i, |rng| rng.usize(..3))),
            queues,
            n: if self.chance(150) { 1_001 } else { n },
            lease,
            company: self.rng.u8(..4) == 0,
        };
        self.past.push(Op::Reserve(want.clone()));
        want
    }

    fn pick(&mut self) -> Pick {
        match self.rng.u8(..30) {
            0 if !self.ids.is_empty() => {
                let id = self.ids[self.rng.usize(..self.ids.len())];
                Pick::Forged(id, self.rng.u64(..5))
            }
            0..18 => Pick::Newest(self.rng.usize(..3)),
            _ => Pick::Newest(self.rng.usize(..12)),
        }
    }

    fn settle(&mut self) -> Op {
        let runs = (0..self.rng.usize(..4)).map(|_| (self.pick(), self.verdict())).collect();
        let then = self.chance(3).then(|| self.reserve());
        Op::Settle(runs, then)
    }

    fn verdict(&mut self) -> Verdict {
        let words = |rng: &mut Rng| if rng.u8(..20) == 0 { "é".repeat(900) } else { "why".to_owned() };
        match self.rng.u8(..12) {
            0..4 => Verdict::Ack,
            4 | 5 => Verdict::Retry { at: self.when(), error: words(&mut self.rng) },
            6 | 7 => Verdict::Snooze {
                after: self.pause(8_000),
                reason: self.rng.bool().then(|| words(&mut self.rng)),
            },
            8 | 9 => Verdict::Release,
            10 => Verdict::Cancel { reason: self.rng.bool().then(|| words(&mut self.rng)) },
            _ => Verdict::Dead { error: words(&mut self.rng) },
        }
    }

    fn take(&mut self) -> Op {
        Op::Take(Take {
            queue: (*self.pick_of(&QUEUES)).to_owned(),
            n: self.rng.usize(..4),
            older_than: if self.rng.bool() { Duration::ZERO } else { self.pause(3_000) },
        })
    }

    // ── operators ──

    fn act(&mut self) -> Op {
        let targets = (0..self.rng.usize(1..4)).map(|_| self.target()).collect();
        let action = match self.rng.u8(..12) {
            0 | 1 => Action::Cancel { reason: self.rng.bool().then(|| "no".to_owned()) },
            2 => Action::Reschedule(self.when()),
            3 => Action::RescheduleBy(self.grid(0, 10_000).cast_signed() - 5_000),
            4 => Action::RunNow,
            5 => Action::Reprioritise(*self.pick_of(&Priority::ALL)),
            6 => Action::EditPayload(self.payload()),
            7..10 => Action::Retry,
            _ => Action::Delete,
        };
        Op::Act(targets, action)
    }

    fn target(&mut self) -> Target {
        let selector = if !self.keys.is_empty() && self.chance(5) {
            Selector::Key(self.keys[self.rng.usize(..self.keys.len())].clone())
        } else if self.ids.is_empty() || self.chance(20) {
            Selector::Id(JobId::derived("nowhere", None, "none"))
        } else {
            Selector::Id(self.ids[self.rng.usize(..self.ids.len())])
        };
        let guard = self.chance(5).then(|| {
            let (queue, state) = ((*self.pick_of(&QUEUES)).to_owned(), *self.pick_of(&State::ALL));
            // By no draw of its own: the histories of old seeds stay what they were.
            let version = (queue == "b").then_some(2);
            Guard { queue, state, version }
        });
        Target { selector, guard }
    }

    fn queue(&mut self) -> Op {
        let name = (*self.pick_of(&["a", "a", "a", "b", "c", "new", "$x"])).to_owned();
        let op = match self.rng.u8(..10) {
            0 | 1 => QueueOp::Pause { by: "op".to_owned(), reason: "why".to_owned() },
            2..5 => QueueOp::Resume,
            5..8 => QueueOp::Set(Box::new(self.settings())),
            8 => QueueOp::Purge(*self.pick_of(&[1, 2, 1_000, 0])),
            _ => QueueOp::Show,
        };
        Op::Queue(name, op)
    }

    fn settings(&mut self) -> QueueSettings {
        let mut settings = QueueSettings {
            order: *self.pick_of(&[Order::Fifo, Order::Lifo]),
            done: self.keep(Keep::SHORT),
            dead: self.keep(Keep::LONG),
            cancelled: self.keep(Keep::SHORT),
            ..QueueSettings::default()
        };
        if self.chance(4) {
            settings.max_jobs = Some(self.rng.u64(..5));
        }
        // By no draw of its own: the histories of old seeds stay what they were.
        if settings.max_jobs.is_some() {
            settings.placement = Placement::Pinned;
        }
        if self.chance(4) {
            settings.max_bytes = Some(self.rng.u64(..60));
        }
        if self.chance(3) {
            settings.defaults = self.options();
        }
        settings
    }

    fn keep(&mut self, usual: Keep) -> Keep {
        match self.rng.u8(..5) {
            0 => Keep::NOTHING,
            // 16 is the first bound that may be exceeded for a while.
            1 => Keep { count: [0, 1, 16][self.rng.usize(..3)], ..usual },
            2 => Keep { age_ms: self.grid(0, 8_000), ..usual },
            3 => Keep { bytes: self.rng.u64(..30), ..usual },
            _ => usual,
        }
    }

    fn clock(&mut self) -> Op {
        let by = match self.rng.u8(..20) {
            0..11 => self.grid(0, 5_000).cast_signed(),
            11..15 => self.grid(5_000, 25_000).cast_signed(),
            15 => 3_600_000,
            16 => 24 * 3_600_000,
            17 => -self.grid(0, 6_000).cast_signed(),
            18 => -self.rng.i64(1..3_600_000),
            _ => self.rng.i64(1..40_000),
        };
        if self.chance(3) {
            return self.edge(by);
        }
        self.turn(by)
    }

    /// Stands a millisecond before where it goes, and looks around there, too.
    fn edge(&mut self, by: i64) -> Op {
        let before = self.turn(by - 1);
        let early = if self.chance(3) { self.look() } else { Op::Reserve(self.reserve()) };
        let clock = self.turn(1);
        let in_time = if self.chance(3) { self.look() } else { Op::Reserve(self.reserve()) };
        self.coming.extend([early, clock, in_time]);
        before
    }

    fn turn(&mut self, by: i64) -> Op {
        self.now_ms = self.now_ms.saturating_add_signed(by);
        Op::Clock(by)
    }

    fn look(&mut self) -> Op {
        Op::Look(Look {
            page: *self.pick_of(&[1, 3, 1_000]),
            bucket: Duration::from_millis(*self.pick_of(&[1, 700, 10_000])),
            buckets: self.rng.usize(1..9),
            ids: self.ids.clone(),
            keys: self.keys.clone(),
            queues: NAMES.map(str::to_owned).to_vec(),
            filters: [(); 2].map(|()| FILTERS[self.filters.usize(..FILTERS.len())]),
        })
    }
}
