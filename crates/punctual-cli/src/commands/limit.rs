//! `--timeout`: the time that a command may take.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout};

use crate::{
    args::{Command, Globals},
    errors::{Failure, Result},
    times::span,
};

/// The time limit of a command, if there is one.
pub(crate) struct Limit {
    begin: Instant,
    at_most: Option<Duration>,
}

impl Limit {
    /// From now on.
    pub(super) fn of(globals: &Globals, command: &Command) -> Result<Self> {
        let at_most = match command {
            // With these commands, --timeout is an option of the job.
            Command::Push(_) => None,
            Command::Cron(cron) if cron.has_a_job() => None,
            Command::Topic(topic) if topic.has_a_job() => None,
            Command::Work(_)
            | Command::Forward(_)
            | Command::Serve(_)
            | Command::Bench(_)
            | Command::Demo(_)
                if globals.timeout.is_some() =>
            {
                return Err(Failure::invalid(
                    "--timeout does not work with work, forward, serve, bench and demo",
                )
                .hint("punctual push --timeout    limits each run of a job"));
            }
            _ => globals.timeout,
        };
        Ok(Self { begin: Instant::now(), at_most })
    }

    /// Returns the result of `work`, or `None` if it takes too long.
    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.at_most {
            None => Some(work.await),
            Some(at_most) => timeout(at_most.saturating_sub(self.begin.elapsed()), work).await.ok(),
        }
    }

    /// Makes the error of a command that took too long and changed nothing.
    pub(super) fn passed(&self) -> Failure {
        Failure::timed_out(format!("not finished after {}", self.text()))
    }

    /// Makes the error of a change that took too long and may have been made.
    pub(super) fn passed_within_a_change(&self) -> Failure {
        Failure::unknown_outcome(format!("no answer after {}", self.text()))
            .why("the change may have been made completely, partly or not at all")
            .hint("check with punctual ls or punctual show before you repeat the command")
    }

    fn text(&self) -> String {
        self.at_most.map(span).unwrap_or_default()
    }
}
