//! Every store against the model, reply by reply, under random histories that are rude on purpose.
//!
//! `PUNCTUAL_ORACLE_HISTORIES` says how many (default 300, of 60 steps each), `PUNCTUAL_ORACLE_FIRST` from which seed on (default 1:
//! a long run that found something goes on behind it). A failing history is cut down and printed with its seed; add the seed to
//! `oracle-seeds.txt`, which every run replays first.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod broken;
mod documents;
mod generate;
mod op;
mod rude;
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
    side::{Opener, Side, difference},
};

const STEPS: usize = 60;

/// A kind of store under test: makes an empty one that runs by a clock.
type Subject<'a> = &'a (dyn Fn(&ManualClock) -> Opener + Sync);

/// Runs a history on the model and on a fresh store; tells the first difference.
fn run(subject: Subject<'_>, steps: &[Step], handles: usize) -> Option<String> {
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

/// A part of a real server; every handle is a connection of its own. Each thread has its server, which is busy for most of
/// a history.
#[cfg(feature = "redis")]
fn redis(clock: &ManualClock) -> Opener {
    thread_local!(static SERVER: server::Server = server::Server::admitting());
    let (url, clock) = (SERVER.with(server::Server::url), clock.clone());
    Box::new(move || {
        let open = RedisStore::open(&url, Clock::Manual(clock.clone()));
        // A runtime within a runtime needs a thread of its own.
        let open = || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(open);
        Arc::new(std::thread::scope(|scope| scope.spawn(open).join().unwrap()).unwrap())
    })
}

/// One history of a seed; odd ones use two handles.
fn history(seed: u64) -> (Vec<Step>, usize) {
    let handles = 1 + (seed % 2) as usize;
    let steps = documents::mix(generate::history(seed, STEPS, handles), seed, handles);
    (tools::mix(steps, seed, handles), handles)
}

/// Runs seeds in parallel; panics with the smallest failing history found.
fn check(name: &str, subject: Subject<'_>, seeds: &[u64]) {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let failed = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let seed = *seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize)?;
                        let (steps, handles) = history(seed);
                        if run(subject, &steps, handles).is_some() {
                            next.store(seeds.len() as u64, Ordering::Relaxed);
                            return Some(seed);
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap()).min()
    });
    if let Some(seed) = failed {
        let (steps, handles) = history(seed);
        let small = shrink::shrink(steps, |steps| run(subject, steps, handles).is_some());
        let why = run(subject, &small, handles).unwrap_or_default();
        for (i, step) in small.iter().enumerate() {
            eprintln!("{i:3}  handle {}  {:?}", step.handle, step.op);
        }
        panic!("{name} differs from the model, seed {seed}: {why}");
    }
    println!("{name}: {} histories of {STEPS} steps agree, {:.1?}", seeds.len(), begin.elapsed());
}

fn seeds() -> Vec<u64> {
    some_seeds(300)
}

/// Kept seeds first, then so many new ones, unless the run says how many.
fn some_seeds(unless_told: u64) -> Vec<u64> {
    let kept = include_str!("../oracle-seeds.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').next().and_then(|seed| seed.parse::<u64>().ok()).expect("a seed"));
    let told = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let histories = told("PUNCTUAL_ORACLE_HISTORIES").unwrap_or(unless_told);
    let first = told("PUNCTUAL_ORACLE_FIRST").unwrap_or(1);
    kept.chain(first..first.saturating_add(histories)).collect()
}

#[test]
fn the_memory_store_agrees_with_itself() {
    check("memory", &memory, &seeds());
}

#[cfg(feature = "sqlite")]
#[test]
fn the_sqlite_store_agrees() {
    check("sqlite", &sqlite, &seeds());
}

#[cfg(feature = "redis")]
#[test]
fn the_redis_store_agrees() {
    // A step is some thirty round trips.
    check("redis", &redis, &some_seeds(100));
}

#[test]
fn histories_meet_what_they_are_meant_to_meet() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut tally = rude::Tally::default();
    for seed in 1..=300 {
        tally.begin();
        let clock = ManualClock::new(Timestamp::saturating_from_ms(generate::BEGIN_MS));
        let mut model = Side::new(memory(&clock), 1);
        for step in &history(seed).0 {
            turn(&clock, step);
            let reply = runtime.block_on(model.step(step));
            tally.note(&step.op, &reply);
        }
    }
    for event in rude::EVENTS {
        println!("{:6}  {event}", tally.of(event));
    }
    for event in rude::EVENTS {
        assert!(10 <= tally.of(event), "{event}: only {} times in 300 histories", tally.of(event));
    }
}

#[test]
fn every_broken_store_is_caught() {
    for bug in Bug::ALL {
        let subject = move |clock: &ManualClock| -> Opener {
            let inner = memory(clock)();
            let broken: Arc<dyn Store> = Arc::new(Broken { inner, bug, calls: AtomicU64::new(0) });
            Box::new(move || Arc::clone(&broken))
        };
        let caught = (1..=300).find(|&seed| {
            let (steps, handles) = history(seed);
            run(&subject, &steps, handles).is_some()
        });
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
    let failing = (1..300).find(|&seed| run(&subject, &history(seed).0, 1).is_some()).unwrap();
    let small = shrink::shrink(history(failing).0, |steps| run(&subject, steps, 1).is_some());
    assert!(run(&subject, &small, 1).is_some());
    // Enqueue, reserve, lose the lease, reserve again, settle the old one; and the clock in between.
    assert!(small.len() <= 8, "{small:#?}");
}
