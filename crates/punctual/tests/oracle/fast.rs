//! The fast path of the scripts of Redis beside the general one. Two stores differ in nothing else. After each step of a history they
//! have answered alike and hold the same keys, byte by byte. The answers also match the model, unless the test says for which times
//! the callers wake.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use punctual::{
    Timestamp,
    store::{
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};
use redis::Connection;

use crate::{
    apart, generate, memory, plain,
    server::Server,
    side::{Opener, Side, difference},
    some_cases, turn,
};

/// Steps of a history, without those that begin it.
const STEPS: usize = 150;

/// How long a notification may be on its way that a store sends by itself.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(20);

/// Returns all keys with a prefix: each without it, with its fields and values, its members and scores, or its value.
const DUMP: &str = r"
    local all = {}
    for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
        local kind, rows = redis.call('TYPE', key).ok, {}
        local found = kind == 'hash' and redis.call('HGETALL', key) or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
            or {'', redis.call('GET', key)}
        for i = 1, #found, 2 do rows[#rows + 1] = {found[i], found[i + 1]} end
        all[#all + 1] = {string.sub(key, #ARGV[1] + 1), rows}
    end
    return all
";

/// A field and its value, or a member and its score.
type Row = (Vec<u8>, Vec<u8>);

/// What a key holds: fields and values, or members and scores; sorted.
type Held = BTreeMap<Vec<u8>, Vec<u8>>;

/// A digest of what each key holds, without the prefix of the store, and the rows of its state.
type Digests = (Vec<(String, String)>, Held);

/// A store on a server, its handles, and what it holds there.
struct Looked {
    url: String,
    connection: Connection,
    handles: Arc<Mutex<Vec<Weak<RedisStore>>>>,
    /// The keys that it had at the last look, sorted.
    known: Vec<String>,
}

impl Looked {
    fn new(server: &Server) -> Self {
        let url = server.root_url();
        let mut connection = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        // What the histories before left would be searched through at each step.
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        Self { url, connection, handles: Arc::default(), known: Vec::new() }
    }

    fn opener(&self, clock: &ManualClock, is_fast: bool) -> Opener {
        let (url, clock, handles) =
            (self.url.clone(), Clock::Manual(clock.clone()), Arc::clone(&self.handles));
        Box::new(move || {
            let clock = clock.clone();
            let store = if is_fast {
                apart(RedisStore::open(&url, clock))
            } else {
                apart(RedisStore::open_without_fast(&url, clock))
            };
            let store = Arc::new(store.unwrap());
            handles.lock().unwrap().push(Arc::downgrade(&store));
            store
        })
    }

    /// Makes scripts assume that the handles wake only for these times.
    fn hold(&self, times: Option<&[Timestamp]>) {
        for handle in self.handles.lock().unwrap().iter().filter_map(Weak::upgrade) {
            handle.say_that_it_holds(times);
        }
    }

    /// The time at which two processes are said to wake for the first queue.
    fn watched(&mut self) -> Option<Timestamp> {
        let key = format!("{}:{{0}}:i", self.url.rsplit_once("prefix=").unwrap().1);
        let row: Option<Vec<u8>> =
            redis::cmd("HGET").arg(key).arg(b"\0\0\x01w").query(&mut self.connection).unwrap();
        let watch = row?.get(7..14)?.iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte));
        Some(Timestamp::saturating_from_ms(watch))
    }

    /// Digests of everything that the store holds. The server computes them, because what it would send takes longer than all the rest of
    /// a history.
    fn digests(&mut self) -> Digests {
        let prefix = self.url.rsplit_once("prefix=").unwrap().1;
        // This one has the identity of the store.
        let state = format!("{prefix}:{{0}}:s");
        loop {
            let mut calls = redis::pipe();
            calls.cmd("KEYS").arg(format!("{prefix}:*")).cmd("HGETALL").arg(&state);
            calls.cmd("DEBUG").arg("DIGEST-VALUE").arg(&self.known);
            let (mut found, mut rows, digests): (Vec<String>, Held, Vec<String>) =
                calls.query(&mut self.connection).unwrap();
            found.retain(|key| *key != state);
            found.sort_unstable();
            if found == self.known {
                rows.remove(&b"identity"[..]);
                let names = found.into_iter().map(|key| key[prefix.len()..].to_owned());
                return (names.zip(digests).collect(), rows);
            }
            self.known = found;
        }
    }

    /// Everything that the store holds, by key without the prefix of the store.
    fn keys(&mut self) -> BTreeMap<Vec<u8>, Held> {
        let prefix = self.url.rsplit_once("prefix=").unwrap().1;
        let mut call = redis::cmd("EVAL");
        let all: Vec<(Vec<u8>, Vec<Row>)> =
            call.arg(DUMP).arg(0).arg(format!("{prefix}:")).query(&mut self.connection).unwrap();
        let rows = |rows: Vec<Row>| {
            // Each store has an identity of its own.
            rows.into_iter().filter(|(field, _)| field != b"identity").collect()
        };
        all.into_iter().map(|(key, found)| (key, rows(found))).collect()
    }
}

/// Returns the first difference between what two stores hold, once it lasts.
fn other_keys(fast: &mut Looked, slow: &mut Looked) -> Option<String> {
    if fast.digests() == slow.digests() {
        return None;
    }
    let begin = Instant::now();
    loop {
        let (one, other) = (fast.keys(), slow.keys());
        if one == other {
            return None;
        }
        let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
        let differing: Vec<_> = names.into_iter().filter(|name| one.get(*name) != other.get(*name)).collect();
        let is_on_its_way = |name: &Vec<u8>| name.windows(3).any(|part| part == b":w:");
        let late = differing.first().filter(|_| ON_ITS_WAY_MAX < begin.elapsed());
        if let Some(&name) = differing.iter().find(|name| !is_on_its_way(name)).or(late) {
            let only = |these: Option<&Held>, those: Option<&Held>| -> Vec<String> {
                let has = |(field, value): &(&Vec<u8>, &Vec<u8>)| {
                    those.and_then(|those| those.get(*field)) != Some(*value)
                };
                let rows = these.into_iter().flatten().filter(has);
                rows.map(|(field, value)| format!("{} = {}", field.escape_ascii(), value.escape_ascii()))
                    .collect()
            };
            let (fast, slow) = (one.get(name), other.get(name));
            return Some(format!(
                "{}\n  fast: {:#?}\n  else: {:#?}",
                name.escape_ascii(),
                only(fast, slow),
                only(slow, fast)
            ));
        }
    }
}

/// Runs the history of a seed. Returns the first difference.
fn run(servers: &[Server; 2], seed: u64, has_groups: bool) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(generate::BEGIN_MS));
    let [mut keys, mut other] = servers.each_ref().map(Looked::new);
    let mut fast = Side::new(keys.opener(&clock, true), 2);
    let mut slow = Side::new(other.opener(&clock, false), 2);
    let mut model = Side::new(memory(&clock), 1);
    let (mut rng, steps) = (fastrand::Rng::with_seed(seed), plain::history(seed, STEPS, has_groups));
    for (i, step) in steps.iter().enumerate() {
        turn(&clock, step);
        let watched: Vec<Timestamp> = keys.watched().into_iter().collect();
        let held = [None, Some(&[][..]), Some(&watched)][rng.usize(..3)];
        keys.hold(held);
        other.hold(held);
        let [expected, slow, fast] =
            [&mut model, &mut slow, &mut fast].map(|side| runtime.block_on(side.step(step)));
        // A caller that leaves a time to other processes gets a later one. The model does not have this rule.
        let text = if held.is_none() { difference(&expected, &fast) } else { None };
        let text = text.or_else(|| difference(&slow, &fast));
        if let Some(text) = text.or_else(|| other_keys(&mut keys, &mut other)) {
            return Some(format!("step {i} {:?} differs: {text}", step.op));
        }
    }
    None
}

/// Calls that the fast path answers, and a command that it saves there (-1) or adds (1).
const ANSWERS: [(&str, &str, i64); 3] =
    [("enqueues", "hexists", 1), ("reserves", "zremrangebylex", -1), ("acks of kept jobs", "hincrby", -1)];

/// How often a server executed a command.
fn calls(server: &Server, command: &str) -> i64 {
    let stats = server.say(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
}

#[test]
fn the_fast_path_leaves_what_the_general_path_leaves() {
    compare(false);
}

#[test]
fn the_fast_path_leaves_what_the_general_path_leaves_of_groups() {
    compare(true);
}

/// Runs histories on both paths, whose jobs are of groups or not.
fn compare(has_groups: bool) {
    let seeds: Vec<u64> = some_cases(100).iter().map(|case| case.seed).collect();
    let next = AtomicUsize::new(0);
    let saved = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let servers = [(); 2].map(|()| Server::start(&["--enable-debug-command", "yes"]));
                    while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Some(text) = run(&servers, seed, has_groups) {
                            next.store(seeds.len(), Ordering::Relaxed);
                            panic!("seed {seed}: {text}");
                        }
                    }
                    ANSWERS.map(|(_, command, sign)| {
                        let [fast, slow] = servers.each_ref().map(|server| calls(server, command));
                        sign * (fast - slow)
                    })
                })
            })
            .collect();
        let each: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        [0, 1, 2].map(|i| each.iter().map(|saved| saved[i]).sum::<i64>())
    });
    for ((what, ..), n) in ANSWERS.into_iter().zip(saved) {
        println!("{} histories: {what} on the fast path differ by {n} commands", seeds.len());
        assert!(
            2 * seeds.len() <= usize::try_from(n).unwrap_or(0),
            "{what} on the fast path differ by {n} commands only"
        );
    }
}
