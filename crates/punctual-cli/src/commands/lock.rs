//! `punctual lock …`: locks, for scripts: one command at a time, on however many machines.

use std::{ffi::OsString, io::Write as _, process::ExitStatus, time::Duration};

use punctual::{LockGuard, parse_duration, store::Held};
use serde::Serialize;
use tokio::{process::Child, time::Instant};

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, json},
    times::span,
};

/// The most locks that are listed.
const LIST_MAX: usize = 1_000;

const HELP: &str = "The command has PUNCTUAL_LOCK and PUNCTUAL_FENCE in its environment: a number that rises with each holding, for \
what it writes to. While it runs the lease is extended; if the lock is lost all the same, the command is killed. Its exit code \
is passed on; 4 if somebody else holds the lock.\n\n  punctual lock run nightly --wait 10m -- ./rebuild-index";

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
    /// How long it is held behind the last extension, should this process or this machine die.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    lease: Duration,
    /// How long to wait for it.
    #[arg(long, value_parser = parse_duration, default_value = "0s", value_name = "DURATION")]
    wait: Duration,
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
        Lock::Run(args) => hold(session, args).await,
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

async fn hold(session: &mut Session, args: &Run) -> Result {
    let lock = session.client.lock(&args.name).lease(args.lease);
    let Some(guard) = lock.acquire(args.wait).await? else {
        let left = lock.holder().await?.map_or(Duration::ZERO, |held| held.left);
        let text = format!("somebody else holds lock {:?}, for {} at least", args.name, span(left));
        return Err(Failure::new("conflict", text).hint("wait for it: --wait 10m"));
    };
    let mut words = args.command.iter();
    let program = words.next().cloned().unwrap_or_default();
    let mut command = tokio::process::Command::new(&program);
    command
        .args(words)
        .env("PUNCTUAL_LOCK", &args.name)
        .env("PUNCTUAL_FENCE", guard.fence().to_string())
        .kill_on_drop(true);
    let ended = match command.spawn() {
        Ok(mut child) => beside(&guard, args, &mut child).await,
        Err(e) => {
            Err(Failure::new("failed", format!("could not start {}", program.display())).why(e.to_string()))
        }
    };
    let is_released = guard.release().await;
    let status = ended?;
    if !is_released? {
        return Err(lost(&args.name));
    }
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::Silent(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}

/// Waits for the command, and extends the lease meanwhile. Ctrl-C goes to the command, too: whether it ends is its own affair.
async fn beside(guard: &LockGuard, args: &Run, child: &mut Child) -> Result<ExitStatus> {
    // When the lease ends, as far as this machine knows: no extension counts from before it was asked for, and only the first may
    // be off, by the answer's way.
    let mut ends = Instant::now() + args.lease;
    loop {
        let turn = async {
            tokio::time::sleep(args.lease / 3).await;
            (Instant::now(), guard.extend().await)
        };
        tokio::pin!(turn);
        let answer = loop {
            tokio::select! {
                ended = child.wait() => return Ok(ended?),
                _ = tokio::signal::ctrl_c() => {}
                answer = &mut turn => break Some(answer),
                () = tokio::time::sleep_until(ends) => break None,
            }
        };
        match answer {
            Some((sent, Ok(true))) => ends = sent + args.lease,
            // The next turn comes before the lease ends, or finds that it did.
            Some((_, Err(error))) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not extend the lock");
            }
            Some((_, Ok(false))) | None => {
                child.kill().await?;
                return Err(lost(&args.name));
            }
        }
    }
}

fn lost(name: &str) -> Failure {
    Failure::new("conflict", format!("lost lock {name:?} while the command ran"))
        .why("its lease ended before it was extended, or an operator released it")
        .hint("a longer --lease outlasts longer pauses")
}
