//! How one run of a job gave way to the next: what all rules about order and counting stand on.

use punctual::State;

use super::tail::Tails;
use crate::{
    event::{Deed, Said},
    history::{Back, History, NEVER, Run, Story, Sure},
};

/// Why a lease ended before the job's next reservation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Close<'a> {
    /// By its holder, who was told so.
    Settled(Said, State),
    /// It was reclaimed, and some call was told so.
    Reclaimed(&'a Back),
    /// Its holder tried to end it, and was not answered.
    MaybeSettled(Said),
    /// A call that was not answered may have taken it back, or reserved and lost the job in between.
    Hidden,
    /// For no reason in the history.
    Unexplained,
}

/// Two reservations of a job that follow each other, by fence.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is asked for apart from the others")]
pub(super) struct Link<'a> {
    pub(super) a: &'a Run,
    pub(super) b: &'a Run,
    pub(super) close: Close<'a>,
    /// Whether reservations that nobody was told of may lie between: then counts prove little.
    pub(super) gap: bool,
    /// Whether an operator may have let the job run again in between.
    pub(super) retried: bool,
    /// Whether somebody may have moved the job in time in between.
    pub(super) moved: bool,
    /// Whether the first run, or what ended it, may be undone.
    pub(super) undone: bool,
}

impl Link<'_> {
    /// Whether the second run was asked for by the verdict on the first, or by an operator.
    pub(super) fn is_ordinary(&self) -> bool {
        match self.close {
            _ if self.retried => true,
            Close::Settled(..) => true,
            Close::MaybeSettled(said) => goes_on(said),
            Close::Reclaimed(_) | Close::Hidden | Close::Unexplained => false,
        }
    }

    /// Whether nothing in the history asks for the second run.
    pub(super) fn is_surprise(&self) -> bool {
        let ended = match self.close {
            Close::Settled(_, state) => state.is_ended(),
            Close::Reclaimed(back) => back.state.is_ended(),
            Close::MaybeSettled(_) | Close::Hidden => false,
            Close::Unexplained => true,
        };
        ended && !self.retried
    }
}

/// All links of a job.
pub(super) fn links<'a>(story: &Story<'a>, history: &History, tails: &Tails, referee: bool) -> Vec<Link<'a>> {
    story.runs.windows(2).map(|pair| link(story, history, tails, referee, &pair[0], &pair[1])).collect()
}

/// Whether somebody who does not tell may have taken the lease of a run back before `to`: not before it lapsed.
pub(super) fn may_have_lapsed(run: &Run, history: &History, referee: bool, to: u64) -> bool {
    let from = lapses(run, referee);
    from < to && history.blind.touch(from, to)
}

/// The first instant at which the lease of a run may have lapsed.
pub(super) fn lapses(run: &Run, referee: bool) -> u64 {
    let lasts = run.row.until.saturating_sub(run.now);
    let surely = if referee { lasts.saturating_sub(1 + lasts / 1_000) } else { 0 };
    run.span.from.saturating_add(surely.saturating_mul(1_000_000))
}

fn link<'a>(
    story: &Story<'a>,
    history: &History,
    tails: &Tails,
    referee: bool,
    a: &'a Run,
    b: &'a Run,
) -> Link<'a> {
    let (from, to) = (a.span.from, b.span.to);
    let lapsed = lapses(a, referee);
    // An action that is done proves that the job did not run any more. It takes a lapsed lease back first, and does not say so.
    let by_act =
        story.acts.iter().any(|act| act.sure == Sure::Done && lapsed < act.span.to && act.span.from < to);
    let hidden = by_act || may_have_lapsed(a, history, referee, to);
    // A lease that was reclaimed and that nobody was told of.
    let ghost = story.backs.iter().any(|back| a.row.fence < back.fence && back.fence < b.row.fence);
    let ended = story.ends.iter().filter(|end| end.fence == a.row.fence);
    let back = story.backs.iter().find(|back| back.fence == a.row.fence);
    let mut answers = ended
        .clone()
        .map(|end| end.span)
        .chain(
            story
                .backs
                .iter()
                .filter(|back| (a.row.fence..b.row.fence).contains(&back.fence))
                .map(|back| back.span),
        )
        .chain([a.span]);
    let undone = answers.any(|span| tails.touch(span.from, span.to));
    let close = if let Some((said, state)) = ended.clone().find_map(|end| Some((end.said, end.state?))) {
        Close::Settled(said, state)
    } else if let Some(back) = back {
        Close::Reclaimed(back)
    } else if let Some(end) = ended.clone().find(|end| end.span.from < to && goes_on(end.said)) {
        Close::MaybeSettled(end.said)
    } else if hidden {
        Close::Hidden
    } else {
        Close::Unexplained
    };
    Link {
        a,
        b,
        close,
        gap: history.blind.touch(from, to) || ghost,
        retried: acted(story, history, from, to, |deed| deed == Deed::Retry),
        moved: acted(story, history, from, to, moves),
        undone,
    }
}

/// Whether a job may run again after this verdict. One that ends it does not explain that it ran again, answered or not.
const fn goes_on(said: Said) -> bool {
    matches!(said, Said::Retry(_) | Said::Snooze(_) | Said::Hold(_) | Said::Release)
}

/// Whether an action of this sort may have met the job after `from` and before `to`.
pub(super) fn acted(
    story: &Story<'_>,
    history: &History,
    from: u64,
    to: u64,
    sort: impl Fn(Deed) -> bool,
) -> bool {
    let within = |span: crate::history::Span| from < span.to && span.from < to;
    story.acts.iter().any(|act| act.sure != Sure::Requested && within(act.span) && sort(act.deed))
        || history.wild.iter().any(|(span, deed)| within(*span) && sort(*deed))
}

/// Whether a cancel may have been asked for before `to`.
pub(super) fn cancel_asked(story: &Story<'_>, history: &History, to: u64) -> bool {
    story.acts.iter().any(|act| act.span.from < to && act.deed == Deed::Cancel)
        || history.wild.iter().any(|(span, deed)| span.from < to && *deed == Deed::Cancel)
}

/// Whether an action changes when a job is due.
pub(super) fn moves(deed: Deed) -> bool {
    matches!(deed, Deed::Reschedule(_) | Deed::Move)
}

/// Where the history surely saw the job last: the end of its newest lease, unless something may have happened to it since.
pub(super) fn last_seen(story: &Story<'_>, history: &History) -> Option<State> {
    let newest = story
        .runs
        .iter()
        .map(|run| run.row.fence)
        .chain(story.backs.iter().map(|back| back.fence))
        .chain(story.ends.iter().map(|end| end.fence))
        .max()?;
    let end = story.ends.iter().filter(|end| end.fence == newest);
    let back = story.backs.iter().filter(|back| back.fence == newest);
    let (state, span) = end
        .filter_map(|end| Some((end.state?, end.span)))
        .chain(back.map(|back| (back.state, back.span)))
        .next()?;
    let free = acted(story, history, span.from, NEVER, |deed| matches!(deed, Deed::Retry | Deed::Delete));
    (state.is_ended() && !free).then_some(state)
}
