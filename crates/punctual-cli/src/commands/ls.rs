//! `punctual ls [FILTER…]`: lists jobs in the order of their store, and reports how many were searched.

use std::{
    fmt,
    io::{self, Write as _},
};

use punctual::{
    JobRecord, Timestamp,
    job::Filter,
    limits::BATCH_MAX,
    store::{List, ListCursor, wire::JobView},
};
use serde::{Serialize, Serializer};

use super::{Session, show::told, watch::Watch};
use crate::{
    errors::Result,
    fields::Fields,
    output::{Format, Out, Table, counted, cut, grouped},
    paint::Paint,
    times::relative,
};

/// Jobs that are searched before the command stops and prints how to continue.
pub(super) const SEARCH_MAX: u64 = 100_000;
/// Characters of an error in a narrow table.
const ERROR_CHARS: usize = 60;
/// Characters of a progress in a narrow table.
pub(super) const PROGRESS_CHARS: usize = 40;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A job is listed if it matches all terms of FILTER, such as state:dead queue:mail kind:email.* due:<10m failed:>2h \
error:\"421\" payload.user.id:42 -tag:vip. A * stands for any text, and - before a term excludes what matches. \
The fields are state, queue, kind, tag, group, concurrency, unique, worker, id, priority, attempt, due, created, failed, \
finished, error and payload.PATH.

States: scheduled (due later), ready (due), blocked (due, but held back by a limit), retrying (waits after a failure), \
running, done, dead (given up) and cancelled. state:waiting stands for the first four.

Without --all a search stops after 100,000 jobs and prints how to continue.

Examples:
  punctual ls
  punctual ls state:dead kind:email.* 'failed:>2h'
  punctual ls -q mail --all -o ids")]
pub(crate) struct Ls {
    /// Terms that a job must match, such as state:dead (see below).
    filter: Vec<String>,
    /// Queue to list (default: all).
    #[arg(short, long)]
    queue: Option<String>,
    /// Number of jobs at most (default: 50).
    #[arg(short = 'n', long, default_value_t = 50, hide_default_value = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// List every match, however long the search takes.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Cursor at which to continue, as printed by a search that stopped.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    pub(super) watch: Watch,
}

pub(crate) async fn run(session: &mut Session, args: &Ls) -> Result {
    let mut filter = Filter::parse(&args.filter.join(" "))?;
    if let Some(queue) = &args.queue {
        filter = filter.queue(queue);
    }
    let after = args.after.clone().map(ListCursor::from);
    let limit = if args.all { u64::MAX } else { args.limit };
    let mut list = List { filter, after, limit: 0 };
    let (mut found, mut looked) = (0, Searched::default());
    let (mut printer, mut progress) = (Printer::new(session)?, session.progress());
    loop {
        list.limit = usize::try_from(limit - found).unwrap_or(BATCH_MAX).min(BATCH_MAX);
        let page = session.client.list(&list).await?;
        printer.page(session, &page.jobs, page.now)?;
        found += page.jobs.len() as u64;
        looked = Searched { at: looked.at + page.searched, total: page.total, next: page.next.clone() };
        list.after = page.next;
        let enough = found == limit || !args.all && SEARCH_MAX <= looked.at;
        if enough || list.after.is_none() {
            break;
        }
        progress.show(|| format!("{} · {looked}", counted(found, "job")));
    }
    drop(progress);
    printer.end(session, Some(&looked))?;
    session.out.flush()?;
    session.say(&match &looked.next {
        Some(next) => {
            format!("{} · {looked} · continue with --after {next}, or --all", counted(found, "job"))
        }
        None => format!("{} · {looked}", counted(found, "job")),
    });
    Ok(())
}

/// What was looked at.
#[derive(Debug, Default, Serialize)]
pub(super) struct Searched {
    #[serde(rename = "searched")]
    at: u64,
    total: u64,
    /// Where to go on; `null`: everything was searched.
    #[serde(serialize_with = "as_text")]
    next: Option<ListCursor>,
}

#[expect(clippy::ref_option, reason = "as serde calls it")]
fn as_text<S: Serializer>(next: &Option<ListCursor>, to: S) -> std::result::Result<S::Ok, S::Error> {
    next.as_ref().map(ToString::to_string).serialize(to)
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "searched {} of {}", grouped(self.at), grouped(self.total))
    }
}

/// Prints jobs page by page in any format.
pub(super) struct Printer {
    format: Format,
    fields: Option<Fields>,
    printed: u64,
}

impl Printer {
    pub(super) fn new(session: &Session) -> Result<Self> {
        let fields = session.fields(&JobView::FIELDS)?;
        Ok(Self { format: session.format, fields, printed: 0 })
    }

    pub(super) fn page(&mut self, session: &mut Session, jobs: &[JobRecord], now: Timestamp) -> Result {
        let out = &mut session.out;
        match (self.format, &self.fields) {
            (Format::Human | Format::Wide, _) if jobs.is_empty() => {}
            (Format::Human | Format::Wide, Some(fields)) => {
                let rows = jobs.iter().map(|job| fields.pick(&JobView::new(job, now).with_details(job)));
                let rows = rows.collect::<serde_json::Result<Vec<_>>>()?;
                fields.table(&rows, now, &session.zone).print(out)?;
            }
            (Format::Human, None) => narrow(jobs, now, session.paint).print(out)?,
            (Format::Wide, None) => wide(jobs, now, session.paint).print(out)?,
            (Format::Ids, _) => jobs.iter().try_for_each(|job| writeln!(out, "{}", job.id))?,
            (Format::Ndjson, _) => jobs.iter().try_for_each(|job| {
                self.job(&mut *out, job, now)?;
                out.write_all(b"\n")
            })?,
            (Format::Json, _) => {
                for (i, job) in (self.printed..).zip(jobs) {
                    out.write_all(if i == 0 { b"{\"jobs\":[" } else { b"," })?;
                    self.job(&mut *out, job, now)?;
                }
            }
        }
        self.printed += jobs.len() as u64;
        Ok(())
    }

    /// A job as JSON, or what was asked for of it.
    fn job(&self, out: &mut Out, job: &JobRecord, now: Timestamp) -> io::Result<()> {
        let view = JobView::new(job, now);
        match &self.fields {
            None => serde_json::to_writer(out, &view)?,
            Some(fields) => serde_json::to_writer(out, &fields.pick(&view.with_details(job))?)?,
        }
        Ok(())
    }

    /// Ends the output; as JSON one object, with what was searched beside the jobs.
    pub(super) fn end(&self, session: &mut Session, searched: Option<&Searched>) -> Result {
        if self.format == Format::Json {
            let out = &mut session.out;
            out.write_all(if self.printed == 0 { b"{\"jobs\":[]" } else { b"]" })?;
            if let Some(searched) = searched {
                let fields = serde_json::to_string(searched)?;
                write!(out, ",{}", &fields[1..fields.len() - 1])?;
            }
            out.write_all(b"}\n")?;
        }
        Ok(())
    }
}

fn narrow(jobs: &[JobRecord], now: Timestamp, paint: Paint) -> Table {
    // The column is left out if no job reports progress.
    let tells = jobs.iter().any(|job| job.notes.progress.is_some());
    let progress = tells.then_some("PROGRESS");
    let heads = ["ID", "KIND", "QUEUE", "STATE", "DUE", "ATTEMPT"].into_iter().chain(progress);
    let mut table = Table::new(heads.chain(["LAST ERROR"]));
    for job in jobs {
        let progress = tells.then(|| cut(&how_far(job), PROGRESS_CHARS));
        let cells = [
            job.id.short(),
            cut(&job.kind, 40),
            cut(&job.queue, 24),
            job.status(now).to_string(),
            due(job, now),
            attempt(job),
        ];
        table.row(cells.into_iter().chain(progress).chain([cut(last_words(job), ERROR_CHARS)]));
        table.paint(3, paint.status(job.status(now)));
    }
    table
}

fn wide(jobs: &[JobRecord], now: Timestamp, paint: Paint) -> Table {
    let mut table = Table::new([
        "ID",
        "KIND",
        "QUEUE",
        "STATE",
        "PRIORITY",
        "CREATED",
        "DUE",
        "ATTEMPT",
        "WORKER",
        "UNIQUE",
        "TAGS",
        "PROGRESS",
        "LAST ERROR",
    ]);
    for job in jobs {
        table.row([
            job.id.to_string(),
            job.kind.clone(),
            job.queue.clone(),
            job.status(now).to_string(),
            job.priority.to_string(),
            relative(job.created_at, now),
            due(job, now),
            attempt(job),
            job.running.as_ref().map(|running| running.worker.clone()).unwrap_or_default(),
            job.unique.as_ref().map(|unique| unique.key.clone()).unwrap_or_default(),
            job.tags.join(","),
            how_far(job),
            last_words(job).to_owned(),
        ]);
        table.paint(3, paint.status(job.status(now)));
    }
    table
}

/// The progress that the job's run reported.
pub(super) fn how_far(job: &JobRecord) -> String {
    job.notes.progress.as_ref().map(told).unwrap_or_default()
}

/// When it is due; empty for a job that has ended, which is not due any more.
fn due(job: &JobRecord, now: Timestamp) -> String {
    if job.state.is_ended() { String::new() } else { relative(job.run_at, now) }
}

/// The fourth of at most eight runs goes on or comes next.
pub(super) fn attempt(job: &JobRecord) -> String {
    format!("{}/{}", job.attempt, job.max_attempts)
}

/// Why it is where it is: its last error, or why it ended or was put off.
fn last_words(job: &JobRecord) -> &str {
    let error = job.failures.last().map(|failure| failure.error.as_str());
    error.or(job.reason.as_deref()).unwrap_or_default()
}
