//! `punctual demo`: runs 2,000 jobs over ten seconds with two worker processes, kills one, and prints a ledger.
//!
//! The parent enqueues, watches and counts. Each worker is this program again (`demo-worker`). It writes a line to a history of its
//! own for each start and end, before it does anything else. The ledger is made from these histories and the store, never from the
//! memory of a worker.
//!
//! The demo leaves nothing behind. When the parent is asked to end, the jobs are removed. The workers end with the parent in every
//! case, since it holds the other end of their stdin.

mod absence;
#[cfg(feature = "serve")]
mod dashboard;
mod ledger;
mod worker;

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use punctual::{
    Backoff, Client, JobId, NewJob, Payload, Priority, State, When,
    job::Filter,
    limits::BATCH_MAX,
    store::{Action, Enqueued, Keep, QueueSettings, Target},
};

pub(crate) use self::worker::{DemoWorker, run_worker};
use self::{
    absence::Absences,
    ledger::{Ledger, Starts},
};
use crate::{
    errors::Failure,
    requests::{Requests, exit_code},
};

/// Jobs that the demo inserts.
const JOBS: usize = 2_000;
/// They are due over this long.
const SPAN: Duration = Duration::from_secs(10);
/// The first is due this long after the first enqueue, so that all are enqueued by then.
const HEAD_START: Duration = Duration::from_secs(2);
/// One worker is killed at this point of the span.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// The workers' lease. Jobs of the killed worker run again after it.
const LEASE: Duration = Duration::from_secs(2);
/// The demo gives up when jobs are left this long after the span.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long workers may take to end.
const WORKER_END_MAX: Duration = Duration::from_secs(10);
/// Jobs that are enqueued each second while the dashboard stays.
const TRICKLE: usize = 5;
/// They are due within this time.
const TRICKLE_SPAN: Duration = Duration::from_mins(1);
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(200);

/// What the demo does to a job, by its number: shares of the whole, the rest simply runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Plain,
    /// Fails at its first attempt, and is retried.
    FailsOnce,
    /// Fails at every attempt, and ends dead.
    AlwaysFails,
    /// Takes a while, so that the kill finds something running.
    Slow,
    /// Cancelled right after its enqueue.
    Cancelled,
    /// Moved by a second right after its enqueue.
    Rescheduled,
    /// Enqueued a second time with the same idempotency key.
    Twice,
}

impl Part {
    const fn of(number: usize) -> Self {
        match number % 50 {
            7 | 23 => Self::FailsOnce,
            11 if number % 100 == 11 => Self::AlwaysFails,
            13 | 29 | 43 => Self::Slow,
            17 => Self::Cancelled,
            31 => Self::Rescheduled,
            37 => Self::Twice,
            _ => Self::Plain,
        }
    }

    const fn kind(self) -> &'static str {
        match self {
            Self::FailsOnce => "demo.fails-once",
            Self::AlwaysFails => "demo.always-fails",
            Self::Slow => "demo.slow",
            _ => "demo.plain",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Show the dashboard in a browser meanwhile. It stays after the ledger, with some more jobs, until Ctrl-C.
    #[cfg_attr(feature = "serve", arg(long))]
    #[cfg_attr(not(feature = "serve"), arg(skip))]
    serve: bool,
}

/// Runs the demo; `store` is an address to use instead of a temporary file.
pub(crate) async fn run(store: Option<&str>, args: &Demo, json: bool) -> crate::errors::Result {
    let requests = Requests::listen()?;
    match play(store, args, json, requests).await? {
        Played::Clean(true) => Ok(()),
        Played::Clean(false) => Err(Failure::FAILED),
        Played::Unread(failure) => Err(failure),
        Played::Interrupted(code) => Err(Failure::Silent(code)),
    }
}

/// How the demo ended.
enum Played {
    /// With a ledger, which is clean or not.
    Clean(bool),
    /// The ledger could not be printed.
    Unread(Failure),
    /// The demo was asked to stop; this is the exit code.
    Interrupted(u8),
}

fn print(ledger: &Ledger, json: bool) -> Played {
    let text = if json {
        format!("{}\n", serde_json::to_string(ledger).expect("invariant: a ledger is plain data"))
    } else {
        ledger.to_string()
    };
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Played::Clean(ledger.is_clean()),
        Err(e) => Played::Unread(Failure::from(e).if_unread(Failure::unread)),
    }
}

async fn play(store: Option<&str>, args: &Demo, json: bool, mut requests: Requests) -> Result<Played> {
    let folder = tempfile::Builder::new()
        .prefix("punctual-demo-")
        .tempdir()
        .context("could not make a temporary folder")?;
    let url = store
        .map_or_else(|| format!("sqlite:{}", folder.path().join("demo.db").display()), ToOwned::to_owned);
    let client = Client::connect(&url).await?;
    let demo = Play {
        client,
        absences: Absences::of(&url),
        url,
        folder: folder.path().to_owned(),
        prefix: format!("demo-{:08x}", fastrand::u32(..)),
    };
    #[cfg(feature = "serve")]
    let _dashboard = if args.serve { Some(dashboard::Dashboard::start(&demo.client).await?) } else { None };
    let mut workers = Vec::new();
    let mut outcome = tokio::select! {
        outcome = demo.run(json, &mut workers) => outcome.map(|ledger| print(&ledger, json)),
        request = requests.next() => {
            talk("the demo was stopped, and removes its jobs");
            Ok(Played::Interrupted(exit_code(request)))
        }
    };
    if args.serve && matches!(outcome, Ok(Played::Clean(_))) {
        talk("the dashboard stays, with some more jobs, until Ctrl-C");
        tokio::select! {
            ended = demo.trickle(&mut workers) => outcome = ended.and(outcome),
            _ = requests.next() => talk("the demo ends, and removes its jobs"),
        }
    }
    end(workers).await;
    // A second request is one to end now.
    tokio::select! {
        removed = demo.remove_queues() => removed?,
        request = requests.next() => {
            talk(&format!("jobs are left in queues {}", demo.queues().join(", ")));
            return Ok(Played::Interrupted(exit_code(request)));
        }
    }
    outcome
}

/// Lets the workers release their jobs, and kills workers that do not end.
async fn end(mut workers: Vec<Worker>) {
    for worker in &mut workers {
        drop(worker.child.stdin.take());
    }
    let begin = Instant::now();
    while begin.elapsed() < WORKER_END_MAX && workers.iter_mut().any(Worker::is_there) {
        tokio::time::sleep(TICK).await;
    }
    // Killing a worker that has ended fails, which is fine.
    for worker in &mut workers {
        let _ = worker.kill();
    }
}

/// Prints a message to stderr; a closed stderr is not an error.
fn talk(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

struct Play {
    client: Client,
    absences: Absences,
    url: String,
    folder: PathBuf,
    /// Of the queues' names, random: a store that is in use is not disturbed.
    prefix: String,
}

impl Play {
    fn queues(&self) -> [String; 3] {
        ["mail", "push", "reports"].map(|name| format!("{}-{name}", self.prefix))
    }

    /// Runs the demo. Workers are in `workers` from their start, so that a caller that drops this future can end them.
    async fn run(&self, json: bool, workers: &mut Vec<Worker>) -> Result<Ledger> {
        for queue in self.queues() {
            let keep = Keep { age_ms: 3_600_000, count: 10_000, bytes: 64 << 20 };
            let settings =
                QueueSettings { done: keep, dead: keep, cancelled: keep, ..QueueSettings::default() };
            self.absences.outlast(async || self.client.queue(&queue).set(settings.clone()).await).await?;
        }
        let store = self.client.store();
        talk(&format!("store    {} ({})", store.url(), store.durability().name()));
        for name in ["one", "two"] {
            workers.push(Worker::start(self, name)?);
        }
        let begin = Instant::now();
        let (inserted, duplicate_enqueues) = self.enqueue().await?;
        talk(&format!(
            "enqueued {JOBS} jobs in {:.1} s, due over {} s; some fail on purpose",
            begin.elapsed().as_secs_f64(),
            SPAN.as_secs()
        ));

        let mut killed = None;
        let mut starts = Starts::new(&self.folder);
        let live = !json && std::io::stderr().is_terminal();
        let mut seconds = 0;
        loop {
            tokio::time::sleep(TICK).await;
            let at = begin.elapsed().saturating_sub(HEAD_START);
            if killed.is_none() && KILL_AFTER <= at {
                killed = Some(workers[0].kill()?);
                talk(&format!(
                    "{}killed   worker one with SIGKILL after {:.1} s, and started it again",
                    clear(live),
                    at.as_secs_f64()
                ));
                workers[0] = Worker::start(self, "one-again")?;
            }
            starts.read()?;
            let left = self.left().await?;
            let is_next_second = seconds < at.as_secs();
            seconds = at.as_secs();
            if live || (!json && is_next_second) {
                let line = format!(
                    "{:>5.1} s  {} of {JOBS} started · {left} left · {}",
                    at.as_secs_f64(),
                    starts.jobs(),
                    starts.lateness()
                );
                if live {
                    let _ = write!(std::io::stderr(), "{}{line}", clear(true));
                } else {
                    talk(&line);
                }
            }
            if left == 0 || SPAN + PATIENCE < at {
                break;
            }
        }
        if live {
            talk("");
        }
        // All jobs have ended; a worker has nothing to lose.
        for worker in workers.iter_mut() {
            worker.kill()?;
        }
        starts.read()?;
        for span in starts.away.drain(..) {
            self.absences.add(span);
        }
        let killed = killed.context("the demo ended before a worker was killed")?;
        let states =
            self.absences.outlast(async || ledger::states(&self.client, &self.queues()).await).await?;
        let excuses = Excuses { killed, absences: &self.absences };
        Ok(Ledger::draw(&states, &inserted, duplicate_enqueues, &starts, &excuses))
    }

    /// Enqueues everything, then cancels, moves and repeats what is meant for it. Returns the inserted ids and how many
    /// enqueues met a duplicate.
    async fn enqueue(&self) -> Result<(Vec<JobId>, u64)> {
        let queues = self.queues();
        let now = self.absences.outlast(async || self.client.store().now().await).await?;
        let start = now.after(HEAD_START);
        let make = |number: usize| {
            let queue = &queues[number % queues.len()];
            let key = format!("{}:{number}", self.prefix);
            let part = Part::of(number);
            let payload = Payload::json(format!("{{\"number\":{number}}}"));
            let mut job = NewJob::new(JobId::derived(queue, None, &key), part.kind(), queue, payload);
            let step = SPAN * u32::try_from(number).unwrap_or(0) / u32::try_from(JOBS).unwrap_or(1);
            job.run_at = When::At(start.after(step));
            job.options.priority = Some(Priority::ALL[number / 3 % 3]);
            job.options.max_attempts = Some(if part == Part::AlwaysFails { 2 } else { 5 });
            job.options.backoff = Some(Backoff::fixed(Duration::from_millis(300)).jitter(false));
            job
        };
        let jobs: Vec<NewJob> = (0..JOBS).map(make).collect();
        let inserted: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answers = self.client.push(jobs).await?;
        // A call whose answer was lost in a failover is made again, and meets its own jobs: their ids are theirs alone.
        let stand = answers.iter().zip(&inserted).filter(|(answer, id)| answer.id() == Some(**id)).count();
        ensure!(stand == JOBS, "{stand} of {JOBS} jobs were inserted");

        let of = |part| (0..JOBS).filter(move |n| Part::of(*n) == part);
        let again = self.client.push(of(Part::Twice).map(make).collect()).await?;
        let duplicates = again.iter().filter(|a| matches!(a, Enqueued::Duplicate(_))).count();
        let targets = |part| of(part).map(|n| Target::from(make(n).id)).collect::<Vec<_>>();
        let cancel = Action::Cancel { reason: Some("demo".to_owned()) };
        for (part, action) in [(Part::Cancelled, cancel), (Part::Rescheduled, Action::RescheduleBy(1_000))] {
            let targets = targets(part);
            let _ = self.absences.outlast(async || self.client.act(&targets, &action).await).await?;
        }
        Ok((inserted, duplicates as u64))
    }

    /// Runs and enqueues a few jobs each second, some of which fail.
    async fn trickle(&self, workers: &mut Vec<Worker>) -> Result<()> {
        workers.push(Worker::start(self, "three")?);
        for second in 0_usize.. {
            let jobs = (0..TRICKLE).map(|n| {
                let part = Part::of(second * TRICKLE + n);
                let queue = &self.queues()[n % 3];
                let mut job = NewJob::new(self.client.make_id(), part.kind(), queue, Payload::json("{}"));
                job.run_at = When::In(TRICKLE_SPAN.mul_f64(fastrand::f64()));
                job.options.max_attempts = Some(2);
                job
            });
            self.client.push(jobs.collect()).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// Jobs that have not ended.
    async fn left(&self) -> Result<u64> {
        let mut left = 0;
        for queue in self.queues() {
            let counts = self.absences.outlast(async || self.client.count(Some(&queue)).await).await?;
            left += counts.waiting + counts.running;
        }
        Ok(left)
    }

    /// Removes everything that the demo made in the store.
    async fn remove_queues(&self) -> Result<()> {
        self.remove_jobs().await?;
        let begin = Instant::now();
        // Jobs of a killed worker wait for their leases to expire; `take` then reclaims them.
        while 0 < self.left().await? && begin.elapsed() < PATIENCE {
            tokio::time::sleep(TICK).await;
            for queue in self.queues() {
                self.absences.outlast(async || self.client.take(&queue, BATCH_MAX).await).await?;
            }
            self.remove_jobs().await?;
        }
        Ok(())
    }

    async fn remove_jobs(&self) -> Result<()> {
        for queue in self.queues() {
            let filter = Filter::all().queue(&queue).state([
                State::Waiting,
                State::Done,
                State::Dead,
                State::Cancelled,
            ]);
            self.absences
                .outlast(async || self.client.act_where(&filter, &Action::Delete, |_| ()).await)
                .await?;
        }
        Ok(())
    }
}

fn clear(live: bool) -> &'static str {
    if live { "\r\x1b[K" } else { "" }
}

/// A worker process.
struct Worker {
    name: String,
    child: Child,
}

/// What may make a job run again.
struct Excuses<'a> {
    /// The name of the worker that was killed.
    killed: String,
    absences: &'a Absences,
}

impl Worker {
    fn start(demo: &Play, name: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
        command
            .args(["demo-worker", "--name", name])
            // Not as an argument, which everybody on this machine can read: it may hold a password.
            .env("PUNCTUAL_STORE", &demo.url)
            .arg("--history")
            .arg(history(&demo.folder, name));
        for queue in demo.queues() {
            command.args(["--queue", &queue]);
        }
        command.args(["--lease-ms", &LEASE.as_millis().to_string()]);
        // Some jobs fail on purpose. Their warnings would hide the ledger.
        if std::env::var_os("RUST_LOG").is_none_or(|filter| filter.is_empty()) {
            command.env("RUST_LOG", "error");
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("could not start a worker")?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// SIGKILL: nothing in the process gets a chance to tidy up.
    fn kill(&mut self) -> Result<String> {
        self.child.kill().context("could not kill a worker")?;
        self.child.wait().context("could not wait for a killed worker")?;
        Ok(self.name.clone())
    }

    fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

fn history(folder: &Path, worker: &str) -> PathBuf {
    folder.join(format!("{worker}.ndjson"))
}
