//! C1 to C5 and U1: an operator's word holds from its answer on, and a unique key has one holder.

use std::time::Duration;

use punctual::job::Scope;

use super::{link::acted, time::too_early};
use crate::{
    event::Deed,
    history::{Act, Fate, History, Job, NEVER, Span, Story, Sure, Try},
    verdict::Verdict,
};

pub(super) fn judge(
    story: &Story<'_>,
    history: &History,
    referee: bool,
    cancel_within: Option<Duration>,
    verdict: &mut Verdict,
) {
    cancelled_never_starts(story, history, verdict);
    rescheduled_waits(story, history, referee, verdict);
    draining_begins_nothing(story, history, verdict);
    if let Some(within) = cancel_within {
        cancel_is_heard(story, history, within, verdict);
    }
}

/// C1, C3: neither after `cancelled`, nor after `requested` once the run that went on has ended.
fn cancelled_never_starts(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    for act in story.acts.iter().filter(|act| act.deed == Deed::Cancel && act.sure != Sure::Unknown) {
        for run in story.runs.iter().filter(|run| act.span.before(run.span)) {
            if !acted(story, history, act.span.from, run.span.to, |deed| deed == Deed::Retry) {
                verdict.broken("C1", Some(story.id), || {
                    format!("its cancel was answered, and it was reserved later (fence {})", run.row.fence)
                });
            }
        }
        // The run that went on when the cancel was requested ends the job, done or cancelled.
        for end in story.ends.iter().filter(|_| act.sure == Sure::Requested) {
            let run = story.runs.iter().find(|run| run.row.fence == end.fence);
            let within = run.is_some_and(|run| run.span.before(act.span)) && act.span.before(end.span);
            if within && end.state.is_some_and(|state| !state.is_ended()) {
                verdict.broken("C1", Some(story.id), || {
                    format!("its cancel was requested, and the end of fence {} did not decide", end.fence)
                });
            }
        }
    }
}

/// C5: a process that was asked to end reserves nothing from then on, and does not begin what a call on its way gives it. A call
/// that is repeated because its answer was lost counts from its first try.
fn draining_begins_nothing(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    for run in story.runs {
        let proc = &history.procs[run.proc as usize];
        let Some(asked_at) = proc.asked_at else { continue };
        let has_begun = || story.starts.iter().any(|start| start.fence == run.row.fence);
        if asked_at < run.span.from || asked_at < run.span.to && has_begun() {
            verdict.broken("C5", Some(story.id), || {
                let what = if asked_at < run.span.from { "was reserved" } else { "began" };
                format!("{what} (fence {}) in {}, which had been asked to end", run.row.fence, proc.name)
            });
        }
    }
}

/// C2: a job that was moved runs no earlier, unless it was moved again.
fn rescheduled_waits(story: &Story<'_>, history: &History, referee: bool, verdict: &mut Verdict) {
    for (i, act) in story.acts.iter().enumerate() {
        let (Deed::Reschedule(due), Sure::Done) = (act.deed, act.sure) else { continue };
        let Some(run) = story.runs.iter().find(|run| act.span.before(run.span)) else { continue };
        let (from, to) = (act.span.from, run.span.to);
        let within = |span: Span| from < span.to && span.from < to;
        let others =
            story.acts.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, act)| (act.span, act.deed));
        let free = others
            .chain(history.wild.iter().copied())
            .any(|(span, deed)| within(span) && (super::link::moves(deed) || deed == Deed::Retry));
        let early = too_early(due, run.now, to.saturating_sub(from), referee);
        if let Some(early) = early.filter(|_| !free) {
            verdict.broken("C2", Some(story.id), || {
                format!("was rescheduled, and reserved {early} ms before its new time")
            });
        }
    }
}

/// C4: a run whose cancel was requested ends soon, unless harm is done to its process.
fn cancel_is_heard(story: &Story<'_>, history: &History, within: Duration, verdict: &mut Verdict) {
    let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    let requested = |act: &&Act| act.deed == Deed::Cancel && act.sure == Sure::Requested;
    for act in story.acts.iter().filter(requested) {
        // An earlier one had ended: nothing is requested of a job that does not run.
        let Some(run) = story.runs.iter().rev().find(|run| run.span.before(act.span)) else { continue };
        let fence = run.row.fence;
        let ends = story.ends.iter().filter(|end| end.fence == fence).map(|end| end.span.from);
        let backs = story.backs.iter().filter(|back| back.fence == fence).map(|back| back.span.from);
        let others = story.runs.iter().filter(|other| fence < other.row.fence).map(|other| other.span.from);
        let gone = history.procs.get(run.proc as usize).map(|proc| proc.span.to);
        // Its holder was told so: the answer of who reclaimed it may be lost.
        let lost = story.lost.iter().filter(|told| told.fence == fence).map(|told| told.span.from);
        let over = ends.chain(backs).chain(lost).chain(others).chain(gone).chain(history.dumped_at).min();
        let goes_on = Span { from: act.span.to, to: over.unwrap_or(NEVER) };
        let longest = history
            .undisturbed(goes_on, Some(run.proc))
            .into_iter()
            .map(|span| span.to - span.from)
            .max()
            .unwrap_or(0);
        if within < longest {
            verdict.broken("C4", Some(story.id), || {
                let ms = longest / 1_000_000;
                format!("its cancel was requested, and fence {fence} went on for {ms} ms, with no harm done")
            });
        }
    }
}

/// For how long a job surely held its unique key.
pub(super) struct Hold {
    key: u32,
    job: Job,
    span: Span,
}

/// From the answer of its enqueue to the first instant at which the key may have been free again.
pub(super) fn hold(story: &Story<'_>, history: &History, referee: bool) -> Option<Hold> {
    let inserted = story.tries.iter().find(|t| matches!(t.fate, Fate::Inserted { .. }))?;
    let (key, scope) = inserted.key?;
    if history.may_expire(inserted) {
        return None;
    }
    let from = inserted.span.to;
    let to = left_alone_until(story, history, inserted);
    let started = story.runs.iter().map(|run| run.span.from).chain(story.taken.iter().map(|t| t.span.from));
    let to = match scope {
        Scope::UntilDone => ended(story).fold(to, u64::min),
        Scope::UntilStart => started.fold(to, u64::min),
        Scope::Window { window_ms } if referee => {
            let least = window_ms.saturating_sub(1 + window_ms / 1_000);
            to.min(inserted.span.from.saturating_add(least.saturating_mul(1_000_000)))
        }
        Scope::Window { .. } => return None,
    };
    (from < to).then_some(Hold { key, job: story.job, span: Span { from, to } })
}

/// The first instant at which something other than a run may have removed a job that this call inserted.
pub(super) fn left_alone_until(story: &Story<'_>, history: &History, inserted: &Try) -> u64 {
    // It was there from some instant of the call on: what ended it may have done so before the answer.
    let since = inserted.span.from;
    let mut to = history.dumped_at.unwrap_or(NEVER).min(history.blind.first_after(since));
    let acts = story.acts.iter().filter(|act| act.sure != Sure::Requested).map(|act| (act.span, act.deed));
    for (span, deed) in acts.chain(history.wild.iter().copied()) {
        if since < span.to && matches!(deed, Deed::Cancel | Deed::Delete) {
            to = to.min(span.from);
        }
    }
    for span in history.purges.get(&inserted.queue).into_iter().flatten().filter(|s| since < s.to) {
        to = to.min(span.from);
    }
    to
}

/// When each call began that ended the job, or may have.
pub(super) fn ended(story: &Story<'_>) -> impl Iterator<Item = u64> {
    story
        .ends
        .iter()
        .filter(|end| end.state.is_none_or(punctual::State::is_ended))
        .map(|end| end.span.from)
        .chain(story.backs.iter().filter(|back| back.state.is_ended()).map(|back| back.span.from))
        .chain(story.taken.iter().map(|told| told.span.from))
}

/// U1: two jobs never hold one key at once.
pub(super) fn judge_holds(history: &History, mut holds: Vec<Hold>, verdict: &mut Verdict) {
    holds.sort_by_key(|hold| (hold.key, hold.span.from));
    let mut last: Option<&Hold> = None;
    for hold in &holds {
        match last {
            Some(held) if held.key == hold.key && hold.span.from < held.span.to => {
                let (id, other) = (history.ids[hold.job as usize], history.ids[held.job as usize]);
                verdict.broken("U1", Some(id), || format!("holds a unique key that job {other} holds"));
                if held.span.to < hold.span.to {
                    last = Some(hold);
                }
            }
            _ => last = Some(hold),
        }
    }
}
