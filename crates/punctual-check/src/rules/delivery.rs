//! D1 to D5 and D9: every job that was acknowledged is run or accounted for, and nothing else is run; what ended stays
//! ended; a second run has a reason.

use punctual::{State, limits::POISON_LIMIT};

use super::{
    link::{Close, Link, last_seen},
    tail::Tails,
};
use crate::{
    event::{Deed, Expect, Said},
    history::{Fate, History, Run, Story, Try},
    verdict::Verdict,
};

pub(super) fn judge(
    story: &Story<'_>,
    history: &History,
    links: &[Link<'_>],
    tails: &Tails,
    verdict: &mut Verdict,
) {
    let acked = is_acked(story.tries);
    verdict.attempt += u64::from(!story.tries.is_empty());
    verdict.acked += u64::from(acked);
    verdict.recovered += u64::from(!acked && !story.runs.is_empty());
    verdict.waiting += u64::from(story.rest.iter().any(|job| !job.what.state.is_ended()));
    verdict.dead += u64::from(story.rest.iter().any(|job| job.what.state == State::Dead));

    let is_shaken = tails.shake(story);
    let may_be_gone = tails.shake_all(story.tries);
    no_loss(story, history, acked, may_be_gone, verdict);
    no_ghost(story, history, verdict);
    refused_never_runs(story, verdict);
    ended_stays_ended(story, history, links, is_shaken, verdict);
    duplicates_are_explained(story, links, verdict);
    if !(may_be_gone && story.rest.is_empty()) {
        ends_as_expected(story, history, verdict);
    }

    if 1 < story.rest.len() {
        verdict.broken("D9", Some(story.id), || format!("stands in {} places at rest", story.rest.len()));
    }
    let inserts = story.tries.iter().filter(|t| matches!(t.fate, Fate::Inserted { .. })).count();
    if 1 < inserts && !is_shaken {
        verdict.broken("D3", Some(story.id), || format!("was inserted {inserts} times"));
    }
}

/// The rules that know no single job.
pub(super) fn judge_all(history: &History, referee: bool, verdict: &mut Verdict) {
    for finding in &history.findings {
        verdict.broken("D9", None, || format!("the store's audit: {finding}"));
    }
    let budget = history.harms.iter().map(|harm| harm.leases).fold(0, u64::saturating_add);
    verdict.duplicated.budget = budget;
    let seen = verdict.duplicated.explained + verdict.duplicated.unexplained;
    if budget < seen {
        verdict.broken("D5", None, || format!("{seen} duplicates, but the harm done explains {budget}"));
    }
    let lapsed = history.backs.len() as u64;
    if referee && budget < lapsed {
        verdict.broken("D5", None, || format!("{lapsed} leases lapsed, but the harm done explains {budget}"));
    }
}

/// Whether this very try put the job there, or may have.
const fn may_insert(t: &Try) -> bool {
    matches!(t.fate, Fate::Inserted { .. } | Fate::Unknown)
}

/// Whether somebody was told that the job is, or was, there. `Gone` is no such word beside a refusal, or beside a try of a job
/// with a unique key that was not answered: a repeated call answers so for a job that it did not insert.
fn is_acked(tries: &[Try]) -> bool {
    let any = |fate: fn(&Fate) -> bool| tries.iter().any(|t| fate(&t.fate));
    let met_holder = tries.iter().any(|t| t.fate == Fate::Unknown && t.key.is_some());
    any(|fate| matches!(fate, Fate::Inserted { .. } | Fate::Twin))
        || any(|fate| *fate == Fate::Gone) && !any(|fate| *fate == Fate::Refused) && !met_holder
}

/// D1.
fn no_loss(story: &Story<'_>, history: &History, acked: bool, may_be_gone: bool, verdict: &mut Verdict) {
    if !acked || !history.dump_complete {
        return;
    }
    let settled = story.ends.iter().any(|end| end.state.is_none_or(State::is_ended));
    let given_up = story.backs.iter().any(|back| back.state.is_ended());
    // A cancelled or deleted job may be pruned; so may one that a purge met, or that expired.
    let called_off =
        super::link::acted(story, history, 0, u64::MAX, |deed| matches!(deed, Deed::Cancel | Deed::Delete));
    let swept = story.tries.iter().any(|t| {
        history.may_expire(t)
            || history.purges.get(&t.queue).is_some_and(|spans| spans.iter().any(|s| t.span.from < s.to))
    });
    if !story.rest.is_empty() || settled || given_up || !story.taken.is_empty() || called_off || swept {
        verdict.ok += 1;
    } else if may_be_gone {
        verdict.undone.lost += 1;
    } else {
        verdict.broken("D1", Some(story.id), || {
            format!("was acknowledged, was reserved {} times, and is gone", story.runs.len())
        });
    }
}

/// D2.
fn no_ghost(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    // A `Duplicate` never overwrites the payload, so its own doesn't count.
    let asked_for = |m: u64, sum| {
        story.tries.iter().filter(|t| may_insert(t)).any(|t| t.span.from < m && t.sum == sum)
            || story.acts.iter().any(|act| act.span.from < m && act.deed == Deed::Edit(sum))
            || history.wild.iter().any(|(span, deed)| span.from < m && *deed == Deed::Edit(sum))
    };
    for run in story.runs {
        if story.tries.is_empty() {
            verdict.broken("D2", Some(story.id), || "was reserved, and nobody enqueued it".to_owned());
        } else if !story.tries.iter().all(|t| t.fate == Fate::Refused) && !asked_for(run.span.to, run.row.sum)
        {
            verdict.broken("D2", Some(story.id), || {
                format!("was reserved with a payload that nobody handed over ({})", run.row.sum)
            });
        }
    }
    for start in story.starts {
        match run_of(story, start.fence) {
            Some(run) if run.span.from <= start.m => {
                if run.row.sum != start.sum {
                    verdict.broken("D2", Some(story.id), || "its handler met another payload".to_owned());
                }
            }
            _ => verdict.broken("D2", Some(story.id), || {
                format!("its handler began without a reservation (fence {})", start.fence)
            }),
        }
    }
    for job in story.rest.iter().filter(|_| story.tries.is_empty()) {
        verdict.broken("D2", Some(story.id), || format!("is {}, and nobody enqueued it", job.what.state));
    }
}

fn run_of<'a>(story: &Story<'a>, fence: u64) -> Option<&'a Run> {
    let at = story.runs.binary_search_by_key(&fence, |run| run.row.fence).ok()?;
    story.runs.get(at)
}

/// D3.
fn refused_never_runs(story: &Story<'_>, verdict: &mut Verdict) {
    let may_be_there = story.tries.iter().any(may_insert);
    let met = story.tries.iter().any(|t| t.fate == Fate::Twin);
    let there = met || !(story.runs.is_empty() && story.rest.is_empty() && story.taken.is_empty());
    if !story.tries.is_empty() && !may_be_there && there {
        verdict
            .broken("D3", Some(story.id), || "every enqueue of it was refused, yet it is there".to_owned());
    }
}

/// D4.
fn ended_stays_ended(
    story: &Story<'_>,
    history: &History,
    links: &[Link<'_>],
    is_shaken: bool,
    verdict: &mut Verdict,
) {
    for link in links.iter().filter(|link| !link.retried && !link.undone) {
        let state = match link.close {
            Close::Settled(_, state) => state,
            Close::Reclaimed(back) => back.state,
            Close::MaybeSettled(_) | Close::Hidden | Close::Unexplained => continue,
        };
        if state.is_ended() {
            verdict.broken("D4", Some(story.id), || {
                format!(
                    "was {state} after fence {}, and reserved again (fence {})",
                    link.a.row.fence, link.b.row.fence
                )
            });
        }
    }
    if is_shaken {
        return;
    }
    if let (Some(state), Some(job)) = (last_seen(story, history), story.rest.first())
        && job.what.state != state
    {
        verdict.broken("D4", Some(story.id), || format!("ended {state}, and is {} at rest", job.what.state));
    }
    let popped = story.taken.first().map(|told| told.span);
    if let Some(popped) = popped
        && !super::link::acted(story, history, popped.from, u64::MAX, |deed| deed == Deed::Retry)
        && (1 < story.taken.len() || story.runs.iter().any(|run| popped.before(run.span)))
    {
        verdict.broken("D4", Some(story.id), || "was taken, and came again".to_owned());
    }
}

/// D5.
fn duplicates_are_explained(story: &Story<'_>, links: &[Link<'_>], verdict: &mut Verdict) {
    let mut fences: Vec<_> = story.starts.iter().map(|start| start.fence).collect();
    fences.sort_unstable();
    for pair in fences.windows(2) {
        if pair[0] == pair[1] {
            verdict.duplicated.unexplained += 1;
            verdict.broken("D5", Some(story.id), || format!("began twice under fence {}", pair[0]));
            continue;
        }
        let Some(link) = links.iter().find(|link| link.b.row.fence == pair[1]) else {
            continue; // its start without a reservation is told under D2
        };
        if link.undone && link.is_surprise() {
            verdict.undone.again += 1;
        } else if link.is_ordinary() {
            verdict.retried += 1;
        } else if matches!(link.close, Close::Unexplained) {
            verdict.duplicated.unexplained += 1;
            verdict.broken("D5", Some(story.id), || {
                format!("ran again (fence {}) for no reason in the history", link.b.row.fence)
            });
        } else {
            verdict.duplicated.explained += 1;
        }
    }
}

/// What the drill itself knows about how a job must end, and that everything did end.
fn ends_as_expected(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    let Some(expect) = story.tries.iter().find_map(|t| t.expect) else { return };
    if !history.dump_complete || !is_acked(story.tries) {
        return;
    }
    let rests = story.rest.first().map(|job| &job.what);
    if rests.is_some_and(|job| history.waits_for_clock(job)) {
        return;
    }
    let done = match rests {
        Some(job) => job.state == State::Done,
        // It may have been pruned.
        None => story
            .ends
            .iter()
            .any(|end| end.said == Said::Ack && end.state.is_none_or(|state| state == State::Done)),
    };
    let crashed = rests.is_some_and(|job| {
        job.state == State::Dead
            && job.reason.as_deref() == Some("crashes")
            && POISON_LIMIT <= job.expired_leases
    });
    let right = match expect {
        // Who stands still loses leases, and a job that lost three in a row is taken for the cause.
        Expect::Done => done || crashed && story.backs.iter().any(|back| history.was_stalled(back)),
        Expect::DoneOrCrashes => done || crashed,
        Expect::Crashes => crashed,
    };
    if !right {
        verdict.broken("E", Some(story.id), || format!("must end as {expect:?}, and is {rests:?}"));
    }
}
