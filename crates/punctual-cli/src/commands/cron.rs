//! `punctual cron …`: schedules. They live in the store; workers keep them going.

use std::{io::Write as _, time::Duration};

use jiff::{Timestamp as Moment, tz::TimeZone};
use punctual::{Misfire, NamedSchedule, Schedule, TickNote, Timestamp};
use serde::Serialize;

use super::{Session, push::Choices, queue::PauseNote};
use crate::{
    args::Globals,
    errors::{Failure, Result},
    output::{Format, Out, Table, clean, json},
    times::{self, relative},
};

/// Most ticks that `next` tells.
const TICKS_MAX: u16 = 1_000;

const HELP: &str = "EXPR has five fields (minute, hour, day of month, month, day of week), or six with seconds in front, or \
is @daily and the like, or an interval as in \"@every 10m\". It is read by the clocks of --tz, which are this machine's unless said otherwise. Where these jump forward, a fixed \
time that they leave out comes right behind the gap, and times of a wildcard, step, list or range are left out; where they go \
back, a fixed time comes once, and the others come twice.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Cron {
    /// All schedules.
    Ls,
    /// One schedule.
    Show {
        /// Its name.
        name: String,
    },
    /// Make or change a schedule: every tick enqueues this job.
    #[command(after_help = HELP)]
    Set(Box<Set>),
    /// Remove a schedule; its waiting tick is cancelled.
    Rm {
        /// Its name.
        name: String,
    },
    /// Enqueue nothing until it is resumed.
    Pause {
        /// Its name.
        name: String,
        #[command(flatten)]
        note: PauseNote,
    },
    /// End a pause.
    Resume {
        /// Its name.
        name: String,
    },
    /// Enqueue its job now, once, beside its ticks.
    Fire {
        /// Its name.
        name: String,
    },
    /// The next ticks of a schedule, or of any expression.
    #[command(after_help = HELP)]
    Next(Next),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// Its name.
    name: String,
    /// When it ticks.
    #[arg(value_name = "EXPR")]
    expression: String,
    /// What selects the handler.
    kind: String,
    /// JSON, @file, or - for stdin; null where it is left out.
    payload: Option<String>,
    /// What becomes of ticks that no worker was there for: skip, run-once (one for all of them), run-all:N (the last N).
    #[arg(long, value_parser = misfire, default_value = "run-once", value_name = "skip|run-once|run-all:N")]
    misfire: Misfire,
    #[command(flatten)]
    choices: Choices,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Next {
    /// A schedule of the store.
    #[arg(required_unless_present = "expression")]
    name: Option<String>,
    /// Any expression; no store is asked.
    #[arg(long = "of", value_name = "EXPR", conflicts_with = "name")]
    expression: Option<String>,
    /// How many ticks.
    #[arg(short, default_value = "5", value_parser = clap::value_parser!(u16).range(1..=i64::from(TICKS_MAX)))]
    n: u16,
    /// Say what the expression means, and mark ticks at which the clock jumps.
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
            let cron = read(&set.expression, &session.zone)?.on_misfire(set.misfire)?;
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
    let cron = read(next.expression.as_deref().unwrap_or_default(), &zone)?;
    let now = Timestamp::try_from(std::time::SystemTime::now())?;
    let mut out = Out::new(std::io::stdout());
    tell_next(&mut out, globals.format(), &cron, next, now, &zone)?;
    Ok(out.flush()?)
}

/// Reads an expression by the clocks of a zone.
fn read(expression: &str, zone: &TimeZone) -> Result<punctual::Cron> {
    let cron = punctual::Cron::new(expression)?;
    if cron.expression().is_none() {
        return Ok(cron);
    }
    let Some(name) = zone.iana_name() else {
        return Err(Failure::invalid("the time zone of this machine has no name")
            .hint("name one: --tz Europe/Berlin"));
    };
    Ok(cron.in_tz(name)?)
}

fn unknown(name: &str) -> Failure {
    Failure::new("not_found", format!("there is no schedule {name:?}")).hint("punctual cron ls    shows all")
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
            session.say(&format!("schedule {} can't be read: set it again, or remove it", clean(&name)));
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
                        None => "none waits".to_owned(),
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
        None => "  no tick waits".to_owned(),
    };
    let next = if word == "paused" { String::new() } else { next };
    Ok(writeln!(session.out, "{word} {}{next}", clean(&named.name))?)
}

async fn fire(session: &mut Session, name: &str) -> Result {
    known(session, name).await?;
    let fired = session.client.schedule(name).fire().await?;
    let id = fired.id().ok_or_else(|| Failure::new("corrupt", "the store gave no id"))?;
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
    cron: &punctual::Cron,
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
            "the clock leaves out the time that was asked for; this is the first behind it"
        }
        TickNote::FirstOfTwo => "the clock shows this time twice: the first",
        TickNote::SecondOfTwo => "the clock shows this time twice: the second",
    }
}

/// A tick on the wall: by the clocks of the schedule, or for an interval of `zone`.
fn moment(at: Timestamp, cron: &punctual::Cron, zone: &TimeZone) -> String {
    let zone = cron.tz().and_then(|name| TimeZone::get(name).ok()).unwrap_or_else(|| zone.clone());
    let whole = Duration::from_millis(at.as_ms());
    let moment = i64::try_from(whole.as_secs()).ok().and_then(|seconds| Moment::from_second(seconds).ok());
    moment
        .map(|moment| moment.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
        .unwrap_or_default()
}
