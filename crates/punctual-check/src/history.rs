//! A history as tables: what all the files together say about each job, in the order in which a judge needs it.
//!
//! Files are read line by line; a call and its answer become rows at once. What a process left unanswered becomes rows at
//! the end, when it is known which processes were killed: a call can't take effect after the death of its process.
//! Memory grows with rows, not with text; heartbeats, the most frequent event, cost none.

mod reading;
mod spans;

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
};

use punctual::{JobId, State, job::Scope};

use crate::event::{CallId, Deed, Due, Dumped, Expect, Hex, Line, Reservation, Said};
use reading::Reading;
pub(crate) use spans::{NEVER, NS_PER_MS, Span, Spans, joined};

/// A place in [`History::ids`].
pub(crate) type Job = u32;

/// How long after a process goes on again a lease of it that had lapsed meanwhile may still be reclaimed, in nanoseconds.
const LATE_NEWS: u64 = 1_000_000_000;
/// Two stalls of the machine that are no further apart are one, in nanoseconds.
const STALLS_APART: u64 = 200_000_000;

/// One job of one enqueue.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) job: Job,
    pub(crate) span: Span,
    pub(crate) fate: Fate,
    pub(crate) queue: u32,
    pub(crate) sum: Hex,
    pub(crate) due: Due,
    pub(crate) key: Option<(u32, Scope)>,
    /// Its concurrency key, and how many of that may run.
    pub(crate) concurrency: Option<(u32, u32)>,
    pub(crate) group: Option<u32>,
    pub(crate) expires: Option<Due>,
    pub(crate) expect: Option<Expect>,
    pub(crate) is_tick: bool,
}

/// What became of a [`Try`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Inserted {
        run_at: u64,
    },
    /// The very job was there already.
    Twin,
    /// It was, and its record is gone, or the call was a repeated one that can't tell any more.
    Gone,
    /// Refused, full, or another job stands for it: this id was not inserted.
    Refused,
    Unknown,
}

/// A reservation. Repeated answers of one call are one run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) job: Job,
    /// From the first try of its call, answered or not.
    pub(crate) span: Span,
    /// Who has it: a place in [`History::procs`].
    pub(crate) proc: u32,
    pub(crate) call: CallId,
    /// The store's clock.
    pub(crate) now: u64,
    pub(crate) row: Reservation,
}

/// A lease reclaimed.
#[derive(Clone, Debug)]
pub(crate) struct Back {
    pub(crate) job: Job,
    pub(crate) span: Span,
    pub(crate) fence: u64,
    pub(crate) state: State,
    /// The store's clock.
    pub(crate) now: u64,
}

/// A settlement that was, or may have been, accepted.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) job: Job,
    pub(crate) span: Span,
    pub(crate) fence: u64,
    pub(crate) said: Said,
    /// `None`: unanswered.
    pub(crate) state: Option<State>,
}

/// Something that a call told about a lease: still held, or lost.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) job: Job,
    pub(crate) span: Span,
    pub(crate) fence: u64,
}

/// An action that did, or may have done, something.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    pub(crate) job: Job,
    pub(crate) span: Span,
    pub(crate) deed: Deed,
    pub(crate) sure: Sure,
}

/// How an [`Act`] was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sure {
    Done,
    Requested,
    Unknown,
}

/// A handler that began.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) job: Job,
    pub(crate) m: u64,
    pub(crate) w: u64,
    pub(crate) fence: u64,
    pub(crate) sum: Hex,
}

/// A process that recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proc {
    pub(crate) name: String,
    /// Jobs it may run at once.
    pub(crate) slots: u64,
    /// Publications it may hand out beside them.
    pub(crate) publications: u64,
    /// From its first line to its last, or to its death.
    pub(crate) span: Span,
    /// When it was asked to end. From then on, it has no slot free.
    pub(crate) asked_at: Option<u64>,
    pub(crate) killed: bool,
    /// Whether its death cut something short: a call that it was not answered, or a run.
    pub(crate) was_busy: bool,
}

impl Proc {
    /// Returns how many leases it may have at once.
    fn leases(&self) -> u64 {
        self.slots.saturating_add(self.publications)
    }
}

/// Harm that the nemesis did, or the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Harm {
    /// Until it was over, as far as the processes noticed.
    pub(crate) span: Span,
    /// The most leases that it may have cost: of a long stall of the machine, several of each slot.
    pub(crate) leases: u64,
    /// The only process that it met, as a place in [`History::procs`]; `None`: it met all.
    pub(crate) proc: Option<u32>,
}

/// A change of how jobs are placed in shards.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) span: Span,
    pub(crate) to: String,
}

/// A job at rest.
#[derive(Clone, Debug)]
pub(crate) struct AtRest {
    pub(crate) job: Job,
    pub(crate) what: Dumped,
}

/// All tables, each sorted by job first.
#[derive(Debug, Default)]
pub struct History {
    pub(crate) ids: Vec<JobId>,
    pub(crate) tries: Vec<Try>,
    pub(crate) runs: Vec<Run>,
    /// Runs, by job and fence, whose store was told that they have company, or may have been.
    pub(crate) company: HashSet<(Job, u64)>,
    pub(crate) backs: Vec<Back>,
    pub(crate) ends: Vec<End>,
    pub(crate) held: Vec<Told>,
    pub(crate) lost: Vec<Told>,
    pub(crate) taken: Vec<Told>,
    pub(crate) acts: Vec<Act>,
    pub(crate) starts: Vec<Start>,
    pub(crate) rest: Vec<AtRest>,
    /// Actions that may have met any job: unanswered, and by unique key.
    pub(crate) wild: Vec<(Span, Deed)>,
    /// Unique keys whose holder a later job may have replaced, each with whether such a job expires.
    pub(crate) replaced_keys: HashMap<u32, bool>,
    /// How many of a group may run, by queue.
    pub(crate) group_limits: HashMap<u32, u32>,
    /// By time.
    pub(crate) changes: Vec<Change>,
    /// Queues with a purge, and when.
    pub(crate) purges: HashMap<u32, Vec<Span>>,
    /// Calls that may have reserved, reclaimed or ended jobs without saying which.
    pub(crate) blind: Spans,
    /// When the dump began; `None`: there is none.
    pub(crate) dumped_at: Option<u64>,
    /// Whether its last page is there.
    pub(crate) dump_complete: bool,
    pub(crate) dump_now: u64,
    pub(crate) findings: Vec<String>,
    /// When the nemesis moved the store's clock, by time.
    pub(crate) clock_steps: Vec<u64>,
    /// The wall clock at the beginning of the referee's axis, in nanoseconds since 1970, rounded down by less than a millisecond.
    pub(crate) wall_ns: i128,
    pub(crate) kills: u64,
    /// From just before each kill of the store's server until it was gone.
    pub(crate) server_kills: Vec<Span>,
    /// All harm that was done, by its beginning.
    pub(crate) harms: Vec<Harm>,
    /// From when on there was none.
    pub(crate) healed_at: Option<u64>,
    /// Processes that were stopped for a while.
    pub(crate) frozen: u64,
    /// How often harm of another sort was done.
    pub(crate) harmed: u64,
    /// When the machine stood still for long enough to cost a lease.
    pub(crate) stalls: Vec<Span>,
    /// Kills that cut something short, of processes and of the store's server, and stops that cost a lease.
    pub(crate) hits: u64,
    pub(crate) procs: Vec<Proc>,
    /// Slots that were taken, each with its process.
    pub(crate) taken_slots: Vec<(u32, Span)>,
    /// Heartbeats for a lease by a process that had been told long before that it is gone: `(job, fence)`.
    pub(crate) clung: Vec<(Job, u64)>,
    /// Answers that name the same reservation for two calls: `(job, fence)`.
    pub(crate) reused: Vec<(Job, u64)>,
    pub(crate) events: u64,
    pub(crate) files: u64,
    /// Files that end in the middle of a line: their process was killed while it wrote.
    pub(crate) torn: u64,
}

/// What the history says about one job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Story<'a> {
    pub(crate) job: Job,
    pub(crate) id: JobId,
    /// By time.
    pub(crate) tries: &'a [Try],
    /// By fence.
    pub(crate) runs: &'a [Run],
    /// By fence.
    pub(crate) backs: &'a [Back],
    /// By fence.
    pub(crate) ends: &'a [End],
    pub(crate) held: &'a [Told],
    pub(crate) lost: &'a [Told],
    pub(crate) taken: &'a [Told],
    /// By time.
    pub(crate) acts: &'a [Act],
    /// By time.
    pub(crate) starts: &'a [Start],
    pub(crate) rest: &'a [AtRest],
}

impl History {
    /// Reads files; a folder stands for the `*.ndjson` in it.
    ///
    /// # Errors
    /// When a file can't be read, or a line that is not the torn last one can't be understood.
    pub fn read(paths: &[PathBuf]) -> io::Result<Self> {
        let mut reading = Reading::default();
        for path in paths {
            if path.is_dir() {
                let mut files: Vec<_> = std::fs::read_dir(path)?
                    .map(|entry| entry.map(|e| e.path()))
                    .collect::<Result<_, _>>()?;
                files.retain(|file| file.extension().is_some_and(|e| e == "ndjson"));
                files.sort();
                files.iter().try_for_each(|file| reading.file(file))?;
            } else {
                reading.file(path)?;
            }
        }
        Ok(reading.finish())
    }

    /// Takes over lines that are in memory, one list per process. All of their calls went to one store, without shards: once a
    /// reserve was answered, an earlier one of its instance gives nothing (S3).
    pub fn of_one_store(files: impl IntoIterator<Item = Vec<Line>>) -> Self {
        Reading::of_one_store().files(files)
    }

    /// Copies lines that are in memory: one list per process.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a [Line]>) -> Self {
        Reading::default().files(files.into_iter().map(<[Line]>::to_vec))
    }

    /// The wall clock at an instant of the referee's axis, in Unix milliseconds: at most one too few.
    pub(crate) fn wall_ms(&self, m: u64) -> u64 {
        u64::try_from((i128::from(m) + self.wall_ns) / 1_000_000).unwrap_or_default()
    }

    /// Whether the nemesis moved the store's clock.
    pub(crate) const fn clock_stepped(&self) -> bool {
        !self.clock_steps.is_empty()
    }

    /// Whether a job is of a clock that was ahead, and waits until the clock is there again.
    pub(crate) fn waits_for_clock(&self, job: &Dumped) -> bool {
        self.clock_stepped() && job.state == State::Waiting && self.dump_now < job.run_at
    }

    /// Whether a job may end by itself before it starts.
    pub(crate) fn may_expire(&self, t: &Try) -> bool {
        t.expires.is_some() || t.key.is_some_and(|(key, _)| self.replaced_keys.get(&key) == Some(&true))
    }

    /// The reservation with this number.
    pub(crate) fn run(&self, job: Job, fence: u64) -> Option<&Run> {
        let at = self.runs.binary_search_by_key(&(job, fence), |run| (run.job, run.row.fence)).ok()?;
        self.runs.get(at)
    }

    /// Counts what harm may have cost, and what it hit.
    fn weigh(
        &mut self,
        harmed: &[(Span, u64, Option<String>)],
        frozen: &[(Span, String, bool)],
        stalls: &[(Span, u32)],
        trouble: &[Span],
    ) {
        self.hits = self.procs.iter().filter(|proc| proc.killed && proc.was_busy).count() as u64;
        let at_work = |span: Span| -> u64 {
            // Who was not killed may still have leases after its last line.
            let is = |proc: &&Proc| proc.span.from <= span.to && (!proc.killed || span.from <= proc.span.to);
            self.procs.iter().filter(is).map(Proc::leases).sum()
        };
        let place = |name: &String| (0..).zip(&self.procs).find(|(_, proc)| proc.name == *name);
        // The death of one that holds no leases costs nobody any.
        let kills = (0..).zip(&self.procs).filter(|(_, proc)| proc.killed && 0 < proc.leases());
        let mut harms: Vec<Harm> = kills
            .map(|(at, proc)| Harm {
                span: Span { from: proc.span.to, to: proc.span.to },
                leases: proc.leases(),
                proc: Some(at),
            })
            .collect();
        for kill in &self.server_kills {
            let span = Span { to: self.back_after(kill.to), ..*kill };
            self.hits += u64::from(trouble.iter().any(|call| call.meets(span)));
            harms.push(Harm { span, leases: at_work(*kill), proc: None });
        }
        for (span, name, with_lock) in frozen {
            let Some((at, proc)) = place(name) else { continue };
            self.frozen += 1;
            // It cost nothing unless a lease of that process ended without it.
            let is_hit = self.backs.iter().any(|back| {
                back.span.from <= span.to.saturating_add(LATE_NEWS)
                    && span.from <= back.span.to
                    && self.run(back.job, back.fence).is_some_and(|run| run.proc == at)
            });
            self.hits += u64::from(is_hit);
            harms.push(if *with_lock {
                Harm { span: *span, leases: at_work(*span), proc: None }
            } else {
                Harm { span: *span, leases: proc.leases(), proc: Some(at) }
            });
        }
        self.harmed = harmed.iter().map(|(_, times, _)| times).sum();
        for (span, times, met) in harmed {
            let (leases, proc) = match met {
                Some(name) => match place(name) {
                    Some((at, proc)) => (proc.leases(), Some(at)),
                    None => (at_work(*span), None),
                },
                None => (at_work(*span), None),
            };
            harms.push(Harm { span: *span, leases: leases.saturating_mul(*times), proc });
        }
        // Who was stopped by the nemesis notices that it stood still, too.
        let is_stop = |span: Span, proc: u32| {
            let of = |name| place(name).is_some_and(|(at, _)| at == proc);
            frozen.iter().any(|(stop, name, _)| stop.meets(span) && of(name))
        };
        let stalls = stalls.iter().filter(|(span, proc)| !is_stop(*span, *proc)).map(|(span, _)| *span);
        // Heartbeats go out each third of a lease: a shorter stall costs none.
        let lasts =
            self.runs.iter().map(|run| run.row.lasts.saturating_mul(NS_PER_MS)).min().unwrap_or(NEVER);
        let is_long = |span: &Span| lasts / 2 <= span.to - span.from;
        let stalls: Vec<Span> = joined(stalls.collect(), STALLS_APART).into_iter().filter(is_long).collect();
        for span in &stalls {
            // The next holder of a job may lose its lease in the same stall.
            let times = 1 + (span.to - span.from) / lasts.max(1);
            harms.push(Harm { span: *span, leases: at_work(*span).saturating_mul(times), proc: None });
        }
        self.stalls = stalls;
        // Until the last step, jobs became due at other times than the referee's axis tells.
        let before = |&m: &u64| Harm { span: Span { from: 0, to: m }, leases: 0, proc: None };
        harms.extend(self.clock_steps.iter().map(before));
        harms.sort_by_key(|harm| harm.span.from);
        self.harms = harms;
    }

    /// Whether the machine stood still while this lease, which was reclaimed, was held.
    pub(crate) fn was_stalled(&self, back: &Back) -> bool {
        let Some(run) = self.run(back.job, back.fence) else { return false };
        let held = Span { from: run.span.from, to: back.span.to };
        self.stalls.iter().any(|stall| stall.meets(held))
    }

    /// Returns the parts of a stretch of time in which no harm was done, to any process or to this one.
    pub(crate) fn undisturbed(&self, Span { mut from, to }: Span, proc: Option<u32>) -> Vec<Span> {
        let mut parts = Vec::new();
        for harm in self.harms.iter().take_while(|harm| harm.span.from < to) {
            let is_met = proc.is_none() || harm.proc.is_none() || harm.proc == proc;
            if is_met && from < harm.span.to {
                parts.push(Span { from, to: harm.span.from.max(from) });
                from = harm.span.to;
            }
        }
        parts.push(Span { from, to: to.max(from) });
        parts
    }

    /// When a call was answered that was made after this instant.
    fn back_after(&self, m: u64) -> u64 {
        let runs = self.runs.iter().map(|run| run.span);
        let ends = self.ends.iter().filter(|end| end.state.is_some()).map(|end| end.span);
        let tries = self.tries.iter().filter(|t| matches!(t.fate, Fate::Inserted { .. })).map(|t| t.span);
        runs.chain(ends).chain(tries).filter(|span| m <= span.from).map(|span| span.to).min().unwrap_or(m)
    }

    /// Reservations of a job whose number was given twice.
    pub(crate) fn reused_of(&self, job: Job) -> &[(Job, u64)] {
        let from = self.reused.partition_point(|(other, _)| *other < job);
        let to = self.reused.partition_point(|(other, _)| *other <= job);
        &self.reused[from..to]
    }

    /// Leases of a job that a process went on with.
    pub(crate) fn clung_to(&self, job: Job) -> impl Iterator<Item = u64> {
        let from = self.clung.partition_point(|(other, _)| *other < job);
        self.clung[from..].iter().take_while(move |(other, _)| *other == job).map(|(_, fence)| *fence)
    }

    /// Each job in turn.
    pub(crate) fn stories(&self) -> impl Iterator<Item = Story<'_>> {
        fn next<'a, T>(rows: &mut &'a [T], job: Job, job_of: impl Fn(&T) -> Job) -> &'a [T] {
            let n = rows.iter().take_while(|row| job_of(row) == job).count();
            let (mine, others) = rows.split_at(n);
            *rows = others;
            mine
        }
        let mut tries = &self.tries[..];
        let mut runs = &self.runs[..];
        let mut backs = &self.backs[..];
        let mut ends = &self.ends[..];
        let mut held = &self.held[..];
        let mut lost = &self.lost[..];
        let mut taken = &self.taken[..];
        let mut acts = &self.acts[..];
        let mut starts = &self.starts[..];
        let mut rest = &self.rest[..];
        (0..).zip(&self.ids).map(move |(job, &id)| Story {
            job,
            id,
            tries: next(&mut tries, job, |row| row.job),
            runs: next(&mut runs, job, |row| row.job),
            backs: next(&mut backs, job, |row| row.job),
            ends: next(&mut ends, job, |row| row.job),
            held: next(&mut held, job, |row| row.job),
            lost: next(&mut lost, job, |row| row.job),
            taken: next(&mut taken, job, |row| row.job),
            acts: next(&mut acts, job, |row| row.job),
            starts: next(&mut starts, job, |row| row.job),
            rest: next(&mut rest, job, |row| row.job),
        })
    }
}
