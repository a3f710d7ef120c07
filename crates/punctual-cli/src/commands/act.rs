//! Commands that change jobs, selected by ids or by a filter: `cancel`, `reschedule`, `run-now`, `retry`, `reprioritise`, `edit`,
//! `delete`. `--dry-run` previews them. Before a change that cannot be undone, a command asks for confirmation.

use std::{io::Write as _, time::Instant};

use punctual::{
    JobId, Priority, State, When,
    client::ActProgress,
    job::{Filter, parse_duration},
    store::{Acted, Action, Target},
};
use serde::Serialize;

use super::{Session, not_found, push::read_payload, whole_id};
use crate::{
    errors::{Failure, Result},
    output::{Format, counted, grouped, json},
    times::{self, span},
};

/// The jobs that a command changes.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Ids of jobs, in full, as `ls -o ids` prints them.
    #[arg(required_unless_present_any = ["filter", "all"])]
    ids: Vec<String>,
    /// Filter that selects jobs, such as 'state:dead kind:email.send' (see `punctual ls --help`).
    #[arg(
        long = "where",
        id = "filter",
        conflicts_with = "ids",
        value_name = "FILTER",
        allow_hyphen_values = true
    )]
    filter: Option<String>,
    /// Select all jobs of the store.
    #[arg(long, conflicts_with_all = ["ids", "filter"])]
    all: bool,
    /// Only print what the command would do.
    #[arg(long)]
    dry_run: bool,
}

impl Which {
    pub(crate) const fn only_looks(&self) -> bool {
        self.dry_run
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A waiting job is cancelled at once. The worker of a running job asks its handler to stop.

Examples:
  punctual cancel $(punctual ls queue:mail tag:campaign-7 -o ids) --reason 'wrong list'
  punctual cancel --where 'kind:email.send due:>1d' --dry-run
  punctual cancel --where 'group:acme state:waiting' --yes")]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Reason, kept with the jobs (default: none).
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual reschedule --where 'queue:mail state:scheduled' --by +1h
  punctual reschedule $(punctual ls id:5c1e9f04 -o ids) --at 'tomorrow 09:00'
  punctual reschedule --where 'state:retrying error:timeout' --in 30m --dry-run")]
pub(crate) struct Reschedule {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    to: To,
}

/// The new due time.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct To {
    /// Delay from now until the jobs are due, as 15m or 2h.
    #[arg(long = "in", id = "delay", value_parser = parse_duration, value_name = "DURATION")]
    delay: Option<std::time::Duration>,
    /// Time when the jobs are due: 2026-12-24T18:00:00Z, 2026-12-24T18:00[Europe/Berlin], 'tomorrow 09:00' or +2h.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Shift of the due time: +1h is later, -1h is earlier, but never before now.
    #[arg(long, allow_hyphen_values = true, value_parser = shift, value_name = "±DURATION")]
    by: Option<i64>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual run-now $(punctual ls id:5c1e9f04 -o ids)
  punctual run-now --where 'queue:mail state:retrying'")]
pub(crate) struct RunNow {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A retried job is due now, and begins again with attempt 1.

Examples:
  punctual retry --where 'state:dead kind:email.send failed:>2h'
  punctual retry --where 'state:dead error:timeout' --dry-run")]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual reprioritise --where 'kind:report.* state:waiting' -p low
  punctual reprioritise $(punctual ls id:5c1e9f04 -o ids) -p high")]
pub(crate) struct Reprioritise {
    #[command(flatten)]
    pub(crate) which: Which,
    /// New priority: high, normal or low, or 0, 1 or 2.
    #[arg(short, long, allow_hyphen_values = true)]
    priority: Priority,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual edit $(punctual ls id:5c1e9f04 -o ids) --payload '{\"to\":\"bo@example.com\"}'
  punctual edit --where 'kind:report.build state:waiting' --payload @report.json --dry-run")]
pub(crate) struct Edit {
    #[command(flatten)]
    pub(crate) which: Which,
    /// New payload: JSON, @FILE, or - for stdin.
    #[arg(long)]
    payload: String,
    /// Content type of the payload, if it is not JSON (default: application/json).
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual delete --where 'state:dead finished:>30d' --dry-run
  punctual delete --where 'queue:old' --yes")]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) which: Which,
}

fn shift(text: &str) -> std::result::Result<i64, String> {
    let (sign, rest) = match text.as_bytes().first() {
        Some(b'+') => (1, &text[1..]),
        Some(b'-') => (-1, &text[1..]),
        _ => (1, text),
    };
    let length = parse_duration(rest).map_err(|_| "write +1h or -30m")?;
    i64::try_from(length.as_millis()).map(|ms| sign * ms).map_err(|_| "too long".into())
}

pub(super) async fn cancel(session: &mut Session, args: &Cancel) -> Result {
    act(session, &args.which, Action::Cancel { reason: args.reason.clone() }).await
}

pub(super) async fn reschedule(session: &mut Session, args: &Reschedule) -> Result {
    let action = match (&args.to.at, args.to.delay, args.to.by) {
        (Some(at), _, _) => Action::Reschedule(times::when(at, &session.wall_clock())?),
        (None, Some(delay), _) => Action::Reschedule(When::In(delay)),
        (None, None, by) => Action::RescheduleBy(by.unwrap_or_default()),
    };
    act(session, &args.which, action).await
}

pub(super) async fn run_now(session: &mut Session, args: &RunNow) -> Result {
    act(session, &args.which, Action::RunNow).await
}

pub(super) async fn retry(session: &mut Session, args: &Retry) -> Result {
    act(session, &args.which, Action::Retry).await
}

pub(super) async fn reprioritise(session: &mut Session, args: &Reprioritise) -> Result {
    act(session, &args.which, Action::Reprioritise(args.priority)).await
}

pub(super) async fn edit(session: &mut Session, args: &Edit) -> Result {
    let payload = read_payload(&args.payload, args.content_type.clone())?;
    act(session, &args.which, Action::EditPayload(payload)).await
}

pub(super) async fn delete(session: &mut Session, args: &Delete) -> Result {
    act(session, &args.which, Action::Delete).await
}

async fn act(session: &mut Session, which: &Which, action: Action) -> Result {
    if which.all {
        return by_filter(session, None, &action, which.dry_run).await;
    }
    if let Some(filter) = &which.filter {
        // Usually a shell variable that is not set.
        if filter.trim().is_empty() {
            return Err(Failure::invalid("the filter is empty, and would match every job")
                .hint("write a filter such as state:dead, or use --all to select every job"));
        }
        return by_filter(session, Some(filter), &action, which.dry_run).await;
    }
    let ids = which.ids.iter().map(|id| whole_id(id)).collect::<Result<Vec<JobId>>>()?;
    if which.dry_run { preview(session, &ids, &action).await } else { by_ids(session, &ids, &action).await }
}

/// The result for one job, as JSON.
#[derive(Serialize)]
struct Answer {
    id: JobId,
    /// `done`, `requested`, `not_found`, `wrong_state`, `unique_conflict`, `limiter_conflict`; of a dry run: `would`.
    status: &'static str,
    /// The state of the job now.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
}

async fn by_ids(session: &mut Session, ids: &[JobId], action: &Action) -> Result {
    let targets: Vec<Target> = ids.iter().copied().map(Target::from).collect();
    let answers = session.client.act(&targets, action).await?;
    let (mut failed, mut values) = (None, Vec::new());
    for (&id, acted) in ids.iter().zip(answers) {
        let (status, state, failure) = match acted {
            Acted::Done(_, state) => ("done", Some(state), None),
            Acted::Requested(_) => ("requested", Some(State::Running), None),
            Acted::NotFound => ("not_found", None, Some(not_found(id))),
            Acted::WrongState(_, state) => ("wrong_state", Some(state), Some(wrong_state(id, state, action))),
            Acted::UniqueConflict(_) => ("unique_conflict", None, Some(taken(id))),
            Acted::LimiterConflict(other) => ("limiter_conflict", None, Some(elsewhere(id, other))),
        };
        match session.format {
            Format::Json => values.push(Answer { id, status, state }),
            Format::Ndjson => json(&mut session.out, &Answer { id, status, state })?,
            Format::Ids if failure.is_none() => writeln!(session.out, "{id}")?,
            Format::Human | Format::Wide if failure.is_none() => {
                let word = if status == "requested" { "cancel requested" } else { done(action) };
                writeln!(session.out, "{word} {}", id.short())?;
            }
            _ => {}
        }
        if let Some(failure) = failure {
            session.out.flush()?;
            failure.tell(session.format, session.paint_talk);
            failed.get_or_insert(failure.exit());
        }
    }
    print(session, &values)?;
    failed.map_or(Ok(()), |code| Err(Failure::Silent(code)))
}

/// Prints answers as one value: of one job that job's, else a list.
fn print(session: &mut Session, values: &[Answer]) -> Result {
    match values {
        [] => Ok(()),
        [one] => Ok(json(&mut session.out, one)?),
        values => Ok(json(&mut session.out, &values)?),
    }
}

/// Prints which jobs are selected. Whether the action is possible in their state is decided when it is done.
async fn preview(session: &mut Session, ids: &[JobId], action: &Action) -> Result {
    let (now, mut values) = (session.now().await?, Vec::new());
    for &id in ids {
        let job = session.client.get(id).await?.ok_or_else(|| not_found(id))?;
        match session.format {
            Format::Json => values.push(Answer { id, status: "would", state: Some(job.state) }),
            Format::Ndjson => {
                json(&mut session.out, &Answer { id, status: "would", state: Some(job.state) })?;
            }
            Format::Ids => writeln!(session.out, "{id}")?,
            Format::Human | Format::Wide => {
                writeln!(session.out, "would {} {}, {}", action.name(), id.short(), job.status(now))?;
            }
        }
    }
    print(session, &values)
}

/// The result for all jobs that matched, as JSON.
#[derive(Serialize)]
struct Sum {
    action: &'static str,
    dry_run: bool,
    matched: u64,
    done: u64,
    skipped: u64,
    searched: u64,
    total: u64,
}

/// Asks for confirmation before a change that cannot be undone, a change of all jobs, or a retry of done jobs.
async fn confirm(session: &Session, text: Option<&str>, filter: &Filter, action: &Action) -> Result {
    if session.is_sure() {
        return Ok(());
    }
    let runs_again = matches!(action, Action::Retry);
    let asks = text.is_none() || cannot_be_undone(action);
    if !asks && !runs_again {
        return Ok(());
    }
    let mut progress = session.progress();
    let mut count = async |filter: &Filter| {
        let counted = session.client.count_where(filter, |p| progress.show(|| told(p))).await;
        counted.map(|sum| sum.matched)
    };
    let done = if runs_again { count(&filter.clone().state([State::Done])).await? } else { 0 };
    if done == 0 && !asks {
        return Ok(());
    }
    let matched = count(filter).await?;
    drop(progress);
    let of = text.map_or_else(|| " of the store".to_owned(), |text| format!(" that match {text:?}"));
    let again = if done == 0 { String::new() } else { format!(" ({} already done)", grouped(done)) };
    session.confirm(&format!("{} {}{of}{again}", action.name(), counted(matched, "job")))
}

/// The progress of an action.
fn told(p: ActProgress) -> String {
    format!(
        "{} of {} · searched {} of {}",
        grouped(p.done),
        grouped(p.matched),
        grouped(p.searched),
        grouped(p.total)
    )
}

/// Acts on all that match, or on every job.
async fn by_filter(session: &mut Session, text: Option<&str>, action: &Action, dry_run: bool) -> Result {
    let filter = text.map_or_else(|| Ok(Filter::all()), Filter::parse)?;
    if !dry_run {
        confirm(session, text, &filter, action).await?;
    }
    let (name, begin) = (action.name(), Instant::now());
    let mut progress = session.progress();
    let mut show = |p: ActProgress| progress.show(|| told(p));
    let sum = if dry_run {
        session.client.count_where(&filter, &mut show).await?
    } else {
        session.client.act_where(&filter, action, &mut show).await?
    };
    drop(progress);
    let ActProgress { matched, done: acted, skipped, searched, total, .. } = sum;
    if session.format.is_json() {
        return Ok(json(
            &mut session.out,
            &Sum { action: name, dry_run, matched, done: acted, skipped, searched, total },
        )?);
    }
    if dry_run {
        writeln!(
            session.out,
            "would {name} {}; searched {} of {}. Run again without --dry-run.",
            counted(matched, "job"),
            grouped(searched),
            grouped(total)
        )?;
    } else {
        writeln!(
            session.out,
            "{} {} of {} · {} skipped ({})",
            done(action),
            grouped(acted),
            counted(matched, "job"),
            grouped(skipped),
            span(begin.elapsed())
        )?;
    }
    Ok(())
}

/// Whether the action cannot be undone.
const fn cannot_be_undone(action: &Action) -> bool {
    matches!(action, Action::Cancel { .. } | Action::EditPayload(_) | Action::Delete)
}

const fn done(action: &Action) -> &'static str {
    match action {
        Action::Cancel { .. } => "cancelled",
        Action::Reschedule(_) | Action::RescheduleBy(_) => "rescheduled",
        Action::RunNow => "due now",
        Action::Reprioritise(_) => "reprioritised",
        Action::EditPayload(_) => "edited",
        Action::Retry => "retried",
        Action::Delete => "deleted",
    }
}

fn wrong_state(id: JobId, state: State, action: &Action) -> Failure {
    let wanted = if matches!(action, Action::RunNow) { "made due now" } else { done(action) };
    let failure = Failure::wrong_state(format!("job {} is {state} and cannot be {wanted}", id.short()));
    match action {
        Action::Cancel { .. } => failure.why("only waiting and running jobs can be cancelled"),
        Action::Retry => failure.why("only dead, cancelled and done jobs can be retried"),
        Action::Delete => failure
            .why("a running job cannot be deleted")
            .hint(format!("punctual cancel {id}    ask the worker to stop it first")),
        _ => {
            let failure = failure.why(match action {
                Action::Reschedule(_) | Action::RescheduleBy(_) | Action::RunNow => {
                    "only scheduled, ready and retrying jobs have a due time"
                }
                _ => "only scheduled, ready and retrying jobs can be changed",
            });
            match state {
                State::Running => {
                    failure.hint(format!("punctual cancel {id}    ask the worker to stop it first"))
                }
                _ => failure.hint(format!("punctual retry {id}    run the job again first")),
            }
        }
    }
}

fn taken(id: JobId) -> Failure {
    Failure::unique_conflict(format!("job {} cannot be retried", id.short()))
        .why("another job holds its unique key now")
}

fn elsewhere(id: JobId, other: JobId) -> Failure {
    Failure::limiter_conflict(format!("job {} cannot be retried", id.short()))
        .why(format!(
            "jobs of its concurrency key or group are now in another shard, for instance job {}",
            other.short()
        ))
        .hint("retry the job after those jobs have ended, or enqueue a new job")
}
