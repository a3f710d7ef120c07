//! The commands, and what they share: an open store, an output, and the wall clock.

pub(crate) mod act;
pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod board;
pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod configuration;
pub(crate) mod cron;
pub(crate) mod demo;
mod doctor;
#[cfg(feature = "forward")]
pub(crate) mod forward;
pub(crate) mod health;
mod hour;
#[cfg(feature = "import")]
pub(crate) mod import;
mod limit;
pub(crate) mod limiter;
pub(crate) mod lock;
pub(crate) mod ls;
#[cfg(feature = "man")]
pub(crate) mod man;
mod progress;
pub(crate) mod push;
pub(crate) mod queue;
pub(crate) mod recover;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod shards;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod take;
#[cfg(feature = "serve")]
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod topic;
pub(crate) mod upcoming;
pub(crate) mod watch;
pub(crate) mod why;
pub(crate) mod work;
pub(crate) mod worker;

use std::{
    error::Error as _,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use jiff::{Zoned, tz::TimeZone};
use punctual::{Client, ErrorKind, JobId, Timestamp, store::Finding};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use self::{limit::Limit, progress::Progress};
#[cfg(feature = "otel")]
use crate::telemetry::{self, Telemetry};
use crate::{
    absent,
    args::{Args, Command, Globals, LogFormat},
    descriptors,
    errors::{Failure, Result},
    fields::Fields,
    output::{Format, Out, json},
    paint::Paint,
    talk, times,
};

/// How long a process that held jobs waits at its end until its report is read.
const REPORT_MAX: Duration = Duration::from_secs(5);

/// Runs a command to its end. A command that changes something fails if its output could not be printed.
pub(crate) fn run(args: Args) -> Result {
    let Args { globals, command } = args;
    if command.holds_jobs() {
        talk::detach();
    }
    listen(&globals);
    let done = carry_out(globals, &command);
    done.map_err(|failure| if command.only_looks() { failure } else { failure.if_unread(Failure::unread) })
}

fn carry_out(mut globals: Globals, command: &Command) -> Result {
    if let Some(absent) = absent::feature(command) {
        return Err(absent::failure(absent));
    }
    match command {
        Command::Work(work) => work.health.check()?,
        #[cfg(feature = "forward")]
        Command::Forward(forward) => forward.health.check()?,
        _ => {}
    }
    if let Command::Completions(completions) = command {
        return completions::run(completions);
    }
    #[cfg(feature = "man")]
    if let Command::Man(man) = command {
        return man::run(man);
    }
    globals.check()?;
    if let Command::Config(command) = command {
        return configuration::run(&globals, command);
    }
    descriptors::check()?;
    let mut runtime = match command {
        // `take` handles signals while stdout is full.
        Command::Work(_)
        | Command::Forward(_)
        | Command::Serve(_)
        | Command::Take(_)
        | Command::Bench(_)
        | Command::DemoWorker(_) => tokio::runtime::Builder::new_multi_thread(),
        // All other commands wait for one store. Batches in flight keep their order because they are polled in order.
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.enable_all().build()?;
    let answer = runtime.block_on(async {
        #[cfg(feature = "otel")]
        let telemetry = Telemetry::start(&globals, command);
        let work = Box::pin(perform(globals, command));
        #[cfg(feature = "otel")]
        let work = telemetry.around(command, work);
        work.await
    });
    // A thread that still waits for a line of stdin must not keep the program alive.
    runtime.shutdown_background();
    answer
}

/// Runs a command that needs a runtime.
async fn perform(globals: Globals, command: &Command) -> Result {
    let limit = Limit::of(&globals, command)?;
    match command {
        Command::Bench(sizes) => return bench::run(globals.store(), sizes, globals.json()).await,
        Command::Demo(args) => {
            globals.explicit_store().map_or(Ok(()), outlives)?;
            return demo::run(globals.explicit_store(), args, globals.json()).await;
        }
        Command::DemoWorker(args) => return Ok(demo::run_worker(globals.store(), args).await?),
        Command::Shards(args) => return shards::run(&globals, args, &limit).await,
        Command::Recover(args) => {
            let recovery = limit.within(recover::run(&globals, args)).await;
            return recovery.unwrap_or_else(|| Err(limit.passed_within_a_change()));
        }
        #[cfg(feature = "forward")]
        Command::Forward(args) => return forward::run(globals, command, args).await,
        #[cfg(feature = "import")]
        Command::Import(args) if args.is_dry() => {
            let look = limit.within(import::dry_run(&globals, args)).await;
            return look.unwrap_or_else(|| Err(limit.passed()));
        }
        Command::Cron(args) if let Some(next) = args.of_any() => {
            return cron::next_of_any(&globals, next);
        }
        _ => {}
    }
    let mut session = limit
        .within(Session::open(&globals, command))
        .await
        .unwrap_or_else(|| Err(limit.passed().why("the store could not be opened in that time")))?;
    let Some(done) = limit.within(dispatch(&mut session, command)).await else {
        session.out.flush()?;
        // Closing the store would wait for the call that took too long.
        std::mem::forget(session);
        return Err(if command.only_looks() { limit.passed() } else { limit.passed_within_a_change() });
    };
    done.and_then(|()| Ok(session.out.flush()?))
}

async fn dispatch(session: &mut Session, command: &Command) -> Result {
    match command {
        Command::Push(args) => push::run(session, args).await,
        Command::Ls(args) => {
            watch::look(session, args.watch, async |session| ls::run(session, args).await).await
        }
        Command::Show(args) => show::run(session, args).await,
        Command::Why(args) => why::run(session, args).await,
        Command::Cancel(args) => act::cancel(session, args).await,
        Command::Reschedule(args) => act::reschedule(session, args).await,
        Command::RunNow(args) => act::run_now(session, args).await,
        Command::Retry(args) => act::retry(session, args).await,
        Command::Reprioritise(args) => act::reprioritise(session, args).await,
        Command::Edit(args) => act::edit(session, args).await,
        Command::Delete(args) => act::delete(session, args).await,
        Command::Take(args) => take::run(session, args).await,
        Command::Queue(args) => queue::run(session, args).await,
        Command::Cron(args) => cron::run(session, args).await,
        Command::Topic(args) => topic::run(session, args).await,
        #[cfg(feature = "serve")]
        Command::Token(args) => token::run(session, args).await,
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(session, args).await,
        #[cfg(not(feature = "serve"))]
        Command::Serve(_) | Command::Token(_) => {
            unreachable!("invariant: a command that is not in this build was refused")
        }
        Command::Limit(args) => limiter::run(session, args).await,
        Command::Board(args) => board::run(session, args).await,
        Command::Lock(args) => lock::run(session, args).await,
        Command::Stats(args) => {
            watch::look(session, args.watch, async |session| stats::run(session, args).await).await
        }
        Command::Top(args) => top::run(session, args).await,
        Command::Upcoming(args) => upcoming::run(session, args).await,
        Command::Work(args) => work::run(session, args).await,
        Command::Worker(args) => worker::run(session, args).await,
        #[cfg(feature = "import")]
        Command::Import(args) => import::run(session, args).await,
        #[cfg(not(feature = "import"))]
        Command::Import(_) => unreachable!("invariant: a command that is not in this build was refused"),
        Command::Audit(args) => audit::run(session, args).await,
        Command::Doctor => doctor::run(session).await,
        Command::Compact(_) => compact::run(session).await,
        Command::Bench(_)
        | Command::Demo(_)
        | Command::DemoWorker(_)
        | Command::Forward(_)
        | Command::Shards(_)
        | Command::Recover(_)
        | Command::Config(_)
        | Command::Completions(_)
        | Command::Man(_) => {
            unreachable!("invariant: these need no session and ran already")
        }
    }
}

/// Logs what the library does to stderr: warnings, failed runs and dead jobs; with `-v` each job, with `-vv` everything. `RUST_LOG`
/// overrides both. Logs of broker clients are off, since they print each broken connection and whole message bodies; `forward`
/// reports what matters. So are those of tools for assistants: callers of a server could fill the log.
fn listen(globals: &Globals) {
    let filter = match globals.verbose {
        0 => "warn,lapin=off,async_nats=off,rmcp=off",
        1 => {
            "warn,punctual=debug,punctual_cli=debug,punctual_forward=debug,lapin=off,async_nats=off,rmcp=off"
        }
        _ => "trace",
    };
    let named = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    let chosen = named.as_deref().map(str::parse::<Targets>);
    let refused = matches!(chosen, Some(Err(_)));
    let filter = match chosen {
        Some(Ok(targets)) => targets,
        _ => filter.parse().expect("invariant: a filter of our own is well-formed"),
    };
    let log = tracing_subscriber::fmt::layer().with_writer(talk::stderr);
    // If stderr is closed, a report about that on stderr would panic.
    let log = log.log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    match globals.log_format {
        LogFormat::Text => registry.with(log.with_ansi(globals.color.on(&io::stderr()).is_on())).init(),
        LogFormat::Json => registry.with(log.json().flatten_event(true)).init(),
    }
    if refused {
        tracing::warn!("RUST_LOG is ignored: write levels and modules, such as warn,punctual=debug");
    }
}

/// What most commands share.
pub(crate) struct Session {
    /// What a repair has mended, so that the store can be opened.
    mended: Option<Finding>,
    pub(crate) client: Client,
    pub(crate) out: Out,
    pub(crate) format: Format,
    pub(crate) zone: TimeZone,
    /// How it was named: by `--tz`.
    pub(crate) tz: String,
    /// The colours of stdout.
    pub(crate) paint: Paint,
    /// The colours of stderr.
    pub(crate) paint_talk: Paint,
    fields: Option<Vec<String>>,
    yes: bool,
    quiet: bool,
    /// Whether the first run of a job continues the trace of its producer.
    #[cfg(feature = "otel")]
    pub(crate) continues_traces: bool,
}

/// Refuses a store that ends with its process.
fn outlives(url: &str) -> Result<()> {
    if url == "memory:" {
        return Err(Failure::new(ErrorKind::Unsupported, "memory: works with bench only")
            .why("a store in memory is lost when the command ends, and other processes do not see it")
            .hint("name a store: --store sqlite:punctual.db"));
    }
    Ok(())
}

impl Session {
    async fn open(globals: &Globals, command: &Command) -> Result<Self> {
        let (url, zone) = (globals.store(), times::zone(&globals.tz)?);
        // The doctor must be able to open a server that other commands refuse.
        let lenient = matches!(command, Command::Doctor).then(|| lenient(url));
        let url = lenient.as_deref().unwrap_or(url);
        outlives(url)?;
        if matches!(command, Command::Compact(_)) {
            compact::check(url)?;
        }
        if globals.fields.is_some() && (!command.has_fields() || globals.format() == Format::Ids) {
            return Err(Failure::invalid("--fields does not work with this command or format")
                .hint("use --fields with ls, show, take, queue ls or queue show, and not with -o ids"));
        }
        let mended = match command {
            Command::Audit(audit) if audit.repairs() => audit::restore(url).await?,
            _ => None,
        };
        let client = if command.makes_a_store() {
            Client::connect(url).await?
        } else {
            existing(url, command).await?
        };
        Ok(Self {
            client,
            mended,
            out: Out::new(io::stdout()),
            format: globals.format(),
            zone,
            tz: globals.tz.clone(),
            paint: globals.color.on(&io::stdout()),
            paint_talk: globals.color.on(&io::stderr()),
            fields: globals.fields.clone(),
            yes: globals.yes,
            quiet: globals.quiet,
            #[cfg(feature = "otel")]
            continues_traces: telemetry::continues(globals),
        })
    }

    /// Returns the requested fields, or `None` for the fields that the format prints by default.
    pub(crate) fn fields(&self, known: &[&str]) -> Result<Option<Fields>> {
        self.fields.as_ref().map(|names| Fields::of(names, known)).transpose()
    }

    /// Returns the time of the store's clock.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        Ok(self.client.store().now().await?)
    }

    /// Returns the time of the wall clock, for times that people write.
    pub(crate) fn wall_clock(&self) -> Zoned {
        Zoned::now().with_time_zone(self.zone.clone())
    }

    /// Prints a message for people to stderr.
    pub(crate) fn say(&self, text: &str) {
        if !self.quiet {
            talk::say(text);
        }
    }

    /// Prints a report as JSON at the end of a process that held jobs. If nobody reads stdout, the process ends without it.
    pub(crate) async fn report(&mut self, report: &impl serde::Serialize) -> Result {
        let mut line = Vec::new();
        json(&mut line, report)?;
        let printed = tokio::task::spawn_blocking(move || {
            let mut stdout = io::stdout();
            stdout.write_all(&line).and_then(|()| stdout.flush())
        });
        match tokio::time::timeout(REPORT_MAX, printed).await {
            Ok(Ok(printed)) => Ok(printed?),
            Ok(Err(_)) | Err(_) => Err(Failure::failed("the report could not be printed").why(format!(
                "stdout was not read within {REPORT_MAX:?}; what the command did remains done"
            ))),
        }
    }

    /// Shows the progress of a long command.
    pub(crate) fn progress(&self) -> Progress {
        Progress::new(!self.quiet)
    }

    /// Whether `--yes` was given.
    pub(crate) const fn is_sure(&self) -> bool {
        self.yes
    }

    /// Asks for confirmation. Without a terminal, `--yes` is required instead.
    pub(crate) fn confirm(&self, what: &str) -> Result {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::invalid(format!("will not {what} without confirmation"))
                .why("stdin is not a terminal, so the command cannot ask")
                .hint("add --yes to confirm, or --dry-run to see what the command would do"));
        }
        talk::print(&format!("{what}? [y/N] "));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::FAILED) }
    }
}

/// Refuses queues that no job can be in yet and whose names look like a pattern or a list: names are literal, and a process that served
/// them would stay idle without a word.
async fn check_served(client: &Client, queues: impl Iterator<Item = &str>) -> Result {
    let is_odd = |name: &&str| name.contains(|c: char| matches!(c, '*' | ',' | ';') || c.is_whitespace());
    for name in queues.filter(is_odd) {
        // A store that does not answer is reported by what serves the queue.
        if matches!(client.queue(name).show().await, Ok(None)) {
            return Err(Failure::invalid(format!("there is no queue {name:?}"))
                .why("the name of a queue is taken literally, not as a pattern or a list")
                .hint(
                    "name each queue: -q mail -q bulk; a queue that really has this name must exist first",
                ));
        }
    }
    Ok(())
}

/// Returns an address that opens even a server that deletes jobs when its memory is full.
fn lenient(url: &str) -> String {
    match url.split_once('?') {
        _ if !url.starts_with("redis") => url.to_owned(),
        Some(_) => format!("{url}&eviction=allowed"),
        None => format!("{url}?eviction=allowed"),
    }
}

/// Opens a store that exists. A command that only reads also opens a file that this user cannot write.
async fn existing(url: &str, command: &Command) -> Result<Client> {
    let (is_file, and) = (url.starts_with("sqlite:"), if url.contains('?') { '&' } else { '?' });
    let with = |mode: &str| if is_file { format!("{url}{and}mode={mode}") } else { url.to_owned() };
    let is_chosen = is_file && url.contains("mode=ro");
    let client = Client::connect(&if is_chosen { url.to_owned() } else { with("rw") }).await;
    let client = match client {
        Err(error) if is_file && command.only_looks() && error.kind() == ErrorKind::Unavailable => {
            Client::connect(&with("ro")).await
        }
        client => client,
    };
    client.map_err(|error| {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        let is_missing = cause.is_some_and(|cause| cause.kind() == io::ErrorKind::NotFound);
        let failure = Failure::from(error);
        if is_missing {
            failure.hint("check --store and PUNCTUAL_STORE; punctual push creates a store")
        } else {
            failure
        }
    })
}

/// Reads a whole id. A command that changes jobs must not guess which job is meant.
pub(crate) fn whole_id(text: &str) -> Result<JobId> {
    text.parse().map_err(|e: punctual::Error| {
        let digits = text.chars().filter(|c| *c != '-').all(|c| c.is_ascii_hexdigit());
        if digits && (6..32).contains(&text.len()) {
            Failure::invalid(format!(
                "{text:?} is only a part of a job id, and this command needs the whole id"
            ))
            .hint(format!("punctual show {text}    prints the whole id"))
        } else {
            e.into()
        }
    })
}

/// Makes the error of a job that does not exist.
pub(crate) fn not_found(id: impl std::fmt::Display) -> Failure {
    Failure::not_found(format!("there is no job {id}"))
        .why("the job was never in this store, or it ended and its retention is over")
}
