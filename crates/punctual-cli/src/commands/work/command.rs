//! The worker's side of a command that runs under a [supervisor](super::supervisor).

use std::{
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    process::{Child, ChildStderr, ChildStdout, Command},
    time::timeout,
};

use super::supervisor::{END, ENDED, FAILED, NAME, NAME_OF_CHILD, STARTED};

/// How long after SIGKILL it is said that a command still runs.
const OUTLIVES_AFTER: Duration = Duration::from_secs(3);
/// How often it is looked whether a group is gone whose supervisor was killed.
const GONE_EVERY: Duration = Duration::from_millis(20);
/// The time to wait for such a group after SIGKILL. Its zombies may have no parent that waits for them.
const GONE_MAX: Duration = Duration::from_secs(10);

/// Returns whether a command could not be started for what its own job gave it, such as headers that are too large for an environment.
pub(super) fn is_of_the_job(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::ArgumentListTooLong
    )
}

/// A command that was started. Dropped, all that it started is killed by its supervisor.
pub(super) struct Running {
    supervisor: Child,
    socket: UnixStream,
    /// What the supervisor said so far.
    said: Vec<u8>,
}

impl Running {
    /// Starts `command` under a supervisor: this adds what is needed to a command line that is otherwise complete. Its stdin
    /// will be `payload`. A child that stays has none: see [`child`](Self::child). Dropped before it is done, nothing was started.
    pub(super) async fn start(mut command: Command, payload: Option<&[u8]>) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // A group of its own: Ctrl-C reaches the worker only.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let supervisor = command.spawn()?;
        // It holds their end of the socket, which would outlive the supervisor.
        drop(command);
        let mut running = Self { supervisor, socket: UnixStream::from_std(ours)?, said: Vec::new() };
        // A supervisor that could not start a thing says why below.
        if let Some(payload) = payload {
            let _ = running.socket.write_u64(payload.len() as u64).await;
            let _ = running.socket.write_all(payload).await;
        }
        Ok(running)
    }

    /// A command line that a supervisor runs, with a payload as its stdin.
    pub(super) fn command(words: &[&str], kill_after: Duration) -> io::Result<Command> {
        Self::supervised(NAME, words, kill_after)
    }

    /// A command line that a supervisor runs as a child that stays. The socket that this command has as its stdout becomes the child's
    /// stdin.
    pub(super) fn child(words: &[&str], kill_after: Duration) -> io::Result<Command> {
        Self::supervised(NAME_OF_CHILD, words, kill_after)
    }

    fn supervised(name: &str, words: &[&str], kill_after: Duration) -> io::Result<Command> {
        // What runs here, even if its file was replaced.
        let own = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        let mut command = Command::new(own);
        command.arg0("punctual").arg(name).arg(kill_after.as_millis().to_string()).args(words);
        Ok(command)
    }

    /// The number of the supervisor, which is the parent of the command; `None` if it has ended.
    pub(super) fn supervisor(&self) -> Option<u32> {
        self.supervisor.id()
    }

    pub(super) fn stdout(&mut self) -> Option<ChildStdout> {
        self.supervisor.stdout.take()
    }

    pub(super) fn stderr(&mut self) -> Option<ChildStderr> {
        self.supervisor.stderr.take()
    }

    /// Waits until the command has ended. After [`end`](Self::end), waits until all of its processes are gone. May be dropped and
    /// called again.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some((number, why)) = self.line(FAILED).as_deref().and_then(|line| line.split_once(' ')) {
                return Err(match number.parse() {
                    Ok(number) if number != 0 => io::Error::from_raw_os_error(number),
                    _ => io::Error::other(why.to_owned()),
                });
            }
            if let Some(status) = self.line(ENDED).and_then(|raw| raw.parse().ok()) {
                return Ok(ExitStatus::from_raw(status));
            }
            if self.socket.read_buf(&mut self.said).await.unwrap_or(0) == 0 {
                self.end_group().await;
                return Err(io::Error::other("the process that supervises the command was killed"));
            }
        }
    }

    /// Ends all that it started, and waits until that is gone: SIGTERM, and after `kill_after` SIGKILL. Reports once if something outlives
    /// SIGKILL, since nobody else can tell why its slot stays taken.
    pub(super) async fn gone(
        &mut self,
        kill_after: Duration,
        report: impl FnOnce(String),
    ) -> io::Result<ExitStatus> {
        self.end().await;
        if let Ok(ended) = timeout(kill_after + OUTLIVES_AFTER, self.ended()).await {
            return ended;
        }
        let group = self.line(STARTED).unwrap_or_default();
        report(format!(
            "the command outlives SIGKILL, and its slot is taken until it ends: it became another user's process, or waits for a device. \
             Look at it with pgrep -lg {group}, and end it as its user"
        ));
        self.ended().await
    }

    /// Returns whether the command was started, as far as its supervisor said.
    pub(super) fn has_begun(&self) -> bool {
        self.line(STARTED).is_some()
    }

    /// Asks for its end: SIGTERM, then SIGKILL, for all that it started.
    async fn end(&mut self) {
        // One that is gone has ended.
        let _ = self.socket.write_all(&[END]).await;
    }

    /// What follows on the line that begins so, if there is one.
    fn line(&self, begin: &str) -> Option<String> {
        let said = String::from_utf8_lossy(&self.said);
        said.split_inclusive('\n')
            .find_map(|line| Some(line.strip_prefix(begin)?.strip_suffix('\n')?.to_owned()))
    }

    /// What a supervisor does that was killed.
    async fn end_group(&self) {
        let group = self.line(STARTED).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        let Some(group) = group else { return };
        let _ = kill_process_group(group, Signal::KILL);
        let gone = async {
            while test_kill_process_group(group).is_ok() {
                tokio::time::sleep(GONE_EVERY).await;
            }
        };
        let _ = timeout(GONE_MAX, gone).await;
    }
}
