//! Drills with real processes: workers and producers on one store, killed with SIGKILL at random and started again, or
//! their server is; then healed, drained, dumped and judged by what they recorded.
//!
//! Prints the verdict as JSON on stdout and for people on stderr. Exit codes as `punctual-check`: 0 valid, 1 invalid, 2
//! wrong usage or the drill itself failed, 3 vacuous.

mod away;
#[path = "../../../../punctual-forward/tests/support/rabbitmq.rs"]
mod broker;
mod child;
mod children;
#[path = "../../../../punctual/tests/support/console.rs"]
mod console;
mod crew;
mod drill;
mod failover;
mod fair;
mod forward;
mod idle;
mod import;
mod jobs;
mod limits;
mod locks;
mod log;
mod marathon;
mod outage;
mod part;
mod place;
mod process;
mod profile;
mod races;
mod schedules;
#[path = "../../../../punctual/tests/support/redis.rs"]
mod server;
mod servers;
mod shards;
mod slice;
mod stuck;
mod topics;
mod watch;

use std::{process::ExitCode, time::Duration};

use punctual_check::{Verdict, Word};

use place::Wanted;
use profile::{Name, Profile, USAGE};
use watch::Watch;

/// A drill is run once more after a stall of the machine that is no shorter.
const STALL_MIN: Duration = Duration::from_secs(1);
/// How often it is run at most, the first time included.
const ROUNDS_MAX: u32 = 3;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "child") {
        return child::main(&args.split_off(1));
    }
    if args.first().is_some_and(|arg| arg == "marathon") {
        return marathon::main(&args.split_off(1));
    }
    let profile = match Profile::parse(&args) {
        Ok(profile) => profile,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}\n{}", marathon::USAGE);
            return ExitCode::from(2);
        }
    };
    // Some drills enqueue at a rate for a time, not a number of jobs.
    let jobs = if 0 < profile.jobs { format!(": {} jobs", profile.jobs) } else { String::new() };
    eprintln!("{} with seed {}{jobs}", profile.name.text(), profile.seed);
    let (code, json) = told(&profile);
    if let Some(json) = json {
        println!("{json}");
    }
    ExitCode::from(code)
}

/// How a drill ended: its exit code, and what it prints.
type Told = (u8, Option<serde_json::Value>);

/// Runs a drill to its end, and once more if the machine stood still meanwhile and nothing is shown. A rule that the judge found broken is:
/// it knows of the stalls.
fn told(profile: &Profile) -> Told {
    let leaves_nothing = profile.dir.is_none() && !matches!(profile.place, Wanted::Store(_));
    let mut rounds_left = if leaves_nothing { ROUNDS_MAX } else { 1 };
    loop {
        let scratch = tempfile::tempdir().ok();
        let watch = Watch::begin(None, scratch.as_ref().map(tempfile::TempDir::path));
        let (code, json) = round(profile);
        let stall = watch.as_ref().map(Watch::longest).unwrap_or_default();
        drop(watch);
        rounds_left -= 1;
        let is_judged = json.is_some();
        let is_final = code == Word::Valid.exit_code() || is_judged && code == Word::Invalid.exit_code();
        if is_final || stall < STALL_MIN || rounds_left == 0 {
            return (code, json);
        }
        eprintln!("the machine stood still for {} ms meanwhile: once more", stall.as_millis());
    }
}

fn round(profile: &Profile) -> Told {
    let kept = |is_kept: bool| (u8::from(!is_kept), None);
    let told = match profile.name {
        Name::Away => away::run(profile).map(kept),
        Name::Idle => idle::run(profile).map(kept),
        Name::Import => import::run(profile).map(kept),
        Name::Children => children::run(profile).map(kept),
        Name::Part => part::run(profile).map(kept),
        Name::Fair => fair::run(profile).map(kept),
        Name::Forward => forward::run(profile).map(kept),
        Name::Limits => limits::run(profile).map(kept),
        Name::Locks => locks::run(profile).map(kept),
        Name::Schedules => schedules::run(profile).map(kept),
        Name::Stuck => stuck::run(profile).map(kept),
        Name::Topics => topics::run(profile).map(kept),
        Name::Races => {
            races::run(profile).map(|(verdict, tally)| tell(profile, &verdict, &[("races", tally)]))
        }
        _ => drill::run(profile).map(|verdict| tell(profile, &verdict, &[])),
    };
    told.unwrap_or_else(|problem| {
        eprintln!("punctual-chaos: {problem}");
        (2, None)
    })
}

fn tell(profile: &Profile, verdict: &Verdict, more: &[(&str, serde_json::Value)]) -> Told {
    eprintln!("{verdict}");
    let mut json = serde_json::to_value(verdict).expect("a verdict is plain data");
    json["profile"] = profile.name.text().into();
    json["seed"] = profile.seed.into();
    for (name, value) in more {
        json[*name] = value.clone();
    }
    // Beside the jobs of a slice there are those of its topic and its schedule.
    let is_as_planned = |planned| match profile.name {
        Name::Slice => planned <= verdict.attempt,
        _ => planned == verdict.attempt,
    };
    if verdict.verdict == Word::Valid && !is_as_planned(u64::from(profile.jobs + drill::HEAL_JOBS)) {
        eprintln!("the drill tried {} jobs instead of {}", verdict.attempt, profile.jobs + drill::HEAL_JOBS);
        return (2, Some(json));
    }
    (verdict.verdict.exit_code(), Some(json))
}
