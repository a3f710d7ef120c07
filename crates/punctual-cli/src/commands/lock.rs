//! `punctual lock …`: locks for scripts, so that one command runs at a time, on any number of machines.

#[cfg(unix)]
mod run;

use std::{ffi::OsString, io::Write as _, time::Duration};

use punctual::{job::parse_duration, store::Held};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, json},
    times::span,
};

/// The most locks that are listed.
const LIST_MAX: usize = 1_000;

const HELP: &str = "\
The command has PUNCTUAL_LOCK and PUNCTUAL_FENCE in its environment. The fence is a number that rises each time that the \
lock is acquired. A system that the command writes to can refuse writes with an older fence.

While the command runs, the lease of the lock is extended. SIGTERM, SIGHUP and SIGINT are passed on to the command. The \
lock is released when the command and its process group have ended. Processes that are left get SIGTERM, then SIGKILL \
after --kill-after. If the lock is lost, everything that the command started is killed.

Exit codes: that of the command; 128+n if signal n ended it; 75 the lock is held by another process; 124 the lock was lost \
while the command ran; 126 the command cannot be started; 127 the command does not exist. After any other exit code of \
punctual --help the command did not run.

Examples:
  punctual lock run nightly -- ./rebuild-index
  punctual lock run nightly --wait 10m --lease 1m -- ./rebuild-index --full";

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  punctual lock run nightly --wait 10m -- ./rebuild-index
  punctual lock ls
  punctual lock release nightly")]
pub(crate) enum Lock {
    /// Run a command while holding a lock.
    #[command(after_help = HELP)]
    Run(Run),
    /// List the locks that are held.
    #[command(after_help = "\
Examples:
  punctual lock ls
  punctual lock ls -o json")]
    Ls,
    /// Show how long a lock is still held, and its fence.
    #[command(after_help = "\
Examples:
  punctual lock show nightly
  punctual lock show nightly -o json")]
    Show {
        /// Name of the lock.
        name: String,
    },
    /// Release a lock, whichever process holds it.
    #[command(after_help = "\
The command that runs under the lock is killed when its process notices the loss, at its next extension.

Examples:
  punctual lock release nightly
  punctual lock release nightly -o json")]
    Release {
        /// Name of the lock.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// Name of the lock.
    name: String,
    /// Lease: time after which the lock is free if this process or machine dies (default: 30 s).
    #[arg(long, value_parser = parse_duration, default_value = "30s", hide_default_value = true, value_name = "DURATION")]
    lease: Duration,
    /// Time to wait for the lock (default: 0 s).
    #[arg(long, value_parser = parse_duration, default_value = "0s", hide_default_value = true, value_name = "DURATION")]
    wait: Duration,
    /// Time between SIGTERM or SIGHUP and SIGKILL (default: 30 s).
    #[arg(long, value_parser = parse_duration, default_value = "30s", hide_default_value = true, value_name = "DURATION")]
    kill_after: Duration,
    /// Command to run, with its arguments.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Lock {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. })
    }

    /// Whether it holds a lock while it runs.
    pub(crate) const fn holds(&self) -> bool {
        matches!(self, Self::Run(_))
    }

    pub(crate) const fn makes_a_store(&self) -> bool {
        matches!(self, Self::Run(_))
    }
}

/// A lock as JSON.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    fence: u64,
    until_ms: u64,
    left_ms: u64,
}

impl<'a> View<'a> {
    fn of(held: &'a Held) -> Self {
        let left_ms = u64::try_from(held.left.as_millis()).unwrap_or(u64::MAX);
        Self { name: &held.name, fence: held.fence, until_ms: held.until.as_ms(), left_ms }
    }
}

pub(crate) async fn run(session: &mut Session, command: &Lock) -> Result {
    match command {
        #[cfg(unix)]
        Lock::Run(args) => run::hold(session, args).await,
        #[cfg(not(unix))]
        Lock::Run(_) => Err(Failure::no_process_groups("lock run")),
        Lock::Ls => ls(session).await,
        Lock::Show { name } => {
            let held = session.client.lock(name).holder().await?.ok_or_else(|| free(name))?;
            let out = &mut session.out;
            if session.format.is_json() {
                return Ok(json(out, &View::of(&held))?);
            }
            Ok(writeln!(out, "{}  held for {}  fence {}", clean(name), span(held.left), held.fence)?)
        }
        Lock::Release { name } => {
            if !session.client.lock(name).force_release().await? {
                return Err(free(name));
            }
            if session.format.is_json() {
                return Ok(json(&mut session.out, &Released { name, released: true })?);
            }
            Ok(writeln!(session.out, "released {}", clean(name))?)
        }
    }
}

#[derive(Serialize)]
struct Released<'a> {
    name: &'a str,
    released: bool,
}

fn free(name: &str) -> Failure {
    Failure::not_found(format!("lock {name:?} is not held"))
        .hint("punctual lock ls    lists the locks that are held")
}

async fn ls(session: &mut Session) -> Result {
    let (locks, more) = session.client.locks(LIST_MAX).await?;
    if more {
        session.say(&format!("more locks are held; these {LIST_MAX} end first"));
    }
    let out = &mut session.out;
    match session.format {
        Format::Json => json(out, &locks.iter().map(View::of).collect::<Vec<_>>())?,
        Format::Ndjson => locks.iter().try_for_each(|held| json(out, &View::of(held)))?,
        Format::Ids => locks.iter().try_for_each(|held| writeln!(out, "{}", clean(&held.name)))?,
        Format::Human | Format::Wide => {
            let mut table = Table::new(["LOCK", "LEFT", "FENCE"]);
            for held in &locks {
                table.row([held.name.clone(), span(held.left), held.fence.to_string()]);
            }
            table.print(out)?;
        }
    }
    Ok(())
}
