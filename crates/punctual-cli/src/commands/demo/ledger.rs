//! The ledger of the demo: the jobs that were enqueued, and how they ended.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use punctual::{Client, JobId, State, job::Filter, store::List};
use serde::Serialize;

use super::{
    Excuses,
    absence::Span,
    worker::{Event, Line, What},
};
use crate::quantile::quantile;

/// Every event of every history, read as the files grow.
pub(super) struct Starts {
    folder: PathBuf,
    read: HashMap<PathBuf, u64>,
    events: Vec<Event>,
    jobs: HashSet<JobId>,
    /// When workers could not reach the store.
    pub(super) away: Vec<Span>,
}

impl Starts {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            read: HashMap::new(),
            events: Vec::new(),
            jobs: HashSet::new(),
            away: Vec::new(),
        }
    }

    /// Reads what is new; a line that is not finished yet is left for the next time.
    pub(super) fn read(&mut self) -> Result<()> {
        for entry in std::fs::read_dir(&self.folder).context("could not list the histories")? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "ndjson") {
                continue;
            }
            let from = self.read.entry(path.clone()).or_default();
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(*from))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            for line in text[..whole].lines() {
                match serde_json::from_str(line).context("a history holds a line that is none")? {
                    Line::Run(event) => {
                        self.jobs.insert(event.id);
                        self.events.push(event);
                    }
                    Line::Away(span) => self.away.push(span),
                }
            }
            *from += whole as u64;
        }
        Ok(())
    }

    /// How many jobs have started.
    pub(super) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// The lateness so far, in words.
    pub(super) fn lateness(&self) -> Lateness {
        let mut late: Vec<f64> = self.events.iter().filter(|e| e.what == What::Start).map(late_ms).collect();
        Lateness::of(&mut late)
    }
}

/// How late an event is, in milliseconds; negative is early.
fn late_ms(event: &Event) -> f64 {
    (event.at_us as f64 - event.run_at_ms as f64 * 1_000.0) / 1_000.0
}

/// Quantiles of lateness.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Lateness {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Lateness {
    fn of(late: &mut [f64]) -> Self {
        late.sort_by(f64::total_cmp);
        Self { p50: quantile(late, 0.5), p99: quantile(late, 0.99), max: quantile(late, 1.0) }
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lateness p50 {:.1} ms · p99 {:.1} ms · max {:.1} ms", self.p50, self.p99, self.max)
    }
}

/// enqueued = done + cancelled + dead + lost.
#[derive(Debug, Serialize)]
pub(super) struct Ledger {
    enqueued: u64,
    done: u64,
    cancelled: u64,
    dead: u64,
    lost: u64,
    early: u64,
    duplicate_enqueues: u64,
    retries: u64,
    duplicates_explained: u64,
    /// The store was away meanwhile, so that the first run could not keep its lease.
    duplicates_of_absence: u64,
    duplicates_unexplained: u64,
    after_kill: u64,
    away_ms: u64,
    lateness_ms: Lateness,
}

impl Ledger {
    pub(super) fn draw(
        states: &HashMap<JobId, State>,
        inserted: &[JobId],
        duplicate_enqueues: u64,
        starts: &Starts,
        excuses: &Excuses<'_>,
    ) -> Self {
        let ended = |state| inserted.iter().filter(|id| states.get(id) == Some(&state)).count() as u64;
        let enqueued = inserted.len() as u64;
        let (done, cancelled, dead) = (ended(State::Done), ended(State::Cancelled), ended(State::Dead));

        let mut ledger = Self {
            enqueued,
            done,
            cancelled,
            dead,
            lost: enqueued - done - cancelled - dead,
            early: 0,
            duplicate_enqueues,
            retries: 0,
            duplicates_explained: 0,
            duplicates_of_absence: 0,
            duplicates_unexplained: 0,
            after_kill: 0,
            away_ms: excuses.absences.in_all().as_millis() as u64,
            lateness_ms: Lateness::of(&mut []),
        };
        let mut runs: HashMap<JobId, Vec<&Event>> = HashMap::new();
        for event in &starts.events {
            runs.entry(event.id).or_default().push(event);
        }
        let mut late = Vec::new();
        for events in runs.values_mut() {
            // The fence orders the runs of a job; the start of a run comes before its end.
            events.sort_by_key(|e| (e.fence, e.what != What::Start));
            ledger.count(events, excuses, &mut late);
        }
        ledger.lateness_ms = Lateness::of(&mut late);
        ledger
    }

    /// Counts the runs of one job.
    fn count(&mut self, events: &[&Event], excuses: &Excuses<'_>, late: &mut Vec<f64>) {
        let mut before: Option<&Event> = None;
        let mut began_us = u64::MAX;
        for &event in events {
            if event.what == What::Start {
                self.early += u64::from(late_ms(event) < 0.0);
                let taken_from = event.taken_from.as_ref();
                if taken_from.is_some() {
                    self.after_kill += 1;
                } else {
                    late.push(late_ms(event));
                }
                match (before, taken_from) {
                    (None, _) => {}
                    (Some(last), None) if last.what == What::Failed => self.retries += 1,
                    (Some(_), Some(worker)) if *worker == excuses.killed => self.duplicates_explained += 1,
                    (Some(_), Some(_)) if excuses.absences.touch(began_us, event.at_us) => {
                        self.duplicates_of_absence += 1;
                    }
                    (Some(_), _) => self.duplicates_unexplained += 1,
                }
                began_us = event.at_us;
            }
            before = Some(event);
        }
    }

    /// Whether the promise was kept.
    pub(super) const fn is_clean(&self) -> bool {
        self.lost == 0 && self.early == 0 && self.duplicates_unexplained == 0
    }
}

/// Returns the state of each job of these queues.
pub(super) async fn states(client: &Client, queues: &[String]) -> punctual::Result<HashMap<JobId, State>> {
    let mut states = HashMap::new();
    for queue in queues {
        let mut list = List { filter: Filter::all().queue(queue), after: None, limit: 1_000 };
        loop {
            let page = client.list(&list).await?;
            states.extend(page.jobs.iter().map(|job| (job.id, job.state)));
            list.after = page.next;
            if list.after.is_none() {
                break;
            }
        }
    }
    Ok(states)
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "enqueued    {:>6}   = done {} + cancelled {} + dead {} + lost {}",
            self.enqueued, self.done, self.cancelled, self.dead, self.lost
        )?;
        writeln!(f, "lost        {:>6}", self.lost)?;
        writeln!(f, "early       {:>6}", self.early)?;
        writeln!(
            f,
            "duplicates  {:>6}   unexplained, {} explained by the kill",
            self.duplicates_unexplained, self.duplicates_explained
        )?;
        if 0 < self.away_ms {
            let (away, again) = (self.away_ms as f64 / 1_000.0, self.duplicates_of_absence);
            writeln!(f, "store away  {away:>6.1} s, which explains {again} more duplicates")?;
        }
        writeln!(f, "retries     {:>6}   after failed attempts", self.retries)?;
        writeln!(f, "enqueued twice {:>3}   answered as duplicates", self.duplicate_enqueues)?;
        writeln!(f, "{}; without {} starts after the kill", self.lateness_ms, self.after_kill)?;
        writeln!(
            f,
            "{}",
            if self.is_clean() {
                "ok: no job lost, early, or run twice without a reason"
            } else {
                "FAILED: a job was lost, early, or run twice without a reason"
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{super::absence::Absences, *};

    /// Lines of a history: worker, fence, the worker that lost the run before, and the event. The clock advances by itself.
    fn ledger(lines: &[(&str, u64, Option<&str>, What)]) -> Ledger {
        let id = JobId::derived("mail", None, "one");
        let event =
            |(at_us, (worker, fence, taken_from, what)): (u64, &(&str, u64, Option<&str>, What))| Event {
                id,
                worker: (*worker).to_owned(),
                fence: *fence,
                taken_from: taken_from.map(str::to_owned),
                run_at_ms: 0,
                at_us,
                what: *what,
            };
        let events = (0..).zip(lines).map(event).collect();
        let excuses = Excuses { killed: "one".to_owned(), absences: &Absences::default() };
        let starts = Starts { events, ..Starts::new(Path::new("")) };
        Ledger::draw(&HashMap::from([(id, State::Done)]), &[id], 0, &starts, &excuses)
    }

    #[test]
    fn a_run_is_a_retry_or_has_an_excuse_or_is_a_duplicate() {
        use What::{Done, Failed, Start};

        let told = |lines: &[_]| {
            let ledger = ledger(lines);
            (ledger.retries, ledger.duplicates_explained, ledger.duplicates_unexplained)
        };
        let (first, failed) = (("two", 1, None, Start), ("two", 1, None, Failed));
        assert_eq!(told(&[first, ("two", 1, None, Done)]), (0, 0, 0));
        assert_eq!(told(&[first, failed, ("two", 2, None, Start)]), (1, 0, 0));
        // The first run was lost before its start was written down.
        assert_eq!(told(&[("two", 2, Some("one"), Start)]), (0, 0, 0));
        // So was a retry.
        assert_eq!(told(&[first, failed, ("two", 3, Some("one"), Start)]), (0, 1, 0));
        for what in [Start, Done, Failed] {
            assert_eq!(told(&[("one", 1, None, what), ("two", 2, Some("one"), Start)]), (0, 1, 0));
            assert_eq!(told(&[("two", 1, None, what), ("one", 2, Some("two"), Start)]), (0, 0, 1));
        }
        // Nothing asked for another run.
        assert_eq!(told(&[("two", 1, None, Done), ("two", 2, None, Start)]), (0, 0, 1));
    }
}
