//! One command, from its start to its verdict; and its whole process group, if it has to end early.
//!
//! ```text
//! running ──exits──────────────────────────────────► verdict by its exit code
//!    │──cancel asked, or lease lost──► ending ──all gone, or SIGKILL after 5 s──► verdict
//!    └──dropped (timeout, end of the grace)──► ending, in the background
//! ```

use std::{
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use punctual::{
    Ctx, JobRecord, Outcome, Payload, Stop,
    limits::{ERROR_BYTES_MAX, RESULT_BYTES_MAX},
};
use serde::de::IgnoredAny;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::task::TaskTracker;

/// Between SIGTERM and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// How often it is looked whether a process group is gone: nobody tells.
const GONE_EVERY: Duration = Duration::from_millis(20);
/// How long the rest of stdout and stderr is waited for once the command ended: whoever it left behind may keep the pipes open.
const PIPE_GRACE: Duration = Duration::from_millis(200);
/// Put off, by sysexits.h: "temporary failure".
const EXIT_SNOOZE: i32 = 75;
/// Given up on.
const EXIT_DEAD: i32 = 100;

/// Runs a command for every job.
#[derive(Clone)]
pub(super) struct Runner {
    command: Arc<str>,
    snooze: Duration,
    /// Whether stdout is the result.
    result: bool,
    /// Whether lines of stderr are kept.
    log: bool,
    /// Groups that are being ended.
    ending: TaskTracker,
}

impl Runner {
    pub(super) fn new(command: &str, snooze: Duration, result: bool, log: bool) -> Self {
        Self { command: command.into(), snooze, result, log, ending: TaskTracker::new() }
    }

    /// Waits until every group that was told to end is gone.
    pub(super) async fn ended(&self) {
        self.ending.close();
        self.ending.wait().await;
    }

    /// Runs the command for one job.
    pub(super) async fn run(self, job: JobRecord, ctx: Ctx<()>) -> Outcome {
        let mut run = match self.start(&job, &ctx) {
            Ok(run) => run,
            Err(e) => return Outcome::retry(format_args!("could not start sh: {e}")),
        };
        let tail = Tail::default();
        let log = self.log.then(|| ctx.clone());
        let stderr = run.stderr().map(|pipe| tokio::spawn(tail.clone().follow(pipe, log)));
        let stdout = run.child().stdout.take().map(|pipe| tokio::spawn(printed(pipe)));
        run.feed(job.payload.bytes);
        let stop = ctx.cancel_token();
        let exited = tokio::select! {
            exited = run.child().wait() => exited,
            () = stop.cancelled() => match ctx.stop_reason() {
                // A worker that ends lets its commands finish; those that can't are dropped when its grace is over.
                Some(Stop::Shutdown) => run.child().wait().await,
                _ => run.end().await,
            },
        };
        run.gone();
        if let Some(stderr) = stderr {
            let _ = timeout(PIPE_GRACE, stderr).await;
        }
        match exited {
            Ok(status) if status.success() && self.result => given(stdout, &ctx).await,
            Ok(status) => self.verdict(status, &tail.text(), ctx.stop_reason() == Some(Stop::Cancelled)),
            Err(e) => Outcome::retry(format_args!("could not wait for the command: {e}")),
        }
    }

    fn start(&self, job: &JobRecord, ctx: &Ctx<()>) -> std::io::Result<Run> {
        let mut command = Command::new("sh");
        command
            .args(["-c", &self.command])
            .env("PUNCTUAL_JOB_ID", job.id.to_string())
            .env("PUNCTUAL_KIND", &job.kind)
            .env("PUNCTUAL_QUEUE", &job.queue)
            .env("PUNCTUAL_ATTEMPT", job.attempt.to_string())
            .env("PUNCTUAL_FENCE", ctx.fence().to_string())
            .env("PUNCTUAL_RUN_AT_MS", job.run_at.as_ms().to_string())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        if self.result {
            command.stdout(Stdio::piped());
        }
        // A group of its own: a signal to it reaches all that the command started, and Ctrl-C reaches the worker only.
        #[cfg(unix)]
        command.process_group(0);
        let child = command.spawn()?;
        Ok(Run { child: Some(child), ending: self.ending.clone() })
    }

    fn verdict(&self, status: ExitStatus, stderr: &str, cancelled: bool) -> Outcome {
        match status.code() {
            Some(0) => Outcome::Done,
            _ if cancelled => Outcome::Cancel,
            Some(EXIT_SNOOZE) => Outcome::Snooze(self.snooze),
            Some(EXIT_DEAD) => Outcome::Dead(words(status, stderr)),
            _ => Outcome::retry(words(status, stderr)),
        }
    }
}

/// What a command prints, as far as it may be a result and one byte more; the rest is read and dropped.
async fn printed(mut pipe: ChildStdout) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut head = (&mut pipe).take(RESULT_BYTES_MAX as u64 + 1);
    let _ = head.read_to_end(&mut bytes).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    bytes
}

/// The result of a command that went well. It did its work: nothing that it printed makes it run again.
async fn given(stdout: Option<JoinHandle<Vec<u8>>>, ctx: &Ctx<()>) -> Outcome {
    let Some(stdout) = stdout else { return Outcome::Done };
    let Ok(Ok(bytes)) = timeout(PIPE_GRACE, stdout).await else {
        ctx.log("no result: something that the command left behind goes on to print");
        return Outcome::Done;
    };
    if bytes.is_empty() {
        return Outcome::Done;
    }
    if RESULT_BYTES_MAX < bytes.len() {
        return Outcome::Dead(format!(
            "it went well, but printed more than a result of {RESULT_BYTES_MAX} bytes"
        ));
    }
    let is_json = serde_json::from_slice::<IgnoredAny>(&bytes).is_ok();
    let content_type = if is_json { Payload::JSON } else { "text/plain" };
    Outcome::DoneWith(Payload { bytes, content_type: content_type.into() })
}

/// The command's own words, else how it ended.
fn words(status: ExitStatus, stderr: &str) -> String {
    match stderr.trim() {
        "" => status.to_string(),
        text => text.to_owned(),
    }
}

/// A command that was started. Dropped before it ended, its group is ended in the background.
struct Run {
    /// `None`: it ended.
    child: Option<Child>,
    ending: TaskTracker,
}

impl Run {
    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("invariant: taken only when it ended")
    }

    fn stderr(&mut self) -> Option<ChildStderr> {
        self.child().stderr.take()
    }

    /// Writes the payload. A command that reads nothing is free to.
    fn feed(&mut self, payload: Vec<u8>) {
        if let Some(mut stdin) = self.child().stdin.take() {
            tokio::spawn(async move {
                let _ = stdin.write_all(&payload).await;
            });
        }
    }

    /// It ended by itself.
    fn gone(&mut self) {
        self.child = None;
    }

    async fn end(&mut self) -> std::io::Result<ExitStatus> {
        end(self.child()).await
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.ending.spawn(async move {
                let _ = end(&mut child).await;
            });
        }
    }
}

/// Ends a command and all that it started: SIGTERM, and SIGKILL for what is left after a while.
async fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    let group = Group::of(child);
    group.terminate(child);
    let all_gone = async {
        let status = child.wait().await;
        while group.is_there() {
            tokio::time::sleep(GONE_EVERY).await;
        }
        status
    };
    if let Ok(status) = timeout(TERM_GRACE, all_gone).await {
        return status;
    }
    group.kill(child);
    child.wait().await
}

/// The process group that a command leads.
#[cfg(unix)]
struct Group(Option<rustix::process::Pid>);

#[cfg(unix)]
impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }

    fn terminate(&self, _: &mut Child) {
        self.signal(rustix::process::Signal::TERM);
    }

    fn kill(&self, _: &mut Child) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// A group that is gone already needs no signal.
    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Its number stays taken as long as one process is in it, so that this never means another one.
    fn is_there(&self) -> bool {
        self.0.is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
    }
}

/// Without process groups only the command itself can be ended.
#[cfg(not(unix))]
struct Group;

#[cfg(not(unix))]
impl Group {
    fn of(_: &Child) -> Self {
        Self
    }

    fn terminate(&self, child: &mut Child) {
        let _ = child.start_kill();
    }

    fn kill(&self, child: &mut Child) {
        let _ = child.start_kill();
    }

    fn is_there(&self) -> bool {
        false
    }
}

/// The last of what a command wrote to stderr; all of it goes on to ours.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    async fn follow(self, mut pipe: ChildStderr, log: Option<Ctx<()>>) {
        let (mut buffer, mut ours) = (vec![0; 4 * 1024], tokio::io::stderr());
        let mut lines = Lines::default();
        while let Ok(n) = pipe.read(&mut buffer).await
            && 0 < n
        {
            self.keep(&buffer[..n]);
            if let Some(log) = &log {
                lines.add(&buffer[..n], |line| log.log(line));
            }
            let _ = ours.write_all(&buffer[..n]).await;
        }
        if let Some(log) = &log {
            lines.end(|line| log.log(line));
        }
    }

    fn keep(&self, more: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(more);
        let over = kept.len().saturating_sub(ERROR_BYTES_MAX);
        kept.drain(..over);
    }

    /// What was cut within a character, or is no text, is shown as such.
    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = kept.iter().take(4).position(|b| b & 0xc0 != 0x80).unwrap_or(0);
        String::from_utf8_lossy(&kept[start..]).into_owned()
    }
}

/// Bytes as lines of text; a line that is longer than any that is kept goes on in the next one.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn add(&mut self, bytes: &[u8], mut tell: impl FnMut(String)) {
        for byte in bytes {
            if *byte == b'\n' || self.0.len() == ERROR_BYTES_MAX {
                self.end(&mut tell);
            }
            if *byte != b'\n' {
                self.0.push(*byte);
            }
        }
    }

    fn end(&mut self, mut tell: impl FnMut(String)) {
        let line = std::mem::take(&mut self.0);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            tell(text.trim_end().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_whole() {
        let (mut lines, mut told) = (Lines::default(), Vec::new());
        for part in ["one\ntw", "o\r\n\n", "thr"] {
            lines.add(part.as_bytes(), |line| told.push(line));
        }
        lines.end(|line| told.push(line));
        assert_eq!(told, ["one", "two", "thr"]);
        lines.add(&[b'x'; ERROR_BYTES_MAX + 1], |line| told.push(line));
        assert_eq!((told.len(), told[3].len()), (4, ERROR_BYTES_MAX));
    }

    #[test]
    fn the_tail_keeps_the_end() {
        let tail = Tail::default();
        tail.keep("ä".repeat(600).as_bytes());
        tail.keep(b"!");
        let text = tail.text();
        assert!(text.len() <= ERROR_BYTES_MAX && text.ends_with("ä!") && text.starts_with('ä'), "{text}");
    }
}
