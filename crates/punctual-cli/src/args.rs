//! The command line, typed. What each command takes stands beside the command; here is what all share.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, parser::ValueSource};
use punctual::parse_duration;

#[cfg(not(all(feature = "forward", feature = "import", feature = "man")))]
use crate::absent::Absent;
#[cfg(feature = "forward")]
use crate::commands::forward::Forward;
#[cfg(feature = "import")]
use crate::commands::import::Import;
#[cfg(feature = "man")]
use crate::commands::man::Man;
use crate::{
    commands::{
        act::{Cancel, Delete, Edit, Reprioritise, Reschedule, Retry, RunNow},
        audit::Audit,
        bench::Bench,
        board::Board,
        compact::Compact,
        completions::Completions,
        configuration::Configuration,
        cron::Cron,
        demo::DemoWorker,
        limiter::Limiter,
        lock::Lock,
        ls::Ls,
        push::Push,
        queue::Queue,
        shards::Shards,
        show::Show,
        stats::Stats,
        take::Take,
        top::Top,
        topic::Topic,
        upcoming::Upcoming,
        why::Why,
        work::Work,
    },
    config,
    output::Format,
    paint::Color,
};

/// Where the jobs live, unless somebody says it.
const STORE_DEFAULT: &str = "sqlite:punctual.db";

/// A durable job queue: a job runs when it is due. Never early, never lost.
///
/// Data goes to stdout, talk to stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict or wrong state,
/// 5 store unreachable or full, 7 timed out, 8 outcome unknown (repeat with the same id or key), 130 interrupted.
///
/// With -o json a command prints one value, and with -o ndjson a value a line; errors are then a line of JSON on stderr:
/// {"error": {"code", "exit", "message", "why", "try"}}.
#[derive(Debug, Parser)]
#[command(name = "punctual", version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads the command line; ends the program where it is none. `None`: it asks for help, which is printed.
    pub(crate) fn of(words: impl Iterator<Item = OsString>) -> io::Result<Option<Self>> {
        let mut lists = false;
        let words: Vec<OsString> = words.collect();
        let command = Self::command().color(Color::of(&words).choice());
        let matches = command.try_get_matches_from(words.into_iter().map(|word| {
            let negates = lists && word.to_str().is_some_and(is_negated_term);
            lists |= word == "ls" || word == "list";
            // A term of a filter doesn't mind a space; it keeps clap from taking `-state:done` for options.
            if negates { OsString::from_iter([OsString::from(" "), word]) } else { word }
        }));
        let matches = match matches {
            Ok(matches) => matches,
            Err(answer) if answer.use_stderr() => answer.exit(),
            Err(help) => return help.print().and_then(|()| io::stdout().flush()).map(|()| None),
        };
        let mut args = Self::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        args.globals.names_store = matches.value_source("store") == Some(ValueSource::CommandLine);
        Ok(Some(args))
    }
}

/// Whether a word looks like `-state:done`: no option has a colon behind its letters.
fn is_negated_term(word: &str) -> bool {
    word.strip_prefix('-')
        .and_then(|term| term.split_once(':'))
        .is_some_and(|(field, _)| field.len() > 1 && field.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// Options of every command, in any position.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Globals {
    /// Where the jobs live: sqlite:PATH[?durability=full|fast&mode=ro|rw|rwc] or redis:// and an address. Default: store of the
    /// configuration file, else sqlite:punctual.db.
    #[arg(long, global = true, env = "PUNCTUAL_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Whether the command line names the store, and not the environment.
    #[arg(skip)]
    names_store: bool,
    /// The configuration file. Default: punctual.toml here, else the user's, else the machine's.
    #[arg(long, global = true, env = "PUNCTUAL_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What that file says, once it is read.
    #[arg(skip)]
    pub(crate) configured: Option<config::Found>,
    /// What answers look like.
    #[arg(short, long, global = true, value_enum, default_value = "human")]
    pub(crate) output: Format,
    /// The same as -o json.
    #[arg(long, global = true, conflicts_with = "output")]
    pub(crate) json: bool,
    /// Of what ls, show, take, queue ls and queue show print only these fields, in this order.
    #[arg(long, global = true, value_delimiter = ',', value_name = "A,B,…")]
    pub(crate) fields: Option<Vec<String>>,
    /// The zone of times without one, and of those shown: local, utc, or a name such as Europe/Berlin.
    #[arg(long, global = true, env = "PUNCTUAL_TZ", default_value = "local", value_name = "ZONE")]
    pub(crate) tz: String,
    /// Whether states and errors have colours; auto: on terminals, unless `NO_COLOR` is set.
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PUNCTUAL_COLOR",
        hide_env_values = true,
        default_value = "auto",
        hide_possible_values = true,
        value_name = "auto|always|never"
    )]
    pub(crate) color: Color,
    /// Give up after this long (exit 7); exit 8 if a change may have been made. To push it is the limit of one run.
    #[arg(long, global = true, value_parser = parse_duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Don't ask before deleting, cancelling or editing many jobs.
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// Say nothing on stderr but errors.
    #[arg(long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more on stderr: -v what becomes of each job, -vv everything. `RUST_LOG` chooses more finely.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// What lines of the log look like.
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PUNCTUAL_LOG_FORMAT",
        hide_env_values = true,
        default_value = "text",
        value_name = "text|json",
        hide_possible_values = true
    )]
    pub(crate) log_format: LogFormat,
}

/// What lines of the log look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// An object of JSON a line.
    Json,
}

impl Globals {
    /// Where the jobs live: by the command line, else the environment, else the configuration file.
    pub(crate) fn store(&self) -> &str {
        let configured = self.configured.as_ref().and_then(|found| found.config.store.as_deref());
        self.store.as_deref().or(configured).unwrap_or(STORE_DEFAULT)
    }

    /// What says where the jobs live.
    pub(crate) fn store_origin(&self) -> String {
        match (&self.store, &self.configured) {
            (Some(_), _) if self.explicit_store().is_some() => "--store".to_owned(),
            (Some(_), _) => "PUNCTUAL_STORE".to_owned(),
            (None, Some(found)) if found.config.store.is_some() => found.file.display().to_string(),
            (None, _) => "default".to_owned(),
        }
    }

    /// The store that the command line itself names: the demo must not run on whatever the environment points to.
    pub(crate) fn explicit_store(&self) -> Option<&str> {
        self.store.as_deref().filter(|_| self.names_store)
    }

    pub(crate) const fn json(&self) -> bool {
        matches!(self.format(), Format::Json)
    }

    pub(crate) const fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Enqueue a job, or many.
    #[command(visible_alias = "enqueue")]
    Push(Box<Push>),
    /// List jobs.
    #[command(visible_alias = "list")]
    Ls(Ls),
    /// Everything about a job, with its last failed attempts.
    Show(Show),
    /// Why is it not running yet?
    Why(Why),
    /// Call jobs off; the worker of a running one is told.
    Cancel(Cancel),
    /// Give waiting jobs another time.
    Reschedule(Reschedule),
    /// Make waiting jobs due now.
    RunNow(RunNow),
    /// Let dead, cancelled or done jobs wait again.
    Retry(Retry),
    /// Give waiting jobs another priority.
    #[command(alias = "reprioritize")]
    Reprioritise(Reprioritise),
    /// Give waiting jobs another payload.
    Edit(Edit),
    /// Remove jobs that are not running.
    Delete(Delete),
    /// Pop due jobs, at most once: what is printed is done.
    Take(Take),
    /// Look at queues and set them.
    #[command(subcommand)]
    Queue(Queue),
    /// Schedules: jobs that come again and again.
    #[command(subcommand)]
    Cron(Cron),
    /// Topics: what is published becomes a job in every subscribed queue.
    #[command(subcommand)]
    Topic(Topic),
    /// Limit how often something is done.
    #[command(subcommand)]
    Limit(Limiter),
    /// Leaderboards.
    #[command(subcommand)]
    Board(Board),
    /// Let one at a time do something.
    #[command(subcommand)]
    Lock(Lock),
    /// How many jobs there are, and what ran in the last hour.
    Stats(Stats),
    /// Queues, the runs that take longest and what ran in the last hour, live until Ctrl-C.
    Top(Top),
    /// When waiting jobs are due.
    Upcoming(Upcoming),
    /// Run a command for every job.
    Work(Work),
    /// Hand due jobs over to RabbitMQ, NATS, a Redis stream or a webhook.
    #[cfg(feature = "forward")]
    Forward(Forward),
    /// Send due jobs to RabbitMQ, NATS, Redis or a webhook (not in this build).
    #[cfg(not(feature = "forward"))]
    Forward(Absent),
    /// Take over what waits in a queue on Redis that was made by hand.
    #[cfg(feature = "import")]
    #[command(subcommand)]
    Import(Import),
    /// Take over jobs from a queue built by hand on Redis (not in this build).
    #[cfg(not(feature = "import"))]
    Import(Absent),
    /// Check that every job is in exactly one state.
    Audit(Audit),
    /// Let the store look at itself.
    Doctor,
    /// Give the space of removed jobs back to the disk.
    Compact(Compact),
    /// Look at what is configured, and where that is said.
    #[command(subcommand)]
    Config(Configuration),
    /// Over how many shards a store on Redis is spread; change it, live.
    Shards(Shards),
    /// Measure this store on this machine, beside plain SQL.
    Bench(Bench),
    /// Watch 2,000 jobs run on time while a worker is killed; a ledger at the end.
    Demo,
    /// A worker of the demo.
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Print the completions of a shell.
    Completions(Completions),
    /// Write the man pages into a folder.
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man(Man),
    /// Write the man pages into a folder (not in this build).
    #[cfg(not(feature = "man"))]
    #[command(hide = true)]
    Man(Absent),
}

impl Command {
    /// Whether it leaves the store as it is.
    pub(crate) const fn only_looks(&self) -> bool {
        match self {
            Self::Ls(_)
            | Self::Show(_)
            | Self::Why(_)
            | Self::Stats(_)
            | Self::Top(_)
            | Self::Upcoming(_)
            | Self::Doctor
            | Self::Config(_)
            | Self::Completions(_) => true,
            Self::Cancel(Cancel { which, .. })
            | Self::Reschedule(Reschedule { which, .. })
            | Self::RunNow(RunNow { which })
            | Self::Retry(Retry { which })
            | Self::Reprioritise(Reprioritise { which, .. })
            | Self::Edit(Edit { which, .. })
            | Self::Delete(Delete { which }) => which.only_looks(),
            Self::Audit(audit) => !audit.repairs(),
            #[cfg(feature = "import")]
            Self::Import(import) => import.is_dry(),
            Self::Shards(shards) => shards.only_looks(),
            Self::Queue(queue) => queue.only_looks(),
            Self::Cron(cron) => cron.only_looks(),
            Self::Topic(topic) => topic.only_looks(),
            Self::Board(board) => board.only_looks(),
            Self::Lock(lock) => lock.only_looks(),
            _ => false,
        }
    }

    /// Whether it prints things with fields to choose from.
    pub(crate) const fn has_fields(&self) -> bool {
        matches!(
            self,
            Self::Ls(_) | Self::Show(_) | Self::Take(_) | Self::Queue(Queue::Ls(_) | Queue::Show { .. })
        )
    }

    /// Whether it makes a store that is not there: it puts something in, or waits for others to. What only looks at jobs, or
    /// changes those that are there, must not make an empty store of a slip in an address.
    pub(crate) const fn makes_a_store(&self) -> bool {
        match self {
            Self::Push(_)
            | Self::Work(_)
            | Self::Forward(_)
            | Self::Limit(_)
            | Self::Queue(Queue::Set { .. } | Queue::Limit { .. } | Queue::Pause { .. }) => true,
            #[cfg(feature = "import")]
            Self::Import(import) => !import.is_dry(),
            Self::Cron(cron) => cron.makes_a_store(),
            Self::Topic(topic) => topic.makes_a_store(),
            Self::Board(board) => board.makes_a_store(),
            Self::Lock(lock) => lock.makes_a_store(),
            _ => false,
        }
    }
}
