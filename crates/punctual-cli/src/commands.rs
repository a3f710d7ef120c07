//! Every command, and what they share: an open store, an output, and the clock on the wall.

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
pub(crate) mod shards;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod take;
pub(crate) mod top;
pub(crate) mod topic;
pub(crate) mod upcoming;
pub(crate) mod watch;
pub(crate) mod why;
pub(crate) mod work;

use std::{
    error::Error as _,
    io::{self, IsTerminal as _, Write as _},
};

use jiff::{Zoned, tz::TimeZone};
use punctual::{Client, ErrorKind, JobId, Timestamp};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use self::{limit::Limit, progress::Progress};
use crate::{
    absent,
    args::{Args, Command, Globals, LogFormat},
    config::Config,
    errors::{Failure, Result},
    fields::Fields,
    output::{Format, Out},
    paint::Paint,
    times,
};

/// Runs a command to its end. Whoever asked a command to do something has to learn that nobody read the answer.
pub(crate) fn run(args: Args) -> Result {
    let Args { globals, command } = args;
    listen(&globals);
    let done = carry_out(globals, &command);
    done.map_err(|failure| if command.only_looks() { failure } else { failure.if_unread(Failure::unread) })
}

fn carry_out(mut globals: Globals, command: &Command) -> Result {
    if let Some(feature) = absent::feature(command) {
        return Err(absent::failure(feature));
    }
    if let Command::Completions(completions) = command {
        return completions::run(completions);
    }
    #[cfg(feature = "man")]
    if let Command::Man(man) = command {
        return man::run(man);
    }
    globals.configured = Config::find(globals.config.as_deref())?;
    if let Command::Config(command) = command {
        return configuration::run(&globals, command);
    }
    let mut runtime = match command {
        Command::Work(_) | Command::Forward(_) | Command::Bench(_) | Command::DemoWorker(_) => {
            tokio::runtime::Builder::new_multi_thread()
        }
        // A signal is heard while stdout is full.
        Command::Take(_) => tokio::runtime::Builder::new_multi_thread(),
        // Everything else waits for one store: batches in flight keep their order by being polled in order.
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.enable_all().build()?;
    let answer = runtime.block_on(async {
        let limit = Limit::of(&globals, command)?;
        match command {
            Command::Bench(sizes) => return bench::run(globals.store(), sizes, globals.json()).await,
            Command::Demo => return demo::run(globals.explicit_store(), globals.json()).await,
            Command::DemoWorker(args) => return Ok(demo::run_worker(globals.store(), args).await?),
            Command::Shards(args) => return shards::run(&globals, args, &limit).await,
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
            .unwrap_or_else(|| Err(limit.passed().why("the store was not open by then")))?;
        let Some(done) = limit.within(dispatch(&mut session, command)).await else {
            session.out.flush()?;
            // Closing the store would wait for what took too long.
            std::mem::forget(session);
            return Err(if command.only_looks() { limit.passed() } else { limit.passed_within_a_change() });
        };
        done.and_then(|()| Ok(session.out.flush()?))
    });
    // A thread that still waits for a line of stdin must not hold the program back.
    runtime.shutdown_background();
    answer
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
        Command::Limit(args) => limiter::run(session, args).await,
        Command::Board(args) => board::run(session, args).await,
        Command::Lock(args) => lock::run(session, args).await,
        Command::Stats(args) => {
            watch::look(session, args.watch, async |session| stats::run(session, args).await).await
        }
        Command::Top(args) => top::run(session, args).await,
        Command::Upcoming(args) => upcoming::run(session, args).await,
        Command::Work(args) => work::run(session, args).await,
        #[cfg(feature = "import")]
        Command::Import(args) => import::run(session, args).await,
        #[cfg(not(feature = "import"))]
        Command::Import(_) => unreachable!("invariant: a command that is not in this build was refused"),
        Command::Audit(args) => audit::run(session, args).await,
        Command::Doctor => doctor::run(session).await,
        Command::Compact(_) => compact::run(session).await,
        Command::Bench(_)
        | Command::Demo
        | Command::DemoWorker(_)
        | Command::Forward(_)
        | Command::Shards(_)
        | Command::Config(_)
        | Command::Completions(_)
        | Command::Man(_) => {
            unreachable!("invariant: these need no session and ran already")
        }
    }
}

/// Tells stderr what the library does: warnings, failed runs and dead jobs among them; with `-v` what becomes of each job, with
/// `-vv` everything. `RUST_LOG` has the last word. Clients of brokers report each broken connection, and what is refused with its
/// whole body: what matters of it is told in our own words.
fn listen(globals: &Globals) {
    let filter = match globals.verbose {
        0 => "warn,lapin=off,async_nats=off",
        1 => "warn,punctual=debug,punctual_cli=debug,punctual_forward=debug,lapin=off,async_nats=off",
        _ => "trace",
    };
    let named = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    let chosen = named.as_deref().map(str::parse::<Targets>);
    let refused = matches!(chosen, Some(Err(_)));
    let filter = match chosen {
        Some(Ok(targets)) => targets,
        _ => filter.parse().expect("invariant: a filter of our own is well-formed"),
    };
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    // When nobody reads stderr any more, it would be told on stderr, in a way that panics.
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

/// What a command works with.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) out: Out,
    pub(crate) format: Format,
    pub(crate) zone: TimeZone,
    /// The colours of stdout.
    pub(crate) paint: Paint,
    /// The colours of stderr.
    pub(crate) paint_talk: Paint,
    fields: Option<Vec<String>>,
    yes: bool,
    quiet: bool,
}

impl Session {
    async fn open(globals: &Globals, command: &Command) -> Result<Self> {
        let (url, zone) = (globals.store(), times::zone(&globals.tz)?);
        // A server that is refused for what it does to jobs is whom the doctor has most to say about.
        let lenient = matches!(command, Command::Doctor).then(|| lenient(url));
        let url = lenient.as_deref().unwrap_or(url);
        if url == "memory:" {
            return Err(Failure::new(ErrorKind::Unsupported.code(), "memory: is for bench only")
                .why("such a store ends with the command")
                .hint("--store sqlite:punctual.db"));
        }
        if matches!(command, Command::Compact(_)) {
            compact::check(url)?;
        }
        if globals.fields.is_some() && (!command.has_fields() || globals.format() == Format::Ids) {
            return Err(Failure::invalid("--fields has nothing to choose from here")
                .hint("it is for ls, show, take, queue ls and queue show; -o ids prints nothing but ids"));
        }
        let client = if command.makes_a_store() {
            Client::connect(url).await?
        } else {
            existing(url, command).await?
        };
        Ok(Self {
            client,
            out: Out::new(io::stdout()),
            format: globals.format(),
            zone,
            paint: globals.color.on(&io::stdout()),
            paint_talk: globals.color.on(&io::stderr()),
            fields: globals.fields.clone(),
            yes: globals.yes,
            quiet: globals.quiet,
        })
    }

    /// The fields that were asked for, of those there are; `None`: all, or what suits the format.
    pub(crate) fn fields(&self, known: &[&str]) -> Result<Option<Fields>> {
        self.fields.as_ref().map(|names| Fields::of(names, known)).transpose()
    }

    /// The store's clock.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        Ok(self.client.store().now().await?)
    }

    /// The wall's clock, for times that people write.
    pub(crate) fn wall_clock(&self) -> Zoned {
        Zoned::now().with_time_zone(self.zone.clone())
    }

    /// Talks to people.
    pub(crate) fn say(&self, text: &str) {
        if !self.quiet {
            // Nobody is left to talk to when stderr is gone.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Shows how far a long command has come.
    pub(crate) fn progress(&self) -> Progress {
        Progress::new(!self.quiet)
    }

    /// Whether nobody is to be asked.
    pub(crate) const fn is_sure(&self) -> bool {
        self.yes
    }

    /// Lets people think again; without a terminal there are no people, and `--yes` has to say it.
    pub(crate) fn confirm(&self, what: &str) -> Result {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::invalid(format!("refusing to {what} unasked"))
                .why("stdin is no terminal, so nobody can be asked")
                .hint("add --yes, or --dry-run to see what it would do"));
        }
        write!(io::stderr(), "{what}? [y/N] ")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Silent(1)) }
    }
}

/// The address with which also a server is opened that deletes jobs when its memory is full.
fn lenient(url: &str) -> String {
    match url.split_once('?') {
        _ if !url.starts_with("redis") => url.to_owned(),
        Some(_) => format!("{url}&eviction=allowed"),
        None => format!("{url}?eviction=allowed"),
    }
}

/// A client of a store that is there already. A file that this user can't write is opened by those who only look, all the same.
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
            failure.hint("punctual push    makes one; or check --store and PUNCTUAL_STORE")
        } else {
            failure
        }
    })
}

/// An id, whole: what changes a job must not guess which.
pub(crate) fn whole_id(text: &str) -> Result<JobId> {
    text.parse().map_err(|e: punctual::Error| {
        let digits = text.chars().filter(|c| *c != '-').all(|c| c.is_ascii_hexdigit());
        if digits && (6..32).contains(&text.len()) {
            Failure::invalid(format!("{text:?} is a part of a job id; this needs the whole of it"))
                .hint(format!("punctual show {text}    prints it"))
        } else {
            e.into()
        }
    })
}

/// There is no such job.
pub(crate) fn not_found(id: impl std::fmt::Display) -> Failure {
    Failure::new("not_found", format!("there is no job {id}"))
        .why("it never was in this store, or it ended and is past its retention")
}
