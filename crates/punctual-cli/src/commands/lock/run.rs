//! `punctual lock run`: a command that runs while a lock is held, and is gone before the lock is.
//!
//! ```text
//! acquired ──► running ──exits, or is ended by a signal──► its group is ended ──► released
//!                 └──the lock is lost, or about to be──► all is killed
//! ```

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::ExitStatusExt as _,
    pin::pin,
    process::{Command, ExitStatus},
    time::Duration,
};

use punctual::toolkit::{Lock, LockGuard};
use rustix::{
    process::{Signal, getpgrp},
    termios::tcgetpgrp,
};
use tokio::time::{Instant, timeout_at};

use super::{Run, Session};
use crate::{
    errors::{Exit, Failure, Result},
    family::{Family, Members},
    requests::{Requests, exit_code},
    times::span,
};

/// The longest call that waits for the lock: a signal waits so long at most where the store answers.
const CALL_MAX: Duration = Duration::from_secs(1);
/// The lease is extended every so many-th part of it.
const EXTENDS: u32 = 3;
/// After a failure it is tried again after this part of it.
const AGAIN: u32 = 12;
/// The part of the lease that is left when the command is ended, so that it is gone before another process has the lock. Half of
/// this time is for SIGTERM.
const RESERVE: u32 = 6;

pub(super) async fn hold(session: &mut Session, args: &Run) -> Result {
    let lock = session.client.lock(&args.name).lease(args.lease);
    let mut requests = Requests::listen()?;
    let acquired = match acquire(&lock, args.wait, &mut requests).await? {
        Acquired::Asked(request) => return Err(Failure::Silent(exit_code(request))),
        Acquired::Mine(guard) => Some(guard),
        Acquired::Held => None,
    };
    let Some(guard) = acquired else {
        let left = lock.holder().await?.map_or(Duration::ZERO, |held| held.left);
        let text = format!("lock {:?} is held by another process, for at least {}", args.name, span(left));
        return Err(Failure::conflict(text).hint("wait for the lock: --wait 10m").exits(Exit::Held));
    };
    let ended = under(&guard, args, requests).await;
    if let Err(Ended::Lost(late)) = &ended {
        return Err(lost(&args.name, late));
    }
    let released = guard.release().await;
    let status = match ended {
        Ok(status) => status,
        Err(Ended::NotStarted(e)) => return Err(not_started(args, &e)),
        Err(Ended::Lost(late)) => return Err(lost(&args.name, late)),
    };
    match released {
        Ok(true) => {}
        Ok(false) => {
            return Err(lost(&args.name, "the lock was released by an operator, or its lease ended"));
        }
        Err(error) => {
            let left = span(args.lease);
            session.say(&format!(
                "could not release lock {:?}: {error}. It is free after {left} at the latest",
                args.name
            ));
        }
    }
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Failure::Silent(u8::try_from(code).unwrap_or(1))),
        (None, signal) => Err(Failure::Silent(exit_code(signal.unwrap_or_default()))),
    }
}

/// How the wait for the lock ended.
enum Acquired {
    Mine(LockGuard),
    /// Another process held the lock the whole time.
    Held,
    /// A signal ended the wait.
    Asked(i32),
}

/// Waits for the lock. A dropped call could leave the lock held without a holder. So after a signal, this waits for the answer of the
/// call on its way, and releases a lock that it got. A second signal does not wait.
async fn acquire(lock: &Lock, wait: Duration, requests: &mut Requests) -> Result<Acquired> {
    let begin = Instant::now();
    loop {
        let left = wait.saturating_sub(begin.elapsed());
        let mut call = pin!(lock.acquire(left.min(CALL_MAX)));
        let (acquired, request) = tokio::select! {
            acquired = &mut call => (acquired?, None),
            first = requests.next() => tokio::select! {
                acquired = call => (acquired?, Some(first)),
                second = requests.next() => return Ok(Acquired::Asked(second)),
            },
        };
        match (acquired, request) {
            (Some(guard), None) => return Ok(Acquired::Mine(guard)),
            (None, None) if CALL_MAX < left => {}
            (None, None) => return Ok(Acquired::Held),
            (guard, Some(request)) => {
                if let Some(guard) = guard {
                    guard.release().await?;
                }
                return Ok(Acquired::Asked(request));
            }
        }
    }
}

/// Why there is no status of the command to pass on.
enum Ended {
    NotStarted(io::Error),
    /// The lock was lost, and the command killed.
    Lost(&'static str),
}

/// Runs the command, and extends the lease until nothing is left of it.
async fn under(guard: &LockGuard, args: &Run, requests: Requests) -> std::result::Result<ExitStatus, Ended> {
    let mut words = args.command.iter();
    let mut command = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
    command.args(words).env("PUNCTUAL_LOCK", &args.name).env("PUNCTUAL_FENCE", guard.fence().to_string());
    // Keys that are typed into a terminal reach only its foreground group.
    let has_terminal = tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == getpgrp());
    let mut family = Family::start(&mut command, !has_terminal).map_err(Ended::NotStarted)?;
    let lost = tokio::select! {
        biased;
        status = tend(&mut family, requests, args.kill_after, has_terminal) => {
            family.let_go();
            return Ok(status);
        }
        lost = keep(guard, args.lease) => lost,
    };
    match lost {
        // Another process may have the lock already.
        Loss::Refused => family.end(Members::All, Duration::ZERO).await,
        Loss::Late => family.end(Members::All, args.lease / RESERVE / 2).await,
    }
    Err(Ended::Lost(match lost {
        Loss::Refused => "the lease ended before it was extended, or an operator released the lock",
        Loss::Late => "the store did not extend the lease in time",
    }))
}

/// Waits for the command, passes on what this process is asked, and ends what the command left of its group.
async fn tend(
    family: &mut Family,
    mut requests: Requests,
    kill_after: Duration,
    has_terminal: bool,
) -> ExitStatus {
    let mut kill_at = None;
    let status = loop {
        let late = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = family.exited() => break status,
            number = requests.next() => {
                let Some(request) = Signal::from_named_raw(number) else { continue };
                // Ctrl-C of a terminal has reached it already.
                if !(has_terminal && request == Signal::INT) {
                    family.signal(request);
                }
                // A program may handle Ctrl-C as it likes.
                if request != Signal::INT {
                    kill_at = kill_at.or(Some(Instant::now() + kill_after));
                }
            }
            () = late => {
                family.end(Members::All, Duration::ZERO).await;
                kill_at = None;
            }
        }
    };
    family.end(Members::Group, kill_after).await;
    status
}

/// How a lock is lost.
#[derive(Clone, Copy)]
enum Loss {
    /// The store says so.
    Refused,
    /// The store could not be asked, and the lease is about to end.
    Late,
}

/// Extends the lease until that fails for good.
async fn keep(guard: &LockGuard, lease: Duration) -> Loss {
    // When the lease ends, as far as this machine knows: no extension counts from before it was asked for, and only the first may
    // be off, by the answer's way.
    let mut late = Instant::now() + lease - lease / RESERVE;
    let mut pause = lease / EXTENDS;
    loop {
        tokio::time::sleep_until(late.min(Instant::now() + pause)).await;
        let sent = Instant::now();
        match timeout_at(late, guard.extend()).await {
            Ok(Ok(true)) => {
                late = sent + lease - lease / RESERVE;
                pause = lease / EXTENDS;
            }
            Ok(Ok(false)) => return Loss::Refused,
            Ok(Err(error)) if Instant::now() < late => {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not extend the lock");
                pause = lease / AGAIN;
            }
            Ok(Err(_)) | Err(_) => return Loss::Late,
        }
    }
}

fn not_started(args: &Run, error: &io::Error) -> Failure {
    let program = args.command.first().map(|program| program.display().to_string()).unwrap_or_default();
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NoCommand } else { Exit::NotStarted };
    Failure::failed(format!("could not start {program}")).why(error.to_string()).exits(exit)
}

fn lost(name: &str, why: &str) -> Failure {
    Failure::conflict(format!("lost lock {name:?} while the command ran"))
        .why(why)
        .hint("choose a longer --lease, which outlasts longer pauses")
        .exits(Exit::Lost)
}
