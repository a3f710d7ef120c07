//! Options of a job on the command line, shared by `push`, `cron set` and `topic publish`.

use std::{collections::BTreeMap, time::Duration};

use punctual::{
    Backoff, JobId, JobOptions, NewJob, Priority,
    job::{Concurrency, parse_duration},
};

use super::read_payload;
use crate::errors::Result;

/// Options of a job.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Choices {
    /// Queue of the job (default: default).
    #[arg(short, long)]
    queue: Option<String>,
    /// Priority: high, normal or low, or 0, 1 or 2 (default: the queue's, else normal).
    #[arg(short, long, allow_hyphen_values = true)]
    priority: Option<Priority>,
    /// Group of the job, such as its tenant; the groups of a queue share it fairly (default: none).
    #[arg(long)]
    group: Option<String>,
    /// Concurrency key: only --concurrency-limit jobs with the same key run at once (default: none).
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// Number of jobs with this key that may run at once (default: 1).
    #[arg(long, requires = "concurrency_key", value_name = "N")]
    concurrency_limit: Option<u32>,
    /// Number of attempts, after which the job is dead (default: the queue's, else 20).
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Pause between attempts: 'exp 5s..6h', 'linear 10s..1h' or 'fixed 30s' (default: the queue's, else exp 5s..6h).
    #[arg(long)]
    backoff: Option<Backoff>,
    /// Time limit of one run (default: the queue's, else 5 min).
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Lease, 1 s to 24 h: if the worker dies, the job runs again after this time (default: the worker's, the queue's, else 15 s).
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    lease: Option<Duration>,
    /// Tag, for filters; may be repeated, up to 16 times.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Header of the job, for its handler; may be repeated.
    #[arg(long = "header", value_parser = header, value_name = "NAME=VALUE")]
    headers: Vec<(String, String)>,
    /// Content type of the payload, if it is not JSON (default: application/json).
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

fn header(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Choices {
    /// Returns a job with these options, due now.
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
