//! The command line, typed: the global options and the list of commands. The options of a command are declared in its module.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, parser::ValueSource};
use punctual::job::parse_duration;

#[cfg(not(all(feature = "forward", feature = "import", feature = "man", feature = "serve")))]
use crate::absent::Absent;
#[cfg(feature = "forward")]
use crate::commands::forward::Forward;
#[cfg(feature = "import")]
use crate::commands::import::Import;
#[cfg(feature = "man")]
use crate::commands::man::Man;
#[cfg(feature = "serve")]
use crate::commands::{serve::Serve, token::Token};
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
        demo::{Demo, DemoWorker},
        limiter::Limiter,
        lock::Lock,
        ls::Ls,
        push::Push,
        queue::Queue,
        recover::Recover,
        shards::Shards,
        show::Show,
        stats::Stats,
        take::Take,
        top::Top,
        topic::Topic,
        upcoming::Upcoming,
        why::Why,
        work::Work,
        worker::Worker,
    },
    config,
    errors::{Failure, Result},
    output::Format,
    paint::Color,
};

/// The store that is used if no option, variable or configuration file names one.
pub(crate) const STORE_DEFAULT: &str = "sqlite:punctual.db";

/// A durable job queue: each job runs when it is due, and never before.
///
/// Results are printed to stdout, messages to stderr. Durations are written as 500ms, 90s, 15m, 1h30m or 2d.
///
/// Exit codes: 0 success; 1 failed; 2 wrong usage; 3 not found; 4 conflict or wrong state; 5 store unreachable or full;
/// 6 refused by the server; 7 timed out; 8 outcome unknown, repeat with the same id or key; 130 interrupted.
///
/// With -o json a command prints one JSON value, with -o ndjson one value per line. An error is then one line of JSON on
/// stderr: {"error": {"code", "exit", "message", "why", "try"}}.
#[derive(Debug, Parser)]
#[command(name = "punctual", version, max_term_width = 110)]
#[command(after_help = "\
Examples:
  punctual push email.send '{\"to\":\"ana@example.com\"}' -q mail --in 2h
  punctual work --exec ./deliver -q mail
  punctual ls state:dead")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads the command line, and ends the program if it is wrong. Returns `None` after printing help that was asked for.
    ///
    /// # Errors
    /// If help cannot be printed, or the command line is wrong because of the configuration file.
    pub(crate) fn of(words: impl Iterator<Item = OsString>) -> Result<Option<Self>> {
        let mut lists = false;
        let words: Vec<OsString> = words.collect();
        let color = Color::of(&words).choice();
        let escaped = words.into_iter().map(|word| {
            let negates = lists && word.to_str().is_some_and(is_negated_term);
            lists |= word == "ls" || word == "list";
            // A space in front keeps clap from reading the term `-state:done` as options; the filter ignores it.
            if negates { OsString::from_iter([OsString::from(" "), word]) } else { word }
        });
        let words: Vec<OsString> = escaped.collect();
        let (command, configured, misconfigured) = Self::configured(&words);
        let matches = match command.color(color).try_get_matches_from(words) {
            Ok(matches) => matches,
            Err(answer) if answer.use_stderr() => {
                // It may only be wrong because of the file.
                return misconfigured.map_or_else(|| answer.exit(), Err);
            }
            Err(help) => return Ok(help.print().and_then(|()| io::stdout().flush()).map(|()| None)?),
        };
        let mut args = Self::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        args.globals.names_store = matches.value_source("store") == Some(ValueSource::CommandLine);
        (args.globals.configured, args.globals.misconfigured) = (configured, misconfigured);
        Ok(Some(args))
    }

    /// Returns the command line with the defaults of the configuration file, the file, and what is wrong with it.
    fn configured(words: &[OsString]) -> (clap::Command, Option<config::Found>, Option<Failure>) {
        let matches = Self::command().ignore_errors(true).try_get_matches_from(words);
        // Help was asked for, or there is no command.
        let Ok(matches) = matches else { return (Self::command(), None, None) };
        let file = matches.get_one::<PathBuf>("config");
        let found = config::Config::find(file.map(PathBuf::as_path));
        let applied = found.and_then(|found| {
            let command = Self::command();
            let command = match &found {
                Some(found) => config::section::applied(command, found)?,
                None => command,
            };
            Ok((command, found))
        });
        match applied {
            Ok((command, found)) => (command, found, None),
            Err(failure) => (Self::command(), None, Some(failure)),
        }
    }
}

/// Whether a word looks like `-state:done`. No option has a colon after its letters.
fn is_negated_term(word: &str) -> bool {
    word.strip_prefix('-')
        .and_then(|term| term.split_once(':'))
        .is_some_and(|(field, _)| field.len() > 1 && field.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// Options of every command, in any position on the command line.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_STORE",
        hide_env_values = true,
        value_name = "URL",
        help = "Address of the store: sqlite:PATH[?durability=full|fast&mode=ro|rw|rwc] or redis://HOST (default: that of \
                the configuration file, else sqlite:punctual.db)"
    )]
    pub(crate) store: Option<String>,
    /// Whether the store is named by the command line, not by the environment.
    #[arg(skip)]
    names_store: bool,
    /// Configuration file (default: ./punctual.toml, else ~/.config/punctual/config.toml, else
    /// /etc/punctual/punctual.toml).
    #[arg(long, global = true, env = "PUNCTUAL_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The contents of that file, after it was read.
    #[arg(skip)]
    pub(crate) configured: Option<config::Found>,
    /// What is wrong with it.
    #[arg(skip)]
    misconfigured: Option<Failure>,
    /// Output format: human, wide (more columns), json (one value), ndjson (one value per line) or ids (default: human).
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value = "human",
        hide_default_value = true,
        hide_possible_values = true,
        value_name = "FORMAT"
    )]
    pub(crate) output: Format,
    /// Print JSON; the same as -o json.
    #[arg(long, global = true, conflicts_with = "output")]
    pub(crate) json: bool,
    /// Print only these fields, in this order (ls, show, take, queue ls, queue show).
    #[arg(long, global = true, value_delimiter = ',', value_name = "A,B,…")]
    pub(crate) fields: Option<Vec<String>>,
    /// Time zone of times that are read or printed: local, utc or a name such as Europe/Berlin (default: local).
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_TZ",
        hide_env_values = true,
        default_value = "local",
        hide_default_value = true,
        value_name = "ZONE"
    )]
    pub(crate) tz: String,
    /// Colours of states and errors; auto: on a terminal, unless `NO_COLOR` is set (default: auto).
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PUNCTUAL_COLOR",
        hide_env_values = true,
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        value_name = "auto|always|never"
    )]
    pub(crate) color: Color,
    /// Time limit of the command: exit 7 when it passes, or 8 if a change may have been made. With push, cron set and topic publish, it
    /// is the limit of each run of the job instead (default: none).
    #[arg(long, global = true, value_parser = parse_duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Skip the question before many jobs are deleted, cancelled or edited.
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// Print only errors to stderr.
    #[arg(long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log more to stderr: -v each job, -vv everything. `RUST_LOG` selects in more detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Format of log lines; json is one object per line (default: text).
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PUNCTUAL_LOG_FORMAT",
        hide_env_values = true,
        default_value = "text",
        hide_default_value = true,
        value_name = "text|json",
        hide_possible_values = true
    )]
    pub(crate) log_format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Globals {
    /// Checks the configuration file. Commands that do not need it work while it is wrong.
    pub(crate) fn check(&mut self) -> Result {
        self.misconfigured.take().map_or(Ok(()), Err)
    }

    /// Returns the address of the store: of the command line, else the environment, else the configuration file.
    pub(crate) fn store(&self) -> &str {
        let configured = self.configured.as_ref().and_then(|found| found.config.store.as_deref());
        self.store.as_deref().or(configured).unwrap_or(STORE_DEFAULT)
    }

    /// Returns what names the store: an option, a variable, a file or the default.
    pub(crate) fn store_origin(&self) -> String {
        match (&self.store, &self.configured) {
            (Some(_), _) if self.explicit_store().is_some() => "--store".to_owned(),
            (Some(_), _) => "PUNCTUAL_STORE".to_owned(),
            (None, Some(found)) if found.config.store.is_some() => found.file.display().to_string(),
            (None, _) => "default".to_owned(),
        }
    }

    /// Returns the store that the command line names. The demo must not run on a store that the environment names.
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

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Enqueue one job, or many from lines of JSON.
    #[command(visible_alias = "enqueue")]
    Push(Box<Push>),
    /// List jobs.
    #[command(visible_alias = "list")]
    Ls(Ls),
    /// Show one job and its failed attempts.
    Show(Show),
    /// Explain why a job is not running, or how it ended.
    Why(Why),
    /// Cancel jobs; a running job is asked to stop.
    Cancel(Cancel),
    /// Change the due time of waiting jobs.
    Reschedule(Reschedule),
    /// Make waiting jobs due now.
    RunNow(RunNow),
    /// Run dead, cancelled or done jobs again.
    Retry(Retry),
    /// Change the priority of waiting jobs.
    #[command(alias = "reprioritize")]
    Reprioritise(Reprioritise),
    /// Replace the payload of waiting jobs.
    Edit(Edit),
    /// Delete jobs that are not running.
    Delete(Delete),
    /// Take due jobs: print them and mark them done, at most once.
    Take(Take),
    /// List, configure, limit and pause queues.
    #[command(subcommand)]
    Queue(Queue),
    /// Manage schedules, which enqueue a job at each tick: a time of a cron expression or an interval.
    #[command(subcommand)]
    Cron(Cron),
    /// Manage topics: a job that is published to a topic is enqueued in each subscribed queue.
    #[command(subcommand)]
    Topic(Topic),
    /// Check rate limits, for scripts.
    #[command(subcommand)]
    Limit(Limiter),
    /// Keep leaderboards: scores of members, and their ranks.
    #[command(subcommand)]
    Board(Board),
    /// Run a command under a lock, so that only one runs at a time, and manage locks.
    #[command(subcommand)]
    Lock(Lock),
    /// Print the number of jobs in each state, and what ran in the last hour.
    Stats(Stats),
    /// Watch queues, the longest runs and recent activity, until Ctrl-C.
    Top(Top),
    /// Print a histogram of the due times of waiting jobs.
    Upcoming(Upcoming),
    /// Run a command for each job.
    Work(Work),
    /// List the running workers, and make them quiet, resume or stop.
    #[command(subcommand, alias = "workers")]
    Worker(Worker),
    /// Send due jobs to RabbitMQ, NATS, a Redis stream or a webhook.
    #[cfg(feature = "forward")]
    Forward(Forward),
    /// Send due jobs to RabbitMQ, NATS, a Redis stream or a webhook (not in this build).
    #[cfg(not(feature = "forward"))]
    Forward(Absent),
    /// Import the jobs of a hand-written queue on Redis.
    #[cfg(feature = "import")]
    #[command(subcommand)]
    Import(Import),
    /// Import the jobs of a hand-written queue on Redis (not in this build).
    #[cfg(not(feature = "import"))]
    Import(Absent),
    /// Serve the store over HTTP: a dashboard, an API for clients and workers, and metrics.
    #[cfg(feature = "serve")]
    Serve(Serve),
    /// Serve the store over HTTP (not in this build).
    #[cfg(not(feature = "serve"))]
    Serve(Absent),
    /// Manage tokens, which a server asks its callers for.
    #[cfg(feature = "serve")]
    #[command(subcommand)]
    Token(Token),
    /// Manage tokens, which a server asks its callers for (not in this build).
    #[cfg(not(feature = "serve"))]
    Token(Absent),
    /// Check that each job is in exactly one state.
    Audit(Audit),
    /// Check the store's health and configuration.
    #[command(after_help = "\
Each line is ok, warn or fail, followed by what to change. The exit code is 1 if a check fails.

Examples:
  punctual doctor
  punctual doctor --store redis://localhost -o json")]
    Doctor,
    /// Return the space of deleted jobs to the disk (SQLite only).
    Compact(Compact),
    /// Copy what can be read of a damaged file into a new one (SQLite only).
    Recover(Recover),
    /// Show the configuration, and where each value is set.
    #[command(subcommand)]
    Config(Configuration),
    /// Show or change the number of shards, the parts of a store on Redis, while it is in use.
    Shards(Shards),
    /// Measure a store on this machine, next to plain SQL or scripts.
    Bench(Bench),
    /// Run 2,000 jobs with two workers, kill one, and print a ledger.
    #[command(after_help = "\
The demo takes about 15 s. It uses a temporary SQLite file, or the store in --store. The ledger counts each job \
once, as done, cancelled, dead or lost. The exit code is 1 if a job is lost, starts early or runs twice without a reason.

Examples:
  punctual demo
  punctual demo --store redis://localhost
  punctual demo -o json")]
    Demo(Demo),
    /// A worker of the demo.
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Print the completion script of a shell.
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
    /// Whether the command only reads.
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
            Self::Worker(worker) => worker.only_looks(),
            #[cfg(feature = "serve")]
            Self::Token(token) => token.only_looks(),
            Self::Board(board) => board.only_looks(),
            Self::Lock(lock) => lock.only_looks(),
            _ => false,
        }
    }

    /// Whether the command holds jobs or a lock, or decides about signals: nobody who reads its stderr may hold it up.
    pub(crate) const fn holds_jobs(&self) -> bool {
        match self {
            Self::Work(_)
            | Self::Forward(_)
            | Self::Serve(_)
            | Self::Take(_)
            | Self::Import(_)
            | Self::DemoWorker(_) => true,
            Self::Lock(lock) => lock.holds(),
            _ => false,
        }
    }

    /// Whether `--fields` applies to the command.
    pub(crate) const fn has_fields(&self) -> bool {
        matches!(
            self,
            Self::Ls(_) | Self::Show(_) | Self::Take(_) | Self::Queue(Queue::Ls(_) | Queue::Show { .. })
        )
    }

    /// Whether the command creates a store that does not exist: it writes something new, or waits for jobs. Other commands must
    /// not create an empty store because of a mistyped address.
    pub(crate) const fn makes_a_store(&self) -> bool {
        match self {
            Self::Push(_)
            | Self::Work(_)
            | Self::Forward(_)
            | Self::Serve(_)
            | Self::Limit(_)
            | Self::Queue(Queue::Set { .. } | Queue::Limit { .. } | Queue::Pause { .. }) => true,
            #[cfg(feature = "import")]
            Self::Import(import) => !import.is_dry(),
            Self::Cron(cron) => cron.makes_a_store(),
            Self::Topic(topic) => topic.makes_a_store(),
            #[cfg(feature = "serve")]
            Self::Token(token) => token.makes_a_store(),
            Self::Board(board) => board.makes_a_store(),
            Self::Lock(lock) => lock.makes_a_store(),
            _ => false,
        }
    }
}
