//! T1 to T3: never early, to the millisecond of the store's clock, and on the referee's axis; how late; and never after the expiry.

use super::link::{Close, Link, acted, moves};
use crate::{
    event::{Deed, Due, Said},
    history::{Fate, History, Run, Story},
    verdict::Verdict,
};

pub(super) fn judge(
    story: &Story<'_>,
    history: &History,
    links: &[Link<'_>],
    referee: bool,
    verdict: &mut Verdict,
) {
    for run in story.runs.iter().filter(|run| run.now < run.row.run_at && !is_told_later(run, history)) {
        let early = run.row.run_at - run.now;
        verdict.broken("T1", Some(story.id), || format!("was reserved {early} ms early"));
    }
    first_run(story, history, referee, verdict);
    expired_never_starts(story, history, referee, verdict);
    links.iter().filter(|link| !link.retried && !link.moved && !link.undone).for_each(|link| {
        let asked = match link.close {
            Close::Settled(Said::Retry(due), _) => due,
            Close::Settled(Said::Snooze(ms) | Said::Hold(ms), _) => Due::In(ms),
            _ => return,
        };
        let settled = story.ends.iter().find(|end| end.fence == link.a.row.fence && end.state.is_some());
        let (at, since) = (link.b.now, settled.map_or(0, |end| end.span.from));
        if let Some(early) = too_early(asked, at, link.b.span.to.saturating_sub(since), referee) {
            verdict.broken("T1", Some(story.id), || format!("ran again {early} ms early"));
        }
    });
}

/// Whether the clock was stepped since a reserve: its answer may be lost, and it is answered again by the clock of then.
fn is_told_later(run: &Run, history: &History) -> bool {
    history.clock_steps.iter().any(|&m| run.span.from <= m && m <= run.span.to)
}

/// The first run, against what the enqueue asked for and was promised.
fn first_run(story: &Story<'_>, history: &History, referee: bool, verdict: &mut Verdict) {
    let Some(run) = story.runs.first() else { return };
    let mut inserts = story.tries.iter().filter(|t| matches!(t.fate, Fate::Inserted { .. } | Fate::Unknown));
    let (Some(only), None) = (inserts.next(), inserts.next()) else { return };
    let Fate::Inserted { run_at } = only.fate else { return };
    let by = run.span.to;
    if acted(story, history, only.span.from, by, |deed| moves(deed) || deed == Deed::Retry) {
        return;
    }
    let since = by.saturating_sub(only.span.from);
    if let Some(early) = too_early(only.due, run.now, since, referee).filter(|_| !is_told_later(run, history))
    {
        verdict.broken("T1", Some(story.id), || format!("was reserved {early} ms before the time asked for"));
    } else if run.row.run_at < run_at && run.row.attempt == 1 && run.row.expired_leases == 0 {
        verdict.broken("T1", Some(story.id), || {
            format!("was promised for {run_at}, and due at {}", run.row.run_at)
        });
    }
}

/// T3, by the store's clock. An operator's retry takes the expiry away, and what replaces a job brings another one.
fn expired_never_starts(story: &Story<'_>, history: &History, referee: bool, verdict: &mut Verdict) {
    let Some((first, others)) = story.tries.split_first() else { return };
    let is_replaced = first.key.is_some_and(|(key, _)| history.replaced_keys.contains_key(&key));
    if !referee || is_replaced || others.iter().any(|other| other.expires != first.expires) {
        return;
    }
    for run in story.runs {
        // What was asked for again is told later than it was reserved, and with the newer time.
        let took = run.span.to.saturating_sub(run.span.from) / 1_000_000;
        let reserved = run.now.saturating_sub(took + took.div_ceil(1_000));
        let late = match first.expires {
            // Both readings of the clock, and the sum, may be rounded.
            Some(Due::In(ms)) => {
                reserved.checked_sub(run.row.created_at.saturating_add(ms).saturating_add(2))
            }
            Some(Due::At(t)) => reserved.checked_sub(t),
            Some(Due::Now) | None => None,
        };
        if let Some(late) = late
            && !acted(story, history, 0, run.span.to, |deed| deed == Deed::Retry)
        {
            verdict
                .broken("T3", Some(story.id), || format!("was reserved at least {late} ms past its expiry"));
        }
    }
}

/// By how many milliseconds; `elapsed` is on the referee's axis, from before the promise to after the reservation. Two
/// readings of a clock in whole milliseconds may differ by one, and the system's clock is slewed by up to 0.05 %.
pub(super) fn too_early(due: Due, store_now: u64, elapsed_ns: u64, referee: bool) -> Option<u64> {
    match due {
        Due::Now => None,
        Due::At(t) => (store_now < t).then(|| t - store_now),
        Due::In(ms) => {
            let least = ms.saturating_sub(1 + ms / 1_000);
            let elapsed = elapsed_ns.div_ceil(1_000_000);
            (referee && elapsed < least).then(|| ms - elapsed)
        }
    }
}

/// From due (or enqueued, if that is later) to the handler's start, by the wall clock, in milliseconds.
pub(super) fn lateness(story: &Story<'_>) -> impl Iterator<Item = u64> {
    story.starts.iter().filter_map(|start| {
        let at = story.runs.binary_search_by_key(&start.fence, |run| run.row.fence).ok()?;
        let row = &story.runs.get(at)?.row;
        Some(start.w.saturating_sub(row.run_at.max(row.created_at)))
    })
}
