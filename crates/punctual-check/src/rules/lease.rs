//! D6, F1, S8, S9: one holder at a time, under numbers that rise; a lease ends once, and is lost only for a reason.

use super::link::{Close, Link, may_have_lapsed};
use crate::{
    history::{History, NEVER, Span, Story},
    verdict::Verdict,
};

pub(super) fn judge(
    story: &Story<'_>,
    history: &History,
    links: &[Link<'_>],
    referee: bool,
    is_shaken: bool,
    verdict: &mut Verdict,
) {
    fences_rise(story, verdict);
    handed_over(story, links, verdict);
    // A lease that is undone is lost, and the one before it stands again; one whose extension is undone ends as it would have.
    if !is_shaken {
        reclaimed_in_time(story, history, verdict);
        one_holder(story, verdict);
        ended_once(story, verdict);
        lost_for_a_reason(story, history, referee, verdict);
    }
    for fence in history.clung_to(story.job) {
        verdict
            .broken("D6", Some(story.id), || format!("its process went on with fence {fence} after its end"));
    }
    for (_, fence) in history.reused_of(story.job) {
        verdict.broken("F1", Some(story.id), || format!("fence {fence} was given to two reservations"));
    }
}

/// F1: of two reservations that surely followed each other, the later has the higher fence.
fn fences_rise(story: &Story<'_>, verdict: &mut Verdict) {
    let mut begun: Vec<_> = story.runs.iter().map(|run| (run.span.from, run.row.fence)).collect();
    let mut answered: Vec<_> = story.runs.iter().map(|run| (run.span.to, run.row.fence)).collect();
    begun.sort_unstable();
    answered.sort_unstable();
    let mut answered = answered.into_iter().peekable();
    let mut highest = None;
    for (from, fence) in begun {
        while let Some((_, earlier)) = answered.next_if(|(to, _)| *to < from) {
            highest = highest.max(Some(earlier));
        }
        if let Some(highest) = highest
            && fence <= highest
        {
            verdict.broken("F1", Some(story.id), || format!("fence {fence} after fence {highest}"));
        }
    }
}

/// D6: no lease is handed out while another one stands.
fn handed_over(story: &Story<'_>, links: &[Link<'_>], verdict: &mut Verdict) {
    let stood = |link: &&Link<'_>| matches!(link.close, Close::Unexplained) && !link.retried && !link.undone;
    for link in links.iter().filter(stood) {
        verdict.broken("D6", Some(story.id), || {
            format!("fence {} was handed out while fence {} stood", link.b.row.fence, link.a.row.fence)
        });
    }
}

/// D6: nobody is told that a lease stands, or settles it, after a newer one was handed out.
fn one_holder(story: &Story<'_>, verdict: &mut Verdict) {
    // The earliest instant at which a reservation above each fence was surely there.
    let superseded: Vec<u64> = {
        let mut earliest = NEVER;
        let mut of: Vec<_> = story
            .runs
            .iter()
            .rev()
            .map(|run| {
                earliest = earliest.min(run.span.to);
                earliest
            })
            .collect();
        of.reverse();
        of
    };
    let newer = |fence: u64, span: Span| {
        let above = story.runs.partition_point(|run| run.row.fence <= fence);
        superseded.get(above).is_some_and(|known| *known < span.from)
    };
    let settled = story.ends.iter().filter(|end| end.state.is_some()).map(|end| (end.fence, end.span));
    for (fence, span) in story.held.iter().map(|told| (told.fence, told.span)).chain(settled) {
        if newer(fence, span) {
            verdict.broken("D6", Some(story.id), || format!("fence {fence} was accepted after a newer one"));
        }
    }
}

/// A lease ends once, and is not held afterwards.
fn ended_once(story: &Story<'_>, verdict: &mut Verdict) {
    let settled = story.ends.iter().filter(|end| end.state.is_some()).map(|end| (end.fence, end.span));
    let mut ends: Vec<(u64, Span)> =
        settled.chain(story.backs.iter().map(|back| (back.fence, back.span))).collect();
    ends.sort_by_key(|(fence, span)| (*fence, span.from));
    for pair in ends.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        verdict.broken("D6", Some(story.id), || format!("fence {} ended twice", pair[0].0));
    }
    for told in story.held {
        if ends.iter().any(|(fence, span)| *fence == told.fence && span.before(told.span)) {
            verdict.broken("D6", Some(story.id), || format!("fence {} was held after its end", told.fence));
        }
    }
}

/// S9: not before its time.
fn reclaimed_in_time(story: &Story<'_>, history: &History, verdict: &mut Verdict) {
    // A heartbeat after the clock went back shortens a lease.
    if history.clock_stepped() {
        return;
    }
    for back in story.backs {
        let run = story.runs.iter().find(|run| run.row.fence == back.fence);
        if let Some(run) = run
            && back.now < run.row.until
        {
            verdict.broken("S9", Some(story.id), || {
                format!("fence {} was reclaimed {} ms early", back.fence, run.row.until - back.now)
            });
        }
    }
}

/// S8: who is told that a lease is lost can find out why.
fn lost_for_a_reason(story: &Story<'_>, history: &History, referee: bool, verdict: &mut Verdict) {
    for lost in story.lost {
        let Some(run) = story.runs.iter().find(|run| run.row.fence == lost.fence) else { continue };
        let before = |fence: u64, span: Span| fence == lost.fence && span.from < lost.span.to;
        let explained = story.ends.iter().any(|end| before(end.fence, end.span))
            || story.backs.iter().any(|back| before(back.fence, back.span))
            || story.runs.iter().any(|run| lost.fence < run.row.fence && run.span.from < lost.span.to)
            || may_have_lapsed(run, history, referee, lost.span.to);
        if !explained {
            verdict.broken("S8", Some(story.id), || format!("fence {} was lost for no reason", lost.fence));
        }
    }
}
