//! Which drill, how large, and where: what the command line says.

use std::{path::PathBuf, time::Duration};

use crate::{
    forward::To,
    place::{Fsync, Wanted},
};

pub(crate) const USAGE: &str = "usage: punctual-chaos DRILL [--small] [--seed N] [--jobs N] [--kills N] [--dir DIR]
                      [--store URL | --redis | --http | --fsync always|everysec] [--power] [--seconds N]
                      [--sentinel | --cluster] [--stop | --holder] [--demo PROGRAM] [--program PROGRAM] [--to NAME] [--throughput]
  workers    worker processes killed at random while they work, with retries, cancels and moves
  producer   a producer killed in mid batch and run again with the same idempotency keys
  children   pipe workers with children in Python, both killed while they work (needs --program)
  poison     jobs that kill every worker that runs them, among good ones
  server     the server of Redis itself killed and started again, under workers and producers that go on
  failover   a primary of Redis killed for good, so that a replica takes over, or the jobs moved within a cluster and then
             their primary killed, under workers and producers that go on
  slice      one slice of a marathon: faults and jobs of all sorts, by --seed; on --redis, --sentinel, --cluster, --http or a file
  shards     the number of shards of a store on Redis changed from 1 to 8 to 3, then its queues pinned and spread again, under 5,000
             jobs a second, some up to 90 days ahead: limits of concurrency keys and groups hold
  part       a server of a cluster killed for --seconds, and two of four shards with it, under 2,000 jobs a second: what goes on
  fair       a group with very many jobs beside 99 with few, and what reserves cost with many groups
  forward    jobs handed over to other systems that fail in every way they know, by forwarders that are killed; of --jobs each
  races      cancels and reschedules aimed at the instant at which a job is due, or its run ends: each race has one winner
  limits     a concurrency key and a rate under more jobs than they let through, by workers that are killed: whether they are kept, and how much is used
  locks      updates to locked resources, by workers that are killed: one at a time, in order, none lost, merged or not
  schedules  schedules kept by workers that are killed, by a clock that is turned through the hours in which clocks jump
  stuck      a handler that never returns, a worker that dies twice with many jobs, and one that dies beside idle ones: who waits for it
  away       the store away for longer than leases last, beside jobs that run and workers that wait: none may run twice
  topics     a topic with 5 subscriptions, whose publications are handed out by workers that are killed
  import     queues of five layouts on Redis, taken over by `punctual import` that is killed, while producers go on
  idle       what 1 and 20 worker processes with nothing to do send to Redis
  --small    few jobs and kills, for a quick look
  --dir      keep the database and the histories there
  --store    on this store, which must be empty, instead of a file of SQLite
  --redis    on a server of Redis that is started for it, and syncs each write to its disk
  --http     on a file behind a server of punctual, which is killed, too (workers, producer)
  --fsync    the same as --redis; with everysec, answers of the last 2 s before a kill of the server may be lost, and are counted
  --power    everysec, and each kill of the server is a power cut: what it had not synced is gone
  --sentinel three servers of Redis and three sentinels are started for it (what failover takes unless told otherwise)
  --cluster  seven servers of Redis are
  --stop     by away: the server is stopped, not killed
  --holder   by away: the worker that has the jobs is killed, not the store: how long until they run again
  --demo     the punctual program, whose demo must go well on the same servers meanwhile
  --program  the punctual program, which imports, pushes while a part is away, or runs pipe workers
  --to       to this one alone, by forward: rabbitmq, nats, webhook
  --throughput  how many jobs a second it forwards to RabbitMQ from Redis, beside who just publishes
  --seconds  how long to watch who is idle, or a part is away";

/// A drill and its size.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: Name,
    pub(crate) place: Wanted,
    pub(crate) seed: u64,
    pub(crate) jobs: u32,
    /// SIGKILLs by the nemesis; poison jobs do their own killing.
    pub(crate) kills: u32,
    pub(crate) poison: u32,
    pub(crate) workers: usize,
    pub(crate) producers: u32,
    pub(crate) slots: usize,
    pub(crate) lease: Duration,
    /// Whether a kill of the server takes what was not synced with it.
    pub(crate) cuts_power: bool,
    /// For who is idle.
    pub(crate) watch: Duration,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) demo: Option<PathBuf>,
    pub(crate) program: Option<PathBuf>,
    /// Whom to forward to; all, unless it is said.
    pub(crate) to: Option<To>,
    pub(crate) is_small: bool,
    /// By away.
    pub(crate) absent: Absent,
    /// Instead of a drill.
    pub(crate) measures_throughput: bool,
}

/// Who goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The store: its server is killed.
    Killed,
    /// The store: its server is stopped.
    Stopped,
    /// Who has the jobs, and not the store.
    Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Workers,
    Producer,
    Children,
    Poison,
    Server,
    Failover,
    Slice,
    Shards,
    Part,
    Fair,
    Forward,
    Races,
    Limits,
    Locks,
    Schedules,
    Stuck,
    Away,
    Topics,
    Import,
    Idle,
}

impl Name {
    const ALL: [Self; 20] = [
        Self::Workers,
        Self::Producer,
        Self::Children,
        Self::Poison,
        Self::Server,
        Self::Failover,
        Self::Slice,
        Self::Shards,
        Self::Part,
        Self::Fair,
        Self::Forward,
        Self::Races,
        Self::Limits,
        Self::Locks,
        Self::Schedules,
        Self::Stuck,
        Self::Away,
        Self::Topics,
        Self::Import,
        Self::Idle,
    ];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Producer => "producer",
            Self::Children => "children",
            Self::Poison => "poison",
            Self::Server => "server",
            Self::Failover => "failover",
            Self::Slice => "slice",
            Self::Shards => "shards",
            Self::Part => "part",
            Self::Fair => "fair",
            Self::Forward => "forward",
            Self::Races => "races",
            Self::Limits => "limits",
            Self::Locks => "locks",
            Self::Schedules => "schedules",
            Self::Stuck => "stuck",
            Self::Away => "away",
            Self::Topics => "topics",
            Self::Import => "import",
            Self::Idle => "idle",
        }
    }

    /// Where it takes place unless told otherwise.
    const fn place(self) -> Wanted {
        match self {
            Self::Workers
            | Self::Producer
            | Self::Children
            | Self::Poison
            | Self::Slice
            | Self::Fair
            | Self::Forward
            | Self::Races
            | Self::Limits
            | Self::Locks
            | Self::Schedules
            | Self::Stuck
            | Self::Away
            | Self::Topics
            | Self::Import => Wanted::File,
            Self::Server | Self::Idle => Wanted::Server(Fsync::Always),
            Self::Failover => Wanted::Sentinel,
            Self::Part => Wanted::Cluster,
            Self::Shards => Wanted::Server(Fsync::EverySec),
        }
    }

    /// Whether it can take place there: what is about servers of Redis starts them itself.
    const fn suits(self, place: &Wanted) -> bool {
        match self {
            Self::Workers | Self::Producer => true,
            // It takes the store away itself.
            Self::Away => !matches!(place, Wanted::Store(_) | Wanted::WholeCluster),
            // Its faults are those of the servers that it starts.
            Self::Slice => !matches!(place, Wanted::Store(_) | Wanted::Cluster),
            // They open the store for the parent in ways of their own.
            Self::Children
            | Self::Poison
            | Self::Races
            | Self::Fair
            | Self::Forward
            | Self::Limits
            | Self::Locks
            | Self::Topics
            | Self::Import => !matches!(place, Wanted::Http),
            Self::Server | Self::Idle => matches!(place, Wanted::Server(_)),
            Self::Schedules | Self::Stuck => matches!(place, Wanted::Server(_) | Wanted::File),
            Self::Shards => matches!(place, Wanted::Server(_) | Wanted::Store(_)),
            Self::Failover => matches!(place, Wanted::Sentinel | Wanted::Cluster),
            Self::Part => matches!(place, Wanted::Cluster),
        }
    }
}

impl Profile {
    fn new(name: Name, small: bool) -> Self {
        let pick = |big, little| if small { little } else { big };
        let base = Self {
            name,
            place: name.place(),
            seed: fastrand::u64(..),
            jobs: 0,
            kills: 0,
            poison: 0,
            workers: 4,
            producers: 0,
            slots: 8,
            lease: Duration::from_secs(2),
            cuts_power: false,
            watch: Duration::from_secs(pick(120, 5).into()),
            dir: None,
            demo: None,
            program: None,
            to: None,
            is_small: small,
            absent: Absent::Killed,
            measures_throughput: false,
        };
        match name {
            Name::Workers => Self {
                jobs: pick(5_000, 400),
                kills: pick(40, 6),
                lease: Duration::from_secs(pick(2, 1).into()),
                ..base
            },
            // No worker is killed: each lease that one loses is a fault.
            Name::Producer => Self {
                jobs: pick(100_000, 6_000),
                kills: 4,
                workers: 2,
                slots: 200,
                lease: Duration::from_secs(15),
                ..base
            },
            // A lease is long enough that a busy machine costs none.
            Name::Children => Self {
                jobs: pick(5_000, 300),
                kills: pick(40, 6),
                slots: 2,
                lease: Duration::from_secs(5),
                ..base
            },
            Name::Poison => Self {
                jobs: pick(500, 60),
                poison: pick(5, 1),
                slots: 4,
                lease: Duration::from_secs(1),
                ..base
            },
            Name::Server => Self { jobs: pick(20_000, 2_000), kills: pick(10, 3), producers: 2, ..base },
            Name::Failover => Self { jobs: pick(10_000, 2_000), kills: pick(4, 1), producers: 2, ..base },
            Name::Slice => Self { jobs: pick(10_000, 600), kills: pick(10, 3), producers: 2, ..base },
            // No harm is done: each lease that one loses is a fault.
            Name::Shards => Self {
                jobs: pick(100_000, 20_000),
                producers: 10,
                slots: 64,
                lease: Duration::from_secs(15),
                ..base
            },
            Name::Part => Self { watch: Duration::from_secs(pick(60, 10).into()), ..base },
            Name::Forward => Self { jobs: pick(100_000, 2_000), ..base },
            Name::Fair => Self { jobs: pick(1_000_000, 20_000), ..base },
            // A lease is longer than a busy disk takes to write: each that ends without a kill is a fault.
            Name::Races => {
                Self { jobs: pick(10_000, 1_000), kills: pick(20, 4), lease: Duration::from_secs(3), ..base }
            }
            Name::Locks => {
                Self { jobs: pick(10_000, 1_500), kills: pick(50, 8), workers: 8, slots: 4, ..base }
            }
            Name::Limits => Self { kills: pick(50, 10), slots: 16, lease: Duration::from_secs(1), ..base },
            Name::Stuck => Self { kills: pick(20, 2), ..base },
            Name::Schedules => Self { kills: pick(40, 10), ..base },
            Name::Topics => {
                Self { jobs: pick(1_000, 200), kills: pick(40, 15), lease: Duration::from_secs(1), ..base }
            }
            Name::Import => Self { jobs: pick(100_000, 2_000), kills: 5, ..base },
            Name::Away | Name::Idle => base,
        }
    }

    /// Reads the command line.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let (name, rest) = args.split_first().ok_or("which drill?")?;
        let name = Name::ALL.into_iter().find(|known| known.text() == name);
        let name = name.ok_or_else(|| format!("unknown drill {:?}", args[0]))?;
        let small = rest.iter().any(|arg| arg == "--small");
        let mut profile = Self::new(name, small);
        let mut rest = rest.iter().filter(|arg| *arg != "--small");
        while let Some(option) = rest.next() {
            match option.as_str() {
                "--redis" => profile.place = Wanted::Server(Fsync::Always),
                "--http" => profile.place = Wanted::Http,
                "--stop" => profile.absent = Absent::Stopped,
                "--holder" => profile.absent = Absent::Holder,
                "--throughput" => profile.measures_throughput = true,
                "--sentinel" => profile.place = Wanted::Sentinel,
                "--cluster" if name == Name::Slice => profile.place = Wanted::WholeCluster,
                "--cluster" => profile.place = Wanted::Cluster,
                "--power" => (profile.place, profile.cuts_power) = (Wanted::Server(Fsync::EverySec), true),
                _ => profile.set(option, rest.next().ok_or_else(|| format!("{option} needs a value"))?)?,
            }
        }
        if profile.absent != Absent::Killed && name != Name::Away {
            return Err(format!("--stop and --holder are for away, not for {}", name.text()));
        }
        if profile.absent == Absent::Stopped && !matches!(profile.place, Wanted::Server(_)) {
            return Err("--stop needs --redis".to_owned());
        }
        if !name.suits(&profile.place) {
            return Err(format!("the drill {} needs servers of its own, and not those", name.text()));
        }
        Ok(profile)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        match option {
            "--seed" => self.seed = number()?,
            "--jobs" => self.jobs = number()? as u32,
            "--kills" => self.kills = number()? as u32,
            "--seconds" => self.watch = Duration::from_secs(number()?),
            "--program" => self.program = Some(PathBuf::from(value)),
            "--demo" => self.demo = Some(PathBuf::from(value)),
            "--dir" => self.dir = Some(PathBuf::from(value)),
            "--to" => {
                let known = To::ALL.into_iter().find(|to| to.text() == value);
                self.to = Some(known.ok_or_else(|| format!("{value:?} is nobody to forward to"))?);
            }
            "--store" => self.place = Wanted::Store(value.to_owned()),
            "--fsync" => {
                let known = [Fsync::Always, Fsync::EverySec].into_iter().find(|f| f.text() == value);
                let fsync = known.ok_or_else(|| format!("{value:?} is neither always nor everysec"))?;
                self.place = Wanted::Server(fsync);
            }
            other => return Err(format!("unknown option {other:?}")),
        }
        Ok(())
    }
}
