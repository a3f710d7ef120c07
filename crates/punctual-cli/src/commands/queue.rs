//! `punctual queue …`: lists, configures and pauses queues. Settings are kept in the store and apply to every worker at once.

mod file;
pub(crate) mod settings;

use std::{io::Write as _, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use punctual::{
    Timestamp,
    limits::BATCH_MAX,
    store::{GroupLimits, Keep, Order, Placement, QueueInfo, QueueSettings, Rate, Upcoming},
};
use serde::Serialize;

use super::{
    Session,
    push::read_file,
    stats::due,
    watch::{self, Watch},
};
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, counted, grouped, json},
    times::{relative, span},
};

/// How many queues are asked about at once. A server has other callers.
const CALLS_AT_ONCE_MAX: usize = 32;

fn at_once(session: &Session) -> usize {
    if session.client.store().url().starts_with("http") { 1 } else { CALLS_AT_ONCE_MAX }
}

/// Groups with limits of their own that `queue show` lists.
const GROUPS_SHOWN: usize = 20;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A queue is the name under which jobs wait. Its settings are kept in the store and apply to all workers at once.

Examples:
  punctual queue ls
  punctual queue limit mail --concurrency 10 --rate 100/1m
  punctual queue pause mail --reason 'provider is down'")]
pub(crate) enum Queue {
    /// List queues and their counts.
    #[command(after_help = "\
Examples:
  punctual queue ls
  punctual queue ls --watch
  punctual queue ls -o ndjson --fields name,counts.due,oldest_due_ms")]
    Ls(Watch),
    /// Show the settings and counts of one queue.
    #[command(after_help = "\
Examples:
  punctual queue show mail
  punctual queue show mail -o json > mail.json")]
    Show {
        /// Name of the queue.
        name: String,
    },
    /// Change the settings of a queue.
    #[command(after_help = settings::HELP)]
    Set {
        /// Name of the queue, which is created if it does not exist.
        #[arg(required_unless_present = "from")]
        name: Option<String>,
        /// KEY=VALUE, with the keys below; `none` removes a limit or a default.
        #[arg(required_unless_present = "from")]
        settings: Vec<String>,
        /// File with all settings of queues as JSON, as queue show and queue ls print it, or - for stdin.
        #[arg(long, value_name = "FILE|-", conflicts_with_all = ["name", "settings"])]
        from: Option<String>,
    },
    /// Limit how many jobs of a queue or group run at once, and how often jobs start.
    #[command(after_help = "\
Without options, the command prints the limits of the queue. A group is a part of a queue, usually the jobs of one tenant. \
A group's own limit overrides the limit for all groups.

Examples:
  punctual queue limit mail --concurrency 10 --rate 100/1m --burst 20
  punctual queue limit mail --groups --concurrency 2
  punctual queue limit mail --group acme --weight 5 --rate none")]
    Limit {
        /// Name of the queue, which is created if it does not exist.
        name: String,
        /// Group that is limited, instead of the whole queue.
        #[arg(long, value_name = "GROUP", group = "whose")]
        group: Option<String>,
        /// Limit each group of the queue, instead of the whole queue.
        #[arg(long, group = "whose")]
        groups: bool,
        /// Share of a group next to other groups with due jobs, 1 to 100 (default: 1).
        #[arg(long, value_name = "N|none", requires = "whose")]
        weight: Option<String>,
        /// Number of jobs that may run at once (default: none, no limit).
        #[arg(long, value_name = "N|none")]
        concurrency: Option<String>,
        /// Number of starts in a period, spread evenly, as 100/1m (default: none, no limit).
        #[arg(long, value_name = "N/DURATION|none")]
        rate: Option<String>,
        /// Number of these starts that may happen at once (default: 1).
        #[arg(long, value_name = "N", requires = "rate")]
        burst: Option<u32>,
    },
    /// Pause a queue: no job of it starts until it is resumed.
    #[command(after_help = "\
Jobs that are running go on. Jobs can be enqueued during a pause.

Examples:
  punctual queue pause mail
  punctual queue pause mail --reason 'provider is down' --by ana")]
    Pause {
        /// Name of the queue.
        name: String,
        #[command(flatten)]
        note: PauseNote,
    },
    /// Resume a paused queue.
    #[command(after_help = "\
Examples:
  punctual queue resume mail
  punctual queue resume mail -o json")]
    Resume {
        /// Name of the queue.
        name: String,
    },
    /// End the pause that a run asked for (`Retry-After`); rates and other limits stay.
    #[command(after_help = "\
A handler can ask that its queue or group starts nothing for some time, for instance after an HTTP answer 429.

Examples:
  punctual queue open mail
  punctual queue open mail --group acme")]
    Open {
        /// Name of the queue.
        name: String,
        /// Group whose pause is ended, instead of the queue's.
        #[arg(long, value_name = "GROUP")]
        group: Option<String>,
    },
    /// Delete all waiting jobs of a queue.
    #[command(after_help = "\
Examples:
  punctual queue purge mail --dry-run
  punctual queue purge mail --yes")]
    Purge {
        /// Name of the queue.
        name: String,
        /// Only print how many jobs would be deleted.
        #[arg(long)]
        dry_run: bool,
    },
}

/// The reason and the author of a pause.
#[derive(Debug, clap::Args)]
pub(crate) struct PauseNote {
    /// Reason of the pause, for people (default: none).
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(super) reason: String,
    /// Name of the person that pauses (default: somebody).
    #[arg(
        long,
        env = "USER",
        default_value = "somebody",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "NAME"
    )]
    pub(super) by: String,
}

impl Queue {
    pub(crate) const fn only_looks(&self) -> bool {
        // Without options `limit` prints the limits.
        matches!(
            self,
            Self::Ls(_)
                | Self::Show { .. }
                | Self::Purge { dry_run: true, .. }
                | Self::Limit { weight: None, concurrency: None, rate: None, .. }
        )
    }
}

pub(crate) async fn run(session: &mut Session, command: &Queue) -> Result {
    match command {
        Queue::Ls(watch) => watch::look(session, *watch, ls).await,
        Queue::Show { name } => {
            let info = known(session, name).await?;
            show(session, &info).await
        }
        Queue::Set { from: Some(path), .. } => set_from(session, path).await,
        Queue::Set { name, settings: changes, from: None } => {
            set(session, name.as_deref().unwrap_or_default(), changes).await
        }
        Queue::Limit { name, group, groups, weight, concurrency, rate, burst } => {
            let of = match group {
                Some(group) => format!("groups.{group}."),
                None if *groups => "group.".to_owned(),
                None => String::new(),
            };
            let rate = rate.as_ref().map(|rate| match burst {
                Some(burst) => format!("{of}rate={rate} burst {burst}"),
                None => format!("{of}rate={rate}"),
            });
            let weight = weight.iter().map(|n| format!("{of}weight={n}"));
            let concurrency = concurrency.iter().map(|n| format!("{of}concurrency={n}"));
            let changes: Vec<String> = weight.chain(concurrency).chain(rate).collect();
            if changes.is_empty() {
                let info = known(session, name).await?;
                return show(session, &info).await;
            }
            set(session, name, &changes).await
        }
        Queue::Pause { name, note: PauseNote { reason, by } } => {
            let info = session.client.queue(name).pause(by, reason).await?.ok_or_else(|| unknown(name))?;
            told(session, &info, "paused")
        }
        Queue::Resume { name } => {
            let info = session.client.queue(name).resume().await?.ok_or_else(|| unknown(name))?;
            told(session, &info, "resumed")
        }
        Queue::Open { name, group } => open(session, name, group.as_deref()).await,
        Queue::Purge { name, dry_run } => purge(session, name, *dry_run).await,
    }
}

async fn set(session: &mut Session, name: &str, changes: &[String]) -> Result {
    let changed = |seen: &QueueSettings| -> Result<QueueSettings> {
        let mut settings = seen.clone();
        changes.iter().try_for_each(|change| settings::apply(&mut settings, change))?;
        settings.check()?;
        Ok(settings)
    };
    let queue = session.client.queue(name);
    // A wrong setting must not create the queue.
    changed(&queue.show().await?.map(|info| info.settings).unwrap_or_default())?;
    let mut wrong = None;
    let update = queue.update(|settings| match changed(settings) {
        Ok(new) => *settings = new,
        // A concurrent change made this one invalid: the settings stay as they are.
        Err(failure) => wrong = Some(failure),
    });
    let info = update.await?;
    match wrong {
        None => show(session, &info).await,
        Some(failure) => Err(failure),
    }
}

async fn open(session: &mut Session, name: &str, group: Option<&str>) -> Result {
    let info = session.client.queue(name).open(group).await?.ok_or_else(|| unknown(name))?;
    told(session, &info, "opened")
}

async fn set_from(session: &mut Session, path: &str) -> Result {
    let text = String::from_utf8(read_file("settings", path)?).map_err(|e| {
        Failure::invalid(format!("the settings in {path:?} are not UTF-8")).why(e.to_string())
    })?;
    let queues = file::read(&text)?;
    for (name, _) in &queues {
        // All names are checked before the first queue is set.
        session.client.queue(name).show().await?;
    }
    for (name, settings) in queues {
        let info = session.client.queue(&name).set(settings).await?.ok_or_else(|| unknown(&name))?;
        show(session, &info).await?;
    }
    Ok(())
}

fn unknown(name: &str) -> Failure {
    Failure::queue_unknown(format!("there is no queue {name:?}"))
        .hint("punctual queue ls    lists all queues")
}

async fn known(session: &Session, name: &str) -> Result<QueueInfo> {
    session.client.queue(name).show().await?.ok_or_else(|| unknown(name))
}

async fn ls(session: &mut Session) -> Result {
    let fields = session.fields(&View::FIELDS)?;
    let (mut infos, mut after) = (Vec::new(), None::<String>);
    loop {
        let names = session.client.store().queues(after.as_deref()).await?;
        let client = &session.client;
        let shown =
            stream::iter(&names).map(async |name| client.queue(name).show().await).buffered(at_once(session));
        // One may have gone since.
        infos.extend(shown.try_filter_map(async |info| Ok(info)).try_collect::<Vec<_>>().await?);
        after = names.last().cloned();
        if names.len() < BATCH_MAX {
            break;
        }
    }
    let now = session.now().await?;
    let views: Vec<View<'_>> = infos.iter().map(|info| View::new(info, now)).collect();
    if let Some(fields) = fields {
        let rows = views.iter().map(|view| fields.pick(view)).collect::<serde_json::Result<Vec<_>>>()?;
        let table = fields.table(&rows, now, &session.zone);
        return print(session, &infos, &rows, &table);
    }
    let soon = if session.format.is_for_people() { soon(session, &infos).await? } else { Vec::new() };
    print(session, &infos, &views, &table(&infos, &soon, now))
}

/// Of each queue, how many jobs become due within the next hour.
async fn soon(session: &Session, infos: &[QueueInfo]) -> Result<Vec<String>> {
    let soon = stream::iter(infos).map(async |info| {
        let hour = Upcoming { queue: Some(info.name.clone()), bucket: Duration::from_hours(1), buckets: 1 };
        let found = session.client.upcoming(&hour).await?;
        let more = if found.complete { "" } else { "+" };
        Ok(format!("{}{more}", grouped(found.buckets.iter().sum())))
    });
    soon.buffered(at_once(session)).try_collect().await
}

fn print(session: &mut Session, infos: &[QueueInfo], views: &[impl Serialize], table: &Table) -> Result {
    let out = &mut session.out;
    match session.format {
        Format::Json => json(out, &views)?,
        Format::Ndjson => views.iter().try_for_each(|view| json(out, view))?,
        Format::Ids => infos.iter().try_for_each(|info| writeln!(out, "{}", clean(&info.name)))?,
        Format::Human | Format::Wide => table.print(out)?,
    }
    Ok(out.flush()?)
}

fn table(infos: &[QueueInfo], soon: &[String], now: Timestamp) -> Table {
    let mut table = Table::new([
        "QUEUE",
        "DUE",
        "DUE≤1H",
        "WAITING",
        "RUNNING",
        "RETRYING",
        "DEAD",
        "DONE",
        "CANCELLED",
        "OLDEST DUE",
        "OLDEST BLOCKED",
        "PAUSED",
    ]);
    for (info, soon) in infos.iter().zip(soon) {
        let counts = &info.counts;
        let paused = info.settings.paused.as_ref().map(|pause| format!("by {}", pause.by));
        table.row([
            info.name.clone(),
            due(counts.due),
            soon.clone(),
            grouped(counts.waiting),
            grouped(counts.running),
            grouped(counts.retrying),
            grouped(counts.dead),
            grouped(counts.done),
            grouped(counts.cancelled),
            info.oldest_due.map(|at| relative(at, now)).unwrap_or_default(),
            info.oldest_blocked.map(|at| relative(at, now)).unwrap_or_default(),
            paused.unwrap_or_default(),
        ]);
    }
    table
}

/// A queue as JSON.
#[derive(Serialize)]
struct View<'a> {
    #[serde(flatten)]
    info: &'a QueueInfo,
    /// How long the oldest due job that no concurrency key holds back has been due.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_due_ms: Option<u128>,
    /// How long the oldest job that is blocked by its concurrency key has been due.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_blocked_ms: Option<u128>,
}

impl<'a> View<'a> {
    /// Every field, and those within `settings` and `counts`.
    const FIELDS: [&'static str; 29] = [
        "name",
        "settings",
        "settings.paused",
        "settings.order",
        "settings.placement",
        "settings.max_jobs",
        "settings.max_bytes",
        "settings.concurrency",
        "settings.rate",
        "settings.group",
        "settings.groups",
        "settings.done",
        "settings.dead",
        "settings.cancelled",
        "settings.defaults",
        "counts",
        "counts.waiting",
        "counts.retrying",
        "counts.due",
        "counts.running",
        "counts.done",
        "counts.dead",
        "counts.cancelled",
        "counts.bytes",
        "oldest_due_at_ms",
        "oldest_blocked_at_ms",
        "opens_at_ms",
        "oldest_due_ms",
        "oldest_blocked_ms",
    ];

    fn new(info: &'a QueueInfo, now: Timestamp) -> Self {
        let age = |at: Option<Timestamp>| at.map(|at| now.since(at).as_millis());
        Self { info, oldest_due_ms: age(info.oldest_due), oldest_blocked_ms: age(info.oldest_blocked) }
    }
}

async fn show(session: &mut Session, info: &QueueInfo) -> Result {
    let now = session.now().await?;
    let (view, fields) = (View::new(info, now), session.fields(&View::FIELDS)?);
    let out = &mut session.out;
    match (session.format.is_json(), fields) {
        (true, None) => return Ok(json(out, &view)?),
        (true, Some(fields)) => return Ok(json(out, &fields.pick(&view)?)?),
        (false, Some(fields)) => {
            return Ok(fields.table(&[fields.pick(&view)?], now, &session.zone).print(out)?);
        }
        (false, None) => {}
    }
    let (counts, settings) = (&info.counts, &info.settings);
    let paused = settings.paused.as_ref().map(|pause| {
        let since = relative(Timestamp::saturating_from_ms(pause.since_ms), now);
        format!("  paused by {}, {since}, {:?}", pause.by, pause.reason)
    });
    writeln!(out, "{}{}", clean(&info.name), clean(&paused.unwrap_or_default()))?;
    let mut line = |name: &str, text: String| writeln!(out, "  {name:<9} {}", clean(&text));
    let due_at = info.oldest_due.map(|at| format!("oldest {}", relative(at, now)));
    let blocked = info.oldest_blocked.map(|at| format!("oldest blocked by its key {}", relative(at, now)));
    let oldest = match due_at.into_iter().chain(blocked).collect::<Vec<_>>().join("; ") {
        ages if ages.is_empty() => ages,
        ages => format!(" ({ages})"),
    };
    line(
        "jobs",
        format!(
            "{} waiting, of them {} due{oldest}, {} retrying; {} running; {} done, {} dead, {} cancelled",
            grouped(counts.waiting),
            due(counts.due),
            grouped(counts.retrying),
            grouped(counts.running),
            grouped(counts.done),
            grouped(counts.dead),
            grouped(counts.cancelled),
        ),
    )?;
    line(
        "order",
        match settings.order {
            Order::Fifo => "fifo".into(),
            Order::Lifo => "lifo".into(),
        },
    )?;
    line(
        "placement",
        match settings.placement {
            Placement::Spread => "spread".into(),
            Placement::Pinned => "pinned".into(),
        },
    )?;
    let cap = |n: Option<u64>| n.map_or("none".to_owned(), grouped);
    line("caps", format!("max_jobs {}, max_bytes {}", cap(settings.max_jobs), cap(settings.max_bytes)))?;
    let rate = settings.rate.map_or("none".to_owned(), starts);
    let opens = info.opens_at.map(|at| format!("; nothing starts until {}", relative(at, now)));
    let concurrency = cap(settings.concurrency.map(u64::from));
    line("limits", format!("concurrency {concurrency}, rate {rate}{}", opens.unwrap_or_default()))?;
    if !settings.group.are_none() {
        line("groups", format!("each {}", limits(&settings.group)))?;
    }
    for (name, of_one) in settings.groups.iter().take(GROUPS_SHOWN) {
        line("group", format!("{name}: {}", limits(of_one)))?;
    }
    if let more @ 1.. = settings.groups.len().saturating_sub(GROUPS_SHOWN) {
        line("group", format!("… and {more} more: punctual queue show {} --json", info.name))?;
    }
    for (name, keep) in [("done", settings.done), ("dead", settings.dead), ("cancelled", settings.cancelled)]
    {
        line("kept", format!("{name}: {}", kept(keep)))?;
    }
    let defaults = serde_json::to_string(&settings.defaults)?;
    line("defaults", defaults)?;
    Ok(())
}

/// `100/1m burst 10`.
fn starts(rate: Rate) -> String {
    let burst =
        if rate.burst == 1 { String::new() } else { format!(" burst {}", grouped(rate.burst.into())) };
    format!("{}/{}{burst}", grouped(rate.max.into()), span(Duration::from_millis(rate.period_ms)))
}

/// What is said of a group.
fn limits(of: &GroupLimits) -> String {
    let weight = of.weight.map(|n| format!("weight {n}"));
    let concurrency = of.concurrency.map(|n| format!("concurrency {}", grouped(n.into())));
    let rate = of.rate.map(|rate| format!("rate {}", starts(rate)));
    weight.into_iter().chain(concurrency).chain(rate).collect::<Vec<_>>().join(", ")
}

fn kept(keep: Keep) -> String {
    if keep.keeps_nothing() {
        return "nothing".to_owned();
    }
    let age = span(Duration::from_millis(keep.age_ms));
    format!("{age}, {}, {} bytes", counted(keep.count, "job"), grouped(keep.bytes))
}

fn told(session: &mut Session, info: &QueueInfo, word: &str) -> Result {
    if session.format.is_json() {
        json(&mut session.out, info)?;
    } else {
        writeln!(session.out, "{word} {}", clean(&info.name))?;
    }
    Ok(())
}

/// What a purge did, as JSON.
#[derive(Serialize)]
struct Purged<'a> {
    queue: &'a str,
    dry_run: bool,
    deleted: u64,
}

async fn purge(session: &mut Session, name: &str, dry_run: bool) -> Result {
    let waiting = known(session, name).await?.counts.waiting;
    let deleted = if dry_run {
        waiting
    } else {
        session.confirm(&format!("delete {} of queue {name}", counted(waiting, "waiting job")))?;
        let mut progress = session.progress();
        session
            .client
            .queue(name)
            .purge(|gone| progress.show(|| format!("{} of {}", grouped(gone), grouped(waiting))))
            .await?
    };
    if session.format.is_json() {
        return Ok(json(&mut session.out, &Purged { queue: name, dry_run, deleted })?);
    }
    let word = if dry_run { "would delete" } else { "deleted" };
    writeln!(session.out, "{word} {} of queue {}", counted(deleted, "waiting job"), clean(name))?;
    Ok(())
}
