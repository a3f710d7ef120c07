//! Queues of five layouts on a server of Redis, written by producers that go on while `punctual import` takes them over and is killed:
//! in the end each entry must be one job, of its queue and kind, and nothing may be left there but what can be no job, once.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use punctual::{Client, JobRecord, job::Filter, store::url::connect};

use crate::{
    console::Console,
    drill::{Outcome, Stage},
    jobs::all,
    place::Place,
    profile::Profile,
    server::Server,
};

/// Entries that a producer writes at once; those that are equal are written together.
const CHUNK: u32 = 20;
/// Of so many entries the last is equal to the one before it, where a layout may have such.
const EQUAL_EVERY: u32 = 10;
/// Of so many entries of the layout with a backup one was popped and not acknowledged.
const POPPED_EVERY: u32 = 10;
const PRODUCERS: usize = 2;
/// How long producers go on while one import is at work.
const PER_ROUND: Duration = Duration::from_millis(500);
/// The longest between the moment at which an import is seen at work and its kill.
const KILL_AFTER_MAX: Duration = Duration::from_millis(30);
/// Entries are due so long before and after now, in seconds.
const SPREAD_S: u32 = 300;
/// The longest that one layout may take.
const PATIENCE: Duration = Duration::from_mins(10);
const LOOK: Duration = Duration::from_millis(1);

/// The number of an entry, and when it is due, in seconds.
type Entry = (u32, u64);
/// A command.
type Words = Vec<String>;
/// What an entry becomes: payload, queue and kind.
type Job = (String, &'static str, &'static str);
/// A list and its only element.
type Single = (&'static str, &'static str);

/// One of the five.
#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    args: &'static [&'static str],
    /// The state of an import of the first of its keys.
    state: &'static str,
    /// Typed once, before all.
    once: &'static [&'static [&'static str]],
    /// What comes of that: a job.
    comes: Option<fn() -> Job>,
    /// And what can be none, where it must stand.
    refused: Single,
    /// What becomes of an entry.
    job: fn(u32) -> Job,
    /// What producers type for entries, each with its number and its time.
    write: fn(&[Entry]) -> Vec<Words>,
}

const LAYOUTS: [Layout; 5] = [
    Layout {
        name: "zset-keys",
        state: "punctual:import:state:due",
        args: &["--key", "due", "--payload-key", "job:{member}", "--kind", "k"],
        once: &[],
        comes: None,
        refused: ("", ""),
        job: |n| (body(equal(n)), "default", "k"),
        write: |entries| {
            let bodies = entries.iter().flat_map(|(n, _)| [format!("job:{n}"), body(equal(*n))]);
            vec![words("MSET", bodies), scored("due", entries, |n| n.to_string())]
        },
    },
    Layout {
        name: "zset-hash",
        state: "punctual:import:state:due",
        args: &["--key", "due", "--hash", "bodies", "--kind", "k"],
        once: &[],
        comes: None,
        refused: ("", ""),
        job: |n| (body(equal(n)), "default", "k"),
        write: |entries| {
            let bodies = entries.iter().flat_map(|(n, _)| [n.to_string(), body(equal(*n))]);
            vec![
                words("HSET", ["bodies".into()].into_iter().chain(bodies)),
                scored("due", entries, |n| n.to_string()),
            ]
        },
    },
    Layout {
        name: "lists",
        state: "punctual:import:state:delayed:",
        args: &[],
        once: &[&["RPUSH", "queue:open", "[\"once\",{}]"], &["RPUSH", "queue:mail", "broken"]],
        comes: Some(|| ("{}".into(), "open", "once")),
        refused: ("punctual:import:refused:queue:mail", "broken"),
        job: |n| (body(equal(n)), if is_later(n) { "later" } else { "mail" }, "k"),
        write: |entries| {
            let call = |n: u32| format!("[\"k\",{}]", body(equal(n)));
            let later = |n: u32| format!("[\"{n}\",\"later\",\"k\",{}]", body(equal(n)));
            let (delayed, waiting): (Vec<_>, Vec<_>) = entries.iter().partition(|(n, _)| is_later(*n));
            let list = ["queue:mail".to_owned()].into_iter().chain(waiting.iter().map(|(n, _)| call(*n)));
            vec![words("RPUSH", list), scored("delayed:", &delayed, later)]
        },
    },
    Layout {
        name: "backup",
        state: "punctual:import:state:jobs",
        args: &["--list", "jobs", "--backup", "unacked", "--context", "messages", "--kind", "k"],
        once: &[],
        comes: None,
        refused: ("", ""),
        job: |n| (body(equal(n)), "default", "k"),
        write: |entries| {
            let id = |n: u32| format!("m{}", equal(n));
            let bodies = entries.iter().flat_map(|(n, _)| [id(*n), body(equal(*n))]);
            let (popped, waiting): (Vec<_>, Vec<_>) = entries.iter().partition(|(n, _)| is_popped(*n));
            let list = ["jobs".to_owned()].into_iter().chain(waiting.iter().map(|(n, _)| id(*n)));
            vec![
                words("HSET", ["messages".into()].into_iter().chain(bodies)),
                scored("unacked", &popped, id),
                words("RPUSH", list),
            ]
        },
    },
    Layout {
        name: "zset",
        state: "punctual:import:state:delay:0",
        args: &["--key", "delay", "--shards", "4", "--kind", "k"],
        once: &[],
        comes: None,
        refused: ("", ""),
        job: |n| (body(n), "default", "k"),
        write: |entries| {
            let of =
                |shard: u32| entries.iter().filter(move |(n, _)| n % 4 == shard).copied().collect::<Vec<_>>();
            (0..4).map(|shard| scored(&format!("delay:{shard}"), &of(shard), body)).collect()
        },
    },
];

fn body(n: u32) -> String {
    format!("{{\"n\":{n}}}")
}

/// The number whose payload an entry has.
const fn equal(n: u32) -> u32 {
    if n % EQUAL_EVERY == EQUAL_EVERY - 1 { n - 1 } else { n }
}

/// Whether an entry was popped; none of two equal ones.
const fn is_popped(n: u32) -> bool {
    n % POPPED_EVERY == 3
}

/// Whether an entry of the layout with lists stands in the sorted set; none of two equal ones alone.
const fn is_later(n: u32) -> bool {
    CHUNK / 2 <= n % CHUNK
}

fn words(command: &str, more: impl IntoIterator<Item = String>) -> Words {
    [command.to_owned()].into_iter().chain(more).collect()
}

fn scored(key: &str, entries: &[Entry], member: impl Fn(u32) -> String) -> Words {
    let pairs = entries.iter().flat_map(|(n, at)| [at.to_string(), member(*n)]);
    words("ZADD", [key.to_owned()].into_iter().chain(pairs))
}

type Producer = JoinHandle<io::Result<()>>;

fn join(producers: Vec<Producer>) -> Outcome<()> {
    for producer in producers {
        producer.join().map_err(|_| "a producer fell over")??;
    }
    Ok(())
}

/// When an entry is due: half of them are already.
fn due_s(n: u32, now_s: u64) -> u64 {
    now_s + u64::from(n.wrapping_mul(2_654_435_761) % (2 * SPREAD_S)) - u64::from(SPREAD_S)
}

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let program = profile.program.as_deref().ok_or("--program says which punctual imports")?;
    let stage = Stage::set(profile)?;
    let (mut is_kept, mut rng) = (true, Rng::with_seed(profile.seed));
    for layout in LAYOUTS {
        let dir = stage.dir.join(layout.name);
        std::fs::create_dir_all(&dir)?;
        let place = Place::make(&profile.place, &dir);
        is_kept &= stage.runtime.block_on(async {
            let client = Client::new(connect(&place.url).await?);
            let old = Server::start(&[]);
            let drill = Drill { profile, layout, program, url: &place.url, old, client };
            drill.run(&mut rng).await
        })?;
    }
    Ok(is_kept)
}

struct Drill<'a> {
    profile: &'a Profile,
    layout: Layout,
    program: &'a Path,
    url: &'a str,
    old: Server,
    client: Client,
}

impl Drill<'_> {
    async fn run(&self, rng: &mut Rng) -> Outcome<bool> {
        let Profile { jobs, kills, .. } = *self.profile;
        let (begin, now_s) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
        let slice = jobs / (kills + 1) / CHUNK * CHUNK;
        let mut console = Console::open(&self.old.socket())?;
        for command in self.layout.once {
            console.say(command)?;
        }
        for round in 0..=kills {
            let end = if round == kills { jobs } else { (round + 1) * slice };
            // A part is there when the import begins, the other one comes while it is at work.
            let middle = u32::midpoint(round * slice, end) / CHUNK * CHUNK;
            join(self.produce(&(round * slice..middle), now_s, Duration::ZERO))?;
            let producers = self.produce(&(middle..end), now_s, PER_ROUND);
            if round == kills {
                self.last()?;
            } else {
                self.kill_one(rng, u64::from(middle - round * slice), begin).await?;
            }
            join(producers)?;
        }
        let told = self.last()?;
        eprint!("{} after {kills} kills: {told}", self.layout.name);
        self.judge(begin.elapsed()).await
    }

    /// Writes entries from several threads, evenly over a time.
    fn produce(&self, numbers: &Range<u32>, now_s: u64, over: Duration) -> Vec<Producer> {
        let begin = Instant::now();
        (0..PRODUCERS)
            .map(|me| {
                let (socket, write, numbers) = (self.old.socket(), self.layout.write, numbers.clone());
                thread::spawn(move || {
                    let mut console = Console::open(&socket)?;
                    let firsts: Vec<u32> = numbers.clone().step_by(CHUNK as usize).collect();
                    for (at, first) in firsts.iter().enumerate().filter(|(at, _)| at % PRODUCERS == me) {
                        let due = begin + over.mul_f64(at as f64 / firsts.len() as f64);
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        let entries: Vec<Entry> =
                            (*first..numbers.end.min(first + CHUNK)).map(|n| (n, due_s(n, now_s))).collect();
                        for command in write(&entries).iter().filter(|command| 2 < command.len()) {
                            console.say(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
                        }
                    }
                    Ok(())
                })
            })
            .collect()
    }

    /// Starts an import that does not end by itself, and kills it at work.
    async fn kill_one(&self, rng: &mut Rng, there: u64, begin: Instant) -> Outcome<()> {
        let mut console = Console::open(&self.old.socket())?;
        let mut owner = || console.say(&["HGET", self.layout.state, "owner"]);
        let (here, before) = (self.count().await?, owner()?);
        let mut child = self.import(&["--follow"], Stdio::null())?;
        // Either it has just begun, or it has come so far.
        let wanted = if rng.bool() { None } else { Some(here + 1 + rng.u64(..there.max(1))) };
        loop {
            let has_begun = match wanted {
                Some(wanted) => wanted <= self.count().await?,
                None => ![String::new(), before.clone()].contains(&owner()?) || here < self.count().await?,
            };
            if has_begun {
                break;
            }
            if let Some(status) = child.try_wait()? {
                return Err(format!("an import ended with {status}").into());
            }
            if PATIENCE < begin.elapsed() {
                child.kill()?;
                return Err("an import does not get on".into());
            }
            tokio::time::sleep(LOOK).await;
        }
        // Mostly at once: what was just seen is durable here, and may not be removed there yet.
        tokio::time::sleep(KILL_AFTER_MAX.mul_f64(rng.f64().powi(3))).await;
        child.kill()?;
        match child.wait()?.signal() {
            Some(9) => Ok(()),
            other => Err(format!("an import ended before its kill: {other:?}").into()),
        }
    }

    /// An import that goes to its end; answers what it says.
    fn last(&self) -> Outcome<String> {
        let output = self.import(&[], Stdio::piped())?.wait_with_output()?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        // The one that meets what can be no job says so.
        let is_whole =
            output.status.success() || output.status.code() == Some(1) && told.contains(" 1 refused");
        if is_whole {
            return Ok(told);
        }
        Err(format!("the last import of {} ended with {}: {told}", self.layout.name, output.status).into())
    }

    fn import(&self, more: &[&str], out: Stdio) -> Outcome<Child> {
        let mut command = Command::new(self.program);
        command.args(["import", self.layout.name, "--from", &self.old.root_url(), "--store", self.url]);
        Ok(command
            .args(self.layout.args)
            .args(more)
            .arg("--quiet")
            .stdin(Stdio::null())
            .stdout(out)
            .spawn()?)
    }

    async fn count(&self) -> Outcome<u64> {
        Ok(self.client.count(None).await?.total())
    }

    async fn judge(&self, took: Duration) -> Outcome<bool> {
        let (mut is_kept, name) = (true, self.layout.name);
        let mut broken = |what: String| {
            eprintln!("BROKEN {name}: {what}");
            is_kept = false;
        };
        let mut wanted: BTreeMap<(String, String, String), i64> = BTreeMap::new();
        let once = self.layout.comes.map(|job| job());
        for (payload, queue, kind) in (0..self.profile.jobs).map(self.layout.job).chain(once) {
            *wanted.entry((payload, queue.to_owned(), kind.to_owned())).or_default() += 1;
        }
        let found = all(&self.client, &Filter::parse("")?).await?;
        let of = |job: &JobRecord| {
            (String::from_utf8_lossy(&job.payload.bytes).into_owned(), job.queue.clone(), job.kind.clone())
        };
        for job in &found {
            *wanted.entry(of(job)).or_default() -= 1;
        }
        let lost: i64 = wanted.values().filter(|n| 0 < **n).sum();
        let doubled: i64 = wanted.values().filter(|n| **n < 0).sum();
        if lost != 0 || doubled != 0 {
            let ids: BTreeSet<_> = found.iter().map(|job| job.id).collect();
            let listed = found.len();
            broken(format!(
                "{lost} entries are lost, {} jobs are too many: {} ids, {listed} listed",
                -doubled,
                ids.len()
            ));
            let worst = wanted.iter().find(|(_, n)| **n < 0).map(|(job, _)| job);
            for job in found.iter().filter(|job| Some(&of(job)) == worst) {
                broken(format!("{} came at {}, due at {}", job.id, job.created_at, job.run_at));
            }
        }
        let (list, element) = self.layout.refused;
        let refused = self.old.say(&["LRANGE", list, "0", "-1"]);
        if refused != element {
            broken(format!("what can be no job stands there as {refused:?}"));
        }
        let left = self.old.say(&["KEYS", "*"]);
        if left != list {
            broken(format!("these keys are left there: {left:.200}"));
        }
        let audit = self.client.audit(false, |_| ()).await?;
        if !audit.findings.is_empty() {
            broken(format!("the audit finds {:?}", audit.findings));
        }
        let verdict = if is_kept { "each exactly once here, nothing left there" } else { "broken" };
        println!(
            "{name}: {} entries, {} jobs: {verdict}; {} kills, {:.1} s",
            self.profile.jobs,
            found.len(),
            self.profile.kills,
            took.as_secs_f64()
        );
        Ok(is_kept)
    }
}
