//! A long run made of slices: each has jobs and faults of all sorts by a seed of its own, is judged by itself, and leaves a line in
//! the ledger of the run. A run that was ended goes on after the last line.
//!
//! Exit codes: 0 if every slice so far is valid, 1 if one is not, 2 for wrong usage or if the run itself failed, 3 if there is no
//! slice yet, 128 and the number of the signal that ended it.

mod ledger;
mod plan;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use punctual_check::{Verdict, Word};
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use crate::{
    drill::{self, HEAL_JOBS, Outcome},
    profile::Profile,
};

use ledger::{About, Ledger, Record};
use plan::{Asked, Plan, Slice, StoreKind};

pub(crate) const USAGE: &str = "usage: punctual-chaos marathon --folder DIR [--store file|redis|sentinel|cluster] [--jobs N] [--kills N]
                      [--slices N] [--seed N] [--at-most N] [--commit TEXT] [--json]
  jobs and faults of all sorts in slices, each by a seed of its own and judged by itself; --folder has the plan, the ledger, and
  the histories of slices that are not valid. The same command goes on with a run that was ended: --folder alone is enough
  --jobs     of all slices (default: 1,000,000)
  --kills    of all slices (default: one for 1,000 jobs)
  --slices   how many there are (default: one for 10,000 jobs)
  --at-most  slices of this command; the next one goes on
  --commit   what the ledger says was run (default: the commit of the folder at hand)
  --json     the totals as JSON on stdout";

/// So many slices that are not valid end a run: more of their histories show no more, and fill the disk.
const BAD_MAX: u32 = 10;
/// A process that ends by a signal may be seen before the signal that met this one, too.
const SIGNAL_WITHIN: Duration = Duration::from_millis(200);

/// The command line.
#[derive(Debug, Default)]
struct Options {
    folder: PathBuf,
    asked: Asked,
    at_most: Option<u32>,
    commit: Option<String>,
    has_json: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            if option == "--json" {
                options.has_json = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{value:?} is not a number of 32 bits"));
            match option.as_str() {
                "--folder" => options.folder = PathBuf::from(value),
                "--commit" => options.commit = Some(value.clone()),
                "--store" => options.asked.store = Some(StoreKind::parse(value)?),
                "--seed" => options.asked.seed = Some(number()?.into()),
                "--jobs" => options.asked.jobs = Some(number()?),
                "--kills" => options.asked.kills = Some(number()?),
                "--slices" => options.asked.slices = Some(number()?),
                "--at-most" => options.at_most = Some(number()?),
                other => return Err(format!("unknown option {other:?}")),
            }
        }
        if options.folder.as_os_str().is_empty() {
            return Err("a marathon needs a --folder".to_owned());
        }
        Ok(options)
    }
}

/// Runs it, or goes on with it.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    run(&options).unwrap_or_else(|problem| {
        eprintln!("punctual-chaos marathon: {problem}");
        ExitCode::from(2)
    })
}

fn run(options: &Options) -> Outcome<ExitCode> {
    fs::create_dir_all(&options.folder)?;
    let folder = options.folder.canonicalize()?;
    let plan = Plan::of(&folder, &options.asked)?;
    let slices = plan.draw();
    let mut ledger = Ledger::open(&folder, plan.seed, &slices)?;
    let commit = options.commit.clone().unwrap_or_else(commit);
    let done = ledger.records.len();
    eprintln!(
        "marathon on {} with seed {}: {} jobs and {} kills in {} slices, of which {done} are done",
        plan.store.text(),
        plan.seed,
        plan.jobs,
        plan.kills,
        plan.slices
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::listen() })?;
    let at_most = options.at_most.map_or(usize::MAX, |number| number as usize);
    for slice in slices.iter().skip(done).take(at_most) {
        let dir = folder.join(slice.folder());
        // Of one that was cut off.
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir(&dir)?,
        }
        let begin = Instant::now();
        let verdict = match run_slice(slice, &dir, &runtime, &mut signals) {
            Ended::Judged(verdict) => verdict,
            Ended::By(signal) => {
                eprintln!("ended by signal {signal} in slice {}: the same command goes on", slice.number);
                return Ok(ExitCode::from(128 + signal));
            }
        };
        let about = About {
            date: &now(),
            commit: &commit,
            marathon: plan.seed,
            of: plan.slices,
            slice,
            seconds: begin.elapsed().as_secs_f64(),
        };
        let record = Record::new(about, verdict.as_deref().map_err(String::as_str));
        tell(&record, verdict.as_deref().ok(), &dir);
        if record.is_good() {
            fs::remove_dir_all(&dir)?;
        }
        ledger.add(record)?;
        if BAD_MAX <= ledger.totals().bad {
            eprintln!("{BAD_MAX} slices are not valid: look at them first");
            break;
        }
    }
    let totals = ledger.totals();
    let (word, exit_code) = if 0 < totals.bad {
        ("INVALID", Word::Invalid.exit_code())
    } else if totals.slices == 0 {
        ("VACUOUS", Word::Vacuous.exit_code())
    } else if totals.slices < plan.slices {
        ("valid so far", Word::Valid.exit_code())
    } else {
        ("valid", Word::Valid.exit_code())
    };
    eprintln!("{word}, {} of {} slices: {totals}", totals.slices, plan.slices);
    if options.has_json {
        let mut json = serde_json::to_value(&totals)?;
        json["plan"] = serde_json::to_value(&plan)?;
        json["is_valid"] = (exit_code == 0).into();
        println!("{json}");
    }
    Ok(ExitCode::from(exit_code))
}

/// How a slice ended.
enum Ended {
    /// By its verdict, or by the reason for which there is none.
    Judged(Result<Box<Verdict>, String>),
    /// By this signal to the marathon.
    By(u8),
}

/// Runs a slice in its folder. Its processes and servers end with it, however it ends.
fn run_slice(slice: &Slice, dir: &Path, runtime: &Runtime, signals: &mut Signals) -> Ended {
    let profile = match Profile::parse(&slice.command()) {
        Ok(profile) => profile,
        Err(problem) => return Ended::Judged(Err(problem)),
    };
    let run = || {
        runtime.block_on(async {
            let verdict = tokio::select! {
                biased;
                signal = signals.next() => return Ended::By(signal),
                verdict = drill::run_in(&profile, dir.to_owned()) => verdict.map_err(|problem| problem.to_string()),
            };
            // A signal to all processes of a terminal ends workers, which the slice does not expect.
            match verdict {
                Err(problem) => match timeout(SIGNAL_WITHIN, signals.next()).await {
                    Ok(signal) => Ended::By(signal),
                    Err(_) => Ended::Judged(Err(problem)),
                },
                Ok(verdict) => Ended::Judged(Ok(Box::new(verdict))),
            }
        })
    };
    // Servers that do not start, say, are asserted.
    let ended = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Ended::Judged(Err(text.unwrap_or_else(|| "it panicked".to_owned())))
    });
    match ended {
        Ended::Judged(Ok(verdict))
            if verdict.verdict == Word::Valid && verdict.attempt < u64::from(slice.jobs + HEAL_JOBS) =>
        {
            let jobs = slice.jobs + HEAL_JOBS;
            Ended::Judged(Err(format!("it tried {} jobs instead of {jobs}", verdict.attempt)))
        }
        ended => ended,
    }
}

/// A line for a slice, and more of one that is not valid.
fn tell(record: &Record, verdict: Option<&Verdict>, dir: &Path) {
    let Record { slice, of, end, jobs, kills, frozen, harmed, changes, hits, .. } = record;
    eprintln!(
        "slice {slice} of {of}: {end:?}, {jobs} jobs, {kills} kills, {frozen} stops, {harmed} cuts and other harm, {changes} changes \
         of shards, {hits} hits; lost {}, early {}, unexplained {}, stuck {}; {} duplicates explained; late p50 {} p99 {} max {} ms; {} s",
        record.lost,
        record.early,
        record.unexplained,
        record.stuck,
        record.duplicates,
        record.late_p50,
        record.late_p99,
        record.late_max,
        record.seconds,
    );
    if record.is_good() {
        return;
    }
    if let Some(verdict) = verdict {
        eprintln!("{verdict}");
    } else {
        eprintln!("{}", record.seen.as_deref().unwrap_or_default());
    }
    eprintln!(
        "its history is in {}; run it again: {}",
        dir.display(),
        record.repeat.as_deref().unwrap_or_default()
    );
}

/// What ends the run.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The number of the next one, also of one that came before this call.
    async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        kind.as_raw_value() as u8
    }
}

/// The commit of the folder at hand.
fn commit() -> String {
    let mut git = Command::new("git");
    let output = git.args(["rev-parse", "--short=12", "HEAD"]).stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// The time in UTC, to the second.
fn now() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_says_which_marathon_and_where() {
        let options = parse(&["--folder", "f", "--store", "cluster", "--jobs", "7", "--seed", "8", "--json"])
            .expect("options");
        assert_eq!((options.folder.as_path(), options.has_json), (Path::new("f"), true));
        assert_eq!(
            (options.asked.store, options.asked.jobs, options.asked.seed, options.asked.kills),
            (Some(StoreKind::Cluster), Some(7), Some(8), None)
        );
        for wrong in [
            &["--json"][..],
            &["--folder"],
            &["--folder", "f", "--store", "disk"],
            &["--folder", "f", "--jobs", "-1"],
            &["--folder", "f", "--slow", "1"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_date_is_in_utc_and_has_whole_seconds() {
        let now = now();
        assert!(now.ends_with('Z') && now.len() == "2026-11-27T00:00:00Z".len(), "{now}");
    }
}
