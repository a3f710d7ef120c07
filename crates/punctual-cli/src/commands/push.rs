//! `punctual push`: enqueues one job from the command line, or many from lines of JSON ([`batch`]).

mod batch;
mod choices;
mod wait;

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    time::Duration,
};

use punctual::{
    JobId, NewJob, OnConflict, Payload, Priority, Timestamp, Unique, When,
    job::{Scope, Status, parse_duration},
    store::{Enqueued, wire},
};
use serde::Serialize;

pub(super) use self::choices::Choices;
use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, clean, json},
    times::{self, relative, wall},
};

/// The largest file that is read: far above any payload limit, far below the memory.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A line of --batch is an object such as {\"kind\":\"email.send\",\"payload\":{…},\"delay_ms\":3600000}. \
The command prints one line for each job, after that job is durable.

Examples:
  punctual push email.send '{\"to\":\"ana@example.com\"}' -q mail --in 2h
  punctual push report.build --idempotency-key 2026-11 --wait 5m
  punctual push --batch jobs.ndjson")]
pub(crate) struct Push {
    /// File with one job per line as JSON, or - for stdin.
    #[arg(long, value_name = "FILE|-", required_unless_present = "kind", conflicts_with_all = OF_ONE)]
    batch: Option<String>,
    #[command(flatten)]
    one: One,
}

/// What goes with one job only. Its group would be empty, since a part of it is another one.
const OF_ONE: [&str; 14] = [
    "kind",
    "payload",
    "delay",
    "at",
    "unique",
    "scope",
    "on_conflict",
    "across_kinds",
    "must_be_new",
    "wait",
    "id",
    "idempotency_key",
    "expires",
    "Choices",
];

/// One job.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct One {
    /// Kind of the job: the name that selects its handler.
    kind: Option<String>,
    /// Payload: JSON, @FILE, or - for stdin (default: null).
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,
    /// Delay until the job is due, as 90s, 15m or 1h30m (default: due now).
    #[arg(long = "in", value_name = "DURATION", conflicts_with = "at", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// Time when the job is due: 2026-12-24T18:00:00Z, 2026-12-24T18:00[Europe/Berlin], 'tomorrow 09:00' or +2h.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Unique key: at most one job of this kind, queue, group and concurrency key holds it (default: none).
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,
    /// Time for which the job holds its unique key: `until_done`, `until_start` or `window:1d` (default: `until_done`).
    #[arg(long, requires = "unique", value_parser = scope)]
    scope: Option<Scope>,
    /// Action if another job holds the unique key: keep it, replace it, or reschedule it (default: keep).
    #[arg(long, requires = "unique", value_parser = on_conflict, value_name = "keep|replace|reschedule")]
    on_conflict: Option<OnConflict>,
    /// Compare the unique or idempotency key with jobs of all kinds that were pushed with this option.
    #[arg(long)]
    across_kinds: bool,
    /// Fail with exit code 4 if the job is a duplicate.
    #[arg(long)]
    must_be_new: bool,
    /// Time to wait for the end of the job: exit 0 if it is done, 1 if dead or cancelled, 7 if it has not ended (default: none).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Id of the job, made by punctual (default: a new one).
    #[arg(long, conflicts_with = "idempotency_key")]
    id: Option<JobId>,
    /// Text that identifies the job: a second push with the same text, kind, queue and group (else concurrency key, else
    /// unique key) is a duplicate.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Time to give up: a job that has not started by then is cancelled (default: none).
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    #[command(flatten)]
    choices: Choices,
}

fn scope(text: &str) -> std::result::Result<Scope, String> {
    match text {
        "until_done" => Ok(Scope::UntilDone),
        "until_start" => Ok(Scope::UntilStart),
        _ => {
            let window = text.strip_prefix("window:").ok_or("write until_done, until_start or window:1d")?;
            let window = parse_duration(window).map_err(|e| e.to_string())?;
            Ok(Unique::key("").window(window).scope)
        }
    }
}

fn on_conflict(text: &str) -> std::result::Result<OnConflict, String> {
    match text {
        "keep" => Ok(OnConflict::Keep),
        "replace" => Ok(OnConflict::Replace),
        "reschedule" => Ok(OnConflict::Reschedule),
        _ => Err("write keep, replace or reschedule".into()),
    }
}

pub(crate) async fn run(session: &mut Session, args: &Push) -> Result {
    match (&args.batch, &args.one.kind) {
        (Some(source), _) => batch::run(session, source).await,
        (None, Some(kind)) => one(session, &args.one, kind).await,
        (None, None) => unreachable!("invariant: clap wants one of both"),
    }
}

async fn one(session: &mut Session, args: &One, kind: &str) -> Result {
    let job = args.job(session, kind)?;
    job.check()?;
    let (queue, key) = (job.queue.clone(), job.unique.as_ref().map(|unique| unique.key.clone()));
    let answers = session.client.push(vec![job]).await?;
    let answer = answers.first().ok_or_else(|| Failure::corrupt("the store gave no answer"))?;
    let Some(id) = answer.id() else { return Err(refused(answer, &queue)) };
    // For a duplicate, the job is read to print its state. It may be gone, when only its id is remembered.
    let known = match answer {
        Enqueued::Duplicate(_) => session.client.get(id).await?,
        _ => None,
    };
    // With a key across kinds, the job that holds it may be of another kind.
    let kind = &known.as_ref().map_or_else(|| kind.to_owned(), |job| job.kind.clone());
    let now = session.now().await?;
    let due = match *answer {
        Enqueued::Inserted { run_at, .. }
        | Enqueued::Replaced { run_at, .. }
        | Enqueued::Rescheduled { run_at, .. } => {
            Some((if now < run_at { Status::Scheduled } else { Status::Ready }, run_at))
        }
        Enqueued::Duplicate(_) => known.map(|job| (job.status(now), job.run_at)),
        Enqueued::Full | Enqueued::Conflict { .. } => None,
    };
    let unread = || {
        Failure::failed(format!("the receipt of job {id} could not be printed"))
            .why("the reader of stdout went away; the job is enqueued")
            .hint(format!("punctual show {id}"))
    };
    let printed = receipt(session, args, kind, &queue, key.as_deref(), (answer, id, due, now));
    printed.map_err(|failure| failure.if_unread(unread))?;
    if args.must_be_new && !answer.is_new() {
        return Err(Failure::conflict(format!("job {} is not new: {}", id.short(), answer.name())));
    }
    match args.wait {
        Some(at_most) => {
            let waited = wait::wait(session, id, at_most).await;
            waited.map_err(|failure| failure.if_unread(unread))
        }
        None => Ok(()),
    }
}

/// Prints the answer of the store.
fn receipt(
    session: &mut Session,
    args: &One,
    kind: &str,
    queue: &str,
    key: Option<&str>,
    (answer, id, due, now): (&Enqueued, JobId, Option<(Status, Timestamp)>, Timestamp),
) -> Result {
    match session.format {
        Format::Json | Format::Ndjson => {
            let (state, run_at_ms) = due.map(|(status, at)| (status, at.as_ms())).unzip();
            json(&mut session.out, &Answer { id, status: answer.name(), state, kind, queue, run_at_ms })?;
        }
        Format::Ids => writeln!(session.out, "{id}")?,
        Format::Human | Format::Wide => {
            let text = told(answer, due, (kind, queue, key), args.choices.priority(), now, session);
            writeln!(session.out, "{}", clean(&text))?;
        }
    }
    Ok(session.out.flush()?)
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    id: JobId,
    status: &'static str,
    /// As people see it, `status` being the answer's; `null`: the job is gone, its id is remembered.
    state: Option<Status>,
    kind: &'a str,
    queue: &'a str,
    run_at_ms: Option<u64>,
}

/// The answer for people.
fn told(
    answer: &Enqueued,
    due: Option<(Status, Timestamp)>,
    (kind, queue, key): (&str, &str, Option<&str>),
    priority: Option<Priority>,
    now: Timestamp,
    session: &Session,
) -> String {
    let word = match (answer, due) {
        (Enqueued::Inserted { .. }, Some((status, _))) => status.name(),
        _ => answer.name(),
    };
    let mut text = format!("{word} {}  ", answer.id().map(JobId::short).unwrap_or_default());
    text += &match (answer, due) {
        (Enqueued::Duplicate(_), None) => "ended, its id is remembered".to_owned(),
        (Enqueued::Duplicate(_), Some((status, _))) => match key {
            Some(key) => format!("{kind} {status} with unique key {key}"),
            None => format!("{kind} {status}"),
        },
        _ => format!("{kind}  queue {queue}"),
    };
    if let Some((Status::Scheduled | Status::Retrying, at)) = due {
        let comma = if matches!(answer, Enqueued::Duplicate(_)) { "," } else { " " };
        text += &format!("{comma} due {} ({})", wall(at, now, &session.zone), relative(at, now));
    }
    if let (Some(priority), true) = (priority, answer.is_new()) {
        text += &format!("  priority {priority}");
    }
    text
}

/// Makes the error of a job that was not stored.
fn refused(answer: &Enqueued, queue: &str) -> Failure {
    if let Enqueued::Conflict { id } = answer {
        return Failure::conflict(format!("the id {id} is taken"))
            .why(format!("a job of another queue than {queue:?} has it; nothing was stored"))
            .hint("push the job with another --idempotency-key");
    }
    Failure::store_full(format!("queue {queue:?} is full"))
        .why("max_jobs or max_bytes of the queue limits its waiting and running jobs")
        .hint(format!("punctual queue show {queue}    shows its caps; push again when jobs have ended"))
}

impl One {
    fn job(&self, session: &Session, kind: &str) -> Result<NewJob> {
        let mut job = self.choices.job(session.client.make_id(), kind, self.payload.as_deref())?;
        let clock = session.wall_clock();
        job.run_at = match (self.delay, &self.at) {
            (Some(delay), _) => When::In(delay),
            (None, Some(at)) => times::when(at, &clock)?,
            (None, None) => When::Now,
        };
        job.expires_at = self.expires.as_deref().map(|at| times::when(at, &clock)).transpose()?;
        job.unique = self.unique.as_deref().map(|key| {
            let (scope, rule) = (self.scope.unwrap_or_default(), self.on_conflict.unwrap_or_default());
            Unique { scope, across_kinds: self.across_kinds, ..Unique::key(key).on_conflict(rule) }
        });
        if let Some(id) = self.id {
            job.id = id;
        } else if let Some(key) = &self.idempotency_key {
            wire::derive_id(&mut job, key, self.across_kinds)?;
        }
        Ok(job)
    }
}

/// A payload as the command line names it: its text, `@file`, or `-` for stdin.
pub(super) fn read_payload(text: &str, content_type: Option<String>) -> Result<Payload> {
    let bytes = match text.strip_prefix('@') {
        Some(path) => read_file("payload", path)?,
        None if text == "-" => read_file("payload", text)?,
        None => text.as_bytes().to_vec(),
    };
    Ok(wire::payload(bytes, content_type)?)
}

/// All of a file, or of stdin for `-`.
pub(super) fn read_file(what: &str, path: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == "-" {
        io::stdin().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
    };
    read.map_err(|e| {
        Failure::invalid(format!("could not read the {what} from {path:?}")).why(e.to_string())
    })?;
    if FILE_BYTES_MAX < bytes.len() as u64 {
        return Err(Failure::payload_too_large(format!("the {what} is over {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
