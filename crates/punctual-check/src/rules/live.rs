//! D8: what is due starts, what a dead process held comes back, and nothing is left over.
//!
//! A job waits for nobody's fault while those run that were due before it, while no slot is free anywhere, and while the
//! nemesis does harm. What is left of its wait has a bound, from each harm to the next. So a backlog or a slow disk is no
//! violation, and a worker that sleeps is one.

use std::time::Duration;

use punctual::{State, limits::POISON_LIMIT};

use super::link::{Close, Link};
use crate::{
    event::{Deed, Due, Said},
    history::{Fate, History, Job, NEVER, NS_PER_MS, Span, Story, Sure, joined},
    verdict::Verdict,
};

/// A job, or a lease, that something had to happen to.
pub(super) struct Wait {
    job: Job,
    /// From when it could until it did.
    span: Span,
    /// When a worker had the job; `None`: it is the lease that waits, to be reclaimed.
    reserved: Option<u64>,
}

/// For what this job waited, as far as the history tells when each wait began.
pub(super) fn waits(story: &Story<'_>, history: &History, links: &[Link<'_>]) -> Vec<Wait> {
    let mut waits: Vec<Wait> = story.backs.iter().filter_map(|back| lapsed(story, history, back)).collect();
    for (i, run) in story.runs.iter().enumerate() {
        let since = match i.checked_sub(1).and_then(|before| links.get(before)) {
            None => story
                .tries
                .first()
                .filter(|t| matches!(t.fate, Fate::Inserted { .. }))
                // Nobody knows which of several tries inserted it.
                .filter(|t| story.tries.iter().all(|o| o.fate != Fate::Unknown || t.span.from < o.span.from))
                .filter(|t| !history.blind.touch(t.span.from, run.span.to))
                .map(|t| t.span.to),
            Some(link) if link.gap || link.undone => None,
            Some(link) => match link.close {
                Close::Settled(..) => story
                    .ends
                    .iter()
                    .find(|end| end.fence == link.a.row.fence && end.state.is_some())
                    .map(|end| end.span.to),
                Close::Reclaimed(back) => Some(back.span.to),
                Close::MaybeSettled(_) | Close::Hidden | Close::Unexplained => None,
            },
        };
        let Some(since) = since else { continue };
        // Leases that nobody was told of but when they were reclaimed.
        let ghosts = story.backs.iter().filter(|back| back.fence < run.row.fence).map(|back| back.span.to);
        let since = ghosts.fold(since, u64::max);
        let acts = story.acts.iter().filter(|act| act.sure != Sure::Requested && act.span.from < run.span.to);
        let since = acts.map(|act| act.span.to).fold(since, u64::max);
        let due =
            run.span.to.saturating_sub(run.now.saturating_sub(run.row.run_at).saturating_mul(NS_PER_MS));
        // A worker may hold a suspect for some seconds, and give it back again and again, until another one has ended.
        let is_suspect = POISON_LIMIT <= run.row.expired_leases + 1;
        // It calls the store before the handler of a tick begins, and a call may take long.
        let is_tick = story.tries.iter().any(|t| t.is_tick);
        let start = story.starts.iter().find(|start| start.fence == run.row.fence && !is_suspect && !is_tick);
        let span =
            Span { from: since.max(due), to: start.map_or(run.span.to, |start| start.m.max(run.span.to)) };
        waits.push(Wait { job: story.job, span, reserved: Some(run.span.to) });
    }
    waits
}

/// From when a lease surely had lapsed until it was reclaimed.
fn lapsed(story: &Story<'_>, history: &History, back: &crate::history::Back) -> Option<Wait> {
    let run = history.run(story.job, back.fence)?;
    let lasts = run.row.lasts.saturating_mul(NS_PER_MS);
    let held = story.held.iter().filter(|told| told.fence == back.fence).map(|told| told.span.to);
    let from = held.fold(run.span.to, u64::max).saturating_add(lasts);
    Some(Wait { job: story.job, span: Span { from, to: back.span.to }, reserved: None })
}

/// D8 at rest.
pub(super) fn at_rest(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    for job in story.rest {
        let is_left = match job.what.state {
            State::Running => true,
            State::Waiting => !is_for_later(story, history) && !history.waits_for_clock(&job.what),
            State::Done | State::Dead | State::Cancelled => false,
        };
        if is_left {
            verdict.broken("D8", Some(story.id), || format!("is {} at rest", job.what.state));
        }
    }
}

/// Whether the last thing that was said about when it is due is a time after the dump.
fn is_for_later(story: &Story<'_>, history: &History) -> bool {
    let inserted = story.tries.iter().filter_map(|t| match t.fate {
        Fate::Inserted { run_at } => Some((t.span.from, history.dump_now < run_at)),
        _ => None,
    });
    let moved = story.acts.iter().filter(|act| act.sure == Sure::Done).filter_map(|act| match act.deed {
        Deed::Reschedule(due) => Some((act.span.from, is_after_dump(due, act.span.from, history))),
        Deed::Move | Deed::Retry => Some((act.span.from, false)),
        _ => None,
    });
    let ended = story.ends.iter().filter(|end| end.state == Some(State::Waiting)).map(|end| {
        let due = match end.said {
            Said::Retry(due) => due,
            Said::Snooze(ms) | Said::Hold(ms) => Due::In(ms),
            _ => Due::Now,
        };
        (end.span.from, is_after_dump(due, end.span.from, history))
    });
    inserted.chain(moved).chain(ended).max_by_key(|(m, _)| *m).is_some_and(|(_, is_later)| is_later)
}

fn is_after_dump(due: Due, from: u64, history: &History) -> bool {
    match due {
        Due::Now => false,
        Due::In(ms) => {
            history.dumped_at.is_some_and(|dumped| dumped < from.saturating_add(ms.saturating_mul(NS_PER_MS)))
        }
        Due::At(at) => history.dump_now < at,
    }
}

/// D8 while something could be done about it.
pub(super) fn judge_all(history: &History, mut waits: Vec<Wait>, within: Duration, verdict: &mut Verdict) {
    let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    let open = Open::of(history);
    waits.sort_by_key(|wait| wait.span.from);
    // The latest that somebody came to a job that was due no later.
    let mut busy = 0;
    for wait in waits {
        let from = if wait.reserved.is_some() { wait.span.from.max(busy) } else { wait.span.from };
        let longest = open.longest(history, Span { from, to: wait.span.to });
        if within < longest {
            let id = history.ids.get(wait.job as usize).copied();
            let ms = longest / NS_PER_MS;
            verdict.broken("D8", id, || match wait.reserved {
                Some(_) => {
                    format!("was due, and did not start for {ms} ms, with a slot free and no harm done")
                }
                None => format!("stayed under a lapsed lease for {ms} ms, with a slot free and no harm done"),
            });
        } else {
            busy = busy.max(wait.reserved.unwrap_or(0));
        }
    }
}

/// When some process had a slot free.
struct Open {
    /// Apart from each other, by time.
    spans: Vec<Span>,
    /// How long all before each are together.
    before: Vec<u64>,
}

impl Open {
    fn of(history: &History) -> Self {
        let mut taken = history.taken_slots.clone();
        taken.sort_unstable_by_key(|(proc, span)| (*proc, span.from));
        let mut free = Vec::new();
        for (number, proc) in (0..).zip(&history.procs) {
            let from = taken.partition_point(|(other, _)| *other < number);
            let to = taken.partition_point(|(other, _)| *other <= number);
            let end = proc.asked_at.map_or(proc.span.to, |at| at.min(proc.span.to));
            let open = Span { from: proc.span.from, to: end };
            free.extend(free_of(proc.slots, open, &taken[from..to]));
        }
        let spans = joined(free, 0);
        let before = spans
            .iter()
            .scan(0, |sum, span| {
                let before = *sum;
                *sum += span.to - span.from;
                Some(before)
            })
            .collect();
        Self { spans, before }
    }

    /// For how long up to this instant.
    fn until(&self, m: u64) -> u64 {
        let Some(at) = self.spans.partition_point(|span| span.from < m).checked_sub(1) else { return 0 };
        self.before[at] + m.min(self.spans[at].to) - self.spans[at].from
    }

    /// For how long at most between one harm and the next.
    fn longest(&self, history: &History, span: Span) -> u64 {
        let of = |part: Span| self.until(part.to).saturating_sub(self.until(part.from));
        history.undisturbed(span, None).into_iter().map(of).max().unwrap_or(0)
    }
}

/// When a process was open for jobs and had fewer than slots. Its last runs may end later.
fn free_of(slots: u64, open: Span, taken: &[(u32, Span)]) -> Vec<Span> {
    if slots == 0 || open.to <= open.from || open.from == NEVER {
        return Vec::new();
    }
    let mut changes: Vec<(u64, i64)> =
        taken.iter().flat_map(|(_, span)| [(span.from, 1), (span.to.max(span.from), -1)]).collect();
    changes.sort_unstable();
    let (mut free, mut since, mut count) = (Vec::new(), Some(open.from), 0);
    for (m, change) in changes {
        count += change;
        let is_full = slots.cast_signed() <= count;
        match since {
            Some(from) if is_full => {
                let to = m.min(open.to);
                free.extend((from < to).then_some(Span { from, to }));
                since = None;
            }
            None if !is_full => since = Some(m),
            _ => {}
        }
    }
    free.extend(since.filter(|from| *from < open.to).map(|from| Span { from, to: open.to }));
    free
}
