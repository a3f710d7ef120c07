//! `punctual cron …`: manages schedules. They are kept in the store, and workers enqueue their ticks.

use std::{io::Write as _, time::Duration};

use jiff::{Timestamp as Moment, tz::TimeZone};
use punctual::{
    Timestamp,
    schedule::{Misfire, NamedSchedule, Schedule, TickNote},
};
use serde::Serialize;

use super::{Session, push::Choices, queue::PauseNote};
use crate::{
    args::Globals,
    errors::{Failure, Result},
    output::{Format, Out, Table, clean, json},
    times::{self, relative},
};

/// The most ticks that `next` prints.
const TICKS_MAX: u16 = 1_000;

/// Explains an expression in `--help`.
macro_rules! expr {
    ($examples:literal) => {
        concat!(
            "\
EXPR has five fields (minute, hour, day of month, month, day of week), or six with seconds first. It can also be @hourly, \
@daily (or @midnight), @weekly, @monthly or @yearly (or @annually), or an interval such as \"@every 10m\". Its times are read \
in the zone --tz.

If both day fields name days, a day that matches one of them is enough. If one of them begins with *, a day must match both: \
'0 0 */2 * 1' ticks on Mondays with an odd date.

When the clock jumps forward, a fixed time that is left out ticks right after the gap. Times of a wildcard, step, list or \
range are left out. When the clock goes back, a fixed time ticks once, and the others tick twice.

Examples:
",
            $examples
        )
    };
}

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A schedule is a cron expression or an interval with a job. Each of its times is a tick, and enqueues the job. Schedules are \
kept in the store, and any running worker enqueues their ticks.

Examples:
  punctual cron set nightly '0 3 * * *' report.build --tz Europe/Berlin
  punctual cron set poll '@every 10m' feed.poll
  punctual cron ls")]
pub(crate) enum Cron {
    /// List schedules and their next ticks.
    #[command(after_help = "\
Examples:
  punctual cron ls
  punctual cron ls -o json")]
    Ls,
    /// Show one schedule and its waiting tick.
    #[command(after_help = "\
Examples:
  punctual cron show nightly
  punctual cron show nightly --tz utc")]
    Show {
        /// Name of the schedule.
        name: String,
    },
    /// Create or change a schedule: each tick enqueues this job.
    #[command(after_help = expr!("  \
punctual cron set nightly '0 3 * * *' report.build '{\"full\":true}' --tz Europe/Berlin
  punctual cron set poll '@every 10m' feed.poll --misfire skip
  punctual cron set billing '0 9 1 * *' bill.send -q billing --max-attempts 5"))]
    Set(Box<Set>),
    /// Remove a schedule and cancel its waiting tick.
    #[command(after_help = "\
Examples:
  punctual cron rm nightly
  punctual cron rm nightly -o json")]
    Rm {
        /// Name of the schedule.
        name: String,
    },
    /// Pause a schedule: it enqueues nothing until it is resumed.
    #[command(after_help = "\
Examples:
  punctual cron pause nightly
  punctual cron pause nightly --reason 'database is moved' --by ana")]
    Pause {
        /// Name of the schedule.
        name: String,
        #[command(flatten)]
        note: PauseNote,
    },
    /// Resume a paused schedule.
    #[command(after_help = "\
Examples:
  punctual cron resume nightly
  punctual cron resume nightly -o json")]
    Resume {
        /// Name of the schedule.
        name: String,
    },
    /// Enqueue the job of a schedule now, once, in addition to its ticks.
    #[command(after_help = "\
Examples:
  punctual cron fire nightly
  punctual cron fire nightly -o ids")]
    Fire {
        /// Name of the schedule.
        name: String,
    },
    /// Print the next ticks of a schedule, or of any expression.
    #[command(after_help = expr!("  \
punctual cron next nightly -n 10
  punctual cron next --of '0 9 * * mon-fri' --explain
  punctual cron next --of '30 2 * * *' --tz Europe/Berlin"))]
    Next(Next),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// Name of the schedule.
    name: String,
    /// Times of its ticks: a cron expression or an interval.
    #[arg(value_name = "EXPR")]
    expression: String,
    /// Kind of the job: the name that selects its handler.
    kind: String,
    /// Payload: JSON, @FILE, or - for stdin (default: null).
    payload: Option<String>,
    /// Action after a misfire, a tick that was missed because no worker ran: skip it, run once for all missed ticks, or
    /// run the last N of them (default: run-once).
    #[arg(
        long,
        value_parser = misfire,
        default_value = "run-once",
        hide_default_value = true,
        value_name = "skip|run-once|run-all:N"
    )]
    misfire: Misfire,
    #[command(flatten)]
    choices: Choices,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Next {
    /// Name of a schedule in the store.
    #[arg(required_unless_present = "expression")]
    name: Option<String>,
    /// Any expression; the command does not open a store.
    #[arg(long = "of", value_name = "EXPR", conflicts_with = "name")]
    expression: Option<String>,
    /// Number of ticks, 1 to 1,000 (default: 5).
    #[arg(short, default_value = "5", hide_default_value = true, value_parser = clap::value_parser!(u16).range(1..=i64::from(TICKS_MAX)))]
    n: u16,
    /// Describe the expression in words, and mark ticks at which the clock jumps.
    #[arg(long)]
    explain: bool,
}

impl Cron {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. } | Self::Next(_))
    }

    pub(crate) const fn makes_a_store(&self) -> bool {
        matches!(self, Self::Set(_))
    }

    /// Whether `--timeout` is an option of its job.
    pub(crate) const fn has_a_job(&self) -> bool {
        matches!(self, Self::Set(_))
    }

    /// The expression whose ticks are asked for without a store.
    pub(crate) const fn of_any(&self) -> Option<&Next> {
        match self {
            Self::Next(next) if next.expression.is_some() => Some(next),
            _ => None,
        }
    }
}

fn misfire(text: &str) -> std::result::Result<Misfire, String> {
    match text {
        "skip" => Ok(Misfire::Skip),
        "run-once" => Ok(Misfire::RunOnce),
        _ => {
            let at_most = text.strip_prefix("run-all:").and_then(|n| n.parse().ok());
            Ok(Misfire::RunAll { at_most: at_most.ok_or("write skip, run-once or run-all:10")? })
        }
    }
}

pub(crate) async fn run(session: &mut Session, command: &Cron) -> Result {
    match command {
        Cron::Ls => ls(session).await,
        Cron::Show { name } => {
            let named = known(session, name).await?;
            show(session, &named).await
        }
        Cron::Set(set) => {
            let job = set.choices.job(session.client.make_id(), &set.kind, set.payload.as_deref())?;
            let cron = read(&set.expression, &session.zone, times::is_local(&session.tz))?
                .on_misfire(set.misfire)?;
            let named = session.client.schedule(&set.name).put(Schedule::new(cron, job)?).await?;
            told(session, &named, "set").await
        }
        Cron::Rm { name } => {
            if !session.client.schedule(name).remove().await? {
                return Err(unknown(name));
            }
            if session.format.is_json() {
                return Ok(json(&mut session.out, &Removed { name, removed: true })?);
            }
            Ok(writeln!(session.out, "removed {}", clean(name))?)
        }
        Cron::Pause { name, note: PauseNote { reason, by } } => {
            known(session, name).await?;
            let named = session.client.schedule(name).pause(by, reason).await?;
            told(session, &named, "paused").await
        }
        Cron::Resume { name } => {
            known(session, name).await?;
            let named = session.client.schedule(name).resume().await?;
            told(session, &named, "resumed").await
        }
        Cron::Fire { name } => fire(session, name).await,
        Cron::Next(next) => {
            let name = next.name.as_deref().unwrap_or_default();
            let cron = known(session, name).await?.schedule.cron;
            let (now, zone) = (session.now().await?, session.zone.clone());
            tell_next(&mut session.out, session.format, &cron, next, now, &zone)
        }
    }
}

/// The next ticks of an expression, by the wall's clock.
pub(crate) fn next_of_any(globals: &Globals, next: &Next) -> Result {
    let zone = times::zone(&globals.tz)?;
    let cron = read(next.expression.as_deref().unwrap_or_default(), &zone, times::is_local(&globals.tz))?;
    let now = Timestamp::try_from(std::time::SystemTime::now())?;
    let mut out = Out::new(std::io::stdout());
    tell_next(&mut out, globals.format(), &cron, next, now, &zone)?;
    Ok(out.flush()?)
}

/// Reads an expression by the clocks of a zone, which can be that of this machine.
fn read(expression: &str, zone: &TimeZone, is_local: bool) -> Result<punctual::schedule::Cron> {
    let cron = punctual::schedule::Cron::new(expression)?;
    if cron.expression().is_none() {
        return Ok(cron);
    }
    // A zone that was named has the rules that this machine has for it.
    let name =
        if is_local { times::zone_name(zone, Moment::now())? } else { zone.iana_name().unwrap_or("UTC") };
    Ok(cron.in_tz(name)?)
}

fn unknown(name: &str) -> Failure {
    Failure::not_found(format!("there is no schedule {name:?}"))
        .hint("punctual cron ls    lists all schedules")
}

async fn known(session: &Session, name: &str) -> Result<NamedSchedule> {
    session.client.schedule(name).get().await?.ok_or_else(|| unknown(name))
}

/// A schedule as JSON.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    generation: u64,
    #[serde(flatten)]
    schedule: &'a Schedule,
    /// When the tick that waits is due; none while it is paused, or where none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_at_ms: Option<u64>,
}

impl<'a> View<'a> {
    fn of(named: &'a NamedSchedule, next: Option<Timestamp>) -> Self {
        let next_at_ms = next.map(Timestamp::as_ms);
        Self { name: &named.name, generation: named.generation, schedule: &named.schedule, next_at_ms }
    }
}

/// When the tick of a schedule that waits is due.
async fn next_of(session: &Session, named: &NamedSchedule) -> Result<Option<Timestamp>> {
    Ok(session.client.waiting_tick(named).await?.map(|tick| tick.run_at))
}

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
    removed: bool,
}

async fn ls(session: &mut Session) -> Result {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = session.client.schedules(after.as_deref()).await?;
        for name in page.unreadable {
            session.say(&format!("schedule {} cannot be read: set it again, or remove it", clean(&name)));
        }
        for named in page.schedules {
            let next = next_of(session, &named).await?;
            all.push((named, next));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let now = session.now().await?;
    let out = &mut session.out;
    match session.format {
        Format::Json => {
            json(out, &all.iter().map(|(named, next)| View::of(named, *next)).collect::<Vec<_>>())?;
        }
        Format::Ndjson => all.iter().try_for_each(|(named, next)| json(out, &View::of(named, *next)))?,
        Format::Ids => all.iter().try_for_each(|(named, _)| writeln!(out, "{}", clean(&named.name)))?,
        Format::Human | Format::Wide => {
            let mut table = Table::new(["SCHEDULE", "TICKS", "NEXT", "KIND", "QUEUE", "MISSED", "PAUSED"]);
            for (named, next) in &all {
                let Schedule { cron, job, paused } = &named.schedule;
                table.row([
                    named.name.clone(),
                    cron.to_string(),
                    match next {
                        Some(at) => relative(*at, now),
                        None if paused.is_some() => String::new(),
                        None => "no tick waiting".to_owned(),
                    },
                    job.kind.clone(),
                    job.queue.clone(),
                    missed(cron.misfire()),
                    paused.as_ref().map(|pause| format!("by {}", pause.by)).unwrap_or_default(),
                ]);
            }
            table.print(out)?;
        }
    }
    Ok(())
}

fn missed(misfire: Misfire) -> String {
    match misfire {
        Misfire::Skip => "skip".to_owned(),
        Misfire::RunOnce => "run-once".to_owned(),
        Misfire::RunAll { at_most } => format!("run-all:{at_most}"),
    }
}

async fn show(session: &mut Session, named: &NamedSchedule) -> Result {
    let now = session.now().await?;
    let waiting = session.client.waiting_tick(named).await?;
    if session.format.is_json() {
        let next = waiting.map(|tick| tick.run_at);
        return Ok(json(&mut session.out, &View::of(named, next))?);
    }
    let (zone, out) = (session.zone.clone(), &mut session.out);
    let Schedule { cron, job, paused } = &named.schedule;
    let paused = paused.as_ref().map(|pause| {
        let since = relative(Timestamp::saturating_from_ms(pause.since_ms), now);
        format!("  paused by {}, {since}, {:?}", pause.by, pause.reason)
    });
    writeln!(out, "{}{}", clean(&named.name), clean(&paused.unwrap_or_default()))?;
    let mut line = |name: &str, text: &str| writeln!(out, "  {name:<8} {}", clean(text));
    line("ticks", &format!("{cron}: {}", cron.describe()))?;
    line("missed", &missed(cron.misfire()))?;
    let next = waiting.map(|tick| {
        format!(
            "{} ({}), job {}",
            moment(tick.run_at, cron, &zone),
            relative(tick.run_at, now),
            tick.id.short()
        )
    });
    line("waiting", &next.unwrap_or_else(|| "none".to_owned()))?;
    line("job", &format!("{}  queue {}", job.kind, job.queue))?;
    line("payload", &job.payload)?;
    line("options", &serde_json::to_string(&job.options)?)?;
    Ok(())
}

async fn told(session: &mut Session, named: &NamedSchedule, word: &str) -> Result {
    let now = session.now().await?;
    let next = next_of(session, named).await?;
    if session.format.is_json() {
        return Ok(json(&mut session.out, &View::of(named, next))?);
    }
    let zone = session.zone.clone();
    let next = match next {
        Some(at) => format!("  next {} ({})", moment(at, &named.schedule.cron, &zone), relative(at, now)),
        None if named.schedule.paused.is_some() => "  paused".to_owned(),
        None => "  no tick waiting".to_owned(),
    };
    let next = if word == "paused" { String::new() } else { next };
    Ok(writeln!(session.out, "{word} {}{next}", clean(&named.name))?)
}

async fn fire(session: &mut Session, name: &str) -> Result {
    known(session, name).await?;
    let fired = session.client.schedule(name).fire().await?;
    let id = fired.id().ok_or_else(|| Failure::corrupt("the store gave no id"))?;
    match session.format {
        Format::Json | Format::Ndjson => json(&mut session.out, &Fired { name, id: id.to_string() })?,
        Format::Ids => writeln!(session.out, "{id}")?,
        Format::Human | Format::Wide => writeln!(session.out, "fired {}  job {}", clean(name), id.short())?,
    }
    Ok(())
}

#[derive(Serialize)]
struct Fired<'a> {
    name: &'a str,
    id: String,
}

/// A tick as JSON.
#[derive(Serialize)]
struct TickView {
    at_ms: u64,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

fn tell_next(
    out: &mut Out,
    format: Format,
    cron: &punctual::schedule::Cron,
    next: &Next,
    now: Timestamp,
    zone: &TimeZone,
) -> Result {
    let ticks = std::iter::successors(cron.next(now), |tick| cron.next(*tick)).take(next.n.into());
    let views = ticks.map(|at| TickView {
        at_ms: at.as_ms(),
        at: moment(at, cron, zone),
        note: cron.note(at).filter(|_| next.explain).map(words),
    });
    match format {
        Format::Json => json(out, &views.collect::<Vec<_>>())?,
        Format::Ndjson => views.into_iter().try_for_each(|view| json(out, &view))?,
        Format::Ids | Format::Human | Format::Wide => {
            if next.explain {
                writeln!(out, "{cron}: {}", cron.describe())?;
            }
            for view in views {
                let note = view.note.map(|note| format!("   {note}")).unwrap_or_default();
                let at = Timestamp::saturating_from_ms(view.at_ms);
                writeln!(out, "{}   {}{note}", view.at, relative(at, now))?;
            }
        }
    }
    Ok(())
}

fn words(note: TickNote) -> &'static str {
    match note {
        TickNote::BehindGap => {
            "the clock leaves out the requested time; this is the first time after the gap"
        }
        TickNote::FirstOfTwo => "the clock shows this time twice: this is the first",
        TickNote::SecondOfTwo => "the clock shows this time twice: this is the second",
    }
}

/// A tick on the wall: by the clocks of the schedule, or for an interval of `zone`.
fn moment(at: Timestamp, cron: &punctual::schedule::Cron, zone: &TimeZone) -> String {
    let zone = cron.tz().and_then(|name| times::named(name).ok()).unwrap_or_else(|| zone.clone());
    let whole = Duration::from_millis(at.as_ms());
    let moment = i64::try_from(whole.as_secs()).ok().and_then(|seconds| Moment::from_second(seconds).ok());
    moment
        .map(|moment| moment.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
        .unwrap_or_default()
}
