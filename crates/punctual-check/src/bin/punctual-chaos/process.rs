//! The processes of a drill, as seen from their parent. None outlives it.

use std::{
    borrow::Borrow,
    fs, io,
    path::Path,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::drill::Outcome;

/// How long a process may take until it listens for a SIGTERM.
const BIRTH_MAX: Duration = Duration::from_secs(30);
/// How long a process may take to end that is about to.
const END_MAX: Duration = Duration::from_mins(2);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// How many processes are looked at for one that is at work, before any other is killed instead.
const VICTIMS_MAX: u32 = 64;

/// Returns which process to kill: one that is at work, if there is one. It is stopped before the look, so it is still at work when the
/// kill comes.
pub(crate) async fn victim(
    mut rng: Rng,
    processes: &[impl Borrow<Process>],
    is_at_work: impl AsyncFn(&Process) -> Outcome<bool>,
) -> Outcome<usize> {
    for _ in 0..VICTIMS_MAX {
        let at = rng.usize(..processes.len());
        let process: &Process = processes[at].borrow();
        process.freeze()?;
        if is_at_work(process).await? {
            return Ok(at);
        }
        process.thaw()?;
        tokio::time::sleep(LOOK).await;
    }
    Ok(rng.usize(..processes.len()))
}

/// A child that has not been waited for.
pub(crate) struct Process {
    pub(crate) proc: String,
    child: Child,
    born: Instant,
}

impl Process {
    /// Starts one that calls itself `proc` and records its history in the folder.
    pub(crate) fn start(
        role: &str,
        store: &str,
        dir: &Path,
        proc: String,
        args: &[String],
    ) -> io::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["child", role, store])
            .arg(dir.join(format!("{proc}.ndjson")))
            .arg(&proc)
            .args(args)
            .spawn()?;
        Ok(Self { proc, child, born: Instant::now() })
    }

    /// Starts a program that says itself what it does.
    pub(crate) fn run(program: &Path, args: &[&str]) -> io::Result<Self> {
        // Who reads the drill's verdict reads nothing else.
        Self::of(program.display().to_string(), Command::new(program).args(args).stdout(io::stderr()))
    }

    /// Starts a command as the process of this name.
    pub(crate) fn of(proc: String, command: &mut Command) -> io::Result<Self> {
        Ok(Self { proc, child: command.spawn()?, born: Instant::now() })
    }

    /// Whether it ended, and how.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// SIGKILL, and the certainty that it is gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and a clean end.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        // One that was just born would die of it.
        while !self.hears(Signal::TERM) && self.born.elapsed() < BIRTH_MAX {
            thread::sleep(LOOK);
        }
        self.signal(Signal::TERM)?;
        self.wait()
    }

    /// Whether it listens for a signal, as Linux tells it (`SigCgt` in proc(5), a mask in hexadecimal); where nobody tells, it does.
    fn hears(&self, signal: Signal) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.child.id())) else { return true };
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask >> (signal.as_raw() - 1) & 1 == 1
    }

    /// SIGSTOP: it holds still, with whatever it was at.
    pub(crate) fn freeze(&self) -> Outcome<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) -> Outcome<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or("no such process")?, signal)?)
    }

    /// Waits for a clean end.
    pub(crate) fn wait(&mut self) -> Outcome<()> {
        let begin = Instant::now();
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{} ended with {status}", self.proc).into()),
                None if END_MAX < begin.elapsed() => return Err(format!("{} does not end", self.proc).into()),
                None => thread::sleep(LOOK),
            }
        }
    }
}

impl Drop for Process {
    /// Also of a drill that failed.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
