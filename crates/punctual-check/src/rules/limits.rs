//! L1: no more jobs of a concurrency key, or of a group, run at once than its limit. The rule also counts what the history shows: how
//! many limits were reached, and how many keys and groups had jobs on both sides of a change of shards.
//!
//! A run counts from the answer of its reservation to the first call that may have ended it: for so long it surely ran.

use std::collections::HashMap;

use super::{control, link};
use crate::{
    history::{Fate, History, Job, NEVER, Run, Span, Story, Sure, Try},
    verdict::{Kept, Moved, Verdict},
};

/// What limits a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Limiter {
    Key(u32),
    Group(u32),
}

/// All jobs with a limit.
#[derive(Default)]
pub(super) struct Limited {
    runs: Vec<Running>,
    lives: Vec<Life>,
}

/// For how long a job surely ran.
struct Running {
    limiter: Limiter,
    job: Job,
    /// How many of its limiter may run beside each other, this one included.
    most: usize,
    span: Span,
}

/// A job from its enqueue to the first call that may have ended it.
struct Life {
    limiter: Limiter,
    enqueued: Span,
    to: u64,
}

impl Limited {
    /// Takes in one job, nothing of which may be undone.
    pub(super) fn add(&mut self, story: &Story<'_>, history: &History, referee: bool) {
        let Some(inserted) = story.tries.iter().find(|t| matches!(t.fate, Fate::Inserted { .. })) else {
            return;
        };
        for (limiter, most) in limiters(inserted, history) {
            for (i, run) in story.runs.iter().enumerate() {
                let span = Span { from: run.span.to, to: stops(story, history, referee, i, run) };
                if span.from < span.to {
                    self.runs.push(Running { limiter, job: story.job, most, span });
                }
            }
            if !history.may_expire(inserted) {
                let to =
                    control::ended(story).fold(control::left_alone_until(story, history, inserted), u64::min);
                self.lives.push(Life { limiter, enqueued: inserted.span, to });
            }
        }
    }

    pub(super) fn judge(mut self, history: &History, verdict: &mut Verdict) {
        let kept = judge_runs(history, &mut self.runs, verdict);
        verdict.keys = Kept::of(kept.iter().filter(|(limiter, _)| matches!(limiter, Limiter::Key(_))));
        verdict.groups = Kept::of(kept.iter().filter(|(limiter, _)| matches!(limiter, Limiter::Group(_))));
        verdict.moved = history.changes.iter().map(|change| self.moved(change.span, &change.to)).collect();
    }

    /// What had jobs on both sides of a change: one that lived through it, and one that was enqueued after it and before the
    /// end of the other.
    fn moved(&self, change: Span, to: &str) -> Moved {
        let mut through = HashMap::<Limiter, u64>::new();
        for life in self.lives.iter().filter(|life| life.enqueued.before(change) && change.to < life.to) {
            let last = through.entry(life.limiter).or_default();
            *last = life.to.max(*last);
        }
        let is_joined = |limiter: &Limiter, last: u64| {
            let joins = |life: &&Life| change.before(life.enqueued) && life.enqueued.to < last;
            self.lives.iter().filter(joins).any(|life| life.limiter == *limiter)
        };
        through.retain(|limiter, last| is_joined(limiter, *last));
        let keys = through.keys().filter(|limiter| matches!(limiter, Limiter::Key(_))).count() as u64;
        Moved { to: to.to_owned(), keys, groups: through.len() as u64 - keys }
    }
}

/// What limits a job, and to how many.
fn limiters(of: &Try, history: &History) -> impl Iterator<Item = (Limiter, usize)> {
    let key = of.concurrency.map(|(key, most)| (Limiter::Key(key), most));
    let most = history.group_limits.get(&of.queue);
    let group = of.group.zip(most).map(|(group, most)| (Limiter::Group(group), *most));
    key.into_iter().chain(group).map(|(limiter, most)| (limiter, most as usize))
}

/// The first instant at which the run may have ended.
fn stops(story: &Story<'_>, history: &History, referee: bool, i: usize, run: &Run) -> u64 {
    let fence = run.row.fence;
    let ends = story.ends.iter().filter(|end| end.fence == fence).map(|end| end.span.from);
    let backs = story.backs.iter().filter(|back| back.fence == fence).map(|back| back.span.from);
    let next = story.runs.get(i + 1).map(|next| next.span.from);
    // An act takes a lease back that had lapsed.
    let lapses = link::lapses(run, referee);
    let acts = story.acts.iter().filter(|act| act.sure == Sure::Done && lapses < act.span.to);
    let acts = acts.map(|act| act.span.from);
    // By a call that does not say what it took back.
    let hidden = history.blind.first_after(lapses);
    ends.chain(backs).chain(acts).chain(next).fold(hidden, u64::min).min(history.dumped_at.unwrap_or(NEVER))
}

/// L1. Answers for each limiter how many ran at once at most, and how many might.
fn judge_runs(
    history: &History,
    runs: &mut [Running],
    verdict: &mut Verdict,
) -> HashMap<Limiter, (usize, usize)> {
    runs.sort_by_key(|running| (running.limiter, running.span.from));
    let mut kept = HashMap::<Limiter, (usize, usize)>::new();
    let mut beside: Vec<&Running> = Vec::new();
    for running in &*runs {
        beside.retain(|other| other.limiter == running.limiter && running.span.from < other.span.to);
        beside.push(running);
        // A job counts by its own limit, and it is not known which of them started last.
        let most = beside.iter().map(|running| running.most).max().unwrap_or(0);
        let (at_once, may) = kept.entry(running.limiter).or_default();
        (*at_once, *may) = (beside.len().max(*at_once), running.most.max(*may));
        if most < beside.len() {
            let id = history.ids.get(running.job as usize).copied();
            verdict.broken("L1", id, || {
                let name = match running.limiter {
                    Limiter::Key(_) => "concurrency key",
                    Limiter::Group(_) => "group",
                };
                let others = &beside[..beside.len() - 1];
                let others: Vec<_> =
                    others.iter().map(|other| history.ids[other.job as usize].to_string()).collect();
                format!("runs beside {} of its {name}, of which {most} may run at once", others.join(", "))
            });
        }
    }
    kept
}

impl Kept {
    fn of<'a>(kept: impl Iterator<Item = (&'a Limiter, &'a (usize, usize))>) -> Self {
        kept.fold(Self::default(), |all, (_, (at_once, may))| Self {
            number: all.number + 1,
            full: all.full + u64::from(may <= at_once),
            at_once: all.at_once.max(*at_once as u64),
        })
    }
}
