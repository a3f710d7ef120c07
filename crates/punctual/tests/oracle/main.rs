//! Every store against the model, reply by reply, under random histories that are rude on purpose.
//!
//! `PUNCTUAL_ORACLE_HISTORIES` says how many (default 300, of 60 steps each), `PUNCTUAL_ORACLE_FIRST` from which seed on (default 1:
//! a long run that found something goes on behind it). A failing history is cut down and printed with its seed; add the seed to
//! `oracle-seeds.txt`, which every run replays first.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod broken;
mod documents;
#[cfg(feature = "redis")]
mod fast;
mod generate;
mod op;
mod operators;
#[cfg(feature = "redis")]
mod plain;
mod reach;
mod rude;
mod shape;
mod shrink;
mod side;
mod tools;

#[cfg(feature = "redis")]
#[path = "../support/redis.rs"]
mod server;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

#[cfg(feature = "redis")]
use punctual::store::redis::RedisStore;
#[cfg(feature = "sqlite")]
use punctual::store::sqlite::{SqliteOptions, SqliteStore};
use punctual::{
    Timestamp,
    store::{
        Store,
        clock::{Clock, ManualClock},
        memory::MemoryStore,
    },
};

use crate::{
    broken::{Broken, Bug},
    op::{Op, Step},
    rude::Tally,
    shape::Shape,
    side::{Opener, Side, difference},
};

const STEPS: usize = 60;

/// A kind of store under test: makes an empty one that runs by a clock.
type Subject<'a> = &'a (dyn Fn(&ManualClock) -> Opener + Sync);

/// Runs a history on the model and on a fresh store; tells the first difference. Notes what the store met.
fn run(subject: Subject<'_>, steps: &[Step], handles: usize, tally: &mut Tally) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(generate::BEGIN_MS));
        let mut model = Side::new(memory(&clock), 1);
        let mut store = Side::new(subject(&clock), handles);
        for (i, step) in steps.iter().enumerate() {
            turn(&clock, step);
            let expected = model.step(step).await;
            let seen = store.step(step).await;
            if let Some(text) = difference(&expected, &seen) {
                return Some(format!("step {i} differs: {text}"));
            }
            if let Some(text) = store.fell().or(model.fell()) {
                return Some(format!("step {i}: {text}"));
            }
            tally.note(&step.op, &seen);
        }
        None
    })
}

/// Moves the clock if the step says so; it belongs to no side.
fn turn(clock: &ManualClock, step: &Step) {
    if let Op::Clock(by) = step.op {
        let to = clock.now().as_ms().saturating_add_signed(by);
        clock.set(Timestamp::saturating_from_ms(to));
    }
}

/// The model behind its mutex: every handle is the same one.
fn memory(clock: &ManualClock) -> Opener {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Clock::Manual(clock.clone())));
    Box::new(move || Arc::clone(&store))
}

/// A file of its own, in memory where there is such a place; every handle opens it anew.
#[cfg(feature = "sqlite")]
fn sqlite(clock: &ManualClock) -> Opener {
    let shm = std::path::Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    Box::new(move || Arc::new(SqliteStore::open(folder.path().join("jobs.db"), options.clone()).unwrap()))
}

/// Waits for a future within a runtime, which needs a thread and a runtime of its own.
#[cfg(any(feature = "redis", feature = "http"))]
fn apart<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let wait =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    std::thread::scope(|scope| scope.spawn(wait).join().unwrap())
}

/// A part of a real server; every handle is a connection of its own. Each thread has its server, which is busy for most of
/// a history.
#[cfg(feature = "redis")]
fn redis(clock: &ManualClock) -> Opener {
    thread_local!(static SERVER: server::Server = server::Server::admitting());
    let (url, clock) = (SERVER.with(server::Server::url), clock.clone());
    Box::new(move || Arc::new(apart(RedisStore::open(&url, Clock::Manual(clock.clone()))).unwrap()))
}

/// A server in front of the model, with a thread of its own; every handle has connections of its own.
#[cfg(feature = "http")]
fn http(clock: &ManualClock) -> Opener {
    use punctual::{CancellationToken, Client, store::http::HttpStore};

    let (behind, stop) = (Client::new(memory(clock)()), CancellationToken::new());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (url, end) = (format!("http://{}", listener.local_addr().unwrap()), stop.clone().drop_guard());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let api = punctual_server::api(&behind, &stop);
            tokio::select! {
                served = axum::serve(listener, api) => served.unwrap(),
                () = stop.cancelled() => {}
            }
        });
    });
    Box::new(move || {
        let _ends_with_its_opener = &end;
        Arc::new(apart(HttpStore::open(&url)).unwrap())
    })
}

/// Which history: its seed, and what it is made of.
#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    shape: Shape,
}

impl Case {
    fn of(seed: u64) -> Self {
        Self { seed, shape: Shape::of(seed) }
    }

    fn handles(self) -> usize {
        self.shape.handles
    }

    fn steps(self) -> Vec<Step> {
        let Self { seed, shape } = self;
        let steps = documents::mix(generate::history(seed, STEPS, shape), seed, shape.handles);
        let steps = tools::mix(steps, seed, shape.handles);
        if shape.operators { operators::mix(steps, seed, shape.handles) } else { steps }
    }

    /// Runs it on the model and on a fresh store; tells the first difference.
    fn run(self, subject: Subject<'_>, tally: &mut Tally) -> Option<String> {
        tally.begin(self.handles());
        let difference = run(subject, &self.steps(), self.handles(), tally);
        tally.end();
        difference
    }
}

/// Whether these steps show a difference.
fn fails(subject: Subject<'_>, steps: &[Step], handles: usize) -> bool {
    run(subject, steps, handles, &mut Tally::default()).is_some()
}

/// Runs histories in parallel; panics with the smallest failing one found. Many of them must meet all that histories are meant to.
fn check(name: &str, subject: Subject<'_>, cases: &[Case]) {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let (failed, tally) = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut tally = Tally::default();
                    loop {
                        let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed) as usize) else {
                            return (None, tally);
                        };
                        if case.run(subject, &mut tally).is_some() {
                            next.store(cases.len() as u64, Ordering::Relaxed);
                            return (Some(*case), tally);
                        }
                    }
                })
            })
            .collect();
        let mut tally = Tally::default();
        let failed = workers.into_iter().filter_map(|worker| {
            let (failed, seen) = worker.join().unwrap();
            tally.merge(seen);
            failed
        });
        (failed.min_by_key(|case| case.seed), tally)
    });
    if let Some(Case { seed, shape }) = failed {
        let handles = shape.handles;
        let steps = Case { seed, shape }.steps();
        let small = shrink::shrink(steps, |steps| fails(subject, steps, handles));
        let why = run(subject, &small, handles, &mut Tally::default()).unwrap_or_default();
        for (i, step) in small.iter().enumerate() {
            eprintln!("{i:3}  handle {}  {:?}", step.handle, step.op);
        }
        panic!("{name} differs from the model, seed {seed}: {why}");
    }
    tally.check(name);
    println!("{name}: {} histories of {STEPS} steps agree, {:.1?}", cases.len(), begin.elapsed());
}

fn cases() -> Vec<Case> {
    some_cases(300)
}

/// Kept seeds first, then so many new ones, unless the run says how many.
fn some_cases(unless_told: u64) -> Vec<Case> {
    let kept =
        include_str!("../oracle-seeds.txt").lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (seed, is_old) = line.strip_prefix("once ").map_or((line, false), |line| (line, true));
            let seed = seed.split(' ').next().and_then(|seed| seed.parse::<u64>().ok()).expect("a seed");
            if is_old { Case { seed, shape: Shape::once(seed) } } else { Case::of(seed) }
        });
    let told = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let histories = told("PUNCTUAL_ORACLE_HISTORIES").unwrap_or(unless_told);
    let first = told("PUNCTUAL_ORACLE_FIRST").unwrap_or(1);
    kept.chain((first..first.saturating_add(histories)).map(Case::of)).collect()
}

#[test]
fn the_memory_store_agrees_with_itself() {
    check("memory", &memory, &cases());
}

#[cfg(feature = "sqlite")]
#[test]
fn the_sqlite_store_agrees() {
    check("sqlite", &sqlite, &cases());
}

#[cfg(feature = "redis")]
#[test]
fn the_redis_store_agrees() {
    // A step is some thirty round trips.
    check("redis", &redis, &some_cases(100));
}

#[cfg(feature = "http")]
#[test]
fn the_http_store_agrees() {
    check("http", &http, &some_cases(100));
}

#[test]
fn histories_meet_what_they_are_meant_to_meet() {
    let mut tally = Tally::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for case in (1..=300).map(Case::of) {
        tally.begin(case.handles());
        let clock = ManualClock::new(Timestamp::saturating_from_ms(generate::BEGIN_MS));
        let mut model = Side::new(memory(&clock), 1);
        for step in &case.steps() {
            turn(&clock, step);
            let reply = runtime.block_on(model.step(step));
            tally.note(&step.op, &reply);
        }
        tally.end();
    }
    print!("{tally}");
    tally.check("memory");
    reach::check(&tally);
}

#[test]
fn every_broken_store_is_caught() {
    for bug in Bug::ALL {
        let subject = move |clock: &ManualClock| -> Opener {
            let inner = memory(clock)();
            let broken: Arc<dyn Store> = Arc::new(Broken { inner, bug, calls: AtomicU64::new(0) });
            Box::new(move || Arc::clone(&broken))
        };
        let caught = (1..=300).find(|&seed| Case::of(seed).run(&subject, &mut Tally::default()).is_some());
        let seed = caught.unwrap_or_else(|| panic!("{bug:?} passes 300 histories"));
        println!("{bug:?}: caught by history {seed}");
    }
}

#[test]
fn a_failing_history_is_cut_down() {
    let subject = |clock: &ManualClock| -> Opener {
        let inner = memory(clock)();
        let bug = Bug::UnfencedSettle;
        let broken: Arc<dyn Store> = Arc::new(Broken { inner, bug, calls: AtomicU64::new(0) });
        Box::new(move || Arc::clone(&broken))
    };
    // Plain ones: others may fail in a longer way.
    let mut plain = (1..300).map(|seed| Case { seed, shape: Shape::once(seed) }.steps());
    let failing = plain.find(|steps| fails(&subject, steps, 1)).unwrap();
    let small = shrink::shrink(failing, |steps| fails(&subject, steps, 1));
    assert!(fails(&subject, &small, 1));
    // Enqueue, reserve, lose the lease, reserve again, settle the old one; and the clock in between.
    assert!(small.len() <= 8, "{small:#?}");
}
