//! `punctual lock …`: locks, for scripts: one command at a time, on however many machines.

#[cfg(unix)]
mod run;

use std::{ffi::OsString, io::Write as _, time::Duration};

use punctual::{parse_duration, store::Held};
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
The command has PUNCTUAL_LOCK and PUNCTUAL_FENCE in its environment. The fence is a number that rises with each holding:
hand it to what the command writes to. While the command runs, its lease is extended.

SIGTERM, SIGHUP and SIGINT are passed on to the command. The lock is given up when the command and its process group are
gone: what is left gets SIGTERM, and SIGKILL after --kill-after. If the lock is lost, everything that the command started
is killed.

Exit codes: the command's own; 128+n if signal n ended it; 75 somebody else holds the lock; 124 the lock was lost while the
command ran; 126 the command can't be started; 127 there is no such command. Other failures as everywhere (punctual --help);
then the command did not run.

  punctual lock run nightly --wait 10m -- ./rebuild-index";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Lock {
    /// Run a command while holding a lock.
    #[command(after_help = HELP)]
    Run(Run),
    /// The locks that are held.
    Ls,
    /// Who holds a lock.
    Show {
        /// Its name.
        name: String,
    },
    /// Free a lock, whoever holds it.
    Release {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The lock.
    name: String,
    /// How long it is held after the last extension, should this process or this machine die.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    lease: Duration,
    /// How long to wait for it.
    #[arg(long, value_parser = parse_duration, default_value = "0s", value_name = "DURATION")]
    wait: Duration,
    /// How long the command may go on after SIGTERM or SIGHUP before it is killed.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    kill_after: Duration,
    /// What to run.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Lock {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. })
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
    Failure::new("not_found", format!("nobody holds lock {name:?}")).hint("punctual lock ls    shows all")
}

async fn ls(session: &mut Session) -> Result {
    let (locks, more) = session.client.locks(LIST_MAX).await?;
    if more {
        session.say(&format!("there are more: these {LIST_MAX} end first"));
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
