//! What is chosen for a job on the command line: of one that is pushed, and of those of a schedule.

use std::{collections::BTreeMap, time::Duration};

use punctual::{Backoff, Concurrency, JobId, JobOptions, NewJob, Priority, parse_duration};

use super::read_payload;
use crate::errors::Result;

/// Options of a job.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Choices {
    /// Where it waits; `default` unless said otherwise.
    #[arg(short, long)]
    queue: Option<String>,
    /// high, normal or low; 0, 1 or 2.
    #[arg(short, long, allow_hyphen_values = true)]
    priority: Option<Priority>,
    /// Its group.
    #[arg(long)]
    group: Option<String>,
    /// The resource it locks.
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// How many may hold the resource at once.
    #[arg(long, requires = "concurrency_key", value_name = "N")]
    concurrency_limit: Option<u32>,
    /// How often it is tried.
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// The pauses between attempts, as in `exp 5s..6h`, `linear 10s..1h`, `fixed 30s`.
    #[arg(long)]
    backoff: Option<Backoff>,
    /// Hard limit of one run.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Its own lease.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    lease: Option<Duration>,
    /// For people and filters; may be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// name=value; may be repeated.
    #[arg(long = "header", value_parser = header, value_name = "NAME=VALUE")]
    headers: Vec<(String, String)>,
    /// What the payload is, if it is not JSON.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

fn header(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Choices {
    /// A job with what was chosen; due now.
    pub(in crate::commands) fn job(&self, id: JobId, kind: &str, payload: Option<&str>) -> Result<NewJob> {
        let payload = read_payload(payload.unwrap_or("null"), self.content_type.clone())?;
        let mut job = NewJob::new(id, kind, self.queue.as_deref().unwrap_or("default"), payload);
        job.options = JobOptions {
            priority: self.priority,
            max_attempts: self.max_attempts,
            backoff: self.backoff,
            timeout: self.timeout,
            lease: self.lease,
        };
        job.group.clone_from(&self.group);
        job.concurrency = self
            .concurrency_key
            .clone()
            .map(|key| Concurrency { key, limit: self.concurrency_limit.unwrap_or(1) });
        job.tags.clone_from(&self.tags);
        job.headers = self.headers.iter().cloned().collect::<BTreeMap<_, _>>();
        Ok(job)
    }

    /// Whether a queue was chosen.
    pub(in crate::commands) const fn has_a_queue(&self) -> bool {
        self.queue.is_some()
    }

    /// The priority, if one was chosen.
    pub(super) const fn priority(&self) -> Option<Priority> {
        self.priority
    }
}
