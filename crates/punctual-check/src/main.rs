//! `punctual-check FILE_OR_FOLDER…`: reads histories, prints the verdict as JSON on stdout and for people on stderr.
//!
//! Exit codes: 0 valid, 1 invalid, 2 wrong usage or unreadable, 3 vacuous.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use punctual_check::{History, Options, judge};

const USAGE: &str = "usage: punctual-check [OPTIONS] FILE_OR_FOLDER…
  judges recorded histories (*.ndjson)
  --no-referee       the store's clock was turned by hand
  --undone-max-ms=N  how old answers may be that are lost with a killed server; 0 unless said otherwise
  --start-within-ms=N  how long a due job may wait for no reason; not judged unless said
  --cancel-within-ms=N  how long a run may go on after its cancel was requested; not judged unless said
  --replay           replays each job in the model, too; its store's clock must be that of this machine";

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut paths = Vec::new();
    for arg in std::env::args_os().skip(1) {
        match arg.to_str() {
            Some("--no-referee") => options.referee = false,
            Some("--replay") => options.replays = true,
            Some("--help" | "-h") => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            Some(flag) if ms_of(flag, "--undone-max-ms=").is_some() => {
                options.undone_max = ms_of(flag, "--undone-max-ms=").unwrap_or_default();
            }
            Some(flag) if ms_of(flag, "--start-within-ms=").is_some() => {
                options.start_within = ms_of(flag, "--start-within-ms=");
            }
            Some(flag) if ms_of(flag, "--cancel-within-ms=").is_some() => {
                options.cancel_within = ms_of(flag, "--cancel-within-ms=");
            }
            Some(flag) if flag.starts_with('-') => {
                eprintln!("unknown option {flag}\n{USAGE}");
                return ExitCode::from(2);
            }
            _ => paths.push(PathBuf::from(arg)),
        }
    }
    if paths.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    if options.replays && !options.referee {
        eprintln!("--replay compares the store's clock with this machine's: leave out --no-referee");
        return ExitCode::from(2);
    }
    let history = match History::read(&paths) {
        Ok(history) => history,
        Err(e) => {
            eprintln!("punctual-check: {e}");
            return ExitCode::from(2);
        }
    };
    let verdict = judge(&history, options);
    eprintln!("{verdict}");
    println!("{}", serde_json::to_string(&verdict).expect("a verdict is plain data"));
    ExitCode::from(verdict.verdict.exit_code())
}

fn ms_of(flag: &str, name: &str) -> Option<Duration> {
    flag.strip_prefix(name)?.parse().ok().map(Duration::from_millis)
}
