//! Queues of five layouts on a server of Redis, written by producers that go on while `punctual import` takes them over and is killed:
//! in the end each entry must be one job, and nothing may be left there.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use punctual::{Client, Filter, store::url::connect};

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
/// What is written before the first import begins, in percent; the rest comes while it is killed.
const BEFORE_PERCENT: u32 = 50;
const PRODUCERS: u32 = 2;
/// How long producers go on, for each kill.
const PER_KILL: Duration = Duration::from_millis(500);
/// The longest between the moment at which an import is seen at work and its kill, in microseconds.
const KILL_AFTER_US_MAX: u64 = 30_000;
/// Entries are due so long before and after now, in seconds.
const SPREAD_S: u32 = 300;
/// The longest that one layout may take.
const PATIENCE: Duration = Duration::from_mins(10);
const LOOK: Duration = Duration::from_millis(2);

/// One of the five.
#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    args: &'static [&'static str],
    /// Whether entries may be equal.
    has_equals: bool,
    /// What producers type for entries, each with its number and its time.
    write: fn(&[(u32, u64)]) -> Vec<Vec<String>>,
}

const LAYOUTS: [Layout; 5] = [
    Layout {
        name: "zset-keys",
        args: &["--key", "due", "--payload-key", "job:{member}", "--kind", "k"],
        has_equals: true,
        write: |entries| {
            let bodies = entries.iter().flat_map(|(n, _)| [format!("job:{n}"), body(equal(*n))]);
            vec![words("MSET", bodies), scored("due", entries, |n| n.to_string())]
        },
    },
    Layout {
        name: "zset-hash",
        args: &["--key", "due", "--hash", "bodies", "--kind", "k"],
        has_equals: true,
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
        args: &[],
        has_equals: true,
        write: |entries| {
            let call = |n: u32| format!("[\"k\",{}]", body(equal(n)));
            let later = |n: u32| format!("[\"{n}\",\"later\",\"k\",{}]", body(equal(n)));
            let (front, back) = entries.split_at(entries.len() / 2);
            let list = ["queue:mail".to_owned()].into_iter().chain(front.iter().map(|(n, _)| call(*n)));
            vec![words("RPUSH", list), scored("delayed:", back, later)]
        },
    },
    Layout {
        name: "backup",
        args: &["--list", "jobs", "--backup", "unacked", "--context", "messages", "--kind", "k"],
        has_equals: true,
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
        args: &["--key", "delay", "--shards", "4", "--kind", "k"],
        has_equals: false,
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

fn words(command: &str, more: impl IntoIterator<Item = String>) -> Vec<String> {
    [command.to_owned()].into_iter().chain(more).collect()
}

fn scored(key: &str, entries: &[(u32, u64)], member: impl Fn(u32) -> String) -> Vec<String> {
    let pairs = entries.iter().flat_map(|(n, at)| [at.to_string(), member(*n)]);
    words("ZADD", [key.to_owned()].into_iter().chain(pairs))
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
        let before = jobs / 100 * BEFORE_PERCENT / CHUNK * CHUNK;
        self.produce(0..before, now_s, Duration::ZERO, 0, 1).join().map_err(|_| "a producer fell over")??;
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|me| self.produce(before..jobs, now_s, PER_KILL * kills, me, PRODUCERS))
            .collect();
        let (mut killed, mut runs) = (0, 0);
        while killed < kills {
            runs += 1;
            killed += u32::from(self.kill_one(rng, killed, begin).await?);
        }
        for producer in producers {
            producer.join().map_err(|_| "a producer fell over")??;
        }
        let last = self.import(Stdio::piped())?.wait_with_output()?;
        if !last.status.success() {
            return Err(format!("the last import of {} ended with {}", self.layout.name, last.status).into());
        }
        eprint!("{} after {killed} kills: {}", self.layout.name, String::from_utf8_lossy(&last.stdout));
        self.judge(killed, runs, begin.elapsed()).await
    }

    /// Writes its share of the entries, evenly over a time.
    fn produce(
        &self,
        numbers: std::ops::Range<u32>,
        now_s: u64,
        over: Duration,
        me: u32,
        all: u32,
    ) -> JoinHandle<std::io::Result<()>> {
        let (socket, write) = (self.old.socket(), self.layout.write);
        thread::spawn(move || {
            let mut console = Console::open(&socket)?;
            let begin = Instant::now();
            let firsts: Vec<u32> = numbers.clone().step_by(CHUNK as usize).collect();
            let share = firsts.iter().enumerate().filter(|(at, _)| *at as u32 % all == me);
            for (at, first) in share {
                let due = begin + over.mul_f64(at as f64 / firsts.len() as f64);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let entries: Vec<(u32, u64)> = (*first..numbers.end.min(first + CHUNK))
                    .map(|n| {
                        (
                            n,
                            now_s + u64::from(n.wrapping_mul(2_654_435_761) % (2 * SPREAD_S))
                                - u64::from(SPREAD_S),
                        )
                    })
                    .collect();
                for command in write(&entries).iter().filter(|command| 2 < command.len()) {
                    console.say(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
                }
            }
            Ok(())
        })
    }

    /// Starts an import and kills it at work; answers whether it was, or had ended by then.
    async fn kill_one(&self, rng: &mut Rng, killed: u32, begin: Instant) -> Outcome<bool> {
        let Profile { jobs, kills, .. } = *self.profile;
        let at = u64::from(jobs / (kills + 1));
        let (here, mut child) = (self.count().await?, self.import(Stdio::null())?);
        // It has begun when there are more; and where is another matter in each run.
        let wanted = (here + 1).max(at * u64::from(killed) + rng.u64(..at));
        while self.count().await? < wanted {
            if let Some(status) = child.try_wait()? {
                return if status.success() {
                    Ok(false)
                } else {
                    Err(format!("an import ended with {status}").into())
                };
            }
            if PATIENCE < begin.elapsed() {
                child.kill()?;
                return Err("an import does not get on".into());
            }
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(Duration::from_micros(rng.u64(..KILL_AFTER_US_MAX))).await;
        child.kill()?;
        Ok(child.wait()?.signal() == Some(9))
    }

    fn import(&self, out: Stdio) -> Outcome<Child> {
        let mut command = Command::new(self.program);
        command.args(["import", self.layout.name, "--from", &self.old.root_url(), "--store", self.url]);
        Ok(command.args(self.layout.args).arg("--quiet").stdin(Stdio::null()).stdout(out).spawn()?)
    }

    async fn count(&self) -> Outcome<u64> {
        Ok(self.client.count(None).await?.total())
    }

    async fn judge(&self, killed: u32, runs: u32, took: Duration) -> Outcome<bool> {
        let (mut is_kept, name) = (true, self.layout.name);
        let mut broken = |what: String| {
            eprintln!("BROKEN {name}: {what}");
            is_kept = false;
        };
        let mut wanted: BTreeMap<String, i64> = BTreeMap::new();
        for n in 0..self.profile.jobs {
            *wanted.entry(body(if self.layout.has_equals { equal(n) } else { n })).or_default() += 1;
        }
        let found = all(&self.client, &Filter::parse("")?).await?;
        for job in &found {
            *wanted.entry(String::from_utf8_lossy(&job.payload.bytes).into_owned()).or_default() -= 1;
        }
        let lost: i64 = wanted.values().filter(|n| 0 < **n).sum();
        let doubled: i64 = wanted.values().filter(|n| **n < 0).sum();
        if lost != 0 || doubled != 0 {
            broken(format!("{lost} entries are lost, {} jobs are too many", -doubled));
        }
        let left = self.old.say(&["KEYS", "*"]);
        if !left.is_empty() {
            broken(format!("these keys are left there: {left:.200}"));
        }
        let audit = self.client.audit(false, |_| ()).await?;
        if !audit.findings.is_empty() {
            broken(format!("the audit finds {:?}", audit.findings));
        }
        let verdict = if is_kept { "each exactly once here, nothing left there" } else { "broken" };
        println!(
            "{name}: {} entries, {} jobs: {verdict}; {killed} kills, {runs} imports besides the last, {:.1} s",
            self.profile.jobs,
            found.len(),
            took.as_secs_f64()
        );
        Ok(is_kept)
    }
}
