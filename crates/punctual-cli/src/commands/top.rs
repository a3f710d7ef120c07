//! `punctual top`: shows queues, the longest runs and what ran in the last hour, live. All reads are bounded: counters of up to 20
//! queues, one page of running jobs, and the boards that workers add to. The command never scans.

mod rates;
mod screen;

use std::{
    cmp::Reverse,
    io::{self, IsTerminal as _, Write as _},
};

use punctual::{
    JobId, JobRecord, State, Timestamp,
    job::{Filter, Progress},
    limits::BATCH_MAX,
    store::{Counts, List, QueueInfo},
    toolkit::{LastHour, Ran},
};
use serde::Serialize;

use self::{rates::Rates, screen::Screen};
use super::{
    Session, hour,
    ls::{PROGRESS_CHARS, attempt, how_far},
    stats::due,
    watch,
};
use crate::{
    errors::Result,
    output::{Table, clean, cut, grouped, json},
    times::{relative, span, wall},
};

/// Queues that are shown: first those that ran most in the last hour, then by name.
const QUEUES_MAX: usize = 20;
/// Runs that are shown, those that have run longest first.
const RUNS_SHOWN: usize = 10;
/// Running jobs that are read to find them.
const RUNS_READ: usize = 200;
/// Characters of a name, and of a worker's.
const NAME_CHARS: usize = 32;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The screen is renewed every second. It shows up to 20 queues, and the ten longest of up to 200 running jobs.

Examples:
  punctual top
  punctual top -n 3
  punctual top -n 1 -o json")]
pub(crate) struct Top {
    /// Number of rounds, one per second (default: until Ctrl-C on a terminal, else 1).
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
}

pub(crate) async fn run(session: &mut Session, args: &Top) -> Result {
    let is_terminal = io::stdout().is_terminal();
    let rounds = args.rounds.or((!is_terminal).then_some(1));
    // A list of looks is no picture: nothing is painted over, or cut.
    let mut screen = (is_terminal && !session.format.is_json()).then(Screen::default);
    let (mut rates, mut is_first) = (Rates::default(), true);
    watch::repeat(session, rounds, async |session| {
        let look = Look::take(session, &mut rates).await?;
        if session.format.is_json() {
            return Ok(json(&mut session.out, &look)?);
        }
        // Between two looks.
        let is_next = !std::mem::replace(&mut is_first, false);
        let mut text = if is_next && screen.is_none() { b"\n".to_vec() } else { Vec::new() };
        look.write(session, rounds.is_none(), &mut text)?;
        match &mut screen {
            Some(screen) => screen.show(&mut session.out, &String::from_utf8_lossy(&text))?,
            None => session.out.write_all(&text)?,
        }
        Ok(())
    })
    .await
}

/// What there is to see at one instant, more or less: its parts are read one after the other.
#[derive(Serialize)]
struct Look {
    store: String,
    durability: &'static str,
    now_ms: u64,
    #[serde(flatten)]
    counts: Counts,
    queues: Vec<QueueLine>,
    /// All that there are, those that are not shown, too; up to 1,000 are counted.
    queues_total: usize,
    /// Those that have run longest, of up to 200 that were read.
    runs: Vec<RunLine>,
    /// `None` if the store did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_hour: Option<LastHour>,
    #[serde(skip)]
    now: Timestamp,
    #[serde(skip)]
    runs_read: usize,
    /// Why the last hour could not be read.
    #[serde(skip)]
    untold: Option<String>,
}

/// A queue.
#[derive(Serialize)]
struct QueueLine {
    name: String,
    #[serde(flatten)]
    counts: Counts,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_due_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_blocked_ms: Option<u64>,
    /// What workers settled.
    runs_1h: u64,
    /// None at the first look.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs_per_s: Option<f64>,
}

/// A job that runs.
#[derive(Serialize)]
struct RunLine {
    id: JobId,
    kind: String,
    queue: String,
    worker: String,
    running_ms: u64,
    attempt: u32,
    max_attempts: u32,
    cancel_requested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    #[serde(skip)]
    attempt_text: String,
    #[serde(skip)]
    progress_text: String,
}

impl Look {
    async fn take(session: &Session, rates: &mut Rates) -> Result<Self> {
        let client = &session.client;
        let (now, counts) = (session.now().await?, client.count(None).await?);
        let (mut hour, untold) = match client.last_hour(QUEUES_MAX).await {
            Ok(hour) => (hour, None),
            Err(error) => (LastHour::default(), Some(error.to_string())),
        };
        if untold.is_none() {
            rates.note(now.as_ms(), hour.queues.iter().map(|ran| (ran.name.clone(), ran.runs)).collect());
        }
        let names = client.store().queues(None).await?;
        let mut queues = Vec::new();
        for name in shown(&names, &hour.queues) {
            // It may have gone since.
            if let Some(info) = client.queue(name).show().await? {
                queues.push(QueueLine::new(info, now, &hour.queues, rates));
            }
        }
        let running = Filter::all().state([State::Running]);
        let page = client.list(&List { filter: running, after: None, limit: RUNS_READ }).await?;
        let runs_read = page.jobs.len();
        let mut runs: Vec<RunLine> = page.jobs.iter().map(|job| RunLine::new(job, page.now)).collect();
        runs.sort_by_key(|run| Reverse(run.running_ms));
        runs.truncate(RUNS_SHOWN);
        for all in [&mut hour.kinds, &mut hour.queues, &mut hour.groups, &mut hour.errors] {
            all.truncate(hour::SHOWN);
        }
        let store = client.store();
        Ok(Self {
            store: store.url().to_owned(),
            durability: store.durability().name(),
            now_ms: now.as_ms(),
            counts,
            queues,
            queues_total: names.len(),
            runs,
            last_hour: untold.is_none().then_some(hour),
            now,
            runs_read,
            untold,
        })
    }

    fn write(&self, session: &Session, is_endless: bool, out: &mut Vec<u8>) -> io::Result<()> {
        let Counts { waiting, retrying, running, done, dead, cancelled, .. } = self.counts;
        let end = if is_endless { "  (Ctrl-C to quit)" } else { "" };
        let at = wall(self.now, self.now, &session.zone);
        writeln!(out, "{}  durability {}  {at}{end}", clean(&self.store), self.durability)?;
        writeln!(
            out,
            "waiting {} (due {}, retrying {})  running {}  done {}  dead {}  cancelled {}",
            grouped(waiting),
            due(self.counts.due),
            grouped(retrying),
            grouped(running),
            grouped(done),
            grouped(dead),
            grouped(cancelled)
        )?;
        if !self.queues.is_empty() {
            writeln!(out)?;
            self.queue_table().print(out)?;
        }
        if let Some(more @ 1..) = self.queues_total.checked_sub(self.queues.len()) {
            let at_least = if self.queues_total < BATCH_MAX { "" } else { "at least " };
            writeln!(out, "{at_least}{more} more: punctual queue ls")?;
        }
        if !self.runs.is_empty() {
            writeln!(out)?;
            self.run_table().print(out)?;
            if RUNS_READ <= self.runs_read {
                writeln!(out, "the longest of {RUNS_READ} runs that were read")?;
            }
        }
        let tables: Vec<_> = self.last_hour.iter().flat_map(hour::tables).collect();
        for table in &tables {
            writeln!(out)?;
            table.print(out)?;
        }
        if let Some(why) = &self.untold {
            writeln!(out, "\ncould not read what ran in the last hour: {}", clean(why))?;
        } else if !tables.is_empty() {
            writeln!(out, "\nRUNS counts settled runs, added once a second; {}", hour::NOTE)?;
        }
        Ok(())
    }

    fn queue_table(&self) -> Table {
        let mut table = Table::new([
            "QUEUE",
            "DUE",
            "WAITING",
            "RUNNING",
            "RETRYING",
            "DEAD",
            "RUNS/S",
            "RUNS/1H",
            "OLDEST DUE",
            "OLDEST BLOCKED",
            "PAUSED",
        ]);
        for queue in &self.queues {
            let oldest = |age: Option<u64>| {
                age.map(|ms| relative(self.now, self.now.after(millis(ms)))).unwrap_or_default()
            };
            table.row([
                cut(&queue.name, NAME_CHARS),
                due(queue.counts.due),
                grouped(queue.counts.waiting),
                grouped(queue.counts.running),
                grouped(queue.counts.retrying),
                grouped(queue.counts.dead),
                queue.runs_per_s.map(rate).unwrap_or_default(),
                grouped(queue.runs_1h),
                oldest(queue.oldest_due_ms),
                oldest(queue.oldest_blocked_ms),
                if queue.paused { "paused".to_owned() } else { String::new() },
            ]);
        }
        table
    }

    fn run_table(&self) -> Table {
        let mut table =
            Table::new(["RUNNING", "KIND", "QUEUE", "WORKER", "FOR", "ATTEMPT", "PROGRESS", "CANCEL"]);
        for run in &self.runs {
            table.row([
                run.id.short(),
                cut(&run.kind, NAME_CHARS),
                cut(&run.queue, NAME_CHARS),
                cut(&run.worker, NAME_CHARS),
                span(millis(run.running_ms)),
                run.attempt_text.clone(),
                cut(&run.progress_text, PROGRESS_CHARS),
                if run.cancel_requested { "requested".to_owned() } else { String::new() },
            ]);
        }
        table
    }
}

impl QueueLine {
    fn new(info: QueueInfo, now: Timestamp, hour: &[Ran], rates: &Rates) -> Self {
        let runs_1h = hour.iter().find(|ran| ran.name == info.name).map_or(0, |ran| ran.runs);
        Self {
            runs_per_s: rates.of(&info.name),
            name: info.name,
            counts: info.counts,
            paused: info.settings.paused.is_some(),
            oldest_due_ms: info.oldest_due.map(|at| ms(now.since(at))),
            oldest_blocked_ms: info.oldest_blocked.map(|at| ms(now.since(at))),
            runs_1h,
        }
    }
}

impl RunLine {
    fn new(job: &JobRecord, now: Timestamp) -> Self {
        Self {
            id: job.id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            worker: job.running.as_ref().map(|running| running.worker.clone()).unwrap_or_default(),
            running_ms: ms(now.since(job.started_at.unwrap_or(now))),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            cancel_requested: job.cancel_requested,
            attempt_text: attempt(job),
            progress: job.notes.progress.clone(),
            progress_text: how_far(job),
        }
    }
}

/// Of all queues those that are shown.
fn shown<'a>(names: &'a [String], hour: &'a [Ran]) -> Vec<&'a str> {
    let mut shown: Vec<&str> = hour.iter().map(|ran| ran.name.as_str()).collect();
    let others = names.iter().map(String::as_str).filter(|name| !hour.iter().any(|ran| ran.name == *name));
    shown.extend(others);
    shown.truncate(QUEUES_MAX);
    shown
}

/// Prints a rate, with one decimal if it is small.
fn rate(per_s: f64) -> String {
    if 10.0 <= per_s || per_s == 0.0 { grouped(per_s.round() as u64) } else { format!("{per_s:.1}") }
}

fn ms(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

const fn millis(ms: u64) -> std::time::Duration {
    std::time::Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_as_exact_as_they_are_worth() {
        assert_eq!([0.0, 0.25, 9.94, 10.4, 12_345.6].map(rate), ["0", "0.2", "9.9", "10", "12 346"]);
    }
}
