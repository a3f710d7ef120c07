//! Drills with real processes: workers and producers on one store, killed with SIGKILL at random and started again, or
//! their server is; then healed, drained, dumped and judged by what they recorded.
//!
//! Prints the verdict as JSON on stdout and for people on stderr. Exit codes as `punctual-check`: 0 valid, 1 invalid, 2
//! wrong usage or the drill itself failed, 3 vacuous.

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

use std::process::ExitCode;

use punctual_check::{Verdict, Word};

use profile::{Name, Profile, USAGE};

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
    let told = match profile.name {
        Name::Idle => idle::run(&profile).map(|is_quiet| ExitCode::from(u8::from(!is_quiet))),
        Name::Import => import::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Children => children::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Part => part::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Fair => fair::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Forward => forward::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Limits => limits::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Locks => locks::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Schedules => schedules::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Stuck => stuck::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Topics => topics::run(&profile).map(|is_kept| ExitCode::from(u8::from(!is_kept))),
        Name::Races => {
            races::run(&profile).map(|(verdict, tally)| tell(&profile, &verdict, &[("races", tally)]))
        }
        _ => drill::run(&profile).map(|verdict| tell(&profile, &verdict, &[])),
    };
    told.unwrap_or_else(|problem| {
        eprintln!("punctual-chaos: {problem}");
        ExitCode::from(2)
    })
}

fn tell(profile: &Profile, verdict: &Verdict, more: &[(&str, serde_json::Value)]) -> ExitCode {
    eprintln!("{verdict}");
    let mut json = serde_json::to_value(verdict).expect("a verdict is plain data");
    json["profile"] = profile.name.text().into();
    json["seed"] = profile.seed.into();
    for (name, value) in more {
        json[*name] = value.clone();
    }
    println!("{json}");
    // Beside the jobs of a slice there are those of its topic and its schedule.
    let is_as_planned = |planned| match profile.name {
        Name::Slice => planned <= verdict.attempt,
        _ => planned == verdict.attempt,
    };
    if verdict.verdict == Word::Valid && !is_as_planned(u64::from(profile.jobs + drill::HEAL_JOBS)) {
        eprintln!("the drill tried {} jobs instead of {}", verdict.attempt, profile.jobs + drill::HEAL_JOBS);
        return ExitCode::from(2);
    }
    ExitCode::from(verdict.verdict.exit_code())
}
