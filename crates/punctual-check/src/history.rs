//! A history as tables: what all the files together say about each job, in the order in which a judge needs it.
//!
//! Files are read line by line; a call and its answer become rows at once. What a process left unanswered becomes rows at
//! the end, when it is known which processes were killed: a call can't take effect after the death of its process.
//! Memory grows with rows, not with text; heartbeats, the most frequent event, cost none.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use punctual::{JobId, Scope, State};

use crate::event::{
    Accepted, Answer, CallId, Deed, Due, Dumped, Effect, Expect, Hex, LeaseId, Line, Op, Reservation,
    Reservations, Said, Wanted, What,
};

/// From just before a call to just after its answer; `to` is [`NEVER`] for what was not answered and may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Later than everything.
pub(crate) const NEVER: u64 = u64::MAX;

impl Span {
    /// Whether this surely took effect earlier than `other`.
    pub(crate) const fn before(self, other: Self) -> bool {
        self.to < other.from
    }
}

/// A place in [`History::ids`].
pub(crate) type Job = u32;

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
    pub(crate) expires: bool,
    pub(crate) expect: Option<Expect>,
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
    pub(crate) span: Span,
    pub(crate) call: CallId,
    /// The store's clock.
    pub(crate) now: u64,
    pub(crate) row: Reservation,
}

/// A lease taken back.
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
    /// Queues with a purge, and when.
    pub(crate) purges: HashMap<u32, Vec<Span>>,
    /// Calls that may have reserved, taken back or ended jobs without saying which.
    pub(crate) blind: Spans,
    /// When the dump began; `None`: there is none.
    pub(crate) dumped_at: Option<u64>,
    /// Whether its last page is there.
    pub(crate) dump_complete: bool,
    pub(crate) dump_now: u64,
    pub(crate) findings: Vec<String>,
    pub(crate) clock_stepped: bool,
    pub(crate) kills: u64,
    /// From just before each kill of the store's server until it was gone.
    pub(crate) server_kills: Vec<Span>,
    /// Σ slots of the killed processes.
    pub(crate) slots_killed: u64,
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

    /// Takes lines that are in memory: one list per process.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a [Line]>) -> Self {
        let mut reading = Reading::default();
        for file in files {
            reading.begin();
            for line in file {
                reading.line(line.clone());
            }
        }
        reading.finish()
    }

    /// Reservations of a job whose number was given twice.
    pub(crate) fn reused_of(&self, job: Job) -> &[(Job, u64)] {
        let from = self.reused.partition_point(|(other, _)| *other < job);
        let to = self.reused.partition_point(|(other, _)| *other <= job);
        &self.reused[from..to]
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

/// Spans that can be asked, in O(log n), whether one of them touches a stretch of time.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// By `from`.
    rows: Vec<Span>,
    /// The latest `to` up to and including each row.
    latest: Vec<u64>,
}

impl Spans {
    pub(crate) fn new(mut rows: Vec<Span>) -> Self {
        rows.sort_unstable_by_key(|span| span.from);
        let latest = rows
            .iter()
            .scan(0, |max, span| {
                *max = span.to.max(*max);
                Some(*max)
            })
            .collect();
        Self { rows, latest }
    }

    /// Whether something may have happened after `from` and before `to`.
    pub(crate) fn touch(&self, from: u64, to: u64) -> bool {
        let n = self.rows.partition_point(|span| span.from < to);
        0 < n && from < self.latest[n - 1]
    }

    /// The first instant from `from` on at which something may have happened.
    pub(crate) fn first_after(&self, from: u64) -> u64 {
        let n = self.rows.partition_point(|span| span.from <= from);
        if 0 < n && from < self.latest[n - 1] {
            from
        } else {
            self.rows.get(n).map_or(NEVER, |span| span.from)
        }
    }
}

/// Builds a [`History`].
#[derive(Default)]
struct Reading {
    history: History,
    jobs: HashMap<JobId, Job>,
    names: HashMap<String, u32>,
    blind: Vec<Span>,
    /// Of the file at hand.
    proc: String,
    pending: HashMap<u64, (u64, Op)>,
    /// The newest proof that a lease was held.
    held: HashMap<(Job, u64), Span>,
    /// Calls without an answer, with their process.
    open: Vec<(String, u64, Op)>,
    slots_of: HashMap<String, u64>,
    killed_at: HashMap<String, u64>,
}

impl Reading {
    fn file(&mut self, path: &Path) -> io::Result<()> {
        self.begin();
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut text = Vec::new();
        for number in 1_u64.. {
            text.clear();
            if file.read_until(b'\n', &mut text)? == 0 {
                break;
            }
            if text.last() != Some(&b'\n') {
                self.history.torn += 1;
                break;
            }
            let line = serde_json::from_slice(&text).map_err(|e| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}:{number}: {e}", path.display()))
            })?;
            self.line(line);
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.close_file();
        self.history.files += 1;
    }

    fn close_file(&mut self) {
        let proc = std::mem::take(&mut self.proc);
        self.open.extend(self.pending.drain().map(|(_, (m, op))| (proc.clone(), m, op)));
    }

    fn line(&mut self, line: Line) {
        self.history.events += 1;
        let Line { m, w, n, what } = line;
        match what {
            What::Open { proc, slots, .. } => {
                self.slots_of.insert(proc.clone(), slots);
                self.proc = proc;
            }
            What::Invoke(op) => {
                self.pending.insert(n, (m, op));
            }
            What::Ok(answer) => {
                if let Some((from, op)) = self.pending.remove(&n) {
                    self.answered(Span { from, to: m }, op, answer);
                }
            }
            What::Fail(_) => {
                if let Some((from, Op::Enqueue { jobs, .. })) = self.pending.remove(&n) {
                    for wanted in jobs {
                        self.tried(Span { from, to: m }, wanted, Fate::Refused);
                    }
                }
            }
            // Stays pending: whoever was not told can't tell when, or whether, it happened.
            What::Info(_) => {
                if let Some((from, op)) = self.pending.remove(&n) {
                    self.open.push((self.proc.clone(), from, op));
                }
            }
            What::Start { id, fence, sum } => {
                let job = self.job(id);
                self.history.starts.push(Start { job, m, w, fence, sum });
            }
            What::End { .. } => {}
            What::Killed { proc } => {
                self.history.kills += 1;
                self.killed_at.insert(proc, m);
            }
            What::ServerKilled { since } => self.history.server_kills.push(Span { from: since, to: m }),
            What::ClockStepped => self.history.clock_stepped = true,
            What::Dump { now, jobs, last } => {
                self.history.dumped_at.get_or_insert(m);
                self.history.dump_complete |= last;
                self.history.dump_now = now;
                for what in jobs {
                    let job = self.job(what.id);
                    self.history.rest.push(AtRest { job, what });
                }
            }
            What::Audit { findings } => self.history.findings.extend(findings),
        }
    }

    fn job(&mut self, id: JobId) -> Job {
        *self.jobs.entry(id).or_insert_with(|| {
            self.history.ids.push(id);
            Job::try_from(self.history.ids.len() - 1).expect("fewer jobs than 2^32 in one history")
        })
    }

    fn name(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.names.len()).expect("fewer names than 2^32 in one history");
        *self.names.entry(name).or_insert(next)
    }

    fn tried(&mut self, span: Span, wanted: Wanted, fate: Fate) {
        let Wanted { id, queue, sum, due, unique, expires, expect } = wanted;
        let (job, queue) = (self.job(id), self.name(queue));
        if fate == Fate::Unknown && unique.is_some() {
            // It may have replaced, or moved, the holder of its key.
            self.history.wild.extend([(span, Deed::Edit(sum)), (span, Deed::Move)]);
        }
        let key = unique.map(|key| (self.name(key.name), key.scope));
        self.history.tries.push(Try { job, span, fate, queue, sum, due, key, expires, expect });
    }

    fn acted(&mut self, span: Span, id: JobId, deed: Deed, sure: Sure) {
        let job = self.job(id);
        self.history.acts.push(Act { job, span, deed, sure });
    }

    fn ended(&mut self, span: Span, run: crate::event::Ended, state: Option<State>) {
        let job = self.job(run.id);
        self.history.ends.push(End { job, span, fence: run.fence, said: run.verdict, state });
    }

    fn holds(&mut self, span: Span, LeaseId(id, fence): LeaseId) {
        let job = self.job(id);
        let newest = self.held.entry((job, fence)).or_insert(span);
        if newest.from < span.from {
            *newest = span;
        }
    }

    fn reserved(&mut self, span: Span, call: CallId, answer: Reservations) {
        for row in answer.jobs {
            let job = self.job(row.id);
            self.history.runs.push(Run { job, span, call, now: answer.now, row });
        }
        for (LeaseId(id, fence), state) in answer.taken_back {
            let job = self.job(id);
            self.history.backs.push(Back { job, span, fence, state, now: answer.now });
        }
    }

    fn answered(&mut self, span: Span, op: Op, answer: Answer) {
        match (op, answer) {
            (Op::Enqueue { jobs, .. }, Answer::Enqueue(answers)) => {
                for (wanted, answer) in jobs.into_iter().zip(answers) {
                    let fate = match answer {
                        Accepted::Inserted { run_at } => Fate::Inserted { run_at },
                        Accepted::Duplicate(id) if id == wanted.id => Fate::Twin,
                        Accepted::Gone(id) if id == wanted.id => Fate::Gone,
                        Accepted::Duplicate(_) | Accepted::Gone(_) | Accepted::Full => Fate::Refused,
                        Accepted::Replaced(id) => {
                            self.acted(span, id, Deed::Edit(wanted.sum), Sure::Done);
                            self.acted(span, id, Deed::Move, Sure::Done);
                            Fate::Refused
                        }
                        Accepted::Rescheduled(id) => {
                            self.acted(span, id, Deed::Move, Sure::Done);
                            Fate::Refused
                        }
                    };
                    self.tried(span, wanted, fate);
                }
            }
            (Op::Reserve { call }, Answer::Reserve(answer)) => self.reserved(span, call, answer),
            (Op::Extend { leases }, Answer::Extend(answers)) => {
                for (lease, held) in leases.into_iter().zip(answers) {
                    match held {
                        Some(true) => self.holds(span, lease),
                        Some(false) => {
                            let job = self.job(lease.0);
                            self.history.lost.push(Told { job, span, fence: lease.1 });
                        }
                        None => {}
                    }
                }
            }
            (Op::Settle { runs, then }, Answer::Settle { states, away, then: batch }) => {
                for (at, (run, state)) in runs.into_iter().zip(states).enumerate() {
                    if state.is_some() || away.contains(&at) {
                        self.ended(span, run, state);
                    } else {
                        let job = self.job(run.id);
                        self.history.lost.push(Told { job, span, fence: run.fence });
                    }
                }
                if let (Some(call), Some(batch)) = (then, batch) {
                    self.reserved(span, call, batch);
                }
            }
            (Op::Take, Answer::Take(ids)) => {
                // It takes leases back first, and doesn't say which.
                self.blind.push(span);
                for id in ids {
                    let job = self.job(id);
                    self.history.taken.push(Told { job, span, fence: 0 });
                }
            }
            (Op::Act { deed, .. }, Answer::Act(effects)) => {
                for effect in effects {
                    match effect {
                        Effect::Done(id) => self.acted(span, id, deed, Sure::Done),
                        Effect::Requested(id) => self.acted(span, id, deed, Sure::Requested),
                        Effect::Refused(..) | Effect::Missed => {}
                    }
                }
            }
            (Op::Purge { queue }, Answer::Purge) => self.purged(span, queue),
            // An answer to another question: as good as none.
            (op, _) => self.unanswered(span, op),
        }
    }

    fn purged(&mut self, span: Span, queue: String) {
        let queue = self.name(queue);
        self.history.purges.entry(queue).or_default().push(span);
    }

    fn unanswered(&mut self, span: Span, op: Op) {
        match op {
            Op::Enqueue { jobs, .. } => {
                for wanted in jobs {
                    self.tried(span, wanted, Fate::Unknown);
                }
            }
            Op::Reserve { .. } | Op::Take => self.blind.push(span),
            Op::Extend { .. } => {}
            Op::Settle { runs, then } => {
                for run in runs {
                    self.ended(span, run, None);
                }
                self.blind.extend(then.map(|_| span));
            }
            Op::Act { deed, targets } => {
                for target in targets {
                    match target {
                        Some(id) => self.acted(span, id, deed, Sure::Unknown),
                        None => self.history.wild.push((span, deed)),
                    }
                }
            }
            Op::Purge { queue } => self.purged(span, queue),
        }
    }

    fn finish(mut self) -> History {
        self.close_file();
        for (proc, from, op) in std::mem::take(&mut self.open) {
            let to = self.killed_at.get(&proc).copied().unwrap_or(NEVER);
            self.unanswered(Span { from, to }, op);
        }
        let mut history = self.history;
        history.slots_killed = self.killed_at.keys().filter_map(|proc| self.slots_of.get(proc)).sum();
        history.blind = Spans::new(self.blind);
        history.tries.sort_by_key(|row| (row.job, row.span.from));
        history.backs.sort_by_key(|row| (row.job, row.fence, row.span.from));
        history.ends.sort_by_key(|row| (row.job, row.fence, row.span.from));
        history.lost.sort_by_key(|row| (row.job, row.fence, row.span.from));
        history.taken.sort_by_key(|row| (row.job, row.span.from));
        history.acts.sort_by_key(|row| (row.job, row.span.from));
        history.starts.sort_by_key(|row| (row.job, row.m));
        history.rest.sort_by_key(|row| row.job);
        history.runs.sort_by_key(|row| (row.job, row.row.fence, row.span.from));
        let mut reused = Vec::new();
        let held = &mut self.held;
        history.runs.dedup_by(|again, first| {
            let same = (again.job, again.row.fence) == (first.job, first.row.fence);
            if same && again.call == first.call {
                // A repeated answer proves that the lease was still current.
                let newest = held.entry((again.job, again.row.fence)).or_insert(again.span);
                if newest.from < again.span.from {
                    *newest = again.span;
                }
            } else if same {
                reused.push((again.job, again.row.fence));
            }
            same
        });
        history.reused = reused;
        history.held = self.held.iter().map(|(&(job, fence), &span)| Told { job, span, fence }).collect();
        history.held.sort_by_key(|row| (row.job, row.fence));
        history
    }
}
