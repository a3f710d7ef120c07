//! Runs many seeds, each twice, on all cores.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{Bug, Plan, run};

/// The rule that both runs of a seed do the same.
pub const SAME_TWICE: &str = "same-twice";

/// The seeds that once failed, each with what it found. All runs of many seeds begin with them.
pub fn kept() -> Vec<u64> {
    let lines = include_str!("../seeds.txt").lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| line.split(' ').next().unwrap_or_default().parse().expect("a seed is a number"))
        .collect()
}

/// A seed that broke a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub rule: String,
}

/// What many seeds did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Runs of these: two of each seed, unless each ran once.
    pub runs: u64,
    /// Runs of jobs that handlers began.
    pub lives: u64,
    /// Seconds on the clocks of the simulations.
    pub simulated_s: f64,
    /// Seconds of one core.
    pub core_s: f64,
    /// Processes that were killed.
    pub kills: u64,
    /// Events of all histories.
    pub events: u64,
    /// Seeds that broke a rule, in order.
    pub failures: Vec<Failure>,
}

/// How seeds are run.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Stops after this time.
    pub within: Option<Duration>,
    /// How many seeds are run beside each other.
    pub threads: usize,
    /// Whether each is run twice, to see that both runs are the same.
    pub twice: bool,
    /// A bug to plant.
    pub bug: Option<Bug>,
}

/// Runs a seed; returns the rule that it breaks.
pub fn one(seed: u64, how: How, summary: &mut Summary) -> Option<String> {
    let plan = Plan::of(seed);
    let times = if how.twice { 2 } else { 1 };
    let begin = Instant::now();
    let runs: Vec<_> = (0..times).map(|_| run(&plan, how.bug)).collect();
    let mut broken = runs[0].broken().map(str::to_owned);
    if how.twice && runs[0].hash() != runs[1].hash() {
        broken.get_or_insert_with(|| SAME_TWICE.to_owned());
    }
    summary.core_s += begin.elapsed().as_secs_f64();
    summary.seeds += 1;
    summary.runs += times;
    for run in &runs {
        summary.lives += run.lives;
        summary.simulated_s += run.simulated.as_secs_f64();
        summary.kills += run.verdict.kills;
        summary.events += run.entries.len() as u64;
    }
    if let Some(rule) = &broken {
        summary.failures.push(Failure { seed, rule: rule.clone() });
    }
    broken
}

/// Runs seeds in order, some beside each other.
pub fn many(seeds: impl Iterator<Item = u64> + Send, how: How) -> Summary {
    let begin = Instant::now();
    let (seeds, sum) = (Mutex::new(seeds), Mutex::new(Summary::default()));
    thread::scope(|scope| {
        for _ in 0..how.threads.max(1) {
            scope.spawn(|| {
                let mut own = Summary::default();
                while how.within.is_none_or(|within| begin.elapsed() < within) {
                    let Some(seed) = seeds.lock().unwrap_or_else(PoisonError::into_inner).next() else {
                        break;
                    };
                    one(seed, how, &mut own);
                }
                sum.lock().unwrap_or_else(PoisonError::into_inner).add(own);
            });
        }
    });
    let mut sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.failures.sort_by_key(|failure| failure.seed);
    sum
}

impl Summary {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.runs += other.runs;
        self.lives += other.lives;
        self.simulated_s += other.simulated_s;
        self.core_s += other.core_s;
        self.kills += other.kills;
        self.events += other.events;
        self.failures.extend(other.failures);
    }
}

/// Returns how many seeds from `from` on it takes until one breaks a rule, and the rule; `None` if none of `most` does.
pub fn until_found(bug: Option<Bug>, from: u64, most: u64, threads: usize) -> Option<(u64, String)> {
    let found = AtomicU64::new(u64::MAX);
    let next = AtomicU64::new(from);
    let rule = Mutex::new(String::new());
    let how = How { within: None, threads: 1, twice: false, bug };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if from + most <= seed || found.load(Ordering::Relaxed) <= seed {
                        return;
                    }
                    if let Some(broken) = one(seed, how, &mut Summary::default()) {
                        let mut rule = rule.lock().unwrap_or_else(PoisonError::into_inner);
                        if seed < found.fetch_min(seed, Ordering::Relaxed) {
                            *rule = broken;
                        }
                        return;
                    }
                }
            });
        }
    });
    let seed = found.into_inner();
    let rule = rule.into_inner().unwrap_or_else(PoisonError::into_inner);
    (seed < u64::MAX).then(|| (seed - from + 1, rule))
}
