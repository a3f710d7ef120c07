//! One job as a command, from its start to its verdict. No verdict is given while something of a command that had to end still
//! runs: the lease is extended until then.
//!
//! ```text
//! running ──exits──────────────────────────────────────────► verdict by its exit code
//!    │──timeout, cancel asked, or lease lost──► ending ──all gone──► verdict
//!    │──the worker's grace is over────────────► ending ──all gone──► given back
//!    └──dropped, or the worker killed──► SIGKILL, by its supervisor
//! ```

use std::{process::ExitStatus, process::Stdio, sync::Arc, time::Duration};

use punctual::{
    Ctx, JobRecord, Outcome, Payload,
    limits::{PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX},
    worker::{Health, Stop},
};
use serde::de::IgnoredAny;
use tokio::{process::Command, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    capture::{Tail, printed},
    command::{Running, is_of_the_job},
};

/// Put off, by sysexits.h: "temporary failure".
pub(crate) const EXIT_SNOOZE: i32 = 75;
/// Given up on.
pub(crate) const EXIT_DEAD: i32 = 100;

/// How commands are run.
#[derive(Clone)]
pub(super) struct How {
    /// What `sh -c` runs.
    pub(super) command: Arc<str>,
    pub(super) snooze: Duration,
    /// Between SIGTERM and SIGKILL.
    pub(super) kill_after: Duration,
    /// Whether stdout is the result.
    pub(super) result: bool,
    /// Whether lines of stderr are kept.
    pub(super) log: bool,
    /// Whether commands see the address of the store.
    pub(super) pass_store: bool,
    /// Where it is reported that a command cannot be ended.
    pub(super) health: Health,
}

/// Runs a command for every job.
#[derive(Clone)]
pub(super) struct Runner {
    how: How,
    /// Fired when all commands have to end and their jobs are given back.
    giving_back: CancellationToken,
    /// Jobs whose commands may still run.
    running: TaskTracker,
}

/// A note in the health of what cannot be ended. Dropped, it is withdrawn.
pub(super) struct Note<'a> {
    pub(super) health: &'a Health,
    pub(super) about: String,
}

impl Note<'_> {
    pub(super) fn put(&self, words: &str) {
        self.health.note(&self.about, Some(words));
    }
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        self.health.note(&self.about, None);
    }
}

/// Why a command was ended.
enum Cut {
    /// By its job's timeout.
    Timeout,
    /// By a cancel, or a lost lease.
    Stopped,
    GivenBack,
}

impl Runner {
    pub(super) fn new(how: How) -> Self {
        Self { how, giving_back: CancellationToken::new(), running: TaskTracker::new() }
    }

    /// Ends all commands, and waits until nothing is left of them. Their jobs wait to be given back by the worker's end.
    pub(super) async fn give_back(&self) {
        self.giving_back.cancel();
        self.running.close();
        self.running.wait().await;
    }

    /// Runs the command for one job.
    pub(super) async fn run(self, job: JobRecord, ctx: Ctx<()>) -> Outcome {
        let outcome = if self.giving_back.is_cancelled() {
            None
        } else {
            self.running.track_future(self.outcome(&job, &ctx)).await
        };
        match outcome {
            Some(outcome) => outcome,
            // The worker drops this when it gives the job back.
            None => std::future::pending().await,
        }
    }

    /// What becomes of a job; `None`: it is given back.
    async fn outcome(&self, job: &JobRecord, ctx: &Ctx<()>) -> Option<Outcome> {
        let timeout = tokio::time::sleep(job.timeout);
        tokio::pin!(timeout);
        if PAYLOAD_BYTES_MAX < job.payload.bytes.len() {
            let words =
                format!("a command can have {PAYLOAD_BYTES_MAX} bytes of payload, and this job has more");
            return Some(Outcome::Dead(words));
        }
        let started = match self.command(job, ctx) {
            Ok(command) => Running::start(command, Some(&job.payload.bytes)).await,
            Err(e) => Err(e),
        };
        let mut run = match started {
            Ok(run) => run,
            Err(e) => return Some(not_started(&e)),
        };
        let (tail, ended) = (Tail::default(), CancellationToken::new());
        let log = self.how.log.then(|| ctx.clone());
        let stderr = run.stderr().map(|pipe| tokio::spawn(tail.clone().follow(pipe, ended.clone(), log)));
        let stdout = run.stdout().map(|pipe| tokio::spawn(printed(pipe, ended.clone())));
        let cut = tokio::select! {
            biased;
            exited = run.ended() => Err(exited),
            () = timeout => Ok(Cut::Timeout),
            // The worker's own timer may be the first.
            () = stopped(ctx) => Ok(if ctx.stop_reason() == Some(Stop::TimedOut) { Cut::Timeout } else { Cut::Stopped }),
            () = self.giving_back.cancelled() => Ok(Cut::GivenBack),
        };
        let (cut, exited) = match cut {
            Err(exited) => (None, exited),
            Ok(cut) => {
                let note = Note { health: &self.how.health, about: format!("job {}", job.id) };
                let report = |words: String| {
                    tracing::warn!(job = %job.id, "{words}");
                    note.put(&words);
                    ctx.log(words);
                };
                (Some(cut), run.gone(self.how.kill_after, report).await)
            }
        };
        ended.cancel();
        if let Some(stderr) = stderr {
            let _ = stderr.await;
        }
        Some(match (cut, exited) {
            (Some(Cut::GivenBack), _) => return None,
            (Some(Cut::Timeout), _) => Outcome::retry(format_args!("timeout after {:?}", job.timeout)),
            (None, Err(e)) if !run.has_begun() => not_started(&e),
            (_, Err(e)) => Outcome::retry(format_args!("could not run the command: {e}")),
            (_, Ok(status)) if status.success() && self.how.result => given(stdout, ctx).await,
            (_, Ok(status)) => self.verdict(status, &tail.text(), ctx.stop_reason() == Some(Stop::Cancelled)),
        })
    }

    fn command(&self, job: &JobRecord, ctx: &Ctx<()>) -> std::io::Result<Command> {
        let mut command = Running::command(&["sh", "-c", &self.how.command], self.how.kill_after)?;
        command
            .env("PUNCTUAL_JOB_ID", job.id.to_string())
            .env("PUNCTUAL_KIND", &job.kind)
            .env("PUNCTUAL_QUEUE", &job.queue)
            .env("PUNCTUAL_ATTEMPT", job.attempt.to_string())
            .env("PUNCTUAL_MAX_ATTEMPTS", job.max_attempts.to_string())
            .env("PUNCTUAL_FENCE", ctx.fence().to_string())
            .env("PUNCTUAL_RUN_AT_MS", job.run_at.as_ms().to_string())
            .env("PUNCTUAL_CONTENT_TYPE", &*job.payload.content_type)
            .env("PUNCTUAL_TAGS", serde_json::to_string(&job.tags)?)
            .env("PUNCTUAL_HEADERS", serde_json::to_string(&job.headers)?)
            .stderr(Stdio::piped());
        match &job.group {
            Some(group) => command.env("PUNCTUAL_GROUP", group),
            // Not the group in the worker's own environment.
            None => command.env_remove("PUNCTUAL_GROUP"),
        };
        // So that spans of the command are children of the run, and not of what the worker itself was started in.
        command.env_remove("TRACEPARENT").env_remove("TRACESTATE");
        #[cfg(feature = "otel")]
        for (name, value) in punctual::trace::headers() {
            command.env(name.to_ascii_uppercase(), value);
        }
        // Its address may hold a password.
        if !self.how.pass_store {
            command.env_remove("PUNCTUAL_STORE");
        }
        if self.how.result {
            command.stdout(Stdio::piped());
        }
        Ok(command)
    }

    fn verdict(&self, status: ExitStatus, stderr: &str, cancelled: bool) -> Outcome {
        match status.code() {
            Some(0) => Outcome::Done,
            _ if cancelled => Outcome::Cancel,
            Some(EXIT_SNOOZE) => Outcome::Snooze(self.how.snooze),
            Some(EXIT_DEAD) => Outcome::Dead(words(status, stderr)),
            _ => Outcome::retry(words(status, stderr)),
        }
    }
}

/// The outcome of a command that could not be started. That is no attempt, unless it is the job's own fault.
fn not_started(error: &std::io::Error) -> Outcome {
    let words = format!("could not start the command: {error}");
    if is_of_the_job(error) { Outcome::retry(words) } else { Outcome::NotStarted(words) }
}

/// Comes back when the job's cancel was asked for, or its lease was lost. A worker that ends lets its commands finish.
pub(super) async fn stopped(ctx: &Ctx<()>) {
    ctx.cancel_token().cancelled().await;
    if ctx.stop_reason() == Some(Stop::Shutdown) {
        std::future::pending::<()>().await;
    }
}

/// The result of a command that went well. It did its work: nothing that it printed makes it run again.
async fn given(stdout: Option<JoinHandle<(Vec<u8>, bool)>>, ctx: &Ctx<()>) -> Outcome {
    let Some(stdout) = stdout else { return Outcome::Done };
    let Ok((bytes, is_closed)) = stdout.await else { return Outcome::Done };
    if !is_closed {
        ctx.log("a process of the command is still running and can print; the result is what was printed until now");
    }
    if bytes.is_empty() {
        return Outcome::Done;
    }
    if RESULT_BYTES_MAX < bytes.len() {
        return Outcome::Dead(format!(
            "the command succeeded, but printed more than {RESULT_BYTES_MAX} bytes as its result"
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
