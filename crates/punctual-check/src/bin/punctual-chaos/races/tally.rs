//! Who won each race, by what was answered to both sides and what became of the job; and what does not agree.
//!
//! Knows nothing of a store. An answer that a killed worker did not get is taken for anything that it may have been.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, fs,
    path::Path,
};

use punctual::{JobId, JobRecord, State};
use punctual_check::{
    Verdict, Violation, Word,
    event::{Answer, Deed, Effect, Line, Op, Reservations, Said, What},
};
use serde::Serialize;

use super::{Race, Sort};
use crate::{drill::Outcome, jobs};

/// The rule that is shown.
const RULE: &str = "S12";
/// Violations that are told in full.
const TOLD_MAX: usize = 10;
/// Calls that may be on their way at once, and more.
const CALLS_MAX: usize = 200;
/// How far the store's clock may be from that of a process on the same machine: both are rounded down.
const CLOCKS_DIFFER_MS: u64 = 2;

/// From just before a call to just after its answer, on the axis that all processes share.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    const fn meets(self, other: Self) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// An action and its answer.
#[derive(Clone, Copy, Debug)]
struct Act {
    span: Span,
    /// The wall clock at the call and at its answer, in milliseconds.
    wall_ms: (u64, u64),
    told: Effect,
}

/// A reservation, with its end as far as somebody was told of it.
#[derive(Clone, Debug, Default)]
struct Lease {
    /// `None`: only its end is known.
    given: Option<Given>,
    ends: Vec<End>,
}

/// What a reserve answered.
#[derive(Clone, Copy, Debug)]
struct Given {
    span: Span,
    /// The store's clock.
    now: u64,
    run_at: u64,
    is_first: bool,
}

/// A settlement, or a lease reclaimed.
#[derive(Clone, Copy, Debug)]
struct End {
    span: Span,
    is_ack: bool,
    /// `None`: it was not answered.
    state: Option<State>,
}

/// All that is known of one job.
#[derive(Debug, Default)]
struct Story {
    cancel: Option<Act>,
    moved: Option<Act>,
    /// By fence.
    leases: BTreeMap<u64, Lease>,
}

/// Who won a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Winner {
    /// The cancel: it never started.
    Cancel,
    /// The reschedule: it started at its new time.
    Move,
    /// The reschedule over the start, and the cancel over what was left.
    MoveThenCancel,
    /// The start; the cancel was requested, and the run's ack won.
    RequestThenAck,
    /// The start; the cancel was requested, and obeyed at the run's end.
    RequestThenCancel,
    /// The start, and the end too: what came later was refused.
    End,
    /// The start, but the run failed or was killed, and the job was met between two runs.
    BetweenRuns,
}

impl Winner {
    /// Whether the job did not start when it was due.
    const fn is_before_start(self) -> bool {
        matches!(self, Self::Cancel | Self::Move | Self::MoveThenCancel)
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled_before_start",
            Self::Move => "rescheduled_before_start",
            Self::MoveThenCancel => "rescheduled_then_cancelled",
            Self::RequestThenAck => "cancel_requested_then_done",
            Self::RequestThenCancel => "cancel_requested_then_cancelled",
            Self::End => "started_and_action_refused",
            Self::BetweenRuns => "started_and_met_between_runs",
        }
    }
}

/// How often each side was first.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sides {
    acted_first: u32,
    acted_late: u32,
}

/// What all races came to.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tally {
    races: u32,
    winners: BTreeMap<&'static str, u32>,
    sides: BTreeMap<&'static str, Sides>,
    /// Races in which the calls of both sides were on their way at the same time.
    at_once: u32,
    #[serde(skip)]
    broken: Vec<(JobId, String)>,
}

/// What all processes recorded.
#[derive(Default)]
struct Records {
    stories: HashMap<JobId, Story>,
    /// Reserves by their answer: when, and at which time of the store.
    reserves: Vec<(Span, u64)>,
    /// Calls of workers without an answer: they may have reserved or reclaimed.
    hidden: Vec<Span>,
}

impl Tally {
    /// Judges each race, and counts its winner.
    pub(super) fn of(dir: &Path, jobs: u32, begin_ms: u64, records: &[JobRecord]) -> Outcome<Self> {
        let all = Records::read(dir)?;
        let records: HashMap<JobId, &JobRecord> = records.iter().map(|job| (job.id, job)).collect();
        let mut tally = Self::default();
        for race in (1..=jobs).map(Race::of) {
            let id = jobs::id(race.n);
            let (Some(story), Some(record)) = (all.stories.get(&id), records.get(&id)) else {
                tally.broken.push((id, "nobody raced for it, or it is gone".to_owned()));
                continue;
            };
            tally.races += 1;
            match all.winner(race, begin_ms, story, record) {
                Ok(winner) => {
                    *tally.winners.entry(winner.text()).or_default() += 1;
                    let (sort, side) = match race.sort {
                        Sort::Cancel => ("cancel_at_start", winner.is_before_start()),
                        Sort::Move => ("reschedule_at_start", winner.is_before_start()),
                        Sort::Both => ("cancel_and_reschedule_at_start", winner.is_before_start()),
                        Sort::End => ("cancel_at_end", !matches!(winner, Winner::End | Winner::BetweenRuns)),
                    };
                    let sides = tally.sides.entry(sort).or_default();
                    *(if side { &mut sides.acted_first } else { &mut sides.acted_late }) += 1;
                    tally.at_once += u32::from(all.is_at_once(race.due_ms(begin_ms), story));
                }
                Err(problem) => tally.broken.push((id, problem)),
            }
        }
        Ok(tally)
    }

    /// Adds to the verdict what is broken, or that nothing was shown.
    pub(super) fn tell(&self, verdict: &mut Verdict) {
        if !self.broken.is_empty() {
            verdict.rules.insert(RULE, self.broken.len() as u64);
            let told = self.broken.iter().take(TOLD_MAX);
            verdict.violations.extend(told.map(|(id, detail)| Violation {
                rule: RULE,
                id: Some(*id),
                detail: detail.clone(),
            }));
            verdict.verdict = Word::Invalid;
        } else if !self.is_close() && verdict.verdict == Word::Valid {
            eprintln!("one side won all of its races, or no two calls met: nothing is shown");
            verdict.verdict = Word::Vacuous;
        }
    }

    /// Whether each side won some of each sort, and calls met.
    fn is_close(&self) -> bool {
        let requested = [Winner::RequestThenAck, Winner::RequestThenCancel];
        0 < self.at_once
            && self.sides.len() == 4
            && self.sides.values().all(|sides| 0 < sides.acted_first && 0 < sides.acted_late)
            && requested.iter().all(|winner| self.winners.contains_key(winner.text()))
    }
}

impl fmt::Display for Tally {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { races, at_once, broken, .. } = self;
        writeln!(
            f,
            "{races} races, {at_once} with both calls on their way at once, {} broken",
            broken.len()
        )?;
        for (sort, Sides { acted_first, acted_late }) in &self.sides {
            writeln!(f, "  {sort:<32}{acted_first:>6} first {acted_late:>6} late")?;
        }
        for (winner, count) in &self.winners {
            writeln!(f, "  {winner:<32}{count:>6}")?;
        }
        Ok(())
    }
}

// ── what one race came to ──

impl Records {
    /// The one winner, if all answers, runs and the job as it is now agree on it.
    fn winner(&self, race: Race, begin_ms: u64, story: &Story, record: &JobRecord) -> Result<Winner, String> {
        let expected = match race.sort {
            Sort::Cancel | Sort::End => (true, false),
            Sort::Move => (false, true),
            Sort::Both => (true, true),
        };
        if (story.cancel.is_some(), story.moved.is_some()) != expected {
            return Err("a racer was not answered".to_owned());
        }
        if let Some(cancel) = story.cancel {
            self.cancel_agrees(story, cancel, record)?;
        }
        if let Some(moved) = story.moved {
            self.move_agrees(story, moved, race.due_ms(begin_ms), race.away_ms(begin_ms), record)?;
        }
        let told = |act: Option<Act>| act.map(|act| act.told);
        let is_done = |act: Option<Act>| matches!(told(act), Some(Effect::Done(_)));
        // A reservation under the time that is raced for.
        let due = race.due_ms(begin_ms);
        let has_started =
            story.leases.values().any(|lease| lease.given.is_none_or(|given| given.run_at == due));
        let winner = match (told(story.cancel), is_done(story.moved)) {
            (Some(Effect::Done(_)), _) if has_started => Winner::BetweenRuns,
            (Some(Effect::Done(_)), true) => Winner::MoveThenCancel,
            (Some(Effect::Done(_)), false) => Winner::Cancel,
            (Some(Effect::Requested(_)), _) if record.state == State::Done => Winner::RequestThenAck,
            (Some(Effect::Requested(_)), _) => Winner::RequestThenCancel,
            (_, true) if has_started => Winner::BetweenRuns,
            (_, true) => Winner::Move,
            (_, false) => Winner::End,
        };
        if !winner.is_before_start() && !has_started {
            return Err(format!("{winner:?}, and yet nobody started it: it has no winner"));
        }
        Ok(winner)
    }

    /// What the cancel was told, against all else.
    fn cancel_agrees(&self, story: &Story, act: Act, record: &JobRecord) -> Result<(), String> {
        let is_state = |state| record.state == state;
        match act.told {
            Effect::Done(_) => {
                if !is_state(State::Cancelled) {
                    return Err(format!("was cancelled, and is {}", record.state));
                }
                self.waited(story.leases.values(), act).map_err(|fault| format!("cancelled, and {fault}"))
            }
            Effect::Requested(_) => {
                ran(story, act).map_err(|fault| format!("cancel requested, and {fault}"))?;
                if story.leases.values().any(|lease| lease.given.is_some_and(|g| act.span.to < g.span.from)) {
                    return Err("cancel requested, and it was reserved once more".to_owned());
                }
                let acked = |end: &End| end.is_ack && end.state.is_none_or(|state| state == State::Done);
                let mut ends = story.leases.values().flat_map(|lease| &lease.ends);
                let agrees = match record.state {
                    State::Done => ends.any(acked),
                    State::Cancelled => !ends.any(|end| end.state == Some(State::Done)),
                    _ => false,
                };
                if agrees { Ok(()) } else { Err(format!("cancel requested, and it is {}", record.state)) }
            }
            Effect::Refused(_, state) => {
                let right = state.is_ended() && state != State::Cancelled && is_state(state);
                if !right {
                    return Err(format!("cancel refused since it was {state}, and it is {}", record.state));
                }
                ended(story, act).map_err(|fault| format!("cancel refused, and {fault}"))
            }
            Effect::Missed => Err("the cancel found no job".to_owned()),
        }
    }

    /// What the reschedule was told, against all else.
    fn move_agrees(
        &self,
        story: &Story,
        act: Act,
        due: u64,
        away: u64,
        record: &JobRecord,
    ) -> Result<(), String> {
        let given = story.leases.values().filter_map(|lease| lease.given);
        match act.told {
            Effect::Done(_) => {
                // Of whose reservation nobody was told it may have come behind the action, if some such did.
                let may_be_late = self.is_hidden(act.span.from, u64::MAX);
                let away = moved_to(story, act, due, away, record);
                let is_early = |lease: &&Lease| lease.given.map_or(!may_be_late, |given| given.now < away);
                let early = story.leases.values().filter(is_early);
                self.waited(early, act).map_err(|fault| format!("rescheduled, and {fault}"))?;
                if let Some(cancel) = story.cancel
                    && matches!(cancel.told, Effect::Done(_))
                    && cancel.span.to < act.span.from
                {
                    return Err("rescheduled after it was cancelled".to_owned());
                }
                let mut late = given.filter(|given| away <= given.now && given.is_first);
                if late.any(|given| given.run_at != away) {
                    return Err("rescheduled, and it ran under another time".to_owned());
                }
                if story.leases.is_empty() && record.run_at.as_ms() != away {
                    return Err("rescheduled, and its time is another one".to_owned());
                }
                Ok(())
            }
            Effect::Refused(_, state) => {
                if record.run_at.as_ms() == away || given.clone().any(|given| given.run_at == away) {
                    return Err("reschedule refused, and it was moved".to_owned());
                }
                if given.clone().any(|given| given.is_first && given.run_at != due) {
                    return Err("reschedule refused, and it ran under another time".to_owned());
                }
                match state {
                    State::Running => {
                        ran(story, act).map_err(|fault| format!("reschedule refused, and {fault}"))
                    }
                    State::Cancelled => {
                        let is_so = story.cancel.is_some_and(|cancel| cancel.span.from < act.span.to);
                        let is_so = is_so && record.state == state;
                        if is_so { Ok(()) } else { Err("refused as cancelled, before it was".to_owned()) }
                    }
                    _ if record.state != state => {
                        Err(format!("reschedule refused since it was {state}, and it is {}", record.state))
                    }
                    _ => ended(story, act).map_err(|fault| format!("reschedule refused, and {fault}")),
                }
            }
            Effect::Requested(_) | Effect::Missed => {
                Err("the reschedule was not answered as such".to_owned())
            }
        }
    }

    /// Each of the leases must have ended, and left the job waiting, before the action was answered.
    fn waited<'a>(&self, leases: impl Iterator<Item = &'a Lease>, act: Act) -> Result<(), String> {
        for lease in leases {
            let given = lease.given.map_or(Span::default(), |given| given.span);
            let is_back = |end: &End| {
                end.span.from < act.span.to && end.state.is_none_or(|state| state == State::Waiting)
            };
            if !lease.ends.iter().any(is_back) && !self.is_hidden(given.from, act.span.to) {
                return Err("it was reserved: two winners".to_owned());
            }
        }
        Ok(())
    }

    /// Whether a worker that was killed may have done something between these that nobody was told of.
    fn is_hidden(&self, from: u64, to: u64) -> bool {
        self.hidden.iter().any(|span| span.meets(Span { from, to }))
    }

    /// Whether an action and what it raced with were on their way at once: the reserve or the end of a run of this job; or, of a
    /// job that never ran, a reserve that came back without it when it was due.
    fn is_at_once(&self, due: u64, story: &Story) -> bool {
        [story.cancel, story.moved].into_iter().flatten().any(|act| {
            let mut own = story.leases.values().flat_map(|lease| {
                lease.given.map(|given| given.span).into_iter().chain(lease.ends.iter().map(|end| end.span))
            });
            let until = self.reserves.partition_point(|(span, _)| span.from < act.span.to);
            let mut near = self.reserves[..until].iter().rev().take(CALLS_MAX);
            let came_back = |(span, now): &(Span, u64)| due <= *now && span.meets(act.span);
            own.any(|span| span.meets(act.span)) || story.leases.is_empty() && near.any(came_back)
        })
    }
}

/// When a job is due that was moved: at the time that was asked for, or when it was asked, if that was later.
fn moved_to(story: &Story, act: Act, due: u64, away: u64, record: &JobRecord) -> u64 {
    let given = story.leases.values().filter_map(|lease| lease.given.filter(|given| given.is_first));
    let at = given.map(|given| given.run_at).find(|run_at| *run_at != due).unwrap_or(record.run_at.as_ms());
    let (asked, told) = act.wall_ms;
    let earliest = away.max(asked.saturating_sub(CLOCKS_DIFFER_MS));
    if (earliest..=told).contains(&at) { at } else { earliest }
}

/// A run must have been going on that may not have ended before the action began.
fn ran(story: &Story, act: Act) -> Result<(), String> {
    let may_run = |lease: &Lease| {
        let began = lease.given.is_none_or(|given| given.span.from < act.span.to);
        let ended = lease.ends.iter().any(|end| end.state.is_some() && end.span.to < act.span.from);
        began && !ended
    };
    if story.leases.values().any(may_run) { Ok(()) } else { Err("nobody ran it".to_owned()) }
}

/// A run must have ended before the action was answered.
fn ended(story: &Story, act: Act) -> Result<(), String> {
    let mut ends = story.leases.values().flat_map(|lease| &lease.ends);
    let has_ended = ends.any(|end| end.span.from < act.span.to);
    if has_ended { Ok(()) } else { Err("no run of it had ended".to_owned()) }
}

// ── what was recorded ──

impl Records {
    fn read(dir: &Path) -> Outcome<Self> {
        let (mut all, mut open, mut killed) = (Self::default(), Vec::new(), HashMap::new());
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "ndjson") {
                all.file(&fs::read_to_string(path)?, &mut open, &mut killed)?;
            }
        }
        for (proc, from, op) in open {
            let to = killed.get(&proc).copied().unwrap_or(u64::MAX);
            all.unanswered(Span { from, to }, op);
        }
        all.reserves.sort_by_key(|(span, _)| span.from);
        Ok(all)
    }

    fn file(
        &mut self,
        text: &str,
        open: &mut Vec<(String, u64, Op)>,
        killed: &mut HashMap<String, u64>,
    ) -> Outcome<()> {
        let (mut proc_here, mut pending) = (String::new(), HashMap::new());
        // What stands behind the last end of a line is half of one.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let Line { m, w, n, what } = serde_json::from_str(line)?;
            match what {
                What::Open { proc, .. } => proc_here = proc,
                What::Killed { proc } => {
                    killed.insert(proc, m);
                }
                What::Invoke(op) => {
                    pending.insert(n, (m, w, op));
                }
                What::Ok(answer) => {
                    if let Some((from, asked, op)) = pending.remove(&n) {
                        self.answered(Span { from, to: m }, (asked, w), op, answer);
                    }
                }
                What::Fail(_) => {
                    pending.remove(&n);
                }
                _ => {}
            }
        }
        open.extend(pending.into_values().map(|(from, _, op)| (proc_here.clone(), from, op)));
        Ok(())
    }

    fn answered(&mut self, span: Span, wall_ms: (u64, u64), op: Op, answer: Answer) {
        match (op, answer) {
            (Op::Reserve { .. }, Answer::Reserve(batch)) => self.reserved(span, &batch),
            (Op::Settle { runs, .. }, Answer::Settle { states, away, then }) => {
                for (at, (run, state)) in runs.into_iter().zip(states).enumerate() {
                    if state.is_some() || away.contains(&at) {
                        self.end(run.id, run.fence, End { span, is_ack: run.verdict == Said::Ack, state });
                    }
                }
                if let Some(batch) = then {
                    self.reserved(span, &batch);
                }
            }
            (Op::Act { deed, targets }, Answer::Act(effects)) => {
                for (target, told) in targets.into_iter().zip(effects) {
                    let Some(id) = target else { continue };
                    let story = self.stories.entry(id).or_default();
                    let act = Some(Act { span, wall_ms, told });
                    match deed {
                        Deed::Cancel => story.cancel = act,
                        _ => story.moved = act,
                    }
                }
            }
            _ => {}
        }
    }

    fn reserved(&mut self, span: Span, batch: &Reservations) {
        self.reserves.push((span, batch.now));
        for row in &batch.jobs {
            let is_first = row.attempt == 1 && row.expired_leases == 0;
            let given = Given { span, now: batch.now, run_at: row.run_at, is_first };
            self.lease(row.id, row.fence).given.get_or_insert(given);
        }
        for (lease, state) in &batch.reclaimed {
            self.end(lease.0, lease.1, End { span, is_ack: false, state: Some(*state) });
        }
    }

    fn unanswered(&mut self, span: Span, op: Op) {
        match op {
            Op::Reserve { .. } => self.hidden.push(span),
            Op::Settle { runs, then } => {
                for run in runs {
                    let end = End { span, is_ack: run.verdict == Said::Ack, state: None };
                    self.end(run.id, run.fence, end);
                }
                self.hidden.extend(then.map(|_| span));
            }
            _ => {}
        }
    }

    fn lease(&mut self, id: JobId, fence: u64) -> &mut Lease {
        self.stories.entry(id).or_default().leases.entry(fence).or_default()
    }

    fn end(&mut self, id: JobId, fence: u64, end: End) {
        self.lease(id, fence).ends.push(end);
    }
}
