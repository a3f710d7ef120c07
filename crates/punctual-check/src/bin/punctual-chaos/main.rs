//! Drills with real processes: workers and producers on one SQLite file, killed with SIGKILL at random and started again,
//! then healed, drained, dumped and judged by what they recorded.
//!
//! Prints the verdict as JSON on stdout and for people on stderr. Exit codes as `punctual-check`: 0 valid, 1 invalid, 2
//! wrong usage or the drill itself failed, 3 vacuous.

mod child;
mod drill;
mod jobs;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use punctual_check::{Verdict, Word};

const USAGE: &str =
    "usage: punctual-chaos workers|producer|poison [--small] [--seed N] [--jobs N] [--kills N] [--dir DIR]
  workers   worker processes killed at random while they work, with retries, cancels and moves
  producer  a producer killed in mid batch and run again with the same idempotency keys
  poison    jobs that kill every worker that runs them, among good ones
  --small   few jobs and kills, for a quick look
  --dir     keep the database and the histories there";

/// A drill and its size.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: Name,
    pub(crate) seed: u64,
    pub(crate) jobs: u32,
    /// SIGKILLs by the nemesis; poison jobs do their own killing.
    pub(crate) kills: u32,
    pub(crate) poison: u32,
    pub(crate) workers: usize,
    pub(crate) slots: usize,
    pub(crate) lease: Duration,
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Workers,
    Producer,
    Poison,
}

impl Name {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Producer => "producer",
            Self::Poison => "poison",
        }
    }
}

impl Profile {
    fn new(name: Name, small: bool) -> Self {
        let pick = |big, little| if small { little } else { big };
        let base = Self {
            name,
            seed: fastrand::u64(..),
            jobs: 0,
            kills: 0,
            poison: 0,
            workers: 4,
            slots: 8,
            lease: Duration::from_secs(2),
            dir: None,
        };
        match name {
            Name::Workers => Self {
                jobs: pick(5_000, 400),
                kills: pick(40, 6),
                lease: Duration::from_secs(pick(2, 1).into()),
                ..base
            },
            Name::Producer => {
                Self { jobs: pick(100_000, 6_000), kills: pick(4, 2), workers: 2, slots: 200, ..base }
            }
            Name::Poison => Self {
                jobs: pick(500, 60),
                poison: pick(5, 1),
                slots: 4,
                lease: Duration::from_secs(1),
                ..base
            },
        }
    }
}

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "child") {
        return child::main(&args.split_off(1));
    }
    let profile = match parse(&args) {
        Ok(profile) => profile,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    eprintln!("{} with seed {}: {} jobs", profile.name.text(), profile.seed, profile.jobs);
    match drill::run(&profile) {
        Ok(verdict) => tell(&profile, &verdict),
        Err(problem) => {
            eprintln!("punctual-chaos: {problem}");
            ExitCode::from(2)
        }
    }
}

fn tell(profile: &Profile, verdict: &Verdict) -> ExitCode {
    eprintln!("{verdict}");
    let mut json = serde_json::to_value(verdict).expect("a verdict is plain data");
    json["profile"] = profile.name.text().into();
    json["seed"] = profile.seed.into();
    println!("{json}");
    if verdict.verdict == Word::Valid && verdict.attempt != u64::from(profile.jobs) {
        eprintln!("the drill tried {} jobs instead of {}", verdict.attempt, profile.jobs);
        return ExitCode::from(2);
    }
    ExitCode::from(verdict.verdict.exit_code())
}

fn parse(args: &[String]) -> Result<Profile, String> {
    let (name, rest) = args.split_first().ok_or("which drill?")?;
    let name = match name.as_str() {
        "workers" => Name::Workers,
        "producer" => Name::Producer,
        "poison" => Name::Poison,
        other => return Err(format!("unknown drill {other:?}")),
    };
    let small = rest.iter().any(|arg| arg == "--small");
    let mut profile = Profile::new(name, small);
    let mut rest = rest.iter().filter(|arg| *arg != "--small");
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        match option.as_str() {
            "--seed" => profile.seed = number()?,
            "--jobs" => profile.jobs = number()? as u32,
            "--kills" => profile.kills = number()? as u32,
            "--dir" => profile.dir = Some(PathBuf::from(value)),
            other => return Err(format!("unknown option {other:?}")),
        }
    }
    Ok(profile)
}
