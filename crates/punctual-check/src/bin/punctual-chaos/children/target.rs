//! A child as the drill sees it: a process that is not its own, which it stops, looks at, and kills or lets go on.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::drill::Outcome;

/// How long a signal may take to show.
const SIGNAL_MAX: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The process of a child.
#[derive(Clone, Copy)]
pub(super) struct Target(Pid);

impl Target {
    /// The child with this number; `None` if it is gone, and its number may be that of another process.
    pub(super) fn of(pid: i32, notes: &Path) -> Option<Self> {
        let target = Self(Pid::from_raw(pid)?);
        let mark = format!("DRILL_NOTES={}", notes.display());
        // Linux tells the variables that it was started with. Elsewhere it is taken for the child.
        let environment = match fs::read(format!("/proc/{pid}/environ")) {
            Err(_) if Path::new("/proc/self/environ").exists() => return None,
            Err(_) => return Some(target),
            Ok(environment) => environment,
        };
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()).then_some(target)
    }

    /// SIGSTOP, and the certainty that it stands still. Returns `false` if it is gone.
    pub(super) fn freeze(self) -> Outcome<bool> {
        Ok(self.signal(Signal::STOP)? && self.wait_for(&['T', 't'])?)
    }

    /// SIGCONT.
    pub(super) fn thaw(self) -> Outcome<()> {
        self.signal(Signal::CONT).map(drop)
    }

    /// SIGKILL, and the certainty that it is gone.
    pub(super) fn kill(self) -> Outcome<()> {
        if self.signal(Signal::KILL)? {
            self.wait_for(&['Z', 'X'])?;
        }
        Ok(())
    }

    /// Returns whether there was a process to signal.
    fn signal(self, signal: Signal) -> Outcome<bool> {
        match kill_process(self.0, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until Linux says that it is in one of these states. Returns `false` if it is gone. Elsewhere, a signal has come when it was
    /// sent.
    fn wait_for(self, states: &[char]) -> Outcome<bool> {
        if !Path::new("/proc/self/stat").exists() {
            return Ok(true);
        }
        let begin = Instant::now();
        while begin.elapsed() < SIGNAL_MAX {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
            // Behind the name, which may hold anything, stands the state.
            let Some((_, rest)) = stat.rsplit_once(") ") else { return Ok(false) };
            if rest.starts_with(states) {
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("process {} did not get a signal within {SIGNAL_MAX:?}", self.0).into())
    }
}
