//! D7, D7b, V: what a run's end does to its job: attempts, expired leases, the next instant, the state.

use punctual::{
    State,
    limits::{POISON_LIMIT, SNOOZES_MAX},
};

use super::link::{Close, Link, acted, cancel_asked};
use crate::{
    event::{Deed, Said},
    history::{Back, History, Run, Story},
    verdict::Verdict,
};

pub(super) fn judge(story: &Story<'_>, history: &History, links: &[Link<'_>], verdict: &mut Verdict) {
    poison_is_bounded(story, history, verdict);
    verdicts_are_obeyed(story, history, verdict);
    first_run(story, history, verdict);
    links.iter().filter(|link| !link.retried && !link.undone).for_each(|link| counted(story, link, verdict));
}

/// D7.
fn poison_is_bounded(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    let had_company = |run: &Run| run.row.company || history.company.contains(&(story.job, run.row.fence));
    // A lease that nobody was told of but when it was reclaimed may have had company.
    let is_known = |back: &Back| story.runs.iter().any(|run| run.row.fence == back.fence);
    let may_have_had = |run: &Run| {
        story.runs.iter().any(had_company)
            || story.backs.iter().any(|back| back.fence < run.row.fence && !is_known(back))
    };
    let is_over = |run: &&Run| POISON_LIMIT <= run.row.expired_leases && !may_have_had(run);
    for run in story.runs.iter().filter(is_over) {
        verdict.broken("D7", Some(story.id), || {
            format!("ran after {} expired leases in a row", run.row.expired_leases)
        });
    }
    for back in story.backs {
        let Some(run) = story.runs.iter().find(|run| run.row.fence == back.fence) else { continue };
        let is_last = run.row.max_attempts <= run.row.attempt;
        let is_poison = POISON_LIMIT <= run.row.expired_leases + 1;
        let right = match back.state {
            State::Dead => is_last || (is_poison && !run.row.company),
            State::Waiting => !is_last && (!is_poison || had_company(run)),
            State::Cancelled => cancel_asked(story, history, back.span.to),
            State::Running | State::Done => false,
        };
        if !right {
            verdict.broken("D7", Some(story.id), || {
                let (expired_leases, attempt) = (run.row.expired_leases + 1, run.row.attempt);
                format!("is {} after expired lease {expired_leases} in a row, attempt {attempt}", back.state)
            });
        }
    }
}

/// V: a verdict leads where it says.
fn verdicts_are_obeyed(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    for end in story.ends {
        let Some(state) = end.state else { continue };
        let run = story.runs.iter().find(|run| run.row.fence == end.fence);
        let last = run.map(|run| run.row.max_attempts <= run.row.attempt);
        let right = match (end.said, state) {
            (Said::Ack, _) => state == State::Done,
            (_, State::Cancelled) => end.said == Said::Cancel || cancel_asked(story, history, end.span.to),
            (Said::Retry(_), State::Waiting) => last != Some(true),
            (Said::Retry(_), State::Dead) => last != Some(false),
            (Said::Snooze(_) | Said::Hold(_), State::Dead) => SNOOZES_MAX as usize <= story.ends.len(),
            (Said::Snooze(_) | Said::Hold(_) | Said::Release, State::Waiting) | (Said::Dead, State::Dead) => {
                true
            }
            _ => false,
        };
        if !right {
            verdict.broken("V", Some(story.id), || format!("{:?} led to {state}", end.said));
        }
    }
}

/// D7b: nothing was counted before the first run.
fn first_run(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    let Some(run) = story.runs.first() else { return };
    let begin = story.tries.first().map_or(0, |t| t.span.from);
    let earlier = story.backs.iter().any(|back| back.fence < run.row.fence)
        || history.blind.touch(begin, run.span.to)
        || acted(story, history, 0, run.span.to, |deed| deed == Deed::Retry);
    if !earlier && (run.row.attempt, run.row.expired_leases) != (1, 0) {
        verdict.broken("D7b", Some(story.id), || {
            format!(
                "its first run is attempt {} after {} expired leases",
                run.row.attempt, run.row.expired_leases
            )
        });
    }
}

/// D7b: from run to run.
fn counted(story: &Story<'_>, link: &Link<'_>, verdict: &mut Verdict) {
    let (a, b) = (&link.a.row, &link.b.row);
    let (attempt, expired_leases) = match link.close {
        Close::Settled(Said::Retry(_), _) => (a.attempt + 1, 0),
        Close::Settled(Said::Hold(_), _) => (a.attempt, a.expired_leases),
        Close::Settled(..) => (a.attempt, 0),
        Close::Reclaimed(_) => (a.attempt + 1, a.expired_leases + 1),
        Close::MaybeSettled(_) | Close::Hidden | Close::Unexplained => {
            if b.attempt < a.attempt {
                verdict.broken("D7b", Some(story.id), || {
                    format!("attempt {} follows attempt {}", b.attempt, a.attempt)
                });
            }
            return;
        }
    };
    let right = if link.gap {
        attempt <= b.attempt
    } else {
        (attempt, expired_leases) == (b.attempt, b.expired_leases)
    };
    if !right {
        verdict.broken("D7b", Some(story.id), || {
            format!(
                "fence {} is attempt {} after {} expired leases, and must be {attempt} after {expired_leases}",
                b.fence, b.attempt, b.expired_leases
            )
        });
    }
    if link.gap || link.moved {
        return;
    }
    let due = match link.close {
        Close::Reclaimed(back) => due_after_expired_lease(story, link.a, back, expired_leases),
        Close::Settled(Said::Release, _) => a.run_at,
        _ => return,
    };
    if b.run_at != due {
        verdict.broken("D7b", Some(story.id), || {
            format!("fence {} was due at {}, and must be due at {due}", b.fence, b.run_at)
        });
    }
}

/// S9's arithmetic, written once more.
fn due_after_expired_lease(story: &Story<'_>, run: &Run, back: &Back, expired_leases: u32) -> u64 {
    // Two expired leases cost no pause where a third leaves attempts.
    if expired_leases < 2 || (expired_leases == 2 && run.row.attempt + 1 < run.row.max_attempts) {
        return run.row.run_at;
    }
    let step = u64::from(expired_leases - 1) * run.row.lasts;
    back.now + step + step * u64::from(story.id.low16()) / 65_536
}
