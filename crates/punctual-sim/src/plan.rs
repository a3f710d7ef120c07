//! What happens in a run: jobs, processes, harm. Plain data, drawn from a seed, and made smaller by `shrink.rs`.

use fastrand::Rng;
use serde::Serialize;

/// Most workers, clients and jobs of a drawn plan.
const WORKERS_MAX: usize = 4;
const CLIENTS_MAX: usize = 3;
const JOBS_MAX: u32 = 60;
/// Most publications of a drawn plan.
const PUBLICATIONS_MAX: u32 = 12;
/// The number of the first publication. Those of jobs are lower.
const PUBLICATIONS_FROM: u32 = 1_000;
/// Sets the draw of publications apart. No seed of `seeds.txt` that is older than publications has any: what it found needs the
/// calls of that time.
const PUBLICATIONS_SALT: u64 = 0x746f_7069_6309;
/// Sets the draw of late calls, crashes of clients and schedules apart. It is one with which no older seed of `seeds.txt` has any
/// of them.
const LATER_SALT: u64 = 0x0062_6573_690b_0712;
/// Sets the draw of outages apart, in the same way.
const OUTAGES_SALT: u64 = 0x006f_7574_6167_652f;
/// Sets the draw of the clock's steps apart, in the same way.
const STEPS_SALT: u64 = 0x0073_7465_7073_0b47;
/// How far the clock is stepped, in milliseconds: around the bounds of a minute, and far beyond.
const STEPS_MS: [i64; 8] = [1_000, 5_000, 59_000, 61_000, 600_000, 3_600_000, 86_400_000, 365 * 86_400_000];
/// How far it is stepped back at most, in milliseconds: what ends meanwhile is as old when the clock is right again, and not shown if
/// that is past its age.
const BACK_MS_MAX: i64 = 3_600_000;
/// How far it is stepped back and forward at most if it stays there: jobs wait for so long; and ended jobs are kept for longer.
const STAYS_MS: std::ops::RangeInclusive<i64> = -61_000..=3_600_000;
/// How far steps forward are apart at least, in milliseconds: each is a silence, and one in the pause after another can cost a
/// lease (decision 55).
const FORWARD_APART_MS: u64 = 10_000;
/// How long it takes at most until a step is taken back, in milliseconds.
const STEPPED_MS_MAX: u64 = 60_000;
/// The longest outage of the store, in milliseconds: several leases.
const OUTAGE_MS_MAX: u64 = 20_000;
/// The number of all ticks of the schedule. Those of jobs and publications are lower.
pub(crate) const TICK: u32 = 2_000;
/// Bounds of the first phase, in milliseconds.
const CHAOS_MS: std::ops::RangeInclusive<u64> = 3_000..=40_000;
/// The longest lease of a drawn plan, in milliseconds.
pub(crate) const LEASE_MS_MAX: u64 = 5_000;
/// The longest grace period of a shutdown, in milliseconds; that of a cancel is shorter.
pub(crate) const GRACE_MS_MAX: u64 = 5_000;

/// What happens in a run.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// All that is left to chance follows from it.
    pub seed: u64,
    /// How long the first phase lasts.
    pub chaos_ms: u64,
    /// Worker processes; each can crash and be started again.
    pub workers: Vec<WorkerPlan>,
    /// How far the clock of each client is from the store's, in milliseconds: it is in the ids that they make.
    pub clients: Vec<i64>,
    /// Jobs, by the time of their enqueue.
    pub jobs: Vec<JobPlan>,
    /// What operators do.
    pub acts: Vec<ActPlan>,
    /// Crashes and stops of workers, by time.
    pub ends: Vec<EndPlan>,
    /// How calls to the store fail.
    pub faults: Faults,
    /// How many jobs of one group may run at once.
    pub group_limit: Option<u32>,
    /// Publications to a topic of two queues, by time.
    pub publications: Vec<PublicationPlan>,
    /// How many jobs the second of these queues holds at most.
    pub room: Option<u64>,
    /// Crashes of clients, by time.
    pub client_crashes: Vec<ClientCrashPlan>,
    /// A schedule whose ticks all run, also those that were missed.
    pub schedule: Option<SchedulePlan>,
    /// Outages of the store, by time. No worker that lives and is not asked to end may lose a lease by one.
    pub outages: Vec<OutagePlan>,
    /// Steps of the clock of all processes and of the store, by time. They cost no lease, either.
    pub steps: Vec<StepPlan>,
}

/// A worker process.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WorkerPlan {
    pub slots: usize,
    pub lease_ms: u64,
    pub cancel_grace_ms: u64,
    pub shutdown_grace_ms: u64,
}

/// A job, and what its handler does.
#[derive(Clone, Debug, Serialize)]
pub struct JobPlan {
    /// Its name in stories, and its payload.
    pub n: u32,
    /// When it is enqueued, in milliseconds from the beginning.
    pub at_ms: u64,
    /// Which client enqueues it.
    pub client: usize,
    /// How much later it is due.
    pub delay_ms: u64,
    pub handler: Behaviour,
    pub max_attempts: u32,
    pub timeout_ms: u64,
    pub backoff_ms: u64,
    /// 0 to 2.
    pub priority: u8,
    pub group: Option<u8>,
    /// A concurrency key, and its limit.
    pub concurrency: Option<(u8, u32)>,
    pub unique: Option<UniquePlan>,
    /// How long after its due time it expires.
    pub expires_ms: Option<u64>,
    /// After how long the caller gives up waiting for the answer of the enqueue, and drops the future.
    pub leaves_ms: Option<u64>,
}

/// A unique key.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UniquePlan {
    pub key: u8,
    pub scope: ScopePlan,
    pub conflict: ConflictPlan,
}

/// As [`punctual::job::Scope`].
#[derive(Clone, Copy, Debug, Serialize)]
pub enum ScopePlan {
    UntilDone,
    UntilStart,
    WindowMs(u64),
}

/// As [`punctual::OnConflict`].
#[derive(Clone, Copy, Debug, Serialize)]
pub enum ConflictPlan {
    Keep,
    Replace,
    Reschedule,
}

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Behaviour {
    /// Ends at once.
    Quick,
    /// Ends after so long, or when it is asked to stop.
    Slow(u64),
    /// Ends after so long, whatever it is asked.
    Deaf(u64),
    /// Never ends.
    Hang,
    /// Fails in its first attempts.
    Fail(u32),
    /// Panics in its first attempts.
    Panic(u32),
    /// Asks to run later, so often.
    Snooze(u32),
    /// Gives the job up.
    Dead,
    /// Kills its process, in the first phase.
    Poison,
}

/// A publication. Its jobs end at once when they run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PublicationPlan {
    /// Its name in stories, and its payload.
    pub n: u32,
    /// When it is published, in milliseconds from the beginning.
    pub at_ms: u64,
    /// Which client publishes it.
    pub client: usize,
    /// How much later it is due.
    pub delay_ms: u64,
    /// How many attempts its jobs have.
    pub max_attempts: u32,
    /// After how long the caller gives up waiting for the answer, and drops the future.
    pub leaves_ms: Option<u64>,
}

/// What an operator does to a job.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ActPlan {
    pub at_ms: u64,
    pub client: usize,
    /// Which job.
    pub job: u32,
    pub deed: DeedPlan,
}

/// As [`punctual::store::Action`].
#[derive(Clone, Copy, Debug, Serialize)]
pub enum DeedPlan {
    Cancel,
    RescheduleMs(u64),
    RunNow,
    Retry,
    Delete,
}

/// The end of a worker process, which is started again.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EndPlan {
    pub at_ms: u64,
    pub worker: usize,
    /// Whether it crashes; otherwise it is asked to stop.
    pub crashes: bool,
    /// How long after the crash, or the request, it is started again.
    pub down_ms: u64,
}

/// The crash of a client, which is started again.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClientCrashPlan {
    pub at_ms: u64,
    pub client: usize,
}

/// A schedule. Its ticks end at once when they run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SchedulePlan {
    /// The time between two ticks.
    pub every_ms: u64,
    /// Whether each worker sets it when it starts; otherwise it is set once, at the beginning.
    pub by_workers: bool,
}

/// A time in which the store is away.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OutagePlan {
    pub at_ms: u64,
    pub lasts_ms: u64,
    /// Whether calls are answered at its end; otherwise they fail.
    pub hangs: bool,
}

/// A step of the clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepPlan {
    pub at_ms: u64,
    /// How far, in milliseconds; below 0: back.
    pub by_ms: i64,
}

/// How calls to the store fail in the first phase; rates are per mille.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Faults {
    /// Calls that fail before they take effect.
    pub refused: u32,
    /// Calls that take effect, and whose answers are lost.
    pub lost: u32,
    /// Calls that take long on their way.
    pub slow: u32,
    /// How long these take at most, there and back, in milliseconds each.
    pub slow_ms: u64,
    /// How long all others take at most, there and back, in milliseconds each.
    pub latency_ms: u64,
    /// Notifications that are lost.
    pub deaf: u32,
    /// Calls that are given up, and take effect later.
    pub late: u32,
}

impl Plan {
    /// Draws a plan.
    pub fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x7075_6e63_7475_616c);
        let chaos_ms = random.u64(CHAOS_MS);
        let workers = (0..random.usize(1..=WORKERS_MAX)).map(|_| worker(&mut random)).collect::<Vec<_>>();
        let skew = |random: &mut Rng| if random.bool() { 0 } else { random.i64(-600_000..=600_000) };
        let clients = (0..random.usize(1..=CLIENTS_MAX)).map(|_| skew(&mut random)).collect::<Vec<_>>();
        let taste = Taste::of(&mut random);
        let mut jobs: Vec<JobPlan> = (0..random.u32(5..=JOBS_MAX))
            .map(|n| job(n, chaos_ms, clients.len(), taste, &mut random))
            .collect();
        jobs.sort_by_key(|job| (job.at_ms, job.n));
        let acts = (0..jobs.len() as u32 * taste.acts / 100)
            .map(|_| act(&jobs, chaos_ms, clients.len(), &mut random))
            .collect();
        let harm = random.u32(0..=8);
        let mut ends: Vec<EndPlan> =
            (0..random.u32(0..=harm)).map(|_| end(chaos_ms, workers.len(), &mut random)).collect();
        ends.sort_by_key(|end| end.at_ms);
        let rate = |random: &mut Rng| [0, 0, 5, 20, 100][random.usize(0..5)];
        let mut later = Rng::with_seed(seed ^ LATER_SALT);
        let faults = Faults {
            refused: rate(&mut random),
            lost: rate(&mut random),
            slow: rate(&mut random),
            slow_ms: [50, 500, 6_000][random.usize(0..3)],
            latency_ms: [0, 0, 1, 5, 30][random.usize(0..5)],
            deaf: [0, 0, 50, 500][random.usize(0..4)],
            late: [0, 0, 0, 20, 100][later.usize(0..5)],
        };
        let client_crashes = client_crashes(chaos_ms, clients.len(), &mut later);
        let outages = outages(seed, chaos_ms);
        // A step and an outage that begins in the pause after it can cost a lease, as two such outages can (decision 55).
        let steps = if outages.is_empty() { steps(seed, chaos_ms) } else { Vec::new() };
        // Beside a clock that is far ahead, it would make up for more ticks than a run has time for.
        let schedule = schedule(&mut later).filter(|_| steps.is_empty());
        let group_limit = (taste.groups && random.bool()).then(|| random.u32(1..=2));
        let (publications, room) = publications(seed, chaos_ms, clients.len());
        Self {
            seed,
            chaos_ms,
            workers,
            clients,
            jobs,
            acts,
            ends,
            faults,
            group_limit,
            publications,
            room,
            client_crashes,
            schedule,
            outages,
            steps,
        }
    }

    /// Returns the job with this name.
    pub(crate) fn job(&self, n: u32) -> Option<&JobPlan> {
        self.jobs.iter().find(|job| job.n == n)
    }

    /// Returns the publication with this name.
    pub(crate) fn publication(&self, n: u32) -> Option<&PublicationPlan> {
        self.publications.iter().find(|publication| publication.n == n)
    }

    /// Whether jobs can be due and wait although slots are free.
    pub(crate) fn has_limits(&self) -> bool {
        self.group_limit.is_some() || self.jobs.iter().any(|job| job.concurrency.is_some())
    }
}

/// What kinds of jobs a plan has, so that each seed tries some things thoroughly.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Copy)]
struct Taste {
    groups: bool,
    keys: bool,
    unique: bool,
    delays: bool,
    trouble: bool,
    /// Acts for a hundred jobs.
    acts: u32,
}

impl Taste {
    fn of(random: &mut Rng) -> Self {
        Self {
            groups: random.u8(0..3) == 0,
            keys: random.u8(0..3) == 0,
            unique: random.u8(0..3) == 0,
            delays: random.bool(),
            trouble: random.u8(0..4) != 0,
            acts: [0, 0, 20, 60][random.usize(0..4)],
        }
    }
}

fn worker(random: &mut Rng) -> WorkerPlan {
    WorkerPlan {
        slots: random.usize(1..=4),
        lease_ms: random.u64(1_000..=LEASE_MS_MAX),
        cancel_grace_ms: random.u64(0..=3_000),
        shutdown_grace_ms: random.u64(0..=GRACE_MS_MAX),
    }
}

fn end(chaos_ms: u64, workers: usize, random: &mut Rng) -> EndPlan {
    let down_ms_max = [500, 3_000, 25_000][random.usize(0..3)];
    EndPlan {
        at_ms: random.u64(0..chaos_ms),
        worker: random.usize(0..workers),
        crashes: random.u8(0..3) != 0,
        down_ms: random.u64(0..=down_ms_max),
    }
}

fn job(n: u32, chaos_ms: u64, clients: usize, taste: Taste, random: &mut Rng) -> JobPlan {
    let handler = match random.u8(0..if taste.trouble { 20 } else { 10 }) {
        0..8 => Behaviour::Quick,
        8..11 => Behaviour::Slow(random.u64(1..=4_000)),
        11 => Behaviour::Slow(random.u64(4_000..=15_000)),
        12 => Behaviour::Deaf(random.u64(1..=15_000)),
        13 => Behaviour::Hang,
        14..16 => Behaviour::Fail(random.u32(1..=4)),
        16 => Behaviour::Panic(random.u32(1..=2)),
        17 => Behaviour::Snooze(random.u32(1..=3)),
        18 => Behaviour::Dead,
        _ => Behaviour::Poison,
    };
    let unique = (taste.unique && random.bool()).then(|| UniquePlan {
        key: random.u8(0..4),
        scope: match random.u8(0..3) {
            0 => ScopePlan::UntilDone,
            1 => ScopePlan::UntilStart,
            _ => ScopePlan::WindowMs(random.u64(100..=10_000)),
        },
        conflict: match random.u8(0..4) {
            0 => ConflictPlan::Replace,
            1 => ConflictPlan::Reschedule,
            _ => ConflictPlan::Keep,
        },
    });
    JobPlan {
        n,
        // Many come at the beginning, so that there is a backlog.
        at_ms: if random.u8(0..4) == 0 { 0 } else { random.u64(0..chaos_ms) },
        client: random.usize(0..clients),
        delay_ms: if taste.delays && random.bool() { random.u64(1..=chaos_ms) } else { 0 },
        handler,
        max_attempts: if random.u8(0..4) == 0 { random.u32(1..=4) } else { 20 },
        timeout_ms: if handler == Behaviour::Hang || random.u8(0..8) == 0 {
            random.u64(500..=4_000)
        } else {
            300_000
        },
        backoff_ms: random.u64(10..=2_000),
        priority: random.u8(0..3),
        group: (taste.groups && random.u8(0..4) != 0).then(|| random.u8(0..3)),
        concurrency: (taste.keys && random.u8(0..4) != 0)
            .then(|| random.u8(0..3))
            .map(|key| (key, u32::from(key % 2) + 1)),
        unique,
        expires_ms: (random.u8(0..12) == 0).then(|| random.u64(1..=10_000)),
        leaves_ms: (random.u8(0..10) == 0).then(|| random.u64(0..=50)),
    }
}

/// Draws publications, and the room of the second queue. One seed in five has any.
fn publications(seed: u64, chaos_ms: u64, clients: usize) -> (Vec<PublicationPlan>, Option<u64>) {
    let mut random = Rng::with_seed(seed ^ PUBLICATIONS_SALT);
    if random.u8(0..5) != 0 {
        return (Vec::new(), None);
    }
    let mut publications: Vec<PublicationPlan> = (0..random.u32(1..=PUBLICATIONS_MAX))
        .map(|n| PublicationPlan {
            n: PUBLICATIONS_FROM + n,
            at_ms: random.u64(0..chaos_ms),
            client: random.usize(0..clients),
            delay_ms: if random.bool() { random.u64(1..=chaos_ms) } else { 0 },
            max_attempts: if random.bool() { 1 } else { 20 },
            leaves_ms: (random.u8(0..10) == 0).then(|| random.u64(0..=50)),
        })
        .collect();
    publications.sort_by_key(|publication| (publication.at_ms, publication.n));
    (publications, random.bool().then(|| random.u64(1..=2)))
}

/// Draws crashes of clients. One seed in four has any.
fn client_crashes(chaos_ms: u64, clients: usize, random: &mut Rng) -> Vec<ClientCrashPlan> {
    let number = if random.u8(0..4) == 0 { random.u32(1..=3) } else { 0 };
    let crash = |_| ClientCrashPlan { at_ms: random.u64(0..chaos_ms), client: random.usize(0..clients) };
    let mut crashes: Vec<ClientCrashPlan> = (0..number).map(crash).collect();
    crashes.sort_by_key(|crash| crash.at_ms);
    crashes
}

/// Draws outages of the store. One seed in four has any.
fn outages(seed: u64, chaos_ms: u64) -> Vec<OutagePlan> {
    let mut random = Rng::with_seed(seed ^ OUTAGES_SALT);
    let number = if random.u8(0..4) == 0 { random.u32(1..=2) } else { 0 };
    let outage = |_| OutagePlan {
        at_ms: random.u64(0..chaos_ms),
        lasts_ms: random.u64(100..=OUTAGE_MS_MAX),
        hangs: random.bool(),
    };
    let mut outages: Vec<OutagePlan> = (0..number).map(outage).collect();
    outages.sort_by_key(|outage| outage.at_ms);
    outages
}

/// Draws steps of the clock, one after another, most of which are taken back. One seed in four has any.
///
/// A far step is taken back before the next one: two ahead look like a clock that is right, and a store that is called rarely (S17).
fn steps(seed: u64, chaos_ms: u64) -> Vec<StepPlan> {
    let mut random = Rng::with_seed(seed ^ STEPS_SALT);
    let number = if random.u8(0..4) == 0 { random.u32(1..=3) } else { 0 };
    let (mut steps, mut from_ms, mut forward_from_ms) = (Vec::new(), 0, 0_u64);
    for _ in 0..number {
        if chaos_ms <= from_ms {
            break;
        }
        let (mut at_ms, size_ms) = (random.u64(from_ms..chaos_ms), STEPS_MS[random.usize(0..STEPS_MS.len())]);
        let by_ms = if random.bool() || BACK_MS_MAX < size_ms { size_ms } else { -size_ms };
        let stays = random.u8(0..4) == 0 && STAYS_MS.contains(&by_ms);
        let lasts_ms_max = [1_000, 10_000, STEPPED_MS_MAX][random.usize(0..3)];
        let lasts_ms = random.u64(1..=lasts_ms_max);
        let forward_ms = at_ms + if by_ms < 0 { lasts_ms } else { 0 };
        at_ms += forward_from_ms.saturating_sub(forward_ms);
        forward_from_ms = forward_ms.max(forward_from_ms) + FORWARD_APART_MS;
        from_ms = at_ms + lasts_ms;
        steps.push(StepPlan { at_ms, by_ms });
        steps.extend((!stays).then_some(StepPlan { at_ms: from_ms, by_ms: -by_ms }));
    }
    steps
}

/// Draws a schedule. One seed in five has one.
fn schedule(random: &mut Rng) -> Option<SchedulePlan> {
    (random.u8(0..5) == 0)
        .then(|| SchedulePlan { every_ms: random.u64(1_000..=6_000), by_workers: random.bool() })
}

fn act(jobs: &[JobPlan], chaos_ms: u64, clients: usize, random: &mut Rng) -> ActPlan {
    let job = &jobs[random.usize(0..jobs.len())];
    let from = job.at_ms.min(chaos_ms - 1);
    let to = chaos_ms.min(from + job.delay_ms + 5_000);
    ActPlan {
        at_ms: random.u64(from..to.max(from + 1)),
        client: random.usize(0..clients),
        job: job.n,
        deed: match random.u8(0..8) {
            0..4 => DeedPlan::Cancel,
            4 => DeedPlan::RescheduleMs(random.u64(0..=10_000)),
            5 => DeedPlan::RunNow,
            6 => DeedPlan::Retry,
            _ => DeedPlan::Delete,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of `seeds.txt` that were found after this.
    const FOUND_LATER: [u64; 5] = [131, 5139, 6922, 8459, 1_037_613];

    #[test]
    fn seeds_that_found_something_before_meet_no_faults_that_were_added_later() {
        for seed in crate::seeds::kept().into_iter().filter(|seed| !FOUND_LATER.contains(seed)) {
            let plan = Plan::of(seed);
            let has = 0 < plan.faults.late || !plan.client_crashes.is_empty() || plan.schedule.is_some();
            assert!(!has, "seed {seed}");
        }
    }

    #[test]
    fn seeds_that_found_something_before_meet_no_outages_and_no_steps() {
        let kept = crate::seeds::kept();
        let has_none = |salt: &u64| kept.iter().all(|seed| Rng::with_seed(seed ^ salt).u8(0..4) != 0);
        for salt in [OUTAGES_SALT, STEPS_SALT] {
            assert!(
                has_none(&salt),
                "another salt: {:#x}",
                (salt..salt + 100_000).find(has_none).unwrap_or_default()
            );
        }
    }
}
