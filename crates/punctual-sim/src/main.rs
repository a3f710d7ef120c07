//! Runs seeds of the simulation, tells the story of one, or measures how soon planted bugs are found.

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use punctual_sim::{
    Bug, Plan, run,
    seeds::{self, How, Summary},
    shrink::shrink,
    story,
};

/// Simulate fleets of punctual
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
#[derive(Debug, Parser)]
#[command(
    name = "punctual-sim",
    after_help = "Examples:
  punctual-sim --seeds 0..1000
  punctual-sim --for-seconds 300 --json
  punctual-sim --story 17
  punctual-sim --bugs 2000"
)]
struct Options {
    /// Seeds to run, as FROM..TO, after those that are kept (default: 0..500)
    #[arg(long, value_name = "FROM..TO", value_parser = range)]
    seeds: Option<(u64, u64)>,
    /// Seconds to run seeds for, from FROM of --seeds on
    #[arg(long, value_name = "SECONDS")]
    for_seconds: Option<u64>,
    /// Run each seed once instead of twice
    #[arg(long)]
    once: bool,
    /// Seeds that run beside each other (default: one per core)
    #[arg(long)]
    threads: Option<usize>,
    /// Print only how many seeds it takes until one breaks a rule
    #[arg(long)]
    first: bool,
    /// Plant a bug
    #[arg(long, value_name = "NAME")]
    bug: Option<Bug>,
    /// Tell the story of a seed
    #[arg(long, value_name = "SEED")]
    story: Option<u64>,
    /// Make the plan of the story smaller first, if it breaks a rule
    #[arg(long)]
    shrink: bool,
    /// Measure how many seeds find each planted bug, up to so many
    #[arg(long, value_name = "SEEDS")]
    bugs: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("write FROM..TO, for example 0..1000")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a number"));
    Ok((number(from)?, number(to)?))
}

fn main() -> ExitCode {
    let options = Options::parse();
    let threads =
        options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if let Some(seed) = options.story {
        return tell(seed, &options);
    }
    if let Some(most) = options.bugs {
        return measure(most, threads, options.bug);
    }
    let (from, to) = options.seeds.unwrap_or((0, if options.for_seconds.is_some() { u64::MAX } else { 500 }));
    let how = How {
        within: options.for_seconds.map(Duration::from_secs),
        threads,
        twice: !options.once,
        bug: options.bug,
    };
    if options.first {
        return first(from, to.saturating_sub(from), how);
    }
    let kept = if options.bug.is_some() { Vec::new() } else { seeds::kept() };
    let summary = seeds::many(kept.into_iter().chain(from..to), how);
    if options.json {
        println!("{}", serde_json::to_string(&summary).expect("a summary is plain data"));
    } else {
        print(&summary);
    }
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(summary: &Summary) {
    let Summary { seeds, runs, lives, simulated_s, core_s, kills, events, failures } = summary;
    println!("{seeds} seeds, {runs} runs, {lives} job lives, {kills} kills, {events} events");
    println!(
        "{:.1} h simulated in {core_s:.1} s of a core: {:.0} times real time, {:.0} job lives/s",
        simulated_s / 3_600.0,
        simulated_s / core_s,
        *lives as f64 / core_s
    );
    for failure in failures {
        println!(
            "seed {} breaks {}: punctual-sim --story {} --shrink",
            failure.seed, failure.rule, failure.seed
        );
    }
    if failures.is_empty() {
        println!("every rule holds");
    }
}

/// Prints when a rule is broken first; that is no failure.
fn first(from: u64, most: u64, how: How) -> ExitCode {
    match seeds::until_found(how.bug, from, most, how.threads) {
        Some((n, rule)) => println!("{n} seeds until {rule} is broken"),
        None => println!("{most} seeds break no rule"),
    }
    ExitCode::SUCCESS
}

fn tell(seed: u64, options: &Options) -> ExitCode {
    let mut plan = Plan::of(seed);
    let mut ran = run(&plan, options.bug);
    if options.shrink
        && let Some(rule) = ran.broken()
    {
        plan = shrink(&plan, rule, options.bug);
        ran = run(&plan, options.bug);
    }
    print!("{}", story::tell(&plan, &ran));
    if ran.broken().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many beginnings the median is of.
const BEGINNINGS: u64 = 5;
/// How far they are apart.
const APART: u64 = 1_000_000;

fn measure(most: u64, threads: usize, only: Option<Bug>) -> ExitCode {
    println!("| bug | found by | seeds until found, median of {BEGINNINGS} | each |\n|---|---|---|---|");
    let mut all_found = true;
    for bug in Bug::ALL.iter().copied().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let found: Vec<_> =
            (1..=BEGINNINGS).map(|n| seeds::until_found(Some(bug), n * APART, most, threads)).collect();
        let mut rules: Vec<&str> = found.iter().flatten().map(|(_, rule)| rule.as_str()).collect();
        rules.sort_unstable();
        rules.dedup();
        let mut counts: Vec<u64> =
            found.iter().map(|found| found.as_ref().map_or(u64::MAX, |(n, _)| *n)).collect();
        counts.sort_unstable();
        let told = |n: u64| if n == u64::MAX { format!("more than {most}") } else { n.to_string() };
        let each: Vec<String> = counts.iter().map(|n| told(*n)).collect();
        let median = counts[counts.len() / 2];
        all_found &= median < u64::MAX;
        println!("| {} | {} | {} | {} |", bug.name(), rules.join(", "), told(median), each.join(", "));
    }
    if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
