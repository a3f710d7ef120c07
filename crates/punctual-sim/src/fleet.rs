//! One run: the fleet of a plan, its harm, its healing, and what the judge says.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use punctual::{
    Client, JobId, JobRecord, State, Timestamp,
    job::Filter,
    limits::POISON_LIMIT,
    simulation::Simulation,
    store::{GroupLimits, List, QueueOp, QueueSettings, Store, clock::Clock, memory::MemoryStore},
};
use punctual_check::{History, Options, RecordingStore, Verdict, event::What, judge};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, LocalSet, spawn_local},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    bug::Bug,
    client,
    log::{Entry, Log, START_MS, hash},
    network::LATE_MS_MAX,
    plan::{GRACE_MS_MAX, LEASE_MS_MAX, OutagePlan, Plan, StepPlan},
    process::{Life, Running, recorder},
    schedule::Schedule,
};

/// The rule about the ticks of a schedule.
const SCHEDULE: &str = "schedule";
/// The queue of all jobs, and their kind.
pub(crate) const QUEUE: &str = "work";
pub(crate) const KIND: &str = "job";
/// Publications reach this queue, and the one of all jobs. Workers serve it if there are any.
pub(crate) const SECOND_QUEUE: &str = "copies";
pub(crate) const TOPIC: &str = "news";
/// The pause after one more attempt of a publication is longer than [`HEAL_MAX`].
const ATTEMPTS_IN_TIME: u32 = 5;
/// A step of the clock that makes what was begun before it old, in milliseconds.
const FAR_MS: i64 = 3_600_000;
/// After the longest lease, how much later a due job may start, or a lapsed lease be reclaimed (D8).
const START_WITHIN: Duration = Duration::from_millis(LEASE_MS_MAX + 2_000);
/// How much longer that may take after each step back of the clock: one that is no longer shortens no lease (S14).
const LATE_AFTER_STEP: Duration = Duration::from_mins(1);
/// How long a run may continue after its cancel was requested: the longest interval between two heartbeats, the longest grace
/// period, which is that of a shutdown, and a second.
const CANCEL_WITHIN: Duration = Duration::from_millis(LEASE_MS_MAX / 3 + GRACE_MS_MAX + 1_000);
/// How long notifications that were lost may have kept a worker waiting after the harm.
const DEAF_AFTER_HARM: Duration = Duration::from_secs(3);
/// How long clients may take after the harm: they repeat calls for half a minute.
const CLIENTS_MAX: Duration = Duration::from_mins(1);
/// How long the fleet may take after the harm until all jobs have ended.
const HEAL_MAX: Duration = Duration::from_mins(10);
/// The same after steps of the clock: what was put off while it was ten minutes ahead waits for as long.
const HEAL_AFTER_STEP_MAX: Duration = Duration::from_mins(20);
/// The pause between two looks at how many jobs are left.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a worker may take to end, beside its grace period.
const END_MAX: Duration = Duration::from_secs(30);

/// What all processes of a run share.
pub(crate) struct Scene {
    pub(crate) plan: Plan,
    pub(crate) bug: Option<Bug>,
    pub(crate) memory: MemoryStore,
    pub(crate) log: Log,
    /// The newest fence of each job, for a planted bug.
    pub(crate) fences: Arc<Mutex<BTreeMap<JobId, u64>>>,
    is_chaos: AtomicBool,
    begin: Instant,
    /// How many calls of each process met a fault that may have cost it leases.
    harm: Mutex<BTreeMap<String, u64>>,
    /// The ids of jobs that a client has begun to enqueue.
    ids: Mutex<BTreeMap<u32, JobId>>,
    /// Names of processes that a job kills.
    poisoned: UnboundedSender<String>,
}

impl Scene {
    /// Whether calls fail and processes end.
    pub(crate) fn is_chaos(&self) -> bool {
        self.is_chaos.load(Ordering::Relaxed)
    }

    /// Returns the outage of the store that goes on now, and when it ends.
    pub(crate) fn outage(&self) -> Option<(OutagePlan, Instant)> {
        let now = Instant::now();
        let ends = |outage: &OutagePlan| {
            let from = self.begin + Duration::from_millis(outage.at_ms);
            let to = from + Duration::from_millis(outage.lasts_ms);
            (from <= now && now < to).then_some((*outage, to))
        };
        self.plan.outages.iter().filter_map(ends).max_by_key(|(_, end)| *end)
    }

    /// Waits while the store hangs. Returns `false` if it is away.
    pub(crate) async fn reaches_store(&self) -> bool {
        while let Some((outage, end)) = self.outage() {
            if !outage.hangs {
                return false;
            }
            sleep_until(end).await;
        }
        true
    }

    /// Whether the store is away at some time within so long from now.
    fn is_away_within(&self, by: Duration) -> bool {
        let now = self.begin.elapsed();
        self.plan.outages.iter().any(|outage| {
            let from = Duration::from_millis(outage.at_ms);
            now < from + Duration::from_millis(outage.lasts_ms) && from < now + by
        })
    }

    /// Counts a fault that may cost a process leases.
    pub(crate) fn harm(&self, process: &str) {
        let mut harm = self.harm.lock().unwrap_or_else(PoisonError::into_inner);
        *harm.entry(process.to_owned()).or_default() += 1;
    }

    /// Kills a process from within; returns `false` in the second phase, in which nothing is killed.
    pub(crate) fn poison(&self, process: &str) -> bool {
        self.is_chaos() && self.poisoned.send(process.to_owned()).is_ok()
    }

    pub(crate) fn put_id(&self, n: u32, id: JobId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(n, id);
    }

    pub(crate) fn id(&self, n: u32) -> Option<JobId> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(&n).copied()
    }

    /// Returns all jobs that the store holds.
    pub(crate) async fn all_jobs(&self) -> Vec<JobRecord> {
        let mut list = List { filter: Filter::all(), after: None, limit: 1_000 };
        let mut jobs = Vec::new();
        loop {
            let page = self.memory.list(&list).await.expect("the store in memory can be read");
            jobs.extend(page.jobs);
            match page.next {
                Some(next) => list.after = Some(next),
                None => return jobs,
            }
        }
    }
}

/// What a run did, and what was wrong with it.
#[derive(Debug)]
pub struct Run {
    /// All events, in order.
    pub entries: Vec<Entry>,
    /// Names of jobs, by their ids.
    pub names: BTreeMap<JobId, u32>,
    /// The judgement of its history.
    pub verdict: Verdict,
    /// What was wrong beside it: a rule in one word, and a sentence.
    pub troubles: Vec<(&'static str, String)>,
    /// Runs of jobs that a handler began.
    pub lives: u64,
    /// How long it took on the clock of the simulation.
    pub simulated: Duration,
}

impl Run {
    /// Returns the rule that was broken first; `None` if all hold.
    pub fn broken(&self) -> Option<&'static str> {
        let rules = || self.verdict.rules.keys().copied();
        // The model differs with most bugs. Another rule says more.
        let judged = rules().find(|rule| *rule != "M").or_else(|| rules().next());
        judged.or_else(|| self.troubles.first().map(|(rule, _)| *rule))
    }

    /// Returns the fingerprint of its events.
    pub fn hash(&self) -> u64 {
        hash(&self.entries)
    }
}

/// Runs a plan, with a bug if one is to be found.
///
/// # Panics
/// If the system gives no runtime.
pub fn run(plan: &Plan, bug: Option<Bug>) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the system");
    LocalSet::new().block_on(&runtime, drive(plan.clone(), bug))
}

async fn drive(plan: Plan, bug: Option<Bug>) -> Run {
    let start = Timestamp::from_ms(START_MS).expect("the start is a valid time");
    let simulation = Rc::new(Simulation::begin(start, plan.seed));
    let begin = Instant::now();
    let (poisoned, poison) = unbounded_channel();
    let scene = Arc::new(Scene {
        plan,
        bug,
        memory: MemoryStore::new(Clock::System),
        log: Log::new(),
        fences: Arc::default(),
        is_chaos: AtomicBool::new(true),
        begin,
        harm: Mutex::default(),
        ids: Mutex::default(),
        poisoned,
    });
    let mut fleet = Fleet::begin(&scene, poison);
    fleet.limit_groups().await;
    fleet.subscribe().await;
    fleet.schedule = Schedule::begin(&scene, &fleet.nemesis).await;
    fleet.note_outages(begin);
    let steps = fleet.step_clock(begin, &simulation);
    let mut clients = client::start(&scene, &fleet.nemesis);
    fleet.chaos(begin).await;
    let mut troubles = fleet.heal(steps, &mut clients).await;
    troubles.extend(fleet.published().await);
    troubles.extend(fleet.ticked().await);
    troubles.extend(fleet.end().await);
    fleet.dump().await;
    drop(fleet);

    let simulated = begin.elapsed();
    let (entries, processes) = scene.log.take();
    let lives = entries.iter().filter(|entry| matches!(entry.line.what, What::Start { .. })).count() as u64;
    let mut files = vec![Vec::new(); processes];
    for Entry { process, line } in &entries {
        files[*process].push(line.clone());
    }
    let late = LATE_AFTER_STEP * scene.plan.steps.iter().filter(|step| step.by_ms < 0).count() as u32;
    let start_within = (!scene.plan.has_limits()).then_some(START_WITHIN + late);
    let options =
        Options { start_within, cancel_within: Some(CANCEL_WITHIN), replays: true, ..Options::default() };
    let verdict = judge(&History::of_one_store(files), options);
    let names =
        scene.ids.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(n, id)| (*id, *n)).collect();
    Run { entries, names, verdict, troubles, lives, simulated }
}

/// The processes of workers, and who harms them.
struct Fleet {
    scene: Arc<Scene>,
    nemesis: Arc<punctual_check::Recorder>,
    poison: UnboundedReceiver<String>,
    /// One place for each worker of the plan.
    places: Vec<Place>,
    /// Those that were asked to end and have been replaced, or will be.
    stopping: Vec<Running>,
    schedule: Option<Schedule>,
}

/// A worker of the plan.
struct Place {
    running: Option<Running>,
    /// How often it was started.
    times: u32,
    /// When it is started again.
    start_at: Option<Instant>,
}

impl Fleet {
    fn begin(scene: &Arc<Scene>, poison: UnboundedReceiver<String>) -> Self {
        let nemesis = Arc::new(recorder(scene, "nemesis".to_owned(), 0, 0, Life::default()));
        let mut fleet = Self {
            scene: Arc::clone(scene),
            nemesis,
            poison,
            places: Vec::new(),
            stopping: Vec::new(),
            schedule: None,
        };
        fleet.places.extend(scene.plan.workers.iter().map(|_| Place {
            running: None,
            times: 0,
            start_at: Some(Instant::now()),
        }));
        fleet.start_due();
        fleet
    }

    /// Limits the jobs of each group.
    async fn limit_groups(&self) {
        let Some(limit) = self.scene.plan.group_limit else { return };
        self.nemesis.note(What::GroupLimit { queue: QUEUE.to_owned(), running: limit });
        if self.scene.bug != Some(Bug::GroupLimitIgnored) {
            let group = GroupLimits { concurrency: Some(limit), ..GroupLimits::default() };
            let settings = QueueSettings { group, ..QueueSettings::default() };
            let set = self.scene.memory.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await;
            set.expect("the settings are valid");
        }
    }

    /// Subscribes both queues to the topic, if it has publications.
    async fn subscribe(&self) {
        if self.scene.plan.publications.is_empty() {
            return;
        }
        if let Some(room) = self.scene.plan.room {
            let settings = QueueSettings { max_jobs: Some(room), ..QueueSettings::default() };
            let set = self.scene.memory.queue(SECOND_QUEUE, &QueueOp::Set(Box::new(settings))).await;
            set.expect("the settings are valid");
        }
        let topic = Client::new(Arc::new(self.scene.memory.clone())).topic(TOPIC);
        let queues = [QUEUE, SECOND_QUEUE];
        let subscribed = if self.scene.bug == Some(Bug::SubscriptionForgotten) { 1 } else { queues.len() };
        for queue in &queues[..subscribed] {
            topic.subscribe(queue).await.expect("nobody else changes the topic");
        }
    }

    /// Starts the workers whose time has come.
    fn start_due(&mut self) {
        for (worker, place) in self.places.iter_mut().enumerate() {
            if place.start_at.is_some_and(|at| at <= Instant::now()) {
                place.times += 1;
                place.start_at = None;
                place.running = Some(Running::start(&self.scene, worker, place.times));
            }
        }
    }

    /// Notes each outage of the store when it is over. Jobs may wait for its end, and no lease may be lost by it.
    fn note_outages(&self, begin: Instant) {
        for OutagePlan { at_ms, lasts_ms, .. } in self.scene.plan.outages.clone() {
            let nemesis = Arc::clone(&self.nemesis);
            spawn_local(async move {
                sleep_until(begin + Duration::from_millis(at_ms + lasts_ms)).await;
                nemesis.note(What::Harmed { since: at_ms * 1_000_000, times: 0, proc: None });
            });
        }
    }

    /// Steps the clock. Jobs may be late by that, and no lease may be lost.
    fn step_clock(&self, begin: Instant, simulation: &Rc<Simulation>) -> JoinHandle<()> {
        let (steps, nemesis) = (self.scene.plan.steps.clone(), Arc::clone(&self.nemesis));
        let simulation = Rc::clone(simulation);
        spawn_local(async move {
            for StepPlan { at_ms, by_ms } in steps {
                sleep_until(begin + Duration::from_millis(at_ms)).await;
                nemesis.note(What::ClockStepped);
                simulation.step(by_ms);
            }
        })
    }

    /// Does harm until the end of the first phase.
    async fn chaos(&mut self, begin: Instant) {
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let plan = self.scene.plan.clone();
        let mut ends = plan.ends.iter().filter(|end| end.worker < plan.workers.len()).peekable();
        let over = at(plan.chaos_ms);
        loop {
            let now = Instant::now();
            self.start_due();
            while let Some(end) = ends.next_if(|end| at(end.at_ms) <= now) {
                let back = Duration::from_millis(end.down_ms);
                if end.crashes { self.crash(end.worker, back) } else { self.stop(end.worker, back) }
            }
            if over <= now {
                return;
            }
            let starts = self.places.iter().filter_map(|place| place.start_at);
            let next = starts.chain(ends.peek().map(|end| at(end.at_ms))).fold(over, Instant::min);
            tokio::select! {
                biased;
                Some(name) = self.poison.recv() => self.poisoned(&name),
                () = sleep_until(next) => {}
            }
        }
    }

    fn kill(&self, running: Running) {
        let proc = running.name.clone();
        running.crash();
        self.nemesis.note(What::Killed { proc });
    }

    fn crash(&mut self, worker: usize, down: Duration) {
        let place = &mut self.places[worker];
        if let Some(running) = place.running.take() {
            place.start_at = Some(Instant::now() + down);
            self.kill(running);
        }
    }

    fn stop(&mut self, worker: usize, down: Duration) {
        let place = &mut self.places[worker];
        if let Some(running) = place.running.take() {
            place.start_at = Some(Instant::now() + down);
            running.stop();
            self.nemesis.note(What::Draining { proc: running.name.clone() });
            // It ends with verdicts that it could not tell.
            let plan = &self.scene.plan;
            let ends_within = plan.workers[worker].shutdown_grace_ms + 2 * plan.faults.slow_ms;
            if self.scene.is_away_within(Duration::from_millis(ends_within)) {
                self.scene.harm(&running.name);
            }
            self.stopping.push(running);
        }
    }

    /// A job has killed this process.
    fn poisoned(&mut self, name: &str) {
        let mut random = Rng::with_seed(self.scene.plan.seed ^ name.bytes().map(u64::from).sum::<u64>());
        if let Some(at) = self.stopping.iter().position(|running| running.name == name) {
            let running = self.stopping.remove(at);
            self.kill(running);
        }
        let is_it = |place: &Place| place.running.as_ref().is_some_and(|running| running.name == name);
        if let Some(worker) = self.places.iter().position(is_it) {
            self.crash(worker, Duration::from_millis(random.u64(0..=2_000)));
        }
    }

    /// Ends all harm, and waits until all jobs have ended. Returns what went wrong.
    async fn heal(
        &mut self,
        steps: JoinHandle<()>,
        clients: &mut Vec<JoinHandle<()>>,
    ) -> Vec<(&'static str, String)> {
        self.scene.is_chaos.store(false, Ordering::Relaxed);
        while let Ok(name) = self.poison.try_recv() {
            self.poisoned(&name);
        }
        for place in &mut self.places {
            place.start_at = place.start_at.map(|_| Instant::now());
        }
        self.start_due();
        while let Some((_, end)) = self.scene.outage() {
            sleep_until(end).await;
        }
        steps.await.expect("the clock is stepped by a task that does not panic");
        // What was sent before may still be on its way.
        let faults = &self.scene.plan.faults;
        let way = Duration::from_millis(faults.slow_ms.max(faults.latency_ms));
        let late_max = Duration::from_millis(if 0 < faults.late { LATE_MS_MAX } else { 0 });
        sleep(2 * way + late_max.max(DEAF_AFTER_HARM)).await;
        let harm = std::mem::take(&mut *self.scene.harm.lock().unwrap_or_else(PoisonError::into_inner));
        for (proc, times) in harm {
            self.nemesis.note(What::Harmed { since: 0, times, proc: Some(proc) });
        }
        self.nemesis.note(What::Healed);

        let mut troubles = Vec::new();
        for client in clients.drain(..) {
            if !matches!(timeout(CLIENTS_MAX, client).await, Ok(Ok(()))) {
                troubles.push(("client", "a client did not end after the harm".to_owned()));
            }
        }
        if let Some(schedule) = &mut self.schedule
            && let Err(trouble) = schedule.end(&self.scene).await
        {
            troubles.push((SCHEDULE, trouble));
        }
        let until =
            Instant::now() + if self.scene.plan.steps.is_empty() { HEAL_MAX } else { HEAL_AFTER_STEP_MAX };
        while Instant::now() < until {
            let counts = self.scene.memory.count(None).await.expect("the store in memory always counts");
            if counts.waiting + counts.running == 0 {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        troubles
    }

    /// Returns which publications did not become one job in each queue.
    async fn published(&self) -> Vec<(&'static str, String)> {
        let mut troubles = Vec::new();
        if self.scene.plan.publications.is_empty() {
            return troubles;
        }
        let all = self.scene.all_jobs().await;
        let now = self.scene.memory.now().await.expect("the store in memory knows the time");
        let has_far_steps = self.scene.plan.steps.iter().any(|step| FAR_MS <= step.by_ms);
        for publication in &self.scene.plan.publications {
            let Some(id) = self.scene.id(publication.n) else { continue };
            let name = id.to_string();
            let is_copy = |job: &&JobRecord| {
                job.headers.get("publication") == Some(&name)
                    && job.payload.bytes == publication.n.to_string().as_bytes()
                    && job.max_attempts == publication.max_attempts
            };
            let copies = [QUEUE, SECOND_QUEUE]
                .map(|queue| all.iter().filter(is_copy).filter(|job| job.queue == queue).count());
            // The judge knows whether it must be there.
            let (is_right, state) = match all.iter().find(|job| job.id == id) {
                None => (copies == [0, 0], None),
                Some(job) => {
                    // Its workers may have died again and again.
                    let is_excused = job.state == State::Dead && POISON_LIMIT <= job.expired_leases;
                    // After its fifth failure, it waits for longer than the fleet is watched; so may one of a clock that was ahead.
                    let is_for_later = job.state == State::Waiting
                        && (ATTEMPTS_IN_TIME < job.attempt || has_far_steps && now < job.run_at);
                    let is_done = job.state == State::Done && copies == [1, 1];
                    let is_excused = (is_excused || is_for_later) && copies.iter().all(|n| *n <= 1);
                    (is_done || is_excused, Some(job.state))
                }
            };
            // A publication that was begun a day before is given up, and what ended then may be past its age.
            let is_right = is_right || has_far_steps && copies.iter().all(|n| *n <= 1);
            if !is_right {
                troubles.push(("topic", format!("j{} is {state:?}, and has {copies:?} jobs", publication.n)));
            }
        }
        troubles
    }

    /// Returns what is wrong with the ticks of the schedule.
    async fn ticked(&self) -> Option<(&'static str, String)> {
        let trouble = self.schedule.as_ref()?.judge(&self.scene.all_jobs().await).err()?;
        Some((SCHEDULE, trouble))
    }

    /// Asks all workers to end. Returns what went wrong.
    async fn end(&mut self) -> Vec<(&'static str, String)> {
        let mut troubles = Vec::new();
        let running = self.places.iter_mut().filter_map(|place| place.running.take());
        let stopping = self.stopping.drain(..).map(|running| (running, true));
        for (running, was_harmed) in stopping.chain(running.map(|running| (running, false))) {
            running.stop();
            if let Err(trouble) = running.ended(END_MAX, was_harmed).await {
                troubles.push(("end", trouble));
            }
        }
        troubles
    }

    async fn dump(&self) {
        let store = RecordingStore::new(Arc::new(self.scene.memory.clone()), Arc::clone(&self.nemesis));
        store.dump().await.expect("the store in memory can be read");
    }
}
